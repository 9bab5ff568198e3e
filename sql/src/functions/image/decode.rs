//! `image_decode(content [, mode [, max_pixels]])`: JPEG, PNG and WebP bytes to `uint8` images of height, width, channels.
//!
//! Owns: the limits checked before a pixel is decoded, EXIF orientation, and what counts as truncated. CMYK and YCCK become RGB, 16-bit
//! values are rounded to 8 bits, palettes are expanded. Alpha is left out in 'rgb' and 'gray', as Pillow's `convert` does; 'unchanged' keeps
//! grey, grey and alpha, RGB or RGBA as the file has it.

use std::io::Cursor;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use arrow::array::{Array, AsArray};
use arrow::compute::cast;
use arrow::datatypes::{DataType, FieldRef};
use datafusion::common::{DataFusionError, Result, exec_err, internal_err, plan_err};
use datafusion::logical_expr::{ColumnarValue, ReturnFieldArgs, ScalarFunctionArgs, ScalarUDFImpl, Signature, Volatility};
use image::metadata::Orientation;
use image::{ColorType, DynamicImage, ImageDecoder, ImageFormat, ImageReader, Limits};

use super::args::{self, Args, Kind, Literals, Param, Preset};
use super::pixels::grey;
use super::tensor::{Dims, Element, Sink, TensorType};

const NAME: &str = "image_decode";

/// Twice what Pillow warns at, and its limit for an error: a file of a few bytes can claim far more.
pub(super) const MAX_PIXELS: f64 = 178_956_970.0;

const PARAMS: &[Param] = &[Param::word("mode", "rgb"), Param { name: "max_pixels", kind: Kind::Int, preset: Preset::Number(MAX_PIXELS) }];

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Mode {
    Rgb,
    Gray,
    Unchanged,
}

impl Mode {
    fn parse(word: &str) -> Result<Self> {
        match word {
            "rgb" => Ok(Self::Rgb),
            "gray" => Ok(Self::Gray),
            "unchanged" => Ok(Self::Unchanged),
            other => plan_err!("{NAME}: unknown mode '{other}'; there are 'rgb', 'gray' and 'unchanged'"),
        }
    }

    fn output(self) -> TensorType {
        let channels = match self {
            Self::Rgb => Some(3),
            Self::Gray => Some(1),
            Self::Unchanged => None,
        };
        TensorType { element: Element::U8, dims: vec![None, None, channels] }
    }
}

/// The function as DataFusion calls it.
#[derive(Debug, PartialEq, Eq, Hash)]
pub(super) struct Decode {
    signature: Signature,
}

impl Decode {
    pub(super) fn new() -> Self {
        Self { signature: Signature::variadic_any(Volatility::Immutable) }
    }
}

impl ScalarUDFImpl for Decode {
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
        let written = args::check(NAME, "content", PARAMS, false, given.arg_fields)?;
        match given.arg_fields.first().map(|f| f.data_type()) {
            Some(DataType::Binary | DataType::LargeBinary | DataType::BinaryView | DataType::FixedSizeBinary(_)) => {}
            other => return plan_err!("{NAME}: `content` takes the bytes of a file, not {}", other.unwrap_or(&DataType::Null)),
        }
        let literals = given.scalar_arguments.get(1..written).unwrap_or_default();
        let mode = Mode::parse(&Literals { name: NAME, params: PARAMS, given: literals }.word(0)?)?;
        let nullable = given.arg_fields.iter().any(|f| f.is_nullable());
        Ok(Arc::new(mode.output().field(NAME, nullable)))
    }

    fn invoke_with_args(&self, call: ScalarFunctionArgs) -> Result<ColumnarValue> {
        let written = args::check(NAME, "content", PARAMS, false, &call.arg_fields)?;
        let evaluated = Args::evaluate(NAME, PARAMS, false, written, &call)?;
        let Some(content) = call.args.first() else { return internal_err!("{NAME} without content") };
        let content = cast(&content.clone().into_array(call.number_rows)?, &DataType::LargeBinary)?;
        let content = content.as_binary::<i64>();
        let mut sink = Sink::<u8>::new(TensorType::of(&call.return_field)?, call.number_rows);
        for index in 0..call.number_rows {
            match evaluated.row(index) {
                Some(row) if content.is_valid(index) => {
                    let max_pixels = u64::try_from(row.int(1)?).unwrap_or(0);
                    decode(content.value(index), Mode::parse(row.word(0))?, max_pixels, &mut sink)?;
                }
                _ => sink.null(),
            }
        }
        Ok(ColumnarValue::Array(sink.finish()?))
    }
}

/// Decodes one file. The decoders are fed by strangers: a panic in one is that row's error.
fn decode(bytes: &[u8], mode: Mode, max_pixels: u64, sink: &mut Sink<u8>) -> Result<()> {
    let decoded = catch_unwind(AssertUnwindSafe(|| open(bytes, max_pixels).and_then(|(format, image)| pixels(format, image))));
    let image = decoded.unwrap_or_else(|_| exec_err!("{NAME}: the file is corrupt: its decoder gave up"))?;
    let (height, width) = (image.height() as usize, image.width() as usize);
    match (mode, image) {
        (Mode::Rgb, image) => put(sink, height, width, 3, &image.into_rgb8()),
        (Mode::Unchanged, image) => match image.color().channel_count() {
            1 => put(sink, height, width, 1, &image.into_luma8()),
            2 => put(sink, height, width, 2, &image.into_luma_alpha8()),
            4 => put(sink, height, width, 4, &image.into_rgba8()),
            _ => put(sink, height, width, 3, &image.into_rgb8()),
        },
        (Mode::Gray, image) if !image.color().has_color() => put(sink, height, width, 1, &image.into_luma8()),
        (Mode::Gray, image) => {
            let rgb = image.into_rgb8();
            let out = sink.row(Dims::hwc(height, width, 1))?;
            for (to, from) in out.iter_mut().zip(rgb.chunks_exact(3)) {
                if let [red, green, blue] = from {
                    *to = grey(*red, *green, *blue);
                }
            }
            Ok(())
        }
    }
}

