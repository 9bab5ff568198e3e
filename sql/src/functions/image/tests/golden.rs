//! The golden values of the operators' definitions, on fixed and on varying shapes.

use super::*;

/// Runs on a fixed-shape and on a varying column: both must agree.
fn both(name: &str, shape: &[usize], data: &[u8], args: &[Arg]) -> (Vec<usize>, Vec<u8>) {
    let with = |image: Arg| {
        let all: Vec<Arg> = std::iter::once(image).chain(args.iter().cloned()).collect();
        row::<u8>(&call(name, &all).unwrap(), 0).unwrap()
    };
    let one = with(fixed(shape, &[Some(data)]));
    assert_eq!(one, with(varying(shape, &[Some(data)])), "{name} differs between fixed and varying shapes");
    one
}

fn grid(height: usize, width: usize) -> Vec<u8> {
    (0..height * width).map(|i| i as u8).collect()
}

#[test]
fn brightness_cuts_off() {
    assert_eq!(both("image_brightness", &[1, 3], &[255, 100, 0], &[real(0.5)]).1, [127, 50, 0]);
    assert_eq!(both("image_brightness", &[1, 1, 1], &[200], &[real(2.0)]).1, [255]);
}

#[test]
fn contrast_turns_around_the_rounded_mean_grey() {
    let eye = [255, 0, 0, 0, 255, 0, 0, 0, 255];
    assert_eq!(both("image_contrast", &[3, 3], &eye, &[real(0.5)]).1, [170, 42, 42, 42, 170, 42, 42, 42, 170]);
    let colour: Vec<u8> = eye.iter().flat_map(|v| [*v; 3]).collect();
    assert_eq!(both("image_contrast", &[3, 3, 3], &colour, &[real(0.5)]).1[..6], [170, 170, 170, 42, 42, 42]);
}

#[test]
fn gamma_rounds() {
    assert_eq!(both("image_gamma", &[1, 4], &[0, 64, 128, 255], &[real(2.2)]).1, [0, 12, 56, 255]);
    assert_eq!(both("image_gamma", &[1, 1], &[64], &[real(0.5)]).1, [128]);
}

#[test]
fn normalize_centres_pixels() {
    let out = call("image_normalize", &[fixed::<u8>(&[1, 3], &[Some(&[0, 128, 255])]), list(&[0.5]), list(&[0.5])]).unwrap();
    let got = row::<f32>(&out, 0).unwrap().1;
    for (got, want) in got.iter().zip([-1.0, 0.003_921_6, 1.0]) {
        assert!((got - want).abs() < 1e-6, "{got} is not {want}");
    }
}

#[test]
fn normalize_has_a_mean_per_channel_and_takes_floats_as_they_are() {
    let mean = list(&[0.485, 0.456, 0.406]);
    let std = list(&[0.229, 0.224, 0.225]);
    let out = call("image_normalize", &[varying::<u8>(&[1, 1, 3], &[Some(&[255, 0, 51]), None]), mean, std]).unwrap();
    let (shape, got) = row::<f32>(&out, 0).unwrap();
    assert_eq!(shape, [1, 1, 3]);
    for (got, want) in got.iter().zip([0.515 / 0.229, -0.456 / 0.224, (0.2 - 0.406) / 0.225]) {
        assert!((f64::from(*got) - want).abs() < 1e-5, "{got} is not {want}");
    }
    assert!(row::<f32>(&out, 1).is_none());
    let floats = call("image_normalize", &[fixed::<f32>(&[1, 2], &[Some(&[10.0, 20.0])]), list(&[10.0]), list(&[5.0])]).unwrap();
    assert_eq!(row::<f32>(&floats, 0).unwrap().1, [0.0, 2.0]);
}

