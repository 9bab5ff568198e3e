//! Schema `system`: what datasets, runs, jobs and visits look like from SQL.
//!
//! Owns: the tables' columns and where their rows come from: the Delta logs, the dispatcher's state (the live one, or the journal folded here
//! when this process only reads), the ledger and the quarantine files.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, LazyLock};

use arrow::array::RecordBatch;
use arrow::compute::{concat_batches, filter_record_batch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef, TimeUnit};
use arrow::json::ReaderBuilder;
use async_trait::async_trait;
use forebay_core::dispatch::{self, State, Volatile};
use forebay_core::ids::{DatasetName, JobName};
use forebay_core::view::{self, ViewCost};
use forebay_core::{Error, Kind, Result};
use forebay_sql::system::SystemTables;
use forebay_storage::{artifact, delta, journal, ledger, views};
use serde_json::{Value, json};

use super::view::View;
use crate::dispatcher::{self, Dispatcher};
use crate::roles::{Registry, worker_rows};

/// A column of a system table: name, type.
type Column = (&'static str, DataType);

fn moment() -> DataType {
    DataType::Timestamp(TimeUnit::Millisecond, Some("UTC".into()))
}

fn schema(columns: &[Column]) -> SchemaRef {
    Arc::new(Schema::new(columns.iter().map(|(name, kind)| Field::new(*name, kind.clone(), true)).collect::<Vec<_>>()))
}

static TABLES: LazyLock<Vec<(&'static str, SchemaRef)>> = LazyLock::new(|| {
    use DataType::{Boolean, Int32, UInt32, UInt64, Utf8};
    let quarantine: Vec<Field> = std::iter::once(Field::new("dataset", Utf8, true))
        .chain(artifact::quarantine_schema().fields().iter().map(|f| f.as_ref().clone().with_nullable(true)))
        .collect();
    vec![
        (
            "datasets",
            schema(&[
                ("name", Utf8),
                ("version", UInt64),
                ("epochs", UInt64),
                ("rows", UInt64),
                ("bytes", UInt64),
                ("shards", UInt64),
                ("description", Utf8),
                ("fingerprint", Utf8),
            ]),
        ),
        (
            "views",
            schema(&[
                ("name", Utf8),
                ("sql", Utf8),
                ("kind", Utf8),
                ("reads", Utf8),
                ("dataset", Utf8),
                ("version", UInt64),
                ("filter", Utf8),
                ("rows", UInt64),
                ("selected", UInt64),
                ("share", DataType::Float64),
                ("bytes", UInt64),
                ("measured_version", UInt64),
                ("created_at", moment()),
            ]),
        ),
        (
            "versions",
            schema(&[("dataset", Utf8), ("version", UInt64), ("at", moment()), ("epochs", UInt64), ("rows", UInt64), ("bytes", UInt64)]),
        ),
        (
            "epochs",
            schema(&[
                ("dataset", Utf8),
                ("version", UInt64),
                ("epoch", Int32),
                ("rows", UInt64),
                ("bytes", UInt64),
                ("shards", UInt64),
                ("row_groups", UInt64),
            ]),
        ),
        (
            "shards",
            schema(&[
                ("dataset", Utf8),
                ("version", UInt64),
                ("epoch", Int32),
                ("task", UInt32),
                ("part", UInt32),
                ("attempt", UInt32),
                ("path", Utf8),
                ("rows", UInt64),
                ("bytes", UInt64),
                ("row_groups", UInt64),
            ]),
        ),
        ("pipelines", schema(&[("dataset", Utf8), ("version", UInt64), ("fingerprint", Utf8), ("pipeline", Utf8)])),
        (
            "tasks",
            schema(&[
                ("dataset", Utf8),
                ("epoch", Int32),
                ("task", UInt32),
                ("state", Utf8),
                ("attempt", UInt32),
                ("worker", Utf8),
                ("failures", UInt32),
                ("rows", UInt64),
                ("bytes", UInt64),
                ("quarantined", UInt64),
                ("error", Utf8),
                ("at", moment()),
            ]),
        ),
        (
            "workers",
            schema(&[
                ("worker", Utf8),
                ("attached", Boolean),
                ("draining", Boolean),
                ("address", Utf8),
                ("slots", UInt32),
                ("tasks", UInt64),
                ("streams", UInt64),
                ("seen_ms", UInt64),
            ]),
        ),
        (
            "jobs",
            schema(&[
                ("job", Utf8),
                ("dataset", Utf8),
                ("state", Utf8),
                ("error", Utf8),
                ("incarnation", UInt32),
                ("pass", UInt32),
                ("version", UInt64),
                ("batches", UInt64),
                ("pending", UInt64),
                ("granted", UInt64),
                ("sent", UInt64),
                ("acknowledged", UInt64),
                ("lost", UInt64),
                ("dropped", UInt64),
                ("consumers", UInt64),
                ("settings", Utf8),
                ("created_at", moment()),
            ]),
        ),
        (
            "consumers",
            schema(&[
                ("job", Utf8),
                ("incarnation", UInt32),
                ("consumer", Utf8),
                ("rank", UInt32),
                ("pass", UInt32),
                ("streams", UInt64),
                ("held", UInt64),
                ("joined_at", moment()),
            ]),
        ),
        ("visits", ledger::visits_schema()),
        ("losses", ledger::visits_schema()),
        ("quarantine", Arc::new(Schema::new(quarantine))),
    ]
});

