//! Views: what they answer, what they can't be used for, and what they mean to a job.

use forebay_core::Kind;
use forebay_core::ids::ViewName;
use forebay_core::view::{VIEW_VERSION, View, ViewSelection};
use forebay_storage::views;

use super::*;

impl World {
    /// Puts a view into the root, whatever its text is.
    async fn view(&self, name: &str, sql: &str) {
        let name = ViewName::parse(name).unwrap();
        let (id, sql) = (format!("{sql:?}"), sql.to_owned());
        let view = View { v: VIEW_VERSION, id, name, sql, reads: Vec::new(), selection: None, cost: None, created_ms: 0 };
        views::create(&self.root, &view).await.unwrap();
    }

    async fn selection(&self, sql: &str) -> std::result::Result<ViewSelection, String> {
        self.catalog.view_meaning(sql).await.unwrap_or_else(|e| panic!("{sql}: {e}")).selection
    }
}

#[tokio::test]
async fn a_view_stands_for_its_text() {
    let world = World::new(2).await;
    world.view("hard", "SELECT _id, label, name FROM digits WHERE label > 6 AND epoch = 0 -- the hard ones").await;
    world.view("counts", "SELECT label, count(*) AS n FROM hard GROUP BY label").await;
    assert_eq!(world.value("SELECT count(*) FROM hard").await, "30");
    assert_eq!(world.value("SELECT sum(n) FROM counts WHERE label = 8").await, "10");
    assert_eq!(world.value("SELECT count(*) FROM hard h JOIN counts c ON h.label = c.label WHERE c.n = 10").await, "30");
    assert_eq!(world.value("SELECT count(*) FROM public.hard WHERE name IS NULL").await, "5");
    assert_eq!(world.value("SELECT count(*) FROM forebay.public.hard x WHERE EXISTS (SELECT 1 FROM counts)").await, "30");
    let plan = world.table("EXPLAIN SELECT _id FROM hard").await;
    assert!(plan.contains("digits@v1") && plan.contains("epochs=[0]"), "{plan}");
    let error = world.error("SELECT image FROM hard").await;
    assert!(error.to_string().contains("image"), "{error}");
}

#[tokio::test]
async fn a_view_knows_only_its_own_names() {
    let world = World::new(1).await;
    world.view("hard", "SELECT label FROM digits WHERE label > 6").await;
    // The query's own `digits` is not the view's; and a name in WITH comes before a view.
    assert_eq!(world.value("WITH digits AS (SELECT 7 AS label) SELECT count(*) FROM hard, digits").await, "30");
    assert_eq!(world.value("WITH hard AS (SELECT 1 AS x) SELECT count(*) FROM hard").await, "1");
    let mut request = Request::new("SELECT count(*) FROM public.hard");
    request.schema = Some("system".into());
    assert!(world.catalog.ask(&request).await.is_ok());
}

#[tokio::test]
async fn a_dataset_has_its_name_before_a_view() {
    let world = World::new(1).await;
    world.view("digits", "SELECT 1 AS one").await;
    assert_eq!(world.value("SELECT count(*) FROM digits").await, "100");
    assert_eq!(world.value("SELECT count(*) FROM information_schema.tables WHERE table_name = 'digits'").await, "1");
}

#[tokio::test]
async fn views_are_listed_with_their_columns() {
    let world = World::new(1).await;
    world.view("hard", "SELECT label AS l, upper(name) AS loud FROM digits").await;
    world.view("gone", "SELECT x FROM nowhere").await;
    same(
        &world.table("SELECT table_name, table_type FROM information_schema.tables WHERE table_schema = 'public' ORDER BY 1").await,
        "+------------+------------+
         | table_name | table_type |
         +------------+------------+
         | digits     | BASE TABLE |
         | gone       | VIEW       |
         | hard       | VIEW       |
         +------------+------------+",
    );
    same(
        &world.table("DESCRIBE hard").await,
        "+-------------+-----------+-------------+
         | column_name | data_type | is_nullable |
         +-------------+-----------+-------------+
         | l           | int64     | NO          |
         | loud        | string    | YES         |
         +-------------+-----------+-------------+",
    );
    let entries = world.catalog.tables().await.unwrap();
    assert!(entries.iter().any(|t| (t.schema, t.name.as_str(), t.kind) == ("public", "hard", "VIEW")), "{entries:?}");
    let names: Vec<String> = world.catalog.columns("public", "hard").await.unwrap().fields().iter().map(|f| f.name().clone()).collect();
    assert_eq!(names, ["l", "loud"]);
    let error = world.error("SELECT * FROM gone").await;
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.to_string().contains("view `gone`") && error.to_string().contains("`nowhere`"), "{error}");
    let error = world.error("SELECT * FROM hart").await;
    assert!(error.to_string().contains("did you mean `hard`"), "{error}");
    let error = world.error("SELECT * FROM search(hard, 'x')").await;
    assert!(error.to_string().contains("it is a view"), "{error}");
}

