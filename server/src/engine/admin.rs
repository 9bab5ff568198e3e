//! What the actions answer: datasets, epochs, plans, jobs, tasks and workers, as the JSON of `forebay_flight::api`.

use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

use forebay_core::dispatch;
use forebay_core::ids::{DatasetName, EpochId, JobName, VersionId, ViewName, WorkerName};
use forebay_core::pipeline::PipelineSpec;
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::{
    ColumnInfo, DatasetDetail, DatasetSummary, DatasetsRequest, EpochInfo, FileInfo, JobRequest, JobStatus, PlanRequest,
};
use forebay_storage::delta::{self, DatasetVersion};
use forebay_storage::{types, views};
use serde_json::{Value, json};

use super::Engine;
use super::prepare::property;
use crate::roles::worker_rows;

/// Files that no version names stay this long: a writer may still be about to name them.
const VACUUM_AGE: Duration = Duration::from_secs(7 * 24 * 3600);

/// The pipeline's description, as it was when the version was published.
pub(crate) fn description(version: &DatasetVersion) -> String {
    spec(version).map(|s| s.description).unwrap_or_default()
}

/// The pipeline that made a version; none for tables that others wrote.
pub(crate) fn spec(version: &DatasetVersion) -> Option<PipelineSpec> {
    version.properties.get(property::PIPELINE).and_then(|text| serde_json::from_str(text).ok())
}

/// What else decided a version's rows, each under a name for users.
pub(crate) fn parts(version: &DatasetVersion) -> std::collections::BTreeMap<String, String> {
    version.properties.get(property::PARTS).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
}

/// Totals of each epoch of a version.
pub(crate) fn epochs(version: &DatasetVersion) -> Vec<EpochInfo> {
    let total = |epoch: EpochId| {
        let shards = version.shards_of(epoch);
        EpochInfo {
            epoch: epoch.0,
            rows: shards.iter().map(|s| s.rows()).sum(),
            bytes: shards.iter().map(|s| s.size).sum(),
            shards: shards.len() as u64,
            row_groups: shards.iter().map(|s| s.row_groups.len() as u64).sum(),
        }
    };
    version.epochs().into_iter().map(total).collect()
}

fn summary(version: &DatasetVersion) -> DatasetSummary {
    DatasetSummary {
        name: version.name.0.clone(),
        description: description(version),
        version: version.version.0,
        epochs: version.epochs().into_iter().map(|e| e.0).collect(),
        rows: version.shards.iter().map(|s| s.rows()).sum(),
        bytes: version.shards.iter().map(|s| s.size).sum(),
        shards: version.shards.len() as u64,
    }
}

pub(crate) fn json_of<T: serde::Serialize>(value: &T) -> Result<Value> {
    serde_json::to_value(value).map_err(|e| Error::internal(format!("an answer could not be written as JSON: {e}")))
}

/// Reads an action's body.
pub(crate) fn body<T: serde::de::DeserializeOwned>(action: &str, body: Value) -> Result<T> {
    serde_json::from_value(body)
        .map_err(|e| Error::bad_input(format!("{action}: {e}")).with_remedy("see the JSON bodies in docs/protocol.md"))
}

impl Engine {
    /// `forebay.datasets`.
    pub(crate) async fn datasets(&self, request: DatasetsRequest) -> Result<Value> {
        match request {
            DatasetsRequest::List => json_of(&self.view().all().await?.iter().map(|v| summary(v)).collect::<Vec<_>>()),
            DatasetsRequest::Show { name, version } => json_of(&self.detail(&name, version).await?),
            DatasetsRequest::Epochs { name } => json_of(&epochs(&*self.known(&name, None).await?)),
            DatasetsRequest::Drop { name } => {
                let name = match self.known(&name, None).await {
                    Ok(version) => version.name.clone(),
                    // What can't be read can be dropped.
                    Err(e) if e.kind == Kind::Corrupt => DatasetName::parse(&name)?,
                    Err(e) => return Err(e),
                };
                self.dispatcher()?.drop_dataset(&name).await?;
                delta::drop_dataset(self.root(), &name).await?;
                self.view().forget(&name);
                // They stay: a dataset of that name may come again.
                let views = self.views_of(&name).await?;
                Ok(json!({ "dropped": name, "views": views }))
            }
            DatasetsRequest::Vacuum { name, older_than_s, dry_run } => self.vacuum(&name, older_than_s, dry_run).await,
        }
    }

