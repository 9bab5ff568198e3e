//! Reading a task: one blocking thread reads its pieces in order and hands batches over through a short queue.
//!
//! Owns: the queue's bound, ending when the consumer goes away, and turning a reader's panic on a broken file into an error.

use forebay_core::pipeline::{SourceFormat, SourceSpec};
use forebay_core::source::{Piece, SourceFile, SourceSnapshot, TaskSpec};
use forebay_core::{Error, Result};
use futures::StreamExt;
use futures::stream::{self, BoxStream};
use std::sync::Arc;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::input::{Blob, Stores};
use super::options::Options;
use super::{Limits, SourceBatch, csv, files, ipc, json, parquet, text};

/// Batches that wait for the consumer.
const QUEUE: usize = 1;

/// Why a reader stops early.
#[derive(Debug)]
pub(super) enum Stop {
    /// Nobody wants the rows any more.
    Gone,
    Failed(Error),
}

impl From<Error> for Stop {
    fn from(error: Error) -> Self {
        Stop::Failed(error)
    }
}

/// Where a reader puts its batches; waits while the queue is full.
pub(super) struct Emit {
    queue: mpsc::Sender<Result<SourceBatch>>,
}

impl Emit {
    pub(super) fn send(&mut self, batch: SourceBatch) -> Result<(), Stop> {
        self.queue.blocking_send(Ok(batch)).map_err(|_| Stop::Gone)
    }
}

/// A format's reader. It may keep rows back to fill a batch across files; `finish` hands out the rest.
pub(super) trait Reader {
    fn read(&mut self, blob: &Blob, file: &SourceFile, piece: &Piece, emit: &mut Emit) -> Result<(), Stop>;

    fn finish(&mut self, emit: &mut Emit) -> Result<(), Stop>;
}

struct Reading {
    batches: mpsc::Receiver<Result<SourceBatch>>,
    thread: Option<JoinHandle<()>>,
}

pub(super) fn read_task(
    spec: SourceSpec,
    snapshot: Arc<SourceSnapshot>,
    task: TaskSpec,
    limits: Limits,
) -> BoxStream<'static, Result<SourceBatch>> {
    let begin = async move {
        let (queue, batches) = mpsc::channel(QUEUE);
        let stores = Stores::new();
        let thread = tokio::task::spawn_blocking(move || {
            let mut emit = Emit { queue };
            if let Err(Stop::Failed(error)) = run(&spec, &snapshot, &task, limits, &stores, &mut emit) {
                // Nobody hears it when nobody listens.
                let _ = emit.queue.blocking_send(Err(error));
            }
        });
        stream::unfold(Reading { batches, thread: Some(thread) }, next)
    };
    stream::once(begin).flatten().boxed()
}

async fn next(mut reading: Reading) -> Option<(Result<SourceBatch>, Reading)> {
    if let Some(batch) = reading.batches.recv().await {
        return Some((batch, reading));
    }
    match reading.thread.take()?.await {
        Ok(()) => None,
        Err(e) => {
            Some((Err(Error::corrupt(format!("a source file broke its reader: {e}")).with_remedy("look for a damaged file")), reading))
        }
    }
}

fn run(
    spec: &SourceSpec,
    snapshot: &SourceSnapshot,
    task: &TaskSpec,
    limits: Limits,
    stores: &Stores,
    emit: &mut Emit,
) -> Result<(), Stop> {
    let options = Options::parse(spec)?;
    let schema = super::schema(spec, snapshot, stores)?;
    let first = snapshot.files.first().map(|f| f.path.clone()).unwrap_or_default();
    let mut columnar = parquet::ColumnarReader::new(schema.clone(), options.clone(), limits, first.clone());
    let mut text: Box<dyn Reader> = match spec.format {
        SourceFormat::Csv => Box::new(csv::CsvReader::new(schema, text::targets(snapshot, &options)?, options, limits, first)),
        SourceFormat::Json => Box::new(json::JsonReader::new(schema, text::targets(snapshot, &options)?, options, limits)?),
        _ => Box::new(files::FilesReader::new(schema, limits, &snapshot.base)),
    };
    for (index, piece) in &task.pieces {
        let file = snapshot.files.get(*index as usize).ok_or_else(|| Error::internal(format!("task {} names file {index}", task.task)))?;
        let blob = Blob::open(stores, &snapshot.base, file)?;
        match spec.format {
            SourceFormat::Parquet | SourceFormat::Arrow | SourceFormat::Put | SourceFormat::Sql => {
                if super::is_parquet(&blob)? {
                    columnar.read(&blob, file, piece, emit)?;
                } else {
                    ipc::read(&mut columnar, &blob, file, piece, emit)?;
                }
            }
            _ => text.read(&blob, file, piece, emit)?,
        }
        blob.verify()?;
    }
    columnar.finish(emit)?;
    text.finish(emit)
}
