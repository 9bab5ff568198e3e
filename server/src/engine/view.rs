//! What everyone in the process sees of the root's datasets: versions read once, shared, and bounded in number.

use std::collections::VecDeque;
use std::sync::Arc;

use forebay_core::Result;
use forebay_core::ids::{DatasetName, VersionId};
use forebay_storage::delta::{self, DatasetVersion};
use forebay_storage::root::Root;
use parking_lot::Mutex;

/// Versions kept in memory: more than the datasets that one process serves at a time.
const KEPT: usize = 256;

/// Read access to a root's datasets. Published versions never change, so a version is read once.
#[derive(Debug, Clone)]
pub struct View {
    root: Root,
    kept: Arc<Mutex<VecDeque<Arc<DatasetVersion>>>>,
    /// Whether a version that is kept is read again: another process may have dropped the dataset and made it anew under its name.
    follow: bool,
}

impl View {
    pub fn new(root: Root) -> Self {
        Self { root, kept: Arc::default(), follow: false }
    }

    /// The view of a process that does not own the root.
    pub fn following(root: Root) -> Self {
        Self { follow: true, ..Self::new(root) }
    }

    pub fn root(&self) -> &Root {
        &self.root
    }

    /// A dataset at a version, or at its newest.
    pub async fn version(&self, name: &DatasetName, version: Option<VersionId>) -> Result<Arc<DatasetVersion>> {
        if let Some(wanted) = version.filter(|_| !self.follow)
            && let Some(found) = self.kept.lock().iter().find(|v| v.version == wanted && v.name == *name)
        {
            return Ok(found.clone());
        }
        let read = delta::open_version(&self.root, name, version).await?;
        let mut kept = self.kept.lock();
        let same = |v: &Arc<DatasetVersion>| v.version == read.version && v.name == *name;
        if let Some(found) = kept.iter().find(|v| same(v) && (!self.follow || v.shards == read.shards)) {
            return Ok(found.clone());
        }
        if self.follow {
            kept.retain(|v| !same(v));
        }
        kept.push_back(read.clone());
        if kept.len() > KEPT {
            kept.pop_front();
        }
        Ok(read)
    }

    /// Forgets a dropped dataset: a new one of the same name starts again at version 0.
    pub fn forget(&self, name: &DatasetName) {
        self.kept.lock().retain(|v| v.name != *name);
    }

    /// The newest version of every dataset. One that cannot be read is left out with a warning, and still named when it is asked for.
    pub async fn all(&self) -> Result<Vec<Arc<DatasetVersion>>> {
        let mut versions = Vec::new();
        for name in delta::list_datasets(&self.root).await? {
            match self.version(&name, None).await {
                Ok(version) => versions.push(version),
                Err(error) => tracing::warn!(dataset = %name, %error, "a dataset could not be read"),
            }
        }
        Ok(versions)
    }
}
