//! Tokens, tickets, and servers that are not there.

use crate::backend::Double;
use crate::{Running, eventually};
use arrow_flight::{Action, Criteria, Empty, FlightData, FlightDescriptor, HandshakeRequest, Ticket};
use base64::Engine;
use forebay_core::Kind;
use forebay_flight::Client;
use forebay_flight::ticket::Claim;
use futures::{FutureExt, StreamExt, stream};
use serde_json::json;
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;
use tonic::{Code, Request};

const TOKEN: &str = "correct-horse";

async fn guarded() -> Running {
    Running::start(Double::new(5, 4, 5), |config| config.token = Some(TOKEN.to_owned())).await
}

fn with<T>(header: Option<&str>, message: T) -> Request<T> {
    let mut request = Request::new(message);
    if let Some(header) = header {
        request.metadata_mut().insert("authorization", header.parse().unwrap());
    }
    request
}

/// The code of every rpc but Handshake, called with one header.
async fn every_rpc(server: &Running, header: Option<&str>) -> Vec<(&'static str, Code)> {
    let mut raw = server.raw().await;
    let code = |status: Result<(), tonic::Status>| status.err().map_or(Code::Ok, |s| s.code());
    let path = || FlightDescriptor::new_path(vec!["digits".to_owned()]);
    let ticket = Ticket::new(server.key.sign(&Claim::Group(json!({"chunk": 0})), Duration::from_secs(60)).unwrap());
    let job = FlightData::new().with_descriptor(FlightDescriptor::new_cmd("{\"dataset\":\"digits\"}"));
    let mut codes = vec![
        ("ListFlights", code(raw.list_flights(with(header, Criteria::default())).await.map(|_| ()))),
        ("GetFlightInfo", code(raw.get_flight_info(with(header, path())).await.map(|_| ()))),
        ("PollFlightInfo", code(raw.poll_flight_info(with(header, path())).await.map(|_| ()))),
        ("GetSchema", code(raw.get_schema(with(header, path())).await.map(|_| ()))),
        ("DoGet", code(raw.do_get(with(header, ticket)).await.map(|_| ()))),
        ("DoAction", code(raw.do_action(with(header, Action::new("forebay.echo", ""))).await.map(|_| ()))),
        ("ListActions", code(raw.list_actions(with(header, Empty {})).await.map(|_| ()))),
        ("DoExchange", code(raw.do_exchange(with(header, stream::iter([job]))).await.map(|_| ()))),
    ];
    let put = FlightData::new().with_descriptor(path());
    let put = code(raw.do_put(with(header, stream::iter([put]))).await.map(|_| ()));
    // The put is not a whole one: past the gate it is refused for that.
    codes.push(("DoPut", if put == Code::InvalidArgument { Code::Ok } else { put }));
    codes
}

#[tokio::test]
async fn every_rpc_asks_for_the_token() {
    let server = guarded().await;
    let bad = [None, Some("Bearer wrong"), Some("Bearer "), Some("Basic Y29ycmVjdC1ob3JzZQ=="), Some(TOKEN), Some("Bearer correct-horse2")];
    for header in bad {
        for (rpc, code) in every_rpc(&server, header).await {
            assert_eq!(code, Code::Unauthenticated, "{rpc} with {header:?}");
        }
    }
    assert_eq!(server.stats.refused.load(SeqCst), 9 * bad.len() as u64);
    for header in ["Bearer correct-horse", "bearer correct-horse", "BEARER  correct-horse"] {
        for (rpc, code) in every_rpc(&server, Some(header)).await {
            assert_eq!(code, Code::Ok, "{rpc} with {header:?}");
        }
    }
}

#[tokio::test]
async fn the_client_sends_its_token_and_explains_its_lack() {
    let server = guarded().await;
    let addresses = [server.address.clone()];
    let client = Client::connect(&addresses, Some(TOKEN.to_owned())).await.unwrap();
    client.ping().await.unwrap();
    let job = client.open_job("{\"dataset\":\"digits\"}").await.unwrap();
    client.exchange(job.ticket, 1).await.unwrap().next().await.unwrap();
    assert!(!format!("{client:?}").contains(TOKEN));

    let error = Client::connect(&addresses, None).await.unwrap().ping().await.unwrap_err();
    assert!(error.kind == Kind::Unauthenticated && error.remedy.unwrap().contains("FOREBAY_TOKEN"));
    assert_eq!(Client::connect(&addresses, Some("a\nb".to_owned())).await.unwrap_err().kind, Kind::BadInput);
}

