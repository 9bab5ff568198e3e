//! Whole-system tests: one binary, so that the heavy dependencies are linked once.
#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]
// A test binary has no public surface: what its modules share is `pub` for brevity.
#![allow(unreachable_pub, missing_debug_implementations)]

mod bad_input;
mod cluster;
mod disks;
mod distributed;
mod layering;
mod materialize;
mod queries;
mod s3;
mod search;
mod serve;
mod slt;
mod support;
mod views;
