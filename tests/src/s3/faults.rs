//! Which request gets which fault: drawn by a seed, or asked for by a rule.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use http::Method;
use parking_lot::Mutex;
use xxhash_rust::xxh3::xxh3_64_with_seed;

use super::SLOW;

/// One way in which a store lets its client down.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fault {
    /// 503 `SlowDown`; nothing was done.
    SlowDown,
    /// The connection is reset; nothing was done.
    Reset,
    /// It is done, late.
    Slow(Duration),
    /// It is done, and the answer breaks off in its body.
    Cut,
    /// It is done, and the answer is 500 `InternalError`.
    LostAnswer,
    /// It is done, and the connection is reset instead of an answer.
    LostConnection,
    /// 409 `ConditionalRequestConflict` to a conditional write; nothing was done.
    Conflict,
    /// The conditional write is done, and the answer is 409 all the same.
    LostConflict,
}

impl Fault {
    /// Every kind, in the order in which they are drawn.
    const ALL: [Fault; 8] = [
        Fault::SlowDown,
        Fault::Reset,
        Fault::Slow(SLOW),
        Fault::Cut,
        Fault::LostAnswer,
        Fault::LostConnection,
        Fault::Conflict,
        Fault::LostConflict,
    ];

    pub fn name(self) -> &'static str {
        match self {
            Self::SlowDown => "slow down",
            Self::Reset => "reset",
            Self::Slow(_) => "slow",
            Self::Cut => "cut",
            Self::LostAnswer => "lost answer",
            Self::LostConnection => "lost connection",
            Self::Conflict => "conflict",
            Self::LostConflict => "lost conflict",
        }
    }

    /// Whether it can happen to such a request.
    fn fits(self, asked: &Asked<'_>) -> bool {
        match self {
            Self::SlowDown | Self::Reset | Self::Slow(_) => true,
            Self::Cut => asked.method == Method::GET,
            Self::LostAnswer | Self::LostConnection => asked.method != Method::GET && asked.method != Method::HEAD,
            Self::Conflict | Self::LostConflict => asked.conditional,
        }
    }
}

/// What decides over a fault.
#[derive(Debug)]
pub(super) struct Asked<'a> {
    pub(super) method: &'a Method,
    /// Path and query as they came.
    pub(super) target: &'a str,
    /// A write with a condition.
    pub(super) conditional: bool,
}

/// Asks for a fault: the next `times` requests by `method` whose path contains `part`.
#[derive(Debug, Clone)]
pub struct Rule {
    pub fault: Fault,
    pub method: Method,
    pub part: String,
    pub times: u32,
}

impl Rule {
    pub fn once(fault: Fault, method: Method, part: &str) -> Self {
        Self { fault, method, part: part.to_owned(), times: 1 }
    }
}

/// The faults of one endpoint.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Faults {
    /// The same seed and the same requests in the same order give the same faults.
    pub seed: u64,
    /// Of a thousand requests, so many have a fault.
    pub per_mille: u32,
}

impl Faults {
    pub fn none() -> Self {
        Self { seed: 0, per_mille: 0 }
    }
}

#[derive(Debug)]
pub(super) struct Drawn {
    settings: Faults,
    requests: AtomicU64,
    relented: AtomicBool,
    rules: Mutex<Vec<Rule>>,
    shown: Mutex<BTreeMap<&'static str, u64>>,
}

impl Drawn {
    pub(super) fn new(settings: Faults) -> Self {
        Self { settings, requests: AtomicU64::new(0), relented: AtomicBool::new(false), rules: Mutex::default(), shown: Mutex::default() }
    }

    /// The fault of this request, if it has one.
    pub(super) fn next(&self, asked: &Asked<'_>) -> Option<Fault> {
        let number = self.requests.fetch_add(1, Ordering::Relaxed);
        let fault = self.ruled(asked).or_else(|| self.drawn(asked, number))?;
        *self.shown.lock().entry(fault.name()).or_default() += 1;
        Some(fault)
    }

    fn ruled(&self, asked: &Asked<'_>) -> Option<Fault> {
        let mut rules = self.rules.lock();
        let fits = |rule: &Rule| rule.method == *asked.method && asked.target.contains(&rule.part) && rule.fault.fits(asked);
        let found = rules.iter().position(fits)?;
        let rule = &mut rules[found];
        let fault = rule.fault;
        rule.times = rule.times.saturating_sub(1);
        if rule.times == 0 {
            rules.remove(found);
        }
        Some(fault)
    }

    fn drawn(&self, asked: &Asked<'_>, number: u64) -> Option<Fault> {
        if self.relented.load(Ordering::Relaxed) {
            return None;
        }
        let draw = xxh3_64_with_seed(&number.to_le_bytes(), self.settings.seed);
        if draw % 1000 >= u64::from(self.settings.per_mille) {
            return None;
        }
        let fitting: Vec<_> = Fault::ALL.into_iter().filter(|fault| fault.fits(asked)).collect();
        let which = (draw / 1000) % fitting.len() as u64;
        usize::try_from(which).ok().and_then(|which| fitting.get(which).copied())
    }

    pub(super) fn inject(&self, rule: Rule) {
        self.rules.lock().push(rule);
    }

    pub(super) fn relent(&self) {
        self.relented.store(true, Ordering::Relaxed);
        self.rules.lock().clear();
    }

    pub(super) fn shown(&self) -> BTreeMap<&'static str, u64> {
        self.shown.lock().clone()
    }

    pub(super) fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }
}
