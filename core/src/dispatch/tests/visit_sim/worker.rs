//! Workers, and the streams on them.

use std::collections::VecDeque;

use super::super::super::*;
use super::consumer::Item;
use super::net::{Msg, Peer};
use super::{Seen, Sim};
use crate::error::Result;
use crate::ids::*;

/// Batches that a consumer lets a stream send ahead.
const CREDITS: u32 = 3;

#[derive(Debug)]
pub(super) struct Server {
    pub name: WorkerName,
    pub alive: bool,
    pub leaving: bool,
    pub asleep_until: u64,
}

/// One connection of a consumer to a worker.
#[derive(Debug)]
pub(super) struct Conn {
    pub client: usize,
    pub server: usize,
    pub stream: Option<StreamId>,
    /// Neither side has given it up.
    pub up: bool,
    /// The consumer has given it up, or was told that it broke: what still arrives is thrown away.
    pub deaf: bool,
    pub ended: bool,
    /// The consumer has read its end.
    pub told: bool,
    /// The clean end waits for the reports before it.
    pub closing: bool,
    reports: u32,
    asking: bool,
    pub credits: u32,
    queue: VecDeque<Item>,
    /// The last message arrives then: a stream keeps its order.
    last_at: u64,
}

impl Sim {
    pub(super) fn start_server(&mut self) {
        let name = WorkerName(format!("w{}", self.servers.len()));
        self.servers.push(Server { name, alive: true, leaving: false, asleep_until: 0 });
        self.net.at(self.now + 1, Msg::Beat { server: self.servers.len() - 1 });
    }

    pub(super) fn beat(&mut self, index: usize) {
        let server = &self.servers[index];
        if !server.alive {
            return;
        }
        if server.asleep_until <= self.now {
            let worker = server.name.clone();
            self.call(Peer::Beat, Event::WorkerBeat { worker });
        }
        self.net.at(self.now + 4_000, Msg::Beat { server: index });
    }

    pub(super) fn connect(&mut self, client: usize, server: usize) {
        let c = &self.clients[client];
        let acks = !c.plain;
        let event = Event::OpenStream {
            job: self.settings.job.clone(),
            incarnation: c.incarnation,
            consumer: c.name.clone(),
            worker: self.servers[server].name.clone(),
            acks,
        };
        let event = Event::OfSession { session: c.session, event: Box::new(event) };
        let conn = Conn {
            client,
            server,
            stream: None,
            up: true,
            deaf: false,
            ended: false,
            told: false,
            closing: false,
            reports: 0,
            asking: false,
            credits: CREDITS,
            queue: VecDeque::new(),
            last_at: 0,
        };
        self.conns.push(conn);
        let conn = self.conns.len() - 1;
        self.clients[client].conns.push(conn);
        self.call(Peer::Open { conn }, event);
    }

    pub(super) fn opened(&mut self, conn: usize, result: Result<Reply>) {
        match result {
            Ok(Reply::Stream(id)) => {
                self.conns[conn].stream = Some(id);
                if self.conns[conn].up && self.servers[self.conns[conn].server].alive {
                    self.pump(conn);
                } else {
                    self.close(conn, false);
                }
            }
            Ok(other) => panic!("{other:?}"),
            Err(error) => {
                self.conns[conn].up = false;
                self.refused(self.conns[conn].client, &error);
                self.break_conn(conn);
            }
        }
    }

    /// Sends what the consumer has room for, and asks for more.
    pub(super) fn pump(&mut self, index: usize) {
        let asleep = self.servers[self.conns[index].server].asleep_until;
        if asleep > self.now {
            return self.net.at(asleep + 1, Msg::Ask { conn: index });
        }
        while self.conns[index].up && self.conns[index].credits > 0 {
            let Some(item) = self.conns[index].queue.pop_front() else { break };
            self.conns[index].credits -= 1;
            self.ship(index, item);
        }
        let conn = &self.conns[index];
        let Some(stream) = conn.stream.filter(|_| conn.up && !conn.asking && !conn.ended && conn.queue.is_empty()) else { return };
        self.conns[index].asking = true;
        let max_batches = 1 + self.rng.below(4);
        self.call(Peer::Grant { conn: index }, Event::NextGrant { job: self.settings.job.clone(), stream, max_batches, received: None });
    }

    fn ship(&mut self, index: usize, item: Item) {
        let at = self.arrival(index);
        let conn = &self.conns[index];
        let stream = conn.stream.unwrap();
        if !item.padding {
            self.seen.push(Seen::Shipped { pass: item.pass, batch: item.batch });
            let batches = vec![(BatchId(item.batch), item.batch + 1)];
            let event = Event::Sent { job: self.settings.job.clone(), stream, pass: item.pass, batches };
            self.conns[index].reports += 1;
            self.call(Peer::Sent { conn: index }, event);
        }
        self.net.at(at, Msg::Batch { conn: index, item });
    }

    fn arrival(&mut self, index: usize) -> u64 {
        let at = (self.now + self.delay()).max(self.conns[index].last_at + 1);
        self.conns[index].last_at = at;
        at
    }

    pub(super) fn granted(&mut self, index: usize, result: Result<Reply>) {
        self.conns[index].asking = false;
        if !self.conns[index].up || !self.servers[self.conns[index].server].alive {
            return;
        }
        match result {
            Ok(Reply::Granted(Granted::Batches(grant))) => {
                let items = grant.each().map(|b| Item { pass: grant.pass, batch: b.0, padding: grant.padding, conn: index });
                self.conns[index].queue.extend(items);
            }
            Ok(Reply::Granted(end)) => {
                self.conns[index].ended = !matches!(end, Granted::EndOfPass(_));
                let at = self.arrival(index);
                self.net.at(at, Msg::Ended { conn: index, end });
            }
            Ok(Reply::Wait) => {}
            Ok(other) => panic!("{other:?}"),
            Err(_) => return self.break_conn(index),
        }
        self.pump(index);
    }

    pub(super) fn sent(&mut self, index: usize) {
        self.conns[index].reports -= 1;
        self.close_cleanly(index);
    }

    pub(super) fn close_cleanly(&mut self, index: usize) {
        if self.conns[index].closing && self.conns[index].up && self.conns[index].reports == 0 {
            self.close(index, true);
        }
    }

    /// The connection breaks: what is on its way is lost, the worker says so, and the consumer notices some time.
    pub(super) fn break_conn(&mut self, index: usize) {
        if self.conns[index].up {
            self.close(index, false);
        }
        if !self.conns[index].deaf {
            let at = (self.now + self.delay()).max(self.conns[index].last_at);
            self.net.at(at, Msg::Broken { conn: index });
        }
    }

    /// The worker's side of a stream's end.
    pub(super) fn close(&mut self, index: usize, clean: bool) {
        self.conns[index].up = false;
        self.conns[index].queue.clear();
        if let Some(stream) = self.conns[index].stream.filter(|_| self.servers[self.conns[index].server].alive) {
            self.call(Peer::Close, Event::CloseStream { job: self.settings.job.clone(), stream, clean });
        }
    }

    /// Nobody says anything for a dead process.
    pub(super) fn kill_server(&mut self, index: usize) {
        self.servers[index].alive = false;
        for conn in 0..self.conns.len() {
            if self.conns[conn].server == index && self.conns[conn].up {
                self.break_conn(conn);
            }
        }
    }
}
