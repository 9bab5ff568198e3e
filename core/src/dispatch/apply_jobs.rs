//! The part of the fold that is about jobs and visits.

use std::collections::BTreeSet;

use super::entry::{Change, JobEnd};
use super::job_state::{Consumer, Job, JobPhase, Pass, Stream, Window};
use super::spans::{Reason, Span, VisitState};
use super::state::{State, StreamId};
use crate::ids::{Attempt, BatchId, ConsumerName, JobName, PassId, WindowId, WorkerName};

pub(super) fn apply(state: &mut State, change: &Change, at_ms: i64) {
    if let Change::JobCreated { settings, incarnation, epochs } = change {
        let mut job = Job::new(settings.as_ref().clone(), epochs.clone(), *incarnation, at_ms);
        // The ledger speaks of all incarnations of the name.
        if let Some(before) = state.jobs.get(&settings.job) {
            (job.next_ledger, job.ledger) = (before.next_ledger, before.ledger.clone());
        }
        state.jobs.insert(settings.job.clone(), job);
        return;
    }
    if let Change::StreamOpened { stream, .. } = change {
        state.next_stream = state.next_stream.max(StreamId(stream.0 + 1));
    }
    let Some(job) = job_of(change).and_then(|name| state.jobs.get_mut(name)) else { return };
    match change {
        Change::ConsumerJoined { consumer, rank, acks_by_action, .. } => {
            let at = job.ended;
            let new = Consumer { rank: *rank, acks_by_action: *acks_by_action, at, fed: None, joined_ms: at_ms };
            job.consumers.entry(consumer.clone()).or_insert(new);
        }
        Change::ConsumerGone { consumer, reason, .. } => {
            consumer_gone(job, consumer, *reason, at_ms);
            forget_streams(job);
        }
        Change::StreamOpened { stream, consumer, worker, acks, .. } => {
            job.streams.insert(*stream, Stream { consumer: consumer.clone(), worker: worker.clone(), acks: *acks, open: true, held: 0 });
        }
        Change::StreamClosed { stream, clean, .. } => {
            stream_closed(job, *stream, *clean, at_ms);
            forget_streams(job);
        }
        Change::PassStarted { pass, shape, .. } => {
            job.started = job.ended + 1;
            job.passes.insert(*pass, Pass::new(shape.clone(), &job.settings, at_ms));
        }
        Change::WindowLeased { pass, window, worker, attempt, .. } => window_leased(job, *pass, *window, worker, *attempt),
        Change::Granted { pass, window, stream, from, to, .. } => {
            let span = Span { from: *from, to: *to, state: VisitState::Granted, stream: Some(*stream), at_ms, reason: None };
            if let Some(pass) = job.passes.get_mut(pass) {
                pass.change(&mut job.streams, *window, |w, tally| w.spans.cover(span, tally));
            }
            let consumer = job.streams.get(stream).map(|s| &s.consumer);
            if let Some(consumer) = consumer.and_then(|c| job.consumers.get_mut(c)) {
                consumer.fed = Some(*pass);
            }
        }
        Change::Sent { pass, stream, batches, .. } => sent(job, *pass, *stream, batches, at_ms),
        Change::Acknowledged { pass, consumer, batches, .. } => acknowledged(job, *pass, consumer, batches, at_ms),
        Change::WorkerGone { worker, .. } => {
            worker_gone(job, worker, at_ms);
            forget_streams(job);
        }
        Change::ConsumerAdvanced { consumer, at, .. } => {
            if let Some(consumer) = job.consumers.get_mut(consumer) {
                consumer.at = *at;
            }
        }
        Change::PassEnded { pass, .. } => pass_ended(job, *pass),
        Change::JobEnded { end, .. } => end_job(job, end, at_ms),
        Change::Watermark { pass, windows, ledger, number, .. } => watermark(job, *pass, windows, ledger, *number),
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
        | Change::WindowLeased { job, .. }
        | Change::Granted { job, .. }
        | Change::Sent { job, .. }
        | Change::Acknowledged { job, .. }
        | Change::WorkerGone { job, .. }
        | Change::ConsumerAdvanced { job, .. }
        | Change::PassEnded { job, .. }
        | Change::JobEnded { job, .. }
        | Change::Watermark { job, .. } => Some(job),
        _ => None,
    }
}

fn window_leased(job: &mut Job, pass: PassId, id: WindowId, worker: &WorkerName, attempt: Attempt) {
    let Some(pass) = job.passes.get_mut(&pass) else { return };
    let size = pass.window_size(id);
    let window = pass.windows.entry(id).or_insert_with(|| Window::new(size));
    window.worker = Some(worker.clone());
    window.attempt = attempt;
    pass.next_window = pass.next_window.max(WindowId(id.0 + 1));
    pass.refresh(id);
}

fn sent(job: &mut Job, pass: PassId, stream: StreamId, batches: &[(BatchId, u64)], at_ms: i64) {
    let Some(pass) = job.passes.get_mut(&pass) else { return };
    for (batch, digest) in batches {
        let (id, at) = pass.place(*batch);
        pass.change(&mut job.streams, id, |window, tally| {
            let moved = window.spans.change(at, at + 1, at_ms, tally, |span| {
                (span.state == VisitState::Granted && span.stream == Some(stream)).then_some((VisitState::Sent, None))
            });
            if moved > 0 {
                window.set_digest(at, *digest);
            }
            moved
        });
    }
}

