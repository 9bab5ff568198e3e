//! `forebay plan`: the plan of a dataset or a job, and the rows of one step or batch.
//!
//! Owns: which plan a request means, and finding row keys without delivering anything. Reads only; works without a journal.

use std::ops::Range;
use std::sync::Arc;

use arrow::array::{Array, AsArray, RecordBatch};
use arrow::datatypes::{TimestampMillisecondType, UInt32Type, UInt64Type};
use forebay_core::digest;
use forebay_core::dispatch::State;
use forebay_core::ids::{BatchId, DatasetName, EpochId, JobName, PassId, VersionId, WindowId};
use forebay_core::job::{Assignment, JobSettings, Order};
use forebay_core::pipeline::{self, PipelineSpec, Shuffle};
use forebay_core::plan::Selection;
use forebay_core::{Error, Result, suggest};
use forebay_flight::api::{PlanBatch, PlanInfo, PlanRequest};
use forebay_sql::catalog::select_rows;
use forebay_storage::delta::DatasetVersion;

use super::Reader;
use super::cache::Admission;
use super::pass::{NamedSelection, PassPlan, load_selection};
use super::served::Served;
use super::staged::Standing;
use super::window::WindowData;
use crate::engine::Engine;

#[cfg(test)]
#[path = "plan_info_tests.rs"]
mod tests;

/// Answers `forebay.plan`.
///
/// # Errors
/// `BadInput` for a request that names neither or contradicts itself, `NotFound` for a dataset, job, epoch or batch that does not exist.
pub async fn answer(engine: &Engine, request: PlanRequest) -> Result<PlanInfo> {
    let (settings, pass) = match &request.job {
        Some(job) => {
            let (state, _) = engine.state().await?;
            of_job(engine, &state, job, &request).await?
        }
        None => of_dataset(engine, &through_view(engine, &request).await?).await?,
    };
    let plan = &pass.plan;
    let batches = match (request.batch, request.step) {
        (Some(_), Some(_)) => return Err(Error::bad_input("plan: a batch and a step at once").with_remedy("ask for one of them")),
        (Some(batch), None) => vec![batch],
        (None, None) => Vec::new(),
        (None, Some(step)) if request.job.is_some() && settings.assignment == Assignment::Dynamic => {
            let visits = engine.system().visits(Some(&settings.job)).await?;
            vec![taken_at(&visits, PassId(request.pass), step, request.consumer.as_deref())?]
        }
        (None, Some(step)) => step_batches(step, request.world_size.or(settings.world_size), plan.batches())?.collect(),
    };
    if let Some(beyond) = batches.iter().find(|b| **b >= plan.batches()) {
        return Err(Error::not_found(format!("pass {} has {} batches, and no batch {beyond}", request.pass, plan.batches())));
    }
    let selected = rows_of(engine.reader(), &pass, settings.bucket_by.as_deref(), &batches).await?;
    Ok(PlanInfo {
        dataset: settings.dataset.as_str().to_owned(),
        version: pass.is_published().then_some(pass.version.version.0),
        pass: request.pass,
        epoch: pass.epoch.0,
        rows: plan.rows(),
        row_groups: pass.groups.len() as u64,
        windows: plan.windows(),
        window_rows: plan.window_rows(),
        batches: plan.batches(),
        batch_size: settings.batch_size,
        seed: settings.seed,
        shuffle: shuffle_name(settings.shuffle),
        order: if settings.order == Order::Staged { "staged" } else { "published" }.to_owned(),
        selected,
    })
}

fn shuffle_name(shuffle: Shuffle) -> String {
    match shuffle {
        Shuffle::None => "none",
        Shuffle::RowGroups => "row_groups",
        Shuffle::Window => "window",
        Shuffle::Full => "full",
    }
    .to_owned()
}

