//! `forebay read`: draws a job's batches over Arrow Flight as trainers do, with any number of consumers at once.

use arrow::array::RecordBatch;
use arrow::datatypes::SchemaRef;
use clap::Args;
use forebay_core::digest::{self, JobDigest};
use forebay_core::job::{Assignment, JobRequest, Visitation};
use forebay_core::pipeline::{parse_size, show_size};
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::End;
use forebay_flight::client::{Batch, Client, JobItem, JobReader, OpenedJob};
use futures::{StreamExt as _, TryStreamExt as _, stream};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::time::{Duration, Instant};
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use super::args::{Connection, passes, word};
use super::connect::{Access, interrupted, with_interrupt};
use super::format::{Format, Writer};
use super::output::{Outcome, Output, column, count};
use super::progress::Rows;

pub(super) const SHUFFLES: &[&str] = &["none", "row_groups", "window", "full"];
pub(super) const ORDERS: &[&str] = &["published", "staged"];
const ASSIGNMENTS: &[&str] = &["dynamic", "static", "rounds"];
const VISITATIONS: &[&str] = &["at_most_once", "at_least_once", "exactly_once"];

/// Batches on their way or unacknowledged per consumer.
const CREDITS: u32 = 4;
/// How long a consumer whose streams break tries to join again without getting a batch.
const PATIENCE: Duration = Duration::from_secs(30);
/// Consumers that join at once.
const JOINS: usize = 32;
/// Rows shown without --digest.
const PREVIEW: usize = 10;

const EXAMPLES: &str = "\
Examples:
  forebay read digits --root ./data                                   one pass over each stored epoch, with a look at its rows
  forebay read digits --epochs 0..1 --batch-size 64 --digest          the job's digest: equal for equal settings on every host
  forebay read digits --consumers 4 --job run1                        four consumers share the job's batches
  forebay read digits --filter \"split = 'train'\" --columns image,label --shuffle none
  forebay read digits --order staged                                  begins while the epoch is still being materialized
  forebay read digits --epochs forever --server grpc://host:7070      until Ctrl-C

A job whose name is given goes on where it stopped when the command is given again; without a name each read is a job of its own.";

/// Draw a job's batches over Arrow Flight, as a trainer does
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub(super) struct ReadArgs {
    /// A dataset, or a view that selects from one
    dataset: String,
    /// Passes: 0..3, a number of passes, a list such as 0,2, or forever [default: all stored epochs]
    #[arg(long, value_name = "PASSES")]
    epochs: Option<String>,
    /// Rows of a batch [default: 256]
    #[arg(long, value_name = "ROWS")]
    batch_size: Option<u64>,
    /// A job that other consumers can join [default: one of its own]
    #[arg(long, value_name = "NAME")]
    job: Option<String>,
    /// Consumers that read at once
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=1024))]
    consumers: u32,
    #[arg(long)]
    seed: Option<u64>,
    /// How rows are mixed [default: the dataset's]
    #[arg(long, value_parser = word(SHUFFLES))]
    shuffle: Option<String>,
    /// `staged`: rows in the order in which they were materialized, and from the first of them on while their epoch is still being written
    #[arg(long, value_parser = word(ORDERS))]
    order: Option<String>,
    /// Size of a window: rows are mixed within it [default: 256MiB]
    #[arg(long, value_name = "SIZE", value_parser = parse_size)]
    window: Option<u64>,
    /// Who gets which batch [default: dynamic]
    #[arg(long, value_parser = word(ASSIGNMENTS))]
    assignment: Option<String>,
    /// What is promised when something dies [default: at_most_once]
    #[arg(long, value_parser = word(VISITATIONS))]
    visitation: Option<String>,
    /// A version other than the newest
    #[arg(long, value_name = "N")]
    version: Option<u64>,
    /// Only these columns
    #[arg(long, value_name = "A,B", value_delimiter = ',')]
    columns: Option<Vec<String>>,
    /// Only rows for which this holds: any SQL over stored columns
    #[arg(long, value_name = "SQL")]
    filter: Option<String>,
    /// Put rows of about one length together, so that batches pad little: a stored list, string, binary or integer column
    #[arg(long, value_name = "COLUMN")]
    bucket_by: Option<String>,
    /// Begin a finished or stopped job anew
    #[arg(long)]
    restart: bool,
    /// Print the job's digest instead of rows
    #[arg(long)]
    digest: bool,
}

