//! Writes to a connection from the thread of a caller, which saves the wake-up of the connection task.

#[cfg(unix)]
pub(crate) use self::unix::SocketWriter;
#[cfg(not(unix))]
pub(crate) use self::unsupported::SocketWriter;

#[cfg(unix)]
mod unix {
    use std::io::Write;
    use std::net::TcpStream;
    use std::os::fd::AsFd;

    use crate::dial::Stream;

    /// Another handle of the socket that the connection task reads and writes.
    #[derive(Debug)]
    pub(crate) struct SocketWriter(
        // Also for Unix sockets: this type writes without SIGPIPE.
        TcpStream,
    );

    impl SocketWriter {
        /// The writer of a connection; `None` if its bytes do not go to a socket unchanged.
        pub(crate) fn of(stream: &Stream) -> Option<Self> {
            let descriptor = match stream {
                Stream::Tcp(stream) => stream.as_fd(),
                Stream::Unix(stream) => stream.as_fd(),
                Stream::Tls(_) | Stream::Local(_) => return None,
            };
            // Without another descriptor, the connection task writes everything.
            descriptor.try_clone_to_owned().ok().map(|descriptor| Self(descriptor.into()))
        }

        /// Writes as many bytes as the socket takes at once, which may be none.
        pub(crate) fn write(&self, bytes: &[u8]) -> usize {
            // The connection task meets the error too, and ends the connection.
            (&self.0).write(bytes).unwrap_or(0)
        }
    }
}

#[cfg(not(unix))]
mod unsupported {
    use std::convert::Infallible;

    use crate::dial::Stream;

    /// Another handle of the socket that the connection task reads and writes.
    #[derive(Debug)]
    pub(crate) struct SocketWriter(Infallible);

    impl SocketWriter {
        /// The writer of a connection: on this system, the connection task writes everything.
        pub(crate) fn of(_: &Stream) -> Option<Self> {
            None
        }

        pub(crate) fn write(&self, _: &[u8]) -> usize {
            match self.0 {}
        }
    }
}
