//! Reading row groups as a leaf of a query's plan: only the columns that are asked for, and none at all where counting is enough.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;

use arrow::array::{ArrayRef, Int32Array};
use arrow::datatypes::SchemaRef;
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::stats::Precision;
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{DataFusionError, Result as DfResult, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, Count, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties};
use forebay_core::ids::{DatasetName, EpochId, VersionId};
use forebay_core::{Error, Result};
use forebay_storage::delta::{DatasetVersion, open_version};
use forebay_storage::root::Root;
use forebay_storage::shard::{footer, read_row_group, read_selected};
use futures::{StreamExt, TryStreamExt, stream};
use serde::{Deserialize, Serialize};
use tokio::sync::OnceCell;

use super::table::EPOCH;
use super::text_rows::TextRows;
use crate::guard::from_error;

/// Row groups being read ahead per partition.
const AHEAD: usize = 2;

/// One row group of the version.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub(crate) struct Group {
    /// Index into the version's shards.
    pub shard: usize,
    pub row_group: usize,
    pub epoch: EpochId,
    pub rows: u64,
    /// Stored uncompressed size of all columns.
    pub bytes: u64,
}

/// A dataset at one version, which is there already or is opened when it is first read.
#[derive(Debug, Clone)]
pub(crate) struct Pinned {
    pub(crate) name: DatasetName,
    pub(crate) version: VersionId,
    /// The table's own id: a dataset that was dropped and made anew counts its versions from 0 again.
    pub(crate) table: String,
    open: Arc<OnceCell<Arc<DatasetVersion>>>,
}

impl Pinned {
    pub(crate) fn new(name: DatasetName, version: VersionId, table: String) -> Self {
        Self { name, version, table, open: Arc::default() }
    }

    fn of(version: Arc<DatasetVersion>) -> Self {
        let (name, number, table) = (version.name.clone(), version.version, version.table_id().to_owned());
        Self { name, version: number, table, open: Arc::new(OnceCell::new_with(Some(version))) }
    }

    /// The version, where it was opened.
    pub(crate) fn known(&self) -> Option<&Arc<DatasetVersion>> {
        self.open.get()
    }

    async fn get(&self, root: &Root) -> Result<Arc<DatasetVersion>> {
        let open = || async {
            let found = open_version(root, &self.name, Some(self.version)).await?;
            if found.table_id() != self.table {
                let gone = format!("dataset `{}` was dropped and made anew while it was read", self.name);
                return Err(Error::failed_precondition(gone).with_remedy("ask again"));
            }
            Ok(found)
        };
        self.open.get_or_try_init(open).await.cloned()
    }
}

/// What one partition needs to read its row groups.
#[derive(Clone)]
struct Reader {
    root: Root,
    pinned: Pinned,
    /// The stored columns to read, in the order of the output.
    columns: Arc<[String]>,
    schema: SchemaRef,
    /// Which rows, where a text filter chooses them.
    text: Option<Arc<TextRows>>,
}

pub(crate) struct RowGroupScan {
    reader: Reader,
    partitions: Vec<Vec<Group>>,
    /// Row groups of the whole version, for display.
    all: usize,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl fmt::Debug for RowGroupScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("RowGroupScan")
            .field("version", &self.reader.pinned.name)
            .field("columns", &self.reader.columns)
            .finish_non_exhaustive()
    }
}

impl RowGroupScan {
    pub(super) fn new(
        root: Root,
        version: Arc<DatasetVersion>,
        schema: SchemaRef,
        groups: Vec<Group>,
        all: usize,
        partitions: usize,
    ) -> Self {
        Self::pinned(root, Pinned::of(version), schema, divide(groups, partitions.max(1)), all)
    }

    /// A scan whose row groups are divided already.
    pub(crate) fn pinned(root: Root, pinned: Pinned, schema: SchemaRef, partitions: Vec<Vec<Group>>, all: usize) -> Self {
        let columns = schema.fields().iter().map(|f| f.name().clone()).filter(|n| n != EPOCH).collect();
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(partitions.len()),
            EmissionType::Incremental,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::NonCooperative);
        let reader = Reader { root, pinned, columns, schema, text: None };
        Self { reader, partitions, all, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }

    /// Reads only the rows that meet a text filter.
    pub(super) fn with_text(mut self, text: Option<Arc<TextRows>>) -> Self {
        self.reader.text = text;
        self
    }

