//! DataFusion's functions whose result can be far larger than their arguments, with a limit.
//!
//! `range(0, 1e12)`, `repeat('x', 1e12)` and their like allocate without asking the memory pool, and a failed allocation ends the process. So
//! what they are about to make is estimated first, per batch, and refused beyond [`LIMIT`].

use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef, Int64Type, IntervalMonthDayNanoType, TimeUnit};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature};

/// Bytes that one call may make out of one batch.
const LIMIT: f64 = (1u64 << 30) as f64;

/// How large a function's result is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Growth {
    /// From, to and step make a list.
    Series,
    /// The argument at the first index, as often as the one at the second says.
    Times(usize, usize),
    /// As many elements as the argument at this index says, each as large as this one at most.
    Elements(usize, usize),
    /// The argument at this index is the result's length in characters.
    Length(usize),
    /// Each occurrence of a text of at least one byte may become the argument at this index.
    Replace,
    /// No more than its arguments: `make_array`, which is here because DataFusion calls its result nullable. It never is null, and a tensor made
    /// of it then needs no null mask.
    List,
}

const GROWING: &[(&str, Growth)] = &[
    ("range", Growth::Series),
    ("generate_series", Growth::Series),
    ("array_repeat", Growth::Times(0, 1)),
    ("array_resize", Growth::Elements(1, 2)),
    ("repeat", Growth::Times(0, 1)),
    ("lpad", Growth::Length(1)),
    ("rpad", Growth::Length(1)),
    ("replace", Growth::Replace),
    ("make_array", Growth::List),
];

/// The same functions, the growing ones with their limit.
pub(crate) fn capped(functions: Vec<Arc<ScalarUDF>>) -> Vec<Arc<ScalarUDF>> {
    let cap = |function: Arc<ScalarUDF>| match GROWING.iter().find(|(name, _)| *name == function.name()) {
        Some((_, growth)) => Arc::new(ScalarUDF::from(Capped { inner: function, growth: *growth })),
        None => function,
    };
    functions.into_iter().map(cap).collect()
}

#[derive(Debug)]
struct Capped {
    inner: Arc<ScalarUDF>,
    growth: Growth,
}

impl PartialEq for Capped {
    fn eq(&self, other: &Self) -> bool {
        self.inner == other.inner
    }
}

impl Eq for Capped {}

impl Hash for Capped {
    fn hash<H: Hasher>(&self, state: &mut H) {
        self.inner.hash(state);
    }
}

impl ScalarUDFImpl for Capped {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn aliases(&self) -> &[String] {
        self.inner.aliases()
    }

    fn signature(&self) -> &Signature {
        self.inner.signature()
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        self.inner.return_type(types)
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let field = self.inner.return_field_from_args(args)?;
        Ok(if self.growth == Growth::List { Arc::new(field.as_ref().clone().with_nullable(false)) } else { field })
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        self.inner.coerce_types(types)
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let bytes = if self.growth == Growth::List { 0.0 } else { self.growth.bytes(&args)? };
        if bytes > LIMIT {
            return Err(DataFusionError::ResourcesExhausted(format!(
                "{} would make {:.0} MiB at once; the limit is {:.0} MiB",
                self.name(),
                bytes / f64::from(1 << 20),
                LIMIT / f64::from(1 << 20)
            )));
        }
        self.inner.invoke_with_args(args)
    }
}

impl Growth {
    /// An estimate from above where the arguments are what the function takes; others it refuses by itself.
    fn bytes(self, args: &ScalarFunctionArgs) -> Result<f64> {
        // Literals are one row here too: what a folded constant makes, it makes once.
        let rows = if args.args.iter().any(|a| matches!(a, ColumnarValue::Array(_))) { args.number_rows } else { 1 };
        let arrays = args.args.iter().map(|a| a.to_array(rows)).collect::<Result<Vec<_>>>()?;
        Ok(match self {
            Self::Series => series(&arrays, rows)?,
            Self::Times(what, times) => match (arrays.get(what), integers(&arrays, times)) {
                (Some(what), Some(times)) => times * per_row(what),
                _ => 0.0,
            },
            Self::Elements(count, element) => integers(&arrays, count).unwrap_or(0.0) * arrays.get(element).map_or(16.0, per_row),
            Self::Length(length) => integers(&arrays, length).unwrap_or(0.0) * 4.0,
            Self::Replace => match arrays.as_slice() {
                [text, _, by] => {
                    let longest = bytes_of(by) / by.len().max(1) as f64;
                    // One long replacement among short ones hides in a mean; the largest row can't be larger than the column.
                    bytes_of(text) * if by.len() > 1 { bytes_of(by).min(longest * 64.0) } else { longest }
                }
                _ => 0.0,
            },
            Self::List => 0.0,
        })
    }
}

/// The sum of an integer argument over all rows, negative ones as 0.
fn integers(arrays: &[ArrayRef], index: usize) -> Option<f64> {
    let numbers = cast(arrays.get(index)?, &DataType::Int64).ok()?;
    Some(numbers.as_primitive::<Int64Type>().iter().flatten().map(|n| n.max(0) as f64).sum())
}

fn bytes_of(array: &ArrayRef) -> f64 {
    array.to_data().get_slice_memory_size().unwrap_or(0) as f64
}

fn per_row(array: &ArrayRef) -> f64 {
    (bytes_of(array) / array.len().max(1) as f64).max(8.0)
}

/// Elements of all rows' series, in bytes.
fn series(arrays: &[ArrayRef], rows: usize) -> Result<f64> {
    let mut bounds = Vec::with_capacity(2);
    for array in arrays.iter().take(2) {
        bounds.push(match array.data_type() {
            DataType::Date32 | DataType::Date64 => cast(&cast(array, &DataType::Timestamp(TimeUnit::Second, None))?, &DataType::Int64)?,
            DataType::Timestamp(_, zone) => cast(&cast(array, &DataType::Timestamp(TimeUnit::Second, zone.clone()))?, &DataType::Int64)?,
            t if t.is_integer() => cast(array, &DataType::Int64)?,
            _ => return Ok(0.0),
        });
    }
    let steps = arrays.get(2).map(|a| cast(a, &DataType::Int64).unwrap_or_else(|_| a.clone()));
    let mut elements = 0.0;
    for row in 0..rows {
        let bound =
            |i: usize| bounds.get(i).map(|b| b.as_primitive::<Int64Type>()).filter(|b| b.is_valid(row)).map(|b| b.value(row) as f64);
        let (from, to) = match (bound(0), bounds.len()) {
            (Some(stop), 1) => (0.0, stop),
            (Some(start), _) => (start, bound(1).unwrap_or(start)),
            (None, _) => continue,
        };
        // Seconds for times; a step below a microsecond counts as one.
        let step = steps.as_ref().map_or(1.0, |a| step(a, row)).abs().max(1e-6);
        elements += ((to - from) / step).abs() + 1.0;
    }
    Ok(elements * 8.0)
}

fn step(array: &ArrayRef, row: usize) -> f64 {
    if let Some(interval) = array.as_primitive_opt::<IntervalMonthDayNanoType>() {
        let value = interval.value(row);
        return f64::from(value.months) * 28.0 * 86_400.0 + f64::from(value.days) * 86_400.0 + value.nanoseconds as f64 / 1e9;
    }
    array.as_primitive_opt::<Int64Type>().map_or(1.0, |n| n.value(row) as f64)
}
