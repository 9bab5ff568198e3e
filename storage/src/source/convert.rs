//! Text to typed columns, and which types a column of text could have. A value that doesn't survive exactly is bad, not changed.

use arrow::array::{Array, ArrayRef, Float32Array, Float64Array, StringArray};
use arrow::compute::{CastOptions, cast_with_options};
use arrow::datatypes::{DataType, TimeUnit};
use forebay_core::{Error, Result};
use std::sync::Arc;

/// A column and the rows whose text is no value of its type.
pub(super) struct Converted {
    pub(super) array: ArrayRef,
    pub(super) bad: Vec<usize>,
}

/// Casts a column of text. `explicit`: the user named the type, so every text that has a value of it is taken (`007` as 7); an inferred type
/// takes only what it would have been inferred from.
pub(super) fn convert(text: &StringArray, kind: &DataType, explicit: bool) -> Result<Converted> {
    if matches!(kind, DataType::Utf8 | DataType::LargeUtf8) {
        return Ok(Converted { array: Arc::new(text.clone()), bad: Vec::new() });
    }
    let options = CastOptions { safe: true, ..CastOptions::default() };
    let array = cast_with_options(text, kind, &options).map_err(|e| Error::internal(format!("text can't be read as {kind}: {e}")))?;
    let bad = (0..text.len()).filter(|row| {
        text.is_valid(*row) && (array.is_null(*row) || !exact(text.value(*row), kind, explicit) || overflowed(&array, *row, text))
    });
    let bad = bad.collect();
    Ok(Converted { array, bad })
}

/// `1e999` is a number, and not one that a float can hold.
fn overflowed(array: &ArrayRef, row: usize, text: &StringArray) -> bool {
    let infinite = match array.data_type() {
        DataType::Float64 => array.as_any().downcast_ref::<Float64Array>().is_some_and(|a| a.value(row).is_infinite()),
        DataType::Float32 => array.as_any().downcast_ref::<Float32Array>().is_some_and(|a| a.value(row).is_infinite()),
        _ => return false,
    };
    infinite && text.value(row).bytes().any(|b| b.is_ascii_digit())
}

/// Whether the cast kept all that the text says.
fn exact(text: &str, kind: &DataType, explicit: bool) -> bool {
    match kind {
        DataType::Int64 | DataType::Int32 | DataType::Int16 | DataType::Int8 => explicit || !has_leading_zero(text),
        DataType::Float64 => explicit || (!has_leading_zero(text) && fits_float(text)),
        DataType::Boolean => explicit || ["true", "false"].iter().any(|b| b.eq_ignore_ascii_case(text)),
        DataType::Date32 => text.len() <= 10,
        DataType::Timestamp(TimeUnit::Microsecond, zone) => {
            // Without an offset the text says a local time; with one, a column without a zone would drop it.
            let zoned = has_zone(text);
            micros(text) && (zone.is_some() == zoned || (zone.is_some() && explicit)) && (explicit || text.len() > 10)
        }
        DataType::Decimal128(_, scale) => fits_scale(text, usize::try_from(*scale).unwrap_or(0)),
        _ => true,
    }
}

/// A postal code or an article number, not a count.
fn has_leading_zero(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']).as_bytes();
    digits.len() > 1 && digits[0] == b'0' && digits[1].is_ascii_digit()
}

/// Whole numbers beyond 2^53 are identifiers, and floats would merge neighbours.
fn fits_float(text: &str) -> bool {
    let digits = text.trim_start_matches(['-', '+']);
    if digits.len() < 16 || !digits.bytes().all(|b| b.is_ascii_digit()) {
        return true;
    }
    digits.parse::<u64>().is_ok_and(|n| n <= 1 << 53)
}

fn has_zone(text: &str) -> bool {
    let time = text.get(10..).unwrap_or("");
    time.ends_with(['Z', 'z']) || time.contains(['+', '-']) || time.trim_end().ends_with(|c: char| c.is_ascii_alphabetic())
}

/// Nothing is finer than a microsecond.
fn micros(text: &str) -> bool {
    let Some((_, fraction)) = text.split_once('.') else { return true };
    fraction.bytes().take_while(u8::is_ascii_digit).skip(6).all(|b| b == b'0')
}

fn fits_scale(text: &str, scale: usize) -> bool {
    if text.contains(['e', 'E']) {
        return false;
    }
    text.split_once('.').is_none_or(|(_, fraction)| fraction.trim_end_matches('0').len() <= scale)
}

/// Types that a column of text may still have, most specific first.
#[derive(Debug, Clone)]
pub(super) struct Candidates {
    left: Vec<DataType>,
    seen: bool,
}

impl Candidates {
    pub(super) fn new() -> Self {
        let micros = |zone: Option<&str>| DataType::Timestamp(TimeUnit::Microsecond, zone.map(Into::into));
        let left = vec![DataType::Int64, DataType::Float64, DataType::Boolean, DataType::Date32, micros(None), micros(Some("UTC"))];
        Self { left, seen: false }
    }

    /// Drops the types that these values rule out.
    pub(super) fn narrow(&mut self, text: &StringArray) -> Result<()> {
        self.seen |= text.null_count() < text.len();
        let mut left = Vec::with_capacity(self.left.len());
        for kind in self.left.drain(..) {
            if convert(text, &kind, false)?.bad.is_empty() {
                left.push(kind);
            }
        }
        self.left = left;
        Ok(())
    }

    /// The type: text when nothing else fits, or when there was no value.
    pub(super) fn decide(self) -> DataType {
        if self.seen { self.left.into_iter().next().unwrap_or(DataType::Utf8) } else { DataType::Utf8 }
    }
}

#[cfg(test)]
mod tests;