fn parse_shuffle(text: &str) -> Result<Shuffle> {
    const NAMES: [&str; 4] = ["none", "row_groups", "window", "full"];
    match text {
        "none" => Ok(Shuffle::None),
        "row_groups" => Ok(Shuffle::RowGroups),
        "window" => Ok(Shuffle::Window),
        "full" => Ok(Shuffle::Full),
        other => {
            let error = Error::bad_input(format!("shuffle: there is no `{}`", other.escape_debug()));
            Err(error.with_remedy(suggest::remedy(other, NAMES).unwrap_or_else(|| format!("use {}", suggest::list(&NAMES)))))
        }
    }
}

fn parse_order(text: &str) -> Result<Order> {
    match text {
        "published" => Ok(Order::Published),
        "staged" => Ok(Order::Staged),
        other => Err(Error::bad_input(format!("order: there is no `{}`", other.escape_debug())).with_remedy("use published or staged")),
    }
}

/// Batches that all ranks together get in one step: by the fixed map, rank r gets b = r mod world size.
fn step_batches(step: u64, world_size: Option<u32>, batches: u64) -> Result<Range<u64>> {
    let size = u64::from(world_size.unwrap_or(1).max(1));
    let start = step.saturating_mul(size);
    if start >= batches {
        return Err(Error::not_found(format!("the pass has {} steps, and no step {step}", batches.div_ceil(size))));
    }
    Ok(start..(start + size).min(batches))
}

/// A view's name stands for what it chooses.
async fn through_view(engine: &Engine, request: &PlanRequest) -> Result<PlanRequest> {
    let view = match &request.dataset {
        Some(name) => engine.selection_of(name).await?,
        None => None,
    };
    let Some(view) = view else { return Ok(request.clone()) };
    let chosen = view.selection.narrow(request.version.map(VersionId), None, request.filter.as_deref())?;
    let (version, filter) = (chosen.version.map(|v| v.0), chosen.filter);
    Ok(PlanRequest { dataset: Some(chosen.dataset.0), version, filter, ..request.clone() })
}

async fn of_dataset(engine: &Engine, request: &PlanRequest) -> Result<(JobSettings, Arc<PassPlan>)> {
    let name = request.dataset.as_deref().ok_or_else(|| Error::bad_input("plan: neither a dataset nor a job").with_remedy("name one"))?;
    let version = engine.known(name, request.version.map(VersionId)).await?;
    let mut settings = JobSettings::new(JobName("plan".to_owned()), version.name.clone());
    settings.shuffle = match &request.shuffle {
        Some(text) => parse_shuffle(text)?,
        None => default_shuffle(&version),
    };
    settings.batch_size = request.batch_size.unwrap_or(settings.batch_size);
    settings.seed = request.seed.unwrap_or(settings.seed);
    settings.order = request.order.as_deref().map_or(Ok(Order::Published), parse_order)?;
    if settings.order == Order::Staged && request.filter.is_some() {
        return Err(Error::bad_input("filter: `order` staged takes none").with_remedy("leave the filter out, or use `order` \"published\""));
    }
    settings.world_size = request.world_size;
    settings.bucket_by.clone_from(&request.bucket_by);
    settings.round_size = request.bucket_by.as_ref().map(|_| request.world_size.unwrap_or(1));
    if let Some(window) = &request.window {
        settings.window = pipeline::parse_size(window).map_err(|e| e.context("window"))?;
    }
    let pass = PassId(request.pass);
    let epoch = epoch_of_pass(&version.epochs(), pass, &version.name)?;
    let selection = match &request.filter {
        Some(filter) => Some(("filter".to_owned(), filtered(engine, &version, epoch, filter).await?)),
        None => None,
    };
    let plan = PassPlan::new(version, epoch, pass, &settings, selection)?;
    Ok((settings, Arc::new(plan)))
}

fn default_shuffle(version: &DatasetVersion) -> Shuffle {
    let spec = version.properties.get("forebay.pipeline").and_then(|json| serde_json::from_str::<PipelineSpec>(json).ok());
    spec.map(|spec| spec.epochs.shuffle).unwrap_or_default()
}

