//! The part of the fold that says what becomes of visits: what is lost, what goes out again, what stays its consumer's.

use std::collections::BTreeSet;

use super::decide_fixed::next_own;
use super::job_state::{Job, JobPhase, Stream};
use super::pass_state::{Pad, Window};
use super::spans::{Fate, Mark, Reason, Span, VisitState};
use super::state::StreamId;
use crate::ids::{BatchId, ConsumerName, PassId, WindowId, WorkerName};
use crate::job::Visitation;

pub(super) fn granted(job: &mut Job, id: PassId, window: WindowId, stream: StreamId, (from, to): (u32, u32), at_ms: i64) {
    let span = Span { from, to, state: VisitState::Granted, stream: Some(stream), at_ms, reason: None, mark: Mark::Open };
    let Some(pass) = job.passes.get_mut(&id) else { return };
    pass.change(&mut job.streams, window, |w, tally| w.spans.cover(span, tally));
    let Some(of) = job.streams.get(&stream) else { return };
    if let (Some(map), Some(rank)) = (&pass.map, of.rank) {
        // What lies behind the common end fills a slot.
        let behind = |at: &u32| pass.end.is_some_and(|end| map.step_of(pass.batch(window, *at).0) >= end);
        let filled = (from..to).filter(behind).count() as u64;
        let next = next_own(pass, map, rank).map(|batch| pass.place(BatchId(batch)).0);
        if let Some(share) = pass.ranks.get_mut(rank as usize) {
            share.filled += filled;
            share.cursor = share.cursor.max(next.unwrap_or_default());
        }
    }
    if let Some(consumer) = job.consumers.get_mut(&of.consumer) {
        consumer.fed = Some(id);
    }
}

pub(super) fn sent(job: &mut Job, pass: PassId, stream: StreamId, batches: &[(BatchId, u64)], at_ms: i64) {
    let Some(pass) = job.passes.get_mut(&pass) else { return };
    for (batch, digest) in batches {
        let (id, at) = pass.place(*batch);
        pass.change(&mut job.streams, id, |window, tally| {
            let moved = window.spans.change(at, at + 1, at_ms, tally, |span| {
                (span.state == VisitState::Granted && span.stream == Some(stream)).then_some((VisitState::Sent, None))
            });
            if moved > 0 {
                window.digests.set(at, *digest);
            }
            moved
        });
    }
}

pub(super) fn acknowledged(job: &mut Job, pass: PassId, consumer: &ConsumerName, batches: &[(BatchId, Option<u64>)], at_ms: i64) {
    let Some(pass) = job.passes.get_mut(&pass) else { return };
    for (batch, digest) in batches {
        let (id, at) = pass.place(*batch);
        let its = |stream: StreamId| job.streams.get(&stream).is_some_and(|s| s.consumer == *consumer);
        let state = pass.visit(*batch).filter(|s| s.stream.is_some_and(its)).map(|s| s.state);
        let held = matches!(state, Some(VisitState::Granted | VisitState::Sent));
        // A batch that was lost and is repeated now: it is the repetition that was taken.
        let padding = pass.pads.iter_mut().find(|p| !held && p.batch == *batch && !p.acknowledged && its(p.stream));
        if let Some(padding) = padding {
            padding.acknowledged = true;
            continue;
        }
        if !held && state != Some(VisitState::Lost) {
            continue;
        }
        pass.change(&mut job.streams, id, |window, tally| {
            let moved = window.spans.change(at, at + 1, at_ms, tally, |span| {
                // A late report moves lost to acknowledged.
                let taken = matches!(span.state, VisitState::Granted | VisitState::Sent | VisitState::Lost);
                taken.then_some((VisitState::Acknowledged, None))
            });
            if let (true, Some(digest)) = (moved > 0, digest) {
                window.digests.set(at, *digest);
            }
            moved
        });
    }
}

/// Moves open visits of the whole job by a rule, and those acknowledged ones that may return.
pub(super) fn change_open(job: &mut Job, at_ms: i64, rule: impl Fn(&Span) -> Fate) {
    let returns = job.settings.visitation == Visitation::ExactlyOnce;
    let movable = |w: &Window| w.counts().open() > 0 || (returns && w.uncommitted > 0);
    for pass in job.passes.values_mut() {
        let open: Vec<_> = pass.windows.iter().filter(|(_, w)| movable(w)).map(|(id, w)| (*id, w.size)).collect();
        for (id, size) in open {
            pass.change(&mut job.streams, id, |window, tally| {
                window.spans.turn(0, size, at_ms, tally, |span| {
                    let held = matches!(span.state, VisitState::Granted | VisitState::Sent);
                    let returns = returns && span.state == VisitState::Acknowledged && span.mark != Mark::Committed;
                    if held || returns { rule(span) } else { Fate::Keep }
                })
            });
        }
    }
}

