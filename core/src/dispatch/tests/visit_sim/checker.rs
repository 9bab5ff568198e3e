//! What must hold of every history. It knows the plan's sizes, what the clients saw, the journal's entries and the ledger's rows.

use std::collections::{BTreeMap, BTreeSet};

use super::super::super::*;
use super::{Seen, Sim};
use crate::ids::*;
use crate::job::{End, RankLost, Steps, Visitation};

type Batch = (PassId, u64);

/// How often trainers whose work counts had each batch.
type Lineage = BTreeMap<Batch, u32>;

/// What a process trained on, in order, and how far its work counts already.
#[derive(Debug, Default, Clone)]
struct Work {
    yields: Vec<(Incarnation, Batch)>,
    counted: BTreeSet<usize>,
    /// At each call of `commit`, in order.
    calls: Vec<usize>,
}

#[derive(Default)]
struct Checker {
    work: BTreeMap<Session, Work>,
    /// Who takes part, by name, as the journal says.
    members: BTreeMap<ConsumerName, Session>,
    /// The call that counts for the open commit.
    called: BTreeMap<ConsumerName, usize>,
    behind: BTreeMap<ConsumerName, u64>,
    lineage: Lineage,
    records: BTreeMap<(Incarnation, u64), Lineage>,
    /// Lineages by the place of a fixed map.
    places: BTreeMap<Token, Lineage>,
    incarnation: Incarnation,
    world: usize,
    acknowledged: BTreeMap<(Incarnation, PassId, u64), BTreeSet<ConsumerName>>,
    /// Ranks that the others of this incarnation go on without.
    dropped: BTreeSet<u32>,
    finished: bool,
    failed: bool,
}

type Verdict = Result<(), String>;

impl Sim {
    /// Everything that was promised.
    pub(super) fn verdict(&self) -> Verdict {
        self.fences_only_grow()?;
        let mut checker = Checker::default();
        let mut read = 0;
        let entries: Vec<Entry> = self.journal.entries.iter().map(|b| Entry::decode(b).unwrap()).collect();
        let mut fence = Fence(0);
        let mut yielded: BTreeMap<(Incarnation, Batch), Session> = BTreeMap::new();
        let mut tokens: BTreeMap<Session, BTreeMap<u64, Option<Token>>> = BTreeMap::new();
        for seen in &self.seen {
            match seen {
                Seen::Journal(to) => {
                    for entry in entries.get(read..*to).unwrap_or_default() {
                        if entry.fence >= fence {
                            fence = entry.fence;
                            checker.entry(self, &entry.change)?;
                        }
                    }
                    read = (*to).max(read);
                }
                Seen::Yield { session, incarnation, pass, batch, padding } => {
                    if *batch >= self.batches() || self.settings_passes() <= pass.0 {
                        return Err(format!("batch {batch} of pass {pass} was invented"));
                    }
                    let work = checker.work.entry(*session).or_default();
                    work.yields.push((*incarnation, (*pass, if *padding { u64::MAX } else { *batch })));
                    if !padding
                        && self.settings.visitation == Visitation::AtMostOnce
                        && let Some(other) = yielded.insert((*incarnation, (*pass, *batch)), *session)
                    {
                        return Err(format!("batch {batch} of pass {pass} was delivered to {other} and to {session}"));
                    }
                }
                Seen::Called { session, trained } => checker.work.entry(*session).or_default().calls.push(*trained),
                Seen::Token { session, call, token } => {
                    tokens.entry(*session).or_default().insert(*call, Some(*token));
                }
                Seen::Refused { session, call } => {
                    tokens.entry(*session).or_default().insert(*call, None);
                }
                Seen::Shipped { .. } | Seen::Fault(_) | Seen::Failed(_) => {}
            }
        }
        self.steps_are_equal(&entries)?;
        self.map_is_kept(&entries)?;
        self.rounds_are_in_step(&entries)?;
        checker.end(self)?;
        self.ledger_agrees(&checker)
    }

    pub(super) fn settings_passes(&self) -> u32 {
        if let crate::job::Passes::Count(n) = self.settings.epochs { n } else { 0 }
    }

    /// I4: what counts in the journal is written under fences that only grow.
    fn fences_only_grow(&self) -> Verdict {
        let mut newest = Fence(0);
        for bytes in &self.journal.entries {
            let entry = Entry::decode(bytes).unwrap();
            if entry.fence < newest {
                return Err(format!("an entry of fence {} came after fence {newest}", entry.fence));
            }
            newest = entry.fence;
        }
        Ok(())
    }

