//! Everything Forebay keeps in object stores and reads from sources.
//!
//! Owns: object stores by URL, Parquet shards in and out, the Delta log, the journal, the ledger, text index bundles, source readers. Must not know: SQL, gRPC,
//! roles. Every path that leaves here is relative to the root; every error names the path, key or row it is about.

pub mod artifact;
pub mod bundle;
pub mod delta;
pub mod journal;
pub mod ledger;
pub mod owner;
pub mod root;
pub mod shard;
pub mod source;
pub mod types;
pub mod views;
