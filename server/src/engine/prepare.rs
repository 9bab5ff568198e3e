//! From a pipeline file to a run: everything is checked before any work, and nothing is read when nothing changed.

use arrow::datatypes::{Schema, SchemaRef};
use std::collections::BTreeMap;
use std::sync::Arc;

use forebay_core::ids::{DatasetName, EpochId};
use forebay_core::pipeline::{self, IndexSpec, PipelineSpec, SourceFormat, StepKind};
use forebay_core::source::SourceSnapshot;
use forebay_core::{Error, Kind, Result};
use forebay_flight::api::MaterializeRequest;
use forebay_sql::steps::CompiledSteps;
use forebay_sql::text;
use forebay_storage::artifact::{self, Of};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::{source, types};

use super::names;
use super::query::{self, Held, Taken, Wanted};
use super::{Engine, admin};
use crate::dispatcher::{RunRequest, RunSpec};
use crate::worker::split as splitting;

/// Table properties that Forebay keeps in the Delta metadata.
pub(crate) mod property {
    pub(crate) const FINGERPRINT: &str = "forebay.fingerprint";
    pub(crate) const PIPELINE: &str = "forebay.pipeline";
    pub(crate) const SNAPSHOT: &str = "forebay.snapshot";
    pub(crate) const PARTS: &str = "forebay.parts";
    pub(crate) const CODE: &str = "forebay.code";
}

/// A run that was checked as a whole and may start.
#[derive(Debug)]
pub(crate) struct Prepared {
    pub(crate) request: RunRequest,
    /// The fitted artefacts that its tasks need are still to be made.
    pub(crate) unfitted: bool,
    /// No view takes the dataset's name until the run has begun.
    pub(super) name: names::Held,
    /// Keeps a staged source until a run names it.
    pub(super) held: Option<Held>,
}

impl Engine {
    /// Checks a materialize request: spec, settings of the server, source, steps, split, stored columns.
    pub(crate) async fn prepare(&self, request: &MaterializeRequest) -> Result<Prepared> {
        let parsed = pipeline::parse(&request.pipeline, &request.file, &request.set)?;
        let named = |e: Error| if request.file.is_empty() { e } else { e.context(&request.file) };
        self.prepare_spec(parsed.spec, &parsed.canonical, request).await.map_err(named)
    }

    pub(super) async fn prepare_spec(&self, mut spec: PipelineSpec, canonical: &str, request: &MaterializeRequest) -> Result<Prepared> {
        self.check_allowed(&spec)?;
        let naming = self.hold_dataset(&spec.name).await?;
        let code = used_modules(&spec, &request.modules);
        let listed: Vec<(String, String)> = code.iter().map(|(name, text)| (name.clone(), text.clone())).collect();
        let epochs = epochs_of(&spec, request.epochs)?;
        let query = self.pin_query(&mut spec).await?;
        let stored = self.stored_version(&spec.name).await?;
        let previous = self.previous_snapshot(&spec, stored.as_deref()).await?;
        let (stored, previous) = (stored.as_deref(), previous.as_ref());
        let taken = match &query {
            None => self.files_snapshot(&spec, canonical, &listed, stored, previous, &request.base).await?,
            Some(query) => {
                // What is wrong with the steps is told before anything is computed.
                if stored.is_none() || request.replace {
                    self.check_rows(&spec, source::query_columns(&query.schema)?, &code).await?;
                }
                let parts = parts(&spec, &code, &query::unstaged(query));
                let (spec, code, epochs, replace) = (&spec, &listed[..], &epochs[..], request.replace);
                self.query_snapshot(query, Wanted { spec, code, parts, stored, previous, epochs, replace }).await?
            }
        };
        let Taken { snapshot, name, fingerprint, again, held } = taken;
        let unchanged = stored.is_some_and(|v| v.properties.get(property::FINGERPRINT) == Some(&fingerprint));
        match stored.filter(|_| unchanged) {
            Some(stored) if !request.replace => join_index(&mut spec, stored)?,
            Some(stored) => check_index(&spec, &stored.schema)?,
            None => self.check_rows(&spec, source::source_schema(&spec.source, &snapshot).await?, &code).await?,
        }
        let task_bytes = task_bytes(&snapshot);
        let parts = parts(&spec, &code, &snapshot);
        let unfitted = spec.split.is_some() && !unchanged;
        let run = RunSpec { dataset: spec.name.clone(), fingerprint, pipeline: spec, code, snapshot: name, task_bytes, parts };
        let request = RunRequest { spec: run, epochs, resume: request.resume && !again, replace: request.replace };
        Ok(Prepared { request, unfitted, name: naming, held })
    }