    /// Ranks make equally many steps of a pass where each was one process, whatever workers did.
    fn steps_are_equal(&self, entries: &[Entry]) -> Verdict {
        if self.settings.steps != Steps::Equal {
            return Ok(());
        }
        let unclean = |e: &Entry| {
            matches!(e.change, Change::ConsumerGone { reason: Reason::ConsumerDied | Reason::Replaced, .. } | Change::RankDropped { .. })
        };
        let plain = self.processes.values().any(|p| p.plain);
        if entries.iter().any(unclean) || self.restores > 0 || plain || self.is_given_up() {
            return Ok(());
        }
        let mut steps: BTreeMap<PassId, BTreeMap<Session, u64>> = BTreeMap::new();
        for seen in &self.seen {
            if let Seen::Yield { session, pass, .. } = seen {
                *steps.entry(*pass).or_default().entry(*session).or_default() += 1;
            }
        }
        for (pass, ranks) in steps {
            let counts: BTreeSet<u64> = ranks.values().copied().collect();
            if counts.len() > 1 || ranks.len() != self.settings.world_size.unwrap_or(1) as usize {
                return Err(format!("pass {pass}: the ranks made {ranks:?} steps"));
            }
        }
        Ok(())
    }

    /// Rank r gets the batches b = r mod world_size, unless the common end moved or a rank was dropped.
    fn map_is_kept(&self, entries: &[Entry]) -> Verdict {
        let moved = |e: &Entry| matches!(e.change, Change::EndMoved { .. } | Change::RankDropped { .. });
        if !self.settings.is_fixed() || self.restores > 0 || entries.iter().any(moved) {
            return Ok(());
        }
        let world = u64::from(self.settings.world_size.unwrap_or(1));
        for seen in &self.seen {
            if let Seen::Yield { session, batch, padding: false, .. } = seen {
                let rank = self.processes[session].rank.unwrap();
                if batch % world != u64::from(rank) {
                    return Err(format!("rank {rank} of {world} got batch {batch}"));
                }
            }
        }
        Ok(())
    }

    /// In rounds, nobody is sent a batch of a step before everything of the steps before was sent, or given up.
    fn rounds_are_in_step(&self, entries: &[Entry]) -> Verdict {
        let dropped = entries.iter().any(|e| matches!(e.change, Change::RankDropped { .. } | Change::EndMoved { .. }));
        // A consumer that says it did not receive a batch gives it up too.
        let lost = entries.iter().any(|e| {
            matches!(
                e.change,
                Change::StreamClosed { .. } | Change::WorkerGone { .. } | Change::ConsumerGone { .. } | Change::Reported { .. }
            )
        });
        if self.settings.assignment != crate::job::Assignment::Rounds
            || self.restores > 0
            || dropped
            || (lost && !self.settings.redelivers())
        {
            return Ok(());
        }
        let world = u64::from(self.settings.world_size.unwrap_or(1));
        let mut shipped: BTreeMap<PassId, BTreeSet<u64>> = BTreeMap::new();
        for seen in &self.seen {
            if let Seen::Shipped { pass, batch, .. } = seen {
                let there = shipped.entry(*pass).or_default();
                let step = batch / world;
                if let Some(missing) = (0..step * world).find(|b| !there.contains(b)) {
                    return Err(format!("batch {batch} of step {step} was sent before batch {missing}"));
                }
                there.insert(*batch);
            }
        }
        Ok(())
    }

    fn ledger_agrees(&self, checker: &Checker) -> Verdict {
        if !checker.finished {
            return Ok(());
        }
        let mut files = Vec::new();
        for bytes in &self.journal.entries {
            if let Change::Watermark { ledger, .. } = Entry::decode(bytes).unwrap().change {
                for file in ledger {
                    if !files.contains(&file) {
                        files.push(file);
                    }
                }
            }
        }
        let rows: Vec<&VisitRow> = files.iter().flat_map(|f| &self.ledger[f]).collect();
        let mut keys = BTreeSet::new();
        let mut explained: BTreeMap<Batch, &VisitRow> = BTreeMap::new();
        let mut lost = 0;
        for row in &rows {
            if !keys.insert((row.incarnation, row.pass, row.batch)) {
                return Err(format!("batch {} of pass {} is in the ledger twice", row.batch, row.pass));
            }
            match row.state {
                VisitState::Lost | VisitState::Dropped => {
                    if row.reason.is_none() {
                        return Err(format!("no reason for {row:?}"));
                    }
                    lost += u32::from(row.state == VisitState::Lost && row.reason.as_deref() != Some(Reason::JobStopped.as_str()));
                    if row.state == VisitState::Lost
                        && self.settings.redelivers()
                        && row.reason.as_deref() != Some(Reason::JobStopped.as_str())
                    {
                        return Err(format!("lost in a job that redelivers: {row:?}"));
                    }
                    explained.insert((row.pass, row.batch), row);
                }
                VisitState::Acknowledged => {
                    let by = checker.acknowledged.get(&(row.incarnation, row.pass, row.batch));
                    let plain = row.consumer.as_ref().is_some_and(|c| self.processes.values().any(|p| p.plain && p.name == *c));
                    let named = row.consumer.as_ref().is_some_and(|c| by.is_some_and(|by| by.contains(c)));
                    if !named && !plain {
                        return Err(format!("the ledger says {row:?}, and {by:?} acknowledged it"));
                    }
                    // A plain stream that was read to its end: the trainer had all of it.
                    if plain && by.is_none() && !self.was_yielded(row) {
                        return Err(format!("acknowledged and never delivered: {row:?}"));
                    }
                }
                state => return Err(format!("{state:?} in the ledger")),
            }
        }
        if lost > 0 && self.faults == 0 {
            return Err(format!("{lost} batches are lost without a fault"));
        }
        // A fault loses at most what is in flight: two windows for each worker or consumer that it strikes.
        let most = u64::from(self.faults) * (2 * self.per_window + 8) * 4;
        if u64::from(lost) > most {
            return Err(format!("{lost} batches are lost by {} faults", self.faults));
        }
        self.nothing_is_missing(checker, &explained, &rows)
    }

