//! What a hostile query gets: a clear error, while other queries go on.

use forebay_core::Kind;

use super::*;

#[tokio::test]
async fn nothing_but_select_and_explain() {
    let world = World::new(1).await;
    let target = world._folder.path().join("out.csv");
    let target = target.to_str().unwrap();
    for sql in [
        format!("COPY (SELECT 1) TO '{target}'"),
        format!("COPY digits TO '{target}' STORED AS CSV"),
        format!("EXPLAIN COPY (SELECT 1) TO '{target}'"),
        format!("EXPLAIN ANALYZE COPY (SELECT 1) TO '{target}'"),
        "CREATE EXTERNAL TABLE t STORED AS CSV LOCATION '/etc/passwd'".into(),
        "CREATE TABLE t AS SELECT 1".into(),
        "CREATE VIEW v AS SELECT 1".into(),
        "CREATE SCHEMA s".into(),
        "CREATE FUNCTION f() RETURNS INT RETURN 1".into(),
        "INSERT INTO digits SELECT * FROM digits".into(),
        "UPDATE digits SET label = 1".into(),
        "DELETE FROM digits".into(),
        "DROP TABLE digits".into(),
        "TRUNCATE TABLE digits".into(),
        "SET datafusion.execution.target_partitions = 64".into(),
        "RESET datafusion.execution.target_partitions".into(),
        "SHOW ALL".into(),
        "PREPARE p AS SELECT 1".into(),
        "EXECUTE p".into(),
        "BEGIN".into(),
        "SELECT 1; SELECT 2".into(),
        "".into(),
    ] {
        let error = world.error(&sql).await;
        assert_ne!(error.kind, Kind::Internal, "{sql}: {error}");
    }
    assert!(!world._folder.path().join("out.csv").exists());
    assert_eq!(world.value("SELECT count(*) FROM digits").await, "100");
}

#[tokio::test]
async fn no_file_url_or_environment_is_reachable() {
    let world = World::new(1).await;
    for sql in [
        "SELECT * FROM '/etc/passwd'",
        "SELECT * FROM '../../etc/passwd'",
        "SELECT * FROM 'file:///etc/passwd'",
        "SELECT * FROM 'http://169.254.169.254/latest/meta-data'",
        "SELECT * FROM \"s3://bucket/x.parquet\"",
        "SELECT * FROM \"../journal\"",
        "SELECT * FROM \"digits/../digits\"",
        "SELECT * FROM \"digits%2f..\"",
        "SELECT * FROM \"digits\\..\"",
        "SELECT * FROM \"\"",
        "SELECT * FROM \"@v1\"",
        "SELECT * FROM read_csv('/etc/passwd')",
        "SELECT * FROM read_csv_auto('/etc/passwd')",
        "SELECT * FROM read_parquet('/etc/passwd')",
        "SELECT * FROM parquet_metadata('/etc/passwd')",
        "SELECT * FROM generate_series(1, 1000000000000)",
        "SELECT * FROM range(1, 1000000000000)",
        "SELECT getenv('HOME')",
        "SELECT @@version",
        "SELECT $1",
        "SELECT * FROM other.public.digits",
        "SELECT * FROM secret.digits",
    ] {
        let error = world.error(sql).await;
        assert!(matches!(error.kind, Kind::BadInput | Kind::NotFound | Kind::Unsupported), "{sql}: {error:?}");
    }
}

#[tokio::test]
async fn large_text_and_deep_expressions_end_in_an_error() {
    let world = World::new(1).await;
    let sum = |n: usize| format!("SELECT {} FROM digits", vec!["1"; n].join(" + "));
    assert_eq!(world.error(&sum(2_000)).await.kind, Kind::ResourceExhausted);
    assert_eq!(world.error(&sum(200_000)).await.kind, Kind::ResourceExhausted);
    assert!(world.batches(&sum(900)).await.is_ok());
    let columns = format!("SELECT {} FROM digits", vec!["label"; 900].join(" + "));
    assert!(world.batches(&columns).await.is_ok());
    let unions = vec!["SELECT 1"; 2_000].join(" UNION ALL ");
    assert_eq!(world.error(&unions).await.kind, Kind::ResourceExhausted);
    let nested = format!("SELECT {}1{}", "(".repeat(5_000), ")".repeat(5_000));
    assert_eq!(world.error(&nested).await.kind, Kind::BadInput);
    let long = format!("SELECT '{}'", "x".repeat(2 << 20));
    assert_eq!(world.error(&long).await.kind, Kind::ResourceExhausted);
    let list = format!("SELECT count(*) FROM digits WHERE _id IN ({})", (0..20_000).map(|i| i.to_string()).collect::<Vec<_>>().join(","));
    assert_eq!(world.value(&list).await, "100");
}