async fn filtered(engine: &Engine, version: &Arc<DatasetVersion>, epoch: EpochId, filter: &str) -> Result<Arc<Selection>> {
    Ok(Arc::new(select_rows(engine.catalog(), Arc::clone(version), epoch, filter).await?))
}

/// Pass p reads the p-th of the C epochs, or the (p mod C)-th beyond them.
fn epoch_of_pass(epochs: &[EpochId], pass: PassId, dataset: &DatasetName) -> Result<EpochId> {
    let missing = || Error::not_found(format!("dataset `{dataset}` has no epoch")).with_remedy("materialize it first");
    let count = epochs.len().max(1);
    epochs.get(pass.0 as usize % count).copied().ok_or_else(missing)
}

/// The plan of a job's pass: as it was pinned when the pass started, or as it would start now.
async fn of_job(engine: &Engine, state: &State, job: &str, request: &PlanRequest) -> Result<(JobSettings, Arc<PassPlan>)> {
    refuse_overrides(request)?;
    let name = JobName::parse(job)?;
    let known = state.jobs.get(&name).ok_or_else(|| {
        let names: Vec<&str> = state.jobs.keys().map(JobName::as_str).collect();
        let error = Error::not_found(format!("there is no job `{name}`"));
        error.with_remedy(suggest::remedy(job, names).unwrap_or_else(|| "`forebay jobs` lists them".to_owned()))
    })?;
    let settings = known.settings.as_ref().clone();
    let view = settings.view.as_ref().map(|view| view.name.as_str());
    if request.dataset.as_deref().is_some_and(|d| d != settings.dataset.as_str() && Some(d) != view) {
        return Err(Error::bad_input(format!("job `{name}` reads dataset `{}`", settings.dataset)).with_remedy("leave the dataset out"));
    }
    let pass = PassId(request.pass);
    let shape = known.passes.get(&pass).map(|p| &p.shape);
    let epoch = match shape {
        Some(shape) => shape.epoch,
        None => epoch_of_pass(&known.epochs, pass, &settings.dataset)?,
    };
    if let Some((epoch, growth)) = shape.and_then(|s| Some((s.epoch, s.growth?))) {
        let plan = match engine.reader().staged.of_state(state, &settings.dataset, growth.run, epoch).await? {
            Standing::Staged(version) => PassPlan::staged(version, epoch, pass, &settings, false)?,
            Standing::Published(version) => {
                let version = engine.view().version(&settings.dataset, Some(version)).await?;
                PassPlan::new(version, epoch, pass, &settings, None)?
            }
        };
        return Ok((settings, Arc::new(plan)));
    }
    let version = engine.view().version(&settings.dataset, shape.and_then(|s| s.version).or(settings.version)).await?;
    let selection: Option<NamedSelection> = match (shape.and_then(|s| s.selection.as_ref()), &settings.filter) {
        (Some(stored), _) => Some(load_selection(engine.root(), &name, stored).await?),
        (None, Some(filter)) => Some(("filter".to_owned(), filtered(engine, &version, epoch, filter).await?)),
        (None, None) => None,
    };
    let plan = PassPlan::new(version, epoch, pass, &settings, selection)?;
    Ok((settings, Arc::new(plan)))
}

fn refuse_overrides(request: &PlanRequest) -> Result<()> {
    let given = [
        ("version", request.version.is_some()),
        ("batch_size", request.batch_size.is_some()),
        ("seed", request.seed.is_some()),
        ("shuffle", request.shuffle.is_some()),
        ("order", request.order.is_some()),
        ("window", request.window.is_some()),
        ("bucket_by", request.bucket_by.is_some()),
        ("filter", request.filter.is_some()),
    ];
    match given.iter().find(|(_, given)| *given) {
        None => Ok(()),
        Some((key, _)) => Err(Error::bad_input(format!("plan: `{key}` beside a job, which has its own"))
            .with_remedy("leave it out, or name the dataset instead of the job")),
    }
}

