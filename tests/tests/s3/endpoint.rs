//! The endpoint itself: what it promises beyond s3s-fs, and that each fault is what it is called.

use std::time::Duration;

use forebay_tests::s3::{Conditions, Endpoint, Fault, Options, Rule};
use futures::future::join_all;
use futures::{StreamExt, TryStreamExt};
use http::Method;
use object_store::path::Path;
use object_store::{Error, ObjectStore, ObjectStoreExt, PutMode, UpdateVersion};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;

use super::support::{BUCKET, Store};
use crate::cluster::support::runtime;

/// A conditional create by hand: its body goes out when the endpoint asks for it, which is after it has looked whether the object is there.
struct Create(TcpStream);

impl Create {
    async fn announce(endpoint: &Endpoint) -> Self {
        let mut stream = TcpStream::connect(endpoint.address()).await.unwrap();
        let head = format!(
            "PUT /{BUCKET}/key HTTP/1.1\r\nhost: {}\r\ncontent-length: 4\r\nif-none-match: *\r\nexpect: 100-continue\r\n\r\n",
            endpoint.address()
        );
        stream.write_all(head.as_bytes()).await.unwrap();
        Self(stream)
    }

    /// The status of the next answer.
    async fn status(&mut self) -> u16 {
        let mut seen = Vec::new();
        while !seen.ends_with(b"\r\n\r\n") {
            seen.push(self.0.read_u8().await.unwrap());
        }
        String::from_utf8(seen).unwrap().split(' ').nth(1).unwrap().parse().unwrap()
    }

    async fn send(&mut self) {
        self.0.write_all(b"body").await.unwrap();
    }
}

fn unsigned(conditions: Conditions) -> Store {
    Store::with(|options| Options { keys: None, conditions, ..options })
}

#[test]
fn a_create_that_begins_while_another_is_under_way_loses() {
    let store = unsigned(Conditions::Atomic);
    runtime().block_on(async {
        let mut first = Create::announce(&store.endpoint).await;
        assert_eq!(first.status().await, 100, "it was looked for");
        let mut second = Create::announce(&store.endpoint).await;
        first.send().await;
        assert_eq!(first.status().await, 200);
        assert_eq!(second.status().await, 412);
    });
}

#[test]
fn without_the_lock_both_of_two_racing_creates_win() {
    let store = unsigned(Conditions::Racing);
    runtime().block_on(async {
        let (mut first, mut second) = (Create::announce(&store.endpoint).await, Create::announce(&store.endpoint).await);
        assert_eq!((first.status().await, second.status().await), (100, 100));
        first.send().await;
        second.send().await;
        assert_eq!((first.status().await, second.status().await), (200, 200), "s3s-fs became atomic: the lock may go");
    });
}

#[test]
fn of_many_racing_writers_one_wins_whatever_its_condition() {
    let store = Store::reliable();
    let client = store.client(|b| b);
    runtime().block_on(async {
        for round in 0..10 {
            let key = Path::from(format!("race/{round}"));
            let create = |n: usize| client.put_opts(&key, format!("create {n}").into(), PutMode::Create.into());
            let made = join_all((0..24).map(create)).await;
            let winners: Vec<_> = made.iter().enumerate().filter(|(_, r)| r.is_ok()).collect();
            assert_eq!(winners.len(), 1, "{made:?}");
            assert!(made.iter().all(|r| r.is_ok() || matches!(r, Err(Error::AlreadyExists { .. }))), "{made:?}");
            let stored = client.get(&key).await.unwrap();
            let tag = stored.meta.e_tag.clone();
            assert_eq!(stored.bytes().await.unwrap(), format!("create {}", winners[0].0));

            let version = UpdateVersion { e_tag: tag, version: None };
            let update = |n: usize| client.put_opts(&key, format!("update {n}").into(), PutMode::Update(version.clone()).into());
            let made = join_all((0..24).map(update)).await;
            assert_eq!(made.iter().filter(|r| r.is_ok()).count(), 1, "{made:?}");
        }
    });
}

#[test]
fn ignored_conditions_let_everybody_win() {
    let store = Store::with(|options| Options { conditions: Conditions::Ignored, ..options });
    let client = store.client(|b| b);
    runtime().block_on(async {
        let key = Path::from("key");
        for body in ["first", "second"] {
            client.put_opts(&key, body.into(), PutMode::Create.into()).await.unwrap();
        }
        assert_eq!(client.get(&key).await.unwrap().bytes().await.unwrap(), "second");
    });
}

