//! One pass over one epoch of one version, planned.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Weak};

use forebay_core::ids::{EpochId, Incarnation, JobName, PassId, VersionId};
use forebay_core::job::JobSettings;
use forebay_core::plan::{Plan, PlanRowGroup, PlanSettings, Selection};
use forebay_core::random;
use forebay_core::shard::RowGroupMeta;
use forebay_core::{Error, Result};
use forebay_storage::artifact::{self, Of};
use forebay_storage::delta::DatasetVersion;
use forebay_storage::root::Root;
use parking_lot::Mutex;

use crate::dispatcher::{Grant, PassShape};
use crate::engine::View;

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
    /// Key of the very files: a dataset that was dropped and made again under the same name and version has another.
    pub(crate) stamp: u64,
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
        let groups = version.row_groups(epoch);
        let sizes: Vec<PlanRowGroup> = groups.iter().map(|(_, _, g)| PlanRowGroup { rows: g.rows, bytes: g.bytes }).collect();
        let round_size = match (&settings.bucket_by, settings.round_size) {
            (Some(_), Some(size)) => u64::from(size),
            _ => 1,
        };
        let plan_settings = PlanSettings {
            seed: settings.seed,
            pass,
            batch_size: settings.batch_size,
            window_bytes: settings.window,
            shuffle: settings.shuffle,
            round_size,
            end: settings.end,
        };
        let (name, rows) = selection.unzip();
        let selection_key = rows.as_ref().map(|rows| rows.key());
        let plan = Plan::new(&sizes, rows, plan_settings)?;
        let stamp = stamp(&version, epoch);
        Ok(Self { version, epoch, selection: name, selection_key, groups, plan, stamp })
    }

    /// What the dispatcher pins of the plan when the pass starts.
    pub(crate) fn shape(&self) -> PassShape {
        PassShape {
            version: self.version.version,
            epoch: self.epoch,
            rows: self.plan.rows(),
            window_rows: self.plan.window_rows(),
            batches_per_window: self.plan.batches_per_window(),
            selection: self.selection.clone(),
        }
    }
}

/// Which pass of which job; settings belong to the job's incarnation.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
struct PassKey {
    job: JobName,
    incarnation: Incarnation,
    pass: PassId,
    version: VersionId,
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
        view: &View,
        settings: &JobSettings,
        incarnation: Incarnation,
        grant: &Grant,
    ) -> Result<Arc<PassPlan>> {
        let key = PassKey {
            job: settings.job.clone(),
            incarnation,
            pass: grant.pass,
            version: grant.version,
            epoch: grant.epoch,
            selection: grant.selection.clone(),
        };
        if let Some(plan) = self.0.lock().get(&key).and_then(Weak::upgrade) {
            return Ok(plan);
        }
        let version = view.version(&settings.dataset, Some(grant.version)).await?;
        let selection = match &grant.selection {
            Some(name) => Some(load_selection(view.root(), &settings.job, name).await?),
            None => None,
        };
        let plan = Arc::new(PassPlan::new(version, grant.epoch, grant.pass, settings, selection)?);
        let mut known = self.0.lock();
        if let Some(first) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(first);
        }
        known.retain(|_, plan| plan.strong_count() > 0);
        known.insert(key, Arc::downgrade(&plan));
        Ok(plan)
    }
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
