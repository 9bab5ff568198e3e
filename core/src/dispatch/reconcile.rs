//! What is due: timers that ran out, commits to prepare or to finish, passes to plan, visits to move to the ledger, jobs to end. Everything
//! here follows from the state, so that a new leader takes up whatever its predecessor left.

use std::collections::BTreeMap;

use super::apply_jobs::WindowParts;
use super::decide::{self, Deciding};
use super::entry::{Change, JobEnd};
use super::event::{Action, CommitRequest};
use super::job_state::{Job, JobPhase};
use super::pass_state::Pass;
use super::report::{part_rows, window_rows};
use super::run_state::Run;
use super::spans::Reason;
use super::volatile::{Life, Work};
use super::{decide_commits, decide_equal, decide_jobs, growth};
use crate::error::{Error, Kind};
use crate::ids::{BatchId, ConsumerName, DatasetName, EpochId, JobName, PassId, WindowId};
use crate::job::{Assignment, End, RankLost};

/// At most this many visits go into one file.
const LEDGER_MOST: u64 = 65_536;
const LEDGER_AGE_MS: u64 = 5_000;
/// Windows with lost batches that may wait for late reports; more go to the ledger at once, so that the state stays bounded.
const LATE_WINDOWS: usize = 1_024;
/// How often timers are looked at.
const TIMER_MS: u64 = 200;

pub(super) fn tick(d: &mut Deciding<'_>) {
    if !d.volatile.leading {
        return;
    }
    // What timers change is looked at by the next tick: this one does not see it yet.
    let (datasets, mut jobs) = (std::mem::take(&mut d.volatile.dirty_datasets), std::mem::take(&mut d.volatile.dirty_jobs));
    jobs.extend(growth::followers(d, &datasets));
    for dataset in datasets {
        due_dataset(d, &dataset);
    }
    for job in jobs {
        due_job(d, &job);
    }
    if d.now.mono_ms >= d.volatile.next_timer {
        d.volatile.next_timer = d.now.mono_ms + TIMER_MS;
        expire_workers(d);
        expire_consumers(d);
        lost_ranks(d);
        retry(d);
    }
}

fn expire_workers(d: &mut Deciding<'_>) {
    let now = d.now.mono_ms;
    let over: Vec<_> =
        d.volatile.workers.iter().filter(|(_, w)| matches!(w.life, Life::Until(end) if end <= now)).map(|(n, _)| n.clone()).collect();
    for worker in over {
        let error = Error::new(Kind::Unavailable, format!("worker `{worker}` stopped answering"));
        decide::worker_gone(d, &worker, Some(&error));
    }
}

fn expire_consumers(d: &mut Deciding<'_>) {
    let (state, now) = (d.state, d.now);
    for (name, job) in &state.jobs {
        if matches!(job.phase, JobPhase::Ended { .. }) {
            continue;
        }
        let over = renew(d, name, job);
        for consumer in over {
            decide_jobs::leave(d, name.clone(), consumer.clone(), Reason::ConsumerDied);
        }
        if !job.consumers.is_empty() || job.phase != JobPhase::Open {
            d.volatile.idle_since.remove(name);
            continue;
        }
        let since = *d.volatile.idle_since.entry(name.clone()).or_insert(now.mono_ms);
        if now.mono_ms.saturating_sub(since) >= job.settings.idle_timeout_ms {
            d.volatile.idle_since.remove(name);
            d.job_changed(name);
            d.push(Change::JobEnded { job: name.clone(), end: JobEnd::Idle });
        }
    }
}

/// Renews the leases of consumers that have an open stream, or are new here; returns those whose lease is over.
fn renew<'a>(d: &mut Deciding<'_>, name: &JobName, job: &'a Job) -> Vec<&'a ConsumerName> {
    let (now, end) = (d.now.mono_ms, d.now.mono_ms + d.volatile.term_ms);
    let (mut new, mut over) = (Vec::new(), Vec::new());
    let known = d.volatile.consumers.entry(name.clone()).or_default();
    for consumer in job.consumers.keys() {
        match known.get_mut(consumer) {
            Some(until) if job.streams.has_open(consumer) => *until = end,
            Some(until) if *until <= now => over.push(consumer),
            Some(_) => {}
            None => new.push(consumer.clone()),
        }
    }
    known.extend(new.into_iter().map(|consumer| (consumer, end)));
    over
}

