//! Commands that ask what there is: catalogs, schemas, tables, keys, types.
//!
//! Each command's schema is the one that its rows have, decided in one place.

use arrow::array::{ArrayRef, AsArray, RecordBatch};
use arrow::datatypes::{DataType, Field, Schema, SchemaRef};
use arrow_flight::sql::{Command, CommandGetTables, CommandGetXdbcTypeInfo};
use forebay_core::{Error, Kind, Result};
use futures::{StreamExt, TryStreamExt, stream};
use std::sync::Arc;

use super::super::Shared;
use super::{not_offered, server_info};
use crate::encode::wire_schema;
use crate::statement::TableName;

/// Tables whose columns are looked up at the same time.
const AHEAD: usize = 8;

fn failed(error: impl std::fmt::Display) -> Error {
    Error::internal(format!("describing the server: {error}"))
}

/// The schema of a command's rows; none for a command that is not offered.
pub(super) fn schema(command: &Command) -> Result<Option<SchemaRef>> {
    Ok(Some(match command {
        Command::CommandGetCatalogs(asked) => (*asked).into_builder().schema(),
        Command::CommandGetDbSchemas(asked) => asked.clone().into_builder().schema(),
        Command::CommandGetTables(asked) => asked.clone().into_builder().schema(),
        Command::CommandGetTableTypes(asked) => (*asked).into_builder().schema(),
        Command::CommandGetSqlInfo(_) => server_info::schema(),
        Command::CommandGetXdbcTypeInfo(_) => server_info::types(None)?.schema(),
        Command::CommandGetPrimaryKeys(_) => primary_keys(),
        Command::CommandGetImportedKeys(_) | Command::CommandGetExportedKeys(_) | Command::CommandGetCrossReference(_) => foreign_keys(),
        _ => return Ok(None),
    }))
}

/// The rows of a command.
pub(super) async fn rows(shared: &Shared, command: Command) -> Result<RecordBatch> {
    match command {
        Command::CommandGetCatalogs(asked) => {
            let mut builder = asked.into_builder();
            builder.append(shared.backend.names().await?.catalog);
            builder.build().map_err(failed)
        }
        Command::CommandGetDbSchemas(asked) => {
            let names = shared.backend.names().await?;
            let mut builder = asked.into_builder();
            names.schemas.iter().for_each(|schema| builder.append(&names.catalog, schema));
            builder.build().map_err(failed)
        }
        Command::CommandGetTables(asked) => tables(shared, asked).await,
        Command::CommandGetTableTypes(asked) => {
            let mut builder = asked.into_builder();
            shared.backend.names().await?.kinds.iter().for_each(|kind| builder.append(kind));
            builder.build().map_err(failed)
        }
        Command::CommandGetSqlInfo(asked) => server_info::infos(&asked.info, shared.config.session_term),
        Command::CommandGetXdbcTypeInfo(CommandGetXdbcTypeInfo { data_type }) => server_info::types(data_type),
        other => match schema(&other)? {
            // Datasets have no keys that a database would enforce.
            Some(schema) => Ok(RecordBatch::new_empty(schema)),
            None => Err(not_offered(&other)),
        },
    }
}

/// Columns are looked up only for the tables that pass the filters: each costs a look into its log.
async fn tables(shared: &Shared, asked: CommandGetTables) -> Result<RecordBatch> {
    let catalog = shared.backend.names().await?.catalog;
    let none = Schema::empty();
    let mut builder = CommandGetTables { include_schema: false, ..asked.clone() }.into_builder();
    for table in shared.backend.tables().await? {
        builder.append(&catalog, &table.schema, &table.name, &table.kind, &none).map_err(failed)?;
    }
    let found = builder.build().map_err(failed)?;
    if !asked.include_schema {
        return Ok(found);
    }
    let columns: Vec<Option<(TableName, SchemaRef)>> = stream::iter(names(&found))
        .map(|table| async move {
            match shared.backend.columns(&table).await {
                Ok(schema) => Ok(Some((table, wire_schema(&schema)?))),
                // Dropped since it was listed.
                Err(error) if error.kind == Kind::NotFound => Ok(None),
                Err(error) => Err(error),
            }
        })
        .buffered(AHEAD)
        .try_collect()
        .await?;
    let mut builder = asked.into_builder();
    for (table, schema) in columns.into_iter().flatten() {
        builder.append(&catalog, table.schema, table.name, table.kind, &schema).map_err(failed)?;
    }
    builder.build().map_err(failed)
}

/// The rows of a list of tables without schemas.
fn names(batch: &RecordBatch) -> Vec<TableName> {
    let text = |column: &ArrayRef, row: usize| column.as_string::<i32>().value(row).to_owned();
    let name = |row| TableName { schema: text(batch.column(1), row), name: text(batch.column(2), row), kind: text(batch.column(3), row) };
    (0..batch.num_rows()).map(name).collect()
}

fn text(name: &str, nullable: bool) -> Field {
    Field::new(name, DataType::Utf8, nullable)
}

fn primary_keys() -> SchemaRef {
    Arc::new(Schema::new(vec![
        text("catalog_name", true),
        text("db_schema_name", true),
        text("table_name", false),
        text("column_name", false),
        text("key_name", true),
        Field::new("key_sequence", DataType::Int32, false),
    ]))
}

fn foreign_keys() -> SchemaRef {
    Arc::new(Schema::new(vec![
        text("pk_catalog_name", true),
        text("pk_db_schema_name", true),
        text("pk_table_name", false),
        text("pk_column_name", false),
        text("fk_catalog_name", true),
        text("fk_db_schema_name", true),
        text("fk_table_name", false),
        text("fk_column_name", false),
        Field::new("key_sequence", DataType::Int32, false),
        text("fk_key_name", true),
        text("pk_key_name", true),
        Field::new("update_rule", DataType::UInt8, false),
        Field::new("delete_rule", DataType::UInt8, false),
    ]))
}
