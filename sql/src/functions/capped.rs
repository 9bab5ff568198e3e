//! DataFusion's functions whose result or work can be far larger than their arguments, with a limit.
//!
//! `range(0, 1e12)`, `repeat('x', 1e12)` and their like allocate without asking the memory pool, and a failed allocation ends the process. So
//! what they are about to make is estimated first, per batch, and refused beyond [`LIMIT`]. Functions that only put their arguments together are
//! here too: applied to their own result, they double it each time. [`harden`] puts the limits into a plan, because DataFusion's planner
//! makes some calls by itself.

use std::cell::Cell;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::compute::cast;
use arrow::compute::kernels::concat_elements::concat_elements_dyn;
use arrow::datatypes::{DataType, FieldRef, Int64Type, IntervalMonthDayNanoType, TimeUnit};
use datafusion::common::tree_node::{Transformed, TreeNode};
use datafusion::common::{DataFusionError, Result};
use datafusion::logical_expr::binary::BinaryTypeCoercer;
use datafusion::logical_expr::expr::ScalarFunction;
use datafusion::logical_expr::expr_rewriter::NamePreserver;
use datafusion::logical_expr::{
    BinaryExpr, ColumnarValue, Expr, LogicalPlan, Operator, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature,
    Volatility,
};

/// Bytes that one call may make out of one batch.
const LIMIT: f64 = (512u64 << 20) as f64;
/// Bytes that one call may make out of constants.
const CONSTANT: f64 = (16u64 << 20) as f64;
/// Bytes that all calls on constants may make while one query is planned.
const CONSTANTS: f64 = (256u64 << 20) as f64;
/// Steps that one call may take for one batch.
const STEPS: f64 = 1e10;

thread_local! {
    /// What constants may still become while this thread plans; none on other threads.
    static LEFT: Cell<Option<f64>> = const { Cell::new(None) };
    /// Whether they wanted to become more. The optimizer passes over errors of constants and leaves them to the execution, which has no such limit.
    static EXCEEDED: Cell<bool> = const { Cell::new(false) };
}

/// Planning on this thread begins.
pub(crate) fn begin_planning() {
    LEFT.set(Some(CONSTANTS));
    EXCEEDED.set(false);
}

/// Planning on this thread is over; says whether its constants wanted more than they may.
pub(crate) fn end_planning() -> forebay_core::Result<()> {
    LEFT.set(None);
    if !EXCEEDED.replace(false) {
        return Ok(());
    }
    let text = format!("the query makes over {:.0} MiB out of constants", CONSTANTS / f64::from(1 << 20));
    Err(forebay_core::Error::new(forebay_core::Kind::ResourceExhausted, text).with_remedy("make fewer or smaller ones"))
}

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
    /// Each byte of the first argument may become the argument at this index.
    Replace(usize),
    /// All arguments together, so often.
    Sum(u8),
    /// As [`Growth::Sum`]: `make_array`, which DataFusion calls nullable. It never is null, and a tensor made of it then needs no null mask.
    List,
    /// No larger, but it compares each part of the first argument with each of the second.
    Product,
}

const GROWING: &[(&str, Growth)] = &[
    ("range", Growth::Series),
    ("generate_series", Growth::Series),
    ("array_repeat", Growth::Times(0, 1)),
    ("array_resize", Growth::Elements(1, 2)),
    ("repeat", Growth::Times(0, 1)),
    ("lpad", Growth::Length(1)),
    ("rpad", Growth::Length(1)),
    ("replace", Growth::Replace(2)),
    ("regexp_replace", Growth::Replace(2)),
    ("array_replace", Growth::Replace(2)),
    ("array_replace_n", Growth::Replace(2)),
    ("array_replace_all", Growth::Replace(2)),
    ("array_to_string", Growth::Replace(1)),
    ("make_array", Growth::List),
    ("concat", Growth::Sum(1)),
    ("concat_ws", Growth::Sum(2)),
    ("overlay", Growth::Sum(1)),
    ("encode", Growth::Sum(2)),
    ("array_concat", Growth::Sum(1)),
    ("array_append", Growth::Sum(1)),
    ("array_prepend", Growth::Sum(1)),
    ("array_union", Growth::Sum(1)),
    ("arrays_zip", Growth::Sum(1)),
    ("flatten", Growth::Sum(1)),
    ("map", Growth::Sum(1)),
    ("struct", Growth::Sum(1)),
    ("named_struct", Growth::Sum(1)),
    ("string_to_array", Growth::Sum(5)),
    // Else a constant list becomes a condition of as many terms, which takes minutes to plan.
    ("array_has", Growth::Sum(1)),
    ("levenshtein", Growth::Product),
    ("array_has_all", Growth::Product),
    ("array_has_any", Growth::Product),
];

/// The same functions, the growing ones with their limit.
pub(crate) fn capped(functions: Vec<Arc<ScalarUDF>>) -> Vec<Arc<ScalarUDF>> {
    functions.into_iter().map(cap).collect()
}

