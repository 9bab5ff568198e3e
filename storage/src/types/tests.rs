#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use arrow::array::*;
use arrow::buffer::{NullBuffer, OffsetBuffer};
use arrow::datatypes::*;
use forebay_core::Kind;
use std::sync::Arc;

use super::*;

#[path = "property_tests.rs"]
mod property_tests;

fn field(name: &str, data_type: DataType) -> Field {
    Field::new(name, data_type, true)
}

fn one(field: Field, array: ArrayRef) -> RecordBatch {
    RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array]).unwrap()
}

/// Encodes, decodes, and reads the schema back from the Delta log's JSON; gives the logical column that comes out.
pub(super) fn round_trip(batch: &RecordBatch) -> Result<RecordBatch> {
    let schema = to_stored(batch.schema_ref())?;
    let back = stored_from_delta(&delta_schema_json(&schema)?)?;
    assert_eq!(schema, back, "the log's schema gives another one back");
    let stored = encode(batch, &schema)?;
    assert_eq!(stored.schema(), schema.stored);
    let logical = decode(stored, &schema)?;
    assert_eq!(logical.schema(), schema.logical);
    Ok(logical)
}

fn survives(name: &str, array: ArrayRef) {
    let batch = one(field(name, array.data_type().clone()), array);
    assert_eq!(round_trip(&batch).unwrap(), batch, "{name}");
}

fn stored_type_of(data_type: DataType) -> DataType {
    to_stored(&Schema::new(vec![field("x", data_type)])).unwrap().stored.field(0).data_type().clone()
}

#[test]
fn numbers_survive_at_their_limits() {
    survives("i8", Arc::new(Int8Array::from(vec![Some(i8::MIN), None, Some(i8::MAX)])));
    survives("u8", Arc::new(UInt8Array::from(vec![Some(0), None, Some(u8::MAX)])));
    survives("u16", Arc::new(UInt16Array::from(vec![Some(0), None, Some(u16::MAX)])));
    survives("u32", Arc::new(UInt32Array::from(vec![Some(0), None, Some(u32::MAX)])));
    survives("u64", Arc::new(UInt64Array::from(vec![Some(0), None, Some(u64::MAX)])));
    survives("f16", Arc::new(Float16Array::from(vec![Some(half(1.5)), None, Some(half(-65504.0))])));
    survives("f64", Arc::new(Float64Array::from(vec![Some(f64::MIN), None, Some(f64::INFINITY)])));
    survives("bool", Arc::new(BooleanArray::from(vec![Some(true), None, Some(false)])));
    let decimals = Decimal128Array::from(vec![Some(12345), None]).with_precision_and_scale(10, 2).unwrap();
    survives("decimal", Arc::new(decimals));
    survives("decimal64", Arc::new(Decimal64Array::from(vec![Some(-12345), None]).with_precision_and_scale(10, 2).unwrap()));
    survives("nothing", Arc::new(NullArray::new(3)));
}

fn half(value: f32) -> <Float16Type as ArrowPrimitiveType>::Native {
    <Float16Type as ArrowPrimitiveType>::Native::from_f32(value)
}

