//! What decisions ask for, done in tasks of its own and reported back as events.

use forebay_core::dispatch::{Action, CommitOutcome, Event};
use forebay_storage::ledger;
use forebay_storage::root::Root;
use std::sync::Arc;
use tokio::sync::mpsc;

use super::shell::{Message, Pulse};
use super::{Planner, ledger_row};
use crate::crash;

/// What the work is done with.
#[derive(Debug, Clone)]
pub(super) struct Doer {
    pub root: Root,
    pub planner: Arc<dyn Planner>,
    pub pulse: Pulse,
    pub inbox: mpsc::WeakSender<Message>,
}

impl Doer {
    /// Starts the work of an action; those that are only news return at once.
    pub(super) fn start(&self, action: Action) {
        if matches!(action, Action::TasksChanged | Action::RunChanged(_) | Action::JobChanged(_)) {
            return;
        }
        let doer = self.clone();
        tokio::spawn(async move {
            let Some(event) = doer.run(action).await else { return };
            // A dispatcher that ended meanwhile has nothing to hear: its successor finds the work in the journal.
            if let Some(inbox) = doer.inbox.upgrade() {
                let _ = inbox.send(Message::Tell(event)).await;
            }
        });
    }

    async fn run(&self, action: Action) -> Option<Event> {
        match action {
            Action::PrepareCommit(request) => {
                let body = self.planner.commit_body(&request).await;
                Some(Event::CommitPrepared { dataset: request.spec.dataset.clone(), run: request.run, epoch: request.epoch, body })
            }
            Action::Commit { dataset, run, epoch, version, body } => {
                crash::point("after-publishing-entry");
                // The Delta log has no fence of its own: an owner that stood still meanwhile and was replaced must not touch it.
                let outcome = match self.pulse.beat().await {
                    Ok(()) => self.planner.commit_at(&dataset, version, &body).await,
                    Err(error) => Err(error.context("the lead could not be confirmed before a commit")),
                };
                match &outcome {
                    Ok(CommitOutcome::Ours) => {
                        crash::point("after-commit");
                        self.planner.published(&dataset, version);
                    }
                    Ok(CommitOutcome::Foreign) => {
                        tracing::warn!(%dataset, %epoch, %version, "another writer took this version; the epoch is published at a later one");
                    }
                    Err(error) => tracing::warn!(%dataset, %epoch, %version, %error, "a commit is in doubt and is tried again"),
                }
                Some(Event::CommitDone { dataset, run, epoch, version, outcome })
            }
            Action::ShapePass { job, incarnation, pass, settings, epochs } => {
                let answer = self.planner.pass_shape(&settings, pass, &epochs).await;
                Some(Event::PassShaped { job, incarnation, pass, answer })
            }
            Action::WriteLedger { job, incarnation, number, windows, rows } => {
                let rows = rows.into_iter().map(ledger_row).collect();
                let result = ledger::append_all(&self.root, &job, rows).await;
                if let Err(error) = &result {
                    tracing::warn!(%job, %error, "closed visits could not be written to the ledger; they stay in the journal");
                }
                Some(Event::LedgerWritten { job, incarnation, number, windows, result })
            }
            Action::TasksChanged | Action::RunChanged(_) | Action::JobChanged(_) => None,
        }
    }
}
