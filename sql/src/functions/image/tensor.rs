//! Image columns in and out of Arrow: one reader and one writer for fixed-shape and variable-shape tensors.
//!
//! Owns: the field metadata of tensors as seen by image functions, and row views without copies.

use std::collections::HashMap;
use std::fmt;
use std::sync::Arc;

use arrow::array::{
    Array, ArrayRef, ArrowPrimitiveType, AsArray, FixedSizeListArray, ListArray, NullBufferBuilder, PrimitiveArray, StructArray,
};
use arrow::buffer::{NullBuffer, OffsetBuffer, ScalarBuffer};
use arrow::datatypes::{ArrowNativeType, DataType, Field, FieldRef, Fields, Float32Type, Int32Type, UInt8Type};
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};

use super::resize::Bytes;

const NAME_KEY: &str = "ARROW:extension:name";
const METADATA_KEY: &str = "ARROW:extension:metadata";
const FIXED: &str = "arrow.fixed_shape_tensor";
const VARIABLE: &str = "arrow.variable_shape_tensor";

/// What one value of a tensor is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Element {
    U8,
    F32,
}

/// A native type that images are made of.
pub(super) trait Pixel: Bytes + ArrowNativeType + Default + fmt::Debug + Send + Sync + 'static {
    type Arrow: ArrowPrimitiveType<Native = Self>;
    const ELEMENT: Element;
    fn to_f32(self) -> f32;
    /// Saturating and rounding for integers.
    fn from_f32(value: f32) -> Self;
}

impl Pixel for u8 {
    type Arrow = UInt8Type;
    const ELEMENT: Element = Element::U8;
    fn to_f32(self) -> f32 {
        f32::from(self)
    }
    fn from_f32(value: f32) -> Self {
        value.round() as u8
    }
}

impl Pixel for f32 {
    type Arrow = Float32Type;
    const ELEMENT: Element = Element::F32;
    fn to_f32(self) -> f32 {
        self
    }
    fn from_f32(value: f32) -> Self {
        value
    }
}

/// Two or three axis lengths.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Dims {
    lengths: [usize; 3],
    axes: usize,
}

impl Dims {
    /// `None` unless there are two or three axes.
    pub(super) fn new(lengths: &[usize]) -> Option<Self> {
        let mut all = [1; 3];
        all.get_mut(..lengths.len())?.copy_from_slice(lengths);
        (lengths.len() >= 2).then_some(Self { lengths: all, axes: lengths.len() })
    }

    pub(super) fn hwc(height: usize, width: usize, channels: usize) -> Self {
        Self { lengths: [height, width, channels], axes: 3 }
    }

    pub(super) fn as_slice(&self) -> &[usize] {
        &self.lengths[..self.axes]
    }

    pub(super) fn height(&self) -> usize {
        self.lengths[0]
    }

    pub(super) fn width(&self) -> usize {
        self.lengths[1]
    }

    /// 1 where there is no channel axis.
    pub(super) fn channels(&self) -> usize {
        self.lengths[2]
    }

    /// The same channels at another size.
    pub(super) fn resized(&self, height: usize, width: usize) -> Self {
        Self { lengths: [height, width, self.lengths[2]], axes: self.axes }
    }

    pub(super) fn values(&self) -> usize {
        self.lengths.iter().product()
    }
}

/// The type of a tensor column: its element and each axis' length, where it is the same in all rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct TensorType {
    pub element: Element,
    pub dims: Vec<Option<usize>>,
}

impl TensorType {
    /// Reads a column's type; an error names what it is instead.
    pub(super) fn of(field: &Field) -> Result<Self> {
        let name = field.metadata().get(NAME_KEY).map(String::as_str);
        let metadata = field.metadata().get(METADATA_KEY).map_or("{}", String::as_str);
        match (name, field.data_type()) {
            (Some(FIXED), DataType::FixedSizeList(item, _)) => {
                let shape = shape_of(metadata, "shape")?;
                Self { element: element(item)?, dims: shape.into_iter().collect() }.checked()
            }
            (Some(VARIABLE), DataType::Struct(fields)) => {
                let (Some((_, data)), Some((_, shape))) = (fields.find("data"), fields.find("shape")) else {
                    return plan_err!("a variable-shape tensor without `data` and `shape`");
                };
                let (DataType::List(item), DataType::FixedSizeList(_, axes)) = (data.data_type(), shape.data_type()) else {
                    return plan_err!("a variable-shape tensor whose data is {} and shape {}", data.data_type(), shape.data_type());
                };
                let mut dims = shape_of(metadata, "uniform_shape")?;
                dims.resize(usize::try_from(*axes).unwrap_or(0), None);
                Self { element: element(item)?, dims }.checked()
            }
            (_, other) => plan_err!("an image is a tensor of uint8 or float32, not {other}; `image_decode` makes one from a file's bytes"),
        }
    }

    fn checked(self) -> Result<Self> {
        match self.dims.len() {
            2 | 3 => Ok(self),
            n => plan_err!("an image has the axes height, width and perhaps channels, not {n} axes"),
        }
    }

