//! Real Python processes: what a user's function can do wrong, and that the pool survives it. FOREBAY_PYTHON names the interpreter.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::{Duration, Instant};

use arrow::array::{ArrayRef, AsArray, FixedSizeListArray, Float64Array, Int64Array, RecordBatch, StringArray, UInt8Array};
use arrow::datatypes::{DataType, Field, Float64Type, Int64Type, Schema};
use forebay_core::{Error, Kind};
use serde_json::{Value, json};

use super::{PythonConfig, PythonPool, PythonStep};

fn pool(processes: usize) -> PythonPool {
    PythonPool::new(PythonConfig { processes, ..PythonConfig::default() })
}

fn batch(ids: std::ops::Range<i64>) -> RecordBatch {
    let sources: Vec<String> = ids.clone().map(|_| "a.csv".to_owned()).collect();
    let x: Vec<f64> = ids.clone().map(|i| i as f64).collect();
    RecordBatch::try_from_iter([
        ("_id", Arc::new(Int64Array::from_iter_values(ids)) as ArrayRef),
        ("_source", Arc::new(StringArray::from(sources)) as ArrayRef),
        ("x", Arc::new(Float64Array::from(x)) as ArrayRef),
    ])
    .unwrap()
}

async fn load(pool: &PythonPool, text: &str, options: Value) -> Result<PythonStep, Error> {
    let options: BTreeMap<String, Value> = serde_json::from_value(options).unwrap();
    pool.load(BTreeMap::from([("augment".to_owned(), text.to_owned())]), "augment", "jitter", options).await
}

async fn step(pool: &PythonPool, text: &str) -> PythonStep {
    load(pool, text, json!({})).await.unwrap()
}

const DOUBLE: &str = "
import pyarrow as pa, pyarrow.compute as pc
def jitter(batch, factor=2):
    return pa.record_batch({'y': pc.multiply(batch.column('x'), float(factor))})
";

