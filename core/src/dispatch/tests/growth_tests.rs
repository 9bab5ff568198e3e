//! Passes over an epoch that is still being written.

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::world::*;
use crate::error::{Error, Kind};
use crate::ids::*;
use crate::job::{Assignment, ConsumerSettings, End, JobSettings, Order, Passes, Steps, Visitation};
use proptest::prelude::*;

/// Windows of two batches of ten rows: the tasks of these tests have 16 bytes a row.
fn staged(name: &str) -> JobSettings {
    JobSettings { order: Order::Staged, window: 20 * 16, ..settings(name, "digits", 10, Passes::All) }
}

fn ranked(name: &str, assignment: Assignment, world: u32, end: End) -> JobSettings {
    let steps = if end == End::Short { Steps::Any } else { Steps::Equal };
    JobSettings { assignment, world_size: Some(world), steps, end, ..staged(name) }
}

fn start(world: &mut World, tasks: usize, epochs: std::ops::Range<u32>) {
    let spec = run_spec("digits", "f", tasks);
    world.send(Event::StartRun { request: Box::new(request(spec, epochs)), stored: None, certain: false }).unwrap();
}

fn tasks(world: &mut World, count: usize) -> Vec<TaskLease> {
    (0..count).map(|_| world.task("w").unwrap()).collect()
}

fn join(world: &mut World, settings: &JobSettings, who: &str, rank: Option<u32>) -> OpenedJob {
    let asked = ConsumerSettings { rank, ..consumer_settings(who) };
    match world.send(Event::OpenJob { settings: Box::new(settings.clone()), consumer: Box::new(asked), stored: None }).unwrap() {
        Reply::Job(opened) => opened,
        other => panic!("{other:?}"),
    }
}

/// The Delta log has what the dispatcher published.
fn plan_pass(world: &mut World) {
    while let Some((name, incarnation, pass, epochs)) = world.take(|a| match a {
        Action::ShapePass { job, incarnation, pass, epochs, .. } => Some((job.clone(), *incarnation, *pass, epochs.clone())),
        _ => None,
    }) {
        let epoch = epochs[pass.0 as usize % epochs.len()];
        let run = world.state.datasets[&dataset("digits")].run.as_ref().unwrap();
        let answer = match run.epochs.get(&epoch).map(|e| (e.phase.clone(), e.rows)) {
            Some((EpochPhase::Published { version }, rows)) => {
                PassAnswer::Shape(PassShape { version: Some(version), ..shape(rows, 2, 10, epoch.0) })
            }
            _ => PassAnswer::NotYet,
        };
        world.send(Event::PassShaped { job: name, incarnation, pass, answer: Ok(answer) }).unwrap();
        world.tick();
    }
}

fn ask(world: &mut World, name: &JobName, stream: StreamId, most: u64) -> Result<Option<Granted>, Error> {
    for _ in 0..3 {
        match world.send(Event::NextGrant { job: name.clone(), stream, max_batches: most, received: None })? {
            Reply::Granted(granted) => return Ok(Some(granted)),
            Reply::Wait => world.tick(),
            other => panic!("{other:?}"),
        }
        plan_pass(world);
    }
    Ok(None)
}

/// Takes and acknowledges all that there is for a stream; says whether its pass is over.
fn draw(world: &mut World, opened: &OpenedJob, who: &str, stream: StreamId, got: &mut Vec<u64>) -> bool {
    loop {
        match ask(world, &opened.job, stream, 3).unwrap() {
            None => return false,
            Some(Granted::Batches(grant)) => {
                let batches: Vec<u64> = grant.each().map(|b| b.0).collect();
                let sent = batches.iter().map(|b| (BatchId(*b), b * 7)).collect();
                world.send(Event::Sent { job: opened.job.clone(), stream, pass: grant.pass, batches: sent }).unwrap();
                world.ack(opened, who, grant.pass, batches.iter().copied()).unwrap();
                world.tick();
                got.extend(batches);
            }
            Some(Granted::EndOfPass(_) | Granted::EndOfJob) => return true,
            Some(Granted::Drain) => panic!("nothing drains"),
        }
    }
}

