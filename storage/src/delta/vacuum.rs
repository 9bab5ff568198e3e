//! Removing: a whole dataset, or the files that no version in use names.

use forebay_core::ids::DatasetName;
use forebay_core::{Error, Result};
use futures::StreamExt;
use object_store::path::Path;
use object_store::{ObjectMeta, ObjectStore, ObjectStoreExt};
use std::collections::HashSet;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use super::log::{LogFiles, Replayed, replay};
use super::paths::{self, BUNDLES, QUERIES};
use crate::root::{Root, io_error};
use crate::shard::blocking;

/// What was removed, or would be.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Swept {
    /// Relative to the dataset's table, sorted.
    pub paths: Vec<String>,
    pub bytes: u64,
}

/// Removes a dataset with all its versions. The log's beginning goes first: from then on the dataset doesn't exist, however far the rest
/// got, and the same call again finishes the rest.
///
/// # Errors
/// `NotFound` if there is nothing of that name, failures of the store.
pub async fn drop_dataset(root: &Root, name: &DatasetName) -> Result<Swept> {
    let marker = paths::drop_marker(name);
    if !objects(root, &paths::log_folder(name)).await?.is_empty() {
        root.store().put(&marker, b"".as_slice().into()).await.map_err(|e| root.error("mark as dropped:", &marker, &e))?;
    }
    let mut swept = delete_log(root, name).await?;
    let rest = objects(root, &paths::table(name)).await?;
    delete(root, rest.iter().map(|o| o.location.clone()).collect()).await?;
    let rest: Vec<_> = rest.into_iter().filter(|o| o.location != marker).collect();
    add(&mut swept, name, &rest);
    if swept.paths.is_empty() {
        return Err(Error::not_found(format!("there is no dataset `{name}`")).with_remedy("`forebay datasets` lists those that exist"));
    }
    if let Some(folder) = root.local_path().map(|p| p.join("datasets").join(name.as_str())) {
        let place = folder.display().to_string();
        // Folders and the staged files of writers that died are invisible to the store.
        blocking(move || match std::fs::remove_dir_all(&folder) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(io_error("remove", &place, &e)),
            _ => Ok(()),
        })
        .await?;
    }
    Ok(swept)
}

/// Deletes a dataset's log so that no older version ever shows: checkpoints and the first commit, and only when they are gone the others.
pub(super) async fn delete_log(root: &Root, name: &DatasetName) -> Result<Swept> {
    let files = objects(root, &paths::log_folder(name)).await?;
    let order = |o: &ObjectMeta| {
        let file = o.location.filename().unwrap_or_default();
        let commit = file.len() == 25 && file.ends_with(".json");
        (commit, file.to_owned())
    };
    let mut ordered = files.clone();
    ordered.sort_by_key(order);
    let first_commit = ordered.iter().position(|o| order(o).0).map_or(ordered.len(), |i| i + 1);
    let rest = ordered.split_off(first_commit.min(ordered.len()));
    for group in [ordered, rest] {
        delete(root, group.iter().map(|o| o.location.clone()).collect()).await?;
    }
    let mut swept = Swept::default();
    add(&mut swept, name, &files);
    Ok(swept)
}

/// Removes files that the newest version doesn't name, that are older than `older_than` and that left the table (or appeared) that long
/// ago. `keep` names files that are staged and not yet published, those of versions that jobs have pinned, and the answers of queries that are
/// the source of what is stored or made, relative to the table. The log and private folders stay, but for index bundles and such answers,
/// which go by the same rule as shards.
///
/// # Errors
/// `NotFound` for a dataset that doesn't exist, failures of the store.
pub async fn vacuum(root: &Root, name: &DatasetName, older_than: Duration, dry_run: bool, keep: &HashSet<String>) -> Result<Swept> {
    let files = LogFiles::list(root, name).await?;
    let newest = files.newest().ok_or_else(|| Error::not_found(format!("there is no dataset `{name}`")))?;
    let replayed = replay(root, name, &files, newest).await?;
    let limit = SystemTime::now().checked_sub(older_than).and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_millis());
    let limit = i64::try_from(limit).unwrap_or(i64::MAX);
    let mut kept: HashSet<String> = keep.clone();
    for path in replayed.adds.keys() {
        kept.insert(paths::checked(path)?);
    }
    for remove in replayed.removes.values() {
        // A reader of the version before may still be at it.
        if remove.deletion_timestamp.unwrap_or(0) > limit {
            kept.insert(paths::checked(&remove.path)?);
        }
    }
    let table = paths::table(name);
    let listed = objects(root, &table).await?;
    let bundles = Bundles::new(name, &replayed, &kept, &listed, limit);
    let unused: Vec<_> = listed
        .iter()
        .filter(|o| {
            let relative = relative(name, &o.location);
            let swept = match &relative {
                bundle if bundle.starts_with(BUNDLES) => !bundles.keeps(bundle),
                other => other.starts_with(QUERIES) || !other.starts_with('_'),
            };
            swept && !kept.contains(&relative) && o.last_modified.timestamp_millis() <= limit
        })
        .cloned()
        .collect();
    if !dry_run {
        delete(root, unused.iter().map(|o| o.location.clone()).collect()).await?;
    }
    let mut swept = Swept::default();
    add(&mut swept, name, &unused);
    sweep_staged(root, name, limit, dry_run, &mut swept).await?;
    swept.paths.sort();
    Ok(swept)
}