    /// The snapshot of files that are there, kept under the run's fingerprint.
    async fn files_snapshot(
        &self,
        spec: &PipelineSpec,
        canonical: &str,
        code: &[(String, String)],
        stored: Option<&DatasetVersion>,
        previous: Option<&SourceSnapshot>,
        base: &str,
    ) -> Result<Taken> {
        // Files that clients wrote themselves lie under the root.
        let written = spec.source.format.is_staged();
        let allow = |location: &str| written || self.allow().covers(location);
        let same_reading = stored.and_then(admin::spec).is_some_and(|old| old.source == spec.source);
        let snapshot = match previous {
            // Nothing is opened when nothing changed.
            Some(previous) if same_reading && source::unchanged(&spec.source, base, previous, &allow).await? => previous.clone(),
            previous => source::snapshot(&spec.source, base, previous, &allow).await?,
        };
        let fingerprint = pipeline::fingerprint(canonical, code, &snapshot);
        let name = format!("sources/{fingerprint}.json");
        artifact::put_json(self.root(), Of::Dataset(&spec.name), &name, &snapshot).await?;
        Ok(Taken { snapshot, name, fingerprint, again: false, held: None })
    }

    pub(super) async fn stored_version(&self, name: &DatasetName) -> Result<Option<Arc<DatasetVersion>>> {
        match self.view().version(name, None).await {
            Ok(version) => Ok(Some(version)),
            Err(e) if e.kind == Kind::NotFound => Ok(None),
            Err(e) => Err(e),
        }
    }

    /// The snapshot whose id ranges must be kept: of the published version, else of an unfinished run.
    async fn previous_snapshot(&self, spec: &PipelineSpec, stored: Option<&DatasetVersion>) -> Result<Option<SourceSnapshot>> {
        let name = match stored.and_then(|v| v.properties.get(property::SNAPSHOT)) {
            Some(name) => Some(name.clone()),
            None => self.dispatcher()?.run_spec(&spec.name).await?.map(|run| run.snapshot.clone()),
        };
        match name {
            Some(name) => artifact::get_json(self.root(), Of::Dataset(&spec.name), &name).await,
            None => Ok(None),
        }
    }

    /// What the server's settings let clients do.
    fn check_allowed(&self, spec: &PipelineSpec) -> Result<()> {
        let python = spec.steps.iter().find(|s| matches!(s.kind, StepKind::Python { .. }));
        if let (Some(step), false) = (python, self.config().python_allow) {
            return Err(Error::new(
                Kind::PermissionDenied,
                format!("step `{}` is Python, which this server does not run for its clients", step.name),
            )
            .with_remedy("set python.allow = true in its forebay.toml (FOREBAY_PYTHON_ALLOW), or materialize embedded with --root"));
        }
        Ok(())
    }

    /// Compiles the steps against the source and checks what will be stored.
    async fn check_rows(&self, spec: &PipelineSpec, input: SchemaRef, code: &BTreeMap<String, String>) -> Result<()> {
        let steps = CompiledSteps::compile(&spec.steps, input, code, Some(self.python())).await?;
        steps.check_behind_cut(spec.output.cut)?;
        let stored = steps.output_schema(spec.output.cut);
        types::to_stored(&stored)?;
        check_index(spec, &stored)?;
        match &spec.split {
            Some(split) => splitting::check(split, &stored),
            None => Ok(()),
        }
    }
}

