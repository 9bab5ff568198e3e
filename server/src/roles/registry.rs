//! Which workers are registered with this leader, and which of them the next stream goes to.
//!
//! Nothing here is durable: a new leader starts with an empty registry and fills it within a heartbeat, while the journal's leases run on.

use std::collections::{BTreeMap, BTreeSet};
use std::time::{Duration, Instant};

use forebay_core::dispatch::{self, Volatile};
use forebay_core::ids::WorkerName;
use forebay_core::{Error, Kind, Result};
use forebay_flight::control::{LeaseRef, StreamRef, WorkerAddress};
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio::sync::Notify;

/// How long a request for endpoints waits for a first worker.
const PATIENCE: Duration = Duration::from_secs(10);
/// Instances that were replaced and are remembered.
const REPLACED: usize = 256;

/// What the journal says that a worker holds.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Held {
    Task(LeaseRef),
    Stream(StreamRef),
}

#[derive(Debug)]
struct Entry {
    instance: String,
    address: WorkerAddress,
    seen: Instant,
    tasks: usize,
    streams: usize,
    /// Streams sent there since its last heartbeat.
    sent: usize,
    /// What its last heartbeat did not know of.
    missing: BTreeSet<Held>,
}

#[derive(Debug, Default)]
struct Inner {
    workers: BTreeMap<WorkerName, Entry>,
    replaced: BTreeSet<String>,
}

#[derive(Debug)]
pub(crate) struct Registry {
    term: Duration,
    inner: Mutex<Inner>,
    arrived: Notify,
}

impl Registry {
    pub(super) fn new(term: Duration) -> Self {
        Self { term, inner: Mutex::default(), arrived: Notify::new() }
    }

    pub(super) fn term(&self) -> Duration {
        self.term
    }

    /// Adds a worker. True when another process held its name until now: what that one held is over.
    pub(super) fn register(&self, worker: &WorkerName, instance: &str, address: WorkerAddress) -> Result<bool> {
        let mut inner = self.inner.lock();
        if inner.replaced.contains(instance) {
            return Err(Error::failed_precondition(format!("another process has registered as worker `{worker}` since"))
                .with_remedy("give each worker a --name of its own"));
        }
        let entry =
            Entry { instance: instance.to_owned(), address, seen: Instant::now(), tasks: 0, streams: 0, sent: 0, missing: BTreeSet::new() };
        let before = inner.workers.insert(worker.clone(), entry).filter(|b| b.instance != instance);
        let replaced = before.is_some();
        if let Some(before) = before {
            if inner.replaced.len() >= REPLACED {
                inner.replaced.pop_first();
            }
            inner.replaced.insert(before.instance);
        }
        drop(inner);
        self.arrived.notify_waiters();
        Ok(replaced)
    }

    /// Whether this process is registered under that name and its lease runs; any word renews it.
    pub(super) fn touch(&self, worker: &WorkerName, instance: &str) -> bool {
        let mut inner = self.inner.lock();
        match inner.workers.get_mut(worker).filter(|e| e.instance == instance) {
            Some(entry) if entry.seen.elapsed() < self.term => {
                entry.seen = Instant::now();
                true
            }
            _ => false,
        }
    }

    /// Notes a heartbeat. `unknown` is what the journal gives to the worker and the heartbeat lacks; returned is what the one before lacked
    /// too, and so what the worker never heard of, or forgot. One heartbeat proves nothing: an answer may have been on its way.
    pub(super) fn beat(&self, worker: &WorkerName, tasks: usize, streams: usize, unknown: BTreeSet<Held>) -> Vec<Held> {
        let mut inner = self.inner.lock();
        let Some(entry) = inner.workers.get_mut(worker) else { return Vec::new() };
        (entry.tasks, entry.streams, entry.sent) = (tasks, streams, 0);
        let lost = entry.missing.intersection(&unknown).cloned().collect();
        entry.missing = unknown;
        lost
    }

    /// True when the worker is there.
    pub(crate) fn drain(&self, worker: &WorkerName) -> bool {
        let mut inner = self.inner.lock();
        let entry = inner.workers.get_mut(worker);
        entry.map(|e| e.address.draining = true).is_some()
    }

    pub(super) fn is_draining(&self, worker: &WorkerName) -> bool {
        self.inner.lock().workers.get(worker).is_some_and(|e| e.address.draining)
    }

    pub(super) fn remove(&self, worker: &WorkerName) {
        self.inner.lock().workers.remove(worker);
    }

    /// Addresses of the workers that are there and take new work.
    pub(super) fn addresses(&self) -> Vec<String> {
        let inner = self.inner.lock();
        let there = |e: &&Entry| e.seen.elapsed() < self.term && !e.address.draining;
        inner.workers.values().filter(there).map(|e| e.address.address.clone()).collect()
    }

    /// Addresses for `count` streams, the least busy workers first, of `among` if one of those is there; none while there is no worker.
    fn chosen(&self, count: usize, among: &[WorkerName]) -> Option<Vec<String>> {
        let mut inner = self.inner.lock();
        let term = self.term;
        inner.workers.retain(|_, e| e.seen.elapsed() < term);
        let some = inner.workers.iter().any(|(name, e)| !e.address.draining && among.contains(name));
        let mut places = Vec::with_capacity(count);
        for _ in 0..count {
            let fit = inner.workers.iter_mut().filter(|(name, e)| !e.address.draining && (!some || among.contains(name)));
            let (_, free) = fit.min_by_key(|(_, e)| e.streams + e.sent)?;
            free.sent += 1;
            places.push(free.address.address.clone());
        }
        Some(places)
    }

