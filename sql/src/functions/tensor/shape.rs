//! The type of a tensor column, and its rows as spans of one values array.

use std::collections::HashMap;
use std::sync::Arc;

use arrow::array::{Array, ArrayRef, AsArray};
use arrow::datatypes::{DataType, Field, FieldRef, Int32Type};
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};

const NAME_KEY: &str = "ARROW:extension:name";
const METADATA_KEY: &str = "ARROW:extension:metadata";
const FIXED: &str = "arrow.fixed_shape_tensor";
const VARIABLE: &str = "arrow.variable_shape_tensor";

/// A tensor of at most this many elements, so that sizes fit Arrow's 32-bit list sizes.
const MAX_ELEMENTS: usize = i32::MAX as usize;

/// Element names as users write them.
const ELEMENTS: &[(&str, DataType)] = &[
    ("uint8", DataType::UInt8),
    ("uint16", DataType::UInt16),
    ("uint32", DataType::UInt32),
    ("uint64", DataType::UInt64),
    ("int8", DataType::Int8),
    ("int16", DataType::Int16),
    ("int32", DataType::Int32),
    ("int64", DataType::Int64),
    ("float16", DataType::Float16),
    ("float32", DataType::Float32),
    ("float64", DataType::Float64),
];

/// Whether a field is an `arrow.fixed_shape_tensor`.
pub(crate) fn is_fixed_tensor(field: &Field) -> bool {
    field.metadata().get(NAME_KEY).is_some_and(|n| n == FIXED) && matches!(field.data_type(), DataType::FixedSizeList(..))
}

/// The type that a name such as `uint8` stands for.
pub(super) fn element_named(name: &str) -> Result<DataType> {
    let Some((_, element)) = ELEMENTS.iter().find(|(n, _)| *n == name.to_ascii_lowercase()) else {
        let names: Vec<&str> = ELEMENTS.iter().map(|(n, _)| *n).collect();
        let remedy = forebay_core::suggest::remedy(name, names).unwrap_or_default();
        return plan_err!("a tensor has no elements of type `{name}`; {remedy}");
    };
    Ok(element.clone())
}

pub(super) fn is_element(data_type: &DataType) -> bool {
    ELEMENTS.iter().any(|(_, e)| e == data_type)
}

/// One element type and one shape for all rows.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Fixed {
    pub element: DataType,
    pub shape: Vec<usize>,
}

impl Fixed {
    pub(super) fn new(element: DataType, shape: Vec<usize>) -> Result<Self> {
        if !is_element(&element) {
            return plan_err!("a tensor has numbers as elements, not {element}");
        }
        let elements = shape.iter().try_fold(1usize, |n, d| n.checked_mul(*d)).filter(|n| *n <= MAX_ELEMENTS);
        if shape.is_empty() || shape.contains(&0) || elements.is_none() {
            return plan_err!("{shape:?} is not a tensor's shape: give one or more positive lengths, at most {MAX_ELEMENTS} elements");
        }
        Ok(Self { element, shape })
    }

    pub(super) fn elements(&self) -> usize {
        self.shape.iter().product()
    }

    pub(super) fn item(&self) -> FieldRef {
        Arc::new(Field::new("item", self.element.clone(), false))
    }

    /// As `arrow.fixed_shape_tensor`; the name is free.
    pub(super) fn field(&self, name: &str, nullable: bool) -> Field {
        let size = i32::try_from(self.elements()).unwrap_or(i32::MAX);
        let metadata = serde_json::json!({ "shape": self.shape }).to_string();
        Field::new(name, DataType::FixedSizeList(self.item(), size), nullable)
            .with_metadata(HashMap::from([(NAME_KEY.to_owned(), FIXED.to_owned()), (METADATA_KEY.to_owned(), metadata)]))
    }

