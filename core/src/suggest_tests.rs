#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

#[test]
fn a_transposition_is_likely() {
    assert_eq!(likely("bacth_size", ["batch_size", "seed"]), Some("batch_size"));
    assert_eq!(likely("batch-size", ["batch_size", "seed"]), Some("batch_size"));
    assert_eq!(likely("compress", ["cut", "compression"]), Some("compression"));
}

#[test]
fn rubbish_is_not_likely_but_has_a_nearest() {
    assert_eq!(likely("qqqqqqq", ["batch_size", "seed"]), None);
    assert_eq!(nearest("qqqqqqq", ["batch_size", "seed"]), Some("seed"));
    assert_eq!(nearest("x", []), None);
}

#[test]
fn remedies_name_one_or_all() {
    assert_eq!(remedy("sed", ["batch_size", "seed"]).unwrap(), "did you mean `seed`?");
    assert_eq!(remedy("qqqqqqq", ["a", "b", "c"]).unwrap(), "known are `a`, `b` and `c`");
    assert_eq!(remedy("x", []), None);
}

#[test]
fn a_huge_name_is_handled() {
    let huge = "é".repeat(1 << 20);
    assert!(nearest(&huge, ["seed"]).is_some());
}
