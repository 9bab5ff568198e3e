#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;
use crate::decode::{Decoded, Decoder};
use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::compute::cast;
use arrow::datatypes::*;
use arrow::ipc::root_as_message;
use bytes::Bytes;
use proptest::prelude::*;

/// A small generator of our own, so that a failing case prints as one number.
struct Dice(u64);

impl Dice {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    fn nulls(&mut self, len: usize, nullable: bool) -> Option<NullBuffer> {
        match (nullable, self.below(4)) {
            (false, _) | (true, 0) => None,
            (true, 1) => Some(NullBuffer::new_null(len)),
            _ => Some((0..len).map(|_| self.below(3) > 0).collect()),
        }
    }

    fn text(&mut self) -> String {
        let len = self.below(20);
        (0..len).map(|_| ['a', 'ö', '猫', ' ', 'z'][self.below(5)]).collect()
    }
}

fn field(data_type: DataType, nullable: bool) -> FieldRef {
    Arc::new(Field::new("item", data_type, nullable))
}

fn types() -> Vec<DataType> {
    use DataType::*;
    let pair = |a: DataType, b: DataType| Struct(vec![Field::new("a", a, true), Field::new("b", b, false)].into());
    let entries = Field::new("entries", Struct(vec![Field::new("keys", Utf8, false), Field::new("values", Int32, true)].into()), false);
    vec![
        Null,
        Boolean,
        UInt8,
        Int16,
        Float16,
        Int32,
        Float64,
        Int64,
        Date32,
        Timestamp(TimeUnit::Microsecond, Some("UTC".into())),
        Interval(IntervalUnit::MonthDayNano),
        Decimal128(20, 0),
        Decimal256(50, 3),
        FixedSizeBinary(1),
        FixedSizeBinary(5),
        FixedSizeBinary(16),
        FixedSizeBinary(300),
        FixedSizeList(field(UInt8, false), 12),
        FixedSizeList(field(FixedSizeList(field(Float32, false), 2), false), 3),
        FixedSizeList(field(Int16, true), 3),
        FixedSizeList(field(Utf8, true), 2),
        Utf8,
        LargeUtf8,
        Binary,
        LargeBinary,
        List(field(Int32, true)),
        List(field(Utf8, false)),
        List(field(List(field(Boolean, true)), true)),
        LargeList(field(pair(Int8, Utf8), true)),
        pair(Utf8, FixedSizeList(field(UInt8, false), 4)),
        pair(pair(Boolean, UInt8), List(field(Int64, false))),
        Map(Arc::new(entries), false),
        Dictionary(Box::new(Int32), Box::new(Utf8)),
        Dictionary(Box::new(UInt8), Box::new(Int64)),
        List(field(Dictionary(Box::new(Int16), Box::new(Utf8)), true)),
        Utf8View,
        BinaryView,
        Struct(vec![Field::new("a", Utf8View, true)].into()),
    ]
}

fn offsets(dice: &mut Dice, len: usize) -> Vec<usize> {
    (0..len).map(|_| dice.below(5)).collect()
}

fn fixed_array(dice: &mut Dice, data_type: &DataType, width: usize, len: usize, nulls: Option<NullBuffer>) -> ArrayRef {
    let bytes: Vec<u8> = (0..len * width).map(|_| dice.next() as u8).collect();
    let data = ArrayData::builder(data_type.clone()).len(len).nulls(nulls).add_buffer(bytes.into());
    make_array(data.align_buffers(true).build().unwrap())
}