/// `rank_lost` of jobs in rounds: a rank that was there and is away for its timeout.
fn lost_ranks(d: &mut Deciding<'_>) {
    let (state, now) = (d.state, d.now.mono_ms);
    for (name, job) in &state.jobs {
        let policy = job.settings.rank_lost;
        if job.settings.assignment != Assignment::Rounds || policy == RankLost::Wait || job.phase != JobPhase::Open {
            continue;
        }
        for rank in job.seen_ranks.difference(&job.dropped_ranks) {
            let key = (name.clone(), *rank);
            if job.consumers.of_rank(*rank).next().is_some() {
                d.volatile.away_since.remove(&key);
                continue;
            }
            let since = *d.volatile.away_since.entry(key.clone()).or_insert(now);
            if now.saturating_sub(since) < job.settings.rank_timeout_ms {
                continue;
            }
            d.volatile.away_since.remove(&key);
            if policy == RankLost::Fail {
                let error = Error::failed_precondition(format!("rank {rank} was away for longer than `rank_timeout`"))
                    .with_remedy("restore the last commit");
                decide_jobs::fail(d, name.clone(), error);
                break;
            }
            drop_rank(d, job, *rank);
            // One at a time: the next one's map is that of the survivors.
            break;
        }
    }
}

/// From the first step that is not open on, the map goes on without the rank.
fn drop_rank(d: &mut Deciding<'_>, job: &Job, rank: u32) {
    let name = &job.settings.job;
    let pass = job.current().and_then(|id| Some((id, job.passes.get(&id)?)));
    let (mut from, mut end) = (None, None);
    if let Some((id, pass)) = pass
        && let Some(map) = &pass.map
    {
        let lead = pass.lead.min(pass.deliverable);
        // The open step is the one that the lead is in, if somebody was granted of it; a step that is only about to open is not.
        let first = map.batch_at(map.step_of(lead));
        let begun = (first..map.batch_at(map.step_of(lead) + 1).min(pass.deliverable)).any(|b| !pass.is_pending(BatchId(b)));
        let batch = map.batch_at(map.step_of(lead) + u64::from(begun)).min(pass.deliverable.max(first));
        let width = map.last().ranks.iter().filter(|r| **r != rank).count() as u64;
        from = Some((id, BatchId(batch)));
        let left = pass.deliverable.saturating_sub(batch);
        let steps = match (width, job.settings.end) {
            (0, _) => 0,
            (_, End::Pad) => left.div_ceil(width),
            _ => left / width,
        };
        end = pass.end.map(|_| map.step_of(batch) + steps);
    }
    d.may_lose(name);
    d.job_changed(name);
    d.push(Change::RankDropped { job: name.clone(), rank, from, end });
}

/// Marks what failed before, and what waits for time to pass, for another look.
fn retry(d: &mut Deciding<'_>) {
    let now = d.now.mono_ms;
    let v = &mut *d.volatile;
    for (work, _) in v.retry_at.iter().filter(|(_, (at, _))| *at <= now) {
        match work {
            Work::Prepare(dataset) | Work::Commit(dataset) => v.dirty_datasets.insert(dataset.clone()),
            Work::Shape(job) | Work::Ledger(job) => v.dirty_jobs.insert(job.clone()),
        };
    }
    v.dirty_jobs.extend(v.unwritten_since.keys().cloned());
    // Who waited for what was reserved may have it now.
    let over: Vec<_> = v.reserved_until.iter().filter(|(_, until)| **until <= now).map(|(job, _)| job.clone()).collect();
    for job in over {
        d.volatile.reserved_until.remove(&job);
        d.job_changed(&job);
    }
}

fn due_dataset(d: &mut Deciding<'_>, name: &DatasetName) {
    let Some(run) = d.state.datasets.get(name).and_then(|k| k.run.as_ref()) else { return };
    if !run.is_running() {
        d.volatile.progress.retain(|(dataset, ..), _| dataset != name);
    }
    if let Some((epoch, version, body)) = run.publishing() {
        if !d.volatile.in_flight.contains(&Work::Prepare(name.clone())) && d.volatile.begin(Work::Commit(name.clone()), d.now) {
            d.act(Action::Commit { dataset: name.clone(), run: run.id, epoch, version, body: body.to_owned() });
        }
        return;
    }
    let complete = run.epochs.iter().find(|(_, e)| run.is_running() && e.is_complete());
    if let Some((epoch, _)) = complete
        && d.volatile.begin(Work::Prepare(name.clone()), d.now)
    {
        let request = commit_request(run, *epoch);
        d.out.actions.extend(request.map(|r| Action::PrepareCommit(Box::new(r))));
    }
}

