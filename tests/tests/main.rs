//! Whole-system tests: one binary, so that the heavy dependencies are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod bad_input;
mod layering;
mod materialize;
mod serve;
mod support;
