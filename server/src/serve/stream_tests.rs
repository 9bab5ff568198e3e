#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::fixture::{Fixture, ROOMY, Shape, settings};
use super::super::pass::{PassPlan, store_selection};
use super::super::{Acks, Reader, ServeLimits, Serving};
use crate::dispatcher::{CommitOutcome, CommitRequest, Dispatcher, JobInfo, Member, OpenedJob, Planner, StoredDataset};
use crate::engine::View;
use crate::metrics::Metrics;
use arrow::array::{AsArray, RecordBatch};
use arrow::compute::interleave_record_batch;
use arrow::datatypes::Int64Type;
use async_trait::async_trait;
use forebay_core::digest::{JobDigest, from_hex};
use forebay_core::dispatch::{PassAnswer, VisitState};
use forebay_core::ids::{ConsumerName, DatasetName, EpochId, PassId, VersionId, WorkerName};
use forebay_core::job::{ConsumerSettings, End as JobEnd, JobSettings, Passes};
use forebay_core::plan::{Bitmap, Selection};
use forebay_core::random::Rng;
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::{BatchMeta, ConsumerMessage, End};
use forebay_flight::backend::{BatchPart, JobEvent, JobStream};
use forebay_storage::journal::Journal;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

/// Plans passes of stored datasets; nothing is materialized here. The filter `even` keeps the even ids.
#[derive(Debug)]
struct StoredOnly(View);

#[async_trait]
impl Planner for StoredOnly {
    async fn stored(&self, dataset: &DatasetName, version: Option<VersionId>) -> Result<Option<StoredDataset>> {
        let found = self.0.version(dataset, version).await?;
        let (version, epochs) = (found.version, found.epochs());
        Ok(Some(StoredDataset { version, epochs, fingerprint: String::new(), pipeline: None, parts: BTreeMap::new() }))
    }

    async fn pass_shape(&self, settings: &JobSettings, pass: PassId, epochs: &[EpochId]) -> Result<PassAnswer> {
        let version = self.0.version(&settings.dataset, settings.version).await?;
        let epoch = epochs[pass.0 as usize % epochs.len()];
        let selection = match settings.filter.as_deref() {
            None => None,
            Some(_) => {
                let mut id = 0;
                let bitmaps = version.row_groups(epoch).into_iter().map(|(_, _, group)| {
                    let mut bitmap = Bitmap::new();
                    for _ in 0..group.rows {
                        bitmap.push(id % 2 == 0).unwrap();
                        id += 1;
                    }
                    bitmap
                });
                let selection = Selection::from_bitmaps(bitmaps.collect::<Vec<_>>());
                store_selection(self.0.root(), &settings.job, "selections/0.bin", &selection).await?;
                Some(("selections/0.bin".to_owned(), Arc::new(selection)))
            }
        };
        Ok(PassAnswer::Shape(PassPlan::new(version, epoch, pass, settings, selection)?.shape()))
    }

    async fn commit_body(&self, _: &CommitRequest) -> Result<(VersionId, String)> {
        Err(Error::internal("not here"))
    }

    async fn commit_at(&self, _: &DatasetName, _: VersionId, _: &str) -> Result<CommitOutcome> {
        Err(Error::internal("not here"))
    }
}

/// A root with one dataset, its dispatcher on a real journal, and a worker.
struct Running {
    fixture: Fixture,
    reader: Arc<Reader>,
    serving: Arc<Serving>,
    dispatcher: Dispatcher,
}

impl Running {
    async fn new(shape: Shape, limits: ServeLimits) -> Self {
        let fixture = Fixture::new(shape).await;
        let reader = fixture.reader(limits);
        let planner = Arc::new(StoredOnly(View::new(fixture.root.clone())));
        let journal = Journal::open(&fixture.root).await.unwrap();
        let (dispatcher, _, _) = Dispatcher::start(journal, fixture.root.clone(), planner, "grpc://127.0.0.1:1").await.unwrap();
        let serving = Serving::new(reader.clone(), dispatcher.clone(), WorkerName("w".to_owned()), Metrics::new().unwrap());
        Self { fixture, reader, serving, dispatcher }
    }

