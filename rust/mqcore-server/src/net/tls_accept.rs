//! TLS handshakes with clients, within the limits of the server.
//!
//! Each handshake is a task of its own, so a peer that stalls delays no other peer.

use std::borrow::Cow;
use std::future::poll_fn;
use std::net::SocketAddr;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use mqcore_broker::model::client::{Peer, PeerCertificate};
use mqcore_broker::model::time::Timestamp;
use mqcore_tls::certificate::Certificate;
use mqcore_tls::refusal::{FIRST_BYTES, HandshakeRejection};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::HandshakeKind;
use tokio_rustls::server::TlsStream;

use crate::hub::Hub;
use crate::net::handshakes::HandshakeSlot;
use crate::net::outbox::Outbox;
use crate::net::tls::{TlsEndpoint, unix_now};

/// Time for a peer to read why it was rejected. Without it, the system could discard the alert because of input that
/// was not read.
const ALERT_LINGER: Duration = Duration::from_millis(250);

/// Interval between checks of certificates.
const EXPIRY_INTERVAL: Duration = Duration::from_secs(12 * 3600);

/// The result of a handshake: the stream, and the peer's certificate if it sent one.
pub(crate) type Secured = (TlsStream<TcpStream>, Option<Arc<PeerCertificate>>);

/// Why a handshake failed, and the stream on which to send the alert.
struct Refused {
    rejection: HandshakeRejection,
    reason: Cow<'static, str>,
    stream: Option<TcpStream>,
}

/// Performs a handshake within the limits of the server. `None`: it failed, and is counted and logged.
pub(crate) async fn secure(
    hub: &Hub,
    endpoint: &TlsEndpoint,
    stream: TcpStream,
    peer: SocketAddr,
    slot: &HandshakeSlot,
    outbox: Option<&Outbox>,
) -> Option<Secured> {
    let timeout = hub.session.handshake_timeout;
    let mut first = First::default();
    let refused = tokio::select! {
        biased;
        () = slot.lost() => {
            let reason = "too many handshakes are in progress, and this is the oldest".into();
            Refused { rejection: HandshakeRejection::Limit, reason, stream: None }
        }
        // The server stops, or too many connections are half-open. The caller has counted it.
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
        () = tokio::time::sleep(timeout) => {
            let failure = if first.count == 0 { "sent nothing" } else { "did not finish the handshake" };
            let reason = format!("it {failure} within {timeout:?}").into();
            Refused { rejection: HandshakeRejection::Timeout, reason, stream: None }
        }
    };
    hub.tls.refuse(endpoint, peer, refused.rejection, &refused.reason);
    if let Some(stream) = refused.stream {
        // The peer may not read them.
        let _ = tokio::time::timeout(ALERT_LINGER, linger(stream)).await;
    }
    None
}

/// The peer's first bytes, which identify its protocol if it is not TLS.
#[derive(Debug, Default)]
struct First {
    bytes: [u8; FIRST_BYTES],
    count: usize,
}

async fn shake_hands(
    endpoint: &TlsEndpoint,
    stream: TcpStream,
    first: &mut First,
) -> Result<Secured, Refused> {
    let broken = |error: std::io::Error, first: &First, stream| {
        let (rejection, reason) = HandshakeRejection::of(&error, &first.bytes[..first.count]);
        Refused { rejection, reason, stream }
    };
    first.count = match stream.peek(&mut first.bytes).await {
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
            let reason = format!("its certificate cannot be read: {error}").into();
            return Err(Refused {
                rejection: HandshakeRejection::BadCertificate,
                reason,
                stream: Some(stream.into_inner().0),
            });
        }
    };
    // The verifier checked it when the session began; the client may resume the session much later.
    if certificate.as_ref().is_some_and(|certificate| certificate.expires_in(unix_now()) < 0) {
        let reason = "its certificate has expired since its session began".into();
        let stream = Some(stream.into_inner().0);
        return Err(Refused { rejection: HandshakeRejection::ExpiredCertificate, reason, stream });
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

/// Closes our side and reads the rest of the input, so that the peer can read the alert.
async fn linger(mut stream: TcpStream) {
    if stream.shutdown().await.is_err() {
        return;
    }
    let mut scratch = [0; 4096];
    while stream.read(&mut scratch).await.is_ok_and(|read| read > 0) {}
}

/// Returns when a connection that is not open yet receives an order. Any order ends it.
async fn ordered(outbox: Option<&Outbox>) {
    let Some(outbox) = outbox else { return std::future::pending().await };
    let mut nothing = Vec::new();
    poll_fn(|context| {
        let taken = outbox.take(&mut nothing, context.waker());
        if taken.order.is_some() { Poll::Ready(()) } else { Poll::Pending }
    })
    .await;
}

/// The peer as its session sees it.
pub(crate) fn peer(address: SocketAddr, certificate: Option<Arc<PeerCertificate>>) -> Peer {
    Peer { address: Some(address.to_string().into()), encrypted: true, certificate }
}

/// Logs certificates that are about to expire, twice a day, until the server stops.
pub(crate) async fn watch_expiry(hub: Arc<Hub>) {
    loop {
        tokio::select! {
            () = hub.shutdown.begun() => return,
            () = tokio::time::sleep(EXPIRY_INTERVAL) => {}
        }
        hub.tls.remark_all_expiries();
    }
}
