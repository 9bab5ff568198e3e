//! Which batches a stream gets, and what becomes of them.

use super::decide::Deciding;
use super::decide_jobs::find;
use super::entry::{Change, JobEnd};
use super::event::{Grant, Granted, Reply};
use super::job_state::{Job, JobPhase, Pass, Stream};
use super::spans::VisitState;
use super::state::StreamId;
use crate::error::{Error, Result};
use crate::ids::{Attempt, BatchId, ConsumerName, Incarnation, JobName, PassId, WindowId, WorkerName};

/// Windows whose batches an acknowledging consumer may have in flight per worker and job: the most that a worker's death can lose.
const WINDOWS_IN_FLIGHT: u64 = 2;

pub(super) fn next_grant(d: &mut Deciding<'_>, name: &JobName, id: StreamId, max_batches: u64) -> Result<()> {
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
    if at < job.ended {
        end_of_pass(d, name, job, stream, at);
        return Ok(());
    }
    let Some(pass_id) = job.pass_at(job.ended) else {
        d.reply(Reply::Granted(Granted::EndOfJob));
        return Ok(());
    };
    let Some(pass) = job.passes.get(&pass_id).filter(|_| job.started > job.ended) else {
        d.volatile.wants_pass.insert(name.clone());
        d.volatile.touch_job(name);
        d.reply(Reply::Wait);
        return Ok(());
    };
    if pass.pending() == 0 {
        d.push(Change::PassEnded { job: name.clone(), pass: pass_id });
        d.job_changed(name);
        end_of_pass(d, name, job, stream, at);
        return Ok(());
    }
    grant(d, job, (pass_id, pass), (id, stream), max_batches.max(1));
    Ok(())
}

fn ended(d: &mut Deciding<'_>, job: &Job, end: &JobEnd) -> Result<()> {
    let name = &job.settings.job;
    match end {
        JobEnd::Finished => {
            d.reply(Reply::Granted(Granted::EndOfJob));
            Ok(())
        }
        JobEnd::Failed(error) => Err(error.clone().context(format!("job `{name}` failed"))),
        JobEnd::Stopped => Err(Error::failed_precondition(format!("job `{name}` was stopped"))),
        JobEnd::Idle => Err(Error::failed_precondition(format!("job `{name}` was ended because it was idle"))),
    }
}

fn end_of_pass(d: &mut Deciding<'_>, name: &JobName, job: &Job, stream: &Stream, at: u32) {
    d.push(Change::ConsumerAdvanced { job: name.clone(), consumer: stream.consumer.clone(), at: at + 1 });
    let told = match job.pass_at(at).filter(|_| !job.is_last(at)) {
        Some(pass) => Granted::EndOfPass(pass),
        None => Granted::EndOfJob,
    };
    d.reply(Reply::Granted(told));
}

fn grant(d: &mut Deciding<'_>, job: &Job, (pass_id, pass): (PassId, &Pass), (id, stream): (StreamId, &Stream), most: u64) {
    d.reply(Reply::Wait);
    // Half of an even share of what is left: consumers that come a little later, or are faster, still find something.
    let share = pass.pending() / (2 * (job.consumers.len() as u64).max(1));
    let free = pass.pending().saturating_sub(reserved(d, job, pass_id, stream));
    if free == 0 {
        return;
    }
    let mut block = share.clamp(1, most).min(free);
    if stream.acks {
        block = block.min(room_of(job, pass, stream));
        if block == 0 {
            return;
        }
    }
    let Some((window, lease)) = find_window(pass, &stream.worker) else { return };
    let (size, attempt) = (pass.window_size(window), lease.unwrap_or_default());
    let limit = u32::try_from(block).unwrap_or(u32::MAX);
    let open = pass.windows.get(&window);
    let Some((from, to)) = open.map_or(Some((0, size.min(limit))), |w| w.spans.first_gap(size, limit)) else { return };
    let name = job.settings.job.clone();
    let attempt = match (lease, open) {
        (None, Some(open)) => open.attempt,
        _ => {
            d.push(Change::WindowLeased { job: name.clone(), pass: pass_id, window, worker: stream.worker.clone(), attempt });
            attempt
        }
    };
    d.push(Change::Granted { job: name, pass: pass_id, window, stream: id, from, to });
    d.reply(Reply::Granted(Granted::Batches(Grant {
        pass: pass_id,
        epoch: pass.shape.epoch,
        version: pass.shape.version,
        selection: pass.shape.selection.clone(),
        window,
        attempt,
        batches: pass.batch(window, from).0..pass.batch(window, to).0,
    })));
}

