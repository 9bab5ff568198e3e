//! The table that a call of `search` stands for: a dataset's columns and `_score`, of the best rows only.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{ArrayRef, Float32Array, Int32Array, Int64Array, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatchOptions;
use async_trait::async_trait;
use datafusion::catalog::{Session, TableProvider};
use datafusion::common::tree_node::TreeNodeRecursion;
use datafusion::common::{Result as DfResult, Statistics};
use datafusion::execution::{SendableRecordBatchStream, TaskContext};
use datafusion::logical_expr::{Expr, TableProviderFilterPushDown, TableType};
use datafusion::physical_expr::EquivalenceProperties;
use datafusion::physical_plan::execution_plan::{Boundedness, EmissionType, ReplaceChildrenOptions, SchedulingType};
use datafusion::physical_plan::metrics::{BaselineMetrics, ExecutionPlanMetricsSet, MetricBuilder, MetricsSet};
use datafusion::physical_plan::statistics::StatisticsArgs;
use datafusion::physical_plan::stream::RecordBatchStreamAdapter;
use datafusion::physical_plan::{DisplayAs, DisplayFormatType, ExecutionPlan, Partitioning, PhysicalExpr, PlanProperties};
use forebay_core::text::TextColumns;
use forebay_core::{Error, Kind, Result};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::root::Root;
use forebay_storage::shard::read_selected;
use forebay_storage::types::{ID, PART};
use futures::{StreamExt, TryStreamExt, stream};

use super::prune::prune;
use super::search::SearchCall;
use super::table::{EPOCH, sql_schema};
use crate::guard::from_error;
use crate::text::{Condition, Hit, ShardIndex, TextIndexes, rank_shards};

/// The column that ranks.
const SCORE: &str = "_score";
/// Shards opened, or row groups read, at the same time.
const AT_ONCE: usize = 8;

/// A call of `search`, with its dataset open at one version.
#[derive(Clone)]
pub(super) struct SearchTable {
    root: Root,
    version: Arc<DatasetVersion>,
    indexes: TextIndexes,
    condition: Arc<Condition>,
    query: String,
    limit: usize,
    schema: SchemaRef,
}

/// Rows of a row group with their places in the answer, and the batches that hold them.
type Placed = (Vec<(u64, usize)>, Vec<RecordBatch>);

impl fmt::Debug for SearchTable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "search({}@v{}, '{}', {})", self.version.name, self.version.version, self.query.escape_debug(), self.limit)
    }
}

impl SearchTable {
    /// # Errors
    /// `FailedPrecondition` for a dataset without an index, `BadInput` with its position for a query that can't be read.
    pub(super) fn new(root: Root, version: Arc<DatasetVersion>, indexes: TextIndexes, call: &SearchCall) -> Result<Self> {
        let columns: TextColumns = version.text_columns();
        if columns.is_empty() {
            return Err(Error::failed_precondition(format!("dataset `{}` has no text index", version.name)).with_remedy(format!(
                "build one with `forebay index {} COLUMN`, or name its columns in the pipeline: [index] text = [\"COLUMN\"]",
                version.name
            )));
        }
        let condition = Arc::new(Condition::on_columns(&call.query, &columns)?);
        let mut fields = sql_schema(&version).fields().to_vec();
        fields.push(Arc::new(Field::new(SCORE, DataType::Float32, false)));
        let schema = Arc::new(Schema::new(fields));
        Ok(Self { root, version, indexes, condition, query: call.query.clone(), limit: call.limit, schema })
    }
}

#[async_trait]
impl TableProvider for SearchTable {
    fn schema(&self) -> SchemaRef {
        self.schema.clone()
    }

    fn table_type(&self) -> TableType {
        TableType::Temporary
    }

    fn supports_filters_pushdown(&self, filters: &[&Expr]) -> DfResult<Vec<TableProviderFilterPushDown>> {
        // A filter on nothing but the epoch says where to look; any other looks at the rows that were found.
        let on_epoch = |filter: &&Expr| {
            let columns = filter.column_refs();
            !columns.is_empty() && columns.iter().all(|c| c.name == EPOCH)
        };
        let answer = |f: &&Expr| if on_epoch(f) { TableProviderFilterPushDown::Inexact } else { TableProviderFilterPushDown::Unsupported };
        Ok(filters.iter().map(answer).collect())
    }

