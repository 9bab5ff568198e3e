#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use super::*;

const LIMITS: TextLimits = TextLimits { bytes: 1_000, operators: 5 };

#[test]
fn text_is_measured_before_it_is_parsed() {
    check_text("SELECT a + b FROM t WHERE x = 1", LIMITS).unwrap();
    assert_eq!(check_text("SELECT 1+1+1+1+1+1", LIMITS).unwrap_err().kind, Kind::ResourceExhausted);
    assert_eq!(check_text("SELECT NOT NOT NOT NOT NOT true", LIMITS).unwrap_err().kind, Kind::ResourceExhausted);
    assert_eq!(check_text("SELECT a[1]::int::int::int::int", LIMITS).unwrap_err().kind, Kind::ResourceExhausted);
    assert_eq!(check_text(&"x".repeat(1_001), LIMITS).unwrap_err().kind, Kind::ResourceExhausted);
    // Long lists are not deep, and those after IN are not wide.
    let wide = TextLimits { bytes: 1 << 20, operators: 5 };
    check_text(&format!("SELECT a IN ({}1), f({}1)", "1, ".repeat(20_000), "1, ".repeat(8_000)), wide).unwrap();
    for text in [format!("SELECT {}1", "1, ".repeat(9_000)), format!("SELECT a IN (1), f({}1)", "1, ".repeat(9_000))] {
        assert_eq!(check_text(&text, wide).unwrap_err().kind, Kind::ResourceExhausted);
    }
    check_text(&format!("SELECT a IN ({})", "1, ".repeat(200)), LIMITS).unwrap();
    assert_eq!(check_text("SELECT 'open", LIMITS).unwrap_err().kind, Kind::BadInput);
}

#[tokio::test]
async fn planning_has_room_and_survives_panics() {
    fn depth(n: u64) -> u64 {
        let frame = std::hint::black_box([n; 64]);
        if n == 0 { 0 } else { frame[0].min(1) + depth(n - 1) }
    }
    assert_eq!(on_big_stack(|| Ok(depth(100_000))).await.unwrap(), 100_000);
    let error = on_big_stack::<(), _>(|| panic!("oh no")).await.unwrap_err();
    assert!(error.message.contains("oh no"));
}

#[test]
fn our_errors_pass_through_datafusion() {
    let ours = Error::not_found("no such thing").with_remedy("look again");
    let wrapped = from_error(ours).context("some pass");
    let back = to_error(wrapped);
    assert_eq!(back.kind, Kind::NotFound);
    assert!(back.to_string().contains("look again"));
}

#[test]
fn a_full_spill_area_is_no_fault_of_the_text() {
    let text =
        "The used disk space during the spilling process has exceeded the allowable limit of 32.0 MB. Please try increasing the config";
    let own = || std::io::Error::other(text);
    let full = || std::io::Error::from(std::io::ErrorKind::StorageFull);
    let arrow = |io: std::io::Error| DataFusionError::ArrowError(Box::new(ArrowError::IoError(io.to_string(), io)), None);
    for error in [DataFusionError::IoError(own()), arrow(own())] {
        let error = to_error(error);
        assert_eq!(error.kind, Kind::ResourceExhausted);
        assert!(error.message.contains("query.spill_limit allows, 32.0 MB"), "{error}");
    }
    for error in [DataFusionError::IoError(full()), arrow(full())] {
        let error = to_error(error);
        assert!(error.kind == Kind::ResourceExhausted && error.message.contains("no space"), "{error}");
    }
    assert_eq!(to_error(arrow(std::io::Error::other("broken"))).kind, Kind::BadInput);
}
