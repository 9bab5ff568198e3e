//! Finding the rows that fail alone.

use std::future::Future;

use arrow::compute::concat_batches;
use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use forebay_core::source::BadRow;
use forebay_core::{Error, Kind, Result};

use super::{StepOutput, keys};

/// Whether an error may be a row's fault. What the caller or the machine did isn't.
fn may_be_a_row(error: &Error) -> bool {
    !matches!(error.kind, Kind::Cancelled | Kind::Unavailable | Kind::PermissionDenied | Kind::Unauthenticated | Kind::Corrupt)
}

/// Runs `work` on the batch; when it fails, on its halves, down to single rows, whose errors become bad rows. A good batch costs one call; one
/// bad row among n about `2 log n`. Stops after `max_bad` bad rows. Output is in input order.
pub(super) async fn bisect<F, Fut>(step: &str, input: Vec<RecordBatch>, schema: &SchemaRef, max_bad: usize, work: F) -> Result<StepOutput>
where
    F: Fn(RecordBatch) -> Fut,
    Fut: Future<Output = Result<RecordBatch>>,
{
    let mut todo: Vec<RecordBatch> = input.into_iter().rev().collect();
    let mut done = Vec::with_capacity(todo.len());
    let mut bad = Vec::new();
    while let Some(batch) = todo.pop() {
        let rows = batch.num_rows();
        match work(batch.clone()).await {
            Ok(output) => done.push(output),
            Err(error) if rows == 0 || !may_be_a_row(&error) => return Err(error),
            Err(error) if rows == 1 => {
                bad.push(bad_row(step, &batch, &error));
                if bad.len() > max_bad {
                    break;
                }
            }
            Err(_) => {
                let half = rows / 2;
                todo.push(batch.slice(half, rows - half));
                todo.push(batch.slice(0, half));
            }
        }
    }
    let batch = match done.as_slice() {
        [one] => one.clone(),
        many => concat_batches(schema, many).map_err(|e| Error::new(Kind::ResourceExhausted, e.to_string()))?,
    };
    Ok(StepOutput { batch, bad })
}

fn bad_row(step: &str, batch: &RecordBatch, error: &Error) -> BadRow {
    let (id, part, source) = keys::describe(batch, 0);
    let place = part.map_or_else(String::new, |part| format!(" (_part {part})"));
    BadRow { id, source, message: format!("step `{step}`{place}: {error}") }
}
