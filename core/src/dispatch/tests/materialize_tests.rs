//! Runs, tasks and publication, one rule a test.

use super::super::*;
use super::world::*;
use crate::error::{Error, Kind};
use crate::ids::*;
use crate::pipeline::OnError;

fn start(world: &mut World, request: RunRequest, stored: Option<Box<StoredDataset>>) -> Result<Reply, Error> {
    let reply = world.send(Event::StartRun { request: Box::new(request), stored, certain: false });
    world.tick();
    reply
}

fn status(world: &World) -> RunStatus {
    run_status(&world.state, &world.volatile, &dataset("digits")).unwrap()
}

#[test]
fn a_run_goes_through_tasks_to_one_commit_an_epoch() {
    let mut world = World::new();
    assert_eq!(start(&mut world, request(run_spec("digits", "f", 3), 0..2), None).unwrap(), Reply::Accepted);
    for epoch in 0..2 {
        for task in 0..3 {
            let lease = world.task("w").unwrap();
            assert_eq!((lease.epoch, lease.task, lease.attempt), (EpochId(epoch), TaskId(task), Attempt(0)));
            world.stage(&lease, 10).unwrap();
        }
        let request = world.publish(u64::from(epoch));
        assert_eq!(request.shards.iter().map(|s| (s.task.0, s.staging.unwrap())).collect::<Vec<_>>(), [(0, 0), (1, 1), (2, 2)]);
        assert!(!request.replace);
    }
    assert!(world.task("w").is_none());
    let status = status(&world);
    assert_eq!(
        (status.state, status.progress.rows, status.progress.tasks_done, status.version),
        (RunState::Done, 60, 6, Some(VersionId(1)))
    );
    let run = world.state.datasets[&dataset("digits")].run.as_ref().unwrap();
    assert!(run.epochs.values().all(|e| e.tasks.is_empty()), "published shards stay in the state");
}

#[test]
fn an_epoch_without_rows_is_published_too() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    let lease = world.task("w").unwrap();
    world.stage(&lease, 0).unwrap();
    assert!(world.publish(0).shards.is_empty());
    assert_eq!(status(&world).state, RunState::Done);
    // Nor does a source without tasks hang.
    start(&mut world, request(run_spec("empty", "f", 0), 0..1), None).unwrap();
    world.publish(0);
}

#[test]
fn what_is_stored_is_not_made_again() {
    let mut world = World::new();
    let reply = start(&mut world, request(run_spec("digits", "f", 3), 0..2), stored("f", 4, 3)).unwrap();
    let Reply::Run(status) = reply else { panic!("{reply:?}") };
    assert_eq!((status.state, status.version), (RunState::AlreadyMaterialized, Some(VersionId(4))));
    assert!(world.task("w").is_none() && world.log.len() == 1);
    // More epochs of the same pipeline are just more epochs.
    start(&mut world, request(run_spec("digits", "f", 1), 0..5), stored("f", 4, 3)).unwrap();
    assert_eq!(world.task("w").unwrap().epoch, EpochId(3));
}

#[test]
fn a_changed_pipeline_is_refused_with_the_difference() {
    let mut world = World::new();
    let error = start(&mut world, request(run_spec("digits", "g", 3), 0..1), stored("f", 0, 1)).unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
    assert!(error.message.contains("pick") && error.message.contains("'g'"), "{error}");
    assert!(error.remedy.as_ref().unwrap().contains("--replace"));
    // Equal specs: the part that changed is named.
    let mut spec = run_spec("digits", "f", 3);
    spec.fingerprint = "other".into();
    spec.parts.insert("source".into(), "2".into());
    let error = start(&mut world, request(spec.clone(), 0..1), stored("f", 0, 1)).unwrap_err();
    assert!(error.message.ends_with("source changed"), "{error}");
    let replace = RunRequest { replace: true, ..request(spec, 0..2) };
    start(&mut world, replace, stored("f", 0, 1)).unwrap();
    for version in 1..3 {
        for _ in 0..3 {
            let lease = world.task("w").unwrap();
            world.stage(&lease, 1).unwrap();
        }
        // Only the first commit removes the old epochs.
        assert_eq!(world.publish(version).replace, version == 1);
    }
}

#[test]
fn the_journal_knows_a_newer_version_than_the_reader_saw() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    let lease = world.task("w").unwrap();
    world.stage(&lease, 1).unwrap();
    world.publish(0);
    let again = request(run_spec("digits", "f", 1), 0..1);
    assert_eq!(start(&mut world, again.clone(), None).unwrap(), Reply::Again);
    let reply = start(&mut world, again.clone(), stored("f", 0, 1)).unwrap();
    assert!(matches!(reply, Reply::Run(s) if s.state == RunState::AlreadyMaterialized));
    // A table that was removed by hand is made again.
    let certain = Event::StartRun { request: Box::new(again), stored: None, certain: true };
    assert_eq!(world.send(certain).unwrap(), Reply::Accepted);
    let lease = world.task("w").unwrap();
    assert_eq!(lease.attempt, Attempt(1), "a new run must not overwrite shards of the old one");
}

