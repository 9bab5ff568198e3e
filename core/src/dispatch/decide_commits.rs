//! Commits, restores, and the reports of consumers that lost streams.

use super::commit_state::{CommitRecord, CommittedPass, Restored, Token};
use super::decide::Deciding;
use super::decide_equal;
use super::decide_jobs::{self, check_member, find, join, over};
use super::decide_visits::acknowledgeable;
use super::entry::{Change, JobEnd};
use super::event::{OpenedJob, Reply, StoredDataset, Taken};
use super::job_state::{Consumer, Job, JobPhase};
use super::map::Map;
use super::pass_state::{Pass, PassShape};
use super::ranges::Ranges;
use super::reconcile;
use super::spans::{Mark, VisitState};
use super::state::StreamId;
use crate::error::{Error, Kind, Result};
use crate::ids::{BatchId, ConsumerName, Incarnation, JobName, PassId};
use crate::job::{ConsumerSettings, End, JobSettings, Steps};

pub(super) fn report(
    d: &mut Deciding<'_>,
    name: JobName,
    incarnation: Incarnation,
    consumer: ConsumerName,
    number: u64,
    streams: Option<Vec<StreamId>>,
    received: Vec<(PassId, Vec<BatchId>)>,
) -> Result<()> {
    let job = find(d, &name)?;
    job.check_incarnation(incarnation)?;
    check_member(d, job, &consumer)?;
    let Some(there) = job.consumers.get(&consumer) else { return Ok(()) };
    d.volatile.consumer_seen(&name, &consumer, d.now);
    if there.reported.is_some_and(|last| last >= number) {
        // It was taken already; streams opened since then are none of its business.
        return Ok(());
    }
    let its = job.streams.of_consumer(&consumer).iter().copied().filter(|id| job.streams.get(id).is_some_and(|s| s.open));
    let streams: Vec<StreamId> = its.filter(|id| streams.as_ref().is_none_or(|named| named.contains(id))).collect();
    d.may_lose(&name);
    d.job_changed(&name);
    d.push(Change::Reported { job: name, consumer, number, streams, received });
    Ok(())
}

pub(super) fn commit(
    d: &mut Deciding<'_>,
    name: JobName,
    incarnation: Incarnation,
    consumer: ConsumerName,
    call: u64,
    taken: Taken,
) -> Result<()> {
    let job = find(d, &name)?;
    job.check_incarnation(incarnation)?;
    match &job.phase {
        JobPhase::Ended { end: JobEnd::Finished, .. } => return final_commit(d, job),
        JobPhase::Ended { .. } => return Err(over(job)),
        JobPhase::Ending if job.consumers.is_empty() => return final_commit(d, job),
        // Whoever is still there has a commit of its own to make: it would be complete without them.
        JobPhase::Ending if !job.consumers.contains_key(&consumer) => {
            d.reply(Reply::Wait);
            return Ok(());
        }
        _ => {}
    }
    check_member(d, job, &consumer)?;
    let Some(member) = job.consumers.get(&consumer) else {
        return Err(Error::failed_precondition(format!("the lease of consumer `{consumer}` of job `{name}` ran out"))
            .with_remedy("open the job again"));
    };
    d.volatile.consumer_seen(&name, &consumer, d.now);
    let open = job.next_commit;
    let number = member.behind.map_or(open, |behind| u64::try_from(behind.saturating_add_unsigned(call)).unwrap_or(0));
    // What an uneven call named is in no commit, and open again.
    let uneven = job.commits.get(&number).is_some_and(|record| record.uneven.is_some());
    if !uneven && (number < open || member.called == Some(open)) {
        check_repeated(job, &consumer, call, &taken)?;
    }
    if number < open {
        return answer(d, job, number);
    }
    if number > open {
        return Err(Error::bad_input(format!(
            "call {call} of consumer `{consumer}` of job `{name}` before the one before it was answered"
        ))
        .with_remedy("make one call of `commit` at a time"));
    }
    if member.called != Some(open) {
        for (pass, batches) in taken {
            let batches = acknowledgeable(job, &consumer, pass, batches)?;
            if !batches.is_empty() {
                d.push(Change::Acknowledged { job: name.clone(), pass, consumer: consumer.clone(), batches });
            }
        }
        d.push(Change::CommitCalled { job: name.clone(), consumer, commit: open, call });
    }
    // Whether all have called is seen when this entry is applied.
    d.job_changed(&name);
    d.reply(Reply::Wait);
    Ok(())
}

