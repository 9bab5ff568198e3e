//! The shell of a simulated leader, and what it asks of the store.

use std::collections::BTreeMap;

use super::*;

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
    /// In how many heartbeats of its worker a task was missing.
    missing: BTreeMap<Attempted, u32>,
}

impl Sim {
    pub(super) fn fold(&self) -> State {
        let mut state = State::default();
        for bytes in &self.journal.entries {
            let entry = Entry::decode(bytes).unwrap();
            if !(self.bug == Some(Bug::ForgetsPublishing) && matches!(entry.change, Change::Publishing { .. })) {
                apply(&mut state, &entry);
            }
        }
        state
    }

    pub(super) fn start_leader(&mut self) {
        let state = self.fold();
        let back: State = serde_json::from_slice(&serde_json::to_vec(&state).unwrap()).unwrap();
        assert_eq!(back, state, "I5: the state changes when it is written down");
        self.journal.fence = Fence(self.journal.fence.0 + 1);
        let fence = self.journal.fence;
        self.leaders.push(Leader { state, volatile: Volatile::new(TERM), fence, alive: true, asleep_until: 0, missing: BTreeMap::new() });
        let index = self.leaders.len() - 1;
        let _ = self.decide(index, Event::Lead { fence, address: None, workers_died: false, continue_runs: true });
        self.settle(index);
    }