/// Takes padding back that nobody received.
fn take_back_pads(job: &mut Job, gone: impl Fn(PassId, &Pad) -> bool) {
    for (id, pass) in &mut job.passes {
        let shares = &mut pass.ranks;
        pass.pads.retain(|pad| {
            if gone(*id, pad)
                && let Some(share) = shares.get_mut(pad.rank as usize)
            {
                share.given = share.given.saturating_sub(1);
                share.filled = share.filled.saturating_sub(1);
                return false;
            }
            true
        });
    }
}

pub(super) fn padded(job: &mut Job, id: PassId, stream: StreamId, batch: BatchId) {
    let Some(rank) = job.streams.get(&stream).and_then(|s| s.rank) else { return };
    let Some(pass) = job.passes.get_mut(&id) else { return };
    pass.pads.push(Pad { stream, rank, batch, acknowledged: false, mark: Mark::Open });
    if let Some(share) = pass.ranks.get_mut(rank as usize) {
        share.given += 1;
        share.filled += 1;
    }
}

pub(super) fn stream_closed(job: &mut Job, id: StreamId, clean: bool, at_ms: i64) {
    let stays = job.settings.redelivers() || job.settings.awaits_reports();
    let Some(stream) = job.streams.get_mut(&id).filter(|s| s.open) else { return };
    stream.open = false;
    let acks = stream.acks;
    if acks && (stays || !clean) {
        // The consumer may come back within its lease and report what it got.
        return;
    }
    change_open(job, at_ms, |span| {
        if span.stream != Some(id) {
            return Fate::Keep;
        }
        match (acks, clean, span.state) {
            (false, true, VisitState::Sent) => Fate::To(VisitState::Acknowledged, None),
            (_, true, VisitState::Granted) => Fate::lost(Reason::NeverSent),
            (true, true, _) => Fate::lost(Reason::ConsumerLeft),
            _ => Fate::lost(Reason::StreamBroken),
        }
    });
    take_back_pads(job, |_, pad| !clean && pad.stream == id && !pad.acknowledged);
}

pub(super) fn consumer_gone(job: &mut Job, name: &ConsumerName, reason: Reason, at_ms: i64) {
    job.consumers.remove(name);
    let mine = take_streams(job, |s| s.consumer == *name);
    let visitation = job.settings.visitation;
    change_open(job, at_ms, |span| {
        if span.stream.is_none_or(|s| !mine.contains(&s)) {
            return Fate::Keep;
        }
        match (visitation, span.state) {
            // Whoever leaves took what it acknowledged; what a dead one did since the last commit is gone with it.
            (_, VisitState::Acknowledged) if reason == Reason::ConsumerLeft => Fate::Keep,
            (Visitation::AtMostOnce, _) => Fate::lost(reason),
            _ => Fate::Pending,
        }
    });
    let returns = visitation == Visitation::ExactlyOnce && reason != Reason::ConsumerLeft;
    take_back_pads(job, |_, pad| mine.contains(&pad.stream) && (!pad.acknowledged || (returns && pad.mark != Mark::Committed)));
}

