//! Which files a URI means: a file, a folder, or a pattern, on local disk or in an object store.
//!
//! Owns: matching, hidden files, links, and asking whether a location may be touched before it is. Folders are read a level at a time on a blocking
//! thread; the permission is asked here, on the caller's side.

use forebay_core::pipeline::SourceFormat;
use forebay_core::{Error, Kind, Result};
use glob::{MatchOptions, Pattern};
use object_store::ObjectStoreExt;
use std::collections::BTreeMap;
use std::fs;
use std::io;
use std::path::{Component, Path, PathBuf};
use std::sync::Arc;

use super::input::{self, Stores};
use super::path;
use crate::root::redact;

pub(super) type AllowFn<'a> = &'a (dyn Fn(&str) -> bool + Send + Sync);

/// A file as it is now.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Found {
    pub(super) size: u64,
    pub(super) stamp: String,
}

/// Location to file, in path order.
pub(super) type Files = BTreeMap<String, Found>;

const MATCHING: MatchOptions = MatchOptions { case_sensitive: true, require_literal_separator: true, require_literal_leading_dot: true };
/// Folders read on one blocking thread before the next permission is asked.
const DEPTH: usize = 64;

/// The files that a location means; none is not an error here.
pub(super) async fn list(location: &str, format: SourceFormat, stores: &Stores, allow: AllowFn<'_>) -> Result<Files> {
    match path::is_url(location) {
        true => remote(location, format, stores, allow).await,
        false => local(location, format, allow).await,
    }
}

fn refused(location: &str) -> Error {
    Error::new(Kind::PermissionDenied, format!("`sources.allow` of this server doesn't cover `{location}`")).with_remedy(
        "ask its operator to add a prefix of it; while no server runs on the root, a command with --root reads what its user may",
    )
}

fn check(location: &str, allow: AllowFn<'_>) -> Result<()> {
    if allow(location) { Ok(()) } else { Err(refused(location)) }
}

/// A link is judged by where it leads.
fn check_real(real: &Path, allow: AllowFn<'_>) -> Result<()> {
    check(&path::from_os(real.as_os_str()), allow)
}

/// Endings that a folder is searched for; empty: every file.
fn endings(format: SourceFormat) -> &'static [&'static str] {
    match format {
        SourceFormat::Csv => &[".csv", ".tsv", ".txt"],
        SourceFormat::Json => &[".json", ".jsonl", ".ndjson"],
        SourceFormat::Parquet => &[".parquet", ".pq"],
        SourceFormat::Arrow => &[".arrow", ".arrows", ".feather", ".ipc"],
        SourceFormat::Put | SourceFormat::Sql => &[".parquet", ".arrow", ".arrows"],
        SourceFormat::Files => &[],
    }
}

fn wanted(name: &str, format: SourceFormat) -> bool {
    let name = name.to_ascii_lowercase();
    let name = match format {
        SourceFormat::Csv | SourceFormat::Json => {
            [".gz", ".gzip", ".zst", ".zstd"].iter().find_map(|end| name.strip_suffix(end)).unwrap_or(&name)
        }
        _ => &name,
    };
    let endings = endings(format);
    endings.is_empty() || endings.iter().any(|end| name.ends_with(end))
}

fn is_pattern(text: &str) -> bool {
    text.contains(['*', '?', '['])
}

fn compile(text: &str) -> Result<Pattern> {
    Pattern::new(text).map_err(|e| Error::bad_input(format!("`source.uri`: the pattern `{text}` is not valid: {e}")))
}

/// One part of a pattern.
#[derive(Debug, Clone)]
enum Part {
    /// `**`: any folders, or none.
    Any,
    Literal(String),
    Glob(Pattern),
}

/// What is looked for in a folder.
#[derive(Debug, Clone)]
enum Search {
    /// The rest of a pattern.
    Parts(Arc<[Part]>, usize),
    /// Everything below with the format's endings.
    Below(SourceFormat),
}

#[derive(Debug, Clone)]
struct Visit {
    folder: PathBuf,
    search: Search,
    /// Where links on the way here lead, so that a ring of links ends.
    through: Vec<PathBuf>,
}

/// What reading folders brought up.
#[derive(Default)]
struct Step {
    files: Files,
    /// Files behind a link: kept when the place they really are at may be read.
    links: Vec<(PathBuf, String, Found)>,
    folders: Vec<Visit>,
    linked_folders: Vec<(PathBuf, Visit)>,
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await.map_err(|e| Error::internal(format!("listing the source: {e}")))?
}

