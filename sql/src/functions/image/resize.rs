//! Resizing, by a crate made for it; antialiased where an image shrinks, as Pillow and torchvision do.
//!
//! Channels are resized independently: a tensor does not say whether its last one is alpha.

use arrow::datatypes::ToByteSlice;
use datafusion::common::{DataFusionError, Result, exec_err, plan_err};
use fast_image_resize::images::{Image, ImageRef};
use fast_image_resize::{FilterType, PixelType, ResizeAlg, ResizeOptions, Resizer};

use super::args::Row;
use super::geometry::{CropBox, place};
use super::numeric::{exp, ln, uniform};
use super::tensor::{Dims, Element, Pixel, Sink, TensorType, View};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Method {
    Nearest,
    Bilinear,
    Bicubic,
    Lanczos,
}

impl Method {
    pub(super) fn parse(word: &str) -> Result<Self> {
        match word {
            "nearest" => Ok(Self::Nearest),
            "bilinear" => Ok(Self::Bilinear),
            "bicubic" => Ok(Self::Bicubic),
            "lanczos" => Ok(Self::Lanczos),
            other => plan_err!("unknown resize method '{other}'; there are 'bilinear', 'bicubic', 'lanczos' and 'nearest'"),
        }
    }

    fn algorithm(self) -> ResizeAlg {
        match self {
            Self::Nearest => ResizeAlg::Nearest,
            Self::Bilinear => ResizeAlg::Convolution(FilterType::Bilinear),
            Self::Bicubic => ResizeAlg::Convolution(FilterType::CatmullRom),
            Self::Lanczos => ResizeAlg::Convolution(FilterType::Lanczos3),
        }
    }
}

/// Refuses while planning an image whose last axis cannot be channels.
pub(super) fn check_channels(input: &TensorType) -> Result<()> {
    match input.dims.get(2).copied().flatten() {
        Some(channels) if !(1..=4).contains(&channels) => {
            plan_err!("resizing needs 1 to 4 channels in the last axis, not {input}; resize before image_to_chw")
        }
        _ => Ok(()),
    }
}

/// Height and width with the shorter side `size` and the proportions kept, the longer side rounded.
pub(super) fn short_size(dims: Dims, size: usize) -> (usize, usize) {
    let (height, width) = (dims.height().max(1), dims.width().max(1));
    let scale = |long: usize, short: usize| ((2 * long * size + short) / (2 * short)).max(1);
    if height <= width { (size, scale(width, height)) } else { (scale(height, width), size) }
}

/// Buffers kept from row to row of a batch.
#[derive(Default)]
pub(super) struct Resizing {
    resizer: Resizer,
    /// Where a float image is made before it is copied: the resizer writes bytes.
    bytes: Vec<u8>,
}

impl Resizing {
    pub(super) fn whole<T: Pixel>(
        &mut self,
        image: View<'_, T>,
        height: usize,
        width: usize,
        method: Method,
        sink: &mut Sink<T>,
    ) -> Result<()> {
        let all = CropBox { left: 0, top: 0, height: image.dims.height(), width: image.dims.width() };
        self.part(image, all, (height, width), method, sink)
    }

    /// torchvision's RandomResizedCrop: ten tries for a box of random area and proportions, then the largest central one allowed.
    pub(super) fn random_crop<T: Pixel>(&mut self, image: View<'_, T>, row: Row<'_>, sink: &mut Sink<T>) -> Result<()> {
        let area = random_box(image.dims, row)?;
        self.part(image, area, (row.size(0)?, row.size(1)?), Method::parse(row.word(6))?, sink)
    }

    fn part<T: Pixel>(
        &mut self,
        image: View<'_, T>,
        area: CropBox,
        (height, width): (usize, usize),
        method: Method,
        sink: &mut Sink<T>,
    ) -> Result<()> {
        if area.height == 0 || area.width == 0 {
            return exec_err!("an empty image cannot be resized");
        }
        let kind = pixel_type(T::ELEMENT, image.dims.channels())?;
        let source =
            ImageRef::new(length(image.dims.width())?, length(image.dims.height())?, bytes_of(image.data), kind).map_err(failed)?;
        let options = ResizeOptions::new().use_alpha(false).resize_alg(method.algorithm()).crop(
            area.left as f64,
            area.top as f64,
            area.width as f64,
            area.height as f64,
        );
        let out = sink.row(image.dims.resized(height, width))?;
        self.bytes.clear();
        self.bytes.resize(std::mem::size_of_val(out), 0);
        let mut target = Image::from_slice_u8(length(width)?, length(height)?, &mut self.bytes, kind).map_err(failed)?;
        self.resizer.resize(&source, &mut target, &options).map_err(failed)?;
        T::read(&self.bytes, out);
        Ok(())
    }
}