#[test]
fn a_job_reads_what_is_staged_and_closes_when_the_epoch_is_published() {
    let mut world = World::new();
    start(&mut world, 4, 0..1);
    let a = join(&mut world, &staged("j"), "a", None);
    let stream = world.stream(&a, "a", "w", true);
    assert_eq!(ask(&mut world, &a.job, stream, 9).unwrap(), None, "a job waits for the first shard");
    let leases = tasks(&mut world, 4);
    // A task without rows says nothing about the window.
    world.stage(&leases[2], 0).unwrap();
    assert_eq!(ask(&mut world, &a.job, stream, 9).unwrap(), None);
    world.stage(&leases[3], 15).unwrap();
    assert_eq!(ask(&mut world, &a.job, stream, 9).unwrap(), None, "fifteen rows fill no window of twenty");
    assert!(world.state.jobs[&a.job].passes[&PassId(0)].is_growing());
    world.stage(&leases[0], 30).unwrap();
    let mut got = Vec::new();
    let Some(Granted::Batches(grant)) = ask(&mut world, &a.job, stream, 1).unwrap() else { panic!("forty-five rows fill two windows") };
    assert_eq!((grant.version, grant.run, grant.window), (None, Some(RunId(0)), WindowId(0)));
    world.ack(&a, "a", PassId(0), [0]).unwrap();
    assert!(!draw(&mut world, &a, "a", stream, &mut got));
    assert_eq!(got, [1, 2, 3]);
    world.stage(&leases[1], 1).unwrap();
    assert!(!draw(&mut world, &a, "a", stream, &mut got), "only the publication closes the last window");
    assert_eq!(got, [1, 2, 3]);
    world.publish(0);
    assert!(draw(&mut world, &a, "a", stream, &mut got));
    assert_eq!(got, [1, 2, 3, 4]);
    world.tick();
    let info = job_info(&world.state, &a.job).unwrap();
    assert_eq!((info.state, info.batches, info.counts.acknowledged), ("finished", 5, 5));
}

#[test]
fn a_run_that_fails_ends_the_job_with_its_reason() {
    for staged_before in [false, true] {
        let mut world = World::new();
        start(&mut world, 3, 0..1);
        let a = join(&mut world, &staged("j"), "a", None);
        let stream = world.stream(&a, "a", "w", true);
        assert_eq!(ask(&mut world, &a.job, stream, 1).unwrap(), None);
        let leases = tasks(&mut world, 2);
        if staged_before {
            world.stage(&leases[0], 25).unwrap();
            assert!(ask(&mut world, &a.job, stream, 1).unwrap().is_some());
        }
        world.send(Event::TaskFailed { lease: leases[1].clone(), error: Error::bad_input("row 7 is no number") }).unwrap();
        world.tick();
        plan_pass(&mut world);
        let error = ask(&mut world, &a.job, stream, 1).unwrap_err();
        assert!(error.kind == Kind::BadInput && error.message.contains("row 7 is no number"), "{error}");
        let late = world.open(&staged("j"), "b", 0).unwrap_err();
        assert!(late.message.contains("row 7 is no number"), "{late}");
    }
}

#[test]
fn a_run_that_is_stopped_ends_the_job_and_a_commit_that_is_written_down_does_not() {
    let begun = || {
        let mut world = World::new();
        start(&mut world, 1, 0..1);
        let a = join(&mut world, &staged("j"), "a", None);
        let stream = world.stream(&a, "a", "w", true);
        let lease = world.task("w").unwrap();
        world.stage(&lease, 25).unwrap();
        assert!(ask(&mut world, &a.job, stream, 1).unwrap().is_some());
        (world, a, stream)
    };
    let (mut world, a, stream) = begun();
    world.send(Event::CancelRun { dataset: dataset("digits") }).unwrap();
    world.tick();
    let error = ask(&mut world, &a.job, stream, 1).unwrap_err();
    assert!(error.message.contains("its run was stopped") && error.to_string().contains("--resume"), "{error}");

    let (mut world, a, stream) = begun();
    // An embedded owner dies, and the next one waits for `--resume`.
    world.crash(false, false);
    let error = ask(&mut world, &a.job, stream, 1).unwrap_err();
    assert!(error.message.contains("its run was interrupted"), "{error}");

    let (mut world, a, stream) = begun();
    world.ack(&a, "a", PassId(0), [0]).unwrap();
    let body = Ok((VersionId(0), "body".to_owned()));
    let (run, epoch) = (RunId(0), EpochId(0));
    world.send(Event::CommitPrepared { dataset: dataset("digits"), run, epoch, body }).unwrap();
    world.crash(false, false);
    let mut got = Vec::new();
    assert!(!draw(&mut world, &a, "a", stream, &mut got));
    let outcome = Ok(CommitOutcome::Ours);
    world.send(Event::CommitDone { dataset: dataset("digits"), run, epoch, version: VersionId(0), outcome }).unwrap();
    world.tick();
    assert!(draw(&mut world, &a, "a", stream, &mut got));
    assert_eq!(got, [1, 2]);
}

