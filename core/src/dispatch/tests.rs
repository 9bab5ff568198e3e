#![allow(clippy::unwrap_used, clippy::expect_used, clippy::panic)]

mod commit_tests;
mod fixed_tests;
mod golden_tests;
mod growth_tests;
mod job_tests;
mod materialize_tests;
mod simulation_tests;
mod span_tests;
mod task_sim;
mod visit_sim;
mod world;
