//! Wakes an event loop from another thread, through a socket that the loop watches.

#[cfg(unix)]
pub(super) use self::unix::{WakeReceiver, WakeSender, pair};
#[cfg(not(unix))]
pub(super) use self::unsupported::{WakeReceiver, WakeSender, pair};

#[cfg(unix)]
mod unix {
    use std::io::{self, Read, Write};
    use std::net::TcpStream;
    use std::os::fd::{AsRawFd, OwnedFd};
    use std::os::unix::net::UnixStream;

    /// The end of the thread that wakes.
    #[derive(Debug)]
    pub(crate) struct WakeSender(
        // Of this type because it writes without SIGPIPE.
        TcpStream,
    );

    /// The end of the event loop.
    #[derive(Debug)]
    pub(crate) struct WakeReceiver(UnixStream);

    /// Creates both ends; `None` if event loops of this system cannot watch sockets.
    pub(crate) fn pair() -> io::Result<Option<(WakeSender, WakeReceiver)>> {
        let (sender, receiver) = UnixStream::pair()?;
        sender.set_nonblocking(true)?;
        receiver.set_nonblocking(true)?;
        Ok(Some((WakeSender(OwnedFd::from(sender).into()), WakeReceiver(receiver))))
    }

    impl WakeSender {
        /// Wakes the event loop, unless it is closed.
        pub(crate) fn wake(&self) {
            // A full socket has woken it already.
            drop((&self.0).write(&[1]));
        }
    }

    impl WakeReceiver {
        /// The descriptor that the event loop has to watch.
        pub(crate) fn descriptor(&self) -> i32 {
            self.0.as_raw_fd()
        }

        /// Takes back all wake-ups so far.
        pub(crate) fn drain(&self) {
            let mut bytes = [0; 64];
            while matches!((&self.0).read(&mut bytes), Ok(read) if read == bytes.len()) {}
        }
    }
}

#[cfg(not(unix))]
mod unsupported {
    use std::convert::Infallible;
    use std::io;

    /// The end of the thread that wakes.
    #[derive(Debug)]
    pub(crate) struct WakeSender(Infallible);

    /// The end of the event loop.
    #[derive(Debug)]
    pub(crate) struct WakeReceiver(Infallible);

    /// Creates both ends; `None` if event loops of this system cannot watch sockets.
    pub(crate) fn pair() -> io::Result<Option<(WakeSender, WakeReceiver)>> {
        Ok(None)
    }

    impl WakeSender {
        pub(crate) fn wake(&self) {
            match self.0 {}
        }
    }

    impl WakeReceiver {
        pub(crate) fn descriptor(&self) -> i32 {
            match self.0 {}
        }

        pub(crate) fn drain(&self) {
            match self.0 {}
        }
    }
}
