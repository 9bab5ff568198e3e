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

/// The job whose changes may answer a request: it waits for a grant, or for a commit.
fn job_of(event: &Event) -> Option<&JobName> {
    match event {
        Event::NextGrant { job, .. } | Event::Commit { job, .. } => Some(job),
        Event::OfSession { event, .. } => job_of(event),
        _ => None,
    }
}

/// Whether a request may be told to wait.
pub(super) fn may_wait(event: &Event) -> bool {
    matches!(event, Event::NextTask { .. }) || job_of(event).is_some()
}

/// Who waits for tasks, and who for grants or commits of which job, in the order they came.
#[derive(Debug, Default)]
pub(super) struct Waiting {
    tasks: VecDeque<Request>,
    jobs: BTreeMap<JobName, VecDeque<Request>>,
}

impl Waiting {
    pub(super) fn park(&mut self, request: Request) {
        match job_of(&request.event) {
            Some(job) => self.jobs.entry(job.clone()).or_default().push_back(request),
            None => self.tasks.push_back(request),
        }
    }

    pub(super) fn take_tasks(&mut self) -> Vec<Request> {
        self.tasks.drain(..).collect()
    }

    pub(super) fn take_waiting_for(&mut self, job: &JobName) -> Vec<Request> {
        self.jobs.remove(job).map(Vec::from).unwrap_or_default()
    }

    /// Requests whose time is up; those whose caller went away are forgotten.
    pub(super) fn take_expired(&mut self, now: Instant) -> Vec<Request> {
        let mut expired = Vec::new();
        let mut keep = |waiting: &mut VecDeque<Request>| {
            for request in std::mem::take(waiting) {
                if request.until.is_some_and(|until| until <= now) {
                    expired.push(request);
                } else if !request.reply.is_closed() {
                    waiting.push_back(request);
                }
            }
        };
        keep(&mut self.tasks);
        self.jobs.retain(|_, waiting| {
            keep(waiting);
            !waiting.is_empty()
        });
        expired
    }

    pub(super) fn next_deadline(&self) -> Option<Instant> {
        self.tasks.iter().chain(self.jobs.values().flatten()).filter_map(|r| r.until).min()
    }

    pub(super) fn take_all(&mut self) -> Vec<Request> {
        let mut all = self.take_tasks();
        all.extend(std::mem::take(&mut self.jobs).into_values().flatten());
        all
    }
}
