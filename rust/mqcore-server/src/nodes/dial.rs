//! A connection to an upstream broker: the transport, the preamble, Hello and its answer.

use std::io;

use bytes::{Buf, BytesMut};
use mqcore_cluster::message::{CLIENT_TYPE, EPOCH_KEY, ID_KEY, NAME_KEY, VERSION, VERSION_KEY};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{Frame, Kind, header, operation};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::nodes::config::UpstreamConfig;
use crate::nodes::store::NodeIdentity;

/// Maximum bytes of an answer to Hello.
const ANSWER_BYTES_MAX: u64 = 64 * 1024;

/// A byte stream, plain or through TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// A connection. It is read and written in large pieces, so dynamic dispatch costs little.
pub(crate) type Stream = Box<dyn Duplex>;

/// The identity with which a node introduces itself.
#[derive(Debug, Clone)]
pub(crate) struct Introduced {
    pub(crate) identity: NodeIdentity,
    pub(crate) name: String,
}

/// The connection to an upstream broker that has accepted this node.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    /// Bytes that arrived after its answer.
    pub(crate) input: BytesMut,
    /// Whether it confirms by number.
    pub(crate) numbered: bool,
    pub(crate) id: String,
    pub(crate) name: String,
}

/// Connects the transport.
pub(crate) async fn connect(upstream: &UpstreamConfig) -> Result<Stream, String> {
    let stream = TcpStream::connect(&*upstream.address).await.map_err(|error| error.to_string())?;
    // Frames are already sent in batches; waiting for more would only add latency.
    stream.set_nodelay(true).map_err(|error| error.to_string())?;
    let Some(tls) = &upstream.tls else { return Ok(Box::new(stream)) };
    // Read for each attempt, so that a renewed certificate is used.
    let loaded = tls.load().map_err(|error| error.to_string())?;
    let host = upstream.address.rsplit_once(':').map_or(&*upstream.address, |(host, _)| host);
    let name = loaded.server_name(host.trim_matches(['[', ']'])).map_err(|error| error.to_string())?;
    let connector = TlsConnector::from(loaded.config);
    let stream = connector.connect(name, stream).await.map_err(|error| error.to_string())?;
    Ok(Box::new(stream))
}

/// Sends Hello and reads the answer.
pub(crate) async fn greet(
    mut stream: Stream,
    upstream: &UpstreamConfig,
    me: &Introduced,
) -> Result<Accepted, String> {
    let octets = hello_octets(upstream, me)?;
    let broken = |error: io::Error| error.to_string();
    stream.write_all(&octets).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut input = BytesMut::with_capacity(4096);
    let limits = Limits { frame_bytes_max: ANSWER_BYTES_MAX, ..Limits::default() };
    loop {
        if stream.read_buf(&mut input).await.map_err(broken)? == 0 {
            return Err("it closed the connection without an answer; does it take nodes in?".into());
        }
        let answer = hello::answer(&input, &limits).map_err(|error| error.to_string())?;
        let Some((frame, size)) = answer else { continue };
        let (numbered, id, name) = read_answer(&frame)?;
        input.advance(size);
        return Ok(Accepted { stream, input, numbered, id, name });
    }
}

fn hello_octets(upstream: &UpstreamConfig, me: &Introduced) -> Result<Vec<u8>, String> {
    let epoch = me.identity.epoch.to_string();
    let properties = vec![(VERSION_KEY, VERSION), (EPOCH_KEY, &*epoch)];
    let hello = Hello {
        client_id: Some(&me.identity.id),
        client_name: Some(&me.name),
        client_type: Some(CLIENT_TYPE),
        client_token: upstream.token.as_deref(),
        properties,
        ..Hello::default()
    };
    hello::opening(&hello, b"node-hello").map_err(|error| error.to_string())
}

fn read_answer(frame: &Frame<'_>) -> Result<(bool, String, String), String> {
    if frame.kind != Kind::SERVER || frame.content_type != operation::ACCEPTED {
        let why = String::from_utf8_lossy(frame.payload);
        return Err(match frame.content_type {
            operation::status::UNAUTHORIZED => "it refused this node's token".into(),
            code => format!("it refused this node with {code}: {why}"),
        });
    }
    let text = |key| {
        let value = header::header_value(frame.headers, key).unwrap_or_default();
        String::from_utf8_lossy(value).trim().to_owned()
    };
    Ok((text(VERSION_KEY) == VERSION, text(ID_KEY), text(NAME_KEY)))
}
