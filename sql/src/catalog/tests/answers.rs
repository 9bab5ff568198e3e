//! Golden answers.

use super::*;

#[tokio::test]
async fn datasets_are_tables_with_their_keys_and_epochs() {
    let world = World::new(2).await;
    same(
        &world.table("SELECT epoch, _id, _source, label, name, shifted FROM digits WHERE _id < 3 ORDER BY epoch, _id").await,
        "+-------+-----+---------+-------+------+---------+
         | epoch | _id | _source | label | name | shifted |
         +-------+-----+---------+-------+------+---------+
         | 0     | 0   | a.csv   | 0     |      | 0       |
         | 0     | 1   | a.csv   | 1     | n1   | 1       |
         | 0     | 2   | a.csv   | 2     | n2   | 2       |
         | 1     | 0   | a.csv   | 0     |      | 100     |
         | 1     | 1   | a.csv   | 1     | n1   | 101     |
         | 1     | 2   | a.csv   | 2     | n2   | 102     |
         +-------+-----+---------+-------+------+---------+",
    );
    same(
        &world.table("SELECT epoch, count(*) AS n, sum(label) AS s FROM digits GROUP BY epoch ORDER BY epoch").await,
        "+-------+-----+-----+
         | epoch | n   | s   |
         +-------+-----+-----+
         | 0     | 100 | 450 |
         | 1     | 100 | 450 |
         +-------+-----+-----+",
    );
    assert_eq!(world.value("SELECT count(*) FROM digits").await, "200");
    assert_eq!(world.value("SELECT count(name) FROM digits WHERE epoch = 1").await, "85");
    assert_eq!(world.value("SELECT count(*) FROM (SELECT epoch FROM digits LIMIT 7)").await, "7");
    assert_eq!(world.value("SELECT a._id FROM digits a JOIN digits b ON a._id = b._id AND a.epoch < b.epoch WHERE a._id = 42").await, "42");
}

#[tokio::test]
async fn tensors_are_seen_as_tensors() {
    let world = World::new(1).await;
    let batches = world.batches("SELECT image, tensor_sum(image) AS s FROM digits WHERE _id = 4").await.unwrap();
    let batch = batches.iter().find(|b| b.num_rows() == 1).unwrap();
    assert!(crate::functions::tensor::is_fixed_tensor(batch.schema().field(0)), "{:?}", batch.schema());
    assert_eq!(world.value("SELECT tensor_get(image, 0, 0) FROM digits WHERE _id = 4").await, "4");
    assert_eq!(world.value("SELECT tensor_shape(image) FROM digits LIMIT 1").await, "[2, 2]");
    assert_eq!(world.value("SELECT sum(tensor_sum(image)) FROM digits").await, "1050.0");
    let schema = world.catalog.schema("SELECT * FROM digits").await.unwrap();
    let names: Vec<&str> = schema.fields().iter().map(|f| f.name().as_str()).collect();
    assert_eq!(names, ["epoch", "_id", "_source", "label", "name", "image", "shifted"]);
    assert!(crate::functions::tensor::is_fixed_tensor(schema.field(5)));
}

#[tokio::test]
async fn versions_are_pinned_by_name() {
    let world = World::new(3).await;
    assert_eq!(world.value("SELECT count(*) FROM \"digits@v0\"").await, "100");
    assert_eq!(world.value("SELECT count(*) FROM \"digits@v1\"").await, "200");
    assert_eq!(world.value("SELECT count(*) FROM digits").await, "300");
    let error = world.error("SELECT 1 FROM \"digits@v9\"").await;
    assert_eq!(error.kind, Kind::NotFound, "{error}");
    for bad in ["digits@9", "digits@", "digits@v", "digits@v1@v2", "digits@v-1"] {
        let error = world.error(&format!("SELECT 1 FROM \"{bad}\"")).await;
        assert!(error.to_string().contains("@v3"), "{bad}: {error}");
    }
}

use forebay_core::Kind;

#[tokio::test]
async fn filters_choose_row_groups_and_columns() {
    let world = World::new(3).await;
    let plan = world.table("EXPLAIN SELECT label FROM digits WHERE epoch = 1").await;
    assert!(plan.contains("epochs=[1]") && plan.contains("columns=[epoch, label]"), "{plan}");
    let plan = world.table("EXPLAIN SELECT label FROM digits WHERE epoch >= 1 AND _id >= 50").await;
    assert!(plan.contains("epochs=[1, 2]"), "{plan}");
    let all = world.table("EXPLAIN SELECT label FROM digits").await;
    let groups = |text: &str| -> (u32, u32) {
        let part = text.split("row_groups=").nth(1).unwrap();
        let mut numbers = part.split([' ', ',']).filter_map(|w| w.parse().ok());
        (numbers.next().unwrap(), numbers.next().unwrap())
    };
    let (chosen, total) = groups(&plan);
    assert_eq!(chosen * 3, total, "{plan}");
    assert_eq!(groups(&all).0, total);
    // A name that no shard can hold: nothing is read.
    let plan = world.table("EXPLAIN SELECT label FROM digits WHERE name = 'zzz'").await;
    assert!(plan.contains("row_groups=0 of") || plan.contains("EmptyExec"), "{plan}");
    assert_eq!(world.value("SELECT count(*) FROM digits WHERE name = 'n8'").await, "3");
    let analyzed = world.table("EXPLAIN ANALYZE SELECT sum(label) FROM digits WHERE epoch = 0").await;
    assert!(analyzed.contains("row_group_bytes"), "{analyzed}");
    let label = bytes_read(&analyzed);
    let image = bytes_read(&world.table("EXPLAIN ANALYZE SELECT sum(tensor_sum(image)) FROM digits WHERE epoch = 0").await);
    let both = bytes_read(&world.table("EXPLAIN ANALYZE SELECT sum(tensor_sum(image)), sum(label) FROM digits WHERE epoch = 0").await);
    assert!(label > 0 && image > 0 && both == label + image, "{label} and {image} make {both}");
    assert_eq!(bytes_read(&world.table("EXPLAIN ANALYZE SELECT count(*) FROM digits WHERE epoch = 0").await), 0);
}

