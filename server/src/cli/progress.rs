//! Progress of a run or a read: on stderr, and only on a terminal.

use forebay_core::pipeline::show_size;
use forebay_flight::api::{IndexProgress, MaterializeProgress};
use indicatif::{MultiProgress, ProgressBar, ProgressStyle};
use std::io::{self, IsTerminal as _};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};

use super::output::count;

/// All bars of the process, so that other lines on stderr can be written above them.
static BARS: LazyLock<MultiProgress> = LazyLock::new(MultiProgress::new);

/// Stderr for log lines: they scroll above the bars instead of through them.
#[derive(Debug, Clone, Copy)]
pub(super) struct AboveBars;

impl io::Write for AboveBars {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.write_all(bytes).map(|()| bytes.len())
    }

    fn write_all(&mut self, bytes: &[u8]) -> io::Result<()> {
        BARS.suspend(|| io::stderr().write_all(bytes))
    }

    fn flush(&mut self) -> io::Result<()> {
        io::stderr().flush()
    }
}

#[derive(Debug)]
pub(super) struct Progress {
    bar: Option<ProgressBar>,
    started: Instant,
    /// Where the run stood when this command began to look, so that a resumed run's rate counts only new work.
    base: Option<(u64, u64)>,
}

impl Progress {
    pub(super) fn new(wanted: bool) -> Self {
        let bar = (wanted && std::io::stderr().is_terminal()).then(|| {
            let bar = BARS.add(ProgressBar::new(1));
            if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {percent:>3} % {msg}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self { bar, started: Instant::now(), base: None }
    }

    pub(super) fn show(&mut self, state: &MaterializeProgress) {
        let Some(bar) = &self.bar else { return };
        let (rows, done) = *self.base.get_or_insert((state.rows, state.source_bytes_done));
        bar.set_prefix(state.dataset.clone());
        bar.set_length(state.source_bytes.max(1));
        bar.set_position(state.source_bytes_done);
        bar.set_message(message(
            state,
            state.rows.saturating_sub(rows),
            state.source_bytes_done.saturating_sub(done),
            self.started.elapsed(),
        ));
    }

    /// Takes the bar off the screen.
    pub(super) fn stop(&mut self) {
        if let Some(bar) = self.bar.take() {
            bar.finish_and_clear();
        }
    }
}

/// `2 of 6 tasks, 1,024 rows/s, 1.2 MiB/s, ETA 12 s`; rates count what was done since the command began to look.
fn message(state: &MaterializeProgress, rows: u64, bytes: u64, elapsed: Duration) -> String {
    let seconds = elapsed.as_secs_f64().max(1e-3);
    let rate = |amount: u64| (amount as f64 / seconds) as u64;
    let left = state.source_bytes.saturating_sub(state.source_bytes_done);
    let eta = match rate(bytes) {
        0 => "-".to_owned(),
        per_second => span(left / per_second),
    };
    let quarantined = if state.quarantined > 0 { format!(", {} quarantined", count(state.quarantined)) } else { String::new() };
    format!(
        "{} of {} tasks, {} rows/s, {}/s, ETA {eta}{quarantined}",
        state.tasks_done,
        state.tasks,
        count(rate(rows)),
        show_size(rate(bytes))
    )
}

/// Rows that are read, by any number of consumers. Clones share the bar.
#[derive(Debug, Clone)]
pub(super) struct Rows(Option<(ProgressBar, Arc<AtomicU64>, Instant)>);

impl Rows {
    /// `total`: rows to come, where known.
    pub(super) fn new(total: Option<u64>) -> Self {
        if !std::io::stderr().is_terminal() {
            return Self(None);
        }
        let bar = BARS.add(total.filter(|n| *n > 0).map_or_else(ProgressBar::new_spinner, ProgressBar::new));
        let template =
            if bar.length().is_some() { "read [{bar:30}] {percent:>3} % {msg}, ETA {eta}" } else { "read {spinner} {pos} rows, {msg}" };
        if let Ok(style) = ProgressStyle::with_template(template) {
            bar.set_style(style.progress_chars("=> "));
        }
        bar.enable_steady_tick(Duration::from_millis(200));
        Self(Some((bar, Arc::default(), Instant::now())))
    }

    pub(super) fn add(&self, (rows, bytes): (u64, u64)) {
        let Some((bar, total, started)) = &self.0 else { return };
        bar.inc(rows);
        let bytes = total.fetch_add(bytes, Ordering::Relaxed) + bytes;
        let seconds = started.elapsed().as_secs_f64().max(1e-3);
        let rate = |amount: u64| (amount as f64 / seconds) as u64;
        bar.set_message(format!("{} rows/s, {}/s", count(rate(bar.position())), show_size(rate(bytes))));
    }

    /// Takes the bar off the screen.
    pub(super) fn stop(&self) {
        if let Some((bar, ..)) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

/// An index that is being built.
#[derive(Debug)]
pub(super) struct Indexed(Option<ProgressBar>);

impl Indexed {
    pub(super) fn new() -> Self {
        let bar = std::io::stderr().is_terminal().then(|| {
            let bar = BARS.add(ProgressBar::new(1));
            if let Ok(style) = ProgressStyle::with_template("{prefix} [{bar:30}] {percent:>3} % {msg}, ETA {eta}") {
                bar.set_style(style.progress_chars("=> "));
            }
            bar.enable_steady_tick(Duration::from_millis(200));
            bar
        });
        Self(bar)
    }

    pub(super) fn show(&self, state: &IndexProgress) {
        let Some(bar) = &self.0 else { return };
        bar.set_prefix(format!("{} {}", state.dataset, state.column));
        bar.set_length(state.rows.max(1));
        bar.set_position(state.rows_done);
        bar.set_message(format!("{} of {} shards, {}", state.shards_done, state.shards, show_size(state.bytes)));
    }

    /// Takes the bar off the screen.
    pub(super) fn stop(&self) {
        if let Some(bar) = &self.0 {
            bar.finish_and_clear();
        }
    }
}

fn span(seconds: u64) -> String {
    match seconds {
        0..=99 => format!("{seconds} s"),
        100..=5999 => format!("{} min", seconds / 60),
        _ => format!("{} h {} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_count_only_new_work() {
        let json = serde_json::json!({"dataset": "d", "state": "running", "epochs": [0], "published": [], "tasks": 6, "tasks_done": 2, "rows": 4000,
            "source_bytes": 10 << 20, "source_bytes_done": 4 << 20, "bytes": 0, "quarantined": 0, "version": null, "error": null});
        let state: MaterializeProgress = serde_json::from_value(json).unwrap_or_else(|e| unreachable!("{e}"));
        let text = message(&state, 2000, 1 << 20, Duration::from_secs(2));
        assert_eq!(text, "2 of 6 tasks, 1,000 rows/s, 512.0 KiB/s, ETA 12 s");
        assert_eq!(message(&state, 0, 0, Duration::ZERO), "2 of 6 tasks, 0 rows/s, 0 B/s, ETA -");
    }
}
