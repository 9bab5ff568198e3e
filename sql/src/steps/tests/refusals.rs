//! What a step may not be: each refusal names the construct, and says where to go.

use super::*;

#[tokio::test]
async fn what_needs_other_rows_is_named_and_sent_to_the_source() {
    let cases = [
        ("SELECT count(*) AS c FROM input", "aggregate"),
        ("SELECT sum(n) AS s FROM input", "aggregate"),
        ("SELECT name, max(n) AS m FROM input GROUP BY name", "GROUP BY"),
        ("SELECT n FROM input ORDER BY n", "ORDER BY"),
        ("SELECT n FROM input LIMIT 3", "LIMIT"),
        ("SELECT n FROM input OFFSET 3", "LIMIT"),
        ("SELECT n FROM input FETCH FIRST 3 ROWS ONLY", "FETCH"),
        ("SELECT DISTINCT n FROM input", "DISTINCT"),
        ("SELECT DISTINCT ON (n) n FROM input", "DISTINCT"),
        ("SELECT n FROM input HAVING n > 1", "HAVING"),
        ("SELECT row_number() OVER () AS r FROM input", "window function"),
        ("SELECT sum(n) OVER (PARTITION BY name) AS r FROM input", "window function"),
        ("SELECT n FROM input QUALIFY row_number() OVER () = 1", "QUALIFY"),
        ("SELECT a.n FROM input a JOIN input b ON a.n = b.n", "join"),
        ("SELECT a.n FROM input a, input b", "join"),
        ("SELECT n FROM input UNION ALL SELECT n FROM input", "UNION"),
        ("SELECT n FROM input EXCEPT SELECT n FROM input", "EXCEPT"),
        ("SELECT (SELECT max(n) FROM input) AS m FROM input", "subquery"),
        ("SELECT n FROM input WHERE n IN (SELECT n FROM input)", "subquery"),
        ("SELECT n FROM input WHERE EXISTS (SELECT 1 FROM input)", "subquery"),
        ("WITH RECURSIVE t AS (SELECT n FROM input) SELECT n FROM t", "RECURSIVE"),
        ("SELECT n FROM (SELECT n FROM input LIMIT 1) t", "LIMIT"),
        ("WITH t AS (SELECT DISTINCT n FROM input) SELECT n FROM t", "DISTINCT"),
    ];
    for (query, construct) in cases {
        let error = refused(query).await;
        assert!(error.message.contains(construct), "{query}: {error}");
        assert!(error.to_string().contains("[source] sql"), "{query}: {error}");
        assert!(error.message.contains("steps[0].sql (step `s0`)"), "{query}: {error}");
    }
}

#[tokio::test]
async fn what_changes_by_itself_is_refused() {
    for call in ["random()", "uuid()", "now()", "current_date", "current_date()", "current_time()", "current_timestamp"] {
        let error = refused(&format!("SELECT {call} AS x FROM input")).await;
        assert!(error.message.contains("gives another value each time"), "{call}: {error}");
    }
}

#[tokio::test]
async fn nothing_but_input_is_readable() {
    let cases = [
        "SELECT * FROM other",
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM 'file:///etc/passwd'",
        "SELECT * FROM \"https://example.com/x.parquet\"",
        "SELECT * FROM information_schema.tables",
        "SELECT * FROM datafusion.public.input",
        "SELECT * FROM generate_series(1, 10)",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT 1 AS x",
        "VALUES (1)",
        "SELECT n FROM input TABLESAMPLE BERNOULLI (10)",
        "COPY input TO '/tmp/x'",
        "COPY (SELECT 1) TO '/tmp/x.csv'",
        "CREATE TABLE t AS SELECT * FROM input",
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'",
        "CREATE VIEW v AS SELECT * FROM input",
        "INSERT INTO input SELECT * FROM input",
        "DELETE FROM input",
        "DROP TABLE input",
        "SET datafusion.execution.batch_size = 1",
        "RESET datafusion.execution.batch_size",
        "SHOW TABLES",
        "EXPLAIN SELECT n FROM input",
        "PREPARE p AS SELECT n FROM input",
        "SELECT n INTO x FROM input",
        "SELECT n FROM input; SELECT n FROM input",
        "",
        ";",
        "SELECT $1 AS x FROM input",
        "SELECT @@version AS x FROM input",
        "SELECT __draw(1) AS x FROM input",
        "SELECT arrow_cast(n, 'Utf8'), version() AS v FROM other",
    ];
    for query in cases {
        let error = refused(query).await;
        assert_ne!(error.kind, forebay_core::Kind::Internal, "{query}: {error}");
    }
}

