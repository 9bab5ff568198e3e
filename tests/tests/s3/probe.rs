//! A root's owner refuses a store that would let two owners overwrite each other.

use forebay_tests::s3::{Conditions, Fault, Options, Rule};
use http::Method;

use super::support::Store;

const SERVE: [&str; 5] = ["serve", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];
const DISPATCHER: [&str; 5] = ["dispatcher", "--listen", "127.0.0.1:0", "--http", "127.0.0.1:0"];

#[test]
fn stores_that_ignore_conditional_writes_are_refused() {
    let store = Store::with(|options| Options { conditions: Conditions::Ignored, ..options });
    for args in [SERVE, DISPATCHER] {
        let said = store.home().fails(2, &args);
        assert!(said.contains("the store at s3://bucket/root ignores conditional writes"), "{said}");
        assert!(said.contains("If-None-Match"), "it names the remedy: {said}");
    }
    assert_eq!(store.objects(""), Default::default(), "nothing was left there");
}

#[test]
fn faults_during_the_probe_are_no_verdict() {
    for fault in [Fault::Conflict, Fault::LostConflict, Fault::LostAnswer, Fault::LostConnection, Fault::SlowDown, Fault::Reset] {
        let store = Store::reliable();
        store.endpoint.inject(Rule { times: 2, ..Rule::once(fault, Method::PUT, "_forebay_probe") });
        let mut server = store.home().serve(&[]);
        assert_eq!(store.endpoint.shown().get(fault.name()), Some(&2), "{fault:?}");
        let (_, status) = server.end();
        assert_eq!(status, Some(0), "{fault:?}");
    }
}
