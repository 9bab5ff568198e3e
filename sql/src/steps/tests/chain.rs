//! SQL and Python steps in one chain. FOREBAY_PYTHON names the interpreter, which needs pyarrow.

use std::collections::BTreeMap;

use super::*;
use crate::python::{PythonConfig, PythonPool};

const MODULE: &str = "
import pyarrow as pa, pyarrow.compute as pc

def widen(batch, by=1):
    return pa.record_batch({'n': pc.add(batch.column('n'), by), 'rows': pa.array([batch.num_rows] * batch.num_rows, pa.int64())})

def repeat(batch):
    ids = batch.column('_id').to_pylist()
    out = [i for i in reversed(ids) for _ in range(i % 3)]
    return pa.record_batch({'_id': pa.array(out, pa.int64()), 'k': pa.array(range(len(out)), pa.int64())})

def invent(batch):
    return pa.record_batch({'_id': pa.array([i + 1000 for i in batch.column('_id').to_pylist()], pa.int64())})

def picky(batch):
    if any(v == 14 for v in batch.column('n').to_pylist()):
        raise ValueError('fourteen')
    return pa.record_batch({'n': batch.column('n')})

def stamp(batch, *, seed, epoch):
    return pa.record_batch({'s': pa.array([seed * 10 + epoch] * batch.num_rows, pa.int64())})
";

fn python(name: &str, batch_size: Option<u64>) -> StepSpec {
    let kind = StepKind::Python { module: "user".into(), function: name.into(), options: BTreeMap::new(), batch_size };
    StepSpec { name: name.into(), kind }
}

async fn compiled(steps: &[StepSpec]) -> Result<CompiledSteps> {
    let modules = BTreeMap::from([("user".to_owned(), MODULE.to_owned())]);
    let pool = PythonPool::new(PythonConfig { processes: 1, ..PythonConfig::default() });
    CompiledSteps::compile(steps, schema(), &modules, Some(&pool)).await
}

#[tokio::test(flavor = "multi_thread")]
async fn python_stands_between_sql() {
    let mut steps = specs(&["SELECT n FROM input WHERE n IS NOT NULL", "SELECT n * 10 AS m, rows FROM input"]);
    steps.insert(1, python("widen", Some(4)));
    let steps = compiled(&steps).await.unwrap();
    steps.check_behind_cut(1).unwrap();
    let output = steps.run(0..3, 1, 0, input(1..8)).await.unwrap();
    same(
        &pretty_format_batches(&[output.batch]).unwrap().to_string(),
        "+-----+---------+-----+------+
         | _id | _source | m   | rows |
         +-----+---------+-----+------+
         | 1   | f0.csv  | 30  | 4    |
         | 2   | f0.csv  | 50  | 4    |
         | 3   | f0.csv  | 70  | 4    |
         | 4   | f0.csv  | 90  | 4    |
         | 6   | f0.csv  | 130 | 2    |
         | 7   | f0.csv  | 150 | 2    |
         +-----+---------+-----+------+",
    );
}

#[tokio::test(flavor = "multi_thread")]
async fn returned_ids_drop_and_repeat_rows_in_key_order() {
    let steps = compiled(&[python("repeat", None)]).await.unwrap();
    let output = steps.run(0..1, 1, 0, input(8..12)).await.unwrap();
    same(
        &pretty_format_batches(&[output.batch]).unwrap().to_string(),
        "+-----+-------+---------+---+
         | _id | _part | _source | k |
         +-----+-------+---------+---+
         | 8   | 0     | f0.csv  | 3 |
         | 8   | 1     | f0.csv  | 4 |
         | 10  | 0     | f1.csv  | 2 |
         | 11  | 0     | f1.csv  | 0 |
         | 11  | 1     | f1.csv  | 1 |
         +-----+-------+---------+---+",
    );
    let error = steps.check_behind_cut(0).unwrap_err();
    assert!(error.message.contains("returns `_id`"), "{error}");
    let invented = compiled(&[python("invent", None)]).await.unwrap().run(0..1, 1, 0, input(0..1)).await.unwrap();
    assert!(invented.bad[0].message.contains("1000"), "{:?}", invented.bad);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_row_that_raises_is_found() {
    let steps = compiled(&[python("picky", None)]).await.unwrap();
    let output = steps.run(0..1, 1, 0, input(0..20)).await.unwrap();
    assert_eq!(output.bad.iter().map(|b| b.id).collect::<Vec<_>>(), [7]);
    assert!(output.bad[0].message.contains("fourteen"), "{:?}", output.bad);
    assert_eq!(output.batch.num_rows(), 19);
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_and_epoch_reach_python() {
    let steps = compiled(&[python("stamp", None)]).await.unwrap();
    let output = steps.run(0..1, 4, 2, input(0..1)).await.unwrap();
    assert_eq!(output.batch.column_by_name("s").unwrap().as_ref(), &Int64Array::from(vec![42]) as &dyn arrow::array::Array);
}

#[tokio::test(flavor = "multi_thread")]
async fn errors_name_the_step() {
    let error = compiled(&[python("missing", None)]).await.unwrap_err();
    assert!(error.message.contains("steps[0].python (step `missing`)"), "{error}");
    let error = compiled(&[python("widen", Some(0))]).await.unwrap_err();
    assert!(error.message.contains("batch_size"), "{error}");
    let none = CompiledSteps::compile(&[python("widen", None)], schema(), &BTreeMap::new(), None).await.unwrap_err();
    assert!(none.to_string().contains("python.allow"), "{none}");
}
