//! Keyed, portable randomness: the same key gives the same draws on every host and in every version.
//!
//! Owns: the mixing function, keys of tuples and texts, the generator and the permutation. Everything that a stored plan, a pinned digest or
//! a random SQL function depends on is written out here, because no library promises that its streams stay what they are. Changing any constant
//! changes the batches of every existing job: the golden values in the tests say so. Must not know: where seeds come from.

use xxhash_rust::xxh3::xxh3_64;

#[cfg(test)]
mod tests;

/// 2^64 divided by the golden ratio: splitmix64's increment.
const GOLDEN: u64 = 0x9E37_79B9_7F4A_7C15;
/// Start of every [`key`], so that the key of one part is not the plain mix of that part.
const KEY_START: u64 = 0x243F_6A88_85A3_08D3;

/// The finalizer of splitmix64: a bijection of 64 bits whose output bits depend on every input bit.
#[inline]
pub fn mix64(x: u64) -> u64 {
    let x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    let x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

/// Folds one part into a running key. The part is mixed by itself first, so that neighbouring parts cannot cancel neighbouring keys.
#[inline]
fn fold(key: u64, part: u64) -> u64 {
    mix64(key ^ mix64(part.wrapping_add(GOLDEN)))
}

/// The key of a tuple: depends on every part, on their order and on how many there are.
pub fn key(parts: &[u64]) -> u64 {
    parts.iter().fold(fold(KEY_START, parts.len() as u64), |key, part| fold(key, *part))
}

/// The key of a text: XXH3-64 with seed 0 of its UTF-8 bytes.
pub fn text_key(text: &str) -> u64 {
    xxh3_64(text.as_bytes())
}

/// The key of one random call: the `ordinal`-th random call of step `step`, under one seed and epoch (behind the cut: the job's seed and the pass).
pub fn call_key(seed: u64, epoch: u32, step: &str, ordinal: u32) -> u64 {
    key(&[seed, u64::from(epoch), text_key(step), u64::from(ordinal)])
}

/// What one row draws in the random call `call`: 64 uniform bits that depend on the row's key and on nothing else of the row.
#[inline]
pub fn draw(call: u64, id: i64, part: i32) -> u64 {
    // Sign extension keeps every (id, part) apart; `as` between integers of one width only renames the bits.
    fold(fold(call, id as u64), i64::from(part) as u64)
}

/// splitmix64: small, fast, seekable, and the same everywhere. Not for secrets.
#[derive(Debug, Clone)]
pub struct Rng(u64);

impl Rng {
    pub fn new(seed: u64) -> Self {
        Self(seed)
    }

    #[inline]
    pub fn next_u64(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(GOLDEN);
        mix64(self.0)
    }

    /// Uniform in `0..n` without bias (Lemire's multiplication with rejection); 0 when `n` is 0 or 1.
    #[inline]
    pub fn below(&mut self, n: u64) -> u64 {
        if n <= 1 {
            return 0;
        }
        let mut wide = u128::from(self.next_u64()) * u128::from(n);
        if (wide as u64) < n {
            let threshold = n.wrapping_neg() % n;
            while (wide as u64) < threshold {
                wide = u128::from(self.next_u64()) * u128::from(n);
            }
        }
        (wide >> 64) as u64
    }

    /// Uniform in `[0, 1)` with 53 bits.
    #[inline]
    pub fn unit_f64(&mut self) -> f64 {
        (self.next_u64() >> 11) as f64 * (1.0 / (1u64 << 53) as f64)
    }
}

/// Fisher-Yates from the end: every order is equally likely, and the same generator gives the same order everywhere.
pub fn shuffle<T>(rng: &mut Rng, items: &mut [T]) {
    for last in (1..items.len()).rev() {
        let other = rng.below(last as u64 + 1) as usize;
        items.swap(last, other);
    }
}
