//! Named points at which a debug build kills its process, for tests of what a crash there leaves behind.

/// Aborts the process if `FOREBAY_CRASH_AT` names this point. Nothing is cleaned up, as with `kill -9`. Points of a worker: `after-shards`; of a
/// dispatcher: `after-staged`, `after-publishing-entry`, `after-commit`, `after-published`; each is passed when the thing it names is durable.
#[cfg(debug_assertions)]
pub(crate) fn point(name: &str) {
    if std::env::var_os("FOREBAY_CRASH_AT").is_some_and(|at| at == name) {
        std::process::abort();
    }
}

#[cfg(not(debug_assertions))]
pub(crate) fn point(_name: &str) {}