    fn was_yielded(&self, row: &VisitRow) -> bool {
        self.seen.iter().any(|s| matches!(s, Seen::Yield { incarnation, pass, batch, .. } if (*incarnation, *pass, *batch) == (row.incarnation, row.pass, row.batch)))
    }

    /// Every batch of every pass: trained on by work that counts, or lost or dropped with a reason. Exactly once where that is promised.
    fn nothing_is_missing(&self, checker: &Checker, explained: &BTreeMap<Batch, &VisitRow>, rows: &[&VisitRow]) -> Verdict {
        let read: BTreeSet<Batch> = rows.iter().filter(|r| r.state == VisitState::Acknowledged).map(|r| (r.pass, r.batch)).collect();
        for pass in (0..self.settings_passes()).map(PassId) {
            let mut dropped = 0;
            for batch in 0..self.batches() {
                let key = (pass, batch);
                let times = checker.lineage.get(&key).copied().unwrap_or(0);
                let why = explained.get(&key);
                dropped += u64::from(times == 0 && why.is_some_and(|r| r.state == VisitState::Dropped));
                if times == 0 && why.is_none() && !(self.settings.visitation == Visitation::AtMostOnce && read.contains(&key)) {
                    return Err(format!("batch {batch} of pass {pass} is missing, and nothing says why"));
                }
                if times == 0 && self.settings.redelivers() && why.is_some_and(|r| r.state == VisitState::Lost) {
                    return Err(format!("batch {batch} of pass {pass} is lost in a job that redelivers"));
                }
                if times > 1 && self.settings.visitation != Visitation::AtLeastOnce {
                    return Err(format!("batch {batch} of pass {pass} counts {times} times"));
                }
            }
            // The short batch and the partial round; the rank that a lost batch leaves short costs one more round.
            let width = u64::from(self.settings.world_size.unwrap_or(1)).max(4);
            let may = if self.settings.redelivers() { width } else { width * (2 + u64::from(self.faults)) };
            if dropped > may || (dropped > 0 && self.settings.end != End::Drop) {
                return Err(format!("{dropped} batches of pass {pass} are dropped with end = {:?}", self.settings.end));
            }
        }
        Ok(())
    }
}

