//! A job as users type it: JSON in a Flight descriptor, keyword arguments in Python, flags of `forebay read`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::{
    Acks, Assignment, ConsumerSettings, DEFAULT_BATCH_SIZE, DEFAULT_IDLE_TIMEOUT_MS, DEFAULT_KEPT_COMMITS, DEFAULT_RANK_TIMEOUT_MS,
    DEFAULT_WINDOW, End, JobSettings, Order, Passes, RankLost, Steps, Visitation,
};
use crate::error::{Error, Kind, Result};
use crate::ids::{ConsumerName, DatasetName, JobName, VersionId};
use crate::pipeline::Shuffle;
use crate::pipeline::fields::{Fields, Problems, show};
use crate::pipeline::size::parse_duration_ms;

/// The most rows of a batch. Far above any use; it keeps the plan's arithmetic inside 64 bits.
const MAX_BATCH_SIZE: u64 = 1 << 31;
/// A consumer's name is shown in tables and logs.
const MAX_CONSUMER_NAME: usize = 256;

/// Every setting of a job; what is null takes its default in [`JobRequest::resolve`]. Read it with [`JobRequest::from_json`], whose
/// errors name the nearest known key; the derived `Deserialize` is for data that Forebay wrote itself.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct JobRequest {
    pub job: Option<String>,
    pub dataset: String,
    pub version: Option<u64>,
    pub epochs: Passes,
    pub batch_size: Option<u64>,
    pub seed: Option<u64>,
    pub shuffle: Option<Shuffle>,
    pub order: Option<Order>,
    /// Bytes.
    pub window: Option<u64>,
    pub assignment: Option<Assignment>,
    pub visitation: Option<Visitation>,
    pub world_size: Option<u32>,
    pub steps: Option<Steps>,
    pub end: Option<End>,
    pub bucket_by: Option<String>,
    pub round_size: Option<u32>,
    pub columns: Option<Vec<String>>,
    pub filter: Option<String>,
    pub rank_lost: Option<RankLost>,
    /// `"60s"`
    pub rank_timeout: Option<String>,
    /// `"10m"`
    pub idle_timeout: Option<String>,
    /// Commits that may be restored: the newest ones.
    pub kept_commits: Option<u32>,
    pub restart: Option<bool>,
    pub consumer: Option<String>,
    /// A number that the consumer's process made up: another process under the same name takes its place, and fences it.
    pub session: Option<u64>,
    pub rank: Option<u32>,
    pub acks: Option<Acks>,
}

pub(crate) const SHUFFLES: &[(&str, Shuffle)] =
    &[("none", Shuffle::None), ("row_groups", Shuffle::RowGroups), ("window", Shuffle::Window), ("full", Shuffle::Full)];

impl JobRequest {
    /// Reads the JSON of a job command. All problems are reported at once, unknown keys with the nearest known one.
    pub fn from_json(text: &str) -> Result<Self> {
        let value: Value = serde_json::from_str(text)
            .map_err(|e| Error::bad_input(format!("job: not JSON: {e}")).with_remedy("send one JSON object with a `dataset`"))?;
        let Value::Object(map) = value else {
            return Err(Error::bad_input(format!("job: expected a JSON object, found {}", show(&value)))
                .with_remedy("send an object with a `dataset`"));
        };
        let problems = Problems::default();
        let mut fields = Fields::new("", map, &problems);
        let request = Self::read(&mut fields);
        fields.done();
        problems.finish("job")?;
        Ok(request)
    }

    fn read(f: &mut Fields<'_>) -> Self {
        let dataset = f.string("dataset");
        if dataset.is_none() {
            f.problems.wrong("dataset", "missing", "name the dataset to read");
        }
        Self {
            job: f.parsed("job", |name| JobName::parse(name).map(|n| n.0)),
            dataset: dataset.unwrap_or_default(),
            version: f.whole("version", 0, u64::MAX),
            epochs: f.take("epochs").map_or(Passes::All, |value| {
                Passes::from_value(&value).unwrap_or_else(|e| {
                    f.problems.error("epochs", e);
                    Passes::All
                })
            }),
            batch_size: f.whole("batch_size", 1, MAX_BATCH_SIZE),
            seed: f.whole("seed", 0, u64::MAX),
            shuffle: f.word("shuffle", SHUFFLES),
            order: f.word("order", &[("published", Order::Published), ("staged", Order::Staged)]),
            window: f.size("window"),
            assignment: f
                .word("assignment", &[("dynamic", Assignment::Dynamic), ("static", Assignment::Static), ("rounds", Assignment::Rounds)]),
            visitation: f.word(
                "visitation",
                &[
                    ("at_most_once", Visitation::AtMostOnce),
                    ("at_least_once", Visitation::AtLeastOnce),
                    ("exactly_once", Visitation::ExactlyOnce),
                ],
            ),
            world_size: f.whole32("world_size", 1),
            steps: f.word("steps", &[("any", Steps::Any), ("equal", Steps::Equal)]),
            end: f.word("end", &[("short", End::Short), ("drop", End::Drop), ("pad", End::Pad)]),
            bucket_by: f.string("bucket_by"),
            round_size: f.whole32("round_size", 1),
            columns: f.texts("columns", false),
            filter: f.string("filter"),
            rank_lost: f.word("rank_lost", &[("wait", RankLost::Wait), ("drop", RankLost::Drop), ("fail", RankLost::Fail)]),
            rank_timeout: f.parsed("rank_timeout", |text| parse_duration_ms(text).map(|_| text.to_owned())),
            idle_timeout: f.parsed("idle_timeout", |text| parse_duration_ms(text).map(|_| text.to_owned())),
            kept_commits: f.whole32("kept_commits", 1),
            restart: f.boolean("restart"),
            consumer: f.parsed("consumer", consumer_name),
            session: f.whole("session", 0, u64::MAX),
            rank: f.whole32("rank", 0),
            acks: f.word("acks", &[("action", Acks::Action)]),
        }
    }

