//! Flight SQL on the same port: which command does what.
//!
//! Owns: the meaning of Flight SQL's commands and actions. Handles and tickets are signed claims that carry all they need, so that any node
//! with the key answers any of them; nothing is kept between calls. Commands that are not offered are refused by their name. Must not know:
//! how statements are planned, which tables there are.

pub(crate) mod actions;
mod ingest;
mod metadata;
mod prepared;
mod server_info;
pub(crate) mod session;

use arrow::datatypes::SchemaRef;
use arrow_flight::sql::{Any, Command};
use arrow_flight::{FlightDescriptor, FlightInfo, PutResult};
use base64::Engine;
use base64::engine::general_purpose::STANDARD as BASE64;
use forebay_core::{Error, Result};
use futures::StreamExt;
use futures::stream;
use prost::Message;
use std::sync::Arc;

use super::Shared;
use super::put::Reader;
use super::rpc::flight_info;
use crate::backend::{BatchSource, Reading};
use crate::statement::{SessionOptions, Statement};
use crate::ticket::Claim;

fn read(any: Any) -> Result<Command> {
    Command::try_from(any).map_err(|e| Error::bad_input(format!("a Flight SQL command that cannot be read: {e}")))
}

/// The last part of a type's URL.
fn name_of(type_url: &str) -> &str {
    type_url.rsplit('.').next().unwrap_or_default()
}

fn not_offered(command: &Command) -> Error {
    let name = name_of(command.type_url()).escape_debug().to_string();
    let error = Error::unsupported(format!("Flight SQL's {name}"));
    match command {
        Command::CommandStatementUpdate(_) | Command::CommandPreparedStatementUpdate(_) => {
            error.with_remedy("SQL only reads: use SELECT or EXPLAIN, and bulk ingestion, DoPut or pipelines to write")
        }
        _ => error,
    }
}

fn no_transaction(id: Option<&[u8]>) -> Result<()> {
    match id {
        None | Some([]) => Ok(()),
        Some(_) => Err(Error::unsupported("a transaction").with_remedy("each statement reads one version of every dataset by itself")),
    }
}

/// The statement that a command asks for; none for commands that ask about the server.
fn statement(shared: &Shared, command: &Command, session: SessionOptions) -> Result<Option<Statement>> {
    match command {
        Command::CommandStatementQuery(asked) => {
            no_transaction(asked.transaction_id.as_deref())?;
            Ok(Some(Statement::new(asked.query.clone(), session)))
        }
        Command::CommandPreparedStatementQuery(asked) => {
            prepared::open(shared, &asked.prepared_statement_handle).map(|statement| Some(statement.in_session(session)))
        }
        _ => Ok(None),
    }
}

/// The flight of a Flight SQL command: planned here, run by whoever gets the ticket.
pub(crate) async fn info(shared: &Shared, any: Any, descriptor: FlightDescriptor, session: SessionOptions) -> Result<FlightInfo> {
    let encoded = BASE64.encode(any.encode_to_vec());
    let command = read(any)?;
    let Some(statement) = statement(shared, &command, session)? else {
        let schema = metadata::schema(&command)?.ok_or_else(|| not_offered(&command))?;
        let endpoint = shared.endpoint(&Claim::Command(encoded), None)?;
        return Ok(flight_info(descriptor, &schema, None, None)?.with_endpoint(endpoint));
    };
    let plan = shared.backend.query(&statement).await?;
    let place = shared.backend.places(Reading::Query(&plan.payload), 1).await?.into_iter().next().flatten();
    let claim = Claim::Query { id: uuid::Uuid::new_v4().simple().to_string(), payload: plan.payload };
    let endpoint = shared.endpoint(&claim, place)?;
    Ok(flight_info(descriptor, &plan.schema, None, None)?.with_endpoint(endpoint))
}

/// The schema of a Flight SQL command's result.
pub(crate) async fn schema(shared: &Shared, any: Any, session: SessionOptions) -> Result<SchemaRef> {
    let command = read(any)?;
    match statement(shared, &command, session)? {
        // One that still has parameters has columns all the same.
        Some(statement) if statement.parameters()?.is_none() => Ok(shared.backend.prepare(&statement).await?.schema),
        Some(statement) => Ok(shared.backend.query(&statement).await?.schema),
        None => metadata::schema(&command)?.ok_or_else(|| not_offered(&command)),
    }
}

/// The rows of a command that asks about the server, out of its ticket.
pub(crate) async fn rows(shared: &Shared, command: &str) -> Result<BatchSource> {
    let unreadable = || Error::bad_input("a ticket with a command that cannot be read");
    let bytes = BASE64.decode(command).map_err(|_| unreadable())?;
    let command = read(Any::decode(bytes.as_slice()).map_err(|_| unreadable())?)?;
    let batch = metadata::rows(shared, command).await?;
    Ok(BatchSource { schema: batch.schema(), batches: stream::iter([Ok(batch)]).boxed() })
}

/// `DoPut` with a Flight SQL command.
pub(crate) async fn put(shared: &Arc<Shared>, any: Any, schema: SchemaRef, rows: Reader) -> Result<PutResult> {
    match read(any)? {
        Command::CommandPreparedStatementQuery(asked) => prepared::bind(shared, &asked.prepared_statement_handle, rows).await,
        Command::CommandStatementIngest(asked) => ingest::run(shared, asked, schema, rows).await,
        other => Err(not_offered(&other)),
    }
}

/// Whether `DoPut` may read rows for this command.
pub(crate) fn puttable(any: &Any) -> Result<()> {
    match read(any.clone())? {
        Command::CommandPreparedStatementQuery(_) | Command::CommandStatementIngest(_) => Ok(()),
        other => Err(not_offered(&other)),
    }
}
