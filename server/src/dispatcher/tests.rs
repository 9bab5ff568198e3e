#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod crash_tests;
mod job_tests;
mod run_tests;
mod world;
