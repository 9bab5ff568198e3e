//! The invariants of visits and tasks, each defined once: tests and debug builds check them after every step, release builds count them.

use std::collections::BTreeSet;
use std::fmt;

use super::job_state::{Job, JobPhase};
use super::pass_state::{Counts, Pass, PassShape};
use super::run_state::{EpochPhase, Run};
use super::spans::{Mark, Reason, Span, VisitState};
use super::state::State;
use crate::ids::{JobName, PassId, WindowId};
use crate::job::Assignment;

/// Which invariant does not hold, and where.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Violation {
    /// `I1`, `I2`, ... as in the design.
    pub id: &'static str,
    pub what: String,
}

impl fmt::Display for Violation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.id, self.what)
    }
}

impl std::error::Error for Violation {}

fn fail<T>(id: &'static str, what: impl Into<String>) -> Result<T, Violation> {
    Err(Violation { id, what: what.into() })
}

/// Checks everything that can be seen in one state.
///
/// # Errors
/// The first invariant that does not hold.
pub fn check(state: &State) -> Result<(), Violation> {
    for (name, job) in &state.jobs {
        check_job(name, job)?;
    }
    for (name, dataset) in &state.datasets {
        if let Some(run) = &dataset.run {
            check_run(run, dataset.next_attempt).map_err(|v| Violation { what: format!("dataset `{name}`: {}", v.what), ..v })?;
        }
    }
    Ok(())
}

fn check_job(name: &JobName, job: &Job) -> Result<(), Violation> {
    for (id, pass) in &job.passes {
        check_pass(name, job, *id, pass)?;
    }
    let own_pace = job.settings.assignment == Assignment::Static && !job.settings.redelivers();
    if job.ended > job.started || (job.started > job.ended + 1 && !own_pace) {
        return fail("I2", format!("job `{name}` started {} passes and ended {}", job.started, job.ended));
    }
    let held: u64 = job.streams.values().map(|s| s.held).sum();
    if held != job.open_visits() {
        return fail("I2", format!("job `{name}`: streams hold {held} batches, and {} are open", job.open_visits()));
    }
    if matches!(job.phase, JobPhase::Ended { .. }) && job.open_visits() > 0 {
        return fail("I2", format!("job `{name}` ended with open visits"));
    }
    check_derived(name, job)
}

/// I5: what is derived is what a leader that reads the state now would derive.
fn check_derived(name: &JobName, job: &Job) -> Result<(), Violation> {
    let mut again = job.clone();
    again.reindex();
    if again.consumers.recounted() != job.consumers {
        return fail("I5", format!("the counts of job `{name}` about its consumers are wrong: {:?}", job.consumers));
    }
    if again.streams.recounted() != job.streams {
        return fail("I5", format!("the indexes of job `{name}` are wrong: {:?}, and made again {:?}", job.streams, again.streams));
    }
    for ((id, new), kept) in again.passes.iter().zip(job.passes.values()) {
        let derived = |p: &Pass| (p.id, p.unheld.clone(), p.held_acks, p.foldable);
        if derived(new) != derived(kept) {
            return fail("I5", format!("the indexes of pass {id} of job `{name}` are wrong: {:?}, not {:?}", derived(kept), derived(new)));
        }
    }
    Ok(())
}

/// I1: a batch has one visit, and an open one belongs to a stream that is known. I2: the states add up.
fn check_pass(name: &JobName, job: &Job, id: PassId, pass: &Pass) -> Result<(), Violation> {
    let place = |window: WindowId| format!("window {window} of pass {id} of job `{name}`");
    let mut sum = pass.ledger;
    for (window_id, window) in &pass.windows {
        let (mut end, mut counts) = (0, Counts::default());
        for span in window.spans.iter() {
            if span.from < end || span.to <= span.from || span.to > window.size {
                return fail("I1", format!("{}: visits overlap or leave the window at {}..{}", place(*window_id), span.from, span.to));
            }
            end = span.to;
            let n = u64::from(span.to - span.from);
            match span.state {
                VisitState::Granted => counts.granted += n,
                VisitState::Sent => counts.sent += n,
                VisitState::Acknowledged => counts.acknowledged += n,
                VisitState::Lost => counts.lost += n,
                VisitState::Dropped => counts.dropped += n,
            }
            // Nobody had what an earlier incarnation took, or what was lost with a rank that had not begun it.
            let nobodys = match span.state {
                VisitState::Dropped => true,
                VisitState::Acknowledged => span.mark == Mark::Committed,
                VisitState::Lost => span.reason == Some(Reason::RankDropped),
                VisitState::Granted | VisitState::Sent => false,
            };
            if !(nobodys && span.stream.is_none()) && span.stream.is_none_or(|s| !job.streams.contains_key(&s)) {
                return fail("I1", format!("{}: a {} batch belongs to no stream", place(*window_id), span.state.as_str()));
            }
            if matches!(span.state, VisitState::Lost | VisitState::Dropped) && span.reason.is_none() {
                return fail("I2", format!("{}: a {} batch has no reason", place(*window_id), span.state.as_str()));
            }
        }
        if counts != window.counts() {
            return fail("I2", format!("{}: counted {counts:?}, kept {:?}", place(*window_id), window.counts()));
        }
        let indexed = (pass.available.contains(window_id), pass.closed.contains(window_id));
        if indexed != (window.pending() > 0, window.may_forget(pass.exactly_once)) {
            return fail("I2", format!("{}: its indexes are wrong", place(*window_id)));
        }
        sum = sum.plus(&counts);
    }
    if sum != pass.counts || sum.total() > pass.batches {
        return fail(
            "I2",
            format!("pass {id} of job `{name}`: {sum:?} in windows and ledger, {:?} kept, {} batches", pass.counts, pass.batches),
        );
    }
    let known: BTreeSet<_> = pass.windows.keys().collect();
    if pass.available.iter().chain(&pass.closed).any(|w| !known.contains(w)) {
        return fail("I2", format!("pass {id} of job `{name}`: an index names a window that is gone"));
    }
    let closed: u64 = pass.closed.iter().map(|w| u64::from(pass.window_size(*w))).sum();
    if closed != pass.closed_batches {
        return fail("I2", format!("pass {id} of job `{name}`: {closed} batches are closed, {} counted", pass.closed_batches));
    }
    if pass.is_growing() && (pass.shape.version.is_some() || pass.ended || !pass.batches.is_multiple_of(pass.batches_per_window())) {
        return fail("I2", format!("pass {id} of job `{name}` grows, and is over or has a part of a window"));
    }
    if pass.ended && pass.pending() > 0 {
        return fail("I2", format!("pass {id} of job `{name}` ended with pending batches"));
    }
    Ok(())
}

