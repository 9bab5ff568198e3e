//! Plans one pass over a billion rows in 100,000 row groups and prints what it costs in time and memory.
//!
//! `cargo run --release -p forebay-core --example plan_scale`

#![allow(clippy::disallowed_methods, reason = "a measurement needs a real clock")]

use forebay_core::ids::{BatchId, PassId};
use forebay_core::job::End;
use forebay_core::pipeline::Shuffle;
use forebay_core::plan::{Plan, PlanRowGroup, PlanSettings};
use std::time::Instant;

const GROUPS: usize = 100_000;
const ROWS: u64 = 10_000;

fn main() -> forebay_core::Result<()> {
    let groups = vec![PlanRowGroup { rows: ROWS, bytes: 8 << 20 }; GROUPS];
    let settings = PlanSettings {
        seed: 1,
        pass: PassId(0),
        batch_size: 256,
        window_bytes: 256 << 20,
        shuffle: Shuffle::Window,
        round_size: 1,
        end: End::Short,
    };
    let resident_before = resident();
    let started = Instant::now();
    let plan = Plan::new(&groups, None, settings)?;
    let planned = started.elapsed();

    println!("rows            {:>14}", plan.rows());
    println!("row groups      {:>14}", groups.len());
    println!("windows         {:>14}  of {} rows", plan.windows(), plan.window_rows());
    println!("batches         {:>14}", plan.batches());
    println!("planning        {:>11.3} ms", planned.as_secs_f64() * 1e3);
    println!("plan            {:>11.3} MB", plan.memory() as f64 / 1e6);
    println!("its input       {:>11.3} MB", (groups.len() * size_of::<PlanRowGroup>()) as f64 / 1e6);
    if let (Some(before), Some(after)) = (resident_before, resident()) {
        println!("resident growth {:>11.3} MB", after.saturating_sub(before) as f64 / 1e6);
    }

    let started = Instant::now();
    let mut pieces = 0;
    for batch in (0..plan.batches()).step_by(1_000) {
        pieces += plan.window(plan.window_of(BatchId(batch))).pieces.len();
    }
    let looked_up = plan.batches().div_ceil(1_000);
    println!(
        "finding a window's pieces {:>8.3} us  ({} pieces)",
        started.elapsed().as_secs_f64() * 1e6 / looked_up as f64,
        pieces as u64 / looked_up
    );

    let started = Instant::now();
    let order = plan.window_order(plan.window_of(BatchId(plan.batches() / 2)));
    println!("ordering a window         {:>8.3} ms  ({} rows)", started.elapsed().as_secs_f64() * 1e3, order.len());
    Ok(())
}

/// Resident bytes of this process, where the system tells (Linux).
fn resident() -> Option<u64> {
    let status = std::fs::read_to_string("/proc/self/status").ok()?;
    let line = status.lines().find(|line| line.starts_with("VmRSS:"))?;
    Some(line.split_whitespace().nth(1)?.parse::<u64>().ok()? * 1024)
}
