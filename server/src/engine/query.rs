//! `[source] sql`: a query over datasets is staged once, and read from then on like any other source.
//!
//! Owns: when its answer is made, where it lies, and when one that lies there is the answer. Must not know: what the query means.
//!
//! The snapshot of such a source names the staged file and the versions that the query read. It is written once, under the run's fingerprint:
//! of two that stage the same query at the same time the first to write it wins, and all epochs and attempts read that one file. A run's
//! journal entry names its snapshot, so that a restart goes on with the rows that it began with. A file that got lost is made again; epochs that
//! exist get more epochs from it only where it holds the same rows in the same order.

use std::collections::{BTreeMap, HashSet};
use std::sync::Arc;

use arrow::array::RecordBatch;
use arrow::row::{RowConverter, SortField};
use forebay_core::dispatch::{INPUT_PART, refuse_changed};
use forebay_core::ids::{DatasetName, EpochId};
use forebay_core::pipeline::{self, PipelineSpec, SourceSpec};
use forebay_core::source::{SourceSnapshot, StagedQuery};
use forebay_core::{Error, Kind, Result, digest};
use forebay_flight::backend::BatchSource;
use forebay_sql::catalog::SourceQuery;
use forebay_storage::artifact::{self, Of};
use forebay_storage::delta::{DatasetVersion, QUERIES};
use forebay_storage::source;
use object_store::path::Path;
use parking_lot::Mutex;
use tokio_util::task::AbortOnDropHandle;

use super::prepare::property;
use super::stage::stage;
use super::{Engine, admin};

/// The staged file's name in its own folder; shown as `_source`.
const FILE: &str = "query.arrow";

/// Files that are being staged or were, and that no run names yet: a vacuum leaves them.
#[derive(Debug, Clone, Default)]
pub(crate) struct Staging(Arc<Mutex<HashSet<String>>>);

/// A file's place in [`Staging`].
#[derive(Debug)]
pub(super) struct Held {
    all: Staging,
    path: String,
}

impl Staging {
    fn hold(&self, path: String) -> Held {
        self.0.lock().insert(path.clone());
        Held { all: self.clone(), path }
    }

    fn paths(&self) -> Vec<String> {
        self.0.lock().iter().cloned().collect()
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.all.0.lock().remove(&self.path);
    }
}

/// What a run needs to know of its source.
#[derive(Debug)]
pub(super) struct Taken {
    pub(super) snapshot: SourceSnapshot,
    /// Where the snapshot is kept.
    pub(super) name: String,
    pub(super) fingerprint: String,
    /// The rows were made again: what an earlier run staged of them does not count.
    pub(super) again: bool,
    pub(super) held: Option<Held>,
}

/// What is asked for, as far as it decides whether the query runs.
pub(super) struct Wanted<'a> {
    pub(super) spec: &'a PipelineSpec,
    pub(super) code: &'a [(String, String)],
    /// What is in the fingerprint beside the spec, by names for users.
    pub(super) parts: BTreeMap<String, String>,
    pub(super) stored: Option<&'a DatasetVersion>,
    pub(super) previous: Option<&'a SourceSnapshot>,
    pub(super) epochs: &'a [EpochId],
    pub(super) replace: bool,
}

/// What of a source is in the fingerprint beside its text, by names for users.
pub(super) fn parts(query: &StagedQuery, parts: &mut BTreeMap<String, String>) {
    for input in &query.inputs {
        let version = format!("v{} {}", input.version, input.table);
        let part = parts.entry(format!("{INPUT_PART}{}", input.dataset)).or_default();
        *part = if part.is_empty() { version } else { format!("{part},{version}") };
    }
}

/// Digest of rows in their order, however they are cut into batches; none where a column's type has no bytes to compare.
struct RowsDigest(Option<(RowConverter, digest::BytesDigest)>);

impl RowsDigest {
    fn new(schema: &arrow::datatypes::Schema) -> Self {
        let fields = schema.fields().iter().map(|f| SortField::new(f.data_type().clone())).collect::<Vec<_>>();
        let known = RowConverter::supports_fields(&fields).then(|| RowConverter::new(fields).ok()).flatten();
        Self(known.map(|converter| (converter, digest::BytesDigest::default())))
    }

    fn push(&mut self, batch: &RecordBatch) {
        let Some((converter, digest)) = &mut self.0 else { return };
        match converter.convert_columns(batch.columns()) {
            Ok(rows) => rows.iter().for_each(|row| digest.push(row.as_ref())),
            Err(_) => self.0 = None,
        }
    }

    fn finish(&self) -> Option<String> {
        self.0.as_ref().map(|(_, digest)| digest::hex(digest.finish()))
    }
}

