use proptest::prelude::*;

use super::super::*;

#[test]
fn sizes() {
    for (text, bytes) in [
        ("4096", 4096),
        ("128MiB", 128 << 20),
        ("1 kb", 1000),
        ("1.5GiB", 3 << 29),
        ("0.1MB", 100_000),
        ("1_000B", 1000),
        (" 2TiB ", 2 << 40),
        ("16777215TiB", 16_777_215 << 40),
    ] {
        assert_eq!(parse_size(text).unwrap(), bytes, "{text}");
    }
    for text in ["", "MiB", "-1", "12 parsecs", "1..5MB", "1.MB", "16777216TiB", "1e3", "99999999999999999999"] {
        assert!(parse_size(text).is_err(), "{text}");
    }
}

#[test]
fn durations() {
    for (text, ms) in [("60s", 60_000), ("10m", 600_000), ("500ms", 500), ("1.5h", 5_400_000), ("2d", 172_800_000)] {
        assert_eq!(parse_duration_ms(text).unwrap(), ms, "{text}");
    }
    for text in ["60", "s", "1w", "-1s"] {
        assert!(parse_duration_ms(text).is_err(), "{text}");
    }
}

#[test]
fn compressions() {
    for text in ["none", "lz4", "zstd(1)", "zstd(22)"] {
        assert_eq!(parse_compression(text).unwrap().to_string(), text);
    }
    assert_eq!(parse_compression("zstd").unwrap(), Compression::Zstd(1));
    for text in ["gzip", "zstd(0)", "zstd(23)", "zstd(", "ZSTD(1)"] {
        assert!(parse_compression(text).is_err(), "{text}");
    }
}

#[test]
fn sizes_for_people() {
    for (bytes, text) in
        [(0, "0 B"), (1023, "1023 B"), (1024, "1.0 KiB"), (1 << 20, "1.0 MiB"), ((1 << 20) - 1, "1.0 MiB"), (u64::MAX, "16384.0 PiB")]
    {
        assert_eq!(show_size(bytes), text);
    }
}

proptest! {
    #[test]
    fn whole_units_are_exact(n in 0u64..1 << 24) {
        prop_assert_eq!(parse_size(&format!("{n}MiB")).unwrap(), n << 20);
        prop_assert_eq!(parse_size(&n.to_string()).unwrap(), n);
    }

    #[test]
    fn no_text_panics(text in "[0-9._a-zA-Zéµ ]{0,30}") {
        let _ = (parse_size(&text), parse_duration_ms(&text), parse_compression(&text));
    }
}
