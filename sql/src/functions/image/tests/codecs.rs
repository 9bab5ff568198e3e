//! Files in and out.

use super::*;

macro_rules! file {
    ($name:literal) => {
        include_bytes!(concat!("../testdata/", $name)).as_slice()
    };
}

fn decoded(bytes: &[u8], args: &[Arg]) -> (Vec<usize>, Vec<u8>) {
    let all = [&[files(&[Some(bytes)])][..], args].concat();
    row::<u8>(&call("image_decode", &all).unwrap(), 0).unwrap()
}

fn close(got: &[u8], want: &[u8], by: u8) -> bool {
    got.len() == want.len() && got.iter().zip(want).all(|(g, w)| g.abs_diff(*w) <= by)
}

const RED: [u8; 3] = [255, 0, 0];
const BLUE: [u8; 3] = [0, 0, 255];

#[test]
fn formats_decode_to_rgb() {
    for (bytes, by) in [
        (file!("rgb.jpg"), 3),
        (file!("progressive.jpg"), 40),
        (file!("palette.png"), 0),
        (file!("rgb.webp"), 0),
        (file!("lossy.webp"), 40),
    ] {
        let (shape, data) = decoded(bytes, &[]);
        assert_eq!(shape, [8, 16, 3]);
        assert!(close(&data[..3], &RED, by), "{:?}", &data[..3]);
        assert!(close(&data[45..48], &BLUE, by), "{:?}", &data[45..48]);
    }
}

#[test]
fn orientation_is_applied() {
    let (shape, data) = decoded(file!("orientation6.jpg"), &[]);
    assert_eq!(shape, [16, 8, 3]);
    assert!(close(&data[..3], &RED, 3));
    assert!(close(&data[data.len() - 3..], &BLUE, 3));
}

#[test]
fn four_colour_jpegs_become_rgb() {
    let (_, cmyk) = decoded(file!("cmyk.jpg"), &[]);
    assert!(close(&cmyk[..3], &[204, 0, 102], 3), "{:?}", &cmyk[..3]);
    let (_, ycck) = decoded(file!("ycck.jpg"), &[]);
    assert!(close(&ycck[..3], &[1, 0, 182], 3), "{:?}", &ycck[..3]);
}

#[test]
fn sixteen_bits_are_rounded_to_eight() {
    assert_eq!(decoded(file!("rgb16.png"), &[]).1[..3], [255, 128, 0]);
    assert_eq!(decoded(file!("gray16.png"), &[word("gray")]), (vec![2, 4, 1], vec![128; 8]));
}

#[test]
fn modes() {
    assert_eq!(decoded(file!("rgba.png"), &[]).1[..3], [10, 20, 30], "alpha is left out");
    let (shape, data) = decoded(file!("rgba.png"), &[word("unchanged")]);
    assert_eq!((shape, &data[..4]), (vec![8, 16, 4], &[10, 20, 30, 0][..]));
    assert_eq!(decoded(file!("gray_alpha.png"), &[word("unchanged")]).0, [8, 16, 2]);
    assert_eq!(decoded(file!("gray.png"), &[]).1[..3], [10, 10, 10]);
    assert_eq!(decoded(file!("gray.png"), &[word("gray")]).1[..2], [10, 10]);
    // .299 of 255
    assert_eq!(decoded(file!("palette.png"), &[word("gray")]).1[0], 76);
    assert!(close(&decoded(file!("gray.jpg"), &[word("unchanged")]).1, &[100; 128], 1));
}

#[test]
fn nulls_stay_nulls() {
    let out = call("image_decode", &[files(&[None, Some(file!("rgb.webp")), None])]).unwrap();
    assert!(row::<u8>(&out, 0).is_none() && row::<u8>(&out, 2).is_none());
    assert_eq!(row::<u8>(&out, 1).unwrap().0, [8, 16, 3]);
}

#[test]
fn every_truncation_is_an_error_that_names_the_function() {
    for bytes in [file!("rgb.jpg"), file!("progressive.jpg"), file!("orientation6.jpg"), file!("rgb16.png"), file!("rgb.webp")] {
        let end = bytes.iter().rposition(|b| *b != 0).unwrap();
        for length in 0..end {
            // The last bytes of a PNG are the checksum of its empty end chunk: every pixel is there without them.
            if bytes.starts_with(b"\x89PNG") && length >= bytes.len() - 12 {
                continue;
            }
            let got = call("image_decode", &[files(&[Some(&bytes[..length])])]).map(|_| ()).map_err(|e| e.to_string());
            let got = got.expect_err(&format!("{length} bytes of {} decoded", bytes.len()));
            assert!(got.contains("image_decode"), "{got}");
        }
    }
}