#[tokio::test]
async fn functions_that_grow_are_capped() {
    let world = World::new(1).await;
    for sql in [
        "SELECT range(0, 1000000000000)",
        "SELECT generate_series(0, 1000000000000)",
        "SELECT generate_series(-9000000000000000000, 9000000000000000000, 1)",
        "SELECT generate_series(TIMESTAMP '1970-01-01', TIMESTAMP '2200-01-01', INTERVAL '1 microsecond')",
        "SELECT cardinality(range(0, label * 1000000000)) FROM digits",
        "SELECT repeat('x', 100000000000)",
        "SELECT repeat(name, 1000000000) FROM digits",
        "SELECT lpad('x', 2000000000)",
        "SELECT rpad(name, 2000000000) FROM digits",
        "SELECT array_repeat(1, 100000000000)",
        "SELECT array_repeat(array_repeat(1, 1000000), 1000000)",
        "SELECT array_resize(make_array(1), 100000000000, 0)",
        "SELECT replace(repeat('a', 1000000), 'a', repeat('b', 1000000))",
    ] {
        let error = world.error(sql).await;
        assert_eq!(error.kind, Kind::ResourceExhausted, "{sql}: {error}");
    }
    assert_eq!(world.value("SELECT cardinality(range(0, 1000))").await, "1000");
    assert_eq!(world.value("SELECT length(repeat('ab', 10))").await, "20");
    assert_eq!(world.value("SELECT lpad('x', 3, '-')").await, "--x");
}

#[tokio::test]
async fn functions_that_double_their_arguments_are_capped() {
    let world = World::new(1).await;
    // Each level joins the one before with itself.
    let doubled = |levels: usize, start: &str, join: &str| {
        let mut sql = format!("WITH a0 AS (SELECT {start} AS x FROM digits LIMIT 1)");
        for level in 1..=levels {
            sql += &format!(", a{level} AS (SELECT {join} AS x FROM a{})", level - 1);
        }
        sql + &format!(" SELECT count(x) FROM a{levels}")
    };
    for (join, start) in [
        ("x || x || x || x", "arrow_cast(repeat(name, 1600000), 'LargeUtf8')"),
        ("x || x || x || x", "arrow_cast(repeat(name, 1600000)::bytea, 'LargeBinary')"),
        ("concat(x, x, x, x)", "repeat(name, 1600000)"),
        ("concat_ws(x, x, x, x)", "repeat(name, 1600000)"),
        ("array_concat(x, x, x, x)", "range(label, 400000)"),
    ] {
        let error = world.error(&doubled(1, start, join).replace(" LIMIT 1", "")).await;
        assert!(error.kind == Kind::ResourceExhausted && error.message.contains("at once"), "{join} of {start}: {error}");
    }
    // Written out, forty levels are 2^40 terms.
    for (join, start) in [("x || x", "name"), ("x + x", "label"), ("concat(x, x)", "name")] {
        let sql = doubled(40, start, join).replace("count(x)", "1") + " WHERE x IS NOT NULL";
        let error = world.error(&sql).await;
        assert!(error.kind == Kind::ResourceExhausted && error.message.contains("terms"), "{join} of {start}: {error}");
    }
    assert_eq!(world.value(&doubled(10, "label", "x + x")).await, "1");
    assert_eq!(world.value("SELECT 'a' || label || NULL FROM digits LIMIT 1").await, "");
    assert_eq!(world.value("SELECT label || '-' || name FROM digits WHERE _id = 43").await, "3-n43");
    assert_eq!(world.value("SELECT make_array(1, 2) || make_array(3)").await, "[1, 2, 3]");
    let grouped = "SELECT count(*) FROM (SELECT x, 'n' || y AS z FROM (SELECT [label] AS x, name AS y FROM digits) GROUP BY x, z)";
    assert_eq!(world.value(grouped).await, world.value("SELECT count(*) FROM (SELECT DISTINCT label, name FROM digits)").await);
    let subquery = "SELECT count(*) FROM digits WHERE 'x' || label IN (SELECT 'x' || label FROM digits WHERE label < 3)";
    assert_eq!(world.value(subquery).await, "30");
    let batches = world.batches("SELECT 'a' || name, [label, 2] FROM digits LIMIT 1").await.unwrap();
    let schema = batches[0].schema();
    let names: Vec<&String> = schema.fields().iter().map(|f| f.name()).collect();
    assert_eq!(names, ["Utf8(\"a\") || digits.name", "make_array(digits.label,Int64(2))"]);
}

#[tokio::test]
async fn constants_have_a_budget() {
    let world = World::new(1).await;
    for sql in [
        "SELECT range(0, 100000000)".to_owned(),
        "SELECT range(0, 1000000) FROM digits".to_owned(),
        "SELECT repeat('x', 10000000) FROM digits".to_owned(),
        "SELECT count(*) FROM digits WHERE array_has(range(0, 1000000), label)".to_owned(),
        format!("SELECT {}", (0..1_000).map(|i| format!("range({i}, 2000000)")).collect::<Vec<_>>().join(", ")),
        format!("VALUES {}", vec!["(range(0, 2000000))"; 1_000].join(", ")),
        "SELECT array_to_string(range(0, 1000000), repeat('x', 1000000))".to_owned(),
        "SELECT regexp_replace(repeat('a', 1000000), 'a', repeat('b', 1000000), 'g')".to_owned(),
        "SELECT lpad(name, 5, repeat('x', 1000000)) FROM digits".to_owned(),
    ] {
        let error = world.error(&sql).await;
        assert_eq!(error.kind, Kind::ResourceExhausted, "{}: {error}", &sql[..sql.len().min(80)]);
    }
    assert_eq!(world.value("SELECT count(*) FROM (SELECT unnest(range(0, 1000000)) AS n) WHERE n % 2 = 0").await, "500000");
    assert_eq!(world.value("SELECT length(repeat('x', 1000000))").await, "1000000");
}

