//! A local store whose writes survive power loss.
//!
//! `object_store` 0.13 publishes atomically and never calls fsync. Here a file's bytes reach the disk *before* its name appears, so that no
//! crash leaves a name with half a file behind it, and the folder that holds the name is synced before the call returns. Reading and
//! listing are the library's own.

use async_trait::async_trait;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    CopyOptions, Error, GetOptions, GetResult, ListResult, MultipartUpload, ObjectMeta, ObjectStore, PutMode, PutMultipartOptions,
    PutOptions, PutPayload, PutResult, RenameOptions, Result, UploadPart,
};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::fmt;
use std::fs::{File, OpenOptions};
use std::io::{self, Seek, SeekFrom, Write};
use std::ops::Range;
use std::path::{Path as FsPath, PathBuf};
use std::sync::Arc;

/// The two calls that durability rests on.
pub trait Syncer: Send + Sync + fmt::Debug + 'static {
    /// Makes the file's bytes and length durable.
    ///
    /// # Errors
    /// The operating system's: the bytes may be lost.
    fn sync_file(&self, file: &File, path: &FsPath) -> io::Result<()>;
    /// Makes the names in a folder durable.
    ///
    /// # Errors
    /// The operating system's: the names may be lost.
    fn sync_folder(&self, path: &FsPath) -> io::Result<()>;
}

/// fsync, as the operating system does it.
#[derive(Debug, Clone, Copy)]
pub struct DiskSyncer;

impl Syncer for DiskSyncer {
    fn sync_file(&self, file: &File, _path: &FsPath) -> io::Result<()> {
        file.sync_all()
    }

    fn sync_folder(&self, path: &FsPath) -> io::Result<()> {
        File::open(path)?.sync_all()
    }
}

/// Makes a folder and its parents, and makes each new name durable in the folder above it.
pub(super) fn create_folders(path: &FsPath, syncer: &dyn Syncer) -> io::Result<()> {
    let missing: Vec<_> = path.ancestors().take_while(|p| !p.as_os_str().is_empty() && !p.exists()).collect();
    std::fs::create_dir_all(path)?;
    for made in missing {
        match made.parent() {
            Some(above) if !above.as_os_str().is_empty() => syncer.sync_folder(above)?,
            _ => syncer.sync_folder(FsPath::new("."))?,
        }
    }
    Ok(())
}

#[derive(Debug)]
pub(super) struct DurableLocal {
    inner: LocalFileSystem,
    disk: Arc<Disk>,
}

/// What a write needs to know of the disk below the root.
#[derive(Debug)]
struct Disk {
    root: PathBuf,
    syncer: Arc<dyn Syncer>,
    /// Folders whose names are known to be durable. That a folder exists proves nothing: whoever made it may not have synced it yet.
    durable: Mutex<HashSet<PathBuf>>,
}

impl Disk {
    /// Makes the folder where it is missing.
    fn make_folder(&self, folder: &FsPath) -> Result<()> {
        {
            let mut durable = self.durable.lock();
            for missing in folder.ancestors().take_while(|f| !f.exists()) {
                durable.remove(missing);
            }
        }
        std::fs::create_dir_all(folder).map_err(|e| at("create the folder", folder, e))
    }

    /// Makes the names of the folder and of those above it durable, once each; the root's own name is the business of whoever made the root.
    fn sync_folders_to(&self, folder: &FsPath) -> Result<()> {
        for folder in folder.ancestors().take_while(|f| f.starts_with(&self.root) && *f != self.root) {
            if self.durable.lock().contains(folder) {
                break;
            }
            sync_parent(folder, self.syncer.as_ref())?;
        }
        let mut durable = self.durable.lock();
        durable.extend(folder.ancestors().take_while(|f| f.starts_with(&self.root) && *f != self.root).map(FsPath::to_owned));
        Ok(())
    }
}

/// An I/O error with what was being done to which file.
#[derive(Debug, thiserror::Error)]
#[error("{doing} {}", path.display())]
struct At {
    doing: &'static str,
    path: PathBuf,
    source: io::Error,
}

fn at(doing: &'static str, path: &FsPath, source: io::Error) -> Error {
    let shown = path.display().to_string();
    let kind = source.kind();
    let source = Box::new(At { doing, path: path.to_owned(), source });
    match kind {
        io::ErrorKind::AlreadyExists => Error::AlreadyExists { path: shown, source },
        io::ErrorKind::NotFound => Error::NotFound { path: shown, source },
        _ => Error::Generic { store: "local", source },
    }
}

/// A file under a name that listings don't show (`#` and digits, the library's own convention), removed unless it is published.
#[derive(Debug)]
struct Staged {
    file: File,
    path: PathBuf,
    published: bool,
}

