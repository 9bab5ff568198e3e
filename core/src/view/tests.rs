#![allow(clippy::unwrap_used)]

use super::*;
use crate::error::Kind;

fn selection() -> ViewSelection {
    ViewSelection {
        dataset: DatasetName("digits".into()),
        version: None,
        columns: Some(vec!["image".into(), "label".into()]),
        filter: Some("label > 3 OR label = 0".into()),
    }
}

#[test]
fn choices_add_up() {
    let of = selection();
    assert_eq!(of.narrow(None, None, None).unwrap(), of);
    let narrowed = of.narrow(Some(VersionId(2)), Some(vec!["label".into()]), Some("label < 7 -- up to six")).unwrap();
    assert_eq!(narrowed.filter.as_deref(), Some("(label > 3 OR label = 0) AND (label < 7 -- up to six\n)"));
    assert_eq!((narrowed.version, narrowed.columns), (Some(VersionId(2)), Some(vec!["label".into()])));
    let all = ViewSelection { columns: None, filter: None, ..selection() };
    let narrowed = all.narrow(None, Some(vec!["x".into()]), Some("x > 1")).unwrap();
    assert_eq!((narrowed.columns, narrowed.filter.as_deref()), (Some(vec!["x".into()]), Some("x > 1")));
}

#[test]
fn what_a_view_leaves_out_stays_out() {
    let missing = selection().narrow(None, Some(vec!["labels".into()]), None).unwrap_err();
    assert_eq!(missing.kind, Kind::BadInput);
    assert!(missing.to_string().contains("no column `labels`") && missing.to_string().contains("`label`"), "{missing}");
    let pinned = ViewSelection { version: Some(VersionId(1)), ..selection() };
    assert!(pinned.narrow(Some(VersionId(1)), None, None).is_ok());
    assert!(pinned.narrow(Some(VersionId(2)), None, None).unwrap_err().to_string().contains("pins version 1"));
}

#[test]
fn a_share_is_a_share_of_rows() {
    let cost = ViewCost { version: Some(VersionId(0)), rows: 8, selected: Some(2), ..ViewCost::default() };
    assert_eq!(cost.share(), Some(0.25));
    assert_eq!(ViewCost { rows: 0, ..cost.clone() }.share(), None);
    assert_eq!(ViewCost { version: None, ..cost }.share(), None);
}

#[test]
fn stored_views_stay_readable() {
    let golden = include_str!("view_v1.json");
    let view: View = serde_json::from_str(golden).unwrap();
    assert_eq!(view.selection.as_ref(), Some(&selection()));
    assert_eq!(serde_json::to_string_pretty(&view).unwrap() + "\n", golden);
    assert!(view.reads_table("digits") && !view.reads_table("digit"));
}

#[test]
fn views_are_named_like_datasets() {
    assert_eq!(ViewName::parse("hard_digits").unwrap().as_str(), "hard_digits");
    for name in ["", "Hard", "1st", "a-b", "select", "a/b"] {
        assert!(ViewName::parse(name).unwrap_err().to_string().contains("view"), "{name}");
    }
}
