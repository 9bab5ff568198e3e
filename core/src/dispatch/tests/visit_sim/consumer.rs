//! Consumers: what a loader does, step by step.

use super::super::super::*;
use super::super::world::TERM;
use super::bugs::Bug;
use super::net::{Call, Msg, Peer, Restoring};
use super::{Process, Seen, Sim};
use crate::error::{Error, Kind, Result};
use crate::ids::*;
use crate::job::{ConsumerSettings, Visitation};

/// A batch on its way to a trainer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Item {
    pub pass: PassId,
    pub batch: u64,
    pub padding: bool,
    pub conn: usize,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Phase {
    Joining,
    Running,
    /// Its report of lost streams is on its way: it yields nothing and opens no stream.
    Reporting,
    Committing,
    Leaving,
}

/// One process of a consumer.
#[derive(Debug)]
pub(super) struct Client {
    pub slot: u32,
    pub name: ConsumerName,
    pub session: Session,
    pub alive: bool,
    pub plain: bool,
    pub phase: Phase,
    pub asleep_until: u64,
    pub incarnation: Incarnation,
    pub conns: Vec<usize>,
    buffer: Vec<Item>,
    current: Option<Item>,
    /// Taken by the trainer, and not known to be durable.
    taken: Vec<(PassId, u64)>,
    /// Of those, what waits for the answer to its call of `commit`.
    late: Vec<(PassId, u64)>,
    /// When it sent the last call that was answered.
    renewed_at: u64,
    reports: u64,
    calls: u64,
    wave: u64,
    pub trained: usize,
    /// Steps of its newest pass.
    pub steps: (PassId, u64),
    over: bool,
    rejoin_after: bool,
}

impl Sim {
    pub(super) fn spawn(&mut self, slot: u32, restore: Option<Restoring>) {
        let ranked = self.settings.is_ranked();
        if ranked && self.settings.world_size.is_some_and(|w| slot >= w) {
            return;
        }
        let session = Session(self.rng.next_u64() >> 1);
        let name = ConsumerName(format!("c{slot}"));
        let rank = self.settings.is_fixed().then_some(slot);
        let plain = !self.settings.redelivers() && self.rng.below(4) == 0;
        self.processes.insert(session, Process { name: name.clone(), rank, plain });
        self.clients.push(Client {
            slot,
            name: name.clone(),
            session,
            alive: true,
            plain,
            phase: Phase::Joining,
            asleep_until: 0,
            incarnation: Incarnation(0),
            conns: Vec::new(),
            buffer: Vec::new(),
            current: None,
            taken: Vec::new(),
            late: Vec::new(),
            renewed_at: self.now,
            reports: 0,
            calls: 0,
            wave: self.wave,
            trained: 0,
            steps: (PassId(0), 0),
            over: false,
            rejoin_after: false,
        });
        let client = self.clients.len() - 1;
        let consumer = Box::new(ConsumerSettings { consumer: name, rank, acks_by_action: false, restart: false });
        let settings = Box::new(self.settings.clone());
        let event = match restore {
            Some(Restoring { token, attempt }) => Event::Restore { settings, consumer, token, attempt, stored: None },
            None => Event::OpenJob { settings, consumer, stored: self.stored() },
        };
        self.call(Peer::Join { client }, Event::OfSession { session, event: Box::new(event) });
    }

    pub(super) fn joined(&mut self, client: usize, call: Call, result: Result<Reply>) {
        if !self.clients[client].alive {
            return;
        }
        match result {
            Ok(Reply::Job(opened)) => {
                let c = &mut self.clients[client];
                (c.incarnation, c.phase, c.renewed_at) = (opened.incarnation, Phase::Running, call.sent_at);
                self.net.at(self.now + 1, Msg::Look { client });
                self.net.at(self.now + 10, Msg::Step { client });
            }
            Ok(Reply::Again) => self.again(call, 300),
            Ok(other) => panic!("{other:?}"),
            Err(error) if error.kind == Kind::AlreadyExists && error.message.contains("rank") => {
                // Whoever had the rank is gone, and its lease is not over.
                self.clients[client].wave = self.wave;
                self.again(call, 4_000);
            }
            Err(error) => {
                self.seen.push(Seen::Failed(error.to_string()));
                self.clients[client].alive = false;
                if error.message.contains("restored since") {
                    self.restore_again(&call.event);
                }
            }
        }
    }

    fn waits_for_reports(&self) -> bool {
        self.settings.redelivers() || self.settings.awaits_reports()
    }

