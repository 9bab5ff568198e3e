//! One pass over one epoch of one version, planned.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use forebay_core::dispatch::RunId;
use forebay_core::ids::{EpochId, Incarnation, JobName, PassId, VersionId, WindowId};
use forebay_core::job::{JobSettings, Order};
use forebay_core::plan::{Plan, PlanRowGroup, Selection, staged_window_rows};
use forebay_core::random;
use forebay_core::shard::RowGroupMeta;
use forebay_core::{Error, Result};
use forebay_storage::artifact::{self, Of};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::root::Root;
use parking_lot::Mutex;

use super::Reader;
use super::staged::Standing;
use crate::dispatcher::{Dispatcher, Grant, PassShape};

/// A filter's rows, with the name under which they are kept.
pub(crate) type NamedSelection = (String, Arc<Selection>);

/// What a pass reads, and in which order.
pub(crate) struct PassPlan {
    pub(crate) version: Arc<DatasetVersion>,
    pub(crate) epoch: EpochId,
    /// Where the selection is kept; null without a filter.
    pub(crate) selection: Option<String>,
    /// Key of the selection's content.
    pub(crate) selection_key: Option<u64>,
    /// (shard of the version, row group of the shard), in (task, part, row group) order: what the plan's pieces index.
    pub(crate) groups: Vec<(usize, usize, RowGroupMeta)>,
    pub(crate) plan: Plan,
    /// Key of the very files: a dataset that was dropped and made again under the same name and version has another. Null in staged order, where
    /// files are still being added: there a window is known by what it reads.
    stamp: Option<u64>,
    /// Who wrote the epoch, where the pass began before it was published.
    writer: Option<RunId>,
}

impl fmt::Debug for PassPlan {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PassPlan")
            .field("dataset", &self.version.name)
            .field("version", &self.version.version)
            .field("epoch", &self.epoch)
            .field("rows", &self.plan.rows())
            .finish_non_exhaustive()
    }
}

impl PassPlan {
    /// Plans pass `pass` of a job with these settings over `epoch`.
    ///
    /// # Errors
    /// `FailedPrecondition` when the version does not have the epoch, `Corrupt` when the selection is of other row groups.
    pub(crate) fn new(
        version: Arc<DatasetVersion>,
        epoch: EpochId,
        pass: PassId,
        settings: &JobSettings,
        selection: Option<NamedSelection>,
    ) -> Result<Self> {
        if !version.epochs().contains(&epoch) {
            return Err(Error::failed_precondition(format!(
                "version {} of dataset `{}` has no epoch {epoch}",
                version.version, version.name
            ))
            .with_remedy("`forebay epochs` lists what there is"));
        }
        if settings.order == Order::Staged {
            return Self::staged(version, epoch, pass, settings, true);
        }
        let groups = version.row_groups(epoch);
        let (name, rows) = selection.unzip();
        let selection_key = rows.as_ref().map(|rows| rows.key());
        let plan = Plan::new(&sizes(&groups), rows, settings.plan(pass))?;
        let stamp = Some(stamp(&version, epoch));
        Ok(Self { version, epoch, selection: name, selection_key, groups, plan, stamp, writer: None })
    }

    /// In staged order; `complete`: the epoch is whole, else the plan has the windows that later tasks do not change.
    pub(crate) fn staged(
        version: Arc<DatasetVersion>,
        epoch: EpochId,
        pass: PassId,
        settings: &JobSettings,
        complete: bool,
    ) -> Result<Self> {
        let (groups, first) = version.staged_row_groups(epoch);
        let (sizes, plan_settings) = (sizes(&groups), settings.plan(pass));
        let window_rows = staged_window_rows(&sizes[..first], &plan_settings)?;
        let plan = Plan::staged(&sizes, window_rows, plan_settings, complete)?;
        Ok(Self { version, epoch, selection: None, selection_key: None, groups, plan, stamp: None, writer: None })
    }

    /// Whether a version has the epoch.
    pub(crate) fn is_published(&self) -> bool {
        self.version.version != DatasetVersion::UNPUBLISHED
    }

    /// Whether a grant's batches are planned here.
    pub(crate) fn serves(&self, grant: &Grant) -> bool {
        let same = self.plan.settings().pass == grant.pass && self.epoch == grant.epoch && self.selection == grant.selection;
        same && match grant.version {
            Some(version) => self.version.version == version,
            None => self.writer.is_some() && self.writer == grant.run && grant.window.0 < self.plan.windows(),
        }
    }

    /// Whether the rows of a grant are stored as those of this plan are, though it may be of more windows.
    pub(crate) fn is_like(&self, grant: &Grant) -> bool {
        self.writer.is_some() && self.writer == grant.run && grant.version.is_none()
    }

    /// Tells a window's files, and what is read of them, from any other's.
    pub(crate) fn stamp(&self, window: WindowId) -> u64 {
        self.stamp.unwrap_or_else(|| {
            let pieces = self.plan.window(window).pieces;
            let read = pieces.iter().filter_map(|piece| {
                let (shard, group, _) = self.groups.get(piece.row_group as usize)?;
                let file = self.version.shards.get(*shard)?;
                let file = [random::text_key(&file.path), file.size, file.modified_ms.cast_unsigned()];
                Some([file[0], file[1], file[2], *group as u64, piece.start, piece.len])
            });
            random::key(&read.flatten().collect::<Vec<_>>())
        })
    }

