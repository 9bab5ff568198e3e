#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::fixture::{Fixture, NO_CACHE, ROOMY, Shape, settings};
use super::super::pass::PassPlan;
use super::super::window::tests::all;
use forebay_core::ids::{EpochId, PassId, WindowId};
use forebay_core::job::{JobSettings, Order};
use forebay_storage::delta::DatasetVersion;
use std::collections::BTreeSet;
use std::sync::Arc;

/// I7 across a publication: the rows and keys of what is read while tasks are missing are those of the published epoch, and streams that know more or
/// less of the epoch share windows.
#[tokio::test]
async fn what_is_read_while_it_is_written_is_what_is_published() {
    let fixture = Fixture::new(Shape::default()).await;
    let mut version = DatasetVersion::clone(&fixture.version);
    let tasks: BTreeSet<_> = version.shards.iter().map(|s| s.task).collect();
    for shard in &mut version.shards {
        // Neither the order of tasks nor its reverse.
        shard.staging = Some(u64::from(shard.task.0) * 5 % 12);
    }
    let settings = JobSettings { order: Order::Staged, ..settings() };
    let version = Arc::new(version);
    let whole = Arc::new(PassPlan::new(Arc::clone(&version), EpochId(0), PassId(0), &settings, None).unwrap());
    let published = all(&fixture.reader(ROOMY), &whole, None).await.unwrap();
    assert_eq!(published.len() as u64, whole.plan.batches());
    let ids: BTreeSet<i64> = published.iter().flat_map(|(_, found)| found.ids.clone()).collect();
    assert_eq!(ids.len(), 557, "every row once");

    let (warm, mut seen) = (fixture.reader(ROOMY), BTreeSet::new());
    for known in 0..=12 {
        let mut part = DatasetVersion::clone(&version);
        part.version = DatasetVersion::UNPUBLISHED;
        part.shards.retain(|s| s.staging.unwrap() < known);
        let part = Arc::new(PassPlan::staged(Arc::new(part), EpochId(0), PassId(0), &settings, false).unwrap());
        assert!(!part.is_published() && part.plan.windows() <= whole.plan.windows());
        seen.insert(part.plan.windows());
        for reader in [&warm, &fixture.reader(NO_CACHE)] {
            for ((rows, found), (wanted, expected)) in all(reader, &part, None).await.unwrap().iter().zip(&published) {
                assert_eq!((rows, found), (wanted, expected));
            }
        }
        for window in (0..part.plan.windows()).map(WindowId) {
            assert_eq!(part.stamp(window), whole.stamp(window));
        }
    }
    assert!(seen.len() > 3, "the epoch grew in few steps only: {seen:?} windows, {} tasks", tasks.len());
    let plain = PassPlan::new(version, EpochId(0), PassId(0), &JobSettings { order: Order::Published, ..settings }, None).unwrap();
    assert_ne!(plain.stamp(WindowId(0)), whole.stamp(WindowId(0)));
}
