//! Workers: they take a task, write its file, report it.

use super::super::world::shards;
use super::*;

#[derive(Debug)]
pub(super) struct Worker {
    pub name: WorkerName,
    pub alive: bool,
    pub asleep_until: u64,
    pub asking: bool,
    lease: Option<TaskLease>,
    wrote: bool,
    reporting: bool,
}

impl Sim {
    pub(super) fn start_worker(&mut self) {
        let name = WorkerName(format!("w{}", self.workers.len()));
        self.workers.push(Worker { name, alive: true, asleep_until: 0, asking: false, lease: None, wrote: false, reporting: false });
        let worker = self.workers.len() - 1;
        self.at(self.now + 1, Msg::Step { worker });
        self.at(self.now + 1, Msg::Beat { worker });
    }

    pub(super) fn beat(&mut self, index: usize) {
        let worker = &self.workers[index];
        if !worker.alive {
            return;
        }
        if worker.asleep_until <= self.now {
            let (name, lease) = (worker.name.clone(), worker.lease.clone());
            if let Some(lease) = lease.clone() {
                self.call(Peer::Progress(index), Event::Progress { lease, rows: 1, bytes: 1 }, None);
            }
            self.call(Peer::Beat, Event::WorkerBeat { worker: name.clone() }, Some((name, lease)));
        }
        self.at(self.now + 4_000, Msg::Beat { worker: index });
    }

    /// The next thing it does, if it is awake.
    pub(super) fn step(&mut self, index: usize) {
        let worker = &self.workers[index];
        if !worker.alive {
            return;
        }
        if worker.asleep_until > self.now {
            let at = worker.asleep_until + 1;
            return self.at(at, Msg::Step { worker: index });
        }
        match worker.lease.clone() {
            None if !worker.asking => {
                self.workers[index].asking = true;
                let worker = self.workers[index].name.clone();
                self.call(Peer::Task(index), Event::NextTask { worker }, None);
            }
            Some(lease) if !worker.wrote => self.write(index, lease),
            Some(lease) if !worker.reporting => {
                self.workers[index].reporting = true;
                let shards = shards(&lease, self.rows(lease.epoch, lease.task));
                self.call(Peer::Report(index), Event::TaskStaged { lease, shards, quarantined: Quarantined::default() }, None);
            }
            _ => {}
        }
    }

    fn write(&mut self, index: usize, lease: TaskLease) {
        if self.fails(6, "a task failed") {
            self.workers[index].reporting = true;
            return self.call(Peer::Report(index), Event::TaskFailed { lease, error: Error::internal("the network") }, None);
        }
        let rows = self.rows(lease.epoch, lease.task);
        let early = self.bug == Some(Bug::ReportsBeforeItWrote) && !self.calm && self.chance(30);
        for shard in shards(&lease, rows) {
            if early {
                continue;
            }
            let by = (lease.worker.clone(), lease.epoch, lease.task, lease.attempt);
            let was = self.store.files.insert(shard.path.clone(), (by.clone(), rows));
            if let Some((other, _)) = was.filter(|(other, _)| *other != by) {
                self.store.broken.push(format!("{} was written by {other:?} and by {by:?}", shard.path));
            }
        }
        self.workers[index].wrote = true;
        // Here it may die or sleep: the file is there, and nobody knows of it.
        self.after(1, 300, Msg::Step { worker: index });
    }

    pub(super) fn got_task(&mut self, index: usize, result: Result<Reply>) {
        let worker = &mut self.workers[index];
        worker.asking = false;
        if !worker.alive {
            return;
        }
        if let Ok(Reply::Task(lease)) = result {
            (worker.lease, worker.wrote, worker.reporting) = (Some(*lease), false, false);
            let straggles = self.fails(5, "a straggler");
            let spread = if straggles { 3 * TERM } else { 4_000 };
            return self.after(100, spread, Msg::Step { worker: index });
        }
        self.after(200, 600, Msg::Step { worker: index });
    }

    pub(super) fn reported(&mut self, index: usize) {
        self.workers[index].lease = None;
        self.workers[index].reporting = false;
        self.at(self.now + 1, Msg::Step { worker: index });
    }

    /// What nobody wants any more is given up.
    pub(super) fn wanted(&mut self, index: usize, event: &Event, result: Result<Reply>) {
        let Event::Progress { lease, .. } = event else { return };
        let worker = &mut self.workers[index];
        if matches!(result, Ok(Reply::Wanted(false))) && !worker.reporting && worker.lease.as_ref() == Some(lease) {
            worker.lease = None;
            self.at(self.now + 1, Msg::Step { worker: index });
        }
    }
}