fn acknowledged(job: &mut Job, pass: PassId, consumer: &ConsumerName, batches: &[(BatchId, Option<u64>)], at_ms: i64) {
    let Some(pass) = job.passes.get_mut(&pass) else { return };
    for (batch, digest) in batches {
        let (id, at) = pass.place(*batch);
        let stream = pass.windows.get(&id).and_then(|w| w.spans.get(at)).and_then(|s| s.stream);
        if stream.and_then(|s| job.streams.get(&s)).is_none_or(|s| s.consumer != *consumer) {
            continue;
        }
        pass.change(&mut job.streams, id, |window, tally| {
            let moved = window.spans.change(at, at + 1, at_ms, tally, |span| {
                // A late report moves lost to acknowledged.
                let taken = matches!(span.state, VisitState::Granted | VisitState::Sent | VisitState::Lost);
                taken.then_some((VisitState::Acknowledged, None))
            });
            if let (true, Some(digest)) = (moved > 0, digest) {
                window.set_digest(at, *digest);
            }
            moved
        });
    }
}

/// Moves open visits of the whole job by a rule.
fn change_open(job: &mut Job, at_ms: i64, rule: impl Fn(&Span) -> Option<(VisitState, Option<Reason>)>) {
    for pass in job.passes.values_mut() {
        let open: Vec<_> = pass.windows.iter().filter(|(_, w)| w.counts.open() > 0).map(|(id, w)| (*id, w.size)).collect();
        for (id, size) in open {
            pass.change(&mut job.streams, id, |window, tally| {
                window.spans.change(0, size, at_ms, tally, |span| if span.state.is_final() { None } else { rule(span) })
            });
        }
    }
}

fn stream_closed(job: &mut Job, id: StreamId, clean: bool, at_ms: i64) {
    let Some(stream) = job.streams.get_mut(&id).filter(|s| s.open) else { return };
    stream.open = false;
    let acks = stream.acks;
    if acks && !clean {
        // The consumer may come back within its lease and report what it got.
        return;
    }
    change_open(job, at_ms, |span| {
        if span.stream != Some(id) {
            return None;
        }
        Some(match (acks, clean, span.state) {
            (false, true, VisitState::Sent) => (VisitState::Acknowledged, None),
            (_, true, VisitState::Granted) => (VisitState::Lost, Some(Reason::NeverSent)),
            (true, true, _) => (VisitState::Lost, Some(Reason::ConsumerLeft)),
            _ => (VisitState::Lost, Some(Reason::StreamBroken)),
        })
    });
}

fn consumer_gone(job: &mut Job, name: &ConsumerName, reason: Reason, at_ms: i64) {
    job.consumers.remove(name);
    let mine = take_streams(job, |s| s.consumer == *name);
    change_open(job, at_ms, |span| mine.contains(&span.stream?).then_some((VisitState::Lost, Some(reason))));
}

/// Closes the streams that match; returns all that match, closed before or now.
fn take_streams(job: &mut Job, matches: impl Fn(&Stream) -> bool) -> BTreeSet<StreamId> {
    let mut taken = BTreeSet::new();
    for (id, stream) in job.streams.iter_mut().filter(|(_, s)| matches(s)) {
        stream.open = false;
        taken.insert(*id);
    }
    taken
}

fn worker_gone(job: &mut Job, worker: &WorkerName, at_ms: i64) {
    let its = take_streams(job, |s| s.worker == *worker);
    change_open(job, at_ms, |span| its.contains(&span.stream?).then_some((VisitState::Lost, Some(Reason::WorkerDied))));
    // The rest of its windows returns to pending: without a holder, the next worker that asks takes them.
    for window in job.passes.values_mut().flat_map(|p| p.windows.values_mut()).filter(|w| w.worker.as_ref() == Some(worker)) {
        window.worker = None;
    }
}

fn pass_ended(job: &mut Job, id: PassId) {
    let Some(pass) = job.passes.get_mut(&id) else { return };
    pass.ended = true;
    job.ended = job.started;
    if job.pass_at(job.ended).is_none() && job.phase == JobPhase::Open {
        job.phase = JobPhase::Ending;
    }
    forget_pass(job, id);
}

pub(super) fn end_job(job: &mut Job, end: &JobEnd, at_ms: i64) {
    if matches!(job.phase, JobPhase::Ended { .. }) {
        return;
    }
    change_open(job, at_ms, |_| Some((VisitState::Lost, Some(Reason::JobStopped))));
    job.phase = JobPhase::Ended { end: end.clone(), at_ms };
    job.consumers.clear();
    for stream in job.streams.values_mut() {
        stream.open = false;
    }
    for window in job.passes.values_mut().flat_map(|p| p.windows.values_mut()) {
        window.worker = None;
    }
}

fn watermark(job: &mut Job, id: PassId, windows: &[WindowId], ledger: &[String], number: u64) {
    // One ledger write may close windows of several passes, with one entry each.
    if number >= job.next_ledger {
        job.ledger.extend_from_slice(ledger);
        job.next_ledger = number + 1;
    }
    if let Some(pass) = job.passes.get_mut(&id) {
        for window in windows {
            if let Some(gone) = pass.windows.remove(window) {
                pass.ledger = pass.ledger.plus(&gone.counts);
            }
            pass.refresh(*window);
        }
    }
    forget_pass(job, id);
    forget_streams(job);
}

/// A pass that ended and is wholly in the ledger leaves its counts behind.
fn forget_pass(job: &mut Job, id: PassId) {
    let over = |p: &Pass| p.ended && p.ledger.total() == p.batches;
    if job.passes.get(&id).is_some_and(over)
        && let Some(pass) = job.passes.remove(&id)
    {
        job.closed = job.closed.plus(&pass.counts);
    }
}

/// Closed streams stay while a visit in the state names them.
fn forget_streams(job: &mut Job) {
    let windows = job.passes.values().flat_map(|p| p.windows.values());
    let named: BTreeSet<StreamId> = windows.flat_map(|w| w.spans.iter().filter_map(|s| s.stream)).collect();
    job.streams.retain(|id, stream| stream.open || named.contains(id));
}
