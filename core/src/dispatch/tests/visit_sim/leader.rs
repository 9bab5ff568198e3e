//! The shell of a simulated leader: decide, write, apply, answer. More than one may believe to lead.

use super::super::super::*;
use super::bugs::Bug;
use super::net::{Call, Msg, Peer};
use super::{Seen, Sim, TERM};
use crate::error::{Error, Result};
use crate::ids::*;

/// The durable log. Who opens it last is its writer.
#[derive(Debug, Default)]
pub(super) struct Journal {
    pub entries: Vec<Vec<u8>>,
    pub fence: Fence,
}

#[derive(Debug)]
pub(super) struct Leader {
    pub state: State,
    pub volatile: Volatile,
    pub fence: Fence,
    pub alive: bool,
    pub asleep_until: u64,
    /// Requests that wait for a grant or a commit, and since when.
    pub parked: Vec<(u64, Call)>,
}

impl Sim {
    pub(super) fn start_leader(&mut self) {
        let mut state = State::default();
        let skip = usize::from(self.bug == Some(Bug::ReplayLosesTheLast) && !self.journal.entries.is_empty());
        for bytes in &self.journal.entries[..self.journal.entries.len() - skip] {
            apply(&mut state, &Entry::decode(bytes).unwrap());
        }
        let snapshot = serde_json::to_vec(&state).unwrap();
        let back: State = serde_json::from_slice(&snapshot).unwrap();
        assert_eq!(back, state, "I5: the state changes when it is written down");
        self.journal.fence = Fence(self.journal.fence.0 + 1);
        let fence = self.journal.fence;
        let volatile = Volatile { ledger_batches: self.ledger_batches, ..Volatile::new(TERM) };
        let leader = Leader { state: back, volatile, fence, alive: true, asleep_until: 0, parked: Vec::new() };
        self.leaders.push(leader);
        let index = self.leaders.len() - 1;
        let event = Event::Lead { fence, address: None, workers_died: false, continue_runs: true };
        let _ = self.decide(index, event);
        self.settle(index);
    }

    /// Decides, writes and applies. None when the leader is over: nothing of it is told to anybody.
    pub(super) fn decide(&mut self, index: usize, event: Event) -> Option<Result<Reply>> {
        let now = self.moment();
        let event = self.bend_event(index, event);
        let bent = self.bend_state(index);
        let leader = &mut self.leaders[index];
        let decided = decide(bent.as_ref().unwrap_or(&leader.state), &mut leader.volatile, now, event);
        let mut decision = match decided {
            Ok(decision) => decision,
            // A refusal is an answer too: a shell gives none before it knows that it still leads.
            Err(error) => return self.append(index, &[]).then_some(Err(error)),
        };
        self.bend(index, &mut decision);
        let early = self.bug == Some(Bug::AnswerBeforeWrite);
        if !self.append(index, &decision.entries) {
            self.bug_hits += u32::from(early && !decision.entries.is_empty());
            return if early { Some(Ok(decision.reply)) } else { None };
        }
        for entry in &decision.entries {
            self.apply_checked(index, entry);
        }
        for action in decision.actions {
            self.act(index, action);
        }
        Some(Ok(decision.reply))
    }

    fn apply_checked(&mut self, index: usize, entry: &Entry) {
        self.checked += 1;
        // Every entry where something may change hands; others now and then, because a look costs a copy of the state.
        let before = (self.bug.is_none() && self.checked.is_multiple_of(3)).then(|| self.leaders[index].state.clone());
        apply(&mut self.leaders[index].state, entry);
        if let Some(before) = before {
            let after = &self.leaders[index].state;
            if check(after).is_err() {
                self.print_history();
            }
            check(after).unwrap_or_else(|v| panic!("{v} after {entry:?}"));
            check_step(&before, after).unwrap_or_else(|v| panic!("{v} by {entry:?}"));
        }
    }

    /// Writes to the journal: an older fence is refused, a failed write may have taken effect.
    fn append(&mut self, index: usize, entries: &[Entry]) -> bool {
        let fenced = self.leaders[index].fence < self.journal.fence;
        if entries.is_empty() && !fenced {
            return true;
        }
        if fenced && self.bug != Some(Bug::NoFence) {
            self.leader_dies(index);
            return false;
        }
        self.bug_hits += u32::from(fenced);
        let fails = !self.calm && self.rng.below(400) == 0;
        if !fails || self.chance(50) {
            self.journal.entries.extend(entries.iter().map(|e| e.encode().unwrap()));
        }
        if fails {
            self.fault("a journal write failed");
            self.leader_dies(index);
        }
        !fails
    }

