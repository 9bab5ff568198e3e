//! Running queries: threads, turns, deadlines, and stopping.
//!
//! Queries run on threads that serve nothing else, so that an operator that doesn't yield holds up queries and never the server's streams.

use std::num::NonZeroUsize;
use std::sync::Arc;
use std::time::Duration;

use arrow::datatypes::SchemaRef;
use arrow::record_batch::RecordBatch;
use datafusion::error::DataFusionError;
use datafusion::execution::TaskContext;
use datafusion::physical_plan::{ExecutionPlan, execute_stream};
use forebay_core::{Error, Kind, Result};
use futures::{StreamExt, stream};
use tokio::runtime::{Builder, Handle, Runtime};
use tokio::sync::{Semaphore, mpsc};
use tokio::task::JoinHandle;
use tokio::time::Instant;

use super::QueryStream;
use super::limits::QueryLimits;
use super::output::plain;
use super::request::Request;
use crate::distributed::{Attempts, Verdict};
use crate::functions::capped::{begin_planning, end_planning};
use crate::guard::{on_big_stack, to_error};

/// Evaluating an expression recurses once per operator; the limit on operators was chosen with this.
const STACK: usize = 32 << 20;

/// Batches that a query may be ahead of its reader.
const AHEAD: usize = 2;

/// Queries that may wait for each one that may run; more are refused at once.
const WAITING: usize = 16;

/// Planning that takes longer is not waited for. Its thread can't be stopped, so it keeps its turn until it is done.
const PLANNING: Duration = Duration::from_secs(60);

/// Time after its deadline in which a query ends by itself. One that doesn't yield is left behind.
const GRACE: Duration = Duration::from_secs(2);

pub(super) struct Runner {
    runtime: Option<Runtime>,
    turns: Arc<Semaphore>,
    /// Those that run or wait.
    places: Arc<Semaphore>,
    planning: Arc<Semaphore>,
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
        let of = |n: usize| Arc::new(Semaphore::new(n));
        let turns = limits.concurrent.max(1);
        Ok(Self {
            runtime: Some(runtime),
            turns: of(turns),
            places: of(turns.saturating_mul(WAITING + 1).min(Semaphore::MAX_PERMITS)),
            planning: of(turns),
            deadline: limits.deadline,
            rows: limits.rows,
        })
    }

    /// The threads that queries run on.
    pub(super) fn threads(&self) -> Result<Handle> {
        self.runtime.as_ref().map(|runtime| runtime.handle().clone()).ok_or_else(shutting_down)
    }

    /// Plans on a thread of its own. Plans that don't end hold up only as many others as may run at the same time.
    pub(super) async fn plan<T: Send + 'static>(&self, work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
        let planning = self.planning.clone();
        let limit = self.deadline.map_or(PLANNING, |deadline| deadline.min(PLANNING));
        let planned = async move {
            let turn = planning.acquire_owned().await.map_err(|_| shutting_down())?;
            on_big_stack(move || {
                let _turn = turn;
                begin_planning();
                let planned = work();
                end_planning()?;
                planned
            })
            .await
        };
        tokio::time::timeout(limit, planned).await.unwrap_or_else(|_| {
            Err(Error::new(Kind::ResourceExhausted, format!("planning the query took longer than {} s", limit.as_secs_f64()))
                .with_remedy("ask something simpler"))
        })
    }

    /// Spawns on the query threads; the handle aborts the work when dropped.
    pub(super) fn spawn<T: Send + 'static>(&self, work: impl Future<Output = Result<T>> + Send + 'static) -> Result<Work<T>> {
        self.spawn_within(self.deadline, work)
    }

    fn spawn_within<T: Send + 'static>(
        &self,
        deadline: Option<Duration>,
        work: impl Future<Output = Result<T>> + Send + 'static,
    ) -> Result<Work<T>> {
        let Some(runtime) = &self.runtime else { return Err(shutting_down()) };
        let place = self.places.clone().try_acquire_owned().map_err(|_| {
            Error::new(Kind::ResourceExhausted, "too many queries are waiting for their turn").with_remedy("ask again later")
        })?;
        let turns = self.turns.clone();
        Ok(Work(runtime.spawn(async move {
            let _place = place;
            let turn = async move {
                let _turn = turns.acquire_owned().await.map_err(|_| shutting_down())?;
                work.await
            };
            match deadline {
                None => turn.await,
                Some(deadline) => tokio::time::timeout(deadline, turn).await.unwrap_or_else(|_| Err(overdue(deadline))),
            }
        })))
    }

    /// Runs a plan within the limits of the catalog, or those of the request where they are tighter.
    pub(super) fn run(
        &self,
        plan: Arc<dyn ExecutionPlan>,
        context: Arc<TaskContext>,
        schema: SchemaRef,
        attempts: Option<Attempts>,
        request: &Request,
    ) -> QueryStream {
        let (send, receive) = mpsc::channel(AHEAD);
        let rows = [self.rows.filter(|_| !request.unlimited), request.rows].into_iter().flatten().min();
        let deadline = [self.deadline, request.deadline].into_iter().flatten().min();
        let columns = schema.clone();
        let work = self.spawn_within(deadline, async move { pump(plan, context, columns, rows, attempts, send).await });
        let stream = match work {
            Err(error) => stream::once(async move { Err(error) }).boxed(),
            Ok(work) => {
                let ends = deadline.map(|deadline| (deadline, Instant::now() + deadline + GRACE));
                stream::unfold(Some(Rows { receive, work, ends }), next).boxed()
            }
        };
        QueryStream { schema, stream }
    }
}

