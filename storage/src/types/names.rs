//! Which column names are taken or can't be stored.

use arrow::datatypes::{DataType, Fields, Schema};
use forebay_core::{Error, Result};
use std::collections::HashMap;

/// The row's stable number, `Int64`, never null.
pub const ID: &str = "_id";
/// Which of the rows that one source row became, `Int32`.
pub const PART: &str = "_part";
/// The source file, `Utf8`.
pub const SOURCE: &str = "_source";
/// The partition column.
pub const EPOCH: &str = "epoch";
/// `train`, `val` or `test`.
pub const SPLIT: &str = "split";
const SCORE: &str = "_score";

/// What Delta refuses in a column name when columns aren't mapped by id.
const REFUSED_CHARACTERS: &[char] = &[' ', ',', ';', '{', '}', '(', ')', '\n', '\t', '='];

/// Checks the columns that a user's step or table puts out: `what` says whose they are, for the message.
///
/// # Errors
/// A reserved, refused or duplicate name, with `AS` as the remedy.
pub fn check_user_columns(schema: &Schema, what: &str) -> Result<()> {
    for field in schema.fields() {
        let name = field.name();
        if [ID, PART, SOURCE, SCORE, EPOCH, SPLIT].iter().any(|r| r.eq_ignore_ascii_case(name)) {
            return Err(Error::bad_input(format!("{what}: the column name `{name}` is reserved"))
                .with_remedy(format!("rename it: `\"{name}\" AS {}`", suggestion(name))));
        }
    }
    check_names(schema.fields()).map_err(|e| e.context(what))
}

/// Checks a whole stored schema, in which `_id`, `_part`, `_source` and `split` are ours and have their types.
pub(super) fn check_stored_columns(schema: &Schema) -> Result<()> {
    for field in schema.fields() {
        let expected: &[DataType] = match field.name().as_str() {
            ID => &[DataType::Int64],
            PART => &[DataType::Int32],
            SOURCE | SPLIT => &[DataType::Utf8, DataType::Utf8View, DataType::LargeUtf8],
            EPOCH | SCORE => {
                return Err(Error::bad_input(format!("the column name `{}` is reserved", field.name())).with_remedy(format!(
                    "rename it: `\"{0}\" AS {1}`",
                    field.name(),
                    suggestion(field.name())
                )));
            }
            _ => continue,
        };
        let given = match field.data_type() {
            DataType::Dictionary(_, values) => values.as_ref(),
            other => other,
        };
        if !expected.contains(given) {
            return Err(Error::bad_input(format!("the column name `{}` is reserved and can't be of type {given}", field.name()))
                .with_remedy(format!("rename it: `\"{0}\" AS {1}`", field.name(), suggestion(field.name()))));
        }
    }
    check_names(schema.fields())
}

fn check_names(fields: &Fields) -> Result<()> {
    // Delta (and Spark) compare names without case; two that differ only in case could be written and never read by them.
    let mut seen: HashMap<String, &str> = HashMap::new();
    for field in fields {
        let name = field.name().as_str();
        if name.is_empty() {
            return Err(Error::bad_input("a column has no name").with_remedy("name it with `AS`"));
        }
        if let Some(c) = name.chars().find(|c| REFUSED_CHARACTERS.contains(c)) {
            return Err(Error::bad_input(format!("the column name `{}` contains {c:?}, which Delta refuses", name.escape_debug()))
                .with_remedy(format!("rename it: `\"{}\" AS {}`", name.escape_debug(), suggestion(name))));
        }
        if let Some(other) = seen.insert(name.to_lowercase(), name) {
            let how = if other == name { "twice".to_owned() } else { format!("beside `{other}`, which differs only in case") };
            return Err(Error::bad_input(format!("the column `{name}` appears {how}"))
                .with_remedy(format!("rename one: `\"{name}\" AS {}_2`", suggestion(name))));
        }
        check_nested(field.data_type())?;
    }
    Ok(())
}

fn check_nested(data_type: &DataType) -> Result<()> {
    match data_type {
        DataType::Struct(fields) => check_names(fields),
        DataType::List(f) | DataType::LargeList(f) | DataType::FixedSizeList(f, _) | DataType::Map(f, _) => check_nested(f.data_type()),
        _ => Ok(()),
    }
}

/// A name that would be accepted: what is left of this one.
fn suggestion(name: &str) -> String {
    let mut kept = String::with_capacity(name.len());
    for c in name.trim_start_matches('_').chars() {
        let c = if c.is_alphanumeric() { c } else { '_' };
        if !(c == '_' && kept.ends_with('_')) {
            kept.push(c);
        }
    }
    let kept = kept.trim_matches('_');
    match kept.to_lowercase().as_str() {
        "" => "renamed".to_owned(),
        taken @ ("id" | "part" | "source" | "score" | "epoch" | "split") => format!("my_{taken}"),
        _ => kept.to_owned(),
    }
}
