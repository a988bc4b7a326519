//! Promises of encrypted listeners, kept over real sockets with certificates that are made here.

use std::net::SocketAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use mqcore_server::config::{Config, Encryption, ListenerTls};
use mqcore_server::handler::NoHandlers;
use mqcore_server::server::{Server, StartError};
use mqcore_tls::client::ClientTls;
use mqcore_tls::error::TlsConfigError;
use mqcore_tls::failure::{FailureReason, HandshakeFailure};
use mqcore_wire::codec::Limits;
use mqcore_wire::tmqp::hello::{self, Hello};
use mqcore_wire::tmqp::operation::{self, Operation};
use mqcore_wire::tmqp::{self, Frame, Kind, PREAMBLE};
use rcgen::{BasicConstraints, CertificateParams, CertifiedIssuer, DnType, IsCa, KeyPair};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::time::timeout;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;
use tokio_rustls::rustls::HandshakeKind;

/// Nothing here takes this long unless it is broken.
const PATIENCE: Duration = Duration::from_secs(20);

/// An authority and a directory for what it issues, gone with the test.
struct Authority {
    directory: PathBuf,
    issuer: CertifiedIssuer<'static, KeyPair>,
}

impl Authority {
    fn new() -> Self {
        static NEXT: AtomicU32 = AtomicU32::new(0);
        let name = format!("mqcore-tls-{}-{}", std::process::id(), NEXT.fetch_add(1, Ordering::Relaxed));
        let directory = std::env::temp_dir().join(name);
        std::fs::create_dir(&directory).expect("a directory");
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, "an authority");
        let key = KeyPair::generate().expect("a key");
        let issuer = CertifiedIssuer::self_signed(params, key).expect("an authority");
        let authority = Self { directory, issuer };
        std::fs::write(authority.ca(), authority.issuer.pem()).expect("it is written");
        authority
    }

    fn ca(&self) -> PathBuf {
        self.directory.join("ca.pem")
    }

    /// Writes a certificate and its key into one file.
    fn issue(&self, file: &str, name: &str) -> PathBuf {
        let mut params =
            CertificateParams::new(["localhost".to_owned(), "127.0.0.1".to_owned()]).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("it is signed");
        let path = self.directory.join(file);
        std::fs::write(&path, certificate.pem() + &key.serialize_pem()).expect("it is written");
        path
    }

    fn client(&self) -> ClientTls {
        ClientTls { ca: Some(self.ca()), ..ClientTls::default() }
    }
}

impl Drop for Authority {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.directory);
    }
}

fn listener(cert: &Path) -> ListenerTls {
    format!("tmqps://h?cert={}", cert.display())
        .parse::<mqcore_server::config::ListenerConfig>()
        .map(|listener| match listener.encryption {
            Encryption::Own(files) => files,
            other => panic!("{other:?}"),
        })
        .expect("a URL")
}

fn config(tls: ListenerTls) -> Config {
    Config {
        listeners: vec!["tmqps://127.0.0.1:0".parse().expect("a URL")],
        tls: Some(tls),
        auto_create_channels: true,
        auto_create_queues: true,
        ..Config::default()
    }
}

async fn start(config: Config) -> Server {
    Server::start(config, Vec::new(), Arc::new(NoHandlers)).await.expect("the server starts")
}

fn address(server: &Server) -> SocketAddr {
    server.listeners()[0].address.socket().expect("it is TCP")
}

async fn dial(
    server: &Server,
    tls: &mqcore_tls::client::LoadedClientTls,
) -> std::io::Result<TlsStream<TcpStream>> {
    let stream = TcpStream::connect(address(server)).await?;
    let name = tls.server_name("localhost").expect("a name");
    timeout(PATIENCE, TlsConnector::from(Arc::clone(&tls.config)).connect(name, stream))
        .await
        .expect("in time")
}

async fn frame(stream: &mut TlsStream<TcpStream>, input: &mut Vec<u8>) -> (Kind, u16, Vec<u8>) {
    loop {
        if let Some((frame, size)) = tmqp::decode(input, &Limits::default()).expect("sound frames") {
            let read = (frame.kind, frame.content_type, frame.payload.to_vec());
            input.drain(..size);
            return read;
        }
        let read = timeout(PATIENCE, stream.read_buf(input)).await.expect("in time").expect("it is open");
        assert_ne!(read, 0, "the server closed");
    }
}

