//! One consumer's stream of a job: from grants to batches.
//!
//! Owns: asking for grants in blocks that fit the consumer's speed, loading and reading ahead of windows, and what a batch's metadata says. Must
//! not know: how messages are cut, who else reads the job.
//!
//! A stream holds at most the window that it sends from and, where there is room, the next one; dropping the stream frees both.

use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Instant;

use arrow::datatypes::SchemaRef;
use async_trait::async_trait;
use forebay_core::digest;
use forebay_core::ids::{BatchId, PassId, WindowId};
use forebay_core::job::JobSettings;
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::{BatchMeta, ConsumerMessage, End};
use forebay_flight::backend::{BatchPart, JobControl, JobEvent, JobStream};
use tokio_util::task::AbortOnDropHandle;

use super::Serving;
use super::cache::Admission;
use super::making::{Making, MakingOf};
use super::pace::Pace;
use super::pass::PassPlan;
use super::report::{Reporter, StreamOf};
use super::served::Served;
use super::window::{WindowData, WindowHandle};
use crate::dispatcher::{Grant, Granted};

#[cfg(test)]
#[path = "stream_tests.rs"]
mod tests;

/// A block of granted batches, being sent.
struct Block {
    grant: Grant,
    left: Range<u64>,
    /// When its first batch was ready.
    since: Option<Instant>,
}

/// A window in use.
struct Open {
    window: WindowId,
    data: Arc<WindowData>,
    /// Another job read it too.
    shared: bool,
    /// Lets other streams of the job share it.
    _handle: WindowHandle,
}

/// The next window, being loaded.
struct Ahead {
    window: WindowId,
    handle: WindowHandle,
    _task: AbortOnDropHandle<()>,
}

/// How a stream is acknowledged.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Acks {
    /// On the stream itself (`DoExchange`).
    Stream,
    /// By `forebay.job.ack`, beside a `DoGet`.
    Action,
    /// Not at all: a clean end acknowledges what was sent.
    AtEnd,
}

pub(crate) struct ServedStream {
    serving: Arc<Serving>,
    settings: Arc<JobSettings>,
    of: StreamOf,
    acks: Acks,
    served: Arc<Served>,
    reporter: Reporter,
    control: Arc<Control>,
    pass: Option<Arc<PassPlan>>,
    block: Option<Block>,
    next_grant: Option<AbortOnDropHandle<Result<Granted>>>,
    /// Grants that came so far.
    received: u64,
    open: Option<Open>,
    ahead: Option<Ahead>,
    making: Making,
    pace: Pace,
    end: Option<End>,
    /// The worker's lease under which the stream was opened.
    hold: u64,
}

impl ServedStream {
    pub(super) fn new(serving: Arc<Serving>, settings: Arc<JobSettings>, of: StreamOf, acks: Acks, served: Arc<Served>) -> Self {
        let reporter = Reporter::start(serving.dispatcher.clone(), of.clone());
        serving.metrics.job_streams.inc();
        let hold = serving.dispatcher.hold();
        let control = Control { reporter: reporter.clone(), acks, pass: AtomicU32::new(0) };
        Self {
            serving,
            settings,
            of,
            acks,
            served,
            reporter,
            control: Arc::new(control),
            pass: None,
            block: None,
            next_grant: None,
            received: 0,
            open: None,
            ahead: None,
            making: Making::default(),
            pace: Pace::default(),
            end: None,
            hold,
        }
    }

    /// Asks for the next block in the background, so that asking goes on while batches are being sent.
    fn ask(&self) -> AbortOnDropHandle<Result<Granted>> {
        let (dispatcher, of, most, received) = (self.serving.dispatcher.clone(), self.of.clone(), self.pace.block(), Some(self.received));
        AbortOnDropHandle::new(tokio::spawn(async move { dispatcher.next_grant_after(&of.member.job, of.stream, most, received).await }))
    }

    async fn granted(&mut self) -> Result<Granted> {
        let mut asked = match self.next_grant.take() {
            Some(asked) => asked,
            None => self.ask(),
        };
        let granted = (&mut asked).await;
        granted.map_err(|e| Error::internal(format!("asking for batches failed: {e}")))?
    }

    /// Makes sure that there is a block with a batch left; says otherwise why the stream ends.
    async fn next_block(&mut self) -> Result<Option<End>> {
        loop {
            if self.block.as_ref().is_some_and(|block| !block.left.is_empty()) {
                return Ok(None);
            }
            if let Some(block) = self.block.take()
                && let Some(since) = block.since
            {
                self.pace.taken(block.grant.each().count() as u64, since.elapsed());
            }
            match self.granted().await? {
                Granted::Batches(grant) => {
                    self.received += 1;
                    self.block = Some(Block { left: grant.batches.clone(), grant, since: None });
                }
                Granted::EndOfPass(_) => return Ok(Some(End::Pass)),
                Granted::EndOfJob => return Ok(Some(End::Job)),
                Granted::Drain => return Ok(Some(End::Drain)),
            }
        }
    }

