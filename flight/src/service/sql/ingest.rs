//! Bulk ingestion: a client's rows become a dataset, as by any other `DoPut`.

use arrow::datatypes::SchemaRef;
use arrow_flight::PutResult;
use arrow_flight::sql::{CommandStatementIngest, DoPutUpdateResult, TableExistsOption, TableNotExistOption};
use forebay_core::{Error, Kind, Result};
use prost::Message;
use std::sync::Arc;

use super::super::Shared;
use super::super::put::Reader;
use super::no_transaction;
use crate::backend::BatchSource;
use crate::statement::Names;

/// Where the rows go; refuses what can't be done instead of doing something like it.
fn check_target(asked: &CommandStatementIngest, names: &Names) -> Result<()> {
    no_transaction(asked.transaction_id.as_deref())?;
    if asked.temporary {
        return Err(Error::unsupported("a temporary table").with_remedy("choose a name and drop the dataset when it is done with"));
    }
    if let Some(catalog) = asked.catalog.as_deref().filter(|c| !c.is_empty() && *c != names.catalog) {
        return Err(Error::not_found(format!("there is no catalog `{}`", catalog.escape_debug()))
            .with_remedy(format!("leave it out, or name `{}`", names.catalog)));
    }
    let home = names.schemas.first().map_or("", String::as_str);
    if let Some(schema) = asked.schema.as_deref().filter(|s| !s.is_empty() && *s != home) {
        return Err(Error::bad_input(format!("nothing can be written to the schema `{}`", schema.escape_debug()))
            .with_remedy(format!("leave it out, or name `{home}`")));
    }
    match asked.options.keys().min() {
        None => Ok(()),
        Some(option) => Err(Error::bad_input(format!("unknown ingest option `{}`", option.escape_debug())).with_remedy("give none")),
    }
}

/// The mode of a put that does what the options say.
async fn mode(shared: &Shared, asked: &CommandStatementIngest) -> Result<Option<&'static str>> {
    let options = asked.table_definition_options.as_ref();
    let missing = options.map_or(TableNotExistOption::Unspecified, |o| o.if_not_exist());
    let existing = options.map_or(TableExistsOption::Unspecified, |o| o.if_exists());
    let exists = match shared.backend.dataset(std::slice::from_ref(&asked.table)).await {
        Ok(_) => true,
        Err(error) if error.kind == Kind::NotFound => false,
        Err(error) => return Err(error),
    };
    match (exists, missing, existing) {
        (false, TableNotExistOption::Create, _) => Ok(None),
        (false, TableNotExistOption::Fail, _) => Err(Error::not_found(format!("there is no dataset `{}`", asked.table.escape_debug()))
            .with_remedy("ingest with mode `create` or `create_append`")),
        (true, _, TableExistsOption::Append) => Ok(Some("append")),
        (true, _, TableExistsOption::Replace) => Ok(Some("replace")),
        (true, _, TableExistsOption::Fail) => {
            Err(Error::new(Kind::AlreadyExists, format!("dataset `{}` exists", asked.table.escape_debug()))
                .with_remedy("ingest with mode `append`, `replace` or `create_append`, or choose another name"))
        }
        _ => Err(Error::bad_input("the ingest does not say what to do about an existing or a missing table")),
    }
}

pub(super) async fn run(shared: &Arc<Shared>, asked: CommandStatementIngest, schema: SchemaRef, rows: Reader) -> Result<PutResult> {
    check_target(&asked, &shared.backend.names().await?)?;
    let mode = mode(shared, &asked).await?;
    let source = BatchSource { schema, batches: rows.batches() };
    let answer = shared.backend.put(std::slice::from_ref(&asked.table), mode.map(str::to_owned), source).await?;
    let record_count = answer.get("rows").and_then(serde_json::Value::as_i64).unwrap_or(-1);
    Ok(PutResult { app_metadata: DoPutUpdateResult { record_count }.encode_to_vec().into() })
}
