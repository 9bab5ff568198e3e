//! How fast and how small the dispatcher's core is: many consumers draw one long pass, with a journal in memory.
//!
//! `cargo run --release -p forebay-core --example dispatch_scale [CONSUMERS WORKERS BATCHES]`. Every event is decided, its entries are encoded
//! and applied, as the shell does it; a ledger file is written whenever one is due. What a store adds is not measured.

#![allow(clippy::disallowed_methods, clippy::cast_precision_loss, reason = "a measurement needs a real clock, and prints ratios")]

use std::error::Error;
use std::time::{Duration, Instant};

use forebay_core::dispatch::{
    Action, Event, Granted, Now, OpenedJob, Pass, PassAnswer, PassShape, Reply, State, StoredDataset, StreamId, Volatile, apply, decide,
};
use forebay_core::ids::{BatchId, ConsumerName, DatasetName, EpochId, Fence, JobName, PassId, VersionId, WorkerName};
use forebay_core::job::{ConsumerSettings, JobSettings};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PER_WINDOW: u64 = 1_000;
const BLOCK: u64 = 16;

struct Bench {
    state: State,
    volatile: Volatile,
    now: Now,
    journal_bytes: u64,
    entries: u64,
    actions: Vec<Action>,
    encoding: Duration,
}

impl Bench {
    fn send(&mut self, event: Event) -> Result<Reply> {
        let decision = decide(&self.state, &mut self.volatile, self.now, event)?;
        for entry in &decision.entries {
            let start = Instant::now();
            self.journal_bytes += entry.encode()?.len() as u64;
            self.encoding += start.elapsed();
            self.entries += 1;
            apply(&mut self.state, entry);
        }
        self.actions.extend(decision.actions);
        Ok(decision.reply)
    }

    /// A tick, and what it asks for.
    fn settle(&mut self, shape: &PassShape) -> Result<()> {
        self.now.mono_ms += 1;
        self.now.wall_ms += 1;
        self.send(Event::Tick)?;
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::ShapePass { job, incarnation, pass, .. } => {
                    let answer = Ok(PassAnswer::Shape(shape.clone()));
                    self.send(Event::PassShaped { job, incarnation, pass, answer })?;
                }
                Action::WriteLedger { job, incarnation, number, windows, .. } => {
                    let result = Ok(vec![format!("{number}.parquet")]);
                    self.send(Event::LedgerWritten { job, incarnation, number, windows, result })?;
                }
                _ => {}
            }
        }
        Ok(())
    }
}

fn join(bench: &mut Bench, settings: &JobSettings, consumer: u64, workers: u64) -> Result<(OpenedJob, StreamId)> {
    let name = ConsumerName(format!("host-{consumer}"));
    let consumer_settings = ConsumerSettings { consumer: name.clone(), rank: None, acks_by_action: false, restart: false };
    let stored = StoredDataset {
        version: VersionId(0),
        epochs: vec![EpochId(0)],
        fingerprint: "f".into(),
        pipeline: None,
        parts: Default::default(),
    };
    let event =
        Event::OpenJob { settings: Box::new(settings.clone()), consumer: Box::new(consumer_settings), stored: Some(Box::new(stored)) };
    let Reply::Job(opened) = bench.send(event)? else { return Err("not opened".into()) };
    let worker = WorkerName(format!("worker-{}", consumer % workers));
    let event = Event::OpenStream { job: opened.job.clone(), incarnation: opened.incarnation, consumer: name, worker, acks: true };
    let Reply::Stream(stream) = bench.send(event)? else { return Err("no stream".into()) };
    Ok((opened, stream))
}

#[derive(Default)]
struct Measured {
    granted: u64,
    grants: Vec<u32>,
    taken_up: Duration,
}

/// One round over all consumers: each asks for a block, its batches are sent, and it acknowledges the block before.
fn round(
    bench: &mut Bench,
    streams: &[(OpenedJob, StreamId)],
    held: &mut [Option<std::ops::Range<u64>>],
    m: &mut Measured,
) -> Result<bool> {
    let before = m.granted;
    for (index, (opened, stream)) in streams.iter().enumerate() {
        let start = Instant::now();
        let reply = bench.send(Event::NextGrant { job: opened.job.clone(), stream: *stream, max_batches: BLOCK })?;
        m.grants.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
        let next = match reply {
            Reply::Granted(Granted::Batches(grant)) => {
                let batches = grant.batches.clone().map(|b| (BatchId(b), b)).collect();
                bench.send(Event::Sent { job: opened.job.clone(), stream: *stream, pass: PassId(0), batches })?;
                m.granted += grant.batches.end - grant.batches.start;
                Some(grant.batches)
            }
            _ => None,
        };
        if let Some(last) = std::mem::replace(&mut held[index], next) {
            bench.send(Event::Acknowledge {
                job: opened.job.clone(),
                incarnation: opened.incarnation,
                consumer: ConsumerName(format!("host-{index}")),
                pass: PassId(0),
                batches: last.map(|b| (BatchId(b), None)).collect(),
            })?;
        }
        m.taken_up += start.elapsed();
    }
    Ok(m.granted > before)
}

