//! Roles in processes of their own: `forebay dispatcher` and `forebay worker`.
//!
//! Owns: who leads and what a process does before it leads and after, which workers there are, what is carried between a worker and its
//! dispatcher, and which part of the Flight service each role answers. Must not know: the rules of materialization and visits, how rows are read.
//!
//! - [`DispatcherRole`] keeps one port through its life: a standby that names the leader, then the leader, then a standby again when another
//!   process took over.
//! - [`WorkerRole`] registers with whoever leads, renews its lease by heartbeats, runs tasks, and serves rows at its own address.
//! - `link` carries the worker's requests; `control` answers them beside the leader's dispatcher; `registry` is who is registered.
//!
//! Row data flows between stores, workers and consumers. The dispatcher answers commands, plans and the system tables.

mod backend;
mod control;
mod dispatcher;
mod lease;
mod link;
mod peers;
mod registry;
mod session;
mod worker;

pub use dispatcher::{DispatcherRole, DispatcherSettings};
pub(crate) use registry::{Registry, worker_rows};
pub use worker::{WorkerRole, WorkerSettings};

use std::net::SocketAddr;
use std::time::Duration;

use forebay_core::{Error, Result};
use tokio::net::TcpListener;

/// Streams that are open at shutdown have this long to end; what follows fits into five seconds.
pub(crate) const DRAIN: Duration = Duration::from_secs(3);

/// Binds a role's port, and finds the address under which others reach it.
async fn bind(listen: SocketAddr, advertise: Option<&str>) -> Result<(TcpListener, String)> {
    let listener = TcpListener::bind(listen).await.map_err(|e| {
        Error::failed_precondition(format!("can't listen on {listen}: {e}")).with_remedy("choose another address with --listen")
    })?;
    let bound = listener.local_addr().map_err(|e| Error::internal(format!("the port has no address: {e}")))?;
    let address = match advertise {
        Some(named) => advertised(named, bound.port())?,
        None if bound.ip().is_unspecified() => {
            return Err(Error::bad_input(format!("nobody can be sent to {}", bound.ip()))
                .with_remedy("give --advertise HOST:PORT, as others reach this process"));
        }
        None => bound.to_string(),
    };
    Ok((listener, address))
}

/// `host` or `host:port`, with or without a scheme; the port is the bound one unless given.
fn advertised(named: &str, port: u16) -> Result<String> {
    let bare = named.split_once("://").map_or(named, |(_, rest)| rest).trim_end_matches('/');
    let has_port =
        bare.rsplit_once(':').is_some_and(|(host, port)| port.parse::<u16>().is_ok() && (!host.contains(':') || host.ends_with(']')));
    let address = if has_port { bare.to_owned() } else { format!("{bare}:{port}") };
    match format!("grpc://{address}").parse::<url::Url>() {
        Ok(url) if url.host_str().is_some_and(|h| !h.is_empty()) => Ok(address),
        _ => Err(Error::bad_input(format!("--advertise: `{}` is not an address", named.escape_debug())).with_remedy("give HOST:PORT")),
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn an_advertised_address_gets_the_bound_port_unless_it_has_one() {
        for (named, address) in [
            ("w1", "w1:7070"),
            ("w1:9", "w1:9"),
            ("grpc://w1:9/", "w1:9"),
            ("[::1]", "[::1]:7070"),
            ("[::1]:9", "[::1]:9"),
            ("10.0.0.1", "10.0.0.1:7070"),
        ] {
            assert_eq!(super::advertised(named, 7070).ok().as_deref(), Some(address), "{named}");
        }
        assert!(super::advertised("", 7070).is_err());
    }
}
