//! Random SQL functions, pure in the row's key.
//!
//! Owns: `random_*`, the hidden draw and the placeholders `epoch()` and `seed()`. A call `random_int(0, 6)` in a step is compiled to
//! `random_int(0, 6, __draw(call, _id, _part))`; all it needs beyond one draw is derived from that draw. So a row's values depend on (seed,
//! epoch, step, ordinal of the call, key) and never on batching, workers or attempts. Must not know: how the compiler finds the calls.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BooleanArray, Float64Array, Int64Array, UInt64Array};
use arrow::compute::take;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int32Type, Int64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF, ScalarUDFImpl, Signature, Volatility};
use forebay_core::random::{Rng, draw};

/// The names of this module's functions that take the hidden draw as their last argument.
pub const RANDOM_FUNCTIONS: &[&str] = &["random_uniform", "random_int", "random_normal", "random_bool", "random_choice"];

/// Name of the function that makes draws. Users can't call it.
pub(crate) const DRAW: &str = "__draw";
/// Names of the functions that the compiler replaces by literals.
pub(crate) const EPOCH: &str = "epoch";
pub(crate) const SEED: &str = "seed";

pub(crate) fn random_functions() -> Vec<ScalarUDF> {
    [Op::Uniform, Op::Int, Op::Normal, Op::Bool, Op::Choice].map(|op| ScalarUDF::from(RandomUdf::new(op))).into()
}

/// The draw and the two values that a step sees of its run.
pub(crate) fn step_values() -> Vec<ScalarUDF> {
    [Op::Draw, Op::Epoch, Op::Seed].map(|op| ScalarUDF::from(RandomUdf::new(op))).into()
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
enum Op {
    /// `random_uniform([low, high])`: in `[low, high)`, by default `[0, 1)`.
    Uniform,
    /// `random_int(low, high)`: in `low .. high`, the end excluded.
    Int,
    /// `random_normal([mean, deviation])`.
    Normal,
    /// `random_bool([p])`: true with probability p, by default one half.
    Bool,
    /// `random_choice(list)`: one element; null of an empty or null list.
    Choice,
    Draw,
    Epoch,
    Seed,
}

#[derive(Debug, PartialEq, Eq, Hash)]
struct RandomUdf {
    op: Op,
    signature: Signature,
}

impl RandomUdf {
    fn new(op: Op) -> Self {
        Self { op, signature: Signature::user_defined(Volatility::Immutable) }
    }

    fn usage(&self) -> &'static str {
        match self.op {
            Op::Uniform => "random_uniform() or random_uniform(low, high)",
            Op::Int => "random_int(low, high)",
            Op::Normal => "random_normal() or random_normal(mean, deviation)",
            Op::Bool => "random_bool() or random_bool(probability)",
            Op::Choice => "random_choice(list)",
            Op::Draw => "__draw(call, _id, _part)",
            Op::Epoch => "epoch()",
            Op::Seed => "seed()",
        }
    }
}

impl ScalarUDFImpl for RandomUdf {
    fn name(&self) -> &str {
        match self.op {
            Op::Uniform => "random_uniform",
            Op::Int => "random_int",
            Op::Normal => "random_normal",
            Op::Bool => "random_bool",
            Op::Choice => "random_choice",
            Op::Draw => DRAW,
            Op::Epoch => EPOCH,
            Op::Seed => SEED,
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    /// Checks the number of arguments and names their types. The hidden draw is one of them.
    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        use DataType::{Float64, Int32, Int64, UInt64};
        Ok(match (self.op, given.len()) {
            (Op::Uniform | Op::Normal | Op::Bool, 1) => vec![UInt64],
            (Op::Uniform | Op::Normal, 3) => vec![Float64, Float64, UInt64],
            (Op::Int, 3) => vec![Int64, Int64, UInt64],
            (Op::Bool, 2) => vec![Float64, UInt64],
            (Op::Choice, 2) if matches!(given[0], DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)) => {
                vec![given[0].clone(), UInt64]
            }
            (Op::Draw, 1) => vec![UInt64],
            (Op::Draw, 2) => vec![UInt64, Int64],
            (Op::Draw, 3) => vec![UInt64, Int64, Int32],
            (Op::Epoch | Op::Seed, 0) => vec![],
            _ => return plan_err!("{} is called as {}", self.name(), self.usage()),
        })
    }