    /// Reads a fixed-shape tensor's field; a fixed-size list without the extension is one axis.
    pub(super) fn of(field: &Field) -> Result<Option<Self>> {
        let DataType::FixedSizeList(item, size) = field.data_type() else { return Ok(None) };
        let size = usize::try_from(*size).unwrap_or(0);
        if !is_fixed_tensor(field) {
            return if is_element(item.data_type()) { Self::new(item.data_type().clone(), vec![size]).map(Some) } else { Ok(None) };
        }
        let text = field.metadata().get(METADATA_KEY).map_or("{}", String::as_str);
        let parsed: serde_json::Value =
            serde_json::from_str(text).map_err(|e| DataFusionError::Plan(format!("unreadable tensor metadata {text:?}: {e}")))?;
        if parsed.get("permutation").and_then(|p| p.as_array()).is_some_and(|p| p.iter().zip(0u64..).any(|(v, i)| v.as_u64() != Some(i))) {
            return plan_err!("tensors with a permuted layout are not supported; make them row-major");
        }
        let shape: Option<Vec<usize>> = parsed
            .get("shape")
            .and_then(|s| s.as_array())
            .and_then(|s| s.iter().map(|d| d.as_u64().and_then(|d| usize::try_from(d).ok())).collect());
        let fixed = Self::new(item.data_type().clone(), shape.unwrap_or_default())?;
        if fixed.elements() != size {
            return plan_err!("a tensor of shape {:?} with {size} elements", fixed.shape);
        }
        Ok(Some(fixed))
    }
}

/// What a tensor function can look into.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Tensor {
    Fixed(Fixed),
    /// Element type and number of axes; each row has its own lengths.
    Variable(DataType, usize),
}

impl Tensor {
    pub(super) fn of(field: &Field) -> Result<Self> {
        if let Some(fixed) = Fixed::of(field)? {
            return Ok(Self::Fixed(fixed));
        }
        let variable = field.metadata().get(NAME_KEY).is_some_and(|n| n == VARIABLE);
        if let (true, DataType::Struct(fields)) = (variable, field.data_type())
            && let (Some((_, data)), Some((_, shape))) = (fields.find("data"), fields.find("shape"))
            && let (DataType::List(item), DataType::FixedSizeList(_, axes)) = (data.data_type(), shape.data_type())
        {
            return Ok(Self::Variable(item.data_type().clone(), usize::try_from(*axes).unwrap_or(0)));
        }
        plan_err!("this function takes a tensor, not {}; `tensor(list, 8, 8)` makes one from a list", field.data_type())
    }

    pub(super) fn element(&self) -> &DataType {
        match self {
            Self::Fixed(fixed) => &fixed.element,
            Self::Variable(element, _) => element,
        }
    }

    pub(super) fn axes(&self) -> usize {
        match self {
            Self::Fixed(fixed) => fixed.shape.len(),
            Self::Variable(_, axes) => *axes,
        }
    }
}

/// A column of tensors, read in place: one values array, and per row its span (`None` for null) and shape.
pub(super) struct Rows {
    pub values: ArrayRef,
    pub spans: Vec<Option<(usize, usize)>>,
    shapes: Shapes,
}

enum Shapes {
    Same(Vec<usize>),
    Each(Vec<i32>, usize),
}

impl Rows {
    pub(super) fn new(array: &ArrayRef, tensor: &Tensor) -> Result<Self> {
        let span = |row: usize, start: usize, end: usize| array.is_valid(row).then_some((start, end));
        match tensor {
            Tensor::Fixed(fixed) => {
                let Some(list) = array.as_fixed_size_list_opt() else { return exec_err!("a tensor stored as {}", array.data_type()) };
                let n = fixed.elements();
                let spans = (0..list.len()).map(|row| span(row, row * n, (row + 1) * n)).collect();
                Ok(Self { values: list.values().clone(), spans, shapes: Shapes::Same(fixed.shape.clone()) })
            }
            Tensor::Variable(_, axes) => {
                let both = array.as_struct_opt();
                let data = both.and_then(|b| b.column_by_name("data")).and_then(|c| c.as_list_opt::<i32>());
                let shape = both.and_then(|b| b.column_by_name("shape")).and_then(|c| c.as_fixed_size_list_opt());
                let lengths = shape.and_then(|s| s.values().as_primitive_opt::<Int32Type>());
                let (Some(data), Some(lengths)) = (data, lengths) else { return exec_err!("a tensor stored as {}", array.data_type()) };
                let offsets = data.offsets().windows(2).enumerate();
                let spans = offsets.map(|(row, w)| span(row, w[0] as usize, w[1] as usize)).collect();
                Ok(Self { values: data.values().clone(), spans, shapes: Shapes::Each(lengths.values().to_vec(), *axes) })
            }
        }
    }

    /// The lengths of a row's axes.
    pub(super) fn shape(&self, row: usize) -> Vec<usize> {
        match &self.shapes {
            Shapes::Same(shape) => shape.clone(),
            Shapes::Each(lengths, axes) => {
                let of_row = lengths.get(row * axes..(row + 1) * axes).unwrap_or_default();
                of_row.iter().map(|n| usize::try_from(*n).unwrap_or(0)).collect()
            }
        }
    }
}
