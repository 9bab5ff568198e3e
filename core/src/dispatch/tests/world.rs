//! A dispatcher without a shell: events in, entries logged, state folded, every invariant checked after every entry.

use std::collections::BTreeMap;

use super::super::*;
use crate::error::Result;
use crate::ids::*;
use crate::job::{ConsumerSettings, End, JobSettings, Passes};
use crate::pipeline::*;
use crate::shard::{RowGroupMeta, ShardMeta};

pub(super) const TERM: u64 = 20_000;

pub(super) fn dataset(name: &str) -> DatasetName {
    DatasetName::parse(name).unwrap()
}

pub(super) fn job(name: &str) -> JobName {
    JobName::parse(name).unwrap()
}

pub(super) fn consumer(name: &str) -> ConsumerName {
    ConsumerName(name.to_owned())
}

pub(super) fn worker(name: &str) -> WorkerName {
    WorkerName(name.to_owned())
}

pub(super) fn pipeline(name: &str, query: &str, on_error: OnError) -> PipelineSpec {
    PipelineSpec {
        name: dataset(name),
        description: String::new(),
        source: SourceSpec { uri: vec!["data/*.csv".into()], format: SourceFormat::Csv, options: BTreeMap::new(), sql: None },
        steps: vec![StepSpec { name: "pick".into(), kind: StepKind::Sql { query: query.into() } }],
        epochs: EpochsSpec { count: 3, seed: 42, shuffle: Shuffle::Window },
        output: OutputSpec { cut: 1, shard_size: 1 << 27, row_group_size: 8 << 20, compression: Compression::Zstd(1), on_error },
        index: IndexSpec::default(),
        split: None,
    }
}

pub(super) fn run_spec(name: &str, fingerprint: &str, tasks: usize) -> RunSpec {
    RunSpec {
        dataset: dataset(name),
        fingerprint: fingerprint.into(),
        pipeline: pipeline(name, &format!("SELECT '{fingerprint}' AS x FROM input"), OnError::Fail),
        code: BTreeMap::new(),
        snapshot: "snapshot-0".into(),
        task_bytes: vec![100; tasks],
        parts: BTreeMap::from([("source".to_owned(), "1".to_owned())]),
    }
}

pub(super) fn request(spec: RunSpec, epochs: std::ops::Range<u32>) -> RunRequest {
    RunRequest { spec, epochs: epochs.map(EpochId).collect(), resume: false, replace: false }
}

pub(super) fn shards(lease: &TaskLease, rows: u64) -> Vec<ShardMeta> {
    if rows == 0 {
        return Vec::new();
    }
    vec![ShardMeta {
        path: format!("epoch={}/{}-0-{}.parquet", lease.epoch, lease.task, lease.attempt),
        epoch: lease.epoch,
        task: lease.task,
        part: 0,
        attempt: lease.attempt,
        size: rows * 10,
        modified_ms: 1,
        row_groups: vec![RowGroupMeta { rows, bytes: rows * 16 }],
        staging: None,
        stats: None,
        index: None,
    }]
}

pub(super) fn settings(name: &str, of: &str, batch_size: u64, passes: Passes) -> JobSettings {
    JobSettings { batch_size, epochs: passes, end: End::Short, ..JobSettings::new(job(name), dataset(of)) }
}

pub(super) fn consumer_settings(name: &str) -> ConsumerSettings {
    ConsumerSettings { consumer: consumer(name), rank: None, acks_by_action: false, restart: false }
}

pub(super) fn shape(rows: u64, per_window: u64, batch_size: u64, epoch: u32) -> PassShape {
    PassShape {
        version: Some(VersionId(0)),
        epoch: EpochId(epoch),
        rows,
        window_rows: per_window * batch_size,
        batches_per_window: per_window,
        selection: None,
        growth: None,
    }
}

pub(super) fn stored(fingerprint: &str, version: u64, epochs: u32) -> Option<Box<StoredDataset>> {
    Some(Box::new(StoredDataset {
        version: VersionId(version),
        epochs: (0..epochs).map(EpochId).collect(),
        fingerprint: fingerprint.into(),
        pipeline: Some(pipeline("digits", &format!("SELECT '{fingerprint}' AS x FROM input"), OnError::Fail)),
        parts: BTreeMap::from([("source".to_owned(), "1".to_owned())]),
    }))
}

