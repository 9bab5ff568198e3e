//! What `/metrics` shows: names, units and help in one place.

use prometheus::{IntCounter, IntGauge, Opts, Registry, TextEncoder};

/// The counters of one process. Cheap to clone: every counter is shared.
#[derive(Debug, Clone)]
pub struct Metrics {
    registry: Registry,
    /// Rows stored by this process's worker.
    pub rows_materialized: IntCounter,
    /// Parquet bytes stored by this process's worker.
    pub bytes_materialized: IntCounter,
    pub tasks_finished: IntCounter,
    pub tasks_failed: IntCounter,
    /// Rows set aside by `on_error = "quarantine"`.
    pub rows_quarantined: IntCounter,
    pub epochs_published: IntCounter,
    /// Rows handed to consumers of jobs.
    pub rows_served: IntCounter,
    /// Streams of jobs that are open.
    pub job_streams: IntGauge,
    pub queries: IntCounter,
    /// 1 while this process leads its root.
    pub leading: IntGauge,
}

impl Metrics {
    /// Registers every metric in a registry of its own, so that two engines in one process do not add up.
    pub fn new() -> prometheus::Result<Self> {
        let registry = Registry::new();
        let counter = |name: &str, help: &str| -> prometheus::Result<IntCounter> {
            let counter = IntCounter::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(counter.clone()))?;
            Ok(counter)
        };
        let gauge = |name: &str, help: &str| -> prometheus::Result<IntGauge> {
            let gauge = IntGauge::with_opts(Opts::new(name, help))?;
            registry.register(Box::new(gauge.clone()))?;
            Ok(gauge)
        };
        Ok(Self {
            rows_materialized: counter("forebay_materialized_rows_total", "Rows stored by this worker.")?,
            bytes_materialized: counter("forebay_materialized_bytes_total", "Parquet bytes stored by this worker.")?,
            tasks_finished: counter("forebay_tasks_finished_total", "Tasks staged by this worker.")?,
            tasks_failed: counter("forebay_tasks_failed_total", "Attempts at tasks that failed on this worker.")?,
            rows_quarantined: counter("forebay_quarantined_rows_total", "Bad rows set aside by this worker.")?,
            rows_served: counter("forebay_served_rows_total", "Rows handed to consumers of jobs by this worker.")?,
            epochs_published: counter("forebay_epochs_published_total", "Epochs published by this dispatcher.")?,
            queries: counter("forebay_queries_total", "SQL queries planned here.")?,
            job_streams: gauge("forebay_job_streams", "Open streams of jobs.")?,
            leading: gauge("forebay_leading", "1 while this process leads its root, 0 while it stands by or only works.")?,
            registry,
        })
    }

    /// The Prometheus text format.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if let Err(error) = TextEncoder::new().encode_utf8(&self.registry.gather(), &mut out) {
            tracing::warn!(%error, "metrics could not be encoded");
        }
        out
    }
}