    async fn scan(
        &self,
        session: &dyn Session,
        projection: Option<&Vec<usize>>,
        filters: &[Expr],
        limit: Option<usize>,
    ) -> DfResult<Arc<dyn ExecutionPlan>> {
        let schema = match projection {
            Some(columns) => Arc::new(self.schema.project(columns)?),
            None => self.schema.clone(),
        };
        let keep = prune(session, filters, &self.schema, &self.version.shards);
        let limit = limit.filter(|_| filters.is_empty()).map_or(self.limit, |l| l.min(self.limit));
        Ok(Arc::new(SearchScan::new(self.clone(), schema, keep, limit)))
    }
}

struct SearchScan {
    table: SearchTable,
    schema: SchemaRef,
    keep: Vec<bool>,
    limit: usize,
    properties: Arc<PlanProperties>,
    metrics: ExecutionPlanMetricsSet,
}

impl fmt::Debug for SearchScan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SearchScan").field("table", &self.table).finish_non_exhaustive()
    }
}

impl SearchScan {
    fn new(table: SearchTable, schema: SchemaRef, keep: Vec<bool>, limit: usize) -> Self {
        let properties = PlanProperties::new(
            EquivalenceProperties::new(schema.clone()),
            Partitioning::UnknownPartitioning(1),
            EmissionType::Final,
            Boundedness::Bounded,
        )
        .with_scheduling_type(SchedulingType::NonCooperative);
        Self { table, schema, keep, limit, properties: Arc::new(properties), metrics: ExecutionPlanMetricsSet::new() }
    }
}

impl DisplayAs for SearchScan {
    fn fmt_as(&self, _: DisplayFormatType, f: &mut fmt::Formatter) -> fmt::Result {
        let columns: Vec<&str> = self.schema.fields().iter().map(|f| f.name().as_str()).collect();
        write!(
            f,
            "SearchScan: {}@v{}, query='{}', limit={}, columns=[{}], shards={} of {}",
            self.table.version.name,
            self.table.version.version,
            self.table.query.escape_debug(),
            self.limit,
            columns.join(", "),
            self.keep.iter().filter(|k| **k).count(),
            self.keep.len()
        )
    }
}

impl ExecutionPlan for SearchScan {
    fn name(&self) -> &'static str {
        "SearchScan"
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
        let baseline = BaselineMetrics::new(&self.metrics, partition);
        let searched = MetricBuilder::new(&self.metrics).counter("shards_searched", partition);
        searched.add(self.keep.iter().filter(|k| **k).count());
        let (table, schema, keep, limit) = (self.table.clone(), self.schema.clone(), self.keep.clone(), self.limit);
        let work = async move {
            let batch = table.run(&schema, &keep, limit).await.map_err(from_error)?;
            baseline.record_output(batch.num_rows());
            Ok(batch)
        };
        Ok(Box::pin(RecordBatchStreamAdapter::new(self.schema.clone(), stream::once(work))))
    }

    fn statistics_from_inputs(&self, _: &[Arc<Statistics>], _: &StatisticsArgs) -> DfResult<Arc<Statistics>> {
        let mut statistics = Statistics::new_unknown(&self.schema);
        statistics.num_rows = datafusion::common::stats::Precision::Inexact(self.limit);
        Ok(Arc::new(statistics))
    }
}

impl SearchTable {
    async fn run(&self, schema: &SchemaRef, keep: &[bool], limit: usize) -> Result<RecordBatch> {
        let shards: Vec<usize> = (0..self.version.shards.len()).filter(|i| keep.get(*i).copied().unwrap_or(true)).collect();
        self.check_covered(&shards)?;
        let open = stream::iter(shards).map(|shard| async move {
            let meta = &self.version.shards[shard];
            let index = self.indexes.get(&self.version.name, meta).await.map_err(|e| self.unusable(e))?;
            Ok::<_, Error>((shard, index.ok_or_else(|| Error::internal("a shard without the index that was checked"))?))
        });
        let open: Vec<(usize, Arc<ShardIndex>)> = open.buffered(AT_ONCE).try_collect().await?;
        let hits = rank_shards(open, self.condition.clone(), limit).await?;
        self.assemble(schema, &hits).await
    }

    /// Ranking needs every shard's index: rows that no index counts would be missing, and the others' scores would be off.
    fn check_covered(&self, shards: &[usize]) -> Result<()> {
        let wanted: TextColumns = self.condition.columns().iter().cloned().collect();
        let bare: Vec<_> = shards
            .iter()
            .map(|s| &self.version.shards[*s])
            .filter(|s| !s.index.as_ref().is_some_and(|index| index.covers_all(&wanted)))
            .collect();
        let Some(first) = bare.first() else { return Ok(()) };
        let column = self.condition.columns().first().map_or("COLUMN", |(c, _)| c.as_str());
        Err(Error::failed_precondition(format!(
            "{} of {} shards of `{}` have no text index for the query, the first in epoch {}",
            bare.len(),
            shards.len(),
            self.version.name,
            first.epoch
        ))
        .with_remedy(format!(
            "build it with `forebay index {} {column}`, or filter by text_match, which reads such shards row by row",
            self.version.name
        )))
    }