    pub(super) fn leader_dies(&mut self, index: usize) {
        self.leaders[index].alive = false;
        if !self.leaders.iter().any(|l| l.alive) {
            let at = self.now + 200 + self.rng.below(6_000);
            self.net.at(at, Msg::Lead);
        }
    }

    /// What a leader that lives believes has to be what the journal says (I5).
    pub(super) fn check_fold(&self) {
        let Some(leader) = self.leaders.iter().rfind(|l| l.alive && l.fence == self.journal.fence) else { return };
        let mut state = State::default();
        for bytes in &self.journal.entries {
            apply(&mut state, &Entry::decode(bytes).unwrap());
        }
        assert!(state == leader.state, "I5: the live state is not the fold of the journal");
        check(&state).unwrap_or_else(|v| panic!("{v}"));
    }

    pub(super) fn at_leader(&mut self, index: usize, call: Call) {
        let leader = &self.leaders[index];
        if !leader.alive {
            return;
        }
        if leader.asleep_until > self.now {
            let at = leader.asleep_until + 1;
            return self.net.at(at, Msg::Request { leader: index, call });
        }
        self.ask(index, call);
        self.settle(index);
    }

    fn ask(&mut self, index: usize, call: Call) {
        let waits = matches!(call.peer, Peer::Grant { .. } | Peer::Commit { .. });
        match self.decide(index, call.event.clone()) {
            None => {}
            Some(Ok(Reply::Wait)) if waits => self.leaders[index].parked.push((self.now, call)),
            Some(result) => self.answer(call.id, result),
        }
    }

    /// Does what became due, and asks again for those who wait, until nothing changes.
    pub(super) fn settle(&mut self, index: usize) {
        for _ in 0..32 {
            if !self.leaders[index].alive {
                return;
            }
            let before = self.journal.entries.len();
            if self.decide(index, Event::Tick).is_none() {
                return;
            }
            let parked = std::mem::take(&mut self.leaders[index].parked);
            for (since, call) in parked {
                match self.decide(index, call.event.clone()) {
                    None => return,
                    Some(Ok(Reply::Wait)) if self.now < since + 5_000 => self.leaders[index].parked.push((since, call)),
                    Some(result) => self.answer(call.id, result),
                }
            }
            if self.journal.entries.len() == before {
                break;
            }
        }
        self.seen.push(Seen::Journal(self.journal.entries.len()));
    }

    pub(super) fn tick(&mut self) {
        for index in 0..self.leaders.len() {
            if self.leaders[index].alive && self.leaders[index].asleep_until <= self.now {
                self.settle(index);
            }
        }
    }

    fn act(&mut self, index: usize, action: Action) {
        let fails = !self.calm && self.chance(5);
        let event = match action {
            Action::ShapePass { job, incarnation, pass, epochs, .. } => {
                let answer = if fails { Err(Error::internal("the store is down")) } else { Ok(self.shape_of(pass, &epochs)) };
                Event::PassShaped { job, incarnation, pass, answer }
            }
            Action::WriteLedger { job, incarnation, number, windows, mut rows } => {
                if self.bug == Some(Bug::LedgerLosesARow) && rows.len() > 1 {
                    self.bug_hits += 1;
                    rows.pop();
                }
                let path = format!("{incarnation}-{number}-{}", self.rng.next_u64());
                self.ledger.insert(path.clone(), rows);
                let result = if fails { Err(Error::internal("the store is down")) } else { Ok(vec![path]) };
                Event::LedgerWritten { job, incarnation, number, windows, result }
            }
            commit @ (Action::PrepareCommit(_) | Action::Commit { .. }) => match self.commit_of(commit, fails) {
                Some(event) => event,
                None => return,
            },
            _ => return,
        };
        let at = self.now + 1 + self.rng.below(200);
        self.net.at(at, Msg::Work { leader: index, event: Box::new(event) });
    }

    pub(super) fn work_done(&mut self, index: usize, event: Event) {
        if self.leaders[index].alive {
            if self.leaders[index].asleep_until > self.now {
                let at = self.leaders[index].asleep_until + 1;
                return self.net.at(at, Msg::Work { leader: index, event: Box::new(event) });
            }
            let _ = self.decide(index, event);
            self.settle(index);
        }
    }
}
