//! Health checks over HTTP on the admin listener of a node that does not lead.
//!
//! `GET /livez` is about this node. It must not depend on another one: a supervisor would restart healthy nodes while there is no
//! leader. `GET /readyz` is about the broker, which the leader runs; without a leader the answer comes at once. All other
//! requests belong to the leader, and are answered here if it cannot be reached. Only the first request of a connection is
//! read: probes open a connection for each request.

use std::io;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt, copy, sink};
use tokio::net::TcpStream;

use super::{LEADER_PATIENCE, NotReached, RelayPlace, join};
use crate::status::{LatestStatus, MemberRole};

/// Time to send the head of the first request, as on the admin side of the broker.
const HEAD_TIME: Duration = Duration::from_secs(5);
const HEAD_BYTES_MAX: usize = 16 << 10;
/// The request line of a health check is shorter.
const LINE_BYTES_MAX: usize = 256;
/// Time to read an answer, for a client that still sends its request: a connection that closes before is reset.
const ANSWER_TIME: Duration = Duration::from_secs(5);
/// How long a check of readiness waits for the broker of the leader, which may be about to start.
const READY_PATIENCE: Duration = Duration::from_secs(1);

/// The subject of a request.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Subject {
    Liveness,
    Readiness,
    /// Everything else, also what is not HTTP.
    Broker,
}

/// Serves a connection to the admin listener.
pub(super) async fn serve(
    mut client: TcpStream,
    mut place: RelayPlace,
    status: &LatestStatus,
) -> io::Result<()> {
    let mut received = Vec::new();
    let subject = tokio::time::timeout(HEAD_TIME, read_subject(&mut client, &mut received)).await??;
    let answer = match subject {
        Subject::Broker => match place.reach_within(LEADER_PATIENCE).await {
            Ok((leader, server)) => return join(client, server, &received, &mut place, leader).await,
            Err(why) if is_http(&received) => why.into(),
            Err(why) => return Err(io::Error::other(why)),
        },
        Subject::Liveness => liveness(status),
        Subject::Readiness => match reach_broker(&mut place, status).await {
            Ok((leader, server)) => return join(client, server, &received, &mut place, leader).await,
            Err(answer) => answer,
        },
    };
    client.write_all(&answer.encode(received.starts_with(b"HEAD "))).await?;
    client.shutdown().await?;
    tokio::time::timeout(ANSWER_TIME, copy(&mut client, &mut sink())).await?.map(drop)
}

fn liveness(status: &LatestStatus) -> HealthAnswer {
    match status.stall() {
        None => HealthAnswer { status: "200 OK", body: serde_json::json!({"status": "live"}) },
        Some(why) => HealthAnswer::unavailable("stalled", &why),
    }
}

/// A node without all files is not ready either: a rolling update that does not wait for it could take the majority away.
async fn reach_broker(
    place: &mut RelayPlace,
    status: &LatestStatus,
) -> Result<(u32, TcpStream), HealthAnswer> {
    if place.leaders.borrow().is_none() {
        return Err(NotReached::NoLeader.into());
    }
    if let role @ (MemberRole::Joining | MemberRole::Copying) = status.get().role {
        let why = format!("this node is {} and does not have all files yet", role.as_str());
        return Err(HealthAnswer::unavailable("not-complete", &why));
    }
    Ok(place.reach_within(READY_PATIENCE).await?)
}