/// Shakes TMQP's hands too; answers with what came behind it.
async fn welcome(stream: &mut TlsStream<TcpStream>) -> Vec<u8> {
    let mut bytes = PREAMBLE.to_vec();
    let mut payload = Vec::new();
    hello::encode(&Hello::default(), &mut payload).expect("a plain Hello");
    let hello = Frame { content_type: operation::HELLO, payload: &payload, ..Frame::new(Kind::SERVER) };
    tmqp::encode(&hello, &mut bytes);
    stream.write_all(&bytes).await.expect("it reads");
    stream.flush().await.expect("it reads");
    let mut echo = [0; 8];
    timeout(PATIENCE, stream.read_exact(&mut echo)).await.expect("in time").expect("it answers");
    assert_eq!(echo, PREAMBLE);
    let mut input = Vec::new();
    let (kind, content_type, _) = frame(stream, &mut input).await;
    assert_eq!((kind, content_type), (Kind::SERVER, operation::ACCEPTED));
    input
}

async fn metric(server: &Server, line: &str) -> bool {
    let mut stream =
        TcpStream::connect(server.admin().expect("it is served").address).await.expect("it listens");
    stream
        .write_all(b"GET /metrics HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\r\n")
        .await
        .expect("it reads");
    let mut page = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut page)).await.expect("in time").expect("text");
    page.lines().any(|found| found == line)
}