#[test]
fn the_first_finisher_of_a_task_wins() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    let slow = world.task("slow").unwrap();
    world.pass_time(TERM + 1);
    let fast = world.task("fast").unwrap();
    assert_eq!(fast.attempt, Attempt(1));
    world.stage(&fast, 5).unwrap();
    let entries = world.log.len();
    world.stage(&slow, 5).unwrap();
    world.stage(&fast, 5).unwrap();
    assert_eq!(world.log.len(), entries, "a second report changes something");
    assert!(world.publish(0).shards.iter().all(|s| s.attempt == Attempt(1)));
    // The other way round: a lease that ran out still counts when nobody was faster.
    start(&mut world, request(run_spec("other", "f", 1), 0..1), None).unwrap();
    let slow = world.task("slow").unwrap();
    world.pass_time(TERM + 1);
    world.stage(&slow, 5).unwrap();
    assert!(world.task("fast").is_none());
}

#[test]
fn transient_failures_are_tried_again_three_times() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 2), 0..1), None).unwrap();
    for attempt in 0..4 {
        let lease = world.task("w").unwrap();
        assert_eq!((lease.task, lease.attempt), (TaskId(0), Attempt(attempt)));
        world.send(Event::TaskFailed { lease, error: Error::internal("the network is down") }).unwrap();
    }
    let status = status(&world);
    assert_eq!(status.state, RunState::Failed);
    let error = status.error.unwrap();
    assert!(error.message.starts_with("task 0 of epoch 0 of `digits` failed 4 times on worker `w`: the network"), "{error}");
    assert!(world.task("w").is_none());
    let failed = system_tasks(&world.state, &world.volatile).into_iter().filter(|t| t.state == "failed").count();
    assert_eq!(failed, 4);
}

#[test]
fn bad_input_fails_at_once_and_a_stopping_worker_never() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    for _ in 0..10 {
        let lease = world.task("w").unwrap();
        world.send(Event::TaskFailed { lease, error: Error::new(Kind::Cancelled, "stopping") }).unwrap();
    }
    assert_eq!(status(&world).state, RunState::Running);
    let lease = world.task("w").unwrap();
    world.send(Event::TaskFailed { lease: lease.clone(), error: Error::bad_input("row 7 of a.csv") }).unwrap();
    assert_eq!(status(&world).state, RunState::Failed);
    let error = world.stage(&lease, 1).unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
}

#[test]
fn quarantined_rows_count_against_the_epoch() {
    let mut world = World::new();
    let mut spec = run_spec("digits", "f", 3);
    spec.pipeline.output.on_error = OnError::Quarantine { max_errors: 5 };
    start(&mut world, request(spec, 0..1), None).unwrap();
    for (rows, state) in [(3, RunState::Running), (2, RunState::Running), (1, RunState::Failed)] {
        let lease = world.task("w").unwrap();
        let quarantined = Quarantined { rows, path: Some(format!("q-{rows}")) };
        world.send(Event::TaskStaged { shards: shards(&lease, 1), lease, quarantined }).unwrap();
        assert_eq!(status(&world).state, state);
    }
    assert!(status(&world).error.unwrap().message.contains("6 rows of epoch 0"));
}

#[test]
fn resume_keeps_what_was_staged_and_nothing_else() {
    for resume in [true, false] {
        let mut world = World::new();
        start(&mut world, request(run_spec("digits", "f", 3), 0..1), None).unwrap();
        let lease = world.task("w").unwrap();
        world.stage(&lease, 1).unwrap();
        world.task("w").unwrap();
        world.crash(true, false);
        assert_eq!(status(&world).state, RunState::Interrupted);
        assert!(world.task("w").is_none(), "an interrupted run goes on by itself");
        start(&mut world, RunRequest { resume, ..request(run_spec("digits", "f", 3), 0..1) }, None).unwrap();
        let mut redone = Vec::new();
        while let Some(lease) = world.task("w") {
            assert!(lease.attempt.0 > 0 || (resume && lease.task == TaskId(2)), "an attempt number came twice");
            redone.push(lease.task.0);
            world.stage(&lease, 1).unwrap();
        }
        assert_eq!(redone, if resume { vec![1, 2] } else { vec![0, 1, 2] });
        assert_eq!(world.publish(0).shards.len(), 3);
    }
}

