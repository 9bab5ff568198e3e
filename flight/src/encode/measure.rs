//! How many bytes rows will occupy, and where to cut them: measured, never guessed from an average.

use arrow::array::{ArrayData, OffsetSizeTrait};
use arrow::datatypes::{DataType, Field, Schema};
use std::ops::Range;

use super::gather::width;
use super::{Prepared, Run};

/// Bits per row (with validity) when every column has a fixed width.
pub(crate) fn fixed_row_bits(schema: &Schema) -> Option<usize> {
    schema.fields().iter().map(|f| fixed_bits(f)).sum()
}

fn fixed_bits(field: &Field) -> Option<usize> {
    let values = match field.data_type() {
        DataType::Null => 0,
        DataType::Boolean => 1,
        DataType::FixedSizeList(f, n) => usize::try_from(*n).ok()?.checked_mul(fixed_bits(f)?)?,
        DataType::Struct(fields) => fields.iter().map(|f| fixed_bits(f)).sum::<Option<usize>>()?,
        other => 8 * width(other)?,
    };
    Some(values + usize::from(field.is_nullable()))
}

/// Cuts rows of equal size into the fewest parts that stay below the target, of nearly equal size.
pub(crate) fn even_cuts(rows: usize, bits: usize, target: usize) -> Vec<Range<usize>> {
    let most = (target.saturating_mul(8) / bits.max(1)).max(1);
    let parts = rows.div_ceil(most).max(1);
    (0..parts).map(|part| rows * part / parts..rows * (part + 1) / parts).collect()
}

/// Cuts rows of unequal size so that no part of several rows is over the target.
pub(crate) fn cuts(prepared: &Prepared, runs: &[Run], rows: usize, target: usize) -> Vec<Range<usize>> {
    let mut sizes = Vec::with_capacity(rows);
    for run in runs {
        sizes.extend((run.start..run.start + run.len).map(|row| row_bytes(prepared, Run { start: row, len: 1, ..*run })));
    }
    let total: usize = sizes.iter().sum();
    // Parts of about equal size rather than full ones and a small rest.
    let goal = total / total.div_ceil(target).max(1);
    let (mut cuts, mut start, mut sum) = (Vec::new(), 0, 0usize);
    for (row, size) in sizes.iter().enumerate() {
        if row > start && (sum >= goal || sum + size > target) {
            cuts.push(start..row);
            (start, sum) = (row, 0);
        }
        sum += size;
    }
    cuts.push(start..rows);
    cuts
}

/// The longest run of the only chunk from row `at` that stays below the target; one row at least.
pub(crate) fn head(prepared: &Prepared, schema: &Schema, at: usize, total: usize, target: usize) -> Run {
    let rest = total - at;
    let run = |len: usize| Run { chunk: 0, start: at, len };
    if let Some(bits) = fixed_row_bits(schema) {
        return run(rest.min((target.saturating_mul(8) / bits.max(1)).max(1)));
    }
    if row_bytes(prepared, run(rest)) <= target {
        return run(rest);
    }
    // The size grows with the length: `low` fits (or is a single row), `high` does not.
    let (mut low, mut high) = (1, rest);
    while high - low > 1 {
        let middle = low + (high - low) / 2;
        if row_bytes(prepared, run(middle)) <= target { low = middle } else { high = middle }
    }
    run(low)
}

/// Body bytes of all the runs, without padding.
pub(crate) fn bytes(prepared: &Prepared, runs: &[Run]) -> usize {
    runs.iter().map(|run| row_bytes(prepared, *run)).sum()
}

pub(crate) fn row_bytes(prepared: &Prepared, run: Run) -> usize {
    prepared.columns.iter().map(|column| column.get(run.chunk).map_or(0, |chunk| size(chunk, run.start, run.len))).sum()
}

/// Bytes of `len` rows of an array; rounds up the bits.
fn size(data: &ArrayData, start: usize, len: usize) -> usize {
    let validity = if data.null_count() > 0 { len.div_ceil(8) } else { 0 };
    let start = data.offset() + start;
    validity
        + match data.data_type() {
            DataType::Null => 0,
            DataType::Boolean => len.div_ceil(8),
            DataType::Utf8 | DataType::Binary => span::<i32>(data, start, len).1 + 4 * len,
            DataType::LargeUtf8 | DataType::LargeBinary => span::<i64>(data, start, len).1 + 8 * len,
            DataType::List(_) | DataType::Map(_, _) => {
                let (first, values) = span::<i32>(data, start, len);
                4 * len + size(&data.child_data()[0], first, values)
            }
            DataType::LargeList(_) => {
                let (first, values) = span::<i64>(data, start, len);
                8 * len + size(&data.child_data()[0], first, values)
            }
            DataType::FixedSizeList(_, n) => {
                let n = usize::try_from(*n).unwrap_or(0);
                size(&data.child_data()[0], start * n, len * n)
            }
            DataType::Struct(_) => data.child_data().iter().map(|child| size(child, start, len)).sum(),
            other => match width(other) {
                Some(width) => width * len,
                // A union and its like: its share of the whole.
                None => (data.get_array_memory_size() / data.len().max(1) + 1) * len,
            },
        }
}

/// First value and number of values of rows with offsets.
fn span<O: OffsetSizeTrait>(data: &ArrayData, start: usize, len: usize) -> (usize, usize) {
    let offsets: &[O] = data.buffers()[0].typed_data();
    match (offsets.get(start), offsets.get(start + len)) {
        (Some(first), Some(last)) => (first.as_usize(), last.as_usize() - first.as_usize()),
        _ => (0, 0),
    }
}