#[test]
fn a_checkpoint_of_an_epoch_that_was_being_written_is_restored_after_later_runs() {
    let mut world = World::new();
    start(&mut world, 2, 0..1);
    let s = JobSettings { visitation: Visitation::ExactlyOnce, ..staged("j") };
    let a = join(&mut world, &s, "a", None);
    let stream = world.stream(&a, "a", "w", true);
    let leases = tasks(&mut world, 2);
    world.stage(&leases[1], 45).unwrap();
    let mut got = Vec::new();
    assert!(!draw(&mut world, &a, "a", stream, &mut got));
    assert_eq!(got, [0, 1, 2, 3]);
    let commit = Event::Commit { job: a.job.clone(), incarnation: a.incarnation, consumer: consumer("a"), call: 1, taken: Vec::new() };
    assert_eq!(world.send(commit.clone()).unwrap(), Reply::Wait);
    world.tick();
    let Reply::Committed(token) = world.send(commit).unwrap() else { panic!("one consumer makes a commit complete") };
    world.stage(&leases[0], 12).unwrap();
    world.publish(0);
    // Another run of the dataset begins: what the journal knew of the first one's tasks is gone.
    let more = Box::new(request(run_spec("digits", "f", 2), 1..2));
    world.send(Event::StartRun { request: more, stored: stored("f", 0, 1), certain: true }).unwrap();
    let restore = Event::Restore { settings: Box::new(s), consumer: Box::new(consumer_settings("a")), token, attempt: None, stored: None };
    let mut b = None;
    for _ in 0..4 {
        match world.send(restore.clone()).unwrap() {
            Reply::Job(opened) => b = Some(opened),
            Reply::Again => {
                world.tick();
                world.write_ledger();
            }
            other => panic!("{other:?}"),
        }
        if b.is_some() {
            break;
        }
    }
    let b = b.unwrap();
    let stream = world.stream(&b, "a", "w", true);
    let mut rest = Vec::new();
    world.tick();
    assert!(draw(&mut world, &b, "a", stream, &mut rest));
    assert_eq!(rest, [4, 5]);
}

#[test]
fn workers_list_what_is_staged_until_it_is_published() {
    let mut world = World::new();
    start(&mut world, 3, 0..1);
    let leases = tasks(&mut world, 3);
    let list = |world: &World, run: u64, from| staged_shards(&world.state, &dataset("digits"), RunId(run), EpochId(0), from);
    assert_eq!(list(&world, 0, 0).unwrap(), StagedShards { shards: Vec::new(), next: 0, more: false, version: None });
    world.stage(&leases[2], 5).unwrap();
    world.stage(&leases[0], 7).unwrap();
    let listed = list(&world, 0, 0).unwrap();
    let tasks: Vec<_> = listed.shards.iter().map(|s| (s.task, s.staging)).collect();
    assert_eq!((tasks, listed.next), (vec![(TaskId(2), Some(0)), (TaskId(0), Some(1))], 2));
    assert_eq!(list(&world, 0, 1).unwrap().shards, listed.shards[1..]);
    assert_eq!(list(&world, 7, 0).unwrap_err().kind, Kind::FailedPrecondition);
    world.stage(&leases[1], 9).unwrap();
    let request = world.publish(3);
    assert_eq!(request.shards.iter().map(|s| s.staging).collect::<Vec<_>>(), [Some(1), Some(2), Some(0)]);
    assert_eq!(list(&world, 0, 2).unwrap().version, Some(VersionId(3)));
}

