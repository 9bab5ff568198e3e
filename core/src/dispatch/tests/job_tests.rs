//! Jobs and visits, one rule a test.

use super::super::*;
use super::world::*;
use crate::error::{Error, Kind};
use crate::ids::*;
use crate::job::{ConsumerSettings, End, JobSettings, Passes};

fn batches(granted: Option<Granted>) -> std::ops::Range<u64> {
    match granted {
        Some(Granted::Batches(grant)) => grant.batches,
        other => panic!("{other:?}"),
    }
}

fn send(world: &mut World, name: &JobName, stream: StreamId, pass: u32, range: std::ops::Range<u64>) {
    let batches = range.map(|b| (BatchId(b), b * 7)).collect();
    world.send(Event::Sent { job: name.clone(), stream, pass: PassId(pass), batches }).unwrap();
}

fn close(world: &mut World, name: &JobName, stream: StreamId, clean: bool) {
    world.send(Event::CloseStream { job: name.clone(), stream, clean }).unwrap();
    world.tick();
}

/// Everything that the ledger and the state say of a job.
fn visits(world: &mut World, name: &JobName) -> Vec<VisitRow> {
    let mut rows = Vec::new();
    world.pass_time(3 * TERM);
    world.pass_time(6_000);
    while let Some(more) = world.write_ledger() {
        rows.extend(more);
    }
    rows.extend(system_visits(&world.state, Some(name)));
    rows.sort_by_key(|r| (r.pass, r.batch));
    rows
}

fn states(rows: &[VisitRow]) -> Vec<&'static str> {
    rows.iter().map(|r| r.state.as_str()).collect()
}

