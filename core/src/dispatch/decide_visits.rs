//! Which batches a stream gets, and what becomes of them.

use super::decide::{Deciding, is_transient};
use super::decide_equal;
use super::decide_jobs::{check_member, find, over};
use super::entry::{Change, JobEnd};
use super::event::{Grant, Granted, Reply};
use super::job_state::{Job, JobPhase, Stream};
use super::map::Map;
use super::pass_state::Pass;
use super::spans::{Span, VisitState};
use super::state::StreamId;
use crate::error::{Error, Result};
use crate::ids::{Attempt, BatchId, ConsumerName, Incarnation, JobName, PassId, WindowId, WorkerName};
use crate::job::Assignment;

/// Windows whose batches an acknowledging consumer may have in flight per worker and job: the most that a worker's death can lose.
const WINDOWS_IN_FLIGHT: u64 = 2;

pub(super) fn next_grant(d: &mut Deciding<'_>, name: &JobName, id: StreamId, max_batches: u64, received: Option<u64>) -> Result<()> {
    let job = find(d, name)?;
    if let JobPhase::Ended { end, .. } = &job.phase {
        return ended(d, job, end);
    }
    let stream = job.stream(id)?;
    d.volatile.consumer_seen(name, &stream.consumer, d.now);
    d.volatile.worker_seen(&stream.worker, d.now);
    if d.volatile.is_draining(&stream.worker) {
        d.reply(Reply::Granted(Granted::Drain));
        return Ok(());
    }
    let Some(at) = job.consumers.get(&stream.consumer).map(|c| c.at) else {
        return Err(Error::failed_precondition(format!("the lease of consumer `{}` of job `{name}` ran out", stream.consumer)));
    };
    if let Some(grant) = received.and_then(|received| lost_answer(job, id, stream, received)) {
        d.reply(Reply::Granted(Granted::Batches(grant)));
        return Ok(());
    }
    if at < job.ended {
        end_of_pass(d, name, job, stream, at);
        return Ok(());
    }
    let Some(pass_id) = job.pass_at(at) else {
        d.reply(Reply::Granted(Granted::EndOfJob));
        return Ok(());
    };
    d.reply(Reply::Wait);
    let Some(pass) = job.passes.get(&pass_id).filter(|_| at < job.started) else {
        if at == job.ended || (at == job.started && job.settings.assignment == Assignment::Static) {
            d.volatile.wants_pass.insert(name.clone());
            d.volatile.touch_job(name);
        }
        return Ok(());
    };
    if at == job.ended && decide_equal::is_over(job, pass) {
        d.push(Change::PassEnded { job: name.clone(), pass: pass_id });
        d.job_changed(name);
        end_of_pass(d, name, job, stream, at);
        return Ok(());
    }
    let asked = Asked { job, pass_id, pass, id, stream, most: max_batches.max(1) };
    match stream.rank.filter(|_| job.settings.is_ranked()) {
        Some(rank) => decide_equal::next(d, &asked, rank)?,
        None if pass.pending() > 0 => grant(d, &asked),
        None => {}
    }
    Ok(())
}

/// The newest grant to a stream whose worker did not hear of it: the leader died, or the connection broke, between the entry and its answer. Nobody
/// else would send those batches while the stream goes on.
fn lost_answer(job: &Job, id: StreamId, stream: &Stream, received: u64) -> Option<Grant> {
    let newest = stream.newest.as_ref().filter(|newest| newest.number > received)?;
    let pass = job.passes.get(&newest.pass)?;
    let (first, last) = (pass.batch(newest.window, newest.from), pass.batch(newest.window, newest.to.checked_sub(1)?));
    let held = if newest.padding {
        pass.pads.iter().any(|p| p.stream == id && p.batch == first && !p.acknowledged)
    } else {
        pass.visit(first).is_some_and(|s| s.state == VisitState::Granted && s.stream == Some(id))
    };
    let slot = stream.rank.and_then(|rank| pass.ranks.get(rank as usize)).map_or(0, |share| share.given.saturating_sub(1));
    let step = pass.map.as_ref().map(|map| if newest.padding { slot } else { map.step_of(first.0) });
    held.then(|| Grant {
        pass: newest.pass,
        epoch: pass.shape.epoch,
        version: pass.shape.version,
        run: pass.writer(),
        selection: pass.shape.selection.clone(),
        window: newest.window,
        attempt: pass.windows.get(&newest.window).map_or_else(Default::default, |w| w.attempt),
        batches: first.0..last.0 + 1,
        every: pass.map.as_ref().filter(|_| !newest.padding).map_or(1, Map::world),
        step,
        padding: newest.padding,
    })
}

