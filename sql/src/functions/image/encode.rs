//! `image_encode(image, 'png' | 'jpeg' | 'webp' [, quality])`: `uint8` images to the bytes of a file. PNG and WebP are lossless; `quality`
//! (1 to 100) is JPEG's.

use std::io::Cursor;
use std::sync::Arc;

use arrow::array::BinaryBuilder;
use arrow::datatypes::{DataType, Field, FieldRef};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};
use image::codecs::jpeg::JpegEncoder;
use image::codecs::png::PngEncoder;
use image::codecs::webp::WebPEncoder;
use image::{ExtendedColorType, ImageEncoder};

use super::args::{self, Args, Kind, Literals, Param, Preset, int};
use super::tensor::{Element, Images, View};
use super::udf::image_type;

const NAME: &str = "image_encode";
const PARAMS: &[Param] = &[Param { name: "format", kind: Kind::Text, preset: Preset::Required }, int("quality").or(90.0)];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Format {
    Png,
    Jpeg,
    WebP,
}

impl Format {
    fn parse(word: &str) -> Result<Self> {
        match word {
            "png" => Ok(Self::Png),
            "jpeg" | "jpg" => Ok(Self::Jpeg),
            "webp" => Ok(Self::WebP),
            other => plan_err!("{NAME}: unknown format '{other}'; there are 'png', 'jpeg' and 'webp'"),
        }
    }
}

/// The function as DataFusion calls it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Encode {
    signature: Signature,
}

impl Encode {
    pub(super) fn new() -> Self {
        Self { signature: Signature::variadic_any(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Encode {
    fn name(&self) -> &str {
        NAME
    }

    fn signature(&self) -> &Signature {
        &self.signature
    }

    fn return_type(&self, _arg_types: &[DataType]) -> Result<DataType> {
        internal_err!("{NAME} derives its type from fields")
    }

    fn return_field_from_args(&self, given: ReturnFieldArgs) -> Result<FieldRef> {
        let written = args::check(NAME, "image", PARAMS, false, given.arg_fields)?;
        let input = image_type(NAME, given.arg_fields.first())?;
        if input.element != Element::U8 {
            return plan_err!("{NAME} works on uint8 images, not on {input}; use it before image_normalize");
        }
        let literals = given.scalar_arguments.get(1..written).unwrap_or_default();
        Format::parse(&Literals { name: NAME, params: PARAMS, given: literals }.word(0)?)?;
        let nullable = given.arg_fields.iter().any(|f| f.is_nullable());
        Ok(Arc::new(Field::new(NAME, DataType::Binary, nullable)))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let written = args::check(NAME, "image", PARAMS, false, &call.arg_fields)?;
        let input = image_type(NAME, call.arg_fields.first())?;
        let evaluated = Args::evaluate(NAME, PARAMS, false, written, &call)?;
        let Some(images) = call.args.first() else { return internal_err!("{NAME} without an image") };
        let images = Images::<u8>::new(&images.clone().into_array(call.number_rows)?, &input)?;
        let mut out = BinaryBuilder::new();
        let mut total = 0_usize;
        for index in 0..call.number_rows {
            let (Some(image), Some(row)) = (images.get(index)?, evaluated.row(index)) else {
                out.append_null();
                continue;
            };
            let bytes = encode(image, Format::parse(row.word(0))?, row.int(1)?)?;
            total += bytes.len();
            if i32::try_from(total).is_err() {
                return Err(DataFusionError::ResourcesExhausted(format!("{NAME}: one batch is more than 2 GiB; use smaller batches")));
            }
            out.append_value(bytes);
        }
        Ok(ColumnarValue::Array(Arc::new(out.finish())))
    }
}

fn encode(image: View<'_, u8>, format: Format, quality: i64) -> Result<Vec<u8>> {
    let color = match (format, image.dims.channels()) {
        (_, 1) => ExtendedColorType::L8,
        (_, 3) => ExtendedColorType::Rgb8,
        (Format::Png | Format::WebP, 2) => ExtendedColorType::La8,
        (Format::Png | Format::WebP, 4) => ExtendedColorType::Rgba8,
        (Format::Jpeg, n) => return exec_err!("{NAME}: JPEG takes 1 or 3 channels, not {n}"),
        (_, n) => return exec_err!("{NAME}: 1 to 4 channels can be encoded, not {n}"),
    };
    let quality = match u8::try_from(quality) {
        Ok(quality @ 1..=100) => quality,
        _ => return exec_err!("{NAME}: `quality` must be from 1 to 100, not {quality}"),
    };
    let (Ok(width), Ok(height)) = (u32::try_from(image.dims.width()), u32::try_from(image.dims.height())) else {
        return exec_err!("{NAME}: the image is too large");
    };
    if width == 0 || height == 0 {
        return exec_err!("{NAME}: an empty image cannot be encoded");
    }
    let mut bytes = Cursor::new(Vec::new());
    let written = match format {
        Format::Png => PngEncoder::new(&mut bytes).write_image(image.data, width, height, color),
        Format::Jpeg => JpegEncoder::new_with_quality(&mut bytes, quality).write_image(image.data, width, height, color),
        Format::WebP => WebPEncoder::new_lossless(&mut bytes).write_image(image.data, width, height, color),
    };
    written.map_err(|e| DataFusionError::Execution(format!("{NAME}: {e}")))?;
    Ok(bytes.into_inner())
}
