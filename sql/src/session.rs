//! DataFusion sessions in a sandbox.
//!
//! Owns: what a session can reach: the functions given, no object stores, no files, no settings. Must not know: which tables there are.

use std::sync::Arc;

use datafusion::common::{Result, exec_err};
use datafusion::execution::SessionStateDefaults;
use datafusion::execution::disk_manager::{DiskManagerBuilder, DiskManagerMode};
use datafusion::execution::memory_pool::{GreedyMemoryPool, MemoryPool, TrackConsumersPool, UnboundedMemoryPool};
use datafusion::execution::object_store::ObjectStoreRegistry;
use datafusion::execution::runtime_env::{RuntimeEnv, RuntimeEnvBuilder};
use datafusion::execution::session_state::{SessionState, SessionStateBuilder};
use datafusion::logical_expr::ScalarUDF;
use datafusion::prelude::SessionConfig;
use object_store::ObjectStore;
use url::Url;

use crate::catalog::yielding::YieldingJoins;
use crate::functions::capped::capped;

/// A registry that has nothing and takes nothing: no URL in a query leads anywhere. DataFusion's own would serve `file://`.
#[derive(Debug)]
struct NoStores;

impl ObjectStoreRegistry for NoStores {
    fn register_store(&self, _: &Url, _: Arc<dyn ObjectStore>) -> Option<Arc<dyn ObjectStore>> {
        None
    }

    fn get_store(&self, url: &Url) -> Result<Arc<dyn ObjectStore>> {
        exec_err!("queries reach datasets by name only, not {url}")
    }
}

/// Memory and spill space of a session's queries.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Room {
    /// Bytes that operators may hold; `None` where the caller bounds its batches itself.
    pub memory: Option<usize>,
    /// Bytes of spill files; 0 for no spilling.
    pub spill: u64,
}

pub(crate) fn runtime(room: Room) -> Result<Arc<RuntimeEnv>> {
    let pool: Arc<dyn MemoryPool> = match room.memory {
        Some(bytes) => Arc::new(TrackConsumersPool::new(GreedyMemoryPool::new(bytes), std::num::NonZeroUsize::MIN)),
        None => Arc::new(UnboundedMemoryPool::default()),
    };
    let mode = if room.spill > 0 { DiskManagerMode::OsTmpDirectory } else { DiskManagerMode::Disabled };
    RuntimeEnvBuilder::new()
        .with_object_store_registry(Arc::new(NoStores))
        .with_memory_pool(pool)
        .with_disk_manager_builder(DiskManagerBuilder::default().with_mode(mode))
        .with_max_temp_directory_size(room.spill)
        .build_arc()
}

/// A configuration that both kinds of session start from.
pub(crate) fn config(partitions: usize) -> SessionConfig {
    let mut config = SessionConfig::new().with_target_partitions(partitions).with_information_schema(false);
    let options = config.options_mut();
    // Positions of names for error messages.
    options.sql_parser.collect_spans = true;
    // VARCHAR is Utf8 everywhere: what is stored and served has no view types.
    options.sql_parser.map_string_types_to_utf8view = false;
    config
}

/// DataFusion's scalar functions, the growing ones with their limit, and these.
pub(crate) fn scalars(functions: Vec<Arc<ScalarUDF>>) -> Vec<Arc<ScalarUDF>> {
    let mut scalars = capped(SessionStateDefaults::default_scalar_functions());
    scalars.extend(functions);
    scalars
}

/// A session with the given functions beside DataFusion's own and no table functions, file formats or factories.
pub(crate) fn state(config: SessionConfig, runtime: Arc<RuntimeEnv>, functions: Vec<Arc<ScalarUDF>>) -> SessionState {
    SessionStateBuilder::new()
        .with_config(config)
        .with_runtime_env(runtime)
        .with_expr_planners(SessionStateDefaults::default_expr_planners())
        .with_scalar_functions(scalars(functions))
        .with_higher_order_functions(SessionStateDefaults::default_higher_order_functions())
        .with_aggregate_functions(SessionStateDefaults::default_aggregate_functions())
        .with_window_functions(SessionStateDefaults::default_window_functions())
        .with_physical_optimizer_rule(Arc::new(YieldingJoins))
        .build()
}
