//! Arguments of image functions: checked once when planned, evaluated once per batch, read per row.
//!
//! Owns: parameter lists with defaults, usage lines, literals, and the hidden draw.

use arrow::array::{Array, ArrayRef, AsArray, Float64Array, ListArray, UInt64Array};
use arrow::compute::cast;
use arrow::datatypes::{DataType, Field, FieldRef, Float64Type, UInt64Type};
use datafusion::common::{Result, ScalarValue, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ScalarFunctionArgs};
use forebay_core::random::Rng;

/// What a parameter takes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Kind {
    /// A whole number.
    Int,
    Real,
    /// A word, always a literal.
    Text,
    /// A list of numbers, one per channel (or one for all).
    List,
}

#[derive(Debug, Clone, Copy)]
pub(super) enum Preset {
    Required,
    Number(f64),
    Text(&'static str),
}

/// One parameter behind the image.
#[derive(Debug, Clone, Copy)]
pub(super) struct Param {
    pub name: &'static str,
    pub kind: Kind,
    pub preset: Preset,
}

pub(super) const fn int(name: &'static str) -> Param {
    Param { name, kind: Kind::Int, preset: Preset::Required }
}

pub(super) const fn real(name: &'static str) -> Param {
    Param { name, kind: Kind::Real, preset: Preset::Required }
}

pub(super) const fn list(name: &'static str) -> Param {
    Param { name, kind: Kind::List, preset: Preset::Required }
}

impl Param {
    pub(super) const fn or(self, value: f64) -> Param {
        Param { preset: Preset::Number(value), ..self }
    }

    pub(super) const fn word(name: &'static str, value: &'static str) -> Param {
        Param { name, kind: Kind::Text, preset: Preset::Text(value) }
    }

    fn required(&self) -> bool {
        matches!(self.preset, Preset::Required)
    }
}

/// `image_resize(image, height, width [, method])`
pub(super) fn usage(name: &str, first: &str, params: &[Param]) -> String {
    let mut text = format!("{name}({first}");
    for param in params.iter().filter(|p| p.required()) {
        text.push_str(", ");
        text.push_str(param.name);
    }
    let optional: Vec<&str> = params.iter().filter(|p| !p.required()).map(|p| p.name).collect();
    if !optional.is_empty() {
        text.push_str(&format!(" [, {}]", optional.join(", ")));
    }
    text.push(')');
    text
}

/// Checks the count and the types of the arguments behind the image. `random` functions may carry the hidden draw behind them; without it
/// the call is only being planned. Returns how many arguments the user wrote, the image included.
pub(super) fn check(name: &str, first: &str, params: &[Param], random: bool, fields: &[FieldRef]) -> Result<usize> {
    let hidden = usize::from(random && fields.len() > 1 && fields.last().is_some_and(|f| *f.data_type() == DataType::UInt64));
    let written = fields.len().saturating_sub(hidden);
    let required = 1 + params.iter().filter(|p| p.required()).count();
    if written < required || written > 1 + params.len() {
        return plan_err!("{} was given {written} arguments", usage(name, first, params));
    }
    for (param, field) in params.iter().zip(fields.get(1..written).unwrap_or_default()) {
        check_kind(name, param, field)?;
    }
    Ok(written)
}

fn check_kind(name: &str, param: &Param, field: &Field) -> Result<()> {
    let given = field.data_type();
    let fits = match param.kind {
        Kind::Int | Kind::Real => given.is_numeric() || *given == DataType::Null,
        Kind::Text => matches!(given, DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View),
        Kind::List => matches!(given, DataType::List(_) | DataType::LargeList(_) | DataType::FixedSizeList(..)),
    };
    let wanted = match param.kind {
        Kind::Int => "a whole number",
        Kind::Real => "a number",
        Kind::Text => "a word in quotes",
        Kind::List => "a list of numbers, such as [0.5, 0.5, 0.5]",
    };
    if fits { Ok(()) } else { plan_err!("{name}: `{}` takes {wanted}, not {given}", param.name) }
}

/// Arguments as far as they are literals, while planning.
pub(super) struct Literals<'a> {
    pub name: &'static str,
    pub params: &'static [Param],
    /// Behind the image; shorter than `params` where defaults apply.
    pub given: &'a [Option<&'a ScalarValue>],
}

