//! What the dispatcher knows and decides: a fold of journal entries and a pure function from events to new entries.
//!
//! | word | meaning |
//! |---|---|
//! | event | something asked or reported: a request, a finished task, a clock tick |
//! | entry | one durable fact in the journal; [`apply`] folds it into the [`State`] |
//! | state | the fold of all entries; what is open, never the history |
//! | volatile | what a new leader may forget: who was seen when, progress, what this process is doing right now |
//! | action | what the shell has to do once a decision's entries are durable |
//! | run | the materialization of some epochs of one pipeline; at most one per dataset |
//! | task, attempt | one source chunk of one epoch; how often it was handed out. Attempts of a dataset never repeat, over all its runs |
//! | publishing | the exact body and version of a Delta commit, journaled before it is tried |
//! | job, pass, window, batch | as in the plan; a window is leased to a worker, batches are granted to a consumer's stream |
//! | stream | one connection of a consumer to a worker; grants belong to a stream |
//! | visit | what happened to a batch: pending, granted, sent, acknowledged, lost or dropped |
//! | closed | a window whose visits are all final; it moves to the ledger, and the entry that forgets it names the file |
//!
//! The rule that keeps this correct: the shell appends a decision's entries to the journal before it acts on, or answers with, anything of that
//! decision. Owns: the rules of materialization and visits. Must not know: the journal's or ledger's format, clocks, tasks, sockets.

mod apply;
mod apply_commits;
mod apply_jobs;
mod apply_visits;
mod commit_state;
mod consumers;
mod decide;
mod decide_commits;
mod decide_equal;
mod decide_fixed;
mod decide_jobs;
mod decide_materialize;
mod decide_visits;
mod digests;
mod entry;
mod event;
mod growth;
mod invariants;
mod job_state;
mod map;
mod pass;
mod pass_growth;
mod pass_state;
mod ranges;
mod reconcile;
mod report;
mod run_state;
mod spans;
mod state;
mod streams;
mod volatile;

pub use apply::apply;
pub use commit_state::{CommitRecord, CommittedPass, Restored, Token};
pub use consumers::Consumers;
pub use decide::decide;
pub use decide_materialize::{INPUT_PART, refuse_changed};
pub use digests::Digests;
pub use entry::{Change, ENTRY_VERSION, Entry, JobEnd, entries_per_state};
pub use event::{
    Action, CommitOutcome, CommitRequest, Decision, Event, Grant, Granted, OpenedJob, PassAnswer, Reply, RunProgress, RunRequest, RunState,
    RunStatus, StoredDataset, Taken, TaskLease,
};
pub use growth::{Growth, StagedShards, staged_shards};
pub use invariants::{Violation, check, check_step};
pub use job_state::{Consumer, Job, JobPhase, Stream};
pub use map::{Map, Segment};
pub use pass_state::{Counts, Pad, Pass, PassShape, RankShare, Window};
pub use ranges::Ranges;
pub use report::{
    ConsumerRow, JobInfo, TaskRow, VisitRow, job_info, job_workers, jobs, run_status, system_consumers, system_tasks, system_visits,
    system_workers,
};
pub use run_state::{Dataset, EarlierEpoch, EpochPhase, EpochRun, Quarantined, Run, RunPhase, RunSpec, Staged, Task, TaskFailure};
pub use spans::{Mark, Reason, Span, VisitState};
pub use state::{RunId, State, StreamId};
pub use streams::Streams;
pub use volatile::{Now, Volatile, Work};

#[cfg(test)]
mod tests;
