//! A job's streams, and what would otherwise be found only by walking all of them: whose they are, on which worker, where their open visits are,
//! which windows their workers hold. All of that is derived: it is not written down, and made again when a state is read.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::ops::Deref;
use std::sync::Arc;

use super::job_state::{Newest, Stream};
use super::pass_state::{Share, Tally};
use super::spans::Span;
use super::state::StreamId;
use crate::ids::{ConsumerName, PassId, WindowId, WorkerName};

/// The streams by id, written as a map.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Streams {
    all: BTreeMap<StreamId, Stream>,
    /// In order of ids.
    by_consumer: BTreeMap<ConsumerName, Vec<StreamId>>,
    by_worker: BTreeMap<Arc<WorkerName>, AtWorker>,
    /// Closed, and named by no visit and no repetition.
    over: BTreeSet<StreamId>,
    /// Workers that hold windows with pending batches and have no open stream.
    forsaken: BTreeSet<Arc<WorkerName>>,
}

/// What of a job is on one worker.
#[derive(Debug, Clone, PartialEq, Default)]
struct AtWorker {
    streams: Vec<StreamId>,
    open: u32,
    /// Batches that its acknowledging streams hold.
    held: u64,
    /// Windows that it has the lease of.
    leased: VecDeque<(PassId, WindowId)>,
    /// Of those, the ones with pending batches.
    pending: VecDeque<(PassId, WindowId)>,
}

impl AtWorker {
    fn is_forsaken(&self) -> bool {
        self.open == 0 && !self.pending.is_empty()
    }

    fn is_empty(&self) -> bool {
        self.streams.is_empty() && self.leased.is_empty()
    }
}

fn insert<T: Ord>(list: &mut VecDeque<T>, item: T) {
    if let Err(at) = list.binary_search(&item) {
        if list.len() == list.capacity() {
            // Most workers hold one or two windows.
            list.reserve_exact(1 + list.len() / 2);
        }
        list.insert(at, item);
    }
}

fn remove<T: Ord>(list: &mut VecDeque<T>, item: &T) {
    if let Ok(at) = list.binary_search(item) {
        list.remove(at);
        if list.len() * 4 < list.capacity() {
            list.shrink_to(list.len() * 2);
        }
    }
}