    /// Decides, writes and applies. None when the leader is over: nothing of it is told to anybody.
    pub(super) fn decide(&mut self, index: usize, event: Event) -> Option<Result<Reply>> {
        let now = self.moment();
        let leader = &mut self.leaders[index];
        let mut decision = match decide(&leader.state, &mut leader.volatile, now, event) {
            Ok(decision) => decision,
            Err(error) => return self.append(index, &[]).then_some(Err(error)),
        };
        self.bend(&mut decision);
        if !self.append(index, &decision.entries) {
            return (self.bug == Some(Bug::AnswerBeforeWrite)).then_some(Ok(decision.reply));
        }
        for entry in &decision.entries {
            let before = self.leaders[index].state.clone();
            apply(&mut self.leaders[index].state, entry);
            if self.bug.is_none() {
                let after = &self.leaders[index].state;
                check(after).unwrap_or_else(|v| panic!("{v} after {entry:?}"));
                check_step(&before, after).unwrap_or_else(|v| panic!("{v} by {entry:?}"));
            }
        }
        for action in decision.actions {
            self.act(index, action);
        }
        Some(Ok(decision.reply))
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
        let fails = !self.calm && self.rng.below(150) == 0;
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
            self.after(200, 6_000, Msg::Lead);
        }
    }

    /// What a leader that lives believes has to be what the journal says (I5).
    pub(super) fn check_fold(&self) {
        let live = self.leaders.iter().rfind(|l| l.alive && l.fence == self.journal.fence);
        if let (Some(leader), None) = (live, self.bug) {
            assert!(self.fold() == leader.state, "I5: the live state is not the fold of the journal");
        }
    }

    pub(super) fn at_leader(&mut self, index: usize, call: Call) {
        if !self.leaders[index].alive {
            return;
        }
        let wakes = self.leaders[index].asleep_until;
        if wakes > self.now {
            return self.at(wakes + 1, Msg::Request { leader: index, call });
        }
        if let Some((worker, at)) = &call.beat {
            self.take_back_lost(index, worker.clone(), at.as_ref());
        }
        if let Some(result) = self.decide(index, call.event) {
            if let Ok(Reply::Task(lease)) = &result {
                self.durable_first(lease);
            }
            self.answer(call.id, result);
        }
        self.settle(index);
    }

    /// Whoever is told of a lease finds it in the journal.
    fn durable_first(&mut self, lease: &TaskLease) {
        let leased = |bytes: &Vec<u8>| match Entry::decode(bytes).unwrap().change {
            Change::TaskLeased { epoch, task, attempt, worker, .. } => {
                (epoch, task, attempt, worker) == (lease.epoch, lease.task, lease.attempt, lease.worker.clone())
            }
            _ => false,
        };
        if !self.journal.entries.iter().any(leased) {
            self.broken.push(format!("attempt {} of task {} was told, and is not in the journal", lease.attempt, lease.task));
        }
    }

    /// A task that its worker does not know of in two heartbeats was lost with an answer.
    fn take_back_lost(&mut self, index: usize, worker: WorkerName, at: Option<&TaskLease>) {
        let mut lost = Vec::new();
        let leader = &mut self.leaders[index];
        for (name, dataset) in &leader.state.datasets {
            let Some(run) = &dataset.run else { continue };
            for (epoch, epoch_run) in &run.epochs {
                for (task, number) in epoch_run.tasks.iter().zip(0..) {
                    for (attempt, _) in task.holders.iter().filter(|(_, w)| *w == worker) {
                        let key = (worker.clone(), *epoch, TaskId(number), *attempt);
                        if at.is_some_and(|l| (l.epoch, l.task, l.attempt) == (key.1, key.2, key.3)) {
                            leader.missing.remove(&key);
                            continue;
                        }
                        let times = leader.missing.entry(key).or_default();
                        *times += 1;
                        if *times >= 2 {
                            let (dataset, spec) = (name.clone(), run.spec.clone());
                            let (epoch, task, attempt, worker) = (*epoch, TaskId(number), *attempt, worker.clone());
                            lost.push(TaskLease { dataset, run: run.id, epoch, task, attempt, worker, spec });
                        }
                    }
                }
            }
        }
        for lease in lost {
            let error = Error::new(crate::Kind::Cancelled, "its worker does not know of it");
            let _ = self.decide(index, Event::TaskFailed { lease, error });
        }
    }

    pub(super) fn settle(&mut self, index: usize) {
        for _ in 0..8 {
            let before = self.journal.entries.len();
            if !self.leaders[index].alive || self.decide(index, Event::Tick).is_none() || self.journal.entries.len() == before {
                return;
            }
        }
    }

    fn act(&mut self, index: usize, action: Action) {
        match action {
            Action::PrepareCommit(request) => {
                let fails = self.fails(10, "the log could not be read");
                let next = VersionId(self.store.log.keys().last().map_or(0, |v| v + 1));
                let body = if fails { Err(Error::internal("the store is down")) } else { Ok((next, self.body_of(&request))) };
                let event = Event::CommitPrepared { dataset: request.spec.dataset.clone(), run: request.run, epoch: request.epoch, body };
                self.after(1, 500, Msg::Work { leader: index, event: Box::new(event) });
            }
            action @ Action::Commit { .. } => self.begin_commit(index, action),
            _ => {}
        }
    }

    /// A heartbeat through the journal proves the fence; the put itself may still be on its way for long.
    fn begin_commit(&mut self, index: usize, action: Action) {
        if self.append(index, &[]) {
            let late = self.fails(10, "a commit was late");
            let spread = if late { TERM } else { 300 };
            self.after(1, spread, Msg::Put { leader: index, action: Box::new(action) });
        }
    }

    fn body_of(&mut self, request: &CommitRequest) -> String {
        let mut paths: Vec<_> = request.shards.iter().map(|s| s.path.clone()).collect();
        if self.bug == Some(Bug::LosesAShard) && paths.len() > 1 {
            paths.pop();
        }
        if self.bug == Some(Bug::EveryAttemptCounts) {
            let more = |path: &&String| path.starts_with(&format!("epoch={}/", request.epoch)) && !paths.contains(path);
            paths.extend(self.store.files.keys().filter(more).cloned().collect::<Vec<_>>());
        }
        format!("epoch {} of run {} in {}", request.epoch, request.run, paths.join(" "))
    }

    /// Puts exactly this body at exactly this version where there is none; else looks whose that version is.
    pub(super) fn put_commit(&mut self, index: usize, action: Action) {
        let Action::Commit { dataset, run, epoch, version, mut body } = action else { return };
        if self.bug == Some(Bug::NewBody) {
            body = format!("{body} by {}", self.leaders[index].fence);
        }
        let mut outcome = match self.store.log.get(&version.0) {
            Some(there) if *there == body || self.bug == Some(Bug::ForeignIsOurs) => Ok(CommitOutcome::Ours),
            Some(_) if self.bug != Some(Bug::OverwritesCommits) => Ok(CommitOutcome::Foreign),
            there => {
                if there.is_some() {
                    self.store.broken.push(format!("version {version} was written twice"));
                }
                let applied = !self.fails(8, "a put failed");
                if applied {
                    self.store.log.insert(version.0, body);
                }
                if applied && !self.fails(12, "a put was applied and answered with an error") {
                    Ok(CommitOutcome::Ours)
                } else {
                    Err(Error::new(crate::Kind::Unavailable, "500"))
                }
            }
        };
        if self.bug == Some(Bug::DoubtIsForeign) && outcome.is_err() {
            outcome = Ok(CommitOutcome::Foreign);
        }
        let event = Event::CommitDone { dataset, run, epoch, version, outcome };
        self.after(1, 100, Msg::Work { leader: index, event: Box::new(event) });
    }

    pub(super) fn work_done(&mut self, index: usize, event: Event) {
        if !self.leaders[index].alive {
            return;
        }
        let wakes = self.leaders[index].asleep_until;
        if wakes > self.now {
            return self.at(wakes + 1, Msg::Work { leader: index, event: Box::new(event) });
        }
        let _ = self.decide(index, event);
        self.settle(index);
    }
}
