//! Measures how well a pass is shuffled: how far rows travel from where they are stored, and how well batches mix the classes of input
//! that is sorted by class. Compared with a full shuffle and with a plain shuffle buffer of equal memory. `docs/shuffle.md` holds the results.
//!
//! `cargo run --release -p forebay-core --example shuffle_quality`

use forebay_core::ids::{PassId, WindowId};
use forebay_core::job::End;
use forebay_core::pipeline::Shuffle;
use forebay_core::plan::{Plan, PlanRowGroup, PlanSettings};
use forebay_core::random::{Rng, shuffle};

/// 1,000 row groups of 8 MiB, 1,000 rows each: 8 GB.
const GROUPS: u32 = 1_000;
const GROUP_ROWS: u32 = 1_000;
const GROUP_BYTES: u64 = 8 << 20;
const ROWS: u32 = GROUPS * GROUP_ROWS;
const BATCH: usize = 256;

/// What a trainer sees: storage positions in the order of delivery.
type Sequence = Vec<u32>;

fn main() -> forebay_core::Result<()> {
    println!("{ROWS} rows in {GROUPS} row groups of 8 MiB, sorted by class; batches of {BATCH}; means over passes 0..3");
    println!();
    println!(
        "| order | memory | rows travel | 10 classes: in a batch | distance | 1,000 classes: in a batch | distance | neighbours together |"
    );
    println!("|---|---:|---:|---:|---:|---:|---:|---:|");
    let mib = |bytes: u64| format!("{} MiB", bytes >> 20);
    row("storage order (`none`)", "-", |_| Ok((0..ROWS).collect()))?;
    row("`row_groups`", "-", |pass| planned(Shuffle::RowGroups, 256 << 20, pass))?;
    for window in [64 << 20, 256 << 20, 1 << 30] {
        let memory = mib(window);
        row("`window`", &memory, |pass| planned(Shuffle::Window, window, pass))?;
        let rows = (window / GROUP_BYTES) as usize * GROUP_ROWS as usize;
        row("shuffle buffer over storage order", &memory, |pass| Ok(buffered((0..ROWS).collect(), rows, pass)))?;
        row("shuffle buffer over shuffled row groups", &memory, |pass| {
            Ok(buffered(planned(Shuffle::RowGroups, window, pass)?, rows, pass))
        })?;
    }
    row("full shuffle", "8000 MiB", |pass| {
        let mut all: Sequence = (0..ROWS).collect();
        shuffle(&mut Rng::new(u64::from(pass)), &mut all);
        Ok(all)
    })?;
    Ok(())
}

fn planned(shuffle: Shuffle, window_bytes: u64, pass: u32) -> forebay_core::Result<Sequence> {
    let groups = vec![PlanRowGroup { rows: u64::from(GROUP_ROWS), bytes: GROUP_BYTES }; GROUPS as usize];
    let settings =
        PlanSettings { seed: 1, pass: PassId(pass), batch_size: BATCH as u64, window_bytes, shuffle, round_size: 1, end: End::Short };
    let plan = Plan::new(&groups, None, settings)?;
    let mut out = Vec::with_capacity(ROWS as usize);
    for window in (0..plan.windows()).map(WindowId) {
        let flat: Vec<u32> = plan
            .window(window)
            .pieces
            .iter()
            .flat_map(|p| (p.start..p.start + p.len).map(move |row| p.row_group * GROUP_ROWS + row as u32))
            .collect();
        out.extend(plan.window_order(window).into_iter().filter_map(|offset| flat.get(offset as usize)));
    }
    Ok(out)
}

/// The plain shuffle buffer: fill it, then hand out a random item and put the next one in its place.
fn buffered(input: Sequence, size: usize, pass: u32) -> Sequence {
    let mut rng = Rng::new(u64::from(pass) + 77);
    let mut out = Vec::with_capacity(input.len());
    let mut buffer: Vec<u32> = Vec::with_capacity(size);
    for item in input {
        if buffer.len() < size {
            buffer.push(item);
            continue;
        }
        let at = rng.below(size as u64) as usize;
        out.push(std::mem::replace(&mut buffer[at], item));
    }
    shuffle(&mut rng, &mut buffer);
    out.extend(buffer);
    out
}

#[derive(Default)]
struct Quality {
    travel: f64,
    classes: [f64; 2],
    distance: [f64; 2],
    together: f64,
}

fn row(name: &str, memory: &str, sequence: impl Fn(u32) -> forebay_core::Result<Sequence>) -> forebay_core::Result<()> {
    const PASSES: u32 = 3;
    let mut mean = Quality::default();
    for pass in 0..PASSES {
        let one = measure(&sequence(pass)?);
        let n = f64::from(PASSES);
        mean.travel += one.travel / n;
        mean.together += one.together / n;
        for i in 0..2 {
            mean.classes[i] += one.classes[i] / n;
            mean.distance[i] += one.distance[i] / n;
        }
    }
    println!(
        "| {name} | {memory} | {:.1} % | {:.1} | {:.2} | {:.1} | {:.2} | {:.3} % |",
        mean.travel * 100.0,
        mean.classes[0],
        mean.distance[0],
        mean.classes[1],
        mean.distance[1],
        mean.together * 100.0,
    );
    Ok(())
}

fn measure(sequence: &[u32]) -> Quality {
    let travel: f64 = sequence.iter().zip(0u32..).map(|(stored, at)| f64::from(stored.abs_diff(at))).sum();
    let mut quality = Quality { travel: travel / f64::from(ROWS).powi(2), ..Quality::default() };
    for (i, classes) in [10, 1_000].into_iter().enumerate() {
        (quality.classes[i], quality.distance[i]) = mixture(sequence, classes);
    }
    let mut batch_of = vec![0; ROWS as usize];
    for (at, stored) in sequence.iter().enumerate() {
        batch_of[*stored as usize] = at / BATCH;
    }
    let together = batch_of.windows(2).filter(|pair| pair[0] == pair[1]).count();
    quality.together = together as f64 / f64::from(ROWS - 1);
    quality
}

/// Classes seen in a batch, and the distance of its class shares from those of the whole (total variation: 0 the same, 1 disjoint).
fn mixture(sequence: &[u32], classes: u32) -> (f64, f64) {
    let per_class = ROWS / classes;
    let mut seen = 0.0;
    let mut distance = 0.0;
    let mut batches = 0.0;
    for batch in sequence.chunks_exact(BATCH) {
        let mut counts = vec![0u32; classes as usize];
        for stored in batch {
            counts[(stored / per_class) as usize] += 1;
        }
        seen += counts.iter().filter(|n| **n > 0).count() as f64;
        distance += counts.iter().map(|n| (f64::from(*n) / BATCH as f64 - 1.0 / f64::from(classes)).abs()).sum::<f64>() / 2.0;
        batches += 1.0;
    }
    (seen / batches, distance / batches)
}