#[test]
fn two_plain_consumers_share_a_small_pass_and_both_get_some() {
    let mut world = World::new();
    let s = settings("j", "digits", 250, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let b = world.open(&s, "b", 1).unwrap();
    let (sa, sb) = (world.stream(&a, "a", "w", false), world.stream(&b, "b", "w", false));
    let mut got = [0, 0];
    // One is much faster than the other and asks for a lot.
    loop {
        match world.grant(&a.job, sa, 1_000, 1_000).unwrap().unwrap() {
            Granted::Batches(grant) => {
                send(&mut world, &a.job, sa, 0, grant.batches.clone());
                got[0] += grant.batches.end - grant.batches.start;
            }
            Granted::EndOfJob => break,
            other => panic!("{other:?}"),
        }
        if got[1] == 0 {
            let range = batches(world.grant(&b.job, sb, 1_000, 1_000).unwrap());
            send(&mut world, &b.job, sb, 0, range.clone());
            got[1] += range.end - range.start;
        }
    }
    assert_eq!(world.grant(&b.job, sb, 1, 0).unwrap(), Some(Granted::EndOfJob));
    assert!(got[0] > 0 && got[1] > 0 && got[0] + got[1] == 4, "{got:?}");
    for stream in [sa, sb] {
        close(&mut world, &a.job, stream, true);
    }
    let rows = visits(&mut world, &a.job);
    assert_eq!(states(&rows), ["acknowledged"; 4]);
    assert!(rows.iter().all(|r| r.rows == 250 && r.digest == Some(r.batch * 7) && r.worker == Some(worker("w"))));
    let info = job_info(&world.state, &a.job).unwrap();
    assert_eq!((info.state, info.counts.acknowledged, info.pending, info.batches), ("finished", 4, 0, 4));
    let job = &world.state.jobs[&a.job];
    assert!(job.passes.is_empty() && job.streams.is_empty(), "closed visits stay in the state: {job:?}");
}

#[test]
fn a_young_pass_keeps_a_batch_for_everybody_who_joined() {
    let mut world = World::new();
    let s = settings("j", "digits", 250, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let b = world.open(&s, "b", 1).unwrap();
    world.open(&s, "c", 1).unwrap();
    let sa = world.stream(&a, "a", "w", false);
    let mut got = 0;
    while let Some(Granted::Batches(grant)) = world.grant(&a.job, sa, 9, 1_000).unwrap() {
        got += grant.batches.count();
    }
    assert_eq!(got, 2, "two of the four batches are for the others");
    let sb = world.stream(&b, "b", "w", false);
    assert_eq!(batches(world.grant(&b.job, sb, 9, 0).unwrap()).count(), 1);
    // The third one never reads: a second later its batch is anybody's.
    assert_eq!(world.grant(&a.job, sa, 9, 0).unwrap(), None);
    world.actions.clear();
    world.pass_time(1_000);
    assert!(world.actions.contains(&Action::JobChanged(a.job.clone())), "nobody wakes the one who waits");
    assert_eq!(batches(world.grant(&a.job, sa, 9, 0).unwrap()).count(), 1);
    assert_eq!(world.grant(&a.job, sa, 9, 0).unwrap(), Some(Granted::EndOfJob));
}

#[test]
fn a_finished_job_says_so_and_starts_again_only_on_request() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let stream = world.stream(&a, "a", "w", false);
    assert_eq!(batches(world.grant(&a.job, stream, 1, 5).unwrap()), 0..1);
    assert_eq!(world.grant(&a.job, stream, 1, 5).unwrap(), Some(Granted::EndOfJob));
    send(&mut world, &a.job, stream, 0, 0..1);
    let late = world.open(&s, "b", 1).unwrap_err();
    assert_eq!((late.kind, late.message.contains("finished")), (Kind::FailedPrecondition, true), "{late}");
    close(&mut world, &a.job, stream, true);
    assert_eq!(world.state.jobs[&a.job].phase, JobPhase::Ended { end: JobEnd::Finished, at_ms: world.now.wall_ms });
    let restart = |world: &mut World| {
        let consumer = ConsumerSettings { restart: true, ..consumer_settings("a") };
        world.send(Event::OpenJob { settings: Box::new(s.clone()), consumer: Box::new(consumer), stored: stored("f", 0, 1) })
    };
    // The old incarnation's visits go to the ledger first.
    assert_eq!(restart(&mut world).unwrap(), Reply::Again);
    world.tick();
    assert_eq!(world.write_ledger().unwrap().len(), 1);
    let Reply::Job(again) = restart(&mut world).unwrap() else { panic!() };
    assert_eq!(again.incarnation, Incarnation(1));
    assert_eq!(world.state.jobs[&a.job].ledger, ["0-0.parquet"]);
    let error = world.ack(&a, "a", PassId(0), [0]).unwrap_err();
    assert!(error.message.contains("incarnation 0 is over"), "{error}");
    // On a job that is open, restart only joins.
    let Reply::Job(joined) = restart(&mut world).unwrap() else { panic!() };
    assert_eq!(joined.incarnation, Incarnation(1));
}

#[test]
fn other_settings_are_refused_with_the_difference() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::All);
    world.open(&s, "a", 1).unwrap();
    let error = world.open(&JobSettings { batch_size: 20, ..s.clone() }, "b", 1).unwrap_err();
    assert_eq!(error.kind, Kind::AlreadyExists);
    assert!(error.message.contains("batch_size: 10 -> 20"), "{error}");
    let error = world.open(&JobSettings { dataset: dataset("other"), ..s.clone() }, "b", 1).unwrap_err();
    assert!(error.message.contains("other"), "{error}");
    assert_eq!(world.open(&settings("k", "nowhere", 10, Passes::All), "a", 0).unwrap_err().kind, Kind::NotFound);
}

#[test]
fn several_passes_are_one_decision_each() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::List(vec![2, 0]));
    let a = world.open(&s, "a", 3).unwrap();
    let b = world.open(&s, "b", 3).unwrap();
    let (sa, sb) = (world.stream(&a, "a", "w", true), world.stream(&b, "b", "w", true));
    for (pass, last) in [(2, false), (0, true)] {
        let mut ended = [false, false];
        while ended != [true, true] {
            for (i, (opened, who, stream)) in [(&a, "a", sa), (&b, "b", sb)].into_iter().enumerate() {
                match world.grant(&a.job, stream, 2, 95).unwrap() {
                    Some(Granted::Batches(grant)) => {
                        assert!(!ended[i], "batches after the end of pass {pass}");
                        assert_eq!(grant.pass, PassId(pass));
                        send(&mut world, &a.job, stream, pass, grant.batches.clone());
                        world.ack(opened, who, grant.pass, grant.batches).unwrap();
                    }
                    Some(Granted::EndOfPass(p)) => {
                        assert!(!last && p == PassId(pass));
                        ended[i] = true;
                    }
                    Some(Granted::EndOfJob) => {
                        assert!(last);
                        ended[i] = true;
                    }
                    other => panic!("{other:?}"),
                }
                if ended == [true, false] && pass == 2 {
                    // The faster one goes on; the slower is still told that its pass is over.
                    assert!(matches!(world.grant(&a.job, sb, 2, 95).unwrap(), Some(Granted::EndOfPass(_))));
                    ended[1] = true;
                    break;
                }
            }
        }
    }
    world.tick();
    let rows = visits(&mut world, &a.job);
    assert_eq!(rows.len(), 20);
    assert!(rows.iter().all(|r| r.state == VisitState::Acknowledged));
    assert_eq!(rows.last().unwrap().rows, 5, "the short last batch");
}

