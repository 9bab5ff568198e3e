//! `forebay.materialize`: a checked run, followed to its end.

use std::sync::Arc;

use forebay_core::dispatch::{RunState, RunStatus};
use forebay_core::ids::DatasetName;
use forebay_core::{Error, Result};
use forebay_flight::api::{MaterializeProgress, MaterializeRequest};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use serde::Deserialize;
use serde_json::Value;
use tokio::sync::watch;

use super::Engine;
use super::prepare::Prepared;
use crate::worker::task::fit_split;

/// `forebay.cancel`: ends a run; what it staged stays for `--resume`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct CancelRequest {
    dataset: String,
}

impl Engine {
    /// Checks and starts a run, then streams its progress; with `wait = false` one message says that it was accepted.
    pub(crate) async fn materialize(self: Arc<Self>, request: MaterializeRequest) -> Result<BoxStream<'static, Result<Value>>> {
        let wait = request.wait;
        let prepared = self.prepare(&request).await?;
        let (first, changes) = self.begin(prepared).await?;
        if !wait || ended(&first) {
            return Ok(stream::iter([progress_json(&first)]).boxed());
        }
        Ok(follow(first, changes).boxed())
    }

    /// Makes the artefacts that tasks need, then hands the run to the dispatcher.
    async fn begin(&self, prepared: Prepared) -> Result<(RunStatus, watch::Receiver<RunStatus>)> {
        let Prepared { request, unfitted, name, held } = prepared;
        let spec = Arc::new(request.spec.clone());
        if unfitted {
            let (root, python, fitted) = (self.root().clone(), self.python().clone(), spec.clone());
            // Steps run on the worker's threads, not on those that answer calls.
            let fit = self.compute.spawn(async move { fit_split(&root, &python, &fitted).await });
            fit.await.map_err(|e| Error::internal(format!("fitting the split: {e}")))??;
        }
        let dispatcher = self.dispatcher()?;
        let status = dispatcher.start_run(request).await?;
        // The run has the name and the staged source from here on.
        drop((name, held));
        let changes = dispatcher.watch_run(&spec.dataset).await?;
        Ok((status, changes))
    }

    /// Runs to the end; for `DoPut`.
    pub(super) async fn run_to_end(&self, prepared: Prepared) -> Result<RunStatus> {
        let (mut status, mut changes) = self.begin(prepared).await?;
        while !ended(&status) {
            changes.changed().await.map_err(|_| Error::internal("the dispatcher stopped"))?;
            status = changes.borrow_and_update().clone();
        }
        Ok(status)
    }

    /// `forebay.cancel`.
    pub(crate) async fn cancel(&self, request: CancelRequest) -> Result<Value> {
        let name = DatasetName::parse(&request.dataset)?;
        self.dispatcher()?.cancel_run(&name).await?;
        Ok(serde_json::json!({ "cancelled": name }))
    }
}

fn ended(status: &RunStatus) -> bool {
    status.state != RunState::Running
}

/// One message per change; the one that ends the run is the last.
fn follow(first: RunStatus, changes: watch::Receiver<RunStatus>) -> impl futures::Stream<Item = Result<Value>> {
    stream::unfold(Some((Some(first), changes)), |state| async move {
        let (next, mut changes) = state?;
        let status = match next {
            Some(status) => status,
            None => {
                changes.changed().await.ok()?;
                changes.borrow_and_update().clone()
            }
        };
        let message = progress_json(&status);
        Some((message, (!ended(&status)).then_some((None, changes))))
    })
}

fn progress_json(status: &RunStatus) -> Result<Value> {
    let state = match status.state {
        RunState::Running => "running",
        RunState::Done => "done",
        RunState::AlreadyMaterialized => "already_materialized",
        RunState::Failed => "failed",
        RunState::Cancelled | RunState::Interrupted => "cancelled",
    };
    let progress = MaterializeProgress {
        dataset: status.dataset.0.clone(),
        state: state.to_owned(),
        epochs: status.epochs.iter().map(|e| e.0).collect(),
        published: status.published.iter().map(|e| e.0).collect(),
        tasks: status.progress.tasks,
        tasks_done: status.progress.tasks_done,
        rows: status.progress.rows,
        source_bytes: status.progress.source_bytes,
        source_bytes_done: status.progress.source_bytes_done,
        bytes: status.progress.bytes,
        quarantined: status.progress.quarantined,
        version: status.version.map(|v| v.0),
        error: status.error.clone(),
    };
    serde_json::to_value(progress).map_err(|e| Error::internal(format!("progress could not be written as JSON: {e}")))
}
