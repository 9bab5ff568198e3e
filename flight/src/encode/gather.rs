//! The gather: runs of rows copied from chunks into one body, column by column, down through nested types.

use arrow::array::{ArrayData, BooleanBufferBuilder, OffsetSizeTrait};
use arrow::datatypes::DataType;
use forebay_core::{Error, Kind, Result};

use super::Run;
use super::body::{Body, SHARED};

/// Adds a run, joined to the one before where they meet.
pub(crate) fn push_run(runs: &mut Vec<Run>, run: Run) {
    if run.len == 0 {
        return;
    }
    if let Some(last) = runs.last_mut()
        && last.chunk == run.chunk
        && last.start + last.len == run.start
    {
        last.len += run.len;
        return;
    }
    runs.push(run);
}

/// Bytes per value of types that are one buffer of equal values.
pub(crate) fn width(data_type: &DataType) -> Option<usize> {
    match data_type {
        DataType::FixedSizeBinary(width) => usize::try_from(*width).ok(),
        other => other.primitive_width(),
    }
}

/// Whether [`column`] knows the type.
pub(crate) fn supports(data_type: &DataType) -> bool {
    match data_type {
        DataType::Null | DataType::Boolean | DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary => true,
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => supports(f.data_type()),
        DataType::Struct(fields) => fields.iter().all(|f| supports(f.data_type())),
        other => width(other).is_some(),
    }
}

/// Appends the rows of one column: its node and buffers, then those of its children. `chunks` are all of one type.
///
/// # Errors
/// `ResourceExhausted` where 32-bit offsets overflow.
pub(crate) fn column(chunks: &[&ArrayData], runs: &[Run], rows: usize, out: &mut Body) -> Result<()> {
    let Some(data_type) = chunks.first().map(|c| c.data_type()) else {
        return Err(Error::internal("no chunk to gather from"));
    };
    if matches!(data_type, DataType::Null) {
        out.node(rows, rows);
        return Ok(());
    }
    validity(chunks, runs, rows, out);
    match data_type {
        DataType::Boolean => {
            let mut bits = BooleanBufferBuilder::new(rows);
            for run in runs {
                let chunk = chunks[run.chunk];
                let start = chunk.offset() + run.start;
                bits.append_packed_range(start..start + run.len, chunk.buffers()[0].as_slice());
            }
            out.buffer(|bytes| bytes.extend_from_slice(bits.as_slice()));
            Ok(())
        }
        DataType::Utf8 | DataType::Binary => binary::<i32>(chunks, runs, rows, out),
        DataType::LargeUtf8 | DataType::LargeBinary => binary::<i64>(chunks, runs, rows, out),
        DataType::List(_) | DataType::Map(_, _) => list::<i32>(chunks, runs, rows, out),
        DataType::LargeList(_) => list::<i64>(chunks, runs, rows, out),
        DataType::FixedSizeList(_, size) => {
            let size = usize::try_from(*size).unwrap_or(0);
            let mut inner = Vec::with_capacity(runs.len());
            for run in runs {
                let start = (chunks[run.chunk].offset() + run.start) * size;
                push_run(&mut inner, Run { chunk: run.chunk, start, len: run.len * size });
            }
            column(&children(chunks, 0), &inner, rows * size, out)
        }
        DataType::Struct(fields) => {
            let inner: Vec<Run> = runs.iter().map(|run| Run { start: chunks[run.chunk].offset() + run.start, ..*run }).collect();
            (0..fields.len()).try_for_each(|child| column(&children(chunks, child), &inner, rows, out))
        }
        other => match width(other) {
            Some(width) if !runs.is_empty() && runs.iter().all(|run| run.len * width >= SHARED) => {
                out.shared(runs.iter().map(|run| {
                    let chunk = chunks[run.chunk];
                    (&chunk.buffers()[0], (chunk.offset() + run.start) * width, run.len * width)
                }));
                Ok(())
            }
            Some(width) => {
                out.buffer(|bytes| fixed(chunks, runs, rows, width, bytes));
                Ok(())
            }
            None => Err(Error::internal(format!("gathering {other}"))),
        },
    }
}

fn children<'a>(chunks: &[&'a ArrayData], child: usize) -> Vec<&'a ArrayData> {
    chunks.iter().map(|chunk| &chunk.child_data()[child]).collect()
}