#[test]
fn crop_excludes_its_end() {
    assert_eq!(both("image_crop", &[3, 4], &grid(3, 4), &[int(1), int(0), int(3), int(2)]), (vec![2, 2], vec![1, 2, 5, 6]));
    let rgb: Vec<u8> = (0..2 * 2 * 3).collect();
    assert_eq!(both("image_crop", &[2, 2, 3], &rgb, &[int(1), int(1), int(2), int(2)]), (vec![1, 1, 3], vec![9, 10, 11]));
}

#[test]
fn crop_center_rounds_down() {
    assert_eq!(both("image_crop_center", &[4, 4], &grid(4, 4), &[int(1), int(1)]), (vec![1, 1], vec![5]));
    assert_eq!(both("image_crop_center", &[3, 4], &grid(3, 4), &[int(3), int(2)]).1, [1, 2, 5, 6, 9, 10]);
}

#[test]
fn flips() {
    assert_eq!(both("image_flip_horizontal", &[2, 3], &grid(2, 3), &[]).1, [2, 1, 0, 5, 4, 3]);
    assert_eq!(both("image_flip_vertical", &[2, 3], &grid(2, 3), &[]).1, [3, 4, 5, 0, 1, 2]);
    assert_eq!(both("image_flip_horizontal", &[1, 2, 3], &[1, 2, 3, 4, 5, 6], &[]).1, [4, 5, 6, 1, 2, 3]);
}

#[test]
fn translate_shifts_right_and_down() {
    let image = grid(2, 3);
    assert_eq!(both("image_translate", &[2, 3], &image, &[int(1), int(0)]).1, [0, 0, 1, 0, 3, 4]);
    assert_eq!(both("image_translate", &[2, 3], &image, &[int(-1), int(1), int(9)]).1, [9, 9, 9, 1, 2, 9]);
    assert_eq!(both("image_translate", &[2, 3], &image, &[int(i64::MAX / 4096), int(0), int(7)]).1, [7; 6]);
}

#[test]
fn axes_change_places_and_come_back() {
    let rgb: Vec<u8> = (0..2 * 2 * 3).collect();
    let (shape, chw) = both("image_to_chw", &[2, 2, 3], &rgb, &[]);
    assert_eq!((shape.as_slice(), chw.as_slice()), (&[3, 2, 2][..], &[0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11][..]));
    assert_eq!(both("image_to_hwc", &[3, 2, 2], &chw, &[]), (vec![2, 2, 3], rgb));
    assert_eq!(both("image_to_chw", &[1, 2], &[1, 2], &[]).0, [1, 1, 2]);
}

#[test]
fn resize_keeps_flat_images_flat_and_knows_its_methods() {
    for method in ["nearest", "bilinear", "bicubic", "lanczos"] {
        for channels in 1..=4 {
            let flat = vec![77; 5 * 7 * channels];
            let (shape, out) = both("image_resize", &[5, 7, channels], &flat, &[int(3), int(11), word(method)]);
            assert_eq!(shape, [3, 11, channels]);
            assert!(out.iter().all(|v| *v == 77), "{method}, {channels} channels");
        }
    }
    assert_eq!(both("image_resize", &[2, 2], &[0, 10, 20, 30], &[int(4), int(4), word("nearest")]).1[..8], [0, 0, 10, 10, 0, 0, 10, 10]);
    assert_eq!(both("image_resize", &[2, 2], &[0, 100, 100, 200], &[int(1), int(1)]).1, [100]);
}

#[test]
fn resize_of_floats_is_not_rounded() {
    let image = fixed::<f32>(&[2, 2], &[Some(&[0.0, 1.0, 1.0, 1.0])]);
    let out = call("image_resize", &[image, int(1), int(1)]).unwrap();
    assert!((row::<f32>(&out, 0).unwrap().1[0] - 0.75).abs() < 1e-6);
}

#[test]
fn resize_short_keeps_proportions() {
    assert_eq!(both("image_resize_short", &[4, 6], &[1; 24], &[int(2)]).0, [2, 3]);
    assert_eq!(both("image_resize_short", &[6, 4], &[1; 24], &[int(8)]).0, [12, 8]);
}
