//! Steps on real batches: what is refused and how, keys, draws, bad rows.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod chain;
mod digits;
mod keys;
mod random;
mod refusals;
mod rows;

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int64Array, ListArray, StringArray};
use arrow::datatypes::{Int64Type, SchemaRef};
use arrow::record_batch::RecordBatch;
use arrow::util::pretty::pretty_format_batches;
use forebay_core::pipeline::{StepKind, StepSpec};
use forebay_core::{Error, Result};

use super::{CompiledSteps, StepOutput};

/// Rows `ids` with the columns n (the id doubled, null where divisible by 5), name, tags (id mod 4 of them).
fn input(ids: std::ops::Range<i64>) -> RecordBatch {
    let id = Int64Array::from_iter_values(ids.clone());
    let source = StringArray::from_iter_values(ids.clone().map(|i| format!("f{}.csv", i / 10)));
    let n = Int64Array::from_iter(ids.clone().map(|i| (i % 5 != 0).then_some(i * 2)));
    let name = StringArray::from_iter_values(ids.clone().map(|i| format!("row {i}")));
    let tags = ListArray::from_iter_primitive::<Int64Type, _, _>(ids.map(|i| Some((0..i % 4).map(Some).collect::<Vec<_>>())));
    RecordBatch::try_from_iter([
        ("_id", Arc::new(id) as ArrayRef),
        ("_source", Arc::new(source)),
        ("n", Arc::new(n)),
        ("name", Arc::new(name)),
        ("tags", Arc::new(tags)),
    ])
    .unwrap()
}

fn specs(queries: &[&str]) -> Vec<StepSpec> {
    let spec = |(i, q): (usize, &&str)| StepSpec { name: format!("s{i}"), kind: StepKind::Sql { query: (*q).to_owned() } };
    queries.iter().enumerate().map(spec).collect()
}

fn schema() -> SchemaRef {
    input(0..1).schema()
}

async fn compile(queries: &[&str]) -> Result<CompiledSteps> {
    CompiledSteps::compile(&specs(queries), schema(), &BTreeMap::new(), None).await
}

async fn refused(query: &str) -> Error {
    match compile(&[query]).await {
        Ok(_) => panic!("{query} was accepted"),
        Err(error) => error,
    }
}

async fn run(queries: &[&str], batch: RecordBatch) -> StepOutput {
    compile(queries).await.unwrap().run(0..queries.len(), 42, 0, batch).await.unwrap()
}

/// The rows as a table, for golden comparisons.
async fn table(queries: &[&str], batch: RecordBatch) -> String {
    let output = run(queries, batch).await;
    assert!(output.bad.is_empty(), "{:?}", output.bad);
    pretty_format_batches(&[output.batch]).unwrap().to_string()
}

#[track_caller]
fn same(actual: &str, expected: &str) {
    let lines = |text: &str| text.lines().map(str::trim).filter(|l| !l.is_empty()).collect::<Vec<_>>().join("\n");
    assert_eq!(lines(actual), lines(expected), "\n{actual}");
}
