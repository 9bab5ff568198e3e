//! Full-text search: how text becomes words, what a query means, indexes of shards and their answers.
//!
//! Owns: tokenizers, the query language, building a shard's index, matching and ranking. The bytes of an index are a bundle of `storage`; tantivy is
//! known only here. Must not know: SQL plans, who asks.
//!
//! A query is read once ([`query::parse`]), turned into a condition on words ([`Condition`]), and that is evaluated in two ways which must agree:
//! by an index ([`index::ShardIndex`]) and row by row ([`rows::Matcher`]) where a shard has none.

pub mod build;
mod compile;
mod condition;
mod directory;
mod index;
mod indexes;
mod query;
mod rank;
mod rows;
mod tokenize;

pub use condition::Condition;
pub use indexes::TextIndexes;
pub(crate) use rank::{Hit, rank_shards};
pub use rows::Matcher;

pub(crate) use index::ShardIndex;

use arrow::datatypes::DataType;
use forebay_core::text::TextColumns;
use forebay_core::{Error, Result, suggest};

/// Key of a field's metadata that says how its text is cut into words, where it can be searched.
pub const TOKENIZER_KEY: &str = "forebay.tokenizer";

/// Whether a column's values are text.
pub fn is_text(data_type: &DataType) -> bool {
    match data_type {
        DataType::Utf8 | DataType::LargeUtf8 | DataType::Utf8View => true,
        DataType::Dictionary(_, values) => is_text(values),
        _ => false,
    }
}

/// Checks the columns of an index against those that are stored.
///
/// # Errors
/// `BadInput` for a column that isn't there or isn't text.
pub fn check_columns(columns: &TextColumns, schema: &arrow::datatypes::Schema) -> Result<()> {
    for column in columns.keys() {
        let shown = column.escape_debug();
        match schema.field_with_name(column) {
            Err(_) => {
                let texts = schema.fields().iter().filter(|f| is_text(f.data_type())).map(|f| f.name().as_str());
                let error = Error::bad_input(format!("there is no column `{shown}`"));
                return Err(match suggest::remedy(column, texts) {
                    Some(remedy) => error.with_remedy(remedy),
                    None => error.with_remedy("no stored column is text"),
                });
            }
            Ok(field) if !is_text(field.data_type()) => {
                return Err(Error::bad_input(format!(
                    "column `{shown}` is {}, and only text can be searched",
                    forebay_storage::types::type_name(field)
                ))
                .with_remedy("name a text column, or make one with CAST(... AS VARCHAR) in a step"));
            }
            Ok(_) => {}
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
