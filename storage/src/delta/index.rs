//! A dataset's text index in the log: which columns can be searched is a table property, where a shard's bundle is stands in its add action.

use forebay_core::shard::ShardMeta;
use forebay_core::text::{BundleMeta, TextColumns};
use forebay_core::{Error, Result};
use serde_json::json;
use std::collections::BTreeMap;

use super::actions::{Add, Format, Line, MetaData, Txn};
use super::{DatasetVersion, paths};
use crate::types::{EPOCH, delta_schema_json};

/// Table property: the text columns with their tokenizers, as JSON.
pub const INDEX_PROPERTY: &str = "forebay.index";

/// The value of [`INDEX_PROPERTY`].
///
/// # Errors
/// None in practice: names and words are text.
pub fn index_property(columns: &TextColumns) -> Result<String> {
    serde_json::to_string(columns).map_err(|e| Error::internal(format!("a table property could not be written: {e}")))
}

impl DatasetVersion {
    /// The columns that can be searched, with their tokenizers. Shards may lack a bundle for some: those are evaluated row by row.
    pub fn text_columns(&self) -> TextColumns {
        // A property that another program spoiled is none.
        self.properties.get(INDEX_PROPERTY).and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default()
    }
}

/// The actions that give shards of `previous` their bundles (by the shard's path) and the table its text columns. Rows stay as they are: the same
/// files are added again with `dataChange` false. Pure, as [`super::commit_body`].
///
/// # Errors
/// `Unsupported` for a file of another writer whose name can't be repeated, `Internal` for a bundle of a shard that isn't there.
pub fn index_body(previous: &DatasetVersion, columns: &TextColumns, bundles: &BTreeMap<String, BundleMeta>, now_ms: i64) -> Result<String> {
    let info = json!({
        "timestamp": now_ms,
        "operation": "INDEX",
        "operationParameters": {"index": columns.keys().cloned().collect::<Vec<_>>().join(",")},
        "isBlindAppend": false,
        "engineInfo": concat!("forebay/", env!("CARGO_PKG_VERSION")),
        "forebay": {"index": columns},
    });
    let mut lines = vec![Line { commit_info: Some(info), ..Line::default() }];
    let property = index_property(columns)?;
    if previous.properties.get(INDEX_PROPERTY) != Some(&property) {
        let mut properties = previous.properties.clone();
        properties.insert(INDEX_PROPERTY.to_owned(), property);
        lines.push(Line { meta_data: Some(metadata(previous, properties)?), ..Line::default() });
    }
    let txn = Txn { app_id: format!("forebay/{}/index", previous.name), version: now_ms, last_updated: Some(now_ms) };
    lines.push(Line { txn: Some(txn), ..Line::default() });
    for (path, bundle) in bundles {
        let shard = previous.shards.iter().find(|s| s.path == *path);
        let shard = shard.ok_or_else(|| Error::internal(format!("{path} isn't a shard of version {}", previous.version)))?;
        lines.push(Line { add: Some(add(shard, bundle)?), ..Line::default() });
    }
    let mut body = String::new();
    for line in lines {
        body.push_str(&serde_json::to_string(&line).map_err(|e| Error::internal(format!("a commit can't be written: {e}")))?);
        body.push('\n');
    }
    Ok(body)
}

fn metadata(previous: &DatasetVersion, properties: BTreeMap<String, String>) -> Result<MetaData> {
    Ok(MetaData {
        id: previous.table.id.clone(),
        name: Some(previous.name.to_string()),
        format: Format { provider: "parquet".to_owned(), options: BTreeMap::new() },
        schema_string: delta_schema_json(&previous.stored)?,
        partition_columns: vec![EPOCH.to_owned()],
        created_time: previous.table.created_ms,
        configuration: properties.into_iter().map(|(k, v)| (k, Some(v))).collect(),
    })
}

fn add(shard: &ShardMeta, bundle: &BundleMeta) -> Result<Add> {
    paths::checked(&shard.path)?;
    // The log knows a file by its name as it was written, and this name was decoded: of these characters both are the same.
    if !shard.path.chars().all(|c| c.is_ascii_alphanumeric() || "=-_./".contains(c)) {
        return Err(Error::unsupported(format!("the file `{}` was written by another program and can't be indexed", shard.path))
            .with_remedy("rewrite the dataset, or search it without an index"));
    }
    let shard = ShardMeta { index: Some(bundle.clone()), ..shard.clone() };
    Ok(Add { data_change: false, ..Add::of(&shard) })
}