#[test]
fn ranks_with_equal_steps_begin_no_step_that_some_could_not_make() {
    for (end, expected) in
        [(End::Drop, [vec![0, 3, 6], vec![1, 4, 7], vec![2, 5, 8]]), (End::Pad, [vec![0, 3, 6, 9], vec![1, 4, 7], vec![2, 5, 8]])]
    {
        let mut world = World::new();
        start(&mut world, 3, 0..1);
        let s = ranked("j", Assignment::Static, 3, end);
        let ranks: Vec<_> = (0..3)
            .map(|rank| {
                let who = format!("r{rank}");
                let opened = join(&mut world, &s, &who, Some(rank));
                let stream = world.stream(&opened, &who, "w", true);
                (who, opened, stream)
            })
            .collect();
        let leases = tasks(&mut world, 3);
        let mut got = vec![Vec::new(); 3];
        let draw_all = |world: &mut World, got: &mut Vec<Vec<u64>>| {
            for _ in 0..3 {
                for ((who, opened, stream), got) in ranks.iter().zip(got.iter_mut()) {
                    draw(world, opened, who, *stream, got);
                }
            }
        };
        world.stage(&leases[0], 40).unwrap();
        draw_all(&mut world, &mut got);
        assert_eq!(got, [vec![0], vec![1], vec![2]], "four batches are one step of three ranks");
        world.stage(&leases[1], 50).unwrap();
        draw_all(&mut world, &mut got);
        // Nine batches are there, eight of them in whole windows.
        assert_eq!(got, [vec![0, 3], vec![1, 4], vec![2, 5]]);
        world.stage(&leases[2], 10).unwrap();
        world.publish(0);
        draw_all(&mut world, &mut got);
        let real: Vec<Vec<u64>> = if end == End::Pad {
            assert!(got.iter().all(|g| g.len() == 4), "{got:?}");
            let mut seen = BTreeSet::new();
            got.iter().map(|g| g.iter().copied().filter(|b| seen.insert(*b)).collect()).collect()
        } else {
            got
        };
        let all: BTreeSet<u64> = real.iter().flatten().copied().collect();
        let wanted: BTreeSet<u64> = expected.iter().flatten().copied().collect();
        assert_eq!(all, wanted);
        let counts = world.state.jobs[&job("j")].counts();
        assert_eq!((counts.acknowledged, counts.dropped), (wanted.len() as u64, 10 - wanted.len() as u64));
    }
}

/// What a pass gave: batches by rank or consumer, in the order in which they came.
fn whole_pass(settings: &JobSettings, rows: &[u64], order: &[usize], consumers: u32, crashes: &[usize]) -> BTreeMap<u32, Vec<u64>> {
    let mut world = World::new();
    start(&mut world, rows.len(), 0..1);
    let rank = |n: u32| settings.is_fixed().then_some(n);
    let members: Vec<_> = (0..consumers)
        .map(|n| {
            let who = format!("c{n}");
            let opened = join(&mut world, settings, &who, rank(n));
            let stream = world.stream(&opened, &who, "w", true);
            (n, who, opened, stream)
        })
        .collect();
    let leases = tasks(&mut world, rows.len());
    let mut got: BTreeMap<u32, Vec<u64>> = BTreeMap::new();
    let draw_all = |world: &mut World, got: &mut BTreeMap<u32, Vec<u64>>| {
        for _ in 0..3 {
            for (n, who, opened, stream) in &members {
                draw(world, opened, who, *stream, got.entry(*n).or_default());
            }
        }
    };
    for (number, task) in order.iter().enumerate() {
        if crashes.contains(&number) {
            world.crash(false, true);
        }
        draw_all(&mut world, &mut got);
        world.stage(&leases[*task], rows[*task]).unwrap();
    }
    world.publish(0);
    world.pass_time(2_000);
    for _ in 0..rows.iter().sum::<u64>() / 10 + 2 {
        draw_all(&mut world, &mut got);
    }
    world.tick();
    assert_eq!(job_info(&world.state, &settings.job).unwrap().state, "finished", "{got:?}");
    got
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 96, ..ProptestConfig::default() })]

    /// Whatever the order of tasks, the assignment and what dies: without a lost batch all of them come once, or are dropped by the user's choice, and
    /// ranks make equal steps.
    #[test]
    fn a_pass_that_grows_gives_every_batch_once(
        rows in proptest::collection::vec(0_u64..60, 1..7),
        shuffled in any::<u64>(),
        assignment in prop_oneof![Just(Assignment::Dynamic), Just(Assignment::Static), Just(Assignment::Rounds)],
        visitation in prop_oneof![Just(Visitation::AtMostOnce), Just(Visitation::AtLeastOnce), Just(Visitation::ExactlyOnce)],
        end in prop_oneof![Just(End::Short), Just(End::Drop), Just(End::Pad)],
        consumers in 1_u32..4,
        crashes in proptest::collection::vec(0_usize..7, 0..3),
    ) {
        let fixed = assignment != Assignment::Dynamic;
        let end = if fixed { end } else { End::Short };
        let base = if fixed { ranked("j", assignment, consumers, end) } else { staged("j") };
        let settings = JobSettings { visitation, ..base };
        let mut order: Vec<usize> = (0..rows.len()).collect();
        crate::random::shuffle(&mut crate::random::Rng::new(shuffled), &mut order);
        let got = whole_pass(&settings, &rows, &order, consumers, &crashes);
        let total: u64 = rows.iter().sum();
        let mut all: Vec<u64> = got.values().flatten().copied().collect();
        all.sort_unstable();
        let steps: BTreeSet<usize> = got.values().map(Vec::len).collect();
        match (fixed, end) {
            (true, End::Drop) => {
                let whole = total / 10;
                prop_assert_eq!(&all, &(0..whole - whole % u64::from(consumers)).collect::<Vec<_>>());
                prop_assert_eq!(steps.len(), 1);
            }
            (true, End::Pad) => {
                all.dedup();
                prop_assert_eq!(&all, &(0..total.div_ceil(10)).collect::<Vec<_>>());
                prop_assert_eq!(steps.len(), 1);
            }
            _ => prop_assert_eq!(&all, &(0..total.div_ceil(10)).collect::<Vec<_>>()),
        }
        if fixed && end != End::Pad {
            for (rank, batches) in &got {
                prop_assert!(batches.iter().all(|b| b % u64::from(consumers) == u64::from(*rank)), "rank {} got {:?}", rank, batches);
            }
        }
    }
}

