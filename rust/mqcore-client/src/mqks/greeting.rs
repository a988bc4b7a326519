//! The first line of a connection.
//!
//! MQKS has no handshake. A client with a token sends an `auth` line. A client without one requests an echo, to detect
//! a peer of another protocol before sending messages.

use std::sync::Arc;

use bytes::{Buf, BytesMut};
use mqcore_wire::codec::Limits;
use mqcore_wire::mqks::answer::{AnswerResult, parse};
use mqcore_wire::mqks::{Lines, encode_request};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use crate::address::Protocol;
use crate::config::ClientConfig;
use crate::dial::{HandshakeOutcome, OpenConnection, Stream, broken, closed_at_once, spoke_otherwise};
use crate::error::ClientError;

/// The id of the first line.
const ID: &[u8] = b"hello";
/// The text to echo.
const ECHO: &[u8] = b"mqcore";
/// Maximum bytes of the answer.
const ANSWER_BYTES_MAX: u64 = 1024;

/// Sends the first line and checks the answer.
pub(crate) async fn greet(
    mut stream: Stream,
    config: &ClientConfig,
    address: &Arc<str>,
) -> Result<OpenConnection, ClientError> {
    stream.write_all(&first_line(config)?).await.map_err(|error| broken(address, &error))?;
    stream.flush().await.map_err(|error| broken(address, &error))?;
    let mut input = BytesMut::with_capacity(4096);
    let mut lines = Lines::new();
    let limits = Limits { frame_bytes_max: ANSWER_BYTES_MAX, ..Limits::default() };
    loop {
        let end = stream.read_buf(&mut input).await.map_err(|error| broken(address, &error))? == 0;
        match lines.next(&input, &limits) {
            Ok(Some((line, size))) => {
                check(line, config.token.is_some(), address)?;
                input.advance(size);
                return Ok(OpenConnection {
                    stream,
                    input,
                    greeted: HandshakeOutcome::Mqks,
                    address: address.clone(),
                });
            }
            Ok(None) if !end => {}
            _ if input.is_empty() => return Err(closed_at_once(address)),
            _ => return Err(spoke_otherwise(&input, Protocol::Mqks, address)),
        }
    }
}

fn first_line(config: &ClientConfig) -> Result<Vec<u8>, ClientError> {
    let mut line = Vec::new();
    match &config.token {
        None => encode_request(ID, "ping", false, &[ECHO], &mut line),
        Some(token) if token.is_empty() || token.chars().any(|c| c == '\t' || c == '\n') => {
            return Err(ClientError::invalid("token", "it must not be empty or contain line ends and tabs"));
        }
        Some(token) => encode_request(ID, "auth", false, &[token.as_bytes()], &mut line),
    }
    Ok(line)
}

fn check(line: &[u8], showed: bool, address: &Arc<str>) -> Result<(), ClientError> {
    match parse(line) {
        Some(answer) if answer.id == ID => match answer.said {
            AnswerResult::Done(data) if showed || data == ECHO => Ok(()),
            AnswerResult::Done(_) => Err(spoke_otherwise(line, Protocol::Mqks, address)),
            AnswerResult::Failed(error) => Err(ClientError::AuthFailed {
                address: address.clone(),
                reason: format!("error {}", String::from_utf8_lossy(error)).into(),
            }),
        },
        _ => Err(spoke_otherwise(line, Protocol::Mqks, address)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_answer_to_the_first_line_is_judged() {
        let address: Arc<str> = "mqks://h:1".into();
        assert_eq!(check(b"hello ok mqcore", false, &address), Ok(()));
        assert_eq!(check(b"hello ok", true, &address), Ok(()));
        let refused = check(b"hello error 2026", true, &address).unwrap_err();
        assert!(matches!(&refused, ClientError::AuthFailed { .. }), "{refused}");
        for odd in [&b"hello ok other"[..], b"HTTP/1.1 400 Bad Request", b"other ok mqcore", b""] {
            let error = check(odd, false, &address).unwrap_err();
            assert!(matches!(&error, ClientError::VersionMismatch { .. }), "{error}");
        }
        let error = spoke_otherwise(&[0x15, 3, 3, 0, 2, 2, 40], Protocol::Mqks, &address);
        assert_eq!(
            error.to_string(),
            "TLS handshake with mqks://h:1 failed: the port requires TLS; use mqkss:// in the address"
        );
    }

    #[test]
    fn who_has_a_token_shows_it() {
        let line = |token: Option<&str>| {
            first_line(&ClientConfig { token: token.map(str::to_owned), ..ClientConfig::default() })
        };
        assert_eq!(line(None).unwrap(), b"hello ping mqcore\n");
        assert_eq!(line(Some("Basic YTpi")).unwrap(), b"hello auth Basic YTpi\n");
        assert!(line(Some("a\nb")).is_err() && line(Some("")).is_err());
    }
}