fn array(dice: &mut Dice, data_type: &DataType, len: usize, nullable: bool) -> ArrayRef {
    let nulls = dice.nulls(len, nullable);
    match data_type {
        DataType::Null => Arc::new(NullArray::new(len)),
        DataType::Boolean => Arc::new(BooleanArray::new((0..len).map(|_| dice.below(2) == 0).collect(), nulls)),
        DataType::Decimal128(..) | DataType::Decimal256(..) => {
            let numbers = Int32Array::new((0..len).map(|_| dice.next() as i32).collect(), nulls);
            cast(&numbers, data_type).unwrap()
        }
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Binary | DataType::LargeBinary | DataType::Utf8View | DataType::BinaryView => {
            let texts: StringArray = (0..len).map(|i| nulls.as_ref().is_none_or(|n| n.is_valid(i)).then(|| dice.text())).collect();
            cast(&texts, data_type).unwrap()
        }
        DataType::Dictionary(_, values) => cast(&array(dice, values, len, nullable), data_type).unwrap_or_else(|_| {
            // More values than a key of one byte: repeat few.
            let few = array(dice, values, 3, nullable);
            let keys = UInt8Array::from_iter((0..len).map(|_| Some(dice.below(3) as u8)));
            Arc::new(DictionaryArray::new(keys, few))
        }),
        DataType::FixedSizeList(f, n) => {
            let values = array(dice, f.data_type(), len * *n as usize, f.is_nullable());
            Arc::new(FixedSizeListArray::new(Arc::clone(f), *n, values, nulls))
        }
        DataType::List(f) => {
            let offsets = OffsetBuffer::<i32>::from_lengths(offsets(dice, len));
            let values = array(dice, f.data_type(), *offsets.last().unwrap() as usize, f.is_nullable());
            Arc::new(ListArray::new(Arc::clone(f), offsets, values, nulls))
        }
        DataType::LargeList(f) => {
            let offsets = OffsetBuffer::<i64>::from_lengths(offsets(dice, len));
            let values = array(dice, f.data_type(), *offsets.last().unwrap() as usize, f.is_nullable());
            Arc::new(LargeListArray::new(Arc::clone(f), offsets, values, nulls))
        }
        DataType::Map(f, sorted) => {
            let offsets = OffsetBuffer::<i32>::from_lengths(offsets(dice, len));
            let entries = array(dice, f.data_type(), *offsets.last().unwrap() as usize, false);
            Arc::new(MapArray::new(Arc::clone(f), offsets, entries.as_struct().clone(), nulls, *sorted))
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().map(|f| array(dice, f.data_type(), len, f.is_nullable())).collect();
            Arc::new(StructArray::new(fields.clone(), columns, nulls))
        }
        other => fixed_array(dice, other, gather::width(other).unwrap(), len, nulls),
    }
}

/// Chunks as a window has them: of several sizes, sliced out of larger arrays.
fn chunks(dice: &mut Dice, schema: &SchemaRef) -> Vec<RecordBatch> {
    let count = 1 + dice.below(4);
    (0..count)
        .map(|_| {
            let len = dice.below(60);
            let columns = schema.fields().iter().map(|f| array(dice, f.data_type(), len + 7, f.is_nullable())).collect();
            let skip = dice.below(7);
            RecordBatch::try_new(Arc::clone(schema), columns).unwrap().slice(skip, len)
        })
        .collect()
}

fn rows(dice: &mut Dice, chunks: &[RecordBatch]) -> Vec<(u32, u32)> {
    let all: Vec<(u32, u32)> =
        chunks.iter().enumerate().flat_map(|(c, chunk)| (0..chunk.num_rows() as u32).map(move |r| (c as u32, r))).collect();
    if all.is_empty() || dice.below(5) == 0 {
        return all;
    }
    let count = dice.below(100);
    (0..count).map(|_| all[dice.below(all.len())]).collect()
}

fn decode(schema: &Message, message: &Message) -> RecordBatch {
    let mut decoder = Decoder::guarded(1 << 30);
    assert!(matches!(decoder.push(schema.clone().into_flight_data(None)).unwrap(), Decoded::Schema(_)));
    match decoder.push(message.clone().into_flight_data(None)).unwrap() {
        Decoded::Batch(batch) => batch,
        other => panic!("{other:?}"),
    }
}

