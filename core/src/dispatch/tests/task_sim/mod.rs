//! A seeded, deterministic simulation of materialization: leaders that may be two, workers that die or sleep between any two of their steps, a
//! network that loses, delays and doubles messages, a journal whose writes fail before or after they took effect, a store whose puts are
//! applied and answered with an error, and another program that commits to the same table.
//! The checker ([`checker`]) knows the store, the journal's entries and what everybody was told, and nothing of how decisions are made.
//!
//! `FOREBAY_SIM_SEEDS` is how many seeds run, `FOREBAY_SIM_SEED` runs one.

mod bugs;
mod chaos;
mod checker;
mod leader;
mod tests;
mod worker;

use std::collections::{BTreeMap, BTreeSet};

use super::super::*;
use super::world::{TERM, dataset, request, run_spec, stored};
use crate::error::{Error, Result};
use crate::ids::*;
use crate::random::Rng;
use bugs::Bug;
use leader::{Journal, Leader};
use worker::Worker;

/// Faults end after this much virtual time.
const CHAOS_MS: u64 = 60_000;
/// Then everything has to be published within this.
const CALM_MS: u64 = 400_000;

/// Whom an answer is for.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Peer {
    Task(usize),
    Report(usize),
    Progress(usize),
    Beat,
    Run,
}

#[derive(Debug, Clone)]
struct Call {
    id: u64,
    peer: Peer,
    event: Event,
    attempt: u32,
    /// What a heartbeat says that its worker is at.
    beat: Option<(WorkerName, Option<TaskLease>)>,
}

#[derive(Debug, Clone)]
enum Msg {
    Request {
        leader: usize,
        call: Call,
    },
    Reply {
        call: u64,
        result: Result<Reply>,
    },
    Timeout {
        call: u64,
        attempt: u32,
    },
    /// A put of a commit that was begun arrives at the store.
    Put {
        leader: usize,
        action: Box<Action>,
    },
    Work {
        leader: usize,
        event: Box<Event>,
    },
    Step {
        worker: usize,
    },
    Beat {
        worker: usize,
    },
    Command,
    Lead,
    Tick,
    Chaos,
}

/// The object store: files once written, and the table's log.
#[derive(Debug, Default)]
struct Store {
    /// By path: who wrote it, and the rows.
    files: BTreeMap<String, (Attempted, u64)>,
    log: BTreeMap<u64, String>,
    /// What must never happen to a store, where a bug did it.
    broken: Vec<String>,
}

/// One attempt of one worker.
type Attempted = (WorkerName, EpochId, TaskId, Attempt);

struct Sim {
    rng: Rng,
    bug: Option<Bug>,
    now: u64,
    queue: BTreeMap<(u64, u64), Msg>,
    next: u64,
    tasks: usize,
    epochs: u32,
    journal: Journal,
    leaders: Vec<Leader>,
    workers: Vec<Worker>,
    calls: BTreeMap<u64, Call>,
    store: Store,
    /// Broken promises that are seen at once.
    broken: Vec<String>,
    told_done: bool,
    calm: bool,
    faults: BTreeMap<&'static str, u32>,
}

