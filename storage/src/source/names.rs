//! Names of a source's columns: which are refused, how they are renamed, and whether a file has the columns that the first one has.

use arrow::datatypes::{Field, Fields, SchemaRef};
use forebay_core::{Error, Result};
use std::collections::HashMap;
use std::sync::Arc;

use super::options::{Names, Options};

/// Names that mean something else in every dataset.
const RESERVED: &[&str] = &["_id", "_part", "_source", "_score", "epoch", "split"];

const REMEDY: &str = "rename it in the file, or with `options.columns`";

/// Refuses what can't be a column: no name, a reserved one, or two that differ at most in case.
pub(super) fn check(names: &[String], file: &str) -> Result<()> {
    let mut seen: HashMap<String, usize> = HashMap::new();
    for (at, name) in names.iter().enumerate() {
        let number = at + 1;
        if name.is_empty() {
            return Err(Error::bad_input(format!("`{file}`: column {number} has no name"))
                .with_remedy("name it in the file, or name all columns with `options.columns`"));
        }
        if RESERVED.iter().any(|r| r.eq_ignore_ascii_case(name)) {
            return Err(Error::bad_input(format!("`{file}`: the column name `{name}` is reserved")).with_remedy(REMEDY));
        }
        if let Some(other) = seen.insert(name.to_lowercase(), number) {
            let first = &names[other - 1];
            let what = if first == name {
                format!("two columns are named `{name}`")
            } else {
                format!("the columns `{first}` and `{name}` differ only in case")
            };
            return Err(Error::bad_input(format!("`{file}`: {what} (columns {other} and {number})")).with_remedy(REMEDY));
        }
    }
    Ok(())
}

/// The names after `options.columns`.
pub(super) fn renamed(found: Vec<String>, options: &Options, file: &str) -> Result<Vec<String>> {
    match &options.names {
        Names::AsInFile => Ok(found),
        Names::List(names) if names.len() == found.len() => Ok(names.clone()),
        Names::List(names) => {
            let message = format!("`{file}` has {} columns and `options.columns` names {}", found.len(), names.len());
            Err(Error::bad_input(message).with_remedy("name each column once, in the file's order"))
        }
        Names::Renamed(map) => {
            if let Some(missing) = map.keys().find(|old| !found.contains(old)) {
                let error = Error::bad_input(format!("`options.columns` renames `{missing}`, which `{file}` doesn't have"));
                let near = forebay_core::suggest::remedy(missing, found.iter().map(String::as_str));
                return Err(near.map_or(error.clone(), |n| error.with_remedy(n)));
            }
            Ok(found.into_iter().map(|name| map.get(&name).cloned().unwrap_or(name)).collect())
        }
    }
}

/// A columnar file's fields after `options.columns`.
pub(super) fn rename(schema: SchemaRef, options: &Options, file: &str) -> Result<Fields> {
    let names = renamed(schema.fields().iter().map(|f| f.name().clone()).collect(), options, file)?;
    check(&names, file)?;
    let fields = schema
        .fields()
        .iter()
        .zip(names)
        .map(|(field, name)| if field.name() == &name { field.clone() } else { Arc::new(Field::clone(field).with_name(name)) });
    Ok(fields.collect())
}

/// For each column of the source, where a file has it. Same names in another order are fine; a missing or an additional one is not.
pub(super) fn places(wanted: &[&str], found: &[String], file: &str, first: &str) -> Result<Vec<usize>> {
    let remedy = "give all files of a source the same columns, or make them two pipelines";
    let mut places = Vec::with_capacity(wanted.len());
    for name in wanted {
        let place = found.iter().position(|f| f == name);
        places.push(
            place
                .ok_or_else(|| Error::bad_input(format!("`{file}` lacks the column `{name}`, which `{first}` has")).with_remedy(remedy))?,
        );
    }
    match found.iter().find(|f| !wanted.contains(&f.as_str())) {
        Some(extra) => Err(Error::bad_input(format!("`{file}` has the column `{extra}`, which `{first}` lacks")).with_remedy(remedy)),
        None => Ok(places),
    }
}
