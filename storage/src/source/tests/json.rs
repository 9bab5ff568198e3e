use forebay_core::pipeline::SourceFormat::Json;
use serde_json::json;

use super::*;

async fn one(text: &str) -> Rows {
    source(&spec(Json, &["a.jsonl"]), &[("a.jsonl", text.as_bytes())]).await.unwrap()
}

fn messages(rows: &Rows) -> Vec<&str> {
    rows.bad.iter().map(|b| b.message.as_str()).collect()
}

#[tokio::test]
async fn objects_become_structs_and_lists() {
    let text = "\u{FEFF}{\"a\":1,\"b\":1.5,\"c\":\"x\",\"d\":true,\"e\":{\"f\":[1,2],\"g\":null},\"h\":[{\"i\":1}]}\r\n\r\n  {\"a\":2,\"b\":2,\"e\":{\"f\":[]},\"new\":null}\n{\"a\":null,\"e\":null}";
    let rows = one(text).await;
    assert!(rows.bad.is_empty(), "{:?}", rows.bad);
    assert_eq!(rows.texts("a"), vec![Some("1".into()), Some("2".into()), None]);
    assert_eq!(rows.texts("b"), vec![Some("1.5".into()), Some("2.0".into()), None]);
    assert_eq!(
        (rows.kind("a"), rows.kind("b"), rows.kind("d"), rows.kind("new")),
        ("Int64".into(), "Float64".into(), "Boolean".into(), "Utf8".into())
    );
    assert!(rows.kind("e").starts_with("Struct(\"f\""), "{}", rows.kind("e"));
    let all = rows.all();
    let lists = all["e"].as_struct().column_by_name("f").unwrap().as_list::<i32>().clone();
    assert_eq!((lists.value_length(0), lists.value_length(1), all["e"].is_null(2)), (2, 0, true));
    assert_eq!(rows.ids()[0], 3, "behind the byte order mark");
    assert_eq!(rows.ids()[1], text.find("  {\"a\":2").unwrap() as i64);
}

#[tokio::test]
async fn mixed_types_are_bad_rows() {
    let rows = one("{\"a\":1}\n{\"a\":\"x\"}\n{\"a\":1.5e300}\n{\"a\":[1]}\n{\"a\":{\"b\":1}}\n{\"a\":true}\n5\n[1]\n{\"a\":3}\n").await;
    // A float anywhere in the inferred rows makes the column float.
    assert_eq!(rows.texts("a"), some(&["1.0", "1.5e300", "3.0"]));
    let bad = messages(&rows);
    assert_eq!(bad.len(), 6, "{bad:?}");
    assert!(bad[0].contains("line 2") && bad[0].contains("key `a`: \"x\" is no float64"), "{}", bad[0]);
    assert!(bad[4].contains("a row must be an object"), "{}", bad[4]);
}

#[tokio::test]
async fn what_comes_after_the_inferred_rows() {
    let spec = with(spec(Json, &["a.jsonl"]), "infer_rows", json!(1));
    let text = b"{\"a\":1,\"f\":1.5}\n{\"a\":2.0}\n{\"a\":2.5}\n{\"a\":1,\"b\":1}\n{\"a\":1,\"a\":2}\n{\"f\":9007199254740993}\n{\"a\":9223372036854775808}\n{\"a\":\"5\"}\n{\"a\":4}\n";
    let rows = source(&spec, &[("a.jsonl", text)]).await.unwrap();
    assert_eq!(rows.texts("a"), some(&["1", "2", "4"]));
    let bad = messages(&rows);
    assert_eq!(bad.len(), 6, "{bad:?}");
    for (message, part) in bad.iter().zip([
        "2.5 is no int64",
        "key `b` is not among",
        "key `a` occurs twice",
        "9007199254740993 is no float64",
        "9223372036854775808 is no int64",
        "\"5\" is no int64",
    ]) {
        assert!(message.contains(part), "{message} / {part}");
    }
    assert!(bad[1].contains("infer_rows = 0") && bad[1].contains("options.types"), "{}", bad[1]);
}

#[tokio::test]
async fn broken_lines_are_bad_rows() {
    let rows = one("{\"a\":1}\n{\"a\":}\n{\"a\":2} x\n{\"a\":[1,{\"b\":\n{\"a\":3}\n{\"a\":4").await;
    assert_eq!(rows.texts("a"), some(&["1", "3"]));
    let bad = messages(&rows);
    assert_eq!(bad.len(), 4, "{bad:?}");
    assert!(bad[3].contains("line 6") && bad[3].contains("cut off"), "{}", bad[3]);
    let rows = source(&spec(Json, &["a.jsonl"]), &[("a.jsonl", b"{\"a\":\"x\"}\n{\"a\":\"\xFF\"}\n{\"a\":\"y\"}\n")]).await.unwrap();
    assert_eq!((rows.texts("a"), rows.bad.len()), (some(&["x", "y"]), 1));
}

