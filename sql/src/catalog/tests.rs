//! Queries over real shards and a real log: answers, pruning, limits, attacks.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod answers;
mod attacks;
mod parameters;
mod selections;
mod text;
mod views;

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use arrow::array::{ArrayRef, Int64Array, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema};
use arrow::util::pretty::pretty_format_batches;
use async_trait::async_trait;
use forebay_core::ids::{Attempt, DatasetName, EpochId, TaskId, VersionId};
use forebay_core::pipeline::{Compression, OnError, OutputSpec};
use forebay_storage::delta::{EpochCommit, commit_at, commit_body};
use forebay_storage::shard::ShardWriter;
use futures::TryStreamExt;
use tempfile::TempDir;

use super::*;
use crate::steps::CompiledSteps;

/// A root with the dataset `digits` of the given epochs; each epoch has two tasks of 50 rows.
struct World {
    _folder: TempDir,
    root: Root,
    catalog: Catalog,
}

struct Workers;

#[async_trait]
impl SystemTables for Workers {
    fn tables(&self) -> Vec<(&'static str, SchemaRef)> {
        vec![(
            "workers",
            Arc::new(Schema::new(vec![Field::new("name", DataType::Utf8, false), Field::new("slots", DataType::Int64, false)])),
        )]
    }

    async fn scan(&self, table: &str) -> Result<Vec<RecordBatch>> {
        let (_, schema) = self.tables().into_iter().find(|(n, _)| *n == table).unwrap();
        let columns: Vec<ArrayRef> = vec![Arc::new(StringArray::from(vec!["w1", "w2"])), Arc::new(Int64Array::from(vec![4, 8]))];
        Ok(vec![RecordBatch::try_new(schema, columns).unwrap()])
    }
}

fn limits() -> QueryLimits {
    QueryLimits {
        memory: 64 << 20,
        spill: 0,
        deadline: Some(Duration::from_secs(120)),
        threads: 2,
        partitions: 2,
        ..QueryLimits::default()
    }
}

fn output() -> OutputSpec {
    OutputSpec { cut: 1, shard_size: 1 << 20, row_group_size: 4 << 10, compression: Compression::None, on_error: OnError::Fail }
}

/// Rows `ids` with label, name and a tensor of 2 x 2 bytes.
async fn rows(ids: std::ops::Range<i64>, epoch: u32) -> RecordBatch {
    let query =
        "SELECT label, name, tensor(make_array(label, 1, 2, 3), 2, 2, 'uint8') AS image, label + epoch() * 100 AS shifted FROM input";
    let step = forebay_core::pipeline::StepSpec { name: "s".into(), kind: forebay_core::pipeline::StepKind::Sql { query: query.into() } };
    let input = RecordBatch::try_from_iter([
        ("_id", Arc::new(Int64Array::from_iter_values(ids.clone())) as ArrayRef),
        ("_source", Arc::new(StringArray::from_iter_values(ids.clone().map(|_| "a.csv")))),
        ("label", Arc::new(Int64Array::from_iter_values(ids.clone().map(|i| i % 10)))),
        ("name", Arc::new(StringArray::from_iter(ids.map(|i| (i % 7 != 0).then(|| format!("n{i}")))))),
    ])
    .unwrap();
    let steps = CompiledSteps::compile(&[step], input.schema(), &BTreeMap::new(), None).await.unwrap();
    steps.run(0..1, 1, epoch, input).await.unwrap().batch
}

async fn publish(root: &Root, name: &str, epoch: u32, version: u64) {
    let name = DatasetName::parse(name).unwrap();
    let mut shards = Vec::new();
    let mut schema = None;
    for task in 0..2u32 {
        let batch = rows(i64::from(task) * 50..i64::from(task) * 50 + 50, epoch).await;
        let mut writer = ShardWriter::new(root, &name, EpochId(epoch), TaskId(task), Attempt(0), batch.schema(), &output()).unwrap();
        writer.write(&batch.slice(0, 25)).await.unwrap();
        writer.write(&batch.slice(25, 25)).await.unwrap();
        shards.extend(writer.finish().await.unwrap());
        schema = Some(batch.schema());
    }
    let previous = open_version(root, &name, None).await.ok();
    let commit = EpochCommit {
        name: name.clone(),
        epoch: EpochId(epoch),
        schema: schema.unwrap(),
        shards,
        properties: BTreeMap::new(),
        replace: false,
        txn: (format!("{name}/{epoch}"), 0),
        now_ms: 1_700_000_000_000,
    };
    let body = commit_body(previous.as_deref(), &commit).unwrap();
    commit_at(root, &name, VersionId(version), &body).await.unwrap();
}

use forebay_storage::delta::open_version;

impl World {
    async fn new(epochs: u32) -> Self {
        Self::with(epochs, limits()).await
    }

    async fn with(epochs: u32, limits: QueryLimits) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let root = Root::open(folder.path().join("root").to_str().unwrap(), true).await.unwrap();
        for epoch in 0..epochs {
            publish(&root, "digits", epoch, u64::from(epoch)).await;
        }
        let catalog = Catalog::new(root.clone(), Arc::new(Workers), limits).unwrap();
        Self { _folder: folder, root, catalog }
    }

    async fn batches(&self, sql: &str) -> Result<Vec<RecordBatch>> {
        let query = self.catalog.query(sql).await?;
        let schema = query.schema.clone();
        let batches: Vec<RecordBatch> = query.stream.try_collect().await?;
        assert!(batches.iter().all(|b| b.schema() == schema));
        Ok(batches)
    }

    async fn table(&self, sql: &str) -> String {
        let batches = self.batches(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}"));
        pretty_format_batches(&batches).unwrap().to_string()
    }

    /// The only value of a query with one row and column.
    async fn value(&self, sql: &str) -> String {
        self.table(sql).await.lines().nth(3).unwrap_or_default().trim_matches(['|', ' ']).to_owned()
    }

    async fn error(&self, sql: &str) -> Error {
        match self.batches(sql).await {
            Ok(_) => panic!("{sql} was answered"),
            Err(error) => error,
        }
    }
}

#[track_caller]
fn same(actual: &str, expected: &str) {
    let lines = |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
    assert_eq!(lines(actual), lines(expected), "\n{actual}");
}