#[tokio::test]
async fn what_a_query_may_not_be_a_view_may_not_either() {
    let world = World::new(1).await;
    for sql in [
        "DELETE FROM digits",
        "COPY digits TO '/tmp/x'",
        "SELECT 1; SELECT 2",
        "EXPLAIN SELECT 1",
        "SELECT $1 AS x",
        "SELECT label FROM digits WHERE label = ?",
        "SELECT * FROM '/etc/passwd'",
        "SELECT a.label, b.label FROM digits a, digits b",
        "SELECT NULL AS nothing",
        "",
    ] {
        let refused = world.catalog.view_meaning(sql).await.unwrap_err();
        assert_ne!(refused.kind, Kind::Internal, "{sql}: {refused}");
    }
    // However it came to be there, it is refused where it is used.
    world.view("hole", "SELECT $1 AS x").await;
    assert!(world.error("SELECT * FROM hole").await.to_string().contains("no parameters"));
    world.view("explained", "EXPLAIN SELECT 1").await;
    assert!(world.error("SELECT * FROM explained").await.to_string().contains("not an EXPLAIN"));
}

#[tokio::test]
async fn views_end() {
    let world = World::new(1).await;
    world.view("egg", "SELECT * FROM hen").await;
    world.view("hen", "SELECT * FROM egg").await;
    let error = world.error("SELECT * FROM egg").await;
    assert!(error.to_string().contains("egg -> hen -> egg"), "{error}");
    world.view("me", "SELECT * FROM me").await;
    assert!(world.error("SELECT * FROM me").await.to_string().contains("me -> me"));
    // Short to write, 2^40 scans long.
    world.view("d0", "SELECT label FROM digits").await;
    for level in 1..=15 {
        let below = level - 1;
        world.view(&format!("d{level}"), &format!("SELECT a.label FROM d{below} a JOIN d{below} b USING (label)")).await;
    }
    assert_eq!(world.value("SELECT count(*) FROM d1").await, "1000");
    let error = world.error("SELECT count(*) FROM d15").await;
    assert_eq!(error.kind, Kind::ResourceExhausted, "{error}");
    assert!(error.to_string().contains("written out"), "{error}");
    world.view("t0", "SELECT 1 AS x").await;
    for level in 1..=17 {
        world.view(&format!("t{level}"), &format!("SELECT x FROM t{}", level - 1)).await;
    }
    assert_eq!(world.value("SELECT x FROM t15").await, "1");
    let error = world.error("SELECT x FROM t17").await;
    assert_eq!(error.kind, Kind::ResourceExhausted, "{error}");
    assert!(error.to_string().contains("16 deep"), "{error}");
    // Each within the limit of operators, together beyond it.
    let sum = vec!["x"; 300].join(" + ");
    world.view("s0", "SELECT 1 AS x").await;
    for level in 1..=4 {
        world.view(&format!("s{level}"), &format!("SELECT {sum} AS x FROM s{}", level - 1)).await;
    }
    let error = world.error("SELECT x FROM s4").await;
    assert_eq!(error.kind, Kind::ResourceExhausted, "{error}");
    assert_eq!(world.value("SELECT count(*) FROM digits").await, "100");
}

#[tokio::test]
async fn rows_and_columns_of_one_dataset_can_be_read_as_a_job() {
    let world = World::new(2).await;
    let of = |version: Option<u64>, columns: Option<&[&str]>, filter: Option<&str>| ViewSelection {
        dataset: DatasetName::parse("digits").unwrap(),
        version: version.map(VersionId),
        columns: columns.map(|names| names.iter().map(|n| (*n).to_owned()).collect()),
        filter: filter.map(str::to_owned),
    };
    for (sql, expected) in [
        ("SELECT * FROM digits", of(None, None, None)),
        ("SELECT d.* FROM digits AS d WHERE d.label = 3;", of(None, None, Some("label = 3"))),
        (
            "select LABEL, _id from Digits where Label > 3 or name like 'it''s%'",
            of(None, Some(&["label", "_id"]), Some("Label > 3 OR name LIKE 'it''s%'")),
        ),
        (
            "SELECT label AS label FROM \"digits@v0\" WHERE \"digits@v0\".label IN (1, 2)",
            of(Some(0), Some(&["label"]), Some("label IN (1, 2)")),
        ),
        ("SELECT digits.label FROM public.digits WHERE epoch = 1", of(None, Some(&["label"]), Some("epoch = 1"))),
        ("SELECT * EXCLUDE (image, shifted) FROM digits", of(None, Some(&["_id", "_source", "label", "name"]), None)),
        ("SELECT image FROM digits -- all of them", of(None, Some(&["image"]), None)),
    ] {
        assert_eq!(world.selection(sql).await, Ok(expected), "{sql}");
    }
    // A view of a view adds up.
    world.view("hard", "SELECT label, name FROM digits WHERE label > 6 OR label = 0").await;
    let both = world.selection("SELECT label FROM hard h WHERE h.label < 9").await;
    assert_eq!(both, Ok(of(None, Some(&["label"]), Some("(label > 6 OR label = 0) AND (label < 9\n)"))));
}

