//! Faults, until there are no more.

use super::*;

impl Sim {
    pub(super) fn chaos(&mut self) {
        if self.now >= CHAOS_MS {
            self.calm = true;
            if !self.leaders.iter().any(|l| l.alive) {
                self.at(self.now + 1, Msg::Lead);
            }
            if !self.workers.iter().any(|w| w.alive) {
                self.start_worker();
            }
            return self.check_fold();
        }
        self.after(200, 1_800, Msg::Chaos);
        match self.rng.below(20) {
            0 => self.leader_crash(),
            1 => self.leader_sleeps(),
            2 | 3 => self.worker_crash(),
            4 | 5 => self.worker_sleeps(),
            6 => {
                // Another program commits to the table.
                let next = self.store.log.keys().last().map_or(0, |v| v + 1);
                self.store.log.insert(next, format!("somebody's {next}"));
                self.fault("another writer's commit");
            }
            7 => self.cancel(),
            8 => self.start_worker(),
            _ => {}
        }
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
            self.at(self.now + 6_500, Msg::Lead);
        }
    }

    fn a_worker(&mut self) -> Option<usize> {
        let alive: Vec<usize> = (0..self.workers.len()).filter(|i| self.workers[*i].alive).collect();
        (!alive.is_empty()).then(|| alive[usize::try_from(self.rng.below(alive.len() as u64)).unwrap()])
    }

    fn worker_crash(&mut self) {
        let Some(index) = self.a_worker() else { return };
        self.fault("a worker died");
        self.workers[index].alive = false;
        self.start_worker();
    }

    fn worker_sleeps(&mut self) {
        let Some(index) = self.a_worker() else { return };
        self.fault("a worker slept");
        self.workers[index].asleep_until = self.now + 1_000 + self.rng.below(2 * TERM);
    }

    /// Somebody stops the run; whoever wants it starts it again.
    fn cancel(&mut self) {
        if self.chance(30) {
            self.fault("the run was stopped");
            self.call(Peer::Beat, Event::CancelRun { dataset: dataset("digits") }, None);
        }
    }
}
