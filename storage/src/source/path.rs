//! Names of source files: how bytes that are not UTF-8 are written, how a URI is resolved against the pipeline's folder, and what
//! `sources.allow` covers.
//!
//! A location is either a plain absolute path or a URL with a scheme; `file://` is written as a plain path.

use forebay_core::{Error, Result};
use std::ffi::{OsStr, OsString};
use std::os::unix::ffi::{OsStrExt, OsStringExt};
use std::path::{Path, PathBuf};

/// A path's bytes as text: what is not UTF-8 is percent-encoded, and so is a `%` that would read as such. [`decode`] undoes it exactly.
pub(super) fn encode(raw: &[u8]) -> String {
    let mut text = String::with_capacity(raw.len());
    for chunk in raw.utf8_chunks() {
        let valid = chunk.valid();
        let bytes = valid.as_bytes();
        for (at, c) in valid.char_indices() {
            let escape = c == '%' && bytes.len() > at + 2 && bytes[at + 1].is_ascii_hexdigit() && bytes[at + 2].is_ascii_hexdigit();
            text.push_str(if escape { "%25" } else { &valid[at..at + c.len_utf8()] });
        }
        for byte in chunk.invalid() {
            text.push_str(&format!("%{byte:02X}"));
        }
    }
    text
}

/// The bytes that [`encode`] wrote as text.
pub(super) fn decode(text: &str) -> Vec<u8> {
    percent_encoding::percent_decode_str(text).collect()
}

pub(super) fn to_os(text: &str) -> OsString {
    OsString::from_vec(decode(text))
}

pub(super) fn from_os(name: &OsStr) -> String {
    encode(name.as_bytes())
}

/// A plain path with `.` and `..` taken out by name only; symlinks are looked at later.
pub(super) fn clean(path: &str) -> String {
    let mut parts: Vec<&str> = Vec::new();
    for part in path.split('/') {
        match part {
            "" | "." => {}
            ".." => {
                parts.pop();
            }
            part => parts.push(part),
        }
    }
    format!("/{}", parts.join("/"))
}

pub(super) fn is_url(location: &str) -> bool {
    scheme(location).is_some()
}

fn scheme(location: &str) -> Option<&str> {
    let (scheme, _) = location.split_once("://")?;
    let sound =
        scheme.starts_with(|c: char| c.is_ascii_alphabetic()) && scheme.chars().all(|c| c.is_ascii_alphanumeric() || "+-.".contains(c));
    sound.then_some(scheme)
}

/// The location that a URI of the pipeline means. `base` is [`base_location`]'s.
pub(super) fn resolve(base: &str, uri: &str) -> Result<String> {
    if uri.trim().is_empty() {
        return Err(Error::bad_input("`source.uri` is empty").with_remedy("name a file, a folder or a pattern such as `data/*.csv`"));
    }
    if uri.contains('\0') {
        return Err(Error::bad_input("`source.uri` contains a zero byte"));
    }
    match scheme(uri) {
        Some("file") => Ok(encode(clean(file_path(uri)).as_bytes())),
        Some(known) if SCHEMES.contains(&known) => clean_url(uri),
        Some(other) => {
            let message = format!("`{uri}`: sources are not read by `{other}://`");
            Err(Error::unsupported(message).with_remedy("use a path, file://, s3://, gs:// or az://"))
        }
        None if uri.starts_with('/') => Ok(encode(clean(uri).as_bytes())),
        None if is_url(base) => clean_url(&format!("{}/{uri}", base.trim_end_matches('/'))),
        None => Ok(clean(&format!("{base}/{}", encode(uri.as_bytes())))),
    }
}

/// The pipeline's folder as a location. A relative one is an error: the snapshot outlives this process's working directory.
pub(super) fn base_location(base: &str) -> Result<String> {
    match scheme(base) {
        Some("file") => Ok(encode(clean(file_path(base)).as_bytes())),
        Some(_) => clean_url(base),
        None if base.starts_with('/') => Ok(encode(clean(base).as_bytes())),
        None => Err(Error::internal(format!("the source's base `{base}` is not absolute"))),
    }
}

const SCHEMES: &[&str] = &[
    "s3",
    "gs",
    "az",
    #[cfg(test)]
    "memory",
];

fn file_path(url: &str) -> &str {
    let path = url.strip_prefix("file://").unwrap_or(url);
    path.strip_prefix("localhost").unwrap_or(path)
}

fn clean_url(url: &str) -> Result<String> {
    let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
    let (authority, path) = rest.split_once('/').unwrap_or((rest, ""));
    if authority.contains('@') {
        return Err(
            Error::bad_input("a source URL may not carry credentials").with_remedy("put them into the store's environment variables")
        );
    }
    // A remote prefix may end in a slash; a folder and its contents are told apart when it is listed.
    Ok(format!("{scheme}://{authority}{}", clean(path)))
}

/// The name of a location in the snapshot: relative to the base where it lies under it.
pub(super) fn relative(base: &str, location: &str) -> String {
    match location.strip_prefix(base.trim_end_matches('/')).and_then(|rest| rest.strip_prefix('/')) {
        Some(rest) if !rest.is_empty() => rest.to_owned(),
        _ => location.to_owned(),
    }
}

/// The location of a file named in a snapshot.
pub(super) fn absolute(base: &str, path: &str) -> String {
    if path.starts_with('/') || is_url(path) { path.to_owned() } else { format!("{}/{path}", base.trim_end_matches('/')) }
}

pub(super) fn to_path(location: &str) -> PathBuf {
    Path::new(&to_os(location)).to_owned()
}

/// What `sources.allow` covers, asked with locations as [`super::snapshot`] asks.
#[derive(Debug, Clone)]
pub struct Allow {
    /// `None`: everything.
    prefixes: Option<Vec<String>>,
}

impl Allow {
    pub fn everything() -> Self {
        Self { prefixes: None }
    }

    /// A prefix covers itself and everything below it, never a name that merely begins alike; an empty list covers nothing. A local prefix
    /// covers the folder it leads to through symlinks too: this looks at the disk once.
    pub fn prefixes(prefixes: &[String]) -> Self {
        let mut known = Vec::new();
        for prefix in prefixes {
            let plain = plain(prefix);
            if !is_url(&plain)
                && let Ok(real) = std::fs::canonicalize(to_path(&plain))
            {
                known.push(from_os(real.as_os_str()));
            }
            known.push(plain);
        }
        Self { prefixes: Some(known) }
    }

    pub fn covers(&self, location: &str) -> bool {
        let Some(prefixes) = &self.prefixes else { return true };
        let location = plain(location);
        prefixes.iter().any(|prefix| {
            let rest = location.strip_prefix(prefix.trim_end_matches('/'));
            rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
        })
    }
}

fn plain(location: &str) -> String {
    match scheme(location) {
        Some("file") => clean(file_path(location)),
        Some(_) => clean_url(location).unwrap_or_default(),
        None => clean(location),
    }
}
