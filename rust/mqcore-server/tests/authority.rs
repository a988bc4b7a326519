//! Promises about who may do what, kept over real sockets: who gets in, what is denied and leaves no trace, what is written
//! down, and what ends with a revoked token.

use crate::peer;

use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use mqcore_authority::password::PasswordHash;
use mqcore_authority::record::{Restrictions, Token, User};
use mqcore_authority::rule::PermissionRule;
use mqcore_authority::token::{self, ENTROPY_BYTES};
use mqcore_broker::model::effect::Question;
use mqcore_server::authority::AuthorityConfig;
use mqcore_server::authority::audit::AuditTarget;
use mqcore_server::authority::port::{AuthorityAnswer, AuthorityPort, AuthorityQuestion, QuestionSubject};
use mqcore_server::authority::store::{UserStore, random};
use mqcore_server::config::{Config, ListenerConfig, Protocol};
use mqcore_server::handler::{AnswerSink, HandlerPort, NoHandlers};
use mqcore_server::server::{Server, StartError};
use mqcore_wire::tmqp::hello::Hello;
use mqcore_wire::tmqp::operation::{self, Operation, status};
use mqcore_wire::tmqp::{Frame, Kind};
use peer::{Directory, PATIENCE, Peer};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::task::JoinSet;
use tokio::time::timeout;

/// A directory that goes with the test.
struct Scratch(Directory);

impl Scratch {
    fn new() -> Self {
        Self(Directory::new())
    }

    fn store(&self) -> UserStore {
        UserStore::of_data_dir(&self.0)
    }

    fn audit(&self) -> PathBuf {
        self.0.join("audit.jsonl")
    }

    /// Adds a token and returns its text.
    fn token(&self, name: &str, allow: &[&str]) -> String {
        let (record, text) = token_of(name, allow, None);
        self.store().change(|records| Ok(records.add_token(record)?)).expect("a token is added");
        text
    }