    /// Opens the streams that it lacks, and renews its lease.
    pub(super) fn look(&mut self, client: usize) {
        let c = &self.clients[client];
        if !c.alive {
            return;
        }
        let at = c.asleep_until.max(self.now + 2_500) + 1;
        self.net.at(at, Msg::Look { client });
        if c.asleep_until > self.now || matches!(c.phase, Phase::Joining | Phase::Leaving) {
            return;
        }
        let event = Event::Acknowledge {
            job: self.settings.job.clone(),
            incarnation: c.incarnation,
            consumer: c.name.clone(),
            pass: PassId(0),
            batches: Vec::new(),
        };
        let event = Event::OfSession { session: c.session, event: Box::new(event) };
        let phase = c.phase;
        self.call(Peer::Renew { client }, event);
        if phase == Phase::Running {
            self.connect_all(client);
        }
    }

    fn connect_all(&mut self, client: usize) {
        if self.clients[client].over {
            return;
        }
        let Some(leader) = self.leaders.iter().rfind(|l| l.alive) else { return };
        let known = job_workers(&leader.state, &leader.volatile, &self.settings.job);
        let usable = |s: &super::worker::Server| s.alive && !s.leaving;
        let mut to: Vec<usize> =
            (0..self.servers.len()).filter(|i| usable(&self.servers[*i]) && known.contains(&self.servers[*i].name)).collect();
        let up: Vec<usize> = self.clients[client].conns.iter().filter(|i| self.conns[**i].up).map(|i| self.conns[*i].server).collect();
        if !self.settings.is_fixed() {
            let most = if self.clients[client].plain { 1 } else { 1 + usize::from(client.is_multiple_of(3)) };
            let by = client % to.len().max(1);
            to.rotate_left(by);
            to.truncate(most.saturating_sub(up.len()));
        }
        for server in to.into_iter().filter(|s| !up.contains(s)) {
            self.connect(client, server);
        }
    }

    pub(super) fn renewed(&mut self, client: usize, sent_at: u64, result: Result<Reply>) {
        match result {
            Ok(_) => self.clients[client].renewed_at = self.clients[client].renewed_at.max(sent_at),
            Err(error) => self.refused(client, &error),
        }
    }

    /// The job goes on without this process. Its trainer starts again as another one.
    pub(super) fn refused(&mut self, client: usize, error: &Error) {
        if !self.clients[client].alive || !matches!(error.kind, Kind::FailedPrecondition | Kind::NotFound) {
            return;
        }
        let slot = self.clients[client].slot;
        let stale =
            error.message.contains("incarnation") || error.message.contains("another process") || error.message.contains("finished");
        self.seen.push(Seen::Failed(error.to_string()));
        self.kill_client(client);
        if !stale {
            let at = self.now + 500 + self.rng.below(3_000);
            let restore = self.due_restore();
            self.net.at(at, Msg::Spawn { slot, restore });
        }
    }

    pub(super) fn kill_client(&mut self, client: usize) {
        self.clients[client].alive = false;
        for conn in self.clients[client].conns.clone() {
            self.conns[conn].deaf = true;
            if self.conns[conn].up {
                self.close(conn, false);
            }
        }
    }

    pub(super) fn arrived(&mut self, conn: usize, item: Item) {
        let deaf = self.conns[conn].deaf;
        let revoked = deaf && self.bug == Some(Bug::RevocationIgnored);
        let c = &mut self.clients[self.conns[conn].client];
        if c.alive && (!deaf || revoked) {
            c.buffer.push(item);
            self.bug_hits += u32::from(revoked);
        }
    }

    pub(super) fn told_end(&mut self, conn: usize, end: &Granted) {
        let client = self.conns[conn].client;
        if self.conns[conn].deaf || !self.clients[client].alive {
            return;
        }
        self.conns[conn].told = !matches!(end, Granted::EndOfPass(_));
        match end {
            Granted::EndOfJob => self.clients[client].over = true,
            Granted::Drain => {
                // It goes on elsewhere, with what it has of this stream.
                self.close(conn, false);
                self.broken(conn);
            }
            _ => {}
        }
    }

    /// A stream is gone. Where it matters, the consumer says what it received before it goes on.
    pub(super) fn broken(&mut self, conn: usize) {
        let client = self.conns[conn].client;
        if self.conns[conn].deaf || !self.clients[client].alive {
            return;
        }
        self.conns[conn].deaf = true;
        if !self.waits_for_reports()
            || self.clients[client].plain
            || !matches!(self.clients[client].phase, Phase::Running | Phase::Committing)
        {
            return;
        }
        if self.clients[client].phase == Phase::Committing {
            // Looked at again when the commit is answered.
            self.clients[client].rejoin_after = true;
            return;
        }
        self.report(client);
    }