    /// Rows of the row groups to read, and their uncompressed bytes.
    pub(super) fn planned(&self) -> (u64, u64) {
        self.chosen().fold((0, 0), |(rows, bytes), group| (rows + group.rows, bytes + group.bytes))
    }

    pub(crate) fn chosen(&self) -> impl Iterator<Item = &Group> {
        self.partitions.iter().flatten()
    }

    /// The same scan of some row groups, in exactly so many partitions.
    pub(crate) fn of_groups(&self, groups: Vec<Group>, partitions: usize) -> Self {
        let mut runs = divide(groups, partitions.max(1));
        runs.resize(partitions.max(1), Vec::new());
        let Reader { root, pinned, schema, .. } = self.reader.clone();
        Self::pinned(root, pinned, schema, runs, self.all)
    }

    /// Uncompressed stored bytes of the row groups, all columns.
    pub(crate) fn bytes(&self) -> u64 {
        self.chosen().map(|g| g.bytes).sum()
    }

    pub(crate) fn dataset(&self) -> &Pinned {
        &self.reader.pinned
    }

    pub(crate) fn parts(&self) -> (&[Vec<Group>], usize) {
        (&self.partitions, self.all)
    }

    /// Whether an index chooses its rows.
    pub(crate) fn has_text(&self) -> bool {
        self.reader.text.is_some()
    }
}

/// At most `n` runs of neighbouring row groups with about equally many rows; one empty run where there is nothing to read.
fn divide(groups: Vec<Group>, n: usize) -> Vec<Vec<Group>> {
    let total: u64 = groups.iter().map(|g| g.rows).sum();
    let share = total.div_ceil(n as u64).max(1);
    let mut runs = vec![Vec::new()];
    let mut rows = 0;
    for group in groups {
        let full = rows >= share * runs.len() as u64;
        if full && runs.len() < n {
            runs.push(Vec::new());
        }
        rows += group.rows;
        if let Some(run) = runs.last_mut() {
            run.push(group);
        }
    }
    runs
}

impl Reader {
    async fn read(self, group: Group, counted: Count) -> DfResult<Vec<RecordBatch>> {
        if let Some(text) = &self.text {
            let rows = text.in_group(group.shard, group.row_group).await.map_err(from_error)?;
            return self.read_rows(group, rows, counted).await;
        }
        let rows = usize::try_from(group.rows).map_err(|e| DataFusionError::External(Box::new(e)))?;
        if self.columns.is_empty() {
            return Ok(vec![self.assemble(None, rows, group.epoch)?]);
        }
        let version = self.pinned.get(&self.root).await.map_err(from_error)?;
        let read = read_row_group(&self.root, &version, group.shard, group.row_group, Some(&self.columns), None);
        let batches = read.await.map_err(from_error)?;
        counted.add(self.stored_bytes(group).await?);
        batches.iter().map(|batch| self.assemble(Some(batch), batch.num_rows(), group.epoch)).collect()
    }

    /// Some rows of a row group; a group without any is not opened.
    async fn read_rows(&self, group: Group, rows: Vec<Range<u64>>, counted: Count) -> DfResult<Vec<RecordBatch>> {
        let count =
            usize::try_from(rows.iter().map(|r| r.end - r.start).sum::<u64>()).map_err(|e| DataFusionError::External(Box::new(e)))?;
        if count == 0 {
            return Ok(Vec::new());
        }
        if self.columns.is_empty() {
            return Ok(vec![self.assemble(None, count, group.epoch)?]);
        }
        let version = self.pinned.get(&self.root).await.map_err(from_error)?;
        let read = read_selected(&self.root, &version, group.shard, group.row_group, Some(&self.columns), rows);
        let batches = read.await.map_err(from_error)?;
        counted.add(self.stored_bytes(group).await?);
        batches.iter().map(|batch| self.assemble(Some(batch), batch.num_rows(), group.epoch)).collect()
    }

    /// Bytes of the file that hold the columns of a row group that was read.
    async fn stored_bytes(&self, group: Group) -> DfResult<usize> {
        let version = self.pinned.get(&self.root).await.map_err(from_error)?;
        let Some(shard) = version.shards.get(group.shard) else { return Ok(0) };
        // Cached since it was read.
        let footer = footer(&self.root, &version.name, shard).await.map_err(from_error)?;
        let chunks = footer.row_groups().get(group.row_group).map_or(&[][..], |g| g.columns());
        let read = chunks.iter().filter(|c| c.column_path().parts().first().is_some_and(|name| self.columns.contains(name)));
        Ok(read.map(|c| usize::try_from(c.compressed_size()).unwrap_or(0)).sum())
    }

