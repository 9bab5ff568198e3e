//! The part of the fold that is about jobs: who takes part, what has begun, what has ended. What becomes of visits is in `apply_visits`.

use super::entry::{Change, JobEnd};
use super::job_state::{Consumer, Job, JobPhase, Stream};
use super::pass_state::Pass;
use super::spans::{Fate, Reason, VisitState};
use super::state::{State, StreamId};
use super::{apply_commits, apply_visits};
use crate::ids::{Attempt, JobName, PassId, WindowId, WorkerName};

/// Batches of a window, as ranges of its places.
pub(super) type WindowParts = (WindowId, Vec<(u32, u32)>);

pub(super) fn apply(state: &mut State, change: &Change, at_ms: i64) {
    if let Change::JobCreated { settings, incarnation, epochs, restored } = change {
        let mut job = Job::new(settings.as_ref().clone(), epochs.clone(), *incarnation, at_ms);
        // The ledger and the commits speak of all incarnations of the name.
        if let Some(before) = state.jobs.get(&settings.job) {
            apply_commits::inherit(&mut job, before);
        }
        if let Some(restored) = restored {
            apply_commits::restore(&mut job, restored, at_ms);
        }
        state.jobs.insert(settings.job.clone(), job);
        return;
    }
    if let Change::StreamOpened { stream, .. } = change {
        state.next_stream = state.next_stream.max(StreamId::new(stream.get() + 1));
    }
    let Some(job) = job_of(change).and_then(|name| state.jobs.get_mut(name)) else { return };
    if !apply_membership(job, change, at_ms) {
        apply_visit(job, change, at_ms);
    }
}

/// Who takes part, through which streams. Returns whether the change was one of these.
fn apply_membership(job: &mut Job, change: &Change, at_ms: i64) -> bool {
    match change {
        Change::ConsumerJoined { consumer, rank, acks_by_action, session, .. } => {
            let new = Consumer {
                rank: *rank,
                acks_by_action: *acks_by_action,
                at: job.ended,
                fed: None,
                joined_ms: at_ms,
                session: *session,
                behind: None,
                called: None,
                reported: None,
            };
            job.consumers.join(consumer, new);
            job.seen_ranks.extend(*rank);
            if let Some(restored) = &mut job.restored {
                restored.joined.insert(consumer.clone());
            }
        }
        Change::ConsumerGone { consumer, reason, .. } => {
            apply_visits::consumer_gone(job, consumer, *reason, at_ms);
            job.streams.forget();
        }
        Change::StreamOpened { stream, consumer, worker, acks, .. } => {
            let rank = job.consumers.get(consumer).and_then(|c| c.rank);
            let (consumer, worker) = (consumer.clone(), worker.clone());
            let new = Stream { consumer, worker, acks: *acks, open: true, held: 0, rank, newest: None, named: 0, movable: Vec::new() };
            job.streams.insert(*stream, new);
        }
        Change::StreamClosed { stream, clean, .. } => {
            apply_visits::stream_closed(job, *stream, *clean, at_ms);
            job.streams.forget();
        }
        Change::Reported { consumer, number, streams, received, .. } => {
            apply_visits::reported(job, consumer, *number, streams, received, at_ms);
            job.streams.forget();
        }
        Change::WorkerGone { worker, .. } => {
            apply_visits::worker_gone(job, worker, at_ms);
            job.streams.forget();
        }
        Change::ConsumerAdvanced { consumer, at, .. } => {
            let Some((rank, over)) = job.consumers.get(consumer).map(|c| (c.rank, c.at)) else { return true };
            job.consumers.update(consumer, |c| c.at = *at);
            let pass = job.pass_at(over).and_then(|id| job.passes.get_mut(&id));
            if let Some(share) = rank.zip(pass).and_then(|(rank, pass)| pass.ranks.get_mut(rank as usize)) {
                share.told = true;
            }
        }
        Change::RankDropped { rank, from, end, .. } => apply_visits::rank_dropped(job, *rank, *from, *end, at_ms),
        _ => return false,
    }
    true
}

