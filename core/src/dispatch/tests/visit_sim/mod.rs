//! A seeded, deterministic simulation of jobs: leaders, workers and consumers over a network that loses, delays and doubles messages, a journal
//! whose writes fail before or after they took effect, processes that die or sleep longer than their leases, restores at other world sizes.
//! The checker ([`checker`]) knows what the clients saw and what the journal says, and nothing of how decisions are made.
//!
//! `FOREBAY_SIM_SEEDS` is how many seeds run, `FOREBAY_SIM_SEED` runs one.

mod bugs;
mod chaos;
mod checker;
mod consumer;
mod leader;
mod net;
mod tests;
mod worker;
mod writing;

use std::collections::BTreeMap;

use super::super::*;
use super::world::{TERM, dataset, job};
use crate::ids::*;
use crate::job::{Assignment, End, JobSettings, Passes, RankLost, Steps, Visitation};
use crate::random::Rng;
use bugs::Bug;
use consumer::Client;
use leader::{Journal, Leader};
use net::{Call, Msg, Net};
use worker::{Conn, Server};
use writing::Writing;

/// Faults end after this much virtual time.
const CHAOS_MS: u64 = 90_000;
/// Then the job has to end within this.
const CALM_MS: u64 = 600_000;

/// What an outside observer saw, in order.
#[derive(Debug, Clone)]
enum Seen {
    /// The trainer of this process got the batch.
    Yield {
        session: Session,
        incarnation: Incarnation,
        pass: PassId,
        batch: u64,
        padding: bool,
    },
    /// A worker handed the batch to the transport.
    Shipped {
        pass: PassId,
        batch: u64,
    },
    /// It made its call; it had trained on so many batches.
    Called {
        session: Session,
        trained: usize,
    },
    Token {
        session: Session,
        call: u64,
        token: Token,
    },
    Refused {
        session: Session,
        call: u64,
    },
    Fault(&'static str),
    /// A process gave up, and why: for whoever reads the history.
    Failed(#[allow(dead_code)] String),
    /// How long the journal was then.
    Journal(usize),
}

/// One process that takes part, as the checker knows it.
#[derive(Debug, Clone)]
struct Process {
    name: ConsumerName,
    rank: Option<u32>,
    plain: bool,
}

struct Sim {
    rng: Rng,
    bug: Option<Bug>,
    /// How often the bug had its chance.
    bug_hits: u32,
    now: u64,
    wall_jump: i64,
    net: Net,
    settings: JobSettings,
    rows: u64,
    per_window: u64,
    /// In some histories the ledger takes acknowledged batches of open windows early.
    ledger_batches: u64,
    /// In staged order: who writes the epochs.
    writing: Option<Writing>,
    journal: Journal,
    leaders: Vec<Leader>,
    servers: Vec<Server>,
    conns: Vec<Conn>,
    clients: Vec<Client>,
    calls: BTreeMap<u64, Call>,
    ledger: BTreeMap<String, Vec<VisitRow>>,
    seen: Vec<Seen>,
    processes: BTreeMap<Session, Process>,
    tokens: Vec<Token>,
    restores: u32,
    last_restore: Option<net::Restoring>,
    /// The commit that trainers are asked to make, and for ranks the step at which.
    wave: u64,
    wave_step: u64,
    calm: bool,
    faults: u32,
    checked: u64,
}

impl Sim {
    fn new(seed: u64, bug: Option<Bug>) -> Self {
        let mut sim = Self::prepared(seed, bug);
        sim.populate();
        sim
    }

    /// With a leader, and nobody else.
    fn prepared(seed: u64, bug: Option<Bug>) -> Self {
        let mut rng = Rng::new(seed);
        let mut settings = random_settings(&mut rng);
        if settings.assignment == Assignment::Rounds && settings.rank_lost == RankLost::Wait && seed.is_multiple_of(5) {
            settings.rank_lost = RankLost::Fail;
        }
        if settings.rank_lost == RankLost::Drop {
            // A job whose ranks are all dropped ends by it.
            settings.idle_timeout_ms = 10 * TERM;
        }
        let (rows, per_window) = (1 + rng.below(70), 1 + rng.below(6));
        let mut sim = Self {
            rng,
            bug,
            bug_hits: 0,
            now: 0,
            wall_jump: 0,
            net: Net::default(),
            settings,
            rows,
            per_window,
            ledger_batches: [0, 4, 1][seed as usize % 3],
            writing: None,
            journal: Journal::default(),
            leaders: Vec::new(),
            servers: Vec::new(),
            conns: Vec::new(),
            clients: Vec::new(),
            calls: BTreeMap::new(),
            ledger: BTreeMap::new(),
            seen: Vec::new(),
            processes: BTreeMap::new(),
            tokens: Vec::new(),
            restores: 0,
            last_restore: None,
            wave: 0,
            wave_step: 0,
            calm: false,
            faults: 0,
            checked: 0,
        };
        sim.start_leader();
        sim
    }

    /// Adds workers, consumers and faults.
    fn populate(&mut self) {
        for _ in 0..2 + self.rng.below(2) {
            self.start_server();
        }
        for slot in 0..self.consumers() {
            let at = self.rng.below(2_000);
            self.net.at(at, Msg::Spawn { slot, restore: None });
        }
        self.net.at(500, Msg::Chaos);
        if self.settings.assignment == Assignment::Rounds && self.settings.rank_lost != RankLost::Wait {
            // Most histories are short: a rank that is lost has to be lost early.
            let at = 1_000 + self.rng.below(3_000);
            self.net.at(at, Msg::LoseRank);
        }
        self.net.at(200, Msg::Tick);
    }

    fn consumers(&mut self) -> u32 {
        match self.settings.world_size.filter(|_| self.settings.is_ranked()) {
            Some(world) => world,
            None => 2 + u32::try_from(self.rng.below(3)).unwrap(),
        }
    }

    fn chance(&mut self, percent: u64) -> bool {
        self.rng.below(100) < percent
    }

    fn fault(&mut self, what: &'static str) {
        self.faults += 1;
        self.seen.push(Seen::Fault(what));
    }

    fn moment(&self) -> Now {
        Now { wall_ms: 1_700_000_000_000 + i64::try_from(self.now).unwrap() + self.wall_jump, mono_ms: self.now }
    }

    /// The batches of a pass.
    fn batches(&self) -> u64 {
        self.rows.div_ceil(self.settings.batch_size)
    }

    /// Runs to the end of the job. False when it does not end.
    fn run(&mut self) -> bool {
        while let Some((at, msg)) = self.net.next() {
            self.now = at;
            if self.is_finished() {
                return true;
            }
            if at > CHAOS_MS + CALM_MS {
                return false;
            }
            self.deliver(msg);
        }
        false
    }

    fn is_finished(&self) -> bool {
        let leader = self.leaders.iter().rfind(|l| l.alive);
        let job = leader.and_then(|l| l.state.jobs.get(&self.settings.job));
        if job.is_none() && self.calm && self.is_given_up() {
            // Nobody had come before, and now there is nothing to come for.
            return true;
        }
        job.is_some_and(|j| {
            matches!(j.phase, JobPhase::Ended { end: JobEnd::Finished | JobEnd::Failed(_) | JobEnd::Idle, .. })
                && j.passes.values().all(|p| p.windows.is_empty())
        }) && (self.calm || self.restores > 0 || self.now > 20_000)
    }

    /// Everything that happened, with `FOREBAY_SIM_LOG=1`.
    fn print_history(&self) {
        let mut read = 0;
        for seen in &self.seen {
            if let Seen::Journal(to) = seen {
                for bytes in &self.journal.entries[read..*to] {
                    println!("{}", String::from_utf8_lossy(bytes));
                }
                read = *to;
            } else {
                println!("    {seen:?}");
            }
        }
        for bytes in &self.journal.entries[read..] {
            println!("unseen {}", String::from_utf8_lossy(bytes));
        }
    }

    /// For whoever has to find out why nothing goes on.
    fn where_it_stands(&self) -> String {
        use std::fmt::Write as _;
        let s = &self.settings;
        let mut text = format!("{:?} {:?} {:?} {:?} world {:?}\n", s.visitation, s.assignment, s.steps, s.end, s.world_size);
        if let Some(job) = self.leaders.iter().rfind(|l| l.alive).and_then(|l| l.state.jobs.get(&s.job)) {
            let _ = writeln!(
                text,
                "{:?} incarnation {} places {}..{} commit {}",
                job.phase, job.incarnation, job.ended, job.started, job.next_commit
            );
            for (name, c) in &job.consumers {
                let _ = writeln!(text, "  {name}: rank {:?} at {} called {:?} session {:?}", c.rank, c.at, c.called, c.session);
            }
            for (id, pass) in &job.passes {
                let _ = writeln!(
                    text,
                    "  pass {id}: {} batches, {} deliverable, end {:?} first {} lead {} {:?} {:?} pads {:?}",
                    pass.batches, pass.deliverable, pass.end, pass.first, pass.lead, pass.counts, pass.ranks, pass.pads
                );
                for (window, w) in pass.windows.iter().filter(|(_, w)| !w.is_closed()) {
                    let _ = writeln!(text, "    window {window} of {:?}: {:?}", w.worker, w.spans);
                }
            }
            let open = job.streams.iter().filter(|(_, s)| s.open || s.held > 0);
            let _ = writeln!(
                text,
                "  streams {:?}",
                open.map(|(id, s)| (id.get(), &s.consumer.0, &s.worker.0, s.open, s.held)).collect::<Vec<_>>()
            );
        }
        for c in self.clients.iter().filter(|c| c.alive) {
            let conns: Vec<_> = c
                .conns
                .iter()
                .filter(|i| self.conns[**i].up)
                .map(|i| (&self.conns[*i], &self.servers[self.conns[*i].server].name.0))
                .collect();
            let _ = writeln!(text, "  client {c:?} over {conns:?}");
        }
        let faults = self.seen.iter().filter_map(|s| if let Seen::Fault(what) = s { Some(*what) } else { None });
        let _ = writeln!(text, "  faults {:?}", faults.collect::<Vec<_>>());
        let _ = writeln!(text, "  workers {:?}", self.servers.iter().filter(|s| s.alive).collect::<Vec<_>>());
        text
    }

    fn deliver(&mut self, msg: Msg) {
        match msg {
            Msg::Request { leader, call } => self.at_leader(leader, call),
            Msg::Work { leader, event } => self.work_done(leader, *event),
            Msg::Reply { call, result } => self.replied(call, result),
            Msg::Timeout { call, attempt } => self.timed_out(call, attempt),
            Msg::Beat { server } => self.beat(server),
            Msg::Ask { conn } => self.pump(conn),
            Msg::Batch { conn, item } => self.arrived(conn, item),
            Msg::Ended { conn, end } => self.told_end(conn, &end),
            Msg::Broken { conn } => self.broken(conn),
            Msg::Step { client } => self.train(client),
            Msg::Look { client } => self.look(client),
            Msg::Spawn { slot, restore } => self.spawn(slot, restore),
            Msg::Gone { server } => self.kill_server(server),
            Msg::Lead => self.start_leader(),
            Msg::Tick => {
                self.tick();
                self.net.at(self.now + 200, Msg::Tick);
            }
            Msg::Chaos => self.chaos(),
            Msg::Write => self.write(),
            Msg::LoseRank => self.client_crash(true),
        }
    }
}

fn random_settings(rng: &mut Rng) -> JobSettings {
    let visitation = [Visitation::AtMostOnce, Visitation::AtLeastOnce, Visitation::ExactlyOnce][rng.below(3) as usize];
    let assignment = [Assignment::Dynamic, Assignment::Static, Assignment::Rounds][rng.below(3) as usize];
    let world = 1 + u32::try_from(rng.below(4)).unwrap();
    let steps = if rng.below(2) == 0 { Steps::Equal } else { Steps::Any };
    let end = match (steps, rng.below(2)) {
        (Steps::Equal, 0) => End::Pad,
        (Steps::Equal, _) | (_, 0) => End::Drop,
        _ => End::Short,
    };
    let rank_lost = if visitation == Visitation::AtMostOnce && rng.below(2) == 0 { RankLost::Drop } else { RankLost::Wait };
    let ranked = assignment != Assignment::Dynamic || steps == Steps::Equal;
    JobSettings {
        batch_size: 1 + rng.below(3),
        epochs: Passes::Count(1 + u32::try_from(rng.below(3)).unwrap()),
        visitation,
        assignment,
        steps,
        end,
        world_size: ranked.then_some(world),
        rank_lost,
        rank_timeout_ms: 2 * TERM,
        idle_timeout_ms: 10_000_000,
        ..JobSettings::new(job("j"), dataset("digits"))
    }
}