impl Deref for Streams {
    type Target = BTreeMap<StreamId, Stream>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<'a> IntoIterator for &'a Streams {
    type Item = (&'a StreamId, &'a Stream);
    type IntoIter = std::collections::btree_map::Iter<'a, StreamId, Stream>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}

/// Looking.
impl Streams {
    /// A consumer's streams, closed ones that a visit names included, in order.
    pub fn of_consumer(&self, consumer: &ConsumerName) -> &[StreamId] {
        self.by_consumer.get(consumer).map_or(&[], Vec::as_slice)
    }

    /// Those on a worker, closed ones that a visit names included, in order.
    pub fn on_worker(&self, worker: &WorkerName) -> &[StreamId] {
        self.by_worker.get(worker).map_or(&[], |at| at.streams.as_slice())
    }

    pub fn has_open(&self, consumer: &ConsumerName) -> bool {
        self.of_consumer(consumer).iter().any(|id| self.all.get(id).is_some_and(|s| s.open))
    }

    /// Whether a worker's end changes anything: it has open streams, or visits that are not final, or leases.
    pub(super) fn is_busy(&self, worker: &WorkerName) -> bool {
        let live = |id: &StreamId| self.all.get(id).is_some_and(|s| s.open || s.held > 0);
        self.by_worker.get(worker).is_some_and(|at| !at.leased.is_empty() || at.streams.iter().any(live))
    }

    pub(super) fn has_open_on(&self, worker: &WorkerName) -> bool {
        self.by_worker.get(worker).is_some_and(|at| at.open > 0)
    }

    /// Batches that a worker's acknowledging streams hold.
    pub(super) fn held_on(&self, worker: &WorkerName) -> u64 {
        self.by_worker.get(worker).map_or(0, |at| at.held)
    }

    /// The first window of a pass that a worker holds and that has pending batches.
    pub(super) fn first_pending(&self, worker: &WorkerName, pass: PassId) -> Option<WindowId> {
        let pending = &self.by_worker.get(worker)?.pending;
        pending.get(pending.partition_point(|p| p.0 < pass)).filter(|p| p.0 == pass).map(|p| p.1)
    }

    /// The same among the workers that have no open stream.
    pub(super) fn first_forsaken(&self, pass: PassId) -> Option<WindowId> {
        self.forsaken.iter().filter_map(|worker| self.first_pending(worker, pass)).min()
    }

    /// Workers with leases, and which windows, the newest first.
    pub(super) fn leases(&self) -> impl Iterator<Item = (&WorkerName, impl Iterator<Item = &(PassId, WindowId)>)> {
        let holders = self.by_worker.iter().filter(|(_, at)| !at.leased.is_empty());
        holders.map(|(worker, at)| (worker.as_ref(), at.leased.iter().rev()))
    }

    pub(super) fn leased_to(&self, worker: &WorkerName) -> Vec<(PassId, WindowId)> {
        self.by_worker.get(worker).map(|at| at.leased.iter().copied().collect()).unwrap_or_default()
    }

    /// Windows where one of these streams has a visit that may still move.
    pub(super) fn movable(&self, streams: &[StreamId]) -> BTreeSet<(PassId, WindowId)> {
        streams.iter().filter_map(|id| self.all.get(id)).flat_map(|s| s.movable.iter().map(|(pass, window, _)| (*pass, *window))).collect()
    }

    /// Bytes of memory behind the lists of leased windows.
    pub fn lease_memory(&self) -> usize {
        self.by_worker.values().map(|at| (at.leased.capacity() + at.pending.capacity()) * size_of::<(PassId, WindowId)>()).sum()
    }

    /// Bytes of memory behind it but for those; the nodes of the maps are about three quarters full.
    pub fn memory(&self) -> usize {
        let nodes = |n: usize, bytes: usize| n * bytes * 4 / 3;
        let places = size_of::<(PassId, WindowId, u32)>();
        let streams: usize = self.all.values().map(|s| s.consumer.0.len() + s.worker.0.len() + s.movable.capacity() * places).sum();
        let consumers: usize = self.by_consumer.iter().map(|(name, ids)| name.0.len() + ids.capacity() * size_of::<StreamId>()).sum();
        let workers: usize =
            self.by_worker.iter().map(|(n, at)| n.0.len() + size_of::<WorkerName>() + at.streams.capacity() * size_of::<StreamId>()).sum();
        streams
            + consumers
            + workers
            + nodes(self.all.len(), size_of::<(StreamId, Stream)>())
            + nodes(self.by_consumer.len(), size_of::<(ConsumerName, Vec<StreamId>)>())
            + nodes(self.by_worker.len(), size_of::<(Arc<WorkerName>, AtWorker)>())
    }
}

/// Changing.
impl Streams {
    pub(super) fn insert(&mut self, id: StreamId, stream: Stream) {
        self.remove(id);
        let ids = self.by_consumer.entry(stream.consumer.clone()).or_default();
        if let Err(at) = ids.binary_search(&id) {
            ids.insert(at, id);
        }
        let worker = self.intern(&stream.worker);
        let at = self.by_worker.entry(worker).or_default();
        if let Err(place) = at.streams.binary_search(&id) {
            at.streams.insert(place, id);
        }
        at.open += u32::from(stream.open);
        at.held += if stream.acks { stream.held } else { 0 };
        if !stream.open && stream.named == 0 {
            self.over.insert(id);
        }
        let worker = stream.worker.clone();
        self.all.insert(id, stream);
        self.weigh(&worker);
    }

    fn remove(&mut self, id: StreamId) {
        let Some(stream) = self.all.remove(&id) else { return };
        self.over.remove(&id);
        if let Some(ids) = self.by_consumer.get_mut(&stream.consumer) {
            ids.retain(|i| *i != id);
            if ids.is_empty() {
                self.by_consumer.remove(&stream.consumer);
            }
        }
        if let Some(at) = self.by_worker.get_mut(&stream.worker) {
            at.streams.retain(|i| *i != id);
            at.open -= u32::from(stream.open);
            at.held = at.held.saturating_sub(if stream.acks { stream.held } else { 0 });
        }
        self.weigh(&stream.worker);
    }

    pub(super) fn close(&mut self, id: StreamId) {
        let Some(stream) = self.all.get_mut(&id).filter(|s| s.open) else { return };
        stream.open = false;
        if stream.named == 0 {
            self.over.insert(id);
        }
        let worker = stream.worker.clone();
        if let Some(at) = self.by_worker.get_mut(&worker) {
            at.open = at.open.saturating_sub(1);
        }
        self.weigh(&worker);
    }

    /// Closed streams stay while a visit or a repetition in the state names them.
    pub(super) fn forget(&mut self) {
        for id in std::mem::take(&mut self.over) {
            self.remove(id);
        }
    }

    /// Carries over what a stream has more or less of a window. Returns its rank, and whether it acknowledges.
    pub(super) fn shift(&mut self, id: StreamId, (pass, window): (PassId, WindowId), share: &Share) -> Option<(Option<u32>, bool)> {
        let stream = self.all.get_mut(&id)?;
        stream.held = stream.held.saturating_add_signed(share.held);
        if share.movable != 0 {
            stream.shift_movable(pass, window, share.movable);
        }
        let (rank, acks) = (stream.rank, stream.acks);
        if acks && share.held != 0 {
            let at = self.by_worker.get_mut(&stream.worker);
            if let Some(at) = at {
                at.held = at.held.saturating_add_signed(share.held);
            }
        }
        self.name(id, share.named);
        Some((rank, acks))
    }

    /// That many more visits and repetitions name a stream.
    pub(super) fn granted(&mut self, id: StreamId, pass: PassId, window: WindowId, (from, to): (u32, u32), padding: bool) {
        let Some(stream) = self.all.get_mut(&id) else { return };
        let number = stream.newest.map_or(0, |newest| newest.number) + 1;
        stream.newest = Some(Newest { number, pass, window, from, to, padding });
    }

    pub(super) fn name(&mut self, id: StreamId, more: i64) {
        let Some(stream) = self.all.get_mut(&id).filter(|_| more != 0) else { return };
        let before = stream.named;
        stream.named = before.saturating_add_signed(more);
        if !stream.open && stream.named == 0 {
            self.over.insert(id);
        } else if before == 0 {
            self.over.remove(&id);
        }
    }

    /// A window leaves the state with its visits.
    pub(super) fn forget_visits<'a>(&mut self, place: (PassId, WindowId), spans: impl Iterator<Item = &'a Span>, returns: bool) {
        let mut tally = Tally::start(Default::default(), 0, returns);
        for span in spans {
            tally.remove(span, u64::from(span.to - span.from));
        }
        for (id, share) in &tally.streams {
            self.shift(*id, place, &Share { held: 0, ..*share });
        }
    }

    /// The one copy of a worker's name.
    pub(super) fn intern(&self, worker: &WorkerName) -> Arc<WorkerName> {
        self.by_worker.get_key_value(worker).map_or_else(|| Arc::new(worker.clone()), |(name, _)| name.clone())
    }

    pub(super) fn lease(&mut self, worker: &Arc<WorkerName>, place: (PassId, WindowId), is_pending: bool) {
        let at = self.by_worker.entry(worker.clone()).or_default();
        insert(&mut at.leased, place);
        self.pend(worker, place, is_pending);
    }

    pub(super) fn unlease(&mut self, worker: &WorkerName, place: (PassId, WindowId)) {
        if let Some(at) = self.by_worker.get_mut(worker) {
            remove(&mut at.leased, &place);
            remove(&mut at.pending, &place);
        }
        self.weigh(worker);
    }

    /// A leased window has pending batches, or has none.
    pub(super) fn pend(&mut self, worker: &WorkerName, place: (PassId, WindowId), is_pending: bool) {
        if let Some(at) = self.by_worker.get_mut(worker) {
            if is_pending { insert(&mut at.pending, place) } else { remove(&mut at.pending, &place) }
        }
        self.weigh(worker);
    }

    fn weigh(&mut self, worker: &WorkerName) {
        let Some((name, at)) = self.by_worker.get_key_value(worker) else { return };
        match (at.is_forsaken(), self.forsaken.contains(worker)) {
            (true, false) => {
                let name = name.clone();
                self.forsaken.insert(name);
            }
            (false, true) => {
                self.forsaken.remove(worker);
            }
            _ => {}
        }
        if at.is_empty() {
            self.by_worker.remove(worker);
        }
    }

    /// With what is known of each stream, and nothing else, counted again: [`Self::reset`] does not.
    pub(super) fn recounted(&self) -> Self {
        let mut again = Self::default();
        self.all.iter().for_each(|(id, stream)| again.insert(*id, stream.clone()));
        for (worker, at) in &self.by_worker {
            at.leased.iter().for_each(|place| again.lease(worker, *place, at.pending.binary_search(place).is_ok()));
        }
        again
    }

    /// Forgets everything that [`super::Job`] derives from its windows.
    pub(super) fn reset(&mut self) {
        for stream in self.all.values_mut() {
            stream.named = 0;
            stream.movable = Vec::new();
        }
        self.over = self.all.iter().filter(|(_, s)| !s.open).map(|(id, _)| *id).collect();
        self.forsaken.clear();
        self.by_worker.retain(|_, at| {
            at.leased = VecDeque::new();
            at.pending = VecDeque::new();
            !at.streams.is_empty()
        });
    }
}

impl Serialize for Streams {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Streams {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut streams = Self::default();
        for (id, stream) in BTreeMap::<StreamId, Stream>::deserialize(deserializer)? {
            streams.insert(id, stream);
        }
        Ok(streams)
    }
}
