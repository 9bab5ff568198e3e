//! What a stream tells the dispatcher of its batches: sent, acknowledged, and how it ended.
//!
//! Owns: that reports of one stream arrive in order and in few calls, and that a stream that just goes away is closed as broken. A batch goes out
//! without waiting for its `sent` to be durable: granted is durable already, and a granted batch of a dead worker counts as possibly delivered.

use std::sync::Arc;
use std::time::Duration;

use forebay_core::dispatch::StreamId;
use forebay_core::ids::{BatchId, PassId};
use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use tokio::sync::{mpsc, oneshot};

use crate::dispatcher::{Dispatcher, Member};

/// Reports that may wait: a consumer or a sender that is further ahead waits itself.
const QUEUE: usize = 4_096;
/// How long a report waits for others. A worker that dies in this time leaves a few more batches that may have been delivered.
const GATHER: Duration = Duration::from_millis(20);

/// Whose stream it is.
#[derive(Debug, Clone)]
pub(crate) struct StreamOf {
    pub(crate) member: Member,
    pub(crate) stream: StreamId,
}

#[derive(Debug)]
enum Report {
    Sent(PassId, BatchId, u64),
    Acknowledged(PassId, Vec<u64>),
    /// The stream's end, and whether the job is over for its consumer.
    Finish {
        clean: bool,
        over: bool,
        done: oneshot::Sender<Result<()>>,
    },
}

/// The sending side; the last one dropped without [`Reporter::finish`] closes the stream as broken.
#[derive(Debug, Clone)]
pub(crate) struct Reporter {
    queue: mpsc::Sender<Report>,
    failed: Arc<Mutex<Option<Error>>>,
}

impl Reporter {
    pub(crate) fn start(dispatcher: Dispatcher, of: StreamOf) -> Self {
        let (queue, reports) = mpsc::channel(QUEUE);
        let failed = Arc::new(Mutex::new(None));
        tokio::spawn(run(dispatcher, of, reports, Arc::clone(&failed)));
        Self { queue, failed }
    }

    /// An earlier report that was refused.
    pub(crate) fn check(&self) -> Result<()> {
        match self.failed.lock().clone() {
            Some(error) => Err(error),
            None => Ok(()),
        }
    }

    pub(crate) async fn sent(&self, pass: PassId, batch: BatchId, digest: u64) -> Result<()> {
        self.send(Report::Sent(pass, batch, digest)).await
    }

    pub(crate) async fn acknowledged(&self, pass: PassId, batches: Vec<u64>) -> Result<()> {
        self.send(Report::Acknowledged(pass, batches)).await
    }

    /// Closes the stream after everything reported before it. `clean` as the dispatcher understands it.
    pub(crate) async fn finish(&self, clean: bool, over: bool) -> Result<()> {
        let (done, answer) = oneshot::channel();
        self.send(Report::Finish { clean, over, done }).await?;
        answer.await.map_err(|_| gone())?
    }

    async fn send(&self, report: Report) -> Result<()> {
        self.check()?;
        self.queue.send(report).await.map_err(|_| gone())
    }
}

fn gone() -> Error {
    Error::new(Kind::Unavailable, "the stream was closed").with_remedy("ask for the job's endpoints again")
}

async fn run(dispatcher: Dispatcher, of: StreamOf, mut reports: mpsc::Receiver<Report>, failed: Arc<Mutex<Option<Error>>>) {
    let mut batch = Vec::new();
    while reports.recv_many(&mut batch, QUEUE).await > 0 {
        gather(&mut reports, &mut batch).await;
        let mut open = Gathered::default();
        for report in batch.drain(..) {
            let kept = match report {
                Report::Finish { clean, over, done } => {
                    let told = match open.flush(&dispatcher, &of).await {
                        Ok(()) => finish(&dispatcher, &of, clean, over).await,
                        Err(error) => Err(error),
                    };
                    if told.is_err() {
                        close(&dispatcher, &of, false).await;
                    }
                    // The stream may have been dropped while it finished.
                    let _ = done.send(told);
                    return;
                }
                report => open.add(report, &dispatcher, &of).await,
            };
            note(&failed, kept);
        }
        note(&failed, open.flush(&dispatcher, &of).await);
    }
    close(&dispatcher, &of, false).await;
}

/// Waits a little for further reports: each call costs a durable journal entry, and nobody waits for these but the end of a stream.
async fn gather(reports: &mut mpsc::Receiver<Report>, batch: &mut Vec<Report>) {
    let ends = |batch: &[Report]| matches!(batch.last(), Some(Report::Finish { .. }));
    let end = tokio::time::sleep(GATHER);
    tokio::pin!(end);
    while batch.len() < QUEUE && !ends(batch) {
        tokio::select! {
            () = &mut end => return,
            more = reports.recv() => match more {
                Some(report) => batch.push(report),
                None => return,
            },
        }
    }
}

/// The first refusal is what the stream says when it ends.
fn note(failed: &Mutex<Option<Error>>, result: Result<()>) {
    if let Err(error) = result {
        failed.lock().get_or_insert(error);
    }
}

async fn finish(dispatcher: &Dispatcher, of: &StreamOf, clean: bool, over: bool) -> Result<()> {
    dispatcher.close_stream(&of.member.job, of.stream, clean).await?;
    // Leaving loses what a consumer holds on any stream, so the last one says it.
    if over && !dispatcher.is_streaming(&of.member.job, &of.member.consumer).await? {
        dispatcher.leave_job(&of.member.job, &of.member.consumer, of.member.session).await?;
    }
    Ok(())
}

async fn close(dispatcher: &Dispatcher, of: &StreamOf, clean: bool) {
    if let Err(error) = dispatcher.close_stream(&of.member.job, of.stream, clean).await {
        tracing::debug!(job = %of.member.job, consumer = %of.member.consumer, %error, "a stream could not be closed");
    }
}

/// Neighbouring reports of one kind and pass, told in one call.
#[derive(Debug, Default)]
struct Gathered {
    pass: PassId,
    sent: Vec<(BatchId, u64)>,
    acknowledged: Vec<(BatchId, Option<u64>)>,
}

impl Gathered {
    async fn add(&mut self, report: Report, dispatcher: &Dispatcher, of: &StreamOf) -> Result<()> {
        let pass = match &report {
            Report::Sent(pass, ..) | Report::Acknowledged(pass, _) => *pass,
            Report::Finish { .. } => return Ok(()),
        };
        // Within a pass all `sent` may be told before all acknowledgements: a batch is acknowledged after it was sent.
        if pass != self.pass {
            self.flush(dispatcher, of).await?;
            self.pass = pass;
        }
        match report {
            Report::Sent(_, batch, digest) => self.sent.push((batch, digest)),
            Report::Acknowledged(_, batches) => self.acknowledged.extend(batches.into_iter().map(|b| (BatchId(b), None))),
            Report::Finish { .. } => {}
        }
        Ok(())
    }

    async fn flush(&mut self, dispatcher: &Dispatcher, of: &StreamOf) -> Result<()> {
        let sent = std::mem::take(&mut self.sent);
        let acknowledged = std::mem::take(&mut self.acknowledged);
        if !sent.is_empty() {
            dispatcher.sent(&of.member.job, of.stream, self.pass, sent).await?;
        }
        if !acknowledged.is_empty() {
            dispatcher.acknowledge(&of.member, self.pass, acknowledged).await?;
        }
        Ok(())
    }
}
