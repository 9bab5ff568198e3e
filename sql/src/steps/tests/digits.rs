//! The example's pipeline: 64 pixel columns become an image, moved and blurred anew in every epoch.

use arrow::array::AsArray;
use arrow::datatypes::{DataType, Field, Schema, UInt8Type};

use super::*;

fn pixels(rows: i64) -> RecordBatch {
    let mut columns: Vec<(String, ArrayRef)> = vec![
        ("_id".into(), Arc::new(Int64Array::from_iter_values(0..rows))),
        ("_source".into(), Arc::new(StringArray::from_iter_values((0..rows).map(|_| "digits-0.csv")))),
    ];
    for p in 0..64 {
        columns.push((format!("p{p}"), Arc::new(Int64Array::from_iter_values((0..rows).map(|r| (r * 7 + p) % 17)))));
    }
    columns.push(("label".into(), Arc::new(Int64Array::from_iter_values((0..rows).map(|r| r % 10)))));
    let fields: Vec<Field> =
        columns.iter().map(|(name, column)| Field::new(name, column.data_type().clone(), !name.starts_with('_'))).collect();
    RecordBatch::try_new(Arc::new(Schema::new(fields)), columns.into_iter().map(|(_, c)| c).collect()).unwrap()
}

fn steps() -> Vec<StepSpec> {
    let list = (0..64).map(|p| format!("p{p}")).collect::<Vec<_>>().join(", ");
    let image = format!("SELECT tensor(make_array({list}), 8, 8, 'uint8') AS image, label FROM input");
    let augment = "SELECT CASE WHEN epoch() = 0 THEN image ELSE image_noise_gauss(image_translate_random(image, 1, 1), 0.5) END AS image, label FROM input";
    specs(&[&image, augment])
}

#[tokio::test]
async fn columns_become_augmented_images() {
    let batch = pixels(300);
    let compiled = CompiledSteps::compile(&steps(), batch.schema(), &BTreeMap::new(), None).await.unwrap();
    let field = compiled.output_schema(2).field_with_name("image").unwrap().clone();
    assert!(crate::functions::tensor::is_fixed_tensor(&field), "{field:?}");
    assert!(!field.is_nullable());
    assert!(matches!(field.data_type(), DataType::FixedSizeList(item, 64) if item.data_type() == &DataType::UInt8));
    compiled.check_behind_cut(0).unwrap();

    let image =
        |batch: &RecordBatch| batch.column_by_name("image").unwrap().as_fixed_size_list().values().as_primitive::<UInt8Type>().clone();
    let plain = compiled.run(0..2, 42, 0, batch.clone()).await.unwrap().batch;
    assert_eq!(image(&plain).value(3 * 64 + 5), ((3 * 7 + 5) % 17) as u8);
    let first = compiled.run(0..2, 42, 1, batch.clone()).await.unwrap().batch;
    let second = compiled.run(0..2, 42, 2, batch.clone()).await.unwrap().batch;
    assert_ne!(image(&plain), image(&first));
    assert_ne!(image(&first), image(&second));
    assert_eq!(first, compiled.run(0..2, 42, 1, batch).await.unwrap().batch);
}
