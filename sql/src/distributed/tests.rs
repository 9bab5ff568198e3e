//! Where shards go, and what crosses between processes.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::{DataType, Field, Schema};
use datafusion::physical_plan::ExecutionPlan;
use datafusion::prelude::SessionContext;
use datafusion_proto::physical_plan::{DefaultPhysicalProtoConverter, PhysicalExtensionCodec};
use forebay_core::ids::{DatasetName, EpochId, VersionId};
use forebay_storage::root::Root;
use url::Url;

use super::codec::ScanCodec;
use super::place::Places;
use crate::catalog::scan::{Group, Pinned, RowGroupScan};

async fn scan(root: &Root, shards: usize) -> RowGroupScan {
    let group = |shard: usize, row_group| Group { shard, row_group, epoch: EpochId(0), rows: 10, bytes: 100 };
    let groups = (0..shards).flat_map(|shard| [group(shard, 0), group(shard, 1)]).collect();
    let pinned = Pinned::new(DatasetName::parse("orders").unwrap(), VersionId(3), "table".into());
    let tensor = Field::new("image", DataType::FixedSizeBinary(4), false).with_metadata([("k".to_owned(), "v".to_owned())].into());
    let schema = Arc::new(Schema::new(vec![Field::new("n", DataType::Int64, true), tensor]));
    RowGroupScan::pinned(root.clone(), pinned, schema, vec![groups, Vec::new()], 2 * shards)
}

async fn root(folder: &tempfile::TempDir) -> Root {
    Root::open(folder.path().to_str().unwrap(), true).await.unwrap()
}

fn workers(count: usize) -> Vec<Url> {
    (0..count).map(|n| Url::parse(&format!("http://w{n}:7070")).unwrap()).collect()
}

#[tokio::test]
async fn every_row_group_has_one_place_and_few_move_when_a_worker_comes() {
    let folder = tempfile::tempdir().unwrap();
    let root = root(&folder).await;
    let scan = scan(&root, 60).await;
    let place = |count: usize| -> BTreeMap<usize, usize> {
        let shares = Places::new(workers(count)).shares(&scan, count);
        assert_eq!(shares.iter().map(Vec::len).sum::<usize>(), 120);
        let most = shares.iter().map(|s| s.iter().map(|g| g.bytes).sum::<u64>()).max().unwrap();
        assert!(most <= 12_000 / count as u64 * 5 / 4, "{most} bytes of 12000 on one of {count}");
        shares.iter().enumerate().flat_map(|(worker, share)| share.iter().map(move |g| (g.shard, worker))).collect()
    };
    let (three, four) = (place(3), place(4));
    assert_eq!(three, place(3));
    let moved = three.iter().filter(|(shard, worker)| four.get(shard) != Some(worker)).count();
    assert!(moved <= 30, "{moved} of 60 shards moved");
    // Few shards are divided further.
    let scan = self::scan(&root, 2).await;
    let shares = Places::new(workers(4)).shares(&scan, 4);
    assert_eq!(shares.iter().map(Vec::len).collect::<Vec<_>>(), [1, 1, 1, 1]);
}

#[tokio::test]
async fn a_scan_is_carried_as_names_and_numbers() {
    let folder = tempfile::tempdir().unwrap();
    let root = root(&folder).await;
    let (codec, converter, context) = (ScanCodec::new(root.clone()), DefaultPhysicalProtoConverter {}, SessionContext::new().task_ctx());
    let sent: Arc<dyn ExecutionPlan> = Arc::new(scan(&root, 3).await);
    let mut bytes = Vec::new();
    codec.try_encode(sent.clone(), &mut bytes, &converter).unwrap();
    let read = codec.try_decode(&bytes, &[], &context, &converter).unwrap();
    assert_eq!(read.schema(), sent.schema());
    let (read, sent) = (read.downcast_ref::<RowGroupScan>().unwrap(), sent.downcast_ref::<RowGroupScan>().unwrap());
    assert_eq!(read.parts(), sent.parts());
    assert_eq!((&read.dataset().name, read.dataset().version), (&sent.dataset().name, VersionId(3)));
    // A name that leads out of the root is none.
    let text = String::from_utf8_lossy(&bytes).into_owned();
    assert!(text.contains("\"orders\""));
    let at = bytes.windows(8).position(|w| w == b"\"orders\"").unwrap();
    let mut evil = bytes.clone();
    evil.splice(at..at + 8, b"\"../../x\"".iter().copied());
    assert!(codec.try_decode(&evil, &[], &context, &converter).is_err());
    for cut in [0, 3, 10, bytes.len() - 1] {
        assert!(codec.try_decode(&bytes[..cut], &[], &context, &converter).is_err(), "cut at {cut}");
    }
}
