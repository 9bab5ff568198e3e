//! The rows that a job's filter keeps.

use forebay_core::Kind;

use super::*;

async fn selected(world: &World, epoch: u32, filter: &str) -> Result<Vec<i64>> {
    let name = DatasetName::parse("digits")?;
    let version = open_version(&world.root, &name, None).await?;
    let selection = select_rows(&world.catalog, version.clone(), EpochId(epoch), filter).await?;
    let mut ids = Vec::new();
    for (group, (shard, row_group, meta)) in version.row_groups(EpochId(epoch)).into_iter().enumerate() {
        let columns = ["_id".to_owned()];
        let batches = forebay_storage::shard::read_row_group(&world.root, &version, shard, row_group, Some(&columns), None).await?;
        let whole = arrow::compute::concat_batches(&batches[0].schema(), &batches).unwrap();
        let all = crate::steps::ids_of(&whole);
        assert_eq!(all.len() as u64, meta.rows);
        ids.extend(selection.rows(group, 0, selection.count(group)).into_iter().map(|row| all[row as usize]));
    }
    assert_eq!(selection.total(), ids.len() as u64);
    Ok(ids)
}

#[tokio::test]
async fn a_filter_keeps_what_where_keeps() {
    let world = World::new(2).await;
    for filter in [
        "label = 3",
        "label IN (1, 2) AND name IS NOT NULL",
        "name LIKE 'n1%'",
        "_id >= 60 OR _id < 5",
        "tensor_get(image, 0, 0) > 7",
        "shifted > 104",
        "epoch = 1",
        "true",
        "false",
        "NULL",
        "name > 'n5'",
        "\"_source\" = 'a.csv' AND NOT label BETWEEN 2 AND 8",
    ] {
        for epoch in 0..2 {
            let sql = format!("SELECT _id FROM digits WHERE ({filter}) AND epoch = {epoch} ORDER BY _id");
            let batches = world.batches(&sql).await.unwrap();
            let expected: Vec<i64> = batches.iter().flat_map(crate::steps::ids_of).collect();
            assert_eq!(selected(&world, epoch, filter).await.unwrap(), expected, "{filter} in epoch {epoch}");
        }
    }
}

#[tokio::test]
async fn bad_filters_say_what_is_wrong() {
    let world = World::new(1).await;
    for (filter, part) in [
        ("lable = 3", "label"),
        ("label = ", "filter"),
        ("label", "not a condition"),
        ("count(*) > 3", "aggregate"),
        ("random() < 0.5", "another value each time"),
        ("now() > TIMESTAMP '2020-01-01'", "another value each time"),
        ("_id IN (SELECT _id FROM digits)", ""),
        ("EXISTS (SELECT 1)", ""),
        ("label = 3; DROP TABLE digits", ""),
        ("label = $1", ""),
    ] {
        let error = selected(&world, 0, filter).await.unwrap_err();
        assert!(matches!(error.kind, Kind::BadInput | Kind::Unsupported), "{filter}: {error:?}");
        assert!(error.to_string().contains(part), "{filter}: {error}");
    }
}