/// What arrow makes of the same rows.
fn expected(chunks: &[RecordBatch], rows: &[(u32, u32)], wire: &SchemaRef) -> RecordBatch {
    let chunks: Vec<RecordBatch> = chunks.iter().map(|c| to_wire(c, wire).unwrap()).collect();
    let indices: Vec<(usize, usize)> = rows.iter().map(|&(c, r)| (c as usize, r as usize)).collect();
    interleave_record_batch(&chunks.iter().collect::<Vec<_>>(), &indices).unwrap()
}

fn aligned(message: &Message) {
    let header = root_as_message(&message.header).unwrap();
    let batch = header.header_as_record_batch().unwrap();
    assert_eq!(header.bodyLength() as usize, message.body_len());
    for buffer in batch.buffers().unwrap() {
        assert_eq!(buffer.offset() % 64, 0);
    }
}

fn check_types(seed: u64, types: &[DataType]) {
    let mut dice = Dice(seed);
    let fields: Vec<Field> =
        types.iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t.clone(), *t == DataType::Null || dice.below(2) == 0)).collect();
    let schema: SchemaRef = Arc::new(Schema::new(fields));
    let chunks = Arc::new(chunks(&mut dice, &schema));
    let rows = rows(&mut dice, &chunks);
    let target = 1 + dice.below(4000);
    let mut encoder = Encoder::new(&schema).unwrap().with_target(target);
    assert!(encoder.direct, "{types:?}");
    let start = encoder.schema_message();
    let prepared = encoder.prepare(&chunks).unwrap();

    let whole = encoder.gather(&prepared, &rows).unwrap();
    aligned(&whole);
    assert_eq!(decode(&start, &whole), expected(&chunks, &rows, encoder.schema()));

    let cuts = encoder.cut(&prepared, &rows).unwrap();
    assert_eq!((cuts[0].start, cuts.last().unwrap().end), (0, rows.len()));
    let slack = 72 * types.len() * 6 + rows.len();
    for (i, cut) in cuts.iter().enumerate() {
        assert!(i == 0 || cuts[i - 1].end == cut.start);
        let part = encoder.gather(&prepared, &rows[cut.clone()]).unwrap();
        assert!(cut.len() <= 1 || part.body_len() <= target + slack, "{} bytes for a target of {target}", part.body_len());
        assert_eq!(decode(&start, &part), expected(&chunks, &rows[cut.clone()], encoder.schema()));
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(96))]

    #[test]
    fn gathering_is_what_arrow_takes(seed: u64, picked in proptest::collection::vec(0usize..38, 1..6)) {
        let all = types();
        let types: Vec<DataType> = picked.iter().map(|&i| all[i % all.len()].clone()).collect();
        check_types(seed, &types);
    }

    #[test]
    fn plain_batches_arrive_whole(seed: u64, picked in proptest::collection::vec(0usize..38, 1..4)) {
        let all = types();
        let mut dice = Dice(seed);
        let fields: Vec<Field> = picked.iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), all[t % all.len()].clone(), true)).collect();
        let schema: SchemaRef = Arc::new(Schema::new(fields));
        let chunk = chunks(&mut dice, &schema).remove(0);
        let mut encoder = Encoder::new(&schema).unwrap().with_target(1 + dice.below(2000));
        let start = encoder.schema_message();
        let messages: Vec<Message> = encoder.plain(&chunk).unwrap().map(|m| m.unwrap()).collect();
        let wire = Arc::clone(encoder.schema());
        let parts: Vec<RecordBatch> = messages.iter().map(|m| decode(&start, m)).collect();
        let joined = arrow::compute::concat_batches(&wire, &parts).unwrap();
        prop_assert_eq!(joined, to_wire(&chunk, &wire).unwrap());
    }
}

#[test]
fn every_type_by_itself() {
    for (i, data_type) in types().into_iter().enumerate() {
        for seed in 0..12 {
            check_types(seed * 1000 + i as u64, std::slice::from_ref(&data_type));
        }
    }
}