impl Literals<'_> {
    /// A size known now; `None` where it is a column. Zero, negative and broken sizes are errors.
    pub(super) fn size(&self, index: usize) -> Result<Option<usize>> {
        match self.number(index)? {
            Some(value) => size(self.name, self.params, index, value).map(Some),
            None => Ok(None),
        }
    }

    pub(super) fn int(&self, index: usize) -> Result<Option<i64>> {
        match self.number(index)? {
            Some(value) => whole(self.name, self.params, index, value).map(Some),
            None => Ok(None),
        }
    }

    fn number(&self, index: usize) -> Result<Option<f64>> {
        match (self.given.get(index), self.params.get(index).map(|p| p.preset)) {
            (Some(None), _) => Ok(None),
            (Some(Some(value)), _) => match value.cast_to(&DataType::Float64)? {
                ScalarValue::Float64(value) => Ok(value),
                _ => Ok(None),
            },
            (None, Some(Preset::Number(value))) => Ok(Some(value)),
            (None, _) => Ok(None),
        }
    }

    /// A word: the literal or the default; a column is an error.
    pub(super) fn word(&self, index: usize) -> Result<String> {
        let name = self.params.get(index).map_or("", |p| p.name);
        match (self.given.get(index), self.params.get(index).map(|p| p.preset)) {
            (Some(Some(value)), _) => match value.try_as_str() {
                Some(Some(word)) => Ok(word.to_owned()),
                _ => plan_err!("{}: `{name}` must be a word in quotes", self.name),
            },
            (None, Some(Preset::Text(word))) => Ok(word.to_owned()),
            _ => plan_err!("{}: `{name}` must be a literal, not a column", self.name),
        }
    }
}

fn whole(name: &str, params: &[Param], index: usize, value: f64) -> Result<i64> {
    let param = params.get(index).map_or("", |p| p.name);
    if value.fract() == 0.0 && value.abs() < 9.0e15 {
        Ok(value as i64)
    } else {
        exec_err!("{name}: `{param}` must be a whole number, not {value}")
    }
}

fn size(name: &str, params: &[Param], index: usize, value: f64) -> Result<usize> {
    let param = params.get(index).map_or("", |p| p.name);
    match whole(name, params, index, value)? {
        n @ 1..=65_535 => usize::try_from(n).or_else(|_| exec_err!("{name}: `{param}` is {n}")),
        n => exec_err!("{name}: `{param}` must be from 1 to 65,535, not {n}"),
    }
}

enum Value {
    Number(f64),
    Numbers(Float64Array),
    Text(String),
    Lists(ListArray),
}

/// The evaluated arguments of one batch.
pub(super) struct Args {
    name: &'static str,
    params: &'static [Param],
    values: Vec<Value>,
    draws: Option<UInt64Array>,
}

impl Args {
    /// `written` is what [`check`] returned.
    pub(super) fn evaluate(
        name: &'static str,
        params: &'static [Param],
        random: bool,
        written: usize,
        call: &ScalarFunctionArgs,
    ) -> Result<Self> {
        let mut values = Vec::with_capacity(params.len());
        for (index, param) in params.iter().enumerate() {
            let given = if index + 1 < written { call.args.get(index + 1) } else { None };
            values.push(value(name, param, given, call.number_rows)?);
        }
        let draws = match (random, call.args.get(written)) {
            (false, _) => None,
            (true, Some(draws)) => match draws.clone().into_array(call.number_rows)?.as_primitive_opt::<UInt64Type>() {
                Some(draws) => Some(draws.clone()),
                None => return internal_err!("{name} was given draws of a wrong type"),
            },
            (true, None) => return plan_err!("{name} is random in (seed, epoch, row) and only works in a step of a pipeline"),
        };
        Ok(Self { name, params, values, draws })
    }

