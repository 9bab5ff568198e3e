//! Arithmetic that gives the same bits on every host: logarithm, exponential and power come from a portable library, because a batch must
//! be byte-identical wherever it was made and the system's math library differs between hosts.

use forebay_core::random::Rng;

pub(super) use libm::{exp, log as ln, pow};

/// Uniform in `[low, high)`.
pub(super) fn uniform(rng: &mut Rng, low: f64, high: f64) -> f64 {
    low + (high - low) * rng.unit_f64()
}

/// Uniform integer in `low..=high`; `low` where the range is empty.
pub(super) fn uniform_int(rng: &mut Rng, low: i64, high: i64) -> i64 {
    let width = u64::try_from(high.saturating_sub(low)).unwrap_or(0).saturating_add(1);
    low.saturating_add(i64::try_from(rng.below(width)).unwrap_or(0))
}

/// Standard normal draws, two per round of Marsaglia's polar method.
pub(super) struct Normal<'a> {
    rng: &'a mut Rng,
    spare: Option<f64>,
}

impl<'a> Normal<'a> {
    pub(super) fn new(rng: &'a mut Rng) -> Self {
        Self { rng, spare: None }
    }

    pub(super) fn draw(&mut self) -> f64 {
        if let Some(spare) = self.spare.take() {
            return spare;
        }
        loop {
            let (u, v) = (uniform(self.rng, -1.0, 1.0), uniform(self.rng, -1.0, 1.0));
            let s = u * u + v * v;
            if s > 0.0 && s < 1.0 {
                let scale = (-2.0 * ln(s) / s).sqrt();
                self.spare = Some(v * scale);
                return u * scale;
            }
        }
    }
}