    /// Chooses where `count` streams are read, at one of `among` where that is possible; waits a little for a first worker.
    ///
    /// # Errors
    /// `Unavailable` when there is none.
    pub(super) async fn choose(&self, count: usize, among: &[WorkerName]) -> Result<Vec<String>> {
        let chosen = async {
            loop {
                let arrived = self.arrived.notified();
                tokio::pin!(arrived);
                // Before the look, so that a worker that comes between the two is not missed.
                arrived.as_mut().enable();
                if let Some(places) = self.chosen(count, among) {
                    return places;
                }
                arrived.await;
            }
        };
        tokio::time::timeout(PATIENCE, chosen).await.map_err(|_| {
            Error::new(Kind::Unavailable, "no worker is registered that could serve this")
                .with_remedy("start one: forebay worker --dispatcher grpc://THIS:PORT --listen ADDR; `forebay workers` lists them")
        })
    }

    fn rows(&self) -> BTreeMap<WorkerName, Value> {
        let inner = self.inner.lock();
        let row = |e: &Entry| {
            json!({ "address": e.address.address, "slots": e.address.slots, "tasks": e.tasks, "streams": e.streams,
                "seen_ms": u64::try_from(e.seen.elapsed().as_millis()).unwrap_or(u64::MAX) })
        };
        inner.workers.iter().filter(|(_, e)| e.seen.elapsed() < self.term).map(|(name, e)| (name.clone(), row(e))).collect()
    }
}

/// Rows of `system.workers`: whoever holds a lease, and what is known of those that are registered.
pub(crate) fn worker_rows(volatile: &Volatile, registry: Option<&Registry>) -> Vec<Value> {
    let registered = registry.map(Registry::rows).unwrap_or_default();
    let row = |(worker, attached, draining): (WorkerName, bool, bool)| {
        let mut row = json!({ "worker": worker, "attached": attached, "draining": draining });
        if let (Some(known), Some(row)) = (registered.get(&worker).and_then(Value::as_object), row.as_object_mut()) {
            row.extend(known.iter().map(|(key, value)| (key.clone(), value.clone())));
        }
        row
    };
    dispatch::system_workers(volatile).into_iter().map(row).collect()
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used)]

    use super::*;

    fn address(n: u32) -> WorkerAddress {
        WorkerAddress { address: format!("w{n}:7070"), slots: 1, draining: false }
    }

    fn name(text: &str) -> WorkerName {
        WorkerName(text.to_owned())
    }

    #[test]
    fn streams_go_to_the_least_busy_and_never_to_one_that_drains() {
        let registry = Registry::new(Duration::from_secs(20));
        assert_eq!(registry.chosen(1, &[]), None);
        registry.register(&name("a"), "1", address(1)).unwrap();
        registry.register(&name("b"), "2", address(2)).unwrap();
        let mut first = registry.chosen(2, &[]).unwrap();
        first.sort();
        assert_eq!(first, ["w1:7070", "w2:7070"]);
        registry.beat(&name("a"), 0, 3, BTreeSet::new());
        registry.beat(&name("b"), 0, 0, BTreeSet::new());
        assert_eq!(registry.chosen(3, &[]).unwrap(), ["w2:7070", "w2:7070", "w2:7070"]);
        assert_eq!(registry.chosen(2, &[name("a"), name("c")]).unwrap(), ["w1:7070", "w1:7070"], "one of those that are named");
        assert_eq!(registry.chosen(1, &[name("c")]).unwrap(), ["w2:7070"], "none of them is there");
        assert!(registry.drain(&name("b")));
        assert_eq!(registry.chosen(1, &[]).unwrap(), ["w1:7070"]);
    }

    #[test]
    fn a_second_process_of_a_name_takes_it_and_the_first_does_not_come_back() {
        let registry = Registry::new(Duration::from_secs(20));
        assert!(!registry.register(&name("a"), "1", address(1)).unwrap());
        assert!(!registry.register(&name("a"), "1", address(1)).unwrap());
        assert!(registry.register(&name("a"), "2", address(2)).unwrap());
        assert!(!registry.touch(&name("a"), "1"));
        assert!(registry.touch(&name("a"), "2"));
        assert!(registry.register(&name("a"), "1", address(1)).unwrap_err().message.contains("another process"));
    }

    #[test]
    fn what_two_heartbeats_in_a_row_lack_is_taken_back() {
        let registry = Registry::new(Duration::from_secs(20));
        registry.register(&name("a"), "1", address(1)).unwrap();
        let job = forebay_core::ids::JobName("j".to_owned());
        let held = |n| Held::Stream(StreamRef { job: job.clone(), stream: forebay_core::dispatch::StreamId::new(n) });
        assert_eq!(registry.beat(&name("a"), 0, 0, [held(1), held(2)].into()), []);
        assert_eq!(registry.beat(&name("a"), 0, 0, [held(2), held(3)].into()), [held(2)]);
        assert_eq!(registry.beat(&name("a"), 0, 0, BTreeSet::new()), []);
    }
}
