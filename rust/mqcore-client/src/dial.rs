//! Opens one connection: the transport, the preamble, Hello and its answer.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::{Buf, BytesMut};
use mqcore_tls::failure::{FailureReason, HandshakeFailure};
use mqcore_wire::micromessage::extension::Agreement;
use mqcore_wire::tmqp::hello::{self, AnswerError, Hello};
use mqcore_wire::tmqp::operation::{ACCEPTED, status};
use mqcore_wire::tmqp::{Frame, Kind, PREAMBLE, header};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, DuplexStream, ReadBuf, WriteHalf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

use crate::address::Protocol;
use crate::config::{ClientConfig, LocalFactory};
use crate::error::ClientError;
use crate::random::random_u64;
use crate::route::Route;
use crate::{micromessage, mqks};

/// Maximum time of a shutdown. The one of TLS writes a record, for which a peer that does not read may leave no room.
const SHUTDOWN_MAX: Duration = Duration::from_secs(1);
/// Maximum bytes of a foreign peer's answer in an error.
const SHOWN_BYTES_MAX: usize = 64;

/// An open connection.
#[derive(Debug)]
pub(crate) enum Stream {
    Tcp(TcpStream),
    /// Boxed because it is much larger than the other variants.
    Tls(Box<TlsStream<TcpStream>>),
    #[cfg(unix)]
    Unix(tokio::net::UnixStream),
    Local(DuplexStream),
}

/// A connection on which the broker has accepted this client.
#[derive(Debug)]
pub(crate) struct OpenConnection {
    pub(crate) stream: Stream,
    /// Received bytes after the handshake.
    pub(crate) input: BytesMut,
    /// The result of the handshake.
    pub(crate) greeted: HandshakeOutcome,
    /// The address of the broker.
    pub(crate) address: Arc<str>,
}

/// The result of a handshake.
#[derive(Debug)]
pub(crate) enum HandshakeOutcome {
    /// The id that the broker assigned to this client.
    Tmqp(String),
    Mqks,
    /// The agreed extensions.
    Micromessage(Box<Agreement>),
}

impl HandshakeOutcome {
    /// The id that the broker assigned to this client; empty where a protocol has none.
    pub(crate) fn own_id(&self) -> &str {
        match self {
            Self::Tmqp(own_id) => own_id,
            Self::Mqks | Self::Micromessage(_) => "",
        }
    }
}

/// The destination of an attempt.
#[derive(Clone)]
pub(crate) enum Endpoint<'a> {
    Remote(&'a Route),
    Local(&'a LocalFactory),
}

impl Endpoint<'_> {
    fn name(&self) -> Arc<str> {
        match self {
            Self::Remote(route) => route.address().to_string().into(),
            Self::Local(_) => "the embedded broker".into(),
        }
    }

    fn protocol(&self) -> Protocol {
        match self {
            Self::Remote(route) => route.address().protocol,
            Self::Local(_) => Protocol::Tmqp,
        }
    }

    fn path(&self) -> &str {
        match self {
            Self::Remote(route) => &route.address().path,
            Self::Local(_) => hello::PATH_ROOT,
        }
    }

    async fn open(&self) -> Result<Stream, ClientError> {
        match self {
            Self::Remote(route) => route.open().await,
            Self::Local(factory) => {
                factory().map(Stream::Local).map_err(|error| connect_failed(&self.name(), error.to_string()))
            }
        }
    }
}

/// One attempt, within the connect timeout.
pub(crate) async fn dial(
    endpoint: Endpoint<'_>,
    config: &ClientConfig,
) -> Result<OpenConnection, ClientError> {
    let address = endpoint.name();
    let attempt = async {
        let stream = endpoint.open().await?;
        match endpoint.protocol() {
            Protocol::Mqks => mqks::greeting::greet(stream, config, &address).await,
            Protocol::Micromessage => micromessage::greeting::greet(stream, config, &address).await,
            Protocol::Tmqp | Protocol::Throttr => {
                let hello = encode_hello(config, endpoint.path(), &hello_id())?;
                shake_hands(stream, &hello, config, &address).await
            }
        }
    };
    match tokio::time::timeout(config.connect_timeout, attempt).await {
        Ok(result) => result,
        Err(_) => Err(connect_failed(&address, format!("no answer within {:?}", config.connect_timeout))),
    }
}

