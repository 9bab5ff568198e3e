//! The pure core of Forebay: plain data and synchronous decisions.
//!
//! Owns: ids, the pipeline spec, plan arithmetic, keyed randomness, digests, the dispatcher's and visits' state machines, journal entries,
//! invariants and error kinds. Must not know: I/O, clocks, tokio, arrow, gRPC. Time, randomness and ids come in as arguments.

pub mod digest;
pub mod dispatch;
pub mod error;
pub mod ids;
pub mod job;
pub mod pipeline;
pub mod plan;
pub mod random;
pub mod shard;
pub mod source;
pub mod split;
pub mod suggest;
pub mod text;
pub mod view;

pub use error::{Error, Kind, Result};