async fn local(location: &str, format: SourceFormat, allow: AllowFn<'_>) -> Result<Files> {
    check(&literal_prefix(location), allow)?;
    let (start, parts) = {
        let location = location.to_owned();
        blocking(move || split(&location)).await?
    };
    check(&start, allow)?;
    let root = path::to_path(&start);
    let Some((real, is_folder)) = ({
        let root = root.clone();
        blocking(move || probe(&root)).await?
    }) else {
        return Ok(Files::new());
    };
    check_real(&real, allow)?;
    let search = match (is_folder, parts.is_empty()) {
        (false, true) => return blocking(move || Ok(Files::from([(start, stat(&root)?)]))).await,
        (false, false) => return Ok(Files::new()),
        (true, true) => Search::Below(format),
        (true, false) => Search::Parts(parts.into(), 0),
    };
    let mut files = Files::new();
    let mut level = vec![Visit { folder: root, search, through: vec![real] }];
    for _ in 0..DEPTH {
        if level.is_empty() {
            return Ok(files);
        }
        let visits = std::mem::take(&mut level);
        let step = blocking(move || visits.into_iter().try_fold(Step::default(), visit)).await?;
        files.extend(step.files);
        for (real, location, found) in step.links {
            check_real(&real, allow)?;
            files.insert(location, found);
        }
        level = step.folders;
        for (real, visit) in step.linked_folders {
            check_real(&real, allow)?;
            level.push(visit);
        }
    }
    Err(Error::bad_input(format!("`{location}`: folders are nested more than {DEPTH} deep")).with_remedy("name a folder further down"))
}

fn literal_prefix(location: &str) -> String {
    let names = location.split('/').filter(|p| !p.is_empty()).take_while(|n| !is_pattern(n));
    format!("/{}", names.collect::<Vec<_>>().join("/"))
}

/// The longest leading path without wildcards, and the rest. A name that exists as written is no pattern.
fn split(location: &str) -> Result<(String, Vec<Part>)> {
    if !is_pattern(location) || fs::symlink_metadata(path::to_path(location)).is_ok() {
        return Ok((existing(location), Vec::new()));
    }
    let names: Vec<&str> = location.split('/').filter(|p| !p.is_empty()).collect();
    let literal = names.iter().take_while(|n| !is_pattern(n)).count();
    let mut parts = Vec::new();
    for name in &names[literal..] {
        let text = String::from_utf8_lossy(&path::decode(name)).into_owned();
        parts.push(match *name {
            "**" => Part::Any,
            _ if is_pattern(name) => Part::Glob(compile(&text)?),
            _ => Part::Literal((*name).to_owned()),
        });
    }
    if matches!(parts.last(), Some(Part::Any)) {
        parts.push(Part::Glob(compile("*")?));
    }
    Ok((existing(&literal_prefix(location)), parts))
}

/// A name copied from `_source` has its bytes percent-encoded; take it as such when nothing has the name as written.
fn existing(location: &str) -> String {
    if location.contains("%25") && fs::symlink_metadata(path::to_path(location)).is_err() {
        let as_encoded = String::from_utf8(path::decode(location)).unwrap_or_else(|_| location.to_owned());
        if fs::symlink_metadata(path::to_path(&as_encoded)).is_ok() {
            return as_encoded;
        }
    }
    location.to_owned()
}

