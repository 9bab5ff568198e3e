//! Random functions are functions of their draw, and fair.

use super::*;

fn gradient(height: usize, width: usize) -> Vec<u8> {
    (0..height * width).map(|i| (i * 7 % 256) as u8).collect()
}

fn many(name: &str, shape: &[usize], data: &[u8], args: &[Arg], draw: &[u64]) -> Vec<(Vec<usize>, Vec<u8>)> {
    let rows: Vec<Option<&[u8]>> = draw.iter().map(|_| Some(data)).collect();
    let all = [&[fixed(shape, &rows)][..], args, &[draws(draw)][..]].concat();
    let out = call(name, &all).unwrap();
    (0..draw.len()).map(|i| row::<u8>(&out, i).unwrap()).collect()
}

#[test]
fn the_draw_decides_and_nothing_else() {
    let image = gradient(9, 8);
    let calls: &[(&str, Vec<Arg>)] = &[
        ("image_crop_random", vec![int(3), int(4)]),
        ("image_crop_random_resized", vec![int(5), int(5)]),
        ("image_flip_random", vec![]),
        ("image_translate_random", vec![int(3), int(2)]),
        ("image_noise_gauss", vec![real(10.0)]),
    ];
    for (name, args) in calls {
        let draw: Vec<u64> = (0..64).map(forebay_core::random::mix64).collect();
        let forward = many(name, &[9, 8], &image, args, &draw);
        let backward: Vec<u64> = draw.iter().rev().copied().collect();
        let mut again = many(name, &[9, 8], &image, args, &backward);
        again.reverse();
        assert_eq!(forward, again, "{name} depends on more than its draw");
        assert!(forward.iter().any(|one| *one != forward[0]), "{name} does not depend on its draw");
    }
}

#[test]
fn pinned_draws_stay_what_they_are() {
    let image = gradient(4, 4);
    let crops = many("image_crop_random", &[4, 4], &image, &[int(1), int(1)], &[1, 2, 3, 4]);
    let crops: Vec<u8> = crops.iter().map(|c| c.1[0]).collect();
    let noise = many("image_noise_gauss", &[1, 4], &[100, 100, 100, 100], &[real(20.0)], &[7]);
    let shift = many("image_translate_random", &[1, 3], &[1, 2, 3], &[int(1), int(0)], &[5, 6, 7]);
    let shift: Vec<Vec<u8>> = shift.into_iter().map(|s| s.1).collect();
    assert_eq!(crops, [70, 70, 14, 49]);
    assert_eq!(noise[0].1, [99, 96, 118, 104]);
    assert_eq!(shift, [[1, 2, 3], [0, 1, 2], [1, 2, 3]]);
}

#[test]
fn crops_reach_every_place_about_equally() {
    let draw: Vec<u64> = (0..9000).map(forebay_core::random::mix64).collect();
    let image: Vec<u8> = (0..9).collect();
    let mut seen = [0_u32; 9];
    for (_, crop) in many("image_crop_random", &[3, 3], &image, &[int(1), int(1)], &draw) {
        seen[usize::from(crop[0])] += 1;
    }
    assert!(seen.iter().all(|n| (850..1150).contains(n)), "{seen:?}");
}

#[test]
fn flips_follow_their_probability() {
    let draw: Vec<u64> = (0..4000).map(forebay_core::random::mix64).collect();
    let flipped = |p: f64| many("image_flip_random", &[1, 2], &[1, 2], &[real(p)], &draw).iter().filter(|f| f.1 == [2, 1]).count();
    assert_eq!((flipped(0.0), flipped(1.0)), (0, 4000));
    assert!((900..1100).contains(&flipped(0.25)));
}

#[test]
fn noise_has_its_deviation() {
    let flat = vec![128_u8; 20_000];
    let noisy = many("image_noise_gauss", &[100, 200], &flat, &[real(10.0)], &[99]).remove(0).1;
    let mean = noisy.iter().map(|v| f64::from(*v)).sum::<f64>() / noisy.len() as f64;
    let sd = (noisy.iter().map(|v| (f64::from(*v) - mean).powi(2)).sum::<f64>() / noisy.len() as f64).sqrt();
    assert!((mean - 128.0).abs() < 0.3, "{mean}");
    assert!((sd - 10.0).abs() < 0.3, "{sd}");
    assert_eq!(many("image_noise_gauss", &[1, 2], &[3, 250], &[real(0.0)], &[1])[0].1, [3, 250]);
}

#[test]
fn random_resized_crops_keep_flat_images_and_survive_thin_ones() {
    let draw: Vec<u64> = (0..200).map(forebay_core::random::mix64).collect();
    for shape in [[40, 30], [1, 200], [200, 1]] {
        let flat = vec![9_u8; shape[0] * shape[1]];
        for (size, out) in many("image_crop_random_resized", &shape, &flat, &[int(8), int(6)], &draw) {
            assert_eq!((size.as_slice(), out.iter().all(|v| *v == 9)), (&[8, 6][..], true));
        }
    }
    let whole =
        many("image_crop_random_resized", &[4, 4], &gradient(4, 4), &[int(4), int(4), real(1.0), real(1.0), real(1.0), real(1.0)], &draw);
    assert!(whole.iter().all(|w| w.1 == gradient(4, 4)), "scale 1 and ratio 1 are the whole image");
}