    /// What the dispatcher pins of the plan when the pass starts.
    pub(crate) fn shape(&self) -> PassShape {
        PassShape {
            version: Some(self.version.version),
            epoch: self.epoch,
            rows: self.plan.rows(),
            window_rows: self.plan.window_rows(),
            batches_per_window: self.plan.batches_per_window(),
            selection: self.selection.clone(),
            growth: None,
        }
    }
}

/// Which pass of which job; settings belong to the job's incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PassKey {
    job: JobName,
    incarnation: Incarnation,
    pass: PassId,
    version: Option<VersionId>,
    run: Option<RunId>,
    epoch: EpochId,
    selection: Option<String>,
}

/// Plans of the passes that streams are in: streams of one job share theirs, with its selection.
#[derive(Debug, Default)]
pub(crate) struct Passes(Mutex<HashMap<PassKey, Weak<PassPlan>>>);

impl Passes {
    /// The plan of a granted pass.
    ///
    /// # Errors
    /// As [`PassPlan::new`] and [`load_selection`]; `NotFound` when the version is gone.
    pub(crate) async fn of_grant(
        &self,
        from: &Reader,
        dispatcher: &Dispatcher,
        settings: &JobSettings,
        incarnation: Incarnation,
        grant: &Grant,
    ) -> Result<Arc<PassPlan>> {
        let key = PassKey {
            job: settings.job.clone(),
            incarnation,
            pass: grant.pass,
            version: grant.version,
            run: grant.run,
            epoch: grant.epoch,
            selection: grant.selection.clone(),
        };
        let of = |known: &HashMap<PassKey, Weak<PassPlan>>| known.get(&key).and_then(Weak::upgrade).filter(|plan| plan.serves(grant));
        if let Some(plan) = of(&self.0.lock()) {
            return Ok(plan);
        }
        let plan = Arc::new(plan_of(from, dispatcher, settings, grant).await?);
        let mut known = self.0.lock();
        if let Some(first) = of(&known) {
            return Ok(first);
        }
        known.retain(|_, plan| plan.strong_count() > 0);
        known.insert(key, Arc::downgrade(&plan));
        Ok(plan)
    }
}

async fn plan_of(from: &Reader, dispatcher: &Dispatcher, settings: &JobSettings, grant: &Grant) -> Result<PassPlan> {
    let Some(version) = grant.version else {
        return growing_plan(from, dispatcher, settings, grant).await;
    };
    let version = from.view.version(&settings.dataset, Some(version)).await?;
    let selection = match &grant.selection {
        Some(name) => Some(load_selection(from.view.root(), &settings.job, name).await?),
        None => None,
    };
    PassPlan::new(version, grant.epoch, grant.pass, settings, selection)
}

/// The plan of an epoch that was being written when the grant was made; it may be published by now.
async fn growing_plan(from: &Reader, dispatcher: &Dispatcher, settings: &JobSettings, grant: &Grant) -> Result<PassPlan> {
    let writer = grant.run.ok_or_else(|| Error::internal("a grant of no version and no run"))?;
    let (version, complete) = match from.staged.read(dispatcher, &settings.dataset, writer, grant.epoch).await? {
        Standing::Staged(version) => (version, false),
        Standing::Published(version) => (from.view.version(&settings.dataset, Some(version)).await?, true),
    };
    let plan = PassPlan { writer: Some(writer), ..PassPlan::staged(version, grant.epoch, grant.pass, settings, complete)? };
    if !plan.serves(grant) {
        return Err(Error::internal(format!("window {} was granted, and {} are staged", grant.window, plan.plan.windows())));
    }
    Ok(plan)
}

fn sizes(groups: &[(usize, usize, RowGroupMeta)]) -> Vec<PlanRowGroup> {
    groups.iter().map(|(_, _, g)| PlanRowGroup { rows: g.rows, bytes: g.bytes }).collect()
}

fn stamp(version: &DatasetVersion, epoch: EpochId) -> u64 {
    let files = version.shards_of(epoch).into_iter().flat_map(|s| [random::text_key(&s.path), s.size, s.modified_ms.cast_unsigned()]);
    random::key(&files.collect::<Vec<_>>())
}

/// Reads the rows that a pass's filter lets through, as the planner stored them when the pass started.
pub(crate) async fn load_selection(root: &Root, job: &JobName, name: &str) -> Result<NamedSelection> {
    let bytes = artifact::get_bytes(root, Of::Job(job), name)
        .await?
        .ok_or_else(|| Error::corrupt(format!("job `{job}`: the rows of its filter, `{name}`, are gone")).with_remedy("restart the job"))?;
    Ok((name.to_owned(), Arc::new(Selection::from_bytes(&bytes)?)))
}

/// Keeps the rows that a filter lets through under the job.
pub(crate) async fn store_selection(root: &Root, job: &JobName, name: &str, selection: &Selection) -> Result<()> {
    artifact::put_bytes(root, Of::Job(job), name, selection.to_bytes().into()).await
}
