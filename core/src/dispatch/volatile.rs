//! What is not journaled: who was seen when, progress, and what this process is doing right now. A new leader starts without it and gives
//! every lease a full term.

use std::collections::{BTreeMap, BTreeSet};

use super::apply_jobs::WindowParts;
use super::state::State;
use crate::ids::{Attempt, ConsumerName, DatasetName, EpochId, JobName, PassId, TaskId, WorkerName};

/// Ranks connect to all workers that hold open windows: few of them keep connections few.
const MAP_WORKERS: usize = 4;
/// Visits that make a ledger file worth writing; fewer wait for some seconds, the end of their pass or of their job.
const LEDGER_BATCHES: u64 = 4_096;

/// How long work waits at most that somebody else is going to make possible.
const POSTPONED_MS: u64 = 5_000;

/// The two clocks of one moment.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Now {
    /// Milliseconds since the Unix epoch: shown to people, never compared.
    pub wall_ms: i64,
    /// Milliseconds of a clock that only goes forward: what leases are measured by.
    pub mono_ms: u64,
}

/// Something the shell does at most once at a time.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord)]
pub enum Work {
    Prepare(DatasetName),
    Commit(DatasetName),
    Shape(JobName),
    Ledger(JobName),
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Life {
    /// In this process.
    Attached,
    /// Its lease ends then, on the monotonic clock.
    Until(u64),
}

#[derive(Debug, Clone, Copy)]
pub(super) struct Worker {
    pub life: Life,
}

pub(super) type TaskKey = (DatasetName, EpochId, TaskId, Attempt);

/// Timers, progress and work in flight. All deadlines are on the monotonic clock.
#[derive(Debug, Clone, Default)]
pub struct Volatile {
    /// Length of every lease.
    pub term_ms: u64,
    /// A change of leader: nothing is due before its `Lead` event.
    pub(super) leading: bool,
    pub(super) workers: BTreeMap<WorkerName, Worker>,
    /// Of those, the ones that get nothing new.
    pub(super) draining: BTreeSet<WorkerName>,
    /// When a consumer's lease ends unless a stream of it is open.
    pub(super) consumers: BTreeMap<JobName, BTreeMap<ConsumerName, u64>>,
    /// Since when a job has no consumer.
    pub(super) idle_since: BTreeMap<JobName, u64>,
    /// (rows, bytes) of running attempts.
    pub(super) progress: BTreeMap<TaskKey, (u64, u64)>,
    pub(super) in_flight: BTreeSet<Work>,
    /// Failed work is not tried again before this.
    pub(super) retry_at: BTreeMap<Work, (u64, u32)>,
    /// Jobs whose next pass somebody waits for.
    pub(super) wants_pass: BTreeSet<JobName>,
    /// Of those, the ones that wait for an epoch to be published.
    pub(super) waiting_for_epoch: BTreeSet<JobName>,
    /// Jobs whose visits go to the ledger now, however few or recently lost.
    pub(super) flush_now: BTreeSet<JobName>,
    /// Until when the pass that a job has begun keeps a batch for each consumer that got none of it.
    pub(super) reserved_until: BTreeMap<JobName, u64>,
    /// Lost batches of a job stay open to late reports until then.
    pub(super) late_until: BTreeMap<JobName, u64>,
    /// Since when a rank of a job in rounds has been away.
    pub(super) away_since: BTreeMap<(JobName, u32), u64>,
    /// Workers that the open windows of a fixed map may be leased to; 0 is the default of 4.
    pub map_workers: usize,
    /// Parts of open windows that the ledger file which is being written holds.
    pub(super) folding: BTreeMap<JobName, Vec<(PassId, Vec<WindowParts>)>>,
    /// Visits that make a ledger file worth writing; 0 is the default of 4096.
    pub ledger_batches: u64,
    /// Since when a job has had closed windows that are not in the ledger.
    pub(super) unwritten_since: BTreeMap<JobName, u64>,
    pub(super) dirty_jobs: BTreeSet<JobName>,
    pub(super) dirty_datasets: BTreeSet<DatasetName>,
    /// The next moment at which a timer may be due.
    pub(super) next_timer: u64,
}

impl Volatile {
    pub fn new(term_ms: u64) -> Self {
        Self { term_ms, ..Self::default() }
    }