/// The first bytes of a conversation.
pub(crate) fn encode_hello(
    config: &ClientConfig,
    path: &str,
    message_id: &str,
) -> Result<Vec<u8>, ClientError> {
    let hello = Hello {
        path,
        client_id: config.id.as_deref(),
        client_name: config.name.as_deref(),
        client_type: config.kind.as_deref(),
        client_token: config.token.as_deref(),
        properties: config.properties.iter().map(|(key, value)| (key.as_str(), value.as_str())).collect(),
        ..Hello::default()
    };
    hello::opening(&hello, message_id.as_bytes())
        .map_err(|error| ClientError::invalid("handshake property", error.to_string()))
}

fn hello_id() -> String {
    format!("{:016x}{:016x}", random_u64(), random_u64())
}

async fn shake_hands(
    mut stream: Stream,
    hello: &[u8],
    config: &ClientConfig,
    address: &Arc<str>,
) -> Result<OpenConnection, ClientError> {
    let broken = |error: io::Error| broken(address, &error);
    stream.write_all(hello).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut input = BytesMut::with_capacity(4096);
    loop {
        if stream.read_buf(&mut input).await.map_err(broken)? == 0 {
            return Err(closed_early(address, &input));
        }
        let (own_id, size) = match hello::answer(&input, &config.limits) {
            Ok(None) => continue,
            Ok(Some((frame, size))) => (read_verdict(&frame, address)?, size),
            Err(AnswerError::Frame(error)) => return Err(error.into()),
            Err(_) => return Err(spoke_otherwise(&input[..PREAMBLE.len()], Protocol::Tmqp, address)),
        };
        input.advance(size);
        return Ok(OpenConnection {
            stream,
            input,
            greeted: HandshakeOutcome::Tmqp(own_id),
            address: address.clone(),
        });
    }
}

/// Interprets an IO error during the handshake.
pub(crate) fn broken(address: &Arc<str>, error: &io::Error) -> ClientError {
    // In TLS 1.3 a server rejects the client's certificate only after the handshake.
    match HandshakeFailure::of_conversation(error) {
        Some(failure) => tls_failed(address, failure),
        None => connect_failed(address, error.to_string()),
    }
}

/// The error for a peer that closed the connection without an answer.
pub(crate) fn closed_at_once(address: &Arc<str>) -> ClientError {
    connect_failed(address, "the broker closed the connection before the handshake".to_owned())
}

/// The error for a peer of another protocol, with its first bytes.
pub(crate) fn spoke_otherwise(got: &[u8], wanted: Protocol, address: &Arc<str>) -> ClientError {
    if is_tls_alert(got) {
        return tls_wanted(address);
    }
    let got = String::from_utf8_lossy(&got[..got.len().min(SHOWN_BYTES_MAX)]).into();
    ClientError::VersionMismatch { address: address.clone(), wanted: wanted.name(), got }
}

/// Reads the broker's answer to Hello: the accepted id, or the refusal.
fn read_verdict(frame: &Frame<'_>, address: &Arc<str>) -> Result<String, ClientError> {
    // mqcore gives the reason in the body; other servers may give it in a header.
    let reason = header::header_value(frame.headers, header::key::REASON).unwrap_or(frame.payload);
    let reason: Arc<str> = if reason.is_empty() {
        "the broker gave no reason".into()
    } else {
        String::from_utf8_lossy(reason).into()
    };
    let address = address.clone();
    match (frame.kind, frame.content_type) {
        (Kind::SERVER, ACCEPTED) => Ok(String::from_utf8_lossy(frame.target).into_owned()),
        (Kind::SERVER | Kind::RESPONSE, status::UNAUTHORIZED) => {
            Err(ClientError::AuthFailed { address, reason })
        }
        (_, code) => Err(ClientError::HandshakeRefused { address, code, reason }),
    }
}

fn closed_early(address: &Arc<str>, input: &[u8]) -> ClientError {
    if input.starts_with(&PREAMBLE) {
        // Original servers give no reason. A broker that is killed at this moment cannot.
        let cause = "the broker closed the connection during the handshake: it has ended, or it refuses this client; check \
                     whether the client id is in use or a limit is reached";
        return connect_failed(address, cause.to_owned());
    }
    if input.is_empty() {
        return closed_at_once(address);
    }
    spoke_otherwise(input, Protocol::Tmqp, address)
}

/// Whether this is the alert of a TLS listener to a client without TLS.
fn is_tls_alert(input: &[u8]) -> bool {
    matches!(input, [0x15, 3, ..])
}

fn tls_wanted(address: &Arc<str>) -> ClientError {
    let scheme = address.split_once("://").map_or("tmqp", |(scheme, _)| scheme);
    let words = format!("the port requires TLS; use {scheme}s:// in the address");
    tls_failed(address, HandshakeFailure { reason: FailureReason::TlsWanted, words })
}