/// One root: its journal, and the leader's memory.
#[derive(Debug)]
pub(super) struct World {
    pub state: State,
    pub volatile: Volatile,
    pub log: Vec<Vec<u8>>,
    pub now: Now,
    pub actions: Vec<Action>,
    /// Check every invariant after every entry; off where histories are long.
    pub checked: bool,
    /// As in [`Volatile`].
    pub ledger_batches: u64,
}

impl World {
    pub(super) fn new() -> Self {
        let mut world = Self {
            state: State::default(),
            volatile: Volatile::new(TERM),
            log: Vec::new(),
            now: Now { wall_ms: 1_700_000_000_000, mono_ms: 0 },
            actions: Vec::new(),
            checked: true,
            ledger_batches: 0,
        };
        world.lead(false, false);
        world
    }

    pub(super) fn lead(&mut self, workers_died: bool, continue_runs: bool) {
        let fence = Fence(self.state.fence.0 + 1);
        self.send(Event::Lead { fence, address: Some("127.0.0.1:7070".into()), workers_died, continue_runs }).unwrap();
    }

    /// Decides and applies one event, and checks what every entry did.
    pub(super) fn send(&mut self, event: Event) -> Result<Reply> {
        let decision = decide(&self.state, &mut self.volatile, self.now, event)?;
        for entry in decision.entries {
            let bytes = entry.encode().unwrap();
            let back = Entry::decode(&bytes).unwrap();
            assert_eq!(entry, back, "an entry changes when it is journaled");
            let before = self.checked.then(|| self.state.clone());
            apply(&mut self.state, &entry);
            self.log.push(bytes);
            let Some(before) = before else { continue };
            check(&self.state).unwrap_or_else(|v| panic!("{v} after {entry:?}"));
            check_step(&before, &self.state).unwrap_or_else(|v| panic!("{v} by {entry:?}"));
        }
        self.actions.extend(decision.actions);
        Ok(decision.reply)
    }

    pub(super) fn tick(&mut self) {
        for _ in 0..4 {
            self.send(Event::Tick).unwrap();
        }
    }

    pub(super) fn pass_time(&mut self, ms: u64) {
        self.now.mono_ms += ms;
        self.now.wall_ms += i64::try_from(ms).unwrap();
        self.tick();
    }

    pub(super) fn fold(log: &[Vec<u8>]) -> State {
        let mut state = State::default();
        for bytes in log {
            apply(&mut state, &Entry::decode(bytes).unwrap());
        }
        state
    }

    /// The leader dies and another one takes over from the journal (I5).
    pub(super) fn crash(&mut self, workers_died: bool, continue_runs: bool) {
        let folded = Self::fold(&self.log);
        assert_eq!(folded, self.state, "I5: the live state is not the fold of the journal");
        let snapshot = serde_json::to_vec(&folded).unwrap();
        self.state = serde_json::from_slice(&snapshot).unwrap();
        assert_eq!(self.state, folded, "I5: the state changes when it is written down");
        self.volatile = Volatile { ledger_batches: self.ledger_batches, ..Volatile::new(TERM) };
        self.actions.clear();
        self.lead(workers_died, continue_runs);
        self.tick();
    }

    pub(super) fn take<T>(&mut self, pick: impl Fn(&Action) -> Option<T>) -> Option<T> {
        let index = self.actions.iter().position(|a| pick(a).is_some())?;
        let action = self.actions.remove(index);
        pick(&action)
    }

