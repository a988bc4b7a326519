//! The leader, and the addresses of its listeners.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, UdpSocket};

/// The place of the leader.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Leader {
    /// Its node.
    pub node: u32,
    /// Its host, as in the address of its member.
    pub host: String,
    /// Its listeners: protocol and address.
    pub listeners: Vec<(String, String)>,
}

/// Why no connection can be passed on to a listener of the leader, until a configuration changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub(super) enum Unusable {
    #[error("the leader has other listeners than this node; give all nodes the same ones")]
    OtherListeners,
    #[error(
        "the leader listens on its loopback address only, which this node cannot reach; \
         on all nodes, give the listener an address that the others reach, such as 0.0.0.0"
    )]
    Loopback,
    #[error("the address of the leader's listener is one of this node; correct peers of this node")]
    OwnListener,
}

impl Leader {
    /// The addresses of its listener with this number, without the `own` listeners of this node. There is none while
    /// the name of its host is not known.
    ///
    /// # Errors
    /// [`Unusable`].
    pub(super) async fn addresses(
        &self,
        number: usize,
        protocol: &str,
        own: &[SocketAddr],
    ) -> Result<Vec<SocketAddr>, Unusable> {
        let listener = self.listener(number, protocol).ok_or(Unusable::OtherListeners)?;
        let (ip, port) = (listener.ip().to_canonical(), listener.port());
        let found = if ip.is_unspecified() || ip.is_loopback() {
            let member = self.resolve(port).await;
            if ip.is_unspecified() || member.is_empty() {
                // A listener on all addresses is reached where the member is.
                member
            } else if member.iter().any(|address| is_here(address.ip())) {
                vec![listener]
            } else {
                return Err(Unusable::Loopback);
            }
        } else {
            vec![listener]
        };
        let is_own = |address: &SocketAddr| own.iter().any(|own| is_listener(*own, *address));
        let others: Vec<_> = found.iter().copied().filter(|address| !is_own(address)).collect();
        if others.is_empty() && !found.is_empty() { Err(Unusable::OwnListener) } else { Ok(others) }
    }

    /// Its listener with this number, as it has announced it.
    fn listener(&self, number: usize, protocol: &str) -> Option<SocketAddr> {
        let (its, address) = self.listeners.get(number)?;
        address.parse().ok().filter(|_| its == protocol)
    }

    async fn resolve(&self, port: u16) -> Vec<SocketAddr> {
        let host = self.host.trim_start_matches('[').trim_end_matches(']');
        tokio::net::lookup_host((host, port)).await.map(Iterator::collect).unwrap_or_default()
    }
}

/// Whether a connection to this address arrives at a listener of this machine.
fn is_listener(listener: SocketAddr, address: SocketAddr) -> bool {
    let (its, ip) = (listener.ip().to_canonical(), address.ip().to_canonical());
    listener.port() == address.port() && (its == ip || its.is_unspecified() && is_here(ip))
}

/// Whether this machine has the address: packets to it would come from the same address.
fn is_here(ip: IpAddr) -> bool {
    let ip = ip.to_canonical();
    let any: IpAddr = if ip.is_ipv4() { Ipv4Addr::UNSPECIFIED.into() } else { Ipv6Addr::UNSPECIFIED.into() };
    // A datagram socket that connects sends nothing.
    let source = || {
        let socket = UdpSocket::bind((any, 0))?;
        socket.connect((ip, 1))?;
        socket.local_addr()
    };
    ip.is_loopback() || source().is_ok_and(|source| source.ip() == ip)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn leader(host: &str, listeners: &[&str]) -> Leader {
        let listeners = listeners.iter().map(|address| ("tmqp".to_owned(), (*address).to_owned()));
        Leader { node: 2, host: host.to_owned(), listeners: listeners.collect() }
    }

    async fn addresses(leader: &Leader, number: usize, own: &[&str]) -> Result<Vec<String>, Unusable> {
        let own: Vec<SocketAddr> = own.iter().map(|address| address.parse().unwrap()).collect();
        let found = leader.addresses(number, "tmqp", &own).await;
        found.map(|found| found.iter().map(ToString::to_string).collect())
    }

    #[tokio::test]
    async fn the_address_of_a_listener_of_the_leader() {
        // These addresses are for documentation, so that no machine has them.
        let leader = leader("198.51.100.2", &["0.0.0.0:47200", "198.51.100.9:47201", "[::]:47202"]);
        let own = &["0.0.0.0:47200", "0.0.0.0:47201", "[::]:47202"];
        assert_eq!(addresses(&leader, 0, own).await.unwrap(), ["198.51.100.2:47200"]);
        assert_eq!(addresses(&leader, 1, own).await.unwrap(), ["198.51.100.9:47201"]);
        assert_eq!(addresses(&leader, 2, own).await.unwrap(), ["198.51.100.2:47202"]);
        assert_eq!(addresses(&leader, 3, own).await, Err(Unusable::OtherListeners));
        assert_eq!(leader.addresses(0, "emqp", &[]).await, Err(Unusable::OtherListeners));
        let leader = self::leader("[2001:db8::2]", &["[::]:47200"]);
        assert_eq!(addresses(&leader, 0, own).await.unwrap(), ["[2001:db8::2]:47200"]);
    }

    #[tokio::test]
    async fn a_listener_on_loopback_is_used_on_the_machine_of_the_leader_only() {
        for listener in ["127.0.0.1:47200", "[::1]:47200", "[::ffff:127.0.0.1]:47200"] {
            let away = leader("198.51.100.2", &[listener]);
            assert_eq!(addresses(&away, 0, &[]).await, Err(Unusable::Loopback), "{listener}");
            for host in ["127.0.0.1", "[::1]"] {
                let here = leader(host, &[listener]);
                assert_eq!(addresses(&here, 0, &["127.0.0.1:47100"]).await.unwrap(), [listener], "{host}");
            }
        }
        let unknown = leader("", &["127.0.0.1:47200"]);
        assert_eq!(addresses(&unknown, 0, &[]).await.unwrap(), [""; 0], "its host may be known later");
    }

    #[tokio::test]
    async fn a_listener_of_this_node_is_never_the_one_of_the_leader() {
        for (host, listener, own) in [
            ("127.0.0.1", "127.0.0.1:47200", "127.0.0.1:47200"),
            ("127.0.0.1", "127.0.0.1:47200", "0.0.0.0:47200"),
            ("127.0.0.1", "0.0.0.0:47200", "[::]:47200"),
            ("198.51.100.2", "198.51.100.9:47200", "198.51.100.9:47200"),
        ] {
            let its = leader(host, &[listener]);
            assert_eq!(addresses(&its, 0, &[own]).await, Err(Unusable::OwnListener), "{listener}");
            assert!(addresses(&its, 0, &["127.0.0.1:47100"]).await.is_ok(), "{listener}");
        }
    }
}
