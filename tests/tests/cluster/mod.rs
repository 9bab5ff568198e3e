//! Dispatchers and workers in processes of their own, killed, paused and drained.

mod support;

mod jobs;
mod leaders;
mod runs;