/// A call that is made again takes nothing more: it would be told that something is in its commit that is not.
fn check_repeated(job: &Job, consumer: &ConsumerName, call: u64, taken: &Taken) -> Result<()> {
    for (pass, batches) in taken {
        let more = acknowledgeable(job, consumer, *pass, batches.clone())?.first().map(|(batch, _)| *batch);
        let its = |stream: StreamId| job.streams.get(&stream).is_some_and(|s| s.consumer == *consumer);
        let later = |batch: BatchId| {
            let visit = job.passes.get(pass).and_then(|p| p.visit(batch)).filter(|v| v.stream.is_some_and(its));
            visit.is_some_and(|v| v.state == VisitState::Acknowledged && v.mark == Mark::Open)
        };
        if let Some(batch) = more.or_else(|| batches.iter().map(|(batch, _)| *batch).find(|b| later(*b))) {
            let name = &job.settings.job;
            return Err(Error::bad_input(format!(
                "call {call} of consumer `{consumer}` of job `{name}` was made before, without batch {batch} of pass {pass}"
            ))
            .with_remedy("repeat a call as it was, and name what was taken since in the next one"));
        }
    }
    Ok(())
}

/// What every consumer that called is told.
fn answer(d: &mut Deciding<'_>, job: &Job, number: u64) -> Result<()> {
    let Some(record) = job.commits.get(&number) else {
        return Err(Error::not_found(format!("commit {number} of job `{}` is not kept any more", job.settings.job))
            .with_remedy("commit again, or raise `kept_commits`"));
    };
    if let Some(why) = &record.uneven {
        return Err(Error::failed_precondition(format!("job `{}` can't be committed: {why}", job.settings.job))
            .with_remedy("call `commit` where all ranks have made equally many steps"));
    }
    d.reply(Reply::Committed(token(number, record, job)));
    Ok(())
}

fn token(number: u64, record: &CommitRecord, job: &Job) -> Token {
    match &record.pass {
        Some(pass) if job.settings.is_fixed() => Token::At { pass: pass.pass, next: pass.taken.end_of(0).unwrap_or(0) },
        _ => Token::Commit { incarnation: record.incarnation, commit: number },
    }
}

/// After the last pass there is nothing to wait for: everything is done.
fn final_commit(d: &mut Deciding<'_>, job: &Job) -> Result<()> {
    let last = job.commits.last_key_value();
    let same = last.filter(|(_, r)| r.incarnation == job.incarnation && r.place == job.ended && r.pass.is_none() && r.uneven.is_none());
    if let Some((number, record)) = same {
        d.reply(Reply::Committed(token(*number, record, job)));
        return Ok(());
    }
    let name = job.settings.job.clone();
    d.reply(Reply::Committed(Token::Commit { incarnation: job.incarnation, commit: job.next_commit }));
    d.push(Change::Committed { job: name, commit: job.next_commit, place: job.ended, next: None, uneven: None });
    Ok(())
}

/// Completes the commit that is open when every live consumer has made its call.
pub(super) fn complete(d: &mut Deciding<'_>, job: &Job) -> bool {
    let open = job.next_commit;
    if job.consumers.is_empty() || job.consumers.called(open) < job.consumers.len() as u64 {
        return false;
    }
    let name = job.settings.job.clone();
    let (place, next, uneven) = match position(job) {
        Ok((place, next)) => (place, next, None),
        Err(why) => (job.ended, None, Some(why)),
    };
    d.push(Change::Committed { job: name.clone(), commit: open, place, next, uneven });
    d.job_changed(&name);
    true
}

