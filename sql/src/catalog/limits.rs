//! What one catalog's queries may use.

use std::time::Duration;

/// Limits of a catalog. All are hard: a query that needs more ends with `ResourceExhausted` naming the limit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QueryLimits {
    /// Bytes that the operators of all queries may hold together.
    pub memory: usize,
    /// Bytes of spill files of all queries together; 0 turns spilling off.
    pub spill: u64,
    /// Queries that run at the same time; more wait for their turn.
    pub concurrent: usize,
    /// Wall-clock time from its start to its last batch, waiting for a turn and for its reader included.
    pub deadline: Option<Duration>,
    /// Rows of one answer.
    pub rows: Option<u64>,
    /// Bytes of one query's text.
    pub sql_bytes: usize,
    /// Operators and connectives of one query.
    pub operators: usize,
    /// Threads that queries run on.
    pub threads: usize,
    /// Parts that one query is divided into.
    pub partitions: usize,
    /// Whether queries are divided among workers, where there are any.
    pub distributed: bool,
    /// Uncompressed bytes that a query reads at least for that.
    pub distributed_size: u64,
}

impl Default for QueryLimits {
    fn default() -> Self {
        let threads = std::thread::available_parallelism().map_or(2, std::num::NonZeroUsize::get);
        Self {
            memory: 1 << 30,
            spill: 8 << 30,
            concurrent: 16,
            deadline: Some(Duration::from_secs(600)),
            rows: None,
            sql_bytes: 1 << 20,
            operators: 1_000,
            threads,
            partitions: threads,
            distributed: true,
            distributed_size: 64 << 20,
        }
    }
}