pub(super) fn commit_request(run: &Run, epoch: EpochId) -> Option<CommitRequest> {
    let staged: Vec<_> = run.epochs.get(&epoch)?.tasks.iter().filter_map(|t| t.staged.as_ref()).collect();
    Some(CommitRequest {
        run: run.id,
        spec: run.spec.clone(),
        epoch,
        shards: staged.iter().flat_map(|s| s.shards.iter().cloned()).collect(),
        quarantine: staged.iter().filter_map(|s| s.quarantined.path.clone()).collect(),
        quarantined_rows: staged.iter().map(|s| s.quarantined.rows).sum(),
        replace: run.replace && run.published().is_empty(),
    })
}

fn due_job(d: &mut Deciding<'_>, name: &JobName) {
    let Some(job) = d.state.jobs.get(name) else { return };
    if matches!(job.phase, JobPhase::Ended { .. }) && is_flushed(job) {
        d.volatile.forget_job(name);
        return;
    }
    if job.phase == JobPhase::Ending && job.open_visits() == 0 {
        d.volatile.touch_job(name);
        d.act(Action::JobChanged(name.clone()));
        d.push(Change::JobEnded { job: name.clone(), end: JobEnd::Finished });
        return;
    }
    if growth::due_growth(d, name, job) {
        return;
    }
    if job.phase == JobPhase::Open && due_pass_end(d, name, job) {
        return;
    }
    if decide_commits::complete(d, job) {
        return;
    }
    if job.phase == JobPhase::Open && d.volatile.wants_pass.contains(name) {
        shape_pass(d, name, job);
    }
    due_ledger(d, name, job);
}

/// With redelivery on, or with ranks, the last acknowledgement may end a pass, and nobody may be there to ask.
fn due_pass_end(d: &mut Deciding<'_>, name: &JobName, job: &Job) -> bool {
    let Some((id, pass)) = job.current().and_then(|id| Some((id, job.passes.get(&id)?))) else { return false };
    if !(job.settings.redelivers() || job.settings.is_ranked()) || !decide_equal::is_over(job, pass) {
        return false;
    }
    d.push(Change::PassEnded { job: name.clone(), pass: id });
    d.job_changed(name);
    true
}

fn shape_pass(d: &mut Deciding<'_>, name: &JobName, job: &Job) {
    if let Some(pass) = job.pass_at(job.started)
        && d.volatile.begin(Work::Shape(name.clone()), d.now)
    {
        d.volatile.waiting_for_epoch.remove(name);
        d.act(Action::ShapePass {
            job: name.clone(),
            incarnation: job.incarnation,
            pass,
            settings: job.settings.clone(),
            epochs: job.epochs.clone(),
        });
    }
}

fn due_ledger(d: &mut Deciding<'_>, name: &JobName, job: &Job) {
    let ended = matches!(job.phase, JobPhase::Ended { .. });
    let closed: u64 = job.passes.values().map(|p| p.closed_batches).sum();
    let foldable: u64 = job.passes.values().map(|p| p.foldable).sum();
    let enough = d.volatile.ledger_batches();
    let partial = ended && job.passes.values().any(|p| !p.windows.is_empty());
    if closed == 0 && foldable < enough && !partial {
        d.volatile.unwritten_since.remove(name);
        d.volatile.flush_now.remove(name);
        return;
    }
    let flush = d.volatile.flush_now.contains(name);
    let since = *d.volatile.unwritten_since.entry(name.clone()).or_insert(d.now.mono_ms);
    let old = d.now.mono_ms.saturating_sub(since) >= LEDGER_AGE_MS;
    let over = job.passes.values().any(|p| p.ended && p.closed_batches > 0);
    let due = ended || flush || old || over || closed >= enough || foldable >= enough;
    if !due || d.volatile.is_busy(&Work::Ledger(name.clone()), d.now) {
        return;
    }
    // An open commit holds what was acknowledged before each call: the ledger would not tell.
    let committing = job.is_committing();
    let late = d.volatile.late_until.get(name).is_some_and(|until| d.now.mono_ms < *until) && !flush;
    let (mut windows, mut batches) = (Vec::new(), 0);
    for (id, pass) in &job.passes {
        let mut ready = ready_windows(pass, ended, late, LEDGER_MOST.saturating_sub(batches));
        ready.retain(|id| ended || !committing || pass.windows.get(id).is_none_or(|w| w.uncommitted() == 0));
        batches += ready.iter().filter_map(|w| pass.windows.get(w)).map(|w| w.counts().total()).sum::<u64>();
        if !ready.is_empty() {
            windows.push((*id, ready));
        }
    }
    let fold = foldable >= enough && !ended;
    let parts = if fold { foldable_parts(job, committing, LEDGER_MOST.saturating_sub(batches)) } else { Vec::new() };
    if (windows.is_empty() && parts.is_empty()) || !d.volatile.begin(Work::Ledger(name.clone()), d.now) {
        return;
    }
    d.volatile.unwritten_since.remove(name);
    let mut rows: Vec<_> = windows.iter().flat_map(|(pass, ids)| ids.iter().flat_map(|id| window_rows(name, job, *pass, *id))).collect();
    for (pass, windows) in &parts {
        rows.extend(windows.iter().flat_map(|(id, parts)| part_rows(name, job, *pass, *id, parts)));
    }
    d.volatile.folding.insert(name.clone(), parts);
    d.act(Action::WriteLedger { job: name.clone(), incarnation: job.incarnation, number: job.next_ledger, windows, rows });
}

