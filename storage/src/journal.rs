//! The dispatcher's journal: its state and the entries after it, in slatedb on the root's object store.
//!
//! Owns: durable order, fencing, what is kept and what is swept. Must not know: what an entry means.
//!
//! Layout: `s` holds the newest state and the number of the last entry it contains, `e` + number (big-endian) one entry each, `o` the owner's
//! heartbeat, `k` the secret that the root's nodes sign tickets with. A state replaces the entries it contains in one atomic write, so a reader sees either.
//!
//! Rules:
//! - [`Journal::append`] returns when its entries are durable. One task numbers and writes them, so a crash can only cut off a tail.
//! - Opening fences every older writer: its next write fails with `FailedPrecondition` "fenced" and never lands.
//! - After any other failed append it is unknown whether the entries landed: drop this journal, open it again and load.

mod reader;
mod settings;

use bytes::Bytes;
use forebay_core::ids::Fence;
use forebay_core::{Error, Kind, Result};
use parking_lot::Mutex;
use slatedb::config::{CloseOptions, FlushOptions, FlushType};
use slatedb::{CloseReason, Db, DbIterator, ErrorKind, WriteBatch, WriteHandle};
use std::sync::Arc;
use tokio::sync::{mpsc, oneshot};
use tokio_util::task::AbortOnDropHandle;

use crate::owner::OwnerRecord;
use crate::root::Root;

pub use reader::{read_journal, read_owner};

/// Where the journal lies below the root.
pub(crate) const JOURNAL_PATH: &str = "journal";
const STATE_KEY: &[u8] = b"s";
const OWNER_KEY: &[u8] = b"o";
const SECRET_KEY: &[u8] = b"k";
const ENTRY_PREFIX: u8 = b'e';
/// Commands that wait for the writing task; more make their callers wait.
const QUEUE: usize = 256;
/// Write batches after which the log is folded into a table, so that reopening reads few files and the sweeper can take the rest.
const FOLD_AFTER: u64 = 512;

/// What the journal held: the newest state, if one was written, and the entries after it in order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Loaded {
    pub snapshot: Option<Bytes>,
    /// (number, entry); numbers start at 1 and have no gaps.
    pub entries: Vec<(u64, Bytes)>,
    /// Number of the last entry that the snapshot contains; 0 without one.
    pub upto: u64,
    /// The last heartbeat, if there ever was one.
    pub owner: Option<OwnerRecord>,
}

impl Loaded {
    /// Number of the last entry, in the snapshot or after it.
    pub fn last(&self) -> u64 {
        self.entries.last().map_or(self.upto, |(seq, _)| *seq)
    }
}

/// The one writer of a root's journal. Clones share it.
#[derive(Clone)]
pub struct Journal {
    inner: Arc<Inner>,
}

struct Inner {
    db: Db,
    fence: Fence,
    commands: mpsc::Sender<Command>,
    loaded: Mutex<Option<Loaded>>,
    // Held so that they end with the journal.
    _writer: AbortOnDropHandle<()>,
    _sweeper: AbortOnDropHandle<()>,
}

impl std::fmt::Debug for Journal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Journal").field("fence", &self.inner.fence).finish_non_exhaustive()
    }
}

type Written = Result<(u64, Option<WriteHandle>)>;

enum Command {
    Append { entries: Vec<Bytes>, reply: oneshot::Sender<Written> },
    Owner { record: Bytes, reply: oneshot::Sender<Written> },
    Compact { upto: u64, snapshot: Bytes, reply: oneshot::Sender<Written> },
    Secret { secret: [u8; 32], reply: oneshot::Sender<Written> },
}

impl Journal {
    /// Opens the journal for writing, creates it where there is none, and fences every older writer.
    ///
    /// On a local root take [`crate::owner::LocalLock`] first: it refuses a second owner without fencing the first.
    pub async fn open(root: &Root) -> Result<Journal> {
        let db = settings::open(root).await.map_err(|e| error(&e).context("opening the journal"))?;
        let loaded = scan(db.scan::<std::ops::RangeFull>(..).await).await?;
        let (commands, receiver) = mpsc::channel(QUEUE);
        let writer = Writer {
            db: db.clone(),
            next: loaded.last() + 1,
            first: loaded.entries.first().map_or(loaded.last() + 1, |e| e.0),
            unfolded: 0,
        };
        let fence = Fence(db.manifest().writer_epoch());
        let sweeper = tokio::spawn(settings::sweep_once(root.clone(), settings::SWEEP_AGE));
        let inner = Inner {
            db,
            fence,
            commands,
            loaded: Mutex::new(Some(loaded)),
            _writer: AbortOnDropHandle::new(tokio::spawn(writer.run(receiver))),
            _sweeper: AbortOnDropHandle::new(sweeper),
        };
        Ok(Journal { inner: Arc::new(inner) })
    }

    /// Grows by at least one with every opening; whatever carries an older one was granted by a past owner.
    pub fn fence(&self) -> Fence {
        self.inner.fence
    }