    /// A dataset by a name from outside; one that isn't there names the nearest that is.
    pub(crate) async fn known(&self, name: &str, version: Option<VersionId>) -> Result<Arc<DatasetVersion>> {
        let missing = |known: &[DatasetName]| {
            let remedy = match forebay_core::suggest::nearest(name, known.iter().map(DatasetName::as_str)) {
                Some(near) => format!("did you mean `{near}`?"),
                None if known.is_empty() => "this root has no dataset yet; make one with `forebay materialize`".to_owned(),
                None => format!("this root has {}", known.iter().map(DatasetName::as_str).collect::<Vec<_>>().join(", ")),
            };
            Error::not_found(format!("there is no dataset `{}`", name.escape_debug())).with_remedy(remedy)
        };
        let Ok(parsed) = DatasetName::parse(name) else {
            return Err(missing(&delta::list_datasets(self.root()).await?));
        };
        match self.view().version(&parsed, version).await {
            Err(e) if e.kind == Kind::NotFound => {
                if views::open(self.root(), &ViewName(parsed.0.clone())).await?.is_some() {
                    return Err(Error::not_found(format!("there is no dataset `{parsed}`: it is a view"))
                        .with_remedy("ask it with SQL, or read it as a job"));
                }
                let known = delta::list_datasets(self.root()).await?;
                Err(if known.contains(&parsed) { e } else { missing(&known) })
            }
            other => other,
        }
    }

    async fn detail(&self, name: &str, version: Option<u64>) -> Result<DatasetDetail> {
        let v = self.known(name, version.map(VersionId)).await?;
        let texts = v.text_columns();
        let columns = v.schema.fields().iter().map(|f| ColumnInfo {
            name: f.name().clone(),
            r#type: types::type_name(f),
            nullable: f.is_nullable(),
            text_index: texts.get(f.name()).map(ToString::to_string),
        });
        Ok(DatasetDetail {
            summary: summary(&v),
            fingerprint: v.properties.get(property::FINGERPRINT).cloned().unwrap_or_default(),
            columns: columns.collect(),
            epochs_detail: epochs(&v),
            files: v.shards.iter().map(|s| FileInfo { path: s.path.clone(), epoch: s.epoch.0, rows: s.rows(), bytes: s.size }).collect(),
            table: self.root().table_url(&v.name),
            pipeline: spec(&v).map_or(Ok(Value::Null), |s| json_of(&s))?,
        })
    }

    async fn vacuum(&self, name: &str, older_than_s: Option<u64>, dry_run: bool) -> Result<Value> {
        let version = self.known(name, None).await?;
        self.indexing().check_idle(&version.name)?;
        let age = older_than_s.map_or(VACUUM_AGE, Duration::from_secs);
        let mut staged: HashSet<String> = self.dispatcher()?.staged_paths(&version.name).await?.into_iter().collect();
        staged.extend(self.staged_queries(&version).await?);
        let gone = delta::vacuum(self.root(), &version.name, age, dry_run, &staged).await?;
        Ok(json!({ "dataset": version.name, "dry_run": dry_run, "removed": gone.paths, "bytes": gone.bytes }))
    }

    /// `forebay.job.status`.
    pub(crate) async fn job_status(&self, request: JobRequest) -> Result<Value> {
        let (state, _) = self.state().await?;
        match request.job {
            Some(name) => {
                let name = JobName::parse(&name)?;
                let info = dispatch::job_info(&state, &name).ok_or_else(|| {
                    let known: Vec<_> = state.jobs.keys().map(|j| j.as_str().to_owned()).collect();
                    let near = forebay_core::suggest::nearest(name.as_str(), known.iter().map(String::as_str));
                    let error = Error::not_found(format!("there is no job `{name}`"));
                    match near {
                        Some(near) => error.with_remedy(format!("did you mean `{near}`?")),
                        None => error.with_remedy("`forebay jobs` lists them"),
                    }
                })?;
                let digest = self.job_digest(&name).await?;
                json_of(&status_of(info, digest))
            }
            None => json_of(&dispatch::jobs(&state).into_iter().map(|info| status_of(info, None)).collect::<Vec<_>>()),
        }
    }