#[test]
fn end_drop_lists_the_short_batch_and_nobody_gets_it() {
    for (rows, deliverable) in [(95, 9), (90, 9), (5, 0)] {
        let mut world = World::new();
        let s = JobSettings { end: End::Drop, ..settings("j", "digits", 10, Passes::All) };
        let a = world.open(&s, "a", 1).unwrap();
        let stream = world.stream(&a, "a", "w", false);
        let mut got = 0;
        while let Some(Granted::Batches(grant)) = world.grant(&a.job, stream, 1, rows).unwrap() {
            send(&mut world, &a.job, stream, 0, grant.batches.clone());
            got += grant.batches.end - grant.batches.start;
        }
        assert_eq!(got, deliverable);
        close(&mut world, &a.job, stream, true);
        let dropped: Vec<_> = visits(&mut world, &a.job).into_iter().filter(|r| r.state == VisitState::Dropped).collect();
        assert_eq!(dropped.len() as u64, u64::from(rows % 10 != 0));
        assert!(dropped.iter().all(|r| r.rows == 5 && r.reason.as_deref() == Some("end = \"drop\"")));
        assert_eq!(job_info(&world.state, &a.job).unwrap().state, "finished");
    }
}

#[test]
fn a_dropped_batch_in_a_window_of_its_own_is_never_granted() {
    let mut world = World::new();
    let s = JobSettings { end: End::Drop, ..settings("j", "digits", 10, Passes::All) };
    let a = world.open(&s, "a", 1).unwrap();
    let (s1, s2) = (world.stream(&a, "a", "w1", true), world.stream(&a, "a", "w2", true));
    // Four batches a window: the ninth batch, dropped, is alone in the third. It is in the ledger before the others are granted.
    assert_eq!(batches(world.grant(&a.job, s1, 1, 85).unwrap()), 0..1);
    world.pass_time(6_000);
    assert_eq!(states(&world.write_ledger().unwrap()), ["dropped"]);
    assert_eq!(batches(world.grant(&a.job, s2, 1, 85).unwrap()), 4..5);
    world.send(Event::WorkerAttached { worker: worker("w3") }).unwrap();
    let s3 = world.stream(&a, "a", "w3", true);
    // Not the dropped one: what is left of another worker's window is shared before anybody waits.
    assert_eq!(batches(world.grant(&a.job, s3, 1, 85).unwrap()), 1..2);
}

#[test]
fn a_broken_plain_stream_loses_all_of_it_and_others_go_on() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let b = world.open(&s, "b", 1).unwrap();
    let (sa, sb) = (world.stream(&a, "a", "w", false), world.stream(&b, "b", "w", false));
    let range = batches(world.grant(&a.job, sa, 2, 100).unwrap());
    assert_eq!(range, 0..2);
    send(&mut world, &a.job, sa, 0, 0..1);
    close(&mut world, &a.job, sa, false);
    assert_eq!(world.grant(&a.job, sa, 1, 100).unwrap_err().kind, Kind::FailedPrecondition);
    while let Some(Granted::Batches(grant)) = world.grant(&a.job, sb, 3, 100).unwrap() {
        send(&mut world, &a.job, sb, 0, grant.batches);
    }
    close(&mut world, &a.job, sb, true);
    let rows = visits(&mut world, &a.job);
    assert_eq!(states(&rows), [["lost"; 2].as_slice(), &["acknowledged"; 8]].concat());
    assert!(rows[..2].iter().all(|r| r.reason.as_deref() == Some("the stream broke")));
}

