//! Cutting text into records with exact byte positions: csv records (RFC 4180, leniently) and lines.
//!
//! A position is the byte offset of a record's first byte, however the reading was divided; blank lines and the `\n` of a `\r\n` belong to no
//! record. A record is held in memory whole; the buffer grows to the largest one.

use forebay_core::Error;
use memchr::{memchr, memchr_iter, memchr2, memchr3};
use std::io::{self, Read};
use std::ops::Range;

use super::options::CsvOptions;

const BUFFER: usize = 256 << 10;
const BOM: &[u8] = b"\xEF\xBB\xBF";

/// Bytes that are read and not yet used.
struct Window<R> {
    input: R,
    buffer: Vec<u8>,
    start: usize,
    end: usize,
    /// Offset in the text of `buffer[start]`.
    offset: u64,
    eof: bool,
    limit: usize,
}

impl<R: Read> Window<R> {
    fn new(input: R, offset: u64, limit: usize) -> Self {
        Self { input, buffer: vec![0; BUFFER], start: 0, end: 0, offset, eof: false, limit }
    }

    fn data(&self) -> &[u8] {
        &self.buffer[self.start..self.end]
    }

    fn skip(&mut self, bytes: usize) {
        self.start += bytes;
        self.offset += bytes as u64;
    }

    /// Reads on, making room first; sets `eof` at the end of the text.
    fn more(&mut self) -> io::Result<()> {
        if self.start > 0 {
            self.buffer.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        if self.end == self.buffer.len() {
            if self.end >= self.limit {
                let message = format!("the record at byte {} is longer than {} bytes", self.offset, self.limit);
                return Err(io::Error::other(Error::bad_input(message).with_remedy("look for a quote that is never closed")));
            }
            self.buffer.resize((self.end * 2).min(self.limit), 0);
        }
        // Filled to the brim, so that a long record is searched again only each time the buffer doubles.
        while self.end < self.buffer.len() {
            match self.input.read(&mut self.buffer[self.end..]) {
                Ok(0) => {
                    self.eof = true;
                    break;
                }
                Ok(read) => self.end += read,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        Ok(())
    }

    fn skip_bom(&mut self) -> io::Result<()> {
        while self.data().len() < BOM.len() && !self.eof {
            self.more()?;
        }
        if self.offset == 0 && self.data().starts_with(BOM) {
            self.skip(BOM.len());
        }
        Ok(())
    }
}

/// What is wrong with the form of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Malformed {
    /// The text ends inside quotes.
    Unclosed,
    /// Something other than a delimiter follows a closing quote.
    AfterQuote,
}

impl Malformed {
    pub(super) fn describe(self) -> &'static str {
        match self {
            Malformed::Unclosed => "a quote is never closed, so everything up to the end of the file is in this record",
            Malformed::AfterQuote => "text follows a closing quote",
        }
    }
}

/// A field's bytes inside a record.
#[derive(Debug, Clone)]
struct FieldRange {
    range: Range<usize>,
    /// Doubled or escaped quotes have yet to be undone.
    escaped: bool,
}

/// One csv record; borrowed until the next is read.
pub(super) struct Record<'a> {
    /// Offset in the text of its first byte.
    pub(super) offset: u64,
    /// Line of its first byte, from 1 at the reader's start.
    pub(super) line: u64,
    pub(super) malformed: Option<Malformed>,
    data: &'a [u8],
    fields: &'a [FieldRange],
    quote: Option<u8>,
    escape: Option<u8>,
}