pub(super) async fn run(connection: &Connection, args: ReadArgs, out: &Output) -> Outcome {
    let request = request(&args)?;
    let preview = !args.digest && !out.json;
    let read =
        with_interrupt(connection, Access::Change, async |client| Ok(draw(client, &request, args.consumers, preview).await?)).await?;
    if out.json {
        out.json(&read.json(&request))?
    } else {
        show(&read, &request, args.digest, out)?
    }
    match read.interrupted {
        true => Err(Error::new(Kind::Cancelled, "interrupted").with_remedy("the above is what was read until then").into()),
        false => Ok(()),
    }
}

/// The job's settings as the JSON that any client sends. A private job gets a name, so that several consumers and a digest have one.
fn request(args: &ReadArgs) -> Result<JobRequest> {
    let settings = json!({
        "job": args.job.clone().unwrap_or_else(|| format!("read-{}", &uuid::Uuid::new_v4().simple().to_string()[..12])),
        "dataset": args.dataset,
        "version": args.version,
        "epochs": args.epochs.as_deref().map(passes).transpose()?,
        "batch_size": args.batch_size,
        "seed": args.seed,
        "shuffle": args.shuffle,
        "order": args.order,
        "window": args.window,
        "assignment": args.assignment,
        "visitation": args.visitation,
        "columns": args.columns,
        "filter": args.filter,
        "bucket_by": args.bucket_by,
        "restart": args.restart.then_some(true),
    });
    let request = JobRequest::from_json(&settings.to_string()).map_err(as_flags)?;
    // What no server could do is said before one is asked.
    let ranked = matches!(request.assignment, Some(Assignment::Static | Assignment::Rounds));
    let (world_size, rank) = if ranked { (Some(args.consumers), Some(0)) } else { (None, None) };
    let probe = JobRequest { consumer: Some("probe".to_owned()), world_size, rank, ..request.clone() };
    let (settings, _) = probe.resolve(forebay_core::pipeline::Shuffle::Window).map_err(as_flags)?;
    if settings.visitation == Visitation::ExactlyOnce {
        return Err(Error::unsupported("--visitation exactly_once is relative to checkpoints, and `read` makes none")
            .with_remedy("use at_least_once here; trainers read exactly once with the Python loader's `commit` and `load_state_dict`"));
    }
    Ok(request)
}

/// `job: batch_size: ...` is `--batch-size: ...` here.
fn as_flags(mut error: Error) -> Error {
    let line = |line: &str| match line.strip_prefix("job: ").and_then(|rest| rest.split_once(": ")) {
        Some((key, what)) if !key.contains(' ') => format!("--{}: {what}", key.replace('_', "-")),
        _ => line.to_owned(),
    };
    error.message = error.message.lines().map(line).collect::<Vec<_>>().join("\n");
    error
}

/// What was seen of one pass.
#[derive(Debug, Clone, Default)]
struct Pass {
    epoch: u32,
    batches: u64,
    rows: u64,
    bytes: u64,
    /// From the first batch to the last, since the command began.
    from: Duration,
    to: Duration,
}

#[derive(Debug, Default)]
struct Read {
    passes: BTreeMap<u32, Pass>,
    /// (pass, batch, digest of the batch) of everything acknowledged.
    taken: Vec<(u32, u64, u64)>,
    schema: Option<SchemaRef>,
    preview: Option<RecordBatch>,
    consumers: u32,
    elapsed: Duration,
    /// What the server says of the whole job: other consumers may have read of it, now or earlier.
    job_digest: Option<String>,
    /// Ctrl-C ended it: what is here was acknowledged, the rest of the job is not.
    interrupted: bool,
}

