//! A root in a temporary folder with a real journal, ledger and Delta log; only what plans and commits say is made up here.

use async_trait::async_trait;
use forebay_core::dispatch::{
    CommitOutcome, CommitRequest, PassAnswer, PassShape, Quarantined, RunRequest, RunSpec, StoredDataset, TaskLease,
};
use forebay_core::ids::*;
use forebay_core::job::{ConsumerSettings, JobSettings, Passes};
use forebay_core::pipeline::*;
use forebay_core::shard::{RowGroupMeta, ShardMeta};
use forebay_core::{Error, Result};
use forebay_storage::delta;
use forebay_storage::journal::Journal;
use forebay_storage::root::Root;
use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::dispatcher::{Dispatcher, DispatcherConfig, Planner};

/// Where the planner stops for ever, as a process does that is killed there.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Hang {
    Nowhere,
    BeforeBody,
    BeforeCommit,
    AfterCommit,
}

/// Commits go to a real Delta log; epochs and fingerprint are told from the bodies, which are one line of JSON here.
#[derive(Debug)]
pub(super) struct TestPlanner {
    root: Root,
    pub rows: u64,
    pub hang: Hang,
    pub bodies: AtomicU64,
    pub hung: Notify,
}

impl TestPlanner {
    async fn bodies_of(&self, dataset: &DatasetName) -> Vec<serde_json::Value> {
        let mut found = Vec::new();
        for version in 0.. {
            let path = format!("datasets/{dataset}/_delta_log/{version:020}.json");
            match self.root.store().get_opts(&path.as_str().into(), Default::default()).await {
                Ok(got) => found.push(serde_json::from_slice(&got.bytes().await.unwrap()).unwrap()),
                Err(_) => break,
            }
        }
        found
    }

    async fn hang_at(&self, point: Hang) {
        if self.hang == point {
            self.hung.notify_one();
            std::future::pending::<()>().await;
        }
    }
}

#[async_trait]
impl Planner for TestPlanner {
    async fn stored(&self, dataset: &DatasetName, _version: Option<VersionId>) -> Result<Option<StoredDataset>> {
        let bodies = self.bodies_of(dataset).await;
        let Some(last) = bodies.len().checked_sub(1) else { return Ok(None) };
        let mut epochs: Vec<_> = bodies.iter().map(|b| EpochId(u32::try_from(b["epoch"].as_u64().unwrap()).unwrap())).collect();
        epochs.sort_unstable();
        let fingerprint = bodies[last]["fingerprint"].as_str().unwrap().to_owned();
        Ok(Some(StoredDataset { version: VersionId(last as u64), epochs, fingerprint, pipeline: None, parts: BTreeMap::new() }))
    }

    async fn pass_shape(&self, settings: &JobSettings, pass: PassId, epochs: &[EpochId]) -> Result<PassAnswer> {
        let stored = self.stored(&settings.dataset, None).await?.ok_or_else(|| Error::not_found("no dataset"))?;
        let epoch = epochs[pass.0 as usize % epochs.len()];
        if !stored.epochs.contains(&epoch) {
            return Ok(PassAnswer::NotYet);
        }
        let per_window = 4;
        Ok(PassAnswer::Shape(PassShape {
            version: Some(stored.version),
            epoch,
            rows: self.rows,
            window_rows: per_window * settings.batch_size,
            batches_per_window: per_window,
            selection: None,
            growth: None,
        }))
    }

    async fn commit_body(&self, request: &CommitRequest) -> Result<(VersionId, String)> {
        self.hang_at(Hang::BeforeBody).await;
        let version = self.bodies_of(&request.spec.dataset).await.len() as u64;
        let made = self.bodies.fetch_add(1, Ordering::SeqCst);
        let body = serde_json::json!({"epoch": request.epoch, "fingerprint": request.spec.fingerprint, "shards": request.shards.len(),
            "made": made, "by": std::process::id()});
        Ok((VersionId(version), body.to_string()))
    }

    async fn commit_at(&self, dataset: &DatasetName, version: VersionId, body: &str) -> Result<CommitOutcome> {
        self.hang_at(Hang::BeforeCommit).await;
        let outcome = delta::commit_at(&self.root, dataset, version, body).await?;
        self.hang_at(Hang::AfterCommit).await;
        Ok(match outcome {
            delta::CommitOutcome::Ours => CommitOutcome::Ours,
            delta::CommitOutcome::Foreign => CommitOutcome::Foreign,
        })
    }
}

