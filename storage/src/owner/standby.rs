//! A standby's view of the leader: who leads, and when the lead may be taken.

use std::time::{Duration, Instant};

use forebay_core::ids::Fence;
use forebay_core::{Kind, Result};

use super::{DEAD_AFTER, LocalLock, OwnerRecord};
use crate::journal::read_owner;
use crate::root::Root;

/// What one look found.
#[derive(Debug)]
pub enum Sight {
    /// Somebody leads, or is about to; its last heartbeat, if one was ever written.
    Led(Option<OwnerRecord>),
    /// The lead may be taken, with the lock where the root is local.
    Free(Option<LocalLock>),
}

/// Follows the leader's heartbeat on this process's own monotonic clock.
///
/// The lead is free when a local root's lock is, or when the same heartbeat was read again six seconds after it was first seen. A read that
/// fails proves nothing, so a standby without a store takes over from nobody.
#[derive(Debug)]
pub struct Standby {
    root: Root,
    dead_after: Duration,
    seen: Option<((Fence, u64), Instant)>,
}

impl Standby {
    pub fn new(root: Root) -> Self {
        Self { root, dead_after: DEAD_AFTER, seen: None }
    }

    /// Looks once; call it about once a second.
    ///
    /// # Errors
    /// What reading the lock or the journal says.
    pub async fn look(&mut self) -> Result<Sight> {
        if self.root.local_path().is_some() {
            match LocalLock::acquire(&self.root).await {
                Ok(lock) => return Ok(Sight::Free(lock)),
                Err(e) if e.kind == Kind::FailedPrecondition => {}
                Err(e) => return Err(e),
            }
        }
        let record = read_owner(&self.root).await?;
        // Taken after the read: what was read is at least this old.
        let now = Instant::now();
        let Some(found) = record else {
            // Nobody leads a remote root, or the last leader left properly. A local one's lock is held by whoever is about to lead.
            return Ok(if self.root.local_path().is_some() { Sight::Led(None) } else { Sight::Free(None) });
        };
        let beat = (found.fence, found.beat);
        match self.seen {
            Some((before, since)) if before == beat && now.duration_since(since) >= self.dead_after => {}
            Some((before, _)) if before == beat => return Ok(Sight::Led(Some(found))),
            _ => {
                self.seen = Some((beat, now));
                return Ok(Sight::Led(Some(found)));
            }
        }
        self.seen = None;
        Ok(Sight::Free(LocalLock::take_over(&self.root).await?))
    }
}