    fn report(&mut self, client: usize) {
        for conn in self.clients[client].conns.clone() {
            self.conns[conn].deaf = true;
            if self.conns[conn].up {
                self.close(conn, false);
            }
        }
        let c = &mut self.clients[client];
        (c.phase, c.rejoin_after) = (Phase::Reporting, false);
        c.reports += 1;
        let held = c.buffer.iter().chain(&c.current).map(|i| (i.pass, i.batch)).chain(c.taken.iter().copied());
        let mut received: Vec<(PassId, Vec<BatchId>)> = Vec::new();
        for (pass, batch) in held {
            match received.iter_mut().find(|(p, _)| *p == pass) {
                Some((_, batches)) => batches.push(BatchId(batch)),
                None => received.push((pass, vec![BatchId(batch)])),
            }
        }
        let event = Event::Report {
            job: self.settings.job.clone(),
            incarnation: c.incarnation,
            consumer: c.name.clone(),
            number: c.reports,
            streams: None,
            received,
        };
        let event = Event::OfSession { session: c.session, event: Box::new(event) };
        self.call(Peer::Report { client }, event);
    }

    pub(super) fn has_reported(&mut self, client: usize, call: Call, result: Result<Reply>) {
        match result {
            Ok(_) if self.clients[client].alive => {
                let c = &mut self.clients[client];
                (c.phase, c.renewed_at) = (Phase::Running, c.renewed_at.max(call.sent_at));
                self.connect_all(client);
            }
            Ok(_) => {}
            Err(error) => self.refused(client, &error),
        }
    }

    /// The trainer wants a batch: the one before is taken.
    pub(super) fn train(&mut self, client: usize) {
        let c = &self.clients[client];
        if !c.alive {
            return;
        }
        let at = c.asleep_until.max(self.now + 20) + self.rng.below(250);
        self.net.at(at, Msg::Step { client });
        let c = &self.clients[client];
        // Some trainers go on while their call waits for the others.
        let goes_on = c.phase == Phase::Committing && c.session.0.is_multiple_of(2);
        if c.asleep_until > self.now || !(c.phase == Phase::Running || goes_on) {
            return;
        }
        self.take_current(client);
        if !goes_on && self.clients[client].wave < self.wave && self.is_at_wave(client) {
            return self.commit(client);
        }
        if !self.lease_is_good(client) {
            return;
        }
        let fixed = self.settings.is_fixed();
        let c = &mut self.clients[client];
        let next = if fixed {
            (0..c.buffer.len()).min_by_key(|i| (c.buffer[*i].pass, c.buffer[*i].padding, c.buffer[*i].batch))
        } else {
            (!c.buffer.is_empty()).then_some(0)
        };
        match next {
            Some(index) => {
                let item = c.buffer.remove(index);
                self.yield_item(client, item);
            }
            None if goes_on => {}
            None => self.may_leave(client),
        }
    }

    fn yield_item(&mut self, client: usize, item: Item) {
        let c = &mut self.clients[client];
        c.current = Some(item);
        c.trained += 1;
        let steps = if c.steps.0 == item.pass { c.steps.1 } else { 0 };
        c.steps = (item.pass, steps + 1);
        let seen =
            Seen::Yield { session: c.session, incarnation: c.incarnation, pass: item.pass, batch: item.batch, padding: item.padding };
        self.seen.push(seen);
        if self.conns[item.conn].up {
            self.conns[item.conn].credits += 1;
            self.pump(item.conn);
        }
    }

    /// An exactly-once loader yields only while its lease is surely good, by its own clock.
    fn lease_is_good(&self, client: usize) -> bool {
        let c = &self.clients[client];
        self.settings.visitation != Visitation::ExactlyOnce || self.now < c.renewed_at + TERM * 3 / 4
    }

    fn take_current(&mut self, client: usize) {
        let c = &mut self.clients[client];
        let Some(item) = c.current.take() else { return };
        if c.plain {
            return;
        }
        c.taken.push((item.pass, item.batch));
        if c.phase == Phase::Committing {
            // After the call: acknowledged after the answer.
            c.late.push((item.pass, item.batch));
            return;
        }
        self.acknowledge(client, item.pass, item.batch);
    }