#[test]
fn folders_are_no_objects_and_listings_survive_deletions() {
    let store = Store::reliable();
    let client = store.client(|b| b);
    runtime().block_on(async {
        for n in 0..40 {
            client.put(&Path::from(format!("a/{n}/b")), "x".into()).await.unwrap();
        }
        assert!(matches!(client.head(&Path::from("a/1")).await, Err(Error::NotFound { .. })));
        assert!(matches!(client.get(&Path::from("a")).await, Err(Error::NotFound { .. })));
        let nowhere = store.client(|b| b.with_bucket_name("nowhere"));
        assert!(matches!(nowhere.put(&Path::from("key"), "x".into()).await, Err(Error::NotFound { .. })), "no bucket comes by itself");
        assert!(matches!(client.delete(&Path::from("never")).await, Ok(()) | Err(Error::NotFound { .. })));
        let delete = async {
            for n in 0..40 {
                client.delete(&Path::from(format!("a/{n}/b"))).await.unwrap();
            }
        };
        let list = async {
            for _ in 0..20 {
                client.list(None).map_ok(|_| ()).try_collect::<Vec<_>>().await.unwrap();
            }
        };
        futures::join!(delete, list);
        assert_eq!(client.list(None).count().await, 0);
    });
}

#[test]
fn each_fault_is_what_it_is_called() {
    let store = Store::reliable();
    let client = store.client(|b| b);
    runtime().block_on(async {
        // (fault, whether the write is answered well, whether it lands)
        let cases = [
            (Fault::SlowDown, false, false),
            (Fault::Reset, false, false),
            (Fault::Slow(Duration::from_millis(5)), true, true),
            (Fault::LostAnswer, false, true),
            (Fault::LostConnection, false, true),
            (Fault::Conflict, false, false),
            (Fault::LostConflict, false, true),
        ];
        for (fault, answered, lands) in cases {
            let key = Path::from(format!("fault-{}", fault.name().replace(' ', "-")));
            store.endpoint.inject(Rule::once(fault, Method::PUT, "fault-"));
            let put = client.put_opts(&key, "content".into(), PutMode::Create.into()).await;
            assert_eq!(put.is_ok(), answered, "{fault:?}: {put:?}");
            let landed = client.get(&key).await.is_ok();
            assert_eq!(landed, lands, "{fault:?}");
        }
        let key = Path::from("long");
        client.put(&key, vec![7_u8; 100_000].into()).await.unwrap();
        store.endpoint.inject(Rule::once(Fault::Cut, Method::GET, "long"));
        let cut = async { client.get(&key).await?.bytes().await };
        assert!(cut.await.is_err(), "an answer that breaks off is an error");
        assert_eq!(client.get(&key).await.unwrap().bytes().await.unwrap().len(), 100_000);
        let shown = store.endpoint.shown();
        assert!(shown.len() == 8 && shown.values().all(|n| *n == 1), "{shown:?}");
    });
}

#[test]
fn drawn_faults_come_by_the_seed_until_it_relents() {
    let store = Store::faulty(3, 500);
    let client = store.client(|b| b);
    runtime().block_on(async {
        let key = Path::from("key");
        for _ in 0..60 {
            let _ = client.put(&key, "x".into()).await;
            let _ = client.get(&key).await;
        }
        let shown = store.endpoint.shown();
        assert!(shown.values().sum::<u64>() > 30 && shown.contains_key("reset") && shown.contains_key("lost answer"), "{shown:?}");
        store.endpoint.relent();
        for _ in 0..30 {
            client.put(&key, "x".into()).await.unwrap();
        }
        assert_eq!(store.endpoint.shown(), shown);
    });
}

#[test]
fn buckets_are_addressed_by_path_and_by_host() {
    let store = Store::with(|options| Options { domain: Some("s3.test".to_owned()), ..options });
    let by_path = store.client(|b| b);
    // Nothing resolves here, so the endpoint is its own proxy.
    let by_host = store.client(|b| {
        b.with_endpoint(format!("http://{BUCKET}.s3.test")).with_virtual_hosted_style_request(true).with_proxy_url(store.endpoint.url())
    });
    runtime().block_on(async {
        let key = Path::from("a/b");
        by_host.put_opts(&key, "by host".into(), PutMode::Create.into()).await.unwrap();
        assert_eq!(by_path.get(&key).await.unwrap().bytes().await.unwrap(), "by host");
        let again = by_path.put_opts(&key, "by path".into(), PutMode::Create.into()).await;
        assert!(matches!(again, Err(Error::AlreadyExists { .. })), "{again:?}");
    });
}
