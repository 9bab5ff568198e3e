//! However rows arrive and wherever row groups and shards end, the rows that are read are the rows that were written, in their order.

use arrow::array::*;
use arrow::compute::concat_batches;
use arrow::datatypes::*;
use forebay_core::ids::EpochId;
use forebay_core::pipeline::Compression;
use forebay_core::random::Rng;
use proptest::prelude::*;
use std::sync::Arc;

use super::{epoch_commit, output, publish, write};
use crate::root::Root;
use crate::shard::read_row_group;

/// Rows whose sizes differ wildly: blobs of up to 300 KB, most of them small.
fn batch(from: i64, rows: usize, rng: &mut Rng) -> RecordBatch {
    let blobs = (0..rows).map(|_| match rng.below(12) {
        0 => None,
        1 => Some(vec![rng.next_u64() as u8; rng.below(300_000) as usize]),
        _ => Some(vec![rng.next_u64() as u8; rng.below(20) as usize]),
    });
    let blobs: BinaryArray = blobs.collect();
    let tokens = (0..rows).map(|_| Some((0..rng.below(5)).map(|v| Some(v as i32)).collect::<Vec<_>>()));
    let columns: Vec<ArrayRef> = vec![
        Arc::new(Int64Array::from_iter_values(from..from + rows as i64)),
        Arc::new(blobs),
        Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>(tokens)),
    ];
    let schema = Schema::new(vec![
        Field::new("_id", DataType::Int64, false),
        Field::new("blob", DataType::Binary, true),
        Field::new("tokens", DataType::new_list(DataType::Int32, true), true),
    ]);
    RecordBatch::try_new(Arc::new(schema), columns).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(12))]

    #[test]
    fn rows_are_those_written(sizes in proptest::collection::vec(0_usize..400, 1..6), shard_size in 1_u64..8_000_000, seed: u64) {
        let runtime = tokio::runtime::Builder::new_current_thread().build().unwrap();
        runtime.block_on(async {
            let mut rng = Rng::new(seed);
            let mut batches = Vec::new();
            let mut next = 0;
            for rows in sizes {
                batches.push(batch(next, rows, &mut rng));
                next += rows as i64;
            }
            let root = Root::open("memory://", true).await.unwrap();
            let shards = write(&root, 0, 0, &batches, &output(shard_size, Compression::Lz4)).await;
            let all = concat_batches(&batches[0].schema(), &batches).unwrap();
            prop_assert_eq!(shards.iter().map(|s| s.rows()).sum::<u64>(), all.num_rows() as u64);
            for group in shards.iter().flat_map(|s| &s.row_groups) {
                // One row more than the target at most, and the target is 4 MiB.
                prop_assert!(group.bytes < (4 << 20) + 400_000, "{:?}", group);
            }
            let version = publish(&root, &epoch_commit(0, all.schema(), shards)).await;
            let mut at = 0;
            for (shard, group, meta) in version.row_groups(EpochId(0)) {
                let rows = usize::try_from(meta.rows).unwrap();
                let from = rng.below(meta.rows + 1);
                let to = from + rng.below(meta.rows - from + 1);
                let read = read_row_group(&root, &version, shard, group, None, Some(from..to)).await.unwrap();
                let read = concat_batches(&all.schema(), &read).unwrap();
                prop_assert_eq!(read, all.slice(at + from as usize, (to - from) as usize));
                let whole = read_row_group(&root, &version, shard, group, None, None).await.unwrap();
                prop_assert_eq!(concat_batches(&all.schema(), &whole).unwrap(), all.slice(at, rows));
                at += rows;
            }
            prop_assert_eq!(at, all.num_rows());
            Ok(())
        })?;
    }
}