/// The shape of a pass is pinned; that of an epoch that is being written only grows, until it is published.
fn may_become(old: &PassShape, new: &PassShape) -> bool {
    let Some(growth) = &old.growth else { return old == new };
    let pinned = PassShape { version: new.version, rows: new.rows, growth: new.growth, ..old.clone() };
    let same_run = new.growth.is_none_or(|g| g.run == growth.run && g.next >= growth.next);
    *new == pinned && same_run && new.rows >= old.rows && new.version.is_some() == new.growth.is_none()
}

/// I6: a task has one accepted result, of an attempt that was handed out.
fn check_run(run: &Run, next_attempt: u32) -> Result<(), Violation> {
    for (epoch, epoch_run) in &run.epochs {
        let staged = epoch_run.tasks.iter().filter(|t| t.staged.is_some()).count() as u64;
        if !epoch_run.is_published() && staged != epoch_run.staged {
            return fail("I6", format!("epoch {epoch}: {staged} tasks are staged, {} counted", epoch_run.staged));
        }
        if matches!(epoch_run.phase, EpochPhase::Publishing { .. }) && staged != epoch_run.tasks.len() as u64 {
            return fail("I6", format!("epoch {epoch} is being published with {staged} of {} tasks", epoch_run.tasks.len()));
        }
        for (index, task) in epoch_run.tasks.iter().enumerate() {
            let attempts = task.holders.iter().map(|(a, _)| *a).chain(task.staged.iter().map(|s| s.attempt));
            if attempts.clone().any(|a| !task.knows(a)) || task.next_attempt > next_attempt.max(task.first_attempt) {
                return fail("I6", format!("epoch {epoch}, task {index}: an attempt that nobody handed out"));
            }
            if task.staged.is_some() && !task.holders.is_empty() {
                return fail("I6", format!("epoch {epoch}, task {index}: staged and running"));
            }
            if index < epoch_run.first_pending && task.is_pending() {
                return fail("I6", format!("epoch {epoch}, task {index}: pending, and nobody would look at it"));
            }
        }
        if epoch_run.tasks.iter().enumerate().any(|(i, t)| t.staged.iter().any(|s| s.shards.iter().any(|x| x.task.0 as usize != i))) {
            return fail("I6", format!("epoch {epoch}: a shard is staged under another task"));
        }
    }
    if run.epochs.values().filter(|e| matches!(e.phase, EpochPhase::Publishing { .. })).count() > 1 {
        return fail("I3", "two commits are open at once");
    }
    Ok(())
}

/// Checks what one entry did to a state: nothing that was promised is taken back.
///
/// # Errors
/// I1: a batch that was granted within an at-most-once incarnation is granted again or to another. I3: a published epoch changed.
pub fn check_step(before: &State, after: &State) -> Result<(), Violation> {
    for (name, old) in &before.jobs {
        let Some(new) = after.jobs.get(name).filter(|n| n.incarnation == old.incarnation) else { continue };
        for (id, old_pass) in &old.passes {
            let Some(new_pass) = new.passes.get(id) else { continue };
            if !may_become(&old_pass.shape, &new_pass.shape) {
                return fail("I3", format!("the shape of pass {id} of job `{name}` changed"));
            }
            for (window_id, window) in &old_pass.windows {
                let Some(now) = new_pass.windows.get(window_id) else { continue };
                for span in window.spans.iter() {
                    for at in [span.from, span.to - 1] {
                        // With redelivery on it may return to pending, and only from there to another.
                        let returned = new.settings.redelivers() && !matches!(span.state, VisitState::Lost | VisitState::Dropped);
                        let folded = span.state == VisitState::Acknowledged && now.spans.get(at).is_some_and(Span::is_folded);
                        let kept = folded || now.spans.get(at).map_or(returned, |s| s.stream == span.stream);
                        if !kept {
                            return fail("I1", format!("place {at} of window {window_id} of pass {id} of job `{name}` changed hands"));
                        }
                    }
                }
            }
        }
    }
    for (name, old) in &before.datasets {
        let (Some(old), Some(new)) = (&old.run, after.datasets.get(name).and_then(|d| d.run.as_ref())) else { continue };
        if old.id != new.id {
            continue;
        }
        for (epoch, old) in old.epochs.iter().filter(|(_, e)| e.is_published()) {
            if new.epochs.get(epoch).is_none_or(|e| e.phase != old.phase) {
                return fail("I3", format!("epoch {epoch} of `{name}` was published and changed"));
            }
        }
    }
    Ok(())
}
