//! From the names in a query to tables.
//!
//! A query's session holds exactly the tables that it names, opened at one version each: there is nothing else to find in it.

use std::collections::BTreeMap;
use std::sync::Arc;

use arrow::datatypes::SchemaRef;
use datafusion::catalog::TableProvider;
use datafusion::catalog::memory::{MemoryCatalogProvider, MemoryCatalogProviderList, MemorySchemaProvider};
use datafusion::catalog::{CatalogProvider, CatalogProviderList, SchemaProvider};
use datafusion::common::TableReference;
use datafusion::execution::session_state::SessionState;
use forebay_core::ids::{DatasetName, VersionId};
use forebay_core::{Error, Kind, Result, suggest};
use forebay_storage::delta::{DatasetVersion, list_datasets, open_version};
use forebay_storage::root::Root;

use super::information::{CATALOG, INFORMATION_SCHEMA, Information, SCHEMAS};
use super::request::Pins;
use super::search::SearchCall;
use super::search_table::SearchTable;
use super::system::SystemTable;
use super::table::DatasetTable;
use crate::guard::to_error;
use crate::system::SystemTables;
use crate::text::TextIndexes;

/// The schema of the datasets, which needs no name.
pub(super) const PUBLIC: &str = "public";
/// The schema of the system tables.
pub(super) const SYSTEM: &str = "system";

/// A schema that names may be looked for in.
pub(super) fn check_schema(name: &str) -> Result<()> {
    if SCHEMAS.contains(&name) {
        return Ok(());
    }
    Err(Error::not_found(format!("there is no schema `{}`", name.escape_debug())).with_remedy(format!("there are {}", SCHEMAS.join(", "))))
}

/// Where tables come from.
#[derive(Clone, Copy)]
pub(super) struct Sources<'a> {
    pub(super) root: &'a Root,
    pub(super) system: &'a Arc<dyn SystemTables>,
    pub(super) indexes: &'a TextIndexes,
}

/// The tables of one query, by schema and name.
pub(super) struct Tables {
    found: BTreeMap<String, BTreeMap<String, Arc<dyn TableProvider>>>,
}

impl Tables {
    /// Opens every table that is named. An unknown one is an error that names the nearest known.
    pub(super) async fn resolve(
        sources: Sources<'_>,
        names: &[TableReference],
        searches: &[SearchCall],
        schema: Option<&str>,
        pins: &Pins,
    ) -> Result<Self> {
        let Sources { root, system, indexes } = sources;
        let mut found: BTreeMap<String, BTreeMap<String, Arc<dyn TableProvider>>> = BTreeMap::new();
        for name in names {
            let schema = name.schema().or(schema).unwrap_or(PUBLIC);
            if let Some(call) = searches.iter().find(|call| call.table == name.table()) {
                let table = SearchTable::new(root.clone(), open(root, &call.dataset, pins).await?, indexes.clone(), call)?;
                found.entry(schema.to_owned()).or_default().insert(name.table().to_owned(), Arc::new(table));
                continue;
            }
            let table: Arc<dyn TableProvider> = match (name.catalog(), schema) {
                (None | Some(CATALOG), SYSTEM) => Arc::new(system_table(system, SYSTEM, name.table())?),
                (None | Some(CATALOG), INFORMATION_SCHEMA) => {
                    let tables: Arc<dyn SystemTables> = Arc::new(Information { root: root.clone(), system: system.clone() });
                    Arc::new(system_table(&tables, INFORMATION_SCHEMA, name.table())?)
                }
                (None | Some(CATALOG), PUBLIC) => {
                    Arc::new(DatasetTable::new(root.clone(), open(root, name.table(), pins).await?, indexes.clone()))
                }
                _ => {
                    return Err(Error::not_found(format!("there is no table `{name}`"))
                        .with_remedy("datasets go by their name alone, system tables by `system.name`"));
                }
            };
            found.entry(schema.to_owned()).or_default().insert(name.table().to_owned(), table);
        }
        Ok(Self { found })
    }

    /// The columns of one of them.
    pub(super) fn schema_of(&self, name: &TableReference) -> Result<SchemaRef> {
        let table = self.found.get(name.schema().unwrap_or(PUBLIC)).and_then(|tables| tables.get(name.table()));
        table.map(|t| t.schema()).ok_or_else(|| Error::not_found(format!("there is no table `{name}`")))
    }

    /// A session that sees these tables.
    pub(super) fn into_session(self, mut session: SessionState) -> Result<SessionState> {
        let names = session.config_options().catalog.clone();
        let catalog = MemoryCatalogProvider::new();
        for (schema, tables) in self.found {
            let provider = MemorySchemaProvider::new();
            for (name, table) in tables {
                provider.register_table(name, table).map_err(to_error)?;
            }
            catalog.register_schema(&schema, Arc::new(provider)).map_err(to_error)?;
        }
        let list = MemoryCatalogProviderList::new();
        list.register_catalog(names.default_catalog, Arc::new(catalog));
        session.register_catalog_list(Arc::new(list));
        Ok(session)
    }
}

fn system_table(system: &Arc<dyn SystemTables>, schema: &str, name: &str) -> Result<SystemTable> {
    let all = system.tables();
    match all.iter().find(|(known, _)| *known == name) {
        Some((known, columns)) => Ok(SystemTable::new(system.clone(), known, columns.clone())),
        None => {
            let error = Error::not_found(format!("there is no table `{schema}.{name}`"));
            Err(with_nearest(error, name, all.iter().map(|(known, _)| *known)))
        }
    }
}

/// `name` or `name@v3`.
pub(super) async fn open(root: &Root, text: &str, pins: &Pins) -> Result<Arc<DatasetVersion>> {
    let (name, version) = match text.split_once('@') {
        None => (text, pins.get(text).copied()),
        Some((name, version)) => (name, Some(version_number(text, version)?)),
    };
    let parsed = match DatasetName::parse(name) {
        Ok(parsed) => parsed,
        // Not a name that a dataset could have, so there is none; the nearest helps more than the grammar.
        Err(_) => return Err(unknown(root, name).await),
    };
    match open_version(root, &parsed, version).await {
        Ok(version) => Ok(version),
        Err(error) if error.kind == Kind::NotFound && version.is_none() => Err(unknown(root, name).await),
        Err(error) => Err(error),
    }
}

fn version_number(text: &str, version: &str) -> Result<VersionId> {
    let number = version.strip_prefix('v').and_then(|v| v.parse().ok());
    number.map(VersionId).ok_or_else(|| {
        Error::bad_input(format!("`{text}` does not name a version")).with_remedy("write it as \"name@v3\", in double quotes")
    })
}

async fn unknown(root: &Root, name: &str) -> Error {
    let known = list_datasets(root).await.unwrap_or_default();
    with_nearest(Error::not_found(format!("there is no dataset `{}`", name.escape_debug())), name, known.iter().map(|d| d.as_str()))
}

fn with_nearest<'a>(error: Error, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    match suggest::remedy(name, known) {
        Some(remedy) => error.with_remedy(remedy),
        None => error,
    }
}