    fn acknowledge(&mut self, client: usize, pass: PassId, batch: u64) {
        let c = &self.clients[client];
        let event = Event::Acknowledge {
            job: self.settings.job.clone(),
            incarnation: c.incarnation,
            consumer: c.name.clone(),
            pass,
            batches: vec![(BatchId(batch), None)],
        };
        let event = Event::OfSession { session: c.session, event: Box::new(event) };
        self.call(Peer::Ack { client, batches: vec![(pass, batch)] }, event);
    }

    pub(super) fn acked(&mut self, client: usize, sent_at: u64, batches: &[(PassId, u64)], result: Result<Reply>) {
        let c = &mut self.clients[client];
        match result {
            Ok(_) => {
                c.renewed_at = c.renewed_at.max(sent_at);
                for batch in batches {
                    if let Some(index) = c.taken.iter().position(|t| t == batch) {
                        c.taken.remove(index);
                    }
                }
            }
            Err(error) => {
                if error.kind == Kind::BadInput && self.bug.is_none() {
                    self.print_history();
                }
                assert!(error.kind != Kind::BadInput || self.bug.is_some(), "an honest acknowledgement was refused: {error}");
                self.refused(client, &error);
            }
        }
    }

    /// Ranks commit at a step that the trainers agreed on, others now.
    fn is_at_wave(&self, client: usize) -> bool {
        let c = &self.clients[client];
        !self.settings.is_fixed() || c.steps.1 >= self.wave_step || c.over || c.buffer.is_empty()
    }

    fn commit(&mut self, client: usize) {
        let c = &mut self.clients[client];
        c.phase = Phase::Committing;
        c.wave = self.wave;
        c.calls += 1;
        let mut taken = Taken::new();
        for (pass, batch) in &c.taken {
            match taken.iter_mut().find(|(p, _)| p == pass) {
                Some((_, batches)) => batches.push((BatchId(*batch), None)),
                None => taken.push((*pass, vec![(BatchId(*batch), None)])),
            }
        }
        let call = c.calls;
        let event = Event::Commit { job: self.settings.job.clone(), incarnation: c.incarnation, consumer: c.name.clone(), call, taken };
        let event = Event::OfSession { session: c.session, event: Box::new(event) };
        self.seen.push(Seen::Called { session: c.session, trained: c.trained });
        self.call(Peer::Commit { client, call }, event);
    }

    pub(super) fn committed(&mut self, client: usize, call: Call, number: u64, result: Result<Reply>) {
        let session = self.clients[client].session;
        if !self.clients[client].alive {
            return;
        }
        match result {
            Ok(Reply::Wait) => return self.again(call, 100),
            Ok(Reply::Committed(token)) => {
                self.seen.push(Seen::Token { session, call: number, token });
                self.tokens.push(token);
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) if error.message.contains("can't be committed") || error.message.contains("not kept") => {
                self.seen.push(Seen::Refused { session, call: number });
            }
            Err(error) => return self.refused(client, &error),
        }
        // It goes on training before the next one.
        let wave = self.wave;
        let c = &mut self.clients[client];
        (c.phase, c.renewed_at, c.wave) = (Phase::Running, c.renewed_at.max(call.sent_at), wave);
        let again = c.rejoin_after;
        for (pass, batch) in std::mem::take(&mut c.late) {
            self.acknowledge(client, pass, batch);
        }
        if again {
            self.report(client);
        }
    }

    /// Told that the job is over, and everything taken is durable.
    fn may_leave(&mut self, client: usize) {
        let c = &self.clients[client];
        let quiet = c.conns.iter().all(|i| !self.conns[*i].up || self.conns[*i].told);
        if !c.over || !quiet || !c.taken.is_empty() || c.current.is_some() {
            return;
        }
        for conn in c.conns.clone() {
            self.conns[conn].deaf = true;
            self.conns[conn].closing = true;
            self.close_cleanly(conn);
        }
        let c = &mut self.clients[client];
        if c.conns.iter().any(|i| self.conns[*i].up) {
            return;
        }
        c.phase = Phase::Leaving;
        let event = Event::LeaveJob { job: self.settings.job.clone(), consumer: c.name.clone() };
        let event = Event::OfSession { session: c.session, event: Box::new(event) };
        // Behind the closing of its streams.
        let call = Call { id: 0, peer: Peer::Leave { client }, event, sent_at: self.now, attempt: 0 };
        self.again(call, 4_000);
    }
}
