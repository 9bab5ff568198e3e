//! What consumers say beside their streams: acknowledgements, reports of lost streams, commits, restores.

use std::time::Duration;

use forebay_core::dispatch::Token;
use forebay_core::ids::{BatchId, ConsumerName, Incarnation, JobName, PassId, Session};
use forebay_core::{Error, Result};
use forebay_flight::api::{AckRequest, CommitAnswer, CommitRequest, LeaveRequest, PassBatches, ReportRequest, RestoreRequest};
use serde_json::{Value, json};

use super::Engine;
use super::jobs::Asked;
use crate::dispatcher::Member;

/// The longest that one call waits for other consumers: whatever lies between may cut idle connections.
const LONGEST: Duration = Duration::from_secs(60);

fn in_passes<T>(taken: Vec<PassBatches>, each: impl Fn(u64) -> T) -> Vec<(PassId, Vec<T>)> {
    taken.into_iter().map(|of| (PassId(of.pass), of.batches.into_iter().map(&each).collect())).collect()
}

impl Engine {
    async fn member(&self, job: &str, incarnation: Option<u32>, consumer: String, session: Option<u64>) -> Result<Member> {
        let job = JobName::parse(job)?;
        let incarnation = match incarnation {
            Some(number) => Incarnation(number),
            None => {
                let info = self.dispatcher()?.job_status(&job).await?;
                info.ok_or_else(|| Error::not_found(format!("there is no job `{job}`")))?.incarnation
            }
        };
        Ok(Member { job, incarnation, consumer: ConsumerName(consumer), session: session.map(Session) })
    }

    /// `forebay.job.ack`: durable when it is answered.
    pub(crate) async fn job_ack(&self, request: AckRequest) -> Result<Value> {
        let AckRequest { job, consumer, incarnation, session, pass, batches, mut taken } = request;
        let of = self.member(&job, incarnation, consumer, session).await?;
        match pass {
            Some(pass) => taken.push(PassBatches { pass, batches }),
            None if !batches.is_empty() => {
                return Err(Error::bad_input("forebay.job.ack: `pass` is missing").with_remedy("say of which pass `batches` are"));
            }
            None => {}
        }
        if taken.is_empty() {
            taken.push(PassBatches { pass: 0, batches: Vec::new() });
        }
        let mut count = 0;
        for (pass, batches) in in_passes(taken, |b| (BatchId(b), None)) {
            count += self.dispatcher()?.acknowledge_new(&of, pass, batches).await?;
        }
        Ok(json!({ "job": of.job, "acknowledged": count }))
    }

    /// `forebay.job.report`.
    pub(crate) async fn job_report(&self, request: ReportRequest) -> Result<Value> {
        let ReportRequest { job, consumer, incarnation, session, number, received } = request;
        let of = self.member(&job, incarnation, consumer, session).await?;
        self.dispatcher()?.report(&of, number, None, in_passes(received, BatchId)).await?;
        Ok(json!({ "job": of.job, "number": number }))
    }

    /// `forebay.job.leave`.
    pub(crate) async fn job_leave(&self, request: LeaveRequest) -> Result<Value> {
        let LeaveRequest { job, consumer, incarnation, session } = request;
        let of = self.member(&job, incarnation, consumer, session).await?;
        let info = self.dispatcher()?.job_status(&of.job).await?;
        // Whoever was replaced by a restore has left already.
        if info.is_some_and(|info| info.incarnation == of.incarnation) {
            self.dispatcher()?.leave_job(&of.job, &of.consumer, of.session).await?;
        }
        Ok(json!({ "job": of.job }))
    }

    /// `forebay.job.commit`.
    pub(crate) async fn job_commit(&self, request: CommitRequest) -> Result<CommitAnswer> {
        let CommitRequest { job, consumer, incarnation, session, call, taken, wait_ms } = request;
        let of = self.member(&job, incarnation, consumer, session).await?;
        let wait = Duration::from_millis(wait_ms).min(LONGEST);
        let token = self.dispatcher()?.commit(&of, call, in_passes(taken, |b| (BatchId(b), None)), wait).await?;
        let token = token.map(serde_json::to_value).transpose();
        let token = token.map_err(|e| Error::internal(format!("a token could not be written: {e}")))?;
        Ok(CommitAnswer { complete: token.is_some(), token })
    }

    /// `forebay.job.restore`: the consumer that the command names takes part in what goes on from there.
    pub(crate) async fn job_restore(&self, request: RestoreRequest) -> Result<Value> {
        let token: Token = serde_json::from_value(request.token).map_err(|_| {
            Error::bad_input("forebay.job.restore: `token` is not one of a commit").with_remedy("give what `commit` or `state_dict` gave")
        })?;
        let Asked { settings, consumer, session } = self.resolve(&request.command.to_string()).await?;
        self.check_filter(&settings).await?;
        let opened = self.dispatcher()?.restore(settings, consumer, session, token, request.attempt).await?;
        Ok(json!({ "job": opened.job, "incarnation": opened.incarnation, "pass": opened.pass }))
    }
}
