//! The statistics of a shard as Delta's add action carries them: counts for every column, least and greatest value for small scalars only,
//! so that the log of a dataset of images stays small.

use arrow::array::{Array, ArrayRef, AsArray, RecordBatch};
use arrow::compute::{max, max_string, min, min_string};
use arrow::datatypes::{DataType, Date32Type, Float32Type, Float64Type, Int8Type, Int16Type, Int32Type, Int64Type, SchemaRef};
use arrow::temporal_conversions::date32_to_datetime;
use serde_json::{Map, Value, json};

/// Longer strings are left out: a cut value would have to be rounded up for a maximum.
const MAX_STRING: usize = 32;

#[derive(Debug, Clone, PartialEq)]
enum Bound {
    Int(i64),
    Float(f64),
    Date(i32),
    Text(String),
}

impl Bound {
    fn json(&self) -> Value {
        match self {
            Bound::Int(v) => json!(v),
            Bound::Float(v) => json!(v),
            Bound::Date(v) => date32_to_datetime(*v).map_or(Value::Null, |d| Value::String(d.date().to_string())),
            Bound::Text(v) => json!(v),
        }
    }

    fn widen(&mut self, other: Bound, greater: bool) {
        let replace = match (&*self, &other) {
            (Bound::Int(a), Bound::Int(b)) => (b > a) == greater && a != b,
            (Bound::Date(a), Bound::Date(b)) => (b > a) == greater && a != b,
            (Bound::Float(a), Bound::Float(b)) => (b > a) == greater && a != b,
            (Bound::Text(a), Bound::Text(b)) => (b > a) == greater && a != b,
            _ => false,
        };
        if replace {
            *self = other;
        }
    }
}

#[derive(Debug, Default, Clone)]
struct ColumnStats {
    nulls: u64,
    least: Option<Bound>,
    greatest: Option<Bound>,
    /// A value came that has no place in JSON or is too long: no bounds for this column.
    unbounded: bool,
}

/// Collects over the stored batches of one shard.
#[derive(Debug)]
pub(super) struct Stats {
    schema: SchemaRef,
    rows: u64,
    columns: Vec<ColumnStats>,
}

impl Stats {
    pub(super) fn new(schema: SchemaRef) -> Self {
        let columns = vec![ColumnStats::default(); schema.fields().len()];
        Self { schema, rows: 0, columns }
    }

    pub(super) fn push(&mut self, batch: &RecordBatch) {
        self.rows += batch.num_rows() as u64;
        for (stats, column) in self.columns.iter_mut().zip(batch.columns()) {
            stats.nulls += column.null_count() as u64;
            if stats.unbounded || column.null_count() == column.len() {
                continue;
            }
            match bounds(column) {
                Some((least, greatest)) => {
                    widen(&mut stats.least, least, false);
                    widen(&mut stats.greatest, greatest, true);
                }
                None => stats.unbounded = true,
            }
        }
    }

    /// The JSON text, and a fresh start.
    pub(super) fn take(&mut self) -> String {
        let (mut least, mut greatest, mut nulls) = (Map::new(), Map::new(), Map::new());
        for (field, stats) in self.schema.fields().iter().zip(&self.columns) {
            // Delta nests the counts of a struct's fields, which aren't kept here.
            if !matches!(field.data_type(), DataType::Struct(_)) {
                nulls.insert(field.name().clone(), stats.nulls.into());
            }
            if let (false, Some(l), Some(g)) = (stats.unbounded, &stats.least, &stats.greatest) {
                least.insert(field.name().clone(), l.json());
                greatest.insert(field.name().clone(), g.json());
            }
        }
        let text = json!({"numRecords": self.rows, "minValues": least, "maxValues": greatest, "nullCount": nulls}).to_string();
        *self = Self::new(std::sync::Arc::clone(&self.schema));
        text
    }
}

fn widen(bound: &mut Option<Bound>, value: Bound, greater: bool) {
    match bound {
        Some(bound) => bound.widen(value, greater),
        None => *bound = Some(value),
    }
}

/// Least and greatest value; `None` for types without bounds and for values that can't be bounds.
fn bounds(column: &ArrayRef) -> Option<(Bound, Bound)> {
    macro_rules! integers {
        ($t:ty, $wrap:expr) => {{
            let array = column.as_primitive::<$t>();
            Some(($wrap(min(array)?.into()), $wrap(max(array)?.into())))
        }};
    }
    match column.data_type() {
        DataType::Int8 => integers!(Int8Type, Bound::Int),
        DataType::Int16 => integers!(Int16Type, Bound::Int),
        DataType::Int32 => integers!(Int32Type, Bound::Int),
        DataType::Int64 => integers!(Int64Type, Bound::Int),
        DataType::Date32 => integers!(Date32Type, Bound::Date),
        DataType::Float32 => finite(min(column.as_primitive::<Float32Type>())?.into(), max(column.as_primitive::<Float32Type>())?.into()),
        DataType::Float64 => finite(min(column.as_primitive::<Float64Type>())?, max(column.as_primitive::<Float64Type>())?),
        DataType::Utf8 => texts(min_string(column.as_string::<i32>())?, max_string(column.as_string::<i32>())?),
        DataType::LargeUtf8 => texts(min_string(column.as_string::<i64>())?, max_string(column.as_string::<i64>())?),
        _ => None,
    }
}

fn finite(least: f64, greatest: f64) -> Option<(Bound, Bound)> {
    // Arrow orders NaN above everything, so one shows up as the maximum.
    (least.is_finite() && greatest.is_finite()).then_some((Bound::Float(least), Bound::Float(greatest)))
}

fn texts(least: &str, greatest: &str) -> Option<(Bound, Bound)> {
    let short = least.len() <= MAX_STRING && greatest.len() <= MAX_STRING;
    short.then(|| (Bound::Text(least.to_owned()), Bound::Text(greatest.to_owned())))
}
