//! Jobs whose workers die, leave or are asked to.

use std::sync::mpsc::{Receiver, channel};
use std::thread::JoinHandle;
use std::time::Duration;

use super::support::{Cluster, LEASE, Seen, TAKEOVER, runtime, train};
use crate::support::{Server, eventually};

/// A cluster with a dataset of 400 rows, two workers, and a trainer under way.
struct Streaming {
    cluster: Cluster,
    dispatcher: Server,
    workers: Vec<Server>,
    training: JoinHandle<Seen>,
    told: Receiver<(usize, String)>,
}

fn streaming(pause: Duration) -> Streaming {
    let cluster = Cluster::new(4, 100, "SELECT n FROM input");
    let dispatcher = cluster.dispatcher(0);
    cluster.leads(0, TAKEOVER);
    let workers = vec![cluster.worker("w0"), cluster.worker("w1")];
    cluster.workers(2);
    cluster.ok(&["materialize", "p.toml"]);
    let servers = cluster.servers();
    let (tell, told) = channel();
    let training = std::thread::spawn(move || {
        runtime().block_on(train(&servers, "j", pause, move |n, place| {
            let _ = tell.send((n, place.to_owned()));
        }))
    });
    Streaming { cluster, dispatcher, workers, training, told }
}

impl Streaming {
    /// Waits for the fifth batch; gives the number of the worker that sent it.
    fn serving(&self) -> usize {
        let place = loop {
            let (n, place) = self.told.recv_timeout(Duration::from_secs(30)).unwrap();
            if n >= 5 {
                break place;
            }
        };
        let port = |address: &str| address.rsplit(':').next().unwrap().to_owned();
        self.workers.iter().position(|w| port(&w.address) == port(&place)).unwrap()
    }
}

#[test]
fn s05_a_killed_worker_loses_what_it_held_and_another_delivers_the_rest() {
    let mut run = streaming(Duration::from_millis(100));
    let serving = run.serving();
    run.workers[serving].kill();
    let seen = run.training.join().unwrap();
    assert!(seen.broken >= 1 && seen.places.len() >= 2, "{seen:?}");
    let got = seen.once();
    let cluster = &run.cluster;
    eventually("the dead worker's batches are lost", LEASE + Duration::from_secs(20), || {
        let lost = cluster.losses("j");
        (0..40).all(|batch| got.contains(&(0, batch)) || lost.contains_key(&(0, batch)))
    });
    let lost = cluster.losses("j");
    let missing = (0..40).filter(|batch| !got.contains(&(0, *batch))).count();
    assert!(missing < 10, "most was delivered by the other worker: {seen:?}");
    assert!(lost.values().all(|reason| reason.contains("worker")), "{lost:?}");
    let name = format!("w{serving}");
    let holders = cluster.sql("SELECT DISTINCT worker FROM system.losses WHERE job = 'j'");
    assert!(holders.iter().all(|row| row["worker"] == name.as_str()), "{holders:?}");
}

#[test]
fn s19_a_drained_worker_loses_nothing_and_ends() {
    let mut run = streaming(Duration::from_millis(100));
    let serving = run.serving();
    let name = format!("w{serving}");
    let said = run.cluster.ok(&["workers", "drain", &name]);
    assert!(said.contains("drained"), "{said}");
    let drained = run.workers[serving].child.wait().unwrap();
    assert_eq!(drained.code(), Some(0), "a drained worker ends by itself");
    let seen = run.training.join().unwrap();
    assert!(seen.drained >= 1 && seen.broken == 0, "{seen:?}");
    assert_eq!((seen.once().len(), seen.rows), (40, 400));
    assert_eq!(run.cluster.losses("j"), Default::default());
    let refused = run.cluster.home.fails(2, &["workers", "drain", "nobody", "--server", &run.cluster.servers()]);
    assert!(refused.contains("no worker `nobody`"), "{refused}");
}

#[test]
fn s39_both_roles_end_within_five_seconds_with_streams_open() {
    let mut run = streaming(Duration::from_secs(4));
    let (_, _) = run.told.recv_timeout(Duration::from_secs(30)).unwrap();
    let (took, status) = run.dispatcher.end();
    assert!(took < Duration::from_secs(5) && status == Some(0), "the dispatcher: {took:?} {status:?}");
    for worker in &mut run.workers {
        let (took, status) = worker.end();
        assert!(took < Duration::from_secs(5) && status == Some(0), "a worker: {took:?} {status:?}");
    }
}
