//! Any column of any type that can be stored comes back as it was, through the stored form and the log's schema.

use arrow::array::*;
use arrow::buffer::{BooleanBuffer, NullBuffer, OffsetBuffer};
use arrow::datatypes::*;
use forebay_core::random::Rng;
use proptest::prelude::*;
use std::sync::Arc;

use super::{ragged, round_trip};
use crate::types::tensor_field;

fn leaf() -> impl Strategy<Value = DataType> {
    prop_oneof![
        Just(DataType::Boolean),
        Just(DataType::Int8),
        Just(DataType::Int16),
        Just(DataType::Int32),
        Just(DataType::Int64),
        Just(DataType::UInt8),
        Just(DataType::UInt16),
        Just(DataType::UInt32),
        Just(DataType::UInt64),
        Just(DataType::Float32),
        Just(DataType::Float64),
        Just(DataType::Utf8),
        Just(DataType::Binary),
        Just(DataType::Date32),
        Just(DataType::Timestamp(TimeUnit::Millisecond, None)),
        Just(DataType::Timestamp(TimeUnit::Microsecond, Some("UTC".into()))),
        Just(DataType::Timestamp(TimeUnit::Nanosecond, Some("+02:00".into()))),
        Just(DataType::Duration(TimeUnit::Microsecond)),
        Just(DataType::Time64(TimeUnit::Nanosecond)),
    ]
}

fn any_type() -> impl Strategy<Value = DataType> {
    leaf().prop_recursive(3, 8, 3, |inner| {
        prop_oneof![
            (inner.clone(), any::<bool>()).prop_map(|(t, nullable)| DataType::new_list(t, nullable)),
            inner.clone().prop_map(|t| DataType::new_large_list(t, true)),
            proptest::collection::vec(inner, 1..3).prop_map(|types| {
                DataType::Struct(types.into_iter().enumerate().map(|(i, t)| Field::new(format!("f{i}"), t, true)).collect())
            }),
        ]
    })
}

fn nulls(rng: &mut Rng, len: usize, nullable: bool) -> Option<NullBuffer> {
    (nullable && rng.below(3) > 0).then(|| NullBuffer::new((0..len).map(|_| rng.below(4) > 0).collect::<BooleanBuffer>()))
}

