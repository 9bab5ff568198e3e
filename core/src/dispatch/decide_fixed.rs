//! `static` and `rounds`: which of its own batches a rank gets next, and what lies behind the common end.

use std::collections::BTreeSet;

use super::decide::Deciding;
use super::decide_visits::{Asked, room_of};
use super::event::{Granted, Reply};
use super::job_state::Job;
use super::map::Map;
use super::pass_state::Pass;
use crate::ids::{Attempt, BatchId, PassId, WindowId, WorkerName};

/// The rank's first batch that is pending, before the common end.
pub(super) fn next_own(pass: &Pass, map: &Map, rank: u32) -> Option<u64> {
    let per = pass.batches_per_window();
    let cursor = pass.ranks.get(rank as usize).map_or(0, |s| s.cursor.0);
    let end = own_end(pass, map);
    let mut batch = map.next_of(rank, pass.first.max(cursor * per))?;
    while batch < end {
        if let Some(found) = first_pending(pass, map, rank, batch) {
            return Some(found).filter(|b| *b < end);
        }
        let next_window = (batch / per + 1) * per;
        batch = map.next_of(rank, next_window)?;
    }
    None
}

/// Batches from here on are not given by the map.
fn own_end(pass: &Pass, map: &Map) -> u64 {
    pass.end.map_or(pass.deliverable, |end| map.batch_at(end).min(pass.deliverable))
}

/// The first pending batch of the rank in the window of `batch`, from it on.
fn first_pending(pass: &Pass, map: &Map, rank: u32, batch: u64) -> Option<u64> {
    let per = pass.batches_per_window();
    let (id, at) = pass.place(BatchId(batch));
    let Some(window) = pass.windows.get(&id) else { return (!pass.is_in_ledger(id)).then_some(batch) };
    if window.pending() == 0 {
        return None;
    }
    if map.is_single() {
        // Its batches of the window lie side by side.
        let to = class_end(pass, id, batch);
        return window.spans.gap_in(at, to, 1).map(|(at, _)| pass.batch(id, at).0);
    }
    let mut next = Some(batch);
    while let Some(b) = next.filter(|b| *b < (id.0 + 1) * per && *b < pass.batches) {
        if pass.is_pending(BatchId(b)) {
            return Some(b);
        }
        next = map.next_of(rank, b + 1);
    }
    None
}

/// The place behind the last batch of the window that is of the same rank as `batch`.
fn class_end(pass: &Pass, id: WindowId, batch: u64) -> u32 {
    let world = pass.map.as_ref().map_or(1, Map::world);
    let offset = batch - id.0 * pass.batches_per_window();
    let to = pass.layout(id).map_or(0, |layout| layout.start(offset % world + 1));
    u32::try_from(to).unwrap_or(u32::MAX)
}

/// Grants the rank's next batches, in order, if their steps are open and this is the stream that gets them.
pub(super) fn grant_own(d: &mut Deciding<'_>, a: &Asked<'_>, map: &Map, batch: u64, most: u64) {
    let most = if a.stream.acks { most.min(room_of(a.job, a.pass, a.stream)) } else { most };
    let open = steps_open(a.pass, map, batch).min(most);
    let (id, at) = a.pass.place(BatchId(batch));
    let holder = a.pass.windows.get(&id).and_then(|w| w.worker.as_deref()).filter(|h| !d.volatile.is_draining(h));
    if open == 0 || holder.is_some_and(|h| *h != a.stream.worker && !serves(a, h)) {
        return;
    }
    let to = if map.is_single() { run_end(a.pass, map, id, (batch, at), open) } else { at + 1 };
    let last = a.pass.batch(id, to - 1).0;
    if let Some(attempt) = lease_up_to(d, a, id) {
        d.grant(a, (id, attempt), (at, to), batch..last + 1, map.world());
    }
}

/// Whether this stream gets its rank's batches of a window that another worker has. One that the rank has to that worker would, or else its
/// oldest: two that go on at once would change the order of the batches. Most consumers have one, and the window is read here too.
fn serves(a: &Asked<'_>, holder: &WorkerName) -> bool {
    let its = a.job.streams.of_consumer(&a.stream.consumer).iter();
    let mut others = its.filter_map(|id| Some((*id, a.job.streams.get(id).filter(|s| s.open)?))).filter(|(id, _)| *id != a.id);
    !others.any(|(id, stream)| stream.worker == *holder || id < a.id)
}