#[test]
fn unions_go_through_arrows_writer() {
    let fields =
        UnionFields::try_new(vec![0, 1], vec![Field::new("n", DataType::Int32, true), Field::new("s", DataType::Utf8, true)]).unwrap();
    let union = UnionArray::try_new(
        fields,
        vec![0i8, 1, 0].into(),
        Some(vec![0, 0, 1].into()),
        vec![Arc::new(Int32Array::from(vec![5, 6])), Arc::new(StringArray::from(vec!["x"]))],
    )
    .unwrap();
    let batch = RecordBatch::try_from_iter(vec![("u", Arc::new(union) as ArrayRef)]).unwrap();
    let mut encoder = Encoder::new(&batch.schema()).unwrap();
    assert!(!encoder.direct);
    let start = encoder.schema_message();
    let prepared = encoder.prepare(&Arc::new(vec![batch.clone()])).unwrap();
    let message = encoder.gather(&prepared, &[(0, 2), (0, 1)]).unwrap();
    let got = decode(&start, &message);
    assert_eq!(got.column(0).as_any().downcast_ref::<UnionArray>().unwrap().value(0).as_primitive::<Int32Type>().value(0), 6);
    let messages: Vec<Message> = encoder.plain(&batch).unwrap().map(|m| m.unwrap()).collect();
    assert_eq!(decode(&start, &messages[0]).num_rows(), 3);
}

fn images(rows: usize, bytes: i32) -> RecordBatch {
    let values: Vec<u8> = (0..rows * bytes as usize).map(|i| i as u8).collect();
    let list = FixedSizeListArray::new(field(DataType::UInt8, false), bytes, Arc::new(UInt8Array::from(values)), None);
    let ids = Int64Array::from_iter_values(0..rows as i64);
    RecordBatch::try_from_iter(vec![("_id", Arc::new(ids) as ArrayRef), ("image", Arc::new(list) as ArrayRef)]).unwrap()
}

#[test]
fn a_batch_that_is_not_too_large_is_one_message() {
    let chunks = Arc::new(vec![images(64, 150_528)]);
    let mut encoder = Encoder::new(&chunks[0].schema()).unwrap();
    let prepared = encoder.prepare(&chunks).unwrap();
    let rows: Vec<(u32, u32)> = (0..64).rev().map(|r| (0, r)).collect();
    assert_eq!(encoder.cut(&prepared, &rows).unwrap().as_slice(), std::slice::from_ref(&(0..64)));
    assert_eq!(encoder.cut(&prepared, &[]).unwrap().as_slice(), std::slice::from_ref(&(0..0)));
}

#[test]
fn messages_of_larger_ones_are_about_two_mebibytes_and_evenly_cut() {
    let chunks = Arc::new(vec![images(128, 150_528)]);
    let mut encoder = Encoder::new(&chunks[0].schema()).unwrap();
    let prepared = encoder.prepare(&chunks).unwrap();
    let rows: Vec<(u32, u32)> = (0..128).rev().map(|r| (0, r)).collect();
    let cuts = encoder.cut(&prepared, &rows).unwrap();
    let sizes: Vec<usize> = cuts.iter().map(|c| encoder.gather(&prepared, &rows[c.clone()]).unwrap().body_len()).collect();
    assert_eq!(cuts.iter().map(|c| c.len()).collect::<Vec<_>>(), [12, 13, 13, 13, 13, 12, 13, 13, 13, 13]);
    assert!(sizes.iter().all(|&s| s <= TARGET && s > TARGET * 3 / 4), "{sizes:?}");
}

#[test]
fn large_rows_are_sent_from_where_they_lie() {
    let chunks = Arc::new(vec![images(5, 40_003), images(3, 40_003)]);
    let mut encoder = Encoder::new(&chunks[0].schema()).unwrap();
    let prepared = encoder.prepare(&chunks).unwrap();
    let rows = [(0, 4), (1, 2), (1, 1), (0, 0), (0, 1)];
    let message = encoder.gather(&prepared, &rows).unwrap();
    aligned(&message);
    assert_eq!(decode(&encoder.schema_message(), &message), expected(&chunks, &rows, encoder.schema()));
    let window = chunks.iter().map(|c| c.column(1).to_data().child_data()[0].buffers()[0].as_ptr_range()).collect::<Vec<_>>();
    let inside = |part: &Bytes| window.iter().any(|range| range.contains(&part.as_ptr()));
    // Two rows that lie side by side are one piece.
    assert_eq!(message.more.iter().filter(|part| inside(part)).count(), 4);
}

