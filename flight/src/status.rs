//! The one mapping between [`Error`] and gRPC's `Status`, both ways.
//!
//! Foreign clients see code and message (with the remedy in it). Ours restore the error exactly: it travels as JSON inside a well-formed
//! `google.rpc.Status` in `grpc-status-details-bin` (Go clients fail on anything else there; pyarrow shows it as `extra_info`).

use bytes::Bytes;
use forebay_core::{Error, Kind};
use prost::Message;
use tonic::{Code, Status};

/// Type of the `Any` that carries the JSON.
pub const DETAIL_TYPE: &str = "type.googleapis.com/forebay.Error";

/// gRPC headers are limited (8 KiB in grpc-core) and carry the text three times: percent-encoded and, within the details, as it is and in JSON.
const PART_LIMIT: usize = 900;
const MESSAGE_LIMIT: usize = 1100;

/// `google.rpc.Status`.
#[derive(Clone, PartialEq, Message)]
struct RpcStatus {
    #[prost(int32, tag = "1")]
    code: i32,
    #[prost(string, tag = "2")]
    message: String,
    #[prost(message, repeated, tag = "3")]
    details: Vec<RpcAny>,
}

/// `google.protobuf.Any`.
#[derive(Clone, PartialEq, Message)]
struct RpcAny {
    #[prost(string, tag = "1")]
    type_url: String,
    #[prost(bytes = "bytes", tag = "2")]
    value: Bytes,
}

fn code_of(kind: Kind) -> Code {
    match kind {
        Kind::BadInput => Code::InvalidArgument,
        Kind::NotFound => Code::NotFound,
        Kind::AlreadyExists => Code::AlreadyExists,
        Kind::FailedPrecondition => Code::FailedPrecondition,
        Kind::Unauthenticated => Code::Unauthenticated,
        Kind::PermissionDenied => Code::PermissionDenied,
        Kind::ResourceExhausted => Code::ResourceExhausted,
        Kind::Unavailable => Code::Unavailable,
        Kind::Unsupported => Code::Unimplemented,
        Kind::Cancelled => Code::Cancelled,
        Kind::Corrupt => Code::DataLoss,
        Kind::Internal => Code::Internal,
    }
}

fn kind_of(code: Code) -> Kind {
    match code {
        Code::InvalidArgument => Kind::BadInput,
        Code::NotFound => Kind::NotFound,
        Code::AlreadyExists => Kind::AlreadyExists,
        Code::FailedPrecondition | Code::Aborted => Kind::FailedPrecondition,
        Code::Unauthenticated => Kind::Unauthenticated,
        Code::PermissionDenied => Kind::PermissionDenied,
        Code::ResourceExhausted | Code::OutOfRange => Kind::ResourceExhausted,
        Code::Unavailable => Kind::Unavailable,
        Code::Unimplemented => Kind::Unsupported,
        Code::Cancelled | Code::DeadlineExceeded => Kind::Cancelled,
        Code::DataLoss => Kind::Corrupt,
        Code::Ok | Code::Unknown | Code::Internal => Kind::Internal,
    }
}

fn shorten(text: &str, limit: usize) -> String {
    if text.len() <= limit {
        return text.to_owned();
    }
    let mut end = limit;
    while !text.is_char_boundary(end) {
        end -= 1;
    }
    format!("{}...", &text[..end])
}

/// The status that a client of ours turns back into exactly `error` (a message or remedy over 900 bytes is cut).
pub fn to_status(error: &Error) -> Status {
    let remedy = error.remedy.as_deref().map(|remedy| shorten(remedy, PART_LIMIT));
    let sent = Error { kind: error.kind, message: shorten(&error.message, PART_LIMIT), remedy };
    let code = code_of(sent.kind);
    let message = shorten(&sent.to_string(), MESSAGE_LIMIT);
    let Ok(json) = serde_json::to_vec(&sent) else {
        return Status::new(code, message);
    };
    // Go clients show the inner message and never look at the outer one.
    let details = RpcStatus {
        code: code as i32,
        message: message.clone(),
        details: vec![RpcAny { type_url: DETAIL_TYPE.to_owned(), value: Bytes::from(json) }],
    };
    Status::with_details(code, message, Bytes::from(details.encode_to_vec()))
}

/// Trailer in which a process that does not lead names who does; empty where it does not know.
const LEADER: &str = "forebay-leader";

/// The status of a process that can't answer, with the address of the one that can.
pub fn to_elsewhere_status(error: &Error, leader: Option<&str>) -> Status {
    let mut status = to_status(error);
    // An address that no header can carry is as good as none.
    if let Ok(value) = leader.unwrap_or_default().parse() {
        status.metadata_mut().insert(LEADER, value);
    }
    status
}

/// Whether a status means that somebody else has to be asked.
pub fn is_elsewhere(status: &Status) -> bool {
    status.metadata().contains_key(LEADER)
}

/// The leader that such a status names.
pub fn leader_of(status: &Status) -> Option<String> {
    let named = status.metadata().get(LEADER)?.to_str().ok()?;
    (!named.is_empty()).then(|| named.to_owned())
}

/// The error behind a status: ours exactly, a foreign server's by its code.
pub fn from_status(status: &Status) -> Error {
    if let Ok(details) = RpcStatus::decode(status.details()) {
        for any in details.details {
            if any.type_url == DETAIL_TYPE
                && let Ok(error) = serde_json::from_slice::<Error>(&any.value)
            {
                return error;
            }
        }
    }
    let message = if status.message().is_empty() { status.code().description() } else { status.message() };
    Error::new(kind_of(status.code()), message)
}

#[cfg(test)]
mod tests;
