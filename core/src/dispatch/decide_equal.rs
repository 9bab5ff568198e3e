//! Ranks and steps: when a rank or a pass is over, where the common end is, and what fills a slot that a lost batch left.

use super::decide::Deciding;
use super::decide_fixed;
use super::decide_visits::{self, Asked};
use super::entry::Change;
use super::event::{Grant, Granted, Reply};
use super::job_state::Job;
use super::pass_state::Pass;
use super::spans::{Span, VisitState};
use super::state::StreamId;
use crate::error::{Error, Result};
use crate::ids::{BatchId, ConsumerName, PassId, WindowId};
use crate::job::End;

/// Whether a pass is over for everyone.
pub(super) fn is_over(job: &Job, pass: &Pass) -> bool {
    if pass.is_growing() {
        return false;
    }
    let redelivers = job.settings.redelivers();
    let Some(end) = pass.end else {
        return pass.pending() == 0 && (!redelivers || pass.counts.open() == 0);
    };
    // Whoever was told its end is not called back.
    let told = |rank: u32| pass.ranks.get(rank as usize).is_some_and(|s| s.told);
    if !ranks(job, pass).all(|rank| given(pass, rank) >= end || told(rank)) {
        return false;
    }
    if redelivers {
        return pass.counts.open() == 0 && pass.pads.iter().all(|p| p.acknowledged);
    }
    // What is still on its way may be lost, and its slot filled; a plain stream's end comes after this.
    let acknowledges = |id: &StreamId| job.streams.get(id).is_some_and(|s| s.acks);
    pass.held_acks == 0 && !pass.pads.iter().any(|p| !p.acknowledged && acknowledges(&p.stream))
}

/// The ranks that the pass goes on with.
fn ranks(job: &Job, pass: &Pass) -> impl Iterator<Item = u32> {
    let mapped = pass.map.as_ref().map(|map| map.last().ranks.iter().copied());
    let world = if mapped.is_none() { job.settings.world_size.unwrap_or(0) } else { 0 };
    mapped.into_iter().flatten().chain((0..world).filter(|r| !job.dropped_ranks.contains(r)))
}

fn given(pass: &Pass, rank: u32) -> u64 {
    pass.ranks.get(rank as usize).map_or(0, |s| s.given)
}

/// Whether a consumer has batches of a pass on their way that it will acknowledge, or that were not sent.
fn holds(job: &Job, id: PassId, pass: &Pass, consumer: &ConsumerName) -> bool {
    let streams = job.streams.of_consumer(consumer);
    let its = |id: &StreamId| job.streams.get(id).filter(|_| streams.binary_search(id).is_ok());
    let open = |s: &Span| {
        let stream = s.stream.as_ref().filter(|_| !s.state.is_final()).and_then(its);
        stream.is_some_and(|stream| stream.acks || s.state == VisitState::Granted)
    };
    let places = job.streams.movable(streams);
    let mut windows = places.iter().filter(|(pass, _)| *pass == id).filter_map(|(_, window)| pass.windows.get(window));
    windows.any(|w| w.spans.iter().any(open)) || pass.pads.iter().any(|p| !p.acknowledged && its(&p.stream).is_some_and(|s| s.acks))
}

/// What a rank gets next: batches, the end of its pass, or nothing now.
pub(super) fn next(d: &mut Deciding<'_>, a: &Asked<'_>, rank: u32) -> Result<()> {
    if a.pass.map.as_ref().is_some_and(|map| map.last().place_of(rank).is_none()) {
        return Err(Error::failed_precondition(format!(
            "rank {rank} of job `{}` was lost, and the others went on without it",
            a.job.settings.job
        ))
        .with_remedy("restore a commit to take it in again"));
    }
    let has = given(a.pass, rank);
    let growing = a.pass.is_growing();
    let left = match a.pass.end {
        Some(_) if !growing && moves_end(d, a) => return Ok(()),
        Some(end) => end.saturating_sub(has),
        None => u64::MAX,
    };
    let own = a.pass.map.as_ref().and_then(|map| decide_fixed::next_own(a.pass, map, rank));
    // While the epoch is being written, more may come for it, and nothing is filled or repeated before the last of its own.
    if growing && (left == 0 || own.is_none()) {
        return Ok(());
    }
    if left == 0 || (a.pass.end.is_none() && own.is_none()) {
        done(d, a);
        return Ok(());
    }
    match (&a.pass.map, own) {
        (Some(map), Some(batch)) => decide_fixed::grant_own(d, a, map, batch, left.min(a.most)),
        (Some(_), None) => {
            if !decide_fixed::grant_tail(d, a) {
                pad(d, a, rank, has);
            }
        }
        (None, _) if a.pass.pending() > 0 => decide_visits::grant_any(d, a, left.min(a.most)),
        (None, _) => pad(d, a, rank, has),
    }
    Ok(())
}

