//! Journal entries as bytes: what this version writes must decode for ever.

use super::super::*;
use super::world::*;
use crate::error::{Error, Kind};
use crate::ids::*;
use crate::job::{Assignment, End, JobSettings, Passes, Steps, Visitation};
use crate::view::{JobView, ViewSelection};

fn changes() -> Vec<Change> {
    let (d, j, w, c) = (dataset("digits"), job("run1"), worker("w-1"), consumer("host-0"));
    let (run, epoch, task, attempt, pass) = (RunId(4), EpochId(1), TaskId(2), Attempt(3), PassId(5));
    let lease = TaskLease { dataset: d.clone(), run, epoch, task, attempt, worker: w.clone(), spec: run_spec("digits", "f", 1).into() };
    let spec = Box::new(run_spec("digits", "f", 3));
    vec![
        Change::Lead { address: Some("127.0.0.1:7070".into()) },
        Change::RunStarted { dataset: d.clone(), run, spec, epochs: vec![epoch], replace: false },
        Change::RunExtended { dataset: d.clone(), run, epochs: vec![EpochId(2)] },
        Change::RunResumed { dataset: d.clone(), run, epochs: vec![epoch] },
        Change::RunInterrupted { dataset: d.clone(), run },
        Change::RunCancelled { dataset: d.clone(), run },
        Change::RunFailed { dataset: d.clone(), run, error: Error::bad_input("row 7").with_remedy("mend it") },
        Change::TaskLeased { dataset: d.clone(), run, epoch, task, attempt, worker: w.clone() },
        Change::TaskReturned { dataset: d.clone(), run, epoch, task, attempt, error: Some(Error::internal("network")) },
        Change::TaskReturned { dataset: d.clone(), run, epoch, task, attempt, error: None },
        Change::TaskStaged {
            dataset: d.clone(),
            run,
            epoch,
            task,
            attempt,
            shards: shards(&lease, 7),
            quarantined: Quarantined { rows: 1, path: Some("q".into()) },
        },
        Change::Publishing { dataset: d.clone(), run, epoch, version: VersionId(9), body: "{\"add\":{}}\n".into() },
        Change::Published { dataset: d.clone(), run, epoch, version: VersionId(9) },
        Change::DatasetDropped { dataset: d },
        Change::JobCreated {
            settings: Box::new(settings("run1", "digits", 64, Passes::List(vec![0, 2]))),
            incarnation: Incarnation(1),
            epochs: vec![EpochId(0), epoch],
            restored: None,
        },
        Change::ConsumerJoined { job: j.clone(), consumer: c.clone(), rank: Some(0), acks_by_action: true, session: None },
        Change::ConsumerGone { job: j.clone(), consumer: c.clone(), reason: Reason::ConsumerDied },
        Change::StreamOpened { job: j.clone(), stream: StreamId::new(8), consumer: c.clone(), worker: w.clone(), acks: true },
        Change::StreamClosed { job: j.clone(), stream: StreamId::new(8), clean: true },
        Change::PassStarted { job: j.clone(), pass, shape: PassShape { selection: Some("s".into()), ..shape(1_797, 2, 64, 1) } },
        Change::WindowLeased { job: j.clone(), pass, window: WindowId(3), worker: w.clone(), attempt },
        Change::Granted { job: j.clone(), pass, window: WindowId(3), stream: StreamId::new(8), from: 0, to: 2 },
        Change::Sent { job: j.clone(), pass, stream: StreamId::new(8), batches: vec![(BatchId(6), 0xdead_beef)] },
        Change::Acknowledged { job: j.clone(), pass, consumer: c.clone(), batches: vec![(BatchId(6), None), (BatchId(7), Some(1))] },
        Change::WorkerGone { job: j.clone(), worker: w },
        Change::ConsumerAdvanced { job: j.clone(), consumer: c, at: 1 },
        Change::PassEnded { job: j.clone(), pass },
        Change::JobEnded { job: j.clone(), end: JobEnd::Failed(Error::not_found("gone")) },
        Change::JobEnded { job: j.clone(), end: JobEnd::Finished },
        Change::Watermark {
            job: j.clone(),
            pass,
            windows: vec![WindowId(3)],
            parts: Vec::new(),
            ledger: vec!["a.parquet".into()],
            number: 2,
        },
    ]
    .into_iter()
    .chain(redelivery_changes())
    .chain(staged_changes())
    .collect()
}

