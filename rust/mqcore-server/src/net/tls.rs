//! TLS at the door: what each encrypted listener shows, handshakes within limits, and the log and the numbers of
//! those that failed.
//!
//! A handshake is a task of its own, so that a peer that stalls in one keeps nobody waiting. At most
//! `tls_handshakes_max` are under way; beyond that the oldest gives way, as soon as it had a fair time.

use std::borrow::Cow;
use std::collections::BTreeMap;
use std::fmt;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};
use std::task::Poll;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mqcore_broker::model::client::{Peer, PeerCertificate};
use mqcore_broker::model::time::Timestamp;
use mqcore_tls::certificate::{Certificate, seconds_between};
use mqcore_tls::error::TlsConfigError;
use mqcore_tls::listener::{ListenerTls, Loaded};
use mqcore_tls::refusal::{FIRST_BYTES, Refusal};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::sync::Notify;
use tokio::time::Instant;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::HandshakeKind;
use tokio_rustls::server::TlsStream;

use crate::hub::Hub;
use crate::net::outbox::Outbox;
use crate::stats::counters::Counter;

/// What a handshake may take before it can be the one that gives way.
const FAIR: Duration = Duration::from_millis(250);

/// How long a peer may take to read why it was refused. Without waiting, what it has sent meanwhile would make the
/// system throw away the alert that says so.
const LAST_WORDS: Duration = Duration::from_millis(250);

/// Lines about refused handshakes in one [`LOG_WINDOW`] at most.
const LOG_LINES_MAX: u32 = 20;

/// After this time there may be as many lines again.
const LOG_WINDOW: Duration = Duration::from_secs(10);

/// How often certificates are looked at.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(12 * 3600);

/// What all encrypted listeners of a server share.
#[derive(Debug)]
pub(crate) struct Tls {
    endpoints: Mutex<Vec<Arc<TlsEndpoint>>>,
    pub(crate) handshakes: Arc<Handshakes>,
    pub(crate) counters: TlsCounters,
    log: LogLimit,
    expiry_warning: Duration,
}

/// What one encrypted listener shows.
pub(crate) struct TlsEndpoint {
    url: String,
    files: ListenerTls,
    protocols: &'static [&'static [u8]],
    /// Replaced as a whole; handshakes under way go on with what they began with.
    current: RwLock<Arc<Loaded>>,
}

impl fmt::Debug for TlsEndpoint {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.debug_struct("TlsEndpoint").field("url", &self.url).finish_non_exhaustive()
    }
}

/// What an encrypted listener shows, for people.
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
    /// The last second at which it, and what leads to its authority, is valid: Unix time.
    pub not_after: u64,
    /// Seconds until then; negative once it is over.
    pub expires_in: i64,
}

/// A listener that goes on with what it had, because its files cannot be used.
#[derive(Debug, thiserror::Error)]
#[error("{url} keeps its certificate: {source}")]
pub struct ReloadError {
    /// The listener.
    pub url: String,
    /// What is wrong with the files.
    pub source: TlsConfigError,
}

/// Numbers of handshakes.
#[derive(Debug, Default)]
pub(crate) struct TlsCounters {
    /// Finished with a new key exchange.
    pub(crate) full: Counter,
    /// Finished by taking up an earlier session.
    pub(crate) resumed: Counter,
    refused: [Counter; Refusal::ALL.len()],
    /// Files read again, with success and without.
    pub(crate) reloads: Counter,
    pub(crate) reloads_failed: Counter,
}

impl TlsCounters {
    pub(crate) fn refused(&self, reason: Refusal) -> &Counter {
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

    /// A listener that is bound, with what was read for it.
    pub(crate) fn add(
        &self,
        url: String,
        files: ListenerTls,
        protocols: &'static [&'static [u8]],
        loaded: Loaded,
    ) -> Arc<TlsEndpoint> {
        self.remark(&url, &loaded);
        let current = RwLock::new(Arc::new(loaded));
        let endpoint = Arc::new(TlsEndpoint { url, files, protocols, current });
        lock(&self.endpoints).push(Arc::clone(&endpoint));
        endpoint
    }

