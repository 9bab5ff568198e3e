//! The Python files that go along with a pipeline: the modules that its steps name, and what those import from the same folder.
//!
//! Imports are found by reading the text, not by running it: an `import` or `from` at the start of a line, also indented. A module that
//! is put together by name at run time is not found.

use forebay_core::pipeline::PipelineSpec;
use forebay_core::{Error, Kind, Result};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// A pipeline is code beside a file, not a library: more than this is a folder of something else.
const MOST_BYTES: usize = 8 << 20;

/// Module name -> text, for everything that the pipeline's Python steps need from `folder`. `file` is the pipeline, for errors.
pub(super) fn gather(folder: &Path, spec: &PipelineSpec, file: &str) -> Result<BTreeMap<String, String>> {
    let mut found = BTreeMap::new();
    let mut open: Vec<String> = Vec::new();
    for module in spec.python_modules() {
        let top = module.split('.').next().unwrap_or(module);
        if locate(folder, module).is_none() {
            let expected = folder.join(module.replace('.', "/")).with_extension("py");
            let error = Error::new(Kind::NotFound, format!("{file}: no module `{module}` beside it ({} is not there)", expected.display()));
            return Err(error.with_remedy(format!("put {top}.py into the pipeline's folder")));
        }
        open.push(module.to_owned());
    }
    let mut bytes = 0;
    while let Some(module) = open.pop() {
        if found.contains_key(&module) {
            continue;
        }
        let Some((path, package)) = locate(folder, &module) else { continue };
        let text = std::fs::read_to_string(&path)
            .map_err(|e| Error::bad_input(format!("{}: {e}", path.display())).with_remedy("it has to be UTF-8"))?;
        bytes += text.len();
        if bytes > MOST_BYTES {
            return Err(Error::bad_input(format!("{file}: its Python modules hold more than {MOST_BYTES} bytes"))
                .with_remedy("install what is a library, and keep the step's own code beside the pipeline"));
        }
        open.extend(parents(&module));
        open.extend(imports(&text, &module, package));
        found.insert(module, text);
    }
    Ok(found)
}

/// The module's file, and whether it is a package. Never outside of the folder: names have no separators.
fn locate(folder: &Path, module: &str) -> Option<(PathBuf, bool)> {
    let mut path = folder.to_owned();
    path.extend(module.split('.'));
    let package = path.join("__init__.py");
    if package.is_file() {
        return Some((package, true));
    }
    let file = path.with_extension("py");
    file.is_file().then_some((file, false))
}

/// The packages around a module.
fn parents(module: &str) -> Vec<String> {
    module.match_indices('.').map(|(dot, _)| module[..dot].to_owned()).collect()
}

/// Every module that the text may import, whether it is in the folder or not.
fn imports(text: &str, module: &str, package: bool) -> Vec<String> {
    let mut names = Vec::new();
    for line in joined(text) {
        let line = line.trim();
        if let Some(rest) = line.strip_prefix("import ") {
            names.extend(items(rest));
        } else if let Some((from, what)) = line.strip_prefix("from ").and_then(|rest| rest.split_once(" import ")) {
            let Some(base) = absolute(from.trim(), module, package) else { continue };
            // `from a import b` takes a name of a, or the module a.b.
            names.extend(items(what).into_iter().map(|item| if base.is_empty() { item } else { format!("{base}.{item}") }));
            if !base.is_empty() {
                names.push(base);
            }
        }
    }
    names.retain(|name| name.split('.').all(|part| !part.is_empty() && part.chars().all(|c| c.is_alphanumeric() || c == '_')));
    names
}

/// Lines, with those in parentheses or after a backslash put together.
fn joined(text: &str) -> Vec<String> {
    let mut lines: Vec<String> = Vec::new();
    let mut open = false;
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default();
        match lines.last_mut().filter(|_| open) {
            Some(last) => {
                last.push(' ');
                last.push_str(line.trim());
            }
            None => lines.push(line.to_owned()),
        }
        let Some(last) = lines.last_mut() else { continue };
        let import = last.trim_start().starts_with("from ") || last.trim_start().starts_with("import ");
        let continued = last.ends_with('\\');
        if continued {
            last.pop();
        }
        open = import && (continued || (last.contains('(') && !last.contains(')')));
    }
    lines
}

/// `a.b as c, d` -> `a.b`, `d`
fn items(text: &str) -> Vec<String> {
    let text = text.replace(['(', ')'], " ");
    text.split([',', ';']).filter_map(|item| item.split_whitespace().next().map(str::to_owned)).collect()
}

/// The module that `from` names, resolved against the importing one; `None` where it climbs out of the folder.
fn absolute(from: &str, module: &str, package: bool) -> Option<String> {
    let dots = from.chars().take_while(|c| *c == '.').count();
    if dots == 0 {
        return Some(from.to_owned());
    }
    let mut base: Vec<&str> = module.split('.').collect();
    let climb = if package { dots - 1 } else { dots };
    if climb > base.len() {
        return None;
    }
    base.truncate(base.len() - climb);
    base.extend(from[dots..].split('.').filter(|part| !part.is_empty()));
    Some(base.join("."))
}

#[cfg(test)]
mod tests;
