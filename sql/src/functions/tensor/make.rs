//! `tensor`, `tensor_reshape`, `tensor_cast`, `tensor_scale`: functions whose result is a tensor.

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, FixedSizeListArray, Float32Array, UInt64Array};
use arrow::compute::{CastOptions, cast_with_options, take};
use arrow::datatypes::{DataType, FieldRef, Float32Type};
use datafusion::common::{Result, ScalarValue, exec_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use super::shape::{Fixed, Tensor, element_named};

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    /// `tensor(list, length, ... [, 'uint8'])`
    Make,
    /// `tensor_reshape(tensor, length, ...)`
    Reshape,
    /// `tensor_cast(tensor, 'float32')`: out of range is an error, fractions are cut.
    Cast,
    /// `tensor_scale(tensor, factor [, offset])`: `float32` elements `x * factor + offset`.
    Scale,
}

impl Op {
    pub(super) const ALL: &[Self] = &[Self::Make, Self::Reshape, Self::Cast, Self::Scale];
}

#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct MakeUdf {
    op: Op,
    signature: Signature,
}

impl MakeUdf {
    pub(super) fn new(op: Op) -> Self {
        Self { op, signature: Signature::user_defined(Volatility::Immutable) }
    }

    fn usage<T>(&self) -> Result<T> {
        let usage = match self.op {
            Op::Make => "tensor(list, 8, 8) or tensor(list, 8, 8, 'uint8'), lengths and type being literals",
            Op::Reshape => "tensor_reshape(tensor, 64), lengths being literals",
            Op::Cast => "tensor_cast(tensor, 'float32'), the type being a literal",
            Op::Scale => "tensor_scale(tensor, factor) or tensor_scale(tensor, factor, offset)",
        };
        plan_err!("{} is called as {usage}", self.name())
    }

    /// The result's type; it must be known before any row is.
    fn result(&self, fields: &[FieldRef], literals: &[Option<&ScalarValue>]) -> Result<Fixed> {
        let (Some(first), Some(rest)) = (fields.first(), literals.get(1..)) else { return self.usage() };
        match self.op {
            Op::Make => {
                let (lengths, name) = match rest.split_last() {
                    Some((Some(last), lengths)) if last.try_as_str().is_some() => (lengths, last.try_as_str().flatten()),
                    _ => (rest, None),
                };
                let (element, size) = match first.data_type() {
                    DataType::List(item) | DataType::LargeList(item) => (item.data_type(), None),
                    DataType::FixedSizeList(item, size) => (item.data_type(), usize::try_from(*size).ok()),
                    other => return plan_err!("tensor takes a list of numbers, not {other}; `make_array(a, b, ...)` makes one"),
                };
                let element = name.map_or_else(|| Ok(element.clone()), element_named)?;
                let shape = match size {
                    Some(size) if lengths.is_empty() => vec![size],
                    _ => self.lengths(lengths)?,
                };
                let fixed = Fixed::new(element, shape)?;
                match size {
                    Some(size) if size != fixed.elements() => plan_err!("a list of {size} elements as a tensor of shape {:?}", fixed.shape),
                    _ => Ok(fixed),
                }
            }
            Op::Reshape => {
                let old = fixed(first)?;
                let new = Fixed::new(old.element.clone(), self.lengths(rest)?)?;
                if new.elements() != old.elements() {
                    return plan_err!("a tensor of shape {:?} can't take the shape {:?}", old.shape, new.shape);
                }
                Ok(new)
            }
            Op::Cast => match rest {
                [Some(name)] => {
                    let Some(name) = name.try_as_str().flatten() else { return self.usage() };
                    Fixed::new(element_named(name)?, fixed(first)?.shape)
                }
                _ => self.usage(),
            },
            Op::Scale => Fixed::new(DataType::Float32, fixed(first)?.shape),
        }
    }

    fn lengths(&self, literals: &[Option<&ScalarValue>]) -> Result<Vec<usize>> {
        let length = |l: &Option<&ScalarValue>| match l {
            Some(ScalarValue::Int64(Some(n))) => usize::try_from(*n).ok(),
            _ => None,
        };
        let lengths: Option<Vec<usize>> = literals.iter().map(length).collect();
        match lengths {
            Some(lengths) if !lengths.is_empty() => Ok(lengths),
            _ => self.usage(),
        }
    }
}

fn fixed(field: &FieldRef) -> Result<Fixed> {
    match Tensor::of(field)? {
        Tensor::Fixed(fixed) => Ok(fixed),
        Tensor::Variable(..) => plan_err!("this function takes tensors of one shape; bring them to one size first"),
    }
}

