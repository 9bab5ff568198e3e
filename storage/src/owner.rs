//! Who owns a root: the lock of a local root, the heartbeat record of any root, and the rules by which a newcomer judges them.
//!
//! Owns: finding the owner, and the verdict on one that can't be reached. Must not know: what an owner does, or how it is spoken to.
//!
//! A local root's lock file is held by its owner and carries the owner's record as a hint, so that a live owner is found without reading the
//! journal and a killed one is known to be dead at once: the kernel releases the lock. Elsewhere the journal's heartbeat is the only truth.

mod standby;

use forebay_core::ids::Fence;
use forebay_core::{Error, Kind, Result};
use serde::{Deserialize, Serialize};
use std::fs::{File, OpenOptions, TryLockError};
use std::io::{Read, Seek, Write};
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};
use tokio::net::TcpStream;

use crate::journal::read_journal;
use crate::root::Root;

pub use standby::{Sight, Standby};

/// The file that a local root's owner holds locked.
pub const LOCK_FILE: &str = ".forebay.lock";
/// How long a heartbeat must stand still, on the observer's own clock, before its unreachable owner counts as dead.
pub const DEAD_AFTER: Duration = Duration::from_secs(6);
const POLL: Duration = Duration::from_millis(500);
/// How long a connection attempt may take.
const CONNECT: Duration = Duration::from_secs(2);
/// How long an owner that has just taken the lock may take to say where it listens.
const STARTING: Duration = Duration::from_secs(10);
/// A newcomer that looks at the lock holds it for an instant; an acquirer tries again for this long.
const LOCK_RETRY: Duration = Duration::from_millis(300);

/// What an owner says about itself with every heartbeat.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct OwnerRecord {
    /// Where it listens, as `host:port`, with or without a scheme.
    pub address: String,
    pub fence: Fence,
    pub pid: u32,
    /// Grows with every heartbeat.
    pub beat: u64,
    /// The owner's wall clock, for people; never compared with another clock.
    pub at_ms: i64,
}

/// What [`find_owner`] found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Owner {
    /// The root never had an owner, or the last one left properly.
    None,
    /// Somebody listens at its address.
    Live(OwnerRecord),
    /// The last owner is gone and ownership may be taken.
    Dead,
}

/// Finds the owner of a root, without writing anything. `Unavailable` when there is one that is alive and can't be reached.
///
/// A live local owner is found in milliseconds; judging an unreachable owner of a remote root dead takes [`DEAD_AFTER`].
pub async fn find_owner(root: &Root) -> Result<Owner> {
    find_owner_within(root, DEAD_AFTER).await
}

pub(crate) async fn find_owner_within(root: &Root, dead_after: Duration) -> Result<Owner> {
    match root.local_path() {
        Some(path) => find_local(path, root).await,
        None => find_remote(root, dead_after).await,
    }
}

