#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

use proptest::prelude::*;
use std::io::Read;

use super::*;

/// Hands out a few bytes at a time.
struct Trickle<'a>(&'a [u8], usize);

impl Read for Trickle<'_> {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        let take = self.1.min(out.len()).min(self.0.len());
        out[..take].copy_from_slice(&self.0[..take]);
        self.0 = &self.0[take..];
        Ok(take)
    }
}

type Row = (u64, u64, Vec<String>, bool);

fn rows(text: &[u8], options: &CsvOptions) -> Vec<Row> {
    let mut records = Records::new(Trickle(text, 3), 0, options, 1 << 20);
    let mut rows = Vec::new();
    while let Some(record) = records.next().unwrap() {
        let fields = (0..record.len()).map(|f| String::from_utf8(record.value(f)).unwrap()).collect();
        rows.push((record.offset, record.line, fields, record.malformed.is_some()));
    }
    rows
}

#[test]
fn positions_and_lines() {
    let rows = rows(b"a,b\r\n\r\n\"x\ny\",2\n\n3,\n4", &CsvOptions::default());
    let expected: Vec<(u64, u64, &[&str])> = vec![(0, 1, &["a", "b"]), (7, 3, &["x\ny", "2"]), (16, 6, &["3", ""]), (19, 7, &["4"])];
    let found: Vec<(u64, u64, Vec<&str>)> = rows.iter().map(|(o, l, f, _)| (*o, *l, f.iter().map(String::as_str).collect())).collect();
    assert_eq!(found, expected.into_iter().map(|(o, l, f)| (o, l, f.to_vec())).collect::<Vec<_>>());
}

#[test]
fn a_record_longer_than_the_limit_is_an_error() {
    let text = format!("a\n\"{}", "x".repeat(1 << 20));
    let mut records = Records::new(text.as_bytes(), 0, &CsvOptions::default(), 300 << 10);
    assert!(records.next().unwrap().is_some());
    let Err(error) = records.next() else { panic!("it was read") };
    assert!(error.to_string().contains("the record at byte 2 is longer"), "{error}");
}

/// What the csv crate makes of the same text.
fn reference(text: &str) -> Vec<Vec<String>> {
    let mut reader = ::csv::ReaderBuilder::new().has_headers(false).flexible(true).from_reader(text.as_bytes());
    reader.records().map(|r| r.unwrap().iter().map(str::to_owned).collect()).collect()
}

proptest! {
    /// Well-formed text reads as with the csv crate, and every record is found again from its own position.
    #[test]
    fn agrees_with_the_csv_crate(
        fields in prop::collection::vec(prop::collection::vec(("[a-z\",\n\r é]{0,6}", any::<bool>()), 1..4), 0..20),
        crlf in any::<bool>(),
    ) {
        let mut text = String::new();
        for row in &fields {
            for (at, (value, quote)) in row.iter().enumerate() {
                if at > 0 {
                    text.push(',');
                }
                // A row of one empty field would be a blank line.
                if *quote || value.contains(['"', ',', '\n', '\r']) || row.len() == 1 {
                    text.push_str(&format!("\"{}\"", value.replace('"', "\"\"")));
                } else {
                    text.push_str(value);
                }
            }
            text.push_str(if crlf { "\r\n" } else { "\n" });
        }
        let found = rows(text.as_bytes(), &CsvOptions::default());
        prop_assert_eq!(found.iter().map(|r| r.2.clone()).collect::<Vec<_>>(), reference(&text));
        for (offset, _, fields, malformed) in found {
            prop_assert!(!malformed);
            let from = usize::try_from(offset).unwrap();
            let mut records = Records::new(&text.as_bytes()[from..], offset, &CsvOptions::default(), 1 << 20);
            let record = records.next().unwrap().unwrap();
            prop_assert_eq!(record.offset, offset);
            prop_assert_eq!((0..record.len()).map(|f| String::from_utf8(record.value(f)).unwrap()).collect::<Vec<_>>(), fields);
        }
    }

    /// Any bytes: it ends, positions grow, and nothing panics.
    #[test]
    fn any_bytes(text in prop::collection::vec(prop_oneof![Just(b'"'), Just(b','), Just(b'\n'), Just(b'\r'), Just(b'\\'), Just(b'#'), any::<u8>()], 0..200)) {
        let options = CsvOptions { escape: Some(b'\\'), comment: Some(b'#'), ..CsvOptions::default() };
        let mut records = Records::new(Trickle(&text, 7), 0, &options, 1 << 20);
        let mut last = None;
        while let Some(record) = records.next().unwrap() {
            prop_assert!(last < Some(record.offset));
            last = Some(record.offset);
            (0..record.len()).for_each(|f| drop(record.value(f)));
        }
        let mut lines = Lines::new(Trickle(&text, 7), 0, 1 << 20);
        let mut last = None;
        while let Some(line) = lines.next().unwrap() {
            prop_assert!(last < Some(line.offset) && !line.data.is_empty());
            last = Some(line.offset);
        }
    }
}