#[tokio::test]
async fn bad_names_suggest_as() {
    let cases = [
        "SELECT upper(name) FROM input",
        "SELECT n + 1 FROM input",
        "SELECT n AS _id FROM input",
        "SELECT n AS \"_ID\" FROM input",
        "SELECT _id + 1 AS _id FROM input",
        "SELECT name AS _source FROM input",
        "SELECT n AS _part FROM input",
        "SELECT n AS _score FROM input",
        "SELECT n AS epoch FROM input",
        "SELECT n AS split FROM input",
        "SELECT n AS \"a b\" FROM input",
        "SELECT n AS \"\" FROM input",
        "SELECT n AS a, name AS \"A\" FROM input",
        "SELECT random_uniform() FROM input",
    ];
    for query in cases {
        let error = refused(query).await;
        assert!(error.to_string().contains("AS"), "{query}: {error}");
    }
    // Planned as one table with two equal names: refused by DataFusion in its own words.
    for query in ["SELECT n, n FROM input", "SELECT *, upper(name) AS name FROM input", "SELECT n AS a, name AS a FROM input"] {
        let error = refused(query).await;
        assert_eq!(error.kind, forebay_core::Kind::BadInput, "{query}: {error}");
    }
}

#[tokio::test]
async fn errors_carry_the_position_and_the_near_name() {
    let error = refused("SELECT\n  nam FROM input").await;
    assert!(error.message.contains("line 2"), "{error}");
    assert!(error.message.contains("name"), "{error}");
    let error = refused("SELECT n FRM input WHERE").await;
    assert!(error.message.contains("Line: 1"), "{error}");
    let error = refused("SELECT upperr(name) AS x FROM input").await;
    assert!(error.message.contains("upper"), "{error}");
    let error = refused("SELECT random_int(1) AS x FROM input").await;
    assert!(error.message.contains("random_int(low, high)"), "{error}");
}

#[tokio::test]
async fn random_calls_above_unnest_are_refused() {
    let error = refused("SELECT random_uniform() AS r, tag FROM (SELECT unnest(tags) AS tag FROM input)").await;
    assert!(error.to_string().contains("in the next"), "{error}");
}

#[tokio::test]
async fn long_sums_and_deep_nesting_end_in_an_error_or_a_plan() {
    let long = format!("SELECT {} AS x FROM input", vec!["n"; 1_500].join(" + "));
    let output = run(&[&long], input(1..3)).await;
    assert_eq!(output.batch.column_by_name("x").unwrap().as_ref(), &Int64Array::from(vec![3_000, 6_000]) as &dyn arrow::array::Array);
    let longer = format!("SELECT {} AS x FROM input", vec!["n"; 5_000].join(" + "));
    assert_eq!(refused(&longer).await.kind, forebay_core::Kind::ResourceExhausted);
    let deep = format!("SELECT {}n{} AS x FROM input", "(".repeat(2_000), ")".repeat(2_000));
    assert_eq!(refused(&deep).await.kind, forebay_core::Kind::BadInput);
    let huge = format!("SELECT '{}' AS x FROM input", "x".repeat(1 << 20));
    assert_eq!(refused(&huge).await.kind, forebay_core::Kind::ResourceExhausted);
}

#[tokio::test]
async fn steps_behind_the_cut_keep_the_row_count() {
    let steps =
        compile(&["SELECT *, unnest(tags) AS tag FROM input", "SELECT n, tag FROM input WHERE n > 1", "SELECT n + 1 AS m FROM input"])
            .await
            .unwrap();
    let error = steps.check_behind_cut(0).unwrap_err();
    assert!(error.message.contains("steps[0].sql (step `s0`) unnests"), "{error}");
    let error = steps.check_behind_cut(1).unwrap_err();
    assert!(error.message.contains("steps[1].sql (step `s1`) filters"), "{error}");
    assert!(error.to_string().contains("output.cut"), "{error}");
    steps.check_behind_cut(2).unwrap();
    steps.check_behind_cut(3).unwrap();
}

#[tokio::test]
async fn types_may_not_hang_on_the_epoch() {
    let error = refused("SELECT NULL AS x FROM input").await;
    assert!(error.to_string().contains("cast it"), "{error}");
}
