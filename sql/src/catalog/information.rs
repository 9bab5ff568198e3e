//! `information_schema`: what there is to query, in the words that SQL tools ask in.

use std::sync::Arc;

use arrow::array::{Int32Builder, StringBuilder};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow::record_batch::RecordBatch;
use async_trait::async_trait;
use datafusion::sql::parser::Statement as DfStatement;
use datafusion::sql::sqlparser::ast::Statement;
use forebay_core::{Error, Result};
use forebay_storage::delta::list_datasets;
use forebay_storage::views;

use super::Catalog;
use super::resolve::{PUBLIC, SYSTEM};
use crate::system::SystemTables;

/// The schema of these tables.
pub(super) const INFORMATION_SCHEMA: &str = "information_schema";
/// The only catalog.
pub const CATALOG: &str = "forebay";

const TABLE: &str = "BASE TABLE";
const VIEW: &str = "VIEW";

/// Kinds of tables.
pub const KINDS: [&str; 2] = [TABLE, VIEW];
/// All schemas; names without one are looked for in the first.
pub const SCHEMAS: [&str; 3] = [PUBLIC, SYSTEM, INFORMATION_SCHEMA];

/// A table as lists of tables name it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TableEntry {
    pub schema: &'static str,
    pub name: String,
    /// `BASE TABLE` or `VIEW`.
    pub kind: &'static str,
}

/// Every table that a query can name, `information_schema` included.
pub(super) async fn entries(catalog: &Catalog) -> Result<Vec<TableEntry>> {
    let mut all = public_and_system(catalog).await?;
    all.extend(own_tables().iter().map(|(name, _)| TableEntry { schema: INFORMATION_SCHEMA, name: (*name).to_owned(), kind: VIEW }));
    Ok(all)
}

/// The tables of everyone but this module. A view whose name a dataset has can't be named.
async fn public_and_system(catalog: &Catalog) -> Result<Vec<TableEntry>> {
    let entry = |schema, name: &str, kind| TableEntry { schema, name: name.to_owned(), kind };
    let datasets = list_datasets(&catalog.inner.root).await?;
    let mut all: Vec<TableEntry> = datasets.iter().map(|d| entry(PUBLIC, d.as_str(), TABLE)).collect();
    let views = views::names(&catalog.inner.root).await?;
    let views = views.iter().filter(|view| !datasets.iter().any(|dataset| dataset.as_str() == view.as_str()));
    all.extend(views.map(|view| entry(PUBLIC, view.as_str(), VIEW)));
    all.extend(catalog.inner.system.tables().iter().map(|(name, _)| entry(SYSTEM, name, VIEW)));
    Ok(all)
}

fn own_tables() -> Vec<(&'static str, SchemaRef)> {
    vec![("tables", tables_schema()), ("columns", columns_schema()), ("schemata", schemata_schema())]
}

/// Answers for every dataset and view of a root and every system table, at the latest versions.
pub(super) struct Information {
    pub(super) catalog: Catalog,
}

fn text(name: &str) -> Field {
    Field::new(name, DataType::Utf8, false)
}

fn tables_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![text("table_catalog"), text("table_schema"), text("table_name"), text("table_type")]))
}

fn columns_schema() -> SchemaRef {
    let position = Field::new("ordinal_position", DataType::Int32, false);
    let names = vec![text("table_catalog"), text("table_schema"), text("table_name"), text("column_name")];
    Arc::new(Schema::new(names.into_iter().chain([position, text("is_nullable"), text("data_type")]).collect::<Vec<_>>()))
}

fn schemata_schema() -> SchemaRef {
    Arc::new(Schema::new(vec![text("catalog_name"), text("schema_name")]))
}

#[async_trait]
impl SystemTables for Information {
    fn tables(&self) -> Vec<(&'static str, SchemaRef)> {
        own_tables()
    }

