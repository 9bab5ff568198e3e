//! Bad rows, and what a batch costs.

use std::time::Instant;

use super::*;

#[tokio::test]
async fn rows_that_fail_alone_are_put_aside() {
    let steps =
        compile(&["SELECT 100 / (n - 24) AS q, name FROM input", "SELECT CAST(substr(name, 5) AS INT) + q AS x FROM input"]).await.unwrap();
    let output = steps.run(0..2, 1, 0, input(0..100)).await.unwrap();
    assert_eq!(output.bad.len(), 1, "{:?}", output.bad);
    let bad = &output.bad[0];
    assert_eq!((bad.id, bad.source.as_str()), (12, "f1.csv"));
    assert!(bad.message.contains("step `s0`") && bad.message.to_lowercase().contains("zero"), "{bad:?}");
    assert_eq!(output.batch.num_rows(), 99);
    let without: Vec<i64> = (0..100).filter(|i| *i != 12).collect();
    assert_eq!(super::super::keys::ids(&output.batch).unwrap().values().to_vec(), without);
}

#[tokio::test]
async fn bad_rows_of_several_steps_come_in_key_order() {
    let steps = compile(&["SELECT 1 / (n - 42) AS q, n FROM input", "SELECT 1 / (n - 4) AS p FROM input"]).await.unwrap();
    let output = steps.run(0..2, 1, 0, input(0..30)).await.unwrap();
    assert_eq!(output.bad.iter().map(|b| b.id).collect::<Vec<_>>(), [2, 21]);
    assert!(output.bad[0].message.contains("`s1`") && output.bad[1].message.contains("`s0`"));
}

#[tokio::test]
async fn failing_fast_finds_one_row_in_few_tries() {
    let steps = compile(&["SELECT 1 / (n - n) AS q FROM input WHERE n IS NOT NULL"]).await.unwrap();
    let output = steps.run_until(0..1, 1, 0, input(0..4_000), 0).await.unwrap();
    assert_eq!(output.bad.len(), 1);
    assert_eq!(output.bad[0].id, 1);
}

#[tokio::test]
async fn parts_of_a_bad_row_are_counted_on() {
    let steps = compile(&["SELECT unnest(make_array(1, 0, 2)) AS k FROM input", "SELECT 6 / k AS q FROM input"]).await.unwrap();
    let output = steps.run(0..2, 1, 0, input(3..5)).await.unwrap();
    assert_eq!(output.bad.len(), 2);
    assert!(output.bad[0].message.contains("(_part 1)"), "{:?}", output.bad);
    assert_eq!(output.batch.num_rows(), 4);
}

/// A batch of 1,000 rows through three light steps; debug builds allow ten times what a release build needs.
#[tokio::test(flavor = "multi_thread")]
async fn a_batch_costs_little_beside_its_rows() {
    let steps = compile(&[
        "SELECT n + 1 AS n, name, tags FROM input",
        "SELECT n * 2 AS n, upper(name) AS name FROM input WHERE n IS NOT NULL",
        "SELECT n, name, random_uniform() AS u FROM input",
    ])
    .await
    .unwrap();
    let batch = input(0..1_000);
    steps.run(0..3, 1, 1, batch.clone()).await.unwrap();
    let start = Instant::now();
    for _ in 0..50 {
        steps.run(0..3, 1, 1, batch.clone()).await.unwrap();
    }
    let each = start.elapsed() / 50;
    println!("{each:?} per batch of 1,000 rows and three steps");
    assert!(each.as_millis() < 50, "{each:?}");
}

#[tokio::test]
async fn plans_of_many_epochs_come_and_go() {
    let steps = compile(&["SELECT epoch() AS e FROM input"]).await.unwrap();
    for epoch in (0..20).chain(0..3) {
        let output = steps.run(0..1, 1, epoch, input(0..2)).await.unwrap();
        let expected = Int64Array::from(vec![i64::from(epoch); 2]);
        assert_eq!(output.batch.column_by_name("e").unwrap().as_ref(), &expected as &dyn arrow::array::Array);
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn one_plan_serves_many_batches_at_once() {
    let steps = Arc::new(compile(&["SELECT n, random_int(0, 100) AS r FROM input"]).await.unwrap());
    let expected = steps.run(0..1, 5, 2, input(0..640)).await.unwrap().batch;
    let tasks: Vec<_> = (0..10)
        .map(|k| {
            let steps = steps.clone();
            tokio::spawn(async move { steps.run(0..1, 5, 2, input(k * 64..(k + 1) * 64)).await.unwrap().batch })
        })
        .collect();
    for (k, task) in tasks.into_iter().enumerate() {
        assert_eq!(task.await.unwrap(), expected.slice(k * 64, 64));
    }
}

#[tokio::test]
async fn images_are_decoded_a_few_at_a_time() {
    use arrow::array::{AsArray, BinaryArray};
    use std::io::Cursor;
    let mut png = Vec::new();
    image::RgbImage::from_fn(9, 7, |x, y| image::Rgb([x as u8, y as u8, 3]))
        .write_to(&mut Cursor::new(&mut png), image::ImageFormat::Png)
        .unwrap();
    let content: Vec<&[u8]> = (0..300).map(|i| if i == 200 { b"no image".as_slice() } else { png.as_slice() }).collect();
    let batch = RecordBatch::try_from_iter([
        ("_id", Arc::new(Int64Array::from_iter_values(0..300)) as ArrayRef),
        ("_source", Arc::new(StringArray::from_iter_values((0..300).map(|i| format!("{i}.png"))))),
        ("content", Arc::new(BinaryArray::from(content))),
    ])
    .unwrap();
    let steps = specs(&[
        "SELECT image_decode(content) AS image FROM input",
        "SELECT image_resize(image, 4, 4) AS image, random_int(0, 100) AS r FROM input",
    ]);
    let steps = CompiledSteps::compile(&steps, batch.schema(), &BTreeMap::new(), None).await.unwrap();
    let whole = steps.run(0..2, 1, 0, batch.clone()).await.unwrap();
    assert_eq!(whole.bad.iter().map(|b| (b.id, b.source.as_str())).collect::<Vec<_>>(), [(200, "200.png")]);
    assert_eq!(whole.batch.num_rows(), 299);
    assert_eq!(whole.batch.column_by_name("image").unwrap().as_fixed_size_list().value_length(), 48);
    let part = steps.run(0..2, 1, 0, batch.slice(100, 50)).await.unwrap();
    assert_eq!(part.batch, whole.batch.slice(100, 50));
}
