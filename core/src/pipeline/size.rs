//! Sizes, durations and compression as users write them.

use super::Compression;
use crate::error::{Error, Result};

const UNITS: &[(&str, u64)] = &[
    ("", 1),
    ("b", 1),
    ("kb", 1_000),
    ("mb", 1_000_000),
    ("gb", 1_000_000_000),
    ("tb", 1_000_000_000_000),
    ("kib", 1 << 10),
    ("mib", 1 << 20),
    ("gib", 1 << 30),
    ("tib", 1 << 40),
];

const SPANS: &[(&str, u64)] = &[("ms", 1), ("s", 1_000), ("m", 60_000), ("h", 3_600_000), ("d", 86_400_000)];

/// Bytes from `"128MiB"`, `"1.5 GB"`, `"4096"`; units are matched without regard to case.
pub fn parse_size(text: &str) -> Result<u64> {
    let refuse = || {
        Error::bad_input(format!("`{}` is not a size", text.escape_debug()))
            .with_remedy("write a number and a unit, such as \"128MiB\"; units are B, KB, MB, GB, TB, KiB, MiB, GiB and TiB")
    };
    scaled(text, UNITS).ok_or_else(refuse)
}

/// Milliseconds from `"60s"`, `"10m"`, `"500ms"`, `"1.5h"`, `"2d"`.
pub fn parse_duration_ms(text: &str) -> Result<u64> {
    let refuse = || {
        Error::bad_input(format!("`{}` is not a duration", text.escape_debug()))
            .with_remedy("write a number and a unit, such as \"60s\"; units are ms, s, m, h and d")
    };
    scaled(text, SPANS).ok_or_else(refuse)
}

/// A decimal number and a unit, in units of the table; exact, because floats would round large sizes.
fn scaled(text: &str, units: &[(&str, u64)]) -> Option<u64> {
    let text = text.trim();
    let digits = text.find(|c: char| !c.is_ascii_digit() && c != '.' && c != '_').unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let unit = unit.trim().to_ascii_lowercase();
    let scale = units.iter().find(|(name, _)| *name == unit)?.1;
    let number = number.replace('_', "");
    let (whole, fraction) = number.split_once('.').unwrap_or((&number, ""));
    if whole.is_empty() || fraction.len() > 9 || fraction.contains('.') || (number.contains('.') && fraction.is_empty()) {
        return None;
    }
    let whole = whole.parse::<u64>().ok()?.checked_mul(scale)?;
    if fraction.is_empty() {
        return Some(whole);
    }
    let part = u128::from(fraction.parse::<u64>().ok()?) * u128::from(scale) / 10u128.pow(fraction.len() as u32);
    whole.checked_add(u64::try_from(part).ok()?)
}

/// A size for people: `"8.0 MiB"`; below a KiB plain bytes.
pub fn show_size(bytes: u64) -> String {
    const NAMES: [&str; 5] = ["KiB", "MiB", "GiB", "TiB", "PiB"];
    if bytes < 1024 {
        return format!("{bytes} B");
    }
    let mut value = bytes as f64 / 1024.0;
    let mut name = NAMES[0];
    for next in &NAMES[1..] {
        if value < 1023.95 {
            break;
        }
        value /= 1024.0;
        name = next;
    }
    format!("{value:.1} {name}")
}

/// `none`, `lz4`, `zstd` (level 1) or `zstd(level)` with a level in 1..=22.
pub fn parse_compression(text: &str) -> Result<Compression> {
    let refuse = || {
        Error::bad_input(format!("`{}` is not a compression", text.escape_debug()))
            .with_remedy("use \"none\", \"lz4\" or \"zstd(level)\" with a level from 1 to 22")
    };
    match text {
        "none" => Ok(Compression::None),
        "lz4" => Ok(Compression::Lz4),
        "zstd" => Ok(Compression::Zstd(1)),
        _ => {
            let level = text.strip_prefix("zstd(").and_then(|rest| rest.strip_suffix(')')).and_then(|n| n.trim().parse::<i32>().ok());
            level.filter(|n| (1..=22).contains(n)).map(Compression::Zstd).ok_or_else(refuse)
        }
    }
}

impl std::fmt::Display for Compression {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::None => f.write_str("none"),
            Self::Lz4 => f.write_str("lz4"),
            Self::Zstd(level) => write!(f, "zstd({level})"),
        }
    }
}
