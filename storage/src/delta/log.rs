//! Reading the log: which commits and checkpoints there are, and what a version holds after replaying them.

use bytes::Bytes;
use forebay_core::ids::{DatasetName, VersionId};
use forebay_core::{Error, Kind, Result};
use futures::{StreamExt, TryStreamExt};
use object_store::ObjectStoreExt;
use object_store::path::Path;
use parquet::arrow::arrow_reader::ParquetRecordBatchReaderBuilder;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use super::actions::{Add, Line, MetaData, Protocol, Remove};
use super::paths;
use crate::root::Root;
use crate::shard::blocking;

/// Commits read at once.
const CONCURRENCY: usize = 16;

/// What the log's folder holds.
#[derive(Debug, Default)]
pub(super) struct LogFiles {
    pub(super) commits: BTreeSet<u64>,
    /// Version -> its files, complete ones only.
    checkpoints: BTreeMap<u64, Vec<Path>>,
}

impl LogFiles {
    pub(super) async fn list(root: &Root, name: &DatasetName) -> Result<LogFiles> {
        let folder = paths::log_folder(name);
        let listed: Vec<_> = root.list(&folder).await?;
        let mut files = LogFiles::default();
        let mut parts: BTreeMap<(u64, usize), Vec<Path>> = BTreeMap::new();
        for object in listed {
            let Some(file) = object.location.filename() else { continue };
            match LogFile::parse(file) {
                Some(LogFile::Commit(version)) => {
                    files.commits.insert(version);
                }
                Some(LogFile::Checkpoint { version, of }) => parts.entry((version, of)).or_default().push(object.location),
                None => {}
            }
        }
        for ((version, of), mut found) in parts {
            if found.len() == of {
                found.sort();
                files.checkpoints.insert(version, found);
            }
        }
        Ok(files)
    }

    /// Whether a version can be put together at all.
    pub(super) fn has_beginning(&self) -> bool {
        self.commits.contains(&0) || !self.checkpoints.is_empty()
    }

    /// Whether this is what a drop that was cut short leaves behind, or nothing at all. Else a log without a beginning has lost it.
    pub(super) async fn is_gone(&self, root: &Root, name: &DatasetName) -> Result<bool> {
        if self.has_beginning() {
            return Ok(false);
        }
        if self.commits.is_empty() {
            return Ok(true);
        }
        let marker = paths::drop_marker(name);
        match root.store().head(&marker).await {
            Ok(_) => Ok(true),
            Err(object_store::Error::NotFound { .. }) => Ok(false),
            Err(e) => Err(root.error("look for", &marker, &e)),
        }
    }

    /// What is said of a log that has lost its beginning.
    pub(super) fn lost(root: &Root, name: &DatasetName, commit: u64) -> Error {
        let file = root.place(&paths::commit_file(name, VersionId(commit)));
        Error::corrupt(format!("the log of `{name}` lacks commit {commit}"))
            .with_remedy(format!("restore {file}, or drop the dataset and materialize it again"))
    }

    pub(super) fn newest(&self) -> Option<u64> {
        if !self.has_beginning() {
            return None;
        }
        self.commits.last().copied().max(self.checkpoints.keys().next_back().copied())
    }

    fn holds(&self, version: u64) -> bool {
        self.commits.contains(&version) || self.checkpoints.contains_key(&version)
    }
}

enum LogFile {
    Commit(u64),
    Checkpoint { version: u64, of: usize },
}

impl LogFile {
    /// `N.json`, `N.checkpoint.parquet` or `N.checkpoint.I.OF.parquet`. Checkpoints with other names need a reader feature that is refused.
    fn parse(file: &str) -> Option<LogFile> {
        let (number, rest) = file.split_once('.')?;
        let version = (number.len() == 20).then(|| number.parse().ok())??;
        match rest.split('.').collect::<Vec<_>>().as_slice() {
            ["json"] => Some(LogFile::Commit(version)),
            ["checkpoint", "parquet"] => Some(LogFile::Checkpoint { version, of: 1 }),
            ["checkpoint", part, of, "parquet"] if part.len() == 10 => Some(LogFile::Checkpoint { version, of: of.parse().ok()? }),
            _ => None,
        }
    }
}

