//! What the dispatcher asks of storage and SQL: what is stored, how a pass is planned, what a commit says.

use std::collections::BTreeMap;
use std::sync::{Arc, OnceLock};
use std::time::{SystemTime, UNIX_EPOCH};

use async_trait::async_trait;
use forebay_core::dispatch::PassAnswer;
use forebay_core::ids::{DatasetName, EpochId, PassId, VersionId};
use forebay_core::job::JobSettings;
use forebay_core::{Error, Kind, Result, digest, random};
use forebay_sql::catalog::{Catalog, select_rows};
use forebay_sql::python::PythonPool;
use forebay_storage::artifact::{self, Of};
use forebay_storage::delta::{self, DatasetVersion, EpochCommit};

use super::admin;
use super::prepare::property;
use super::view::View;
use crate::dispatcher::{CommitOutcome, CommitRequest, Planner, StoredDataset};
use crate::metrics::Metrics;
use crate::serve::pass::{PassPlan, store_selection};
use crate::worker::task::Runs;

/// Plans passes and makes commits for one engine's dispatcher.
#[derive(Debug)]
pub(crate) struct EnginePlanner {
    view: View,
    python: Arc<PythonPool>,
    runs: Arc<Runs>,
    metrics: Metrics,
    /// Set once, before the port opens: filters are evaluated by the same sessions as queries.
    catalog: OnceLock<Catalog>,
}

/// Table property that names an epoch's list of quarantine files.
fn quarantine_property(epoch: EpochId) -> String {
    format!("forebay.quarantine.{epoch}")
}

/// The artefact that lists an epoch's quarantine files; none where no row was set aside.
pub(crate) fn quarantine_list(properties: &BTreeMap<String, String>, epoch: EpochId) -> Option<String> {
    properties.get(&quarantine_property(epoch)).cloned()
}

pub(super) fn now_ms() -> i64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}

fn json_text<T: serde::Serialize>(value: &T) -> Result<String> {
    serde_json::to_string(value).map_err(|e| Error::internal(format!("a table property could not be written: {e}")))
}

impl EnginePlanner {
    pub(crate) fn new(view: View, python: Arc<PythonPool>, runs: Arc<Runs>, metrics: Metrics) -> Self {
        Self { view, python, runs, metrics, catalog: OnceLock::new() }
    }

    pub(crate) fn use_catalog(&self, catalog: Catalog) {
        // A second one would be the same.
        let _ = self.catalog.set(catalog);
    }