#[tokio::test]
async fn quadratic_functions_are_capped() {
    let world = World::new(1).await;
    for sql in [
        "SELECT levenshtein(repeat('a', 1000000), repeat('b', 1000000))",
        "SELECT array_has_all(range(0, 1000000), range(0, 1000000))",
        "SELECT array_has_any(range(0, 1000000), range(1000000, 2000000))",
        "SELECT max(levenshtein(a.x, b.x)) FROM (SELECT repeat('a', 2000 + label) AS x FROM digits) a, \
         (SELECT repeat('b', 2000 + label) AS x FROM digits) b",
    ] {
        let error = world.error(sql).await;
        assert_eq!(error.kind, Kind::ResourceExhausted, "{sql}: {error}");
    }
    assert_eq!(world.value("SELECT levenshtein('kitten', 'sitting')").await, "3");
    assert_eq!(world.value("SELECT array_has_all([1, 2, 3], [2, 3])").await, "true");
}

#[tokio::test]
async fn wide_and_long_queries_end() {
    let world = World::with(1, QueryLimits { deadline: Some(Duration::from_secs(10)), ..limits() }).await;
    // A megabyte of columns, of conditions in a list, of joins: an answer or an error, in time.
    let wide = format!("SELECT {}", (0..60_000).map(|i| format!("1 AS c{i}")).collect::<Vec<_>>().join(","));
    let join = |i: usize| format!(" JOIN digits t{i} ON t{i}._id = t0._id");
    let joins = format!("SELECT count(*) FROM digits t0{}", (1..300).map(join).collect::<String>());
    for sql in [wide, joins] {
        let (answer, meanwhile) =
            tokio::join!(tokio::time::timeout(Duration::from_secs(60), world.batches(&sql)), world.value("SELECT count(*) FROM digits"));
        if let Err(error) = answer.expect("the query ends") {
            assert!(matches!(error.kind, Kind::ResourceExhausted | Kind::BadInput), "{error:?}");
        }
        assert_eq!(meanwhile, "100");
    }
}

#[tokio::test]
async fn more_queries_than_may_wait_are_refused() {
    let world = World::with(1, QueryLimits { concurrent: 1, ..limits() }).await;
    let endless = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT n FROM t";
    let mut held = Vec::new();
    let refused = loop {
        let mut query = world.catalog.query(endless).await.unwrap();
        // A query that waits has no row and no error yet.
        let first = tokio::time::timeout(Duration::from_millis(50), futures::StreamExt::next(&mut query.stream)).await;
        if let Ok(Some(Err(error))) = first {
            break error;
        }
        held.push(query);
        assert!(held.len() < 100);
    };
    assert!(refused.kind == Kind::ResourceExhausted && refused.message.contains("waiting"), "{refused}");
    assert_eq!(held.len(), 17);
    drop(held);
    assert_eq!(world.value("SELECT count(*) FROM digits").await, "100");
}

#[tokio::test]
async fn endless_and_greedy_queries_end() {
    let world = World::with(1, QueryLimits { deadline: Some(Duration::from_secs(3)), ..limits() }).await;
    let endless = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t";
    let greedy = "SELECT a.name, b.name, c.name, d.name FROM digits a, digits b, digits c, digits d ORDER BY 1, 2, 3, 4";
    let (first, second, meanwhile) = tokio::join!(world.error(endless), world.error(greedy), world.value("SELECT count(*) FROM digits"));
    assert_eq!(first.kind, Kind::ResourceExhausted, "{first}");
    assert_eq!(second.kind, Kind::ResourceExhausted, "{second}");
    assert_eq!(meanwhile, "100");
}

#[tokio::test]
async fn answers_are_capped_by_rows() {
    let world = World::with(1, QueryLimits { rows: Some(50), ..limits() }).await;
    let error = world.error("SELECT _id FROM digits").await;
    assert!(error.kind == Kind::ResourceExhausted && error.message.contains("50 rows"), "{error}");
    assert_eq!(world.batches("SELECT _id FROM digits LIMIT 50").await.unwrap().iter().map(RecordBatch::num_rows).sum::<usize>(), 50);
}

#[tokio::test]
async fn errors_in_rows_are_bad_input() {
    let world = World::new(1).await;
    let error = world.error("SELECT 1 / label FROM digits").await;
    assert_eq!(error.kind, Kind::BadInput, "{error}");
    let error = world.error("SELECT CAST(name AS INT) FROM digits WHERE name IS NOT NULL").await;
    assert_eq!(error.kind, Kind::BadInput, "{error}");
}