/// The batch that a consumer of a dynamic job took at its `step`-th step: only the visits know.
fn taken_at(visits: &[RecordBatch], pass: PassId, step: u64, consumer: Option<&str>) -> Result<u64> {
    let mut taken: Vec<(u32, i64, u64, String)> = Vec::new();
    for batch in visits {
        let column = |name: &str| batch.column_by_name(name).ok_or_else(|| Error::internal(format!("visits without `{name}`")));
        let typed = |name: &str| Error::internal(format!("`{name}` of visits has another type"));
        let passes = column("pass")?.as_primitive_opt::<UInt32Type>().ok_or_else(|| typed("pass"))?;
        let incarnations = column("incarnation")?.as_primitive_opt::<UInt32Type>().ok_or_else(|| typed("incarnation"))?;
        let batches = column("batch")?.as_primitive_opt::<UInt64Type>().ok_or_else(|| typed("batch"))?;
        let at = column("at")?.as_primitive_opt::<TimestampMillisecondType>().ok_or_else(|| typed("at"))?;
        let states = column("state")?.as_string_opt::<i32>().ok_or_else(|| typed("state"))?;
        let consumers = column("consumer")?.as_string_opt::<i32>().ok_or_else(|| typed("consumer"))?;
        for row in (0..batch.num_rows()).filter(|row| passes.value(*row) == pass.0 && consumers.is_valid(*row)) {
            if matches!(states.value(row), "acknowledged" | "sent") && consumer.is_none_or(|c| c == consumers.value(row)) {
                taken.push((incarnations.value(row), at.value(row), batches.value(row), consumers.value(row).to_owned()));
            }
        }
    }
    let newest = taken.iter().map(|t| t.0).max().unwrap_or_default();
    taken.retain(|t| t.0 == newest);
    let mut names: Vec<&str> = taken.iter().map(|t| t.3.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    if names.len() > 1 {
        return Err(Error::bad_input(format!("plan: pass {pass} has the steps of {} consumers", names.len()))
            .with_remedy(format!("name one: {}", names.join(", "))));
    }
    taken.sort_unstable();
    let found = usize::try_from(step).ok().and_then(|step| taken.get(step));
    found.map(|t| t.2).ok_or_else(|| {
        let whose = consumer.map(|c| format!(" of consumer `{c}`")).unwrap_or_default();
        Error::not_found(format!("pass {pass}{whose} has {} steps so far, and no step {step}", taken.len()))
    })
}

/// The row keys of batches, in the order asked for.
async fn rows_of(reader: &Reader, pass: &Arc<PassPlan>, bucket_by: Option<&str>, batches: &[u64]) -> Result<Vec<PlanBatch>> {
    let served = Arc::new(Served::keys_only(&pass.version, bucket_by)?);
    let mut out = Vec::with_capacity(batches.len());
    let mut open: Option<(WindowId, Arc<WindowData>)> = None;
    for batch in batches.iter().map(|b| BatchId(*b)) {
        let window = pass.plan.window_of(batch);
        let data = match open.take().filter(|(id, ..)| *id == window) {
            Some((_, data)) => data,
            None => {
                let handle = reader.loader.handle(pass, &served, window);
                let loaded = reader.loader.load(&handle, pass, &served, window, Admission::Wait).await?;
                loaded.ok_or_else(|| Error::internal("a window that was waited for did not come"))?
            }
        };
        let rows = data.batch(batch, pass.plan.batch_rows(batch))?;
        out.push(PlanBatch {
            batch: batch.0,
            window: window.0,
            ids: rows.ids,
            parts: rows.parts.unwrap_or_default(),
            digest: digest::hex(rows.digest),
        });
        open = Some((window, data));
    }
    Ok(out)
}