/// Whether a function makes much out of little.
pub(crate) fn creates(name: &str) -> bool {
    GROWING.iter().any(|(known, growth)| {
        *known == name
            && matches!(growth, Growth::Series | Growth::Times(..) | Growth::Elements(..) | Growth::Length(_) | Growth::Replace(_))
    })
}

fn cap(function: Arc<ScalarUDF>) -> Arc<ScalarUDF> {
    match GROWING.iter().find(|(name, _)| *name == function.name()) {
        Some((_, growth)) if !function.inner().is::<Capped>() => Arc::new(ScalarUDF::from(Capped { inner: function, growth: *growth })),
        _ => function,
    }
}

/// The same plan, with a limit on every call that can grow, also on those that came from operators and literals.
pub(crate) fn harden(plan: LogicalPlan) -> Result<LogicalPlan> {
    let concat = concat_operator();
    // Whether a node that was visited changed: those above it follow, and take over its columns.
    let changed_below = Cell::new(false);
    let limited = plan.transform_up_with_subqueries(|plan| {
        let names = NamePreserver::new(&plan);
        let mapped = plan.map_expressions(|expr| {
            let name = names.save(&expr);
            let changed = expr.transform_up(|expr| {
                Ok(match expr {
                    Expr::ScalarFunction(call) => {
                        let func = cap(Arc::clone(&call.func));
                        let same = Arc::ptr_eq(&func, &call.func);
                        let call = Expr::ScalarFunction(ScalarFunction { func, args: call.args });
                        if same { Transformed::no(call) } else { Transformed::yes(call) }
                    }
                    Expr::BinaryExpr(BinaryExpr { left, op: Operator::StringConcat, right }) => {
                        Transformed::yes(Expr::ScalarFunction(ScalarFunction { func: Arc::clone(&concat), args: vec![*left, *right] }))
                    }
                    other => Transformed::no(other),
                })
            })?;
            Ok(if changed.transformed { changed.update_data(|expr| name.restore(expr)) } else { changed })
        })?;
        changed_below.set(changed_below.get() || mapped.transformed);
        if changed_below.get() { mapped.map_data(LogicalPlan::recompute_schema) } else { Ok(mapped) }
    });
    limited.map(|plan| plan.data)
}

/// The operator `||` with its limit, for plans that come from elsewhere: there it is called by its name.
pub(crate) fn concat_operator() -> Arc<ScalarUDF> {
    Arc::new(ScalarUDF::from(Capped { inner: Arc::new(ScalarUDF::from(Concat::default())), growth: Growth::Sum(1) }))
}

/// The operator `||` as a function: null where either side is.
#[derive(Debug, PartialEq, Eq, Hash)]
struct Concat {
    signature: Signature,
}