    /// The arguments of a row; `None` when one of them is null.
    pub(super) fn row(&self, row: usize) -> Option<Row<'_>> {
        let null = self.values.iter().any(|value| match value {
            Value::Numbers(numbers) => numbers.is_null(row),
            Value::Lists(lists) => lists.is_null(row),
            Value::Number(_) | Value::Text(_) => false,
        });
        (!null).then_some(Row { args: self, row })
    }
}

fn value(name: &str, param: &Param, given: Option<&ColumnarValue>, rows: usize) -> Result<Value> {
    match (param.kind, given, param.preset) {
        (Kind::Int | Kind::Real, None, Preset::Number(preset)) => Ok(Value::Number(preset)),
        (Kind::Int | Kind::Real, Some(ColumnarValue::Scalar(scalar)), _) if !scalar.is_null() => {
            match scalar.cast_to(&DataType::Float64)? {
                ScalarValue::Float64(Some(number)) => Ok(Value::Number(number)),
                other => exec_err!("{name}: `{}` is {other}", param.name),
            }
        }
        (Kind::Int | Kind::Real, Some(column), _) => {
            let array = cast(&column.clone().into_array(rows)?, &DataType::Float64)?;
            Ok(Value::Numbers(array.as_primitive::<Float64Type>().clone()))
        }
        (Kind::Text, None, Preset::Text(preset)) => Ok(Value::Text(preset.to_owned())),
        (Kind::Text, Some(ColumnarValue::Scalar(scalar)), _) => match scalar.try_as_str() {
            Some(Some(word)) => Ok(Value::Text(word.to_owned())),
            _ => exec_err!("{name}: `{}` is {scalar}", param.name),
        },
        (Kind::List, Some(column), _) => Ok(Value::Lists(lists(&column.clone().into_array(rows)?)?)),
        _ => exec_err!("{name}: `{}` is missing", param.name),
    }
}

fn lists(array: &ArrayRef) -> Result<ListArray> {
    let item = Field::new("item", DataType::Float64, true);
    Ok(cast(array, &DataType::List(item.into()))?.as_list::<i32>().clone())
}

/// The arguments of one row, none of them null.
#[derive(Clone, Copy)]
pub(super) struct Row<'a> {
    args: &'a Args,
    row: usize,
}

impl<'a> Row<'a> {
    pub(super) fn real(&self, index: usize) -> Result<f64> {
        match self.args.values.get(index) {
            Some(Value::Number(number)) => Ok(*number),
            Some(Value::Numbers(numbers)) => Ok(numbers.value(self.row)),
            _ => internal_err!("{} has no number {index}", self.args.name),
        }
    }

    pub(super) fn int(&self, index: usize) -> Result<i64> {
        whole(self.args.name, self.args.params, index, self.real(index)?)
    }

    pub(super) fn size(&self, index: usize) -> Result<usize> {
        size(self.args.name, self.args.params, index, self.real(index)?)
    }

    pub(super) fn word(&self, index: usize) -> &'a str {
        match self.args.values.get(index) {
            Some(Value::Text(word)) => word,
            _ => "",
        }
    }

    /// One number per channel; a list of one number serves every channel.
    pub(super) fn channels(&self, index: usize, channels: usize) -> Result<Vec<f64>> {
        let Some(Value::Lists(lists)) = self.args.values.get(index) else {
            return internal_err!("{} has no list {index}", self.args.name);
        };
        let list = lists.value(self.row);
        let numbers = list.as_primitive::<Float64Type>();
        let name = self.args.params.get(index).map_or("", |p| p.name);
        if numbers.null_count() > 0 {
            return exec_err!("{}: `{name}` holds a null", self.args.name);
        }
        match numbers.len() {
            1 => Ok(vec![numbers.value(0); channels]),
            n if n == channels => Ok(numbers.values().to_vec()),
            n => exec_err!("{}: `{name}` has {n} numbers for an image of {channels} channels", self.args.name),
        }
    }

    /// This row's own generator.
    pub(super) fn rng(&self) -> Result<Rng> {
        match &self.args.draws {
            Some(draws) => Ok(Rng::new(draws.value(self.row))),
            None => internal_err!("{} was given no draws", self.args.name),
        }
    }
}