/// What the consumer has on closed streams and did not receive goes back, and is revoked at the client.
pub(super) fn reported(
    job: &mut Job,
    name: &ConsumerName,
    number: u64,
    streams: &[StreamId],
    received: &[(PassId, Vec<BatchId>)],
    at_ms: i64,
) {
    if let Some(consumer) = job.consumers.get_mut(name) {
        consumer.reported = consumer.reported.max(Some(number));
    }
    for id in streams {
        if let Some(stream) = job.streams.get_mut(id).filter(|s| s.consumer == *name) {
            stream.open = false;
        }
    }
    let closed: BTreeSet<StreamId> = job.streams.iter().filter(|(_, s)| s.consumer == *name && !s.open).map(|(id, _)| *id).collect();
    let has: BTreeSet<(PassId, BatchId)> = received.iter().flat_map(|(pass, batches)| batches.iter().map(|b| (*pass, *b))).collect();
    let fate = if job.settings.redelivers() { Fate::Pending } else { Fate::lost(Reason::NotReceived) };
    let mut kept = BTreeSet::new();
    for (id, pass) in &mut job.passes {
        let open: Vec<_> = pass.windows.iter().filter(|(_, w)| w.counts().open() > 0).map(|(id, _)| *id).collect();
        for window_id in open {
            let Some(window) = pass.windows.get(&window_id) else { continue };
            let held = |s: &&Span| !s.state.is_final() && s.stream.is_some_and(|s| closed.contains(&s));
            let places: Vec<u32> = window.spans.iter().filter(held).flat_map(|s| s.from..s.to).collect();
            for at in places {
                let key = (*id, pass.batch(window_id, at));
                let received = has.contains(&key);
                if received {
                    kept.insert(key);
                }
                pass.change(&mut job.streams, window_id, |w, tally| {
                    w.spans.turn(at, at + 1, at_ms, tally, |span| match (received, span.state) {
                        (true, VisitState::Granted) => Fate::To(VisitState::Sent, None),
                        (true, _) => Fate::Keep,
                        (false, _) => fate,
                    })
                });
            }
        }
    }
    take_back_pads(job, |id, pad| {
        let there = has.contains(&(id, pad.batch)) && !kept.contains(&(id, pad.batch));
        closed.contains(&pad.stream) && !pad.acknowledged && !there
    });
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

pub(super) fn worker_gone(job: &mut Job, worker: &WorkerName, at_ms: i64) {
    let its = take_streams(job, |s| s.worker == *worker);
    let (stays, redelivers) = (job.settings.awaits_reports(), job.settings.redelivers());
    // A consumer that acknowledges says itself what it received, where that matters.
    let released: BTreeSet<StreamId> = its.into_iter().filter(|id| !stays || job.streams.get(id).is_some_and(|s| !s.acks)).collect();
    change_open(job, at_ms, |span| match (span.stream.is_some_and(|s| released.contains(&s)), redelivers) {
        (true, _) if span.state == VisitState::Acknowledged => Fate::Keep,
        (true, true) => Fate::Pending,
        (true, false) => Fate::lost(Reason::WorkerDied),
        (false, _) => Fate::Keep,
    });
    take_back_pads(job, |_, pad| released.contains(&pad.stream) && !pad.acknowledged);
    // The rest of its windows returns to pending: without a holder, the next worker that asks takes them.
    for window in job.passes.values_mut().flat_map(|p| p.windows.values_mut()).filter(|w| w.worker.as_ref() == Some(worker)) {
        window.worker = None;
    }
}

/// The end of a pass is a commit by all: whatever was acknowledged of it stays so. What is left behind a common end is dropped.
pub(super) fn pass_ended(job: &mut Job, id: PassId, at_ms: i64) {
    let Some(pass) = job.passes.get_mut(&id).filter(|p| !p.ended) else { return };
    pass.ended = true;
    job.ended += 1;
    if pass.end.is_some() {
        let span = |size| Span {
            from: 0,
            to: size,
            state: VisitState::Dropped,
            stream: None,
            at_ms,
            reason: Some(Reason::EndMoved),
            mark: Mark::Open,
        };
        while let Some(fresh) = pass.next_fresh(pass.next_window) {
            let size = pass.window_size(fresh);
            pass.windows.entry(fresh).or_insert_with(|| Window::new(size));
            pass.change(&mut job.streams, fresh, |w, tally| w.spans.cover(span(size), tally));
        }
        for left in pass.available.iter().copied().collect::<Vec<_>>() {
            let size = pass.window_size(left);
            pass.change(&mut job.streams, left, |w, tally| w.spans.cover(span(size), tally));
        }
    }
    if pass.exactly_once {
        mark(job, Some(id), |_| Fate::Mark(Mark::Committed));
    }
    if let Some(pass) = job.passes.get_mut(&id) {
        pass.pads.clear();
    }
    if job.pass_at(job.ended).is_none() && job.phase == JobPhase::Open {
        job.phase = JobPhase::Ending;
    }
}

/// Lets a rule mark acknowledged batches that are in no commit, of one pass or all.
pub(super) fn mark(job: &mut Job, only: Option<PassId>, rule: impl Fn(&Span) -> Fate) {
    for (_, pass) in job.passes.iter_mut().filter(|(id, _)| only.is_none_or(|o| o == **id)) {
        let open: Vec<_> = pass.windows.iter().filter(|(_, w)| w.uncommitted > 0).map(|(id, w)| (*id, w.size)).collect();
        for (id, size) in open {
            pass.change(&mut job.streams, id, |window, tally| {
                window.spans.turn(0, size, 0, tally, |span| {
                    let uncommitted = span.state == VisitState::Acknowledged && span.mark != Mark::Committed;
                    if uncommitted { rule(span) } else { Fate::Keep }
                })
            });
        }
    }
}

/// The others go on without the rank. What it had open was lost with its consumer; what of the opened steps it had not begun is lost too.
pub(super) fn rank_dropped(job: &mut Job, rank: u32, from: Option<(PassId, BatchId)>, end: Option<u64>, at_ms: i64) {
    job.dropped_ranks.insert(rank);
    let Some((pass, from)) = from.and_then(|(id, from)| Some((job.passes.get_mut(&id)?, from.0))) else { return };
    let Some(map) = pass.map.clone() else { return };
    let mut batch = pass.first;
    while let Some(next) = map.next_of(rank, batch).filter(|b| *b < from.min(pass.deliverable)) {
        if pass.is_pending(BatchId(next)) {
            pass.cover(next..next + 1, VisitState::Lost, Some(Reason::RankDropped), at_ms);
        }
        batch = next + 1;
    }
    if let Some(map) = &mut pass.map {
        map.drop_rank(rank, from);
    }
    pass.end = end;
    for share in &mut pass.ranks {
        share.cursor = WindowId(0);
    }
    pass.advance_lead();
}