    fn assemble(&self, batch: Option<&RecordBatch>, rows: usize, epoch: EpochId) -> DfResult<RecordBatch> {
        let column = |name: &str| -> DfResult<ArrayRef> {
            if name == EPOCH {
                let epoch = i32::try_from(epoch.0).map_err(|e| DataFusionError::External(Box::new(e)))?;
                return Ok(Arc::new(Int32Array::from(vec![epoch; rows])));
            }
            let found = batch.and_then(|b| b.column_by_name(name)).cloned();
            found.ok_or_else(|| DataFusionError::Execution(format!("a shard was read without the column `{name}`")))
        };
        let columns = self.schema.fields().iter().map(|f| column(f.name())).collect::<DfResult<Vec<_>>>()?;
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        Ok(RecordBatch::try_new_with_options(self.schema.clone(), columns, &options)?)
    }
}

impl DisplayAs for RowGroupScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let version = &self.reader.pinned;
        let columns: Vec<&str> = self.reader.schema.fields().iter().map(|f| f.name().as_str()).collect();
        let mut epochs: Vec<u32> = self.chosen().map(|g| g.epoch.0).collect();
        epochs.dedup();
        write!(
            f,
            "RowGroupScan: {}@v{}, columns=[{}], epochs={epochs:?}, row_groups={} of {}, partitions={}",
            version.name,
            version.version,
            columns.join(", "),
            self.chosen().count(),
            self.all,
            self.partitions.len()
        )?;
        match &self.reader.text {
            Some(text) => write!(f, ", text=[{}]", text.test()),
            None => Ok(()),
        }
    }
}

impl ExecutionPlan for RowGroupScan {
    fn name(&self) -> &'static str {
        "RowGroupScan"
    }

    fn properties(&self) -> &Arc<PlanProperties> {
        &self.properties
    }

    fn children(&self) -> Vec<&Arc<dyn ExecutionPlan>> {
        vec![]
    }

    fn apply_expressions(&self, _: &mut dyn FnMut(&Arc<dyn PhysicalExpr>) -> DfResult<TreeNodeRecursion>) -> DfResult<TreeNodeRecursion> {
        Ok(TreeNodeRecursion::Continue)
    }

    fn replace_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>, _: ReplaceChildrenOptions) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn with_new_children(self: Arc<Self>, _: Vec<Arc<dyn ExecutionPlan>>) -> DfResult<Arc<dyn ExecutionPlan>> {
        Ok(self)
    }

    fn metrics(&self) -> Option<MetricsSet> {
        Some(self.metrics.clone_inner())
    }

    fn execute(&self, partition: usize, _: Arc<TaskContext>) -> DfResult<SendableRecordBatchStream> {
        let groups = self.partitions.get(partition).cloned().unwrap_or_default();
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let bytes = MetricBuilder::new(&self.metrics).counter("row_group_bytes", partition);
        let read = MetricBuilder::new(&self.metrics).counter("bytes_read", partition);
        let reader = self.reader.clone();
        let rows = stream::iter(groups)
            .map(move |group| {
                let (reader, bytes, read) = (reader.clone(), bytes.clone(), read.clone());
                async move {
                    let batches = reader.read(group, read).await?;
                    // A group that a text filter left out was not read.
                    if !batches.is_empty() {
                        bytes.add(usize::try_from(group.bytes).unwrap_or(usize::MAX));
                    }
                    Ok::<_, DataFusionError>(batches)
                }
            })
            .buffered(AHEAD)
            .map_ok(|batches| stream::iter(batches).map(Ok))
            .try_flatten()
            .inspect_ok(move |batch| baseline.record_output(batch.num_rows()));
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.reader.schema.clone(), rows)))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], args: &StatisticsArgs) -> DfResult<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.reader.schema);
        let groups: Vec<&Group> = match args.partition() {
            Some(partition) => self.partitions.get(partition).into_iter().flatten().collect(),
            None => self.chosen().collect(),
        };
        let sum = |of: fn(&Group) -> u64| usize::try_from(groups.iter().map(|g| of(g)).sum::<u64>()).unwrap_or(usize::MAX);
        let rows = sum(|g| g.rows);
        statistics.num_rows = if self.reader.text.is_some() { Precision::Inexact(rows) } else { Precision::Exact(rows) };
        statistics.total_byte_size = Precision::Inexact(sum(|g| g.bytes));
        Ok(Arc::new(statistics))
    }
}