impl Read {
    fn merge(&mut self, other: Self) {
        for (number, pass) in other.passes {
            match self.passes.entry(number) {
                std::collections::btree_map::Entry::Vacant(free) => {
                    free.insert(pass);
                }
                std::collections::btree_map::Entry::Occupied(mut both) => {
                    let both = both.get_mut();
                    both.batches += pass.batches;
                    both.rows += pass.rows;
                    both.bytes += pass.bytes;
                    both.from = both.from.min(pass.from);
                    both.to = both.to.max(pass.to);
                }
            }
        }
        self.taken.extend(other.taken);
        self.schema = self.schema.take().or(other.schema);
        self.preview = self.preview.take().or(other.preview);
        self.consumers += other.consumers;
        self.interrupted |= other.interrupted;
    }

    fn digest(&self) -> String {
        let mut job = JobDigest::new();
        for (pass, batch, digest) in &self.taken {
            job.push(u64::from(*pass), *batch, *digest);
        }
        digest::hex(job.finish())
    }

    fn total(&self, of: impl Fn(&Pass) -> u64) -> u64 {
        self.passes.values().map(of).sum()
    }

    fn json(&self, request: &JobRequest) -> Value {
        let pass = |(number, pass): (&u32, &Pass)| {
            let seconds = pass.to.saturating_sub(pass.from).as_secs_f64();
            json!({ "pass": number, "epoch": pass.epoch, "batches": pass.batches, "rows": pass.rows, "bytes": pass.bytes,
                "seconds": seconds, "rows_per_s": rate(pass.rows, pass.to.saturating_sub(pass.from)) })
        };
        json!({
            "job": request.job, "dataset": request.dataset, "consumers": self.consumers,
            "passes": self.passes.iter().map(pass).collect::<Vec<_>>(),
            "batches": self.total(|p| p.batches), "rows": self.total(|p| p.rows), "bytes": self.total(|p| p.bytes),
            "seconds": self.elapsed.as_secs_f64(), "rows_per_s": rate(self.total(|p| p.rows), self.elapsed), "digest": self.digest(), "job_digest": self.job_digest,
        })
    }
}

fn rate(rows: u64, span: Duration) -> u64 {
    (rows as f64 / span.as_secs_f64().max(1e-3)) as u64
}

/// Runs the consumers side by side until the job ends for all of them.
async fn draw(client: &Client, request: &JobRequest, consumers: u32, preview: bool) -> Result<Read> {
    let started = Instant::now();
    let joined = join(client, request, consumers).await?;
    let shared =
        Shared { started, stop: CancellationToken::new(), progress: Rows::new(joined.first().and_then(|(_, _, opened)| opened.rows)) };
    let mut tasks = JoinSet::new();
    for (number, (client, request, opened)) in joined.into_iter().enumerate() {
        let shared = shared.clone();
        tasks.spawn(async move { consume(&client, &request, opened, &shared, preview && number == 0).await });
    }
    let mut all = Read::default();
    loop {
        let done = tokio::select! {
            done = tasks.join_next() => done,
            () = interrupted(), if !shared.stop.is_cancelled() => {
                shared.stop.cancel();
                continue;
            }
        };
        let Some(done) = done else { break };
        all.merge(done.map_err(|e| Error::internal(format!("a consumer's task: {e}")))??);
    }
    shared.progress.stop();
    all.taken.sort_unstable();
    all.elapsed = started.elapsed();
    let jobs = client.jobs(request.job.as_deref()).await?;
    all.job_digest = jobs.into_iter().next().and_then(|job| job.digest);
    Ok(all)
}

