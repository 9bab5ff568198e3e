use forebay_core::pipeline::SourceFormat::Csv;
use serde_json::json;
use std::fmt::Write as _;
use std::io::Write as _;

use super::*;

async fn one(text: &[u8]) -> Rows {
    source(&spec(Csv, &["a.csv"]), &[("a.csv", text)]).await.unwrap()
}

#[tokio::test]
async fn types_are_inferred_and_ids_are_byte_offsets() {
    let rows = one(b"i,f,b,d,t,z,s,code\n1,1.5,true,2024-01-02,2024-01-02 03:04:05,2024-01-02T03:04:05Z,x,007\n-2,3,FALSE,2024-02-03,2024-01-02T03:04:05.123456,2024-01-02T03:04:05+02:00,\"y,\"\"z\",010\n").await;
    assert!(rows.bad.is_empty(), "{:?}", rows.bad);
    let kinds: Vec<String> = ["i", "f", "b", "d", "t", "z", "s", "code"].iter().map(|c| rows.kind(c)).collect();
    assert_eq!(kinds, ["Int64", "Float64", "Boolean", "Date32", "Timestamp(µs)", "Timestamp(µs, \"UTC\")", "Utf8", "Utf8"]);
    assert_eq!(rows.texts("s"), some(&["x", "y,\"z"]));
    assert_eq!(rows.texts("code"), some(&["007", "010"]));
    assert_eq!(rows.texts("z")[1], Some("2024-01-02T01:04:05Z".into()));
    assert_eq!(rows.ids()[0], "i,f,b,d,t,z,s,code\n".len() as i64);
    assert_eq!(rows.texts("_source"), some(&["a.csv", "a.csv"]));
}

#[tokio::test]
async fn a_type_that_changes_after_the_inferred_rows_is_a_bad_row() {
    let mut text = String::from("id,age\n");
    for n in 0..10_000 {
        writeln!(text, "{n},{}", n % 90).unwrap();
    }
    text.push_str("10000,abc\n10001,7\n");
    let rows = one(text.as_bytes()).await;
    assert_eq!(rows.all().num_rows(), 10_001);
    assert_eq!(rows.bad.len(), 1);
    assert_eq!(rows.bad[0].source, "a.csv");
    assert_eq!(rows.bad[0].id, text.find("10000,abc").unwrap() as i64);
    for part in ["`a.csv` line 10002", "column `age`", "`abc`", "int64", "types = { age = \"string\" }", "infer_rows = 0"] {
        assert!(rows.bad[0].message.contains(part), "{}", rows.bad[0].message);
    }
    for (key, value) in [("infer_rows", json!(0)), ("types", json!({"age": "string"}))] {
        let rows = source(&with(spec(Csv, &["a.csv"]), key, value), &[("a.csv", text.as_bytes())]).await.unwrap();
        assert!(rows.bad.is_empty());
        assert_eq!(rows.kind("age"), "Utf8");
        assert_eq!(rows.texts("age")[10_000], Some("abc".into()));
    }
}

#[tokio::test]
async fn a_value_is_never_changed() {
    let first = "1,1.5,2024-01-01 00:00:00\n".repeat(3);
    let text = format!(
        "i,f,t\n{first}007,1,2024-01-01 00:00:00\n1,12345678901234567890,2024-01-01 00:00:00\n1,1e999,2024-01-01 00:00:00\n1,1,2024-01-01 00:00:00.1234567\n1,1,2024-01-01 00:00:00Z\n1,1,2024-01-01 00:00:00.1234560\n"
    );
    let spec = with(spec(Csv, &["a.csv"]), "infer_rows", json!(3));
    let rows = source(&spec, &[("a.csv", text.as_bytes())]).await.unwrap();
    let messages: Vec<&str> = rows.bad.iter().map(|b| b.message.as_str()).collect();
    assert_eq!(messages.len(), 5, "{messages:?}");
    for (message, part) in messages.iter().zip(["`007`", "`12345678901234567890`", "`1e999`", ".1234567`", "00Z`"]) {
        assert!(message.contains(part), "{message}");
    }
    assert_eq!(rows.all().num_rows(), 4);
}

