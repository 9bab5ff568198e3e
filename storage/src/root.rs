//! The place where everything is kept: one URL, opened once, for both majors of `object_store`.
//!
//! Owns: which URLs are understood, durability of the local store, the probe for conditional writes, timeouts and retries, and what a
//! failed request means to a caller. Must not know: what is kept. Two majors of `object_store` meet here (0.13 under parquet and
//! DataFusion, 0.14 under slatedb); nobody else sees the difference. Credentials come from the standard environment variables and never
//! enter a message.

mod doubtful;
mod durable;
mod errors;
pub(crate) mod listing;
mod remote;

use bytes::Bytes;
use forebay_core::ids::DatasetName;
use forebay_core::{Error, Result};
use object_store::path::Path as StorePath;
use object_store::{GetOptions, GetRange, GetResult, ObjectMeta, ObjectStore, ObjectStoreExt, PutMode};
use object_store::{OBJECT_STORE_COALESCE_DEFAULT, coalesce_ranges};
use std::fmt;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;
use url::Url;

pub use durable::{DiskSyncer, Syncer};
pub(crate) use errors::unnamed;
pub use errors::{io_error, redact, store_error};

use crate::shard::FooterCache;

/// How often bytes are asked for whose answer breaks off before their store counts as failing.
const READS: u32 = 4;

/// An answer's bytes. Asked for again where it breaks off: the client underneath repeats requests, and not answers that began.
pub(crate) async fn whole<F>(ask: impl Fn() -> F) -> object_store::Result<(ObjectMeta, Bytes)>
where
    F: Future<Output = object_store::Result<GetResult>>,
{
    let mut left = READS;
    loop {
        let got = ask().await?;
        let meta = got.meta.clone();
        match got.bytes().await {
            Err(object_store::Error::Generic { .. }) if left > 1 => {
                left -= 1;
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
            bytes => return Ok((meta, bytes?)),
        }
    }
}

/// An opened root. Clones share the connections and the caches.
#[derive(Clone)]
pub struct Root(Arc<Inner>);

struct Inner {
    url: String,
    local: Option<PathBuf>,
    store: Arc<dyn ObjectStore>,
    journal: Arc<dyn object_store_014::ObjectStore>,
    footers: FooterCache,
}

impl fmt::Debug for Root {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Root").field(&self.0.url).finish()
    }
}

impl Root {
    /// Opens the root at `url`: a path, `file://`, `s3://`, `gs://`, `az://`, or `memory://` (a fresh one each time, for tests).
    ///
    /// With `create` the root is about to be written: a local folder is made, and a store that can't be written or that ignores conditional
    /// writes is refused. Without it nothing is ever written here, so that a read-only root opens.
    ///
    /// # Errors
    /// `BadInput` for a URL that isn't understood, `NotFound` for a local root that doesn't exist, `PermissionDenied` or
    /// `ResourceExhausted` for one that can't be written, `Unsupported` for a store without conditional writes.
    pub async fn open(url: &str, create: bool) -> Result<Root> {
        Self::open_with(url, create, Arc::new(DiskSyncer)).await
    }

    /// Like [`Root::open`], with the calls that make a local store durable handed in, so that tests can count them or make them fail.
    ///
    /// # Errors
    /// As [`Root::open`].
    pub async fn open_with(url: &str, create: bool, syncer: Arc<dyn Syncer>) -> Result<Root> {
        let inner = match Place::parse(url)? {
            Place::Memory => Inner {
                url: "memory://".to_owned(),
                local: None,
                store: Arc::new(object_store::memory::InMemory::new()),
                journal: Arc::new(object_store_014::memory::InMemory::new()),
                footers: FooterCache::default(),
            },
            Place::Local(path) => open_local(path, create, syncer).await?,
            Place::Remote(url) => {
                let (store, journal) = remote::open(&url)?;
                let shown = remote::shown(&url);
                if create {
                    probe_conditional_writes(store.as_ref(), &shown).await?;
                }
                Inner { url: shown, local: None, store, journal, footers: FooterCache::default() }
            }
        };
        Ok(Root(Arc::new(inner)))
    }

    /// Over a store that the caller made: for tests that inject faults. The journal's store is a separate one in memory.
    pub fn over(store: Arc<dyn ObjectStore>) -> Root {
        let journal = Arc::new(object_store_014::memory::InMemory::new());
        Root(Arc::new(Inner { url: "memory://".to_owned(), local: None, store, journal, footers: FooterCache::default() }))
    }