    /// The lengths, when every row has the same.
    pub(super) fn fixed(&self) -> Option<Dims> {
        let lengths: Option<Vec<usize>> = self.dims.iter().copied().collect();
        Dims::new(&lengths?)
    }

    /// The same with other height and width.
    pub(super) fn resized(&self, height: Option<usize>, width: Option<usize>) -> Self {
        let mut dims = vec![height, width];
        dims.extend(self.dims.get(2).copied());
        Self { element: self.element, dims }
    }

    /// The column's field. Its name is free: DataFusion takes the expression's.
    pub(super) fn field(&self, name: &str, nullable: bool) -> Field {
        let item = match self.element {
            Element::U8 => DataType::UInt8,
            Element::F32 => DataType::Float32,
        };
        let (data_type, extension, metadata) = match self.fixed() {
            Some(dims) => {
                let size = i32::try_from(dims.values()).unwrap_or(i32::MAX);
                let metadata = serde_json::json!({ "shape": dims.as_slice() });
                (DataType::FixedSizeList(item_field(item), size), FIXED, metadata)
            }
            None => {
                let metadata = serde_json::json!({ "uniform_shape": self.dims });
                (DataType::Struct(variable_fields(item, self.dims.len())), VARIABLE, metadata)
            }
        };
        let entries = [(NAME_KEY.to_owned(), extension.to_owned()), (METADATA_KEY.to_owned(), metadata.to_string())];
        Field::new(name, data_type, nullable).with_metadata(HashMap::from(entries))
    }
}

impl fmt::Display for TensorType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = match self.element {
            Element::U8 => "uint8",
            Element::F32 => "float32",
        };
        let dims: Vec<String> = self.dims.iter().map(|d| d.map_or("?".into(), |d| d.to_string())).collect();
        write!(f, "{name}[{}]", dims.join(","))
    }
}

fn item_field(item: DataType) -> FieldRef {
    Arc::new(Field::new("item", item, false))
}

fn variable_fields(item: DataType, axes: usize) -> Fields {
    let shape = DataType::FixedSizeList(item_field(DataType::Int32), i32::try_from(axes).unwrap_or(0));
    Fields::from(vec![Field::new("data", DataType::List(item_field(item)), false), Field::new("shape", shape, false)])
}

fn element(item: &Field) -> Result<Element> {
    match item.data_type() {
        DataType::UInt8 => Ok(Element::U8),
        DataType::Float32 => Ok(Element::F32),
        other => plan_err!("an image is a tensor of uint8 or float32, not of {other}"),
    }
}

/// The axis lengths under `key`; a permuted layout is refused, because the pixels would be read in the wrong order.
fn shape_of(metadata: &str, key: &str) -> Result<Vec<Option<usize>>> {
    let parsed: serde_json::Value = serde_json::from_str(if metadata.is_empty() { "{}" } else { metadata })
        .map_err(|e| DataFusionError::Plan(format!("unreadable tensor metadata {metadata:?}: {e}")))?;
    if let Some(order) = parsed.get("permutation").and_then(|p| p.as_array())
        && order.iter().enumerate().any(|(i, p)| p.as_u64() != Some(i as u64))
    {
        return plan_err!("tensors with a permuted layout are not supported; make them row-major");
    }
    let lengths = parsed.get(key).and_then(|s| s.as_array()).map_or(&[][..], Vec::as_slice);
    Ok(lengths.iter().map(|n| n.as_u64().and_then(|n| usize::try_from(n).ok())).collect())
}

/// One row's pixels, row-major.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'a, T> {
    pub dims: Dims,
    pub data: &'a [T],
}

enum Layout {
    Fixed(Dims),
    Varying { offsets: OffsetBuffer<i32>, shapes: ScalarBuffer<i32>, axes: usize },
}

/// A column of images, read in place.
pub(super) struct Images<T: Pixel> {
    values: PrimitiveArray<T::Arrow>,
    layout: Layout,
    nulls: Option<NullBuffer>,
}

impl<T: Pixel> Images<T> {
    pub(super) fn new(array: &ArrayRef, tensor: &TensorType) -> Result<Self> {
        let nulls = array.nulls().cloned();
        if let Some(dims) = tensor.fixed() {
            let Some(list) = array.as_fixed_size_list_opt() else { return exec_err!("a tensor stored as {}", array.data_type()) };
            let values = list.values().slice(0, list.values().len());
            return Ok(Self { values: primitive::<T>(&values)?, layout: Layout::Fixed(dims), nulls });
        }
        let Some(both) = array.as_struct_opt() else { return exec_err!("a tensor stored as {}", array.data_type()) };
        let data = both.column_by_name("data").and_then(|c| c.as_list_opt::<i32>());
        let shape = both.column_by_name("shape").and_then(|c| c.as_fixed_size_list_opt());
        let (Some(data), Some(shape)) = (data, shape) else { return exec_err!("a tensor without data and shape") };
        let Some(shapes) = shape.values().as_primitive_opt::<Int32Type>() else { return exec_err!("a tensor's shape must be int32") };
        let layout = Layout::Varying { offsets: data.offsets().clone(), shapes: shapes.values().clone(), axes: tensor.dims.len() };
        Ok(Self { values: primitive::<T>(data.values())?, layout, nulls })
    }