#[tokio::test]
async fn a_handshake_gives_a_token_that_every_rpc_takes() {
    let server = guarded().await;
    let basic = format!("Basic {}", base64::engine::general_purpose::STANDARD.encode(format!("ann:{TOKEN}")));
    let hello = || stream::iter([HandshakeRequest::default()]);
    let response = server.raw().await.handshake(with(Some(&basic), hello())).await.unwrap();
    let bearer = response.metadata().get("authorization").unwrap().to_str().unwrap().to_owned();
    assert!(bearer.starts_with("Bearer fb1."));
    assert!(every_rpc(&server, Some(&bearer)).await.iter().all(|(_, code)| *code == Code::Ok));
    for header in [None, Some("Basic Og=="), Some("Bearer wrong")] {
        assert_eq!(server.raw().await.handshake(with(header, hello())).await.unwrap_err().code(), Code::Unauthenticated, "{header:?}");
    }
    let open = Running::open(Double::new(5, 4, 5)).await;
    assert_eq!(open.raw().await.handshake(with(None, hello())).await.unwrap_err().code(), Code::Unimplemented);
}

#[tokio::test]
async fn only_tickets_of_this_server_open() {
    let server = Running::open(Double::new(5, 4, 5)).await;
    let client = server.client().await;
    let term = Duration::from_secs(60);
    let good = server.key.sign(&Claim::Group(json!({"chunk": 0})), term).unwrap();
    client.do_get(good.clone()).await.unwrap().collect().await.unwrap();

    let mut tampered = good.to_vec();
    let last = tampered.len() - 1;
    tampered[last] ^= 1;
    let foreign = forebay_flight::ticket::TicketKey::random().sign(&Claim::Group(json!({"chunk": 0})), term).unwrap();
    for (ticket, kind) in [
        (tampered.into(), Kind::Unauthenticated),
        (foreign, Kind::Unauthenticated),
        ("{\"chunk\":0}".into(), Kind::Unauthenticated),
        (bytes::Bytes::new(), Kind::Unauthenticated),
        (server.key.sign(&Claim::Group(json!({"chunk": 0})), Duration::ZERO).unwrap(), Kind::FailedPrecondition),
        (server.key.sign(&Claim::Session, term).unwrap(), Kind::BadInput),
    ] {
        assert_eq!(client.do_get(ticket.clone()).await.unwrap_err().kind, kind, "{ticket:?}");
    }
    // A dataset's ticket is no job's.
    let error = client.exchange(good, 1).await.unwrap().next().await.unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
}

#[tokio::test]
async fn nobody_there_is_unavailable_with_the_address() {
    let error = Client::connect(&["grpc://127.0.0.1:1".to_owned()], None).await.unwrap_err();
    assert!(error.kind == Kind::Unavailable && error.message.contains("grpc://127.0.0.1:1"), "{error}");
    for bad in ["s3://x:1", "grpc+tls://h:1", "grpc://nohostport", "grpc://h:1:2", ""] {
        assert_eq!(Client::connect(&[bad.to_owned()], None).await.unwrap_err().kind, Kind::BadInput, "{bad}");
    }
    // The second address is tried.
    let server = Running::open(Double::new(5, 4, 5)).await;
    let addresses = ["127.0.0.1:1".to_owned(), server.address.clone()];
    let client = Client::connect(&addresses, None).await.unwrap();
    assert_eq!(client.address(), server.address);
    client.ping().await.unwrap();

    server.stop().await.unwrap();
    let error = client.ping().await.unwrap_err();
    assert_eq!(error.kind, Kind::Unavailable, "{error:?}");
}

#[tokio::test]
async fn a_shutdown_ends_open_streams_in_time() {
    let mut double = Double::new(1000, 4000, 1000);
    double.batches = 100_000;
    let server = Running::open(double).await;
    let told = server.double.told.clone();
    let mut stream = server
        .raw()
        .await
        .do_get(Ticket::new(server.key.sign(&Claim::Job(json!({"job": "run1"})), Duration::from_secs(60)).unwrap()))
        .await
        .unwrap()
        .into_inner();
    stream.message().await.unwrap();
    server.stop().await.unwrap();
    // The stream's memory is freed though its consumer has stopped reading.
    eventually("the job stream is dropped", || told.dropped.load(SeqCst) == 1).await;
    assert_eq!(told.finished.load(SeqCst), 0);
    // What was on its way can be read; then comes the reason.
    let status = loop {
        match stream.message().await {
            Ok(Some(_)) => {}
            Ok(None) => panic!("a stream that was cut off ended well"),
            Err(status) => break status,
        }
    };
    assert_eq!(status.code(), Code::Unavailable, "{status:?}");
    assert!(stream.next().now_or_never().is_some());
}
