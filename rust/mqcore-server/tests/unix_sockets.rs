//! Promises of listeners on Unix sockets: served like any other, and a file that says who is there.
#![cfg(unix)]

use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;

use mqcore_server::config::Config;
use mqcore_server::handler::NoHandlers;
use mqcore_server::server::{Server, StartError};
use mqcore_wire::tmqp::PREAMBLE;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::{Frame, Kind, operation};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::UnixStream;

/// A directory that is gone with the test.
struct Directory(PathBuf);

impl Directory {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("mqcore-unix-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let path = std::env::temp_dir().join(name);
        std::fs::create_dir(&path).expect("a directory");
        Self(path)
    }

    fn socket(&self) -> PathBuf {
        self.0.join("a b.sock")
    }
}

impl Drop for Directory {
    fn drop(&mut self) {
        std::fs::remove_dir_all(&self.0).expect("it can be removed");
    }
}

async fn start(path: &Path, options: &str) -> Result<Server, StartError> {
    let url = format!("tmqp+unix://{}{options}", path.display()).replace(' ', "%20");
    let listeners = vec![url.parse().expect("a URL")];
    Server::start(Config { listeners, ..Config::default() }, Vec::new(), Arc::new(NoHandlers)).await
}

/// Shakes hands, and answers with what came back first.
async fn greet(path: &Path) -> [u8; 8] {
    let mut stream = UnixStream::connect(path).await.expect("it listens");
    let mut bytes = PREAMBLE.to_vec();
    let mut payload = Vec::new();
    hello::encode(&Hello::default(), &mut payload).expect("a plain Hello");
    let hello = Frame { content_type: operation::HELLO, payload: &payload, ..Frame::new(Kind::SERVER) };
    mqcore_wire::tmqp::encode(&hello, &mut bytes);
    stream.write_all(&bytes).await.expect("it reads");
    let mut echo = [0; 8];
    tokio::time::timeout(Duration::from_secs(20), stream.read_exact(&mut echo))
        .await
        .expect("in time")
        .expect("it answers");
    echo
}

#[tokio::test]
async fn a_unix_socket_is_served_like_any_other_and_gone_with_its_server() {
    let directory = Directory::new();
    let path = directory.socket();
    let server = start(&path, "").await.expect("it starts");
    assert_eq!(server.listeners()[0].url(), format!("tmqp+unix://{}", path.display()));
    assert_eq!(greet(&path).await, PREAMBLE);
    server.stop(Duration::ZERO).await;
    assert!(!path.exists());
}

#[tokio::test]
async fn only_the_owner_may_connect_unless_the_url_sets_a_mode() {
    let directory = Directory::new();
    let path = directory.socket();
    let mode = || std::fs::metadata(&path).expect("it is there").permissions().mode() & 0o777;
    let server = start(&path, "").await.expect("it starts");
    assert_eq!(mode(), 0o600);
    server.stop(Duration::ZERO).await;
    let server = start(&path, "?mode=660").await.expect("it starts");
    assert_eq!(mode(), 0o660);
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn a_socket_left_behind_is_replaced_but_one_in_use_and_any_other_file_is_not() {
    let directory = Directory::new();
    let path = directory.socket();
    // The standard library leaves the file, as a killed server does.
    drop(std::os::unix::net::UnixListener::bind(&path).expect("it binds"));
    assert!(path.exists());
    let server = start(&path, "").await.expect("nobody serves it");
    let error = start(&path, "").await.expect_err("somebody serves it").to_string();
    assert!(error.contains("a b.sock"), "{error}");
    assert_eq!(greet(&path).await, PREAMBLE, "whoever is there is not disturbed");
    server.stop(Duration::ZERO).await;

    std::fs::write(&path, "precious").expect("a file");
    assert!(matches!(start(&path, "").await, Err(StartError::Bind { .. })));
    assert_eq!(std::fs::read_to_string(&path).expect("still there"), "precious");
}