impl Checker {
    fn entry(&mut self, sim: &Sim, change: &Change) -> Verdict {
        match change {
            Change::JobCreated { settings, restored, incarnation, .. } => {
                self.incarnation = *incarnation;
                self.world = settings.world_size.unwrap_or(1) as usize;
                self.dropped.clear();
                (self.members, self.called, self.behind) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
                self.lineage = match restored.as_ref().map(|r| r.token) {
                    Some(Token::Commit { incarnation, commit }) => {
                        self.records.get(&(incarnation, commit)).cloned().ok_or("a commit that never was is restored")?
                    }
                    Some(token) => self.places.get(&token).cloned().ok_or("a place that nobody stood at is restored")?,
                    None => Lineage::new(),
                };
            }
            Change::ConsumerJoined { consumer, session: Some(session), .. } => {
                self.members.insert(consumer.clone(), *session);
                self.called.remove(consumer);
            }
            Change::ConsumerGone { consumer, reason, .. } => {
                let all = *reason == Reason::ConsumerLeft;
                self.leave(sim, consumer, all);
            }
            Change::Acknowledged { pass, consumer, batches, .. } => {
                for (batch, _) in batches {
                    // Padding repeats what another one may have acknowledged.
                    self.acknowledged.entry((self.incarnation, *pass, batch.0)).or_default().insert(consumer.clone());
                }
            }
            Change::CommitCalled { consumer, .. } => {
                // The newest call of the process is the one that counts.
                let calls = self.members.get(consumer).and_then(|s| self.work.get(s)).and_then(|w| w.calls.last());
                self.called.insert(consumer.clone(), calls.copied().unwrap_or(0));
            }
            Change::Committed { commit, uneven, place, next, .. } => {
                if let Some((late, _)) = self.members.iter().find(|(name, _)| !self.called.contains_key(*name)) {
                    let over = self.members.is_empty();
                    if !over && uneven.is_none() && !self.finished {
                        return Err(format!("commit {commit} was complete before {late} called"));
                    }
                }
                if uneven.is_none() {
                    for (name, upto) in std::mem::take(&mut self.called) {
                        self.count(sim, &name, upto, None);
                    }
                    self.records.insert((self.incarnation, *commit), self.lineage.clone());
                    self.places.insert(Token::At { pass: PassId(*place), next: next.unwrap_or(0) }, self.lineage.clone());
                }
                self.called.clear();
            }
            Change::PassEnded { pass, .. } => {
                for name in self.members.keys().cloned().collect::<Vec<_>>() {
                    self.count(sim, &name, usize::MAX, Some(*pass));
                }
            }
            Change::RankDropped { rank, .. } => {
                let away = !self.members.values().any(|s| sim.processes[s].rank == Some(*rank));
                if sim.settings.rank_lost != RankLost::Drop || !away {
                    return Err(format!("rank {rank} was dropped, with {:?}", sim.settings.rank_lost));
                }
                self.dropped.insert(*rank);
            }
            Change::JobEnded { end, .. } => {
                // Of the incarnation that ends: a restore may be on its way to another.
                let world = self.world;
                if let JobEnd::Failed(error) = end
                    && !sim.is_given_up()
                    && (sim.settings.rank_lost != RankLost::Fail || self.members.len() >= world)
                {
                    return Err(format!("the job failed without a lost rank: {error}"));
                }
                if *end == JobEnd::Idle && self.dropped.len() < world {
                    return Err("the job ended as idle, and its ranks were not lost".to_owned());
                }
                self.finished = *end == JobEnd::Finished;
                self.failed = matches!(end, JobEnd::Failed(_) | JobEnd::Idle);
                if self.finished {
                    for name in self.members.keys().cloned().collect::<Vec<_>>() {
                        self.leave(sim, &name, true);
                    }
                }
            }
            _ => {}
        }
        Ok(())
    }

    /// A consumer's work up to there counts from now on.
    fn count(&mut self, sim: &Sim, name: &ConsumerName, upto: usize, only: Option<PassId>) {
        // A plain consumer never says what it took: a checkpoint can't hold it.
        let plain = self.members.get(name).is_some_and(|s| sim.processes[s].plain);
        let Some(work) = self.members.get(name).and_then(|s| self.work.get_mut(s)).filter(|_| !plain) else { return };
        let upto = upto.min(work.yields.len());
        for index in 0..upto {
            let (incarnation, (pass, batch)) = work.yields[index];
            // What it did before a restore counts only with the commit that was restored.
            let here = incarnation == self.incarnation;
            if here && batch != u64::MAX && only.is_none_or(|p| p == pass) && work.counted.insert(index) {
                *self.lineage.entry((pass, batch)).or_default() += 1;
            }
        }
    }

    /// The work of whoever left counts. Of whoever died, what was acknowledged does, but in exactly_once: that goes back to the last commit.
    fn leave(&mut self, sim: &Sim, name: &ConsumerName, left: bool) {
        let stays = left || sim.settings.visitation != Visitation::ExactlyOnce;
        if let Some(work) = self.members.get(name).and_then(|s| self.work.get_mut(s)).filter(|_| stays) {
            for index in 0..work.yields.len() {
                let (incarnation, (pass, batch)) = work.yields[index];
                let here = incarnation == self.incarnation;
                let by = self.acknowledged.get(&(self.incarnation, pass, batch));
                if here && batch != u64::MAX && by.is_some_and(|by| by.contains(name)) && work.counted.insert(index) {
                    *self.lineage.entry((pass, batch)).or_default() += 1;
                }
            }
        }
        self.members.remove(name);
        self.called.remove(name);
    }

    fn end(&self, sim: &Sim) -> Verdict {
        let never = sim.is_given_up() && self.lineage.is_empty() && self.members.is_empty();
        if !self.finished && !self.failed && !never {
            return Err(format!("the job did not end; {} faults", sim.faults));
        }
        Ok(())
    }
}
