//! Fixed maps on several workers.

use super::super::*;
use super::world::*;
use crate::ids::*;
use crate::job::{Assignment, ConsumerSettings, JobSettings, Passes};

fn batches(granted: Option<Granted>) -> std::ops::Range<u64> {
    match granted {
        Some(Granted::Batches(grant)) => grant.batches,
        other => panic!("{other:?}"),
    }
}

fn send(world: &mut World, name: &JobName, stream: StreamId, batch: u64) {
    world.send(Event::Sent { job: name.clone(), stream, pass: PassId(0), batches: vec![(BatchId(batch), batch * 7)] }).unwrap();
}

#[test]
fn ranks_whose_streams_are_with_different_workers_all_get_their_batches() {
    for assignment in [Assignment::Static, Assignment::Rounds] {
        let mut world = World::new();
        let s = JobSettings { assignment, world_size: Some(3), ..settings("j", "digits", 10, Passes::Count(1)) };
        let join = |world: &mut World, rank: u32| {
            let consumer = ConsumerSettings { rank: Some(rank), ..consumer_settings(&format!("r{rank}")) };
            let event = Event::OpenJob { settings: Box::new(s.clone()), consumer: Box::new(consumer), stored: stored("f", 0, 1) };
            match world.send(event).unwrap() {
                Reply::Job(opened) => opened,
                other => panic!("{other:?}"),
            }
        };
        let opened = [0, 1, 2].map(|rank| join(&mut world, rank));
        let name = opened[0].job.clone();
        let mut streams = [0, 1, 2].map(|rank: usize| world.stream(&opened[rank], &format!("r{rank}"), &format!("w{rank}"), true));
        let mut got = [0_u64, 1, 2].map(|_| Vec::new());
        for step in 0..10 {
            for rank in 0..3 {
                if (step, rank) == (4, 1) {
                    // A second stream, to the worker that has the window, takes over: both at once would mix the order up.
                    let more = world.stream(&opened[1], "r1", "w0", true);
                    assert_eq!(world.grant(&name, streams[1], 1, 300).unwrap(), None, "{assignment:?}");
                    world.send(Event::CloseStream { job: name.clone(), stream: streams[1], clean: true }).unwrap();
                    streams[1] = more;
                }
                let range = batches(world.grant(&name, streams[rank], 1, 300).unwrap());
                send(&mut world, &name, streams[rank], range.start);
                world.ack(&opened[rank], &format!("r{rank}"), PassId(0), [range.start]).unwrap();
                got[rank].push(range.start);
            }
        }
        let expected = [0, 1, 2].map(|rank| (0..10).map(|step| 3 * step + rank).collect::<Vec<u64>>());
        assert_eq!(got, expected, "{assignment:?}");
    }
}