    /// The job's digest over its acknowledged batches, each once, in (pass, batch) order.
    async fn job_digest(&self, name: &JobName) -> Result<Option<String>> {
        use arrow::array::AsArray;
        use arrow::datatypes::{UInt32Type, UInt64Type};
        let (state, _) = self.state().await?;
        let Some(info) = dispatch::job_info(&state, name) else { return Ok(None) };
        if info.counts.granted + info.counts.sent > 0 {
            return Ok(None);
        }
        let mut seen: std::collections::BTreeMap<(u32, u64), u64> = Default::default();
        for batch in self.system().visits(Some(name)).await? {
            let column = |c: &str| batch.column_by_name(c).ok_or_else(|| Error::internal(format!("visits without `{c}`")));
            let (incarnation, pass) = (column("incarnation")?.as_primitive::<UInt32Type>(), column("pass")?.as_primitive::<UInt32Type>());
            let (number, digest) = (column("batch")?.as_primitive::<UInt64Type>(), column("digest")?.as_primitive::<UInt64Type>());
            let states = column("state")?.as_string::<i32>();
            for row in 0..batch.num_rows() {
                if incarnation.value(row) == info.incarnation.0 && states.value(row) == "acknowledged" {
                    if arrow::array::Array::is_null(digest, row) {
                        return Ok(None);
                    }
                    seen.insert((pass.value(row), number.value(row)), digest.value(row));
                }
            }
        }
        let mut whole = forebay_core::digest::JobDigest::new();
        for ((pass, batch), digest) in seen {
            whole.push(u64::from(pass), batch, digest);
        }
        Ok(Some(forebay_core::digest::hex(whole.finish())))
    }

    /// `forebay.job.stop`.
    pub(crate) async fn job_stop(&self, request: JobRequest) -> Result<Value> {
        let name = request.job.ok_or_else(|| Error::bad_input("forebay.job.stop: `job` is missing"))?;
        let name = JobName::parse(&name)?;
        self.dispatcher()?.stop_job(&name).await?;
        self.job_status(JobRequest { job: Some(name.0) }).await
    }

    /// `forebay.plan`.
    pub(crate) async fn plan(&self, request: PlanRequest) -> Result<Value> {
        json_of(&crate::serve::plan_info::answer(self, request).await?)
    }

    /// `forebay.tasks`.
    pub(crate) async fn tasks(&self, failed: bool) -> Result<Value> {
        let (state, volatile) = self.state().await?;
        let rows: Vec<_> = dispatch::system_tasks(&state, &volatile).into_iter().filter(|t| !failed || t.state == "failed").collect();
        json_of(&rows)
    }

    /// `forebay.workers`.
    pub(crate) async fn workers(&self, request: WorkersRequest) -> Result<Value> {
        if let Some(name) = request.drain {
            let worker = WorkerName(name);
            self.dispatcher()?.drain_worker(&worker).await?;
            if let Some(registry) = self.registry() {
                registry.drain(&worker);
            }
            return Ok(json!({ "worker": worker, "draining": true }));
        }
        let (_, volatile) = self.state().await?;
        Ok(Value::Array(worker_rows(&volatile, self.registry())))
    }
}

/// `forebay.workers`: lists them, or drains one.
#[derive(Debug, Default, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct WorkersRequest {
    #[serde(default)]
    drain: Option<String>,
}

fn status_of(info: dispatch::JobInfo, digest: Option<String>) -> JobStatus {
    JobStatus {
        job: info.job.0,
        dataset: info.dataset.0,
        state: info.state.to_owned(),
        incarnation: info.incarnation.0,
        pass: info.pass.map(|p| p.0),
        batches: info.batches,
        pending: info.pending,
        granted: info.counts.granted,
        sent: info.counts.sent,
        acknowledged: info.counts.acknowledged,
        lost: info.counts.lost,
        dropped: info.counts.dropped,
        consumers: info.consumers.into_iter().map(|c| c.0).collect(),
        digest,
        settings: serde_json::to_value(&info.settings).unwrap_or(Value::Null),
    }
}