/// Where the ranks of a fixed map stand: the place of their pass, and the batch before which they do. Dynamic jobs are at their pass.
fn position(job: &Job) -> Result<(u32, Option<u64>), String> {
    let here = job.ended;
    let pass = job.pass_at(here).and_then(|id| job.passes.get(&id));
    let Some((pass, map)) = pass.and_then(|p| Some((p, p.map.as_ref()?))) else { return Ok((here, None)) };
    if let Some((name, _)) = job.consumers.iter().find(|(_, c)| c.at > here + 1) {
        return Err(format!("consumer `{name}` is two passes ahead"));
    }
    let ahead = job.pass_at(here + 1).and_then(|id| job.passes.get(&id)).is_some_and(|p| p.counts.total() > p.counts.dropped);
    let mut stands: Vec<(u32, Option<u64>)> = Vec::new();
    for rank in &map.last().ranks {
        let consumer = job.consumers.of_rank(*rank).next().and_then(|name| job.consumers.get(name));
        let next = if consumer.is_some_and(|c| c.at > here) { None } else { next_not_passed(job, pass, map, *rank) };
        stands.push((*rank, next));
    }
    if ahead {
        return Err("some ranks have begun the next pass".to_owned());
    }
    let Some(least) = stands.iter().filter_map(|(_, next)| *next).min() else {
        if pass.is_growing() {
            // All ranks took all that is there.
            return Ok((here, Some(pass.end.map_or(pass.deliverable, |end| map.batch_at(end).min(pass.deliverable)))));
        }
        return if decide_equal::is_over(job, pass) { Ok((here + 1, None)) } else { Err("the pass is not over for everyone".to_owned()) };
    };
    let step = map.step_of(least);
    let end = pass.end.map_or(pass.deliverable, |end| map.batch_at(end).min(pass.deliverable));
    for (rank, next) in stands {
        // Whoever has no batch of this step stands behind its last.
        let own = map.next_of(rank, map.batch_at(step)).filter(|b| *b < end);
        let ahead = next.and_then(|n| taken_behind(pass, map, rank, n));
        if let Some(taken) = ahead {
            return Err(format!("rank {rank} took batch {taken} before batch {}", next.unwrap_or_default()));
        }
        if next != own {
            let at = next.map_or_else(|| "its end".to_owned(), |b| format!("step {}", map.step_of(b)));
            return Err(format!("rank {rank} is at {at}, others at step {step}"));
        }
    }
    Ok((here, Some(map.batch_at(step))))
}

/// The first batch of a rank that the commit does not hold and that is not lost.
fn next_not_passed(job: &Job, pass: &Pass, map: &Map, rank: u32) -> Option<u64> {
    let end = pass.end.map_or(pass.deliverable, |end| map.batch_at(end).min(pass.deliverable));
    let alive = |stream: StreamId| job.streams.get(&stream).is_some_and(|s| job.consumers.contains_key(&s.consumer));
    let mut batch = map.next_of(rank, pass.first);
    while let Some(b) = batch.filter(|b| *b < end) {
        let passed = match pass.visit(BatchId(b)) {
            Some(span) => match span.state {
                VisitState::Granted | VisitState::Sent => false,
                VisitState::Acknowledged => span.mark != Mark::Open || span.stream.is_none_or(|s| !alive(s)),
                VisitState::Lost | VisitState::Dropped => true,
            },
            None => pass.is_in_ledger(pass.place(BatchId(b)).0),
        };
        if !passed {
            return Some(b);
        }
        batch = map.next_of(rank, b + 1);
    }
    None
}

/// A batch of the rank that was taken although `next` was not.
fn taken_behind(pass: &Pass, map: &Map, rank: u32, next: u64) -> Option<u64> {
    let mut batch = map.next_of(rank, next + 1);
    while let Some(b) = batch.filter(|b| *b < pass.deliverable && pass.place(BatchId(*b)).0 < pass.next_window) {
        let taken = match pass.visit(BatchId(b)) {
            Some(span) => span.state == VisitState::Acknowledged,
            None => pass.is_in_ledger(pass.place(BatchId(b)).0),
        };
        if taken {
            return Some(b);
        }
        batch = map.next_of(rank, b + 1);
    }
    None
}

