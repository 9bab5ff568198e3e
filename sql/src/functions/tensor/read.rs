//! `tensor_to_list`, `tensor_shape`, `tensor_get`, `tensor_min`, `tensor_max`, `tensor_mean`, `tensor_sum`: looking into tensors.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, Int64Array, ListArray, UInt64Array};
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::{cast, take};
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, Int64Type};
use datafusion::common::{Result, plan_err};
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use super::shape::{Rows, Tensor};

/// Elements that are turned into `f64` at a time, so that reducing bytes doesn't need eight times their memory.
const CHUNK: usize = 1 << 16;

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// All elements, row-major.
    ToList,
    /// The lengths of the axes, as a list of BIGINT.
    Shape,
    /// `tensor_get(tensor, i, j, ...)`: one element, counted from 0; null outside.
    Get,
    Min,
    Max,
    /// Mean and sum are DOUBLE, added in storage order.
    Mean,
    Sum,
}

impl Op {
    pub(super) const ALL: &[Self] = &[Self::ToList, Self::Shape, Self::Get, Self::Min, Self::Max, Self::Mean, Self::Sum];
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ReadUdf {
    op: Op,
    signature: Signature,
}

impl ReadUdf {
    pub(super) fn new(op: Op) -> Self {
        Self { op, signature: Signature::user_defined(Volatility::Immutable) }
    }

