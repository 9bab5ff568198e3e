//! The modules of one pipeline, written to a private temporary folder for as long as someone uses them.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use forebay_core::{Error, Result};
use tempfile::TempDir;

#[derive(Debug)]
pub(super) struct ModuleSet {
    modules: BTreeMap<String, String>,
    folder: TempDir,
}

impl ModuleSet {
    /// Writes the modules. `a.b` becomes `a/b.py`; a module that others are inside of becomes their `__init__.py`. Blocks.
    pub(super) fn write(modules: BTreeMap<String, String>) -> Result<Self> {
        let failed = |e: std::io::Error| Error::internal(format!("the pipeline's Python modules could not be written: {e}"));
        let folder = tempfile::Builder::new().prefix("forebay-python-").tempdir().map_err(failed)?;
        for (name, text) in &modules {
            let inside = format!("{name}.");
            let package = modules.keys().any(|other| other.starts_with(&inside));
            let path = folder.path().join(file_of(name, package)?);
            if let Some(parent) = path.parent() {
                std::fs::create_dir_all(parent).map_err(failed)?;
            }
            std::fs::write(&path, text).map_err(failed)?;
        }
        Ok(Self { modules, folder })
    }

    pub(super) fn holds(&self, modules: &BTreeMap<String, String>) -> bool {
        self.modules == *modules
    }

    pub(super) fn folder(&self) -> &Path {
        self.folder.path()
    }
}

/// Module names come from clients, so only dotted identifiers become paths.
fn file_of(name: &str, package: bool) -> Result<PathBuf> {
    let identifier = |part: &str| {
        part.starts_with(|c: char| c.is_ascii_alphabetic() || c == '_') && part.chars().all(|c| c.is_ascii_alphanumeric() || c == '_')
    };
    if !name.split('.').all(identifier) {
        return Err(Error::bad_input(format!("`{name}` is not a Python module's name")));
    }
    let mut path: PathBuf = name.split('.').collect();
    if package {
        path.push("__init__.py");
    } else {
        path.set_extension("py");
    }
    Ok(path)
}
