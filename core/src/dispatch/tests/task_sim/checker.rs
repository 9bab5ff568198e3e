//! What must hold of every history. It knows the store, the journal's entries, how many rows each task has, and what was told.

use super::*;

type Verdict = Result<(), String>;

/// The epoch that a commit of ours publishes.
pub(super) fn epoch_of(body: &str) -> Option<EpochId> {
    body.strip_prefix("epoch ")?.split(' ').next()?.parse().ok().map(EpochId)
}

impl Sim {
    /// Everything that was promised.
    pub(super) fn verdict(&self) -> Verdict {
        if let Some(what) = self.broken.iter().chain(&self.store.broken).next() {
            return Err(what.clone());
        }
        self.fences_only_grow()?;
        self.attempts_are_given_once()?;
        for epoch in (0..self.epochs).map(EpochId) {
            self.is_published_once(epoch)?;
        }
        Ok(())
    }

    /// I4: what is in the journal was written under fences that only grow.
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

    fn attempts_are_given_once(&self) -> Verdict {
        let mut given = BTreeSet::new();
        for bytes in &self.journal.entries {
            if let Change::TaskLeased { epoch, task, attempt, .. } = Entry::decode(bytes).unwrap().change
                && !given.insert((epoch, task, attempt))
            {
                return Err(format!("attempt {attempt} of task {task} of epoch {epoch} was given twice"));
            }
        }
        Ok(())
    }

    /// I3 and I6: one version publishes the epoch, and it has each task's rows exactly once, from files that are there.
    fn is_published_once(&self, epoch: EpochId) -> Verdict {
        let bodies: Vec<&String> = self.store.log.values().filter(|b| epoch_of(b) == Some(epoch)).collect();
        let [body] = bodies[..] else { return Err(format!("epoch {epoch} is in {} versions", bodies.len())) };
        let mut rows: BTreeMap<TaskId, u64> = BTreeMap::new();
        for path in body.split(" in ").nth(1).unwrap_or_default().split_whitespace().filter(|p| p.contains('/')) {
            let Some(((_, of, task, _), there)) = self.store.files.get(path) else {
                return Err(format!("epoch {epoch} names {path}, and nobody wrote it"));
            };
            if *of != epoch || rows.insert(*task, *there).is_some() {
                return Err(format!("epoch {epoch} has task {task} twice, or a file of epoch {of}"));
            }
        }
        for task in (0..u32::try_from(self.tasks).unwrap()).map(TaskId) {
            let (should, has) = (self.rows(epoch, task), rows.get(&task).copied().unwrap_or(0));
            if should != has {
                return Err(format!("epoch {epoch} has {has} rows of task {task}, and not {should}"));
            }
        }
        Ok(())
    }
}
