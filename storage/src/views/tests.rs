#![allow(clippy::unwrap_used)]

use super::*;

fn view(name: &str, id: &str) -> View {
    View {
        v: VIEW_VERSION,
        id: id.to_owned(),
        name: ViewName::parse(name).unwrap(),
        sql: "SELECT 1".to_owned(),
        reads: vec!["digits".to_owned()],
        selection: None,
        cost: None,
        created_ms: 1,
    }
}

#[tokio::test]
async fn a_view_is_written_once() {
    let root = Root::open("memory://", true).await.unwrap();
    assert!(list(&root).await.unwrap().is_empty());
    create(&root, &view("b", "1")).await.unwrap();
    // The same again is a retry whose first try had landed; another one of the name is refused.
    create(&root, &view("b", "1")).await.unwrap();
    let refused = create(&root, &view("b", "2")).await.unwrap_err();
    assert_eq!(refused.kind, Kind::AlreadyExists);
    assert!(refused.to_string().contains("forebay view drop b"), "{refused}");
    create(&root, &view("a", "3")).await.unwrap();
    let ids: Vec<_> = list(&root).await.unwrap().into_iter().map(|v| v.id).collect();
    assert_eq!(ids, ["3", "1"]);
    assert_eq!(remove(&root, &view("b", "").name).await.unwrap().id, "1");
    assert_eq!(remove(&root, &view("b", "").name).await.unwrap_err().kind, Kind::NotFound);
    assert!(open(&root, &view("b", "").name).await.unwrap().is_none());
    assert_eq!(names(&root).await.unwrap(), [ViewName::parse("a").unwrap()]);
}

#[tokio::test]
async fn of_two_that_race_one_is_made() {
    let root = Root::open("memory://", true).await.unwrap();
    let (a, b) = (view("a", "1"), view("a", "2"));
    let (first, second) = tokio::join!(create(&root, &a), create(&root, &b));
    assert!(first.is_ok() != second.is_ok());
    assert_eq!(open(&root, &a.name).await.unwrap().unwrap().id == "1", first.is_ok());
}

#[tokio::test]
async fn a_view_of_the_future_is_refused() {
    let root = Root::open("memory://", true).await.unwrap();
    let newer = View { v: VIEW_VERSION + 1, ..view("a", "1") };
    create(&root, &newer).await.unwrap();
    assert_eq!(open(&root, &newer.name).await.unwrap_err().kind, Kind::Unsupported);
}
