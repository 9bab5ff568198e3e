#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use forebay_core::Kind;
use forebay_core::ids::WorkerName;

fn call() -> Call {
    Call { worker: WorkerName("w".to_owned()), instance: "i".to_owned(), ask: Ask::NextTask { wait_ms: 10 } }
}

#[test]
fn a_message_comes_back_as_it_went() {
    let envelope = Envelope::new(&call()).unwrap();
    let decoded = Envelope::decode(Bytes::from(envelope.encode_to_vec())).unwrap();
    assert_eq!(decoded.read::<Call>().unwrap(), call());
}

#[test]
fn another_version_is_refused_with_both_numbers() {
    let envelope = Envelope { version: CONTROL_VERSION + 1, ..Envelope::new(&call()).unwrap() };
    let error = envelope.read::<Call>().unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
    assert!(error.message.contains("version 2") && error.message.contains("this process 1"), "{error}");
}

#[test]
fn the_secret_does_not_show() {
    let registered = Registered { root: "/data".to_owned(), secret: [171; 32], term_ms: 20_000 };
    let shown = format!("{:?} {registered:?}", Answer::Registered(registered.clone()));
    assert!(!shown.contains("171") && !shown.contains("secret"), "{shown}");
}
