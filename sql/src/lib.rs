//! SQL and steps: what turns rows into rows.
//!
//! Owns: DataFusion sessions, the catalog of datasets and system tables, step compilation and execution, the ML functions, full-text search and
//! the Python pool. Must not know: gRPC, Flight services, the dispatcher. Everything a caller sees is an arrow batch, a core type or a core error.

pub mod catalog;
pub mod distributed;
pub mod functions;
mod guard;
pub mod python;
mod session;
pub mod steps;
pub mod system;
pub mod text;
