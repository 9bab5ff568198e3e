//! `forebay.index`: builds the text index of epochs that exist, and publishes it as one version.
//!
//! Bundles are built under names that no version names; one commit names them all, so that a reader sees the whole index or none of it. A run that
//! was cut short finds its finished bundles again.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;
use std::time::{SystemTime, UNIX_EPOCH};

use forebay_core::ids::{DatasetName, VersionId};
use forebay_core::shard::ShardMeta;
use forebay_core::text::{BundleMeta, TextColumns, Tokenizer};
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::{IndexProgress, IndexRequest};
use forebay_sql::text::build::{BuildRequest, MEMORY_BUDGET};
use forebay_sql::text::check_columns;
use forebay_storage::delta::{self, CommitOutcome, DatasetVersion};
use futures::stream::{self, BoxStream};
use futures::{StreamExt, TryStreamExt};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::mpsc;
use tokio::task::JoinHandle;

use super::Engine;

/// Commits that lost against other writers before giving up.
const TRIES: u32 = 20;
/// Progress messages ahead of their reader.
const AHEAD: usize = 64;

/// The datasets that are being indexed: one run each, and no vacuum meanwhile.
#[derive(Debug, Clone, Default)]
pub(crate) struct Indexing(Arc<Mutex<HashSet<DatasetName>>>);

/// A dataset's place in [`Indexing`].
#[derive(Debug)]
struct Busy {
    all: Indexing,
    name: DatasetName,
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.name);
    }
}

impl Indexing {
    fn begin(&self, name: &DatasetName) -> Result<Busy> {
        if self.0.lock().insert(name.clone()) {
            return Ok(Busy { all: self.clone(), name: name.clone() });
        }
        Err(Error::failed_precondition(format!("`{name}` is being indexed")).with_remedy("wait until it is done"))
    }

    /// # Errors
    /// `FailedPrecondition` while the dataset is being indexed: bundles that are to be named would look like leftovers.
    pub(crate) fn check_idle(&self, name: &DatasetName) -> Result<()> {
        match self.0.lock().contains(name) {
            false => Ok(()),
            true => Err(Error::failed_precondition(format!("`{name}` is being indexed")).with_remedy("vacuum it when that is done")),
        }
    }
}

/// One run of indexing.
struct Run {
    engine: Arc<Engine>,
    name: DatasetName,
    column: String,
    tokenizer: Option<Tokenizer>,
    rebuild: bool,
    told: mpsc::Sender<Result<Value>>,
    _busy: Busy,
}

impl Engine {
    /// Indexes a column of every epoch; streams progress. Dropping the stream stops it, and what is done is kept.
    pub(crate) async fn index(self: Arc<Self>, request: IndexRequest) -> Result<BoxStream<'static, Result<Value>>> {
        self.dispatcher()?;
        let version = self.known(&request.dataset, None).await?;
        let tokenizer = request.tokenizer.as_deref().map(str::parse).transpose().map_err(|e: Error| e.context("tokenizer"))?;
        columns(&version, &request.column, tokenizer)?;
        let busy = self.indexing().begin(&version.name)?;
        let (told, answers) = mpsc::channel(AHEAD);
        let run = Run {
            engine: self.clone(),
            name: version.name.clone(),
            column: request.column,
            tokenizer,
            rebuild: request.rebuild,
            told,
            _busy: busy,
        };
        let work = self.compute().spawn(run.finish());
        Ok(stream::unfold((answers, Stop(work)), |(mut answers, work)| async move { Some((answers.recv().await?, (answers, work))) })
            .boxed())
    }
}

/// Ends the work with its reader.
struct Stop(JoinHandle<()>);

impl Drop for Stop {
    fn drop(&mut self) {
        self.0.abort();
    }
}

/// The text columns of a dataset with one more, or with another tokenizer for it.
fn columns(version: &DatasetVersion, column: &str, tokenizer: Option<Tokenizer>) -> Result<TextColumns> {
    let mut columns = version.text_columns();
    let tokenizer = tokenizer.or_else(|| columns.get(column).copied()).unwrap_or_default();
    check_columns(&[(column.to_owned(), tokenizer)].into(), &version.schema)
        .map_err(|e| e.context(format!("dataset `{}`", version.name)))?;
    columns.insert(column.to_owned(), tokenizer);
    Ok(columns)
}

fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