impl Record<'_> {
    pub(super) fn len(&self) -> usize {
        self.fields.len()
    }

    /// Appends a field's value to `out`.
    pub(super) fn append(&self, field: usize, out: &mut Vec<u8>) {
        let Some(field) = self.fields.get(field) else { return };
        let mut rest = &self.data[field.range.clone()];
        if field.escaped {
            // What stands behind a quote or an escape here is meant literally.
            let (a, b) = (self.quote.unwrap_or(b'"'), self.escape.or(self.quote).unwrap_or(b'"'));
            while let Some(at) = memchr2(a, b, rest) {
                out.extend_from_slice(&rest[..at]);
                match rest.get(at + 1) {
                    Some(literal) => out.push(*literal),
                    None => break,
                }
                rest = &rest[at + 2..];
            }
        }
        out.extend_from_slice(rest);
    }

    pub(super) fn value(&self, field: usize) -> Vec<u8> {
        let mut out = Vec::new();
        self.append(field, &mut out);
        out
    }
}

enum Parsed {
    /// The record goes on behind the buffer.
    Incomplete,
    Record {
        used: usize,
        malformed: Option<Malformed>,
    },
}

/// Reads csv records one after the other.
pub(super) struct Records<R> {
    window: Window<R>,
    options: CsvOptions,
    fields: Vec<FieldRange>,
    line: u64,
    /// Bytes of the record that was handed out last.
    used: usize,
}

impl<R: Read> Records<R> {
    /// `offset` is where in the text `input` begins, which must be the start of a record.
    pub(super) fn new(input: R, offset: u64, options: &CsvOptions, limit: usize) -> Self {
        Self { window: Window::new(input, offset, limit), options: options.clone(), fields: Vec::new(), line: 1, used: 0 }
    }

    /// Where the next record begins, at the earliest.
    pub(super) fn offset(&self) -> u64 {
        self.window.offset + self.used as u64
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Record<'_>>> {
        self.release();
        if self.window.offset == 0 && self.line == 1 {
            self.window.skip_bom()?;
        }
        if !self.skip_blank()? {
            return Ok(None);
        }
        loop {
            match parse(self.window.data(), self.window.eof, &self.options, &mut self.fields) {
                Parsed::Incomplete => self.window.more()?,
                Parsed::Record { used, malformed } => {
                    self.used = used;
                    return Ok(Some(Record {
                        offset: self.window.offset,
                        line: self.line,
                        malformed,
                        data: &self.window.data()[..used],
                        fields: &self.fields,
                        quote: self.options.quote,
                        escape: self.options.escape,
                    }));
                }
            }
        }
    }

    fn release(&mut self) {
        self.line += count_lines(&self.window.data()[..self.used]);
        self.window.skip(std::mem::take(&mut self.used));
    }

    /// Skips blank lines and comments; false at the end of the text.
    fn skip_blank(&mut self) -> io::Result<bool> {
        loop {
            match self.window.data().first() {
                None if self.window.eof => return Ok(false),
                None => self.window.more()?,
                Some(b'\n') => {
                    self.line += 1;
                    self.window.skip(1);
                }
                Some(b'\r') => self.window.skip(1),
                Some(byte) if Some(*byte) == self.options.comment => match memchr(b'\n', self.window.data()) {
                    Some(at) => self.window.skip(at),
                    None if self.window.eof => self.window.skip(self.window.data().len()),
                    None => self.window.more()?,
                },
                Some(_) => return Ok(true),
            }
        }
    }
}

/// Lines that end inside a record's bytes; a lone `\r` ends one too.
fn count_lines(record: &[u8]) -> u64 {
    memchr_iter(b'\n', record).count() as u64
}

