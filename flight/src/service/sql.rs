//! Flight SQL: statements. Other commands are known by name and answered UNIMPLEMENTED, which clients take as "not offered".

use arrow::datatypes::SchemaRef;
use arrow_flight::sql::{Any, Command};
use arrow_flight::{FlightDescriptor, FlightInfo};
use forebay_core::{Error, Result};

use super::Shared;
use super::rpc::flight_info;
use crate::backend::Reading;
use crate::ticket::Claim;

fn read(any: Any) -> Result<Command> {
    Command::try_from(any).map_err(|e| Error::bad_input(format!("a Flight SQL command that cannot be read: {e}")))
}

fn not_offered(command: &Command) -> Error {
    let name = command.type_url().rsplit('.').next().unwrap_or_default();
    Error::unsupported(format!("Flight SQL's {name}"))
}

/// The flight of a Flight SQL command: planned here, run by whoever gets the ticket.
pub(crate) async fn info(shared: &Shared, any: Any, descriptor: FlightDescriptor) -> Result<FlightInfo> {
    match read(any)? {
        Command::CommandStatementQuery(statement) => {
            let plan = shared.backend.query(&statement.query).await?;
            let place = shared.backend.places(Reading::Query(&plan.payload), 1).await?.into_iter().next().flatten();
            let endpoint = shared.endpoint(&Claim::Query(plan.payload), place)?;
            Ok(flight_info(descriptor, &plan.schema, None, None)?.with_endpoint(endpoint))
        }
        other => Err(not_offered(&other)),
    }
}

/// The schema of a Flight SQL command's result.
pub(crate) async fn schema(shared: &Shared, any: Any) -> Result<SchemaRef> {
    match read(any)? {
        Command::CommandStatementQuery(statement) => Ok(shared.backend.query(&statement.query).await?.schema),
        other => Err(not_offered(&other)),
    }
}

/// `DoPut` with a Flight SQL command.
pub(crate) fn put(any: Any) -> Error {
    read(any).map_or_else(|e| e, |command| not_offered(&command))
}