#[tokio::test]
async fn explicit_types_are_cast_and_checked() {
    let spec = with(spec(Csv, &["a.csv"]), "types", json!({"a": "int8", "b": "decimal(10,2)", "c": "int64", "d": "float32", "e": "bool"}));
    let rows = source(&spec, &[("a.csv", b"a,b,c,d,e\n127,1.50,007,1.5,yes\n128,1,1,1,1\n1,1.239,1,1,1\n1,1.2300,1,1,0\n1,1,1,1,maybe\n")])
        .await
        .unwrap();
    assert_eq!(rows.kind("b"), "Decimal128(10, 2)");
    assert_eq!(rows.texts("c"), some(&["7", "1"]));
    assert_eq!(rows.texts("b"), some(&["1.50", "1.23"]));
    let bad: Vec<&str> = rows.bad.iter().map(|b| b.message.as_str()).collect();
    assert_eq!(bad.len(), 3, "{bad:?}");
    assert!(bad[0].contains("`128` is no int8") && bad[0].contains("options.types"), "{}", bad[0]);
    assert!(bad[1].contains("`1.239` is no decimal(10,2)"), "{}", bad[1]);
    assert!(bad[2].contains("`maybe` is no bool"), "{}", bad[2]);
}

#[tokio::test]
async fn ragged_rows_and_broken_quotes_are_bad_rows() {
    let rows = one(b"a,b\n1,2\n3\n4,5,6\n\"x\"y,1\n7,8\n\"never closed,9\n10,11\n").await;
    assert_eq!(rows.texts("a"), some(&["1", "7"]));
    let bad: Vec<&str> = rows.bad.iter().map(|b| b.message.as_str()).collect();
    assert_eq!(bad.len(), 4, "{bad:?}");
    assert!(bad[0].contains("line 3: the row has 1 field, and there are 2 columns"), "{}", bad[0]);
    assert!(bad[1].contains("line 4: the row has 3 fields"), "{}", bad[1]);
    assert!(bad[2].contains("line 5: text follows a closing quote"), "{}", bad[2]);
    assert!(bad[3].contains("line 7: a quote is never closed"), "{}", bad[3]);
}

#[tokio::test]
async fn text_that_is_not_utf8_is_a_bad_row() {
    let rows = one(b"a,b\nx,1\n\xFF\xFE,2\n\xC3,\xA9\ny,3\n").await;
    assert_eq!(rows.texts("a"), some(&["x", "y"]));
    assert_eq!(rows.bad.len(), 2);
    assert!(rows.bad[0].message.contains("line 3: column `a` is not UTF-8"), "{}", rows.bad[0].message);
}

#[tokio::test]
async fn byte_order_mark_crlf_blank_lines_and_quoted_breaks() {
    let text = b"\xEF\xBB\xBFa,b\r\n1,\"x\r\ny\"\r\n\r\n2,z\r\n\n3,\"\"\"q\"\"\"";
    let rows = one(text).await;
    assert!(rows.bad.is_empty(), "{:?}", rows.bad);
    assert_eq!(rows.texts("a"), some(&["1", "2", "3"]));
    assert_eq!(rows.texts("b"), some(&["x\r\ny", "z", "\"q\""]));
    for (id, start) in rows.ids().iter().zip([b"1,", b"2,", b"3,"]) {
        assert!(text[usize::try_from(*id).unwrap()..].starts_with(start));
    }
}

#[tokio::test]
async fn nulls_and_dialects() {
    let spec = with(spec(Csv, &["a.csv"]), "null_values", json!(["NA", "-"]));
    let spec = with(with(with(spec, "delimiter", json!(";")), "quote", json!("'")), "comment", json!("#"));
    let rows = source(&spec, &[("a.csv", b"# made by hand\na;b\nNA;'x;y'\n# more\n1;-\n;'it''s'\n")]).await.unwrap();
    assert_eq!(rows.texts("b"), vec![Some("x;y".into()), None, Some("it's".into())]);
    // The empty text is a text now, so the column can't hold numbers.
    assert_eq!(rows.texts("a"), vec![None, Some("1".into()), Some(String::new())]);
    let rows = one(b"a,b\n,\n,\n").await;
    assert_eq!(rows.texts("a"), vec![None, None]);
    let spec = with(super::spec(Csv, &["a.csv"]), "escape", json!("\\"));
    let rows = source(&spec, &[("a.csv", b"a,b\n\"say \\\"hi\\\"\",\"back\\\\slash\"\n")]).await.unwrap();
    assert_eq!((rows.texts("a"), rows.texts("b")), (some(&["say \"hi\""]), some(&["back\\slash"])));
}