impl ScalarUDFImpl for MakeUdf {
    fn name(&self) -> &str {
        match self.op {
            Op::Make => "tensor",
            Op::Reshape => "tensor_reshape",
            Op::Cast => "tensor_cast",
            Op::Scale => "tensor_scale",
        }
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn coerce_types(&self, given: &[DataType]) -> Result<Vec<DataType>> {
        let Some((first, rest)) = given.split_first() else { return self.usage() };
        let coerce = |t: &DataType| match (self.op, t) {
            (_, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View) if self.op != Op::Scale => Ok(t.clone()),
            (Op::Make | Op::Reshape, t) if t.is_integer() => Ok(DataType::Int64),
            (Op::Scale, t) if t.is_numeric() => Ok(DataType::Float32),
            _ => self.usage(),
        };
        std::iter::once(Ok(first.clone())).chain(rest.iter().map(coerce)).collect()
    }

    fn return_type(&self, _: &[DataType]) -> Result<DataType> {
        plan_err!("{} needs its arguments' fields", self.name())
    }

    fn return_field_from_args(&self, args: ReturnFieldArgs) -> Result<FieldRef> {
        let nullable = args.arg_fields.iter().any(|f| f.is_nullable());
        Ok(Arc::new(self.result(args.arg_fields, args.scalar_arguments)?.field(self.name(), nullable)))
    }

    fn invoke_with_args(&self, args: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let Some(fixed) = Fixed::of(&args.return_field)? else { return self.usage() };
        let Some(first) = args.args.first() else { return self.usage() };
        let array = first.to_array(args.number_rows)?;
        let made = match self.op {
            Op::Scale => {
                let offset = args.args.get(2).map(|o| o.to_array(args.number_rows)).transpose()?;
                let Some(factor) = args.args.get(1) else { return self.usage() };
                scale(&array, &factor.to_array(args.number_rows)?, offset.as_ref(), &fixed)?
            }
            _ => make(&array, &fixed)?,
        };
        Ok(ColumnarValue::Array(made))
    }
}

/// Lists of the right length, cast to the element type and cut into rows. No copy where the elements have that type already.
fn make(list: &ArrayRef, fixed: &Fixed) -> Result<ArrayRef> {
    let n = fixed.elements();
    let values = match list.data_type() {
        DataType::List(_) => {
            let list = list.as_list::<i32>();
            gather(list, list.values(), list.offsets().windows(2).map(|w| (w[0] as usize, w[1] as usize)), n, fixed)?
        }
        DataType::LargeList(_) => {
            let list = list.as_list::<i64>();
            gather(list, list.values(), list.offsets().windows(2).map(|w| (w[0] as usize, w[1] as usize)), n, fixed)?
        }
        DataType::FixedSizeList(..) => {
            let list = list.as_fixed_size_list();
            gather(list, list.values(), (0..list.len()).map(|i| (i * n, (i + 1) * n)), n, fixed)?
        }
        other => return exec_err!("tensor takes a list of numbers, not {other}"),
    };
    if values.null_count() > 0 && list.null_count() == 0 {
        let row = (0..values.len()).find(|i| values.is_null(*i)).unwrap_or(0);
        return exec_err!("element {} of a list is null; a tensor has no null elements (use coalesce)", row % n);
    }
    let options = CastOptions { safe: false, ..Default::default() };
    let values = if values.data_type() == &fixed.element { values } else { cast_with_options(&values, &fixed.element, &options)? };
    let size = i32::try_from(n).unwrap_or(i32::MAX);
    Ok(Arc::new(FixedSizeListArray::try_new_with_length(fixed.item(), size, values, list.nulls().cloned(), list.len())?))
}

/// The elements of all rows end to end, `n` a row; null rows get nulls, which the row's own null hides.
fn gather(
    list: &dyn Array,
    values: &ArrayRef,
    spans: impl Iterator<Item = (usize, usize)> + Clone,
    n: usize,
    fixed: &Fixed,
) -> Result<ArrayRef> {
    if let Some((_, (start, end))) = spans.clone().enumerate().find(|(row, (start, end))| list.is_valid(*row) && end - start != n) {
        return exec_err!("a list of {} elements as a tensor of shape {:?}, which has {n}", end - start, fixed.shape);
    }
    if list.null_count() == 0 {
        let start = spans.clone().next().map_or(0, |(start, _)| start);
        return Ok(values.slice(start, n * list.len()));
    }
    let index = spans.enumerate().flat_map(|(row, (start, _))| {
        let valid = list.is_valid(row);
        (0..n).map(move |i| valid.then_some((start + i) as u64))
    });
    let gathered = take(values, &UInt64Array::from_iter(index), None)?;
    if let Some(hole) = (0..gathered.len()).find(|i| gathered.is_null(*i) && list.is_valid(i / n)) {
        return exec_err!("element {} of a list is null; a tensor has no null elements (use coalesce)", hole % n);
    }
    Ok(gathered)
}

fn scale(array: &ArrayRef, factor: &ArrayRef, offset: Option<&ArrayRef>, fixed: &Fixed) -> Result<ArrayRef> {
    let tensors = make(array, fixed)?;
    let list = tensors.as_fixed_size_list();
    let values = list.values().as_primitive::<Float32Type>();
    let (factor, offset) = (factor.as_primitive::<Float32Type>(), offset.map(|o| o.as_primitive::<Float32Type>()));
    let n = fixed.elements();
    let mut scaled = Vec::with_capacity(values.len());
    for (row, elements) in values.values().chunks_exact(n).enumerate() {
        let (by, add) = (factor.value(row), offset.map_or(0.0, |o| o.value(row)));
        scaled.extend(elements.iter().map(|x| x * by + add));
    }
    let mut nulls = arrow::buffer::NullBuffer::union(list.nulls(), factor.nulls());
    nulls = arrow::buffer::NullBuffer::union(nulls.as_ref(), offset.and_then(|o| o.nulls()));
    let size = i32::try_from(n).unwrap_or(i32::MAX);
    let values = Arc::new(Float32Array::from(scaled));
    Ok(Arc::new(FixedSizeListArray::try_new_with_length(fixed.item(), size, values, nulls, list.len())?))
}