    async fn newest(&self, dataset: &DatasetName, version: Option<VersionId>) -> Result<Option<Arc<DatasetVersion>>> {
        match self.view.version(dataset, version).await {
            Ok(version) => Ok(Some(version)),
            Err(e) if e.kind == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// Evaluates the job's filter once, and keeps the rows that pass.
    async fn select(
        &self,
        settings: &JobSettings,
        version: &Arc<DatasetVersion>,
        epoch: EpochId,
    ) -> Result<Option<crate::serve::pass::NamedSelection>> {
        let Some(filter) = &settings.filter else { return Ok(None) };
        let catalog = self.catalog.get().ok_or_else(|| Error::internal("the planner has no catalog yet"))?;
        let selection = select_rows(catalog, version.clone(), epoch, filter).await?;
        let name = format!("selections/v{}-e{epoch}-{}.bin", version.version, digest::hex(random::text_key(filter)));
        store_selection(self.view.root(), &settings.job, &name, &selection).await?;
        Ok(Some((name, Arc::new(selection))))
    }

    async fn properties(&self, request: &CommitRequest) -> Result<BTreeMap<String, String>> {
        let spec = &request.spec;
        let mut properties = BTreeMap::from([
            (property::FINGERPRINT.to_owned(), spec.fingerprint.clone()),
            (property::PIPELINE.to_owned(), json_text(&spec.pipeline)?),
            (property::SNAPSHOT.to_owned(), spec.snapshot.clone()),
            (property::PARTS.to_owned(), json_text(&spec.parts)?),
            (property::CODE.to_owned(), json_text(&spec.code)?),
        ]);
        if !request.quarantine.is_empty() {
            let list = random::key(&request.quarantine.iter().map(|name| random::text_key(name)).collect::<Vec<_>>());
            let name = format!("quarantine/epoch={}/list-{}.json", request.epoch, digest::hex(list));
            artifact::put_json(self.view.root(), Of::Dataset(&spec.dataset), &name, &request.quarantine).await?;
            properties.insert(quarantine_property(request.epoch), name);
        }
        Ok(properties)
    }
}

#[async_trait]
impl Planner for EnginePlanner {
    async fn stored(&self, dataset: &DatasetName, version: Option<VersionId>) -> Result<Option<StoredDataset>> {
        let Some(found) = self.newest(dataset, version).await? else { return Ok(None) };
        let property = |name: &str| found.properties.get(name).cloned().unwrap_or_default();
        Ok(Some(StoredDataset {
            version: found.version,
            epochs: found.epochs(),
            fingerprint: property(property::FINGERPRINT),
            pipeline: admin::spec(&found),
            parts: serde_json::from_str(&property(property::PARTS)).unwrap_or_default(),
        }))
    }

    async fn pass_shape(&self, settings: &JobSettings, pass: PassId, epochs: &[EpochId]) -> Result<PassAnswer> {
        let missing = || Error::failed_precondition(format!("dataset `{}` has no epoch", settings.dataset));
        let epoch = *epochs.get(pass.0 as usize % epochs.len().max(1)).ok_or_else(missing)?;
        let Some(version) = self.newest(&settings.dataset, settings.version).await? else {
            return match settings.version {
                Some(version) => Err(Error::not_found(format!("dataset `{}` has no version {version}", settings.dataset))),
                None => Ok(PassAnswer::NotYet),
            };
        };
        if !version.epochs().contains(&epoch) {
            return Ok(PassAnswer::NotYet);
        }
        let selection = self.select(settings, &version, epoch).await?;
        Ok(PassAnswer::Shape(PassPlan::new(version, epoch, pass, settings, selection)?.shape()))
    }

    async fn commit_body(&self, request: &CommitRequest) -> Result<(VersionId, String)> {
        let spec = &request.spec;
        let previous = self.newest(&spec.dataset, None).await?;
        let run = self.runs.get(self.view.root(), &self.python, spec).await?;
        let mut properties = self.properties(request).await?;
        let kept = previous.as_ref().filter(|_| !request.replace);
        // What was indexed meanwhile stays as it is: the new epoch's shards are read row by row where theirs differs.
        let mut texts = spec.pipeline.index.columns();
        texts.extend(kept.map(|p| p.text_columns()).unwrap_or_default());
        if !texts.is_empty() {
            properties.insert(delta::INDEX_PROPERTY.to_owned(), delta::index_property(&texts)?);
        }
        let commit = EpochCommit {
            name: spec.dataset.clone(),
            epoch: request.epoch,
            schema: run.schema.clone(),
            shards: request.shards.clone(),
            properties,
            replace: request.replace,
            txn: (format!("forebay/{}/{}", spec.dataset, request.epoch), i64::try_from(request.run.0).unwrap_or(i64::MAX)),
            now_ms: now_ms(),
        };
        let version = previous.as_ref().map_or(VersionId(0), |p| VersionId(p.version.0 + 1));
        Ok((version, delta::commit_body(previous.as_deref(), &commit)?))
    }

    async fn commit_at(&self, dataset: &DatasetName, version: VersionId, body: &str) -> Result<CommitOutcome> {
        Ok(match delta::commit_at(self.view.root(), dataset, version, body).await? {
            delta::CommitOutcome::Ours => CommitOutcome::Ours,
            delta::CommitOutcome::Foreign => CommitOutcome::Foreign,
        })
    }

    fn published(&self, _dataset: &DatasetName, _version: VersionId) {
        self.metrics.epochs_published.inc();
    }
}