#[test]
fn a_dead_consumer_loses_what_it_held_and_a_late_report_counts() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let stream = world.stream(&a, "a", "w", true);
    let range = batches(world.grant(&a.job, stream, 4, 100).unwrap());
    assert_eq!(range, 0..4);
    send(&mut world, &a.job, stream, 0, 0..3);
    world.ack(&a, "a", PassId(0), [0]).unwrap();
    close(&mut world, &a.job, stream, false);
    world.pass_time(TERM - 1_000);
    assert_eq!(world.state.jobs[&a.job].counts().lost, 0, "a broken stream is not death");
    world.pass_time(2_000);
    assert_eq!(world.state.jobs[&a.job].counts().lost, 3);
    assert!(world.state.jobs[&a.job].consumers.is_empty());
    world.ack(&a, "a", PassId(0), [1, 2]).unwrap();
    world.ack(&a, "a", PassId(0), [1, 2]).unwrap();
    let counts = world.state.jobs[&a.job].counts();
    assert_eq!((counts.lost, counts.acknowledged), (1, 3));
    // Nobody may claim what was never theirs.
    let error = world.ack(&a, "b", PassId(0), [3]).unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
    assert!(world.ack(&a, "a", PassId(0), [9]).is_err() && world.ack(&a, "a", PassId(0), [10]).is_err());
    // The others get the rest, and never a lost one.
    let b = world.open(&s, "b", 1).unwrap();
    let sb = world.stream(&b, "b", "w", true);
    assert_eq!(batches(world.grant(&b.job, sb, 1, 100).unwrap()), 4..5);
    let rows = visits(&mut world, &a.job);
    assert_eq!(states(&rows)[..4], ["acknowledged", "acknowledged", "acknowledged", "lost"]);
}

#[test]
fn a_dead_worker_loses_what_was_handed_out_and_its_windows_go_on() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let s1 = world.stream(&a, "a", "w1", true);
    assert_eq!(batches(world.grant(&a.job, s1, 2, 100).unwrap()), 0..2);
    world.ack(&a, "a", PassId(0), [0]).unwrap();
    world.send(Event::WorkerGone { worker: worker("w1") }).unwrap();
    world.tick();
    assert_eq!(world.state.jobs[&a.job].counts().lost, 1);
    let s2 = world.stream(&a, "a", "w2", true);
    let Some(Granted::Batches(grant)) = world.grant(&a.job, s2, 9, 100).unwrap() else { panic!() };
    assert_eq!((grant.window, grant.attempt, grant.batches), (WindowId(0), Attempt(1), 2..4));
}