impl Run {
    async fn finish(self) {
        if let Err(error) = self.build_and_publish().await {
            // Whoever asked may have gone away.
            let _ = self.told.send(Err(error)).await;
        }
    }

    async fn build_and_publish(&self) -> Result<()> {
        let variant = if self.rebuild { format!("-{}", now_ms()) } else { String::new() };
        let mut built: BTreeMap<String, BundleMeta> = BTreeMap::new();
        for _ in 0..TRIES {
            // Another writer may have added epochs, or the answer to the last commit got lost.
            let version = delta::open_version(self.engine.root(), &self.name, None).await?;
            let columns = columns(&version, &self.column, self.tokenizer)?;
            let bare = |s: &&ShardMeta| {
                let named = s.index.as_ref().filter(|_| !self.rebuild || built.contains_key(&s.path));
                !named.is_some_and(|i| i.covers_all(&columns)) && !built.get(&s.path).is_some_and(|i| i.covers_all(&columns))
            };
            let bare: Vec<ShardMeta> = version.shards.iter().filter(bare).cloned().collect();
            let mut progress = self.progress(&version, &columns, &bare);
            self.tell(&progress).await?;
            self.build(&version, &columns, bare, &variant, &mut progress, &mut built).await?;
            let named: BTreeMap<String, BundleMeta> = version
                .shards
                .iter()
                .filter_map(|s| built.get(&s.path).filter(|b| s.index.as_ref() != Some(*b)).map(|b| (s.path.clone(), b.clone())))
                .collect();
            if named.is_empty() && version.text_columns() == columns {
                progress.state = if built.is_empty() { "already_indexed" } else { "done" }.to_owned();
                progress.version = Some(version.version.0);
                return self.tell(&progress).await;
            }
            let body = delta::index_body(&version, &columns, &named, now_ms())?;
            let next = VersionId(version.version.0 + 1);
            if delta::commit_at(self.engine.root(), &self.name, next, &body).await? == CommitOutcome::Ours {
                progress.state = "done".to_owned();
                progress.version = Some(next.0);
                return self.tell(&progress).await;
            }
        }
        Err(Error::new(Kind::Unavailable, format!("others keep writing to `{}`; its index is built and not published", self.name))
            .with_remedy("run the same command again"))
    }

    async fn build(
        &self,
        version: &DatasetVersion,
        columns: &TextColumns,
        bare: Vec<ShardMeta>,
        variant: &str,
        progress: &mut IndexProgress,
        built: &mut BTreeMap<String, BundleMeta>,
    ) -> Result<()> {
        let root = self.engine.root();
        let request = BuildRequest { root, name: &self.name, stored: &version.stored, columns, memory: MEMORY_BUDGET, variant };
        let wanted = || !self.told.is_closed();
        let builds = stream::iter(bare).map(|shard| {
            let request = request.clone();
            async move {
                let bundle = request.shard(&shard, wanted).await.map_err(|e| e.context(format!("indexing {}", shard.path)))?;
                Ok::<_, Error>((shard, bundle))
            }
        });
        let mut builds = builds.buffer_unordered(self.engine.config().slots.max(1)).boxed();
        while let Some((shard, bundle)) = builds.try_next().await? {
            progress.shards_done += 1;
            progress.rows_done += shard.rows();
            progress.bytes += bundle.size;
            built.insert(shard.path, bundle);
            self.tell(progress).await?;
        }
        Ok(())
    }

    fn progress(&self, version: &DatasetVersion, columns: &TextColumns, bare: &[ShardMeta]) -> IndexProgress {
        let left: u64 = bare.iter().map(ShardMeta::rows).sum();
        let rows: u64 = version.shards.iter().map(ShardMeta::rows).sum();
        IndexProgress {
            dataset: self.name.0.clone(),
            column: self.column.clone(),
            tokenizer: columns.get(&self.column).copied().unwrap_or_default().to_string(),
            state: "running".to_owned(),
            shards: version.shards.len() as u64,
            shards_done: (version.shards.len() - bare.len()) as u64,
            rows,
            rows_done: rows - left,
            bytes: 0,
            version: None,
        }
    }

    async fn tell(&self, progress: &IndexProgress) -> Result<()> {
        let value = serde_json::to_value(progress).map_err(|e| Error::internal(format!("progress could not be written as JSON: {e}")))?;
        self.told.send(Ok(value)).await.map_err(|_| Error::new(Kind::Cancelled, "nobody waits for the index any more"))
    }
}