#[test]
fn widened_types_are_those_of_the_design() {
    assert_eq!(stored_type_of(DataType::UInt8), DataType::Int16);
    assert_eq!(stored_type_of(DataType::UInt16), DataType::Int32);
    assert_eq!(stored_type_of(DataType::UInt32), DataType::Int64);
    assert_eq!(stored_type_of(DataType::UInt64), DataType::Decimal128(20, 0));
    assert_eq!(stored_type_of(DataType::Float16), DataType::Float32);
    let delta = delta_schema_json(&to_stored(&Schema::new(vec![field("x", DataType::UInt8)])).unwrap()).unwrap();
    assert!(delta.contains(r#""type":"short""#) && delta.contains(r#""forebay.type":"UInt8""#), "{delta}");
}

#[test]
fn times_survive_and_only_exact_nanoseconds_do() {
    survives("s", Arc::new(TimestampSecondArray::from(vec![Some(-5), None])));
    survives("ms", Arc::new(TimestampMillisecondArray::from(vec![Some(1), None]).with_timezone("Europe/Berlin")));
    survives("us", Arc::new(TimestampMicrosecondArray::from(vec![Some(1), None]).with_timezone("UTC")));
    survives("naive", Arc::new(TimestampMicrosecondArray::from(vec![Some(1), None])));
    survives("ns", Arc::new(TimestampNanosecondArray::from(vec![Some(1_000), None, Some(-7_000)])));
    survives("date", Arc::new(Date32Array::from(vec![Some(-1), None, Some(20_000)])));
    survives("date64", Arc::new(Date64Array::from(vec![Some(-86_400_000), None])));
    survives("t32", Arc::new(Time32MillisecondArray::from(vec![Some(5), None])));
    survives("t64", Arc::new(Time64NanosecondArray::from(vec![Some(5), None])));
    survives("duration", Arc::new(DurationNanosecondArray::from(vec![Some(5), None])));
    let inexact: ArrayRef = Arc::new(TimestampNanosecondArray::from(vec![Some(1_000), Some(1_001)]));
    let error = round_trip(&one(field("seen", inexact.data_type().clone()), Arc::clone(&inexact))).unwrap_err();
    assert_eq!(error.kind, Kind::BadInput);
    assert!(error.to_string().contains("`seen`, row 1"), "{error}");
    // The good row alone, which shares the bad one's buffer, is fine.
    round_trip(&one(field("seen", inexact.data_type().clone()), inexact.slice(0, 1))).unwrap();
    let far: ArrayRef = Arc::new(TimestampSecondArray::from(vec![i64::MAX / 1000]));
    assert!(round_trip(&one(field("far", far.data_type().clone()), far)).is_err());
}

#[test]
fn a_bad_value_in_a_nested_neighbour_does_not_condemn_a_slice() {
    let values = TimestampNanosecondArray::from(vec![1_000, 1_001, 2_000]);
    let item = Arc::new(Field::new("item", values.data_type().clone(), true));
    let list = ListArray::new(item, OffsetBuffer::from_lengths([1, 1, 1]), Arc::new(values), None);
    let batch = one(field("x", list.data_type().clone()), Arc::new(list));
    assert!(round_trip(&batch).is_err());
    assert_eq!(round_trip(&batch.slice(0, 1)).unwrap(), batch.slice(0, 1));
    assert_eq!(round_trip(&batch.slice(2, 1)).unwrap(), batch.slice(2, 1));
}

#[test]
fn strings_views_and_dictionaries_become_plain_values() {
    survives("s", Arc::new(StringArray::from(vec![Some("a"), None, Some("")])));
    survives("large", Arc::new(LargeStringArray::from(vec![Some("a"), None])));
    survives("bytes", Arc::new(BinaryArray::from(vec![Some(b"a".as_slice()), None])));
    survives("fixed", Arc::new(FixedSizeBinaryArray::try_from_iter([[1, 2], [3, 4]].iter()).unwrap()));
    let plain = StringArray::from(vec![Some("a"), None, Some("a much longer string than fits inline")]);
    let view: ArrayRef = Arc::new(StringViewArray::from_iter(plain.iter()));
    let dictionary: ArrayRef = Arc::new(plain.iter().collect::<DictionaryArray<Int32Type>>());
    for array in [view, dictionary] {
        let out = round_trip(&one(field("x", array.data_type().clone()), array)).unwrap();
        assert_eq!(out.column(0).as_string::<i32>(), &plain);
    }
}

#[test]
fn nesting_survives() {
    let list = |values: ArrayRef, lengths: &[usize], nulls: Option<Vec<bool>>| {
        let item = Arc::new(Field::new("item", values.data_type().clone(), true));
        ListArray::new(item, OffsetBuffer::from_lengths(lengths.iter().copied()), values, nulls.map(NullBuffer::from))
    };
    let ints = list(Arc::new(Int32Array::from(vec![Some(1), None, Some(3)])), &[2, 0, 1], Some(vec![true, false, true]));
    survives("ints", Arc::new(ints.clone()));
    survives("nested", Arc::new(list(Arc::new(ints.clone()), &[1, 2], None)));
    survives("bytes", Arc::new(list(Arc::new(UInt8Array::from(vec![1, 2, 255])), &[0, 3], None)));
    let boxes =
        FixedSizeListArray::new(Arc::new(Field::new("item", DataType::Float32, true)), 2, Arc::new(Float32Array::from(vec![1.0; 4])), None);
    survives("boxes", Arc::new(list(Arc::new(boxes), &[2, 0], None)));
    let fields = Fields::from(vec![field("a", DataType::UInt16), field("b", ints.data_type().clone())]);
    let inner: Vec<ArrayRef> = vec![Arc::new(UInt16Array::from(vec![1, 2, 3])), Arc::new(ints)];
    survives("struct", Arc::new(StructArray::new(fields, inner, Some(NullBuffer::from(vec![true, false, true])))));
    let mut map = MapBuilder::new(None, StringBuilder::new(), UInt32Builder::new());
    map.keys().append_value("k");
    map.values().append_value(7);
    map.append(true).unwrap();
    map.append(false).unwrap();
    survives("map", Arc::new(map.finish()));
}

fn pixels(rows: usize, shape: &[usize]) -> ArrayRef {
    let size = shape.iter().product::<usize>();
    let values = UInt8Array::from_iter_values((0..rows * size).map(|i| (i % 251) as u8));
    Arc::new(FixedSizeListArray::new(Arc::new(Field::new("item", DataType::UInt8, false)), size as i32, Arc::new(values), None))
}

#[test]
fn tensors_are_stored_as_their_bytes_and_share_them() {
    let image = tensor_field("image", &DataType::UInt8, &[2, 3, 4]);
    assert_eq!(type_name(&image), "uint8[2,3,4]");
    let batch = one(image.clone(), pixels(5, &[2, 3, 4]));
    let schema = to_stored(batch.schema_ref()).unwrap();
    assert_eq!(schema.stored.field(0).data_type(), &DataType::FixedSizeBinary(24));
    let stored = encode(&batch.slice(1, 3), &schema).unwrap();
    let before = batch.column(0).as_fixed_size_list().values().as_primitive::<UInt8Type>().values().as_ptr();
    assert_eq!(stored.column(0).as_fixed_size_binary().value(0).as_ptr(), before.wrapping_add(24), "encoding copied");
    let bytes = stored.column(0).as_fixed_size_binary().value(0).as_ptr();
    let logical = decode(stored, &schema).unwrap();
    let after = logical.column(0).as_fixed_size_list().values().as_primitive::<UInt8Type>().values().as_ptr();
    assert_eq!(after, bytes, "decoding copied");
    assert_eq!(logical, batch.slice(1, 3));
    assert_eq!(round_trip(&batch).unwrap(), batch);
    let (dtype, shape) = tensor_shape(logical.schema_ref().field(0)).unwrap();
    assert_eq!((dtype, shape), (DataType::UInt8, vec![2, 3, 4]));
}

#[test]
fn tensors_of_other_elements_nulls_and_bare_lists() {
    let floats = FixedSizeListArray::new(
        Arc::new(Field::new("item", DataType::Float32, true)),
        2,
        Arc::new(Float32Array::from(vec![1.0, 2.0, 3.0, 4.0])),
        Some(NullBuffer::from(vec![true, false])),
    );
    let out = round_trip(&one(field("embedding", floats.data_type().clone()), Arc::new(floats.clone()))).unwrap();
    assert_eq!(tensor_shape(out.schema_ref().field(0)).unwrap().1, vec![2]);
    assert_eq!(out.schema_ref().field(0).extension_type_name(), Some("arrow.fixed_shape_tensor"));
    assert!(out.column(0).is_null(1));
    assert_eq!(out.column(0).as_fixed_size_list().value(0).as_primitive::<Float32Type>().values(), &[1.0, 2.0]);
    let flags = FixedSizeListArray::new(
        Arc::new(Field::new("item", DataType::Boolean, false)),
        3,
        Arc::new(BooleanArray::from(vec![true, false, true, false, false, true])),
        None,
    );
    let mask = tensor_field("mask", &DataType::Boolean, &[3]);
    let batch = one(mask, Arc::new(flags));
    assert_eq!(round_trip(&batch).unwrap(), batch);
    let holes = FixedSizeListArray::new(
        Arc::new(Field::new("item", DataType::Int32, true)),
        2,
        Arc::new(Int32Array::from(vec![Some(1), None])),
        None,
    );
    let error = round_trip(&one(field("holes", holes.data_type().clone()), Arc::new(holes))).unwrap_err();
    assert!(error.message.contains("`holes`, row 0"), "{error}");
    // Under a null tensor anything may lie, also beside a row that has a hole.
    let list = |nulls: Vec<bool>| {
        let values = Int32Array::from(vec![Some(1), None, Some(3), Some(4)]);
        let item = Arc::new(Field::new("item", DataType::Int32, true));
        one(
            field("x", DataType::FixedSizeList(Arc::clone(&item), 2)),
            Arc::new(FixedSizeListArray::new(item, 2, Arc::new(values), Some(nulls.into()))),
        )
    };
    assert!(round_trip(&list(vec![true, false])).is_err());
    let out = round_trip(&list(vec![false, true])).unwrap();
    assert_eq!(out.column(0).as_fixed_size_list().value(1).as_primitive::<Int32Type>().values(), &[3, 4]);
}

pub(super) fn ragged(rows: &[Option<(Vec<i32>, Vec<u16>)>]) -> (Field, ArrayRef) {
    let mut data = ListBuilder::new(UInt16Builder::new()).with_field(Field::new("item", DataType::UInt16, false));
    let mut shape = FixedSizeListBuilder::new(Int32Builder::new(), 2).with_field(Field::new("item", DataType::Int32, false));
    for row in rows {
        let (dimensions, values) = row.clone().unwrap_or((vec![0, 0], vec![]));
        data.append_value(values.into_iter().map(Some));
        dimensions.into_iter().for_each(|d| shape.values().append_value(d));
        shape.append(true);
    }
    let columns: Vec<ArrayRef> = vec![Arc::new(data.finish()), Arc::new(shape.finish())];
    let fields = Fields::from(vec![
        Field::new("data", columns[0].data_type().clone(), false),
        Field::new("shape", columns[1].data_type().clone(), false),
    ]);
    let nulls = NullBuffer::from(rows.iter().map(Option::is_some).collect::<Vec<_>>());
    let array = StructArray::new(fields, columns, Some(nulls).filter(|n| n.null_count() > 0));
    let field = Field::new("scan", array.data_type().clone(), true).with_metadata(
        [("ARROW:extension:name".into(), "arrow.variable_shape_tensor".into()), ("ARROW:extension:metadata".into(), "{}".into())].into(),
    );
    (field, Arc::new(array))
}

#[test]
fn ragged_tensors_are_one_binary_per_row() {
    let (field, array) = ragged(&[Some((vec![1, 2], vec![7, 8])), None, Some((vec![0, 4], vec![])), Some((vec![1, 1], vec![65535]))]);
    assert_eq!(type_name(&field), "uint16[?,?]");
    let batch = one(field, array);
    let schema = to_stored(batch.schema_ref()).unwrap();
    assert!(matches!(schema.stored.field(0).data_type(), DataType::Struct(f) if f[0].data_type() == &DataType::Binary));
    assert_eq!(round_trip(&batch).unwrap(), batch);
    assert_eq!(round_trip(&batch.slice(2, 2)).unwrap(), batch.slice(2, 2));
}

#[test]
fn a_null_ragged_tensor_may_have_null_parts_and_a_present_one_may_not() {
    let build = |nulls: Vec<bool>| {
        let data = ListArray::new(
            Arc::new(Field::new("item", DataType::UInt8, true)),
            OffsetBuffer::from_lengths([2, 0]),
            Arc::new(UInt8Array::from(vec![5, 6])),
            Some(NullBuffer::from(vec![true, false])),
        );
        let shape = FixedSizeListArray::new(
            Arc::new(Field::new("item", DataType::Int32, true)),
            2,
            Arc::new(Int32Array::from(vec![Some(1), Some(2), None, None])),
            Some(NullBuffer::from(vec![true, false])),
        );
        let fields = Fields::from(vec![field("data", data.data_type().clone()), field("shape", shape.data_type().clone())]);
        let array = StructArray::new(fields, vec![Arc::new(data), Arc::new(shape)], Some(nulls.into()));
        let image = field("image", array.data_type().clone())
            .with_metadata([("ARROW:extension:name".into(), "arrow.variable_shape_tensor".into())].into());
        one(image, Arc::new(array))
    };
    let out = round_trip(&build(vec![true, false])).unwrap();
    assert!(out.column(0).is_null(1));
    let data = out.column(0).as_struct().column(0).as_list::<i32>().value(0);
    assert_eq!(data.as_primitive::<UInt8Type>().values(), &[5, 6]);
    let error = round_trip(&build(vec![true, true])).unwrap_err();
    assert!(error.message.contains("`image`, row 1"), "{error}");
}

#[test]
fn metadata_of_users_survives() {
    let json = field("doc", DataType::Utf8).with_metadata(
        [("ARROW:extension:name".into(), "arrow.json".into()), ("ARROW:extension:metadata".into(), "".into()), ("unit".into(), "m".into())]
            .into(),
    );
    let batch = one(json, Arc::new(StringArray::from(vec!["{}"])));
    assert_eq!(round_trip(&batch).unwrap(), batch);
}

#[test]
fn the_number_of_a_column_in_its_source_file_is_forgotten() {
    let numbered = field("x", DataType::Int64).with_metadata([("PARQUET:field_id".into(), "7".into())].into());
    let schema = to_stored(&Schema::new(vec![numbered])).unwrap();
    assert!(schema.logical.field(0).metadata().is_empty() && schema.stored.field(0).metadata().is_empty());
}

#[test]
fn what_cannot_be_stored_is_refused_by_name() {
    let refuse = |f: Field| to_stored(&Schema::new(vec![f])).unwrap_err();
    let interval = refuse(field("gap", DataType::Interval(IntervalUnit::DayTime)));
    assert!(interval.kind == Kind::Unsupported && interval.message.contains("`gap`"), "{interval}");
    assert_eq!(refuse(field("d", DataType::Decimal128(5, -2))).kind, Kind::Unsupported);
    assert_eq!(refuse(field("empty", DataType::Struct(Fields::empty()))).kind, Kind::Unsupported);
    let inner = tensor_field("item", &DataType::UInt8, &[2]);
    assert!(refuse(field("deep", DataType::List(Arc::new(inner)))).message.contains("arrow.fixed_shape_tensor"));
    let zero = refuse(tensor_field("zero", &DataType::UInt8, &[0]));
    assert_eq!(zero.kind, Kind::Unsupported);
}

#[test]
fn names_that_are_taken_or_refused_suggest_as() {
    let user = |names: &[&str]| {
        let fields: Vec<_> = names.iter().map(|n| field(n, DataType::Int64)).collect();
        check_user_columns(&Schema::new(fields), "step `decode`")
    };
    user(&["label", "bild", "größe", "a.b"]).unwrap();
    for (names, suggestion) in [
        (vec!["_id"], "AS my_id"),
        (vec!["Epoch"], "AS my_epoch"),
        (vec!["split"], "AS my_split"),
        (vec!["_score"], "AS my_score"),
        (vec!["a b"], "AS a_b"),
        (vec!["count(*)"], "AS count"),
        (vec!["x", "x"], "AS x_2"),
        (vec!["x", "X"], "AS X_2"),
    ] {
        let error = user(&names).unwrap_err();
        assert_eq!(error.kind, Kind::BadInput);
        assert!(error.message.contains("step `decode`"), "{error}");
        assert!(error.to_string().ends_with(&format!("{suggestion}`")), "{names:?}: {error}");
    }
    assert!(to_stored(&Schema::new(vec![field("_id", DataType::Utf8)])).is_err());
    assert!(to_stored(&Schema::new(vec![field("epoch", DataType::Int32)])).is_err());
    to_stored(&Schema::new(vec![field("_id", DataType::Int64), field("split", DataType::Utf8)])).unwrap();
}

#[test]
fn a_null_where_none_may_be_is_an_error() {
    let batch = one(field("x", DataType::Int64), Arc::new(Int64Array::from(vec![Some(1), None])));
    let schema = to_stored(&Schema::new(vec![Field::new("x", DataType::Int64, false)])).unwrap();
    let error = encode(&batch, &schema).unwrap_err();
    assert!(error.message.contains("`x`") && error.message.contains("1 of 2"), "{error}");
}

#[test]
fn stored_bytes_of_another_writer_are_checked() {
    let schema = to_stored(&Schema::new(vec![tensor_field("t", &DataType::UInt8, &[2])])).unwrap();
    let foreign = |values: Vec<&[u8]>| one(Field::new("t", DataType::Binary, false), Arc::new(BinaryArray::from(values)));
    let good = decode(foreign(vec![&[1, 2], &[3, 4]]), &schema).unwrap();
    assert_eq!(good.column(0).as_fixed_size_list().value(1).as_primitive::<UInt8Type>().values(), &[3, 4]);
    let error = decode(foreign(vec![&[1, 2], &[3]]), &schema).unwrap_err();
    assert_eq!(error.kind, Kind::Corrupt);
    assert!(error.message.contains("row 1"), "{error}");
}

#[test]
fn type_names_are_those_that_users_write() {
    assert_eq!(type_name(&field("x", DataType::Int64)), "int64");
    assert_eq!(type_name(&field("x", DataType::Utf8)), "string");
    assert_eq!(type_name(&field("x", DataType::new_list(DataType::Int32, true))), "list<int32>");
    assert_eq!(type_name(&field("x", DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into())))), "timestamp[us, UTC]");
}
