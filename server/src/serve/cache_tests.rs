#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::{Admission, Cache, Limits, Usage};
use forebay_core::{Error, Kind};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

type Texts = Cache<&'static str, String>;

fn cache(idle: u64, pinned: u64) -> Arc<Texts> {
    Cache::new(Limits { idle, pinned, patience: Duration::from_millis(200) })
}

async fn load(cache: &Arc<Texts>, key: &'static str, bytes: u64) -> super::Pins<&'static str, String> {
    let pins = cache.pin(&[(key, bytes)], 0, Admission::Wait).await.unwrap().unwrap();
    pins.get(0, async { Ok((key.to_owned(), bytes)) }).await.unwrap();
    pins
}

fn usage(items: usize, idle_bytes: u64, pinned_bytes: u64) -> Usage {
    Usage { items, idle_bytes, pinned_bytes }
}

#[tokio::test]
async fn the_least_recently_used_idle_item_goes_first() {
    let cache = cache(20, 100);
    for key in ["a", "b", "a", "c"] {
        drop(load(&cache, key, 10).await);
    }
    assert_eq!(cache.usage(), usage(2, 20, 0));
    let pins = cache.pin(&[("a", 10), ("b", 10), ("c", 10)], 0, Admission::Wait).await.unwrap().unwrap();
    let loads = AtomicUsize::new(0);
    for at in 0..3 {
        pins.get(at, async {
            loads.fetch_add(1, Ordering::Relaxed);
            Ok((String::new(), 10))
        })
        .await
        .unwrap();
    }
    assert_eq!(loads.load(Ordering::Relaxed), 1, "only `b` was gone");
}

#[tokio::test]
async fn an_item_larger_than_every_limit_is_used_and_dropped() {
    let cache = cache(20, 50);
    let pins = load(&cache, "huge", 1_000).await;
    assert_eq!(cache.usage(), usage(1, 0, 1_000));
    drop(pins);
    assert_eq!(cache.usage(), usage(0, 0, 0));
}

#[tokio::test]
async fn many_ask_and_one_loads() {
    let cache = cache(20, 50);
    let loads = Arc::new(AtomicUsize::new(0));
    let tasks: Vec<_> = (0..16)
        .map(|_| {
            let (cache, loads) = (cache.clone(), loads.clone());
            tokio::spawn(async move {
                let pins = cache.pin(&[("a", 10)], 0, Admission::Wait).await.unwrap().unwrap();
                let item = pins.get(0, async {
                    loads.fetch_add(1, Ordering::Relaxed);
                    tokio::time::sleep(Duration::from_millis(20)).await;
                    Ok(("a".to_owned(), 10))
                });
                assert_eq!(*item.await.unwrap(), "a");
            })
        })
        .collect();
    for task in tasks {
        task.await.unwrap();
    }
    assert_eq!(loads.load(Ordering::Relaxed), 1);
}

/// The one that was loading goes away, or fails: somebody else loads.
#[tokio::test]
async fn an_abandoned_load_is_taken_over() {
    let cache = cache(20, 50);
    let pins = cache.pin(&[("a", 10)], 0, Admission::Wait).await.unwrap().unwrap();
    let never = pins.get(0, std::future::pending());
    assert!(tokio::time::timeout(Duration::from_millis(10), never).await.is_err());
    let failed = pins.get(0, async { Err(Error::internal("disk")) }).await;
    assert_eq!(failed.unwrap_err().message, "disk");
    let item = pins.get(0, async { Ok(("a".to_owned(), 10)) }).await.unwrap();
    assert_eq!(*item, "a");
    drop(pins);
    assert_eq!(cache.usage(), usage(1, 10, 0));
}

#[tokio::test]
async fn what_failed_to_load_leaves_nothing() {
    let cache = cache(20, 50);
    let pins = cache.pin(&[("a", 10)], 7, Admission::Wait).await.unwrap().unwrap();
    assert!(pins.get(0, async { Err(Error::internal("disk")) }).await.is_err());
    assert_eq!(cache.usage(), usage(1, 0, 17));
    drop(pins);
    assert_eq!(cache.usage(), usage(0, 0, 0));
}

#[tokio::test]
async fn a_reader_waits_for_room_and_reading_ahead_does_not() {
    let cache = cache(0, 100);
    let first = load(&cache, "a", 80).await;
    assert!(cache.pin(&[("b", 30)], 0, Admission::IfRoom).await.unwrap().is_none());
    assert!(cache.pin(&[("b", 20)], 0, Admission::IfRoom).await.unwrap().is_some(), "what fits is taken");
    let waiting = tokio::spawn({
        let cache = cache.clone();
        async move { cache.pin(&[("b", 30)], 0, Admission::Wait).await.unwrap().is_some() }
    });
    tokio::time::sleep(Duration::from_millis(20)).await;
    assert!(!waiting.is_finished());
    drop(first);
    assert!(waiting.await.unwrap());
}

#[tokio::test]
async fn items_in_use_are_shared_beyond_the_limit() {
    let cache = cache(0, 100);
    let first = load(&cache, "a", 100).await;
    // Nothing more is needed, so nobody has to wait.
    let second = cache.pin(&[("a", 100)], 0, Admission::IfRoom).await.unwrap().unwrap();
    drop(first);
    assert_eq!(cache.usage(), usage(1, 0, 100));
    drop(second);
    assert_eq!(cache.usage(), usage(0, 0, 0));
}

#[tokio::test]
async fn waiting_in_vain_says_what_to_do() {
    let cache = cache(0, 100);
    let _held = load(&cache, "a", 80).await;
    let error = cache.pin(&[("b", 30)], 5, Admission::Wait).await.unwrap_err();
    assert_eq!(error.kind, Kind::ResourceExhausted);
    assert!(error.message.contains("window of 35 bytes") && error.remedy.unwrap().contains("--memory-limit"));
}

#[tokio::test]
async fn true_sizes_replace_estimates() {
    let cache = cache(100, 100);
    let pins = cache.pin(&[("a", 10)], 10, Admission::Wait).await.unwrap().unwrap();
    pins.get(0, async { Ok((String::new(), 33)) }).await.unwrap();
    assert_eq!(cache.usage(), usage(1, 0, 43));
    drop(pins);
    assert_eq!(cache.usage(), usage(1, 33, 0));
}