/// The rank has all of its pass. With redelivery on, the pass ends for everyone at once.
fn done(d: &mut Deciding<'_>, a: &Asked<'_>) {
    let waits = a.job.settings.redelivers();
    if waits || holds(a.job, a.pass_id, a.pass, &a.stream.consumer) {
        return;
    }
    let at = a.job.consumers.get(&a.stream.consumer).map_or(0, |c| c.at);
    decide_visits::end_of_pass(d, &a.job.settings.job, a.job, a.stream, at);
    d.job_changed(&a.job.settings.job);
}

/// Moves the common end earlier where lost batches leave too few for all; told to all.
fn moves_end(d: &mut Deciding<'_>, a: &Asked<'_>) -> bool {
    let (Some(end), false) = (a.pass.end, a.job.settings.end == End::Pad || a.pass.counts.lost == 0) else { return false };
    let to = match &a.pass.map {
        Some(map) => decide_fixed::common_end(a.pass, map, end),
        None => {
            let least = ranks(a.job, a.pass).map(|r| given(a.pass, r)).max().unwrap_or(0);
            let needed = |end: u64| ranks(a.job, a.pass).map(|r| end.saturating_sub(given(a.pass, r))).sum::<u64>();
            let mut to = end;
            while to > least && needed(to) > a.pass.pending() {
                to -= 1;
            }
            to
        }
    };
    if to == end {
        return false;
    }
    let job = a.job.settings.job.clone();
    d.job_changed(&job);
    d.push(Change::EndMoved { job, pass: a.pass_id, steps: to });
    true
}

/// Repeats an earlier batch, so that the rank makes as many steps as the others.
fn pad(d: &mut Deciding<'_>, a: &Asked<'_>, rank: u32, has: u64) {
    let pass = a.pass;
    let (Some(end), batches) = (pass.end, pass.deliverable) else { return };
    let slots: u64 = ranks(a.job, pass).map(|r| end.saturating_sub(given(pass, r))).sum();
    // As long as something real can still come, nothing is repeated.
    if batches == 0 || slots <= pass.pending() {
        return;
    }
    let mine = |stream: &StreamId| a.job.streams.get(stream).is_some_and(|s| s.consumer == a.stream.consumer);
    let confusing = |batch: u64| {
        let held = pass.visit(BatchId(batch)).is_some_and(|s| !s.state.is_final() && s.stream.as_ref().is_some_and(mine));
        held || pass.pads.iter().any(|p| p.batch.0 == batch && !p.acknowledged && mine(&p.stream))
    };
    let first = u64::from(rank).wrapping_add(has) % batches;
    let Some(batch) = (0..batches).map(|n| (first + n) % batches).find(|b| !confusing(*b)) else { return };
    let (window, _) = pass.place(BatchId(batch));
    d.push(Change::Padded { job: a.job.settings.job.clone(), pass: a.pass_id, stream: a.id, batch: BatchId(batch) });
    d.reply(Reply::Granted(Granted::Batches(Grant {
        pass: a.pass_id,
        epoch: pass.shape.epoch,
        version: pass.shape.version,
        run: pass.writer(),
        selection: pass.shape.selection.clone(),
        window,
        attempt: pass.windows.get(&WindowId(window.0)).map_or_else(Default::default, |w| w.attempt),
        batches: batch..batch + 1,
        every: 1,
        step: pass.map.as_ref().map(|_| has),
        padding: true,
    })));
}
