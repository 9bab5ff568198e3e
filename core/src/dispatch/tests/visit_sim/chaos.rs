//! Faults, until there are no more.

use super::super::super::*;
use super::super::world::TERM;
use super::net::{Msg, Restoring};
use super::{CHAOS_MS, Sim};
use crate::job::RankLost;

impl Sim {
    pub(super) fn chaos(&mut self) {
        if self.now >= CHAOS_MS {
            return self.calm_down();
        }
        let next = self.now + 300 + self.rng.below(2_500);
        self.net.at(next, Msg::Chaos);
        match self.rng.below(22) {
            0..=5 => self.next_wave(),
            6 => self.leader_crash(),
            7 => self.leader_sleeps(),
            8 | 9 => self.server_crash(),
            10 => self.server_sleeps(),
            11 => self.drain(),
            12 | 13 => self.client_crash(false),
            14 => self.client_sleeps(),
            15 | 16 => self.stream_breaks(),
            17 => {
                self.wall_jump += i64::try_from(self.rng.below(7_200_000)).unwrap() - 3_600_000;
            }
            18 if self.restores < 3 => self.restore(),
            _ => {}
        }
    }

    fn calm_down(&mut self) {
        self.calm = true;
        if !self.leaders.iter().any(|l| l.alive) {
            self.net.at(self.now + 1, Msg::Lead);
        }
        if !self.servers.iter().any(|s| s.alive && !s.leaving) {
            self.start_server();
        }
        for slot in 0..self.settings.world_size.unwrap_or(2) {
            if !self.clients.iter().any(|c| c.alive && c.slot == slot) {
                let at = self.now + self.rng.below(5_000);
                let restore = self.due_restore();
                self.net.at(at, Msg::Spawn { slot, restore });
            }
        }
        // Whoever waits for a commit waits for those who came after it.
        self.next_wave();
        self.net.at(self.now + 5_000, Msg::Chaos);
        self.check_fold();
    }

    /// A trainer that starts again goes on from the checkpoint that it was given last.
    pub(super) fn due_restore(&self) -> Option<Restoring> {
        self.last_restore.clone()
    }

    /// An older restore that came late has overtaken the newest one: whoever starts the trainers begins it anew.
    pub(super) fn restore_again(&mut self, event: &Event) {
        let Event::OfSession { event, .. } = event else { return };
        let Event::Restore { attempt, .. } = event.as_ref() else { return };
        let Some(last) = self.last_restore.as_mut().filter(|r| r.attempt == *attempt) else { return };
        last.attempt = Some(format!("{} again", last.attempt.clone().unwrap_or_default()));
        let last = last.clone();
        for slot in 0..self.settings.world_size.unwrap_or(3) {
            let at = self.now + self.rng.below(4_000);
            self.net.at(at, Msg::Spawn { slot, restore: Some(last.clone()) });
        }
    }

    /// The trainers are asked to commit.
    fn next_wave(&mut self) {
        self.wave += 1;
        let most = self.clients.iter().filter(|c| c.alive).map(|c| c.steps.1).max().unwrap_or(0);
        self.wave_step = most + self.rng.below(3);
    }

    fn leader_crash(&mut self) {
        self.check_fold();
        if let Some(index) = self.leaders.iter().rposition(|l| l.alive) {
            self.fault("the leader died");
            self.leader_dies(index);
        }
    }

    /// A leader that sleeps is replaced, and wakes up believing that it leads.
    fn leader_sleeps(&mut self) {
        let Some(index) = self.leaders.iter().rposition(|l| l.alive) else { return };
        self.fault("the leader slept");
        let wakes = self.now + 1_000 + self.rng.below(2 * TERM);
        self.leaders[index].asleep_until = wakes;
        if wakes > self.now + 6_000 {
            self.net.at(self.now + 6_500, Msg::Lead);
        }
    }

    fn a_server(&mut self) -> Option<usize> {
        let alive: Vec<usize> = (0..self.servers.len()).filter(|i| self.servers[*i].alive).collect();
        (!alive.is_empty()).then(|| alive[usize::try_from(self.rng.below(alive.len() as u64)).unwrap()])
    }

    fn server_crash(&mut self) {
        let Some(index) = self.a_server() else { return };
        self.fault("a worker died");
        self.kill_server(index);
        self.start_server();
    }

    fn server_sleeps(&mut self) {
        let Some(index) = self.a_server() else { return };
        self.fault("a worker slept");
        self.servers[index].asleep_until = self.now + 1_000 + self.rng.below(2 * TERM);
    }

    fn drain(&mut self) {
        let Some(index) = self.a_server().filter(|i| !self.servers[*i].leaving) else { return };
        if self.servers.iter().filter(|s| s.alive && !s.leaving).count() < 2 {
            self.start_server();
        }
        self.servers[index].leaving = true;
        let worker = self.servers[index].name.clone();
        self.call(super::net::Peer::Beat, Event::DrainWorker { worker });
        // A worker that leaves waits for its streams, and then goes.
        self.net.at(self.now + TERM, Msg::Gone { server: index });
    }

    fn a_client(&mut self) -> Option<usize> {
        let alive: Vec<usize> = (0..self.clients.len()).filter(|i| self.clients[*i].alive).collect();
        (!alive.is_empty()).then(|| alive[usize::try_from(self.rng.below(alive.len() as u64)).unwrap()])
    }

    pub(super) fn client_crash(&mut self, long: bool) {
        let Some(index) = self.a_client() else { return };
        self.fault("a consumer died");
        let (slot, restore) = (self.clients[index].slot, self.due_restore());
        self.kill_client(index);
        let mut at = self.now + 500 + self.rng.below(2 * TERM);
        if long || (self.settings.rank_lost != RankLost::Wait && self.chance(50)) {
            // For longer than its lease and `rank_timeout` together.
            at += 3 * TERM;
        }
        self.net.at(at, Msg::Spawn { slot, restore });
    }

    fn client_sleeps(&mut self) {
        let Some(index) = self.a_client() else { return };
        self.fault("a consumer slept");
        self.clients[index].asleep_until = self.now + 1_000 + self.rng.below(2 * TERM);
    }

    fn stream_breaks(&mut self) {
        let up: Vec<usize> = (0..self.conns.len()).filter(|i| self.conns[*i].up && self.conns[*i].stream.is_some()).collect();
        if !up.is_empty() {
            self.fault("a stream broke");
            let index = up[usize::try_from(self.rng.below(up.len() as u64)).unwrap()];
            self.break_conn(index);
        }
    }

    /// All trainers are started again from a checkpoint, perhaps at another world size; some of the old processes do not know it.
    fn restore(&mut self) {
        let Some(newest) = self.tokens.last().copied() else { return };
        self.fault("a restore");
        self.restores += 1;
        let older = usize::try_from(self.rng.below(self.tokens.len() as u64)).unwrap();
        let token = if self.chance(70) { newest } else { self.tokens[older] };
        let attempt = Some(format!("restore {}", self.restores));
        self.last_restore = Some(Restoring { token, attempt: attempt.clone() });
        for index in 0..self.clients.len() {
            if self.clients[index].alive && self.chance(75) {
                self.kill_client(index);
            }
        }
        if self.settings.is_ranked() {
            self.settings.world_size = Some(1 + u32::try_from(self.rng.below(4)).unwrap());
        }
        let slots = self.settings.world_size.unwrap_or(3);
        for slot in 0..slots {
            let at = self.now + self.rng.below(4_000);
            self.net.at(at, Msg::Spawn { slot, restore: Some(Restoring { token, attempt: attempt.clone() }) });
        }
    }
}
