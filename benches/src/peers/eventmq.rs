//! The router of the original EventMQ, as its package installs it.

use std::fs;
use std::io;
use std::net::{SocketAddr, TcpListener};
use std::process::Command;

use crate::durable::Scratch;
use crate::eventmq::Sockets;
use crate::process::Process;

/// A running router and its directory.
#[derive(Debug)]
pub struct Router {
    /// Its process.
    pub process: Process,
    /// Addresses at which its peers connect.
    pub sockets: Sockets,
    _directory: Scratch,
}

/// Module that Python imports first; it disables logging. The router logs a line for each message, which halves its rate, so
/// a fair comparison is without logging.
const NO_LOG: &str = "import logging\nlogging.disable(logging.CRITICAL)\n";

/// Starts `program`, the `emq-router` of an environment that has the package.
///
/// # Errors
/// If it does not exist or does not start.
pub fn start(program: &str) -> io::Result<Router> {
    let directory = Scratch::new("emq-router")?;
    fs::write(directory.path().join("sitecustomize.py"), NO_LOG)?;
    let free = || -> io::Result<SocketAddr> { TcpListener::bind("127.0.0.1:0")?.local_addr() };
    let sockets = Sockets { frontend: free()?, backend: free()?, tells_all: false };
    let url = |address: SocketAddr| format!("tcp://{address}");
    let mut command = Command::new(program);
    command
        .env("PYTHONPATH", directory.path())
        .env("EVENTMQ_WAL", directory.path().join("wal.log"))
        .env("EVENTMQ_FRONTEND_ADDR", url(sockets.frontend))
        .env("EVENTMQ_BACKEND_ADDR", url(sockets.backend))
        .env("EVENTMQ_ADMINISTRATIVE_ADDR", url(free()?));
    let missing = || io::Error::other(format!("{program} is not there"));
    // It listens for clients first.
    let process = Process::listening(command, sockets.backend)?.ok_or_else(missing)?;
    Ok(Router { process, sockets, _directory: directory })
}