/// All join before any reads: a short job could be over before the last one came. The first creates the job, the others may come at once.
async fn join(client: &Client, request: &JobRequest, consumers: u32) -> Result<Vec<(Client, JobRequest, OpenedJob)>> {
    let ranked = matches!(request.assignment, Some(Assignment::Static | Assignment::Rounds));
    let named = |number: u32| JobRequest {
        consumer: Some(format!("read-{}-{number}", std::process::id())),
        // Every consumer is a rank where ranks count.
        world_size: if ranked { Some(consumers) } else { request.world_size },
        rank: if ranked { Some(number) } else { request.rank },
        restart: None,
        ..request.clone()
    };
    let first = open(client, &JobRequest { restart: request.restart, ..named(0) }).await?;
    let others = stream::iter(1..consumers)
        .map(|number| {
            let request = named(number);
            async move {
                // Streams of one connection share a task that does all framing: each consumer has its own.
                let client = client.another().await?;
                let opened = open(&client, &request).await?;
                Ok::<_, Error>((client, request, opened))
            }
        })
        .buffered(JOINS)
        .try_collect::<Vec<_>>();
    let mut joined = vec![(client.clone(), named(0), first)];
    joined.extend(others.await?);
    Ok(joined)
}

/// What the consumers of one command share.
#[derive(Debug, Clone)]
struct Shared {
    started: Instant,
    stop: CancellationToken,
    progress: Rows,
}

async fn open(client: &Client, request: &JobRequest) -> Result<OpenedJob> {
    let command = serde_json::to_string(request).map_err(|e| Error::internal(format!("writing the job: {e}")))?;
    client.open_job(&command).await
}

/// One consumer: a stream per pass, until the job ends. A stream that breaks, because its worker died, is followed by another elsewhere: what
/// may have been lost with it is in `system.losses`.
async fn consume(client: &Client, request: &JobRequest, mut opened: OpenedJob, shared: &Shared, preview: bool) -> Result<Read> {
    let mut read = Read { consumers: 1, schema: Some(opened.schema.clone()), ..Read::default() };
    let mut broken: Option<Instant> = None;
    let place = opened.place.clone();
    loop {
        let before = read.taken.len();
        match stream(client, opened, &mut read, shared, preview).await {
            Ok(End::Job) => return Ok(read),
            Ok(End::Pass) => {}
            // The worker is leaving; the next join finds another.
            Ok(End::Drain) => tokio::time::sleep(Duration::from_millis(200)).await,
            Err(e) if matches!(e.kind, Kind::Unavailable | Kind::Cancelled) => {
                if read.taken.len() > before {
                    broken = None;
                }
                if broken.get_or_insert_with(Instant::now).elapsed() > PATIENCE {
                    return Err(e);
                }
                tracing::warn!(error = %e, "a stream broke; joining again");
                tokio::time::sleep(Duration::from_millis(500)).await;
            }
            // The others finished the job between this consumer's passes, before or after it asked for the next stream.
            Err(e) if is_finished(&e) => return Ok(read),
            Err(e) => return Err(e),
        }
        opened = match open(client, request).await {
            Ok(opened) if place.is_of_another_job(&opened.place) => {
                return Err(Error::failed_precondition(format!(
                    "job `{}` is another one of the same name: the dispatcher has lost what it knew of this one",
                    place.job
                ))
                .with_remedy("look for the journal of its root, and read again under another name"));
            }
            Ok(opened) => opened,
            Err(e) if is_finished(&e) => return Ok(read),
            Err(e) => return Err(e),
        };
    }
}

fn is_finished(error: &Error) -> bool {
    error.kind == Kind::FailedPrecondition && error.message.contains("finished")
}

