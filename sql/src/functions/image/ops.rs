//! The table of pixel functions: names, parameters and the type of each result.
//!
//! Owns: what can be called and what comes out. The work on pixels is in `geometry`, `resize` and `pixels`.

use datafusion::common::{Result, plan_err};

use super::args::{Literals, Param, int, list, real};
use super::resize::{Method, Resizing};
use super::tensor::{Element, Pixel, Sink, TensorType, View};
use super::{args::Row, geometry, pixels, resize};

/// One function from an image to an image.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum Op {
    Resize,
    ResizeShort,
    Crop,
    CropCenter,
    CropRandom,
    CropRandomResized,
    FlipHorizontal,
    FlipVertical,
    FlipRandom,
    Translate,
    TranslateRandom,
    Brightness,
    Contrast,
    Gamma,
    NoiseGauss,
    Normalize,
    ToChw,
    ToHwc,
}

impl Op {
    pub(super) const ALL: &[Op] = &[
        Op::Resize,
        Op::ResizeShort,
        Op::Crop,
        Op::CropCenter,
        Op::CropRandom,
        Op::CropRandomResized,
        Op::FlipHorizontal,
        Op::FlipVertical,
        Op::FlipRandom,
        Op::Translate,
        Op::TranslateRandom,
        Op::Brightness,
        Op::Contrast,
        Op::Gamma,
        Op::NoiseGauss,
        Op::Normalize,
        Op::ToChw,
        Op::ToHwc,
    ];

