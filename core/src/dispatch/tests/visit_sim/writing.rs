//! The run that writes the epochs of a job in staged order: its tasks are staged in any order, while everything else goes wrong, and each epoch is
//! published by a commit whose answer may be lost.

use std::collections::BTreeMap;

use super::super::super::*;
use super::super::world::{dataset, request, run_spec, shape, shards, worker};
use super::Sim;
use super::net::Msg;
use crate::error::{Error, Result};
use crate::ids::*;
use crate::job::{Assignment, Order, Steps};

/// What is being written, and the store that it is published in.
#[derive(Debug, Default)]
pub(super) struct Writing {
    /// Rows of each task, by epoch.
    rows: Vec<Vec<u64>>,
    leases: Vec<TaskLease>,
    store: BTreeMap<VersionId, EpochId>,
    /// When somebody stops the run.
    stopped_at: Option<u64>,
}

impl Sim {
    /// The same simulation, of a job that follows the epochs while they are written.
    pub(super) fn staged(seed: u64) -> Self {
        let mut sim = Self::prepared(seed, None);
        let settings = &mut sim.settings;
        settings.order = Order::Staged;
        if settings.assignment == Assignment::Dynamic {
            (settings.steps, settings.world_size) = (Steps::Any, None);
        }
        // The tasks of these tests have 16 bytes a row.
        settings.window = sim.per_window * settings.batch_size * 16;
        let tasks = 1 + usize::try_from(sim.rng.below(8)).unwrap();
        let epochs = sim.settings_passes();
        let rows = (0..epochs).map(|_| sim.parts(tasks)).collect();
        let stopped_at = seed.is_multiple_of(7).then(|| 1_000 + sim.rng.below(40_000));
        sim.writing = Some(Writing { rows, stopped_at, ..Writing::default() });
        sim.write();
        sim.populate();
        sim
    }

    /// Cuts the rows of an epoch into so many tasks; some have none.
    fn parts(&mut self, tasks: usize) -> Vec<u64> {
        let mut cuts: Vec<u64> = (1..tasks).map(|_| self.rng.below(self.rows + 1)).collect();
        cuts.extend([0, self.rows]);
        cuts.sort_unstable();
        cuts.windows(2).map(|cut| cut[1] - cut[0]).collect()
    }

    /// What the Delta log says of the dataset.
    pub(super) fn stored(&self) -> Option<Box<StoredDataset>> {
        let Some(writing) = &self.writing else { return super::super::world::stored("f", 0, 1) };
        let newest = writing.store.keys().next_back()?;
        let mut stored = super::super::world::stored("f", newest.0, 0)?;
        stored.epochs = writing.store.values().copied().collect();
        stored.epochs.sort_unstable();
        Some(stored)
    }

    /// What a plan of the pass would say now.
    pub(super) fn shape_of(&self, pass: PassId, epochs: &[EpochId]) -> PassAnswer {
        let of = |epoch: u32| shape(self.rows, self.per_window, self.settings.batch_size, epoch);
        let Some(writing) = &self.writing else { return PassAnswer::Shape(of(0)) };
        let epoch = epochs[pass.0 as usize % epochs.len()];
        match writing.store.iter().find(|(_, e)| **e == epoch) {
            Some((version, _)) => PassAnswer::Shape(PassShape { version: Some(*version), ..of(epoch.0) }),
            None => PassAnswer::NotYet,
        }
    }

    /// The next task is taken or staged, if there is a leader that hears of it.
    pub(super) fn write(&mut self) {
        let next = self.now + 100 + self.rng.below(if self.calm { 500 } else { 3_000 });
        let awake = |l: &super::leader::Leader| l.alive && l.asleep_until <= self.now && l.fence == self.journal.fence;
        let Some(index) = self.leaders.iter().rposition(awake) else { return self.net.at(next, Msg::Write) };
        let run = self.leaders[index].state.datasets.get(&dataset("digits")).and_then(|d| d.run.as_ref());
        let Some(run) = run else {
            // Whoever started it hears nothing, and starts it again.
            let Some(Writing { rows, .. }) = &self.writing else { return };
            let spec = run_spec("digits", "f", rows[0].len());
            let request = Box::new(request(spec, 0..u32::try_from(rows.len()).unwrap()));
            let _ = self.decide(index, Event::StartRun { request, stored: None, certain: true });
            return self.net.at(next, Msg::Write);
        };
        if !run.is_running() {
            return;
        }
        let left = run.epochs.values().any(|e| e.pending_task().is_some());
        let Some(writing) = &mut self.writing else { return };
        self.net.at(next, Msg::Write);
        if writing.stopped_at.is_some_and(|at| at <= self.now) {
            writing.stopped_at = None;
            self.fault("the run was stopped");
            let _ = self.decide(index, Event::CancelRun { dataset: dataset("digits") });
        } else if left && (writing.leases.is_empty() || (writing.leases.len() < 4 && self.rng.below(2) == 0)) {
            if let Some(Ok(Reply::Task(lease))) = self.decide(index, Event::NextTask { worker: worker("writer") })
                && let Some(writing) = &mut self.writing
            {
                writing.leases.push(*lease);
            }
        } else if !writing.leases.is_empty() {
            let at = usize::try_from(self.rng.below(writing.leases.len() as u64)).unwrap();
            let lease = writing.leases[at].clone();
            let rows = writing.rows[lease.epoch.0 as usize][lease.task.0 as usize];
            let staged = Event::TaskStaged { shards: shards(&lease, rows), lease, quarantined: Quarantined::default() };
            // Whoever hears nothing says it again.
            if self.decide(index, staged).is_some()
                && let Some(writing) = &mut self.writing
            {
                writing.leases.remove(at);
            }
        }
        if self.leaders[index].alive {
            self.settle(index);
        }
    }

    /// Makes or lands a commit; one that failed may have landed.
    pub(super) fn commit_of(&mut self, action: Action, fails: bool) -> Option<Event> {
        let landed = !fails || self.chance(50);
        let writing = self.writing.as_mut()?;
        let down = || Error::internal("the store is down");
        match action {
            Action::PrepareCommit(request) => {
                let version = VersionId(writing.store.len() as u64);
                let body = if fails { Err(down()) } else { Ok((version, "body".to_owned())) };
                Some(Event::CommitPrepared { dataset: dataset("digits"), run: request.run, epoch: request.epoch, body })
            }
            Action::Commit { dataset, run, epoch, version, .. } => {
                if landed {
                    writing.store.entry(version).or_insert(epoch);
                }
                let ours = writing.store.get(&version) == Some(&epoch);
                let outcome: Result<CommitOutcome> =
                    if fails { Err(down()) } else { Ok(if ours { CommitOutcome::Ours } else { CommitOutcome::Foreign }) };
                Some(Event::CommitDone { dataset, run, epoch, version, outcome })
            }
            _ => None,
        }
    }

    /// Whether the run ended without its epochs.
    pub(super) fn is_given_up(&self) -> bool {
        let over = |entry: &Vec<u8>| matches!(Entry::decode(entry).unwrap().change, Change::RunCancelled { .. } | Change::RunFailed { .. });
        self.writing.is_some() && self.journal.entries.iter().any(over)
    }
}