#[test]
fn unacknowledged_batches_are_bounded_by_two_windows() {
    let mut world = World::new();
    let s = settings("j", "digits", 1, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let stream = world.stream(&a, "a", "w", true);
    let mut held = 0;
    while let Some(Granted::Batches(grant)) = world.grant(&a.job, stream, 3, 1_000).unwrap() {
        held += grant.batches.end - grant.batches.start;
    }
    assert_eq!(held, 8, "two windows of four batches");
    // Somebody who holds nothing still gets a batch, so that a sleeper starves nobody.
    let b = world.open(&s, "b", 1).unwrap();
    let sb = world.stream(&b, "b", "w", true);
    assert_eq!(batches(world.grant(&b.job, sb, 3, 0).unwrap()).count(), 1);
    world.ack(&a, "a", PassId(0), 0..8).unwrap();
    assert!(matches!(world.grant(&a.job, stream, 3, 0).unwrap(), Some(Granted::Batches(_))));
}

#[test]
fn an_idle_job_is_ended_and_its_name_remembers() {
    let mut world = World::new();
    let s = JobSettings { idle_timeout_ms: 60_000, ..settings("j", "digits", 10, Passes::All) };
    let a = world.open(&s, "a", 1).unwrap();
    world.send(Event::WorkerAttached { worker: worker("w") }).unwrap();
    let stream = world.stream(&a, "a", "w", true);
    for _ in 0..10 {
        world.pass_time(TERM);
    }
    assert_eq!(world.state.jobs[&a.job].phase, JobPhase::Open, "a job with an open stream is not idle");
    batches(world.grant(&a.job, stream, 1, 100).unwrap());
    world.send(Event::LeaveJob { job: a.job.clone(), consumer: consumer("a") }).unwrap();
    world.pass_time(300);
    world.pass_time(59_000);
    assert_eq!(world.state.jobs[&a.job].phase, JobPhase::Open);
    world.pass_time(2_000);
    let error = world.open(&s, "b", 1).unwrap_err();
    assert!(error.message.contains("idle timeout"), "{error}");
    let rows = visits(&mut world, &a.job);
    assert_eq!(states(&rows), ["lost"]);
    assert_eq!(rows[0].reason.as_deref(), Some("the consumer left without acknowledging it"));
}

#[test]
fn a_consumer_that_waited_too_long_before_reading_takes_part_again() {
    let mut world = World::new();
    world.send(Event::WorkerAttached { worker: worker("w") }).unwrap();
    let a = world.open(&settings("j", "digits", 10, Passes::All), "a", 1).unwrap();
    world.pass_time(300);
    world.pass_time(2 * TERM);
    assert!(world.state.jobs[&a.job].consumers.is_empty());
    let stream = world.stream(&a, "a", "w", false);
    assert_eq!(batches(world.grant(&a.job, stream, 1, 100).unwrap()), 0..1);
}

#[test]
fn a_pass_waits_for_its_epoch_and_fails_with_its_run() {
    let mut world = World::new();
    let spec = run_spec("digits", "f", 1);
    world.send(Event::StartRun { request: Box::new(request(spec, 0..2)), stored: None, certain: false }).unwrap();
    let s = settings("j", "digits", 10, Passes::All);
    let a = world.open(&s, "a", 0).unwrap();
    assert_eq!(world.state.jobs[&a.job].epochs.len(), 2, "C counts what is being written");
    let stream = world.stream(&a, "a", "w", true);
    let event = Event::NextGrant { job: a.job.clone(), stream, max_batches: 1, received: None };
    assert_eq!(world.send(event.clone()).unwrap(), Reply::Wait);
    world.tick();
    let asked = |world: &mut World| world.take(|x| matches!(x, Action::ShapePass { .. }).then_some(())).is_some();
    assert!(asked(&mut world) && !asked(&mut world));
    let answer = |answer| Event::PassShaped { job: job("j"), incarnation: Incarnation(0), pass: PassId(0), answer };
    world.send(answer(Ok(PassAnswer::NotYet))).unwrap();
    let lease = world.task("w").unwrap();
    world.pass_time(100);
    world.stage(&lease, 3).unwrap();
    world.publish(0);
    world.pass_time(1_000);
    assert!(asked(&mut world), "nobody looked again after the publication");
    world.send(answer(Ok(PassAnswer::Shape(shape(3, 4, 10, 0))))).unwrap();
    assert!(matches!(world.send(event.clone()).unwrap(), Reply::Granted(Granted::Batches(_))));
    world.ack(&a, "a", PassId(0), [0]).unwrap();
    assert!(matches!(world.send(event.clone()).unwrap(), Reply::Granted(Granted::EndOfPass(_))));
    assert_eq!(world.send(event.clone()).unwrap(), Reply::Wait);
    world.tick();
    assert!(asked(&mut world));
    let answer = |answer| Event::PassShaped { job: job("j"), incarnation: Incarnation(0), pass: PassId(1), answer };
    world.send(answer(Ok(PassAnswer::NotYet))).unwrap();
    let lease = world.task("w").unwrap();
    world.send(Event::TaskFailed { lease, error: Error::bad_input("row 3") }).unwrap();
    world.pass_time(1_000);
    assert!(asked(&mut world));
    world.send(answer(Ok(PassAnswer::NotYet))).unwrap();
    let error = world.send(event).unwrap_err();
    assert!(error.message.contains("nobody is writing it") && error.message.contains("row 3"), "{error}");
}

#[test]
fn a_dropped_dataset_ends_its_jobs_with_that_reason() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::Forever);
    let a = world.open(&s, "a", 1).unwrap();
    let stream = world.stream(&a, "a", "w", true);
    batches(world.grant(&a.job, stream, 1, 100).unwrap());
    world.send(Event::DropDataset { dataset: dataset("digits") }).unwrap();
    let error = world.grant(&a.job, stream, 1, 100).unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.message.contains("dropped while"), "{error}");
}