/// Acknowledged batches of open windows, at most about `most` of them: the ledger may take them early, so that what is kept of a window follows
/// what is on its way, not what was taken.
fn foldable_parts(job: &Job, committing: bool, most: u64) -> Vec<(PassId, Vec<WindowParts>)> {
    let mut batches = 0;
    let mut all = Vec::new();
    for (id, pass) in &job.passes {
        let returns = committing || pass.exactly_once;
        let mut windows = Vec::new();
        for (window_id, window) in pass.windows.iter().filter(|(_, w)| w.foldable(pass.exactly_once) > 0) {
            if batches >= most {
                break;
            }
            let parts: Vec<_> = window.foldable_parts(!returns).collect();
            batches += parts.iter().map(|(from, to)| u64::from(to - from)).sum::<u64>();
            if !parts.is_empty() {
                windows.push((*window_id, parts));
            }
        }
        if !windows.is_empty() {
            all.push((*id, windows));
        }
    }
    all
}

/// Windows of a pass that may go to the ledger, at most `most` visits of them, one window at least. Lost batches wait for late reports.
fn ready_windows(pass: &Pass, job_ended: bool, late: bool, most: u64) -> Vec<WindowId> {
    let lost = |id: &WindowId| pass.windows.get(id).is_some_and(|w| w.counts().lost > 0);
    let hold = late && pass.closed_windows().filter(lost).count() <= LATE_WINDOWS;
    let (mut ready, mut batches) = (Vec::new(), 0);
    // When a job was stopped its windows keep pending batches for ever.
    let all = job_ended.then_some(&pass.windows).into_iter().flatten();
    let partial = all.filter(|(id, w)| !pass.closed.contains(id) && w.counts().open() == 0).map(|(id, _)| *id);
    for id in pass.closed_windows().chain(partial).filter(|id| !(hold && lost(id))) {
        if batches > 0 && batches >= most {
            break;
        }
        batches += pass.windows.get(&id).map_or(0, |w| w.counts().total());
        ready.push(id);
    }
    ready
}

/// Whether everything the state knew of the job's visits is in the ledger.
pub(super) fn is_flushed(job: &Job) -> bool {
    job.passes.values().all(|p| p.windows.is_empty())
}

/// What a ledger file holds, as one watermark entry per pass.
pub(super) fn watermarks(
    job: &JobName,
    windows: Vec<(PassId, Vec<WindowId>)>,
    parts: Vec<(PassId, Vec<WindowParts>)>,
    ledger: &[String],
    number: u64,
) -> Vec<Change> {
    let mut passes: BTreeMap<PassId, (Vec<WindowId>, Vec<WindowParts>)> = BTreeMap::new();
    for (pass, windows) in windows {
        passes.entry(pass).or_default().0 = windows;
    }
    for (pass, parts) in parts {
        passes.entry(pass).or_default().1 = parts;
    }
    let entry = |(pass, (windows, parts))| Change::Watermark { job: job.clone(), pass, windows, parts, ledger: ledger.to_vec(), number };
    passes.into_iter().map(entry).collect()
}
