//! Bugs, planted one at a time: the checker must see each.

use super::super::super::*;
use super::Sim;
use crate::ids::{Incarnation, PassId};
use crate::job::{Assignment, JobSettings, RankLost};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// The journal takes entries of a leader that was replaced.
    NoFence,
    /// Answers go out before the journal has the entries.
    AnswerBeforeWrite,
    /// A new leader does not see the newest entry.
    ReplayLosesTheLast,
    /// Decisions are made on a state that lacks the newest grants.
    StaleState,
    /// A consumer goes on with what it reported as not received.
    RevocationIgnored,
    /// What a lost stream had is granted again without asking its consumer.
    NoReport,
    /// What a dead consumer did since the last commit does not return.
    AcknowledgedStays,
    /// A commit is complete with the first call.
    NoBarrier,
    /// The consumers before a restore are not fenced.
    OldIncarnation,
    /// A process that was replaced goes on under its name.
    OldSession,
    /// A pass ends while batches are on their way.
    EndsEarly,
    /// A broken stream counts as read to its end.
    BrokenIsClean,
    /// The rank is ignored.
    WrongRank,
    /// Steps open before the one before was sent.
    StepsTooEarly,
    /// The common end does not move.
    EndStays,
    /// The ledger file lacks a visit.
    LedgerLosesARow,
    /// A restored pass begins at its beginning.
    RestoresNothing,
    /// The ledger counts as holding what was acknowledged while its file was written.
    FoldsMore,
    /// A lost rank fails the job where the others should go on.
    FailsInstead,
    /// A rank that is there is dropped.
    DropsTheLiving,
}

impl Bug {
    pub(super) const ALL: [Self; 20] = [
        Self::NoFence,
        Self::AnswerBeforeWrite,
        Self::ReplayLosesTheLast,
        Self::StaleState,
        Self::RevocationIgnored,
        Self::NoReport,
        Self::AcknowledgedStays,
        Self::NoBarrier,
        Self::OldIncarnation,
        Self::OldSession,
        Self::EndsEarly,
        Self::BrokenIsClean,
        Self::WrongRank,
        Self::StepsTooEarly,
        Self::EndStays,
        Self::LedgerLosesARow,
        Self::RestoresNothing,
        Self::FoldsMore,
        Self::FailsInstead,
        Self::DropsTheLiving,
    ];
}

impl Bug {
    /// Whether jobs of these settings do at all what the bug spoils.
    pub(super) fn may_show(self, settings: &JobSettings) -> bool {
        let drops = settings.rank_lost == RankLost::Drop && settings.assignment == Assignment::Rounds;
        drops || !matches!(self, Self::FailsInstead | Self::DropsTheLiving)
    }
}

impl Sim {
    /// What the buggy leader understands of an event.
    pub(super) fn bend_event(&mut self, index: usize, event: Event) -> Event {
        let now = self.leaders[index].state.jobs.get(&self.settings.job).map_or(Incarnation(0), |j| j.incarnation);
        match (self.bug, event) {
            (Some(Bug::OldSession), Event::OfSession { event, .. }) if !matches!(*event, Event::OpenJob { .. } | Event::Restore { .. }) => {
                *event
            }
            (Some(Bug::OldIncarnation), Event::OfSession { session, event }) => {
                let event = match *event {
                    Event::Acknowledge { job, consumer, pass, batches, incarnation } => {
                        self.bug_hits += u32::from(incarnation != now && !batches.is_empty());
                        return Event::Acknowledge { job, consumer, pass, batches, incarnation: now };
                    }
                    Event::OpenStream { job, consumer, worker, acks, .. } => {
                        return Event::OpenStream { job, consumer, worker, acks, incarnation: now };
                    }
                    Event::Commit { job, consumer, call, taken, .. } => {
                        return Event::Commit { job, consumer, call, taken, incarnation: now };
                    }
                    event => event,
                };
                Event::OfSession { session, event: Box::new(event) }
            }
            (Some(Bug::BrokenIsClean), Event::CloseStream { job, stream, clean }) => {
                self.bug_hits += u32::from(!clean);
                Event::CloseStream { job, stream, clean: true }
            }
            (_, event) => event,
        }
    }