/// Reads until the subject of the first request is known. Of a health check the whole head is read: a connection that closes
/// with unread bytes is reset, and its answer may be lost.
async fn read_subject(client: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<Subject> {
    loop {
        match subject_of(received) {
            Some(Subject::Broker) => return Ok(Subject::Broker),
            Some(subject) if has_head(received) => return Ok(subject),
            _ if received.len() > HEAD_BYTES_MAX => return Ok(Subject::Broker),
            _ => {}
        }
        if client.read_buf(received).await? == 0 {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
    }
}

/// Whether there is an empty line. Some simple probes end lines with a line feed only.
fn has_head(received: &[u8]) -> bool {
    let has = |end: &[u8]| received.windows(end.len()).any(|window| window == end);
    has(b"\r\n\r\n") || has(b"\n\n")
}

/// Whether a request begins with a line of HTTP, so that its client understands an answer.
fn is_http(received: &[u8]) -> bool {
    let line = received.split(|byte| *byte == b'\n').next().unwrap_or_default().trim_ascii_end();
    line.ends_with(b" HTTP/1.1") || line.ends_with(b" HTTP/1.0")
}

/// The subject of a request that begins with these bytes. `None`: more of them are needed.
fn subject_of(received: &[u8]) -> Option<Subject> {
    let Some(end) = received.iter().position(|byte| *byte == b'\n') else {
        let may_be_http = received.iter().all(|byte| (b' '..=b'~').contains(byte) || *byte == b'\r');
        return (!may_be_http || received.len() > LINE_BYTES_MAX).then_some(Subject::Broker);
    };
    let line = std::str::from_utf8(&received[..end]).unwrap_or_default();
    let mut words = line.split_ascii_whitespace();
    let (method, target, version) = (words.next(), words.next().unwrap_or_default(), words.next());
    let path = target.split('?').next();
    Some(match (method, path, version) {
        (Some("GET" | "HEAD"), Some("/livez"), Some("HTTP/1.1" | "HTTP/1.0")) => Subject::Liveness,
        (Some("GET" | "HEAD"), Some("/readyz"), Some("HTTP/1.1" | "HTTP/1.0")) => Subject::Readiness,
        _ => Subject::Broker,
    })
}

/// An answer in the form of the admin side.
struct HealthAnswer {
    status: &'static str,
    body: serde_json::Value,
}

impl HealthAnswer {
    fn unavailable(code: &str, message: &str) -> Self {
        let body = serde_json::json!({"error": {"code": code, "message": message}});
        Self { status: "503 Service Unavailable", body }
    }

    fn encode(&self, head_only: bool) -> Vec<u8> {
        let body = self.body.to_string();
        let head = format!(
            "HTTP/1.1 {}\r\ncontent-type: application/json\r\ncontent-length: {}\r\nconnection: close\r\n\r\n",
            self.status,
            body.len()
        );
        if head_only { head.into_bytes() } else { (head + &body).into_bytes() }
    }
}

impl From<NotReached> for HealthAnswer {
    fn from(why: NotReached) -> Self {
        let code = match why {
            NotReached::NoLeader | NotReached::NotYet => "no-leader",
            NotReached::Unusable(_) => "leader-unreachable",
        };
        Self::unavailable(code, &why.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_subject_of_a_request() {
        for (begin, subject) in [
            ("GET /livez HTTP/1.1\r\nhost: a\r\n", Some(Subject::Liveness)),
            ("HEAD /livez?x=1 HTTP/1.0\r\n", Some(Subject::Liveness)),
            ("GET /readyz HTTP/1.1\r\n", Some(Subject::Readiness)),
            ("POST /livez HTTP/1.1\r\n", Some(Subject::Broker)),
            ("GET /livez/x HTTP/1.1\r\n", Some(Subject::Broker)),
            ("GET /metrics HTTP/1.1\r\n", Some(Subject::Broker)),
            ("GET /livez HTTP/2\r\n", Some(Subject::Broker)),
            ("GET /liv", None),
            ("", None),
            ("\u{16}\u{3}\u{1}", Some(Subject::Broker)),
        ] {
            assert_eq!(subject_of(begin.as_bytes()), subject, "{begin:?}");
        }
        assert_eq!(subject_of(&[b'a'; LINE_BYTES_MAX + 1]), Some(Subject::Broker));
    }

    #[test]
    fn a_head_ends_with_an_empty_line() {
        for (begin, ends) in [
            ("GET /livez HTTP/1.1\r\nhost: a\r\n", false),
            ("GET /livez HTTP/1.1\r\nhost: a\r\n\r\n", true),
            ("GET /livez HTTP/1.0\n\n", true),
            ("GET /livez HTTP/1.1\r\n\r\nGET /x", true),
        ] {
            assert_eq!(has_head(begin.as_bytes()), ends, "{begin:?}");
        }
    }

    #[tokio::test]
    async fn a_node_without_all_files_is_not_ready_and_does_not_wait_for_a_leader() {
        use tokio::sync::watch;

        use crate::relay::Leader;
        use crate::status::MemberStatus;

        let (leader, leaders) = watch::channel(None);
        let mut place = crate::relay::tests::place("admin", leaders);
        let status = LatestStatus::default();
        let show = |role| status.set(MemberStatus { role, ..MemberStatus::default() });
        let mut code = async || {
            let answer = reach_broker(&mut place, &status).await.unwrap_err();
            answer.body["error"]["code"].as_str().unwrap().to_owned()
        };
        show(MemberRole::Following);
        assert_eq!(code().await, "no-leader");
        leader.send_replace(Some(Leader { node: 2, host: "127.0.0.1".to_owned(), listeners: Vec::new() }));
        for role in [MemberRole::Joining, MemberRole::Copying] {
            show(role);
            assert_eq!(code().await, "not-complete");
        }
        show(MemberRole::Following);
        assert_eq!(code().await, "leader-unreachable", "the leader has no such listener");
    }

    #[test]
    fn only_clients_of_http_get_an_answer() {
        for (begin, is) in [
            ("GET /metrics HTTP/1.1\r\nhost: a\r\n", true),
            ("POST /drain HTTP/1.0\n", true),
            ("GET /metrics HTTP/2\r\n", false),
            ("\u{16}\u{3}\u{1}", false),
            ("", false),
        ] {
            assert_eq!(is_http(begin.as_bytes()), is, "{begin:?}");
        }
    }

    #[test]
    fn an_answer_has_its_length_and_a_head_has_no_body() {
        let answer = HealthAnswer::unavailable("no-leader", "no node leads the cluster");
        let text = String::from_utf8(answer.encode(false)).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        assert!(head.starts_with("HTTP/1.1 503 Service Unavailable\r\n"), "{head}");
        assert!(head.contains(&format!("content-length: {}\r\n", body.len())), "{head}");
        assert!(answer.encode(true).ends_with(b"\r\n\r\n"));
    }
}
