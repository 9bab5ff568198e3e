#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::cache::Admission;
use super::super::fixture::{Fixture, NO_CACHE, ROOMY, Shape, settings, value_of};
use super::super::pass::PassPlan;
use super::super::served::Served;
use super::super::{Reader, ServeLimits};
use super::{BatchOfRows, WindowData};
use arrow::array::{Array, AsArray, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::{Float64Type, Int32Type, Int64Type};
use forebay_core::digest::batch_digest;
use forebay_core::ids::{BatchId, EpochId, PassId, WindowId};
use forebay_core::job::JobSettings;
use forebay_core::plan::{Bitmap, Selection};
use forebay_core::{Kind, Result};
use std::collections::BTreeSet;
use std::sync::Arc;

async fn load(reader: &Reader, pass: &Arc<PassPlan>, served: &Arc<Served>, window: u64) -> Result<Arc<WindowData>> {
    let handle = reader.loader.handle(pass, served, WindowId(window));
    Ok(reader.loader.load(&handle, pass, served, WindowId(window), Admission::Wait).await?.unwrap())
}

fn plan(fixture: &Fixture, settings: &JobSettings, pass: u32, selection: Option<Arc<Selection>>) -> Arc<PassPlan> {
    let selection = selection.map(|s| ("filter".to_owned(), s));
    Arc::new(PassPlan::new(fixture.version.clone(), EpochId(0), PassId(pass), settings, selection).unwrap())
}

fn gather(data: &WindowData, found: &BatchOfRows) -> RecordBatch {
    let chunks: Vec<&RecordBatch> = data.chunks.iter().collect();
    let rows: Vec<(usize, usize)> = found.rows.iter().map(|(c, r)| (*c as usize, *r as usize)).collect();
    interleave_record_batch(&chunks, &rows).unwrap()
}

/// Every batch of a pass, as rows and keys, loaded one window after the other.
pub(crate) async fn all(reader: &Reader, pass: &Arc<PassPlan>, columns: Option<&[String]>) -> Result<Vec<(RecordBatch, BatchOfRows)>> {
    let served = reader.served(&pass.version, &with_columns(columns)).await?;
    let mut out = Vec::new();
    for window in 0..pass.plan.windows() {
        let data = load(reader, pass, &served, window).await?;
        for batch in pass.plan.batches_of(WindowId(window)).map(BatchId) {
            let found = data.batch(batch, pass.plan.batch_rows(batch))?;
            assert_eq!(found.digest, batch_digest(&found.ids, found.parts.as_deref()));
            let rows = gather(&data, &found);
            let settings = pass.plan.settings();
            let rows = if served.behind.is_some() { served.make(settings.seed, settings.pass, rows).await? } else { rows };
            out.push((rows, found));
        }
    }
    Ok(out)
}

fn with_columns(columns: Option<&[String]>) -> JobSettings {
    JobSettings { columns: columns.map(<[String]>::to_vec), ..settings() }
}

fn names(columns: &[&str]) -> Vec<String> {
    columns.iter().map(|c| (*c).to_owned()).collect()
}

#[tokio::test]
async fn every_row_comes_once_with_its_own_values() {
    let fixture = Fixture::new(Shape::default()).await;
    let reader = fixture.reader(ROOMY);
    let pass = plan(&fixture, &settings(), 0, None);
    assert!(pass.plan.windows() > 3, "the test needs several windows, has {}", pass.plan.windows());
    assert_eq!((pass.version.shards.len(), pass.groups.len()), (11, 11));
    let batches = all(&reader, &pass, None).await.unwrap();
    let mut seen = BTreeSet::new();
    for (rows, found) in &batches {
        assert_eq!(rows.schema(), pass.version.schema);
        let ids = rows.column_by_name("_id").unwrap().as_primitive::<Int64Type>();
        let values = rows.column_by_name("value").unwrap().as_primitive::<Int32Type>();
        assert_eq!(ids.values(), &found.ids[..]);
        for (id, value) in ids.values().iter().zip(values.values()) {
            assert_eq!(*value, value_of(*id, 0));
            assert!(seen.insert(*id), "row {id} came twice");
        }
    }
    assert_eq!(seen, (0..557).collect());
    assert!(!batches[0].1.ids.is_sorted(), "a window is shuffled");
    assert_eq!(reader.usage().pinned_bytes, 0);
}

#[tokio::test]
async fn row_groups_inside_a_shard_are_cut_at_windows() {
    let fixture = Fixture::new(Shape { tasks: vec![400], text_bytes: 40_000, ..Shape::default() }).await;
    let reader = fixture.reader(ServeLimits { cache: 5 << 20, in_use: 64 << 20 });
    let settings = JobSettings { window: 5 << 20, ..settings() };
    let pass = plan(&fixture, &settings, 0, None);
    assert!(pass.version.shards.len() == 1 && pass.groups.len() > 2 && pass.plan.windows() > 2);
    let seen: Vec<i64> = all(&reader, &pass, None).await.unwrap().into_iter().flat_map(|(_, found)| found.ids).collect();
    assert_eq!(seen.len(), 400);
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), (0..400).collect());
    assert!(reader.usage().idle_bytes <= 5 << 20);
}

