//! The benchmark of the dispatcher's core, over a journal in memory or one that is handed in (`tests/examples/journal_scale.rs`).

#![allow(
    clippy::disallowed_methods,
    clippy::disallowed_types,
    clippy::cast_precision_loss,
    reason = "a measurement needs a real clock and the size of its own process, and prints ratios"
)]

use std::error::Error;
use std::time::{Duration, Instant};

use forebay_core::dispatch::{
    Action, Entry, Event, Granted, Now, OpenedJob, Pass, PassAnswer, PassShape, Reply, State, StoredDataset, StreamId, Volatile, apply,
    check, decide, entries_per_state,
};
use forebay_core::ids::{BatchId, ConsumerName, DatasetName, EpochId, Fence, JobName, PassId, VersionId, WorkerName};
use forebay_core::job::{ConsumerSettings, JobSettings};

pub(crate) type Result<T> = std::result::Result<T, Box<dyn Error>>;

const PER_WINDOW: u64 = 1_000;
/// Events that the shell takes at once.
const GROUP: u64 = 1_024;
/// Entries after which the shell writes the state down, where it is small.
const COMPACT_AFTER: u64 = 4_096;
/// About as long as a group takes: timers are looked at as often as in a server.
const GROUP_MS: u64 = 5;

/// Durations of one kind of call, in nanoseconds.
#[derive(Default)]
struct Calls(Vec<u32>);

impl Calls {
    fn took(&mut self, start: Instant) {
        self.0.push(u32::try_from(start.elapsed().as_nanos()).unwrap_or(u32::MAX));
    }

    fn print(&mut self, what: &str) {
        self.0.sort_unstable();
        let last = self.0.len().saturating_sub(1);
        let at = |thousandth: usize| self.0.get(last * thousandth / 1_000).map_or(0.0, |n| f64::from(*n) / 1_000.0);
        println!(
            "  {what}: {} calls, p50 {:.1} us, p99 {:.1} us, p99.9 {:.1} us, longest {:.0} us",
            self.0.len(),
            at(500),
            at(990),
            at(999),
            at(1_000)
        );
    }
}

/// The newest state that was written down, and the entries after it.
pub(crate) type Kept = (Option<Vec<u8>>, Vec<Vec<u8>>);

/// A journal that outlives the process.
pub(crate) trait Keep {
    /// Returns when the entries are durable.
    fn append(&mut self, entries: Vec<Vec<u8>>) -> Result<()>;
    /// Puts a state in the place of all entries so far.
    fn compact(&mut self, state: &[u8]) -> Result<()>;
    /// The state that was written last, if one was, and the entries after it, as the next leader reads them.
    fn load(&mut self) -> Result<Kept>;
}

struct Bench {
    keep: Option<Box<dyn Keep>>,
    /// Entries of the log that the kept journal has.
    kept: usize,
    durable: Calls,
    state: State,
    volatile: Volatile,
    /// Virtual: a loaded machine must not make leases run out.
    mono_ms: u64,
    shape: PassShape,
    actions: Vec<Action>,
    events: u64,
    entries: u64,
    journal_bytes: u64,
    encoding: Duration,
    settling: Duration,
    ledger_files: u64,
    ledger_rows: u64,
    /// The state as it was last written down, and the entries after it.
    snapshot: Vec<u8>,
    log: Vec<Vec<u8>>,
    snapshots: u64,
    snapshot_bytes: u64,
    snapshotting: Duration,
}

impl Bench {
    fn new(shape: PassShape, keep: Option<Box<dyn Keep>>) -> Self {
        Self {
            keep,
            kept: 0,
            durable: Calls::default(),
            state: State::default(),
            volatile: Volatile::new(20_000),
            mono_ms: 0,
            shape,
            actions: Vec::new(),
            events: 0,
            entries: 0,
            journal_bytes: 0,
            encoding: Duration::ZERO,
            settling: Duration::ZERO,
            ledger_files: 0,
            ledger_rows: 0,
            snapshot: b"{\"fence\":0,\"leader\":null,\"datasets\":{},\"jobs\":{},\"next_run\":0,\"next_stream\":0}".to_vec(),
            log: Vec::new(),
            snapshots: 0,
            snapshot_bytes: 0,
            snapshotting: Duration::ZERO,
        }
    }