fn apply_visit(job: &mut Job, change: &Change, at_ms: i64) {
    match change {
        Change::PassStarted { pass, shape, .. } => {
            let done = std::mem::take(&mut job.resume);
            job.started += 1;
            job.passes.insert(*pass, Pass::new(*pass, shape.clone(), &job.settings, job.ranks(), &done, at_ms));
            apply_commits::remember_shape(job, *pass);
        }
        Change::PassGrown { pass, shape, .. } => {
            if let Some(growing) = job.passes.get_mut(pass) {
                growing.grow(&mut job.streams, shape, &job.settings, at_ms);
            }
            apply_commits::remember_shape(job, *pass);
        }
        Change::WindowLeased { pass, window, worker, attempt, .. } => window_leased(job, *pass, *window, worker, *attempt),
        Change::Granted { pass, window, stream, from, to, .. } => {
            apply_visits::granted(job, *pass, *window, *stream, (*from, *to), at_ms);
        }
        Change::Padded { pass, stream, batch, .. } => apply_visits::padded(job, *pass, *stream, *batch),
        Change::Sent { pass, stream, batches, .. } => apply_visits::sent(job, *pass, *stream, batches, at_ms),
        Change::Acknowledged { pass, consumer, batches, .. } => apply_visits::acknowledged(job, *pass, consumer, batches, at_ms),
        Change::EndMoved { pass, steps, .. } => {
            if let Some(pass) = job.passes.get_mut(pass) {
                pass.end = Some(*steps);
            }
        }
        Change::PassEnded { pass, .. } => {
            apply_visits::pass_ended(job, *pass, at_ms);
            forget_pass(job, *pass);
        }
        Change::JobEnded { end, .. } => end_job(job, end, at_ms),
        Change::Watermark { pass, windows, parts, ledger, number, .. } => watermark(job, *pass, windows, parts, ledger, *number),
        Change::CommitCalled { consumer, commit, call, .. } => apply_commits::commit_called(job, consumer, *commit, *call),
        Change::Committed { commit, place, next, uneven, .. } => {
            apply_commits::committed(job, *commit, *place, *next, uneven.as_ref(), at_ms);
        }
        _ => {}
    }
}

fn job_of(change: &Change) -> Option<&JobName> {
    match change {
        Change::ConsumerJoined { job, .. }
        | Change::ConsumerGone { job, .. }
        | Change::StreamOpened { job, .. }
        | Change::StreamClosed { job, .. }
        | Change::PassStarted { job, .. }
        | Change::PassGrown { job, .. }
        | Change::WindowLeased { job, .. }
        | Change::Granted { job, .. }
        | Change::Sent { job, .. }
        | Change::Acknowledged { job, .. }
        | Change::WorkerGone { job, .. }
        | Change::ConsumerAdvanced { job, .. }
        | Change::PassEnded { job, .. }
        | Change::JobEnded { job, .. }
        | Change::Reported { job, .. }
        | Change::Padded { job, .. }
        | Change::EndMoved { job, .. }
        | Change::RankDropped { job, .. }
        | Change::CommitCalled { job, .. }
        | Change::Committed { job, .. }
        | Change::Watermark { job, .. } => Some(job),
        _ => None,
    }
}

fn window_leased(job: &mut Job, pass: PassId, id: WindowId, worker: &WorkerName, attempt: Attempt) {
    if let Some(pass) = job.passes.get_mut(&pass) {
        pass.lease(&mut job.streams, id, worker, attempt);
    }
}

pub(super) fn end_job(job: &mut Job, end: &JobEnd, at_ms: i64) {
    if matches!(job.phase, JobPhase::Ended { .. }) {
        return;
    }
    apply_visits::change_open(job, None, at_ms, |span| {
        if span.state == VisitState::Acknowledged { Fate::Keep } else { Fate::lost(Reason::JobStopped) }
    });
    job.phase = JobPhase::Ended { end: end.clone(), at_ms };
    job.consumers.clear();
    for id in job.streams.keys().copied().collect::<Vec<_>>() {
        job.streams.close(id);
    }
    for pass in job.passes.values_mut() {
        for window in pass.windows.keys().copied().collect::<Vec<_>>() {
            pass.unlease(&mut job.streams, window);
        }
    }
}

fn watermark(job: &mut Job, id: PassId, windows: &[WindowId], parts: &[WindowParts], ledger: &[String], number: u64) {
    // One ledger write may close windows of several passes, with one entry each.
    if number >= job.next_ledger {
        job.ledger.extend_from_slice(ledger);
        job.next_ledger = number + 1;
    }
    if let Some(pass) = job.passes.get_mut(&id) {
        for window in windows {
            if let Some(gone) = pass.remove_window(&mut job.streams, *window) {
                apply_commits::forget_window(pass, *window, &gone);
                pass.ledger = pass.ledger.plus(&gone.counts());
            }
        }
        for (window, parts) in parts {
            pass.fold(&mut job.streams, *window, parts);
        }
    }
    forget_pass(job, id);
    job.streams.forget();
}

/// A pass that ended and is wholly in the ledger leaves its counts behind.
fn forget_pass(job: &mut Job, id: PassId) {
    let over = |p: &Pass| p.ended && p.ledger.total() == p.batches;
    if job.passes.get(&id).is_some_and(over)
        && let Some(mut pass) = job.passes.remove(&id)
    {
        for window in pass.windows.keys().copied().collect::<Vec<_>>() {
            pass.remove_window(&mut job.streams, window);
        }
        job.closed = job.closed.plus(&pass.counts);
    }
}