    fn unusable(&self, error: Error) -> Error {
        match error.kind {
            Kind::NotFound | Kind::Corrupt | Kind::Unsupported => {
                let column = self.condition.columns().first().map_or("COLUMN", |(c, _)| c.as_str());
                error.with_remedy(format!("build the index again: forebay index {} {column} --rebuild", self.version.name))
            }
            _ => error,
        }
    }

    /// The columns of the rows that were found, in their order. Keys come from the indexes; only other columns open the shards.
    async fn assemble(&self, schema: &SchemaRef, hits: &[Hit]) -> Result<RecordBatch> {
        let known = |name: &str| matches!(name, EPOCH | SCORE | ID | PART);
        let stored: Vec<String> = schema.fields().iter().map(|f| f.name().clone()).filter(|n| !known(n)).collect();
        let rows = if stored.is_empty() || hits.is_empty() { None } else { Some(self.stored_rows(&stored, hits).await?) };
        let mut columns: Vec<ArrayRef> = Vec::with_capacity(schema.fields().len());
        let epoch = |hit: &Hit| self.version.shards.get(hit.shard).and_then(|s| i32::try_from(s.epoch.0).ok()).unwrap_or(i32::MAX);
        for field in schema.fields() {
            columns.push(match (field.name().as_str(), &rows) {
                (EPOCH, _) => Arc::new(Int32Array::from_iter_values(hits.iter().map(epoch))),
                (SCORE, _) => Arc::new(Float32Array::from_iter_values(hits.iter().map(|h| h.score))),
                (ID, _) => Arc::new(Int64Array::from_iter_values(hits.iter().map(|h| h.id))),
                (PART, _) => Arc::new(Int32Array::from_iter_values(hits.iter().map(|h| h.part.unwrap_or_default()))),
                (name, Some(rows)) => {
                    let found = rows.column_by_name(name).cloned();
                    found.ok_or_else(|| Error::internal(format!("a shard was read without the column `{name}`")))?
                }
                (_, None) => arrow::array::new_empty_array(field.data_type()),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(hits.len()));
        RecordBatch::try_new_with_options(schema.clone(), columns, &options).map_err(|e| Error::internal(e.to_string()))
    }

    /// Reads the stored columns of the hits and puts them into the hits' order.
    async fn stored_rows(&self, columns: &[String], hits: &[Hit]) -> Result<RecordBatch> {
        let mut groups: BTreeMap<(usize, usize), Vec<(u64, usize)>> = BTreeMap::new();
        for (place, hit) in hits.iter().enumerate() {
            let (row_group, row) = self.locate(hit)?;
            groups.entry((hit.shard, row_group)).or_default().push((row, place));
        }
        let reads = stream::iter(groups).map(|((shard, row_group), mut rows)| async move {
            rows.sort_unstable();
            let ranges = rows.iter().map(|(row, _)| *row..*row + 1).collect();
            let batches = read_selected(&self.root, &self.version, shard, row_group, Some(columns), ranges).await?;
            Ok::<_, Error>((rows, batches))
        });
        let reads: Vec<Placed> = reads.buffered(AT_ONCE).try_collect().await?;
        let (mut batches, mut order) = (Vec::new(), vec![(0, 0); hits.len()]);
        for (rows, found) in reads {
            let mut places = rows.into_iter().map(|(_, place)| place);
            for batch in found {
                for (row, place) in places.by_ref().take(batch.num_rows()).enumerate() {
                    order[place] = (batches.len(), row);
                }
                batches.push(batch);
            }
        }
        let batches: Vec<&RecordBatch> = batches.iter().collect();
        interleave_record_batch(&batches, &order).map_err(|e| Error::internal(e.to_string()))
    }

    /// The row group of a hit, and its row in there.
    fn locate(&self, hit: &Hit) -> Result<(usize, u64)> {
        let mut row = u64::from(hit.row);
        for (i, group) in self.version.shards.get(hit.shard).into_iter().flat_map(|s| &s.row_groups).enumerate() {
            if row < group.rows {
                return Ok((i, row));
            }
            row -= group.rows;
        }
        Err(Error::corrupt("a text index names a row that its shard doesn't have"))
    }
}