/// A stream asks for batches of the pass that its consumer is in.
pub(super) struct Asked<'a> {
    pub job: &'a Job,
    pub pass_id: PassId,
    pub pass: &'a Pass,
    pub id: StreamId,
    pub stream: &'a Stream,
    pub most: u64,
}

fn ended(d: &mut Deciding<'_>, job: &Job, end: &JobEnd) -> Result<()> {
    let name = &job.settings.job;
    match end {
        JobEnd::Finished => {
            d.reply(Reply::Granted(Granted::EndOfJob));
            Ok(())
        }
        // Of no use to try again, whatever it was.
        JobEnd::Failed(error) if is_transient(error) => Err(over(job)),
        JobEnd::Failed(error) => Err(error.clone().context(format!("job `{name}` failed"))),
        JobEnd::Stopped => Err(Error::failed_precondition(format!("job `{name}` was stopped"))),
        JobEnd::Restored => Err(Error::failed_precondition(format!("job `{name}` goes on from a checkpoint: this incarnation is over"))
            .with_remedy("open the job again")),
        JobEnd::Idle => Err(Error::failed_precondition(format!("job `{name}` was ended because it was idle"))),
    }
}

pub(super) fn end_of_pass(d: &mut Deciding<'_>, name: &JobName, job: &Job, stream: &Stream, at: u32) {
    d.push(Change::ConsumerAdvanced { job: name.clone(), consumer: stream.consumer.clone(), at: at + 1 });
    let told = match job.pass_at(at).filter(|_| !job.is_last(at)) {
        Some(pass) => Granted::EndOfPass(pass),
        None => Granted::EndOfJob,
    };
    d.reply(Reply::Granted(told));
}

fn grant(d: &mut Deciding<'_>, a: &Asked<'_>) {
    // Half of an even share of what is left: consumers that come a little later, or are faster, still find something.
    let share = a.pass.pending() / (2 * (a.job.consumers.len() as u64).max(1));
    let free = a.pass.pending().saturating_sub(reserved(d, a.job, a.pass_id, a.stream));
    if free > 0 {
        grant_any(d, a, share.clamp(1, a.most).min(free));
    }
}

/// Grants at most `block` batches of a window that the stream's worker has or may have.
pub(super) fn grant_any(d: &mut Deciding<'_>, a: &Asked<'_>, block: u64) {
    let block = if a.stream.acks { block.min(room_of(a.job, a.pass, a.stream)) } else { block };
    if block == 0 {
        return;
    }
    let Some((window, lease)) = find_window(d, a) else { return };
    let size = a.pass.window_size(window);
    let limit = u32::try_from(block).unwrap_or(u32::MAX);
    let open = a.pass.windows.get(&window);
    let Some((from, to)) = open.map_or(Some((0, size.min(limit))), |w| w.spans.first_gap(size, limit)) else { return };
    let attempt = match (lease, open) {
        (None, Some(open)) => open.attempt,
        (lease, _) => d.lease(a, window, lease.unwrap_or_default()),
    };
    let batches = a.pass.batch(window, from).0..a.pass.batch(window, to).0;
    d.grant(a, (window, attempt), (from, to), batches, 1);
}