    /// The plan of the grant's pass.
    async fn pass_of(&mut self, grant: &Grant) -> Result<Arc<PassPlan>> {
        if let Some(pass) = self.pass.as_ref().filter(|p| p.serves(grant)) {
            return Ok(Arc::clone(pass));
        }
        (self.open, self.ahead, self.making) = (None, None, Making::default());
        let reader = &self.serving.reader;
        let dispatcher = &self.serving.dispatcher;
        let pass = reader.passes.of_grant(reader, dispatcher, &self.settings, self.of.member.incarnation, grant).await?;
        if self.pass.as_ref().is_some_and(|before| before.is_like(grant)) {
            // More of the same epoch is staged: how its rows are stored and made is known.
            self.pass = Some(Arc::clone(&pass));
            return Ok(pass);
        }
        let served = reader.served(&pass.version, &self.settings).await?;
        if served.schema.fields() != self.served.schema.fields() {
            return Err(Error::failed_precondition(format!(
                "job `{}`: {} of dataset `{}` has other columns than this stream began with",
                self.of.member.job,
                grant.version.map_or_else(|| "what is staged".to_owned(), |v| format!("version {v}")),
                self.settings.dataset
            ))
            .with_remedy("open the job again"));
        }
        self.served = served;
        self.pass = Some(Arc::clone(&pass));
        Ok(pass)
    }

    async fn window(&mut self, pass: &Arc<PassPlan>, window: WindowId) -> Result<Arc<WindowData>> {
        if let Some(open) = self.open.as_ref().filter(|open| open.window == window) {
            return Ok(Arc::clone(&open.data));
        }
        // What is not wanted any more goes first: this stream must not wait for room that it holds itself.
        (self.open, self.making) = (None, Making::default());
        if self.ahead.as_ref().is_some_and(|ahead| ahead.window != window) {
            self.ahead = None;
        }
        let loader = &self.serving.reader.loader;
        let handle = match &self.ahead {
            Some(ahead) => ahead.handle.clone(),
            None => loader.handle(pass, &self.served, window),
        };
        let loaded = loader.load(&handle, pass, &self.served, window, Admission::Wait).await?;
        let data = loaded.ok_or_else(|| Error::internal("a window that was waited for did not come"))?;
        let shared = loader.shares(&data, pass, self.of.member.job.as_str());
        self.open = Some(Open { window, data: Arc::clone(&data), shared, _handle: handle });
        self.ahead = None;
        self.read_ahead(pass, WindowId(window.0 + 1));
        Ok(data)
    }

    /// Begins to load the next window if there is room for it now.
    fn read_ahead(&mut self, pass: &Arc<PassPlan>, window: WindowId) {
        if window.0 >= pass.plan.windows() {
            return;
        }
        let reader = Arc::clone(&self.serving.reader);
        let handle = reader.loader.handle(pass, &self.served, window);
        let (pass, served, loading) = (Arc::clone(pass), Arc::clone(&self.served), handle.clone());
        let task = tokio::spawn(async move {
            // Whoever needs the window meets the same error and reports it.
            if let Err(error) = reader.loader.load(&loading, &pass, &served, window, Admission::IfRoom).await {
                tracing::debug!(%window, %error, "reading ahead failed");
            }
        });
        self.ahead = Some(Ahead { window, handle, _task: AbortOnDropHandle::new(task) });
    }