/// Written since jobs redeliver, have ranks and commit.
fn redelivery_changes() -> Vec<Change> {
    let (j, c, pass) = (job("run1"), consumer("host-0"), PassId(5));
    let mut taken = Ranges::up_to(3);
    taken.insert(7, 9);
    let token = Token::Commit { incarnation: Incarnation(1), commit: 4 };
    let done = CommittedPass { pass, shape: Some(shape(1_797, 2, 64, 1)), taken };
    let restored = Restored { token, attempt: Some("a".into()), place: 5, pass: Some(done), joined: Default::default() };
    let ranked = JobSettings {
        assignment: Assignment::Rounds,
        visitation: Visitation::ExactlyOnce,
        world_size: Some(2),
        steps: Steps::Equal,
        end: End::Pad,
        kept_commits: 7,
        ..settings("run1", "digits", 64, Passes::Forever)
    };
    vec![
        Change::JobCreated {
            settings: Box::new(ranked),
            incarnation: Incarnation(2),
            epochs: vec![EpochId(0)],
            restored: Some(Box::new(restored)),
        },
        Change::ConsumerJoined { job: j.clone(), consumer: c.clone(), rank: Some(1), acks_by_action: false, session: Some(Session(77)) },
        Change::ConsumerGone { job: j.clone(), consumer: c.clone(), reason: Reason::Replaced },
        Change::Reported {
            job: j.clone(),
            consumer: c.clone(),
            number: 2,
            streams: vec![StreamId::new(8)],
            received: vec![(pass, vec![BatchId(6), BatchId(9)])],
        },
        Change::Padded { job: j.clone(), pass, stream: StreamId::new(8), batch: BatchId(1) },
        Change::EndMoved { job: j.clone(), pass, steps: 12 },
        Change::RankDropped { job: j.clone(), rank: 1, from: Some((pass, BatchId(10))), end: Some(11) },
        Change::RankDropped { job: j.clone(), rank: 1, from: None, end: None },
        Change::CommitCalled { job: j.clone(), consumer: c, commit: 4, call: 1 },
        Change::Committed { job: j.clone(), commit: 4, place: 5, next: Some(12), uneven: None },
        Change::Committed { job: j.clone(), commit: 5, place: 5, next: None, uneven: Some("rank 0 is at step 3, others at step 2".into()) },
        Change::JobEnded { job: j.clone(), end: JobEnd::Restored },
        Change::JobCreated { settings: Box::new(of_view()), incarnation: Incarnation(0), epochs: vec![EpochId(0)], restored: None },
        Change::Watermark {
            job: j,
            pass,
            windows: Vec::new(),
            parts: vec![(WindowId(3), vec![(0, 2), (5, 6)])],
            ledger: vec!["b.parquet".into()],
            number: 3,
        },
    ]
}

/// Written since jobs follow epochs that are being written.
fn staged_changes() -> Vec<Change> {
    let (job, pass) = (job("run1"), PassId(5));
    let mut blocks = crate::plan::Blocks::default();
    for rows in [100, 60, 70] {
        blocks.push(rows, 128).unwrap();
    }
    let begun = PassShape {
        version: None,
        rows: 0,
        growth: Some(Growth { run: RunId(4), next: 1, blocks: Default::default() }),
        ..shape(0, 2, 64, 1)
    };
    let grown = PassShape { rows: 128, growth: Some(Growth { run: RunId(4), next: 3, blocks }), ..begun.clone() };
    let published = PassShape { version: Some(VersionId(9)), rows: 230, growth: None, ..begun.clone() };
    vec![
        Change::PassStarted { job: job.clone(), pass, shape: begun },
        Change::PassGrown { job: job.clone(), pass, shape: grown },
        Change::PassGrown { job, pass, shape: published },
    ]
}

/// A job that was opened by a view.
fn of_view() -> JobSettings {
    let (filter, columns) = (Some("label > 3".to_owned()), Some(vec!["label".to_owned()]));
    let selection = ViewSelection { dataset: dataset("digits"), version: None, columns: columns.clone(), filter: filter.clone() };
    let view = JobView { name: ViewName("hard".into()), selection };
    JobSettings { view: Some(Box::new(view)), filter, columns, ..settings("run2", "digits", 64, Passes::All) }
}

#[test]
fn entries_are_written_as_they_always_were() {
    let golden = include_str!("entries_v1.jsonl");
    let entries: Vec<_> = changes().into_iter().map(|change| Entry { v: 1, fence: Fence(12), at_ms: 1_700_000_000_000, change }).collect();
    let written: String = entries.iter().map(|e| String::from_utf8(e.encode().unwrap()).unwrap() + "\n").collect();
    if std::env::var_os("FOREBAY_WRITE_GOLDEN").is_some() {
        std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/dispatch/tests/entries_v1.jsonl"), &written).unwrap();
        return;
    }
    for (line, entry) in golden.lines().zip(&entries) {
        assert_eq!(&Entry::decode(line.as_bytes()).unwrap(), entry, "an old entry means something else now");
    }
    assert_eq!(written, golden, "a journal written now differs; only add fields with defaults, and a new golden file");
}

#[test]
fn entries_of_the_future_and_garbage_are_refused() {
    let newer = br#"{"v":2,"fence":1,"at_ms":0,"change":{"something_new":{}}}"#;
    assert_eq!(Entry::decode(newer).unwrap_err().kind, Kind::Unsupported);
    assert_eq!(Entry::decode(b"{}").unwrap_err().kind, Kind::Corrupt);
    assert_eq!(Entry::decode(b"\xff").unwrap_err().kind, Kind::Corrupt);
}