    /// Everything needed to rebuild the state. The first call, before anything is written, returns what opening found; later ones read again.
    pub async fn load(&self) -> Result<Loaded> {
        let found = self.inner.loaded.lock().take();
        match found {
            Some(loaded) => Ok(loaded),
            None => scan(self.inner.db.scan::<std::ops::RangeFull>(..).await).await,
        }
    }

    /// Adds entries, atomically and in order, and returns the number of the last one when all are durable. Calls that run together share
    /// one write to the store. `FailedPrecondition` "fenced" when another process has opened the journal since.
    pub async fn append(&self, entries: Vec<Bytes>) -> Result<u64> {
        self.send(|reply| Command::Append { entries, reply }).await
    }

    /// Replaces the entries up to and including `upto` by a state that contains them. Durable when it returns.
    pub async fn compact(&self, upto: u64, snapshot: Bytes) -> Result<()> {
        self.send(|reply| Command::Compact { upto, snapshot, reply }).await.map(|_| ())
    }

    /// Writes the heartbeat. Durable when it returns, so a heartbeat that was seen to advance proves that the fence still holds.
    pub async fn put_owner(&self, record: OwnerRecord) -> Result<()> {
        let record = serde_json::to_vec(&record).map_err(|e| Error::internal(format!("owner record: {e}")))?;
        self.send(|reply| Command::Owner { record: record.into(), reply }).await.map(|_| ())
    }

    /// The root's secret: the stored one, else `fresh`, which is stored first. It goes into no state, entry, log or error.
    pub async fn secret(&self, fresh: [u8; 32]) -> Result<[u8; 32]> {
        let stored = self.inner.db.get(SECRET_KEY).await.map_err(|e| error(&e).context("reading the root's secret"))?;
        match stored {
            Some(bytes) => <[u8; 32]>::try_from(bytes.as_ref()).map_err(|_| Error::corrupt("the journal's secret is cut off")),
            None => self.send(|reply| Command::Secret { secret: fresh, reply }).await.map(|_| fresh),
        }
    }

    /// Says that the owner leaves, so that the next one need not watch whether its heartbeat stands still. No heartbeat may follow.
    pub async fn leave(&self) -> Result<()> {
        self.send(|reply| Command::Owner { record: Bytes::new(), reply }).await.map(|_| ())
    }

    /// Stops the background work. Everything appended is durable already; this only makes the next opening quicker.
    pub async fn close(&self) -> Result<()> {
        self.inner._sweeper.abort();
        // Each table folded here waits for a compaction; with many waiting, a short-lived process would wait for one too.
        let fold = self.inner.db.manifest().l0().len() < settings::FOLD_ON_CLOSE_BELOW;
        let options = CloseOptions::default().with_flush_type(Some(if fold { FlushType::MemTable } else { FlushType::Wal }));
        match self.inner.db.close_with_options(options).await {
            Ok(()) => Ok(()),
            Err(e) if matches!(e.kind(), ErrorKind::Closed(CloseReason::Clean)) => Ok(()),
            Err(e) => Err(error(&e).context("closing the journal")),
        }
    }

    async fn send(&self, command: impl FnOnce(oneshot::Sender<Written>) -> Command) -> Result<u64> {
        let (reply, written) = oneshot::channel();
        let gone = || Error::new(Kind::Unavailable, "the journal is closed");
        // What opening found is about to be out of date.
        self.inner.loaded.lock().take();
        self.inner.commands.send(command(reply)).await.map_err(|_| gone())?;
        let (seq, handle) = written.await.map_err(|_| gone())??;
        if let Some(handle) = handle {
            handle.await_durable().await.map_err(|e| error(&e).context("writing to the journal"))?;
        }
        Ok(seq)
    }
}

/// Numbers what is appended and hands it to the database in that order; whoever asked waits for durability by itself.
struct Writer {
    db: Db,
    /// Number of the next entry.
    next: u64,
    /// Number of the oldest entry that is still stored.
    first: u64,
    /// Batches written since the log was last folded.
    unfolded: u64,
}

impl Writer {
    async fn run(mut self, mut commands: mpsc::Receiver<Command>) {
        while let Some(command) = commands.recv().await {
            let (reply, written) = match command {
                Command::Append { entries, reply } => (reply, self.append(entries).await),
                Command::Owner { record, reply } => (reply, self.put(OWNER_KEY, record).await),
                Command::Compact { upto, snapshot, reply } => (reply, self.compact(upto, snapshot).await),
                Command::Secret { secret, reply } => (reply, self.put(SECRET_KEY, Bytes::copy_from_slice(&secret)).await),
            };
            // A caller that went away has nothing to hear; what it asked for is written all the same.
            let _ = reply.send(written);
        }
    }

    async fn append(&mut self, entries: Vec<Bytes>) -> Written {
        if entries.is_empty() {
            return Ok((self.next - 1, None));
        }
        let mut batch = WriteBatch::new();
        let mut seq = self.next;
        for entry in entries {
            batch.put_bytes(entry_key(seq), entry);
            seq += 1;
        }
        let handle = self.write(batch).await?;
        self.next = seq;
        Ok((seq - 1, Some(handle)))
    }