    fn now(&self) -> Now {
        Now { wall_ms: 1_700_000_000_000 + i64::try_from(self.mono_ms).unwrap_or(0), mono_ms: self.mono_ms }
    }

    fn decide(&mut self, event: Event) -> Result<Reply> {
        let now = self.now();
        let decision = decide(&self.state, &mut self.volatile, now, event)?;
        for entry in &decision.entries {
            let start = Instant::now();
            let bytes = entry.encode()?;
            self.encoding += start.elapsed();
            self.journal_bytes += bytes.len() as u64;
            self.entries += 1;
            self.log.push(bytes);
            apply(&mut self.state, entry);
        }
        self.actions.extend(decision.actions);
        Ok(decision.reply)
    }

    fn send(&mut self, event: Event) -> Result<Reply> {
        let reply = self.decide(event)?;
        self.events += 1;
        if self.events.is_multiple_of(GROUP) {
            self.settle()?;
        }
        Ok(reply)
    }

    /// The end of a group of events: a tick and what it asks for, and the state when it is due.
    fn settle(&mut self) -> Result<()> {
        let start = Instant::now();
        self.mono_ms += GROUP_MS;
        self.decide(Event::Tick)?;
        for action in std::mem::take(&mut self.actions) {
            match action {
                Action::ShapePass { job, incarnation, pass, .. } => {
                    let answer = Ok(PassAnswer::Shape(self.shape.clone()));
                    self.decide(Event::PassShaped { job, incarnation, pass, answer })?;
                }
                Action::WriteLedger { job, incarnation, number, windows, rows } => {
                    self.ledger_files += 1;
                    self.ledger_rows += rows.len() as u64;
                    let result = Ok(vec![format!("{number}.parquet")]);
                    self.decide(Event::LedgerWritten { job, incarnation, number, windows, result })?;
                }
                _ => {}
            }
        }
        self.settling += start.elapsed();
        self.make_durable()?;
        if self.log.len() as u64 >= entries_per_state(COMPACT_AFTER, self.snapshot.len()) {
            let start = Instant::now();
            self.snapshot = serde_json::to_vec(&self.state)?;
            if let Some(keep) = &mut self.keep {
                keep.compact(&self.snapshot)?;
            }
            self.log.clear();
            self.kept = 0;
            self.snapshots += 1;
            self.snapshot_bytes += self.snapshot.len() as u64;
            self.snapshotting += start.elapsed();
        }
        Ok(())
    }

    /// Writes what the group decided: nobody is answered before.
    fn make_durable(&mut self) -> Result<()> {
        let Some(keep) = self.keep.as_mut().filter(|_| self.kept < self.log.len()) else { return Ok(()) };
        let start = Instant::now();
        keep.append(self.log[self.kept..].to_vec())?;
        self.durable.took(start);
        self.kept = self.log.len();
        Ok(())
    }

    /// What a new leader does first.
    fn replay(&mut self) -> Result<()> {
        self.make_durable()?;
        let start = Instant::now();
        let loaded = self.keep.as_mut().map(|keep| keep.load()).transpose()?;
        if loaded.is_some() {
            println!("  the journal read back in {:.0} ms", start.elapsed().as_secs_f64() * 1e3);
        }
        let (snapshot, log) =
            loaded.as_ref().map_or((&self.snapshot, &self.log), |(snapshot, log)| (snapshot.as_ref().unwrap_or(&self.snapshot), log));
        let start = Instant::now();
        let mut state: State = serde_json::from_slice(snapshot)?;
        let read = start.elapsed();
        for bytes in log {
            apply(&mut state, &Entry::decode(bytes)?);
        }
        let bytes = log.iter().map(Vec::len).sum::<usize>();
        println!(
            "  replay: a state of {} bytes in {:.0} ms, then {} entries of {bytes} bytes in {:.0} ms",
            snapshot.len(),
            read.as_secs_f64() * 1e3,
            log.len(),
            (start.elapsed() - read).as_secs_f64() * 1e3
        );
        if state != self.state {
            return Err("the fold of the journal is not the state".into());
        }
        Ok(())
    }