impl Deciding<'_> {
    pub(super) fn lease(&mut self, a: &Asked<'_>, window: WindowId, attempt: Attempt) -> Attempt {
        let (job, worker) = (a.job.settings.job.clone(), a.stream.worker.clone());
        self.push(Change::WindowLeased { job, pass: a.pass_id, window, worker, attempt });
        attempt
    }

    pub(super) fn grant(
        &mut self,
        a: &Asked<'_>,
        (window, attempt): (WindowId, Attempt),
        (from, to): (u32, u32),
        batches: std::ops::Range<u64>,
        every: u64,
    ) {
        self.push(Change::Granted { job: a.job.settings.job.clone(), pass: a.pass_id, window, stream: a.id, from, to });
        let step = a.pass.map.as_ref().map(|map| map.step_of(batches.start));
        self.reply(Reply::Granted(Granted::Batches(Grant {
            pass: a.pass_id,
            epoch: a.pass.shape.epoch,
            version: a.pass.shape.version,
            run: a.pass.writer(),
            selection: a.pass.shape.selection.clone(),
            window,
            attempt,
            batches,
            every,
            step,
            padding: false,
        })));
    }
}

/// How many more batches a worker may have in flight to acknowledging consumers.
pub(super) fn room_of(job: &Job, pass: &Pass, stream: &Stream) -> u64 {
    let most = WINDOWS_IN_FLIGHT * pass.batches_per_window();
    // The job's open batches bound the worker's.
    let mut held = job.open_visits();
    if held >= most {
        held = job.streams.held_on(&stream.worker);
    }
    // A stream that holds nothing always gets one batch, or paused consumers could starve the others.
    most.saturating_sub(held).max(u64::from(stream.held == 0))
}

/// Batches of a young pass that are kept for others: one for each consumer that joined and got nothing of it yet. A small pass would be over
/// before they read their first. Whoever got nothing is served before the others' share is counted.
fn reserved(d: &Deciding<'_>, job: &Job, pass: PassId, stream: &Stream) -> u64 {
    let fed = job.consumers.get(&stream.consumer).is_none_or(|c| c.fed == Some(pass));
    if !fed || !d.volatile.reserved_until.contains_key(&job.settings.job) {
        return 0;
    }
    job.consumers.unfed(pass)
}

/// A window with pending batches for the stream's worker: one that it holds, else one that nobody holds who will go on, with the attempt of its
/// new lease, else another worker's, whose lease stays: grants belong to streams, so the window is only read twice, and no consumer waits for
/// another worker's.
fn find_window(d: &Deciding<'_>, a: &Asked<'_>) -> Option<(WindowId, Option<Attempt>)> {
    if let Some(own) = a.job.streams.first_pending(&a.stream.worker, a.pass_id) {
        return Some((own, None));
    }
    let leaving = d.volatile.draining.iter().filter_map(|worker| a.job.streams.first_pending(worker, a.pass_id));
    let unheld = a.pass.unheld.first().copied().filter(|id| *id < a.pass.next_window);
    if let Some(free) = leaving.chain(unheld).min() {
        return Some((free, Some(a.pass.next_attempt(free))));
    }
    if let Some(fresh) = a.pass.next_fresh(a.pass.next_window) {
        return Some((fresh, Some(Attempt(0))));
    }
    let held = a.pass.available.first().copied().filter(|id| *id < a.pass.next_window)?;
    match forsaken(a) {
        Some(left) => Some((left, Some(a.pass.next_attempt(left)))),
        None => Some((held, None)),
    }
}

/// A window whose holder has no stream left that would take its batches: its consumers went elsewhere, or have what they may have.
fn forsaken(a: &Asked<'_>) -> Option<WindowId> {
    let Some(end) = a.pass.end else { return a.job.streams.first_forsaken(a.pass_id) };
    let wants = |id: &StreamId| {
        let stream = a.job.streams.get(id).filter(|s| s.open);
        stream.is_some_and(|s| s.rank.and_then(|r| a.pass.ranks.get(r as usize)).is_none_or(|share| share.given < end))
    };
    let served = |worker: &WorkerName| a.job.streams.on_worker(worker).iter().any(wants);
    let windows = a.pass.available.iter().filter_map(|id| Some((*id, a.pass.windows.get(id)?)));
    windows.filter(|(_, w)| !w.worker.as_deref().is_some_and(served)).map(|(id, _)| id).next()
}