    /// The root as it can be shown and typed again: an absolute path, or a URL without credentials.
    pub fn url(&self) -> &str {
        &self.0.url
    }

    /// The store, rooted at the root.
    pub fn store(&self) -> Arc<dyn ObjectStore> {
        Arc::clone(&self.0.store)
    }

    /// A small object, whole.
    pub(crate) async fn get_whole(&self, path: &StorePath) -> object_store::Result<Bytes> {
        whole(|| self.0.store.get(path)).await.map(|(_, bytes)| bytes)
    }

    /// Some bytes of an object.
    pub(crate) async fn get_range(&self, path: &StorePath, range: Range<u64>) -> object_store::Result<Bytes> {
        let options = GetOptions { range: Some(GetRange::Bounded(range)), ..GetOptions::default() };
        whole(|| self.0.store.get_opts(path, options.clone())).await.map(|(_, bytes)| bytes)
    }

    /// Several ranges of an object, near ones by one request.
    pub(crate) async fn get_ranges(&self, path: &StorePath, ranges: &[Range<u64>]) -> object_store::Result<Vec<Bytes>> {
        if self.0.local.is_some() {
            return self.0.store.get_ranges(path, ranges).await;
        }
        coalesce_ranges(ranges, |range| self.get_range(path, range), OBJECT_STORE_COALESCE_DEFAULT).await
    }

    /// Everything below a prefix.
    pub(crate) async fn list(&self, prefix: &StorePath) -> Result<Vec<object_store::ObjectMeta>> {
        listing::list(self.0.store.as_ref(), prefix).await.map_err(|e| self.error("list", prefix, &e))
    }

    /// The root's folder, when it is one.
    pub fn local_path(&self) -> Option<&Path> {
        self.0.local.as_deref()
    }

    /// The same place for slatedb.
    pub(crate) fn journal_store(&self) -> Arc<dyn object_store_014::ObjectStore> {
        Arc::clone(&self.0.journal)
    }

    pub(crate) fn footers(&self) -> &FooterCache {
        &self.0.footers
    }

    /// Where other programs find a dataset's Delta table.
    pub fn table_url(&self, name: &DatasetName) -> String {
        format!("{}/datasets/{name}", self.0.url.trim_end_matches('/'))
    }

    /// An object's place as it is shown in messages.
    pub fn place(&self, path: &StorePath) -> String {
        format!("{}/{path}", self.0.url.trim_end_matches('/'))
    }

    /// What a failed request on `path` means; `doing` is a verb with its object: "write the shard".
    pub fn error(&self, doing: &str, path: &StorePath, error: &object_store::Error) -> Error {
        store_error(doing, &self.place(path), error)
    }
}

enum Place {
    Local(PathBuf),
    Memory,
    Remote(Url),
}

impl Place {
    fn parse(text: &str) -> Result<Place> {
        if text.is_empty() {
            return Err(Error::bad_input("the root is empty").with_remedy("give a path or a URL"));
        }
        if !text.contains("://") {
            return Ok(Place::Local(PathBuf::from(text)));
        }
        // The text isn't echoed: a URL that can't be parsed may still hold a password.
        let url = Url::parse(text).map_err(|e| Error::bad_input(format!("the root isn't a URL: {e}")))?;
        if url.password().is_some() || (!url.username().is_empty() && url.scheme() != "az") || url.query().is_some() {
            return Err(Error::bad_input("the root's URL carries credentials or a query")
                .with_remedy("give credentials by the standard environment variables (AWS_*, GOOGLE_*, AZURE_*)"));
        }
        match url.scheme() {
            "file" => {
                let path = url.to_file_path().map_err(|()| Error::bad_input(format!("`{url}` isn't a path on this machine")))?;
                Ok(Place::Local(path))
            }
            "memory" => Ok(Place::Memory),
            "s3" | "gs" | "az" => Ok(Place::Remote(url)),
            other => Err(Error::bad_input(format!("the root's scheme `{other}` isn't known"))
                .with_remedy("use a path, file://, s3://, gs:// or az://")),
        }
    }
}

