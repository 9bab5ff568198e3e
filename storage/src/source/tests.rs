//! Sources on real files in temporary folders, and a store in memory for the remote side.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod columnar;
mod csv;
mod files;
mod json;
mod listing;
mod properties;
mod snapshots;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::concat_batches;
use arrow::datatypes::{Int64Type, SchemaRef};
use forebay_core::pipeline::{SourceFormat, SourceSpec};
use forebay_core::source::{BadRow, SourceSnapshot};
use forebay_core::{Error, Result};
use futures::StreamExt;
use object_store::ObjectStore;
use object_store::memory::InMemory;
use parking_lot::Mutex;
use serde_json::Value;
use std::collections::{BTreeMap, HashMap};
use std::path::Path;
use std::sync::{Arc, LazyLock};

use super::{Limits, snapshot, source_schema, stream};

static STORES: LazyLock<Mutex<HashMap<String, Arc<dyn ObjectStore>>>> = LazyLock::new(Mutex::default);

/// The store behind `memory://NAME/`, shared by everything in this process.
pub(super) fn memory_store(name: &str) -> Arc<dyn ObjectStore> {
    STORES.lock().entry(name.to_owned()).or_insert_with(|| Arc::new(InMemory::new())).clone()
}

fn spec(format: SourceFormat, uri: &[&str]) -> SourceSpec {
    SourceSpec { uri: uri.iter().map(|u| (*u).to_owned()).collect(), format, options: BTreeMap::new(), sql: None }
}

fn with(mut spec: SourceSpec, key: &str, value: Value) -> SourceSpec {
    spec.options.insert(key.to_owned(), value);
    spec
}

fn everything(_: &str) -> bool {
    true
}

async fn take(spec: &SourceSpec, base: &Path) -> Result<SourceSnapshot> {
    snapshot(spec, base.to_str().unwrap(), None, &everything).await
}

/// What a source yields: all tasks in order.
#[derive(Debug)]
struct Rows {
    schema: SchemaRef,
    batches: Vec<RecordBatch>,
    bad: Vec<BadRow>,
}

impl Rows {
    fn all(&self) -> RecordBatch {
        concat_batches(&self.schema, &self.batches).unwrap()
    }

    fn ids(&self) -> Vec<i64> {
        self.all()["_id"].as_primitive::<Int64Type>().values().to_vec()
    }

    fn texts(&self, column: &str) -> Vec<Option<String>> {
        let all = self.all();
        let column = arrow::compute::cast(&all[column], &arrow::datatypes::DataType::Utf8).unwrap();
        column.as_string::<i32>().iter().map(|v| v.map(str::to_owned)).collect()
    }

    fn kind(&self, column: &str) -> String {
        self.schema.field_with_name(column).unwrap().data_type().to_string()
    }
}

async fn read(spec: &SourceSpec, snapshot: &SourceSnapshot) -> Result<Rows> {
    read_with(spec, snapshot, Limits::default()).await
}

async fn read_with(spec: &SourceSpec, snapshot: &SourceSnapshot, limits: Limits) -> Result<Rows> {
    let schema = source_schema(spec, snapshot).await?;
    let snapshot = Arc::new(snapshot.clone());
    let (mut batches, mut bad) = (Vec::new(), Vec::new());
    for task in &snapshot.tasks {
        let mut stream = stream::read_task(spec.clone(), snapshot.clone(), task.clone(), limits);
        while let Some(batch) = stream.next().await {
            let batch = batch?;
            assert_eq!(batch.batch.schema(), schema);
            bad.extend(batch.bad);
            batches.push(batch.batch);
        }
    }
    Ok(Rows { schema, batches, bad })
}

/// Writes files into a folder, takes a snapshot and reads it.
async fn source(spec: &SourceSpec, files: &[(&str, &[u8])]) -> Result<Rows> {
    let dir = folder(files);
    let snapshot = take(spec, dir.path()).await?;
    read(spec, &snapshot).await
}

fn folder(files: &[(&str, &[u8])]) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    for (name, content) in files {
        let path = dir.path().join(name);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, content).unwrap();
    }
    dir
}

#[track_caller]
fn assert_says(error: &Error, parts: &[&str]) {
    let text = error.to_string();
    for part in parts {
        assert!(text.contains(part), "`{text}` doesn't say `{part}`");
    }
}

fn some(texts: &[&str]) -> Vec<Option<String>> {
    texts.iter().map(|t| Some((*t).to_owned())).collect()
}