    fn usage<T>(&self) -> Result<T> {
        match self.op {
            Op::Get => plan_err!("tensor_get is called as tensor_get(tensor, i, j), one index per axis"),
            _ => plan_err!("{0} is called as {0}(tensor)", self.name()),
        }
    }
}

impl ScalarUDFImpl for ReadUdf {
    fn name(&self) -> &str {
        match self.op {
            Op::ToList => "tensor_to_list",
            Op::Shape => "tensor_shape",
            Op::Get => "tensor_get",
            Op::Min => "tensor_min",
            Op::Max => "tensor_max",
            Op::Mean => "tensor_mean",
            Op::Sum => "tensor_sum",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        match (self.op, given.split_first()) {
            (Op::Get, Some((first, indexes))) if !indexes.is_empty() && indexes.iter().all(|i| i.is_integer()) => {
                Ok(std::iter::once(first.clone()).chain(indexes.iter().map(|_| DataType::Int64)).collect())
            }
            (Op::Get, _) => self.usage(),
            (_, Some((first, []))) => Ok(vec![first.clone()]),
            _ => self.usage(),
        }
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        plan_err!("{} needs its arguments' fields", self.name())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let Some(first) = args.arg_fields.first() else { return self.usage() };
        let tensor = Tensor::of(first)?;
        if self.op == Op::Get && args.arg_fields.len() != tensor.axes() + 1 {
            return plan_err!("tensor_get of a tensor with {} axes takes {} indexes", tensor.axes(), tensor.axes());
        }
        let data_type = match self.op {
            Op::ToList => DataType::List(item(tensor.element().clone())),
            Op::Shape => DataType::List(item(DataType::Int64)),
            Op::Get | Op::Min | Op::Max => tensor.element().clone(),
            Op::Mean | Op::Sum => DataType::Float64,
        };
        // An index may lie outside, and a tensor of variable shape may be empty.
        let nullable = first.is_nullable() || self.op == Op::Get || matches!(tensor, Tensor::Variable(..));
        Ok(Arc::new(Field::new(self.name(), data_type, nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let arrays = args.args.iter().map(|a| a.to_array(args.number_rows)).collect::<Result<Vec<_>>>()?;
        let (Some((first, indexes)), Some(field)) = (arrays.split_first(), args.arg_fields.first()) else { return self.usage() };
        let rows = Rows::new(first, &Tensor::of(field)?)?;
        let read = match self.op {
            Op::ToList => to_list(&rows)?,
            Op::Shape => shapes(&rows)?,
            Op::Get => get(&rows, indexes)?,
            Op::Min => extreme(&rows, std::cmp::Ordering::Less)?,
            Op::Max => extreme(&rows, std::cmp::Ordering::Greater)?,
            Op::Mean => sums(&rows, true)?,
            Op::Sum => sums(&rows, false)?,
        };
        Ok(ColumnarValue::Array(read))
    }
}

fn item(data_type: DataType) -> FieldRef {
    Arc::new(Field::new("item", data_type, false))
}

fn validity(rows: &Rows) -> Option<NullBuffer> {
    rows.spans.iter().any(Option::is_none).then(|| rows.spans.iter().map(Option::is_some).collect())
}

fn to_list(rows: &Rows) -> Result<ArrayRef> {
    let offsets = OffsetBuffer::<i32>::from_lengths(rows.spans.iter().map(|s| s.map_or(0, |(start, end)| end - start)));
    let nulls = validity(rows);
    let whole = nulls.is_none() && rows.spans.first().is_none_or(|s| s.is_some_and(|(start, _)| start == 0));
    let values = if whole {
        rows.values.slice(0, offsets.last().map_or(0, |n| *n as usize))
    } else {
        let index = rows.spans.iter().flatten().flat_map(|(start, end)| (*start as u64)..(*end as u64));
        take(&rows.values, &UInt64Array::from_iter_values(index), None)?
    };
    Ok(Arc::new(ListArray::try_new(item(values.data_type().clone()), offsets, values, nulls)?))
}

fn shapes(rows: &Rows) -> Result<ArrayRef> {
    let shapes: Vec<Vec<usize>> = rows.spans.iter().enumerate().map(|(row, s)| s.map_or_else(Vec::new, |_| rows.shape(row))).collect();
    let offsets = OffsetBuffer::<i32>::from_lengths(shapes.iter().map(Vec::len));
    let lengths = Int64Array::from_iter_values(shapes.into_iter().flatten().map(|n| n as i64));
    Ok(Arc::new(ListArray::try_new(item(DataType::Int64), offsets, Arc::new(lengths), validity(rows))?))
}

fn get(rows: &Rows, indexes: &[ArrayRef]) -> Result<ArrayRef> {
    let indexes: Vec<&Int64Array> = indexes.iter().map(|i| i.as_primitive::<Int64Type>()).collect();
    let places = rows.spans.iter().enumerate().map(|(row, span)| {
        let (start, _) = (*span)?;
        let mut place = 0usize;
        for (axis, length) in rows.shape(row).into_iter().enumerate() {
            let index = indexes.get(axis).filter(|i| i.is_valid(row)).and_then(|i| usize::try_from(i.value(row)).ok());
            place = place * length + index.filter(|i| *i < length)?;
        }
        Some((start + place) as u64)
    });
    Ok(take(&rows.values, &UInt64Array::from_iter(places), None)?)
}

/// The smallest or largest element of each row, in total order (NaN is the largest).
fn extreme(rows: &Rows, wanted: std::cmp::Ordering) -> Result<ArrayRef> {
    let compare = arrow::array::make_comparator(&rows.values, &rows.values, arrow::compute::SortOptions::default())?;
    let places = rows.spans.iter().map(|span| {
        let (start, end) = (*span)?;
        (start..end).reduce(|best, next| if compare(next, best) == wanted { next } else { best }).map(|i| i as u64)
    });
    Ok(take(&rows.values, &UInt64Array::from_iter(places), None)?)
}

fn sums(rows: &Rows, mean: bool) -> Result<ArrayRef> {
    let mut window = (0, 0);
    let mut numbers = Float64Array::from(Vec::<f64>::new());
    let mut out = Vec::with_capacity(rows.spans.len());
    for span in &rows.spans {
        let Some((start, end)) = *span else {
            out.push(None);
            continue;
        };
        if start < window.0 || end > window.1 {
            window = (start, end.max((start + CHUNK).min(rows.values.len())));
            let chunk = cast(&rows.values.slice(window.0, window.1 - window.0), &DataType::Float64)?;
            numbers = chunk.as_primitive::<Float64Type>().clone();
        }
        let elements = numbers.values().get(start - window.0..end - window.0).unwrap_or_default();
        let sum: f64 = elements.iter().sum();
        out.push(if mean { (end > start).then(|| sum / (end - start) as f64) } else { Some(sum) });
    }
    Ok(Arc::new(Float64Array::from(out)))
}
