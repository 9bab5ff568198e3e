//! The rows of an epoch that a job's filter keeps.

use std::sync::Arc;

use arrow::array::{Array, AsArray, BooleanArray, Int32Array};
use arrow::compute::{cast, prep_null_mask_filter};
use arrow::datatypes::{DataType, Schema, SchemaRef};
use arrow::record_batch::{RecordBatch, RecordBatchOptions};
use datafusion::common::DFSchema;
use datafusion::common::tree_node::{TreeNode, TreeNodeRecursion};
use datafusion::execution::session_state::SessionState;
use datafusion::logical_expr::utils::{conjunction, split_conjunction_owned};
use datafusion::logical_expr::{Expr, Volatility, lit};
use datafusion::physical_expr::utils::{collect_columns, reassign_expr_columns};
use datafusion::physical_plan::PhysicalExpr;
use forebay_core::ids::EpochId;
use forebay_core::plan::{Bitmap, Selection};
use forebay_core::shard::RowGroupMeta;
use forebay_core::{Error, Result};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::root::Root;
use forebay_storage::shard::read_row_group;
use futures::{StreamExt, TryStreamExt, stream};

use super::Catalog;
use super::prune::prune_with;
use super::table::{EPOCH, sql_schema};
use super::text_match::TextTest;
use super::text_rows::TextRows;
use crate::guard::{check_text, from_error, on_big_stack, to_error};

/// Row groups that are evaluated at the same time.
const AHEAD: usize = 4;

/// Evaluates a SQL predicate over the stored columns (`_id`, `_part`, `_source`, `split` and `epoch` too) for every row of an epoch, reading
/// only the columns that it names. Null counts as false. Row groups are in the order of [`DatasetVersion::row_groups`], which is the plan's.
///
/// # Errors
/// `BadInput` for a predicate that doesn't parse, names an unknown column, isn't boolean, needs other rows, or gives another answer each time.
pub async fn select_rows(catalog: &Catalog, version: Arc<DatasetVersion>, epoch: EpochId, filter: &str) -> Result<Selection> {
    let (limits, text) = (catalog.text_limits(), filter.to_owned());
    let (session, schema) = (catalog.inner.session.clone(), sql_schema(&version));
    let (root, indexes) = (catalog.inner.root.clone(), catalog.inner.indexes.clone());
    let work = on_big_stack(move || {
        check_text(&text, limits)?;
        let (rest, test) = predicate(&session, &text, &schema)?;
        let text = test.map(|test| TextRows::new(root.clone(), version.clone(), indexes, test));
        Filter::new(root, version, schema, rest, text)
    })
    .await
    .map_err(|e| e.context("filter"))?;
    catalog.inner.runner.spawn(work.evaluate(epoch))?.finish().await
}

/// Refuses a predicate that [`select_rows`] would refuse.
pub(super) async fn check_filter(catalog: &Catalog, version: &DatasetVersion, filter: &str) -> Result<()> {
    let (limits, text) = (catalog.text_limits(), filter.to_owned());
    let (session, schema) = (catalog.inner.session.clone(), sql_schema(version));
    on_big_stack(move || {
        check_text(&text, limits)?;
        predicate(&session, &text, &schema).map(drop)
    })
    .await
    .map_err(|e| e.context("filter"))
}

/// Plans the predicate over the version's columns; what indexes answer of it stands apart.
fn predicate(session: &SessionState, text: &str, schema: &SchemaRef) -> Result<(Arc<dyn PhysicalExpr>, Option<TextTest>)> {
    let names = DFSchema::try_from(schema.as_ref().clone()).map_err(to_error)?;
    let expr = session.create_logical_expr(text, &names).map_err(to_error)?;
    expr.apply(|e| check(e).map(|()| TreeNodeRecursion::Continue).map_err(from_error)).map_err(to_error)?;
    let whole = session.create_physical_expr(expr.clone(), &names).map_err(to_error)?;
    match whole.data_type(schema).map_err(to_error)? {
        DataType::Boolean | DataType::Null => {}
        other => return Err(Error::bad_input(format!("`{text}` is {other}, not a condition")).with_remedy("compare it with something")),
    }
    let (mut rest, mut tests) = (Vec::new(), Vec::new());
    for part in split_conjunction_owned(expr) {
        match TextTest::of(&part, schema) {
            Some(test) => tests.push(test),
            None => rest.push(part),
        }
    }
    let rest = conjunction(rest).unwrap_or_else(|| lit(true));
    Ok((session.create_physical_expr(rest, &names).map_err(to_error)?, TextTest::all(tests)))
}

fn check(expr: &Expr) -> Result<()> {
    match expr {
        Expr::AggregateFunction(_) | Expr::WindowFunction(_) => {
            Err(Error::bad_input("a filter sees one row at a time; it can't aggregate"))
        }
        Expr::Exists(_) | Expr::InSubquery(_) | Expr::ScalarSubquery(_) | Expr::SetComparison(_) => {
            Err(Error::bad_input("a filter has no subqueries"))
        }
        Expr::ScalarFunction(f) if f.func.signature().volatility != Volatility::Immutable => {
            Err(Error::bad_input(format!("`{}` gives another value each time, and a filter is evaluated once and pinned", f.func.name()))
                .with_remedy("write the value itself"))
        }
        Expr::Placeholder(p) => Err(Error::bad_input(format!("`{}` stands for a value that a filter doesn't have", p.id))),
        _ => Ok(()),
    }
}