#[test]
fn a_draining_worker_ends_its_streams_and_takes_nothing_new() {
    let mut world = World::new();
    let s = settings("j", "digits", 10, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let stream = world.stream(&a, "a", "w", true);
    batches(world.grant(&a.job, stream, 1, 100).unwrap());
    world.send(Event::DrainWorker { worker: worker("w") }).unwrap();
    assert_eq!(world.grant(&a.job, stream, 1, 100).unwrap(), Some(Granted::Drain));
    world.ack(&a, "a", PassId(0), [0]).unwrap();
    close(&mut world, &a.job, stream, true);
    assert_eq!(world.state.jobs[&a.job].counts().lost, 0);
    assert!(world.send(Event::DrainWorker { worker: worker("nobody") }).is_err());
}

#[test]
fn the_state_stays_small_over_a_long_pass() {
    let mut world = World::new();
    let s = settings("j", "digits", 1, Passes::All);
    let a = world.open(&s, "a", 1).unwrap();
    let stream = world.stream(&a, "a", "w", true);
    world.checked = false;
    let (mut most, mut written) = (0, 0);
    for _ in 0..6_000 {
        let Some(Granted::Batches(grant)) = world.grant(&a.job, stream, 4, 20_000).unwrap() else { break };
        world.ack(&a, "a", grant.pass, grant.batches).unwrap();
        world.send(Event::Tick).unwrap();
        written += world.write_ledger().map_or(0, |rows| rows.len());
        most = most.max(world.state.jobs[&a.job].passes.values().map(|p| p.windows.len()).sum());
    }
    assert!(written >= 16_000, "{written}");
    check(&world.state).unwrap();
    assert!(most <= 1_100, "{most} windows of 5,000 were in the state at once");
}

#[test]
fn a_commit_after_the_last_pass_does_not_overtake_those_who_are_still_there() {
    let mut world = World::new();
    let settings = settings("run1", "digits", 1, Passes::Count(1));
    let [a, b, c] = ["a", "b", "c"].map(|who| world.open(&settings, who, 1).unwrap());
    let commit = |world: &mut World, who: &str, opened: &OpenedJob| {
        let (job, incarnation) = (opened.job.clone(), opened.incarnation);
        world.send(Event::Commit { job, incarnation, consumer: consumer(who), call: 1, taken: Vec::new() }).unwrap()
    };
    let (on_a, on_b) = (world.stream(&a, "a", "w0", true), world.stream(&b, "b", "w0", true));
    // What nobody hears of for a term is no consumer any more: `c` has no stream.
    for _ in 0..3 {
        world.pass_time(TERM / 2);
        world.send(Event::WorkerBeat { worker: worker("w0") }).unwrap();
    }
    assert!(!world.state.jobs[&a.job].consumers.contains_key(&consumer("c")));
    let mut granted = Vec::new();
    while let Some(Granted::Batches(grant)) = world.grant(&a.job, if granted.is_empty() { on_b } else { on_a }, 1, 3).unwrap() {
        granted.extend(grant.batches);
        let last = granted[granted.len() - 1];
        world
            .send(Event::Sent {
                job: a.job.clone(),
                stream: if last == 0 { on_b } else { on_a },
                pass: PassId(0),
                batches: vec![(BatchId(last), 1)],
            })
            .unwrap();
    }
    world.ack(&a, "a", PassId(0), granted[1..].iter().copied()).unwrap();
    assert_eq!(world.state.jobs[&a.job].phase, JobPhase::Ending, "b has not taken its batch");
    assert_eq!(commit(&mut world, "a", &a), Reply::Wait);
    assert_eq!(commit(&mut world, "c", &c), Reply::Wait, "b has not called");
    world.ack(&b, "b", PassId(0), [granted[0]]).unwrap();
    assert_eq!(commit(&mut world, "b", &b), Reply::Wait);
    world.tick();
    let tokens = [("a", &a), ("b", &b), ("c", &c)].map(|(who, opened)| commit(&mut world, who, opened));
    assert!(matches!(tokens[0], Reply::Committed(_)), "{tokens:?}");
    assert!(tokens.iter().all(|t| *t == tokens[0]), "{tokens:?}");
}