pub(super) fn restore(
    d: &mut Deciding<'_>,
    settings: JobSettings,
    consumer: &ConsumerSettings,
    token: Token,
    attempt: Option<String>,
    stored: Option<&StoredDataset>,
) -> Result<()> {
    let name = settings.job.clone();
    let Some(job) = d.state.jobs.get(&name) else { return begin(d, settings, consumer, token, attempt, stored) };
    let settings = decide_jobs::with_rounds_of(job, settings);
    if joins(d, job, consumer, token, attempt.as_deref()) {
        let difference = job.settings.difference(&settings);
        if !difference.is_empty() {
            return Err(Error::new(
                Kind::AlreadyExists,
                format!("job `{name}` was restored with other settings: {}", difference.join(", ")),
            )
            .with_remedy("give the same settings"));
        }
        return join(d, job, consumer);
    }
    if let Some(restored) = job.restored.as_ref().filter(|r| r.token == token && r.attempt == attempt)
        && job.pass_at(restored.place).is_none()
    {
        // Nothing was left to do, and the others may have left already.
        d.reply(Reply::Job(OpenedJob { job: name, incarnation: job.incarnation, pass: None, created_ms: job.created_ms }));
        return Ok(());
    }
    if attempt.as_ref().is_some_and(|a| job.attempts.contains(a)) {
        // A call that was on its way for long, or a trainer that nobody waits for: the others have gone on, perhaps to another checkpoint.
        return Err(Error::failed_precondition(format!("job `{name}` was restored since, or restored and ended"))
            .with_remedy("give a new restore another name"));
    }
    let (place, pass) = resolve(job, token)?;
    check_settings(job, &settings, pass.as_ref())?;
    let incarnation = Incarnation(job.incarnation.0 + 1);
    let fresh = Job::new(settings.clone(), job.epochs.clone(), incarnation, d.now.wall_ms);
    check_place(&fresh, place, pass.as_ref())?;
    if !matches!(job.phase, JobPhase::Ended { .. }) {
        // The older consumers are fenced by this.
        d.push(Change::JobEnded { job: name.clone(), end: JobEnd::Restored });
    }
    if !matches!(job.phase, JobPhase::Ended { .. }) || !reconcile::is_flushed(job) {
        d.volatile.flush_now.insert(name.clone());
        d.job_changed(&name);
        d.reply(Reply::Again);
        return Ok(());
    }
    let restored = Restored { token, attempt, place, pass, joined: Default::default() };
    let fresh = Job { started: place, ended: place, ..fresh };
    d.volatile.forget_job(&name);
    d.push(Change::JobCreated {
        settings: Box::new(settings),
        incarnation,
        epochs: job.epochs.clone(),
        restored: Some(Box::new(restored)),
    });
    join(d, &fresh, consumer)
}

/// A state that was made before anybody had opened the job: ranks of a fixed map compute it without asking. It stands before the first batch.
fn begin(
    d: &mut Deciding<'_>,
    settings: JobSettings,
    consumer: &ConsumerSettings,
    token: Token,
    attempt: Option<String>,
    stored: Option<&StoredDataset>,
) -> Result<()> {
    let name = settings.job.clone();
    let first = matches!(token, Token::At { next: 0, pass } if settings.is_fixed() && settings.epochs.nth(0, 1) == Some(pass.0));
    if !first {
        return find(d, &name).map(|_| ());
    }
    let epochs = decide_jobs::epochs_of(d, &settings, stored)?;
    let job = Job::new(settings.clone(), epochs.clone(), Incarnation(0), d.now.wall_ms);
    d.volatile.forget_job(&name);
    let restored = Restored { token, attempt, place: 0, pass: None, joined: Default::default() };
    d.push(Change::JobCreated { settings: Box::new(settings), incarnation: job.incarnation, epochs, restored: Some(Box::new(restored)) });
    join(d, &job, consumer)
}

/// The passes of the job that goes on are those of the checkpoint, as far as it came.
fn check_place(fresh: &Job, place: u32, pass: Option<&CommittedPass>) -> Result<()> {
    let Some(done) = pass.filter(|done| fresh.pass_at(place) != Some(done.pass)) else { return Ok(()) };
    let name = &fresh.settings.job;
    Err(Error::bad_input(format!("epochs: the checkpoint of job `{name}` is in pass {}, its number {place}", done.pass))
        .with_remedy("give the epochs of the job that made it; more may follow"))
}

/// Whether the ranks of a fixed map were through with a pass when they stood before batch `next`: what it still had was dropped, and said so.
fn was_over(job: &Job, pass: PassId, shape: &PassShape, next: u64) -> bool {
    if shape.growth.is_some() {
        return false;
    }
    let JobSettings { batch_size, steps, end, world_size, .. } = *job.settings.as_ref();
    let batches = if end == End::Drop { shape.rows / batch_size.max(1) } else { shape.rows.div_ceil(batch_size.max(1)) };
    let restored = job.restored.as_ref().and_then(|r| r.pass.as_ref()).filter(|done| done.pass == pass);
    let base = restored.and_then(|done| done.taken.end_of(0)).unwrap_or(0);
    let world = u64::from(world_size.unwrap_or(1).max(1));
    let whole = base + batches.saturating_sub(base) / world * world;
    next >= if steps == Steps::Equal && end == End::Drop { whole } else { batches }
}