/// How many more batches a worker may have in flight to acknowledging consumers.
fn room_of(job: &Job, pass: &Pass, stream: &Stream) -> u64 {
    let most = WINDOWS_IN_FLIGHT * pass.batches_per_window();
    // The job's open batches bound the worker's, and are known without looking at every stream.
    let mut held = job.open_visits();
    if held >= most {
        held = job.streams.values().filter(|s| s.acks && s.worker == stream.worker).map(|s| s.held).sum();
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
    job.consumers.values().filter(|c| c.fed != Some(pass)).count() as u64
}

/// A window with pending batches for a worker: one that it holds, else one that nobody holds, with the attempt of its new lease, else another
/// worker's, whose lease stays: grants belong to streams, so the window is only read twice, and no consumer waits for another worker's.
fn find_window(pass: &Pass, worker: &WorkerName) -> Option<(WindowId, Option<Attempt>)> {
    let (mut free, mut others) = (None, None);
    for id in pass.available.iter().copied() {
        let Some(window) = pass.windows.get(&id) else { continue };
        match &window.worker {
            Some(holder) if holder == worker => return Some((id, None)),
            None if id < pass.next_window && free.is_none() => free = Some((id, Some(Attempt(window.attempt.0 + 1)))),
            Some(_) if others.is_none() => others = Some((id, None)),
            _ => {}
        }
    }
    let next = pass.next_window;
    let fresh = next.0 < pass.window_count();
    free.or_else(|| fresh.then_some((next, Some(Attempt(0))))).or(others)
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
    if job.consumers.contains_key(&consumer) {
        d.volatile.consumer_seen(&name, &consumer, d.now);
    }
    // A pass or window that is not here is in the ledger: the report is a repetition, or too late to count.
    let Some(pass) = job.passes.get(&pass_id) else { return Ok(()) };
    let mut taken = Vec::with_capacity(batches.len());
    for (batch, digest) in batches {
        if batch.0 >= pass.batches {
            return Err(Error::bad_input(format!("pass {pass_id} of job `{name}` has {} batches, and no batch {batch}", pass.batches)));
        }
        let (id, at) = pass.place(batch);
        let Some(window) = pass.windows.get(&id) else {
            if id < pass.next_window {
                continue;
            }
            return Err(never_granted(&name, pass_id, batch, &consumer));
        };
        let span = window.spans.get(at);
        let owner = span.and_then(|s| s.stream).and_then(|s| job.streams.get(&s));
        match span {
            Some(span) if owner.is_some_and(|o| o.consumer == consumer) => {
                if span.state != VisitState::Acknowledged {
                    taken.push((batch, digest));
                }
            }
            _ => return Err(never_granted(&name, pass_id, batch, &consumer)),
        }
    }
    if !taken.is_empty() {
        // Acknowledgements make room for grants.
        d.job_changed(&name);
        d.push(Change::Acknowledged { job: name, pass: pass_id, consumer, batches: taken });
    }
    Ok(())
}

fn never_granted(job: &JobName, pass: PassId, batch: BatchId, consumer: &ConsumerName) -> Error {
    Error::bad_input(format!("batch {batch} of pass {pass} of job `{job}` was never granted to consumer `{consumer}`"))
        .with_remedy("acknowledge only batches that this consumer received")
}