#[tokio::test]
async fn empty_and_header_only_files() {
    let rows = one(b"a,b\n").await;
    assert_eq!((rows.all().num_rows(), rows.all().num_columns()), (0, 4));
    let error = source(&spec(Csv, &["a.csv"]), &[("a.csv", b"")]).await.unwrap_err();
    assert_says(&error, &["empty"]);
    // One file with rows is enough.
    let rows = source(&spec(Csv, &["*.csv"]), &[("a.csv", b""), ("b.csv", b"x\n1\n"), ("c.csv", b"x\n")]).await.unwrap();
    assert_eq!(rows.texts("x"), some(&["1"]));
    // The last line needs no end.
    assert_eq!(one(b"a\n1").await.texts("a"), some(&["1"]));
}

#[tokio::test]
async fn files_without_a_header() {
    let spec = with(spec(Csv, &["a.csv"]), "has_header", json!(false));
    let rows = source(&spec, &[("a.csv", b"1,x\n2,y\n")]).await.unwrap();
    assert_eq!((rows.texts("column_1"), rows.ids()), (some(&["1", "2"]), vec![0, 4]));
    let named = with(spec.clone(), "columns", json!(["n", "t"]));
    assert_eq!(source(&named, &[("a.csv", b"1,x\n2,y\n")]).await.unwrap().texts("t"), some(&["x", "y"]));
    let few = with(spec, "columns", json!(["n"]));
    assert_says(&source(&few, &[("a.csv", b"1,x\n")]).await.unwrap_err(), &["a.csv", "has 2 columns", "names 1"]);
}

#[tokio::test]
async fn refused_names_name_the_column_and_the_remedy() {
    for (header, parts) in [
        ("_id,b", ["`_id`", "reserved", "options.columns"]),
        ("a,Epoch", ["`Epoch`", "reserved", "options.columns"]),
        ("a,a", ["two columns are named `a`", "columns 1 and 2", "options.columns"]),
        ("a,A", ["`a` and `A` differ only in case", "a.csv", "options.columns"]),
        ("a,", ["column 2 has no name", "a.csv", "options.columns"]),
    ] {
        let text = format!("{header}\n1,2\n");
        assert_says(&source(&spec(Csv, &["a.csv"]), &[("a.csv", text.as_bytes())]).await.unwrap_err(), &parts);
    }
    let renamed = with(spec(Csv, &["a.csv"]), "columns", json!({"_id": "key"}));
    assert_eq!(source(&renamed, &[("a.csv", b"_id,b\n1,2\n")]).await.unwrap().texts("key"), some(&["1"]));
    let typo = with(spec(Csv, &["a.csv"]), "columns", json!({"heigth": "h"}));
    assert_says(&source(&typo, &[("a.csv", b"height,b\n1,2\n")]).await.unwrap_err(), &["heigth", "did you mean `height`?"]);
}

#[tokio::test]
async fn files_may_order_columns_differently_and_must_have_the_same() {
    let files: &[(&str, &[u8])] = &[("a.csv", b"x,y\n1,2\n"), ("b.csv", b"y,x\n3,4\n")];
    let rows = source(&spec(Csv, &["*.csv"]), files).await.unwrap();
    assert_eq!((rows.texts("x"), rows.texts("y")), (some(&["1", "4"]), some(&["2", "3"])));
    let files: &[(&str, &[u8])] = &[("a.csv", b"x,y\n1,2\n"), ("b.csv", b"x\n3\n")];
    assert_says(&source(&spec(Csv, &["*.csv"]), files).await.unwrap_err(), &["`b.csv` lacks the column `y`", "a.csv"]);
}

fn gzip(text: &[u8]) -> Vec<u8> {
    let mut writer = flate2::write::GzEncoder::new(Vec::new(), flate2::Compression::fast());
    writer.write_all(text).unwrap();
    writer.finish().unwrap()
}