/// I7: the same identity gives the same bytes, cold or cached, whole or projected, from another reader.
#[tokio::test]
async fn a_batch_is_the_same_however_it_is_read() {
    let fixture = Fixture::new(Shape::default()).await;
    let pass = plan(&fixture, &settings(), 3, None);
    let warm = fixture.reader(ROOMY);
    let first = all(&warm, &pass, None).await.unwrap();
    let cached = all(&warm, &pass, None).await.unwrap();
    let cold = all(&fixture.reader(NO_CACHE), &pass, None).await.unwrap();
    let tiny = all(&fixture.reader(ServeLimits { cache: 0, in_use: 1 }), &pass, None).await.unwrap();
    assert_eq!(first, cached);
    assert_eq!(first, cold);
    assert_eq!(first, tiny, "a window larger than all memory is used and dropped");
    let columns = names(&["text", "value"]);
    for (whole, projected) in first.iter().zip(all(&warm, &pass, Some(&columns)).await.unwrap()) {
        assert_eq!(projected.0.schema().fields().iter().map(|f| f.name().as_str()).collect::<Vec<_>>(), ["text", "value"]);
        assert_eq!(projected.0.column(0), whole.0.column_by_name("text").unwrap());
        assert_eq!(projected.0.column(1), whole.0.column_by_name("value").unwrap());
        assert_eq!((&projected.1.ids, projected.1.digest), (&whole.1.ids, whole.1.digest), "the digest does not depend on the columns");
    }
}

#[tokio::test]
async fn passes_order_the_same_rows_differently() {
    let fixture = Fixture::new(Shape::default()).await;
    let reader = fixture.reader(ROOMY);
    let mut orders = BTreeSet::new();
    for number in 0..3 {
        let pass = plan(&fixture, &settings(), number, None);
        let ids: Vec<i64> = all(&reader, &pass, None).await.unwrap().into_iter().flat_map(|(_, found)| found.ids).collect();
        assert_eq!(ids.iter().copied().collect::<BTreeSet<_>>().len(), 557);
        orders.insert(ids);
    }
    assert_eq!(orders.len(), 3);
}

#[tokio::test]
async fn a_filter_serves_exactly_its_rows() {
    let fixture = Fixture::new(Shape::default()).await;
    let reader = fixture.reader(ROOMY);
    let unfiltered = plan(&fixture, &settings(), 0, None);
    // Row groups are in key order here, so that ids run through them; the second row group keeps nothing.
    let mut id = 0;
    let bitmaps: Vec<Bitmap> = unfiltered
        .groups
        .iter()
        .enumerate()
        .map(|(g, (_, _, meta))| {
            let mut bitmap = Bitmap::new();
            for _ in 0..meta.rows {
                bitmap.push(id % 3 == 0 && g != 1).unwrap();
                id += 1;
            }
            bitmap
        })
        .collect();
    let (from, to) = (unfiltered.groups[0].2.rows as i64, (unfiltered.groups[0].2.rows + unfiltered.groups[1].2.rows) as i64);
    let pass = plan(&fixture, &settings(), 0, Some(Arc::new(Selection::from_bitmaps(bitmaps))));
    let batches = all(&reader, &pass, None).await.unwrap();
    let seen: Vec<i64> = batches.iter().flat_map(|(_, found)| found.ids.clone()).collect();
    let expected: BTreeSet<i64> = (0..557).filter(|id| id % 3 == 0 && !(from..to).contains(id)).collect();
    assert_eq!(seen.len(), expected.len());
    assert_eq!(seen.into_iter().collect::<BTreeSet<_>>(), expected);
    for (rows, found) in &batches {
        assert_eq!(rows.column_by_name("_id").unwrap().as_primitive::<Int64Type>().values(), &found.ids[..]);
    }
}

