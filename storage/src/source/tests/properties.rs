//! However a source is divided: the same rows, each id once.

use forebay_core::pipeline::SourceFormat::{Csv, Json};
use proptest::prelude::*;
use serde_json::json;

use super::*;

fn run<T>(work: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap().block_on(work)
}

/// A field as a csv writer might put it down.
fn field() -> impl Strategy<Value = String> {
    prop_oneof![
        "[a-z0-9]{0,8}",
        Just("\"quoted\"".to_owned()),
        Just("\"a,b\"".to_owned()),
        Just("\"line\nbreak\"".to_owned()),
        Just("\"line\r\nbreak\"".to_owned()),
        Just("\"say \"\"hi\"\"\"".to_owned()),
        Just("5\" disk".to_owned()),
        Just("\"\"".to_owned()),
        Just("é日本".to_owned()),
    ]
}

fn csv_text() -> impl Strategy<Value = String> {
    let row = (field(), field(), field(), prop_oneof![Just("\n"), Just("\r\n"), Just("\n\n"), Just("\r")]);
    (prop::collection::vec(row, 0..60), any::<bool>(), any::<bool>()).prop_map(|(rows, bom, end)| {
        let mut text = format!("{}a,b,c\n", if bom { "\u{FEFF}" } else { "" });
        for (a, b, c, end) in rows {
            text.push_str(&format!("k{a},{b},{c}{end}"));
        }
        if end { text } else { text.trim_end().to_owned() }
    })
}

fn json_text() -> impl Strategy<Value = String> {
    let value = prop_oneof![Just("1"), Just("-2.5"), Just("\"x\\ny\""), Just("[1,2]"), Just("{\"b\":null}"), Just("null"), Just("tru")];
    prop::collection::vec((value, prop_oneof![Just("\n"), Just("\r\n"), Just("\n \n")]), 0..60)
        .prop_map(|rows| rows.into_iter().map(|(v, end)| format!("{{\"a\":{v},\"k\":1}}{end}")).collect())
}

#[derive(Debug, PartialEq)]
struct Found {
    rows: Vec<(i64, Vec<Option<String>>)>,
    bad: Vec<(i64, String)>,
}

async fn found(spec: &SourceSpec, dir: &Path, limits: Limits) -> Found {
    let snapshot = super::super::snapshot::take(spec, dir.to_str().unwrap(), None, &everything, limits).await.unwrap();
    let rows = read_with(spec, &snapshot, limits).await.unwrap();
    for (file, next) in snapshot.files.iter().zip(snapshot.files.iter().skip(1)) {
        assert!(file.id_base + file.id_range <= next.id_base);
    }
    let ids = rows.ids();
    let columns: Vec<Vec<Option<String>>> = rows.schema.fields().iter().skip(1).map(|f| rows.texts_of(f.name())).collect();
    let bad = rows.bad.iter().map(|b| (b.id, b.message.clone())).collect();
    Found { rows: ids.iter().enumerate().map(|(at, id)| (*id, columns.iter().map(|c| c[at].clone()).collect())).collect(), bad }
}

impl Rows {
    /// Any column, as text.
    fn texts_of(&self, column: &str) -> Vec<Option<String>> {
        let all = self.all();
        (0..all.num_rows())
            .map(|row| {
                let array = &all[column];
                array.is_valid(row).then(|| arrow::util::display::array_value_to_string(array, row).unwrap())
            })
            .collect()
    }
}

fn check(format: SourceFormat, text: &str, task_size: u64, batch_rows: usize) {
    let names = if format == Csv { ["a.csv", "b.csv"] } else { ["a.json", "b.json"] };
    let dir = folder(&[(names[0], text.as_bytes()), (names[1], text.as_bytes())]);
    let whole = spec(format, &names);
    run(async {
        if take(&whole, dir.path()).await.is_err() {
            // Only a JSON source without any readable row has no columns.
            assert_eq!(format, Json);
            return;
        }
        let expected = found(&whole, dir.path(), Limits::default()).await;
        let divided = with(whole, "task_size", json!(task_size));
        let limits = Limits { batch_rows, task_files: 3, ..Limits::default() };
        let parts = found(&divided, dir.path(), limits).await;
        assert_eq!(parts.rows, expected.rows);
        let mut bad = parts.bad;
        bad.sort();
        let mut expected_bad = expected.bad;
        expected_bad.sort();
        assert_eq!(bad, expected_bad);
        let mut ids: Vec<i64> = parts.rows.iter().map(|(id, _)| *id).collect();
        assert!(ids.is_sorted(), "rows come in id order");
        ids.extend(bad.iter().map(|(id, _)| *id));
        let all = ids.len();
        ids.sort_unstable();
        ids.dedup();
        assert_eq!(ids.len(), all, "each id once");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 64, ..ProptestConfig::default() })]

    #[test]
    fn csv_rows_do_not_depend_on_division(text in csv_text(), task_size in 1_u64..300, batch_rows in 1_usize..20) {
        check(Csv, &text, task_size, batch_rows);
    }

    #[test]
    fn json_rows_do_not_depend_on_division(text in json_text(), task_size in 1_u64..300, batch_rows in 1_usize..20) {
        check(Json, &text, task_size, batch_rows);
    }
}
