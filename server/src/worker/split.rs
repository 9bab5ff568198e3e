//! `[split]`: which of train, val and test each stored row belongs to.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::array::{ArrayRef, RecordBatch, StringArray};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use forebay_core::pipeline::{SplitBy, SplitSpec};
use forebay_core::split::{self, StratifyFit};
use forebay_core::{Error, Result};

use super::rows;

/// The column that a split adds, after all others.
pub(crate) const SPLIT: &str = "split";

/// A pipeline's split, ready to be applied.
#[derive(Debug, Clone)]
pub(crate) struct Splitter {
    names: Vec<String>,
    seed: u64,
    rule: Rule,
}

#[derive(Debug, Clone)]
enum Rule {
    Key { thresholds: Vec<u64> },
    Group { column: String, ratios: Vec<(String, f64)> },
    Stratify { column: String, fit: Arc<StratifyFit> },
}

impl Splitter {
    /// `fit` is what [`Fitting::finish`] made; only stratified splits have one.
    pub(crate) fn new(spec: &SplitSpec, seed: u64, fit: Option<Arc<StratifyFit>>) -> Result<Self> {
        let rule = match &spec.by {
            SplitBy::Key => Rule::Key { thresholds: split::thresholds(&spec.ratios) },
            SplitBy::Group { column } => Rule::Group { column: column.clone(), ratios: spec.ratios.clone() },
            SplitBy::Stratify { column } => {
                let fit = fit.ok_or_else(|| Error::internal("a stratified split without its fit"))?;
                Rule::Stratify { column: column.clone(), fit }
            }
        };
        Ok(Self { names: spec.ratios.iter().map(|(name, _)| name.clone()).collect(), seed, rule })
    }

    /// Adds the column `split` to a batch of stored rows.
    pub(crate) fn apply(&self, batch: &RecordBatch) -> Result<RecordBatch> {
        let places: Vec<usize> = match &self.rule {
            Rule::Key { thresholds } => hashes(batch, self.seed)?.into_iter().map(|h| split::place(h, thresholds)).collect(),
            Rule::Group { column, ratios } => rows::texts(batch, column)?
                .into_iter()
                .map(|value| split::group_split(self.seed, value.unwrap_or_default().as_bytes(), ratios))
                .collect(),
            Rule::Stratify { column, fit } => hashes(batch, self.seed)?
                .into_iter()
                .zip(rows::texts(batch, column)?)
                .map(|(hash, label)| fit.assign(&label.unwrap_or_default(), hash))
                .collect(),
        };
        let names: StringArray = places.into_iter().map(|i| self.names.get(i).map(String::as_str)).collect();
        let mut columns = batch.columns().to_vec();
        columns.push(Arc::new(names) as ArrayRef);
        RecordBatch::try_new(with_split(&batch.schema()), columns).map_err(|e| Error::internal(format!("split: {e}")))
    }
}

/// The schema with `split` behind it.
pub(crate) fn with_split(schema: &Schema) -> SchemaRef {
    let mut fields = schema.fields().to_vec();
    fields.push(Arc::new(Field::new(SPLIT, DataType::Utf8, true)));
    Arc::new(Schema::new_with_metadata(fields, schema.metadata().clone()))
}

/// Checks a split against the schema of the stored rows, before any work.
pub(crate) fn check(spec: &SplitSpec, schema: &Schema) -> Result<()> {
    let (key, column) = match &spec.by {
        SplitBy::Key => return Ok(()),
        SplitBy::Stratify { column } => ("stratify", column),
        SplitBy::Group { column } => ("group", column),
    };
    let field = schema.field_with_name(column).map_err(|_| {
        let names: Vec<_> = schema.fields().iter().map(|f| f.name().as_str()).collect();
        Error::bad_input(format!("split.{key}: the stored rows have no column `{column}`"))
            .with_remedy(format!("they have {}", names.join(", ")))
    })?;
    if arrow::compute::can_cast_types(field.data_type(), &DataType::Utf8) && !field.data_type().is_nested() {
        return Ok(());
    }
    Err(Error::bad_input(format!("split.{key}: column `{column}` is {}, its values can't be told apart as text", field.data_type()))
        .with_remedy("name a column of integers, strings, booleans or dates"))
}

fn hashes(batch: &RecordBatch, seed: u64) -> Result<Vec<u64>> {
    let ids = rows::ids(batch)?.values();
    Ok(match rows::parts(batch) {
        Some(parts) => ids.iter().zip(parts.values()).map(|(id, part)| split::row_hash(seed, *id, *part)).collect(),
        None => ids.iter().map(|id| split::row_hash(seed, *id, 0)).collect(),
    })
}

/// Collects what a stratified split is fitted on: eight bytes a row.
#[derive(Debug, Default)]
pub(crate) struct Fitting {
    labels: BTreeMap<String, Vec<u64>>,
}

impl Fitting {
    pub(crate) fn add(&mut self, batch: &RecordBatch, column: &str, seed: u64) -> Result<()> {
        for (label, hash) in rows::texts(batch, column)?.into_iter().zip(hashes(batch, seed)?) {
            self.labels.entry(label.unwrap_or_default()).or_default().push(hash);
        }
        Ok(())
    }

    pub(crate) fn finish(self, spec: &SplitSpec) -> StratifyFit {
        StratifyFit::fit(self.labels, &spec.ratios)
    }
}