    async fn scan(&self, table: &str) -> Result<Vec<RecordBatch>> {
        let batch = match table {
            "tables" => self.all_tables().await,
            "columns" => self.all_columns().await,
            _ => schemata(),
        };
        batch.map(|b| vec![b])
    }
}

impl Information {
    async fn all_tables(&self) -> Result<RecordBatch> {
        let mut columns: [StringBuilder; 4] = Default::default();
        for TableEntry { schema, name, kind } in public_and_system(&self.catalog).await? {
            for (column, value) in columns.iter_mut().zip([CATALOG, schema, name.as_str(), kind]) {
                column.append_value(value);
            }
        }
        let columns = columns.into_iter().map(|mut c| Arc::new(c.finish()) as _).collect();
        RecordBatch::try_new(tables_schema(), columns).map_err(|e| Error::internal(e.to_string()))
    }

    async fn all_columns(&self) -> Result<RecordBatch> {
        let mut found: Vec<(&'static str, String, SchemaRef)> = Vec::new();
        for TableEntry { schema, name, .. } in public_and_system(&self.catalog).await? {
            // One that was dropped since it was listed isn't there; nor has a view columns whose dataset is gone.
            if let Ok(columns) = self.catalog.columns(schema, &name).await {
                found.push((schema, name, columns));
            }
        }
        let mut names: [StringBuilder; 4] = Default::default();
        let (mut positions, mut nullable, mut types) = (Int32Builder::new(), StringBuilder::new(), StringBuilder::new());
        for (schema, table, columns) in &found {
            for (position, field) in (1i32..).zip(columns.fields()) {
                for (builder, value) in names.iter_mut().zip([CATALOG, *schema, table.as_str(), field.name().as_str()]) {
                    builder.append_value(value);
                }
                positions.append_value(position);
                nullable.append_value(if field.is_nullable() { "YES" } else { "NO" });
                types.append_value(forebay_storage::types::type_name(field));
            }
        }
        let mut columns: Vec<arrow::array::ArrayRef> = names.into_iter().map(|mut c| Arc::new(c.finish()) as _).collect();
        columns.extend([Arc::new(positions.finish()) as _, Arc::new(nullable.finish()) as _, Arc::new(types.finish()) as _]);
        RecordBatch::try_new(columns_schema(), columns).map_err(|e| Error::internal(e.to_string()))
    }
}

fn schemata() -> Result<RecordBatch> {
    let catalogs = arrow::array::StringArray::from(vec![CATALOG; SCHEMAS.len()]);
    let names = arrow::array::StringArray::from(SCHEMAS.to_vec());
    RecordBatch::try_new(schemata_schema(), vec![Arc::new(catalogs), Arc::new(names)]).map_err(|e| Error::internal(e.to_string()))
}

/// `SHOW TABLES`, `SHOW COLUMNS FROM t` and `DESCRIBE t` as the query that answers them.
pub(super) fn as_query(statement: &DfStatement) -> Option<String> {
    let DfStatement::Statement(inner) = statement else { return None };
    let columns_of = |table: &str| {
        let table = table.replace('"', "").replace('\'', "''");
        let (schema, name) = table.rsplit_once('.').map_or((PUBLIC, table.as_str()), |(schema, name)| (schema, name));
        format!(
            "SELECT column_name, data_type, is_nullable FROM information_schema.columns \
             WHERE table_schema = '{schema}' AND table_name = '{name}' ORDER BY ordinal_position"
        )
    };
    match inner.as_ref() {
        Statement::ShowTables { .. } => {
            Some("SELECT table_schema, table_name, table_type FROM information_schema.tables ORDER BY table_schema, table_name".to_owned())
        }
        Statement::ExplainTable { table_name, .. } => Some(columns_of(&table_name.to_string())),
        Statement::ShowColumns { show_options, .. } => {
            let table = show_options.show_in.as_ref()?.parent_name.as_ref()?;
            Some(columns_of(&table.to_string()))
        }
        _ => None,
    }
}