/// Where the run of pending batches of the rank ends that begins at `at`.
fn run_end(pass: &Pass, map: &Map, id: WindowId, (batch, at): (u64, u32), most: u64) -> u32 {
    let before_end = own_end(pass, map).saturating_sub(batch).div_ceil(map.world());
    let limit = u32::try_from(most.min(before_end)).unwrap_or(u32::MAX);
    let to = class_end(pass, id, batch);
    match pass.windows.get(&id) {
        Some(window) => window.spans.gap_in(at, to, limit).map_or(at + 1, |(_, to)| to),
        None => to.min(at.saturating_add(limit)),
    }
}

/// How many steps from this batch's on are open: in rounds those up to the first that was not sent to all.
fn steps_open(pass: &Pass, map: &Map, batch: u64) -> u64 {
    if !pass.rounds || pass.lead >= pass.deliverable {
        return u64::MAX;
    }
    (map.step_of(pass.lead) + 1).saturating_sub(map.step_of(batch))
}

/// Leases a window, and those before it that nobody has begun, to the stream's worker unless it or another one has it. None when the job's open
/// windows are with as many workers as they may be: the stream ends, and its consumer goes on with those.
fn lease_up_to(d: &mut Deciding<'_>, a: &Asked<'_>, id: WindowId) -> Option<Attempt> {
    let window = a.pass.windows.get(&id);
    if let Some(window) = window.filter(|w| w.worker.as_deref() == Some(&a.stream.worker)) {
        return Some(window.attempt);
    }
    let holders: BTreeSet<&WorkerName> = holders(a.job, a.pass_id).filter(|h| !d.volatile.is_draining(h)).collect();
    if holders.len() >= d.volatile.map_workers() && !holders.contains(&a.stream.worker) {
        d.reply(Reply::Granted(Granted::Drain));
        return None;
    }
    if let Some(window) = window.filter(|w| w.worker.as_deref().is_some_and(|h| !d.volatile.is_draining(h))) {
        // Grants belong to streams: the window is read twice, and its lease stays.
        return Some(window.attempt);
    }
    let mut fresh = a.pass.next_window;
    while let Some(next) = a.pass.next_fresh(fresh).filter(|next| *next < id) {
        d.lease(a, next, Attempt(0));
        fresh = WindowId(next.0 + 1);
    }
    let attempt = window.filter(|_| id < a.pass.next_window).map_or(Attempt(0), |w| Attempt(w.attempt.0 + 1));
    Some(d.lease(a, id, attempt))
}

/// Workers that hold windows of a pass with batches that are not final.
pub(super) fn holders(job: &Job, of: PassId) -> impl Iterator<Item = &WorkerName> {
    let is_open = move |(pass, window): &(PassId, WindowId)| {
        let window = job.passes.get(pass).filter(|_| *pass == of).and_then(|p| p.windows.get(window));
        window.is_some_and(|w| !w.is_closed())
    };
    job.streams.leases().filter_map(move |(worker, mut windows)| windows.any(is_open).then_some(worker))
}

/// Fills a slot with a batch from behind the common end. False when there is none.
pub(super) fn grant_tail(d: &mut Deciding<'_>, a: &Asked<'_>) -> bool {
    let Some(map) = &a.pass.map else { return false };
    let Some(batch) = tail(a.pass, map, a.pass.end.unwrap_or(u64::MAX)).next() else { return false };
    let (id, at) = a.pass.place(BatchId(batch));
    let holder = a.pass.windows.get(&id).and_then(|w| w.worker.as_deref()).filter(|h| !d.volatile.is_draining(h));
    if holder.is_none_or(|h| *h == a.stream.worker || serves(a, h))
        && let Some(attempt) = lease_up_to(d, a, id)
    {
        d.grant(a, (id, attempt), (at, at + 1), batch..batch + 1, 1);
    }
    true
}

/// Pending batches behind an end.
fn tail<'a>(pass: &'a Pass, map: &Map, end: u64) -> impl Iterator<Item = u64> + 'a {
    let from = if end == u64::MAX { pass.deliverable } else { map.batch_at(end) };
    (from..pass.deliverable).filter(|b| pass.is_pending(BatchId(*b)))
}

/// The common end with which the tail has a batch for every slot that lost one; steps that were begun stay.
pub(super) fn common_end(pass: &Pass, map: &Map, end: u64) -> u64 {
    let shares = map.last().ranks.iter().filter_map(|r| pass.ranks.get(*r as usize));
    let empty: u64 = shares.map(|s| s.lost.saturating_sub(s.filled)).sum();
    let mut to = end;
    while to > map.last().step && (tail(pass, map, to).count() as u64) < empty {
        let step = map.batch_at(to - 1)..map.batch_at(to).min(pass.deliverable);
        if !step.clone().all(|b| pass.is_pending(BatchId(b))) {
            break;
        }
        to -= 1;
    }
    to
}