/// What a version holds.
#[derive(Debug, Default)]
pub(super) struct Replayed {
    pub(super) protocol: Option<Protocol>,
    pub(super) metadata: Option<MetaData>,
    /// By the path as the log writes it.
    pub(super) adds: BTreeMap<String, Add>,
    pub(super) removes: HashMap<String, Remove>,
}

impl Replayed {
    fn apply(&mut self, line: Line) {
        if let Some(protocol) = line.protocol {
            self.protocol = Some(protocol);
        }
        if let Some(metadata) = line.meta_data {
            self.metadata = Some(metadata);
        }
        if let Some(remove) = line.remove {
            self.adds.remove(&remove.path);
            self.removes.insert(remove.path.clone(), remove);
        }
        if let Some(add) = line.add {
            self.removes.remove(&add.path);
            self.adds.insert(add.path.clone(), add);
        }
    }
}

/// Puts a version together from the newest checkpoint at or before it and the commits since.
pub(super) async fn replay(root: &Root, name: &DatasetName, files: &LogFiles, version: u64) -> Result<Replayed> {
    if !files.holds(version) {
        let newest = files.newest().unwrap_or_default();
        return Err(Error::not_found(format!("the dataset `{name}` has no version {version}"))
            .with_remedy(format!("its newest version is {newest}")));
    }
    let mut replayed = Replayed::default();
    let checkpoint = files.checkpoints.range(..=version).next_back();
    let first = match checkpoint {
        Some((at, parts)) => {
            for part in parts {
                for line in read_checkpoint(root, part).await? {
                    replayed.apply(line);
                }
            }
            at + 1
        }
        None => 0,
    };
    if let Some(missing) = (first..=version).find(|v| !files.commits.contains(v)) {
        return Err(LogFiles::lost(root, name, missing));
    }
    let mut commits = futures::stream::iter(first..=version).map(|v| read_commit(root, name, VersionId(v))).buffered(CONCURRENCY);
    while let Some(lines) = commits.try_next().await? {
        // Within one commit the order of lines means nothing: a file that it adds is there even if it removes the same name.
        let (removes, rest): (Vec<_>, Vec<_>) = lines.into_iter().partition(|l| l.remove.is_some());
        removes.into_iter().chain(rest).for_each(|line| replayed.apply(line));
    }
    Ok(replayed)
}

pub(super) async fn read_commit(root: &Root, name: &DatasetName, version: VersionId) -> Result<Vec<Line>> {
    let path = paths::commit_file(name, version);
    let bytes = get(root, &path).await?;
    parse_lines(&bytes).map_err(|e| e.context(root.place(&path)))
}

pub(super) async fn get(root: &Root, path: &Path) -> Result<Bytes> {
    root.get_whole(path).await.map_err(|e| root.error("read the log file", path, &e))
}

fn parse_lines(bytes: &[u8]) -> Result<Vec<Line>> {
    let mut lines = Vec::new();
    for (i, line) in bytes.split(|b| *b == b'\n').enumerate() {
        if line.iter().all(u8::is_ascii_whitespace) {
            continue;
        }
        lines.push(serde_json::from_slice(line).map_err(|e| Error::corrupt(format!("line {} isn't a Delta action: {e}", i + 1)))?);
    }
    Ok(lines)
}

/// A checkpoint's rows are the same actions as columns; as JSON they are the same lines.
async fn read_checkpoint(root: &Root, path: &Path) -> Result<Vec<Line>> {
    let bytes = get(root, path).await?;
    let place = root.place(path);
    blocking(move || {
        let failed = |e: &dyn std::fmt::Display| Error::new(Kind::Corrupt, format!("the checkpoint {place} can't be read: {e}"));
        let reader = ParquetRecordBatchReaderBuilder::try_new(bytes).and_then(|b| b.build()).map_err(|e| failed(&e))?;
        let mut json = Vec::new();
        let mut writer = arrow::json::LineDelimitedWriter::new(&mut json);
        for batch in reader {
            writer.write(&batch.map_err(|e| failed(&e))?).map_err(|e| failed(&e))?;
        }
        writer.finish().map_err(|e| failed(&e))?;
        parse_lines(&json).map_err(|e| e.context(&place))
    })
    .await
}
