//! Dispatchers and workers in processes of their own, killed, paused and drained.

pub mod support;

mod jobs;
pub mod leaders;
pub mod runs;
