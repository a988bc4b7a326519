//! Users, tokens and connected identities of one server.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::Duration;

use hashbrown::{HashMap, HashSet};
use mqcore_authority::attempts::LoginAttempts;
use mqcore_authority::audit::{AuditDetail, AuditEvent, AuditOutcome, AuditRecord};
use mqcore_authority::login::{Identity, IdentitySource};
use mqcore_authority::record::Records;
use mqcore_broker::model::id::ConnectionId;
use mqcore_replication::storage::DataFiles;
use tokio::sync::Semaphore;

use super::audit::{Audit, AuditTarget};
use super::config::AuthorityConfig;
use super::port::AuthorityPort;
use super::store::{Stamp, StoreError, UserStore};
use crate::stats::counter::Counter;

/// Interval between checks for a changed store and for expired tokens.
pub(crate) const LOOK_INTERVAL: Duration = Duration::from_millis(250);

/// Maximum concurrent password checks: each takes a core and 19 MiB.
const CHECKS_MAX: usize = 4;

/// Maximum waiting password checks; further logins are rejected as busy.
const CHECKS_WAITING_MAX: usize = 64;

/// Counters for the metrics.
#[derive(Debug, Default)]
pub(crate) struct AuthorityCounters {
    pub(crate) logins: Counter,
    pub(crate) logins_refused: Counter,
    pub(crate) actions_denied: Counter,
    pub(crate) revoked: Counter,
}

/// Decides who may connect to one server, and what each client may do.
pub(crate) struct Authority {
    /// Records of the configuration; those of the store are added.
    pub(crate) configured: Records,
    pub(super) store: Option<UserStore>,
    pub(super) records: RwLock<Arc<Records>>,
    pub(super) stamp: Mutex<Stamp>,
    /// Whether clients need no login. Once a user exists this never becomes true again: removing the last user must not open
    /// the broker.
    pub(super) open: AtomicBool,
    pub(super) port: Option<Arc<dyn AuthorityPort>>,
    pub(super) attempts: Mutex<LoginAttempts>,
    pub(super) checks: Arc<Semaphore>,
    pub(super) waiting: Arc<Semaphore>,
    /// The identity of each connection that needs one.
    pub(super) present: Mutex<HashMap<ConnectionId, Arc<Identity>, foldhash::fast::RandomState>>,
    /// Connections accepted without credentials because there was no user yet. They are closed when one is created.
    unauthenticated: Mutex<HashSet<ConnectionId, foldhash::fast::RandomState>>,
    pub(crate) audit: Audit,
    pub(super) detail: AuditDetail,
    pub(crate) counters: AuthorityCounters,
}

impl fmt::Debug for Authority {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("Authority").field("open", &self.open).finish_non_exhaustive()
    }
}

/// Open connections by the credentials with which they logged in.
#[derive(Debug, Default)]
pub(crate) struct LoggedIn {
    /// By the name of the user.
    pub(crate) users: HashMap<String, u64>,
    /// By the id of the token.
    pub(crate) tokens: HashMap<String, u64>,
}

/// The origin of a request, for audit lines.
#[derive(Debug, Clone, Copy)]
pub(crate) struct RequestOrigin {
    pub(crate) connection: Option<u64>,
    pub(crate) address: Option<SocketAddr>,
    pub(crate) protocol: &'static str,
}

impl Authority {
    /// Reads the store, and starts writing the audit log.
    ///
    /// # Errors
    /// [`StoreError`] if records cannot be read or contradict each other, or the log cannot be opened.
    pub(crate) fn open(
        config: &AuthorityConfig,
        (data_dir, files): (Option<&PathBuf>, &DataFiles),
        port: Option<Arc<dyn AuthorityPort>>,
    ) -> Result<Self, StoreError> {
        let store = match (&config.store, data_dir) {
            (Some(path), _) => Some(UserStore::at(path)),
            (None, Some(directory)) => Some(UserStore::of_data_dir(directory).with(files)),
            (None, None) => None,
        };
        let stamp = store.as_ref().map(UserStore::stamp).unwrap_or_default();
        let records = joined(&config.records, store.as_ref())?;
        if let Some(store) = store.as_ref().filter(|store| store.is_exposed()) {
            tracing::warn!(path = %store.path().display(), "other users of this machine can read this file of users and tokens; run chmod 600 on it");
        }
        let target = match (&config.audit, data_dir) {
            (Some(target), _) => target.clone(),
            (None, Some(directory)) => AuditTarget::File(directory.join("audit.jsonl")),
            (None, None) => AuditTarget::Stderr,
        };
        let asks = port.as_ref().is_some_and(|port| port.authenticates());
        let open = records.is_empty() && !asks;
        // No login is ever required, so there is nothing to audit and no file to create.
        let target = if open && store.is_none() { AuditTarget::Off } else { target };
        let path = match &target {
            AuditTarget::File(path) => path.clone(),
            AuditTarget::Stderr | AuditTarget::Off => PathBuf::new(),
        };
        let audit = Audit::start(&target, config.audit.is_some())
            .map_err(|source| StoreError::Io { path, source })?;
        let cores = std::thread::available_parallelism().map_or(1, usize::from);
        Ok(Self {
            configured: config.records.clone(),
            store,
            records: RwLock::new(Arc::new(records)),
            stamp: Mutex::new(stamp),
            open: AtomicBool::new(open),
            port,
            attempts: Mutex::default(),
            checks: Arc::new(Semaphore::new(cores.min(CHECKS_MAX))),
            waiting: Arc::new(Semaphore::new(CHECKS_WAITING_MAX)),
            present: Mutex::default(),
            unauthenticated: Mutex::default(),
            audit,
            detail: config.audit_detail,
            counters: AuthorityCounters::default(),
        })
    }

