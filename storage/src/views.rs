//! Views: one object each, `views/NAME.json`, written once. Whoever reads the root reads them; only its owner makes and removes them.

use forebay_core::ids::ViewName;
use forebay_core::view::{VIEW_VERSION, View};
use forebay_core::{Error, Kind, Result};
use futures::{StreamExt, TryStreamExt};

use crate::artifact::{self, Of};
use crate::root::Root;

#[cfg(test)]
mod tests;

/// Views that are read at the same time.
const AHEAD: usize = 16;
const SUFFIX: &str = ".json";

fn object(name: &ViewName) -> String {
    format!("{name}{SUFFIX}")
}

/// Makes a view. Of two that are made at once under one name, one is there and the other is an error.
///
/// # Errors
/// `AlreadyExists` for a name that is taken.
pub async fn create(root: &Root, view: &View) -> Result<()> {
    match artifact::put_json(root, Of::Views, &object(&view.name), view).await {
        Err(e) if e.kind == Kind::AlreadyExists => Err(exists(&view.name)),
        done => done,
    }
}

/// The error for a name that a view has.
pub fn exists(name: &ViewName) -> Error {
    Error::new(Kind::AlreadyExists, format!("there is a view `{name}` already"))
        .with_remedy(format!("choose another name, or drop it: forebay view drop {name}"))
}

/// A view by its name; `None` when there is none.
///
/// # Errors
/// `Corrupt` for something else in its place, `Unsupported` for a view of a newer version.
pub async fn open(root: &Root, name: &ViewName) -> Result<Option<View>> {
    let Some(view) = artifact::get_json::<View>(root, Of::Views, &object(name)).await? else { return Ok(None) };
    if view.v > VIEW_VERSION {
        return Err(Error::unsupported(format!("view `{name}` is of version {}, and this program knows {VIEW_VERSION}", view.v))
            .with_remedy("use a newer forebay"));
    }
    Ok(Some(view))
}

/// The names of all views, in order.
pub async fn names(root: &Root) -> Result<Vec<ViewName>> {
    let folder = object_store::path::Path::from("views");
    let listed = crate::root::listing::list_folder(root.store().as_ref(), &folder).await.map_err(|e| root.error("list", &folder, &e))?;
    let names = listed.objects.iter().filter_map(|o| o.location.filename()).filter_map(|file| file.strip_suffix(SUFFIX));
    let mut names: Vec<ViewName> = names.filter_map(|name| ViewName::parse(name).ok()).collect();
    names.sort();
    Ok(names)
}

/// All views, in the order of their names.
pub async fn list(root: &Root) -> Result<Vec<View>> {
    let names = names(root).await?;
    // One that was dropped since it was listed isn't there.
    let opened = futures::stream::iter(names).map(|name| async move { open(root, &name).await }).buffered(AHEAD);
    Ok(opened.try_collect::<Vec<_>>().await?.into_iter().flatten().collect())
}

/// Removes a view.
///
/// # Errors
/// `NotFound` when there is none.
pub async fn remove(root: &Root, name: &ViewName) -> Result<View> {
    let view = open(root, name).await?.ok_or_else(|| Error::not_found(format!("there is no view `{name}`")))?;
    artifact::delete(root, Of::Views, &object(name)).await?;
    Ok(view)
}
