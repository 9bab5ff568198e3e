//! Image functions: `image_*` scalar functions over whole batches.
//!
//! Owns: decoding and encoding of JPEG, PNG and WebP, and what happens to pixels in between. An image is a tensor column of `uint8` (or
//! `float32` after [`image_normalize`](ops)) with the axes height, width, channels; grey images may leave the channel axis out. Images of
//! one size are `arrow.fixed_shape_tensor`, images of many sizes `arrow.variable_shape_tensor`. A size given as a literal makes the result
//! fixed.
//!
//! Null images and null arguments give null. Random functions are pure in a hidden last argument: a `UInt64` column of draws which the step
//! compiler adds; everything that a row needs is derived from its one draw.
//!
//! Must not know: where the draws come from, sessions, steps.
//!
//! Left for later: several columns that share one draw (image and mask cropped alike) need one draw column used by several calls, which is
//! the step compiler's to give; nothing here stands in its way.

mod args;
mod decode;
mod encode;
mod geometry;
mod numeric;
mod ops;
mod pixels;
mod resize;
mod tensor;
mod udf;

use datafusion::logical_expr::ScalarUDF;

/// The names of the functions that take the hidden draw as their last argument.
pub const RANDOM_IMAGE_FUNCTIONS: &[&str] =
    &["image_crop_random", "image_crop_random_resized", "image_flip_random", "image_translate_random", "image_noise_gauss"];

/// Every image function, ready to be registered.
pub fn image_functions() -> Vec<ScalarUDF> {
    let mut all = vec![ScalarUDF::from(decode::Decode::new()), ScalarUDF::from(encode::Encode::new())];
    all.extend(ops::Op::ALL.iter().map(|op| ScalarUDF::from(udf::ImageUdf::new(*op))));
    all
}

#[cfg(test)]
mod tests;