impl Engine {
    /// Checks a pipeline's query, pins what it reads, and writes its text as it counts.
    pub(super) async fn pin_query(&self, spec: &mut PipelineSpec) -> Result<Option<SourceQuery>> {
        let Some(text) = &spec.source.sql else { return Ok(None) };
        let named = |e: Error| e.context("source.sql");
        let query = self.catalog().source(text, &spec.name).await.map_err(named)?;
        source::query_columns(&query.schema)?;
        spec.source.sql = Some(query.sql.clone());
        Ok(Some(query))
    }

    /// The snapshot of a query: the one that is there, or one of its answer, which is staged now.
    pub(super) async fn query_snapshot(&self, query: &SourceQuery, wanted: Wanted<'_>) -> Result<Taken> {
        let spec = wanted.spec;
        let fingerprint = pipeline::fingerprint(&spec.canonical(), wanted.code, &unstaged(query));
        let stored = wanted.stored.filter(|v| v.properties.get(property::FINGERPRINT) == Some(&fingerprint));
        let first = format!("sources/{fingerprint}.json");
        let found = self.staged(spec, &fingerprint, stored, &first).await?;
        let complete = stored.is_some_and(|v| wanted.epochs.iter().all(|e| v.epochs().contains(e)));
        let lost = match found {
            Some((name, snapshot, there)) if there || complete => {
                let held = self.hold(&snapshot);
                return Ok(Taken { snapshot, name, fingerprint, again: false, held });
            }
            other => other.map(|(_, snapshot, _)| snapshot),
        };
        if let (Some(other), None, false) = (wanted.stored, stored, wanted.replace) {
            // The dispatcher would say the same, after the query had run.
            return Err(refuse_changed(admin::spec(other).as_ref(), &admin::parts(other), spec, &wanted.parts));
        }
        let (mut snapshot, held) = self.stage_query(query, spec, wanted.previous).await?;
        if let Some(lost) = &lost {
            same_rows(&mut snapshot, lost, stored)?;
        }
        let again = lost.is_some();
        let name = if again { format!("sources/{fingerprint}-{}.json", uuid::Uuid::new_v4().simple()) } else { first };
        match artifact::put_json(self.root(), Of::Dataset(&spec.name), &name, &snapshot).await {
            Ok(()) => Ok(Taken { snapshot, name, fingerprint, again, held: Some(held) }),
            // Somebody staged the same at the same time, and was first.
            Err(e) if e.kind == Kind::AlreadyExists => {
                self.remove_query(&spec.name, &snapshot).await;
                let kept: Option<SourceSnapshot> = artifact::get_json(self.root(), Of::Dataset(&spec.name), &name).await?;
                let snapshot = kept.ok_or_else(|| Error::new(Kind::Unavailable, "the source's snapshot comes and goes"))?;
                let held = self.hold(&snapshot);
                Ok(Taken { snapshot, name, fingerprint, again: false, held })
            }
            Err(e) => Err(e),
        }
    }

    /// The snapshot that counts for a fingerprint, under which name, and whether its file is what it was: first that of the published version,
    /// then that of the last run, then the first that was written.
    async fn staged(
        &self,
        spec: &PipelineSpec,
        fingerprint: &str,
        stored: Option<&DatasetVersion>,
        first: &str,
    ) -> Result<Option<(String, SourceSnapshot, bool)>> {
        let mut names: Vec<String> = stored.and_then(|v| v.properties.get(property::SNAPSHOT).cloned()).into_iter().collect();
        let run = self.dispatcher()?.run_spec(&spec.name).await?;
        names.extend(run.filter(|r| r.fingerprint == fingerprint).map(|r| r.snapshot.clone()));
        names.push(first.to_owned());
        names.dedup();
        let mut best = None;
        for name in names {
            let found: Option<SourceSnapshot> = artifact::get_json(self.root(), Of::Dataset(&spec.name), &name).await?;
            let Some(snapshot) = found else { continue };
            let snapshot = source::under_root(snapshot, spec.source.format, &self.root().table_url(&spec.name));
            let there = match source::unchanged(&files(spec), &snapshot.base, &snapshot, &|_| true).await {
                Err(e) if e.kind == Kind::BadInput => false,
                other => other?,
            };
            if there {
                return Ok(Some((name, snapshot, true)));
            }
            best.get_or_insert((name, snapshot, false));
        }
        Ok(best)
    }