async fn eventually(what: &str, mut holds: impl AsyncFnMut() -> bool) {
    let start = Instant::now();
    while !holds().await {
        assert!(start.elapsed() < PATIENCE, "never: {what}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn large_and_small_messages_arrive_complete_through_tls() {
    let authority = Authority::new();
    let server = start(config(listener(&authority.issue("server.pem", "server")))).await;
    assert!(server.listeners()[0].url().starts_with("tmqps://127.0.0.1:"));
    let tls = authority.client().load().expect("sound files");
    let mut stream = dial(&server, &tls).await.expect("it shakes hands");
    let mut input = welcome(&mut stream).await;
    let join = Frame {
        content_type: Operation::JoinChannel.code(),
        id: b"join",
        target: b"large",
        pending_response: true,
        ..Frame::new(Kind::SERVER)
    };
    let mut bytes = Vec::new();
    tmqp::encode(&join, &mut bytes);
    let sizes = [0, 1, 16_383, 16_384, 16_385, 4_000_003, 7, 20_000_000];
    let bodies: Vec<Vec<u8>> =
        sizes.iter().map(|size| (0..*size).map(|at| (at % 251) as u8).collect()).collect();
    for body in &bodies {
        tmqp::encode(&Frame { target: b"large", payload: body, ..Frame::new(Kind::QUEUE) }, &mut bytes);
    }
    let (mut reading, mut writing) = tokio::io::split(stream);
    let write = tokio::spawn(async move {
        writing.write_all(&bytes).await.expect("it reads");
        writing.flush().await.expect("it reads");
        writing
    });
    let mut received = Vec::new();
    let mut joined = false;
    while received.len() < bodies.len() || !joined {
        while let Some((frame, size)) = tmqp::decode(&input, &Limits::default()).expect("sound frames") {
            match frame.kind {
                Kind::QUEUE => received.push(frame.payload.to_vec()),
                _ => joined = true,
            }
            input.drain(..size);
        }
        if received.len() < bodies.len() || !joined {
            let read = timeout(PATIENCE, reading.read_buf(&mut input)).await.expect("in time");
            assert_ne!(read.expect("it is open"), 0);
        }
    }
    assert!(received == bodies, "every byte arrived, in order");
    drop(write.await.expect("all was written"));
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn stalled_handshakes_do_not_block_clients() {
    let authority = Authority::new();
    let config = Config {
        tls_handshakes_max: 4,
        admin: Some("http://127.0.0.1:0".parse().expect("a URL")),
        ..config(listener(&authority.issue("server.pem", "server")))
    };
    let server = start(config).await;
    let tls = authority.client().load().expect("sound files");
    let mut strangers = Vec::new();
    for _ in 0..16 {
        let mut stranger = TcpStream::connect(address(&server)).await.expect("it listens");
        // The head of a record whose body never comes.
        stranger.write_all(&[0x16, 3, 1, 0x40, 0]).await.expect("it reads");
        strangers.push(stranger);
    }
    let mut stream = dial(&server, &tls).await.expect("there is room for who goes on");
    welcome(&mut stream).await;
    let pushed_out = "mqcore_tls_handshakes_failed_total{reason=\"limit\"} 0";
    assert!(!metric(&server, pushed_out).await, "strangers gave way");
    drop(strangers);
    eventually("no handshake is left", async || metric(&server, "mqcore_tls_handshakes 0").await).await;
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_handshake_that_is_never_finished_is_ended_in_time_and_counted() {
    let authority = Authority::new();
    let config = Config {
        handshake_timeout: Duration::from_millis(100),
        admin: Some("http://127.0.0.1:0".parse().expect("a URL")),
        ..config(listener(&authority.issue("server.pem", "server")))
    };
    let server = start(config).await;
    let mut silent = TcpStream::connect(address(&server)).await.expect("it listens");
    let mut scratch = [0; 16];
    let end = timeout(PATIENCE, silent.read(&mut scratch)).await.expect("in time");
    assert!(matches!(end, Ok(0) | Err(_)), "it is closed");
    let line = "mqcore_tls_handshakes_failed_total{reason=\"timeout\"} 1";
    eventually("it is counted", async || metric(&server, line).await).await;
    let none_open = "mqcore_connections{protocol=\"tmqp\",state=\"half-open\"} 0";
    eventually("its place is free", async || metric(&server, none_open).await).await;
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_takes_up_its_session_until_the_certificate_is_replaced() {
    let authority = Authority::new();
    let file = authority.issue("server.pem", "first");
    let server = start(config(listener(&file))).await;
    let tls = authority.client().load().expect("sound files");
    let mut first = dial(&server, &tls).await.expect("it shakes hands");
    assert_eq!(first.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
    // The tickets come behind the handshake.
    welcome(&mut first).await;
    let mut second = dial(&server, &tls).await.expect("it shakes hands");
    assert_eq!(second.get_ref().1.handshake_kind(), Some(HandshakeKind::Resumed));
    welcome(&mut second).await;

    authority.issue("server.pem", "second");
    server.reload_certificates().expect("the new file is sound");
    assert_eq!(server.certificates()[0].subject, "second");
    let mut third = dial(&server, &tls).await.expect("it shakes hands");
    assert_eq!(third.get_ref().1.handshake_kind(), Some(HandshakeKind::Full));
    welcome(&mut third).await;

    std::fs::write(&file, "nothing of use").expect("it is written");
    let kept = server.reload_certificates().expect_err("the new file is broken");
    assert!(matches!(kept[0].source, TlsConfigError::NoCertificate { .. }), "{}", kept[0]);
    let mut fourth = dial(&server, &tls).await.expect("the old certificate is shown");
    welcome(&mut fourth).await;
    // Open connections stay open.
    assert_eq!(server.snapshot().await.clients.len(), 4);
    drop((first, second, third, fourth));
    server.stop(Duration::ZERO).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_client_without_the_certificate_that_is_required_learns_why_it_is_refused() {
    let authority = Authority::new();
    let mut files = listener(&authority.issue("server.pem", "server"));
    files.client_ca = Some(authority.ca());
    let server = start(config(files)).await;
    let bare = authority.client().load().expect("sound files");
    // With TLS 1.3 a client is done before the server has looked, so it hears of it when it reads.
    let failure = match dial(&server, &bare).await {
        Err(error) => HandshakeFailure::of_handshake(&error),
        Ok(mut stream) => {
            let error = stream.read_u8().await.expect_err("it is refused");
            HandshakeFailure::of_conversation(&error).unwrap_or_else(|| panic!("{error}"))
        }
    };
    assert_eq!(failure.reason, FailureReason::CertificateRequired);

    let client = ClientTls { cert: Some(authority.issue("client.pem", "worker")), ..authority.client() };
    let known = client.load().expect("sound files");
    welcome(&mut dial(&server, &known).await.expect("it is let in")).await;
    server.stop(Duration::ZERO).await;
}

#[tokio::test]
async fn unusable_files_are_reported_by_name_and_cause() {
    let authority = Authority::new();
    let (one, other) = (authority.issue("one.pem", "one"), authority.issue("other.pem", "other"));
    let refused =
        async |files: ListenerTls| match Server::start(config(files), Vec::new(), Arc::new(NoHandlers)).await
        {
            Err(StartError::Tls(error)) => error,
            other => panic!("{other:?}"),
        };
    let missing = refused(listener(&authority.directory.join("missing.pem"))).await;
    assert!(matches!(missing, TlsConfigError::Unreadable { what: "certificate", .. }), "{missing}");
    let mixed = refused(ListenerTls { key: Some(other), ..listener(&one) }).await;
    assert!(matches!(mixed, TlsConfigError::Mismatch { .. }), "{mixed}");
    let bare = refused(listener(&authority.ca())).await;
    assert!(matches!(bare, TlsConfigError::NoKey { .. }), "{bare}");
    let no_ca = refused(ListenerTls { client_ca: Some("/no/such/ca.pem".into()), ..listener(&one) }).await;
    assert!(matches!(no_ca, TlsConfigError::Unreadable { what: "client authorities", .. }), "{no_ca}");
    let unnamed = Config { tls: None, ..config(listener(&one)) };
    let unnamed = Server::start(unnamed, Vec::new(), Arc::new(NoHandlers)).await;
    assert!(unnamed.is_err_and(|error| error.to_string().contains("?cert=FILE")));
}
