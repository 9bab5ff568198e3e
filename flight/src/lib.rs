//! Arrow Flight: the service, the client, tickets, and the encoding of rows into messages.
//!
//! Owns: everything that is bytes on the wire: messages gathered from chunks of rows, signed tickets, tokens, the mapping of errors to
//! statuses, the JSON of commands and actions, and the control protocol between workers and dispatchers. Speaks to the rest through the traits of [`backend`]. Must not know: DataFusion,
//! storage, roles.

pub mod api;
pub mod auth;
pub mod backend;
pub mod client;
pub mod control;
pub mod decode;
pub mod encode;
pub mod message;
pub mod peer;
pub mod serve;
pub mod service;
pub mod statement;
pub mod status;
pub mod ticket;

pub use backend::Backend;
pub use client::Client;
pub use serve::{Limits, serve};
pub use service::{Door, Flight, ServiceConfig, Stats};