fn put(sink: &mut Sink<u8>, height: usize, width: usize, channels: usize, data: &[u8]) -> Result<()> {
    let out = sink.row(Dims::hwc(height, width, channels))?;
    if out.len() != data.len() {
        return exec_err!("{NAME}: the decoder gave {} bytes for an image of {height} by {width} by {channels}", data.len());
    }
    out.copy_from_slice(data);
    Ok(())
}

/// Reads the header and checks what it claims, before any pixel is decoded.
fn open(bytes: &[u8], max_pixels: u64) -> Result<(ImageFormat, Box<dyn ImageDecoder + '_>)> {
    if bytes.is_empty() {
        return exec_err!("{NAME}: the file is empty");
    }
    let format = match image::guess_format(bytes) {
        Ok(format @ (ImageFormat::Jpeg | ImageFormat::Png | ImageFormat::WebP)) => format,
        _ => return exec_err!("{NAME}: the bytes are not a JPEG, PNG or WebP image"),
    };
    if format == ImageFormat::Jpeg {
        jpeg_ends(bytes)?;
    }
    let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
    let mut limits = Limits::no_limits();
    // Three bytes per allowed pixel, and something for tables and text chunks.
    let max_bytes = max_pixels.saturating_mul(3);
    limits.max_alloc = Some(max_bytes.saturating_add(64 << 20));
    reader.limits(limits);
    let decoder = reader.into_decoder().map_err(|e| failed(format, &e))?;
    let (width, height) = decoder.dimensions();
    let pixels = u64::from(width) * u64::from(height);
    if pixels > max_pixels || decoder.total_bytes() > max_bytes {
        return exec_err!(
            "{NAME}: the {} claims {width} by {height} pixels ({} bytes), more than the limit of {max_pixels} pixels; \
             a third argument sets another limit",
            format_name(format),
            decoder.total_bytes()
        );
    }
    Ok((format, Box::new(decoder)))
}

/// Decodes and turns the image upright.
fn pixels(format: ImageFormat, mut decoder: Box<dyn ImageDecoder + '_>) -> Result<DynamicImage> {
    // A broken EXIF block does not spoil the pixels.
    let orientation = decoder.orientation().unwrap_or(Orientation::NoTransforms);
    let mut image = DynamicImage::from_decoder(decoder).map_err(|e| failed(format, &e))?;
    image.apply_orientation(orientation);
    Ok(match image.color() {
        ColorType::L16 | ColorType::La16 | ColorType::Rgb16 | ColorType::Rgba16 => to_eight_bits(image),
        _ => image,
    })
}

fn to_eight_bits(image: DynamicImage) -> DynamicImage {
    match image.color() {
        ColorType::L16 => image.into_luma8().into(),
        ColorType::La16 => image.into_luma_alpha8().into(),
        ColorType::Rgba16 => image.into_rgba8().into(),
        _ => image.into_rgb8().into(),
    }
}

/// Checks that a JPEG reaches its end-of-image marker. The decoder would fill what is missing with grey and call it a success.
fn jpeg_ends(bytes: &[u8]) -> Result<()> {
    let mut at = 2;
    let mut scanning = false;
    while let Some(position) = bytes.get(at..).and_then(next_ff) {
        at += position + 1;
        match bytes.get(at) {
            // Fill bytes, stuffed bytes and restarts belong to the scan.
            Some(0xFF) => {}
            Some(0x00 | 0x01 | 0xD0..=0xD8) => at += 1,
            Some(0xD9) => return Ok(()),
            Some(marker) => {
                scanning |= *marker == 0xDA;
                let Some([high, low]) = bytes.get(at + 1..at + 3) else { break };
                at += 1 + usize::from(u16::from_be_bytes([*high, *low]));
            }
            None => break,
        }
    }
    let place = if scanning { "in its pixels" } else { "in its headers" };
    exec_err!("{NAME}: the JPEG is truncated: it ends {place}, before the end-of-image marker")
}

fn next_ff(bytes: &[u8]) -> Option<usize> {
    bytes.iter().position(|b| *b == 0xFF)
}

fn format_name(format: ImageFormat) -> &'static str {
    match format {
        ImageFormat::Jpeg => "JPEG",
        ImageFormat::Png => "PNG",
        _ => "WebP",
    }
}

fn failed(format: ImageFormat, error: &image::ImageError) -> DataFusionError {
    let why = match error {
        image::ImageError::IoError(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => "truncated: it ends too early".to_owned(),
        image::ImageError::Limits(_) => "larger than the limits allow".to_owned(),
        image::ImageError::Unsupported(e) => format!("of a kind that is not supported: {e}"),
        other => format!("truncated or corrupt: {other}"),
    };
    DataFusionError::Execution(format!("{NAME}: the {} is {why}", format_name(format)))
}
