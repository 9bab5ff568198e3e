//! Functions that move pixels without changing them: crops, flips, shifts and axis order.

use datafusion::common::{Result, exec_err, plan_err};

use super::args::{Literals, Row};
use super::numeric::uniform_int;
use super::ops::Op;
use super::tensor::{Dims, Pixel, Sink, TensorType, View};

/// A rectangle inside an image; the right and bottom ends are excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct CropBox {
    pub left: usize,
    pub top: usize,
    pub height: usize,
    pub width: usize,
}

impl CropBox {
    /// `x1, y1, x2, y2`, inside the image and not empty.
    pub(super) fn of(dims: Dims, row: Row<'_>) -> Result<Self> {
        Self::between(dims, row.int(0)?, row.int(1)?, row.int(2)?, row.int(3)?)
    }

    fn between(dims: Dims, x1: i64, y1: i64, x2: i64, y2: i64) -> Result<Self> {
        let inside = |low: i64, high: i64, end: usize| {
            let (low, high) = (usize::try_from(low).ok()?, usize::try_from(high).ok()?);
            (low < high && high <= end).then_some((low, high - low))
        };
        match (inside(x1, x2, dims.width()), inside(y1, y2, dims.height())) {
            (Some((left, width)), Some((top, height))) => Ok(Self { left, top, height, width }),
            _ => exec_err!(
                "image_crop: the box ({x1}, {y1}) to ({x2}, {y2}) is empty or not inside the image, which is {} high and {} wide",
                dims.height(),
                dims.width()
            ),
        }
    }

    /// The middle of the image; an odd margin is rounded down, so it is smaller at the left and top.
    pub(super) fn center(dims: Dims, height: usize, width: usize) -> Result<Self> {
        fits("image_crop_center", dims, height, width)?;
        Ok(Self { left: (dims.width() - width) / 2, top: (dims.height() - height) / 2, height, width })
    }

    /// Any place, each equally likely.
    pub(super) fn random(dims: Dims, row: Row<'_>) -> Result<Self> {
        let (height, width) = (row.size(0)?, row.size(1)?);
        fits("image_crop_random", dims, height, width)?;
        let mut rng = row.rng()?;
        let top = place(&mut rng, dims.height() - height);
        let left = place(&mut rng, dims.width() - width);
        Ok(Self { left, top, height, width })
    }
}

/// Uniform in `0..=room`.
pub(super) fn place(rng: &mut forebay_core::random::Rng, room: usize) -> usize {
    usize::try_from(rng.below(room as u64 + 1)).unwrap_or(0)
}

fn fits(name: &str, dims: Dims, height: usize, width: usize) -> Result<()> {
    if height <= dims.height() && width <= dims.width() {
        return Ok(());
    }
    exec_err!("{name}: the image is {} high and {} wide, smaller than the crop of {height} by {width}", dims.height(), dims.width())
}

/// Refuses while planning what no row could satisfy.
pub(super) fn check_crop(name: &str, input: &TensorType, height: Option<usize>, width: Option<usize>) -> Result<()> {
    match (input.fixed(), height, width) {
        (Some(dims), Some(height), Some(width)) => fits(name, dims, height, width),
        _ => Ok(()),
    }
}

/// The type of `image_crop`: fixed when the corners are literals.
pub(super) fn crop_type(input: &TensorType, literals: &Literals<'_>) -> Result<TensorType> {
    let (x1, y1, x2, y2) = (literals.int(0)?, literals.int(1)?, literals.int(2)?, literals.int(3)?);
    if let (Some(dims), Some(x1), Some(y1), Some(x2), Some(y2)) = (input.fixed(), x1, y1, x2, y2) {
        CropBox::between(dims, x1, y1, x2, y2)?;
    }
    let span = |low: Option<i64>, high: Option<i64>| match (low, high) {
        (Some(low), Some(high)) => match usize::try_from(high.saturating_sub(low)) {
            Ok(span) if low >= 0 && span > 0 => Ok(Some(span)),
            _ => plan_err!("image_crop: the box from {low} to {high} is empty or starts before 0"),
        },
        _ => Ok(None),
    };
    Ok(input.resized(span(y1, y2)?, span(x1, x2)?))
}

pub(super) fn copy<T: Pixel>(image: View<'_, T>, sink: &mut Sink<T>) -> Result<()> {
    sink.row(image.dims)?.copy_from_slice(image.data);
    Ok(())
}

pub(super) fn crop<T: Pixel>(image: View<'_, T>, area: CropBox, sink: &mut Sink<T>) -> Result<()> {
    let channels = image.dims.channels();
    let stride = image.dims.width() * channels;
    let out = sink.row(image.dims.resized(area.height, area.width))?;
    let lines = image.data.chunks_exact(stride).skip(area.top);
    for (to, from) in out.chunks_exact_mut(area.width * channels).zip(lines) {
        if let Some(from) = from.get(area.left * channels..(area.left + area.width) * channels) {
            to.copy_from_slice(from);
        }
    }
    Ok(())
}

