//! Reading a journal that someone else may be writing. Never writes, so it works on a read-only root.

use forebay_core::{Error, Result};
use futures::TryStreamExt;
use slatedb::object_store::path::Path;
use slatedb::{DbReader, DbReaderMode, ErrorKind};
use std::time::Duration;

use super::{JOURNAL_PATH, Loaded, error, scan};
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
    let reader = match opened {
        Ok(reader) => reader,
        Err(e) if e.kind() == ErrorKind::Data => return Err(Error::corrupt(format!("the journal can't be read: {e}"))),
        Err(e) => return Err(error(&e).context("reading the journal")),
    };
    let loaded = scan(reader.scan::<std::ops::RangeFull>(..).await).await;
    // Only stops its polling; there is nothing to lose.
    let _ = reader.close().await;
    loaded
}
