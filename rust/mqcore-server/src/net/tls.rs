//! The certificates of encrypted listeners: loading, reloading, warnings before they expire, and counters.

use std::fmt;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mqcore_tls::certificate::{Certificate, seconds_between};
use mqcore_tls::error::TlsConfigError;
use mqcore_tls::listener::{ListenerTls, LoadedListenerTls};
use mqcore_tls::refusal::HandshakeRejection;
use tokio::time::Instant;

use crate::net::handshakes::Handshakes;
use crate::stats::counter::Counter;

/// Maximum log lines about failed handshakes in one [`LOG_WINDOW`].
const LOG_LINES_MAX: u32 = 20;

/// After this time the count of log lines starts again.
const LOG_WINDOW: Duration = Duration::from_secs(10);

/// State that all encrypted listeners of a server share.
#[derive(Debug)]
pub(crate) struct Tls {
    endpoints: Mutex<Vec<Arc<TlsEndpoint>>>,
    pub(crate) handshakes: Arc<Handshakes>,
    pub(crate) counters: TlsCounters,
    log: LogLimit,
    expiry_warning: Duration,
}

/// The TLS configuration of one encrypted listener.
pub(crate) struct TlsEndpoint {
    url: String,
    files: ListenerTls,
    protocols: &'static [&'static [u8]],
    /// Replaced as a whole; handshakes in progress continue with the previous value.
    current: RwLock<Arc<LoadedListenerTls>>,
}

impl fmt::Debug for TlsEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsEndpoint").field("url", &self.url).finish_non_exhaustive()
    }
}

/// The certificate of an encrypted listener, for people.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ListenerCertificate {
    /// The listener.
    pub url: String,
    /// The common name of the certificate's subject; empty if it has none.
    pub subject: String,
    /// Its alternative names: `dns:host`, `ip:192.0.2.7`.
    pub names: Vec<String>,
    /// SHA-256 of the certificate, lower-case hexadecimal.
    pub fingerprint: String,
    /// The last second at which the certificate and its chain are valid, as Unix time.
    pub not_after: u64,
    /// Seconds until then; negative after it has expired.
    pub expires_in: i64,
}

/// A listener that keeps its certificate, because its new files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{url} keeps its certificate: {source}")]
pub struct ReloadError {
    /// The listener.
    pub url: String,
    /// The error in the files.
    pub source: TlsConfigError,
}

/// Counters of handshakes.
#[derive(Debug, Default)]
pub(crate) struct TlsCounters {
    /// Finished with a new key exchange.
    pub(crate) full: Counter,
    /// Finished by resuming a session.
    pub(crate) resumed: Counter,
    refused: [Counter; HandshakeRejection::ALL.len()],
    /// Reloads of the files that succeeded, and that failed.
    pub(crate) reloads: Counter,
    pub(crate) reloads_failed: Counter,
}

impl TlsCounters {
    pub(crate) fn refused(&self, reason: HandshakeRejection) -> &Counter {
        &self.refused[reason as usize]
    }
}

impl Tls {
    pub(crate) fn new(handshakes_max: usize, expiry_warning: Duration) -> Self {
        Self {
            endpoints: Mutex::default(),
            handshakes: Arc::new(Handshakes::new(handshakes_max)),
            counters: TlsCounters::default(),
            log: LogLimit::default(),
            expiry_warning,
        }
    }