/// Where the dispatcher's state is known from.
#[derive(Debug, Clone)]
pub(crate) enum Reports {
    /// This process owns the root.
    Owner(Dispatcher),
    /// This process only reads: the journal is folded when it is asked for.
    Journal,
}

/// The system tables of one engine.
#[derive(Debug)]
pub(crate) struct System {
    view: View,
    reports: Reports,
    registry: Option<Arc<Registry>>,
}

impl System {
    pub(crate) fn new(view: View, reports: Reports, registry: Option<Arc<Registry>>) -> Self {
        Self { view, reports, registry }
    }

    /// The dispatcher's durable state; empty for a root that never had one.
    pub(crate) async fn state(&self) -> Result<(Arc<State>, Volatile)> {
        match &self.reports {
            Reports::Owner(dispatcher) => dispatcher.snapshot().await,
            Reports::Journal => {
                let loaded = journal::read_journal(self.view.root()).await?;
                let state = loaded.map(|l| dispatcher::fold(&l)).transpose()?.unwrap_or_default();
                Ok((Arc::new(state), Volatile::default()))
            }
        }
    }

    /// Open and closed visits of all jobs, or of one.
    pub(crate) async fn visits(&self, only: Option<&JobName>) -> Result<Vec<RecordBatch>> {
        let (state, _) = self.state().await?;
        let mut batches = Vec::new();
        for info in dispatch::jobs(&state).into_iter().filter(|i| only.is_none_or(|o| *o == i.job)) {
            batches.extend(ledger::read_files(self.view.root(), &info.job, &info.ledger).await?);
            let open: Vec<_> = dispatch::system_visits(&state, Some(&info.job)).into_iter().map(dispatcher::ledger_row).collect();
            if !open.is_empty() {
                batches.push(ledger::visits_batch(&info.job, &open)?);
            }
        }
        Ok(batches)
    }

    async fn losses(&self) -> Result<Vec<RecordBatch>> {
        let all = concat_batches(&ledger::visits_schema(), &self.visits(None).await?).map_err(arrow_error)?;
        let states = all.column_by_name("state").and_then(|c| c.as_any().downcast_ref::<arrow::array::StringArray>());
        let states = states.ok_or_else(|| Error::internal("visits without a state"))?;
        let mask = states.iter().map(|s| Some(matches!(s, Some("lost" | "dropped")))).collect();
        Ok(vec![filter_record_batch(&all, &mask).map_err(arrow_error)?])
    }