#[tokio::test]
async fn a_row_taken_back_leaves_nothing_behind() {
    let rows = one("{\"l\":[1,2],\"s\":{\"x\":\"a\",\"y\":[[1],[2]]},\"z\":1}\n{\"l\":[3,4,5],\"s\":{\"x\":\"b\",\"y\":[[3],[\"bad\"]]},\"z\":2}\n{\"l\":[6],\"s\":{\"x\":\"c\",\"y\":[]},\"z\":3}\n").await;
    assert_eq!(rows.bad.len(), 1);
    assert!(rows.bad[0].message.contains("key `s.y[][]`"), "{}", rows.bad[0].message);
    assert_eq!(rows.texts("z"), some(&["1", "3"]));
    let all = rows.all();
    assert_eq!(all["l"].as_list::<i32>().value(1).as_primitive::<Int64Type>().values().to_vec(), [6]);
    assert_eq!(all["s"].as_struct().column_by_name("x").unwrap().as_string::<i32>().value(1), "c");
}

#[tokio::test]
async fn explicit_types() {
    let types = json!({"n": "string", "m": "json", "t": "timestamp", "u": "uint64", "i": "int8", "x": "list<string>", "new": "int64"});
    let spec = with(spec(Json, &["a.jsonl"]), "types", types);
    let text = b"{\"n\":1,\"m\":{\"b\":1,\"a\":[2]},\"t\":\"2024-01-01T00:00:00\",\"u\":18446744073709551615,\"i\":5,\"x\":[\"p\"]}\n{\"n\":true,\"m\":\"s\",\"u\":7,\"i\":200}\n{\"n\":\"t\",\"m\":null,\"t\":\"soon\"}\n{\"u\":1}\n";
    let rows = source(&spec, &[("a.jsonl", text)]).await.unwrap();
    assert_eq!(rows.texts("n"), vec![Some("1".into()), None]);
    assert_eq!(rows.texts("m")[0].as_deref(), Some("{\"b\":1,\"a\":[2]}"));
    assert_eq!(rows.texts("u"), some(&["18446744073709551615", "1"]));
    assert_eq!((rows.kind("i"), rows.kind("new"), rows.kind("m")), ("Int8".into(), "Int64".into(), "Utf8".into()));
    let bad = messages(&rows);
    assert_eq!(bad.len(), 2, "{bad:?}");
    assert!(bad[0].contains("`200` is no int8") && bad[1].contains("`soon` is no timestamp"), "{bad:?}");
}

#[tokio::test]
async fn an_array_is_refused_with_the_remedy() {
    let error = source(&spec(Json, &["a.json"]), &[("a.json", b"\n [{\"a\":1}]")]).await.unwrap_err();
    assert_says(&error, &["a.json", "JSON array", "jq"]);
    assert_says(&source(&spec(Json, &["a.json"]), &[("a.json", b"{}\n{}\n")]).await.unwrap_err(), &["no columns", "options.types"]);
    assert_says(&source(&spec(Json, &["a.json"]), &[("a.json", b"{\"_id\":1}\n")]).await.unwrap_err(), &["`_id`", "options.columns"]);
    let renamed = with(spec(Json, &["a.json"]), "columns", json!({"_id": "key"}));
    assert_eq!(source(&renamed, &[("a.json", b"{\"_id\":1}\n")]).await.unwrap().texts("key"), some(&["1"]));
}

#[tokio::test]
async fn floats_are_read_to_the_last_bit() {
    let values: Vec<f64> =
        (1..2000).map(|n| (f64::from(n) * 0.7).sin() * 10f64.powi(n % 60 - 30)).chain([5e-324, f64::MAX, -0.0, 0.1]).collect();
    let text: String = values.iter().map(|v| format!("{{\"a\":{v:e}}}\n")).collect();
    let rows = one(&text).await;
    let all = rows.all();
    let found = all["a"].as_primitive::<arrow::datatypes::Float64Type>().values();
    assert_eq!(found.iter().map(|v| v.to_bits()).collect::<Vec<_>>(), values.iter().map(|v| v.to_bits()).collect::<Vec<_>>());
    let rows = one("{\"a\":1.5}\n{\"a\":1e999}\n{\"a\":-9007199254740992}\n{\"a\":-9007199254740993}\n").await;
    assert_eq!((rows.ids().len(), rows.bad.len()), (2, 2));
}