fn main() -> Result<()> {
    let numbers: Vec<u64> = std::env::args().skip(1).filter_map(|a| a.parse().ok()).collect();
    let pick = |index: usize, default: u64| numbers.get(index).copied().unwrap_or(default);
    let (consumers, workers, batches) = (pick(0, 10_000), pick(1, 1_000), pick(2, 10_000_000));
    let settings = JobSettings { batch_size: 1, ..JobSettings::new(JobName::parse("run1")?, DatasetName::parse("digits")?) };
    let shape = PassShape {
        version: VersionId(0),
        epoch: EpochId(0),
        rows: batches,
        window_rows: PER_WINDOW,
        batches_per_window: PER_WINDOW,
        selection: None,
    };
    let mut bench = Bench {
        state: State::default(),
        volatile: Volatile::new(20_000),
        now: Now { wall_ms: 1_700_000_000_000, mono_ms: 0 },
        journal_bytes: 0,
        entries: 0,
        actions: Vec::new(),
        encoding: Duration::ZERO,
    };
    bench.send(Event::Lead { fence: Fence(1), address: None, workers_died: false, continue_runs: true })?;
    let start = Instant::now();
    let mut streams = Vec::new();
    for consumer in 0..consumers {
        streams.push(join(&mut bench, &settings, consumer, workers)?);
    }
    println!("{consumers} consumers on {workers} workers joined in {:.2} s", start.elapsed().as_secs_f64());
    let (first, stream) = &streams[0];
    bench.send(Event::NextGrant { job: first.job.clone(), stream: *stream, max_batches: 1 })?;
    bench.settle(&shape)?;
    bench.settle(&shape)?;
    (bench.journal_bytes, bench.entries, bench.encoding) = (0, 0, Duration::ZERO);
    let mut held = vec![None; streams.len()];
    let mut m = Measured { grants: Vec::with_capacity(usize::try_from(2 * batches / BLOCK)?), ..Measured::default() };
    let (mut settling, mut rounds, mut memory) = (Duration::ZERO, 0, None);
    while round(&mut bench, &streams, &mut held, &mut m)? {
        rounds += 1;
        if rounds == 4 || memory.is_none() {
            memory = Some(measure(&bench, &first.job));
        }
        let start = Instant::now();
        bench.settle(&shape)?;
        settling += start.elapsed();
    }
    report(&bench, m, settling, memory.unwrap_or_default());
    Ok(())
}

/// Bytes of the open windows, how many there are, and the batches granted and not acknowledged.
fn measure(bench: &Bench, job: &JobName) -> (usize, u64, u64) {
    let job = &bench.state.jobs[job];
    let bytes = job.passes.values().map(Pass::memory).sum();
    let windows = job.passes.values().map(|p| p.windows.len() as u64).sum();
    (bytes, windows, job.open_visits())
}

fn report(bench: &Bench, mut m: Measured, settling: Duration, (bytes, windows, open): (usize, u64, u64)) {
    m.grants.sort_unstable();
    let at = |percent: usize| f64::from(m.grants[(m.grants.len() - 1) * percent / 1_000]) / 1_000.0;
    let whole = m.taken_up + settling;
    let rate = |n: u64, time: Duration| n as f64 / time.as_secs_f64();
    println!(
        "{} batches granted, sent and acknowledged in {:.2} s: {:.0} batches/s",
        m.granted,
        whole.as_secs_f64(),
        rate(m.granted, whole)
    );
    println!(
        "  {:.0} grants/s; a grant (decide, encode, apply) p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us",
        rate(m.grants.len() as u64, whole),
        at(500),
        at(990),
        at(999)
    );
    println!("  encoding took {:.2} s, ticks and watermarks {:.2} s of it", bench.encoding.as_secs_f64(), settling.as_secs_f64());
    println!(
        "  journal: {:.1} bytes and {:.3} entries per batch",
        bench.journal_bytes as f64 / m.granted as f64,
        bench.entries as f64 / m.granted as f64
    );
    println!("  state: {bytes} bytes for {windows} open windows and {open} batches granted and not acknowledged");
    let beside = bytes as f64 - 8.0 * open as f64;
    println!(
        "  that is {:.0} bytes per window beside 8 per batch, or {:.1} bytes per batch in all",
        beside / windows as f64,
        bytes as f64 / open as f64
    );
}
