//! Requests that can't be answered yet.

use forebay_core::Result;
use forebay_core::dispatch::{Event, Reply};
use forebay_core::ids::JobName;
use std::collections::{BTreeMap, VecDeque};
use tokio::sync::oneshot;
use tokio::time::Instant;

/// A request with its caller.
#[derive(Debug)]
pub(super) struct Request {
    pub event: Event,
    pub reply: oneshot::Sender<Result<Reply>>,
    /// When "nothing" is an answer.
    pub until: Option<Instant>,
    /// The worker that asks lives in this process.
    pub attach: bool,
}

/// Who waits for tasks, and who for grants of which job, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    tasks: VecDeque<Request>,
    grants: BTreeMap<JobName, VecDeque<Request>>,
}

impl Waiting {
    pub(super) fn park(&mut self, request: Request) {
        match &request.event {
            Event::NextGrant { job, .. } => self.grants.entry(job.clone()).or_default().push_back(request),
            _ => self.tasks.push_back(request),
        }
    }

    pub(super) fn take_tasks(&mut self) -> Vec<Request> {
        self.tasks.drain(..).collect()
    }

    pub(super) fn take_grants(&mut self, job: &JobName) -> Vec<Request> {
        self.grants.remove(job).map(Vec::from).unwrap_or_default()
    }

    /// Requests whose time is up; those whose caller went away are forgotten.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Request> {
        let mut expired = Vec::new();
        self.grants.retain(|_, waiting| {
            waiting.retain(|r| !r.reply.is_closed());
            !waiting.is_empty()
        });
        for request in self.take_tasks() {
            if request.until.is_some_and(|until| until <= now) {
                expired.push(request);
            } else if !request.reply.is_closed() {
                self.tasks.push_back(request);
            }
        }
        expired
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.tasks.iter().filter_map(|r| r.until).min()
    }

    pub(super) fn take_all(&mut self) -> Vec<Request> {
        let mut all = self.take_tasks();
        all.extend(std::mem::take(&mut self.grants).into_values().flatten());
        all
    }
}
