//! A member of a cluster, for `mqcore serve` and `mqcore.cluster`.

use std::collections::BTreeMap;
use std::ffi::OsString;
use std::net::ToSocketAddrs;
use std::path::PathBuf;
use std::time::Duration;

use mqcore_replication::forcing::force_new;
use mqcore_replication::link::MemberTls;
use mqcore_replication::member::{Member, MemberOptions, RestartCommand, ask_status, request_leader};
use mqcore_replication::relay::RelayListener;
use mqcore_replication::status::MemberStatus;
use mqcore_replication::storage::DataFiles;
use mqcore_replication::transport::MemberCredentials;
use mqcore_server::config::Config;
use mqcore_server::config::address::ListenAddress;
use mqcore_server::net::descriptors::relayed_connections_allowed;
use pyo3::prelude::*;

use crate::broker::Broker;
use crate::fields::{duration, field};
use crate::{config, error, log};

/// Ticks of the shortest time after which a leader is replaced.
const ELECTION_TICKS: u32 = 10;

/// A member of a cluster. `mqcore.ClusterConfig` describes it.
#[pyclass(frozen, module = "mqcore._core")]
pub(crate) struct ClusterMember {
    member: Member,
}

#[pymethods]
impl ClusterMember {
    /// `config` is a `mqcore.BrokerConfig`, `secret` the secret of the cluster. `restart` is the command that continues in place of
    /// this process when it stops leading, and `environment` has variables that it gets in addition.
    #[new]
    fn new(
        py: Python<'_>,
        config: &Bound<'_, PyAny>,
        secret: Vec<u8>,
        restart: Vec<OsString>,
        environment: BTreeMap<OsString, OsString>,
    ) -> PyResult<Self> {
        let server = config::server(config, false)?;
        let cluster = config.getattr("cluster")?;
        let data_dir: Option<PathBuf> = field(config, "data_dir")?;
        let data_dir =
            data_dir.ok_or_else(|| error::ConfigError::new_err("a node of a cluster needs a data_dir"))?;
        let options = MemberOptions {
            cluster: field(&cluster, "name")?,
            node: field(&cluster, "node")?,
            secret,
            tls: member_tls(&cluster)?,
            listen: field(&cluster, "listen")?,
            peers: peers(&field::<Vec<String>>(&cluster, "peers")?)?,
            is_witness: field(&cluster, "witness")?,
            data_dir,
            listeners: listeners(&server)?,
            connections_max: relayed_connections_allowed(server.connections_max),
            tick: duration(&cluster, "election_timeout")? / ELECTION_TICKS,
            verify_interval: duration(&cluster, "verify_interval")?,
            restart: RestartCommand { command: restart, environment },
            before_end: log::write_out,
        };
        let member = py.detach(|| Member::start(options));
        let member = member.map_err(|broken| error::ConfigError::new_err(broken.to_string()))?;
        Ok(Self { member })
    }

    /// The status, as JSON.
    fn status(&self) -> PyResult<String> {
        to_json(&self.member.status())
    }

    /// Waits until the role or the leader is another one than in `seen`, at most for so many seconds. Returns the status.
    fn wait(&self, py: Python<'_>, seen: &str, timeout: f64) -> PyResult<String> {
        let seen: MemberStatus = serde_json::from_str(seen).map_err(broken_json)?;
        let patience = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        to_json(&py.detach(|| self.member.wait(&seen, patience)))
    }

    /// Lets a broker write into the files of the cluster, if this member leads. Its listeners are free then.
    fn lead(&self, py: Python<'_>, broker: &Broker) -> bool {
        let Some(replicator) = py.detach(|| self.member.lead()) else { return false };
        broker.use_files(DataFiles::Replicated(replicator));
        true
    }

    /// The broker stops: it does not wait for a majority for ever.
    fn stop_broker(&self) {
        self.member.stop_broker();
    }

    /// The broker has stopped: another member should lead.
    fn resign(&self, py: Python<'_>, timeout: f64) {
        let patience = Duration::try_from_secs_f64(timeout).unwrap_or_default();
        py.detach(|| self.member.resign(patience));
    }
}

/// The files of certificate, key and authorities.
type TlsFiles = (PathBuf, PathBuf, PathBuf);

/// The credentials of a program that asks from outside the cluster.
fn credentials(cluster: String, secret: Vec<u8>, tls: Option<TlsFiles>) -> MemberCredentials {
    let tls = tls.map(|(cert, key, ca)| MemberTls { cert, key, ca });
    MemberCredentials { cluster, node: 0, secret, tls }
}

/// Asks the member at an address for its status, as JSON.
#[pyfunction]
pub(crate) fn cluster_status(
    py: Python<'_>,
    address: &str,
    name: String,
    secret: Vec<u8>,
    tls: Option<TlsFiles>,
) -> PyResult<String> {
    let credentials = credentials(name, secret, tls);
    let status = py.detach(|| ask_status(address, &credentials))?;
    to_json(&status)
}

