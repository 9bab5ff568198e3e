//! The part of the fold that says what becomes of visits: what is lost, what goes out again, what stays its consumer's.

use std::collections::BTreeSet;

use super::decide_fixed::next_own;
use super::job_state::{Job, JobPhase};
use super::pass_state::{Pad, Pass, Window};
use super::spans::{Fate, Mark, Reason, Span, VisitState};
use super::state::StreamId;
use crate::ids::{BatchId, ConsumerName, PassId, WindowId, WorkerName};
use crate::job::Visitation;

pub(super) fn granted(job: &mut Job, id: PassId, window: WindowId, stream: StreamId, (from, to): (u32, u32), at_ms: i64) {
    let span = Span { from, to, state: VisitState::Granted, stream: Some(stream), at_ms, reason: None, mark: Mark::Open };
    let Some(pass) = job.passes.get_mut(&id) else { return };
    pass.change(&mut job.streams, window, |w, tally| w.spans.cover(span, tally));
    job.streams.granted(stream, id, window, (from, to), false);
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
    job.consumers.update(&of.consumer, |c| c.fed = Some(id));
}

/// How many of the batches lie side by side in one window, from the first on: with that window and the first one's place.
fn run<T>(pass: &Pass, batches: &[(BatchId, T)]) -> Option<(WindowId, u32, usize)> {
    let (first, rest) = batches.split_first()?;
    let (id, at) = pass.place(first.0);
    let follows = |(n, batch): &(u32, &(BatchId, T))| pass.place(batch.0) == (id, at + n);
    Some((id, at, 1 + (1..).zip(rest).take_while(follows).count()))
}

/// Keeps the digests of those that were moved.
fn keep_digests(window: &mut Window, at: u32, moved: &[(u32, u32)], digest: impl Fn(usize) -> Option<u64>) {
    for place in moved.iter().flat_map(|(from, to)| *from..*to) {
        if let Some(digest) = digest((place - at) as usize) {
            window.digests.set(place, digest);
        }
    }
}

pub(super) fn sent(job: &mut Job, pass: PassId, stream: StreamId, mut batches: &[(BatchId, u64)], at_ms: i64) {
    let Some(pass) = job.passes.get_mut(&pass) else { return };
    while let Some((id, at, n)) = run(pass, batches) {
        let (these, rest) = batches.split_at(n);
        batches = rest;
        pass.change(&mut job.streams, id, |window, tally| {
            let moved = window.spans.change(at, end_of(at, n), at_ms, tally, |span| {
                (span.state == VisitState::Granted && span.stream == Some(stream)).then_some((VisitState::Sent, None))
            });
            keep_digests(window, at, &tally.moved, |index| these.get(index).map(|b| b.1));
            moved
        });
    }
}

fn end_of(at: u32, n: usize) -> u32 {
    at.saturating_add(u32::try_from(n).unwrap_or(u32::MAX))
}

pub(super) fn acknowledged(job: &mut Job, pass: PassId, consumer: &ConsumerName, mut batches: &[(BatchId, Option<u64>)], at_ms: i64) {
    let Some(pass) = job.passes.get_mut(&pass) else { return };
    let mine = job.streams.of_consumer(consumer).to_vec();
    let its = |stream: &StreamId| mine.binary_search(stream).is_ok();
    while let Some((id, at, n)) = run(pass, batches) {
        // A batch that was repeated is looked at alone.
        let n = if pass.pads.is_empty() { n } else { 1 };
        let (these, rest) = batches.split_at(n);
        batches = rest;
        if !pass.pads.is_empty() && acknowledge_padding(pass, these[0].0, its) {
            continue;
        }
        pass.change(&mut job.streams, id, |window, tally| {
            let moved = window.spans.change(at, end_of(at, n), at_ms, tally, |span| {
                // A late report moves lost to acknowledged.
                let taken = matches!(span.state, VisitState::Granted | VisitState::Sent | VisitState::Lost);
                (taken && span.stream.as_ref().is_some_and(its)).then_some((VisitState::Acknowledged, None))
            });
            keep_digests(window, at, &tally.moved, |index| these.get(index).and_then(|b| b.1));
            moved
        });
    }
}

