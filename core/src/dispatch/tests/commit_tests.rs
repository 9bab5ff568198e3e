//! Acknowledgements by action, calls of `commit` that are made again, and states of jobs that nobody opened.

use super::super::*;
use super::world::*;
use crate::error::Kind;
use crate::ids::*;
use crate::job::{Assignment, ConsumerSettings, JobSettings, Passes, Visitation};

fn exact(name: &str) -> JobSettings {
    JobSettings { visitation: Visitation::ExactlyOnce, ..settings(name, "digits", 10, Passes::Count(1)) }
}

/// A consumer that was sent so many batches of pass 0.
fn sent(world: &mut World, settings: &JobSettings, batches: u64) -> OpenedJob {
    let opened = world.open(settings, "a", 1).unwrap();
    let stream = world.stream(&opened, "a", "w", true);
    let mut got = 0..0;
    while got.end < batches {
        let Some(Granted::Batches(grant)) = world.grant(&opened.job, stream, batches - got.end, 100).unwrap() else { panic!("no grant") };
        let told = grant.batches.clone().map(|b| (BatchId(b), b)).collect();
        world.send(Event::Sent { job: opened.job.clone(), stream, pass: PassId(0), batches: told }).unwrap();
        got.end = grant.batches.end;
    }
    opened
}

#[test]
fn an_acknowledgement_answers_what_it_changed() {
    let mut world = World::new();
    let opened = sent(&mut world, &settings("j", "digits", 10, Passes::Count(1)), 3);
    assert_eq!(world.ack(&opened, "a", PassId(0), [0, 1]).unwrap(), Reply::Acknowledged(2));
    assert_eq!(world.ack(&opened, "a", PassId(0), [1, 2]).unwrap(), Reply::Acknowledged(1), "1 was acknowledged before");
    assert_eq!(world.ack(&opened, "a", PassId(0), []).unwrap(), Reply::Acknowledged(0));
    assert_eq!(world.ack(&opened, "a", PassId(9), [1]).unwrap(), Reply::Acknowledged(0), "nothing is known of such a pass");
}

#[test]
fn a_call_of_commit_that_is_made_again_names_nothing_more() {
    let mut world = World::new();
    let opened = sent(&mut world, &exact("j"), 4);
    let call = |world: &mut World, call: u64, taken: &[u64]| {
        let taken = vec![(PassId(0), taken.iter().map(|b| (BatchId(*b), None)).collect())];
        let (job, incarnation) = (opened.job.clone(), opened.incarnation);
        world.send(Event::Commit { job, incarnation, consumer: consumer("a"), call, taken })
    };
    assert_eq!(call(&mut world, 1, &[0, 1]).unwrap(), Reply::Wait);
    assert_eq!(call(&mut world, 1, &[0, 1]).unwrap(), Reply::Wait, "its answer was lost");
    let refused = call(&mut world, 1, &[0, 1, 2]).unwrap_err();
    assert_eq!(refused.kind, Kind::BadInput);
    assert!(refused.message.contains("call 1") && refused.message.contains("without batch 2"), "{refused}");
    world.tick();
    let Reply::Committed(token) = call(&mut world, 1, &[0, 1]).unwrap() else { panic!("not complete") };
    assert_eq!(call(&mut world, 1, &[]).unwrap(), Reply::Committed(token), "whoever was interrupted asks without");
    // Neither what was not acknowledged, nor what was acknowledged since, is in that commit.
    world.ack(&opened, "a", PassId(0), [2]).unwrap();
    for batch in [2, 3] {
        let refused = call(&mut world, 1, &[0, batch]).unwrap_err();
        assert!(refused.message.contains(&format!("without batch {batch}")), "{refused}");
    }
    assert_eq!(call(&mut world, 2, &[2, 3]).unwrap(), Reply::Wait);
    world.tick();
    assert!(matches!(call(&mut world, 2, &[2, 3]).unwrap(), Reply::Committed(next) if next != token));
}

#[test]
fn a_state_of_a_job_that_nobody_opened_begins_it_for_all_ranks() {
    let mut world = World::new();
    let ranks = JobSettings {
        assignment: Assignment::Static,
        world_size: Some(2),
        epochs: Passes::List(vec![1, 0]),
        visitation: Visitation::ExactlyOnce,
        ..settings("j", "digits", 10, Passes::All)
    };
    let restore = |world: &mut World, rank: u32, token: Token| {
        let consumer = ConsumerSettings { rank: Some(rank), ..consumer_settings(&format!("r{rank}")) };
        world.send(Event::Restore {
            settings: Box::new(ranks.clone()),
            consumer: Box::new(consumer),
            token,
            attempt: None,
            stored: stored("f", 0, 2),
        })
    };
    let elsewhere = [Token::At { pass: PassId(1), next: 4 }, Token::At { pass: PassId(0), next: 0 }];
    for token in elsewhere.into_iter().chain([Token::Commit { incarnation: Incarnation(0), commit: 0 }]) {
        assert_eq!(restore(&mut world, 0, token).unwrap_err().kind, Kind::NotFound, "{token:?}");
    }
    assert!(world.state.jobs.is_empty());
    let token = Token::At { pass: PassId(1), next: 0 };
    let opened = [0, 1].map(|rank| match restore(&mut world, rank, token).unwrap() {
        Reply::Job(opened) => opened,
        other => panic!("{other:?}"),
    });
    assert!(opened.iter().all(|o| (o.incarnation, o.pass) == (Incarnation(0), Some(PassId(1)))), "{opened:?}");
    assert_eq!(world.state.jobs[&opened[0].job].consumers.len(), 2, "the second rank joins, and fences nobody");
    let stream = world.stream(&opened[0], "r0", "w", true);
    let Some(Granted::Batches(grant)) = world.grant(&opened[0].job, stream, 1, 100).unwrap() else { panic!("no grant") };
    assert_eq!((grant.pass, grant.batches.start), (PassId(1), 0));
}

#[test]
fn a_grant_whose_answer_was_lost_comes_again() {
    let ranks = |assignment| JobSettings { assignment, world_size: Some(2), ..exact("fixed") };
    for settings in [exact("free"), ranks(Assignment::Static), ranks(Assignment::Rounds)] {
        let mut world = World::new();
        let rank = settings.is_fixed().then_some(0);
        let consumer = ConsumerSettings { rank, ..consumer_settings("a") };
        let event = Event::OpenJob { settings: Box::new(settings.clone()), consumer: Box::new(consumer), stored: stored("f", 0, 1) };
        let Reply::Job(opened) = world.send(event).unwrap() else { panic!("not joined") };
        let stream = world.stream(&opened, "a", "w", true);
        let first = world.grant(&opened.job, stream, 2, 100).unwrap();
        let ask = |world: &mut World, received: u64| {
            world.send(Event::NextGrant { job: opened.job.clone(), stream, max_batches: 2, received: Some(received) }).unwrap()
        };
        let entries = world.log.len();
        world.crash(false, false);
        let again = ask(&mut world, 0);
        assert_eq!(Some(again), first.clone().map(Reply::Granted), "{:?}", settings.assignment);
        assert!(world.log.len() <= entries + 2, "nothing is granted by that");
        assert_ne!(Some(ask(&mut world, 1)), first.map(Reply::Granted), "it was heard of");
    }
}
