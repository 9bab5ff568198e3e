//! What an engine is made of, whichever part of the work its process does.

use std::sync::Arc;

use forebay_core::Result;
use forebay_core::ids::WorkerName;
use forebay_sql::catalog::Catalog;
use forebay_sql::python::{PythonConfig, PythonPool};
use forebay_storage::bundle::{BundleCache, default_cache_dir};
use forebay_storage::root::Root;
use forebay_storage::source::Allow;

use super::planner::EnginePlanner;
use super::system::{Reports, System};
use super::view::View;
use super::{Compute, Engine, EngineConfig};
use crate::dispatcher::Dispatcher;
use crate::metrics::Metrics;
use crate::roles::Registry;
use crate::serve::{Reader, ServeLimits, Serving};
use crate::worker::task::Runs;

/// Windows in use may always take this much: two windows of the default size for each of two streams.
const MIN_IN_USE: u64 = 1 << 30;

/// Which part of the work a process does.
#[derive(Debug, Clone)]
pub(crate) enum Part {
    /// All of it, or only reading where there is no dispatcher.
    Whole,
    /// Leads workers of other processes, and serves no rows.
    Leading(Arc<Registry>),
    /// Works for the dispatcher of another process.
    Working,
}

/// What is made before it is known who leads.
pub(crate) struct Base {
    pub(crate) root: Root,
    pub(crate) planner: Arc<EnginePlanner>,
    view: View,
    python: Arc<PythonPool>,
    runs: Arc<Runs>,
    reader: Arc<Reader>,
    metrics: Metrics,
}

impl Base {
    pub(crate) fn new(config: &EngineConfig, root: Root, metrics: Metrics) -> Self {
        Self::with_view(config, View::new(root.clone()), root, metrics)
    }

    /// For a process that does not hear when another drops a dataset.
    pub(crate) fn following(config: &EngineConfig, root: Root, metrics: Metrics) -> Self {
        Self::with_view(config, View::following(root.clone()), root, metrics)
    }

    fn with_view(config: &EngineConfig, view: View, root: Root, metrics: Metrics) -> Self {
        let mut python = PythonConfig { processes: config.slots.max(1), ..PythonConfig::default() };
        if let Some(interpreter) = &config.python {
            python.interpreter = interpreter.into();
        }
        let python = Arc::new(PythonPool::new(python));
        let runs = Arc::new(Runs::default());
        let planner = Arc::new(EnginePlanner::new(view.clone(), python.clone(), runs.clone(), metrics.clone()));
        let limits = ServeLimits { cache: config.cache_bytes, in_use: config.cache_bytes.max(MIN_IN_USE) };
        let reader = Reader::new(view.clone(), python.clone(), runs.clone(), limits, metrics.clone());
        Self { root, planner, view, python, runs, reader, metrics }
    }

    /// The engine; without a dispatcher it only reads.
    pub(crate) fn engine(
        self,
        config: &EngineConfig,
        compute: &Compute,
        worker: WorkerName,
        dispatcher: Option<Dispatcher>,
        part: Part,
    ) -> Result<Engine> {
        let Self { root, planner, view, python, runs, reader, metrics } = self;
        let serving = dispatcher.as_ref().filter(|_| !matches!(part, Part::Leading(_)));
        let serving = serving.map(|d| Serving::new(reader.clone(), d.clone(), worker.clone(), metrics.clone()));
        // A worker reads of the dispatcher's state what the journal says.
        let owner = dispatcher.clone().filter(|_| !matches!(part, Part::Working));
        let registry = if let Part::Leading(registry) = part { Some(registry) } else { None };
        let system = Arc::new(System::new(view.clone(), owner.map_or(Reports::Journal, Reports::Owner), registry.clone()));
        let cache = bundle_cache(config, &root)?;
        let catalog = Catalog::with_cache(root, system.clone(), config.query, cache)?;
        planner.use_catalog(catalog.clone());
        Ok(Engine {
            config: config.clone(),
            reader,
            serving,
            view,
            catalog,
            system,
            python,
            allow: config.sources_allow.as_deref().map_or_else(Allow::everything, Allow::prefixes),
            metrics,
            worker,
            runs,
            indexing: Default::default(),
            puts: Default::default(),
            names: Default::default(),
            staging: Default::default(),
            registry,
            compute: compute.handle()?.clone(),
            dispatcher,
        })
    }
}

/// Where index bundles are cached. A local root's are read where they lie, unless a folder is named (a faster disk, say).
fn bundle_cache(config: &EngineConfig, root: &Root) -> Result<Option<BundleCache>> {
    match &config.cache_dir {
        Some(folder) => BundleCache::new(std::path::Path::new(folder), config.index_cache_bytes).map(Some),
        None if root.local_path().is_some() => Ok(None),
        // Nobody asked for it: a folder that can't be used costs speed and nothing else.
        None => Ok(BundleCache::new(&default_cache_dir(), config.index_cache_bytes)
            .inspect_err(|error| tracing::warn!(%error, "text indexes are not cached on disk"))
            .ok()),
    }
}
