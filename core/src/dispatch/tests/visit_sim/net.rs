//! Messages in flight, in virtual time.

use std::collections::BTreeMap;

use super::super::super::*;
use super::consumer::Item;
use super::{Sim, TERM};
use crate::error::Result;

/// Whom an answer is for, and what it is about.
#[derive(Debug, Clone, PartialEq)]
pub(super) enum Peer {
    Join { client: usize },
    Renew { client: usize },
    Ack { client: usize, batches: Vec<(crate::ids::PassId, u64)> },
    Report { client: usize },
    Commit { client: usize, call: u64 },
    Leave { client: usize },
    Open { conn: usize },
    Grant { conn: usize },
    Sent { conn: usize },
    Close,
    Beat,
}

#[derive(Debug, Clone)]
pub(super) struct Call {
    pub id: u64,
    pub peer: Peer,
    pub event: Event,
    pub sent_at: u64,
    pub attempt: u32,
}

/// A restore that several consumers take part in.
#[derive(Debug, Clone)]
pub(super) struct Restoring {
    pub token: Token,
    pub attempt: Option<String>,
}

#[derive(Debug, Clone)]
pub(super) enum Msg {
    Request { leader: usize, call: Call },
    Work { leader: usize, event: Box<Event> },
    Reply { call: u64, result: Result<Reply> },
    Timeout { call: u64, attempt: u32 },
    Beat { server: usize },
    Ask { conn: usize },
    Batch { conn: usize, item: Item },
    Ended { conn: usize, end: Granted },
    Broken { conn: usize },
    Step { client: usize },
    Look { client: usize },
    Spawn { slot: u32, restore: Option<Restoring> },
    Gone { server: usize },
    Lead,
    Tick,
    Chaos,
    Write,
    LoseRank,
}

#[derive(Debug, Default)]
pub(super) struct Net {
    /// By the moment of arrival, then in the order they were sent.
    queue: BTreeMap<(u64, u64), Msg>,
    next: u64,
}

impl Net {
    pub(super) fn at(&mut self, at: u64, msg: Msg) {
        self.next += 1;
        self.queue.insert((at, self.next), msg);
    }

    pub(super) fn next(&mut self) -> Option<(u64, Msg)> {
        self.queue.pop_first().map(|((at, _), msg)| (at, msg))
    }

    fn id(&mut self) -> u64 {
        self.next += 1;
        self.next
    }
}

impl Sim {
    /// How long a message takes.
    pub(super) fn delay(&mut self) -> u64 {
        if !self.calm && self.chance(2) { 500 + self.rng.below(TERM / 2) } else { 1 + self.rng.below(60) }
    }

    fn is_lost(&mut self) -> bool {
        !self.calm && self.chance(3)
    }

    pub(super) fn call(&mut self, peer: Peer, event: Event) {
        let id = self.net.id();
        let call = Call { id, peer, event, sent_at: self.now, attempt: 0 };
        self.calls.insert(id, call.clone());
        self.send(call);
    }

    fn send(&mut self, call: Call) {
        let patience = if matches!(call.peer, Peer::Grant { .. }) { 9_000 } else { 3_000 };
        self.net.at(self.now + patience, Msg::Timeout { call: call.id, attempt: call.attempt });
        let Some(leader) = self.leaders.iter().rposition(|l| l.alive) else { return };
        if self.is_lost() {
            return self.fault("a request was lost");
        }
        // Doubled by the network, or sent again after the answer was lost.
        let doubled = !self.calm && self.chance(3) && !matches!(call.peer, Peer::Grant { .. } | Peer::Open { .. });
        for _ in 0..=u32::from(doubled) {
            let at = self.now + self.delay();
            self.net.at(at, Msg::Request { leader, call: call.clone() });
        }
    }

    pub(super) fn answer(&mut self, call: u64, result: Result<Reply>) {
        if self.is_lost() {
            return self.fault("an answer was lost");
        }
        let at = self.now + self.delay();
        self.net.at(at, Msg::Reply { call, result });
    }

    pub(super) fn timed_out(&mut self, id: u64, attempt: u32) {
        let Some(call) = self.calls.get_mut(&id).filter(|c| c.attempt == attempt) else { return };
        match call.peer {
            // Who knows whether it was decided: the stream is broken.
            Peer::Grant { conn } | Peer::Open { conn } => {
                self.calls.remove(&id);
                self.break_conn(conn);
            }
            Peer::Beat => {
                self.calls.remove(&id);
            }
            Peer::Join { client }
            | Peer::Renew { client }
            | Peer::Ack { client, .. }
            | Peer::Report { client }
            | Peer::Commit { client, .. }
                if !self.clients[client].alive =>
            {
                self.calls.remove(&id);
            }
            _ => {
                call.attempt += 1;
                let again = call.clone();
                self.send(again);
            }
        }
    }

    pub(super) fn replied(&mut self, id: u64, result: Result<Reply>) {
        let Some(call) = self.calls.remove(&id) else { return };
        match call.peer {
            Peer::Join { client } => self.joined(client, call, result),
            Peer::Renew { client } => self.renewed(client, call.sent_at, result),
            Peer::Ack { client, ref batches } => self.acked(client, call.sent_at, &batches.clone(), result),
            Peer::Report { client } => self.has_reported(client, call, result),
            Peer::Commit { client, call: number } => self.committed(client, call, number, result),
            Peer::Leave { client } => self.clients[client].alive = false,
            Peer::Open { conn } => self.opened(conn, result),
            Peer::Grant { conn } => self.granted(conn, result),
            Peer::Sent { conn } => self.sent(conn),
            Peer::Close | Peer::Beat => {}
        }
    }

    /// The same call again, a little later.
    pub(super) fn again(&mut self, call: Call, after: u64) {
        let id = self.net.id();
        let call = Call { id, attempt: 0, ..call };
        self.calls.insert(id, call.clone());
        self.net.at(self.now + after, Msg::Timeout { call: id, attempt: 0 });
    }
}