    /// Audit lines, once there are as many as `wanted` that contain `word`.
    async fn lines(&self, word: &str, wanted: usize) -> Vec<serde_json::Value> {
        let until = Instant::now() + PATIENCE;
        loop {
            let text = std::fs::read_to_string(self.audit()).unwrap_or_default();
            let found: Vec<serde_json::Value> = text
                .lines()
                .filter(|line| line.contains(word))
                .map(|line| serde_json::from_str(line).expect("a line is JSON"))
                .collect();
            if found.len() >= wanted {
                return found;
            }
            assert!(Instant::now() < until, "audit log without {wanted} of {word}: {text}");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    }
}

fn rules(allow: &[&str]) -> Vec<PermissionRule> {
    allow.iter().map(|rule| rule.parse().expect("a rule")).collect()
}

fn token_of(name: &str, allow: &[&str], expires_ms: Option<u64>) -> (Token, String) {
    let minted = token::mint(random::<ENTROPY_BYTES>().expect("random numbers"));
    let record = Token {
        id: minted.id,
        name: name.into(),
        hash: minted.hash,
        allow: rules(allow),
        expires_ms,
        restrict: Restrictions::default(),
    };
    (record, minted.text)
}

fn user(name: &str, password: &str, allow: &[&str]) -> User {
    User {
        name: name.into(),
        password: Some(PasswordHash::of(password, [7; 16]).expect("a password")),
        certificate: None,
        allow: rules(allow),
        restrict: Restrictions::default(),
    }
}

fn listening(scratch: &Scratch) -> Config {
    Config {
        listeners: vec!["tmqp://127.0.0.1:0".parse().expect("a URL")],
        auto_create_channels: true,
        auto_create_queues: true,
        authority: AuthorityConfig {
            store: Some(scratch.store().path().to_path_buf()),
            audit: Some(AuditTarget::File(scratch.audit())),
            ..AuthorityConfig::default()
        },
        ..Config::default()
    }
}

async fn started(config: Config) -> (Server, SocketAddr) {
    let server = Server::start(config, Vec::new(), Arc::new(NoHandlers)).await.expect("the server starts");
    let address = server.listeners()[0].address.socket().expect("a TCP listener");
    (server, address)
}

/// Says Hello with a token; with the status of the answer.
async fn connect(address: SocketAddr, token: Option<&str>) -> (Peer<TcpStream>, u16) {
    let stream = TcpStream::connect(address).await.expect("the listener is there");
    let hello = Hello { client_token: token, ..Hello::default() };
    let (peer, answer) = Peer::shake_hands(stream, &hello).await;
    (peer, answer.content_type)
}

async fn welcome(address: SocketAddr, token: Option<&str>) -> Peer<TcpStream> {
    let (peer, answer) = connect(address, token).await;
    assert_eq!(answer, operation::ACCEPTED);
    peer
}

#[tokio::test]
async fn without_users_loopback_clients_may_do_everything() {
    let scratch = Scratch::new();
    let (server, address) = started(listening(&scratch)).await;
    let mut peer = welcome(address, None).await;
    assert_eq!(peer.operate(Operation::JoinChannel, "orders").await, status::OK);
    assert_eq!(peer.operate(Operation::ClientList, "").await, status::OK);
    server.stop(PATIENCE).await;
    assert!(!scratch.audit().exists() || std::fs::read(scratch.audit()).unwrap().is_empty());
}

#[tokio::test]
async fn with_a_user_bad_credentials_are_rejected() {
    let scratch = Scratch::new();
    let good = scratch.token("deploy", &["*"]);
    scratch.store().change(|records| Ok(records.add_user(user("ann", "correct horse", &["*"]))?)).unwrap();
    let (server, address) = started(listening(&scratch)).await;
    for refused in [
        None,
        Some("mqt_000000000000_AAAA"),
        Some("ann"),
        Some("ann:correct horsf"),
        Some("bob:correct horse"),
        Some("Basic nonsense"),
        Some(&good[..good.len() - 1]),
    ] {
        let (peer, answer) = connect(address, refused).await;
        assert_eq!(answer, 401, "{refused:?}");
        peer.closed().await;
    }
    let mut peer = welcome(address, Some(&format!("Bearer {good}"))).await;
    assert_eq!(peer.operate(Operation::ClientList, "").await, status::OK);
    welcome(address, Some("ann:correct horse")).await;
    let denied = scratch.lines("denied", 7).await;
    assert!(denied.iter().all(|line| line["event"] == "login" && line["protocol"] == "tmqp"));
    assert!(denied.iter().all(|line| line["address"].as_str().unwrap().starts_with("127.0.0.1:")));
    let allowed = scratch.lines("allowed", 2).await;
    assert_eq!((&allowed[0]["who"], &allowed[0]["by"]), (&"deploy".into(), &"token".into()));
    assert_eq!((&allowed[1]["who"], &allowed[1]["by"]), (&"ann".into(), &"user".into()));
    server.stop(PATIENCE).await;
    let log = std::fs::read_to_string(scratch.audit()).unwrap();
    for secret in ["correct hors", &good[18..], "AAAA", "nonsense"] {
        assert!(!log.contains(secret), "a secret is in the audit log");
    }
}

#[tokio::test]
async fn a_denied_action_is_answered_and_leaves_no_trace_but_its_audit_line() {
    let scratch = Scratch::new();
    let scoped = scratch.token("scoped", &["push:orders/*", "join:orders", "receive:orders/*"]);
    let admin = scratch.token("admin", &["*"]);
    let (server, address) = started(listening(&scratch)).await;
    let mut peer = welcome(address, Some(&scoped)).await;
    peer.publish("invoices", "m1", b"m1").await;
    let refused = peer.receive().await.unwrap();
    assert_eq!((refused.kind, refused.content_type, &refused.id[..]), (Kind::RESPONSE, 401, &b"m1"[..]));
    assert!(String::from_utf8_lossy(&refused.headers).contains("push on invoices/0"));
    assert_eq!(peer.operate(Operation::JoinChannel, "invoices").await, 401);
    assert_eq!(peer.operate(Operation::CreateChannel, "invoices").await, 401);
    assert_eq!(peer.operate(Operation::ClientList, "").await, 401);
    assert_eq!(peer.operate(Operation::ChannelList, "").await, 401);
    assert_eq!(peer.operate(Operation::JoinChannel, "orders").await, status::OK);
    peer.publish("orders", "m2", b"m2").await;
    assert_eq!(peer.receive().await.unwrap().payload, b"m2");

    let snapshot = server.snapshot().await;
    let channels: Vec<_> = snapshot.channels.iter().map(|channel| channel.channel.as_str()).collect();
    assert_eq!(channels, ["orders"]);
    assert_eq!(snapshot.refused, 0, "the broker has not even heard of it");
    let denied = scratch.lines("denied", 5).await;
    let seen: Vec<_> = denied.iter().map(|line| (&line["action"], &line["resource"])).collect();
    assert_eq!(seen[0], (&"push".into(), &"invoices/0".into()));
    assert_eq!(seen[1], (&"join".into(), &"invoices".into()));
    assert_eq!(seen[3], (&"administer".into(), &"*".into()));
    assert!(denied.iter().all(|line| line["who"] == "scoped" && line["why"] == "no rule allows it"));
    let mut peer = welcome(address, Some(&admin)).await;
    assert_eq!(peer.operate(Operation::ChannelList, "").await, status::OK);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn to_join_is_to_receive_every_queue_so_both_are_needed() {
    let scratch = Scratch::new();
    let one_queue = scratch.token("one", &["join:orders", "receive:orders/1"]);
    let receiver = scratch.token("receiver", &["receive:orders/*"]);
    let (server, address) = started(listening(&scratch)).await;
    for token in [one_queue, receiver] {
        let mut peer = welcome(address, Some(&token)).await;
        assert_eq!(peer.operate(Operation::JoinChannel, "orders").await, 401);
    }
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_queue_cannot_be_created_to_push_where_its_creator_may_not() {
    let scratch = Scratch::new();
    let token = scratch.token("scoped", &["create:orders/*", "push:orders/*"]);
    let (server, address) = started(listening(&scratch)).await;
    let mut peer = welcome(address, Some(&token)).await;
    for (dead_letter, expected) in [("invoices/1", 401), ("orders/9", status::OK)] {
        let options = format!(r#"{{"DeadLetter":"{dead_letter}"}}"#);
        let frame = Frame {
            content_type: Operation::CreateQueue.code(),
            id: b"create",
            target: b"orders",
            headers: b"Queue-Id:5\r\n",
            payload: options.as_bytes(),
            pending_response: true,
            ..Frame::new(Kind::SERVER)
        };
        peer.send(&frame).await;
        assert_eq!(peer.receive().await.unwrap().content_type, expected, "{dead_letter}");
    }
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_revoked_token_ends_the_connections_that_used_it_and_no_other() {
    let scratch = Scratch::new();
    let (record, text) = token_of("leaked", &["*"], None);
    let id = record.id.clone();
    scratch.store().change(|records| Ok(records.add_token(record)?)).unwrap();
    let other = scratch.token("other", &["*"]);
    let (server, address) = started(listening(&scratch)).await;
    let revoked = welcome(address, Some(&text)).await;
    let mut kept = welcome(address, Some(&other)).await;
    scratch.store().change(|records| Ok(records.remove_token(&id)?)).unwrap();
    revoked.closed().await;
    assert_eq!(kept.operate(Operation::ClientList, "").await, status::OK);
    let (_, answer) = connect(address, Some(&text)).await;
    assert_eq!(answer, 401);
    let lines = scratch.lines("revoked", 1).await;
    assert_eq!((lines.len(), &lines[0]["who"]), (1, &"leaked".into()));
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_token_that_expires_takes_its_connections_with_it() {
    let scratch = Scratch::new();
    let soon = std::time::SystemTime::UNIX_EPOCH.elapsed().unwrap().as_millis() as u64 + 700;
    let (record, text) = token_of("short", &["*"], Some(soon));
    scratch.store().change(|records| Ok(records.add_token(record)?)).unwrap();
    let (server, address) = started(listening(&scratch)).await;
    welcome(address, Some(&text)).await.closed().await;
    let (_, answer) = connect(address, Some(&text)).await;
    assert_eq!(answer, 401);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn creating_the_first_user_closes_unauthenticated_connections() {
    let scratch = Scratch::new();
    let (server, address) = started(listening(&scratch)).await;
    let early = welcome(address, None).await;
    let token = scratch.token("first", &["*"]);
    server.reload_authority().await.unwrap();
    early.closed().await;
    welcome(address, Some(&token)).await;
    // And the last one does not open the door again.
    scratch.store().change(|records| Ok(std::mem::take(records))).unwrap();
    server.reload_authority().await.unwrap();
    let (_, answer) = connect(address, None).await;
    assert_eq!(answer, 401);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_reload_keeps_connections_that_have_not_logged_in_yet() {
    let scratch = Scratch::new();
    let first = scratch.token("first", &["*"]);
    let (server, address) = started(listening(&scratch)).await;
    let silent = TcpStream::connect(address).await.expect("the listener is there");
    // Connections are accepted in their order: from here on the silent one is known to the server.
    let mut other = welcome(address, Some(&first)).await;
    let second = scratch.token("second", &["*"]);
    server.reload_authority().await.unwrap();
    assert_eq!(other.operate(Operation::ClientList, "").await, status::OK);
    Peer::welcome(silent, &Hello { client_token: Some(&second), ..Hello::default() }).await;
    assert!(!std::fs::read_to_string(scratch.audit()).unwrap().contains("revoked"));
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn a_store_that_cannot_be_read_changes_nothing() {
    let scratch = Scratch::new();
    let token = scratch.token("kept", &["*"]);
    let (server, address) = started(listening(&scratch)).await;
    let mut peer = welcome(address, Some(&token)).await;
    std::fs::write(scratch.store().path(), "{").unwrap();
    assert!(server.reload_authority().await.is_err());
    assert_eq!(peer.operate(Operation::ClientList, "").await, status::OK);
    welcome(address, Some(&token)).await;
    server.stop(PATIENCE).await;
    assert!(matches!(
        Server::start(listening(&scratch), Vec::new(), Arc::new(NoHandlers)).await,
        Err(StartError::Authority(_))
    ));
}

#[tokio::test]
async fn elsewhere_than_on_loopback_one_listens_only_with_users_or_if_told_to() {
    let scratch = Scratch::new();
    let listener: ListenerConfig = "tmqp://0.0.0.0:0".parse().unwrap();
    let config = || Config { listeners: vec![listener.clone()], ..listening(&scratch) };
    let refused = Server::start(config(), Vec::new(), Arc::new(NoHandlers)).await.unwrap_err();
    assert!(matches!(refused, StartError::NotLoopback { .. }));
    assert!(refused.to_string().contains("mqcore user add"));
    let trusting = Config { allow_remote: true, ..config() };
    let server = Server::start(trusting, Vec::new(), Arc::new(NoHandlers)).await.unwrap();
    server.stop(PATIENCE).await;
    scratch.token("someone", &["push:orders/*"]);
    let server = Server::start(config(), Vec::new(), Arc::new(NoHandlers)).await.unwrap();
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn peers_without_credentials_have_the_anonymous_permissions() {
    let scratch = Scratch::new();
    scratch.token("someone", &["*"]);
    let mut config = listening(&scratch);
    config.authority.records.anonymous = rules(&["push:public/*"]);
    let (server, address) = started(config).await;
    let mut peer = welcome(address, None).await;
    assert_eq!(peer.operate(Operation::ClientList, "").await, 401);
    peer.publish("private", "m", b"m").await;
    assert_eq!(peer.receive().await.unwrap().content_type, 401);
    let (_, answer) = connect(address, Some("wrong")).await;
    assert_eq!(answer, 401, "wrong credentials are never taken for none");
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn connections_within_the_process_need_no_credentials() {
    let scratch = Scratch::new();
    scratch.token("someone", &["push:orders/*"]);
    let (server, _) = started(listening(&scratch)).await;
    let (mut peer, answer) = Peer::shake_hands(server.connect_local(Protocol::Tmqp), &Hello::default()).await;
    assert_eq!(answer.content_type, operation::ACCEPTED);
    assert_eq!(peer.operate(Operation::ClientList, "").await, status::OK);
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn password_guesses_are_throttled_and_tokens_are_not() {
    let scratch = Scratch::new();
    scratch.store().change(|records| Ok(records.add_user(user("ann", "correct horse", &["*"]))?)).unwrap();
    let token = scratch.token("other", &["*"]);
    let (server, address) = started(listening(&scratch)).await;
    // At once: on a busy machine, checking one after the other takes so long that more of them are allowed.
    let mut guesses = JoinSet::new();
    for _ in 0..14 {
        guesses.spawn(async move { connect(address, Some("ann:wrong")).await.1 });
    }
    let busy = guesses.join_all().await.into_iter().filter(|&answer| answer == 503).count();
    assert!(busy >= 1, "the eleventh guess within a few seconds is not checked any more");
    welcome(address, Some(&token)).await;
    server.stop(PATIENCE).await;
}

/// An authenticator that answers as its function says.
struct Authenticator<F> {
    answers: F,
    authenticates: bool,
    cache: Duration,
    asked: Mutex<Vec<String>>,
    /// Questions without an answer: held, so that they are not dropped either.
    unanswered: Mutex<Vec<AuthorityQuestion>>,
}

struct Port<F>(Arc<Authenticator<F>>);

impl<F: Send + Sync + 'static + Fn(&str) -> Option<AuthorityAnswer>> HandlerPort for Port<F> {
    fn ask(&self, _: Vec<Question>, _: &Arc<dyn AnswerSink>) {}

    fn authority(&self) -> Option<Arc<dyn AuthorityPort>> {
        let port: Arc<dyn AuthorityPort> = self.0.clone();
        Some(port)
    }
}

impl<F: Send + Sync + Fn(&str) -> Option<AuthorityAnswer>> AuthorityPort for Authenticator<F> {
    fn authenticates(&self) -> bool {
        self.authenticates
    }

    fn authorizes(&self) -> bool {
        true
    }

    fn timeout(&self) -> Duration {
        Duration::from_millis(300)
    }

    fn cache(&self) -> Duration {
        self.cache
    }

    fn ask(&self, questions: Vec<AuthorityQuestion>) {
        for question in questions {
            let text = match &question.about {
                QuestionSubject::Login(view) => {
                    format!("login {}", view.token.as_ref().map_or("", |token| token.expose()))
                }
                QuestionSubject::Action { action, resource, .. } => format!("{action} {resource}"),
            };
            self.asked.lock().unwrap().push(text.clone());
            match (self.answers)(&text) {
                Some(answer) => drop(question.reply.send(answer)),
                None => self.unanswered.lock().unwrap().push(question),
            }
        }
    }
}

async fn with_authenticator<F>(
    scratch: &Scratch,
    authenticates: bool,
    cache: Duration,
    answers: F,
) -> (Server, SocketAddr, Arc<Authenticator<F>>)
where
    F: Send + Sync + 'static + Fn(&str) -> Option<AuthorityAnswer>,
{
    let authenticator = Arc::new(Authenticator {
        answers,
        authenticates,
        cache,
        asked: Mutex::default(),
        unanswered: Mutex::default(),
    });
    let port = Arc::new(Port(authenticator.clone()));
    let server = Server::start(listening(scratch), Vec::new(), port).await.expect("the server starts");
    let address = server.listeners()[0].address.socket().expect("a TCP listener");
    (server, address, authenticator)
}

#[tokio::test]
async fn an_authenticator_decides_about_logins_and_a_timeout_rejects_them() {
    let scratch = Scratch::new();
    let (server, address, _) = with_authenticator(&scratch, true, Duration::ZERO, |asked| match asked {
        "login good" => {
            Some(AuthorityAnswer::Identity { name: "friend".into(), allow: rules(&["push:orders/*"]) })
        }
        "login silent" => None,
        "login broken" => Some(AuthorityAnswer::Failed),
        "login nonsense" => Some(AuthorityAnswer::Allowed),
        "login known" => Some(AuthorityAnswer::Known),
        _ if asked.starts_with("login") => Some(AuthorityAnswer::Denied),
        _ => Some(AuthorityAnswer::Allowed),
    })
    .await;
    for token in [None, Some("silent"), Some("broken"), Some("nonsense"), Some("known"), Some("bad")] {
        let (peer, answer) = connect(address, token).await;
        assert_eq!(answer, 401, "{token:?}");
        peer.closed().await;
    }
    let mut peer = welcome(address, Some("good")).await;
    peer.publish("invoices", "m", b"m").await;
    assert_eq!(peer.receive().await.unwrap().content_type, 401, "rules hold whatever the authorizer says");
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn commands_wait_for_the_authorizer_in_their_order_and_silence_is_no() {
    let scratch = Scratch::new();
    let (server, address, authorizer) =
        with_authenticator(&scratch, false, Duration::from_secs(60), |asked| match asked {
            "push slow/0" => None,
            "push bad/0" => Some(AuthorityAnswer::Denied),
            _ => Some(AuthorityAnswer::Allowed),
        })
        .await;
    let mut consumer = welcome(address, None).await;
    for channel in ["good", "slow"] {
        assert_eq!(consumer.operate(Operation::JoinChannel, channel).await, status::OK);
    }
    let mut producer = welcome(address, None).await;
    producer.publish("slow", "s", b"s").await;
    producer.publish("bad", "b", b"b").await;
    for number in 0..20 {
        producer.publish("good", &format!("g{number}"), format!("g{number}").as_bytes()).await;
    }
    // Other connections do not wait for the verdict about the producer.
    let started = Instant::now();
    let mut other = welcome(address, None).await;
    other.publish("good", "other", b"other").await;
    assert_eq!(consumer.receive().await.unwrap().payload, b"other");
    assert!(started.elapsed() < Duration::from_millis(290));
    for refused in ["s", "b"] {
        let answer = producer.receive().await.unwrap();
        assert_eq!((answer.content_type, &answer.id[..]), (401, refused.as_bytes()));
    }
    for number in 0..20 {
        assert_eq!(consumer.receive().await.unwrap().payload, format!("g{number}").as_bytes());
    }
    let asked = authorizer.asked.lock().unwrap().iter().filter(|asked| *asked == "push good/0").count();
    assert_eq!(asked, 2, "once for each connection, as long as the answer may be used again");
    server.stop(PATIENCE).await;
}

#[tokio::test]
async fn an_authorizer_whose_answers_are_not_kept_is_asked_for_every_batch() {
    let scratch = Scratch::new();
    let (server, address, authorizer) =
        with_authenticator(&scratch, false, Duration::ZERO, |_| Some(AuthorityAnswer::Allowed)).await;
    let mut peer = welcome(address, None).await;
    for _ in 0..5 {
        assert_eq!(peer.operate(Operation::ChannelList, "").await, status::OK);
    }
    let asked = authorizer.asked.lock().unwrap().iter().filter(|asked| *asked == "administer *").count();
    assert_eq!(asked, 5);
    server.stop(PATIENCE).await;
}

/// One HTTP request; status and body.
async fn http(address: SocketAddr, method: &str, page: &str, authorization: &str) -> (u16, String) {
    let mut stream = TcpStream::connect(address).await.expect("the admin side is there");
    let header =
        if authorization.is_empty() { String::new() } else { format!("Authorization: {authorization}\r\n") };
    let request = format!("{method} {page} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n{header}\r\n");
    stream.write_all(request.as_bytes()).await.unwrap();
    let mut answer = String::new();
    timeout(PATIENCE, stream.read_to_string(&mut answer)).await.unwrap().unwrap();
    let status = answer.split(' ').nth(1).unwrap().parse().unwrap();
    (status, answer)
}

#[tokio::test]
async fn the_admin_side_is_read_by_administrators_and_changed_with_a_token_only() {
    let scratch = Scratch::new();
    let admin_side = |scratch: &Scratch| Config {
        admin: Some("http://127.0.0.1:0".parse().unwrap()),
        listeners: Vec::new(),
        ..listening(scratch)
    };
    let server = Server::start(admin_side(&scratch), Vec::new(), Arc::new(NoHandlers)).await.unwrap();
    let address = server.admin().unwrap().address;
    assert_eq!(http(address, "GET", "/overview", "").await.0, 200);
    let (status, answer) = http(address, "POST", "/authority/reload", "").await;
    assert_eq!(status, 401);
    assert!(answer.contains("mqcore token create"), "{answer}");
    server.stop(PATIENCE).await;

    let admin = scratch.token("admin", &["administer"]);
    let metrics = scratch.token("metrics", &["administer:/metrics"]);
    let pusher = scratch.token("pusher", &["push"]);
    scratch.store().change(|records| Ok(records.add_user(user("ann", "correct horse", &["*"]))?)).unwrap();
    let server = Server::start(admin_side(&scratch), Vec::new(), Arc::new(NoHandlers)).await.unwrap();
    let address = server.admin().unwrap().address;
    let bearer = |token: &str| format!("Bearer {token}");
    for (method, page, authorization, expected) in [
        ("GET", "/livez", String::new(), 200),
        ("GET", "/readyz", String::new(), 200),
        ("GET", "/metrics", String::new(), 401),
        ("GET", "/nowhere", String::new(), 401),
        ("GET", "/metrics", bearer(&metrics), 200),
        ("GET", "/overview", bearer(&metrics), 403),
        ("GET", "/overview", bearer(&pusher), 403),
        ("GET", "/overview", bearer("wrong"), 401),
        ("GET", "/overview", bearer(&admin), 200),
        ("GET", "/nowhere", bearer(&admin), 404),
        ("GET", "/overview", "Basic YW5uOmNvcnJlY3QgaG9yc2U=".into(), 200),
        ("POST", "/authority/reload", "Basic YW5uOmNvcnJlY3QgaG9yc2U=".into(), 401),
        ("POST", "/authority/reload", bearer(&metrics), 403),
        ("POST", "/authority/reload", bearer(&admin), 200),
        ("DELETE", "/overview", String::new(), 401),
        ("DELETE", "/overview", bearer(&admin), 405),
    ] {
        let (status, answer) = http(address, method, page, &authorization).await;
        assert_eq!(status, expected, "{method} {page} {answer}");
    }
    let denied = scratch.lines("\"denied\"", 8).await;
    assert!(denied.iter().all(|line| line["protocol"] == "http"));
    server.stop(PATIENCE).await;
}