impl Default for Concat {
    fn default() -> Self {
        Self { signature: Signature::user_defined(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Concat {
    fn name(&self) -> &'static str {
        "||"
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, types: &[DataType]) -> Result<DataType> {
        match types {
            [left, right] => BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_result_type(),
            _ => Err(DataFusionError::Plan("|| has two sides".to_owned())),
        }
    }

    fn coerce_types(&self, types: &[DataType]) -> Result<Vec<DataType>> {
        match types {
            [left, right] => {
                let (left, right) = BinaryTypeCoercer::new(left, &Operator::StringConcat, right).get_input_types()?;
                Ok(vec![left, right])
            }
            _ => Err(DataFusionError::Plan("|| has two sides".to_owned())),
        }
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let scalar = args.args.iter().all(|a| matches!(a, ColumnarValue::Scalar(_)));
        let arrays = ColumnarValue::values_to_arrays(&args.args)?;
        let [left, right] = arrays.as_slice() else { return Err(DataFusionError::Plan("|| has two sides".to_owned())) };
        let joined = concat_elements_dyn(left, right)?;
        if scalar {
            return datafusion::common::ScalarValue::try_from_array(&joined, 0).map(ColumnarValue::Scalar);
        }
        Ok(ColumnarValue::Array(joined))
    }
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

    fn schema_name(&self, args: &[Expr]) -> Result<String> {
        self.inner.schema_name(args)
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
        let arguments = Arguments::new(&args)?;
        let size = self.growth.size(&arguments)?;
        self.check(size, arguments.constant)?;
        self.inner.invoke_with_args(args)
    }
}

impl Capped {
    fn check(&self, size: f64, constant: bool) -> Result<()> {
        let exhausted = |text: String| Err(DataFusionError::ResourcesExhausted(text));
        if self.growth == Growth::Product {
            return match size > STEPS {
                true => exhausted(format!("{} would take {size:.0e} steps at once; the limit is {STEPS:.0e}", self.name())),
                false => Ok(()),
            };
        }
        let mib = f64::from(1 << 20);
        let limit = if constant { CONSTANT } else { LIMIT };
        if size > limit {
            let of = if constant { " of constants" } else { "" };
            let (size, limit) = (size / mib, limit / mib);
            return exhausted(format!("{} would make {size:.0} MiB{of} at once; the limit is {limit:.0} MiB", self.name()));
        }
        match LEFT.get().filter(|_| constant) {
            Some(left) if size > left => {
                EXCEEDED.set(true);
                exhausted(format!("the query makes over {:.0} MiB out of constants", CONSTANTS / mib))
            }
            Some(left) => {
                LEFT.set(Some(left - size));
                Ok(())
            }
            None => Ok(()),
        }
    }
}

/// The arguments of a call. Constants stay one row: repeating them is what may be too large.
struct Arguments {
    /// Values, and whether they are a constant of one row.
    all: Vec<(ArrayRef, bool)>,
    rows: usize,
    constant: bool,
}

impl Arguments {
    fn new(args: &ScalarFunctionArgs) -> Result<Self> {
        let array = |value: &ColumnarValue| match value {
            ColumnarValue::Array(array) => Ok((Arc::clone(array), false)),
            ColumnarValue::Scalar(_) => value.to_array(1).map(|array| (array, true)),
        };
        let all = args.args.iter().map(array).collect::<Result<Vec<_>>>()?;
        let constant = all.iter().all(|(_, constant)| *constant);
        Ok(Self { all, rows: if constant { 1 } else { args.number_rows }, constant })
    }

    /// The sum of an integer argument over all rows, negative ones as 0.
    fn integers(&self, index: usize) -> f64 {
        let Some((array, constant)) = self.all.get(index) else { return 0.0 };
        let Ok(numbers) = cast(array, &DataType::Int64) else { return 0.0 };
        let sum: f64 = numbers.as_primitive::<Int64Type>().iter().flatten().map(|n| n.max(0) as f64).sum();
        if *constant { sum * self.rows as f64 } else { sum }
    }

    /// Bytes of an argument in all rows.
    fn bytes(&self, index: usize) -> f64 {
        self.all.get(index).map_or(0.0, |(array, constant)| bytes_of(array) * if *constant { self.rows as f64 } else { 1.0 })
    }

    /// Bytes of an argument in a row, on average.
    fn per_row(&self, index: usize) -> f64 {
        (self.bytes(index) / self.rows.max(1) as f64).max(8.0)
    }

    /// Bytes of an argument in its largest row, from above.
    fn longest(&self, index: usize) -> f64 {
        // A long value among short ones hides in a mean; the largest row can't be larger than the column.
        let varies = self.all.get(index).is_some_and(|(array, constant)| !constant && array.len() > 1);
        let mean = self.bytes(index) / self.rows.max(1) as f64;
        if varies { self.bytes(index).min(mean * 64.0) } else { mean }
    }
}

impl Growth {
    /// An estimate from above where the arguments are what the function takes; others it refuses by itself.
    fn size(self, args: &Arguments) -> Result<f64> {
        Ok(match self {
            Self::Series => series(args)?,
            Self::Times(what, times) => args.integers(times) * args.per_row(what),
            Self::Elements(count, element) => args.integers(count) * args.per_row(element).max(16.0),
            Self::Length(length) => args.integers(length) * 4.0,
            Self::Replace(by) => args.bytes(0) * args.longest(by).max(1.0),
            Self::Sum(times) => (0..args.all.len()).map(|i| args.bytes(i)).sum::<f64>() * f64::from(times),
            Self::List => (0..args.all.len()).map(|i| args.bytes(i)).sum(),
            Self::Product => args.bytes(0) * args.longest(1),
        })
    }
}

fn bytes_of(array: &ArrayRef) -> f64 {
    array.to_data().get_slice_memory_size().unwrap_or(0) as f64
}

/// Elements of all rows' series, in bytes.
fn series(args: &Arguments) -> Result<f64> {
    let mut bounds = Vec::with_capacity(2);
    for (array, constant) in args.all.iter().take(2) {
        let numbers = match array.data_type() {
            DataType::Date32 | DataType::Date64 => cast(&cast(array, &DataType::Timestamp(TimeUnit::Second, None))?, &DataType::Int64)?,
            DataType::Timestamp(_, zone) => cast(&cast(array, &DataType::Timestamp(TimeUnit::Second, zone.clone()))?, &DataType::Int64)?,
            t if t.is_integer() => cast(array, &DataType::Int64)?,
            _ => return Ok(0.0),
        };
        bounds.push((numbers, *constant));
    }
    let steps = args.all.get(2).map(|(a, constant)| (cast(a, &DataType::Int64).unwrap_or_else(|_| a.clone()), *constant));
    let mut elements = 0.0;
    for row in 0..args.rows {
        let bound = |i: usize| {
            let (numbers, constant) = bounds.get(i)?;
            let (numbers, row) = (numbers.as_primitive::<Int64Type>(), if *constant { 0 } else { row });
            numbers.is_valid(row).then(|| numbers.value(row) as f64)
        };
        let (from, to) = match (bound(0), bounds.len()) {
            (Some(stop), 1) => (0.0, stop),
            (Some(start), _) => (start, bound(1).unwrap_or(start)),
            (None, _) => continue,
        };
        // Seconds for times; a step below a microsecond counts as one.
        let step = steps.as_ref().map_or(1.0, |(a, constant)| step(a, if *constant { 0 } else { row })).abs().max(1e-6);
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