pub(super) fn sent(d: &mut Deciding<'_>, name: JobName, id: StreamId, pass_id: PassId, mut batches: Vec<(BatchId, u64)>) -> Result<()> {
    let job = find(d, &name)?;
    let Some(stream) = job.streams.get(&id) else { return Ok(()) };
    d.volatile.consumer_seen(&name, &stream.consumer, d.now);
    d.volatile.worker_seen(&stream.worker, d.now);
    let Some(pass) = job.passes.get(&pass_id) else { return Ok(()) };
    batches.retain(|(batch, _)| {
        let (window, at) = pass.place(*batch);
        let span = pass.windows.get(&window).and_then(|w| w.spans.get(at));
        span.is_some_and(|s| s.state == VisitState::Granted && s.stream == Some(id))
    });
    if !batches.is_empty() {
        if job.settings.is_ranked() {
            // The next step may open, or a rank be done.
            d.job_changed(&name);
        }
        d.push(Change::Sent { job: name, pass: pass_id, stream: id, batches });
    }
    Ok(())
}

pub(super) fn acknowledge(
    d: &mut Deciding<'_>,
    name: JobName,
    incarnation: Incarnation,
    consumer: ConsumerName,
    pass_id: PassId,
    batches: Vec<(BatchId, Option<u64>)>,
) -> Result<()> {
    let job = find(d, &name)?;
    job.check_incarnation(incarnation)?;
    check_member(d, job, &consumer)?;
    if job.consumers.contains_key(&consumer) {
        d.volatile.consumer_seen(&name, &consumer, d.now);
    }
    let taken = acknowledgeable(job, &consumer, pass_id, batches)?;
    d.reply(Reply::Acknowledged(taken.len() as u64));
    if !taken.is_empty() {
        // Acknowledgements make room for grants.
        d.job_changed(&name);
        d.push(Change::Acknowledged { job: name, pass: pass_id, consumer, batches: taken });
    }
    Ok(())
}

/// Those of the batches that an acknowledgement changes.
pub(super) fn acknowledgeable(
    job: &Job,
    consumer: &ConsumerName,
    pass_id: PassId,
    batches: Vec<(BatchId, Option<u64>)>,
) -> Result<Vec<(BatchId, Option<u64>)>> {
    let name = &job.settings.job;
    // A pass or window that is not here is in the ledger: the report is a repetition, or too late to count.
    let Some(pass) = job.passes.get(&pass_id) else { return Ok(Vec::new()) };
    let mut taken = Vec::with_capacity(batches.len());
    for (batch, digest) in batches {
        if batch.0 >= pass.batches {
            return Err(Error::bad_input(format!("pass {pass_id} of job `{name}` has {} batches, and no batch {batch}", pass.batches)));
        }
        let its = |stream: StreamId| job.streams.get(&stream).is_some_and(|s| s.consumer == *consumer);
        let span = pass.visit(batch).filter(|s| s.stream.is_some_and(its));
        let mut repeated = pass.pads.iter().filter(|p| p.batch == batch && its(p.stream)).peekable();
        match span {
            Some(span) if span.state != VisitState::Acknowledged => taken.push((batch, digest)),
            _ if repeated.peek().is_some() => {
                if repeated.any(|p| !p.acknowledged) {
                    taken.push((batch, digest));
                }
            }
            Some(_) => {}
            None if pass.visit(batch).is_some_and(Span::is_folded) => {}
            // It is in the ledger, or went back and may be another's by now: too late to count.
            _ if pass.is_in_ledger(pass.place(batch).0) || job.settings.redelivers() => {}
            // It was repeated, and the pass is over: nobody remembers repetitions.
            _ if pass.ended && pass.end.is_some() => {}
            _ => return Err(never_granted(name, pass_id, batch, consumer)),
        }
    }
    Ok(taken)
}

fn never_granted(job: &JobName, pass: PassId, batch: BatchId, consumer: &ConsumerName) -> Error {
    Error::bad_input(format!("batch {batch} of pass {pass} of job `{job}` was never granted to consumer `{consumer}`"))
        .with_remedy("acknowledge only batches that this consumer received")
}