    async fn join(&self, settings: &JobSettings, consumer: &str) -> OpenedJob {
        let consumer = ConsumerSettings { consumer: ConsumerName(consumer.to_owned()), rank: None, acks_by_action: false, restart: false };
        self.dispatcher.open_job(settings.clone(), consumer, None).await.unwrap()
    }

    async fn stream(&self, settings: &JobSettings, consumer: &str, acks: Acks) -> Box<dyn JobStream> {
        let opened = self.join(settings, consumer).await;
        self.serving.open_stream(Arc::new(settings.clone()), Member::of(&opened, consumer), acks).await.unwrap()
    }

    async fn info(&self, settings: &JobSettings) -> JobInfo {
        self.dispatcher.job_status(&settings.job).await.unwrap().unwrap()
    }

    /// The job's counts once they are as wanted: a dropped stream is closed in the background.
    async fn counts_become(&self, settings: &JobSettings, wanted: impl Fn(&JobInfo) -> bool) -> JobInfo {
        for _ in 0..200 {
            let info = self.info(settings).await;
            if wanted(&info) {
                return info;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        panic!("the counts stay {:?}", self.info(settings).await.counts);
    }
}

/// What one stream delivered.
#[derive(Default)]
struct Taken {
    metas: Vec<BatchMeta>,
    ids: Vec<Vec<i64>>,
    rows: Vec<RecordBatch>,
}

impl Taken {
    fn add(&mut self, part: &BatchPart) {
        let chunks: Vec<&RecordBatch> = part.chunks.iter().collect();
        let rows: Vec<(usize, usize)> = part.rows.iter().map(|(c, r)| (*c as usize, *r as usize)).collect();
        let batch = interleave_record_batch(&chunks, &rows).unwrap();
        let ids = batch.column_by_name("_id").unwrap().as_primitive::<Int64Type>().values().to_vec();
        assert_eq!(part.meta.rows as usize, ids.len());
        self.metas.push(part.meta.clone());
        self.ids.push(ids);
        self.rows.push(batch);
    }

    fn all_ids(&self) -> Vec<i64> {
        self.ids.concat()
    }
}

async fn drain(stream: &mut dyn JobStream) -> (Taken, End) {
    let mut taken = Taken::default();
    loop {
        match stream.next().await.unwrap() {
            JobEvent::Batch(part) => taken.add(&part),
            JobEvent::End(end) => return (taken, end),
        }
    }
}

fn whole() -> BTreeSet<i64> {
    (0..557).collect()
}

#[tokio::test(flavor = "multi_thread")]
async fn a_plain_consumer_gets_every_row_and_a_clean_end_acknowledges() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let settings = settings();
    let mut stream = running.stream(&settings, "c", Acks::AtEnd).await;
    assert_eq!(stream.schema(), running.fixture.version.schema);
    let (taken, end) = drain(stream.as_mut()).await;
    assert_eq!(end, End::Job, "one epoch is one pass");
    assert_eq!(taken.all_ids().len(), 557);
    assert_eq!(taken.all_ids().into_iter().collect::<BTreeSet<_>>(), whole());
    assert_eq!(running.reader.usage().pinned_bytes, 0, "the end lets go of everything");
    let before = running.info(&settings).await;
    assert_eq!(before.counts.acknowledged, 0, "nothing is acknowledged before the end");
    stream.finish().await.unwrap();
    let after = running.info(&settings).await;
    assert_eq!((after.counts.acknowledged, after.counts.open(), after.counts.lost), (taken.metas.len() as u64, 0, 0));
    let batches: Vec<u64> = taken.metas.iter().map(|m| m.batch).collect();
    assert!(batches.is_sorted() && batches.len() == 35, "{batches:?}");
    assert!(taken.metas.iter().all(|m| m.job == "job" && m.pass == 0 && m.epoch == 0 && m.step.is_none()));
}

/// The same seed gives the same batches to another job, whatever its windows of memory and its consumers; I7 over the whole path.
#[tokio::test(flavor = "multi_thread")]
async fn batches_do_not_depend_on_consumers_or_memory() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let tight = ServeLimits { cache: 0, in_use: 1 };
    let cold = Running::new(Shape::default(), tight).await;
    let mut digests = Vec::new();
    for (running, job, consumers) in [(&running, "one", 1), (&running, "three", 3), (&cold, "cold", 2)] {
        let mut settings = settings();
        settings.job.0 = job.to_owned();
        // All are there before anyone reads: joining a finished job is refused.
        let mut streams = Vec::new();
        for consumer in 0..consumers {
            streams.push(running.stream(&settings, &format!("c{consumer}"), Acks::AtEnd).await);
        }
        let tasks: Vec<_> = streams
            .into_iter()
            .map(|mut stream| {
                tokio::spawn(async move {
                    let (taken, end) = drain(stream.as_mut()).await;
                    stream.finish().await.unwrap();
                    (taken, end)
                })
            })
            .collect();
        let mut digest = JobDigest::new();
        let mut ids = Vec::new();
        for task in tasks {
            let (taken, end) = task.await.unwrap();
            assert_eq!(end, End::Job);
            for meta in &taken.metas {
                digest.push(u64::from(meta.pass), meta.batch, from_hex(&meta.digest).unwrap());
            }
            ids.extend(taken.all_ids());
        }
        assert_eq!(ids.len(), 557, "{job}: each row once");
        assert_eq!(ids.into_iter().collect::<BTreeSet<_>>(), whole());
        let info = running.info(&settings).await;
        assert_eq!((info.counts.acknowledged, info.counts.lost), (35, 0));
        digests.push(digest.finish());
    }
    assert_eq!(digests[0], digests[1]);
    assert_eq!(digests[0], digests[2]);
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stream_is_one_pass_and_the_next_goes_on() {
    let running = Running::new(Shape { epochs: 2, ..Shape::default() }, ROOMY).await;
    let settings = JobSettings { epochs: Passes::Count(3), end: JobEnd::Drop, ..settings() };
    let mut orders = Vec::new();
    for (pass, expected) in [(0, End::Pass), (1, End::Pass), (2, End::Job)] {
        let mut stream = running.stream(&settings, "c", Acks::AtEnd).await;
        let (taken, end) = drain(stream.as_mut()).await;
        stream.finish().await.unwrap();
        assert_eq!(end, expected);
        assert!(taken.metas.iter().all(|m| m.pass == pass && m.epoch == pass % 2));
        assert_eq!(taken.all_ids().len(), 544, "the short batch is dropped");
        orders.push(taken.all_ids());
    }
    assert_ne!(orders[0], orders[2], "the same epoch in another order");
    let info = running.info(&settings).await;
    assert_eq!((info.counts.acknowledged, info.counts.dropped), (3 * 34, 3));
    let consumer = ConsumerSettings { consumer: ConsumerName("c".to_owned()), rank: None, acks_by_action: false, restart: false };
    assert_eq!(running.dispatcher.open_job(settings, consumer, None).await.unwrap_err().kind, Kind::FailedPrecondition);
}

/// A broken stream loses what it was sent, frees its memory, and leaves the rest to others.
#[tokio::test(flavor = "multi_thread")]
async fn a_dropped_stream_frees_everything_and_its_batches_are_lost() {
    let running = Running::new(Shape::default(), ServeLimits { cache: 0, in_use: 64 << 20 }).await;
    let settings = settings();
    let mut broken = running.stream(&settings, "broken", Acks::AtEnd).await;
    let mut other = running.stream(&settings, "other", Acks::AtEnd).await;
    let mut gone = Taken::default();
    for _ in 0..5 {
        if let JobEvent::Batch(part) = broken.next().await.unwrap() {
            gone.add(&part);
        }
    }
    assert!(running.reader.usage().pinned_bytes > 0);
    drop(broken);
    let info = running.counts_become(&settings, |info| info.counts.lost >= 5).await;
    let lost = info.counts.lost;
    assert!(lost < 20, "it lost what it held, not the pass: {lost}");
    let (taken, end) = drain(other.as_mut()).await;
    other.finish().await.unwrap();
    assert_eq!(end, End::Job);
    let info = running.info(&settings).await;
    assert_eq!((info.counts.acknowledged, info.counts.lost), (35 - lost, lost));
    assert!(taken.all_ids().iter().all(|id| !gone.all_ids().contains(id)), "nothing twice");
    for _ in 0..100 {
        if running.reader.usage() == Default::default() {
            return;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    panic!("memory is still held: {:?}", running.reader.usage());
}

fn ack(batches: &[u64]) -> ConsumerMessage {
    ConsumerMessage { ack: batches.to_vec(), ..ConsumerMessage::default() }
}

#[tokio::test(flavor = "multi_thread")]
async fn acknowledgements_on_the_stream_count_batch_by_batch() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let settings = settings();
    let mut stream = running.stream(&settings, "c", Acks::Stream).await;
    let control = stream.control();
    let mut metas = Vec::new();
    for _ in 0..6 {
        if let JobEvent::Batch(part) = stream.next().await.unwrap() {
            metas.push(part.meta);
        }
    }
    control.on_message(ack(&[metas[0].batch, metas[1].batch])).await.unwrap();
    control.on_message(ack(&[metas[2].batch])).await.unwrap();
    running.counts_become(&settings, |info| info.counts.acknowledged == 3).await;
    control.on_message(ConsumerMessage { close: true, ..ack(&[metas[3].batch]) }).await.unwrap();
    drop(control);
    stream.finish().await.unwrap();
    let info = running.info(&settings).await;
    assert_eq!(info.counts.acknowledged, 4);
    assert!(info.counts.lost >= 2 && info.counts.open() == 0, "what was not taken is lost: {:?}", info.counts);
    assert_eq!(info.consumers.len(), 1, "it may come back");
    let visits = running.dispatcher.snapshot().await.unwrap().0;
    let visits = forebay_core::dispatch::system_visits(&visits, Some(&settings.job));
    for meta in &metas[..4] {
        let visit = visits.iter().find(|v| v.batch == meta.batch).unwrap();
        assert_eq!((visit.state, visit.digest), (VisitState::Acknowledged, from_hex(&meta.digest)));
    }
}

/// A consumer may have several connections: the first to hear of the job's end takes nothing from the others.
#[tokio::test(flavor = "multi_thread")]
async fn streams_of_one_consumer_end_one_by_one() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let settings = settings();
    let mut slow = running.stream(&settings, "c", Acks::AtEnd).await;
    let mut fast = running.stream(&settings, "c", Acks::AtEnd).await;
    let mut taken = Taken::default();
    let JobEvent::Batch(part) = slow.next().await.unwrap() else { panic!("a batch was expected") };
    taken.add(&part);
    let (rest, end) = drain(fast.as_mut()).await;
    assert_eq!(end, End::Job);
    fast.finish().await.unwrap();
    let (last, end) = drain(slow.as_mut()).await;
    assert_eq!(end, End::Job);
    slow.finish().await.unwrap();
    let ids: BTreeSet<i64> = [taken.all_ids(), rest.all_ids(), last.all_ids()].concat().into_iter().collect();
    assert_eq!(ids, whole());
    let info = running.info(&settings).await;
    assert_eq!((info.counts.acknowledged, info.counts.lost), (35, 0));
    assert!(info.consumers.is_empty(), "it left with its last stream");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_wrong_acknowledgement_ends_the_stream_with_the_reason() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let mut stream = running.stream(&settings(), "c", Acks::Stream).await;
    let _ = stream.next().await.unwrap();
    stream.control().on_message(ack(&[30])).await.unwrap();
    let mut error = None;
    for _ in 0..35 {
        match stream.next().await {
            Ok(_) => tokio::time::sleep(Duration::from_millis(10)).await,
            Err(e) => {
                error = Some(e);
                break;
            }
        }
    }
    let error = error.unwrap();
    assert_eq!(error.kind, Kind::BadInput);
    assert!(error.message.contains("batch 30"), "{error}");
    assert!(stream.finish().await.is_err());
}

#[tokio::test(flavor = "multi_thread")]
async fn a_stopped_job_ends_its_waiting_stream() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let settings = settings();
    let mut first = running.stream(&settings, "c", Acks::Stream).await;
    let waiting = tokio::spawn(async move {
        // Nothing is acknowledged, so that it ends up waiting for room or for the end of the pass.
        loop {
            match first.next().await {
                Ok(JobEvent::Batch(_)) => {}
                other => return other.map(|_| ()),
            }
        }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    running.dispatcher.stop_job(&settings.job).await.unwrap();
    let told = tokio::time::timeout(Duration::from_secs(10), waiting).await.unwrap().unwrap();
    let error = told.unwrap_err();
    assert!(error.message.contains("stopped"), "{error}");
}

#[tokio::test(flavor = "multi_thread")]
async fn a_filter_is_kept_with_the_pass() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let settings = JobSettings { filter: Some("_id % 2 = 0".to_owned()), ..settings() };
    let mut stream = running.stream(&settings, "c", Acks::AtEnd).await;
    let (taken, _) = drain(stream.as_mut()).await;
    assert_eq!(taken.all_ids().into_iter().collect::<BTreeSet<_>>(), (0..557).filter(|id| id % 2 == 0).collect());
    assert_eq!(taken.all_ids().len(), 279);
}

/// Steps behind the cut give a batch the same rows whichever consumer gets it, and whatever else is asked for.
#[tokio::test(flavor = "multi_thread")]
async fn steps_behind_the_cut_run_batch_by_batch() {
    let behind = vec![("noise", "SELECT value, random_uniform() AS noise FROM input")];
    let running = Running::new(Shape { behind, split: true, ..Shape::default() }, ROOMY).await;
    let mut by_job = Vec::new();
    for (job, columns) in [("whole", None), ("some", Some(vec!["noise".to_owned(), "_id".to_owned()]))] {
        let mut settings = JobSettings { columns, ..settings() };
        settings.job.0 = job.to_owned();
        let mut stream = running.stream(&settings, "c", Acks::AtEnd).await;
        let schema = stream.schema();
        let (taken, _) = drain(stream.as_mut()).await;
        assert!(taken.rows.iter().all(|rows| rows.schema() == schema));
        assert_eq!(taken.all_ids().into_iter().collect::<BTreeSet<_>>(), whole());
        by_job.push(taken.rows.into_iter().map(|rows| rows.column_by_name("noise").unwrap().clone()).collect::<Vec<_>>());
    }
    assert_eq!(by_job[0].len(), 35);
    assert_eq!(by_job[0].iter().map(|c| c.to_data()).collect::<Vec<_>>(), by_job[1].iter().map(|c| c.to_data()).collect::<Vec<_>>());
}

#[tokio::test(flavor = "multi_thread")]
async fn memory_in_use_stays_within_two_windows_of_a_stream() {
    let running = Running::new(Shape { tasks: vec![50; 60], ..Shape::default() }, ServeLimits { cache: 0, in_use: 64 << 20 }).await;
    let settings = settings();
    let mut stream = running.stream(&settings, "c", Acks::AtEnd).await;
    let bytes: u64 = running.fixture.version.shards.iter().flat_map(|s| &s.row_groups).map(|g| g.bytes).sum();
    let mut most = 0;
    while let JobEvent::Batch(_) = stream.next().await.unwrap() {
        most = most.max(running.reader.usage().pinned_bytes);
    }
    // Decoded rows of two windows with the row groups on their edges, and a place for each row.
    assert!(bytes > 8 * settings.window, "the dataset is much larger than a window");
    assert!(most > 0 && most < 8 * settings.window, "{most} of {bytes} bytes");
}

/// One consumer's life: streams that end well, break off, or stop reading, until the job is over. Yields what it received.
async fn live(running: Arc<Running>, settings: JobSettings, name: String, seed: u64) -> Vec<BatchMeta> {
    let mut rng = Rng::new(seed);
    let mut got = Vec::new();
    let acks = if rng.below(2) == 0 { Acks::AtEnd } else { Acks::Stream };
    loop {
        let consumer = ConsumerSettings { consumer: ConsumerName(name.clone()), rank: None, acks_by_action: false, restart: false };
        let Ok(opened) = running.dispatcher.open_job(settings.clone(), consumer, None).await else { return got };
        let opened = running.serving.open_stream(Arc::new(settings.clone()), Member::of(&opened, &name), acks).await;
        let Ok(mut stream) = opened else { return got };
        let control = stream.control();
        let mut left = if rng.below(3) == 0 { rng.below(9) } else { u64::MAX };
        let ended = loop {
            if left == 0 {
                break false;
            }
            left -= 1;
            match stream.next().await.unwrap() {
                JobEvent::End(_) => break true,
                JobEvent::Batch(part) => got.push(part.meta),
            }
            if acks == Acks::Stream && rng.below(4) > 0 {
                control.on_message(ack(&[got.last().unwrap().batch])).await.unwrap();
            }
            tokio::time::sleep(Duration::from_micros(rng.below(3_000))).await;
        };
        drop(control);
        if ended || rng.below(2) == 0 {
            stream.finish().await.unwrap();
        }
    }
}

/// Whatever consumers do, no batch is handed out twice, every batch is accounted for, and no memory stays in use.
#[tokio::test(flavor = "multi_thread")]
async fn consumers_that_come_and_go_never_share_a_batch() {
    let tight = ServeLimits { cache: 8 << 10, in_use: 64 << 10 };
    let running = Arc::new(Running::new(Shape { epochs: 2, ..Shape::default() }, tight).await);
    let settings = JobSettings { batch_size: 4, epochs: Passes::Count(3), ..settings() };
    let lives = (0..6).map(|c| tokio::spawn(live(running.clone(), settings.clone(), format!("c{c}"), 100 + c)));
    let mut seen = BTreeSet::new();
    for life in lives.collect::<Vec<_>>() {
        for meta in life.await.unwrap() {
            assert!(seen.insert((meta.pass, meta.batch)), "batch {} of pass {} came twice", meta.batch, meta.pass);
        }
    }
    let info = running.counts_become(&settings, |info| info.counts.open() == 0).await;
    assert_eq!((info.batches, info.pending), (3 * 140, 0));
    assert_eq!(info.counts.acknowledged + info.counts.lost, 3 * 140, "{:?}", info.counts);
    assert!(info.counts.acknowledged > 0 && seen.len() as u64 >= info.counts.acknowledged);
    assert_eq!(running.reader.usage().pinned_bytes, 0);
}

#[tokio::test(flavor = "multi_thread")]
async fn columns_that_do_not_exist_are_refused_when_the_stream_opens() {
    let running = Running::new(Shape::default(), ROOMY).await;
    let settings = JobSettings { columns: Some(vec!["nope".to_owned()]), ..settings() };
    assert_eq!(running.reader.schema(&running.dispatcher, &settings).await.unwrap_err().kind, Kind::BadInput);
    let opened = running.join(&settings, "c").await;
    let refused = running.serving.open_stream(Arc::new(settings), Member::of(&opened, "c"), Acks::AtEnd).await;
    assert_eq!(refused.map(|_| ()).unwrap_err().kind, Kind::BadInput);
}
