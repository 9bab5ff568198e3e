//! Draws depend on seed, epoch, step, call and key, and on nothing else.

use arrow::array::AsArray;
use arrow::compute::concat_batches;
use arrow::datatypes::Float64Type;
use proptest::prelude::*;

use super::*;

const STEPS: [&str; 3] = [
    "SELECT n, tags, random_uniform() AS u, random_int(-3, 4) AS i, random_normal() AS g, random_bool(0.3) AS b, random_uniform() AS v,
            random_choice(tags) AS c, random_uniform(0, n) AS w, epoch() AS e, seed() AS s
     FROM input WHERE random_bool(0.8)",
    "SELECT *, unnest(tags) AS tag FROM input WHERE u < 0.9",
    "SELECT u, i, g, b, v, c, w, e, s, tag, random_int(0, 1000) AS per_part FROM input",
];

async fn rows(steps: &CompiledSteps, seed: u64, epoch: u32, batches: Vec<RecordBatch>) -> RecordBatch {
    let mut outputs = Vec::new();
    for batch in batches {
        let output = steps.run(0..3, seed, epoch, batch).await.unwrap();
        assert!(output.bad.is_empty());
        outputs.push(output.batch);
    }
    concat_batches(&steps.output_schema(3), &outputs).unwrap()
}

#[test]
fn the_same_rows_at_any_batching() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let steps = runtime.block_on(compile(&STEPS)).unwrap();
    let whole = input(0..200);
    let expected = runtime.block_on(rows(&steps, 42, 1, vec![whole.clone()]));
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig::with_cases(24));
    runner
        .run(&proptest::collection::vec(0usize..200, 0..8), |mut cuts| {
            cuts.extend([0, 200]);
            cuts.sort_unstable();
            let slices = cuts.windows(2).map(|w| whole.slice(w[0], w[1] - w[0])).collect();
            prop_assert_eq!(&runtime.block_on(rows(&steps, 42, 1, slices)), &expected);
            Ok(())
        })
        .unwrap();
}

#[tokio::test]
async fn seeds_epochs_steps_calls_and_parts_draw_apart() {
    let steps = compile(&STEPS).await.unwrap();
    let base = rows(&steps, 42, 0, vec![input(0..300)]).await;
    assert_eq!(base, rows(&compile(&STEPS).await.unwrap(), 42, 0, vec![input(0..300)]).await);
    assert_ne!(base, rows(&steps, 43, 0, vec![input(0..300)]).await);
    assert_ne!(base, rows(&steps, 42, 1, vec![input(0..300)]).await);
    // Two calls in one step, and equal calls in two steps.
    assert_ne!(base.column_by_name("u"), base.column_by_name("v"));
    let one = run(&["SELECT random_uniform() AS r FROM input", "SELECT r, random_uniform() AS q FROM input"], input(0..50)).await.batch;
    assert_ne!(one.column_by_name("r"), one.column_by_name("q"));
    // Rows out of one row draw apart.
    let per_part = base.column_by_name("per_part").unwrap();
    let ids = base.column_by_name("_id").unwrap();
    let pairs = (1..base.num_rows()).filter(|i| ids.slice(*i, 1).to_data() == ids.slice(i - 1, 1).to_data());
    let differ = pairs.filter(|i| per_part.slice(*i, 1).to_data() != per_part.slice(i - 1, 1).to_data()).count();
    assert!(differ > 20, "{differ}");
}

#[tokio::test]
async fn a_golden_row_pins_the_draws() {
    let batch =
        run(&["SELECT random_int(0, 1000000) AS i, random_uniform() AS u, random_normal(10, 2) AS g FROM input"], input(7..9)).await.batch;
    same(&pretty_format_batches(&[batch]).unwrap().to_string(), GOLDEN);
}

/// Datasets that exist were made with these draws.
const GOLDEN: &str = "
    +-----+---------+--------+--------------------+--------------------+
    | _id | _source | i      | u                  | g                  |
    +-----+---------+--------+--------------------+--------------------+
    | 7   | f0.csv  | 238231 | 0.8574863623823528 | 11.983239504738432 |
    | 8   | f0.csv  | 54282  | 0.5425466869275486 | 12.052102811703639 |
    +-----+---------+--------+--------------------+--------------------+";

#[tokio::test]
async fn draws_are_spread_as_they_say() {
    let batch = run(
        &["SELECT random_uniform() AS u, random_normal() AS g, CAST(random_int(0, 10) AS DOUBLE) AS i, CAST(random_bool(0.25) AS INT)::DOUBLE AS b FROM input"],
        input(0..20_000),
    )
    .await
    .batch;
    let values = |name: &str| batch.column_by_name(name).unwrap().as_primitive::<Float64Type>().values().to_vec();
    let moments = |name: &str| {
        let v = values(name);
        let mean = v.iter().sum::<f64>() / v.len() as f64;
        (mean, v.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / v.len() as f64)
    };
    let near = |(mean, variance): (f64, f64), m: f64, v: f64| (mean - m).abs() < 0.05 * v.sqrt() && (variance / v - 1.0).abs() < 0.05;
    assert!(near(moments("u"), 0.5, 1.0 / 12.0));
    assert!(near(moments("g"), 0.0, 1.0));
    assert!(near(moments("i"), 4.5, 8.25));
    assert!(near(moments("b"), 0.25, 0.1875));
}

#[tokio::test]
async fn random_works_in_case_where_and_nested_calls() {
    let batch = run(
        &["SELECT CASE WHEN random_bool(0.5) THEN n ELSE -n END AS a, random_int(0, 1 + random_int(0, 5)) AS b FROM (SELECT * FROM input WHERE random_bool(0.5)) t WHERE random_uniform() < 0.9"],
        input(0..400),
    )
    .await
    .batch;
    assert!(batch.num_rows() > 120 && batch.num_rows() < 240, "{}", batch.num_rows());
}

#[tokio::test]
async fn an_empty_range_names_itself_as_a_bad_row() {
    let output = run(&["SELECT random_int(n, 10) AS x FROM input WHERE n IS NOT NULL"], input(1..9)).await;
    assert_eq!(output.bad.iter().map(|b| b.id).collect::<Vec<_>>(), [6, 7, 8]);
    assert!(output.bad[0].message.contains("12 .. 10"), "{:?}", output.bad);
}