/// Where a path really leads and whether that is a folder; `None` when nothing is there.
fn probe(root: &Path) -> Result<Option<(PathBuf, bool)>> {
    match fs::canonicalize(root) {
        Ok(real) => {
            let meta = fs::metadata(&real).map_err(|e| fail(root, &e))?;
            Ok(Some((real, meta.is_dir())))
        }
        Err(e) if matches!(e.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => Ok(None),
        Err(e) => Err(fail(root, &e)),
    }
}

fn fail(path: &Path, error: &io::Error) -> Error {
    input::io_error(&path::from_os(path.as_os_str()), error)
}

fn stat(path: &Path) -> Result<Found> {
    let meta = fs::metadata(path).map_err(|e| fail(path, &e))?;
    if !meta.is_file() {
        return Err(Error::bad_input(format!("`{}` is not a regular file", path.display())));
    }
    Ok(Found { size: meta.len(), stamp: input::local_stamp(&meta) })
}

fn visit(mut step: Step, visit: Visit) -> Result<Step> {
    if let Search::Parts(parts, at) = &visit.search {
        match parts.get(*at) {
            Some(Part::Any) => {
                // None of the folders that `**` may stand for.
                let here = Visit { search: Search::Parts(parts.clone(), at + 1), ..visit.clone() };
                step = self::visit(step, here)?;
            }
            Some(Part::Literal(name)) => {
                let child = visit.folder.join(path::to_os(name));
                return if child.symlink_metadata().is_ok() { take(step, &visit, child, name) } else { Ok(step) };
            }
            _ => {}
        }
    }
    let entries = fs::read_dir(&visit.folder).map_err(|e| fail(&visit.folder, &e))?;
    for entry in entries {
        let entry = entry.map_err(|e| fail(&visit.folder, &e))?;
        let name = entry.file_name();
        let text = name.to_string_lossy();
        let matches = match &visit.search {
            Search::Below(_) => !text.starts_with('.'),
            Search::Parts(parts, at) => match parts.get(*at) {
                Some(Part::Any) => !text.starts_with('.'),
                Some(Part::Glob(pattern)) => pattern.matches_with(&text, MATCHING),
                Some(Part::Literal(_)) | None => false,
            },
        };
        if matches {
            step = take(step, &visit, entry.path(), &text)?;
        }
    }
    Ok(step)
}

/// Takes up one matching entry of a folder: a file when the pattern ends here, a folder when it goes on.
fn take(mut step: Step, from: &Visit, path: PathBuf, name: &str) -> Result<Step> {
    let (last, search) = match &from.search {
        Search::Below(format) => (wanted(name, *format), Some(Search::Below(*format))),
        Search::Parts(parts, at) => match parts.get(*at) {
            Some(Part::Any) => (false, Some(Search::Parts(parts.clone(), *at))),
            _ if at + 1 == parts.len() => (true, None),
            _ => (false, Some(Search::Parts(parts.clone(), at + 1))),
        },
    };
    let linked = path.symlink_metadata().map_err(|e| fail(&path, &e))?.is_symlink();
    let meta = match fs::metadata(&path) {
        Ok(meta) => meta,
        Err(e) if linked && last => return Err(fail(&path, &e).with_remedy("the link leads nowhere: mend or remove it")),
        Err(_) if linked => return Ok(step),
        Err(e) => return Err(fail(&path, &e)),
    };
    if meta.is_dir() {
        let Some(search) = search else { return Ok(step) };
        let mut next = Visit { folder: path.clone(), search, through: from.through.clone() };
        if linked {
            let real = fs::canonicalize(&path).map_err(|e| fail(&path, &e))?;
            if !from.through.contains(&real) {
                next.through.push(real.clone());
                step.linked_folders.push((real, next));
            }
        } else {
            step.folders.push(next);
        }
    } else if last && meta.is_file() {
        let location = path::from_os(normal(&path).as_os_str());
        let found = Found { size: meta.len(), stamp: input::local_stamp(&meta) };
        if linked {
            step.links.push((fs::canonicalize(&path).map_err(|e| fail(&path, &e))?, location, found));
        } else {
            step.files.insert(location, found);
        }
    }
    Ok(step)
}

/// The same path without `.` parts.
fn normal(path: &Path) -> PathBuf {
    path.components().filter(|c| !matches!(c, Component::CurDir)).collect()
}

async fn remote(location: &str, format: SourceFormat, stores: &Stores, allow: AllowFn<'_>) -> Result<Files> {
    let (authority, key) = match location.split_once("://").and_then(|(_, rest)| rest.split_once('/')) {
        Some((_, key)) => (&location[..location.len() - key.len() - 1], key),
        None => (location, ""),
    };
    let names: Vec<&str> = key.split('/').filter(|p| !p.is_empty()).collect();
    let literal = names.iter().take_while(|n| !is_pattern(n)).count();
    let start = format!("{authority}/{}", names[..literal].join("/"));
    check(start.trim_end_matches('/'), allow)?;
    let (store, prefix) = stores.find(start.trim_end_matches('/')).await?;
    let fail = |e: object_store::Error| match e {
        object_store::Error::PermissionDenied { .. } | object_store::Error::Unauthenticated { .. } => {
            Error::new(Kind::PermissionDenied, format!("`{location}`: {}", redact(&e.to_string())))
                .with_remedy("check the store's credentials in the environment")
        }
        e => Error::new(Kind::Unavailable, format!("`{location}`: {}", redact(&e.to_string()))),
    };
    let found = |meta: &object_store::ObjectMeta| Found { size: meta.size, stamp: input::remote_stamp(meta) };
    if literal == names.len() && !prefix.as_ref().is_empty() {
        match store.head(&prefix).await {
            Ok(meta) => return Ok(Files::from([(format!("{authority}/{}", meta.location), found(&meta))])),
            Err(object_store::Error::NotFound { .. }) => {}
            Err(e) => return Err(fail(e)),
        }
    }
    let pattern = if literal == names.len() { None } else { Some(compile(&names[literal..].join("/"))?) };
    let mut files = Files::new();
    for meta in crate::root::listing::list(store.as_ref(), &prefix).await.map_err(fail)? {
        let name = meta.location.as_ref();
        let rest = name.strip_prefix(prefix.as_ref()).unwrap_or(name).trim_start_matches('/');
        let matches = match &pattern {
            Some(pattern) => pattern.matches_with(rest, MATCHING),
            None => !rest.split('/').any(|part| part.starts_with('.')) && wanted(rest, format),
        };
        if matches {
            let location = format!("{authority}/{name}");
            check(&location, allow)?;
            files.insert(location, found(&meta));
        }
    }
    Ok(files)
}