    /// Of the newest versions, and of runs whose epochs are not published: why one failed is looked for here.
    async fn quarantine(&self) -> Result<Vec<RecordBatch>> {
        // A set: an epoch that is just being published is in both.
        let mut found: BTreeMap<DatasetName, BTreeSet<String>> = BTreeMap::new();
        for version in self.view.all().await? {
            let files = found.entry(version.name.clone()).or_default();
            for epoch in version.epochs() {
                let name = super::planner::quarantine_list(&version.properties, epoch);
                let Some(name) = name else { continue };
                let listed: Option<Vec<String>> = artifact::get_json(self.view.root(), artifact::Of::Dataset(&version.name), &name).await?;
                files.extend(listed.unwrap_or_default());
            }
        }
        let (state, _) = self.state().await?;
        for (name, run) in state.datasets.iter().filter_map(|(name, known)| Some((name, known.run.as_ref()?))) {
            let tasks = run.epochs.values().filter(|e| !e.is_published()).flat_map(|e| &e.tasks);
            let files = tasks.filter_map(|t| t.staged.as_ref()?.quarantined.path.clone());
            found.entry(name.clone()).or_default().extend(files);
        }
        let mut batches = Vec::new();
        for (dataset, files) in found {
            for batch in artifact::read_quarantine(self.view.root(), &dataset, &Vec::from_iter(files)).await? {
                let name = arrow::array::StringArray::from(vec![dataset.as_str(); batch.num_rows()]);
                let mut columns: Vec<arrow::array::ArrayRef> = vec![Arc::new(name)];
                columns.extend(batch.columns().iter().cloned());
                batches.push(RecordBatch::try_new(table_schema("quarantine")?, columns).map_err(arrow_error)?);
            }
        }
        Ok(batches)
    }

    async fn dataset_rows(&self, table: &str) -> Result<Vec<Value>> {
        let mut rows = Vec::new();
        for v in self.view.all().await? {
            let property = |key: &str| v.properties.get(key).cloned();
            match table {
                "datasets" => rows.push(json!({
                    "name": v.name, "version": v.version, "epochs": v.epochs().len(), "rows": v.shards.iter().map(|s| s.rows()).sum::<u64>(),
                    "bytes": v.shards.iter().map(|s| s.size).sum::<u64>(), "shards": v.shards.len(),
                    "description": super::admin::description(&v), "fingerprint": property(super::prepare::property::FINGERPRINT),
                })),
                "pipelines" => rows.push(json!({
                    "dataset": v.name, "version": v.version, "fingerprint": property(super::prepare::property::FINGERPRINT),
                    "pipeline": property(super::prepare::property::PIPELINE),
                })),
                "epochs" => rows.extend(super::admin::epochs(&v).into_iter().map(|e| {
                    json!({"dataset": v.name, "version": v.version, "epoch": e.epoch, "rows": e.rows, "bytes": e.bytes, "shards": e.shards,
                        "row_groups": e.row_groups})
                })),
                "versions" => {
                    for info in delta::versions(self.view.root(), &v.name).await? {
                        let at = self.view.version(&v.name, Some(info.version)).await?;
                        rows.push(json!({"dataset": v.name, "version": info.version, "at": info.at_ms.map(time), "epochs": at.epochs().len(),
                            "rows": at.shards.iter().map(|s| s.rows()).sum::<u64>(), "bytes": at.shards.iter().map(|s| s.size).sum::<u64>()}));
                    }
                }
                _ => rows.extend(v.shards.iter().map(|s| {
                    json!({"dataset": v.name, "version": v.version, "epoch": s.epoch, "task": s.task, "part": s.part, "attempt": s.attempt,
                        "path": s.path, "rows": s.rows(), "bytes": s.size, "row_groups": s.row_groups.len()})
                })),
            }
        }
        Ok(rows)
    }