async fn stream(client: &Client, opened: OpenedJob, read: &mut Read, shared: &Shared, preview: bool) -> Result<End> {
    let mut stream = client.at(opened.location.as_deref())?.exchange(opened.ticket, CREDITS).await?;
    let end = tokio::select! {
        end = take(&mut stream, read, shared, preview) => end?,
        () = shared.stop.cancelled() => {
            read.interrupted = true;
            End::Job
        }
    };
    stream.close().await?;
    Ok(end)
}

async fn take(stream: &mut JobReader, read: &mut Read, shared: &Shared, preview: bool) -> Result<End> {
    loop {
        match stream.next().await? {
            JobItem::Batch(batch) => {
                // Acknowledged first: what is counted here must not be lost when Ctrl-C drops this between the two.
                stream.ack(&batch).await?;
                shared.progress.add(note(&batch, read, shared.started.elapsed(), preview)?);
            }
            JobItem::End(end) => return Ok(end),
        }
    }
}

/// Bytes of the rows themselves; columns of one message share its allocation, which would be counted for each.
fn size(rows: &RecordBatch) -> u64 {
    rows.columns().iter().map(|column| column.to_data().get_slice_memory_size().unwrap_or(0) as u64).sum()
}

/// Counts a batch; gives its rows and bytes.
fn note(batch: &Batch, read: &mut Read, at: Duration, preview: bool) -> Result<(u64, u64)> {
    let meta = &batch.meta;
    let digest =
        digest::from_hex(&meta.digest).ok_or_else(|| Error::corrupt(format!("batch {} has the digest `{}`", meta.batch, meta.digest)))?;
    read.taken.push((meta.pass, meta.batch, digest));
    let pass = read.passes.entry(meta.pass).or_insert_with(|| Pass { epoch: meta.epoch, from: at, ..Pass::default() });
    pass.batches += 1;
    pass.rows += meta.rows;
    let bytes = batch.parts.iter().map(size).sum::<u64>();
    pass.bytes += bytes;
    pass.to = at;
    if preview && read.preview.is_none() {
        let whole = batch.parts.first().map(|first| first.slice(0, first.num_rows().min(PREVIEW)));
        read.preview = whole;
    }
    Ok((meta.rows, bytes))
}

fn show(read: &Read, request: &JobRequest, digest: bool, out: &Output) -> Outcome {
    if let Some(rows) = read.preview.as_ref().filter(|_| !digest) {
        let mut text = Vec::new();
        let mut writer = Writer::new(Format::Table, &mut text, false)?;
        writer.start(&rows.schema())?;
        writer.write(rows)?;
        writer.finish()?;
        out.bytes(&text)?;
        let columns: Vec<String> = rows.schema().fields().iter().map(|f| column(f)).collect();
        out.line(format!("first {} rows of {}: {}\n", rows.num_rows(), request.dataset, columns.join(", ")))?;
    }
    let line = |(number, pass): (&u32, &Pass)| {
        let span = pass.to.saturating_sub(pass.from);
        vec![
            number.to_string(),
            pass.epoch.to_string(),
            count(pass.batches),
            count(pass.rows),
            show_size(pass.bytes),
            format!("{:.2} s", span.as_secs_f64()),
            count(rate(pass.rows, span)),
        ]
    };
    let rows: Vec<Vec<String>> = read.passes.iter().map(line).collect();
    out.table(&["pass", "epoch", "batches", "rows", "size", "time", "rows/s"], &rows)?;
    let rows = read.total(|p| p.rows);
    out.line(format!(
        "job {}: {} rows, {} in {:.2} s, {} rows/s",
        request.job.as_deref().unwrap_or_default(),
        count(rows),
        show_size(read.total(|p| p.bytes)),
        read.elapsed.as_secs_f64(),
        count(rate(rows, read.elapsed))
    ))?;
    if !digest {
        return Ok(());
    }
    out.line(format!("digest {}", read.digest()))?;
    match &read.job_digest {
        Some(job) if *job != read.digest() => {
            out.line(format!("of the {} batches read here; the whole job's is {job}", count(read.total(|p| p.batches))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests;