impl Sim {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::new(seed ^ 0x7461_736b);
        let (tasks, epochs) = (1 + usize::try_from(rng.below(8)).unwrap(), 1 + u32::try_from(rng.below(3)).unwrap());
        let mut sim = Self {
            rng,
            bug,
            now: 0,
            queue: BTreeMap::new(),
            next: 0,
            tasks,
            epochs,
            journal: Journal::default(),
            leaders: Vec::new(),
            workers: Vec::new(),
            calls: BTreeMap::new(),
            store: Store::default(),
            broken: Vec::new(),
            told_done: false,
            calm: false,
            faults: BTreeMap::new(),
        };
        sim.start_leader();
        for _ in 0..1 + sim.rng.below(3) {
            sim.start_worker();
        }
        // Two people give the same command.
        for _ in 0..2 {
            let at = sim.rng.below(3_000);
            sim.at(at, Msg::Command);
        }
        sim.at(200, Msg::Tick);
        sim.at(500, Msg::Chaos);
        sim
    }

    fn at(&mut self, at: u64, msg: Msg) {
        self.next += 1;
        self.queue.insert((at, self.next), msg);
    }

    fn after(&mut self, least: u64, spread: u64, msg: Msg) {
        let at = self.now + least + self.rng.below(spread.max(1));
        self.at(at, msg);
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    /// Something goes wrong, unless faults have stopped.
    fn fails(&mut self, percent: u64, what: &'static str) -> bool {
        let fails = !self.calm && self.chance(percent);
        if fails {
            self.fault(what);
        }
        fails
    }

    fn fault(&mut self, what: &'static str) {
        *self.faults.entry(what).or_default() += 1;
    }

    fn moment(&self) -> Now {
        Now { wall_ms: 1_700_000_000_000 + i64::try_from(self.now).unwrap(), mono_ms: self.now }
    }

    /// Rows of a task, the same from every attempt. Some have none.
    fn rows(&self, epoch: EpochId, task: TaskId) -> u64 {
        u64::from(epoch.0 * 7 + task.0 * 3) % 5
    }

    /// Runs until everything is published and said to be. False when that does not happen.
    fn run(&mut self) -> bool {
        while let Some(((at, _), msg)) = self.queue.pop_first() {
            self.now = at;
            if self.told_done && self.calm {
                return true;
            }
            if at > CHAOS_MS + CALM_MS {
                return false;
            }
            self.deliver(msg);
        }
        false
    }

    fn deliver(&mut self, msg: Msg) {
        match msg {
            Msg::Request { leader, call } => self.at_leader(leader, call),
            Msg::Reply { call, result } => self.replied(call, result),
            Msg::Timeout { call, attempt } => self.timed_out(call, attempt),
            Msg::Put { leader, action } => self.put_commit(leader, *action),
            Msg::Work { leader, event } => self.work_done(leader, *event),
            Msg::Step { worker } => self.step(worker),
            Msg::Beat { worker } => self.beat(worker),
            Msg::Command => self.command(),
            Msg::Lead => self.start_leader(),
            Msg::Tick => {
                for index in 0..self.leaders.len() {
                    if self.leaders[index].alive && self.leaders[index].asleep_until <= self.now {
                        self.settle(index);
                    }
                }
                self.at(self.now + 200, Msg::Tick);
            }
            Msg::Chaos => self.chaos(),
        }
    }

    /// What the table says, as whoever gives a command reads it.
    fn stored(&self) -> Option<Box<StoredDataset>> {
        let epochs: BTreeSet<EpochId> = self.store.log.values().filter_map(|b| checker::epoch_of(b)).collect();
        let version = VersionId(*self.store.log.keys().last()?);
        (!epochs.is_empty())
            .then(|| Box::new(StoredDataset { version, epochs: epochs.into_iter().collect(), ..*stored("f", 0, 0).unwrap() }))
    }

    fn command(&mut self) {
        let resume = self.chance(70);
        let request = Box::new(RunRequest { resume, ..request(run_spec("digits", "f", self.tasks), 0..self.epochs) });
        let stored = self.stored();
        self.call(Peer::Run, Event::StartRun { request, stored, certain: false }, None);
    }

    fn commanded(&mut self, result: Result<Reply>) {
        match result {
            Ok(Reply::Run(status)) => {
                let all = (0..self.epochs).map(EpochId).all(|e| status.published.contains(&e));
                let there = self.stored().map(|s| s.epochs.len()).unwrap_or_default();
                if !all || there < self.epochs as usize {
                    self.broken
                        .push(format!("it was said that {:?} are published, and {there} of {} epochs are", status.published, self.epochs));
                }
                self.told_done = true;
            }
            Ok(Reply::Again) => self.after(300, 300, Msg::Command),
            // It is asked again now and then whether it is done: a repeated command joins the first.
            _ => self.after(2_000, 8_000, Msg::Command),
        }
    }

    fn delay(&mut self) -> u64 {
        if !self.calm && self.chance(3) { 500 + self.rng.below(TERM / 2) } else { 1 + self.rng.below(60) }
    }

    fn call(&mut self, peer: Peer, event: Event, beat: Option<(WorkerName, Option<TaskLease>)>) {
        self.next += 1;
        let call = Call { id: self.next, peer, event, attempt: 0, beat };
        self.calls.insert(call.id, call.clone());
        self.send(call);
    }

    fn send(&mut self, call: Call) {
        self.at(self.now + 3_000, Msg::Timeout { call: call.id, attempt: call.attempt });
        let Some(leader) = self.leaders.iter().rposition(|l| l.alive) else { return };
        if self.fails(4, "a request was lost") {
            return;
        }
        let doubled = self.fails(3, "a request was doubled");
        for _ in 0..=u32::from(doubled) {
            let at = self.now + self.delay();
            self.at(at, Msg::Request { leader, call: call.clone() });
        }
    }

    fn answer(&mut self, call: u64, result: Result<Reply>) {
        if !self.fails(4, "an answer was lost") {
            let at = self.now + self.delay();
            self.at(at, Msg::Reply { call, result });
        }
    }

    fn timed_out(&mut self, id: u64, attempt: u32) {
        let Some(call) = self.calls.get_mut(&id).filter(|c| c.attempt == attempt) else { return };
        match call.peer {
            // Reports and commands are repeated until somebody leads.
            Peer::Report(_) | Peer::Run => {
                call.attempt += 1;
                let again = call.clone();
                self.send(again);
            }
            Peer::Task(worker) => {
                self.calls.remove(&id);
                self.workers[worker].asking = false;
                self.at(self.now + 1, Msg::Step { worker });
            }
            _ => drop(self.calls.remove(&id)),
        }
    }

    fn replied(&mut self, id: u64, result: Result<Reply>) {
        let Some(call) = self.calls.remove(&id) else { return };
        match call.peer {
            Peer::Task(worker) => self.got_task(worker, result),
            Peer::Report(worker) => self.reported(worker),
            Peer::Progress(worker) => self.wanted(worker, &call.event, result),
            Peer::Beat => {}
            Peer::Run => self.commanded(result),
        }
    }
}
