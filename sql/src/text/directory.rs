//! tantivy's view of a bundle, and of the folder that a bundle is made from.

use std::fmt;
use std::io;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use forebay_storage::bundle::{Bundle, HotRange};
use parking_lot::Mutex;
use tantivy::HasLen;
use tantivy::directory::error::{DeleteError, LockError, OpenReadError, OpenWriteError};
use tantivy::directory::{
    Directory, DirectoryLock, FileHandle, FileSlice, Lock, MmapDirectory, OwnedBytes, WatchCallback, WatchHandle, WritePtr,
};

fn read_only() -> io::Error {
    io::Error::new(io::ErrorKind::ReadOnlyFilesystem, "an index bundle is only read")
}

fn missing(path: &Path) -> OpenReadError {
    OpenReadError::FileDoesNotExist(path.to_owned())
}

/// What a directory that is only read answers to everything but reading.
macro_rules! only_read {
    () => {
        fn delete(&self, path: &Path) -> Result<(), DeleteError> {
            Err(DeleteError::IoError { io_error: Arc::new(read_only()), filepath: path.to_owned() })
        }

        fn open_write(&self, path: &Path) -> Result<WritePtr, OpenWriteError> {
            Err(OpenWriteError::IoError { io_error: Arc::new(read_only()), filepath: path.to_owned() })
        }

        fn atomic_write(&self, _: &Path, _: &[u8]) -> io::Result<()> {
            Err(read_only())
        }

        fn sync_directory(&self) -> io::Result<()> {
            Ok(())
        }

        fn acquire_lock(&self, _: &Lock) -> Result<DirectoryLock, LockError> {
            // Nothing is ever written or collected here.
            Ok(DirectoryLock::from(Box::new(())))
        }

        fn watch(&self, _: WatchCallback) -> tantivy::Result<WatchHandle> {
            Ok(WatchHandle::empty())
        }
    };
}

/// The files of a bundle.
#[derive(Debug, Clone)]
pub(super) struct BundleDirectory(pub(super) Arc<Bundle>);

#[derive(Debug)]
struct BundleFile {
    bundle: Arc<Bundle>,
    name: String,
    length: usize,
}

impl HasLen for BundleFile {
    fn len(&self) -> usize {
        self.length
    }
}

impl FileHandle for BundleFile {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        let bytes = self.bundle.read(&self.name, range.start as u64..range.end as u64).map_err(io::Error::other)?;
        Ok(OwnedBytes::new(Vec::from(bytes)))
    }
}

impl Directory for BundleDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let name = path.to_string_lossy().into_owned();
        let length = self.0.length(&name).and_then(|l| usize::try_from(l).ok()).ok_or_else(|| missing(path))?;
        Ok(Arc::new(BundleFile { bundle: self.0.clone(), name, length }))
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        Ok(self.0.length(&path.to_string_lossy()).is_some())
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        let file = self.get_file_handle(path)?;
        let read =
            file.read_bytes(0..file.len()).map_err(|e| OpenReadError::IoError { io_error: Arc::new(e), filepath: path.to_owned() })?;
        Ok(read.to_vec())
    }

    only_read!();
}

/// A folder that notes which bytes are read: those are what opening the index touches.
#[derive(Clone)]
pub(super) struct RecordingDirectory {
    inner: MmapDirectory,
    touched: Arc<Mutex<Vec<HotRange>>>,
}

impl fmt::Debug for RecordingDirectory {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("RecordingDirectory").field(&self.inner).finish()
    }
}

impl RecordingDirectory {
    pub(super) fn new(inner: MmapDirectory) -> Self {
        Self { inner, touched: Arc::default() }
    }

    pub(super) fn touched(&self) -> Vec<HotRange> {
        self.touched.lock().clone()
    }
}

#[derive(Debug)]
struct RecordedFile {
    inner: Arc<dyn FileHandle>,
    name: String,
    touched: Arc<Mutex<Vec<HotRange>>>,
}

impl HasLen for RecordedFile {
    fn len(&self) -> usize {
        self.inner.len()
    }
}

impl FileHandle for RecordedFile {
    fn read_bytes(&self, range: Range<usize>) -> io::Result<OwnedBytes> {
        self.touched.lock().push(HotRange { file: self.name.clone(), bytes: range.start as u64..range.end as u64 });
        self.inner.read_bytes(range)
    }
}

impl Directory for RecordingDirectory {
    fn get_file_handle(&self, path: &Path) -> Result<Arc<dyn FileHandle>, OpenReadError> {
        let inner = self.inner.get_file_handle(path)?;
        Ok(Arc::new(RecordedFile { inner, name: path.to_string_lossy().into_owned(), touched: self.touched.clone() }))
    }

    fn open_read(&self, path: &Path) -> Result<FileSlice, OpenReadError> {
        self.get_file_handle(path).map(FileSlice::new)
    }

    fn exists(&self, path: &Path) -> Result<bool, OpenReadError> {
        self.inner.exists(path)
    }

    fn atomic_read(&self, path: &Path) -> Result<Vec<u8>, OpenReadError> {
        let bytes = self.inner.atomic_read(path)?;
        self.touched.lock().push(HotRange { file: path.to_string_lossy().into_owned(), bytes: 0..bytes.len() as u64 });
        Ok(bytes)
    }

    only_read!();
}

/// The files of an index's folder that belong into its bundle, sorted: not locks, not what an unfinished write left.
pub(super) fn files(folder: &Path) -> io::Result<Vec<(String, PathBuf)>> {
    let mut files = Vec::new();
    for entry in std::fs::read_dir(folder)? {
        let path = entry?.path();
        let name = path.file_name().map(|n| n.to_string_lossy().into_owned()).unwrap_or_default();
        if path.is_file() && !name.ends_with(".lock") && !name.ends_with(".tmp") {
            files.push((name, path));
        }
    }
    files.sort();
    Ok(files)
}
