//! A connection to an upstream broker: the transport, the introduction and its answer.

use std::io;

use bytes::{Buf, BytesMut};
use mqcore_session::uplink::{Acceptance, NodeIntroduction, read_acceptance};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use crate::nodes::config::UpstreamConfig;
use crate::nodes::store::NodeIdentity;

/// A byte stream, plain or through TLS.
pub(crate) trait Duplex: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> Duplex for S {}

/// A connection. It is read and written in large pieces, so dynamic dispatch costs little.
pub(crate) type Stream = Box<dyn Duplex>;

/// The identity with which a node introduces itself.
#[derive(Debug, Clone)]
pub(crate) struct LocalIdentity {
    pub(crate) identity: NodeIdentity,
    pub(crate) name: String,
}

/// The connection to an upstream broker that has accepted this node.
pub(crate) struct Accepted {
    pub(crate) stream: Stream,
    /// Bytes that arrived after its answer.
    pub(crate) input: BytesMut,
    pub(crate) acceptance: Acceptance,
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

/// Introduces this node and reads the answer.
pub(crate) async fn greet(
    mut stream: Stream,
    upstream: &UpstreamConfig,
    me: &LocalIdentity,
) -> Result<Accepted, String> {
    let introduction = NodeIntroduction {
        id: &me.identity.id,
        name: &me.name,
        epoch: me.identity.epoch,
        token: upstream.token.as_deref(),
    };
    let bytes = introduction.encode().map_err(|error| error.to_string())?;
    let broken = |error: io::Error| error.to_string();
    stream.write_all(&bytes).await.map_err(broken)?;
    stream.flush().await.map_err(broken)?;
    let mut input = BytesMut::with_capacity(4096);
    loop {
        if stream.read_buf(&mut input).await.map_err(broken)? == 0 {
            return Err("it closed the connection without an answer; does it take nodes in?".into());
        }
        let answer = read_acceptance(&input).map_err(|error| error.to_string())?;
        let Some((acceptance, size)) = answer else { continue };
        if acceptance.id == me.identity.id {
            return Err(format!(
                "it is this broker itself, or another one with the same node id {:?}; remove it from the upstream brokers, or \
                 give each broker a name of its own",
                acceptance.id
            ));
        }
        input.advance(size);
        return Ok(Accepted { stream, input, acceptance });
    }
}
