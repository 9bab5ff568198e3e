//! How the journal's database is set up: durable within milliseconds, small in memory, and swept.

use slatedb::Db;
use slatedb::config::{
    CompactionWorkerOptions, CompactorOptions, GarbageCollectorDirectoryOptions, GarbageCollectorOptions, GarbageCollectorScheduleOptions,
    Settings,
};
use std::time::Duration;

use super::JOURNAL_PATH;
use crate::root::Root;

/// Age at which a log file that a table has taken in is swept.
pub(super) const SWEEP_AGE: Duration = Duration::from_secs(60);
const MIB: usize = 1 << 20;
/// Tables waiting for compaction below which closing adds one more.
pub(super) const FOLD_ON_CLOSE_BELOW: usize = 5;
/// How often a store's error is tried again (0.1 s, doubling to 1 s): a full or read-only disk is told within seconds, a remote store has time to recover.
const LOCAL_RETRIES: u32 = 4;
const REMOTE_RETRIES: u32 = 30;

pub(super) async fn open(root: &Root) -> Result<Db, slatedb::Error> {
    Db::builder(JOURNAL_PATH, root.journal_store())
        .with_settings(settings(root.local_path().is_some()))
        // It is read once, when it is opened.
        .with_db_cache_disabled()
        .build()
        .await
}

fn settings(local: bool) -> Settings {
    Settings {
        // Appends within this time share one object; it is the floor of an append's latency.
        flush_interval: Some(Duration::from_millis(1)),
        manifest_poll_interval: Duration::from_secs(1),
        l0_sst_size_bytes: 2 * MIB,
        max_unflushed_bytes: 32 * MIB,
        l0_max_ssts: 16,
        l0_max_ssts_per_key: 16,
        l0_flush_parallelism: 1,
        compactor_options: Some(compactor()),
        garbage_collector_options: Some(garbage(SWEEP_AGE, local)),
        object_store_max_retries: Some(if local { LOCAL_RETRIES } else { REMOTE_RETRIES }),
        ..Settings::default()
    }
}

fn compactor() -> CompactorOptions {
    let scheduler = [("min_compaction_sources", "3"), ("max_compaction_sources", "16"), ("sorted_run_consolidation_threshold", "3")];
    CompactorOptions {
        poll_interval: Duration::from_secs(1),
        max_concurrent_compactions: 1,
        scheduler_options: scheduler.iter().map(|(k, v)| ((*k).to_owned(), (*v).to_owned())).collect(),
        worker: Some(CompactionWorkerOptions {
            max_concurrent_compactions: 1,
            compactions_poll_interval: Duration::from_secs(1),
            max_sst_size: 32 * MIB,
            max_fetch_tasks: 1,
            bytes_to_fetch: MIB / 4,
            max_subcompactions: 1,
            ..CompactionWorkerOptions::default()
        }),
        ..CompactorOptions::default()
    }
}

/// Sweeps files that nothing names any more and that are older than `age`, tables and manifests than five times that: a reader that opened just
/// before has this long to finish. A fence object outlives every writer that might still try to write at its place.
fn garbage(age: Duration, local: bool) -> GarbageCollectorOptions {
    let directory =
        |seconds, min_age| Some(GarbageCollectorDirectoryOptions { interval: Some(Duration::from_secs(seconds)), min_age, dry_run: false });
    GarbageCollectorOptions {
        manifest_options: directory(60, age * 5),
        wal_options: directory(30, age),
        wal_fence_options: directory(3600, Duration::from_hours(7 * 24)),
        compacted_options: directory(60, age * 5),
        compactions_options: directory(60, age * 5),
        detach_options: Some(GarbageCollectorScheduleOptions { interval: Some(Duration::from_mins(10)) }),
        // Local stores can't update an object conditionally. They need not: the root's lock lets no second owner in while a stale one lives.
        boundary_files_enabled: !local,
        ..GarbageCollectorOptions::default()
    }
}

/// The collector's first tick comes an interval after opening, which a short-lived process never sees; so each opening sweeps once.
pub(super) async fn sweep_once(root: Root, age: Duration) {
    let admin = slatedb::admin::AdminBuilder::new(JOURNAL_PATH, root.journal_store()).build();
    let local = root.local_path().is_some();
    if let Err(error) = admin.run_gc_once(garbage(age, local)).await {
        tracing::debug!(%error, "sweeping the journal failed");
    }
}