    pub(super) fn task(&mut self, name: &str) -> Option<TaskLease> {
        match self.send(Event::NextTask { worker: worker(name) }).unwrap() {
            Reply::Task(lease) => Some(*lease),
            Reply::Wait => None,
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn stage(&mut self, lease: &TaskLease, rows: u64) -> Result<Reply> {
        let event = Event::TaskStaged { lease: lease.clone(), shards: shards(lease, rows), quarantined: Quarantined::default() };
        let reply = self.send(event);
        self.tick();
        reply
    }

    /// Makes and lands the commit that is due; the version is given by the caller.
    pub(super) fn publish(&mut self, version: u64) -> CommitRequest {
        self.tick();
        let request = self.take(|a| if let Action::PrepareCommit(r) = a { Some((**r).clone()) } else { None }).expect("a commit is due");
        let (dataset, run, epoch) = (request.spec.dataset.clone(), request.run, request.epoch);
        let body = Ok((VersionId(version), format!("body of epoch {epoch}")));
        self.send(Event::CommitPrepared { dataset: dataset.clone(), run, epoch, body }).unwrap();
        self.tick();
        self.take(|a| matches!(a, Action::Commit { .. }).then_some(())).expect("a commit is to be put");
        let outcome = Ok(CommitOutcome::Ours);
        self.send(Event::CommitDone { dataset, run, epoch, version: VersionId(version), outcome }).unwrap();
        self.tick();
        request
    }

    pub(super) fn open(&mut self, settings: &JobSettings, who: &str, epochs: u32) -> Result<OpenedJob> {
        let event = Event::OpenJob {
            settings: Box::new(settings.clone()),
            consumer: Box::new(consumer_settings(who)),
            stored: if epochs == 0 { None } else { stored("f", 0, epochs) },
        };
        match self.send(event)? {
            Reply::Job(opened) => Ok(opened),
            other => panic!("{other:?}"),
        }
    }

    pub(super) fn stream(&mut self, opened: &OpenedJob, who: &str, on: &str, acks: bool) -> StreamId {
        let event = Event::OpenStream {
            job: opened.job.clone(),
            incarnation: opened.incarnation,
            consumer: consumer(who),
            worker: worker(on),
            acks,
        };
        match self.send(event).unwrap() {
            Reply::Stream(id) => id,
            other => panic!("{other:?}"),
        }
    }

    /// The next grant; a pass that has to be planned first gets `rows` rows, with four batches a window.
    pub(super) fn grant(&mut self, name: &JobName, stream: StreamId, most: u64, rows: u64) -> Result<Option<Granted>> {
        for _ in 0..4 {
            match self.send(Event::NextGrant { job: name.clone(), stream, max_batches: most, received: None })? {
                Reply::Granted(granted) => return Ok(Some(granted)),
                Reply::Wait => self.tick(),
                other => panic!("{other:?}"),
            }
            let Some((incarnation, pass, settings)) = self.take(|a| match a {
                Action::ShapePass { incarnation, pass, settings, .. } => Some((*incarnation, *pass, settings.clone())),
                _ => None,
            }) else {
                return Ok(None);
            };
            let answer = Ok(PassAnswer::Shape(shape(rows, 4, settings.batch_size, pass.0)));
            self.send(Event::PassShaped { job: name.clone(), incarnation, pass, answer }).unwrap();
            self.tick();
        }
        Ok(None)
    }

    pub(super) fn ack(&mut self, opened: &OpenedJob, who: &str, pass: PassId, batches: impl IntoIterator<Item = u64>) -> Result<Reply> {
        self.send(Event::Acknowledge {
            job: opened.job.clone(),
            incarnation: opened.incarnation,
            consumer: consumer(who),
            pass,
            batches: batches.into_iter().map(|b| (BatchId(b), Some(b * 7))).collect(),
        })
    }

    /// Writes the ledger file that is due, if one is.
    pub(super) fn write_ledger(&mut self) -> Option<Vec<VisitRow>> {
        let (job, incarnation, number, windows, rows) = self.take(|a| match a {
            Action::WriteLedger { job, incarnation, number, windows, rows } => {
                Some((job.clone(), *incarnation, *number, windows.clone(), rows.clone()))
            }
            _ => None,
        })?;
        let result = Ok(vec![format!("{incarnation}-{number}.parquet")]);
        self.send(Event::LedgerWritten { job, incarnation, number, windows, result }).unwrap();
        self.tick();
        Some(rows)
    }
}