async fn open_local(path: PathBuf, create: bool, syncer: Arc<dyn Syncer>) -> Result<Inner> {
    let opened = tokio::task::spawn_blocking(move || prepare_folder(&path, create, syncer.as_ref()).map(|p| (p, syncer))).await;
    let (path, syncer) = opened.map_err(|e| Error::internal(format!("opening the root was interrupted: {e}")))??;
    let shown = path.display().to_string();
    let failed = |e: &dyn fmt::Display| Error::internal(format!("can't open the root {shown}: {e}"));
    let store = durable::DurableLocal::new(&path, syncer).map_err(|e| failed(&e))?;
    let journal = object_store_014::local::LocalFileSystem::new_with_prefix(&path).map_err(|e| failed(&e))?;
    Ok(Inner {
        url: shown,
        local: Some(path),
        store: Arc::new(store),
        // Since 0.14 the local store can make its writes durable by itself; it isn't the default there.
        journal: Arc::new(journal.with_fsync(true)),
        footers: FooterCache::default(),
    })
}

/// Makes and tests the folder; gives back its absolute path.
fn prepare_folder(path: &Path, create: bool, syncer: &dyn Syncer) -> Result<PathBuf> {
    let shown = path.display();
    if create {
        durable::create_folders(path, syncer).map_err(|e| io_error("create the root", &shown.to_string(), &e))?;
        let probe = path.join(format!(".forebay-probe-{}", uuid::Uuid::new_v4().simple()));
        std::fs::write(&probe, b"").and_then(|()| std::fs::remove_file(&probe)).map_err(|e| {
            io_error("write to the root", &shown.to_string(), &e)
                .with_remedy("choose a root that can be written, or make this one writable")
        })?;
    }
    match std::fs::metadata(path) {
        Ok(meta) if !meta.is_dir() => Err(Error::bad_input(format!("the root {shown} is a file")).with_remedy("give a folder")),
        Ok(_) => std::fs::canonicalize(path).map_err(|e| io_error("open the root", &shown.to_string(), &e)),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            Err(Error::not_found(format!("there is no root at {shown}"))
                .with_remedy("check the path; `forebay materialize` makes a new root"))
        }
        Err(e) => Err(io_error("open the root", &shown.to_string(), &e)),
    }
}

/// What a store made of three creates of one object.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Creates {
    /// One landed at most.
    Honoured,
    /// Two that raced landed both.
    Raced,
    /// One landed over another that was there.
    Ignored,
}

/// Commits rest on "create only if absent". A store that ignores the condition, or looks at it before it writes, would let two writers overwrite
/// each other without a sign.
async fn probe_conditional_writes(store: &dyn ObjectStore, shown: &str) -> Result<()> {
    let path = StorePath::from(format!("_forebay_probe/{}", uuid::Uuid::new_v4().simple()));
    let found = create_thrice(store, &path).await;
    if let Err(e) = store.delete(&path).await {
        tracing::warn!(path = %path, error = %redact(&e.to_string()), "the probe object could not be deleted");
    }
    let what = match found {
        Ok(Creates::Honoured) => return Ok(()),
        Ok(Creates::Raced) => "doesn't keep conditional writes apart: it let two writers create an object at once",
        Ok(Creates::Ignored) => "ignores conditional writes: it let an object be created twice",
        // An object that is about to be made can't be missing.
        Err(object_store::Error::NotFound { .. }) => return Err(unnamed("write to the root", shown, "NoSuchBucket")),
        Err(e) => return Err(store_error("write to the root", &format!("{shown}/{path}"), &e)),
    };
    Err(Error::unsupported(format!("the store at {shown} {what}"))
        .with_remedy("use a store that honours If-None-Match on PUT, for racing writers too; commits aren't safe on this one"))
}

async fn create_thrice(store: &dyn ObjectStore, path: &StorePath) -> object_store::Result<Creates> {
    use object_store::Error as E;
    let create = async |body: &'static str| {
        let put = || store.put_opts(path, body.into(), PutMode::Create.into());
        // A put that timed out or met a 5xx may have landed: asked again, it exists already, which says as much.
        match listing::again(put, |e| matches!(e, E::Generic { .. })).await {
            Ok(_) => Ok(true),
            Err(E::AlreadyExists { .. } | E::Precondition { .. }) => Ok(false),
            Err(e) => Err(e),
        }
    };
    let (first, rival) = tokio::join!(create("first"), create("rival"));
    let raced = first? && rival?;
    Ok(match (create("late").await?, raced) {
        (true, _) => Creates::Ignored,
        (false, true) => Creates::Raced,
        (false, false) => Creates::Honoured,
    })
}

#[cfg(test)]
mod tests;