/// Whether a consumer that restores joins the incarnation that another one opened for the same restore.
fn joins(d: &Deciding<'_>, job: &Job, consumer: &ConsumerSettings, token: Token, attempt: Option<&str>) -> bool {
    let Some(restored) = job.restored.as_ref().filter(|r| r.token == token) else { return false };
    if matches!(job.phase, JobPhase::Ended { .. }) {
        return false;
    }
    let repeats = |c: &Consumer| d.session.is_some() && c.session == d.session;
    if attempt.is_some() || restored.attempt.is_some() {
        return restored.attempt.as_deref() == attempt;
    }
    // Without a common name for the attempt: whoever took part already comes back for another one.
    if restored.joined.contains(&consumer.consumer) {
        return job.consumers.get(&consumer.consumer).is_some_and(repeats);
    }
    // What was committed since is not in the checkpoint: whoever comes with that one now has lost it, and goes back behind it.
    if job.commits.values().any(|record| record.incarnation == job.incarnation) {
        return false;
    }
    job.settings.world_size.is_none_or(|world| (restored.joined.len() as u64) < u64::from(world))
}

/// What a token stands for.
fn resolve(job: &Job, token: Token) -> Result<(u32, Option<CommittedPass>)> {
    let name = &job.settings.job;
    match token {
        Token::Commit { incarnation, commit } => {
            let record = job.commits.get(&commit).filter(|r| r.incarnation == incarnation && r.uneven.is_none());
            let Some(record) = record else {
                let kept: Vec<String> = job.commits.keys().map(u64::to_string).collect();
                let kept = if kept.is_empty() { "none is".to_owned() } else { format!("kept are {}", kept.join(", ")) };
                return Err(Error::not_found(format!("commit {commit} of incarnation {incarnation} of job `{name}` is not kept; {kept}"))
                    .with_remedy("restore a newer checkpoint, or raise `kept_commits`"));
            };
            Ok((record.place, record.pass.clone()))
        }
        Token::At { pass, next } => {
            if !job.settings.is_fixed() {
                return Err(Error::bad_input(format!("the token names a batch, and job `{name}` is dynamic"))
                    .with_remedy("restore what this job's `state_dict` gave"));
            }
            let Some(place) = job.place_of(pass) else {
                return Err(Error::bad_input(format!("job `{name}` has no pass {pass}")));
            };
            let shape = job.passes.get(&pass).map(|p| p.shape.clone()).or_else(|| job.shapes.get(&pass).cloned());
            // Over for everybody, and not only for those who come when that was noticed.
            if shape.as_ref().is_some_and(|shape| was_over(job, pass, shape, next)) {
                return Ok((place + 1, None));
            }
            Ok((place, Some(CommittedPass { pass, shape, taken: Ranges::up_to(next) })))
        }
    }
}

/// Another world size, other timeouts and more passes are no other plan; everything else is.
fn check_settings(job: &Job, settings: &JobSettings, pass: Option<&CommittedPass>) -> Result<()> {
    let like = JobSettings {
        epochs: settings.epochs.clone(),
        world_size: settings.world_size,
        steps: settings.steps,
        end: settings.end,
        rank_lost: settings.rank_lost,
        rank_timeout_ms: settings.rank_timeout_ms,
        idle_timeout_ms: settings.idle_timeout_ms,
        kept_commits: settings.kept_commits,
        columns: settings.columns.clone(),
        ..job.settings.as_ref().clone()
    };
    let both_fixed = job.settings.is_fixed() && settings.is_fixed();
    let like = JobSettings { assignment: if both_fixed { settings.assignment } else { like.assignment }, ..like };
    let difference = like.difference(settings);
    if !difference.is_empty() {
        let name = &settings.job;
        return Err(Error::new(
            Kind::AlreadyExists,
            format!("the checkpoint of job `{name}` is of other settings: {}", difference.join(", ")),
        )
        .with_remedy("give the settings of the job that made it; only the world size may differ"));
    }
    let holes = pass.is_some_and(|p| p.taken.parts() > 1);
    if settings.is_fixed() && holes {
        return Err(Error::bad_input("a fixed map can't go on from a commit with holes"));
    }
    Ok(())
}