/// The node and the validity bitmap; no bitmap where no row is null.
fn validity(chunks: &[&ArrayData], runs: &[Run], rows: usize, out: &mut Body) {
    if chunks.iter().all(|chunk| chunk.null_count() == 0) {
        out.node(rows, 0);
        out.buffer(|_| ());
        return;
    }
    let mut bits = BooleanBufferBuilder::new(rows);
    for run in runs {
        match chunks[run.chunk].nulls() {
            None => bits.append_n(run.len, true),
            Some(nulls) => {
                let start = nulls.offset() + run.start;
                bits.append_packed_range(start..start + run.len, nulls.validity());
            }
        }
    }
    let valid = bits.finish();
    let nulls = rows - valid.count_set_bits();
    out.node(rows, nulls);
    out.buffer(|bytes| {
        if nulls > 0 {
            bytes.extend_from_slice(&valid.values()[..rows.div_ceil(8)]);
        }
    });
}

fn fixed(chunks: &[&ArrayData], runs: &[Run], rows: usize, width: usize, bytes: &mut Vec<u8>) {
    match width {
        1 => narrow::<1>(chunks, runs, rows, bytes),
        2 => narrow::<2>(chunks, runs, rows, bytes),
        4 => narrow::<4>(chunks, runs, rows, bytes),
        8 => narrow::<8>(chunks, runs, rows, bytes),
        16 => narrow::<16>(chunks, runs, rows, bytes),
        _ => {
            for run in runs {
                let chunk = chunks[run.chunk];
                let start = (chunk.offset() + run.start) * width;
                bytes.extend_from_slice(&chunk.buffers()[0].as_slice()[start..start + run.len * width]);
            }
        }
    }
}

/// Values of a few bytes: one move each, without a call to copy.
fn narrow<const WIDTH: usize>(chunks: &[&ArrayData], runs: &[Run], rows: usize, bytes: &mut Vec<u8>) {
    let values: Vec<&[[u8; WIDTH]]> =
        chunks.iter().map(|chunk| &chunk.buffers()[0].as_slice().as_chunks::<WIDTH>().0[chunk.offset()..]).collect();
    if runs.len() * 8 < rows {
        // Long runs: plain copies, and no pass of zeroes before them.
        for run in runs {
            bytes.extend_from_slice(values[run.chunk][run.start..run.start + run.len].as_flattened());
        }
        return;
    }
    let start = bytes.len();
    bytes.resize(start + rows * WIDTH, 0);
    let mut to = bytes[start..].as_chunks_mut::<WIDTH>().0.iter_mut();
    for run in runs {
        let from = &values[run.chunk][run.start..run.start + run.len];
        // The finite side first: `zip` asks it first, and takes nothing from the other when it is done.
        for (from, to) in from.iter().zip(to.by_ref()) {
            *to = *from;
        }
    }
}

/// New offsets from 0 for the rows, and the ranges of values that they cover. Always `rows + 1` offsets.
fn offsets<O: OffsetSizeTrait>(chunks: &[&ArrayData], runs: &[Run], rows: usize, out: &mut Body) -> Result<(Vec<Run>, usize)> {
    let mut inner: Vec<Run> = Vec::with_capacity(runs.len());
    let mut fresh: Vec<O> = Vec::with_capacity(rows + 1);
    let mut total = 0usize;
    fresh.push(O::zero());
    for run in runs {
        let chunk = chunks[run.chunk];
        let old: &[O] = chunk.buffers()[0].typed_data();
        let first = chunk.offset() + run.start;
        // An empty array may have an empty offsets buffer, but then it has no runs.
        let old = &old[first..=first + run.len];
        let base = old[0].as_usize();
        for end in &old[1..] {
            let end = total + (end.as_usize() - base);
            fresh.push(O::from_usize(end).ok_or_else(too_long)?);
        }
        let len = old[run.len].as_usize() - base;
        total += len;
        push_run(&mut inner, Run { chunk: run.chunk, start: base, len });
    }
    out.buffer(|bytes| {
        for offset in &fresh {
            // Both widths are little-endian on the wire.
            let value = offset.as_usize() as u64;
            bytes.extend_from_slice(&value.to_le_bytes()[..size_of::<O>()]);
        }
    });
    Ok((inner, total))
}

fn too_long() -> Error {
    Error::new(Kind::ResourceExhausted, "one message would hold over 2 GiB of values")
        .with_remedy("use the type with 64-bit offsets (large_*)")
}

fn binary<O: OffsetSizeTrait>(chunks: &[&ArrayData], runs: &[Run], rows: usize, out: &mut Body) -> Result<()> {
    let (inner, _) = offsets::<O>(chunks, runs, rows, out)?;
    out.buffer(|bytes| {
        for run in &inner {
            bytes.extend_from_slice(&chunks[run.chunk].buffers()[1].as_slice()[run.start..run.start + run.len]);
        }
    });
    Ok(())
}

fn list<O: OffsetSizeTrait>(chunks: &[&ArrayData], runs: &[Run], rows: usize, out: &mut Body) -> Result<()> {
    let (inner, total) = offsets::<O>(chunks, runs, rows, out)?;
    column(&children(chunks, 0), &inner, total, out)
}