fn shutting_down() -> Error {
    Error::new(Kind::Unavailable, "queries are shutting down")
}

fn overdue(deadline: Duration) -> Error {
    Error::new(Kind::ResourceExhausted, format!("the query was stopped after its deadline of {} s", deadline.as_secs_f64()))
        .with_remedy("ask for less, or raise query.timeout")
}

/// What a reader holds of a running query.
struct Rows {
    receive: mpsc::Receiver<RecordBatch>,
    work: Work<()>,
    /// The deadline, and the time after which nothing more is expected.
    ends: Option<(Duration, Instant)>,
}

/// The next batch; after the last one, how the work ended.
async fn next(state: Option<Rows>) -> Option<(Result<RecordBatch>, Option<Rows>)> {
    let mut rows = state?;
    let batch = match rows.ends {
        None => rows.receive.recv().await,
        Some((deadline, latest)) => match tokio::time::timeout_at(latest, rows.receive.recv()).await {
            Ok(batch) => batch,
            Err(_) => return Some((Err(overdue(deadline)), None)),
        },
    };
    if let Some(batch) = batch {
        return Some((Ok(batch), Some(rows)));
    }
    rows.work.finish().await.err().map(|error| (Err(error), None))
}

/// Moves batches from the plan to the reader until either ends. A reader that is gone ends it too. A plan that lost a worker before its first
/// batch begins anew.
async fn pump(
    mut plan: Arc<dyn ExecutionPlan>,
    mut context: Arc<TaskContext>,
    schema: SchemaRef,
    limit: Option<u64>,
    mut attempts: Option<Attempts>,
    send: mpsc::Sender<RecordBatch>,
) -> Result<()> {
    let mut rows = 0;
    loop {
        let error = match forward(plan, context, &schema, limit, &mut rows, &send).await? {
            None => return Ok(()),
            Some(error) => error,
        };
        let Some(attempts) = attempts.as_mut().filter(|a| a.is_divided()) else { return Err(to_error(error)) };
        match attempts.after(error, rows > 0).await {
            Verdict::Again(next, with) => (plan, context) = (next, with),
            Verdict::Failed(error) => return Err(error),
        }
    }
}

/// Runs one plan; gives the error that it ended with, if it did.
async fn forward(
    plan: Arc<dyn ExecutionPlan>,
    context: Arc<TaskContext>,
    schema: &SchemaRef,
    limit: Option<u64>,
    rows: &mut u64,
    send: &mpsc::Sender<RecordBatch>,
) -> Result<Option<DataFusionError>> {
    let mut batches = match execute_stream(plan, context) {
        Ok(batches) => batches,
        Err(error) => return Ok(Some(error)),
    };
    while let Some(batch) = batches.next().await {
        let batch = match batch {
            Ok(batch) => plain(&batch, schema)?,
            Err(error) => return Ok(Some(error)),
        };
        *rows += batch.num_rows() as u64;
        if let Some(limit) = limit.filter(|limit| *rows > *limit) {
            return Err(Error::new(Kind::ResourceExhausted, format!("the answer has more than {limit} rows"))
                .with_remedy("add a LIMIT, or aggregate"));
        }
        if send.send(batch).await.is_err() {
            break;
        }
    }
    Ok(None)
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
