//! Ranking over shards: words are counted over all of them before any row is scored, so that scores compare.

use std::sync::Arc;

use forebay_core::{Error, Result};
use futures::{StreamExt, TryStreamExt, stream};

use super::build::blocking;
use super::condition::Condition;
use super::index::{Frequencies, Scored, ShardIndex};

/// Places of hits, and the keys of their rows.
type LookedUp = (Vec<usize>, Vec<(i64, Option<i32>)>);

/// Shards that are searched at the same time.
const AT_ONCE: usize = 8;

/// A row that was found.
#[derive(Debug, Clone, Copy, PartialEq)]
pub(crate) struct Hit {
    /// The shard's number, as the caller gave it.
    pub(crate) shard: usize,
    /// The row's number in the shard.
    pub(crate) row: u32,
    pub(crate) id: i64,
    pub(crate) part: Option<i32>,
    /// BM25 over all the shards.
    pub(crate) score: f32,
}

/// The best rows of some shards, best first; of equal ones the first in the order of the shards and of their rows.
///
/// # Errors
/// What disk and store say.
pub(crate) async fn rank_shards(shards: Vec<(usize, Arc<ShardIndex>)>, condition: Arc<Condition>, limit: usize) -> Result<Vec<Hit>> {
    let all = Arc::new(frequencies(&shards, &condition).await?);
    let mut searches = Vec::with_capacity(shards.len());
    for (place, (_, index)) in shards.iter().enumerate() {
        let (index, condition, all) = (index.clone(), condition.clone(), all.clone());
        searches.push(async move { Ok::<_, Error>((place, blocking(move || index.best(&condition, &all, limit)).await?)) });
    }
    let found: Vec<(usize, Vec<Scored>)> = stream::iter(searches).buffered(AT_ONCE).try_collect().await?;
    let mut best: Vec<(f32, usize, u32)> =
        found.into_iter().flat_map(|(place, rows)| rows.into_iter().map(move |(score, row)| (score, place, row))).collect();
    best.sort_by(|a, b| b.0.total_cmp(&a.0).then((a.1, a.2).cmp(&(b.1, b.2))));
    best.truncate(limit);
    keys(&shards, best).await
}

async fn frequencies(shards: &[(usize, Arc<ShardIndex>)], condition: &Arc<Condition>) -> Result<Frequencies> {
    let (indexes, condition): (Vec<_>, _) = (shards.iter().map(|(_, i)| i.clone()).collect(), condition.clone());
    // Word lists are in memory: one thread does it for all shards.
    blocking(move || {
        let mut all = Frequencies::default();
        for index in indexes {
            all.add(index.frequencies(&condition)?);
        }
        Ok(all)
    })
    .await
}

/// Looks up the keys of the rows that were found.
async fn keys(shards: &[(usize, Arc<ShardIndex>)], best: Vec<(f32, usize, u32)>) -> Result<Vec<Hit>> {
    let mut by_shard: std::collections::BTreeMap<usize, Vec<usize>> = Default::default();
    for (i, (_, place, _)) in best.iter().enumerate() {
        by_shard.entry(*place).or_default().push(i);
    }
    let mut lookups = Vec::with_capacity(by_shard.len());
    for (place, hits) in by_shard {
        let Some((_, index)) = shards.get(place) else { continue };
        let index = index.clone();
        let rows: Vec<u32> = hits.iter().filter_map(|i| best.get(*i).map(|(_, _, row)| *row)).collect();
        lookups.push(async move { Ok::<_, Error>((hits, blocking(move || index.keys(&rows)).await?)) });
    }
    let looked_up: Vec<LookedUp> = stream::iter(lookups).buffered(AT_ONCE).try_collect().await?;
    let mut hits: Vec<(usize, Hit)> = Vec::with_capacity(best.len());
    for (places, keys) in looked_up {
        for (i, (id, part)) in places.into_iter().zip(keys) {
            if let Some((score, place, row)) = best.get(i)
                && let Some((shard, _)) = shards.get(*place)
            {
                hits.push((i, Hit { shard: *shard, row: *row, id, part, score: *score }));
            }
        }
    }
    hits.sort_by_key(|(i, _)| *i);
    Ok(hits.into_iter().map(|(_, hit)| hit).collect())
}
