//! Whatever epochs are published and replaced: each version holds exactly what a plain model says. (Checkpoints are other writers' work:
//! `python/tests/test_storage_foreign_writer.py`.)

use forebay_core::ids::{EpochId, VersionId};
use forebay_core::pipeline::Compression;
use proptest::prelude::*;
use std::collections::BTreeMap;

use super::super::{EpochCommit, commit_at, commit_body, open_version};
use crate::root::Root;
use crate::shard::tests::{epoch_commit, name, output, read_all, rows, write};

#[derive(Debug, Clone)]
enum Step {
    /// Publishes the lowest epoch that isn't there, with this many rows.
    Publish(usize),
    /// Replaces everything by one epoch with this many rows.
    Replace(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0_usize..4).prop_map(Step::Publish),
        1 => (0_usize..4).prop_map(Step::Replace),
    ];
    proptest::collection::vec(step, 1..10)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    #[test]
    fn every_version_is_what_was_published(steps in steps()) {
        let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().unwrap();
        runtime.block_on(check(steps))?;
    }
}

/// Epoch -> first id and rows.
type Model = BTreeMap<u32, (i64, usize)>;

async fn check(steps: Vec<Step>) -> Result<(), TestCaseError> {
    let folder = tempfile::tempdir().unwrap();
    let root = Root::open(folder.path().to_str().unwrap(), true).await.unwrap();
    let mut models: Vec<Model> = Vec::new();
    for (n, step) in steps.into_iter().enumerate() {
        let mut model = models.last().cloned().unwrap_or_default();
        let (count, replace) = match step {
            Step::Publish(count) => (count, false),
            Step::Replace(count) => (count, true),
        };
        let epoch = if replace { 0 } else { (0..).find(|e| !model.contains_key(e)).unwrap() };
        let first = n as i64 * 1000;
        let shards = write(&root, epoch, 0, &[rows(first, count)], &output(1 << 30, Compression::Lz4)).await;
        let previous = if models.is_empty() { None } else { Some(open_version(&root, &name(), None).await.unwrap()) };
        let commit = EpochCommit { replace, ..epoch_commit(epoch, rows(0, 1).schema(), shards) };
        let body = commit_body(previous.as_deref(), &commit).unwrap();
        commit_at(&root, &name(), VersionId(models.len() as u64), &body).await.unwrap();
        if replace {
            model.clear();
        }
        model.insert(epoch, (first, count));
        models.push(model);
    }
    for (version, model) in models.iter().enumerate() {
        let opened = open_version(&root, &name(), Some(VersionId(version as u64))).await.unwrap();
        prop_assert_eq!(opened.epochs(), model.keys().map(|e| EpochId(*e)).collect::<Vec<_>>());
        for (epoch, (first, count)) in model {
            prop_assert_eq!(opened.rows(EpochId(*epoch)), *count as u64);
            if *count > 0 {
                prop_assert_eq!(read_all(&root, &opened, *epoch, None).await, rows(*first, *count));
            }
        }
    }
    Ok(())
}
