//! The modules of one pipeline, written to a private temporary folder for as long as someone uses them.
//!
//! A process that is killed cannot clean up: folders carry their owner's process id, and the next process removes those of the dead.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::sync::Once;

use forebay_core::{Error, Result};
use tempfile::TempDir;

const PREFIX: &str = "forebay-python-";

#[derive(Debug)]
pub(super) struct ModuleSet {
    modules: BTreeMap<String, String>,
    folder: TempDir,
}

impl ModuleSet {
    /// Writes the modules. `a.b` becomes `a/b.py`; a module that others are inside of becomes their `__init__.py`. Blocks.
    pub(super) fn write(modules: BTreeMap<String, String>) -> Result<Self> {
        let failed = |e: std::io::Error| Error::internal(format!("the pipeline's Python modules could not be written: {e}"));
        static SWEPT: Once = Once::new();
        SWEPT.call_once(|| sweep(&std::env::temp_dir()));
        let folder = tempfile::Builder::new().prefix(&format!("{PREFIX}{}-", std::process::id())).tempdir().map_err(failed)?;
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

    /// Removes the folder although someone may still hold the set: for a process that is about to end. Blocks.
    pub(super) fn remove(&self) {
        // What is left behind is only litter, and the next process sweeps it.
        let _ = std::fs::remove_dir_all(self.folder.path());
    }
}

/// Removes the folders of processes that are gone. Where the system doesn't show its processes, nothing is removed.
fn sweep(temporary: &Path) {
    let processes = Path::new("/proc");
    if !processes.join(std::process::id().to_string()).exists() {
        return;
    }
    for entry in std::fs::read_dir(temporary).into_iter().flatten().flatten() {
        let name = entry.file_name();
        let owner = name.to_str().and_then(|name| name.strip_prefix(PREFIX)?.split_once('-')?.0.parse::<u32>().ok());
        if owner.is_some_and(|pid| !processes.join(pid.to_string()).exists()) {
            // Another user's folder stays that user's.
            let _ = std::fs::remove_dir_all(entry.path());
        }
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn folders_of_the_dead_are_swept_and_those_of_the_living_stay() {
        let temporary = tempfile::tempdir().unwrap();
        // Larger than any process id that Linux gives.
        let dead = temporary.path().join(format!("{PREFIX}4194999-abc"));
        let living = temporary.path().join(format!("{PREFIX}{}-abc", std::process::id()));
        let other = temporary.path().join("forebay-python-notes");
        for folder in [&dead, &living, &other] {
            std::fs::create_dir(folder).unwrap();
            std::fs::write(folder.join("step.py"), "x = 1").unwrap();
        }
        sweep(temporary.path());
        assert_eq!((dead.exists(), living.exists(), other.exists()), (false, true, true));
    }
}