    async fn put(&mut self, key: &'static [u8], value: Bytes) -> Written {
        let mut batch = WriteBatch::new();
        batch.put_bytes(Bytes::from_static(key), value);
        let handle = self.write(batch).await?;
        Ok((self.next - 1, Some(handle)))
    }

    async fn compact(&mut self, upto: u64, snapshot: Bytes) -> Written {
        if upto >= self.next || upto + 1 < self.first {
            let known = format!("entries {}..={} are known", self.first, self.next - 1);
            return Err(Error::bad_input(format!("a state up to entry {upto} can't replace the journal's: {known}")));
        }
        let mut batch = WriteBatch::new();
        let mut value = Vec::with_capacity(snapshot.len() + 8);
        value.extend_from_slice(&upto.to_le_bytes());
        value.extend_from_slice(&snapshot);
        batch.put_bytes(Bytes::from_static(STATE_KEY), value.into());
        for seq in self.first..=upto {
            batch.delete(entry_key(seq));
        }
        let handle = self.write(batch).await?;
        self.first = upto + 1;
        Ok((self.next - 1, Some(handle)))
    }

    async fn write(&mut self, batch: WriteBatch) -> Result<WriteHandle> {
        let handle = self.db.write(batch).await.map_err(|e| error(&e).context("writing to the journal"))?;
        self.unfolded += 1;
        if self.unfolded >= FOLD_AFTER {
            self.unfolded = 0;
            let db = self.db.clone();
            // Its failure shows up in the next write.
            tokio::spawn(async move { db.flush_with_options(FlushOptions { flush_type: FlushType::MemTable }).await });
        }
        Ok(handle)
    }
}

fn entry_key(seq: u64) -> Bytes {
    let mut key = Vec::with_capacity(9);
    key.push(ENTRY_PREFIX);
    key.extend_from_slice(&seq.to_be_bytes());
    key.into()
}

/// Reads everything in one scan, so that state and entries belong together.
async fn scan(iterator: Result<DbIterator, slatedb::Error>) -> Result<Loaded> {
    let fail = |e: slatedb::Error| error(&e).context("reading the journal");
    let mut iterator = iterator.map_err(fail)?;
    let mut loaded = Loaded::default();
    while let Some(pair) = iterator.next().await.map_err(fail)? {
        match pair.key.as_ref() {
            STATE_KEY => {
                let (upto, state) = pair.value.split_first_chunk::<8>().ok_or_else(|| Error::corrupt("the journal's state is cut off"))?;
                loaded.upto = u64::from_le_bytes(*upto);
                loaded.snapshot = Some(pair.value.slice_ref(state));
            }
            // The last owner left properly.
            OWNER_KEY if pair.value.is_empty() => loaded.owner = None,
            OWNER_KEY => {
                let record = serde_json::from_slice(&pair.value);
                loaded.owner = Some(record.map_err(|e| Error::corrupt(format!("the journal's owner record: {e}")))?);
            }
            SECRET_KEY => {}
            key => {
                let number = key.strip_prefix(&[ENTRY_PREFIX]).and_then(|n| n.try_into().ok()).map(u64::from_be_bytes);
                let seq = number.ok_or_else(|| {
                    Error::corrupt("the journal holds a key of an unknown kind")
                        .with_remedy("open this root with the version that wrote it")
                })?;
                loaded.entries.push((seq, pair.value));
            }
        }
    }
    for (expected, (seq, _)) in (loaded.upto + 1..).zip(&loaded.entries) {
        if *seq != expected {
            return Err(Error::corrupt(format!("the journal lacks entry {expected}: the next one it holds is {seq}")));
        }
    }
    Ok(loaded)
}

/// One place that says what a slatedb error means to callers.
fn error(error: &slatedb::Error) -> Error {
    match error.kind() {
        ErrorKind::Closed(CloseReason::Fenced) => {
            Error::failed_precondition("fenced: another process has become the owner of this root").with_remedy("connect to that owner")
        }
        ErrorKind::Closed(_) => Error::new(Kind::Unavailable, format!("the journal is closed: {error}")),
        ErrorKind::Data => Error::corrupt(error.to_string()),
        _ => store_error(error),
    }
}

/// Finds the operating system's reason below a store's error: a full disk and a missing permission have remedies of their own.
fn store_error(error: &(dyn std::error::Error + 'static)) -> Error {
    let mut cause = Some(error);
    while let Some(e) = cause {
        if let Some(io) = e.downcast_ref::<std::io::Error>() {
            let found = crate::root::io_error("use", "the journal", io);
            if found.kind != Kind::Internal {
                return found;
            }
        }
        cause = e.source();
    }
    crate::root::unnamed("use", "the journal", &error.to_string())
}

#[cfg(test)]
mod tests;
