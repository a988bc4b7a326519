//! What carries the octets of a connection.

use tokio::io::{AsyncRead, AsyncWrite, DuplexStream};
use tokio::net::TcpStream;
use tokio_rustls::server::TlsStream;

/// A stream that a connection can live on.
pub(crate) trait Transport: AsyncRead + AsyncWrite + Unpin + Send + 'static {
    /// Reads what has arrived, without asking the event loop whether anything has. `None`: nothing has, this kind cannot,
    /// or something is wrong, which reading in the ordinary way will tell.
    fn read_now(&self, _buffer: &mut [u8]) -> Option<usize> {
        None
    }
}

#[cfg(target_os = "linux")]
fn receive(socket: impl std::os::fd::AsFd, buffer: &mut [u8]) -> Option<usize> {
    rustix::net::recv(socket, buffer, rustix::net::RecvFlags::DONTWAIT).ok().map(|(_, read)| read)
}

impl Transport for TcpStream {
    #[cfg(target_os = "linux")]
    fn read_now(&self, buffer: &mut [u8]) -> Option<usize> {
        receive(self, buffer)
    }
}

#[cfg(unix)]
impl Transport for tokio::net::UnixStream {
    #[cfg(target_os = "linux")]
    fn read_now(&self, buffer: &mut [u8]) -> Option<usize> {
        receive(self, buffer)
    }
}

impl Transport for TlsStream<TcpStream> {}

/// Within this process.
impl Transport for DuplexStream {}