#[test]
fn a_truncated_jpeg_says_so() {
    let bytes = file!("rgb.jpg");
    assert!(error("image_decode", &[files(&[Some(&bytes[..bytes.len() - 2])])]).contains("truncated: it ends in its pixels"));
    assert!(error("image_decode", &[files(&[Some(&bytes[..100])])]).contains("truncated: it ends in its headers"));
    assert!(error("image_decode", &[files(&[Some(b"")])]).contains("the file is empty"));
    assert!(error("image_decode", &[files(&[Some(b"GIF89a......")])]).contains("not a JPEG, PNG or WebP"));
}

#[test]
fn bytes_behind_the_end_do_no_harm() {
    let longer = [file!("rgb.jpg"), b"trailing".as_slice()].concat();
    assert_eq!(decoded(&longer, &[]), decoded(file!("rgb.jpg"), &[]));
}

#[test]
fn limits_hold_before_pixels_are_decoded() {
    let got = error("image_decode", &[files(&[Some(file!("bomb.png"))])]);
    assert!(got.contains("claims 16384 by 16384 pixels") && got.contains("178956970"), "{got}");
    let got = error("image_decode", &[files(&[Some(file!("rgb.jpg"))]), word("rgb"), int(127)]);
    assert!(got.contains("the limit of 127 pixels"), "{got}");
    assert_eq!(decoded(file!("rgb.jpg"), &[word("rgb"), int(128)]).0, [8, 16, 3]);
}

#[test]
fn corrupt_bytes_never_panic() {
    let mut rng = forebay_core::random::Rng::new(1);
    for bytes in
        [file!("rgb.jpg"), file!("progressive.jpg"), file!("rgb16.png"), file!("palette.png"), file!("lossy.webp"), file!("cmyk.jpg")]
    {
        for _ in 0..300 {
            let mut bad = bytes.to_vec();
            for _ in 0..=rng.below(4) {
                let at = rng.below(bad.len() as u64) as usize;
                bad[at] = rng.next_u64() as u8;
            }
            let _ = call("image_decode", &[files(&[Some(&bad)]), word("rgb"), int(1 << 20)]);
        }
    }
}

#[test]
fn what_is_encoded_decodes_again() {
    let rgb: Vec<u8> = (0..4 * 5 * 3).map(|i| (i * 4) as u8).collect();
    for format in ["png", "webp"] {
        for channels in 1..=4 {
            let data: Vec<u8> = (0..4 * 5 * channels).map(|i| (i * 3) as u8).collect();
            let out = call("image_encode", &[fixed(&[4, 5, channels], &[Some(&data), None]), word(format)]).unwrap();
            assert!(array(&out).is_null(1));
            let bytes = array(&out).as_binary::<i32>().value(0).to_vec();
            let (shape, again) = decoded(&bytes, &[word("unchanged")]);
            if format == "png" {
                assert_eq!((shape, again), (vec![4, 5, channels], data), "{format} of {channels} channels");
            } else {
                assert_eq!(shape[..2], [4, 5]);
            }
        }
    }
    let size = |quality: i64| {
        let out = call("image_encode", &[varying(&[4, 5, 3], &[Some(&rgb)]), word("jpeg"), int(quality)]).unwrap();
        array(&out).as_binary::<i32>().value(0).to_vec()
    };
    assert!(size(10).len() < size(95).len());
    assert!(close(&decoded(&size(100), &[]).1, &rgb, 12));
    assert!(error("image_encode", &[varying(&[4, 5, 3], &[Some(&rgb)]), word("jpeg"), int(0)]).contains("from 1 to 100"));
    assert!(error("image_encode", &[fixed::<u8>(&[1, 1, 4], &[Some(&[0; 4])]), word("jpeg")]).contains("1 or 3 channels"));
}

#[tokio::test]
async fn sql_carries_the_tensor_type_through_nested_calls() {
    use datafusion::prelude::SessionContext;
    let context = SessionContext::new();
    for function in image_functions() {
        context.register_udf(function);
    }
    let content: ArrayRef = Arc::new(BinaryArray::from(vec![Some(file!("rgb.jpg")), Some(file!("rgb.webp"))]));
    let batch = arrow::record_batch::RecordBatch::try_from_iter([("content", content)]).unwrap();
    context.register_batch("input", batch).unwrap();
    let query = "SELECT image_to_chw(image_normalize(image_resize(image_decode(content), 4, 6, 'bicubic'), [0.5, 0.5, 0.5], [0.5, 0.5, 0.5])) AS x, \
                 image_decode(content, 'gray') AS y FROM input";
    let frame = context.sql(query).await.unwrap();
    let planned = frame.schema().field(0).clone();
    let batches = frame.collect().await.unwrap();
    assert_eq!(TensorType::of(&planned).unwrap().to_string(), "float32[3,4,6]");
    let schema = batches[0].schema();
    assert_eq!(TensorType::of(schema.field(0)).unwrap().to_string(), "float32[3,4,6]");
    assert_eq!(TensorType::of(schema.field(1)).unwrap().to_string(), "uint8[?,?,1]");
    assert_eq!(batches.iter().map(|b| b.num_rows()).sum::<usize>(), 2);
}
