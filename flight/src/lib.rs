//! placeholder
pub mod api;