impl Staged {
    fn create(target: &FsPath, disk: &Disk) -> Result<Staged> {
        let mut name = target.as_os_str().to_owned();
        name.push(format!("#{}", uuid::Uuid::new_v4().as_u128()));
        let path = PathBuf::from(name);
        let open = || OpenOptions::new().read(true).write(true).create_new(true).open(&path);
        let folder = path.parent().unwrap_or(FsPath::new("/"));
        let file = match open() {
            Err(e) if e.kind() == io::ErrorKind::NotFound => {
                disk.make_folder(folder)?;
                open()
            }
            other => other,
        };
        let staged = Staged { file: file.map_err(|e| at("create", &path, e))?, path: path.clone(), published: false };
        disk.sync_folders_to(folder)?;
        Ok(staged)
    }

    /// Bytes to disk, then the name, then the name to disk.
    fn publish(mut self, target: &FsPath, overwrite: bool, disk: &Disk) -> Result<()> {
        disk.syncer.sync_file(&self.file, &self.path).map_err(|e| at("sync", target, e))?;
        if overwrite {
            std::fs::rename(&self.path, target).map_err(|e| at("rename to", target, e))?;
            self.published = true;
        } else {
            // A link fails when the name is taken, which a plain rename does not; the staged name is removed on drop.
            match std::fs::hard_link(&self.path, target) {
                Err(e) if without_links(&e) => {
                    rename_if_free(&self.path, target).map_err(|e| at("rename to", target, e))?;
                    self.published = true;
                }
                linked => linked.map_err(|e| at("link to", target, e))?,
            }
        }
        sync_parent(target, disk.syncer.as_ref())
    }
}

/// Whether the file system has no hard links (FAT, some network and container mounts).
fn without_links(error: &io::Error) -> bool {
    use rustix::io::Errno;
    let errno = error.raw_os_error().map(Errno::from_raw_os_error);
    matches!(errno, Some(Errno::PERM | Errno::OPNOTSUPP | Errno::NOSYS | Errno::MLINK))
}

/// Renames unless the target exists; the kernel decides, so two callers can't both win.
pub(super) fn rename_if_free(from: &FsPath, to: &FsPath) -> io::Result<()> {
    use rustix::fs::{CWD, RenameFlags, renameat_with};
    renameat_with(CWD, from, CWD, to, RenameFlags::NOREPLACE).map_err(Into::into)
}

impl Drop for Staged {
    fn drop(&mut self) {
        if !self.published {
            // Nothing refers to it; a file that can't be removed now is removed by vacuum.
            let _ = std::fs::remove_file(&self.path);
        }
    }
}

fn sync_parent(path: &FsPath, syncer: &dyn Syncer) -> Result<()> {
    let folder = path.parent().unwrap_or(FsPath::new("/"));
    syncer.sync_folder(folder).map_err(|e| at("sync the folder", folder, e))
}

async fn blocking<T: Send + 'static>(work: impl FnOnce() -> Result<T> + Send + 'static) -> Result<T> {
    tokio::task::spawn_blocking(work).await?
}

impl DurableLocal {
    pub(super) fn new(root: &FsPath, syncer: Arc<dyn Syncer>) -> Result<Self> {
        let disk = Disk { root: root.to_owned(), syncer, durable: Mutex::default() };
        Ok(Self { inner: LocalFileSystem::new_with_prefix(root)?, disk: Arc::new(disk) })
    }

    fn refuse_attributes(&self, empty: bool) -> Result<()> {
        if empty { Ok(()) } else { Err(Error::NotImplemented { operation: "attributes".to_owned(), implementer: self.to_string() }) }
    }

    /// Syncs the names at `to` (and the one that is gone from `from`), with every folder up to the root that may be new.
    async fn sync_names(&self, paths: &[&Path]) -> Result<()> {
        let files = paths.iter().map(|p| self.inner.path_to_filesystem(p)).collect::<Result<Vec<_>>>()?;
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            for file in &files {
                sync_parent(file, disk.syncer.as_ref())?;
                disk.sync_folders_to(file.parent().unwrap_or(FsPath::new("/")))?;
            }
            Ok(())
        })
        .await
    }
}

impl fmt::Display for DurableLocal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Durable{}", self.inner)
    }
}

