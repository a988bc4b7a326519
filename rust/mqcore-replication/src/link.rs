//! The bytes between two members: TCP, with or without TLS.

use std::io;
use std::path::PathBuf;
use std::time::Duration;

use mqcore_tls::client::ClientTls;
use mqcore_tls::error::TlsConfigError;
use mqcore_tls::listener::{ClientCertificates, ListenerTls};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::{TlsAcceptor, TlsConnector};

const CONNECT_TIME: Duration = Duration::from_secs(3);
/// Time for a handshake of TLS.
const HANDSHAKE_TIME: Duration = Duration::from_secs(5);
/// Time after which a connection ends whose bytes nothing acknowledges.
#[cfg(target_os = "linux")]
const UNANSWERED_MAX: Duration = Duration::from_secs(3);

/// A connection between two members.
pub trait MemberStream: AsyncRead + AsyncWrite + Unpin + Send {}

impl<S: AsyncRead + AsyncWrite + Unpin + Send> MemberStream for S {}

/// The certificate of a node, and the authorities of the others' certificates. Both sides of a connection show one. The files
/// are read for each connection, so that new certificates need no restart.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MemberTls {
    /// File with the certificate of this node, which names its host, followed by intermediate certificates.
    pub cert: PathBuf,
    /// File with its private key.
    pub key: PathBuf,
    /// File with the authorities of all nodes' certificates.
    pub ca: PathBuf,
}

impl MemberTls {
    /// Whether the files can be used.
    ///
    /// # Errors
    /// [`TlsConfigError`] names the file and the problem.
    pub fn check(&self) -> Result<(), TlsConfigError> {
        for warning in self.answerer().load(&[])?.warnings {
            tracing::warn!(%warning, "the certificate of this node of the cluster");
        }
        self.caller().load().map(drop)
    }

    fn caller(&self) -> ClientTls {
        let (ca, cert, key) = (self.ca.clone(), self.cert.clone(), self.key.clone());
        ClientTls { ca: Some(ca), cert: Some(cert), key: Some(key), ..ClientTls::default() }
    }

    fn answerer(&self) -> ListenerTls {
        ListenerTls {
            cert: self.cert.clone(),
            key: Some(self.key.clone()),
            client_ca: Some(self.ca.clone()),
            client_cert: ClientCertificates::Required,
        }
    }

    async fn call(&self, stream: TcpStream, host: &str) -> io::Result<Box<dyn MemberStream>> {
        let loaded = self.caller().load().map_err(io::Error::other)?;
        let name = loaded.server_name(host).map_err(io::Error::other)?;
        Ok(Box::new(TlsConnector::from(loaded.config).connect(name, stream).await?))
    }

    async fn answer(&self, stream: TcpStream) -> io::Result<Box<dyn MemberStream>> {
        let loaded = self.answerer().load(&[]).map_err(io::Error::other)?;
        Ok(Box::new(TlsAcceptor::from(loaded.config).accept(stream).await?))
    }
}

/// Connects to the member at `HOST:PORT`.
///
/// # Errors
/// It cannot be reached, or has no certificate that is trusted here.
pub(crate) async fn connect(address: &str, tls: Option<&MemberTls>) -> io::Result<Box<dyn MemberStream>> {
    let stream = tokio::time::timeout(CONNECT_TIME, TcpStream::connect(address)).await??;
    prepare(&stream)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let host = host.trim_start_matches('[').trim_end_matches(']');
    tokio::time::timeout(HANDSHAKE_TIME, tls.call(stream, host)).await?
}

/// Begins a connection that another member has opened.
///
/// # Errors
/// The connection ends, or the caller has no certificate that is trusted here.
pub(crate) async fn accept(stream: TcpStream, tls: Option<&MemberTls>) -> io::Result<Box<dyn MemberStream>> {
    prepare(&stream)?;
    let Some(tls) = tls else { return Ok(Box::new(stream)) };
    tokio::time::timeout(HANDSHAKE_TIME, tls.answer(stream)).await?
}

/// Ends a connection if the other side does not acknowledge for a while. TCP would try for many minutes, with longer and longer
/// pauses, and use them up even after the network is back.
fn prepare(stream: &TcpStream) -> io::Result<()> {
    stream.set_nodelay(true)?;
    #[cfg(target_os = "linux")]
    rustix::net::sockopt::set_tcp_user_timeout(stream, UNANSWERED_MAX.as_millis() as u32)?;
    Ok(())
}