#[tokio::test]
async fn parts_are_in_the_key_and_in_the_digest() {
    let fixture = Fixture::new(Shape { parts: true, ..Shape::default() }).await;
    let reader = fixture.reader(ROOMY);
    let pass = plan(&fixture, &settings(), 0, None);
    let columns = names(&["value"]);
    let mut seen = BTreeSet::new();
    for (rows, found) in all(&reader, &pass, Some(&columns)).await.unwrap() {
        let values = rows.column(0).as_primitive::<Int32Type>();
        for (at, (id, part)) in found.ids.iter().zip(found.parts.unwrap()).enumerate() {
            assert_eq!(values.value(at), value_of(*id, part));
            assert!(seen.insert((*id, part)));
        }
    }
    assert_eq!(seen.len(), 2 * 557);
}

/// Streams of one job share a window; the cache outlives them; without a cache nothing does.
#[tokio::test]
async fn windows_are_shared_while_in_use_and_row_groups_longer() {
    let fixture = Fixture::new(Shape::default()).await;
    let (warm, cold) = (fixture.reader(ROOMY), fixture.reader(NO_CACHE));
    let pass = plan(&fixture, &settings(), 0, None);
    let served = warm.served(&pass.version, &settings()).await.unwrap();
    let (one, two) = (load(&warm, &pass, &served, 0).await.unwrap(), load(&warm, &pass, &served, 0).await.unwrap());
    assert!(!Arc::ptr_eq(&one, &two), "nobody held the handle in between");
    drop((one, two));
    let handle = warm.loader.handle(&pass, &served, WindowId(0));
    let (one, two) = (load(&warm, &pass, &served, 0).await.unwrap(), load(&warm, &pass, &served, 0).await.unwrap());
    assert!(Arc::ptr_eq(&one, &two));
    assert!(warm.usage().pinned_bytes > 0);
    drop((handle, one, two));
    let usage = warm.usage();
    assert!(usage.pinned_bytes == 0 && usage.idle_bytes > 0, "{usage:?}");

    drop(load(&cold, &pass, &served, 0).await.unwrap());
    assert_eq!((cold.usage().items, cold.usage().idle_bytes, cold.usage().pinned_bytes), (0, 0, 0));
    std::fs::remove_dir_all(fixture.folder.path().join("datasets/data/epoch=0")).unwrap();
    assert!(load(&warm, &pass, &served, 0).await.is_ok(), "the cache has it");
    let error = load(&cold, &pass, &served, 0).await.unwrap_err();
    assert!(matches!(error.kind, Kind::NotFound), "{error}");
    assert!(error.message.contains("epoch=0/"), "names the file: {error}");
    assert_eq!(cold.usage().pinned_bytes, 0, "a failed load holds nothing");
}

#[tokio::test]
async fn abandoned_loads_hold_nothing_and_do_no_harm() {
    let fixture = Fixture::new(Shape::default()).await;
    let reader = fixture.reader(NO_CACHE);
    let pass = plan(&fixture, &settings(), 0, None);
    let served = reader.served(&pass.version, &settings()).await.unwrap();
    for _ in 0..20 {
        let handle = reader.loader.handle(&pass, &served, WindowId(0));
        let loading = reader.loader.load(&handle, &pass, &served, WindowId(0), Admission::Wait);
        let _ = tokio::time::timeout(std::time::Duration::from_micros(200), loading).await;
    }
    assert_eq!(all(&reader, &pass, None).await.unwrap().len() as u64, pass.plan.batches());
    assert_eq!(reader.usage().pinned_bytes, 0);
}

