//! The worker's materializing half: takes tasks from the dispatcher, runs the steps, writes shards and reports them.
//!
//! Owns: how many tasks run at once, what a task's rows go through, and that an abandoned task leaves nothing that a log names. Must not
//! know: when an epoch is published, who else works on it.

mod rows;
pub(crate) mod split;
pub(crate) mod task;

use std::sync::Arc;
use std::time::Duration;

use forebay_core::ids::WorkerName;
use forebay_sql::python::PythonPool;
use forebay_storage::root::Root;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::dispatcher::Dispatcher;
use crate::metrics::Metrics;

/// How long one request for work waits at the dispatcher before it is made again.
const WAIT: Duration = Duration::from_secs(10);
/// Pause after a failed request for work.
const PAUSE: Duration = Duration::from_millis(500);

/// What the tasks of one process share.
#[derive(Debug, Clone)]
pub(crate) struct Worker {
    pub(crate) name: WorkerName,
    pub(crate) root: Root,
    pub(crate) dispatcher: Dispatcher,
    pub(crate) python: Arc<PythonPool>,
    pub(crate) metrics: Metrics,
    pub(crate) runs: Arc<task::Runs>,
}

impl Worker {
    pub(crate) fn new(
        name: WorkerName,
        root: Root,
        dispatcher: Dispatcher,
        python: Arc<PythonPool>,
        metrics: Metrics,
        runs: Arc<task::Runs>,
    ) -> Self {
        Self { name, root, dispatcher, python, metrics, runs }
    }

    /// Takes tasks until `stop`, at most `slots` at once; tasks under way are given up then, and leave nothing.
    pub(crate) async fn run(self, slots: usize, stop: CancellationToken) {
        let mut tasks = JoinSet::new();
        loop {
            while tasks.len() >= slots.max(1) {
                tokio::select! {
                    _ = tasks.join_next() => {}
                    () = stop.cancelled() => break,
                }
            }
            let lease = tokio::select! {
                lease = self.dispatcher.next_task(&self.name, WAIT) => lease,
                () = stop.cancelled() => break,
            };
            match lease {
                Ok(Some(lease)) => {
                    let (worker, stop) = (self.clone(), stop.clone());
                    tasks.spawn(async move { worker.run_task(lease, stop).await });
                }
                Ok(None) => {}
                Err(error) => {
                    tracing::debug!(%error, "no task could be asked for");
                    tokio::select! {
                        () = tokio::time::sleep(PAUSE) => {}
                        () = stop.cancelled() => break,
                    }
                }
            }
        }
        while tasks.join_next().await.is_some() {}
    }
}