#[test]
fn waiting_for_an_epoch_is_no_failure_of_planning_it() {
    for order in [Order::Published, Order::Staged] {
        let mut world = World::new();
        start(&mut world, 1, 0..1);
        let a = join(&mut world, &JobSettings { order, ..staged("j") }, "a", None);
        let stream = world.stream(&a, "a", "w", true);
        let answer = |answer| Event::PassShaped { job: job("j"), incarnation: Incarnation(0), pass: PassId(0), answer };
        let mut asked = 0;
        for _ in 0..20 {
            world.send(Event::NextGrant { job: a.job.clone(), stream, max_batches: 1, received: None }).unwrap();
            world.pass_time(5_000);
            if world.take(|x| matches!(x, Action::ShapePass { .. }).then_some(())).is_some() {
                asked += 1;
                world.send(answer(Ok(PassAnswer::NotYet))).unwrap();
            }
        }
        assert!(asked > 6, "{order:?}: looked only {asked} times");
        world.send(Event::NextGrant { job: a.job.clone(), stream, max_batches: 1, received: None }).unwrap();
        world.pass_time(5_000);
        assert!(world.take(|x| matches!(x, Action::ShapePass { .. }).then_some(())).is_some());
        world.send(answer(Err(Error::internal("the store is down")))).unwrap();
        assert_eq!(world.state.jobs[&a.job].phase, JobPhase::Open, "{order:?}: one failure ended the job");
        let lease = world.task("w").unwrap();
        world.stage(&lease, 30).unwrap();
        world.pass_time(1_000);
        let mut got = Vec::new();
        draw(&mut world, &a, "a", stream, &mut got);
        assert_eq!(got.is_empty(), order == Order::Published);
        world.publish(0);
        assert!(draw(&mut world, &a, "a", stream, &mut got), "{order:?}");
        assert_eq!(got, [0, 1, 2]);
    }
}

#[test]
fn an_answer_from_before_the_publication_ends_no_job() {
    for order in [Order::Published, Order::Staged] {
        let mut world = World::new();
        start(&mut world, 1, 0..1);
        let a = join(&mut world, &JobSettings { order, ..staged("j") }, "a", None);
        let stream = world.stream(&a, "a", "w", true);
        world.send(Event::NextGrant { job: a.job.clone(), stream, max_batches: 1, received: None }).unwrap();
        world.tick();
        assert!(world.take(|x| matches!(x, Action::ShapePass { .. }).then_some(())).is_some());
        let lease = world.task("w").unwrap();
        world.stage(&lease, 30).unwrap();
        world.publish(0);
        // The log was read before, and nobody writes the dataset any more.
        let answer = Ok(PassAnswer::NotYet);
        world.send(Event::PassShaped { job: job("j"), incarnation: Incarnation(0), pass: PassId(0), answer }).unwrap();
        assert_eq!(world.state.jobs[&a.job].phase, JobPhase::Open, "{order:?}");
        world.pass_time(1_000);
        let mut got = Vec::new();
        assert!(draw(&mut world, &a, "a", stream, &mut got), "{order:?}");
        assert_eq!(got, [0, 1, 2]);
    }
}
