//! How many Python processes there are and who has one.
//!
//! A process belongs to one module set for life: another set's modules may have the same names. At most `processes` live at a time; one that
//! idles with the wrong modules makes room for a new one.

use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

use forebay_core::{Error, Result};
use parking_lot::Mutex;
use serde_json::Value;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use super::module_set::ModuleSet;
use super::process::Process;
use super::step::PythonStep;

/// Settings of a pool.
#[derive(Debug, Clone)]
pub struct PythonConfig {
    /// A Python 3.9 or newer that can import pyarrow.
    pub interpreter: PathBuf,
    /// Most processes at a time.
    pub processes: usize,
    /// Longest time for one call of a function.
    pub call_timeout: Duration,
    /// Address space of a process in bytes; `None` is no limit.
    pub memory_limit: Option<u64>,
    /// A process that nobody asked for this long is ended.
    pub idle_timeout: Duration,
}

impl Default for PythonConfig {
    /// The interpreter from `FOREBAY_PYTHON`, else `python3`; one process per core; ten minutes a call, a minute idle.
    fn default() -> Self {
        Self {
            interpreter: std::env::var_os("FOREBAY_PYTHON").filter(|p| !p.is_empty()).map_or_else(|| "python3".into(), PathBuf::from),
            processes: std::thread::available_parallelism().map_or(1, usize::from),
            call_timeout: Duration::from_secs(600),
            memory_limit: None,
            idle_timeout: Duration::from_secs(60),
        }
    }
}

/// The pool; clones share it. Dropping the last clone and the last step kills the processes.
#[derive(Debug, Clone)]
pub struct PythonPool {
    shared: Arc<Shared>,
}

#[derive(Debug)]
struct Shared {
    config: PythonConfig,
    seats: Arc<Semaphore>,
    state: Mutex<State>,
    steps: AtomicU64,
}

#[derive(Debug, Default)]
struct State {
    /// Each with when it was last used.
    idle: Vec<(Instant, Process)>,
    busy: usize,
    /// Whether somebody looks after idle processes.
    tended: bool,
    sets: Vec<Weak<ModuleSet>>,
}

impl PythonPool {
    pub fn new(config: PythonConfig) -> Self {
        let seats = Arc::new(Semaphore::new(config.processes.max(1)));
        Self { shared: Arc::new(Shared { config, seats, state: Mutex::default(), steps: AtomicU64::new(0) }) }
    }

    /// Imports `module:function` with its options, which shows every error that needs no rows: a module that does not import (with the end of
    /// its traceback), a function that is not there, options that it does not take. `modules` is each module's text by its dotted name.
    pub async fn load(
        &self,
        modules: BTreeMap<String, String>,
        module: &str,
        function: &str,
        options: BTreeMap<String, Value>,
    ) -> Result<PythonStep> {
        if !modules.contains_key(module) {
            return Err(Error::bad_input(format!("the Python module `{module}` was not found"))
                .with_remedy(format!("put {}.py beside the pipeline file", module.replace('.', "/"))));
        }
        let set = self.module_set(modules).await?;
        let id = self.shared.steps.fetch_add(1, Ordering::Relaxed);
        let step = PythonStep::new(self.clone(), set, id, module, function, options.into_iter().collect());
        step.import().await?;
        Ok(step)
    }

    /// One folder per distinct set of texts.
    async fn module_set(&self, modules: BTreeMap<String, String>) -> Result<Arc<ModuleSet>> {
        let known = |state: &State| state.sets.iter().filter_map(Weak::upgrade).find(|set| set.holds(&modules));
        if let Some(set) = known(&self.shared.state.lock()) {
            return Ok(set);
        }
        let texts = modules.clone();
        let written = tokio::task::spawn_blocking(move || ModuleSet::write(texts)).await.map_err(|e| Error::internal(e.to_string()))??;
        let mut state = self.shared.state.lock();
        if let Some(set) = known(&state) {
            return Ok(set);
        }
        let set = Arc::new(written);
        state.sets.retain(|set| set.strong_count() > 0);
        state.sets.push(Arc::downgrade(&set));
        Ok(set)
    }

    /// A process with these modules, waiting for a seat.
    pub(super) async fn seat(&self, set: &Arc<ModuleSet>) -> Result<Seat> {
        let permit = self.shared.seats.clone().acquire_owned().await.map_err(|_| Error::internal("the Python pool is closed"))?;
        let found = {
            let mut state = self.shared.state.lock();
            state.busy += 1;
            let found = state.idle.iter().rposition(|(_, p)| Arc::ptr_eq(&p.set, set)).map(|at| state.idle.remove(at).1);
            if found.is_none() && state.idle.len() + state.busy > self.shared.config.processes.max(1) && !state.idle.is_empty() {
                state.idle.remove(0);
            }
            found
        };
        let mut seat = Seat { pool: self.clone(), process: None, _permit: permit };
        seat.process = Some(match found {
            Some(process) => process,
            None => Process::start(&self.shared.config, set.clone()).await?,
        });
        Ok(seat)
    }

    /// Ends the idle processes and removes every folder of modules: the process that owns the pool is about to end. Blocks for a moment.
    pub fn close(&self) {
        let (idle, sets) = {
            let mut state = self.shared.state.lock();
            (std::mem::take(&mut state.idle), std::mem::take(&mut state.sets))
        };
        self.shared.seats.close();
        drop(idle);
        for set in sets.iter().filter_map(Weak::upgrade) {
            set.remove();
        }
    }

    /// Processes that idle.
    #[cfg(test)]
    pub(super) fn idle(&self) -> usize {
        self.shared.state.lock().idle.len()
    }
}

/// The right to one process. Dropped without [`Seat::done`], for instance because the caller went away in the middle of a call, it takes the
/// process with it.
#[derive(Debug)]
pub(super) struct Seat {
    pool: PythonPool,
    pub process: Option<Process>,
    _permit: OwnedSemaphorePermit,
}

impl Seat {
    /// Gives the process back for others.
    pub(super) fn done(mut self) {
        if let Some(process) = self.process.take() {
            let mut state = self.pool.shared.state.lock();
            state.idle.push((Instant::now(), process));
            if !state.tended {
                state.tended = true;
                tokio::spawn(tend(Arc::downgrade(&self.pool.shared)));
            }
        }
    }
}

impl Drop for Seat {
    fn drop(&mut self) {
        self.pool.shared.state.lock().busy -= 1;
    }
}

/// Ends processes that idled too long; goes when there are none, or no pool.
async fn tend(shared: Weak<Shared>) {
    while let Some(timeout) = shared.upgrade().map(|s| s.config.idle_timeout) {
        tokio::time::sleep(timeout / 2).await;
        let Some(shared) = shared.upgrade() else { return };
        let mut state = shared.state.lock();
        state.idle.retain(|(since, _)| since.elapsed() < timeout);
        if state.idle.is_empty() {
            state.tended = false;
            return;
        }
    }
}
