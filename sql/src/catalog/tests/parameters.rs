//! Parameters, and what a session changes.

use arrow::array::{Float64Array, ListArray, NullArray};
use arrow::datatypes::Int32Type;
use forebay_core::Kind;

use super::*;

fn row(columns: Vec<ArrayRef>) -> RecordBatch {
    let named = columns.into_iter().enumerate().map(|(i, column)| (i.to_string(), column));
    RecordBatch::try_from_iter(named).unwrap()
}

fn number(n: i64) -> ArrayRef {
    Arc::new(Int64Array::from(vec![n]))
}

fn text(t: &str) -> ArrayRef {
    Arc::new(StringArray::from(vec![t]))
}

async fn ask(world: &World, request: Request) -> Result<String> {
    let answer = world.catalog.ask(&request).await?;
    let batches: Vec<RecordBatch> = answer.stream.try_collect().await?;
    let table = pretty_format_batches(&batches).unwrap().to_string();
    Ok(table.lines().nth(3).unwrap_or_default().trim_matches(['|', ' ']).to_owned())
}

async fn with(world: &World, sql: &str, values: Vec<ArrayRef>) -> Result<String> {
    ask(world, Request { parameters: Some(row(values)), ..Request::new(sql) }).await
}

#[tokio::test]
async fn values_take_the_place_of_parameters() {
    let world = World::new(1).await;
    for (sql, values, expected) in [
        ("SELECT count(*) FROM digits WHERE label = ?", vec![number(3)], "10"),
        ("SELECT count(*) FROM digits WHERE label = $1", vec![number(3)], "10"),
        ("SELECT count(*) FROM digits WHERE label = $1 OR _id = $1", vec![number(3)], "10"),
        ("SELECT count(*) FROM digits WHERE name = ? AND _id < ?", vec![text("n8"), number(50)], "1"),
        ("SELECT count(*) FROM digits WHERE label IN (?, ?)", vec![number(3), number(4)], "20"),
        ("SELECT count(*) FROM digits WHERE label BETWEEN ? AND ?", vec![number(3), number(5)], "30"),
        ("SELECT count(*) FROM (SELECT 1 FROM digits LIMIT ?)", vec![number(7)], "7"),
        ("SELECT ? || '-' || ?", vec![text("a"), text("b")], "a-b"),
        ("SELECT ? + 1", vec![number(41)], "42"),
        ("SELECT ? * 2.5", vec![Arc::new(Float64Array::from(vec![2.0])) as ArrayRef], "5.0"),
        ("SELECT count(*) FROM digits WHERE name = ?", vec![Arc::new(NullArray::new(1)) as ArrayRef], "0"),
        (
            "SELECT array_length(?)",
            vec![Arc::new(ListArray::from_iter_primitive::<Int32Type, _, _>([Some([Some(1), Some(2)])])) as ArrayRef],
            "2",
        ),
        // Values are values, whatever they look like.
        ("SELECT ?", vec![text("'; DROP TABLE digits; --")], "'; DROP TABLE digits; --"),
        ("SELECT '?' || ? || '$1' -- ?", vec![text("x")], "?x$1"),
    ] {
        assert_eq!(with(&world, sql, values).await.unwrap_or_else(|e| panic!("{sql}: {e}")), expected, "{sql}");
    }
}

#[tokio::test]
async fn wrong_numbers_of_values_are_errors() {
    let world = World::new(1).await;
    for (sql, values) in [
        ("SELECT ?, ?", vec![number(1)]),
        ("SELECT ?", vec![number(1), number(2)]),
        ("SELECT 1", vec![number(1)]),
        ("SELECT $2", vec![number(1), number(2)]),
        ("SELECT $1 + ?", vec![number(1), number(2)]),
        ("SELECT $name", vec![number(1)]),
        ("SELECT $0", vec![number(1)]),
    ] {
        let error = with(&world, sql, values).await.unwrap_err();
        assert_eq!(error.kind, Kind::BadInput, "{sql}: {error}");
    }
    let error = world.error("SELECT ? FROM digits").await;
    assert!(error.kind == Kind::BadInput && error.to_string().contains("1 parameter"), "{error}");
    let two = RecordBatch::try_from_iter(vec![("0", Arc::new(Int64Array::from(vec![1, 2])) as ArrayRef)]).unwrap();
    let error = ask(&world, Request { parameters: Some(two), ..Request::new("SELECT ?") }).await.unwrap_err();
    assert_eq!(error.kind, Kind::Unsupported);
}

