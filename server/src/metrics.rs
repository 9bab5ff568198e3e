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
    /// Row groups read and decoded for consumers, and their stored bytes.
    pub row_groups_read: IntCounter,
    pub bytes_read: IntCounter,
    /// Of those, the ones that had been in memory before and had to go.
    pub row_groups_reread: IntCounter,
    /// Batches that steps behind the cut made.
    pub batches_made: IntCounter,
    pub batches_kept: IntCounter,
    /// Values by which batches with `bucket_by` have to be padded, and how many fewer these are than without it.
    pub padding: IntCounter,
    pub padding_saved: IntCounter,
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
            row_groups_read: counter("forebay_read_row_groups_total", "Row groups read and decoded for consumers by this worker.")?,
            bytes_read: counter("forebay_read_bytes_total", "Stored bytes of the row groups read for consumers by this worker.")?,
            row_groups_reread: counter(
                "forebay_reread_row_groups_total",
                "Row groups read again for consumers because memory was short when they were done with.",
            )?,
            batches_made: counter("forebay_transformed_batches_total", "Batches made by steps behind the cut by this worker.")?,
            batches_kept: counter(
                "forebay_kept_batches_total",
                "Batches of windows that several jobs read, gathered once for all of them.",
            )?,
            padding: counter(
                "forebay_bucket_padding_values_total",
                "Values that pad batches of jobs with bucket_by, over all windows read.",
            )?,
            padding_saved: counter(
                "forebay_bucket_padding_saved_values_total",
                "Values that would pad the same rows without bucket_by, less those that do.",
            )?,
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
