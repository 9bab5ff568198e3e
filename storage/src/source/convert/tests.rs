#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::super::typename;
use super::*;

fn inferred(values: &[Option<&str>]) -> String {
    let mut candidates = Candidates::new();
    candidates.narrow(&StringArray::from(values.to_vec())).unwrap();
    typename::format(&candidates.decide())
}

#[test]
fn types_are_the_narrowest_that_keep_every_value() {
    for (values, kind) in [
        (vec!["1", "-2", "9223372036854775807"], "int64"),
        (vec!["1", "9223372036854775808"], "string"),
        (vec!["1", "2.5", "1e-3"], "float64"),
        (vec!["1.5", "12345678901234567"], "string"),
        (vec!["007"], "string"),
        (vec!["0", "0.5", "-0.5"], "float64"),
        (vec!["true", "False"], "bool"),
        (vec!["true", "1"], "string"),
        (vec!["yes", "no"], "string"),
        (vec!["2024-02-29"], "date"),
        (vec!["2024-02-30"], "string"),
        (vec!["2024-02-29", "2024-02-29T00:00:00"], "string"),
        (vec!["2024-02-29T10:00:00", "2024-02-29 10:00:00.5"], "timestamp"),
        (vec!["2024-02-29T10:00:00Z", "2024-02-29T10:00:00-05:00"], "timestamp_utc"),
        (vec!["2024-02-29T10:00:00Z", "2024-02-29T10:00:00"], "string"),
        (vec!["2024-02-29T10:00:00.1234567"], "string"),
        (vec!["", " 1"], "string"),
        (vec!["nan", "1"], "float64"),
        (vec!["1e999"], "string"),
    ] {
        let values: Vec<_> = values.into_iter().map(Some).collect();
        assert_eq!(inferred(&values), kind, "{values:?}");
    }
    assert_eq!(inferred(&[None, None]), "string");
    assert_eq!(inferred(&[]), "string");
    assert_eq!(inferred(&[None, Some("1")]), "int64");
}

#[test]
fn names_of_types_round_trip() {
    for name in ["int64", "json", "timestamp_utc", "decimal(10,2)", "list<struct<a: int64, \"b c\": list<string>>>", "struct<>", "bool"] {
        assert_eq!(typename::format(&typename::parse(name).unwrap()), name);
    }
    for (name, part) in [
        ("in64", "did you mean `int64`?"),
        ("list<int64", "its end"),
        ("decimal(50,2)", "up to 38"),
        ("int64 x", "`x`"),
        ("", "not a type"),
    ] {
        let error = typename::parse(name).unwrap_err().to_string();
        assert!(error.contains(part), "{error}");
    }
    let deep = format!("{}int64{}", "list<".repeat(1000), ">".repeat(1000));
    assert!(typename::parse(&deep).unwrap_err().to_string().contains("too deeply"));
}
