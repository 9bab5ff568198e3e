//! Bugs, planted one at a time: the checker must see each.

use super::*;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Bug {
    /// The journal takes entries of older leaders, and counts them.
    NoFence,
    /// A lease is told before it is written.
    AnswerBeforeWrite,
    /// A put replaces what is there.
    OverwritesCommits,
    /// Whatever is at the version counts as this commit.
    ForeignIsOurs,
    /// A put that may have landed counts as one that did not: the next version is tried.
    DoubtIsForeign,
    /// The commit is made anew at each try.
    NewBody,
    /// What a new leader reads lacks the commits that were begun.
    ForgetsPublishing,
    /// Attempts have the same number.
    AttemptsRepeat,
    LosesAShard,
    /// Files of all attempts enter the version.
    EveryAttemptCounts,
    /// A worker reports a task before its file is written.
    ReportsBeforeItWrote,
    /// Whoever asks for epochs that are being written is told that they are published.
    SaysDoneEarly,
}

impl Bug {
    pub(super) const ALL: [Self; 12] = [
        Self::NoFence,
        Self::AnswerBeforeWrite,
        Self::OverwritesCommits,
        Self::ForeignIsOurs,
        Self::DoubtIsForeign,
        Self::NewBody,
        Self::ForgetsPublishing,
        Self::AttemptsRepeat,
        Self::LosesAShard,
        Self::EveryAttemptCounts,
        Self::ReportsBeforeItWrote,
        Self::SaysDoneEarly,
    ];
}

impl Sim {
    /// What becomes of a decision.
    pub(super) fn bend(&mut self, decision: &mut Decision) {
        match self.bug {
            Some(Bug::AttemptsRepeat) => {
                for entry in &mut decision.entries {
                    if let Change::TaskLeased { attempt, .. } = &mut entry.change {
                        *attempt = Attempt(0);
                    }
                }
                if let Reply::Task(lease) = &mut decision.reply {
                    lease.attempt = Attempt(0);
                }
            }
            Some(Bug::SaysDoneEarly) if decision.reply == Reply::Accepted => {
                let epochs: Vec<_> = (0..self.epochs).map(EpochId).collect();
                decision.reply = Reply::Run(Box::new(RunStatus {
                    dataset: dataset("digits"),
                    state: RunState::Done,
                    epochs: epochs.clone(),
                    published: epochs,
                    progress: RunProgress::default(),
                    version: None,
                    error: None,
                }));
            }
            _ => {}
        }
    }
}