/// An array of random values that its type can hold exactly.
fn array(data_type: &DataType, len: usize, nullable: bool, rng: &mut Rng) -> ArrayRef {
    macro_rules! numbers {
        ($array:ty, $make:expr) => {{
            let values: Vec<_> = (0..len).map(|_| $make(rng.next_u64())).collect();
            Arc::new(<$array>::new(values.into(), nulls(rng, len, nullable))) as ArrayRef
        }};
    }
    match data_type {
        DataType::Boolean => Arc::new(BooleanArray::new((0..len).map(|_| rng.below(2) == 1).collect(), nulls(rng, len, nullable))),
        DataType::Int8 => numbers!(Int8Array, |v| v as i8),
        DataType::Int16 => numbers!(Int16Array, |v| v as i16),
        DataType::Int32 => numbers!(Int32Array, |v| v as i32),
        DataType::Int64 => numbers!(Int64Array, |v| v as i64),
        DataType::UInt8 => numbers!(UInt8Array, |v| v as u8),
        DataType::UInt16 => numbers!(UInt16Array, |v| v as u16),
        DataType::UInt32 => numbers!(UInt32Array, |v| v as u32),
        DataType::UInt64 => numbers!(UInt64Array, |v| v),
        DataType::Float32 => numbers!(Float32Array, |v| v as i32 as f32),
        DataType::Float64 => numbers!(Float64Array, |v| v as i64 as f64),
        DataType::Date32 => numbers!(Date32Array, |v| v as i16 as i32),
        DataType::Duration(_) => numbers!(DurationMicrosecondArray, |v| v as i64),
        DataType::Time64(_) => numbers!(Time64NanosecondArray, |v| (v >> 20) as i64),
        DataType::Timestamp(TimeUnit::Millisecond, _) => numbers!(TimestampMillisecondArray, |v| v as i32 as i64),
        DataType::Timestamp(TimeUnit::Microsecond, tz) => {
            let values = (0..len).map(|_| rng.next_u64() as i64).collect::<Vec<_>>();
            Arc::new(TimestampMicrosecondArray::new(values.into(), nulls(rng, len, nullable)).with_timezone_opt(tz.clone()))
        }
        DataType::Timestamp(_, tz) => {
            let values = (0..len).map(|_| rng.next_u64() as i32 as i64 * 1000).collect::<Vec<_>>();
            Arc::new(TimestampNanosecondArray::new(values.into(), nulls(rng, len, nullable)).with_timezone_opt(tz.clone()))
        }
        DataType::Utf8 => {
            let values = (0..len).map(|_| (rng.below(4) > 0 || !nullable).then(|| "é".repeat(rng.below(5) as usize)));
            Arc::new(values.collect::<StringArray>())
        }
        DataType::Binary => {
            let values = (0..len).map(|_| (rng.below(4) > 0 || !nullable).then(|| vec![rng.next_u64() as u8; rng.below(5) as usize]));
            Arc::new(values.collect::<BinaryArray>())
        }
        DataType::List(item) => {
            let lengths: Vec<_> = (0..len).map(|_| rng.below(4) as usize).collect();
            let values = array(item.data_type(), lengths.iter().sum(), item.is_nullable(), rng);
            Arc::new(ListArray::new(Arc::clone(item), OffsetBuffer::from_lengths(lengths), values, nulls(rng, len, nullable)))
        }
        DataType::LargeList(item) => {
            let lengths: Vec<_> = (0..len).map(|_| rng.below(4) as usize).collect();
            let values = array(item.data_type(), lengths.iter().sum(), item.is_nullable(), rng);
            Arc::new(LargeListArray::new(Arc::clone(item), OffsetBuffer::from_lengths(lengths), values, nulls(rng, len, nullable)))
        }
        DataType::Struct(fields) => {
            let columns = fields.iter().map(|f| array(f.data_type(), len, f.is_nullable(), rng)).collect();
            Arc::new(StructArray::new(fields.clone(), columns, nulls(rng, len, nullable)))
        }
        other => unreachable!("{other} isn't generated"),
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    #[test]
    fn any_batch_comes_back(types in proptest::collection::vec(any_type(), 1..4), rows in 0_usize..20, from in 0_usize..10, seed: u64) {
        let mut rng = Rng::new(seed);
        let fields: Vec<_> = types.iter().enumerate().map(|(i, t)| Field::new(format!("c{i}"), t.clone(), true)).collect();
        let columns = types.iter().map(|t| array(t, rows, true, &mut rng)).collect();
        let batch = RecordBatch::try_new(Arc::new(Schema::new(fields)), columns).unwrap();
        // A slice, because engines hand out slices.
        let from = from.min(rows);
        let slice = batch.slice(from, rows - from);
        prop_assert_eq!(round_trip(&slice).unwrap(), slice);
    }

    #[test]
    fn any_tensor_comes_back(
        shape in proptest::collection::vec(1_usize..5, 1..4), element in leaf(), rows in 0_usize..9, from in 0_usize..9, seed: u64
    ) {
        prop_assume!(element.is_integer() || element.is_floating() || element == DataType::Boolean);
        let field = tensor_field("t", &element, &shape);
        let size = shape.iter().product::<usize>();
        let values = array(&element, rows * size, false, &mut Rng::new(seed));
        let item = Arc::new(Field::new("item", element, false));
        let tensor: ArrayRef = Arc::new(FixedSizeListArray::new(item, size as i32, values, None));
        let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![tensor]).unwrap();
        let from = from.min(rows);
        let slice = batch.slice(from, rows - from);
        prop_assert_eq!(round_trip(&slice).unwrap(), slice);
    }

    #[test]
    fn any_ragged_tensor_comes_back(shapes in proptest::collection::vec(proptest::option::of((0_i32..4, 0_i32..4)), 0..8), seed: u16) {
        let rows: Vec<_> = shapes.iter().map(|s| s.map(|(h, w)| (vec![h, w], vec![seed; (h * w) as usize]))).collect();
        let (field, array) = ragged(&rows);
        let batch = RecordBatch::try_new(Arc::new(Schema::new(vec![field])), vec![array]).unwrap();
        prop_assert_eq!(round_trip(&batch).unwrap(), batch);
    }
}