    fn job(&self) -> Result<&forebay_core::dispatch::Job> {
        self.state.jobs.values().next().ok_or_else(|| "there is no job".into())
    }
}

struct Consumer {
    name: ConsumerName,
    worker: WorkerName,
    job: OpenedJob,
    stream: StreamId,
    /// Granted and not sent, sent and not acknowledged.
    granted: Option<std::ops::Range<u64>>,
    sent: Option<std::ops::Range<u64>>,
    over: bool,
}

fn join(bench: &mut Bench, settings: &JobSettings, consumer: u64, workers: u64) -> Result<Consumer> {
    let name = ConsumerName(format!("host-{consumer}"));
    let consumer_settings = ConsumerSettings { consumer: name.clone(), rank: None, acks_by_action: false, restart: false };
    let stored = StoredDataset {
        version: VersionId(0),
        epochs: vec![EpochId(0)],
        fingerprint: "f".into(),
        pipeline: None,
        parts: Default::default(),
    };
    let (settings, stored) = (Box::new(settings.clone()), Some(Box::new(stored)));
    let Reply::Job(job) = bench.send(Event::OpenJob { settings, consumer: Box::new(consumer_settings), stored })? else {
        return Err("not opened".into());
    };
    let worker = WorkerName(format!("worker-{}", consumer % workers));
    let (incarnation, consumer) = (job.incarnation, name.clone());
    let open = Event::OpenStream { job: job.job.clone(), incarnation, consumer, worker: worker.clone(), acks: true };
    let Reply::Stream(stream) = bench.send(open)? else { return Err("no stream".into()) };
    Ok(Consumer { name, worker, job, stream, granted: None, sent: None, over: false })
}

#[derive(Default)]
struct Measured {
    granted: u64,
    grants: Calls,
    sents: Calls,
    acks: Calls,
    beats: Calls,
    closes: Calls,
}

/// A consumer's turn: its stream asks for the next block while the one before is sent, and the one before that is acknowledged.
fn turn(bench: &mut Bench, c: &mut Consumer, block: u64, m: &mut Measured) -> Result<()> {
    let job = c.job.job.clone();
    let start = Instant::now();
    let reply = bench.send(Event::NextGrant { job: job.clone(), stream: c.stream, max_batches: block, received: None })?;
    m.grants.took(start);
    let next = match reply {
        Reply::Granted(Granted::Batches(grant)) => {
            m.granted += grant.batches.end - grant.batches.start;
            Some(grant.batches)
        }
        Reply::Granted(Granted::EndOfJob) => {
            c.over = true;
            None
        }
        _ => None,
    };
    let sent = std::mem::replace(&mut c.granted, next);
    if let Some(sent) = sent.clone() {
        let batches = sent.map(|b| (BatchId(b), b.wrapping_mul(0x9E37_79B9_7F4A_7C15))).collect();
        let start = Instant::now();
        bench.send(Event::Sent { job: job.clone(), stream: c.stream, pass: PassId(0), batches })?;
        m.sents.took(start);
    }
    if let Some(taken) = std::mem::replace(&mut c.sent, sent) {
        let batches = taken.map(|b| (BatchId(b), None)).collect();
        let (incarnation, consumer) = (c.job.incarnation, c.name.clone());
        let start = Instant::now();
        bench.send(Event::Acknowledge { job, incarnation, consumer, pass: PassId(0), batches })?;
        m.acks.took(start);
    }
    if c.over && c.granted.is_none() && c.sent.is_none() {
        let start = Instant::now();
        bench.send(Event::CloseStream { job: c.job.job.clone(), stream: c.stream, clean: true })?;
        bench.send(Event::LeaveJob { job: c.job.job.clone(), consumer: c.name.clone() })?;
        m.closes.took(start);
    }
    Ok(())
}