/// What `EXPLAIN ANALYZE` says was read from files, in bytes.
fn bytes_read(analyzed: &str) -> u64 {
    let counts = analyzed.split("bytes_read=").skip(1).map(|rest| rest.split([',', ']']).next().unwrap().trim().to_owned());
    counts.map(|n| n.parse::<u64>().unwrap_or_else(|_| panic!("{n} in {analyzed}"))).sum()
}

#[tokio::test]
async fn system_tables_are_asked_when_the_query_runs() {
    let world = World::new(0).await;
    same(
        &world.table("SELECT name, slots * 2 AS s FROM system.workers ORDER BY name DESC").await,
        "+------+----+
         | name | s  |
         +------+----+
         | w2   | 16 |
         | w1   | 8  |
         +------+----+",
    );
    let error = world.error("SELECT * FROM system.worker").await;
    assert!(error.to_string().contains("`workers`"), "{error}");
}

#[tokio::test]
async fn what_there_is_can_be_listed() {
    let world = World::new(1).await;
    let expected = "
         +--------------+------------+------------+
         | table_schema | table_name | table_type |
         +--------------+------------+------------+
         | public       | digits     | BASE TABLE |
         | system       | workers    | VIEW       |
         +--------------+------------+------------+";
    same(&world.table("SHOW TABLES").await, expected);
    let columns = world.table("DESCRIBE digits").await;
    same(&columns, &world.table("SHOW COLUMNS FROM digits").await);
    assert!(columns.contains("| image       | uint8[2,2] | NO"), "{columns}");
    assert_eq!(world.value("SELECT count(*) FROM information_schema.columns WHERE table_name = 'workers'").await, "2");
    assert_eq!(world.value("SELECT count(*) FROM information_schema.schemata").await, "3");
}

#[tokio::test]
async fn unknown_names_get_the_nearest() {
    let world = World::new(1).await;
    let error = world.error("SELECT * FROM digitz").await;
    assert_eq!(error.kind, Kind::NotFound);
    assert!(error.to_string().contains("did you mean `digits`"), "{error}");
    let error = world.error("SELECT lable FROM digits").await;
    assert!(error.message.contains("label") && error.message.contains("line 1, column 8"), "{error}");
    let error = world.error("SELECT label FRM digits").await;
    assert!(error.message.contains("Line: 1"), "{error}");
    let error = world.error("SELECT random_uniform() FROM digits").await;
    assert!(error.message.contains("step of a pipeline"), "{error}");
}

#[tokio::test]
async fn dropping_the_stream_stops_the_query() {
    let world = World::with(1, QueryLimits { concurrent: 1, ..limits() }).await;
    let endless = "WITH RECURSIVE t AS (SELECT 1 AS n UNION ALL SELECT n + 1 FROM t) SELECT n FROM t";
    let mut query = world.catalog.query(endless).await.unwrap();
    assert!(futures::StreamExt::next(&mut query.stream).await.unwrap().is_ok());
    drop(query);
    // The only turn is free again.
    assert_eq!(tokio::time::timeout(Duration::from_secs(5), world.value("SELECT count(*) FROM digits")).await.unwrap(), "100");
}

#[tokio::test]
async fn a_comparison_with_all_or_any_rows_is_right_or_refused() {
    let world = World::new(1).await;
    assert_eq!(world.value("SELECT count(*) FROM digits WHERE label > ALL (SELECT d.label FROM digits d WHERE d.label < 7)").await, "30");
    assert_eq!(
        world.value("SELECT count(*) FROM digits WHERE label = ANY (SELECT d.label FROM digits d WHERE d._id IN (3, 4))").await,
        "20"
    );
    // The planner would compare the subquery's column with itself.
    let error = world.error("SELECT count(*) FROM digits WHERE label > ALL (SELECT label FROM digits WHERE label < 7)").await;
    assert_eq!(error.kind, Kind::Unsupported, "{error}");
    assert!(error.to_string().contains("FROM digits AS other"), "{error}");
}