    /// Whether clients need no login and may do everything.
    pub(crate) fn is_open(&self) -> bool {
        self.open.load(Ordering::SeqCst)
    }

    /// Whether there is a token that may change something through the admin side.
    pub(crate) fn has_tokens(&self) -> bool {
        !self.records().tokens.is_empty()
    }

    /// The file to which the command line adds users and tokens.
    pub(crate) fn store(&self) -> Option<&UserStore> {
        self.store.as_ref()
    }

    /// Audit lines that could not be written.
    pub(crate) fn audit_lost(&self) -> u64 {
        self.audit.lost()
    }

    pub(super) fn authorizer(&self) -> Option<&Arc<dyn AuthorityPort>> {
        self.port.as_ref().filter(|port| port.authorizes())
    }

    pub(crate) fn records(&self) -> Arc<Records> {
        Arc::clone(&self.records.read().unwrap_or_else(PoisonError::into_inner))
    }

    fn unauthenticated(&self) -> MutexGuard<'_, HashSet<ConnectionId, foldhash::fast::RandomState>> {
        self.unauthenticated.lock().unwrap_or_else(PoisonError::into_inner)
    }

    pub(super) fn present(
        &self,
    ) -> MutexGuard<'_, HashMap<ConnectionId, Arc<Identity>, foldhash::fast::RandomState>> {
        self.present.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Open connections of each user and of each token, by their name and their id.
    pub(crate) fn logged_in(&self) -> LoggedIn {
        let mut counts = LoggedIn::default();
        for identity in self.present().values() {
            match &identity.holder {
                IdentitySource::User(user) => *counts.users.entry(user.name.clone()).or_default() += 1,
                IdentitySource::Token(token) => *counts.tokens.entry(token.id.clone()).or_default() += 1,
                _ => {}
            }
        }
        counts
    }

    /// Records the identity of a connection until [`Authority::leave`]. False if the identity is no longer valid.
    pub(crate) fn enter(&self, connection: ConnectionId, identity: &Arc<Identity>, now_ms: u64) -> bool {
        self.present().insert(connection, Arc::clone(identity));
        // Checked after the insertion, so that a concurrent `reload` finds the connection or this finds the new
        // records.
        self.upholds(identity, now_ms)
    }

    /// Accepts a connection without credentials. False if there is a user by now, so that it must log in.
    pub(crate) fn enter_unauthenticated(&self, connection: ConnectionId) -> bool {
        // Without a store, no first user can be created.
        if self.store.is_none() {
            return self.is_open();
        }
        self.unauthenticated().insert(connection);
        // Checked after the insertion, so that a concurrent `reload` finds the connection or this finds the user.
        let open = self.is_open();
        if !open {
            self.unauthenticated().remove(&connection);
        }
        open
    }

    /// The connection has ended.
    pub(crate) fn leave(&self, connection: ConnectionId) {
        self.present().remove(&connection);
        if self.store.is_some() {
            self.unauthenticated().remove(&connection);
        }
    }

    /// Whether an identity is still valid. Access without login ends permanently with the first user.
    pub(super) fn upholds(&self, identity: &Identity, now_ms: u64) -> bool {
        match identity.holder {
            IdentitySource::Open => {
                self.is_open() || self.port.as_ref().is_some_and(|port| port.authenticates())
            }
            _ => self.records().uphold(identity, now_ms),
        }
    }

    /// Whether a request that was admitted with `identity`, or without login, would still be.
    pub(crate) fn still_admits(&self, identity: Option<&Identity>, now_ms: u64) -> bool {
        identity.map_or_else(|| self.is_open(), |identity| self.upholds(identity, now_ms))
    }

    /// Reads the store again if it has changed, or if `forced`. True if the records differ from before.
    pub(crate) fn reload(&self, forced: bool, now_ms: u64) -> Result<bool, StoreError> {
        let Some(store) = &self.store else { return Ok(false) };
        // Held until the records apply, so that a slower reload cannot replace them by older ones. A failure keeps the old
        // stamp, so that the next call reads again.
        let mut known = self.stamp.lock().unwrap_or_else(PoisonError::into_inner);
        let stamp = store.stamp();
        if *known == stamp && !forced {
            return Ok(false);
        }
        let records = joined(&self.configured, Some(store))?;
        let changed = *self.records() != records;
        if changed {
            if !records.is_empty() {
                self.open.store(false, Ordering::SeqCst);
            }
            *self.records.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(records);
            self.audit.write(AuditRecord::new(now_ms, AuditEvent::Reload, AuditOutcome::Allowed));
        }
        *known = stamp;
        Ok(changed)
    }

    /// Those of `connections` whose identity is no longer valid. Writes an audit line for each.
    ///
    /// A connection that has not logged in yet (its TLS handshake may be in progress) is not among them: its credentials
    /// are checked against the new records.
    pub(crate) fn fallen(&self, connections: &[ConnectionId], now_ms: u64) -> Vec<ConnectionId> {
        let records = self.records();
        let open = self.is_open();
        let present = self.present();
        let unauthenticated = self.unauthenticated();
        let falls = |connection: &&ConnectionId| match present.get(*connection).map(|identity| &**identity) {
            None => !open && unauthenticated.contains(*connection),
            Some(Identity { holder: IdentitySource::Open, .. }) => {
                !open && !self.port.as_ref().is_some_and(|port| port.authenticates())
            }
            Some(identity) => !records.uphold(identity, now_ms),
        };
        let fallen: Vec<ConnectionId> = connections.iter().filter(falls).copied().collect();
        for connection in &fallen {
            let mut line = AuditRecord::new(now_ms, AuditEvent::Revoked, AuditOutcome::Denied);
            line.connection = Some(connection.0);
            if let Some(identity) = present.get(connection) {
                line.who = Some(identity.name.clone());
                line.by = Some(identity.holder.as_str());
            }
            self.audit.write(line);
        }
        self.counters.revoked.add(fallen.len() as u64);
        fallen
    }

    /// Whether the token of any connection has expired.
    pub(crate) fn any_expired(&self, now_ms: u64) -> bool {
        self.present().values().any(|identity| identity.expires_ms.is_some_and(|expires| expires <= now_ms))
    }
}

