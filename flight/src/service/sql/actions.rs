//! Flight's own actions and Flight SQL's: prepared statements, sessions, cancelling, renewing.

use arrow_flight::sql::{
    ActionCancelQueryRequest, ActionCancelQueryResult, ActionClosePreparedStatementRequest, ActionCreatePreparedStatementRequest, Any,
    ProstMessageExt,
};
use arrow_flight::{
    CancelFlightInfoRequest, CancelFlightInfoResult, CancelStatus, FlightInfo, RenewFlightEndpointRequest, Result as ActionResult, Ticket,
};
use forebay_core::{Error, Result};
use prost::Message;
use tonic::metadata::{AsciiMetadataValue, MetadataMap};

use super::super::Shared;
use super::{name_of, prepared, session};
use crate::ticket::Claim;

/// Actions and what they do, as `ListActions` says.
pub(crate) const ACTIONS: &[(&str, &str)] = &[
    ("CreatePreparedStatement", "prepare a Flight SQL statement"),
    ("ClosePreparedStatement", "close a prepared statement"),
    ("CancelFlightInfo", "stop the query of a flight"),
    ("CancelQuery", "the same, by its older name"),
    ("RenewFlightEndpoint", "a ticket that is good for longer"),
    ("SetSessionOptions", "set catalog, schema, timeout (seconds) or row_limit"),
    ("GetSessionOptions", "what is set"),
    ("CloseSession", "close the session"),
];

/// An action's results, and the header that changes the client's session.
#[derive(Default)]
pub(crate) struct Answer {
    pub(crate) results: Vec<ActionResult>,
    pub(crate) cookie: Option<AsciiMetadataValue>,
}

impl Answer {
    fn of(message: &impl Message) -> Self {
        Self { results: vec![ActionResult::new(message.encode_to_vec())], cookie: None }
    }
}

/// Takes the action if it is one of these.
pub(crate) async fn run(shared: &Shared, metadata: &MetadataMap, name: &str, body: &[u8]) -> Result<Option<Answer>> {
    Ok(Some(match name {
        "CreatePreparedStatement" => {
            let asked: ActionCreatePreparedStatementRequest = packed(body)?;
            let options = session::of(shared, metadata)?;
            Answer::of(&prepared::create(shared, asked, options).await?.as_any())
        }
        "ClosePreparedStatement" => {
            let asked: ActionClosePreparedStatementRequest = packed(body)?;
            prepared::close(shared, &asked)?;
            Answer::default()
        }
        "CancelFlightInfo" => {
            let asked = CancelFlightInfoRequest::decode(body).map_err(|e| Error::bad_input(format!("CancelFlightInfo: {e}")))?;
            let status = cancel(shared, asked.info.as_ref())?;
            Answer::of(&CancelFlightInfoResult { status: status as i32 })
        }
        "CancelQuery" => {
            let asked: ActionCancelQueryRequest = packed(body)?;
            let info = FlightInfo::decode(asked.info).map_err(|e| Error::bad_input(format!("CancelQuery: {e}")))?;
            let status = cancel(shared, Some(&info))?;
            Answer::of(&ActionCancelQueryResult { result: status as i32 }.as_any())
        }
        "RenewFlightEndpoint" => {
            let asked = RenewFlightEndpointRequest::decode(body).map_err(|e| Error::bad_input(format!("RenewFlightEndpoint: {e}")))?;
            let mut endpoint = asked.endpoint.ok_or_else(|| Error::bad_input("RenewFlightEndpoint without an endpoint"))?;
            let claim = shared.config.key.open(&endpoint.ticket.take().unwrap_or_default().ticket)?;
            let renewed = shared.endpoint(&claim, None)?;
            (endpoint.ticket, endpoint.expiration_time) = (renewed.ticket, renewed.expiration_time);
            Answer::of(&endpoint)
        }
        "SetSessionOptions" => {
            let (result, cookie) = session::set(shared, metadata, body).await?;
            Answer { cookie: Some(cookie), ..Answer::of(&result) }
        }
        "GetSessionOptions" => Answer::of(&session::get(shared, metadata).await?),
        // CloseSessionResult{status: CLOSED}
        "CloseSession" => Answer { results: vec![ActionResult::new(vec![0x08, 0x01])], cookie: Some(session::close(shared)?) },
        _ => return Ok(None),
    }))
}

/// A request that came in an `Any`.
fn packed<M: ProstMessageExt>(body: &[u8]) -> Result<M> {
    let name = name_of(M::type_url()).to_owned();
    let any = Any::decode(body).map_err(|e| Error::bad_input(format!("{name}: {e}")))?;
    let message = any.unpack::<M>().map_err(|e| Error::bad_input(format!("{name}: {e}")))?;
    message.ok_or_else(|| Error::bad_input(format!("expected {name}, found `{}`", any.type_url.escape_debug())))
}

/// Stops the queries of a flight. Jobs and datasets end with their streams, and a query that another node runs is stopped there.
fn cancel(shared: &Shared, info: Option<&FlightInfo>) -> Result<CancelStatus> {
    let info =
        info.ok_or_else(|| Error::bad_input("no flight to cancel").with_remedy("send the FlightInfo that GetFlightInfo answered"))?;
    let mut status = CancelStatus::Cancelled;
    for endpoint in &info.endpoint {
        let ticket: &[u8] = endpoint.ticket.as_ref().map_or(&[], |Ticket { ticket }| ticket);
        match shared.config.key.open(ticket)? {
            Claim::Query { id, .. } if endpoint.location.is_empty() || shared.running.is_open(&id) => {
                shared.running.cancel(&id);
            }
            _ => status = CancelStatus::NotCancellable,
        }
    }
    Ok(status)
}