    /// Reads the first of the granted batches that are left out of its window.
    async fn batch(&mut self, grant: &Grant, left: Range<u64>) -> Result<BatchPart> {
        let batch = BatchId(left.start);
        let pass = self.pass_of(grant).await?;
        let data = self.window(&pass, grant.window).await?;
        let mut found = data.batch(batch, pass.plan.batch_rows(batch))?;
        let mut chunks = Arc::clone(&data.chunks);
        if self.served.behind.is_some() {
            // A rank's batches are not neighbours: only the one at hand is made.
            let left = if grant.every > 1 { left.start..left.start + 1 } else { left };
            let from =
                MakingOf { pass: Arc::clone(&pass), served: Arc::clone(&self.served), data, reader: Arc::clone(&self.serving.reader) };
            let made = self.making.first(&from, left).await?;
            found.rows = (0..made.num_rows() as u32).map(|row| (0, row)).collect();
            chunks = Arc::new(vec![made]);
        } else if self.open.as_ref().is_some_and(|open| open.shared)
            && let Some(kept) = self.serving.reader.loader.gathered(&data, &pass, &self.served, batch, &found.rows).await?
        {
            found.rows = (0..kept.num_rows() as u32).map(|row| (0, row)).collect();
            chunks = Arc::new(vec![kept]);
        }
        self.control.pass.store(grant.pass.0, Ordering::Relaxed);
        // Counted as sent before the transport gets it.
        self.reporter.sent(grant.pass, batch, found.digest).await?;
        let meta = BatchMeta {
            job: self.of.member.job.as_str().to_owned(),
            pass: grant.pass.0,
            epoch: grant.epoch.0,
            step: grant.step.map(|first| first + (batch.0 - grant.batches.start) / grant.every.max(1)),
            batch: batch.0,
            part: 0,
            parts: 1,
            window: grant.window.0,
            rows: found.rows.len() as u64,
            digest: digest::hex(found.digest),
            padding: grant.padding,
        };
        Ok(BatchPart { chunks, rows: found.rows, meta })
    }

    /// What was granted under a lease that is over belongs to nobody here, even where a new lease has begun since.
    fn check_lease(&self) -> Result<()> {
        if self.serving.dispatcher.holds(self.hold) {
            return Ok(());
        }
        Err(Error::new(Kind::Unavailable, "this worker lost its lease while it could not reach its dispatcher")
            .with_remedy("open the job again"))
    }

    /// Lets go of everything but the account with the dispatcher.
    fn release(&mut self) {
        (self.next_grant, self.block, self.open, self.ahead, self.pass) = (None, None, None, None, None);
        self.making = Making::default();
    }
}

#[async_trait]
impl JobStream for ServedStream {
    fn schema(&self) -> SchemaRef {
        Arc::clone(&self.served.schema)
    }

    fn control(&self) -> Arc<dyn JobControl> {
        Arc::clone(&self.control) as Arc<dyn JobControl>
    }

    async fn next(&mut self) -> Result<JobEvent> {
        self.reporter.check()?;
        self.check_lease()?;
        if let Some(end) = self.next_block().await? {
            self.release();
            self.end = Some(end);
            return Ok(JobEvent::End(end));
        }
        let Some(block) = &self.block else { return Err(Error::internal("no block of batches")) };
        let (grant, left) = (block.grant.clone(), block.left.clone());
        let part = self.batch(&grant, left).await?;
        // Reading may have taken long; what is sent after the lease counts as lost already.
        self.check_lease()?;
        if let Some(block) = &mut self.block {
            block.left.start = (block.left.start + grant.every.max(1)).min(block.left.end);
            block.since.get_or_insert_with(Instant::now);
            let last_half = (block.left.end - block.left.start) * 2 <= grant.batches.end - grant.batches.start;
            if last_half && self.next_grant.is_none() && self.pace.asks_ahead() {
                self.next_grant = Some(self.ask());
            }
        }
        self.serving.metrics.rows_served.inc_by(part.rows.len() as u64);
        Ok(JobEvent::Batch(part))
    }

    async fn finish(&mut self) -> Result<()> {
        self.release();
        let over = self.end == Some(End::Job);
        match self.acks {
            Acks::AtEnd => self.reporter.finish(true, over).await,
            // What it holds on this stream is lost. The consumer stays: it may have other streams, or come back for the next pass.
            Acks::Stream => self.reporter.finish(true, over).await,
            // Its acknowledgements may come later by action: its lease decides.
            Acks::Action => self.reporter.finish(false, false).await,
        }
    }
}

impl Drop for ServedStream {
    fn drop(&mut self) {
        self.serving.metrics.job_streams.dec();
    }
}

/// What the consumer says on its stream.
struct Control {
    reporter: Reporter,
    acks: Acks,
    /// The pass of the newest batch.
    pass: AtomicU32,
}

#[async_trait]
impl JobControl for Control {
    async fn on_message(&self, message: ConsumerMessage) -> Result<()> {
        self.reporter.check()?;
        if !message.ack.is_empty() {
            if self.acks != Acks::Stream {
                return Err(Error::bad_input("acknowledgements on a stream that takes none")
                    .with_remedy("acknowledge with the action forebay.job.ack"));
            }
            let pass = PassId(message.pass.unwrap_or_else(|| self.pass.load(Ordering::Relaxed)));
            self.reporter.acknowledged(pass, message.ack).await?;
        }
        Ok(())
    }
}