    /// Adds a bound listener with its loaded files.
    pub(crate) fn add(
        &self,
        url: String,
        files: ListenerTls,
        protocols: &'static [&'static [u8]],
        loaded: LoadedListenerTls,
    ) -> Arc<TlsEndpoint> {
        self.remark(&url, &loaded);
        let current = RwLock::new(Arc::new(loaded));
        let endpoint = Arc::new(TlsEndpoint { url, files, protocols, current });
        lock(&self.endpoints).push(Arc::clone(&endpoint));
        endpoint
    }

    /// Logs what an administrator should know about a certificate.
    fn remark(&self, url: &str, loaded: &LoadedListenerTls) {
        for caution in &loaded.warnings {
            tracing::warn!(listener = url, "{caution}");
        }
        self.remark_expiry(url, loaded);
    }

    /// Warns of a certificate that has expired or is about to.
    fn remark_expiry(&self, url: &str, loaded: &LoadedListenerTls) {
        let now = unix_now();
        let left = seconds_between(now, loaded.not_after);
        let days = left / 86_400;
        if left < 0 {
            tracing::error!(
                listener = url,
                "the certificate has expired; clients reject it; install a new one and reload"
            );
        } else if left < i64::try_from(self.expiry_warning.as_secs()).unwrap_or(i64::MAX) {
            tracing::warn!(listener = url, days, "the certificate expires in {days} days");
        }
        if loaded.certificate.not_before > now {
            tracing::error!(
                listener = url,
                "the certificate is not valid yet; clients reject it; check the clock"
            );
        }
    }

    /// Warns of every listener's certificate that has expired or is about to.
    pub(crate) fn remark_all_expiries(&self) {
        let endpoints = lock(&self.endpoints).clone();
        for endpoint in endpoints {
            self.remark_expiry(&endpoint.url, &endpoint.current());
        }
    }

    /// Reads all files again. New connections use the new certificate; if a file cannot be used, the previous one
    /// stays. Blocks until everything is read.
    pub(crate) fn reload(&self) -> Vec<ReloadError> {
        let endpoints = lock(&self.endpoints).clone();
        let mut failed = Vec::new();
        for endpoint in endpoints {
            let url = &endpoint.url;
            match endpoint.files.load(endpoint.protocols) {
                Ok(loaded) => {
                    let fingerprint = &loaded.certificate.fingerprint;
                    tracing::info!(listener = url, fingerprint, "reloaded certificate and key");
                    self.remark(url, &loaded);
                    self.counters.reloads.add(1);
                    *endpoint.current.write().unwrap_or_else(PoisonError::into_inner) = Arc::new(loaded);
                }
                Err(source) => {
                    let error = ReloadError { url: url.clone(), source };
                    tracing::error!("{error}");
                    self.counters.reloads_failed.add(1);
                    failed.push(error);
                }
            }
        }
        failed
    }

    /// The current certificate of each encrypted listener.
    pub(crate) fn certificates(&self) -> Vec<ListenerCertificate> {
        let now = unix_now();
        let describe = |endpoint: &Arc<TlsEndpoint>| {
            let loaded = endpoint.current();
            let Certificate { subject, names, fingerprint, .. } = loaded.certificate.clone();
            ListenerCertificate {
                url: endpoint.url.clone(),
                subject,
                names,
                fingerprint,
                not_after: loaded.not_after,
                expires_in: seconds_between(now, loaded.not_after),
            }
        };
        lock(&self.endpoints).iter().map(describe).collect()
    }

    /// Counts a failed handshake and logs it, unless many failed just before.
    pub(crate) fn refuse(
        &self,
        endpoint: &TlsEndpoint,
        peer: SocketAddr,
        reason: HandshakeRejection,
        explanation: &str,
    ) {
        self.counters.refused(reason).add(1);
        let Some(unsaid) = self.log.next() else { return };
        if unsaid > 0 {
            tracing::warn!(
                unsaid,
                "suppressed log lines about failed TLS handshakes; the metric mqcore_tls_handshakes_failed_total counts them by reason"
            );
        }
        tracing::warn!(
            listener = &*endpoint.url,
            %peer,
            reason = reason.as_str(),
            "TLS handshake failed: {explanation}"
        );
    }
}

impl TlsEndpoint {
    pub(crate) fn current(&self) -> Arc<LoadedListenerTls> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// Allows a number of lines, and then none for a while.
#[derive(Debug, Default)]
struct LogLimit(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl LogLimit {
    /// `None`: log nothing now. Otherwise the number of lines suppressed since the last one.
    fn next(&self) -> Option<u64> {
        let mut state = lock(&self.0);
        let now = Instant::now();
        if state.since.is_none_or(|since| now - since >= LOG_WINDOW) {
            (state.since, state.said) = (Some(now), 0);
        }
        if state.said == LOG_LINES_MAX {
            state.unsaid += 1;
            return None;
        }
        state.said += 1;
        Some(std::mem::take(&mut state.unsaid))
    }
}

/// The time for the validity of certificates: always the system clock.
pub(crate) fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_flood_of_refusals_is_counted_and_not_all_said() {
        let log = LogLimit::default();
        let said = (0..100).filter(|_| log.next().is_some()).count();
        assert_eq!(said, LOG_LINES_MAX as usize);
        tokio::time::sleep(LOG_WINDOW).await;
        assert_eq!(log.next(), Some(100 - u64::from(LOG_LINES_MAX)));
        assert_eq!(log.next(), Some(0));
    }
}