#[tokio::test]
async fn preparing_tells_columns_and_parameters() {
    let world = World::new(1).await;
    let known = world.catalog.prepare(&Request::new("SELECT label, name FROM digits WHERE _id = ? AND name = ? LIMIT ?")).await.unwrap();
    let shape = |schema: &SchemaRef| schema.fields().iter().map(|f| format!("{} {}", f.name(), f.data_type())).collect::<Vec<_>>();
    assert_eq!(shape(&known.schema), ["label Int64", "name Utf8"]);
    assert_eq!(shape(&known.parameters), ["$1 Int64", "$2 Utf8", "$3 Null"]);
    let known = world.catalog.prepare(&Request::new("SELECT ?, label + ? FROM digits")).await.unwrap();
    assert_eq!(known.parameters.fields().len(), 2);
    assert_eq!(known.schema.fields().len(), 2);
    // Without parameters it is exactly what the query answers.
    let sql = "SELECT *, image FROM digits";
    let known = world.catalog.prepare(&Request::new("SELECT * FROM digits")).await.unwrap();
    assert_eq!(known.schema, world.catalog.schema("SELECT * FROM digits").await.unwrap());
    assert!(known.parameters.fields().is_empty());
    assert!(world.catalog.prepare(&Request::new(sql)).await.is_err());
    let error = world.catalog.prepare(&Request::new("SELECT lable FROM digits WHERE _id = ?")).await.unwrap_err();
    assert!(error.message.contains("line 1, column 8"), "{error}");
}

#[tokio::test]
async fn a_request_only_tightens_the_limits() {
    let world = World::with(1, QueryLimits { rows: Some(50), ..limits() }).await;
    let limited = |rows| ask(&world, Request { rows: Some(rows), ..Request::new("SELECT _id FROM digits LIMIT 30") });
    assert!(limited(29).await.unwrap_err().message.contains("29 rows"));
    limited(30).await.unwrap();
    let all = Request { rows: Some(1_000), ..Request::new("SELECT _id FROM digits") };
    assert!(ask(&world, all).await.unwrap_err().message.contains("50 rows"));
    let endless = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT count(*) FROM t";
    let brief = Request { deadline: Some(Duration::from_millis(200)), ..Request::new(endless) };
    let error = ask(&world, brief).await.unwrap_err();
    assert!(error.kind == Kind::ResourceExhausted && error.message.contains("0.2 s"), "{error}");
}

#[tokio::test]
async fn a_schema_can_be_the_default() {
    let world = World::new(1).await;
    let within = |schema: &str, sql: &str| Request { schema: Some(schema.to_owned()), ..Request::new(sql) };
    assert_eq!(ask(&world, within("system", "SELECT count(*) FROM workers")).await.unwrap(), "2");
    assert_eq!(ask(&world, within("system", "SELECT count(*) FROM public.digits")).await.unwrap(), "100");
    assert_eq!(ask(&world, Request::new("SELECT count(*) FROM forebay.public.digits")).await.unwrap(), "100");
    assert!(!world.catalog.reads_datasets(&within("system", "SELECT * FROM workers")).await.unwrap());
    assert!(world.catalog.reads_datasets(&Request::new("SELECT * FROM digits")).await.unwrap());
    let error = ask(&world, within("secret", "SELECT 1")).await.unwrap_err();
    assert_eq!(error.kind, Kind::NotFound);
}