#[test]
fn a_server_goes_on_by_itself() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 2), 0..1), None).unwrap();
    let lease = world.task("w").unwrap();
    world.crash(false, true);
    // The worker lives on and reports to the new leader.
    world.stage(&lease, 1).unwrap();
    let lease = world.task("w").unwrap();
    assert_eq!(lease.task, TaskId(1));
    world.crash(true, true);
    assert_eq!(world.task("w2").unwrap().task, TaskId(1), "a dead worker's task is free at once");
}

#[test]
fn a_task_that_kills_its_owner_fails_in_the_end() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    for _ in 0..4 {
        world.task("w").unwrap();
        world.crash(true, true);
    }
    let status = status(&world);
    assert_eq!(status.state, RunState::Failed);
    assert!(status.error.unwrap().message.contains("the process that ran this task died"));
}

#[test]
fn a_new_leader_finishes_the_open_commit_with_the_same_bytes() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    let lease = world.task("w").unwrap();
    world.stage(&lease, 1).unwrap();
    world.crash(true, false);
    assert!(world.actions.is_empty(), "an interrupted run publishes nothing that was not written down");
    start(&mut world, RunRequest { resume: true, ..request(run_spec("digits", "f", 1), 0..1) }, None).unwrap();
    let run = world.state.datasets[&dataset("digits")].run.as_ref().unwrap().id;
    let prepared = Ok((VersionId(3), "exact".to_owned()));
    world.send(Event::CommitPrepared { dataset: dataset("digits"), run, epoch: EpochId(0), body: prepared }).unwrap();
    for _ in 0..2 {
        world.crash(true, false);
        let commit = world.take(|a| if let Action::Commit { version, body, .. } = a { Some((*version, body.clone())) } else { None });
        assert_eq!(commit, Some((VersionId(3), "exact".to_owned())));
        // Nobody may start over while that is open.
        let again = request(run_spec("digits", "g", 1), 0..1);
        assert_eq!(start(&mut world, again, None).unwrap(), Reply::Again);
    }
    let done =
        |version, outcome| Event::CommitDone { dataset: dataset("digits"), run, epoch: EpochId(0), version: VersionId(version), outcome };
    // In doubt: the same again. Foreign: the next version, written down before it is put.
    world.send(done(3, Err(Error::internal("timeout")))).unwrap();
    world.pass_time(1_000);
    assert!(world.take(|a| matches!(a, Action::Commit { version: VersionId(3), .. }).then_some(())).is_some());
    world.send(done(3, Ok(CommitOutcome::Foreign))).unwrap();
    world.tick();
    assert!(!world.actions.iter().any(|a| matches!(a, Action::Commit { .. })));
    world.publish(4);
    assert_eq!(status(&world).state, RunState::Done);
    world.send(done(3, Ok(CommitOutcome::Ours))).unwrap();
    assert_eq!(status(&world).version, Some(VersionId(4)));
}

#[test]
fn a_repeated_command_joins_and_another_pipeline_waits() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    let entries = world.log.len();
    assert_eq!(start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap(), Reply::Accepted);
    assert_eq!(world.log.len(), entries);
    start(&mut world, request(run_spec("digits", "f", 1), 0..3), None).unwrap();
    assert_eq!(status(&world).epochs.len(), 3);
    let error = start(&mut world, request(run_spec("digits", "g", 1), 0..1), None).unwrap_err();
    assert!(error.message.contains("is being materialized from another version"), "{error}");
    let error = world.send(Event::DropDataset { dataset: dataset("digits") }).unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
    world.send(Event::CancelRun { dataset: dataset("digits") }).unwrap();
    assert_eq!(status(&world).state, RunState::Cancelled);
    world.send(Event::DropDataset { dataset: dataset("digits") }).unwrap();
    assert!(run_status(&world.state, &world.volatile, &dataset("digits")).is_none());
}

#[test]
fn entries_of_an_older_leader_change_nothing() {
    let mut world = World::new();
    start(&mut world, request(run_spec("digits", "f", 1), 0..1), None).unwrap();
    let lease = world.task("w").unwrap();
    let mut old = Volatile::new(TERM);
    let staged = Event::TaskStaged { shards: shards(&lease, 1), lease, quarantined: Quarantined::default() };
    let late = decide(&world.state, &mut old, world.now, staged).unwrap();
    world.crash(false, true);
    let before = world.state.clone();
    for entry in &late.entries {
        apply(&mut world.state, entry);
    }
    assert!(!late.entries.is_empty() && world.state == before);
    let stale = Event::Lead { fence: Fence(1), address: None, workers_died: false, continue_runs: false };
    assert_eq!(world.send(stale).unwrap_err().kind, Kind::FailedPrecondition);
}