fn check_index(spec: &PipelineSpec, stored: &Schema) -> Result<()> {
    text::check_columns(&spec.index.columns(), stored).map_err(|e| e.context("index.text"))
}

/// New epochs of a dataset get the index that it has; what the pipeline wants beyond it has to be built for the epochs that exist first.
fn join_index(spec: &mut PipelineSpec, stored: &DatasetVersion) -> Result<()> {
    check_index(spec, &stored.schema)?;
    let mut columns = stored.text_columns();
    for (column, wanted) in spec.index.columns() {
        let build = |how: String| format!("build it: forebay index {} {column}{how}", stored.name);
        match columns.get(&column) {
            Some(has) if *has == wanted => {}
            Some(has) => {
                return Err(Error::failed_precondition(format!(
                    "index.text: `{column}` is indexed as {has}, and the pipeline says {wanted}"
                ))
                .with_remedy(build(format!(" --tokenizer \"{wanted}\""))));
            }
            None if stored.epochs().is_empty() => {
                columns.insert(column, wanted);
            }
            None => {
                let how = if wanted == Default::default() { String::new() } else { format!(" --tokenizer \"{wanted}\"") };
                return Err(Error::failed_precondition(format!(
                    "index.text: the epochs of `{}` that exist have no index of `{column}`",
                    stored.name
                ))
                .with_remedy(build(how)));
            }
        }
    }
    spec.index = IndexSpec::of(&columns);
    Ok(())
}

/// Only the modules that a step names take part in the fingerprint, with what they import from beside the pipeline.
fn used_modules(spec: &PipelineSpec, modules: &BTreeMap<String, String>) -> BTreeMap<String, String> {
    let python = spec.steps.iter().any(|s| matches!(s.kind, StepKind::Python { .. }));
    if python { modules.clone() } else { BTreeMap::new() }
}

fn epochs_of(spec: &PipelineSpec, asked: Option<(u32, u32)>) -> Result<Vec<EpochId>> {
    let (from, to) = asked.unwrap_or((0, spec.epochs.count));
    if from >= to {
        return Err(
            Error::bad_input(format!("--epochs {from}..{to} is empty")).with_remedy("ranges exclude their end: 0..3 is epochs 0, 1 and 2")
        );
    }
    Ok((from..to).map(EpochId).collect())
}

/// Source bytes of each task, for progress and its ETA.
fn task_bytes(snapshot: &SourceSnapshot) -> Vec<u64> {
    use forebay_core::source::Piece;
    let size = |file: &u32, piece: &Piece| {
        let Some(file) = snapshot.files.get(*file as usize) else { return 0 };
        match piece {
            Piece::Whole => file.size,
            Piece::Bytes { start, end } => end - start,
            Piece::Rows { start, end } => {
                let rows = u128::try_from(file.id_range.max(1)).unwrap_or(1);
                u64::try_from(u128::from(file.size) * u128::from(end - start) / rows).unwrap_or(file.size)
            }
        }
    };
    snapshot.tasks.iter().map(|task| task.pieces.iter().map(|(file, piece)| size(file, piece)).sum()).collect()
}

/// What else is in the fingerprint, each under a name that users understand: names the difference when the specs are equal.
fn parts(spec: &PipelineSpec, code: &BTreeMap<String, String>, snapshot: &SourceSnapshot) -> BTreeMap<String, String> {
    let mut parts: BTreeMap<String, String> = code
        .iter()
        .map(|(name, text)| (format!("module {name}"), forebay_core::digest::hex(forebay_core::random::text_key(text))))
        .collect();
    if let Some(known) = &snapshot.query {
        query::parts(known, &mut parts);
        return parts;
    }
    let mut source = String::new();
    for file in &snapshot.files {
        source.push_str(&format!("{}\n{}\n{}\n", file.path, file.size, file.stamp));
    }
    let label = if spec.source.format == SourceFormat::Put { "written rows" } else { "source files" };
    parts.insert(label.to_owned(), forebay_core::digest::hex(forebay_core::random::text_key(&source)));
    parts
}
