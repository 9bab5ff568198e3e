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
use forebay_core::ids::{DatasetName, VersionId, ViewName};
use forebay_core::{Error, Kind, Result, suggest};
use forebay_storage::delta::{DatasetVersion, list_datasets, open_version};
use forebay_storage::root::Root;
use forebay_storage::views as stored;

use super::information::{CATALOG, INFORMATION_SCHEMA, Information, SCHEMAS};
use super::request::Pins;
use super::search::SearchCall;
use super::search_table::SearchTable;
use super::system::SystemTable;
use super::table::DatasetTable;
use super::views::Opened;
use super::{Catalog, Inner};
use crate::guard::to_error;
use crate::system::SystemTables;

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

/// The tables of one query, by schema and name.
pub(super) struct Tables {
    found: BTreeMap<String, BTreeMap<String, Arc<dyn TableProvider>>>,
}

impl Tables {
    /// Opens every table that is named. An unknown one is an error that names the nearest known.
    pub(super) async fn resolve(
        catalog: &Catalog,
        names: &[TableReference],
        searches: &[SearchCall],
        schema: Option<&str>,
        opened: &Opened,
    ) -> Result<Self> {
        let Inner { root, system, indexes, .. } = catalog.inner.as_ref();
        let mut found: BTreeMap<String, BTreeMap<String, Arc<dyn TableProvider>>> = BTreeMap::new();
        for name in names {
            let schema = name.schema().or(schema).unwrap_or(PUBLIC);
            if let Some(call) = searches.iter().find(|call| call.table == name.table()) {
                let Some(version) = opened.dataset(&call.dataset) else { return Err(unknown(root, &call.dataset).await) };
                let table = SearchTable::new(root.clone(), version.clone(), indexes.clone(), call)?;
                found.entry(schema.to_owned()).or_default().insert(name.table().to_owned(), Arc::new(table));
                continue;
            }
            let table: Arc<dyn TableProvider> = match (name.catalog(), schema) {
                (None | Some(CATALOG), SYSTEM) => Arc::new(system_table(system, SYSTEM, name.table())?),
                (None | Some(CATALOG), INFORMATION_SCHEMA) => {
                    let tables: Arc<dyn SystemTables> = Arc::new(Information { catalog: catalog.clone() });
                    Arc::new(system_table(&tables, INFORMATION_SCHEMA, name.table())?)
                }
                (None | Some(CATALOG), PUBLIC) => match (opened.dataset(name.table()), opened.view(name.table())) {
                    (Some(version), _) => Arc::new(DatasetTable::new(root.clone(), version.clone(), indexes.clone())),
                    (None, Some(view)) => view.clone(),
                    (None, None) => return Err(unknown(root, name.table()).await),
                },
                _ => {
                    return Err(Error::not_found(format!("there is no table `{name}`"))
                        .with_remedy("datasets and views go by their name alone, system tables by `system.name`"));
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

/// A dataset at a version, or at its newest.
pub(super) async fn open_at(root: &Root, name: &DatasetName, version: Option<VersionId>) -> Result<Arc<DatasetVersion>> {
    open_version(root, name, version).await
}

/// `name` or `name@v3`.
pub(super) async fn open(root: &Root, text: &str, pins: &Pins) -> Result<Arc<DatasetVersion>> {
    match find(root, text, pins).await? {
        Some(version) => Ok(version),
        None => Err(unknown(root, text.split_once('@').map_or(text, |(name, _)| name)).await),
    }
}

/// A dataset by `name` or `name@v3`; `None` when there is no dataset `name`. A name without a version has the one that is pinned.
pub(super) async fn find(root: &Root, text: &str, pins: &Pins) -> Result<Option<Arc<DatasetVersion>>> {
    let (name, version) = match text.split_once('@') {
        None => (text, pins.get(text).copied()),
        Some((name, version)) => (name, Some(version_number(text, version)?)),
    };
    // Not a name that a dataset could have, so there is none; the nearest helps more than the grammar.
    let Ok(parsed) = DatasetName::parse(name) else { return Ok(None) };
    match open_version(root, &parsed, version).await {
        Ok(version) => Ok(Some(version)),
        Err(error) if error.kind == Kind::NotFound && version.is_none() => Ok(None),
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
    let views = stored::names(root).await.unwrap_or_default();
    let error = Error::not_found(format!("there is no dataset `{}`", name.escape_debug()));
    if views.iter().any(|view| view.as_str() == name) {
        return Error::not_found(format!("there is no dataset `{name}`: it is a view")).with_remedy("name the dataset that it reads");
    }
    with_nearest(error, name, known.iter().map(DatasetName::as_str).chain(views.iter().map(ViewName::as_str)))
}

fn with_nearest<'a>(error: Error, name: &str, known: impl Iterator<Item = &'a str>) -> Error {
    match suggest::remedy(name, known) {
        Some(remedy) => error.with_remedy(remedy),
        None => error,
    }
}
