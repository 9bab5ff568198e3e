//! Jobs over DoGet and DoExchange: metadata, credits, bounds, ends.

use crate::backend::{Double, Told};
use crate::{Running, eventually};
use arrow::array::AsArray;
use arrow::datatypes::Int64Type;
use arrow_flight::{FlightData, FlightDescriptor, Ticket};
use forebay_core::{Error, Kind};
use forebay_flight::api::{BatchMeta, End};
use forebay_flight::client::{Batch, JobItem, JobReader};
use forebay_flight::decode::{Decoded, Decoder};
use std::sync::atomic::Ordering::SeqCst;
use std::time::Duration;

const JOB: &str = "{\"dataset\":\"digits\",\"batch_size\":64}";

fn ids(batch: &Batch) -> Vec<i64> {
    batch.record_batch().unwrap()["_id"].as_primitive::<Int64Type>().values().to_vec()
}

async fn reader(server: &Running, credits: u32) -> JobReader {
    let client = server.client().await;
    let job = client.open_job(JOB).await.unwrap();
    assert_eq!(job.schema.field(0).name(), "_id");
    client.exchange(job.ticket, credits).await.unwrap()
}

async fn batch(reader: &mut JobReader) -> Batch {
    match reader.next().await.unwrap() {
        JobItem::Batch(batch) => batch,
        JobItem::End(end) => panic!("{end:?}"),
    }
}

async fn settle(told: &Told) -> u64 {
    let mut last = u64::MAX;
    loop {
        let now = told.asked.load(SeqCst);
        if now == last {
            return now;
        }
        last = now;
        tokio::time::sleep(Duration::from_millis(150)).await;
    }
}

#[tokio::test]
async fn do_get_carries_metadata_and_ends_with_the_end() {
    // Batches of 12 MB: six parts each.
    let server = Running::open(Double::new(200, 120_000, 100)).await;
    let mut raw = server.raw().await;
    let info = raw.get_flight_info(FlightDescriptor::new_cmd(JOB)).await.unwrap().into_inner();
    assert_eq!((info.endpoint.len(), info.total_records), (1, 400));
    let mut stream = raw.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap().into_inner();
    let (mut decoder, mut seen, mut end) = (Decoder::guarded(1 << 30), Vec::new(), None);
    while let Some(data) = stream.message().await.unwrap() {
        let metadata = data.app_metadata.clone();
        assert!(data.data_body.len() < 3 << 20);
        match decoder.push(data).unwrap() {
            Decoded::Schema(_) => assert!(metadata.is_empty()),
            Decoded::Batch(batch) => {
                let meta: BatchMeta = serde_json::from_slice(&metadata).unwrap();
                assert_eq!((meta.rows as usize, meta.parts, meta.job.as_str()), (batch.num_rows(), 6, "run1"));
                let ids = batch["_id"].as_primitive::<Int64Type>().values().to_vec();
                seen.push((meta.batch, meta.part, ids));
            }
            Decoded::Nothing => end = Some(String::from_utf8(metadata.to_vec()).unwrap()),
        }
    }
    assert_eq!(end.as_deref(), Some("{\"end\":\"job\"}"));
    let parts: Vec<(u64, u32)> = (0..4).flat_map(|batch| (0..6).map(move |part| (batch, part))).collect();
    assert_eq!(seen.iter().map(|s| (s.0, s.1)).collect::<Vec<_>>(), parts);
    for b in 0..4 {
        let got: Vec<i64> = seen.iter().filter(|s| s.0 == b).flat_map(|s| s.2.clone()).collect();
        assert_eq!(got, server.double.ids(b));
    }
    assert_eq!(server.double.told.finished.load(SeqCst), 1);

    // A schema, 24 parts, an end; all closed.
    drop(stream);
    assert_eq!(server.stats.messages.load(SeqCst), 26);
    assert!(server.stats.bytes.load(SeqCst) > 400 * 120_000);
    eventually("the stream is closed", || server.stats.streams.load(SeqCst) == 0).await;
}

#[tokio::test]
async fn an_exchange_delivers_acknowledges_and_closes() {
    let server = Running::open(Double::new(320, 100, 64)).await;
    let told = server.double.told.clone();
    let mut reader = reader(&server, 3).await;
    for expected in 0..10 {
        let batch = batch(&mut reader).await;
        assert_eq!((batch.meta.batch, batch.meta.rows), (expected, 64));
        assert_eq!(ids(&batch), server.double.ids(expected));
        reader.ack(&batch).await.unwrap();
    }
    assert!(matches!(reader.next().await.unwrap(), JobItem::End(End::Job)));
    assert!(matches!(reader.next().await.unwrap(), JobItem::End(End::Job)));
    assert_eq!(told.finished.load(SeqCst), 0);
    reader.close().await.unwrap();
    assert_eq!((told.finished.load(SeqCst), told.dropped.load(SeqCst)), (1, 1));
    let messages = told.messages.lock().unwrap();
    assert_eq!(messages[0].credits, 3);
    assert_eq!(messages.iter().flat_map(|m| m.ack.clone()).collect::<Vec<_>>(), (0..10).collect::<Vec<_>>());
    assert_eq!(messages.iter().filter(|m| m.close).count(), 1);
    assert!(messages.last().unwrap().close);
}

