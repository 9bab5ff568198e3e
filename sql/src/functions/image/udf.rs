//! The DataFusion side of pixel functions: types when planned, one loop over the rows of a batch when run.

use std::sync::Arc;

use arrow::array::ArrayRef;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{Result, internal_err};
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};

use super::args::{self, Args, Literals};
use super::ops::Op;
use super::pixels;
use super::resize::Resizing;
use super::tensor::{Element, Images, Pixel, Sink, TensorType};

/// A pixel function as DataFusion calls it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct ImageUdf {
    op: Op,
    signature: Signature,
}

impl ImageUdf {
    pub(super) fn new(op: Op) -> Self {
        // Random functions too are immutable: they are pure in their hidden argument.
        Self { op, signature: Signature::variadic_any(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for ImageUdf {
    fn name(&self) -> &str {
        self.op.name()
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!("{} derives its type from fields", self.op.name())
    }

    fn return_field_from_args(&self, given: ReturnFieldArgs) -> Result<FieldRef> {
        let op = self.op;
        let written = args::check(op.name(), "image", op.params(), op.random(), given.arg_fields)?;
        let input = image_type(op.name(), given.arg_fields.first())?;
        let literals = given.scalar_arguments.get(1..written).unwrap_or_default();
        let output = op.output(&input, &Literals { name: op.name(), params: op.params(), given: literals })?;
        let nullable = given.arg_fields.iter().any(|f| f.is_nullable());
        Ok(Arc::new(output.field(op.name(), nullable)))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let op = self.op;
        let written = args::check(op.name(), "image", op.params(), op.random(), &call.arg_fields)?;
        let input = image_type(op.name(), call.arg_fields.first())?;
        let output = TensorType::of(&call.return_field)?;
        let evaluated = Args::evaluate(op.name(), op.params(), op.random(), written, &call)?;
        let Some(images) = call.args.first() else { return internal_err!("{} without an image", op.name()) };
        let images = images.clone().into_array(call.number_rows)?;
        let array = match (op, input.element) {
            (Op::Normalize, Element::U8) => normalize::<u8>(&images, &input, output, &evaluated, call.number_rows)?,
            (Op::Normalize, Element::F32) => normalize::<f32>(&images, &input, output, &evaluated, call.number_rows)?,
            (_, Element::U8) => run::<u8>(op, &images, &input, output, &evaluated, call.number_rows)?,
            (_, Element::F32) => run::<f32>(op, &images, &input, output, &evaluated, call.number_rows)?,
        };
        Ok(ColumnarValue::Array(array))
    }
}

/// The first argument's type; errors name the function.
pub(super) fn image_type(name: &str, field: Option<&FieldRef>) -> Result<TensorType> {
    let none = Arc::new(Field::new("", DataType::Null, true));
    TensorType::of(field.unwrap_or(&none)).map_err(|e| e.context(name.to_owned()))
}

fn run<T: Pixel>(op: Op, images: &ArrayRef, input: &TensorType, output: TensorType, args: &Args, rows: usize) -> Result<ArrayRef> {
    let images = Images::<T>::new(images, input)?;
    let mut sink = Sink::<T>::new(output, rows);
    let mut resizing = Resizing::default();
    for index in 0..rows {
        match (images.get(index)?, args.row(index)) {
            (Some(image), Some(row)) => op.apply(image, row, &mut resizing, &mut sink)?,
            _ => sink.null(),
        }
    }
    sink.finish()
}

fn normalize<T: Pixel>(images: &ArrayRef, input: &TensorType, output: TensorType, args: &Args, rows: usize) -> Result<ArrayRef> {
    let images = Images::<T>::new(images, input)?;
    let mut sink = Sink::<f32>::new(output, rows);
    for index in 0..rows {
        match (images.get(index)?, args.row(index)) {
            (Some(image), Some(row)) => pixels::normalize(image, row, &mut sink)?,
            _ => sink.null(),
        }
    }
    sink.finish()
}