fn random_box(dims: Dims, row: Row<'_>) -> Result<CropBox> {
    let (scale_min, scale_max) = (row.real(2)?, row.real(3)?);
    let (ratio_min, ratio_max) = (row.real(4)?, row.real(5)?);
    if !(scale_min > 0.0 && scale_min <= scale_max && ratio_min > 0.0 && ratio_min <= ratio_max) {
        return exec_err!("image_crop_random_resized: scale and ratio must be positive ranges, the smaller number first");
    }
    let (height, width) = (dims.height(), dims.width());
    let area = (height * width) as f64;
    let mut rng = row.rng()?;
    for _ in 0..10 {
        let target = area * uniform(&mut rng, scale_min, scale_max);
        let ratio = exp(uniform(&mut rng, ln(ratio_min), ln(ratio_max)));
        let w = (target * ratio).sqrt().round_ties_even() as usize;
        let h = (target / ratio).sqrt().round_ties_even() as usize;
        if w > 0 && w <= width && h > 0 && h <= height {
            let top = place(&mut rng, height - h);
            let left = place(&mut rng, width - w);
            return Ok(CropBox { left, top, height: h, width: w });
        }
    }
    let ratio = width as f64 / height.max(1) as f64;
    let (w, h) = if ratio < ratio_min {
        (width, ((width as f64 / ratio_min).round_ties_even() as usize).clamp(1, height.max(1)))
    } else if ratio > ratio_max {
        (((height as f64 * ratio_max).round_ties_even() as usize).clamp(1, width.max(1)), height)
    } else {
        (width, height)
    };
    Ok(CropBox { left: width.saturating_sub(w) / 2, top: height.saturating_sub(h) / 2, height: h, width: w })
}

fn pixel_type(element: Element, channels: usize) -> Result<PixelType> {
    match (element, channels) {
        (Element::U8, 1) => Ok(PixelType::U8),
        (Element::U8, 2) => Ok(PixelType::U8x2),
        (Element::U8, 3) => Ok(PixelType::U8x3),
        (Element::U8, 4) => Ok(PixelType::U8x4),
        (Element::F32, 1) => Ok(PixelType::F32),
        (Element::F32, 2) => Ok(PixelType::F32x2),
        (Element::F32, 3) => Ok(PixelType::F32x3),
        (Element::F32, 4) => Ok(PixelType::F32x4),
        (_, n) => exec_err!("resizing needs 1 to 4 channels in the last axis, not {n}; resize before image_to_chw"),
    }
}

fn length(n: usize) -> Result<u32> {
    u32::try_from(n).or_else(|_| exec_err!("a side of {n} pixels"))
}

fn failed(error: impl std::fmt::Display) -> DataFusionError {
    DataFusionError::Execution(format!("resizing failed: {error}"))
}

fn bytes_of<T: Pixel>(data: &[T]) -> &[u8] {
    T::bytes(data)
}

/// Pixels as the resizer sees them.
pub(super) trait Bytes: Sized {
    fn bytes(data: &[Self]) -> &[u8];
    fn read(bytes: &[u8], out: &mut [Self]);
}

impl Bytes for u8 {
    fn bytes(data: &[Self]) -> &[u8] {
        data
    }
    fn read(bytes: &[u8], out: &mut [Self]) {
        out.copy_from_slice(bytes);
    }
}

impl Bytes for f32 {
    fn bytes(data: &[Self]) -> &[u8] {
        data.to_byte_slice()
    }
    fn read(bytes: &[u8], out: &mut [Self]) {
        for (to, from) in out.iter_mut().zip(bytes.chunks_exact(4)) {
            *to = f32::from_ne_bytes(from.try_into().unwrap_or_default());
        }
    }
}