async fn find_local(path: &Path, root: &Root) -> Result<Owner> {
    let started = Instant::now();
    loop {
        let lock = path.join(LOCK_FILE);
        match tokio::task::spawn_blocking(move || look(&lock)).await.map_err(|e| Error::internal(format!("looking at the lock: {e}")))?? {
            // A root that was copied or restored has a journal and no lock file: its old owner doesn't run here.
            Look::Absent => return Ok(Owner::None),
            Look::Free { left_properly: true } => return Ok(Owner::None),
            Look::Free { left_properly: false } => return Ok(Owner::Dead),
            Look::Held(Some(record)) => {
                if reachable(&record.address).await {
                    return Ok(Owner::Live(record));
                }
                if started.elapsed() > CONNECT {
                    return Err(unreachable(root, &record));
                }
            }
            Look::Held(None) if started.elapsed() > STARTING => {
                let message = format!("another process holds the lock of `{}` and does not say where it listens", root.url());
                return Err(Error::new(Kind::Unavailable, message).with_remedy("wait for it to start, or end it"));
            }
            Look::Held(None) => {}
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Watches the heartbeat: time is measured here, and the owner's clock is never looked at.
async fn find_remote(root: &Root, dead_after: Duration) -> Result<Owner> {
    let Some(mut seen) = read_journal(root).await?.and_then(|j| j.owner) else { return Ok(Owner::None) };
    let mut since = Instant::now();
    loop {
        if reachable(&seen.address).await {
            return Ok(Owner::Live(seen));
        }
        if since.elapsed() >= dead_after {
            return Ok(Owner::Dead);
        }
        tokio::time::sleep(POLL.min(dead_after)).await;
        let Some(now) = read_journal(root).await?.and_then(|j| j.owner) else { return Ok(Owner::None) };
        if (now.fence, now.beat) != (seen.fence, seen.beat) {
            if now.fence == seen.fence && !reachable(&now.address).await {
                return Err(unreachable(root, &now));
            }
            // Another owner has taken over meanwhile: judge that one from the start.
            since = Instant::now();
        }
        seen = now;
    }
}

fn unreachable(root: &Root, record: &OwnerRecord) -> Error {
    let message = format!("the owner of `{}` (process {}) is alive and can't be reached at {}", root.url(), record.pid, record.address);
    Error::new(Kind::Unavailable, message).with_remedy("run the command where that address can be reached, or stop the owner")
}

async fn reachable(address: &str) -> bool {
    let address = address.split_once("://").map_or(address, |(_, rest)| rest).trim_end_matches('/');
    matches!(tokio::time::timeout(CONNECT, TcpStream::connect(address)).await, Ok(Ok(_)))
}

enum Look {
    Absent,
    Free { left_properly: bool },
    Held(Option<OwnerRecord>),
}

/// A shared lock is enough to look, so that two that look don't disturb each other.
fn look(path: &Path) -> Result<Look> {
    let mut file = match File::open(path) {
        Ok(file) => file,
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Look::Absent),
        Err(e) => return Err(lock_error(path, &e)),
    };
    let mut text = String::new();
    match file.try_lock_shared() {
        Ok(()) => {
            file.read_to_string(&mut text).map_err(|e| lock_error(path, &e))?;
            Ok(Look::Free { left_properly: text.trim().is_empty() })
        }
        Err(TryLockError::WouldBlock) => {
            file.read_to_string(&mut text).map_err(|e| lock_error(path, &e))?;
            Ok(Look::Held(serde_json::from_str(&text).ok()))
        }
        Err(TryLockError::Error(e)) => Err(lock_error(path, &e)),
    }
}

/// The lock of a local root, held by its one owner until it is dropped or the process ends.
#[derive(Debug)]
pub struct LocalLock {
    file: File,
    path: PathBuf,
}

impl LocalLock {
    /// Takes the lock; `None` for a root that isn't a local folder, where the journal's fence alone decides. `FailedPrecondition` when another
    /// process holds it, naming that process; `PermissionDenied` on a read-only root.
    pub async fn acquire(root: &Root) -> Result<Option<LocalLock>> {
        let Some(folder) = root.local_path() else { return Ok(None) };
        let path = folder.join(LOCK_FILE);
        let taken = tokio::task::spawn_blocking(move || Self::take(path)).await;
        taken.map_err(|e| Error::internal(format!("taking the lock: {e}")))?.map(Some)
    }

    fn take(path: PathBuf) -> Result<LocalLock> {
        let started = Instant::now();
        loop {
            let opened = OpenOptions::new().read(true).write(true).create(true).truncate(false).open(&path);
            let file = opened.map_err(|e| lock_error(&path, &e))?;
            match file.try_lock() {
                Ok(()) => {
                    let mut lock = LocalLock { file, path: path.clone() };
                    // A takeover may have put another file in its place between opening and locking.
                    if lock.is_current() {
                        // The last owner's address is stale from here on; whoever looks waits for ours.
                        lock.write(b"starting")?;
                        return Ok(lock);
                    }
                }
                Err(TryLockError::WouldBlock) if started.elapsed() < LOCK_RETRY => {}
                Err(TryLockError::WouldBlock) => return Err(held(&path)),
                Err(TryLockError::Error(e)) => return Err(lock_error(&path, &e)),
            }
            std::thread::sleep(Duration::from_millis(10));
        }
    }

    /// Puts a lock of ours in the place of one whose holder lives and does nothing, as a stopped process does. Only for a standby that saw
    /// the holder's heartbeat stand still: from then on the journal's fence keeps the old holder out, and its file is nobody's.
    pub async fn take_over(root: &Root) -> Result<Option<LocalLock>> {
        let Some(folder) = root.local_path() else { return Ok(None) };
        let path = folder.join(LOCK_FILE);
        let taken = tokio::task::spawn_blocking(move || Self::replace(path)).await;
        taken.map_err(|e| Error::internal(format!("taking over the lock: {e}")))?.map(Some)
    }

    fn replace(path: PathBuf) -> Result<LocalLock> {
        let fresh = path.with_extension(format!("lock.{}", uuid::Uuid::new_v4().simple()));
        let file = OpenOptions::new().read(true).write(true).create_new(true).open(&fresh).map_err(|e| lock_error(&fresh, &e))?;
        file.try_lock().map_err(|_| Error::internal(format!("`{}` is locked before anybody knows it", fresh.display())))?;
        let mut lock = LocalLock { file, path };
        lock.write(b"starting")?;
        std::fs::rename(&fresh, &lock.path).map_err(|e| lock_error(&lock.path, &e))?;
        Ok(lock)
    }

    /// Whether newcomers find this lock: false once another process took over.
    pub fn is_current(&self) -> bool {
        match (self.file.metadata(), std::fs::metadata(&self.path)) {
            (Ok(ours), Ok(there)) => (ours.dev(), ours.ino()) == (there.dev(), there.ino()),
            _ => false,
        }
    }

    /// Says where this owner listens, for newcomers to find without reading the journal.
    pub fn announce(&mut self, record: &OwnerRecord) -> Result<()> {
        let text = serde_json::to_vec(record).map_err(|e| Error::internal(format!("owner record: {e}")))?;
        self.write(&text)
    }

    /// Leaves properly: the next one to look finds no owner rather than a dead one.
    pub fn release(mut self) -> Result<()> {
        self.write(b"")
    }

    fn write(&mut self, text: &[u8]) -> Result<()> {
        let mut write = || {
            self.file.set_len(0)?;
            self.file.rewind()?;
            self.file.write_all(text)
        };
        write().map_err(|e| lock_error(&self.path, &e))
    }
}

fn held(path: &Path) -> Error {
    let record = std::fs::read_to_string(path).ok().and_then(|t| serde_json::from_str::<OwnerRecord>(&t).ok());
    let by = record.map_or_else(|| "another process".to_owned(), |r| format!("process {} at {}", r.pid, r.address));
    let folder = path.parent().unwrap_or(path).display();
    Error::failed_precondition(format!("the root `{folder}` is owned by {by}")).with_remedy("connect to that owner, or stop it")
}

fn lock_error(path: &Path, error: &std::io::Error) -> Error {
    use std::io::ErrorKind as Io;
    let message = format!("`{}`: {error}", path.display());
    match error.kind() {
        Io::PermissionDenied | Io::ReadOnlyFilesystem => Error::new(Kind::PermissionDenied, message).with_remedy("make the root writable"),
        Io::StorageFull | Io::QuotaExceeded => {
            Error::new(Kind::ResourceExhausted, format!("disk full: {message}")).with_remedy("free some space")
        }
        _ => Error::internal(message),
    }
}

#[cfg(test)]
mod tests;