#[tokio::test]
async fn columns_that_do_not_exist_are_named_with_the_nearest() {
    let fixture = Fixture::new(Shape::default()).await;
    let reader = fixture.reader(ROOMY);
    let error = reader.served(&fixture.version, &with_columns(Some(&names(&["valeu"])))).await.unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
    assert!(error.to_string().contains("`valeu`") && error.to_string().contains("value"), "{error}");
    let error = reader.served(&fixture.version, &with_columns(Some(&names(&["epoch"])))).await.unwrap_err();
    assert!(error.to_string().contains("app_metadata"), "{error}");
}

const JITTER: (&str, &str) = ("jitter", "SELECT value, random_uniform() AS noise, seed() AS s, epoch() AS e FROM input");

/// Draws behind the cut are keyed by the job's seed, the pass and the row: not by the window, the cache, the columns or the filter.
#[tokio::test]
async fn steps_behind_the_cut_draw_by_row_seed_and_pass() {
    let fixture = Fixture::new(Shape { behind: vec![JITTER], split: true, ..Shape::default() }).await;
    let reader = fixture.reader(ROOMY);
    let draws = async |settings: &JobSettings, number: u32, columns: Option<&[String]>| {
        let pass = plan(&fixture, settings, number, None);
        let mut out = std::collections::BTreeMap::new();
        for (rows, found) in all(&reader, &pass, columns).await.unwrap() {
            let noise = rows.column_by_name("noise").unwrap().as_primitive::<Float64Type>();
            for (id, noise) in found.ids.iter().zip(noise.values()) {
                out.insert(*id, noise.to_bits());
            }
        }
        assert_eq!(out.len(), 557);
        out
    };
    let first = draws(&settings(), 0, None).await;
    let small_windows = JobSettings { window: 1 << 10, batch_size: 7, ..settings() };
    assert_eq!(draws(&small_windows, 0, None).await, first, "not by the window");
    assert_eq!(draws(&settings(), 0, Some(&names(&["noise"]))).await, first, "not by the columns");
    assert_ne!(draws(&settings(), 1, None).await, first, "by the pass");
    assert_ne!(draws(&JobSettings { seed: 6, ..settings() }, 0, None).await, first, "by the seed");

    let pass = plan(&fixture, &settings(), 4, None);
    let (rows, found) = all(&reader, &pass, None).await.unwrap().swap_remove(0);
    let columns: Vec<String> = rows.schema().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(columns, ["_id", "_source", "value", "noise", "s", "e", "split"]);
    for (id, split) in found.ids.iter().zip(rows.column_by_name("split").unwrap().as_string::<i32>()) {
        assert_eq!(split.unwrap(), if id % 5 == 0 { "test" } else { "train" });
    }
    assert_eq!(rows.column_by_name("s").unwrap().to_data().buffers()[0].as_slice()[0], 5, "the job's seed");
    assert_eq!(rows.column_by_name("e").unwrap().to_data().buffers()[0].as_slice()[0], 4, "the pass");
    assert_eq!(reader.usage().pinned_bytes, 0);
}

#[tokio::test]
async fn a_row_that_fails_behind_the_cut_is_named() {
    let fixture = Fixture::new(Shape { behind: vec![("check", "SELECT 1 / (value - 7 * 123) AS x FROM input")], ..Shape::default() }).await;
    let reader = fixture.reader(ROOMY);
    let error = all(&reader, &plan(&fixture, &settings(), 0, None), None).await.unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
    assert!(error.message.contains("_id 123") && error.message.contains("file1.csv") && error.message.contains("check"), "{error}");
}

#[tokio::test]
async fn an_epoch_that_is_not_there_is_refused() {
    let fixture = Fixture::new(Shape::default()).await;
    let error = PassPlan::new(fixture.version.clone(), EpochId(4), PassId(0), &settings(), None).unwrap_err();
    assert_eq!(error.kind, Kind::FailedPrecondition);
    assert!(error.message.contains("no epoch 4"));
}

#[tokio::test]
async fn an_epoch_without_rows_has_no_windows() {
    let fixture = Fixture::new(Shape { tasks: vec![0], ..Shape::default() }).await;
    let pass = plan(&fixture, &settings(), 0, None);
    assert_eq!((pass.plan.windows(), pass.shape().rows), (0, 0));
}
