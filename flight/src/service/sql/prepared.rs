//! Prepared statements. A handle is the statement itself, signed: preparing checks it, binding answers a new handle with the values in it,
//! closing has nothing to free.

use arrow::ipc::writer::IpcWriteOptions;
use arrow_flight::sql::{
    ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, ActionCreatePreparedStatementResult,
    DoPutPreparedStatementResult,
};
use arrow_flight::{IpcMessage, PutResult, SchemaAsIpc};
use bytes::Bytes;
use forebay_core::{Error, Result};
use prost::Message;

use super::super::Shared;
use super::super::put::Reader;
use super::no_transaction;
use crate::encode::wire_schema;
use crate::statement::{SessionOptions, Statement};
use crate::ticket::Claim;
use arrow::datatypes::SchemaRef;

fn sign(shared: &Shared, statement: Statement) -> Result<Bytes> {
    // Connection pools keep statements for longer than anybody keeps a ticket.
    shared.config.key.sign(&Claim::Prepared(statement), shared.config.session_term)
}

/// The statement of a handle.
///
/// # Errors
/// `Unauthenticated` for a handle that was not made with this key, `FailedPrecondition` for an old one.
pub(super) fn open(shared: &Shared, handle: &[u8]) -> Result<Statement> {
    match shared.config.key.open(handle).map_err(again)? {
        Claim::Prepared(statement) => Ok(statement),
        _ => Err(Error::bad_input("this is not the handle of a prepared statement").with_remedy("prepare the statement again")),
    }
}

fn again(error: Error) -> Error {
    Error { message: error.message.replace("ticket", "statement's handle"), ..error }.with_remedy("prepare the statement again")
}

fn encapsulated(schema: &SchemaRef) -> Result<Bytes> {
    let schema = wire_schema(schema)?;
    let options = IpcWriteOptions::default();
    let message: IpcMessage =
        SchemaAsIpc::new(&schema, &options).try_into().map_err(|e| Error::internal(format!("writing a schema: {e}")))?;
    Ok(message.0)
}

/// The action `CreatePreparedStatement`.
pub(super) async fn create(
    shared: &Shared,
    asked: ActionCreatePreparedStatementRequest,
    session: SessionOptions,
) -> Result<ActionCreatePreparedStatementResult> {
    no_transaction(asked.transaction_id.as_deref())?;
    let statement = Statement::new(asked.query, session);
    let known = shared.backend.prepare(&statement).await?;
    Ok(ActionCreatePreparedStatementResult {
        // Never empty: some drivers take a statement without columns for an update.
        dataset_schema: encapsulated(&known.schema)?,
        parameter_schema: encapsulated(&known.parameters)?,
        prepared_statement_handle: sign(shared, statement.in_session(SessionOptions::default()))?,
    })
}

/// The action `ClosePreparedStatement`.
pub(super) fn close(shared: &Shared, asked: &ActionClosePreparedStatementRequest) -> Result<()> {
    open(shared, &asked.prepared_statement_handle).map(drop)
}

/// Values for a statement's parameters. Everything that the client sends is read: some close the connection on an answer that comes before.
pub(super) async fn bind(shared: &Shared, handle: &[u8], mut rows: Reader) -> Result<PutResult> {
    let statement = open(shared, handle)?;
    let (mut row, mut count) = (None, 0);
    while let Some(batch) = rows.next().await? {
        count += batch.num_rows();
        row = row.or_else(|| (batch.num_rows() > 0).then(|| batch.slice(0, 1)));
    }
    let bound = match (row, count) {
        (Some(row), 1) => statement.with_parameters(&row)?,
        (None, _) => return Err(Error::bad_input("no row of values was bound").with_remedy("bind one row")),
        _ => return Err(Error::unsupported(format!("one statement with {count} rows of values")).with_remedy("execute it once per row")),
    };
    let result = DoPutPreparedStatementResult { prepared_statement_handle: Some(sign(shared, bound)?) };
    // As it stands: in no `Any`.
    Ok(PutResult { app_metadata: result.encode_to_vec().into() })
}