    /// Applies the defaults and checks the settings against each other; what this version lacks is refused as unsupported.
    ///
    /// A private job has `job` null, a consumer may leave its name out: the caller puts generated names in before it resolves.
    pub fn resolve(&self, dataset_default_shuffle: Shuffle) -> Result<(JobSettings, ConsumerSettings)> {
        let problems = Problems::default();
        self.check_consumer(&problems);
        let settings = self.settings(dataset_default_shuffle, &problems);
        settings.check(&problems);
        let consumer = match (&self.consumer, self.rank) {
            (Some(name), _) => name.clone(),
            (None, Some(rank)) => format!("rank-{rank}"),
            (None, None) => {
                problems.wrong("consumer", "missing", "give each consumer of the job a name of its own");
                String::new()
            }
        };
        problems.finish("job")?;
        settings.check_supported()?;
        let restart = self.restart.unwrap_or(false);
        Ok((
            settings,
            ConsumerSettings {
                consumer: ConsumerName(consumer),
                rank: self.rank,
                acks_by_action: self.acks == Some(Acks::Action),
                restart,
            },
        ))
    }

    fn settings(&self, dataset_default_shuffle: Shuffle, problems: &Problems) -> JobSettings {
        let equal_world = self.world_size.is_some_and(|n| n > 1);
        let steps = self.steps.unwrap_or(if equal_world { Steps::Equal } else { Steps::Any });
        let name = |key: &str, e: Error| problems.error(key, e);
        JobSettings {
            job: self.job.as_deref().map_or_else(
                || {
                    problems.wrong("job", "missing", "name the job that the consumers share");
                    JobName(String::new())
                },
                |text| {
                    JobName::parse(text).unwrap_or_else(|e| {
                        name("job", e);
                        JobName(text.to_owned())
                    })
                },
            ),
            dataset: DatasetName::parse(&self.dataset).unwrap_or_else(|e| {
                name("dataset", e);
                DatasetName(self.dataset.clone())
            }),
            version: self.version.map(VersionId),
            epochs: self.epochs.clone(),
            batch_size: self.batch_size.unwrap_or(DEFAULT_BATCH_SIZE),
            seed: self.seed.unwrap_or(0),
            shuffle: self.shuffle.unwrap_or(dataset_default_shuffle),
            order: self.order.unwrap_or_default(),
            window: self.window.unwrap_or(DEFAULT_WINDOW),
            assignment: self.assignment.unwrap_or_default(),
            visitation: self.visitation.unwrap_or_default(),
            world_size: self.world_size,
            steps,
            end: self.end.unwrap_or(if steps == Steps::Equal { End::Drop } else { End::Short }),
            bucket_by: self.bucket_by.clone(),
            round_size: self.bucket_by.as_ref().map(|_| self.round_size.or(self.world_size).unwrap_or(1)),
            columns: self.columns.clone(),
            filter: self.filter.clone(),
            rank_lost: self.rank_lost.unwrap_or_default(),
            rank_timeout_ms: span(self.rank_timeout.as_deref(), "rank_timeout", DEFAULT_RANK_TIMEOUT_MS, problems),
            idle_timeout_ms: span(self.idle_timeout.as_deref(), "idle_timeout", DEFAULT_IDLE_TIMEOUT_MS, problems),
            kept_commits: self.kept_commits.unwrap_or(DEFAULT_KEPT_COMMITS),
            view: None,
        }
    }

    /// What concerns this consumer alone, or keys that the resolved settings no longer show.
    fn check_consumer(&self, problems: &Problems) {
        if self.round_size.is_some() && self.bucket_by.is_none() {
            problems.wrong("round_size", "it belongs to `bucket_by`, which is not given", "give `bucket_by`, or leave `round_size` out");
        }
        match (self.rank, self.world_size) {
            (Some(_), None) => problems.wrong("world_size", "missing beside `rank`", "give the number of consumers"),
            (Some(rank), Some(world)) if rank >= world => {
                problems.wrong("rank", format!("{rank} is outside of 0..{world}"), "number the consumers from 0");
            }
            (None, Some(_)) if matches!(self.assignment, Some(Assignment::Static | Assignment::Rounds)) => {
                problems.wrong("rank", "missing", "give this consumer's number in 0..world_size");
            }
            _ => {}
        }
        if let Some(Err(e)) = self.consumer.as_deref().map(consumer_name) {
            problems.error("consumer", e);
        }
    }
}

fn span(text: Option<&str>, key: &str, default: u64, problems: &Problems) -> u64 {
    match text.map(parse_duration_ms) {
        None => default,
        Some(Ok(ms)) => ms,
        Some(Err(e)) => {
            problems.error(key, e);
            default
        }
    }
}

fn consumer_name(text: &str) -> Result<String> {
    if text.is_empty() || text.len() > MAX_CONSUMER_NAME || text.chars().any(char::is_control) {
        return Err(Error::new(
            Kind::BadInput,
            format!("`{}` is not a consumer's name", text.chars().take(64).collect::<String>().escape_debug()),
        )
        .with_remedy(format!("use 1 to {MAX_CONSUMER_NAME} bytes without control characters")));
    }
    Ok(text.to_owned())
}