pub(super) fn flip_horizontal<T: Pixel>(image: View<'_, T>, sink: &mut Sink<T>) -> Result<()> {
    let channels = image.dims.channels().max(1);
    let stride = (image.dims.width() * channels).max(1);
    let out = sink.row(image.dims)?;
    for (to, from) in out.chunks_exact_mut(stride).zip(image.data.chunks_exact(stride)) {
        for (to, from) in to.chunks_exact_mut(channels).zip(from.chunks_exact(channels).rev()) {
            to.copy_from_slice(from);
        }
    }
    Ok(())
}

pub(super) fn flip_vertical<T: Pixel>(image: View<'_, T>, sink: &mut Sink<T>) -> Result<()> {
    let stride = (image.dims.width() * image.dims.channels()).max(1);
    let out = sink.row(image.dims)?;
    for (to, from) in out.chunks_exact_mut(stride).zip(image.data.chunks_exact(stride).rev()) {
        to.copy_from_slice(from);
    }
    Ok(())
}

/// Shifts by `dx` to the right and `dy` down; what comes in is `fill`.
pub(super) fn translate<T: Pixel>(image: View<'_, T>, dx: i64, dy: i64, fill: f64, sink: &mut Sink<T>) -> Result<()> {
    let channels = image.dims.channels();
    let (height, width) = (image.dims.height(), image.dims.width());
    let out = sink.row(image.dims)?;
    out.fill(T::from_f32(fill as f32));
    let (from_x, to_x, columns) = shift(dx, width);
    let (from_y, to_y, lines) = shift(dy, height);
    let stride = width * channels;
    for line in 0..lines {
        let from = (from_y + line) * stride + from_x * channels;
        let to = (to_y + line) * stride + to_x * channels;
        if let (Some(to), Some(from)) = (out.get_mut(to..to + columns * channels), image.data.get(from..from + columns * channels)) {
            to.copy_from_slice(from);
        }
    }
    Ok(())
}

/// First source index, first target index and how many stay, of `length` shifted by `by`.
fn shift(by: i64, length: usize) -> (usize, usize, usize) {
    let distance = usize::try_from(by.unsigned_abs()).unwrap_or(usize::MAX).min(length);
    if by >= 0 { (0, distance, length - distance) } else { (distance, 0, length - distance) }
}

/// Whole shifts from `-max` to `max`, each equally likely.
pub(super) fn translate_random<T: Pixel>(image: View<'_, T>, row: Row<'_>, sink: &mut Sink<T>) -> Result<()> {
    let (max_dx, max_dy) = (row.int(0)?, row.int(1)?);
    if max_dx < 0 || max_dy < 0 {
        return exec_err!("image_translate_random: `max_dx` and `max_dy` must not be negative");
    }
    let mut rng = row.rng()?;
    let dx = uniform_int(&mut rng, -max_dx, max_dx);
    let dy = uniform_int(&mut rng, -max_dy, max_dy);
    translate(image, dx, dy, row.real(2)?, sink)
}

/// The type of `image_to_chw` and `image_to_hwc`; a grey image without a channel axis gets one.
pub(super) fn transposed(op: Op, input: &TensorType) -> Result<TensorType> {
    let dims = match (op, input.dims.as_slice()) {
        (Op::ToChw, [height, width]) => vec![Some(1), *height, *width],
        (Op::ToChw, [height, width, channels]) => vec![*channels, *height, *width],
        (Op::ToHwc, [channels, height, width]) => vec![*height, *width, *channels],
        _ => return plan_err!("{} needs three axes, not {input}", op.name()),
    };
    Ok(TensorType { element: input.element, dims })
}

pub(super) fn to_chw<T: Pixel>(image: View<'_, T>, sink: &mut Sink<T>) -> Result<()> {
    let (height, width, channels) = (image.dims.height(), image.dims.width(), image.dims.channels());
    let plane = height * width;
    let out = sink.row(Dims::hwc(channels, height, width))?;
    if plane == 0 || channels == 0 {
        return Ok(());
    }
    for (channel, to) in out.chunks_exact_mut(plane).enumerate() {
        for (to, from) in to.iter_mut().zip(image.data.iter().skip(channel).step_by(channels)) {
            *to = *from;
        }
    }
    Ok(())
}

pub(super) fn to_hwc<T: Pixel>(image: View<'_, T>, sink: &mut Sink<T>) -> Result<()> {
    let [channels, height, width] = [image.dims.height(), image.dims.width(), image.dims.channels()];
    let plane = height * width;
    let out = sink.row(Dims::hwc(height, width, channels))?;
    if plane == 0 || channels == 0 {
        return Ok(());
    }
    for (channel, from) in image.data.chunks_exact(plane).enumerate() {
        for (to, from) in out.iter_mut().skip(channel).step_by(channels).zip(from) {
            *to = *from;
        }
    }
    Ok(())
}