#[tokio::test]
async fn compressed_files_give_the_same_rows_and_truncated_ones_are_named() {
    let mut text = String::from("n,t\n");
    (0..5000).for_each(|n| writeln!(text, "{n},row {}", n * 7919 % 4999).unwrap());
    let plain = one(text.as_bytes()).await;
    let zst = zstd::encode_all(text.as_bytes(), 1).unwrap();
    let (gz, half) = (gzip(text.as_bytes()), text.len() / 2);
    // Two members after one another are one file.
    let half = text[..half].rfind('\n').unwrap() + 1;
    let members = [gzip(&text.as_bytes()[..half]), gzip(&text.as_bytes()[half..])].concat();
    for (name, bytes) in [("a.csv.gz", &gz), ("a.csv.zst", &zst), ("b.csv.gz", &members)] {
        let rows = source(&spec(Csv, &[name]), &[(name, bytes)]).await.unwrap();
        assert_eq!(rows.texts("t"), plain.texts("t"));
        assert_eq!(rows.ids(), plain.ids(), "positions are those of the text");
        let cut = &bytes[..bytes.len() - 20];
        let spec = with(spec(Csv, &[name]), "infer_rows", json!(10));
        assert_says(&source(&spec, &[(name, cut)]).await.unwrap_err(), &[name]);
        assert_says(&source(&spec, &[(name, b"n,t\n1,2\n")]).await.unwrap_err(), &[name]);
    }
}

#[tokio::test]
async fn a_row_of_100_mb() {
    let big = "x".repeat(100 << 20);
    let text = format!("a,b\n1,small\n2,{big}\n3,small\n");
    let rows = one(text.as_bytes()).await;
    assert_eq!(rows.ids().len(), 3);
    let lengths: Vec<usize> = rows.texts("b").iter().map(|b| b.as_ref().unwrap().len()).collect();
    assert_eq!(lengths, [5, 100 << 20, 5]);
    let limits = Limits { record_bytes: 1 << 20, ..Limits::default() };
    let dir = folder(&[("a.csv", text.as_bytes())]);
    let spec = spec(Csv, &["a.csv"]);
    let snapshot = take(&spec, dir.path()).await.unwrap();
    assert_says(&read_with(&spec, &snapshot, limits).await.unwrap_err(), &["longer than 1048576 bytes", "quote"]);
}

#[tokio::test]
async fn batches_are_bounded_and_lines_of_later_pieces_count_from_the_top() {
    let mut text = String::from("n,t\n");
    (0..20_000).for_each(|n| writeln!(text, "{n},\"line\nbreak {n}\"").unwrap());
    let at = text.find("15000,").unwrap();
    text.insert(at, 'x');
    let dir = folder(&[("a.csv", text.as_bytes())]);
    let spec = with(spec(Csv, &["a.csv"]), "task_size", json!(50_000));
    let snapshot = take(&spec, dir.path()).await.unwrap();
    assert!(snapshot.tasks.len() > 5, "{}", snapshot.tasks.len());
    let limits = Limits { batch_bytes: 10_000, batch_rows: 300, ..Limits::default() };
    let rows = read_with(&spec, &snapshot, limits).await.unwrap();
    assert!(rows.batches.iter().all(|b| b.num_rows() <= 300));
    assert_eq!(rows.all().num_rows(), 19_999);
    let line = text[..at].matches('\n').count() + 1;
    assert!(rows.bad[0].message.contains(&format!("line {line}: column `n`: `x15000`")), "{}", rows.bad[0].message);
}

#[tokio::test]
async fn wrong_options_are_named() {
    for (key, value, parts) in [
        ("delimeter", json!(";"), ["delimeter", "did you mean `delimiter`?"]),
        ("delimiter", json!(";;"), ["source.options.delimiter", "one ASCII character"]),
        ("quote", json!(","), ["source.options.quote", "same character as `delimiter`"]),
        ("types", json!({"a": "in64"}), ["source.options.types.a", "did you mean `int64`?"]),
        ("types", json!({"nix": "int64"}), ["`nix`", "doesn't have"]),
        ("types", json!({"a": "list<int64>"}), ["can't be a list", "step"]),
        ("has_header", json!("yes"), ["source.options.has_header", "true or false"]),
    ] {
        let spec = with(spec(Csv, &["a.csv"]), key, value);
        assert_says(&source(&spec, &[("a.csv", b"a,b\n1,2\n")]).await.unwrap_err(), &parts);
    }
}
