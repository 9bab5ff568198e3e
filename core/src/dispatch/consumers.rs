//! A job's consumers, with the counts that spare decisions a walk over all of them. The counts are derived: they are not written down.

use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Deref;

use super::job_state::Consumer;
use crate::ids::{ConsumerName, PassId};

/// The consumers by name, written as a map.
#[derive(Debug, Clone, PartialEq, Default)]
pub struct Consumers {
    all: BTreeMap<ConsumerName, Consumer>,
    /// How many were last fed by a pass.
    fed: BTreeMap<PassId, u64>,
    /// How many made their newest call of a commit.
    called: BTreeMap<u64, u64>,
    ranks: BTreeSet<(u32, ConsumerName)>,
}

impl Deref for Consumers {
    type Target = BTreeMap<ConsumerName, Consumer>;

    fn deref(&self) -> &Self::Target {
        &self.all
    }
}

impl<'a> IntoIterator for &'a Consumers {
    type Item = (&'a ConsumerName, &'a Consumer);
    type IntoIter = std::collections::btree_map::Iter<'a, ConsumerName, Consumer>;

    fn into_iter(self) -> Self::IntoIter {
        self.all.iter()
    }
}

fn count<K: Ord>(counts: &mut BTreeMap<K, u64>, key: K, add: bool) {
    if add {
        *counts.entry(key).or_default() += 1;
    } else if let Some(n) = counts.get_mut(&key) {
        *n -= 1;
        if *n == 0 {
            counts.remove(&key);
        }
    }
}

impl Consumers {
    /// Those that got nothing of a pass yet.
    pub(super) fn unfed(&self, pass: PassId) -> u64 {
        self.all.len() as u64 - self.fed.get(&pass).copied().unwrap_or(0)
    }

    /// How many made their call of this commit.
    pub(super) fn called(&self, commit: u64) -> u64 {
        self.called.get(&commit).copied().unwrap_or(0)
    }

    /// Who has a rank, in order of names: more than one only where ranks mean nothing.
    pub(super) fn of_rank(&self, rank: u32) -> impl Iterator<Item = &ConsumerName> {
        self.ranks.range((rank, ConsumerName(String::new()))..).take_while(move |(r, _)| *r == rank).map(|(_, name)| name)
    }

    /// Does nothing where one of that name takes part.
    pub(super) fn join(&mut self, name: &ConsumerName, consumer: Consumer) {
        if !self.all.contains_key(name) {
            self.count(name, &consumer, true);
            self.all.insert(name.clone(), consumer);
        }
    }

    pub(super) fn remove(&mut self, name: &ConsumerName) {
        if let Some(consumer) = self.all.remove(name) {
            self.count(name, &consumer, false);
        }
    }

    pub(super) fn update(&mut self, name: &ConsumerName, f: impl FnOnce(&mut Consumer)) {
        let Some(consumer) = self.all.get_mut(name) else { return };
        let before = (consumer.fed, consumer.called);
        f(consumer);
        let after = (consumer.fed, consumer.called);
        if before.0 != after.0 {
            before.0.into_iter().for_each(|pass| count(&mut self.fed, pass, false));
            after.0.into_iter().for_each(|pass| count(&mut self.fed, pass, true));
        }
        if before.1 != after.1 {
            before.1.into_iter().for_each(|commit| count(&mut self.called, commit, false));
            after.1.into_iter().for_each(|commit| count(&mut self.called, commit, true));
        }
    }

    /// With its counts made again.
    pub(super) fn recounted(&self) -> Self {
        let mut again = Self::default();
        self.all.iter().for_each(|(name, consumer)| again.join(name, consumer.clone()));
        again
    }

    pub(super) fn clear(&mut self) {
        *self = Self::default();
    }

    fn count(&mut self, name: &ConsumerName, consumer: &Consumer, add: bool) {
        consumer.fed.into_iter().for_each(|pass| count(&mut self.fed, pass, add));
        consumer.called.into_iter().for_each(|commit| count(&mut self.called, commit, add));
        if let Some(rank) = consumer.rank {
            if add {
                self.ranks.insert((rank, name.clone()))
            } else {
                self.ranks.remove(&(rank, name.clone()))
            };
        }
    }
}

impl Serialize for Consumers {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.all.serialize(serializer)
    }
}

impl<'de> Deserialize<'de> for Consumers {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let mut consumers = Self::default();
        for (name, consumer) in BTreeMap::<ConsumerName, Consumer>::deserialize(deserializer)? {
            consumers.join(&name, consumer);
        }
        Ok(consumers)
    }
}
