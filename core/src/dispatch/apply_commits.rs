//! The part of the fold that is about commits.

use std::collections::BTreeSet;

use super::apply_visits::{Marked, mark};
use super::commit_state::{CommitRecord, CommittedPass, Restored};
use super::job_state::{Job, JobPhase};
use super::pass_state::{Pass, Window};
use super::ranges::Ranges;
use super::spans::{Fate, Mark, VisitState};
use super::state::StreamId;
use crate::ids::{ConsumerName, PassId, WindowId};

/// Passes of a fixed map whose shapes are remembered.
const KEPT_SHAPES: usize = 128;
/// Restores that a late call is known from.
const KEPT_ATTEMPTS: usize = 128;

pub(super) fn commit_called(job: &mut Job, name: &ConsumerName, commit: u64, call: u64) {
    if !job.consumers.contains_key(name) {
        return;
    }
    job.consumers.update(name, |c| {
        c.called = Some(commit);
        c.behind = Some(i64::try_from(commit).unwrap_or(i64::MAX).saturating_sub_unsigned(call));
    });
    let mine = job.streams.of_consumer(name).to_vec();
    for pass in job.passes.values_mut() {
        for pad in pass.pads.iter_mut().filter(|p| p.acknowledged && p.mark == Mark::Open && mine.binary_search(&p.stream).is_ok()) {
            pad.mark = Mark::Called;
        }
    }
    mark(job, Marked::Streams(&mine), |span| {
        let its = span.mark == Mark::Open && span.stream.is_some_and(|s| mine.binary_search(&s).is_ok());
        if its { Fate::Mark(Mark::Called) } else { Fate::Keep }
    });
}

pub(super) fn committed(job: &mut Job, commit: u64, place: u32, next: Option<u64>, uneven: Option<&String>, at_ms: i64) {
    let alive: BTreeSet<StreamId> =
        job.streams.iter().filter(|(_, s)| job.consumers.contains_key(&s.consumer)).map(|(id, _)| *id).collect();
    let failed = uneven.is_some();
    mark(job, Marked::All, |span| match span.mark {
        Mark::Called => Fate::Mark(if failed { Mark::Open } else { Mark::Committed }),
        // Of a consumer that left: there is no later call that it could count to.
        Mark::Open if !failed && span.stream.is_none_or(|s| !alive.contains(&s)) => Fate::Mark(Mark::Committed),
        _ => Fate::Keep,
    });
    for pad in job.passes.values_mut().flat_map(|p| &mut p.pads).filter(|p| p.mark == Mark::Called) {
        pad.mark = if failed { Mark::Open } else { Mark::Committed };
    }
    let pass = job.pass_at(place).and_then(|id| Some((id, job.passes.get(&id).filter(|p| !p.ended)?)));
    let pass = pass.map(|(id, pass)| CommittedPass { pass: id, shape: Some(pass.shape.clone()), taken: taken(pass, next) });
    let record = CommitRecord { incarnation: job.incarnation, place, pass, at_ms, uneven: uneven.cloned() };
    job.commits.insert(commit, record);
    job.next_commit = job.next_commit.max(commit + 1);
    while job.commits.len() > job.settings.kept_commits.max(1) as usize {
        job.commits.pop_first();
    }
}

/// What of a pass is in a commit that is complete now.
fn taken(pass: &Pass, next: Option<u64>) -> Ranges {
    if let Some(next) = next {
        return Ranges::up_to(next);
    }
    let mut taken = pass.taken.clone();
    for (id, window) in &pass.windows {
        take_window(pass, *id, window, &mut taken, true);
    }
    taken
}

/// Adds the acknowledged batches of a window of a dynamic pass, or those of them that are committed.
fn take_window(pass: &Pass, id: WindowId, window: &Window, into: &mut Ranges, committed: bool) {
    let acknowledged = window.spans.iter().filter(|s| s.state == VisitState::Acknowledged && (!committed || s.mark == Mark::Committed));
    for span in acknowledged {
        into.insert(pass.batch(id, span.from).0, pass.batch(id, span.to - 1).0 + 1);
    }
}

/// A window goes to the ledger: commits still have to know what was acknowledged.
pub(super) fn forget_window(pass: &mut Pass, id: WindowId, window: &Window) {
    if id >= pass.next_window {
        pass.skipped.insert(id);
    }
    if pass.map.is_none() {
        let mut taken = std::mem::take(&mut pass.taken);
        take_window(pass, id, window, &mut taken, false);
        pass.taken = taken;
    }
}

/// An incarnation begins where a checkpoint stands.
pub(super) fn restore(job: &mut Job, restored: &Restored, at_ms: i64) {
    (job.started, job.ended) = (restored.place, restored.place);
    job.restored = Some(Box::new(restored.clone()));
    job.attempts.extend(restored.attempt.clone());
    if job.attempts.len() > KEPT_ATTEMPTS {
        job.attempts.remove(0);
    }
    if let Some(done) = &restored.pass {
        match &done.shape {
            Some(shape) => {
                let pass = Pass::new(done.pass, shape.clone(), &job.settings, job.ranks(), &done.taken, at_ms);
                job.passes.insert(done.pass, pass);
                job.started += 1;
            }
            None => job.resume = done.taken.clone(),
        }
    }
    if job.pass_at(job.ended).is_none() {
        job.phase = JobPhase::Ending;
    }
}

/// What the next incarnation of a job's name knows of the one before.
pub(super) fn inherit(job: &mut Job, before: &Job) {
    (job.next_ledger, job.ledger) = (before.next_ledger, before.ledger.clone());
    (job.commits, job.next_commit) = (before.commits.clone(), before.next_commit);
    (job.shapes, job.attempts) = (before.shapes.clone(), before.attempts.clone());
}

pub(super) fn remember_shape(job: &mut Job, id: PassId) {
    if let (true, Some(pass)) = (job.settings.is_fixed(), job.passes.get(&id)) {
        job.shapes.insert(id, pass.shape.clone());
        while job.shapes.len() > KEPT_SHAPES {
            job.shapes.pop_first();
        }
    }
}