    /// Runs the query and keeps its answer.
    async fn stage_query(
        &self,
        query: &SourceQuery,
        spec: &PipelineSpec,
        previous: Option<&SourceSnapshot>,
    ) -> Result<(SourceSnapshot, Held)> {
        let folder = format!("{QUERIES}{}", uuid::Uuid::new_v4().simple());
        let held = self.staging().hold(format!("{folder}/{FILE}"));
        let rows = self.catalog().rows_of(query).await.map_err(|e| e.context("source.sql"))?;
        let mut digest = RowsDigest::new(&rows.schema);
        let (root, location) = (self.root().clone(), Path::from(format!("datasets/{}/{folder}/{FILE}", spec.name)));
        let batches = BatchSource { schema: rows.schema, batches: rows.stream };
        // Encoding takes time: not on the threads that answer calls. Whoever asked may go away, and the query ends with them.
        let work = self.compute().spawn(async move {
            let rows = stage(&root, location, batches, |batch| digest.push(batch)).await?;
            Ok::<_, Error>((rows, digest.finish()))
        });
        let staged = AbortOnDropHandle::new(work).await.map_err(|e| Error::internal(format!("staging the source: {e}")))?;
        let (rows, digest) = staged.map_err(|e| e.context("source.sql"))?;
        let base = format!("{}/{folder}", self.root().table_url(&spec.name));
        let taken = match rows {
            0 => {
                Err(Error::bad_input("source.sql: the query has no rows").with_remedy("try it with `forebay sql`, and mend its conditions"))
            }
            _ => source::snapshot(&files(spec), &base, previous, &|_| true).await,
        };
        let known = StagedQuery { inputs: query.inputs.clone(), rows, digest };
        match taken {
            Ok(snapshot) => Ok((SourceSnapshot { query: Some(known), ..snapshot }, held)),
            Err(error) => {
                self.remove_query(&spec.name, &SourceSnapshot { base, ..empty() }).await;
                Err(error)
            }
        }
    }

    /// Removes a staged file that no snapshot names.
    async fn remove_query(&self, name: &DatasetName, snapshot: &SourceSnapshot) {
        let Some(path) = staged_path(snapshot) else { return };
        let private = path.trim_start_matches("_forebay/");
        if let Err(error) = artifact::delete(self.root(), Of::Dataset(name), private).await {
            tracing::warn!(%error, dataset = %name, "a staged query that is not needed could not be removed; a vacuum will");
        }
    }

    fn hold(&self, snapshot: &SourceSnapshot) -> Option<Held> {
        staged_path(snapshot).map(|path| self.staging().hold(path))
    }

    /// The staged answers that a dataset's version and its run go on reading, relative to its table.
    pub(super) async fn staged_queries(&self, version: &DatasetVersion) -> Result<Vec<String>> {
        let run = self.dispatcher()?.run_spec(&version.name).await?.map(|run| run.snapshot.clone());
        let mut paths = self.staging().paths();
        for name in version.properties.get(property::SNAPSHOT).cloned().into_iter().chain(run) {
            let snapshot: Option<SourceSnapshot> = artifact::get_json(self.root(), Of::Dataset(&version.name), &name).await?;
            paths.extend(snapshot.filter(|s| s.query.is_some()).as_ref().and_then(staged_path));
        }
        Ok(paths)
    }
}

/// What is known of a query before it ran.
pub(super) fn unstaged(query: &SourceQuery) -> SourceSnapshot {
    SourceSnapshot { query: Some(StagedQuery { inputs: query.inputs.clone(), rows: 0, digest: None }), ..empty() }
}

fn empty() -> SourceSnapshot {
    SourceSnapshot { base: String::new(), files: Vec::new(), tasks: Vec::new(), columns: Vec::new(), next_id: 0, query: None }
}

/// The source as its staged file is read.
fn files(spec: &PipelineSpec) -> SourceSpec {
    SourceSpec { uri: vec![FILE.to_owned()], ..spec.source.clone() }
}

/// Where a snapshot's file lies, relative to the dataset's table.
fn staged_path(snapshot: &SourceSnapshot) -> Option<String> {
    snapshot.base.rfind(QUERIES).map(|at| format!("{}/{FILE}", &snapshot.base[at..]))
}

/// Gives rows that were made again the ids that they had, where they are the same.
///
/// # Errors
/// `FailedPrecondition` where they are others and the epochs that are stored were made of the lost ones.
fn same_rows(again: &mut SourceSnapshot, lost: &SourceSnapshot, stored: Option<&DatasetVersion>) -> Result<()> {
    let rows = |s: &SourceSnapshot| s.query.as_ref().and_then(|q| Some((q.rows, q.digest.clone()?)));
    if rows(again).is_some() && rows(again) == rows(lost) {
        if let (Some(new), Some(old)) = (again.files.first_mut(), lost.files.first()) {
            new.id_base = old.id_base;
            again.next_id = again.next_id.max(lost.next_id);
        }
        return Ok(());
    }
    match stored {
        None => Ok(()),
        Some(version) => Err(Error::failed_precondition(format!(
            "source.sql: the staged answer that the epochs of `{}` were made of is gone, and the query now gives other rows or another order",
            version.name
        ))
        .with_remedy("materialize under another name; an ORDER BY that decides the order lets it be made again")),
    }
}
