//! The key travels by itself.

use super::*;

#[tokio::test]
async fn keys_are_carried_through_projections_tables_and_ctes() {
    let expected = "
        +-----+---------+-------+
        | _id | _source | m     |
        +-----+---------+-------+
        | 8   | f0.csv  | row 8 |
        | 9   | f0.csv  | row 9 |
        | 10  | f1.csv  | row 10 |
        +-----+---------+-------+";
    let expected: Vec<&str> = expected.split_whitespace().filter(|w| !w.contains("---")).collect();
    for query in [
        "SELECT name AS m FROM input",
        "SELECT i.name AS m FROM input AS i",
        "SELECT name AS m, _id FROM input",
        "SELECT _source, name AS m, _id AS _id FROM input",
        "SELECT m FROM (SELECT name AS m FROM input) t",
        "SELECT m FROM (SELECT name FROM input) AS t(m)",
        "WITH t AS (SELECT name AS m FROM input WHERE true), u AS (SELECT * FROM t) SELECT u.m FROM u",
        "SELECT * EXCEPT (n, tags, name), name AS m FROM input",
        "SELECT * EXCEPT (n, tags, name, _id), name AS m FROM input",
        "FROM input SELECT name AS m",
    ] {
        let table = table(&[query], input(8..11)).await;
        let words: Vec<&str> = table.split_whitespace().filter(|w| !w.contains("---")).collect();
        assert_eq!(words, expected, "{query}\n{table}");
    }
}

#[tokio::test]
async fn rows_dropped_by_a_filter_keep_their_keys() {
    let output = table(&["SELECT n FROM input WHERE n % 4 = 0", "SELECT n + 1 AS m FROM input WHERE n > 4"], input(0..12)).await;
    same(
        &output,
        "+-----+---------+----+
         | _id | _source | m  |
         +-----+---------+----+
         | 4   | f0.csv  | 9  |
         | 6   | f0.csv  | 13 |
         | 8   | f0.csv  | 17 |
         +-----+---------+----+",
    );
}

#[tokio::test]
async fn unnest_numbers_the_parts_of_each_row() {
    let output = table(&["SELECT unnest(tags) AS tag, n FROM input"], input(1..4)).await;
    same(
        &output,
        "+-----+-------+---------+-----+---+
         | _id | _part | _source | tag | n |
         +-----+-------+---------+-----+---+
         | 1   | 0     | f0.csv  | 0   | 2 |
         | 2   | 0     | f0.csv  | 0   | 4 |
         | 2   | 1     | f0.csv  | 1   | 4 |
         | 3   | 0     | f0.csv  | 0   | 6 |
         | 3   | 1     | f0.csv  | 1   | 6 |
         | 3   | 2     | f0.csv  | 2   | 6 |
         +-----+-------+---------+-----+---+",
    );
}

#[tokio::test]
async fn unnesting_twice_counts_on() {
    let steps = ["SELECT unnest(tags) AS tag FROM input", "SELECT unnest(make_array(tag, tag + 10)) AS t FROM input WHERE tag > 0"];
    let output = table(&steps, input(1..4)).await;
    same(
        &output,
        "+-----+-------+---------+----+
         | _id | _part | _source | t  |
         +-----+-------+---------+----+
         | 2   | 0     | f0.csv  | 1  |
         | 2   | 1     | f0.csv  | 11 |
         | 3   | 0     | f0.csv  | 1  |
         | 3   | 1     | f0.csv  | 11 |
         | 3   | 2     | f0.csv  | 2  |
         | 3   | 3     | f0.csv  | 12 |
         +-----+-------+---------+----+",
    );
}

#[tokio::test]
async fn the_schema_is_known_before_any_row() {
    let steps = compile(&["SELECT unnest(tags) AS tag FROM input", "SELECT CAST(tag AS VARCHAR) AS text FROM input"]).await.unwrap();
    let names = |upto| steps.output_schema(upto).fields().iter().map(|f| f.name().clone()).collect::<Vec<_>>();
    assert_eq!(names(0), ["_id", "_source", "n", "name", "tags"]);
    assert_eq!(names(1), ["_id", "_part", "_source", "tag"]);
    assert_eq!(names(2), ["_id", "_part", "_source", "text"]);
    assert!(!steps.has_part(0) && steps.has_part(1));
    assert_eq!(steps.output_schema(2).field(3).data_type(), &arrow::datatypes::DataType::Utf8);
    let output = steps.run(0..2, 1, 0, input(0..9)).await.unwrap();
    assert_eq!(output.batch.schema(), steps.output_schema(2));
    let none = steps.run(0..2, 1, 0, input(0..0)).await.unwrap();
    assert_eq!(none.batch.schema(), steps.output_schema(2));
    assert_eq!(none.batch.num_rows(), 0);
    let all = steps.run(0..0, 1, 0, input(0..9)).await.unwrap();
    assert_eq!(all.batch, input(0..9));
}

#[tokio::test]
async fn extension_types_survive() {
    let steps = [
        "SELECT tensor(make_array(n, n + 1), 2) AS t, name FROM input WHERE n IS NOT NULL",
        "SELECT CASE WHEN length(name) > 5 THEN t ELSE tensor(make_array(0, 0), 2) END AS a, t, coalesce(t, t) AS b FROM input",
        "SELECT x.a, x.b, x.t FROM (SELECT * FROM input) AS x",
    ];
    let output = run(&steps, input(1..4)).await;
    for column in ["a", "b", "t"] {
        let field = output.batch.schema().field_with_name(column).unwrap().clone();
        assert!(crate::functions::tensor::is_fixed_tensor(&field), "{field:?}");
    }
}
