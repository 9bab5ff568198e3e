//! Resolved settings: what fits together, what this version lacks, and how two requests of one job differ.

use serde_json::Value;

use super::{
    Assignment, DEFAULT_BATCH_SIZE, DEFAULT_IDLE_TIMEOUT_MS, DEFAULT_KEPT_COMMITS, DEFAULT_RANK_TIMEOUT_MS, DEFAULT_WINDOW, End,
    JobSettings, Order, Passes, RankLost, Steps, Visitation,
};
use crate::error::{Error, Result};
use crate::ids::{DatasetName, JobName, PassId};
use crate::pipeline::Shuffle;
use crate::pipeline::fields::Problems;
use crate::plan::PlanSettings;

impl JobSettings {
    /// The defaults of a job of one consumer.
    pub fn new(job: JobName, dataset: DatasetName) -> Self {
        Self {
            job,
            dataset,
            version: None,
            epochs: Passes::All,
            batch_size: DEFAULT_BATCH_SIZE,
            seed: 0,
            shuffle: Shuffle::default(),
            order: Order::default(),
            window: DEFAULT_WINDOW,
            assignment: Assignment::default(),
            visitation: Visitation::default(),
            world_size: None,
            steps: Steps::default(),
            end: End::default(),
            bucket_by: None,
            round_size: None,
            columns: None,
            filter: None,
            rank_lost: RankLost::default(),
            rank_timeout_ms: DEFAULT_RANK_TIMEOUT_MS,
            idle_timeout_ms: DEFAULT_IDLE_TIMEOUT_MS,
            kept_commits: DEFAULT_KEPT_COMMITS,
            view: None,
        }
    }

    /// Rules between settings that hold in every version.
    pub(super) fn check(&self, problems: &Problems) {
        if self.assignment != Assignment::Dynamic && self.world_size.is_none() {
            problems.wrong("world_size", format!("missing, and `assignment` is {}", word(self.assignment)), "give the number of consumers");
        }
        if self.assignment == Assignment::Dynamic && self.steps == Steps::Equal && self.world_size.is_none() {
            problems.wrong("world_size", "missing, and `steps` is equal", "give the number of consumers, or set `steps` to \"any\"");
        }
        if self.end == End::Short && self.steps == Steps::Equal {
            problems.wrong("end", "a short last batch gives unequal steps", "set `end` to \"drop\" or \"pad\", or `steps` to \"any\"");
        }
        if self.order == Order::Staged {
            self.check_staged(problems);
        }
        if self.rank_lost == RankLost::Drop && self.visitation != Visitation::AtMostOnce {
            problems.wrong("rank_lost", "\"drop\" loses batches, which only at_most_once allows", "use \"wait\" or \"fail\"");
        }
        match self.columns.as_deref() {
            Some([]) => problems.wrong("columns", "an empty list", "name at least one column, or leave it out for all"),
            Some(names) => {
                for (i, name) in names.iter().enumerate() {
                    if names[..i].contains(name) {
                        problems.wrong("columns", format!("`{}` is named twice", name.escape_debug()), "name each column once");
                    }
                }
            }
            None => {}
        }
        if self.filter.as_deref().is_some_and(|f| f.trim().is_empty()) {
            problems.wrong("filter", "empty", "give a SQL predicate over stored columns, or leave it out");
        }
    }

    fn check_staged(&self, problems: &Problems) {
        if self.filter.is_some() {
            problems.wrong(
                "filter",
                "`order` staged reads an epoch before its rows are known",
                "leave the filter out, or use `order` \"published\"",
            );
        }
        if self.shuffle == Shuffle::Full {
            problems.wrong("shuffle", "a full shuffle needs the whole epoch", "use \"window\", or `order` \"published\"");
        }
        if self.steps == Steps::Equal && self.assignment == Assignment::Dynamic {
            problems.wrong("steps", "equal steps of a staged epoch need a fixed map", "use `assignment` \"static\" or \"rounds\"");
        }
    }

