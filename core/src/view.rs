//! Views: a SELECT with a name. One that only chooses rows and columns of a dataset can be read as a job.
//!
//! Owns: what such a choice is, how choices add up, and what is kept of a view. Must not know: SQL, where views are stored.

use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::ids::{DatasetName, EpochId, VersionId, ViewName};
use crate::suggest;

#[cfg(test)]
mod tests;

/// Rows and columns of one dataset: what `SELECT columns FROM dataset WHERE filter` chooses.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct ViewSelection {
    pub dataset: DatasetName,
    /// Pinned, or null for the newest when it is asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionId>,
    /// Null: all that a job of the dataset serves.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub columns: Option<Vec<String>>,
    /// A predicate over stored columns, without comments.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub filter: Option<String>,
}

impl ViewSelection {
    /// What is left when somebody chooses among it: `version`, `columns` and `filter` as in a job's settings.
    ///
    /// # Errors
    /// `BadInput` for a column that it leaves out, or a version other than the one that it pins.
    pub fn narrow(&self, version: Option<VersionId>, columns: Option<Vec<String>>, filter: Option<&str>) -> Result<Self> {
        let version = match (self.version, version) {
            (Some(pinned), Some(asked)) if pinned != asked => {
                return Err(Error::bad_input(format!("version {asked} of a view that pins version {pinned} of `{}`", self.dataset))
                    .with_remedy("leave the version out"));
            }
            (pinned, asked) => pinned.or(asked),
        };
        if let (Some(known), Some(asked)) = (&self.columns, &columns)
            && let Some(missing) = asked.iter().find(|name| !known.contains(name))
        {
            let remedy = suggest::remedy(missing, known.iter().map(String::as_str));
            let known: Vec<&str> = known.iter().map(String::as_str).collect();
            return Err(Error::bad_input(format!("the view has no column `{}`", missing.escape_debug()))
                .with_remedy(remedy.unwrap_or_else(|| format!("it has {}", known.join(", ")))));
        }
        // The line break ends a comment that the filter may end with.
        let filter = match (&self.filter, filter) {
            (Some(own), Some(more)) => Some(format!("({own}) AND ({more}\n)")),
            (own, more) => own.clone().or_else(|| more.map(str::to_owned)),
        };
        Ok(Self { dataset: self.dataset.clone(), version, columns: columns.or_else(|| self.columns.clone()), filter })
    }
}

/// The view that a job was opened by, as it was then: a job goes on with it, whatever becomes of the view.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct JobView {
    pub name: ViewName,
    pub selection: ViewSelection,
}

/// What reading a view takes, as it was measured.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct ViewCost {
    /// The dataset's version that was measured; null for a view that is more than a selection.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub version: Option<VersionId>,
    /// Rows that it chooses among, over all epochs; of a query, the rows that it scans.
    pub rows: u64,
    /// Rows that it yields; null where that takes running it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selected: Option<u64>,
    /// Uncompressed bytes of the row groups that hold rows of it; of a query, of those that it scans.
    pub bytes: u64,
    /// Bytes of the selections that its jobs keep, one per epoch.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection_bytes: Option<u64>,
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub epochs: Vec<EpochShare>,
}

impl ViewCost {
    /// The selected part of the rows, in 0..=1; null where it is not one of its rows' number.
    pub fn share(&self) -> Option<f64> {
        let selected = self.selected.filter(|_| self.version.is_some() && self.rows > 0)?;
        Some(selected as f64 / self.rows as f64)
    }
}

/// What a selection takes of one epoch.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct EpochShare {
    pub epoch: EpochId,
    pub rows: u64,
    pub selected: u64,
}

/// A view as it is stored. It never changes; another text takes another view.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct View {
    /// Of this format; a newer one is refused.
    pub v: u32,
    /// Tells two creations of one name apart.
    pub id: String,
    pub name: ViewName,
    pub sql: String,
    /// The tables that it names: datasets (perhaps with `@v3`), other views, `system.` tables.
    pub reads: Vec<String>,
    /// What it was when it was created; null: it can be asked by SQL only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub selection: Option<ViewSelection>,
    /// As measured at its creation.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cost: Option<ViewCost>,
    /// Wall clock, for people.
    pub created_ms: i64,
}

/// Written into every stored view.
pub const VIEW_VERSION: u32 = 1;

impl View {
    /// Whether it names the table, at any version.
    pub fn reads_table(&self, name: &str) -> bool {
        self.reads.iter().any(|table| table.split_once('@').map_or(table.as_str(), |(base, _)| base) == name)
    }
}
