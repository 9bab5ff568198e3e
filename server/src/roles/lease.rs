//! A worker's lease by its own clock.
//!
//! A renewal counts from when it was sent: the dispatcher counts from when it received it, which is later, so the worker is never the one that
//! believes longer. It stops at three quarters of the term. A lease that lapsed never comes back: a renewal after it begins another, with another
//! number, and what was granted under the old one is nobody's here.

use std::time::{Duration, Instant};

#[derive(Debug)]
pub(super) struct Lease {
    term: Duration,
    /// When the last renewal that was answered was sent.
    sent: Option<Instant>,
    number: u64,
}

impl Lease {
    pub(super) fn new() -> Self {
        Self { term: Duration::ZERO, sent: None, number: 0 }
    }

    fn runs_at(&self, now: Instant) -> bool {
        self.sent.is_some_and(|sent| now.saturating_duration_since(sent) < self.term / 4 * 3)
    }

    /// A renewal sent at `sent` was answered.
    pub(super) fn renew(&mut self, sent: Instant, term: Duration) {
        self.renew_at(sent, term, Instant::now());
    }

    fn renew_at(&mut self, sent: Instant, term: Duration, now: Instant) {
        // Both the gap before the renewal and the wait for its answer must fit, or the dispatcher may have given the lease up in between.
        if !self.runs_at(now) {
            self.number += 1;
        }
        self.term = term;
        self.sent = Some(sent);
    }

    pub(super) fn number(&self) -> u64 {
        self.number
    }

    /// Whether the lease of that number runs now.
    pub(super) fn holds(&self, number: u64) -> bool {
        self.number == number && self.runs_at(Instant::now())
    }
}

#[cfg(test)]
mod tests {
    use super::Lease;
    use std::time::{Duration, Instant};

    const TERM: Duration = Duration::from_secs(20);

    #[test]
    fn it_runs_for_three_quarters_from_when_the_renewal_was_sent() {
        let (mut lease, start) = (Lease::new(), Instant::now());
        assert!(!lease.runs_at(start));
        lease.renew_at(start, TERM, start);
        let first = lease.number();
        assert!(lease.runs_at(start + Duration::from_millis(14_999)));
        assert!(!lease.runs_at(start + Duration::from_secs(15)));
        lease.renew_at(start + Duration::from_secs(10), TERM, start + Duration::from_secs(12));
        assert_eq!(lease.number(), first);
        assert!(lease.runs_at(start + Duration::from_millis(24_999)));
    }

    #[test]
    fn a_renewal_after_a_lapse_begins_another_lease() {
        let (mut lease, start) = (Lease::new(), Instant::now());
        lease.renew_at(start, TERM, start);
        let first = lease.number();
        let late = start + Duration::from_secs(15);
        lease.renew_at(late, TERM, late);
        assert_ne!(lease.number(), first);
        // Sent in time, answered too late.
        let second = lease.number();
        lease.renew_at(late + Duration::from_secs(1), TERM, late + Duration::from_secs(16));
        assert_ne!(lease.number(), second);
    }
}