    /// Views as they were when they were made: what they mean now takes planning them.
    async fn view_rows(&self) -> Result<Vec<Value>> {
        let row = |view: view::View| {
            let (selection, cost) = (view.selection, view.cost);
            json!({"name": view.name, "sql": view.sql, "kind": if selection.is_some() { "selection" } else { "query" },
                "reads": view.reads.join(", "), "dataset": selection.as_ref().map(|s| &s.dataset),
                "version": selection.as_ref().and_then(|s| s.version), "filter": selection.as_ref().and_then(|s| s.filter.as_deref()),
                "rows": cost.as_ref().map(|c| c.rows), "selected": cost.as_ref().and_then(|c| c.selected),
                "share": cost.as_ref().and_then(ViewCost::share), "bytes": cost.as_ref().map(|c| c.bytes),
                "measured_version": cost.as_ref().and_then(|c| c.version), "created_at": time(view.created_ms)})
        };
        Ok(views::list(self.view.root()).await?.into_iter().map(row).collect())
    }

    async fn dispatcher_rows(&self, table: &str) -> Result<Vec<Value>> {
        let (state, volatile) = self.state().await?;
        Ok(match table {
            "tasks" => dispatch::system_tasks(&state, &volatile)
                .into_iter()
                .map(|t| {
                    json!({"dataset": t.dataset, "epoch": t.epoch, "task": t.task, "state": t.state, "attempt": t.attempt, "worker": t.worker,
                        "failures": t.failures, "rows": t.rows, "bytes": t.bytes, "quarantined": t.quarantined,
                        "error": t.error.map(|e| e.to_string()), "at": t.at_ms.map(time)})
                })
                .collect(),
            "workers" => worker_rows(&volatile, self.registry.as_deref()),
            "jobs" => dispatch::jobs(&state)
                .into_iter()
                .map(|j| {
                    json!({"job": j.job, "dataset": j.dataset, "state": j.state, "error": j.error.map(|e| e.to_string()),
                        "incarnation": j.incarnation, "pass": j.pass, "version": j.version, "batches": j.batches, "pending": j.pending,
                        "granted": j.counts.granted, "sent": j.counts.sent, "acknowledged": j.counts.acknowledged, "lost": j.counts.lost,
                        "dropped": j.counts.dropped, "consumers": j.consumers.len(),
                        "settings": serde_json::to_string(&j.settings).unwrap_or_default(), "created_at": time(j.created_ms)})
                })
                .collect(),
            _ => dispatch::system_consumers(&state)
                .into_iter()
                .map(|c| {
                    json!({"job": c.job, "incarnation": c.incarnation, "consumer": c.consumer, "rank": c.rank, "pass": c.pass,
                        "streams": c.streams, "held": c.held, "joined_at": time(c.joined_ms)})
                })
                .collect(),
        })
    }
}

fn arrow_error(e: arrow::error::ArrowError) -> Error {
    Error::internal(format!("a system table could not be made: {e}"))
}

/// A moment as the JSON reader takes it.
fn time(ms: i64) -> Value {
    json!(ms)
}

fn table_schema(table: &str) -> Result<SchemaRef> {
    let found = TABLES.iter().find(|(name, _)| *name == table);
    found.map(|(_, schema)| schema.clone()).ok_or_else(|| Error::new(Kind::NotFound, format!("there is no table `system.{table}`")))
}

fn to_batches(table: &str, rows: &[Value]) -> Result<Vec<RecordBatch>> {
    let mut decoder = ReaderBuilder::new(table_schema(table)?).with_batch_size(rows.len().max(1)).build_decoder().map_err(arrow_error)?;
    decoder.serialize(rows).map_err(arrow_error)?;
    Ok(decoder.flush().map_err(arrow_error)?.into_iter().collect())
}

#[async_trait]
impl SystemTables for System {
    fn tables(&self) -> Vec<(&'static str, SchemaRef)> {
        TABLES.clone()
    }

    async fn scan(&self, table: &str) -> Result<Vec<RecordBatch>> {
        match table {
            "visits" => self.visits(None).await,
            "losses" => self.losses().await,
            "quarantine" => self.quarantine().await,
            "datasets" | "versions" | "epochs" | "shards" | "pipelines" => to_batches(table, &self.dataset_rows(table).await?),
            "views" => to_batches(table, &self.view_rows().await?),
            "tasks" | "workers" | "jobs" | "consumers" => to_batches(table, &self.dispatcher_rows(table).await?),
            other => Err(Error::not_found(format!("there is no table `system.{other}`"))),
        }
    }
}
