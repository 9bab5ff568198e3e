//! Image functions, called as DataFusion calls them.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod codecs;
mod golden;
mod random;
mod types;

use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray, BinaryArray, Float64Array, ListArray, UInt64Array};
use arrow::datatypes::{DataType, Field, FieldRef, Float32Type, Float64Type, UInt8Type};
use datafusion::common::{Result, ScalarValue};
use datafusion::config::ConfigOptions;
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDF};

use super::image_functions;
use super::tensor::{Dims, Element, Images, Pixel, Sink, TensorType};

/// One argument: a column or a literal, with its field.
#[derive(Clone)]
struct Arg(FieldRef, ColumnarValue);

fn function(name: &str) -> ScalarUDF {
    image_functions().into_iter().find(|f| f.name() == name).unwrap()
}

fn literal(value: ScalarValue) -> Arg {
    Arg(Arc::new(Field::new("lit", value.data_type(), value.is_null())), ColumnarValue::Scalar(value))
}

fn int(n: i64) -> Arg {
    literal(ScalarValue::Int64(Some(n)))
}

fn real(x: f64) -> Arg {
    literal(ScalarValue::Float64(Some(x)))
}

fn word(w: &str) -> Arg {
    literal(ScalarValue::Utf8(Some(w.into())))
}

fn list(numbers: &[f64]) -> Arg {
    let row = Some(numbers.iter().copied().map(Some).collect::<Vec<_>>());
    let list = ListArray::from_iter_primitive::<Float64Type, _, _>([row]);
    literal(ScalarValue::List(Arc::new(list)))
}

fn column(array: ArrayRef) -> Arg {
    Arg(Arc::new(Field::new("c", array.data_type().clone(), array.null_count() > 0)), ColumnarValue::Array(array))
}

fn numbers(values: &[Option<f64>]) -> Arg {
    column(Arc::new(Float64Array::from(values.to_vec())))
}

fn draws(values: &[u64]) -> Arg {
    column(Arc::new(UInt64Array::from(values.to_vec())))
}

fn files(files: &[Option<&[u8]>]) -> Arg {
    column(Arc::new(BinaryArray::from(files.to_vec())))
}

/// A column of images of one shape.
fn fixed<T: Pixel>(shape: &[usize], rows: &[Option<&[T]>]) -> Arg {
    images(TensorType { element: T::ELEMENT, dims: shape.iter().map(|n| Some(*n)).collect() }, shape, rows)
}

/// The same images in a column of varying shapes.
fn varying<T: Pixel>(shape: &[usize], rows: &[Option<&[T]>]) -> Arg {
    images(TensorType { element: T::ELEMENT, dims: vec![None; shape.len()] }, shape, rows)
}

fn images<T: Pixel>(tensor: TensorType, shape: &[usize], rows: &[Option<&[T]>]) -> Arg {
    let mut sink = Sink::<T>::new(tensor.clone(), rows.len());
    for row in rows {
        match row {
            Some(data) => sink.row(Dims::new(shape).unwrap()).unwrap().copy_from_slice(data),
            None => sink.null(),
        }
    }
    let nullable = rows.iter().any(Option::is_none);
    Arg(Arc::new(tensor.field("image", nullable)), ColumnarValue::Array(sink.finish().unwrap()))
}

/// Plans and calls; returns the field and the column.
fn call(name: &str, args: &[Arg]) -> Result<Arg> {
    let function = function(name);
    let fields: Vec<FieldRef> = args.iter().map(|a| a.0.clone()).collect();
    let literals: Vec<Option<&ScalarValue>> = args
        .iter()
        .map(|a| match &a.1 {
            ColumnarValue::Scalar(s) => Some(s),
            ColumnarValue::Array(_) => None,
        })
        .collect();
    let return_field = function.return_field_from_args(ReturnFieldArgs { arg_fields: &fields, scalar_arguments: &literals })?;
    let number_rows = args
        .iter()
        .find_map(|a| match &a.1 {
            ColumnarValue::Array(a) => Some(a.len()),
            ColumnarValue::Scalar(_) => None,
        })
        .unwrap_or(1);
    let call = ScalarFunctionArgs {
        args: args.iter().map(|a| a.1.clone()).collect(),
        arg_fields: fields,
        number_rows,
        return_field: return_field.clone(),
        config_options: Arc::new(ConfigOptions::default()),
    };
    let value = function.invoke_with_args(call)?;
    let array = value.clone().into_array(number_rows)?;
    assert_eq!(array.len(), number_rows, "{name} changed the number of rows");
    assert_eq!(array.data_type(), return_field.data_type(), "{name} did not return what it said");
    Ok(Arg(return_field, value))
}

fn array(arg: &Arg) -> ArrayRef {
    match &arg.1 {
        ColumnarValue::Array(a) => a.clone(),
        ColumnarValue::Scalar(s) => s.to_array().unwrap(),
    }
}

/// Shape and values of a row, `None` for null.
fn row<T: Pixel>(arg: &Arg, index: usize) -> Option<(Vec<usize>, Vec<T>)> {
    let tensor = TensorType::of(&arg.0).unwrap();
    let images = Images::<T>::new(&array(arg), &tensor).unwrap();
    images.get(index).unwrap().map(|view| (view.dims.as_slice().to_vec(), view.data.to_vec()))
}

fn error(name: &str, args: &[Arg]) -> String {
    match call(name, args) {
        Ok(_) => panic!("{name} accepted it"),
        Err(error) => error.to_string(),
    }
}