    /// Gives everything that the state says is alive a full term, and makes everything due for a look.
    pub(super) fn recover(&mut self, state: &State, now: Now) {
        let end = now.mono_ms + self.term_ms;
        for dataset in state.datasets.values() {
            let tasks = dataset.run.iter().flat_map(|r| r.epochs.values()).flat_map(|e| &e.tasks);
            for (_, worker) in tasks.flat_map(|t| &t.holders) {
                self.workers.entry(worker.clone()).or_insert(Worker { life: Life::Until(end) });
            }
        }
        for (name, job) in &state.jobs {
            let leased = job.streams.leases().map(|(worker, _)| worker);
            for worker in leased.chain(job.streams.values().filter(|s| s.open).map(|s| &s.worker)) {
                self.workers.entry(worker.clone()).or_insert(Worker { life: Life::Until(end) });
            }
            self.consumers.insert(name.clone(), job.consumers.keys().map(|consumer| (consumer.clone(), end)).collect());
            self.late_until.insert(name.clone(), end + self.term_ms);
        }
        self.dirty_jobs = state.jobs.keys().cloned().collect();
        self.dirty_datasets = state.datasets.keys().cloned().collect();
        self.next_timer = 0;
        self.leading = true;
    }

    pub(super) fn map_workers(&self) -> usize {
        if self.map_workers == 0 { MAP_WORKERS } else { self.map_workers }
    }

    pub(super) fn ledger_batches(&self) -> u64 {
        if self.ledger_batches == 0 { LEDGER_BATCHES } else { self.ledger_batches }
    }

    pub(super) fn touch_job(&mut self, job: &JobName) {
        if !self.dirty_jobs.contains(job) {
            self.dirty_jobs.insert(job.clone());
        }
    }

    pub(super) fn touch_dataset(&mut self, dataset: &DatasetName) {
        if !self.dirty_datasets.contains(dataset) {
            self.dirty_datasets.insert(dataset.clone());
        }
    }

    /// Any word from a worker renews its lease.
    pub(super) fn worker_seen(&mut self, name: &WorkerName, now: Now) {
        let end = now.mono_ms + self.term_ms;
        match self.workers.get_mut(name) {
            Some(worker) => {
                if let Life::Until(until) = &mut worker.life {
                    *until = end;
                }
            }
            None => {
                self.workers.insert(name.clone(), Worker { life: Life::Until(end) });
            }
        }
    }

    /// Nothing more will happen in this incarnation of the job.
    pub(super) fn forget_job(&mut self, job: &JobName) {
        for memory in [&mut self.wants_pass, &mut self.waiting_for_epoch, &mut self.flush_now] {
            memory.remove(job);
        }
        for memory in [&mut self.idle_since, &mut self.late_until, &mut self.unwritten_since, &mut self.reserved_until] {
            memory.remove(job);
        }
        self.consumers.remove(job);
        self.folding.remove(job);
        self.away_since.retain(|(of, _), _| of != job);
        self.retry_at.remove(&Work::Shape(job.clone()));
    }

    pub(super) fn is_draining(&self, name: &WorkerName) -> bool {
        self.draining.contains(name)
    }

    pub(super) fn consumer_seen(&mut self, job: &JobName, consumer: &ConsumerName, now: Now) {
        let end = now.mono_ms + self.term_ms;
        match self.consumers.get_mut(job) {
            Some(consumers) => match consumers.get_mut(consumer) {
                Some(until) => *until = end,
                None => drop(consumers.insert(consumer.clone(), end)),
            },
            None => drop(self.consumers.insert(job.clone(), BTreeMap::from([(consumer.clone(), end)]))),
        }
    }

    pub(super) fn forget_consumer(&mut self, job: &JobName, consumer: &ConsumerName) {
        if let Some(consumers) = self.consumers.get_mut(job) {
            consumers.remove(consumer);
        }
    }

    /// Work is running, or failed and its time has not come.
    pub(super) fn is_busy(&self, work: &Work, now: Now) -> bool {
        self.in_flight.contains(work) || self.retry_at.get(work).is_some_and(|(at, _)| now.mono_ms < *at)
    }

    /// Marks work as running; false when it is busy.
    pub(super) fn begin(&mut self, work: Work, now: Now) -> bool {
        if self.is_busy(&work, now) {
            return false;
        }
        self.in_flight.insert(work);
        true
    }

    pub(super) fn succeeded(&mut self, work: &Work) {
        self.in_flight.remove(work);
        self.retry_at.remove(work);
    }

    /// Work did not fail, and has to be done again: when somebody says that it may, or after some seconds.
    pub(super) fn postponed(&mut self, work: Work, now: Now) {
        self.in_flight.remove(&work);
        self.retry_at.insert(work, (now.mono_ms + POSTPONED_MS, 0));
    }

    /// Work is tried again after 50 ms, doubling up to 5 s.
    pub(super) fn failed(&mut self, work: Work, now: Now) -> u32 {
        self.in_flight.remove(&work);
        let tries = self.retry_at.get(&work).map_or(0, |(_, n)| *n) + 1;
        let delay = (50u64 << tries.min(7)).min(5_000);
        self.retry_at.insert(work, (now.mono_ms + delay, tries));
        self.next_timer = self.next_timer.min(now.mono_ms + delay);
        tries
    }
}
