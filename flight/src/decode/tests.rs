#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use arrow::array::{DictionaryArray, Int64Array, NullArray, StringArray};
use arrow::datatypes::Int32Type;
use arrow::ipc::CompressionType;
use arrow::ipc::writer::{DictionaryTracker, IpcDataGenerator, IpcWriteOptions};
use proptest::prelude::*;

const CAP: u64 = 64 << 20;

fn batch() -> RecordBatch {
    let words: DictionaryArray<Int32Type> = ["cat", "dog", "cat"].into_iter().collect();
    RecordBatch::try_from_iter(vec![
        ("n", Arc::new(Int64Array::from(vec![Some(1), None, Some(3)])) as ArrayRef),
        ("s", Arc::new(StringArray::from(vec!["a", "b", &"long ".repeat(100)])) as ArrayRef),
        ("d", Arc::new(words) as ArrayRef),
    ])
    .unwrap()
}

/// Schema, dictionaries and rows as arrow's own writer sends them.
fn messages(compression: Option<CompressionType>) -> Vec<FlightData> {
    let batch = batch();
    let options = IpcWriteOptions::default().try_with_compression(compression).unwrap();
    let mut tracker = DictionaryTracker::new(false);
    let schema = IpcDataGenerator {}.schema_to_bytes_with_dictionary_tracker(&batch.schema(), &mut tracker, &options);
    let (dictionaries, rows) = IpcDataGenerator {}.encode(&batch, &mut tracker, &options, &mut Default::default()).unwrap();
    std::iter::once(schema).chain(dictionaries).chain([rows]).map(FlightData::from).collect()
}

fn read(messages: &[FlightData], mut decoder: Decoder) -> Result<Vec<RecordBatch>> {
    let mut batches = Vec::new();
    for message in messages {
        if let Decoded::Batch(batch) = decoder.push(message.clone())? {
            batches.push(batch);
        }
    }
    Ok(batches)
}

#[test]
fn reads_what_arrow_writes() {
    for compression in [None, Some(CompressionType::LZ4_FRAME), Some(CompressionType::ZSTD)] {
        for decoder in [Decoder::guarded(CAP), Decoder::trusting()] {
            assert_eq!(read(&messages(compression), decoder).unwrap(), [batch()], "{compression:?}");
        }
    }
}

#[test]
fn a_buffer_that_claims_a_terabyte_is_refused_before_anything_is_allocated() {
    for codec in [CompressionType::LZ4_FRAME, CompressionType::ZSTD] {
        let mut sent = messages(Some(codec));
        let last = sent.last_mut().unwrap();
        let header = root_as_message(&last.data_header).unwrap();
        let buffers = header.header_as_record_batch().unwrap().buffers().unwrap();
        // The largest buffer is surely compressed.
        let buffer = buffers.iter().max_by_key(|b| b.length()).unwrap();
        let at = buffer.offset() as usize;
        let mut body = last.data_body.to_vec();
        body[at..at + 8].copy_from_slice(&(1i64 << 40).to_le_bytes());
        last.data_body = body.into();
        let error = read(&sent, Decoder::guarded(CAP)).unwrap_err();
        assert_eq!(error.kind, Kind::ResourceExhausted, "{error}");
    }
}

#[test]
fn claims_beyond_the_body_are_refused() {
    let mut sent = messages(None);
    let last = sent.last_mut().unwrap();
    last.data_body = last.data_body.slice(..last.data_body.len() / 2);
    let error = read(&sent, Decoder::guarded(CAP)).unwrap_err();
    assert!(error.kind == Kind::BadInput && error.message.contains("in a body of"), "{error}");
}

#[test]
fn rows_without_bytes_are_few() {
    for (rows, good) in [(1 << 20, true), (1 << 30, false)] {
        let batch = RecordBatch::try_from_iter(vec![("n", Arc::new(NullArray::new(rows)) as ArrayRef)]).unwrap();
        let mut encoder = crate::encode::Encoder::new(&batch.schema()).unwrap();
        let mut sent = vec![encoder.schema_message().into_flight_data(None)];
        sent.extend(encoder.plain(&batch).unwrap().map(|m| m.unwrap().into_flight_data(None)).take(1));
        let mut decoder = Decoder::guarded(CAP);
        decoder.push(sent.remove(0)).unwrap();
        assert_eq!(decoder.push(sent.remove(0)).is_ok(), good, "{rows}");
    }
}

#[test]
fn a_small_cap_refuses_honest_messages_too() {
    assert_eq!(read(&messages(None), Decoder::guarded(16)).unwrap_err().kind, Kind::ResourceExhausted);
}

#[test]
fn rows_before_the_schema_are_refused() {
    let sent = messages(None);
    assert!(read(&sent[1..], Decoder::guarded(CAP)).is_err());
    assert!(read(&sent[2..], Decoder::guarded(CAP)).is_err());
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// Whatever is changed, the answer is rows or an error: never a panic, never an allocation beyond the cap.
    #[test]
    fn changed_bytes_never_panic(which in 0usize..3, in_header: bool, at: usize, value: u8, lz4: bool) {
        let mut sent = messages(lz4.then_some(CompressionType::LZ4_FRAME));
        let message = &mut sent[which];
        let bytes = if in_header { &mut message.data_header } else { &mut message.data_body };
        if !bytes.is_empty() {
            let mut changed = bytes.to_vec();
            let at = at % changed.len();
            changed[at] = value;
            *bytes = changed.into();
        }
        let _ = read(&sent, Decoder::guarded(CAP));
    }
}