    /// The state that the buggy leader decides on.
    pub(super) fn bend_state(&mut self, index: usize) -> Option<State> {
        let name = self.settings.job.clone();
        match self.bug {
            Some(Bug::StaleState) if self.rng.below(4) == 0 => {
                let keep = self.journal.entries.len().saturating_sub(2);
                let mut state = State::default();
                for bytes in &self.journal.entries[..keep] {
                    apply(&mut state, &Entry::decode(bytes).unwrap());
                }
                state.fence = self.leaders[index].fence;
                self.bug_hits += 1;
                Some(state)
            }
            Some(Bug::WrongRank) => {
                let mut state = self.leaders[index].state.clone();
                let job = state.jobs.get_mut(&name).filter(|j| j.settings.is_fixed())?;
                let world = job.settings.world_size.filter(|w| *w > 1)?;
                for (id, stream) in job.streams.clone().iter() {
                    job.streams.insert(*id, Stream { rank: stream.rank.map(|r| (r + 1) % world), ..stream.clone() });
                }
                self.bug_hits += 1;
                Some(state)
            }
            Some(Bug::StepsTooEarly) => {
                let mut state = self.leaders[index].state.clone();
                for pass in state.jobs.get_mut(&name)?.passes.values_mut().filter(|p| p.rounds) {
                    pass.lead = pass.deliverable;
                }
                self.bug_hits += 1;
                Some(state)
            }
            _ => None,
        }
    }

    /// What becomes of a decision.
    pub(super) fn bend(&mut self, index: usize, decision: &mut Decision) {
        let Some(bug) = self.bug else { return };
        let before = decision.entries.len();
        let job = self.leaders[index].state.jobs.get(&self.settings.job).cloned();
        let mut entries = std::mem::take(&mut decision.entries);
        match bug {
            Bug::EndStays => entries.retain(|e| !matches!(e.change, Change::EndMoved { .. })),
            Bug::AcknowledgedStays => {
                for entry in &mut entries {
                    if let Change::ConsumerGone { reason, .. } = &mut entry.change {
                        self.bug_hits += 1;
                        *reason = Reason::ConsumerLeft;
                    }
                }
            }
            Bug::FoldsMore => {
                for entry in &mut entries {
                    if let Change::Watermark { parts, .. } = &mut entry.change {
                        parts.iter_mut().for_each(|(_, parts)| *parts = vec![(0, u32::MAX)]);
                    }
                }
            }
            Bug::FailsInstead => {
                for entry in &mut entries {
                    if let Change::RankDropped { job, .. } = &entry.change {
                        let end = JobEnd::Failed(crate::Error::internal("a rank was lost"));
                        entry.change = Change::JobEnded { job: job.clone(), end };
                    }
                }
            }
            Bug::DropsTheLiving => {
                for entry in &mut entries {
                    if let Change::RankDropped { rank, .. } = &mut entry.change {
                        let living = job.as_ref().and_then(|j| j.consumers.values().find_map(|c| c.rank));
                        *rank = living.unwrap_or(*rank);
                    }
                }
            }
            Bug::RestoresNothing => {
                for entry in &mut entries {
                    if let Change::JobCreated { restored: Some(restored), .. } = &mut entry.change
                        && let Some(pass) = &mut restored.pass
                    {
                        self.bug_hits += u32::from(!pass.taken.is_empty());
                        pass.taken = Ranges::default();
                    }
                }
            }
            _ => {}
        }
        let mut out = Vec::new();
        for entry in entries {
            let also = job.as_ref().map_or_else(Vec::new, |job| self.besides(bug, job, &entry.change));
            let at = |change: Change| Entry { change, ..entry.clone() };
            let also: Vec<Entry> = also.into_iter().map(at).collect();
            out.push(entry);
            out.extend(also);
        }
        self.bug_hits += u32::from(out.len() != before);
        decision.entries = out;
    }

    /// What a buggy leader writes besides an entry.
    fn besides(&self, bug: Bug, job: &Job, change: &Change) -> Vec<Change> {
        let name = self.settings.job.clone();
        let forget = |consumer: &crate::ids::ConsumerName| Change::Reported {
            job: self.settings.job.clone(),
            consumer: consumer.clone(),
            number: 0,
            streams: Vec::new(),
            received: Vec::new(),
        };
        match (bug, change) {
            (Bug::NoReport, Change::StreamClosed { stream, .. }) => {
                job.streams.get(stream).map(|s| forget(&s.consumer)).into_iter().collect()
            }
            (Bug::NoReport, Change::WorkerGone { worker, .. }) => {
                job.streams.values().filter(|s| s.worker == *worker).map(|s| forget(&s.consumer)).collect()
            }
            (Bug::NoBarrier, Change::CommitCalled { commit, .. }) if job.consumers.len() > 1 => {
                vec![Change::Committed { job: name, commit: *commit, place: job.ended, next: None, uneven: None }]
            }
            (Bug::EndsEarly, Change::Granted { pass, from, to, .. }) => {
                let last = job.passes.get(pass).is_some_and(|p| p.pending() == u64::from(to - from) && !p.ended);
                if last { vec![Change::PassEnded { job: name, pass: PassId(pass.0) }] } else { Vec::new() }
            }
            _ => Vec::new(),
        }
    }
}
