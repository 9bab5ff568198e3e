//! Roots on S3: the endpoint's own promises, and whole systems on it while it fails.

mod support;

mod endpoint;
mod leaders;
mod probe;
mod runs;
mod secrets;
