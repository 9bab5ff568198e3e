//! How many batches to ask for at once: enough that asking costs little, few enough that a consumer that goes away loses little and others
//! find their share.

use std::time::Duration;

/// A block should last about this long: some ten times a durable journal entry.
const TARGET: Duration = Duration::from_millis(50);
const MOST: u64 = 1_024;

/// Starts with one batch and grows with the consumer's speed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Pace {
    block: u64,
}

impl Default for Pace {
    fn default() -> Self {
        Self { block: 1 }
    }
}

impl Pace {
    /// Batches to ask for.
    pub(crate) fn block(self) -> u64 {
        self.block
    }

    /// Fast enough that the next block should be asked for while this one is being sent.
    pub(crate) fn asks_ahead(self) -> bool {
        self.block > 1
    }

    /// A block of `batches` was taken in `took`, loading not counted.
    pub(crate) fn taken(&mut self, batches: u64, took: Duration) {
        let each = took.as_nanos() / u128::from(batches.max(1));
        let fits = TARGET.as_nanos().checked_div(each).unwrap_or(u128::from(MOST));
        let fits = u64::try_from(fits).unwrap_or(MOST);
        self.block = fits.clamp(1, (self.block * 4).min(MOST));
    }
}

#[cfg(test)]
mod tests {
    use super::Pace;
    use std::time::Duration;

    #[test]
    fn it_grows_for_the_fast_and_falls_to_one_for_the_slow() {
        let mut pace = Pace::default();
        let mut blocks = vec![pace.block()];
        for _ in 0..6 {
            pace.taken(pace.block(), Duration::from_micros(pace.block()));
            blocks.push(pace.block());
        }
        assert_eq!(blocks, [1, 4, 16, 64, 256, 1024, 1024]);
        pace.taken(1024, Duration::from_secs(10));
        assert_eq!(pace.block(), 5);
        pace.taken(5, Duration::from_secs(5));
        assert_eq!((pace.block(), pace.asks_ahead()), (1, false));
        pace.taken(1, Duration::ZERO);
        assert_eq!((pace.block(), pace.asks_ahead()), (4, true));
    }
}