fn joined(configured: &Records, store: Option<&UserStore>) -> Result<Records, StoreError> {
    let kept = store.map(UserStore::read).transpose()?.unwrap_or_default();
    Ok(configured.clone().joined(kept)?)
}

/// The address under which failed logins are counted. Peers without one are on this machine.
pub(super) fn guesser(address: Option<SocketAddr>) -> IpAddr {
    address.map_or(IpAddr::V4(Ipv4Addr::LOCALHOST), |address| address.ip())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn authority_in(directory: &tempfile::TempDir) -> Authority {
        let path = directory.path().to_path_buf();
        Authority::open(&AuthorityConfig::default(), (Some(&path), &DataFiles::Local), None).unwrap()
    }

    #[test]
    fn a_reload_that_failed_is_repeated_although_the_file_has_not_changed() {
        let directory = tempfile::tempdir().unwrap();
        let authority = authority_in(&directory);
        let store = UserStore::of_data_dir(directory.path());
        store.add_token(r#"{"name": "one", "allow": ["*"]}"#).unwrap();
        let valid = std::fs::read(store.path()).unwrap();
        std::fs::write(store.path(), "{").unwrap();
        for _ in 0..2 {
            assert!(authority.reload(false, 0).is_err());
        }
        std::fs::write(store.path(), valid).unwrap();
        assert!(authority.reload(false, 0).unwrap());
        assert_eq!(authority.records().tokens.len(), 1);
    }

    #[test]
    fn reloads_at_the_same_time_end_with_the_newest_records() {
        const TOKENS: usize = 16;
        for _ in 0..5 {
            let directory = tempfile::tempdir().unwrap();
            let store = UserStore::of_data_dir(directory.path());
            let add = |_| store.add_token(r#"{"name": "one", "allow": []}"#).unwrap().0;
            let ids: Vec<_> = (0..TOKENS).map(add).collect();
            let authority = authority_in(&directory);
            assert_eq!(authority.records().tokens.len(), TOKENS);
            std::thread::scope(|scope| {
                for id in &ids {
                    scope.spawn(|| {
                        store.apply(crate::authority::store::Change::RemoveToken { id }).unwrap();
                        authority.reload(false, 0).unwrap();
                        assert!(authority.records().tokens.iter().all(|token| token.id != *id));
                    });
                }
            });
            assert_eq!(authority.records().tokens, []);
        }
    }

    #[test]
    fn nothing_of_a_connection_stays_after_it_has_ended() {
        let directory = tempfile::tempdir().unwrap();
        let authority = authority_in(&directory);
        let identity = Arc::new(Identity::trusted(IdentitySource::Local));
        for number in 0..100 {
            assert!(authority.enter(ConnectionId(number), &identity, 0));
            assert!(authority.enter_unauthenticated(ConnectionId(1_000 + number)));
        }
        for number in 0..100 {
            authority.leave(ConnectionId(number));
            authority.leave(ConnectionId(1_000 + number));
        }
        assert!(authority.present().is_empty());
        assert!(authority.unauthenticated().is_empty());
    }
}