/// Turns until everybody is done. In the middle, how large everything is.
fn run(bench: &mut Bench, mut consumers: Vec<Consumer>, (batches, block): (u64, u64), resident: u64) -> Result<Measured> {
    let mut m = Measured::default();
    let calls = usize::try_from(2 * batches / block)?;
    for calls_of in [&mut m.grants, &mut m.sents, &mut m.acks] {
        // Written to, so that it does not count as growth later.
        calls_of.0 = vec![1; calls];
        calls_of.0.clear();
    }
    let base = resident_bytes() - resident.min(resident_bytes());
    let mut sized = false;
    while !consumers.is_empty() {
        for (index, c) in consumers.iter_mut().enumerate() {
            if index.is_multiple_of(16) {
                let start = Instant::now();
                bench.send(Event::WorkerBeat { worker: c.worker.clone() })?;
                m.beats.took(start);
            }
            turn(bench, c, block, &mut m)?;
        }
        if !sized && m.granted > batches / 2 {
            sized = true;
            sizes(bench, resident + base)?;
        }
        consumers.retain(|c| !(c.over && c.granted.is_none() && c.sent.is_none()));
    }
    Ok(m)
}

/// Bytes of this process in memory; 0 where the system does not say.
fn resident_bytes() -> u64 {
    let pages = std::fs::read_to_string("/proc/self/statm").ok().and_then(|s| s.split(' ').nth(1).and_then(|n| n.parse::<u64>().ok()));
    pages.unwrap_or(0) * 4_096
}

/// Seconds of processor time that this process took; 0 where the system does not say.
fn processor_seconds() -> f64 {
    let stat = std::fs::read_to_string("/proc/self/stat").unwrap_or_default();
    let fields: Vec<&str> = stat.rsplit(')').next().unwrap_or_default().split_whitespace().collect();
    let ticks = |index: usize| fields.get(index).and_then(|n| n.parse::<f64>().ok()).unwrap_or(0.0);
    (ticks(11) + ticks(12)) / 100.0
}

fn sizes(bench: &mut Bench, before: u64) -> Result<()> {
    let job = bench.job()?;
    let windows = job.passes.values().map(|p| p.windows.len() as u64).sum::<u64>();
    let bytes = job.passes.values().map(Pass::memory).sum::<usize>() + job.streams.lease_memory();
    let open = job.open_visits();
    println!("in the middle of the pass:");
    println!("  {windows} open windows, {open} batches granted and not acknowledged, of these {} sent", job.counts().sent);
    println!(
        "  windows: {bytes} bytes; less 8 for each of those batches {:.0} bytes a window",
        (bytes as f64 - 8.0 * open as f64) / windows as f64
    );
    println!("  streams and consumers: {:.0} bytes each", job.streams.memory() as f64 / job.streams.len() as f64);
    let log: usize = bench.log.iter().map(|e| e.capacity() + size_of::<Vec<u8>>()).sum::<usize>() + bench.snapshot.capacity();
    let grown = resident_bytes().saturating_sub(before);
    println!(
        "  the process grew by {:.1} MB since all had joined; {:.1} MB of that is the journal kept here",
        mega(grown),
        mega(log as u64)
    );
    bench.replay()?;
    check(&bench.state)?;
    Ok(())
}