#[tokio::test]
async fn the_rest_says_why_not() {
    let world = World::new(1).await;
    world.view("counts", "SELECT label, count(*) AS n FROM digits GROUP BY label").await;
    for (sql, why) in [
        ("SELECT label + 1 AS more FROM digits", "`label + 1 AS more`"),
        ("SELECT label AS l FROM digits", "as it is stored"),
        ("SELECT DISTINCT label FROM digits", "DISTINCT"),
        ("SELECT label FROM digits LIMIT 3", "LIMIT 3"),
        ("SELECT label FROM digits ORDER BY label", "ORDER BY label"),
        ("SELECT label FROM digits GROUP BY label", "GROUP BY label"),
        ("SELECT count(*) AS n FROM digits", "count(*)"),
        ("SELECT a.label FROM digits a JOIN digits b ON a._id = b._id", "joins"),
        ("SELECT a.label FROM digits a, digits b", "not one table"),
        ("SELECT label FROM digits UNION ALL SELECT label FROM digits", "more than one SELECT"),
        ("SELECT label FROM (SELECT label FROM digits)", "reads"),
        ("WITH d AS (SELECT 1 AS x) SELECT x FROM d", "WITH"),
        ("SELECT name FROM system.workers", "no dataset"),
        ("SELECT epoch, label FROM digits", "epoch"),
        ("SELECT 1 AS one", "not one table"),
        ("SELECT n FROM counts WHERE n > 3", "reads the view `counts`"),
        ("SELECT label FROM digits WHERE _id IN (SELECT _id FROM digits)", "its condition has a subquery"),
        ("SELECT label FROM digits WHERE now() > TIMESTAMP '2020-01-01'", "another value each time"),
        ("SELECT * REPLACE (label + 1 AS label) FROM digits", "changes columns"),
        ("SELECT label FROM digits d (a, b)", "reads"),
    ] {
        match world.catalog.view_meaning(sql).await.map(|m| m.selection) {
            Ok(Err(said)) => assert!(said.contains(why), "{sql}: {said}"),
            Ok(Ok(selection)) => panic!("{sql}: {selection:?}"),
            // Aliases of a table's columns have to be all of them.
            Err(error) => assert!(sql.contains("(a, b)"), "{sql}: {error}"),
        }
    }
}

#[tokio::test]
async fn a_selection_is_what_the_view_answers() {
    let world = World::new(2).await;
    let sql =
        "SELECT _id FROM digits d WHERE (d.label = 3 OR d.name IS NULL) AND NOT d._id BETWEEN 20 AND 40 AND d.name IS DISTINCT FROM 'n''5'";
    world.view("some", sql).await;
    let filter = world.selection(sql).await.unwrap().filter.unwrap();
    let version = open_version(&world.root, &DatasetName::parse("digits").unwrap(), None).await.unwrap();
    let mut total = 0;
    for epoch in 0..2 {
        total += select_rows(&world.catalog, version.clone(), EpochId(epoch), &filter).await.unwrap().total();
    }
    assert!(total > 0);
    assert_eq!(world.value("SELECT count(*) FROM some").await, total.to_string());
}

#[tokio::test]
async fn what_a_view_reads_and_scans_is_known_without_running_it() {
    let world = World::new(2).await;
    world.view("hard", "SELECT label FROM digits WHERE label > 6").await;
    let meaning = world.catalog.view_meaning("SELECT w.name FROM system.workers w, \"digits@v0\" d, hard").await.unwrap();
    assert_eq!(meaning.reads, ["digits@v0", "hard", "system.workers"]);
    let (rows, bytes) = world.catalog.scanned("SELECT label FROM digits WHERE epoch = 1").await.unwrap();
    assert_eq!(rows, 100);
    let (all, more) = world.catalog.scanned("SELECT a.label FROM digits a JOIN hard b ON a.label = b.label").await.unwrap();
    assert!(all > 200 && more > bytes, "{all} {more} {bytes}");
    assert_eq!(world.catalog.scanned("SELECT 1").await.unwrap(), (0, 0));
}
