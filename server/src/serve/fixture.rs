#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

//! Real datasets on a local disk for the tests of serving.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_core::ids::{Attempt, DatasetName, EpochId, JobName, TaskId, VersionId};
use forebay_core::job::JobSettings;
use forebay_core::pipeline::{
    Compression, EpochsSpec, IndexSpec, OnError, OutputSpec, PipelineSpec, Shuffle, SourceFormat, SourceSpec, StepKind, StepSpec,
};
use forebay_sql::python::{PythonConfig, PythonPool};
use forebay_storage::delta::{self, DatasetVersion, EpochCommit};
use forebay_storage::root::Root;
use forebay_storage::shard::ShardWriter;
use tempfile::TempDir;

use super::{Reader, ServeLimits};
use crate::engine::View;

/// What a dataset of the tests looks like.
#[derive(Debug, Clone)]
pub(crate) struct Shape {
    /// Rows of each task; a task with rows writes one shard or more.
    pub(crate) tasks: Vec<i64>,
    pub(crate) epochs: u32,
    /// Bytes of each row's text, beside a few.
    pub(crate) text_bytes: usize,
    /// Two rows for each id, told apart by `_part`.
    pub(crate) parts: bool,
    pub(crate) split: bool,
    /// SQL steps behind the cut.
    pub(crate) behind: Vec<(&'static str, &'static str)>,
}

/// 557 rows in eleven shards of one row group each.
const TASKS: [i64; 12] = [60, 57, 50, 40, 70, 30, 1, 49, 80, 0, 90, 30];

impl Default for Shape {
    fn default() -> Self {
        Self { tasks: TASKS.to_vec(), epochs: 1, text_bytes: 0, parts: false, split: false, behind: Vec::new() }
    }
}

/// A root with one dataset, `data`.
pub(crate) struct Fixture {
    pub(crate) folder: TempDir,
    pub(crate) root: Root,
    pub(crate) version: Arc<DatasetVersion>,
}

pub(crate) fn dataset() -> DatasetName {
    DatasetName::parse("data").unwrap()
}

/// What column `value` holds for a row.
pub(crate) fn value_of(id: i64, part: i32) -> i32 {
    (id as i32).wrapping_mul(7) + part * 1_000_003
}

fn schema(shape: &Shape) -> SchemaRef {
    let mut fields = vec![Field::new("_id", DataType::Int64, false)];
    if shape.parts {
        fields.push(Field::new("_part", DataType::Int32, false));
    }
    fields.push(Field::new("_source", DataType::Utf8, false));
    fields.push(Field::new("value", DataType::Int32, true));
    fields.push(Field::new("text", DataType::Utf8, true));
    if shape.split {
        fields.push(Field::new("split", DataType::Utf8, false));
    }
    Arc::new(Schema::new(fields))
}

fn rows(shape: &Shape, ids: std::ops::Range<i64>) -> RecordBatch {
    let keys: Vec<(i64, i32)> = ids.flat_map(|id| (0..if shape.parts { 2 } else { 1 }).map(move |part| (id, part))).collect();
    let mut columns: Vec<ArrayRef> = vec![Arc::new(Int64Array::from_iter_values(keys.iter().map(|k| k.0)))];
    if shape.parts {
        columns.push(Arc::new(Int32Array::from_iter_values(keys.iter().map(|k| k.1))));
    }
    columns.push(Arc::new(StringArray::from_iter_values(keys.iter().map(|k| format!("file{}.csv", k.0 / 100)))));
    columns.push(Arc::new(Int32Array::from_iter_values(keys.iter().map(|k| value_of(k.0, k.1)))));
    columns.push(Arc::new(StringArray::from_iter_values(
        keys.iter().map(|k| format!("row {} {}", k.0, "x".repeat((k.0 % 40) as usize + shape.text_bytes))),
    )));
    if shape.split {
        columns.push(Arc::new(StringArray::from_iter_values(keys.iter().map(|k| if k.0 % 5 == 0 { "test" } else { "train" }))));
    }
    RecordBatch::try_new(schema(shape), columns).unwrap()
}

fn output() -> OutputSpec {
    OutputSpec { cut: 0, shard_size: 64 << 20, row_group_size: 4 << 20, compression: Compression::Zstd(1), on_error: OnError::Fail }
}

fn pipeline(shape: &Shape) -> PipelineSpec {
    let step = |(name, query): &(&str, &str)| StepSpec { name: (*name).to_owned(), kind: StepKind::Sql { query: (*query).to_owned() } };
    PipelineSpec {
        name: dataset(),
        description: String::new(),
        source: SourceSpec { uri: vec!["*.csv".to_owned()], format: SourceFormat::Csv, options: BTreeMap::new(), sql: None },
        steps: shape.behind.iter().map(step).collect(),
        epochs: EpochsSpec { count: shape.epochs, seed: 42, shuffle: Shuffle::Window },
        output: output(),
        index: IndexSpec::default(),
        split: None,
    }
}

impl Fixture {
    pub(crate) async fn new(shape: Shape) -> Self {
        let folder = TempDir::new().unwrap();
        let root = Root::open(folder.path().to_str().unwrap(), true).await.unwrap();
        let mut version: Option<Arc<DatasetVersion>> = None;
        for epoch in (0..shape.epochs).map(EpochId) {
            let mut shards = Vec::new();
            let mut first = 0;
            for (task, count) in (0..).map(TaskId).zip(&shape.tasks) {
                let mut writer = ShardWriter::new(&root, &dataset(), epoch, task, Attempt(0), schema(&shape), &output()).unwrap();
                for start in (first..first + count).step_by(64) {
                    writer.write(&rows(&shape, start..(start + 64).min(first + count))).await.unwrap();
                }
                shards.extend(writer.finish().await.unwrap());
                first += count;
            }
            let at = version.as_ref().map_or(VersionId(0), |v| VersionId(v.version.0 + 1));
            let properties = BTreeMap::from([("forebay.pipeline".to_owned(), serde_json::to_string(&pipeline(&shape)).unwrap())]);
            let commit = EpochCommit {
                name: dataset(),
                epoch,
                schema: schema(&shape),
                shards,
                properties,
                replace: false,
                txn: (format!("test-{epoch}"), 0),
                now_ms: 1_700_000_000_000,
            };
            let body = delta::commit_body(version.as_deref(), &commit).unwrap();
            delta::commit_at(&root, &dataset(), at, &body).await.unwrap();
            version = Some(delta::open_version(&root, &dataset(), None).await.unwrap());
        }
        Self { folder, root, version: version.unwrap() }
    }

    pub(crate) fn reader(&self, limits: ServeLimits) -> Arc<Reader> {
        let python = Arc::new(PythonPool::new(PythonConfig::default()));
        Reader::new(View::new(self.root.clone()), python, Arc::default(), limits, crate::metrics::Metrics::new().unwrap())
    }
}

/// Settings whose windows hold a few row groups.
pub(crate) fn settings() -> JobSettings {
    let mut settings = JobSettings::new(JobName::parse("job").unwrap(), dataset());
    settings.batch_size = 16;
    settings.seed = 5;
    settings.window = 6 << 10;
    settings
}

pub(crate) const ROOMY: ServeLimits = ServeLimits { cache: 64 << 20, in_use: 64 << 20 };
pub(crate) const NO_CACHE: ServeLimits = ServeLimits { cache: 0, in_use: 64 << 20 };
