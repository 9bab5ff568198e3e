//! Where the log lies, and which paths in it are followed. A log may have been written by anyone: a path in it must not become a file read
//! outside the table.

use forebay_core::ids::{DatasetName, VersionId};
use forebay_core::{Error, Result};
use object_store::path::Path;

/// Where text index bundles lie in a dataset's table. Other programs' vacuum leaves folders with `_` alone.
pub const BUNDLES: &str = "_forebay/index/";

/// Where the answers of queries that are sources lie in a dataset's table.
pub const QUERIES: &str = "_forebay/sql/";

pub(super) fn table(name: &DatasetName) -> Path {
    Path::from_iter(["datasets", name.as_str()])
}

pub(super) fn log_folder(name: &DatasetName) -> Path {
    Path::from_iter(["datasets", name.as_str(), "_delta_log"])
}

/// There while a dataset is being dropped: a log without a beginning is what is left of it then.
pub(super) fn drop_marker(name: &DatasetName) -> Path {
    Path::from_iter(["datasets", name.as_str(), "_forebay", "dropped"])
}

pub(super) fn commit_file(name: &DatasetName, version: VersionId) -> Path {
    log_folder(name).join(format!("{:020}.json", version.0))
}

/// Checks and decodes the path of an add or remove action: relative, inside the table, not in one of its private folders.
pub(super) fn checked(path: &str) -> Result<String> {
    let refused = |why: &str| {
        Err(Error::corrupt(format!("the log names the file `{}`, which {why}", path.escape_debug()))
            .with_remedy("a file of a dataset is named relative to its table; this log was changed by another program"))
    };
    let Ok(decoded) = percent_encoding::percent_decode_str(path).decode_utf8() else {
        return refused("isn't UTF-8");
    };
    if decoded.is_empty() || decoded.len() > 2_000 {
        return refused("is empty or too long");
    }
    if decoded.starts_with('/') {
        return refused("is absolute");
    }
    if decoded.chars().any(|c| c.is_control() || c == '\\') {
        return refused("contains characters that aren't allowed");
    }
    // A second layer of encoding would be decoded by nobody here and by somebody elsewhere.
    if decoded.contains("%2e") || decoded.contains("%2E") || decoded.contains("%2f") || decoded.contains("%2F") {
        return refused("is encoded twice");
    }
    let mut parts = decoded.split('/');
    if parts.clone().any(|p| matches!(p, "" | "." | "..")) {
        return refused("leaves its table");
    }
    let first = parts.next().unwrap_or_default();
    if first.contains(':') {
        return refused("is a URL");
    }
    if first.starts_with('_') {
        return refused("lies in a private folder");
    }
    Ok(decoded.into_owned())
}