#[async_trait]
impl ObjectStore for DurableLocal {
    async fn put_opts(&self, location: &Path, payload: PutPayload, options: PutOptions) -> Result<PutResult> {
        self.refuse_attributes(options.attributes.is_empty())?;
        let overwrite = match options.mode {
            PutMode::Overwrite => true,
            PutMode::Create => false,
            PutMode::Update(_) => {
                return Err(Error::NotImplemented { operation: "PutMode::Update".to_owned(), implementer: self.to_string() });
            }
        };
        let target = self.inner.path_to_filesystem(location)?;
        let disk = Arc::clone(&self.disk);
        blocking(move || {
            let mut staged = Staged::create(&target, &disk)?;
            payload.iter().try_for_each(|bytes| staged.file.write_all(bytes)).map_err(|e| at("write", &target, e))?;
            staged.publish(&target, overwrite, &disk)?;
            Ok(PutResult { e_tag: None, version: None })
        })
        .await
    }

    async fn put_multipart_opts(&self, location: &Path, options: PutMultipartOptions) -> Result<Box<dyn MultipartUpload>> {
        self.refuse_attributes(options.attributes.is_empty())?;
        let target = self.inner.path_to_filesystem(location)?;
        let disk = Arc::clone(&self.disk);
        let upload = blocking(move || {
            let staged = Staged::create(&target, &disk)?;
            Ok(Upload { staged: Arc::new(Mutex::new(Some(staged))), offset: 0, target, disk })
        });
        Ok(Box::new(upload.await?))
    }

    async fn get_opts(&self, location: &Path, options: GetOptions) -> Result<GetResult> {
        self.inner.get_opts(location, options).await
    }

    async fn get_ranges(&self, location: &Path, ranges: &[Range<u64>]) -> Result<Vec<bytes::Bytes>> {
        self.inner.get_ranges(location, ranges).await
    }

    fn delete_stream(&self, locations: BoxStream<'static, Result<Path>>) -> BoxStream<'static, Result<Path>> {
        // A deleted dataset that is back after a power cut would be worse than a slow delete.
        let syncer = Arc::clone(&self.disk.syncer);
        let inner = self.inner.clone();
        inner
            .delete_stream(locations)
            .then(move |deleted| {
                let target = deleted.and_then(|path| Ok((inner.path_to_filesystem(&path)?, path)));
                let syncer = Arc::clone(&syncer);
                async move {
                    let (target, path) = target?;
                    blocking(move || sync_parent(&target, syncer.as_ref())).await?;
                    Ok(path)
                }
            })
            .boxed()
    }

    fn list(&self, prefix: Option<&Path>) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list(prefix)
    }

    fn list_with_offset(&self, prefix: Option<&Path>, offset: &Path) -> BoxStream<'static, Result<ObjectMeta>> {
        self.inner.list_with_offset(prefix, offset)
    }

    async fn list_with_delimiter(&self, prefix: Option<&Path>) -> Result<ListResult> {
        self.inner.list_with_delimiter(prefix).await
    }

    async fn copy_opts(&self, from: &Path, to: &Path, options: CopyOptions) -> Result<()> {
        self.inner.copy_opts(from, to, options).await?;
        self.sync_names(&[to]).await
    }

    async fn rename_opts(&self, from: &Path, to: &Path, options: RenameOptions) -> Result<()> {
        self.inner.rename_opts(from, to, options).await?;
        self.sync_names(&[to, from]).await
    }
}

/// Parts of one file, written where they belong, in whatever order they arrive.
#[derive(Debug)]
struct Upload {
    staged: Arc<Mutex<Option<Staged>>>,
    offset: u64,
    target: PathBuf,
    disk: Arc<Disk>,
}

fn over(target: &FsPath) -> Error {
    at("write", target, io::Error::other("the upload is over"))
}

#[async_trait]
impl MultipartUpload for Upload {
    fn put_part(&mut self, data: PutPayload) -> UploadPart {
        let offset = self.offset;
        self.offset += data.content_length() as u64;
        let (staged, target) = (Arc::clone(&self.staged), self.target.clone());
        blocking(move || {
            let mut guard = staged.lock();
            let staged = guard.as_mut().ok_or_else(|| over(&target))?;
            staged.file.seek(SeekFrom::Start(offset)).map_err(|e| at("write", &target, e))?;
            data.iter().try_for_each(|bytes| staged.file.write_all(bytes)).map_err(|e| at("write", &target, e))
        })
        .boxed()
    }

    async fn complete(&mut self) -> Result<PutResult> {
        let (staged, target, disk) = (Arc::clone(&self.staged), self.target.clone(), Arc::clone(&self.disk));
        blocking(move || {
            let staged = staged.lock().take().ok_or_else(|| over(&target))?;
            staged.publish(&target, true, &disk)?;
            Ok(PutResult { e_tag: None, version: None })
        })
        .await
    }

    async fn abort(&mut self) -> Result<()> {
        let staged = Arc::clone(&self.staged);
        blocking(move || {
            drop(staged.lock().take());
            Ok(())
        })
        .await
    }
}