fn y(batch: &RecordBatch) -> Vec<f64> {
    batch.column_by_name("y").unwrap().as_primitive::<Float64Type>().values().to_vec()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_function_gets_batches_and_options() {
    let pool = pool(1);
    let step = load(&pool, DOUBLE, json!({"factor": 3})).await.unwrap();
    let schema = step.output_schema(&batch(0..0).schema()).await.unwrap();
    assert_eq!(*schema, Schema::new(vec![Field::new("y", DataType::Float64, true)]));
    assert_eq!(y(&step.call(batch(1..4), 0, 0).await.unwrap()), [3.0, 6.0, 9.0]);
    assert_eq!(step.call(batch(0..0), 0, 0).await.unwrap().num_rows(), 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn seed_and_epoch_come_where_the_signature_names_them() {
    let text = "
import pyarrow as pa
def jitter(batch, *, epoch, seed):
    n = batch.num_rows
    return pa.record_batch({'y': pa.array([seed * 100.0 + epoch] * n, pa.float64())})
";
    let step = step(&pool(1), text).await;
    assert_eq!(y(&step.call(batch(0..2), 7, 3).await.unwrap()), [703.0, 703.0]);
    let error = load(&pool(1), text, json!({"seed": 1})).await.unwrap_err();
    assert!(error.message.contains("the option `seed` has the name of a value"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn rows_may_be_dropped_and_repeated_by_id() {
    let text = "
import pyarrow as pa
def jitter(batch):
    ids = batch.column('_id').to_pylist()
    keep = [i for i in ids if i % 2 == 0 for _ in range(2)]
    return pa.record_batch({'_id': pa.array(keep, pa.int64()), 'y': pa.array([float(i) for i in keep], pa.float64())})
";
    let step = step(&pool(1), text).await;
    let out = step.call(batch(0..5), 0, 0).await.unwrap();
    assert_eq!(out.column_by_name("_id").unwrap().as_primitive::<Int64Type>().values(), &[0, 0, 2, 2, 4, 4]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_row_count_names_the_function_and_the_rows() {
    let text = "def jitter(batch):\n    return batch.slice(1).drop_columns(['_id']) if batch.num_rows else batch.drop_columns(['_id'])\n";
    let error = step(&pool(1), text).await.call(batch(10..15), 0, 0).await.unwrap_err();
    assert_eq!(error.message, "augment:jitter on rows _id 10 to 14: returned 4 rows for 5");
    assert_eq!(error.remedy.as_deref(), Some("return `_id` to drop or repeat rows"));
}

#[tokio::test(flavor = "multi_thread")]
async fn an_exception_comes_with_its_traceback_and_the_process_lives_on() {
    let text = "
import os, pyarrow as pa
def jitter(batch):
    print('looking at', batch.num_rows)
    return inner(batch)
def inner(batch):
    if 3.0 in batch.column('x').to_pylist():
        raise ValueError('three is not allowed')
    return pa.record_batch({'y': pa.array([float(os.getpid())] * batch.num_rows, pa.float64())})
";
    let pool = pool(1);
    let step = step(&pool, text).await;
    let before = y(&step.call(batch(0..1), 0, 0).await.unwrap());
    let error = step.call(batch(2..5), 0, 0).await.unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
    let message = error.message;
    for part in
        ["augment:jitter on rows _id 2 to 4", "File \"augment.py\", line 8, in inner", "ValueError: three is not allowed", "looking at 3"]
    {
        assert!(message.contains(part), "{message} lacks {part:?}");
    }
    assert!(!message.contains("/tmp") && !message.contains("<string>"), "{message}");
    assert_eq!(y(&step.call(batch(0..1), 0, 0).await.unwrap()), before, "the process was replaced");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_crash_names_the_rows_and_the_pool_survives() {
    let text = "
import os, signal, sys, pyarrow as pa
def jitter(batch):
    if 3.0 in batch.column('x').to_pylist():
        print('about to die', file=sys.stderr)
        sys.stderr.flush()
        os.kill(os.getpid(), signal.SIGSEGV)
    if 4.0 in batch.column('x').to_pylist():
        os._exit(3)
    if 5.0 in batch.column('x').to_pylist():
        sys.exit('bye')
    return batch
";
    let step = step(&pool(1), text).await;
    let error = step.call(batch(2..4), 0, 0).await.unwrap_err().to_string();
    for part in ["augment:jitter on rows _id 2 to 3", "died of signal 11 (segmentation fault)", "about to die"] {
        assert!(error.contains(part), "{error} lacks {part:?}");
    }
    let error = step.call(batch(4..5), 0, 0).await.unwrap_err().to_string();
    assert!(error.contains("the row _id 4: its process exited with status 3"), "{error}");
    let error = step.call(batch(5..6), 0, 0).await.unwrap_err().to_string();
    assert!(error.contains("sys.exit('bye')"), "{error}");
    assert_eq!(step.call(batch(0..2), 0, 0).await.unwrap().num_rows(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_call_that_takes_too_long_is_ended() {
    let text = "
import time
def jitter(batch):
    while batch.num_rows > 2:
        time.sleep(1)
    return batch
";
    let pool = PythonPool::new(PythonConfig { processes: 1, call_timeout: Duration::from_secs(8), ..PythonConfig::default() });
    let step = step(&pool, text).await;
    let error = step.call(batch(0..5), 0, 0).await.unwrap_err();
    assert_eq!(error.kind, Kind::ResourceExhausted);
    assert!(error.message.contains("rows _id 0 to 4: took longer than 8s"), "{error}");
    assert_eq!(step.call(batch(0..2), 0, 0).await.unwrap().num_rows(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_is_limited() {
    let text = "
def jitter(batch):
    if batch.num_rows > 1:
        hog = bytearray(8 << 30)
    return batch
";
    let pool = PythonPool::new(PythonConfig { processes: 1, memory_limit: Some(4 << 30), ..PythonConfig::default() });
    let step = step(&pool, text).await;
    let error = step.call(batch(0..5), 0, 0).await.unwrap_err();
    assert_eq!(error.kind, Kind::ResourceExhausted, "{error}");
    assert!(error.message.contains("MemoryError"), "{error}");
    assert_eq!(step.call(batch(0..1), 0, 0).await.unwrap().num_rows(), 1);
}

#[tokio::test(flavor = "multi_thread")]
async fn what_does_not_import_is_an_error_before_any_row() {
    let cases = [
        ("import nothing_of_this_name\n", "ModuleNotFoundError: No module named 'nothing_of_this_name'"),
        ("def jitter(batch:\n", "SyntaxError"),
        ("raise RuntimeError('at import')\n", "RuntimeError: at import"),
        ("def other(batch): return batch\n", "has no function `jitter`; it has `other`"),
        ("def jitter(): pass\n", "cannot be called with its options"),
        ("import os\nos._exit(9)\n", "exited with status 9"),
    ];
    let pool = pool(1);
    for (text, want) in cases {
        let error = load(&pool, text, json!({})).await.unwrap_err().to_string();
        assert!(error.contains(want) && error.contains("augment"), "{error} lacks {want:?}");
    }
    let error = load(&pool, DOUBLE, json!({"strenght": 0.3})).await.unwrap_err().to_string();
    assert!(
        error.contains("jitter(batch, factor=2) cannot be called with its options: got an unexpected keyword argument 'strenght'"),
        "{error}"
    );
    let error = pool.load(BTreeMap::new(), "augment", "jitter", BTreeMap::new()).await.unwrap_err().to_string();
    assert!(error.contains("put augment.py beside the pipeline file"), "{error}");
    let evil = BTreeMap::from([("../evil".to_owned(), String::new()), ("augment".to_owned(), DOUBLE.to_owned())]);
    let error = pool.load(evil, "augment", "jitter", BTreeMap::new()).await.unwrap_err().to_string();
    assert!(error.contains("`../evil` is not a Python module's name"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_missing_interpreter_says_what_to_set() {
    let pool = PythonPool::new(PythonConfig { interpreter: "no-such-python".into(), ..PythonConfig::default() });
    let error = load(&pool, DOUBLE, json!({})).await.unwrap_err().to_string();
    assert!(error.contains("`no-such-python`") && error.contains("FOREBAY_PYTHON"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn results_must_be_what_was_announced() {
    let text = "
import pyarrow as pa
def jitter(batch):
    if batch.num_rows == 3:
        return pa.record_batch({'y': pa.array(['a', 'b', 'c'])})
    if batch.num_rows == 4:
        return pa.record_batch({'y': pa.array([0.0] * 4), 'z': pa.array([0.0] * 4)})
    if batch.num_rows == 5:
        return [1, 2, 3]
    return pa.table({'y': pa.array([0.0] * batch.num_rows, pa.float64())})
";
    let step = step(&pool(1), text).await;
    step.output_schema(&batch(0..0).schema()).await.unwrap();
    let say = async |n: i64| step.call(batch(0..n), 0, 0).await.unwrap_err().to_string();
    assert!(say(3).await.contains("returned the column `y` as Utf8, and as Float64 when it was first asked"));
    assert!(say(4).await.contains("returned the column `z`, which it did not return"));
    assert!(say(5).await.contains("returned list, not a pyarrow.RecordBatch"));
    assert_eq!(step.call(batch(0..2), 0, 0).await.unwrap().num_rows(), 2);
}

#[tokio::test(flavor = "multi_thread")]
async fn functions_that_need_rows_are_asked_with_made_up_ones() {
    let text = "
import pyarrow as pa
def jitter(batch):
    return pa.record_batch({'y': pa.array([x * 2 for x in batch.column('x').to_pylist()]), 'first': pa.array([batch.column('_source')[0].as_py()] * batch.num_rows)})
";
    let schema = step(&pool(1), text).await.output_schema(&batch(0..0).schema()).await.unwrap();
    assert_eq!(schema.field(0).data_type(), &DataType::Float64);
    let declared = "
import pyarrow as pa
def jitter(batch):
    raise ValueError('only real rows')
";
    let error = step(&pool(1), declared).await.output_schema(&batch(0..0).schema()).await.unwrap_err();
    assert!(error.to_string().contains("only real rows") && error.to_string().contains("jitter.output_schema = pyarrow.schema"), "{error}");
    let declared = format!("{declared}\njitter.output_schema = pa.schema([('y', pa.int32())])\n");
    let schema = step(&pool(1), &declared).await.output_schema(&batch(0..0).schema()).await.unwrap();
    assert_eq!(schema.field(0).data_type(), &DataType::Int32);
}

#[tokio::test(flavor = "multi_thread")]
async fn tensors_travel_both_ways() {
    let text = "
import numpy as np, pyarrow as pa
def jitter(batch):
    image = batch.column('image')
    assert type(image).__name__ == 'FixedShapeTensorArray', type(image)
    array = image.to_numpy_ndarray()
    return pa.record_batch({'image': pa.FixedShapeTensorArray.from_numpy_ndarray(np.ascontiguousarray(array[:, ::-1] + 1).astype(np.float32))})
";
    let item = Arc::new(Field::new("item", DataType::UInt8, false));
    let metadata = HashMap::from([
        ("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned()),
        ("ARROW:extension:metadata".to_owned(), r#"{"shape":[2,3]}"#.to_owned()),
    ]);
    let field = Field::new("image", DataType::FixedSizeList(item.clone(), 6), false).with_metadata(metadata);
    let values = Arc::new(UInt8Array::from_iter_values(0..6));
    let image = FixedSizeListArray::new(item, 6, values, None);
    let schema = Arc::new(Schema::new(vec![Field::new("_id", DataType::Int64, false), field]));
    let batch = RecordBatch::try_new(schema.clone(), vec![Arc::new(Int64Array::from(vec![1])), Arc::new(image)]).unwrap();
    let step = step(&pool(1), text).await;
    let announced = step.output_schema(&schema).await.unwrap();
    let out = step.call(batch, 0, 0).await.unwrap();
    assert_eq!(out.schema(), announced);
    let DataType::FixedSizeList(item, 6) = out.schema().field(0).data_type().clone() else { panic!("{}", out.schema()) };
    assert_eq!(*item, Field::new("item", DataType::Float32, false));
    assert_eq!(out.schema().field(0).metadata()["ARROW:extension:name"], "arrow.fixed_shape_tensor");
    let values = out.column(0).as_fixed_size_list().values().as_primitive::<arrow::datatypes::Float32Type>().clone();
    assert_eq!(values.values(), &[4.0, 5.0, 6.0, 1.0, 2.0, 3.0]);
}

#[tokio::test(flavor = "multi_thread")]
async fn modules_of_one_name_do_not_mix_and_seats_are_bounded() {
    let pool = pool(2);
    let pid = |tag: i64| {
        format!(
            "
import os, pyarrow as pa
def jitter(batch):
    return pa.record_batch({{'y': pa.array([{tag}.0] * batch.num_rows, pa.float64()), 'pid': pa.array([os.getpid()] * batch.num_rows, pa.int64())}})
"
        )
    };
    let mut steps = vec![];
    for tag in 0..3 {
        steps.push(Arc::new(step(&pool, &pid(tag)).await));
    }
    let mut calls = tokio::task::JoinSet::new();
    for i in 0..24 {
        let step = steps[i % 3].clone();
        calls.spawn(async move { (i % 3, step.call(batch(0..10), 0, 0).await.unwrap()) });
    }
    while let Some(done) = calls.join_next().await {
        let (tag, out) = done.unwrap();
        assert!(y(&out).iter().all(|v| *v == tag as f64));
    }
    assert!(pool.idle() <= 2, "{} processes idle", pool.idle());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_call_and_a_dropped_pool_leave_no_process() {
    let text = "
import os, time, pyarrow as pa
def jitter(batch):
    if batch.num_rows > 1:
        time.sleep(600)
    return pa.record_batch({'y': pa.array([float(os.getpid())] * batch.num_rows, pa.float64())})
";
    let pool = pool(1);
    let step = step(&pool, text).await;
    let first = y(&step.call(batch(0..1), 0, 0).await.unwrap())[0] as u32;
    assert!(tokio::time::timeout(Duration::from_millis(500), step.call(batch(0..2), 0, 0)).await.is_err());
    let second = y(&step.call(batch(0..1), 0, 0).await.unwrap())[0] as u32;
    assert_ne!(first, second, "a process in the middle of a call was used again");
    drop(step);
    drop(pool);
    let start = Instant::now();
    while [first, second].iter().any(|pid| alive(*pid)) {
        assert!(start.elapsed() < Duration::from_secs(10), "a process outlived its pool");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn idle_processes_are_ended_and_come_back_when_needed() {
    let pool = PythonPool::new(PythonConfig { processes: 1, idle_timeout: Duration::from_secs(1), ..PythonConfig::default() });
    let step = step(&pool, DOUBLE).await;
    let start = Instant::now();
    while pool.idle() > 0 {
        assert!(start.elapsed() < Duration::from_secs(10), "an idle process stays");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    assert_eq!(y(&step.call(batch(1..2), 0, 0).await.unwrap()), [2.0]);
}

/// Running, and not a zombie.
fn alive(pid: u32) -> bool {
    std::fs::read_to_string(format!("/proc/{pid}/stat")).is_ok_and(|stat| !stat.contains(") Z "))
}

#[tokio::test(flavor = "multi_thread")]
async fn packages_import_their_own_modules() {
    let modules = BTreeMap::from([
        ("kit".to_owned(), "from kit.inner import jitter\n".to_owned()),
        ("kit.inner".to_owned(), "import helper\ndef jitter(batch):\n    return helper.same(batch)\n".to_owned()),
        ("helper".to_owned(), "def same(batch):\n    return batch\n".to_owned()),
    ]);
    let step = pool(1).load(modules, "kit", "jitter", BTreeMap::new()).await.unwrap();
    assert_eq!(step.call(batch(0..3), 0, 0).await.unwrap(), batch(0..3));
}