/// One leader of the root.
pub(super) struct Leader {
    pub dispatcher: Dispatcher,
    pub task: JoinHandle<Result<()>>,
    pub planner: Arc<TestPlanner>,
    pub root: Root,
}

impl Leader {
    pub(super) async fn start(dir: &Path, hang: Hang) -> Self {
        Self::start_with(dir, hang, |_| {}).await
    }

    pub(super) async fn start_with(dir: &Path, hang: Hang, set: impl FnOnce(&mut DispatcherConfig)) -> Self {
        let root = Root::open(dir.to_str().unwrap(), true).await.unwrap();
        let journal = Journal::open(&root).await.unwrap();
        let planner = Arc::new(TestPlanner { root: root.clone(), rows: 1_000, hang, bodies: AtomicU64::new(0), hung: Notify::new() });
        let mut config = DispatcherConfig { continue_runs: true, ..DispatcherConfig::new("127.0.0.1:1") };
        set(&mut config);
        let (dispatcher, task, _) = Dispatcher::start_with(journal, root.clone(), planner.clone(), config).await.unwrap();
        Self { dispatcher, task, planner, root }
    }

    /// Ends it as a kill would: nothing more is written, nothing is answered.
    pub(super) async fn kill(self) {
        self.task.abort();
        let _ = self.task.await;
    }

    pub(super) async fn stop(self) {
        self.dispatcher.shutdown().await;
        self.task.await.unwrap().unwrap();
    }

    /// Does tasks until there are none for a while; returns (epoch, task, attempt) of each.
    pub(super) async fn work(&self, most: usize) -> Vec<(u32, u32, u32)> {
        let mut done = Vec::new();
        while done.len() < most {
            let lease = self.dispatcher.next_task(&worker(), Duration::from_millis(300)).await.unwrap();
            let Some(lease) = lease else { break };
            done.push((lease.epoch.0, lease.task.0, lease.attempt.0));
            self.dispatcher.task_staged(&lease, shards(&lease), Quarantined::default()).await.unwrap();
        }
        done
    }

    pub(super) async fn versions(&self, name: &str) -> Vec<serde_json::Value> {
        self.planner.bodies_of(&dataset(name)).await
    }
}

pub(super) fn worker() -> WorkerName {
    WorkerName("w".into())
}

pub(super) fn dataset(name: &str) -> DatasetName {
    DatasetName::parse(name).unwrap()
}

pub(super) fn request(name: &str, fingerprint: &str, tasks: usize, epochs: u32) -> RunRequest {
    let pipeline = PipelineSpec {
        name: dataset(name),
        description: String::new(),
        source: SourceSpec { uri: vec!["a.csv".into()], format: SourceFormat::Csv, options: BTreeMap::new(), sql: None },
        steps: Vec::new(),
        epochs: EpochsSpec { count: epochs, seed: 1, shuffle: Shuffle::Window },
        output: OutputSpec {
            cut: 0,
            shard_size: 1 << 27,
            row_group_size: 8 << 20,
            compression: Compression::None,
            on_error: OnError::Fail,
        },
        index: IndexSpec::default(),
        split: None,
    };
    let spec = RunSpec {
        dataset: dataset(name),
        fingerprint: fingerprint.into(),
        pipeline,
        code: BTreeMap::new(),
        snapshot: "s".into(),
        task_bytes: vec![10; tasks],
        parts: BTreeMap::new(),
    };
    RunRequest { spec, epochs: (0..epochs).map(EpochId).collect(), resume: false, replace: false }
}

fn shards(lease: &TaskLease) -> Vec<ShardMeta> {
    vec![ShardMeta {
        path: format!("epoch={}/{}-0-{}.parquet", lease.epoch, lease.task, lease.attempt),
        epoch: lease.epoch,
        task: lease.task,
        part: 0,
        attempt: lease.attempt,
        size: 100,
        modified_ms: 0,
        row_groups: vec![RowGroupMeta { rows: 10, bytes: 100 }],
        staging: None,
        stats: None,
        index: None,
    }]
}

pub(super) fn settings(name: &str, batch_size: u64, passes: Passes) -> JobSettings {
    JobSettings { batch_size, epochs: passes, ..JobSettings::new(JobName::parse(name).unwrap(), dataset("digits")) }
}

pub(super) fn consumer(name: &str, restart: bool) -> ConsumerSettings {
    ConsumerSettings { consumer: ConsumerName(name.into()), rank: None, acks_by_action: false, restart }
}