#[test]
fn a_row_larger_than_the_target_is_one_message() {
    let texts = StringArray::from(vec!["s".to_owned(), "x".repeat(100 << 20), "t".to_owned(), "u".to_owned()]);
    let chunks = Arc::new(vec![RecordBatch::try_from_iter(vec![("t", Arc::new(texts) as ArrayRef)]).unwrap()]);
    let mut encoder = Encoder::new(&chunks[0].schema()).unwrap();
    let prepared = encoder.prepare(&chunks).unwrap();
    let rows = [(0, 0), (0, 1), (0, 2), (0, 3)];
    assert_eq!(encoder.cut(&prepared, &rows).unwrap(), [0..1, 1..2, 2..4]);
    let message = encoder.gather(&prepared, &rows[1..2]).unwrap();
    assert_eq!(decode(&encoder.schema_message(), &message).column(0).as_string::<i32>().value(0).len(), 100 << 20);
}

#[test]
fn rows_outside_the_chunks_are_an_error() {
    let chunks = Arc::new(vec![images(3, 4)]);
    let mut encoder = Encoder::new(&chunks[0].schema()).unwrap();
    let prepared = encoder.prepare(&chunks).unwrap();
    for row in [(0, 3), (1, 0)] {
        assert!(encoder.gather(&prepared, &[row]).is_err());
        assert!(encoder.cut(&prepared, &[row]).is_err());
    }
}

#[test]
fn chunks_of_another_schema_are_an_error() {
    let mut encoder = Encoder::new(&images(1, 4).schema()).unwrap();
    let error = encoder.prepare(&Arc::new(vec![images(1, 5)])).unwrap_err();
    assert!(error.message.contains("column `image`"), "{error}");
}

#[test]
fn a_window_is_converted_once() {
    let texts: StringViewArray = ["a", "b"].into_iter().map(Some).collect();
    let chunks = Arc::new(vec![RecordBatch::try_from_iter(vec![("t", Arc::new(texts) as ArrayRef)]).unwrap()]);
    let mut encoder = Encoder::new(&chunks[0].schema()).unwrap();
    assert_eq!(encoder.schema().field(0).data_type(), &DataType::Utf8);
    let first = encoder.prepare(&chunks).unwrap();
    assert!(Arc::ptr_eq(&first, &encoder.prepare(&chunks).unwrap()));
}

#[test]
fn extension_metadata_reaches_the_wire() {
    let metadata = [("ARROW:extension:name".to_owned(), "arrow.fixed_shape_tensor".to_owned())].into();
    let tensor = Field::new("x", DataType::FixedSizeList(field(DataType::UInt8, false), 4), false).with_metadata(metadata);
    let schema: SchemaRef = Arc::new(Schema::new(vec![tensor, Field::new("s", DataType::Utf8View, true)]));
    let wire = wire_schema(&schema).unwrap();
    assert_eq!(wire.field(0), schema.field(0));
    let mut decoder = Decoder::trusting();
    match decoder.push(Encoder::new(&schema).unwrap().schema_message().into_flight_data(None)).unwrap() {
        Decoded::Schema(got) => assert_eq!(got, wire),
        other => panic!("{other:?}"),
    }
}

#[test]
fn buffers_are_reused() {
    let pool = Pool::default();
    let mut buffer = pool.take(1 << 20);
    buffer.extend_from_slice(&[7; 100]);
    let at = buffer.as_ptr();
    let sent = pool.freeze(buffer);
    let copy = sent.clone();
    drop(sent);
    assert_eq!(&copy[..], [7; 100]);
    drop(copy);
    let again = pool.take(10);
    assert!(std::ptr::eq(again.as_ptr(), at) && again.is_empty());
}
