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

/// Values of at least this many bytes in a row are sent from where they lie. Each such piece is HTTP/2 frames of its own, so smaller ones are
/// cheaper to copy.
pub(crate) const SHARED: usize = 32 << 10;

/// A piece of a window's buffer.
struct Piece(arrow::buffer::Buffer);

impl AsRef<[u8]> for Piece {
    fn as_ref(&self) -> &[u8] {
        self.0.as_slice()
    }
}

/// Collects one message's buffers.
#[derive(Debug)]
pub(crate) struct Body {
    /// Finished parts and their length.
    parts: Vec<Bytes>,
    before: usize,
    /// The part at the end.
    bytes: Vec<u8>,
    pub(crate) nodes: Vec<FieldNode>,
    pub(crate) buffers: Vec<Buffer>,
}

impl Body {
    pub(crate) fn new(bytes: Vec<u8>) -> Self {
        Self { parts: Vec::new(), before: 0, bytes, nodes: Vec::new(), buffers: Vec::new() }
    }

    pub(crate) fn node(&mut self, rows: usize, nulls: usize) {
        self.nodes.push(FieldNode::new(rows as i64, nulls as i64));
    }

    /// Appends one buffer: what `write` adds to the bytes, then padding.
    pub(crate) fn buffer<T>(&mut self, write: impl FnOnce(&mut Vec<u8>) -> T) -> T {
        let start = self.len();
        let result = write(&mut self.bytes);
        self.close(start);
        result
    }

    /// Appends one buffer of pieces that stay where they are: offset and length within each, then padding.
    pub(crate) fn shared<'a>(&mut self, pieces: impl Iterator<Item = (&'a arrow::buffer::Buffer, usize, usize)>) {
        let start = self.len();
        if !self.bytes.is_empty() {
            self.before += self.bytes.len();
            self.parts.push(std::mem::take(&mut self.bytes).into());
        }
        for (buffer, from, len) in pieces {
            self.before += len;
            self.parts.push(Bytes::from_owner(Piece(buffer.slice_with_length(from, len))));
        }
        self.close(start);
    }

    fn close(&mut self, start: usize) {
        let end = self.len();
        self.buffers.push(Buffer::new(start as i64, (end - start) as i64));
        let padding = end.next_multiple_of(ALIGN) - end;
        self.bytes.resize(self.bytes.len() + padding, 0);
    }

    pub(crate) fn len(&self) -> usize {
        self.before + self.bytes.len()
    }

    /// The body's first part, and what follows it.
    pub(crate) fn into_parts(mut self, pool: &Pool) -> (Bytes, Vec<Bytes>) {
        let last = pool.freeze(self.bytes);
        if self.parts.is_empty() {
            return (last, Vec::new());
        }
        let first = self.parts.remove(0);
        if !last.is_empty() {
            self.parts.push(last);
        }
        (first, self.parts)
    }
}