struct Filter {
    root: Root,
    version: Arc<DatasetVersion>,
    /// All columns, for the statistics.
    all: SchemaRef,
    whole: Arc<dyn PhysicalExpr>,
    /// The columns that the predicate names, and the predicate over those.
    schema: SchemaRef,
    predicate: Arc<dyn PhysicalExpr>,
    /// The stored ones among them.
    columns: Vec<String>,
    /// The rows that its text conditions keep.
    text: Option<TextRows>,
}

impl Filter {
    fn new(root: Root, version: Arc<DatasetVersion>, all: SchemaRef, whole: Arc<dyn PhysicalExpr>, text: Option<TextRows>) -> Result<Self> {
        let mut places: Vec<usize> = collect_columns(&whole).iter().map(|c| c.index()).collect();
        places.sort_unstable();
        let schema: Schema = all.project(&places).map_err(|e| Error::internal(e.to_string()))?;
        let predicate = reassign_expr_columns(whole.clone(), &schema).map_err(to_error)?;
        let columns = schema.fields().iter().map(|f| f.name().clone()).filter(|n| n != EPOCH).collect();
        Ok(Self { root, version, all, whole, schema: Arc::new(schema), predicate, columns, text })
    }

    async fn evaluate(self, epoch: EpochId) -> Result<Selection> {
        let keep = prune_with(self.whole.clone(), &self.all, &self.version.shards);
        let filter = Arc::new(self);
        let groups = filter.version.row_groups(epoch);
        let verdicts = groups.into_iter().map(|(shard, row_group, meta)| {
            let (filter, may) = (filter.clone(), keep.get(shard).copied().unwrap_or(true));
            async move { filter.group(epoch, shard, row_group, meta, may).await }
        });
        let bitmaps: Vec<Bitmap> = stream::iter(verdicts).buffered(AHEAD).try_collect().await?;
        Ok(Selection::from_bitmaps(bitmaps))
    }

    async fn group(&self, epoch: EpochId, shard: usize, row_group: usize, meta: RowGroupMeta, may: bool) -> Result<Bitmap> {
        let rows = usize::try_from(meta.rows).map_err(|_| Error::corrupt("a row group with more rows than memory has addresses"))?;
        let mut bitmap = Bitmap::new();
        if !may {
            bitmap.extend(std::iter::repeat_n(false, rows))?;
            return Ok(bitmap);
        }
        let kept = match &self.text {
            None => None,
            Some(text) => Some(text.in_group(shard, row_group).await?),
        };
        if kept.as_ref().is_some_and(Vec::is_empty) {
            bitmap.extend(std::iter::repeat_n(false, rows))?;
            return Ok(bitmap);
        }
        let mut before = 0;
        let batches = match self.columns.as_slice() {
            [] => vec![None],
            columns => {
                let read = read_row_group(&self.root, &self.version, shard, row_group, Some(columns), None).await?;
                read.into_iter().map(Some).collect()
            }
        };
        for batch in batches {
            let verdicts = self.verdicts(epoch, batch.as_ref(), rows)?;
            match &kept {
                None => bitmap.extend(verdicts.values().iter())?,
                Some(kept) => bitmap.extend(verdicts.values().iter().zip(chosen(kept, before)).map(|(a, b)| a && b))?,
            }
            before += verdicts.len() as u64;
        }
        if bitmap.rows() != meta.rows {
            return Err(Error::corrupt(format!("a row group of {} rows was read as {}", meta.rows, bitmap.rows())));
        }
        Ok(bitmap)
    }

    fn verdicts(&self, epoch: EpochId, batch: Option<&RecordBatch>, rows: usize) -> Result<BooleanArray> {
        let rows = batch.map_or(rows, RecordBatch::num_rows);
        let mut columns = Vec::with_capacity(self.schema.fields().len());
        for field in self.schema.fields() {
            columns.push(match (field.name().as_str(), batch.and_then(|b| b.column_by_name(field.name()))) {
                (EPOCH, _) => Arc::new(Int32Array::from(vec![i32::try_from(epoch.0).unwrap_or(i32::MAX); rows])),
                (_, Some(column)) => column.clone(),
                (name, None) => return Err(Error::internal(format!("a shard was read without the column `{name}`"))),
            });
        }
        let options = RecordBatchOptions::new().with_row_count(Some(rows));
        let batch =
            RecordBatch::try_new_with_options(self.schema.clone(), columns, &options).map_err(|e| Error::internal(e.to_string()))?;
        let value = self.predicate.evaluate(&batch).and_then(|v| v.into_array(rows)).map_err(to_error)?;
        let value = cast(&value, &DataType::Boolean).map_err(|e| Error::internal(e.to_string()))?;
        let Some(verdicts) = value.as_boolean_opt() else { return Err(Error::internal("a condition that is not boolean")) };
        Ok(if verdicts.null_count() > 0 { prep_null_mask_filter(verdicts) } else { verdicts.clone() })
    }
}

/// For each row from `first` on, whether it lies in one of the ascending ranges. Without an end.
fn chosen(ranges: &[std::ops::Range<u64>], first: u64) -> impl Iterator<Item = bool> + '_ {
    let mut ranges = ranges.iter().peekable();
    (first..).map(move |row| {
        while ranges.next_if(|range| range.end <= row).is_some() {}
        ranges.peek().is_some_and(|range| range.contains(&row))
    })
}
