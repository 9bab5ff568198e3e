//! The pool of Python processes that run `python` steps.
//!
//! Owns: starting, feeding, replacing and killing the processes, the frames between us and them, and what a user's function may return.
//! Batches travel as Arrow IPC over the processes' standard streams; what the function prints is kept for error messages.
//! Must not know: steps, row keys beyond `_id` in messages, tasks.
//!
//! What is isolated: a crash, an exit, a leak up to `memory_limit`, an endless call up to `call_timeout`. What is not: the function runs with
//! the rights of this process's user and may read files and use the network. A server therefore runs Python only where it is told to.

mod module_set;
mod pool;
mod process;
mod returned;
mod step;
mod wire;

pub use pool::{PythonConfig, PythonPool};
pub use step::PythonStep;

#[cfg(test)]
mod tests;