fn parse(data: &[u8], eof: bool, options: &CsvOptions, fields: &mut Vec<FieldRange>) -> Parsed {
    fields.clear();
    let mut at = 0;
    loop {
        let quoted = options.quote.is_some() && data.get(at).copied() == options.quote;
        let end = if quoted {
            match quoted_field(data, at, eof, options, fields) {
                Quoted::Incomplete => return Parsed::Incomplete,
                Quoted::Unclosed => return Parsed::Record { used: data.len(), malformed: Some(Malformed::Unclosed) },
                Quoted::Closed(end) => end,
            }
        } else {
            let end = memchr3(options.delimiter, b'\n', b'\r', &data[at..]).map(|i| at + i);
            match end {
                None if !eof => return Parsed::Incomplete,
                end => {
                    let end = end.unwrap_or(data.len());
                    fields.push(FieldRange { range: at..end, escaped: false });
                    end
                }
            }
        };
        match data.get(end).copied() {
            None if !eof => return Parsed::Incomplete,
            None => return Parsed::Record { used: end, malformed: None },
            Some(byte) if byte == options.delimiter => at = end + 1,
            Some(b'\n') => return Parsed::Record { used: end + 1, malformed: None },
            Some(b'\r') => match data.get(end + 1) {
                None if !eof => return Parsed::Incomplete,
                Some(b'\n') => return Parsed::Record { used: end + 2, malformed: None },
                _ => return Parsed::Record { used: end + 1, malformed: None },
            },
            Some(_) => {
                // The rest of the line can't be trusted; reading goes on with the next one.
                return match memchr(b'\n', &data[end..]) {
                    Some(at) => Parsed::Record { used: end + at + 1, malformed: Some(Malformed::AfterQuote) },
                    None if eof => Parsed::Record { used: data.len(), malformed: Some(Malformed::AfterQuote) },
                    None => Parsed::Incomplete,
                };
            }
        }
    }
}

enum Quoted {
    Incomplete,
    Unclosed,
    /// Where the byte behind the closing quote is.
    Closed(usize),
}

fn quoted_field(data: &[u8], at: usize, eof: bool, options: &CsvOptions, fields: &mut Vec<FieldRange>) -> Quoted {
    let quote = options.quote.unwrap_or(b'"');
    let escape = options.escape.filter(|e| *e != quote);
    let start = at + 1;
    let mut from = start;
    let mut escaped = false;
    loop {
        let found = match escape {
            Some(escape) => memchr2(quote, escape, data.get(from..).unwrap_or_default()),
            None => memchr(quote, data.get(from..).unwrap_or_default()),
        };
        let Some(found) = found.map(|i| from + i) else {
            if !eof {
                return Quoted::Incomplete;
            }
            fields.push(FieldRange { range: start..data.len(), escaped });
            return Quoted::Unclosed;
        };
        let next = data.get(found + 1).copied();
        if next.is_none() && !eof {
            return Quoted::Incomplete;
        }
        if Some(data[found]) == escape || next == Some(quote) {
            escaped = true;
            from = found + 2;
            continue;
        }
        fields.push(FieldRange { range: start..found, escaped });
        return Quoted::Closed(found + 1);
    }
}

/// One line, without its end.
pub(super) struct Line<'a> {
    pub(super) offset: u64,
    /// From 1 at the reader's start.
    pub(super) line: u64,
    pub(super) data: &'a [u8],
}

/// Reads lines that are not blank.
pub(super) struct Lines<R> {
    window: Window<R>,
    line: u64,
    used: usize,
}

impl<R: Read> Lines<R> {
    pub(super) fn new(input: R, offset: u64, limit: usize) -> Self {
        Self { window: Window::new(input, offset, limit), line: 1, used: 0 }
    }

    pub(super) fn next(&mut self) -> io::Result<Option<Line<'_>>> {
        self.window.skip(std::mem::take(&mut self.used));
        if self.window.offset == 0 && self.line == 1 {
            self.window.skip_bom()?;
        }
        loop {
            let data = self.window.data();
            let (length, end) = match memchr(b'\n', data) {
                Some(at) => (at, at + 1),
                None if self.window.eof => (data.len(), data.len()),
                None => {
                    self.window.more()?;
                    continue;
                }
            };
            if end == 0 {
                return Ok(None);
            }
            let line = self.line;
            self.line += 1;
            let blank = data[..length].iter().take_while(|b| b.is_ascii_whitespace()).count();
            if blank == length {
                self.window.skip(end);
                continue;
            }
            self.used = end;
            let data = self.window.data()[..length].trim_ascii_end();
            return Ok(Some(Line { offset: self.window.offset, line, data }));
        }
    }
}

#[cfg(test)]
mod tests;
