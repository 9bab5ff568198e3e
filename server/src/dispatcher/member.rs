//! A consumer as it names itself in its calls.

use forebay_core::dispatch::{Event, OpenedJob};
use forebay_core::ids::{ConsumerName, Incarnation, JobName, Session};

/// A consumer that takes part in a job's incarnation, and which of its processes speaks: the dispatcher refuses older ones.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Member {
    pub job: JobName,
    pub incarnation: Incarnation,
    pub consumer: ConsumerName,
    /// None where the client does not say; then any process under the name is taken for it.
    pub session: Option<Session>,
}

impl Member {
    /// A consumer that joined, without a word on its process.
    pub fn of(opened: &OpenedJob, consumer: &str) -> Self {
        Self { job: opened.job.clone(), incarnation: opened.incarnation, consumer: ConsumerName(consumer.to_owned()), session: None }
    }

    /// The event as this process's own.
    pub(super) fn says(&self, event: Event) -> Event {
        of_session(self.session, event)
    }
}

/// The event as that process's own, where one is named.
pub(super) fn of_session(session: Option<Session>, event: Event) -> Event {
    match session {
        Some(session) => Event::OfSession { session, event: Box::new(event) },
        None => event,
    }
}
