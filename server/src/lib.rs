//! The `forebay` binary: command line, configuration, roles, metrics and health; it wires storage, SQL and the wire together.
//!
//! Must not know: protocol bytes (that is `flight`), plan internals (that is `core`).

pub mod backend;
pub mod cli;
pub mod config;
mod crash;
pub mod dispatcher;
pub mod engine;
pub mod http;
pub mod metrics;
pub mod roles;
pub mod serve;
pub mod worker;