/// A batch that was lost and is repeated now: it is the repetition that was taken.
fn acknowledge_padding(pass: &mut Pass, batch: BatchId, its: impl Fn(&StreamId) -> bool) -> bool {
    let visit = pass.visit(batch).filter(|s| s.stream.as_ref().is_some_and(&its));
    let held = visit.is_some_and(|s| matches!(s.state, VisitState::Granted | VisitState::Sent));
    let padding = pass.pads.iter_mut().find(|p| !held && p.batch == batch && !p.acknowledged && its(&p.stream));
    padding.map(|p| p.acknowledged = true).is_some()
}

/// Moves open visits of these streams, or of the whole job, by a rule, and those acknowledged ones that may return.
pub(super) fn change_open(job: &mut Job, of: Option<&[StreamId]>, at_ms: i64, rule: impl Fn(&Span) -> Fate) {
    let returns = job.settings.visitation == Visitation::ExactlyOnce;
    let movable = |w: &Window| w.counts().open() > 0 || (returns && w.uncommitted() > 0);
    let places: Vec<(PassId, WindowId)> = match of {
        Some(streams) => job.streams.movable(streams).into_iter().collect(),
        None => {
            let open = |(id, pass): (&PassId, &Pass)| {
                let id = *id;
                pass.windows.iter().filter(|(_, w)| movable(w)).map(move |(window, _)| (id, *window)).collect::<Vec<_>>()
            };
            job.passes.iter().flat_map(open).collect()
        }
    };
    for (pass, id) in places {
        let Some(pass) = job.passes.get_mut(&pass) else { continue };
        pass.change(&mut job.streams, id, |window, tally| {
            window.spans.turn(0, window.size, at_ms, tally, |span| {
                let held = matches!(span.state, VisitState::Granted | VisitState::Sent);
                let returns = returns && span.state == VisitState::Acknowledged && span.mark != Mark::Committed;
                if held || returns { rule(span) } else { Fate::Keep }
            })
        });
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
                job.streams.name(pad.stream, -1);
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
    job.streams.name(stream, 1);
    let (window, at) = pass.place(batch);
    job.streams.granted(stream, id, window, (at, at + 1), true);
    if let Some(share) = pass.ranks.get_mut(rank as usize) {
        share.given += 1;
        share.filled += 1;
    }
}

pub(super) fn stream_closed(job: &mut Job, id: StreamId, clean: bool, at_ms: i64) {
    let stays = job.settings.redelivers() || job.settings.awaits_reports();
    let Some(acks) = job.streams.get(&id).filter(|s| s.open).map(|s| s.acks) else { return };
    job.streams.close(id);
    if acks && (stays || !clean) {
        // The consumer may come back within its lease and report what it got.
        return;
    }
    change_open(job, Some(&[id]), at_ms, |span| {
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
    let mine = job.streams.of_consumer(name).to_vec();
    close_all(job, &mine);
    let visitation = job.settings.visitation;
    change_open(job, Some(&mine), at_ms, |span| {
        if span.stream.is_none_or(|s| mine.binary_search(&s).is_err()) {
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
    take_back_pads(job, |_, pad| {
        mine.binary_search(&pad.stream).is_ok() && (!pad.acknowledged || (returns && pad.mark != Mark::Committed))
    });
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
    job.consumers.update(name, |c| c.reported = c.reported.max(Some(number)));
    for id in streams {
        if job.streams.get(id).is_some_and(|s| s.consumer == *name) {
            job.streams.close(*id);
        }
    }
    let closed: Vec<StreamId> = job.streams.of_consumer(name).iter().copied().filter(|id| !job.streams[id].open).collect();
    let has: BTreeSet<(PassId, BatchId)> = received.iter().flat_map(|(pass, batches)| batches.iter().map(|b| (*pass, *b))).collect();
    let fate = if job.settings.redelivers() { Fate::Pending } else { Fate::lost(Reason::NotReceived) };
    let mut kept = BTreeSet::new();
    for (id, window_id) in job.streams.movable(&closed) {
        let Some(pass) = job.passes.get_mut(&id) else { continue };
        let Some(window) = pass.windows.get(&window_id) else { continue };
        let held = |s: &&Span| !s.state.is_final() && s.stream.is_some_and(|s| closed.binary_search(&s).is_ok());
        let places: Vec<u32> = window.spans.iter().filter(held).flat_map(|s| s.from..s.to).collect();
        for at in places {
            let key = (id, pass.batch(window_id, at));
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
    take_back_pads(job, |id, pad| {
        let there = has.contains(&(id, pad.batch)) && !kept.contains(&(id, pad.batch));
        closed.binary_search(&pad.stream).is_ok() && !pad.acknowledged && !there
    });
}

fn close_all(job: &mut Job, streams: &[StreamId]) {
    for id in streams {
        job.streams.close(*id);
    }
}

pub(super) fn worker_gone(job: &mut Job, worker: &WorkerName, at_ms: i64) {
    let its = job.streams.on_worker(worker).to_vec();
    close_all(job, &its);
    let (stays, redelivers) = (job.settings.awaits_reports(), job.settings.redelivers());
    // A consumer that acknowledges says itself what it received, where that matters.
    let released: Vec<StreamId> = its.into_iter().filter(|id| !stays || job.streams.get(id).is_some_and(|s| !s.acks)).collect();
    let is_released = |id: &StreamId| released.binary_search(id).is_ok();
    change_open(job, Some(&released), at_ms, |span| match (span.stream.as_ref().is_some_and(is_released), redelivers) {
        (true, _) if span.state == VisitState::Acknowledged => Fate::Keep,
        (true, true) => Fate::Pending,
        (true, false) => Fate::lost(Reason::WorkerDied),
        (false, _) => Fate::Keep,
    });
    take_back_pads(job, |_, pad| is_released(&pad.stream) && !pad.acknowledged);
    // The rest of its windows returns to pending: without a holder, the next worker that asks takes them.
    for (pass, window) in job.streams.leased_to(worker) {
        if let Some(pass) = job.passes.get_mut(&pass) {
            pass.unlease(&mut job.streams, window);
        }
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
            pass.begin_window(&mut job.streams, fresh);
            pass.change(&mut job.streams, fresh, |w, tally| w.spans.cover(span(size), tally));
        }
        for left in pass.available.iter().copied().collect::<Vec<_>>() {
            let size = pass.window_size(left);
            pass.change(&mut job.streams, left, |w, tally| w.spans.cover(span(size), tally));
        }
    }
    if pass.exactly_once {
        mark(job, Marked::Pass(id), |_| Fate::Mark(Mark::Committed));
    }
    if let Some(pass) = job.passes.get_mut(&id) {
        for pad in std::mem::take(&mut pass.pads) {
            job.streams.name(pad.stream, -1);
        }
    }
    if job.pass_at(job.ended).is_none() && job.phase == JobPhase::Open {
        job.phase = JobPhase::Ending;
    }
}

/// Whose acknowledged batches are marked.
pub(super) enum Marked<'a> {
    All,
    Pass(PassId),
    Streams(&'a [StreamId]),
}

/// Lets a rule mark acknowledged batches that are in no commit.
pub(super) fn mark(job: &mut Job, which: Marked<'_>, rule: impl Fn(&Span) -> Fate) {
    let places: Vec<(PassId, WindowId)> = match which {
        // Where nothing returns, nobody keeps where these are.
        Marked::Streams(streams) if job.settings.visitation == Visitation::ExactlyOnce => {
            job.streams.movable(streams).into_iter().collect()
        }
        which => {
            let only = if let Marked::Pass(id) = which { Some(id) } else { None };
            let passes = job.passes.iter().filter(|(id, _)| only.is_none_or(|o| o == **id));
            let open = |(id, pass): (&PassId, &Pass)| {
                let id = *id;
                pass.windows.iter().filter(|(_, w)| w.uncommitted() > 0).map(move |(window, _)| (id, *window)).collect::<Vec<_>>()
            };
            passes.flat_map(open).collect()
        }
    };
    for (pass, id) in places {
        let Some(pass) = job.passes.get_mut(&pass) else { continue };
        pass.change(&mut job.streams, id, |window, tally| {
            window.spans.turn(0, window.size, 0, tally, |span| {
                let uncommitted = span.state == VisitState::Acknowledged && span.mark != Mark::Committed;
                if uncommitted { rule(span) } else { Fate::Keep }
            })
        });
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
            pass.cover(&mut job.streams, next..next + 1, VisitState::Lost, Some(Reason::RankDropped), at_ms);
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