/// Asks the leading node at an address to let another one lead. Returns why that cannot lead; `None`: it will.
#[pyfunction]
pub(crate) fn cluster_promote(
    py: Python<'_>,
    address: &str,
    name: String,
    secret: Vec<u8>,
    tls: Option<TlsFiles>,
    node: u32,
) -> PyResult<Option<String>> {
    let credentials = credentials(name, secret, tls);
    Ok(py.detach(|| request_leader(address, &credentials, node))?)
}

/// Reads the state of a stopped node: the term and index of the last entry of its log, the number of its entries, and whether
/// the log is readable. With `changes`, makes its files the beginning of a new cluster.
#[pyfunction]
pub(crate) fn cluster_force_new(
    py: Python<'_>,
    data_dir: PathBuf,
    name: &str,
    node: u32,
    changes: bool,
) -> PyResult<(u64, u64, u64, bool)> {
    let state = py.detach(|| force_new(&data_dir, name, node, changes));
    let state = state.map_err(|broken| error::ConfigError::new_err(broken.to_string()))?;
    Ok((state.term, state.index, state.entries, state.has_log))
}

fn to_json(status: &MemberStatus) -> PyResult<String> {
    serde_json::to_string(status).map_err(broken_json)
}

fn broken_json(broken: serde_json::Error) -> PyErr {
    pyo3::exceptions::PyValueError::new_err(broken.to_string())
}

/// The certificates. `mqcore.ClusterConfig` has checked that there are all three files or none.
fn member_tls(cluster: &Bound<'_, PyAny>) -> PyResult<Option<MemberTls>> {
    let files: [Option<PathBuf>; 3] =
        [field(cluster, "cert")?, field(cluster, "key")?, field(cluster, "ca")?];
    Ok(match files {
        [Some(cert), Some(key), Some(ca)] => Some(MemberTls { cert, key, ca }),
        _ => None,
    })
}

/// Reads `2=db-2:47299`.
fn peers(texts: &[String]) -> PyResult<BTreeMap<u32, String>> {
    let parse = |text: &String| {
        let (node, address) = text.split_once('=')?;
        let (host, port) = address.rsplit_once(':')?;
        (!host.is_empty() && port.parse::<u16>().is_ok()).then_some(())?;
        Some((node.trim().parse::<u32>().ok()?, address.to_owned()))
    };
    let mut peers = BTreeMap::new();
    for text in texts {
        let (node, address) = parse(text).ok_or_else(|| {
            error::ConfigError::new_err(format!(
                "a peer of a cluster is written NODE=HOST:PORT, such as 2=db-2:47299, not {text:?}"
            ))
        })?;
        if peers.insert(node, address).is_some() {
            return Err(error::ConfigError::new_err(format!("node {node} occurs twice in peers")));
        }
    }
    Ok(peers)
}

/// The listeners with TCP addresses; Unix sockets belong to one machine.
fn listeners(server: &Config) -> PyResult<Vec<RelayListener>> {
    let mut listeners = Vec::new();
    let mut add = |protocol: &str, address: &ListenAddress| {
        let ListenAddress::Tcp(text) = address else { return Ok(()) };
        let found = text.to_socket_addrs().map_err(|error| {
            error::ConfigError::new_err(format!("cannot resolve the address {text} of a listener: {error}"))
        })?;
        let address = found.into_iter().next().filter(|address| address.port() != 0).ok_or_else(|| {
            error::ConfigError::new_err(format!(
                "the listener {text} of a node of a cluster needs a port of its own: clients must find it again"
            ))
        })?;
        listeners.push(RelayListener { protocol: protocol.to_owned(), address });
        Ok::<_, PyErr>(())
    };
    for listener in &server.listeners {
        add(listener.protocol().as_str(), &listener.address)?;
    }
    if let Some(admin) = &server.admin {
        add("admin", &ListenAddress::Tcp(admin.address.to_string()))?;
    }
    Ok(listeners)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn peers_have_a_number_and_an_address() {
        let parsed = peers(&["2=db-2:47299".to_owned(), "3=[::1]:1".to_owned()]).unwrap();
        assert_eq!(parsed, BTreeMap::from([(2, "db-2:47299".to_owned()), (3, "[::1]:1".to_owned())]));
        for wrong in ["2", "2=", "2=host", "x=host:1", "2=:1", "2=host:x", "2=host:70000"] {
            assert!(peers(&[wrong.to_owned()]).is_err(), "{wrong}");
        }
        assert!(peers(&["2=a:1".to_owned(), "2=b:1".to_owned()]).is_err());
    }
}