    pub(super) fn name(self) -> &'static str {
        match self {
            Op::Resize => "image_resize",
            Op::ResizeShort => "image_resize_short",
            Op::Crop => "image_crop",
            Op::CropCenter => "image_crop_center",
            Op::CropRandom => "image_crop_random",
            Op::CropRandomResized => "image_crop_random_resized",
            Op::FlipHorizontal => "image_flip_horizontal",
            Op::FlipVertical => "image_flip_vertical",
            Op::FlipRandom => "image_flip_random",
            Op::Translate => "image_translate",
            Op::TranslateRandom => "image_translate_random",
            Op::Brightness => "image_brightness",
            Op::Contrast => "image_contrast",
            Op::Gamma => "image_gamma",
            Op::NoiseGauss => "image_noise_gauss",
            Op::Normalize => "image_normalize",
            Op::ToChw => "image_to_chw",
            Op::ToHwc => "image_to_hwc",
        }
    }

    pub(super) fn params(self) -> &'static [Param] {
        const METHOD: Param = Param::word("method", "bilinear");
        match self {
            Op::Resize => const { &[int("height"), int("width"), METHOD] },
            Op::ResizeShort => const { &[int("size"), METHOD] },
            Op::Crop => const { &[int("x1"), int("y1"), int("x2"), int("y2")] },
            Op::CropCenter | Op::CropRandom => const { &[int("height"), int("width")] },
            Op::CropRandomResized => {
                const {
                    &[
                        int("height"),
                        int("width"),
                        real("scale_min").or(0.08),
                        real("scale_max").or(1.0),
                        real("ratio_min").or(3.0 / 4.0),
                        real("ratio_max").or(4.0 / 3.0),
                        METHOD,
                    ]
                }
            }
            Op::FlipRandom => const { &[real("p").or(0.5)] },
            Op::Translate => const { &[int("dx"), int("dy"), real("fill").or(0.0)] },
            Op::TranslateRandom => const { &[int("max_dx"), int("max_dy"), real("fill").or(0.0)] },
            Op::Brightness | Op::Contrast => const { &[real("factor")] },
            Op::Gamma => const { &[real("gamma")] },
            Op::NoiseGauss => const { &[real("sd")] },
            Op::Normalize => const { &[list("mean"), list("std")] },
            Op::FlipHorizontal | Op::FlipVertical | Op::ToChw | Op::ToHwc => &[],
        }
    }

    /// Whether the hidden draw follows the arguments.
    pub(super) fn random(self) -> bool {
        super::RANDOM_IMAGE_FUNCTIONS.contains(&self.name())
    }

    /// The type of the result, and every error that the types and literals already show.
    pub(super) fn output(self, input: &TensorType, literals: &Literals<'_>) -> Result<TensorType> {
        match self {
            Op::Resize => {
                Method::parse(&literals.word(2)?)?;
                resize::check_channels(input)?;
                Ok(input.resized(literals.size(0)?, literals.size(1)?))
            }
            Op::ResizeShort => {
                Method::parse(&literals.word(1)?)?;
                resize::check_channels(input)?;
                let size = literals.size(0)?;
                match (input.fixed(), size) {
                    (Some(dims), Some(size)) => {
                        let (height, width) = resize::short_size(dims, size);
                        Ok(input.resized(Some(height), Some(width)))
                    }
                    _ => Ok(input.resized(None, None)),
                }
            }
            Op::CropRandomResized => {
                Method::parse(&literals.word(6)?)?;
                resize::check_channels(input)?;
                Ok(input.resized(literals.size(0)?, literals.size(1)?))
            }
            Op::Crop => geometry::crop_type(input, literals),
            Op::CropCenter | Op::CropRandom => {
                let (height, width) = (literals.size(0)?, literals.size(1)?);
                geometry::check_crop(self.name(), input, height, width)?;
                Ok(input.resized(height, width))
            }
            Op::Brightness | Op::Contrast | Op::Gamma if input.element != Element::U8 => {
                plan_err!("{} works on uint8 images, not on {input}; use it before image_normalize", self.name())
            }
            Op::Normalize => Ok(TensorType { element: Element::F32, dims: input.dims.clone() }),
            Op::ToChw | Op::ToHwc => geometry::transposed(self, input),
            _ => Ok(input.clone()),
        }
    }

    /// Computes one row into `sink`. [`Op::Normalize`] changes the element and has its own path.
    pub(super) fn apply<T: Pixel>(self, image: View<'_, T>, row: Row<'_>, resizing: &mut Resizing, sink: &mut Sink<T>) -> Result<()> {
        match self {
            Op::Resize => resizing.whole(image, row.size(0)?, row.size(1)?, Method::parse(row.word(2))?, sink),
            Op::ResizeShort => {
                let (height, width) = resize::short_size(image.dims, row.size(0)?);
                resizing.whole(image, height, width, Method::parse(row.word(1))?, sink)
            }
            Op::CropRandomResized => resizing.random_crop(image, row, sink),
            Op::Crop => geometry::crop(image, geometry::CropBox::of(image.dims, row)?, sink),
            Op::CropCenter => geometry::crop(image, geometry::CropBox::center(image.dims, row.size(0)?, row.size(1)?)?, sink),
            Op::CropRandom => geometry::crop(image, geometry::CropBox::random(image.dims, row)?, sink),
            Op::FlipHorizontal => geometry::flip_horizontal(image, sink),
            Op::FlipVertical => geometry::flip_vertical(image, sink),
            Op::FlipRandom if row.rng()?.unit_f64() < row.real(0)? => geometry::flip_horizontal(image, sink),
            Op::FlipRandom => geometry::copy(image, sink),
            Op::Translate => geometry::translate(image, row.int(0)?, row.int(1)?, row.real(2)?, sink),
            Op::TranslateRandom => geometry::translate_random(image, row, sink),
            Op::Brightness => pixels::brightness(image, row.real(0)?, sink),
            Op::Contrast => pixels::contrast(image, row.real(0)?, sink),
            Op::Gamma => pixels::gamma(image, row.real(0)?, sink),
            Op::NoiseGauss => pixels::noise_gauss(image, row, sink),
            Op::ToChw => geometry::to_chw(image, sink),
            Op::ToHwc => geometry::to_hwc(image, sink),
            Op::Normalize => plan_err!("image_normalize changes the type of its image"),
        }
    }
}