#[tokio::test]
async fn no_more_is_sent_than_credits_allow() {
    let server = Running::open(Double::new(320, 100, 64)).await;
    let told = server.double.told.clone();
    let mut reader = reader(&server, 2).await;
    assert_eq!(settle(&told).await, 2);
    let first = batch(&mut reader).await;
    let second = batch(&mut reader).await;
    assert_eq!(settle(&told).await, 2);
    reader.ack(&first).await.unwrap();
    eventually("one more", || told.asked.load(SeqCst) == 3).await;
    reader.ack(&second).await.unwrap();
    reader.give(3).await.unwrap();
    eventually("four more", || told.asked.load(SeqCst) == 7).await;
    assert_eq!(settle(&told).await, 7);
}

#[tokio::test]
async fn a_slow_consumer_holds_few_messages() {
    // 2 MB batches from one window, without end; the client reads one and stops.
    let mut double = Double::new(1000, 2000, 1000);
    double.batches = 100_000;
    let server = Running::open(double).await;
    let told = server.double.told.clone();
    let mut raw = server.raw().await;
    let info = raw.get_flight_info(FlightDescriptor::new_cmd(JOB)).await.unwrap().into_inner();
    let mut stream = raw.do_get(info.endpoint[0].ticket.clone().unwrap()).await.unwrap().into_inner();
    stream.message().await.unwrap();
    let asked = settle(&told).await;
    assert!(asked <= 6, "{asked} batches were made for a consumer that reads none");
    // Dropping frees at once; a stream that broke is not finished.
    drop(stream);
    eventually("the stream is freed", || told.dropped.load(SeqCst) == 1).await;
    assert_eq!(told.finished.load(SeqCst), 0);
}

#[tokio::test]
async fn a_dropped_exchange_frees_at_once() {
    let server = Running::open(Double::new(320, 100, 64)).await;
    let told = server.double.told.clone();
    let mut reader = reader(&server, 1).await;
    batch(&mut reader).await;
    drop(reader);
    eventually("the stream is freed", || told.dropped.load(SeqCst) == 1).await;
    assert!(!told.messages.lock().unwrap().iter().any(|m| m.ack.contains(&0)));
}

#[tokio::test]
async fn an_error_comes_after_the_batches_before_it() {
    let mut double = Double::new(320, 100, 64);
    double.fails_after = Some(2);
    let server = Running::open(double).await;
    let mut reader = reader(&server, 10).await;
    batch(&mut reader).await;
    batch(&mut reader).await;
    let error = reader.next().await.unwrap_err();
    assert_eq!(error, Error::corrupt("a shard is not what the log says").with_remedy("restore it"));
}

#[tokio::test]
async fn a_panic_ends_its_stream_alone() {
    let mut double = Double::new(320, 100, 64);
    double.panics = true;
    let server = Running::open(double).await;
    let error = reader(&server, 1).await.next().await.unwrap_err();
    assert_eq!(error.kind, Kind::Internal);
    server.client().await.ping().await.unwrap();
}

#[tokio::test]
async fn a_row_of_many_megabytes_passes() {
    let server = Running::open(Double::new(2, 30 << 20, 2)).await;
    let mut reader = reader(&server, 2).await;
    let batch = batch(&mut reader).await;
    assert_eq!((batch.parts.len(), ids(&batch)), (2, server.double.ids(0)));
}

#[tokio::test]
async fn an_exchange_may_start_with_the_command_and_speaks_plainly() {
    let server = Running::open(Double::new(320, 100, 64)).await;
    let told = server.double.told.clone();
    let first = FlightData::new().with_descriptor(FlightDescriptor::new_cmd(JOB)).with_app_metadata("{\"credits\":1}");
    let (outbound, messages) = tokio::sync::mpsc::channel(4);
    outbound.send(first).await.unwrap();
    let mut stream = server.raw().await.do_exchange(tokio_stream::wrappers::ReceiverStream::new(messages)).await.unwrap().into_inner();
    stream.message().await.unwrap().unwrap();
    let meta: BatchMeta = serde_json::from_slice(&stream.message().await.unwrap().unwrap().app_metadata).unwrap();
    assert_eq!(meta.batch, 0);
    // A consumer that just closes its side has closed cleanly.
    drop(outbound);
    assert!(stream.message().await.unwrap().is_none());
    assert_eq!(told.finished.load(SeqCst), 1);
    assert!(told.messages.lock().unwrap().last().unwrap().close);
}

#[tokio::test]
async fn messages_that_are_none_are_refused() {
    let server = Running::open(Double::new(320, 100, 64)).await;
    let job = FlightData::new().with_descriptor(FlightDescriptor::new_cmd(JOB));
    let path = FlightData::new().with_descriptor(FlightDescriptor::new_path(vec!["digits".to_owned()]));
    let cases = [
        (job.clone().with_app_metadata("{\"credit\":1}"), tonic::Code::InvalidArgument),
        (job.with_app_metadata("take this"), tonic::Code::InvalidArgument),
        (path, tonic::Code::Unimplemented),
        (FlightData::new(), tonic::Code::InvalidArgument),
    ];
    for (first, code) in cases {
        let mut stream = server.raw().await.do_exchange(futures::stream::iter([first.clone()])).await.unwrap().into_inner();
        assert_eq!(stream.message().await.unwrap_err().code(), code, "{first:?}");
    }
    let status = server.raw().await.do_get(Ticket::new("")).await.unwrap_err();
    assert_eq!(status.code(), tonic::Code::Unauthenticated);
}