/// Which index bundles somebody may still read.
struct Bundles {
    /// Named by the newest version.
    live: HashSet<String>,
    /// Beginnings of the names of those whose place was taken lately, or whose shard left lately: readers of the version before may be at them.
    lately: Vec<String>,
}

impl Bundles {
    fn new(name: &DatasetName, replayed: &Replayed, kept: &HashSet<String>, listed: &[ObjectMeta], limit_ms: i64) -> Self {
        let made: std::collections::HashMap<String, i64> =
            listed.iter().map(|o| (relative(name, &o.location), o.last_modified.timestamp_millis())).collect();
        let (mut live, mut lately, mut named) = (HashSet::new(), Vec::new(), HashSet::new());
        for add in replayed.adds.values() {
            let Some(bundle) = add.bundle() else { continue };
            // The version that took the older bundles' place is not older than this one.
            if made.get(&bundle).is_none_or(|at| *at > limit_ms) {
                lately.push(beginning(&add.path));
            }
            named.insert(add.path.clone());
            live.insert(bundle);
        }
        lately.extend(kept.iter().filter(|path| !named.contains(*path) && path.ends_with(".parquet")).map(|path| beginning(path)));
        Self { live, lately }
    }

    fn keeps(&self, relative: &str) -> bool {
        self.live.contains(relative) || self.lately.iter().any(|b| relative.starts_with(b.as_str()))
    }
}

/// How the bundles of a shard begin: `_forebay/index/epoch=0/000001-000-0-`.
fn beginning(shard: &str) -> String {
    format!("{BUNDLES}{}-", shard.trim_end_matches(".parquet"))
}

/// The local store hides files that a writer didn't finish (`#` and digits at the end of their names); a writer that died left them for
/// good.
async fn sweep_staged(root: &Root, name: &DatasetName, limit_ms: i64, dry_run: bool, swept: &mut Swept) -> Result<()> {
    let Some(table) = root.local_path().map(|p| p.join("datasets").join(name.as_str())) else {
        return Ok(());
    };
    let found = blocking(move || {
        let mut found = Vec::new();
        let mut folders = vec![table.clone()];
        while let Some(folder) = folders.pop() {
            let entries = std::fs::read_dir(&folder).map_err(|e| io_error("list", &folder.display().to_string(), &e))?;
            for entry in entries.flatten() {
                let Ok(meta) = entry.metadata() else { continue };
                if meta.is_dir() {
                    folders.push(entry.path());
                    continue;
                }
                let file = entry.file_name().to_string_lossy().into_owned();
                let staged = file.rsplit_once('#').is_some_and(|(_, n)| !n.is_empty() && n.chars().all(|c| c.is_ascii_digit()));
                let age = meta.modified().ok().and_then(|t| t.duration_since(UNIX_EPOCH).ok()).map_or(0, |d| d.as_millis());
                if staged && i64::try_from(age).unwrap_or(i64::MAX) <= limit_ms {
                    let shown = entry.path().strip_prefix(&table).map_or(file, |p| p.to_string_lossy().into_owned());
                    if !dry_run {
                        std::fs::remove_file(entry.path()).map_err(|e| io_error("remove", &entry.path().display().to_string(), &e))?;
                    }
                    found.push((shown, meta.len()));
                }
            }
        }
        Ok(found)
    })
    .await?;
    for (path, bytes) in found {
        swept.paths.push(path);
        swept.bytes += bytes;
    }
    Ok(())
}

async fn objects(root: &Root, folder: &Path) -> Result<Vec<ObjectMeta>> {
    root.list(folder).await
}

async fn delete(root: &Root, locations: Vec<Path>) -> Result<()> {
    let stream = futures::stream::iter(locations.clone().into_iter().map(Ok)).boxed();
    let mut deleted = root.store().delete_stream(stream);
    let mut at = 0;
    while let Some(result) = deleted.next().await {
        match result {
            Ok(_) | Err(object_store::Error::NotFound { .. }) => {}
            Err(e) => return Err(root.error("delete", locations.get(at).unwrap_or(&Path::default()), &e)),
        }
        at += 1;
    }
    Ok(())
}

fn relative(name: &DatasetName, location: &Path) -> String {
    let prefix = format!("{}/", paths::table(name));
    location.as_ref().strip_prefix(&prefix).unwrap_or(location.as_ref()).to_owned()
}

fn add(swept: &mut Swept, name: &DatasetName, objects: &[ObjectMeta]) {
    for object in objects {
        swept.paths.push(relative(name, &object.location));
        swept.bytes += object.size;
    }
    swept.paths.sort();
}