    /// The image of a row; `None` is null.
    pub(super) fn get(&self, row: usize) -> Result<Option<View<'_, T>>> {
        if self.nulls.as_ref().is_some_and(|n| n.is_null(row)) {
            return Ok(None);
        }
        let (dims, start) = match &self.layout {
            Layout::Fixed(dims) => (*dims, row * dims.values()),
            Layout::Varying { offsets, shapes, axes } => {
                let lengths: Option<Vec<usize>> =
                    shapes.get(row * axes..(row + 1) * axes).map(|s| s.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect());
                let dims = lengths.as_deref().and_then(Dims::new);
                let start = offsets.get(row).and_then(|o| usize::try_from(*o).ok());
                let (Some(dims), Some(start)) = (dims, start) else { return exec_err!("a tensor without a shape") };
                (dims, start)
            }
        };
        match self.values.values().get(start..start + dims.values()) {
            Some(data) => Ok(Some(View { dims, data })),
            None => exec_err!("a tensor shorter than its shape {:?}", dims.as_slice()),
        }
    }
}

fn primitive<T: Pixel>(values: &ArrayRef) -> Result<PrimitiveArray<T::Arrow>> {
    match values.as_primitive_opt::<T::Arrow>() {
        Some(values) => Ok(values.clone()),
        None => exec_err!("a tensor of {} where {:?} was expected", values.data_type(), T::ELEMENT),
    }
}

/// Writes a column of images row by row into one buffer.
pub(super) struct Sink<T: Pixel> {
    tensor: TensorType,
    fixed: Option<Dims>,
    values: Vec<T>,
    offsets: Vec<i32>,
    shapes: Vec<i32>,
    nulls: NullBufferBuilder,
    rows: usize,
}

impl<T: Pixel> Sink<T> {
    pub(super) fn new(tensor: TensorType, rows: usize) -> Self {
        let fixed = tensor.fixed();
        let values = Vec::with_capacity(fixed.map_or(0, |d| d.values().saturating_mul(rows)));
        Self { tensor, fixed, values, offsets: vec![0], shapes: Vec::new(), nulls: NullBufferBuilder::new(rows), rows: 0 }
    }

    pub(super) fn null(&mut self) {
        self.nulls.append_null();
        self.rows += 1;
        match self.fixed {
            Some(dims) => self.values.resize(self.values.len() + dims.values(), T::default()),
            None => {
                self.offsets.extend(self.offsets.last().copied());
                self.shapes.extend(std::iter::repeat_n(0, self.tensor.dims.len()));
            }
        }
    }

    /// Adds a row and lends its zeroed pixels to be written.
    pub(super) fn row(&mut self, dims: Dims) -> Result<&mut [T]> {
        let start = self.values.len();
        let end = start + dims.values();
        match self.fixed {
            Some(fixed) if fixed != dims => {
                return exec_err!("an image of shape {:?} in a column of {}", dims.as_slice(), self.tensor);
            }
            Some(_) => {}
            None => {
                let Ok(offset) = i32::try_from(end) else {
                    return Err(DataFusionError::ResourcesExhausted(
                        "the images of one batch are more than 2 GiB decoded; resize them in the same step, or use smaller batches".into(),
                    ));
                };
                if dims.as_slice().len() != self.tensor.dims.len() {
                    return exec_err!("an image of shape {:?} in a column of {}", dims.as_slice(), self.tensor);
                }
                self.offsets.push(offset);
                self.shapes.extend(dims.as_slice().iter().map(|n| i32::try_from(*n).unwrap_or(i32::MAX)));
            }
        }
        self.nulls.append_non_null();
        self.rows += 1;
        self.values.resize(end, T::default());
        Ok(self.values.get_mut(start..).unwrap_or_default())
    }

    pub(super) fn finish(mut self) -> Result<ArrayRef> {
        let nulls = self.nulls.finish();
        let item = item_field(T::Arrow::DATA_TYPE);
        let values: ArrayRef = Arc::new(PrimitiveArray::<T::Arrow>::new(ScalarBuffer::from(self.values), None));
        if let Some(dims) = self.fixed {
            let size = i32::try_from(dims.values()).unwrap_or(i32::MAX);
            return Ok(Arc::new(FixedSizeListArray::try_new_with_length(item, size, values, nulls, self.rows)?));
        }
        let data = ListArray::try_new(item, OffsetBuffer::new(ScalarBuffer::from(self.offsets)), values, None)?;
        let axes = self.tensor.dims.len();
        let shapes: ArrayRef = Arc::new(PrimitiveArray::<Int32Type>::new(ScalarBuffer::from(self.shapes), None));
        let shape = FixedSizeListArray::try_new(item_field(DataType::Int32), i32::try_from(axes).unwrap_or(0), shapes, None)?;
        let fields = variable_fields(T::Arrow::DATA_TYPE, axes);
        Ok(Arc::new(StructArray::try_new(fields, vec![Arc::new(data), Arc::new(shape)], nulls)?))
    }
}