    fn return_type(&self, arguments: &[DataType]) -> Result<DataType> {
        Ok(match self.op {
            Op::Uniform | Op::Normal => DataType::Float64,
            Op::Int | Op::Epoch => DataType::Int64,
            Op::Bool => DataType::Boolean,
            Op::Draw | Op::Seed => DataType::UInt64,
            Op::Choice => match arguments.first() {
                Some(DataType::List(item) | DataType::LargeList(item) | DataType::FixedSizeList(item, _)) => item.data_type().clone(),
                _ => return plan_err!("random_choice is called as {}", self.usage()),
            },
        })
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let types: Vec<DataType> = args.arg_fields.iter().map(|f| f.data_type().clone()).collect();
        let nullable = match self.op {
            Op::Draw | Op::Epoch | Op::Seed => false,
            Op::Choice => true,
            _ => args.arg_fields.iter().any(|f| f.is_nullable()),
        };
        Ok(Arc::new(Field::new(self.name(), self.return_type(&types)?, nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let rows = args.number_rows;
        if self.op == Op::Draw {
            return draws(&args.args, rows);
        }
        let Some((last, given)) = args.args.split_last() else {
            return exec_err!("{} stands only in a step of a pipeline", self.usage());
        };
        let last = last.to_array(rows)?;
        let Some(draws) = last.as_primitive_opt::<UInt64Type>() else { return exec_err!("a draw of type {}", last.data_type()) };
        let given = given.iter().map(|a| a.to_array(rows)).collect::<Result<Vec<_>>>()?;
        self.values(draws, &given).map(ColumnarValue::Array)
    }
}

impl RandomUdf {
    fn values(&self, draws: &UInt64Array, given: &[ArrayRef]) -> Result<ArrayRef> {
        let rngs = draws.values().iter().map(|d| Rng::new(*d));
        Ok(match (self.op, given) {
            (Op::Uniform, []) => Arc::new(Float64Array::from_iter_values(rngs.map(|mut r| r.unit_f64()))),
            (Op::Normal, []) => Arc::new(Float64Array::from_iter_values(rngs.map(|mut r| normal(&mut r)))),
            (Op::Bool, []) => Arc::new(BooleanArray::from_iter(rngs.map(|mut r| Some(r.unit_f64() < 0.5)))),
            (Op::Uniform, [low, high]) => {
                let pairs = low.as_primitive::<Float64Type>().iter().zip(high.as_primitive::<Float64Type>());
                Arc::new(Float64Array::from_iter(rngs.zip(pairs).map(|(mut r, (l, h))| l.zip(h).map(|(l, h)| l + (h - l) * r.unit_f64()))))
            }
            (Op::Normal, [mean, deviation]) => {
                let pairs = mean.as_primitive::<Float64Type>().iter().zip(deviation.as_primitive::<Float64Type>());
                Arc::new(Float64Array::from_iter(rngs.zip(pairs).map(|(mut r, (m, d))| m.zip(d).map(|(m, d)| m + d * normal(&mut r)))))
            }
            (Op::Bool, [p]) => {
                let p = p.as_primitive::<Float64Type>().iter();
                Arc::new(BooleanArray::from_iter(rngs.zip(p).map(|(mut r, p)| p.map(|p| r.unit_f64() < p))))
            }
            (Op::Int, [low, high]) => {
                let pairs = low.as_primitive::<Int64Type>().iter().zip(high.as_primitive::<Int64Type>());
                let values = rngs.zip(pairs).map(|(mut r, (l, h))| l.zip(h).map(|(l, h)| integer(&mut r, l, h)).transpose());
                Arc::new(values.collect::<Result<Int64Array>>()?)
            }
            (Op::Choice, [list]) => choice(rngs, list)?,
            _ => return exec_err!("{} stands only in a step of a pipeline", self.usage()),
        })
    }
}

/// `__draw(call, _id[, _part])`: the call is one literal, the keys are columns.
fn draws(args: &[ColumnarValue], rows: usize) -> Result<ColumnarValue> {
    let (Some(ColumnarValue::Scalar(ScalarValue::UInt64(Some(call)))), Some(ids)) = (args.first(), args.get(1)) else {
        return exec_err!("random functions stand only in a step of a pipeline");
    };
    let ids = ids.to_array(rows)?;
    let Some(ids) = ids.as_primitive_opt::<Int64Type>() else { return exec_err!("`_id` is {}", ids.data_type()) };
    let Some(parts) = args.get(2) else {
        return Ok(ColumnarValue::Array(Arc::new(UInt64Array::from_iter_values(ids.values().iter().map(|id| draw(*call, *id, 0))))));
    };
    let parts = parts.to_array(rows)?;
    let Some(parts) = parts.as_primitive_opt::<Int32Type>() else { return exec_err!("`_part` is {}", parts.data_type()) };
    let values = ids.values().iter().zip(parts.values()).map(|(id, part)| draw(*call, *id, *part));
    Ok(ColumnarValue::Array(Arc::new(UInt64Array::from_iter_values(values))))
}

fn integer(rng: &mut Rng, low: i64, high: i64) -> Result<i64> {
    // Wrapping arithmetic is exact here: the width of any i64 range fits u64.
    let width = high.wrapping_sub(low) as u64;
    if high <= low {
        return exec_err!("random_int: there is no integer in {low} .. {high} (the end is excluded)");
    }
    Ok(low.wrapping_add(rng.below(width) as i64))
}

/// Standard normal by Marsaglia's polar method. `libm` gives the same bits on every host; the system's `log` does not.
fn normal(rng: &mut Rng) -> f64 {
    loop {
        let (u, v) = (2.0 * rng.unit_f64() - 1.0, 2.0 * rng.unit_f64() - 1.0);
        let s = u * u + v * v;
        if s > 0.0 && s < 1.0 {
            return u * (-2.0 * libm::log(s) / s).sqrt();
        }
    }
}

fn choice(rngs: impl Iterator<Item = Rng>, list: &ArrayRef) -> Result<ArrayRef> {
    let (values, spans): (ArrayRef, Vec<(usize, usize)>) = match list.data_type() {
        DataType::List(_) => {
            let list = list.as_list::<i32>();
            (list.values().clone(), list.offsets().windows(2).map(|w| (w[0] as usize, w[1] as usize)).collect())
        }
        DataType::LargeList(_) => {
            let list = list.as_list::<i64>();
            (list.values().clone(), list.offsets().windows(2).map(|w| (w[0] as usize, w[1] as usize)).collect())
        }
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            (list.as_fixed_size_list().values().clone(), (0..list.len()).map(|i| (i * size, (i + 1) * size)).collect())
        }
        other => return exec_err!("random_choice takes a list, not {other}"),
    };
    let picks = rngs.zip(spans).enumerate().map(|(row, (mut rng, (start, end)))| {
        let length = (end - start) as u64;
        (length > 0 && list.is_valid(row)).then(|| start as u64 + rng.below(length))
    });
    Ok(take(&values, &UInt64Array::from_iter(picks), None)?)
}
