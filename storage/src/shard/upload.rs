//! A shard's bytes on their way to its final name: one conditional put when small, a multipart upload when it grows.

use bytes::Bytes;
use forebay_core::{Error, Kind, Result};
use object_store::path::Path;
use object_store::{GetOptions, GetRange, MultipartUpload, ObjectStore, ObjectStoreExt, PutMode, PutPayload};
use std::collections::VecDeque;

use crate::root::{Root, whole};

/// Size of a part. Stores want at least 5 MiB and some want all parts but the last equal.
const PART_BYTES: usize = 8 << 20;
/// The end of the file that is read back; a footer is rarely longer, and when it is its end is compared.
const TAIL_BYTES: usize = 64 << 10;

/// An object that is being written. Dropping it unfinished leaves nothing under its name.
#[derive(Debug)]
pub(crate) struct Upload {
    root: Root,
    pub(crate) path: Path,
    /// What isn't sent yet, in pieces as they came: they are never copied.
    pending: VecDeque<Bytes>,
    pending_bytes: usize,
    parts: Option<Box<dyn MultipartUpload>>,
    tail: Vec<u8>,
    size: u64,
}

impl Upload {
    pub(crate) fn new(root: Root, path: Path) -> Self {
        Self { root, path, pending: VecDeque::new(), pending_bytes: 0, parts: None, tail: Vec::new(), size: 0 }
    }

    fn failed(&self, error: &object_store::Error) -> Error {
        self.root.error("write the shard", &self.path, error)
    }

    pub(crate) async fn push(&mut self, bytes: Vec<u8>) -> Result<()> {
        self.size += bytes.len() as u64;
        self.remember_tail(&bytes);
        self.pending_bytes += bytes.len();
        self.pending.push_back(bytes.into());
        while self.pending_bytes > PART_BYTES {
            let part = self.take(PART_BYTES);
            self.put_part(part).await?;
        }
        Ok(())
    }

    /// The next `length` bytes that wait, or as many as there are.
    fn take(&mut self, length: usize) -> PutPayload {
        let mut taken = Vec::new();
        let mut left = length;
        while let Some(mut piece) = self.pending.pop_front() {
            let cut = piece.len().min(left);
            taken.push(piece.split_to(cut));
            left -= cut;
            self.pending_bytes -= cut;
            if !piece.is_empty() {
                self.pending.push_front(piece);
                break;
            }
        }
        taken.into_iter().collect()
    }

    fn remember_tail(&mut self, bytes: &[u8]) {
        let from = bytes.len().saturating_sub(TAIL_BYTES);
        self.tail.extend_from_slice(&bytes[from..]);
        let extra = self.tail.len().saturating_sub(TAIL_BYTES);
        self.tail.drain(..extra);
    }

    async fn put_part(&mut self, part: PutPayload) -> Result<()> {
        if self.parts.is_none() {
            let parts = self.root.store().put_multipart(&self.path).await.map_err(|e| self.failed(&e))?;
            self.parts = Some(parts);
        }
        // One part at a time: the next row group is encoded while nothing else is held.
        if let Some(parts) = &mut self.parts {
            let sent = parts.put_part(part).await;
            sent.map_err(|e| self.failed(&e))?;
        }
        Ok(())
    }

    /// Ends the object and reads its end back: what was promised to be durable is there, whole.
    pub(crate) async fn finish(mut self) -> Result<()> {
        let last = self.take(usize::MAX);
        let mut doubt = None;
        if self.parts.is_some() {
            if last.content_length() > 0 {
                self.put_part(last).await?;
            }
            if let Some(mut parts) = self.parts.take()
                && let Err(e) = parts.complete().await
            {
                let failed = self.failed(&e);
                abort(parts).await;
                return Err(failed);
            }
        } else {
            match self.root.store().put_opts(&self.path, last, PutMode::Create.into()).await {
                // Our own put, answered by an error and tried again, looks like this; the bytes tell.
                Ok(_) | Err(object_store::Error::AlreadyExists { .. }) => {}
                // A connection that broke may have done so behind the put.
                Err(e) => doubt = Some(self.failed(&e)),
            }
        }
        // Taken apart, because a shared reference to an open upload couldn't cross threads.
        let found = verify(&self.root, &self.path, self.size, std::mem::take(&mut self.tail)).await;
        match doubt {
            Some(failed) if found.is_err() => Err(failed),
            _ => found,
        }
    }

    pub(super) async fn abort(mut self) {
        if let Some(parts) = self.parts.take() {
            abort(parts).await;
        }
    }
}

async fn verify(root: &Root, path: &Path, size: u64, tail: Vec<u8>) -> Result<()> {
    let options = GetOptions { range: Some(GetRange::Suffix(tail.len() as u64)), ..GetOptions::default() };
    let store = root.store();
    let read = whole(|| store.get_opts(path, options.clone()));
    let (meta, bytes) = read.await.map_err(|e| root.error("read back the shard", path, &e))?;
    let found = meta.size;
    if found != size || bytes != tail {
        return Err(Error::corrupt(format!(
            "the shard {} isn't what was written: {found} bytes where {size} were written",
            root.place(path)
        ))
        .with_remedy("another writer used the same name, or the store lost bytes; run the task again"));
    }
    Ok(())
}

async fn abort(mut parts: Box<dyn MultipartUpload>) {
    // Parts that stay behind cost money and nothing else; the store's own rules sweep them.
    if let Err(e) = parts.abort().await {
        tracing::debug!(error = %crate::root::redact(&e.to_string()), "an upload could not be aborted");
    }
}

impl Drop for Upload {
    fn drop(&mut self) {
        if let (Some(parts), Ok(runtime)) = (self.parts.take(), tokio::runtime::Handle::try_current()) {
            runtime.spawn(abort(parts));
        }
    }
}

/// Whether an object exists.
pub(super) async fn exists(root: &Root, path: &Path) -> Result<bool> {
    match root.store().head(path).await {
        Ok(_) => Ok(true),
        Err(object_store::Error::NotFound { .. }) => Ok(false),
        Err(e) => Err(root.error("look for the shard", path, &e)),
    }
}

/// Deletes an object that may not exist.
pub(super) async fn delete(root: &Root, path: &Path) -> Result<()> {
    match root.store().delete(path).await.map_err(|e| root.error("delete", path, &e)) {
        Err(e) if e.kind != Kind::NotFound => Err(e),
        _ => Ok(()),
    }
}