    /// Says what somebody should look after.
    fn remark(&self, url: &str, loaded: &Loaded) {
        for caution in &loaded.cautions {
            tracing::warn!(listener = url, "{caution}");
        }
        self.remark_expiry(url, loaded);
    }

    fn remark_expiry(&self, url: &str, loaded: &Loaded) {
        let now = unix_now();
        let left = seconds_between(now, loaded.not_after);
        let days = left / 86_400;
        if left < 0 {
            tracing::error!(listener = url, "the certificate has expired; clients refuse it");
        } else if left < i64::try_from(self.expiry_warning.as_secs()).unwrap_or(i64::MAX) {
            tracing::warn!(listener = url, days, "the certificate expires in {days} days");
        }
        if loaded.certificate.not_before > now {
            tracing::error!(listener = url, "the certificate is not valid yet; clients refuse it");
        }
    }

    /// Reads all files again. Whoever connects from now on is shown what is new; where a file cannot be used, what was
    /// there stays. Blocks for as long as reading takes.
    pub(crate) fn reload(&self) -> Vec<ReloadError> {
        let endpoints = lock(&self.endpoints).clone();
        let mut failed = Vec::new();
        for endpoint in endpoints {
            let url = &endpoint.url;
            match endpoint.files.load(endpoint.protocols) {
                Ok(loaded) => {
                    let fingerprint = &loaded.certificate.fingerprint;
                    tracing::info!(listener = url, fingerprint, "certificate and key read again");
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

    /// What each encrypted listener shows now.
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

    /// Counts a handshake that failed and says so, unless very many did just now.
    pub(crate) fn refuse(&self, endpoint: &TlsEndpoint, peer: SocketAddr, reason: Refusal, words: &str) {
        self.counters.refused(reason).add(1);
        let Some(unsaid) = self.log.next() else { return };
        if unsaid > 0 {
            tracing::warn!(unsaid, "further TLS handshakes were refused; the metrics count them by reason");
        }
        tracing::warn!(
            listener = &*endpoint.url,
            %peer,
            reason = reason.as_str(),
            "TLS handshake refused: {words}"
        );
    }
}

/// Says twice a day what is about to expire, until the server stops.
pub(crate) async fn watch_expiry(hub: Arc<Hub>) {
    loop {
        tokio::select! {
            () = hub.shutdown.begun() => return,
            () = tokio::time::sleep(EXPIRY_INTERVAL) => {}
        }
        let endpoints = lock(&hub.tls.endpoints).clone();
        for endpoint in endpoints {
            hub.tls.remark_expiry(&endpoint.url, &endpoint.current());
        }
    }
}

impl TlsEndpoint {
    fn current(&self) -> Arc<Loaded> {
        Arc::clone(&self.current.read().unwrap_or_else(PoisonError::into_inner))
    }
}

/// What a handshake brought: the stream, and the peer's certificate if it showed one.
pub(crate) type Secured = (TlsStream<TcpStream>, Option<Arc<PeerCertificate>>);

/// Why a handshake brought nothing, and what is left to tell the peer with.
struct Refused {
    reason: Refusal,
    words: Cow<'static, str>,
    stream: Option<TcpStream>,
}

/// Shakes hands within the limits of the server. `None`: it failed, and all is said and counted.
pub(crate) async fn secure(
    hub: &Hub,
    endpoint: &TlsEndpoint,
    stream: TcpStream,
    peer: SocketAddr,
    place: &Place,
    outbox: Option<&Outbox>,
) -> Option<Secured> {
    let patience = hub.session.handshake_timeout;
    let mut first = First::default();
    let refused = tokio::select! {
        biased;
        () = place.lost() => {
            let words = "too many handshakes are under way, and this is the oldest".into();
            Refused { reason: Refusal::Limit, words, stream: None }
        }
        // The server stops, or too many strangers are there: whoever ordered it counts it.
        () = ordered(outbox) => return None,
        secured = shake_hands(endpoint, stream, &mut first) => match secured {
            Ok(secured) => {
                let resumed = matches!(secured.0.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed));
                let counters = &hub.tls.counters;
                if resumed { &counters.resumed } else { &counters.full }.add(1);
                return Some(secured);
            }
            Err(refused) => refused,
        },
        () = tokio::time::sleep(patience) => {
            let did = if first.count == 0 { "sent nothing" } else { "did not finish the handshake" };
            let words = format!("it {did} within {patience:?}").into();
            Refused { reason: Refusal::Timeout, words, stream: None }
        }
    };
    hub.tls.refuse(endpoint, peer, refused.reason, &refused.words);
    if let Some(stream) = refused.stream {
        // Whether it reads them or not.
        let _ = tokio::time::timeout(LAST_WORDS, last_words(stream)).await;
    }
    None
}

/// The peer's first octets, which tell what it speaks if it is not TLS.
#[derive(Debug, Default)]
struct First {
    octets: [u8; FIRST_BYTES],
    count: usize,
}

async fn shake_hands(
    endpoint: &TlsEndpoint,
    stream: TcpStream,
    first: &mut First,
) -> Result<Secured, Refused> {
    let broken = |error: std::io::Error, first: &First, stream| {
        let (reason, words) = Refusal::of(&error, &first.octets[..first.count]);
        Refused { reason, words, stream }
    };
    first.count = match stream.peek(&mut first.octets).await {
        Ok(count) => count,
        Err(error) => return Err(broken(error, first, None)),
    };
    let acceptor = TlsAcceptor::from(Arc::clone(&endpoint.current().config));
    let stream = match acceptor.accept(stream).into_fallible().await {
        Ok(stream) => stream,
        Err((error, stream)) => return Err(broken(error, first, Some(stream))),
    };
    let shown = stream.get_ref().1.peer_certificates().and_then(<[_]>::first);
    let certificate = match shown.map(|der| Certificate::read(der)).transpose() {
        Ok(certificate) => certificate,
        Err(error) => {
            let words = format!("its certificate cannot be read: {error}").into();
            return Err(Refused {
                reason: Refusal::BadCertificate,
                words,
                stream: Some(stream.into_inner().0),
            });
        }
    };
    // The verifier looked when the session began; a session may be taken up again much later.
    if certificate.as_ref().is_some_and(|certificate| certificate.expires_in(unix_now()) < 0) {
        let words = "its certificate has expired since its session began".into();
        let stream = Some(stream.into_inner().0);
        return Err(Refused { reason: Refusal::ExpiredCertificate, words, stream });
    }
    Ok((stream, certificate.map(|certificate| Arc::new(proven(certificate)))))
}

fn proven(certificate: Certificate) -> PeerCertificate {
    PeerCertificate {
        subject: certificate.subject.into(),
        names: certificate.names.into_iter().map(Into::into).collect(),
        fingerprint: certificate.fingerprint.into(),
        not_after: Timestamp(certificate.not_after.saturating_mul(1000)),
    }
}

/// Closes our side and reads what the peer still sends, so that it can read why.
async fn last_words(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut scratch = [0; 4096];
    while stream.read(&mut scratch).await.is_ok_and(|read| read > 0) {}
}

/// Returns when something was ordered of a connection that is not open yet: whatever it is, it ends there.
async fn ordered(outbox: Option<&Outbox>) {
    let Some(outbox) = outbox else { return std::future::pending().await };
    let mut nothing = Vec::new();
    poll_fn(|context| {
        let taken = outbox.take(&mut nothing, context.waker());
        if taken.order.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The peer as the session is told it.
pub(crate) fn peer(address: SocketAddr, certificate: Option<Arc<PeerCertificate>>) -> Peer {
    Peer { address: Some(address.to_string().into()), encrypted: true, certificate }
}

/// The handshakes under way.
#[derive(Debug)]
pub(crate) struct Handshakes {
    max: usize,
    state: Mutex<HandshakeState>,
    /// Told when one has ended.
    ended: Notify,
}

#[derive(Debug, Default)]
struct HandshakeState {
    next: u64,
    /// By age.
    places: BTreeMap<u64, (Instant, Arc<Notify>)>,
}

/// A handshake's place among those under way.
#[derive(Debug)]
pub(crate) struct Place {
    handshakes: Arc<Handshakes>,
    number: u64,
    lost: Arc<Notify>,
}

impl Handshakes {
    pub(crate) fn new(max: usize) -> Self {
        Self { max, state: Mutex::default(), ended: Notify::new() }
    }

    /// How many there are.
    pub(crate) fn count(&self) -> usize {
        lock(&self.state).places.len()
    }

    /// Returns when one more may begin. If all places are taken, the oldest handshake loses its own once it had
    /// a fair time: strangers who stall cannot keep clients out for longer, and clients who come all at once are
    /// taken one after the other instead of pushing each other out.
    pub(crate) async fn room(&self) {
        loop {
            let ended = self.ended.notified();
            let fair_until = {
                let mut state = lock(&self.state);
                if state.places.len() < self.max {
                    return;
                }
                let Some(oldest) = state.places.first_entry() else { return };
                let fair_until = oldest.get().0 + FAIR;
                if fair_until <= Instant::now() {
                    let (_, lost) = oldest.remove();
                    lost.notify_one();
                    return;
                }
                fair_until
            };
            tokio::select! {
                () = ended => {}
                () = tokio::time::sleep_until(fair_until) => {}
            }
        }
    }

    /// Takes a place.
    pub(crate) fn enter(self: &Arc<Self>) -> Place {
        let lost = Arc::new(Notify::new());
        let mut state = lock(&self.state);
        let number = state.next;
        state.next += 1;
        state.places.insert(number, (Instant::now(), Arc::clone(&lost)));
        drop(state);
        Place { handshakes: Arc::clone(self), number, lost }
    }
}

impl Place {
    async fn lost(&self) {
        self.lost.notified().await;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        lock(&self.handshakes.state).places.remove(&self.number);
        self.handshakes.ended.notify_one();
    }
}

/// So many lines, and then none for a while.
#[derive(Debug, Default)]
struct LogLimit(Mutex<LogState>);

#[derive(Debug, Default)]
struct LogState {
    since: Option<Instant>,
    said: u32,
    unsaid: u64,
}

impl LogLimit {
    /// `None`: not now. Otherwise how many lines were not said since the last one.
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

/// The time by which certificates are valid: always the system's.
fn unix_now() -> u64 {
    SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |since| since.as_secs())
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test(start_paused = true)]
    async fn one_handshake_too_many_waits_for_a_fair_time_and_then_the_oldest_gives_way() {
        let handshakes = Arc::new(Handshakes::new(2));
        let started = Instant::now();
        handshakes.room().await;
        let stalled = handshakes.enter();
        tokio::time::sleep(Duration::from_millis(100)).await;
        let other = handshakes.enter();
        handshakes.room().await;
        assert_eq!(started.elapsed(), FAIR, "the oldest had its time");
        stalled.lost().await;
        let third = handshakes.enter();
        assert_eq!(handshakes.count(), 2);
        drop(third);
        handshakes.room().await;
        assert_eq!(started.elapsed(), FAIR, "there was room at once");
        drop((stalled, other));
        assert_eq!(handshakes.count(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_handshake_that_ends_makes_room_for_who_waits() {
        let handshakes = Arc::new(Handshakes::new(1));
        let first = handshakes.enter();
        let started = Instant::now();
        let (done, ()) = tokio::join!(
            async {
                handshakes.room().await;
                started.elapsed()
            },
            async {
                tokio::time::sleep(Duration::from_millis(10)).await;
                drop(first);
            }
        );
        assert_eq!(done, Duration::from_millis(10));
    }

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