fn mega(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

/// `[smoke] [CONSUMERS WORKERS BATCHES [BLOCK]]`.
pub(crate) fn measure(arguments: &[String], keep: Option<Box<dyn Keep>>) -> Result<()> {
    let smoke = arguments.iter().any(|a| a == "smoke");
    let numbers: Vec<u64> =
        arguments.iter().filter(|a| *a != "smoke").map(|a| a.replace(['_', ','], "").parse()).collect::<std::result::Result<_, _>>()?;
    let pick = |index: usize, small: u64, default: u64| numbers.get(index).copied().unwrap_or(if smoke { small } else { default });
    let (consumers, workers) = (pick(0, 200, 10_000), pick(1, 20, 1_000).max(1));
    let (batches, block) = (pick(2, 200_000, 10_000_000), pick(3, 16, 16).max(1));
    let settings = JobSettings { batch_size: 1, ..JobSettings::new(JobName::parse("run1")?, DatasetName::parse("digits")?) };
    let shape = PassShape {
        version: Some(VersionId(0)),
        epoch: EpochId(0),
        rows: batches,
        window_rows: PER_WINDOW,
        batches_per_window: PER_WINDOW,
        selection: None,
        growth: None,
    };
    let mut bench = Bench::new(shape, keep);
    bench.decide(Event::Lead { fence: Fence(1), address: None, workers_died: false, continue_runs: true })?;
    let start = Instant::now();
    let joined = (0..consumers).map(|consumer| join(&mut bench, &settings, consumer, workers)).collect::<Result<Vec<_>>>()?;
    println!("{consumers} consumers on {workers} workers joined in {:.2} s", start.elapsed().as_secs_f64());
    let first = joined.first().ok_or("nobody joined")?;
    bench.decide(Event::NextGrant { job: first.job.job.clone(), stream: first.stream, max_batches: 1, received: None })?;
    bench.settle()?;
    bench.settle()?;
    (bench.journal_bytes, bench.entries, bench.encoding, bench.settling) = (0, 0, Duration::ZERO, Duration::ZERO);
    (bench.snapshots, bench.snapshot_bytes, bench.snapshotting) = (0, 0, Duration::ZERO);
    bench.durable.0.clear();
    let resident = resident_bytes();
    let (start, processor) = (Instant::now(), processor_seconds());
    let m = run(&mut bench, joined, (batches, block), resident)?;
    report(&mut bench, m, start.elapsed(), processor_seconds() - processor)
}

fn report(bench: &mut Bench, mut m: Measured, whole: Duration, processor: f64) -> Result<()> {
    for _ in 0..4 {
        bench.settle()?;
    }
    let seconds = whole.as_secs_f64();
    println!("{} batches granted, sent and acknowledged in {seconds:.2} s: {:.0} batches/s", m.granted, m.granted as f64 / seconds);
    if processor > 0.0 {
        println!(
            "  {:.0} batches per second of processor time ({processor:.2} s), which is what a busy machine says",
            m.granted as f64 / processor
        );
    }
    println!("each call is decided, encoded and applied; every {GROUP}th settles its group, the longest write the state down:");
    m.grants.print("grant");
    m.sents.print("sent");
    m.acks.print("acknowledge");
    m.beats.print("heartbeat");
    m.closes.print("close and leave");
    if bench.keep.is_some() {
        println!("each group of {GROUP} is answered when its entries are durable:");
        bench.durable.print("write of a group");
    }
    println!(
        "  of the time: encoding {:.2} s, ticks and ledger rows {:.2} s, {} states of {:.1} MB {:.2} s",
        bench.encoding.as_secs_f64(),
        bench.settling.as_secs_f64(),
        bench.snapshots,
        mega(bench.snapshot_bytes / bench.snapshots.max(1)),
        bench.snapshotting.as_secs_f64()
    );
    let each = |n: u64| n as f64 / m.granted as f64;
    println!(
        "  journal: {:.1} bytes and {:.3} entries per batch, and {:.1} bytes of states",
        each(bench.journal_bytes),
        each(bench.entries),
        each(bench.snapshot_bytes)
    );
    println!("  ledger: {} files with {} rows", bench.ledger_files, bench.ledger_rows);
    println!("at the end:");
    bench.replay()?;
    check(&bench.state)?;
    let counts = bench.job()?.counts();
    if (counts.acknowledged, bench.ledger_rows) != (m.granted, m.granted) || counts.total() != m.granted {
        return Err(format!("{} batches were granted, {counts:?} counted, {} are in the ledger", m.granted, bench.ledger_rows).into());
    }
    Ok(())
}
