//! The body under construction: buffers at 64-byte offsets, and the table of nodes and buffers that the header repeats.

use arrow::ipc::{Buffer, FieldNode};
use bytes::Bytes;
use std::sync::Arc;
use std::sync::Mutex;

/// Offsets of buffers inside the body are multiples of this.
const ALIGN: usize = 64;

/// Used buffers kept for the next messages of the same stream. Fresh memory of megabytes costs more in page faults than the gather itself.
#[derive(Debug, Default, Clone)]
pub(crate) struct Pool(Arc<Mutex<Vec<Vec<u8>>>>);

/// As many as are on their way at once; more would only sit idle.
const KEPT: usize = 4;
/// Larger buffers are rare and are given back.
const KEPT_BYTES: usize = super::WHOLE + (1 << 20);

/// Returns its bytes to the pool when the transport drops it.
struct Lent {
    bytes: Vec<u8>,
    pool: Pool,
}

impl AsRef<[u8]> for Lent {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for Lent {
    fn drop(&mut self) {
        if self.bytes.capacity() <= KEPT_BYTES
            && let Ok(mut kept) = self.pool.0.lock()
            && kept.len() < KEPT
        {
            kept.push(std::mem::take(&mut self.bytes));
        }
    }
}

impl Pool {
    /// An empty buffer with room for `bytes`.
    pub(crate) fn take(&self, bytes: usize) -> Vec<u8> {
        let kept = self.0.lock().ok().and_then(|mut kept| kept.pop());
        match kept {
            Some(mut buffer) => {
                buffer.clear();
                buffer.reserve(bytes);
                buffer
            }
            None => Vec::with_capacity(bytes),
        }
    }

    /// The buffer as shared bytes that come back here.
    pub(crate) fn freeze(&self, bytes: Vec<u8>) -> Bytes {
        if bytes.capacity() < ALIGN * 1024 {
            return Bytes::from(bytes);
        }
        Bytes::from_owner(Lent { bytes, pool: self.clone() })
    }
}

/// Collects one message's buffers.
#[derive(Debug)]
pub(crate) struct Body {
    bytes: Vec<u8>,
    pub(crate) nodes: Vec<FieldNode>,
    pub(crate) buffers: Vec<Buffer>,
}

impl Body {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { bytes, nodes: Vec::new(), buffers: Vec::new() }
    }

    pub(crate) fn node(&mut self, rows: usize, nulls: usize) {
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
    }

    /// Appends one buffer: what `write` adds to the bytes, then padding.
    pub(crate) fn buffer<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.bytes.len();
        let result = write(&mut self.bytes);
        let end = self.bytes.len();
        self.buffers.push(Buffer::new(start as i64, (end - start) as i64));
        self.bytes.resize(end.next_multiple_of(ALIGN), 0);
        result
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len()
    }

    pub(crate) fn into_bytes(self) -> Vec<u8> {
        self.bytes
    }
}
