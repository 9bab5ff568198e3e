//! Running queries: threads, turns, deadlines, and stopping.
//!
//! Queries run on threads that serve nothing else, so that an operator that doesn't yield holds up queries and never the server's streams.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use forebay_core::{Error, Kind, Result};
use futures::{StreamExt, stream};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;

use super::QueryStream;
use super::limits::QueryLimits;
use super::output::plain;
use crate::guard::to_error;

/// Evaluating an expression recurses once per operator; the limit on operators was chosen with this.
const STACK: usize = 32 << 20;

/// Batches that a query may be ahead of its reader.
const AHEAD: usize = 2;

pub(super) struct Runner {
    runtime: Option<Runtime>,
    turns: Arc<Semaphore>,
    deadline: Option<Duration>,
    rows: Option<u64>,
}

impl Drop for Runner {
    fn drop(&mut self) {
        // Waiting for threads is not allowed where a runtime may be dropped, and nothing is owed to queries whose catalog is gone.
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

impl Runner {
    pub(super) fn new(limits: &QueryLimits) -> Result<Self> {
        let threads = NonZeroUsize::new(limits.threads).map_or(1, NonZeroUsize::get);
        let runtime = Builder::new_multi_thread()
            .worker_threads(threads)
            .thread_stack_size(STACK)
            .thread_name("forebay-query")
            .enable_all()
            .build()
            .map_err(|e| Error::new(Kind::ResourceExhausted, format!("no threads to run queries on: {e}")))?;
        let turns = Arc::new(Semaphore::new(limits.concurrent.max(1)));
        Ok(Self { runtime: Some(runtime), turns, deadline: limits.deadline, rows: limits.rows })
    }

    /// Spawns on the query threads; the handle aborts the work when dropped.
    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<Work<T>> {
        let Some(runtime) = &self.runtime else { return Err(Error::new(Kind::Unavailable, "queries are shutting down")) };
        let (turns, deadline) = (self.turns.clone(), self.deadline);
        Ok(Work(runtime.spawn(async move {
            let turn = async move {
                let _turn = turns.acquire_owned().await.map_err(|_| Error::new(Kind::Unavailable, "queries are shutting down"))?;
                work.await
            };
            match deadline {
                None => turn.await,
                Some(deadline) => tokio::time::timeout(deadline, turn).await.unwrap_or_else(|_| Err(overdue(deadline))),
            }
        })))
    }

    pub(super) fn run(&self, plan: Arc<dyn ExecutionPlan>, context: Arc<TaskContext>, schema: SchemaRef) -> QueryStream {
        let (send, receive) = mpsc::channel(AHEAD);
        let rows = self.rows;
        let columns = schema.clone();
        let work = self.spawn(async move { pump(plan, context, columns, rows, send).await });
        let stream = match work {
            Err(error) => stream::once(async move { Err(error) }).boxed(),
            Ok(work) => stream::unfold(Some((receive, work)), next).boxed(),
        };
        QueryStream { schema, stream }
    }
}

fn overdue(deadline: Duration) -> Error {
    Error::new(Kind::ResourceExhausted, format!("the query was stopped after its deadline of {} s", deadline.as_secs_f64()))
}

/// The next batch; after the last one, how the work ended.
async fn next(
    state: Option<(mpsc::Receiver<RecordBatch>, Work<()>)>,
) -> Option<(Result<RecordBatch>, Option<(mpsc::Receiver<RecordBatch>, Work<()>)>)> {
    let (mut receive, work) = state?;
    if let Some(batch) = receive.recv().await {
        return Some((Ok(batch), Some((receive, work))));
    }
    work.finish().await.err().map(|error| (Err(error), None))
}

/// Moves batches from the plan to the reader until either ends. A reader that is gone ends it too.
async fn pump(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    schema: SchemaRef,
    limit: Option<u64>,
    send: mpsc::Sender<RecordBatch>,
) -> Result<()> {
    let mut batches = execute_stream(plan, context).map_err(to_error)?;
    let mut rows = 0;
    while let Some(batch) = batches.next().await {
        let batch = plain(&batch.map_err(to_error)?, &schema)?;
        rows += batch.num_rows() as u64;
        if let Some(limit) = limit.filter(|limit| rows > *limit) {
            return Err(Error::new(Kind::ResourceExhausted, format!("the answer has more than {limit} rows"))
                .with_remedy("add a LIMIT, or aggregate"));
        }
        if send.send(batch).await.is_err() {
            break;
        }
    }
    Ok(())
}

/// Work on the query threads, aborted when dropped.
pub(super) struct Work<T>(JoinHandle<Result<T>>);

impl<T> Work<T> {
    pub(super) async fn finish(mut self) -> Result<T> {
        (&mut self.0).await.unwrap_or_else(|e| match e.try_into_panic() {
            Ok(panic) => {
                let text = panic.downcast_ref::<&str>().map(|s| (*s).to_owned()).or_else(|| panic.downcast_ref::<String>().cloned());
                Err(Error::internal(format!("a query panicked: {}", text.unwrap_or_else(|| "without a message".into()))))
            }
            Err(_) => Err(Error::new(Kind::Cancelled, "the query was stopped")),
        })
    }
}

impl<T> Drop for Work<T> {
    fn drop(&mut self) {
        self.0.abort();
    }
}