    /// Refuses, in this one place, what the documentation names and this version lacks.
    pub fn check_supported(&self) -> Result<()> {
        let problems = Problems::default();
        if self.shuffle == Shuffle::Full {
            problems.unsupported("shuffle", "\"full\" is", "use \"window\", with a larger `window` for a wider mixture");
        }
        problems.finish("job")
    }

    /// What a second request of the same job asks differently, as `key: here -> there`.
    pub fn difference(&self, other: &Self) -> Vec<String> {
        let (here, there) = (self.shown(), other.shown());
        here.iter().zip(&there).filter(|(a, b)| a.1 != b.1).map(|(a, b)| format!("{}: {} -> {}", a.0, a.1, b.1)).collect()
    }

    /// Key and value of every setting, as users type them.
    fn shown(&self) -> Vec<(&'static str, Value)> {
        let span = |ms: u64| Value::from(if ms.is_multiple_of(1000) { format!("{}s", ms / 1000) } else { format!("{ms}ms") });
        vec![
            ("dataset", self.dataset.as_str().into()),
            ("version", self.version.map(|v| v.0).into()),
            ("epochs", value(&self.epochs)),
            ("batch_size", self.batch_size.into()),
            ("seed", self.seed.into()),
            ("shuffle", value(self.shuffle)),
            ("order", value(self.order)),
            ("window", self.window.into()),
            ("assignment", value(self.assignment)),
            ("visitation", value(self.visitation)),
            ("world_size", self.world_size.into()),
            ("steps", value(self.steps)),
            ("end", value(self.end)),
            ("bucket_by", self.bucket_by.clone().into()),
            ("round_size", self.round_size.into()),
            ("columns", value(&self.columns)),
            ("filter", self.filter.clone().into()),
            ("rank_lost", value(self.rank_lost)),
            ("rank_timeout", span(self.rank_timeout_ms)),
            ("idle_timeout", span(self.idle_timeout_ms)),
            ("kept_commits", self.kept_commits.into()),
            ("view", self.view.as_ref().map(|view| view.name.as_str()).into()),
        ]
    }
}

fn value(setting: impl serde::Serialize) -> Value {
    serde_json::to_value(setting).unwrap_or(Value::Null)
}

fn word(setting: impl serde::Serialize) -> String {
    value(setting).as_str().unwrap_or_default().to_owned()
}

impl JobSettings {
    /// What the plan of one of its passes depends on.
    pub fn plan(&self, pass: PassId) -> PlanSettings {
        PlanSettings {
            seed: self.seed,
            pass,
            batch_size: self.batch_size,
            window_bytes: self.window,
            shuffle: self.shuffle,
            round_size: match (&self.bucket_by, self.round_size) {
                (Some(_), Some(size)) => u64::from(size),
                _ => 1,
            },
            end: self.end,
        }
    }

    /// Batches go to ranks, not to whoever asks.
    pub fn is_fixed(&self) -> bool {
        self.assignment != Assignment::Dynamic
    }

    /// Every consumer has a rank: by the map, or because equal steps need one quota each.
    pub fn is_ranked(&self) -> bool {
        self.is_fixed() || self.steps == Steps::Equal
    }

    /// What is lost on the way goes out again.
    pub fn redelivers(&self) -> bool {
        self.visitation != Visitation::AtMostOnce
    }

    /// What was granted on a stream that is gone stays its consumer's until it says what it received: it must not be given to two, or counted as
    /// a step that was made.
    pub fn awaits_reports(&self) -> bool {
        self.visitation == Visitation::ExactlyOnce || self.is_ranked()
    }

    /// The error for a consumer whose settings differ from the job's.
    pub fn refuse_difference(&self, asked: &Self) -> Result<()> {
        let differences = self.difference(asked);
        if differences.is_empty() {
            return Ok(());
        }
        Err(Error::failed_precondition(format!("job `{}` has other settings (job -> asked): {}", self.job, differences.join(", ")))
            .with_remedy("give the job's settings, or another job name"))
    }
}
