//! Which worker reads which shards.
//!
//! Each shard belongs to the worker with the highest hash of (worker, shard), so that it is read by the same one in every query, whose caches have its
//! footer and pages; another worker that comes or goes moves only its own share. A worker that has a quarter more than its share passes
//! further shards on to the next in their order.

use std::sync::Arc;

use datafusion::common::Result as DfResult;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::physical_plan::ExecutionPlan;
use datafusion_distributed::{
    DesiredTaskCountEvent, DesiredTaskCountEventResponse, DistributedLeafExec, RouteTasksEvent, RouteTasksEventResponse,
    ScaleUpLeafNodeEvent, ScaleUpLeafNodeEventResponse,
};
use forebay_core::random;
use url::Url;

use crate::catalog::scan::{Group, RowGroupScan};

/// The workers of one query, in an order that all its stages share.
#[derive(Debug, Clone)]
pub(super) struct Places {
    workers: Arc<[Url]>,
}

/// Row groups that stay together, and the text that their place hangs on.
struct Unit {
    key: String,
    groups: Vec<Group>,
    bytes: u64,
}

impl Places {
    pub(super) fn new(mut workers: Vec<Url>) -> Self {
        workers.sort();
        workers.dedup();
        Self { workers: workers.into() }
    }

    pub(super) fn workers(&self) -> &[Url] {
        &self.workers
    }

    /// A scan is read by all workers.
    pub(super) fn desired(&self, event: DesiredTaskCountEvent<'_>) -> Option<DfResult<DesiredTaskCountEventResponse>> {
        let scan = event.plan.downcast_ref::<RowGroupScan>()?;
        let most = scan.chosen().count().clamp(1, self.workers.len().max(1));
        Some(Ok(if scan.has_text() { DesiredTaskCountEventResponse::maximum(1) } else { DesiredTaskCountEventResponse::desired(most) }))
    }

    /// Divides a scan's row groups among the first `task_count` workers.
    pub(super) fn scale_up(&self, event: ScaleUpLeafNodeEvent<'_>) -> Option<DfResult<ScaleUpLeafNodeEventResponse>> {
        let scan = event.plan.downcast_ref::<RowGroupScan>()?;
        let partitions = event.session_config.target_partitions();
        let shares = self.shares(scan, event.task_count);
        let variants = shares.into_iter().map(|groups| Arc::new(scan.of_groups(groups, partitions)) as Arc<dyn ExecutionPlan>);
        let leaf = DistributedLeafExec::try_new(Arc::clone(event.plan), variants);
        Some(leaf.map(|leaf| ScaleUpLeafNodeEventResponse::new(Arc::new(leaf))))
    }

    /// Sends the tasks of a stage that reads shards to the workers that these were given to; all others go anywhere.
    pub(super) fn route(&self, event: &RouteTasksEvent<'_>) -> Option<DfResult<RouteTasksEventResponse>> {
        let reads = reads_shards(event.plan);
        (event.task_count > 1 && reads)
            .then(|| self.workers.get(..event.task_count))
            .flatten()
            .map(|urls| Ok(RouteTasksEventResponse::new(urls.to_vec())))
    }

    pub(super) fn shares(&self, scan: &RowGroupScan, count: usize) -> Vec<Vec<Group>> {
        let workers: Vec<&str> = self.workers.iter().take(count).map(Url::as_str).collect();
        let units = units(scan, count);
        let total: u64 = units.iter().map(|u| u.bytes).sum();
        let room = total / count.max(1) as u64 * 5 / 4;
        let mut shares = vec![Vec::new(); count.max(1)];
        let mut loads = vec![0_u64; shares.len()];
        for unit in units {
            let mut order: Vec<usize> = (0..shares.len()).collect();
            let weight = |worker: usize| random::text_key(&format!("{}\n{}", workers.get(worker).unwrap_or(&""), unit.key));
            order.sort_by_key(|worker| std::cmp::Reverse(weight(*worker)));
            let fits = order.iter().copied().find(|w| loads[*w] == 0 || loads[*w] + unit.bytes <= room);
            let place = fits.or_else(|| (0..loads.len()).min_by_key(|w| loads[*w])).unwrap_or(0);
            loads[place] += unit.bytes;
            shares[place].extend(unit.groups);
        }
        // In storage order, as a scan that is not divided reads them.
        shares.iter_mut().for_each(|share| share.sort_by_key(|g| (g.shard, g.row_group)));
        shares
    }
}

/// Whole shards where there are enough of them, else their row groups.
fn units(scan: &RowGroupScan, workers: usize) -> Vec<Unit> {
    let pinned = scan.dataset();
    let path = |shard: usize| {
        let known = pinned.known().and_then(|v| v.shards.get(shard)).map(|s| s.path.clone());
        format!("{}/{}", pinned.name, known.unwrap_or_else(|| shard.to_string()))
    };
    let mut shards: Vec<Unit> = Vec::new();
    let mut last = None;
    for group in scan.chosen() {
        match shards.last_mut().filter(|_| last == Some(group.shard)) {
            Some(unit) => {
                unit.groups.push(*group);
                unit.bytes += group.bytes;
            }
            None => shards.push(Unit { key: path(group.shard), groups: vec![*group], bytes: group.bytes }),
        }
        last = Some(group.shard);
    }
    if shards.len() >= 2 * workers {
        return shards;
    }
    let split = |unit: Unit| {
        let key = unit.key;
        unit.groups.into_iter().map(move |g| Unit { key: format!("{key}#{}", g.row_group), groups: vec![g], bytes: g.bytes })
    };
    shards.into_iter().flat_map(split).collect()
}

fn reads_shards(plan: &Arc<dyn ExecutionPlan>) -> bool {
    let mut reads = false;
    // Only the closure could fail.
    let _ = plan.apply(|node| {
        reads = reads || node.downcast_ref::<DistributedLeafExec>().is_some_and(|leaf| leaf.original().is::<RowGroupScan>());
        Ok(if reads { TreeNodeRecursion::Stop } else { TreeNodeRecursion::Continue })
    });
    reads
}
