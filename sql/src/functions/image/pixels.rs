//! Functions that change values and leave the shape: light, noise, normalization.
//!
//! Rounding is part of each definition: brightness and contrast cut off as Pillow's enhancers do, gamma rounds.

use datafusion::common::{Result, exec_err};

use super::args::Row;
use super::numeric::{Normal, pow};
use super::tensor::{Element, Pixel, Sink, View};

/// `factor * x`, cut off to whole levels.
pub(super) fn brightness<T: Pixel>(image: View<'_, T>, factor: f64, sink: &mut Sink<T>) -> Result<()> {
    if factor < 0.0 {
        return exec_err!("image_brightness: `factor` must not be negative");
    }
    by_table(image, |x| (factor * x).floor(), sink)
}

/// `m + factor * (x - m)` around the rounded mean grey `m`, cut off to whole levels.
pub(super) fn contrast<T: Pixel>(image: View<'_, T>, factor: f64, sink: &mut Sink<T>) -> Result<()> {
    let mean = f64::from(mean_grey(&image));
    by_table(image, |x| (mean + factor * (x - mean)).floor(), sink)
}

/// `255 * (x / 255)^gamma`, rounded.
pub(super) fn gamma<T: Pixel>(image: View<'_, T>, gamma: f64, sink: &mut Sink<T>) -> Result<()> {
    if gamma <= 0.0 {
        return exec_err!("image_gamma: `gamma` must be positive");
    }
    by_table(image, |x| (255.0 * pow(x / 255.0, gamma)).round(), sink)
}

/// Applies a function of the level through a table of all 256.
fn by_table<T: Pixel>(image: View<'_, T>, level: impl Fn(f64) -> f64, sink: &mut Sink<T>) -> Result<()> {
    let mut table = [T::default(); 256];
    for (x, to) in table.iter_mut().enumerate() {
        *to = T::from_f32(level(x as f64).clamp(0.0, 255.0) as f32);
    }
    for (to, from) in sink.row(image.dims)?.iter_mut().zip(image.data) {
        *to = table.get(from.to_f32() as usize).copied().unwrap_or_default();
    }
    Ok(())
}

/// Grey level of a colour, weighted .299/.587/.114 in 16-bit fixed point.
pub(super) fn grey(red: u8, green: u8, blue: u8) -> u8 {
    ((u32::from(red) * 19_595 + u32::from(green) * 38_470 + u32::from(blue) * 7_471 + 0x8000) >> 16) as u8
}

/// The mean grey level, rounded; alpha does not count.
fn mean_grey<T: Pixel>(image: &View<'_, T>) -> u8 {
    let level = |x: &T| x.to_f32() as u8;
    let channels = image.dims.channels().max(1);
    let pixels = image.data.chunks_exact(channels);
    let count = pixels.len().max(1) as u64;
    let sum: u64 = pixels
        .map(|pixel| match pixel {
            [red, green, blue, ..] => u64::from(grey(level(red), level(green), level(blue))),
            [grey, ..] => u64::from(level(grey)),
            [] => 0,
        })
        .sum();
    u8::try_from((2 * sum + count) / (2 * count)).unwrap_or(u8::MAX)
}

/// Adds independent normal noise of standard deviation `sd` to every value; `uint8` is rounded and kept within 0..255.
pub(super) fn noise_gauss<T: Pixel>(image: View<'_, T>, row: Row<'_>, sink: &mut Sink<T>) -> Result<()> {
    let sd = row.real(0)?;
    if sd < 0.0 {
        return exec_err!("image_noise_gauss: `sd` must not be negative");
    }
    let mut rng = row.rng()?;
    let mut normal = Normal::new(&mut rng);
    for (to, from) in sink.row(image.dims)?.iter_mut().zip(image.data) {
        *to = T::from_f32(from.to_f32() + (sd * normal.draw()) as f32);
    }
    Ok(())
}

/// `(x - mean) / std` per channel, where `uint8` is first scaled to 0..1. A `std` of zero is an error: it would give infinities.
pub(super) fn normalize<T: Pixel>(image: View<'_, T>, row: Row<'_>, sink: &mut Sink<f32>) -> Result<()> {
    let channels = image.dims.channels();
    let (mean, std) = (row.channels(0, channels)?, row.channels(1, channels)?);
    if std.iter().any(|s| *s <= 0.0) {
        return exec_err!("image_normalize: every number of `std` must be positive");
    }
    let unit = if T::ELEMENT == Element::U8 { 255.0 } else { 1.0 };
    let scaled: Vec<(f32, f32)> = mean.iter().zip(&std).map(|(m, s)| ((1.0 / (unit * s)) as f32, (m / s) as f32)).collect();
    let out = sink.row(image.dims)?;
    for (to, from) in out.chunks_exact_mut(channels.max(1)).zip(image.data.chunks_exact(channels.max(1))) {
        for ((to, from), (factor, shift)) in to.iter_mut().zip(from).zip(&scaled) {
            *to = from.to_f32() * factor - shift;
        }
    }
    Ok(())
}
