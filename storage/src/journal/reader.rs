//! Reading a journal that someone else may be writing. Never writes, so it works on a read-only root.

use forebay_core::{Error, Result};
use futures::TryStreamExt;
use slatedb::object_store::path::Path;
use slatedb::{DbReader, DbReaderMode, ErrorKind};
use std::time::Duration;

use super::{JOURNAL_PATH, Loaded, OWNER_KEY, error, scan};
use crate::owner::OwnerRecord;
use crate::root::{Root, listing};

/// The owner may sweep a file between our seeing its name and opening it; the next attempt sees newer names.
const ATTEMPTS: u32 = 5;

/// State, entries and the owner's last heartbeat; `None` where no journal was ever written.
pub async fn read_journal(root: &Root) -> Result<Option<Loaded>> {
    if !exists(root).await? {
        return Ok(None);
    }
    let mut attempt = 0;
    loop {
        attempt += 1;
        match read(root).await {
            Ok(loaded) => return Ok(Some(loaded)),
            Err(_) if attempt < ATTEMPTS => tokio::time::sleep(Duration::from_millis(20 << attempt)).await,
            Err(e) => return Err(e),
        }
    }
}

async fn exists(root: &Root) -> Result<bool> {
    let manifests = Path::from(JOURNAL_PATH).join("manifest");
    use slatedb::object_store::Error as Failed;
    let store = root.journal_store();
    let first = listing::again(|| async { store.list(Some(&manifests)).try_next().await }, |e| listing::broken_text(e));
    match first.await {
        Ok(found) => Ok(found.is_some()),
        Err(Failed::NotFound { .. }) => Ok(false),
        Err(e) => Err(super::store_error(&e).context("looking for the journal")),
    }
}

async fn read(root: &Root) -> Result<Loaded> {
    let reader = open(root).await?;
    let loaded = scan(reader.scan::<std::ops::RangeFull>(..).await).await;
    // Only stops its polling; there is nothing to lose.
    let _ = reader.close().await;
    loaded
}

/// The owner's last heartbeat alone; `None` where nobody ever led, or the last leader left properly. One attempt: whoever watches looks again soon.
pub async fn read_owner(root: &Root) -> Result<Option<OwnerRecord>> {
    if !exists(root).await? {
        return Ok(None);
    }
    let reader = open(root).await?;
    let found = reader.get(OWNER_KEY).await;
    // Only stops its polling; there is nothing to lose.
    let _ = reader.close().await;
    match found.map_err(|e| error(&e).context("reading the owner's heartbeat"))? {
        // It left properly.
        Some(bytes) if bytes.is_empty() => Ok(None),
        Some(bytes) => serde_json::from_slice(&bytes).map(Some).map_err(|e| Error::corrupt(format!("the journal's owner record: {e}"))),
        None => Ok(None),
    }
}

async fn open(root: &Root) -> Result<DbReader> {
    let opened = DbReader::builder(JOURNAL_PATH, root.journal_store())
        .with_reader_mode(DbReaderMode::FollowLatest)
        .with_options(slatedb::config::DbReaderOptions {
            max_memtable_bytes: 4 << 20,
            object_store_max_retries: Some(3),
            ..Default::default()
        })
        .with_db_cache_disabled()
        .build()
        .await;
    match opened {
        Ok(reader) => Ok(reader),
        Err(e) if e.kind() == ErrorKind::Data => Err(Error::corrupt(format!("the journal can't be read: {e}"))),
        Err(e) => Err(error(&e).context("reading the journal")),
    }
}
