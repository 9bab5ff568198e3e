//! The rows of a pass that a filter lets through, kept beside the job so that a restarted dispatcher and every worker plan alike.
//!
//! Owns: the selections' names. Must not know: how a selection is made or used.

use forebay_core::ids::{Incarnation, JobName, PassId};
use forebay_core::plan::Selection;
use forebay_core::{Error, Result};

use crate::artifact::{self, Of};
use crate::root::Root;

fn name(incarnation: Incarnation, pass: PassId) -> String {
    format!("selections/{:06}-{:06}", incarnation.0, pass.0)
}

/// Writes the selection of a pass, once; writing an equal one again is fine.
pub async fn put_selection(root: &Root, job: &JobName, incarnation: Incarnation, pass: PassId, selection: &Selection) -> Result<()> {
    artifact::put_bytes(root, Of::Job(job), &name(incarnation, pass), selection.to_bytes().into()).await
}

/// Reads it back; `NotFound` when it was never written.
pub async fn get_selection(root: &Root, job: &JobName, incarnation: Incarnation, pass: PassId) -> Result<Selection> {
    let name = name(incarnation, pass);
    let bytes = artifact::get_bytes(root, Of::Job(job), &name).await?;
    let bytes = bytes.ok_or_else(|| Error::not_found(format!("the selection `jobs/{job}/{name}` doesn't exist")))?;
    Selection::from_bytes(&bytes).map_err(|e| e.context(format!("jobs/{job}/{name}")))
}

/// Removes it once its pass is over.
pub async fn drop_selection(root: &Root, job: &JobName, incarnation: Incarnation, pass: PassId) -> Result<()> {
    artifact::delete(root, Of::Job(job), &name(incarnation, pass)).await
}