fn tls_failed(address: &Arc<str>, failure: HandshakeFailure) -> ClientError {
    ClientError::Tls { address: address.clone(), reason: failure.reason, words: failure.words.into() }
}

fn connect_failed(address: &Arc<str>, cause: String) -> ClientError {
    ClientError::ConnectFailed { addresses: address.clone(), cause: cause.into() }
}

/// Ends a connection whose peer has all data, so that an error or a timeout does not matter.
pub(crate) async fn shut_down(writer: &mut WriteHalf<Stream>) {
    drop(tokio::time::timeout(SHUTDOWN_MAX, writer.shutdown()).await);
}

impl AsyncRead for Stream {
    fn poll_read(
        self: Pin<&mut Self>,
        context: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Tls(stream) => Pin::new(stream).poll_read(context, buffer),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_read(context, buffer),
            Self::Local(stream) => Pin::new(stream).poll_read(context, buffer),
        }
    }
}

impl AsyncWrite for Stream {
    fn poll_write(self: Pin<&mut Self>, context: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Tls(stream) => Pin::new(stream).poll_write(context, bytes),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_write(context, bytes),
            Self::Local(stream) => Pin::new(stream).poll_write(context, bytes),
        }
    }

    fn poll_flush(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_flush(context),
            Self::Tls(stream) => Pin::new(stream).poll_flush(context),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_flush(context),
            Self::Local(stream) => Pin::new(stream).poll_flush(context),
        }
    }

    fn poll_shutdown(self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self.get_mut() {
            Self::Tcp(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Tls(stream) => Pin::new(stream).poll_shutdown(context),
            #[cfg(unix)]
            Self::Unix(stream) => Pin::new(stream).poll_shutdown(context),
            Self::Local(stream) => Pin::new(stream).poll_shutdown(context),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn unhex(hex: &str) -> Vec<u8> {
        (0..hex.len()).step_by(2).map(|at| u8::from_str_radix(&hex[at..at + 2], 16).unwrap()).collect()
    }

    #[test]
    fn hello_is_written_as_the_original_writes_it() {
        let config = ClientConfig {
            id: Some("cli".into()),
            name: Some("nm".into()),
            kind: Some("ty".into()),
            token: Some("tok".into()),
            ..ClientConfig::default()
        };
        let bytes = encode_hello(&config, "/path", "id-001").unwrap();
        let lines = include_str!("../../../tests/vectors/tmqp.jsonl").lines();
        let mut vectors = lines.map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
        let vector = vectors.find(|vector| vector["name"] == "V06").unwrap();
        let expected = [&PREAMBLE[..], &unhex(vector["hex"].as_str().unwrap())].concat();
        assert_eq!(bytes, expected);
    }

    #[test]
    fn verdicts_on_hello_are_distinguished() {
        let address: Arc<str> = "tmqp://h:1".into();
        let verdict = |kind, content_type, headers: &'static [u8]| {
            let frame = Frame { content_type, headers, target: b"given", ..Frame::new(kind) };
            read_verdict(&frame, &address)
        };
        assert_eq!(verdict(Kind::SERVER, ACCEPTED, b""), Ok("given".to_owned()));
        assert!(matches!(
            verdict(Kind::SERVER, status::UNAUTHORIZED, b""),
            Err(ClientError::AuthFailed { .. })
        ));
        let busy = verdict(Kind::SERVER, status::BUSY, b"Reason:in use\r\n").unwrap_err();
        assert!(matches!(&busy, ClientError::HandshakeRefused { code: 503, .. }), "{busy}");
        assert!(busy.to_string().contains("in use"), "{busy}");
    }

    #[test]
    fn another_protocol_is_named_as_such() {
        let address: Arc<str> = "tmqp://h:1".into();
        let error = spoke_otherwise(b"HTTP/1.1", Protocol::Tmqp, &address);
        assert_eq!(
            error.to_string(),
            "the peer at tmqp://h:1 does not speak TMQP/2.0: it answered \"HTTP/1.1\""
        );
        assert!(matches!(closed_early(&address, b""), ClientError::ConnectFailed { .. }));
        assert!(matches!(closed_early(&address, b"SSH"), ClientError::VersionMismatch { .. }));
        let killed = closed_early(&address, &PREAMBLE);
        assert!(matches!(killed, ClientError::ConnectFailed { .. }), "programs connect again: {killed}");
    }
}
