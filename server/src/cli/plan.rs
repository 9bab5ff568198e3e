//! `forebay plan`: the plan of a dataset or a job, or the rows of one batch.

use clap::Args;
use forebay_core::Error;
use forebay_flight::api::{PlanInfo, PlanRequest};

use super::args::{Connection, word};
use super::connect::{Access, with};
use super::output::{Outcome, Output, count};
use super::read::{ORDERS, SHUFFLES};

const EXAMPLES: &str = "\
Examples:
  forebay plan digits --root ./data                                  rows, windows and batches of pass 0
  forebay plan digits --batch-size 32 --seed 7 --step 31             the rows of step 31, before or after it was served
  forebay plan digits --job run1 --pass 2 --batch 12                 with the settings of a job
  forebay plan digits --order staged --batch 3                       what a job got that began while the epoch was being written

A plan depends on the dataset's version, the pass, the seed, the batch size, the window, the shuffle, the order and the filter, and on nothing else.";

/// Show a plan, or the rows of one of its batches
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct PlanArgs {
    /// A dataset, or a view that selects from one
    dataset: Option<String>,
    /// Take the settings of this job
    #[arg(long)]
    job: Option<String>,
    #[arg(long, value_name = "N", default_value_t = 0)]
    pass: u32,
    /// A version other than the newest
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    #[arg(long, value_name = "ROWS")]
    batch_size: Option<u64>,
    #[arg(long)]
    seed: Option<u64>,
    #[arg(long, value_parser = word(SHUFFLES))]
    shuffle: Option<String>,
    /// `staged`: as a job read that began before the epoch was published
    #[arg(long, value_parser = word(ORDERS))]
    order: Option<String>,
    /// Size of a window
    #[arg(long, value_name = "SIZE")]
    window: Option<String>,
    /// Only rows for which this holds
    #[arg(long, value_name = "SQL")]
    filter: Option<String>,
    /// Put rows of about one length together: a stored list, string, binary or integer column
    #[arg(long, value_name = "COLUMN")]
    bucket_by: Option<String>,
    #[arg(long, value_name = "N")]
    world_size: Option<u32>,
    /// Show the rows of this step
    #[arg(long, value_name = "S", conflicts_with = "batch")]
    step: Option<u64>,
    /// Show the rows of this batch
    #[arg(long, value_name = "B")]
    batch: Option<u64>,
    /// The consumer whose step it is
    #[arg(long, value_name = "NAME")]
    consumer: Option<String>,
}

pub(super) async fn run(connection: &Connection, args: PlanArgs, out: &Output) -> Outcome {
    if args.dataset.is_none() && args.job.is_none() {
        return Err(Error::bad_input("neither a dataset nor a job").with_remedy("write `forebay plan DATASET`, or give --job").into());
    }
    let request = PlanRequest {
        dataset: args.dataset,
        job: args.job,
        version: args.version,
        pass: args.pass,
        batch_size: args.batch_size,
        seed: args.seed,
        shuffle: args.shuffle,
        order: args.order,
        window: args.window,
        filter: args.filter,
        bucket_by: args.bucket_by,
        world_size: args.world_size,
        step: args.step,
        batch: args.batch,
        consumer: args.consumer,
    };
    let plan = with(connection, Access::Read, async |client| Ok(client.plan(&request).await?)).await?;
    if out.json { out.json(&plan) } else { show(&plan, out) }
}

fn show(plan: &PlanInfo, out: &Output) -> Outcome {
    let facts = [
        ("dataset", format!("{} ({})", plan.dataset, plan.version.map_or("being written".to_owned(), |v| format!("version {v}")))),
        ("pass", format!("{} (epoch {})", plan.pass, plan.epoch)),
        ("rows", format!("{} in {} row groups", count(plan.rows), count(plan.row_groups))),
        ("windows", format!("{} of {} rows", count(plan.windows), count(plan.window_rows))),
        ("batches", format!("{} of {} rows", count(plan.batches), count(plan.batch_size))),
        ("shuffle", format!("{}, seed {}, in {} order", plan.shuffle, plan.seed, plan.order)),
    ];
    for (name, value) in facts {
        out.line(format!("{name:<8} {value}"))?;
    }
    for batch in &plan.selected {
        out.line(format!(
            "\nbatch {} (window {}): {} rows, digest {}",
            batch.batch,
            batch.window,
            count(batch.ids.len() as u64),
            batch.digest
        ))?;
        let rows: Vec<Vec<String>> = batch
            .ids
            .iter()
            .enumerate()
            .map(|(i, id)| [vec![i.to_string(), id.to_string()], batch.parts.get(i).map(|p| p.to_string()).into_iter().collect()].concat())
            .collect();
        out.table(if batch.parts.is_empty() { &["row", "_id"] } else { &["row", "_id", "_part"] }, &rows)?;
    }
    Ok(())
}
