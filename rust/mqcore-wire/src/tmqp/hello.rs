//! The body of the first frame: who a client says it is.
//!
//! ```text
//! CONNECT /path
//! Client-Name: worker
//! Client-Id: w-1
//! ```
//!
//! The program writes METHOD PATH on the first line, the document PATH METHOD (`tmq://remote-host CONNECT`): both are
//! read, the program's form is written. Unlike header text, keys and values are trimmed, lines may end in a lone LF,
//! and a key must not repeat.

use crate::codec::Limits;
use crate::error::WireError;
use crate::tmqp::header::{HeaderError, key, push_header};
use crate::tmqp::operation::HELLO;
use crate::tmqp::{Frame, Kind, NAME_BYTES_MAX, PREAMBLE};

/// The method that clients give.
pub const METHOD_CONNECT: &str = "CONNECT";
/// The method of a client that gives none.
pub const METHOD_NONE: &str = "NONE";
/// The path of a client that gives none.
pub const PATH_ROOT: &str = "/";
/// Lines with a key in one Hello, at most. Each new key is compared with all before it.
pub const PROPERTIES_MAX: usize = 128;

/// What a client says about itself, borrowing from the body of its first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello<'a> {
    /// [`METHOD_CONNECT`] as a rule; without meaning to the broker.
    pub method: &'a str,
    /// Path, or the whole address, that the client dialled.
    pub path: &'a str,
    /// The id that the client wants, 1 to 255 octets. `None`: the server makes one.
    pub client_id: Option<&'a str>,
    /// A name that several clients may share.
    pub client_name: Option<&'a str>,
    /// A type that several clients may share.
    pub client_type: Option<&'a str>,
    /// What authenticates the client.
    pub client_token: Option<&'a str>,
    /// Every other property, in its order.
    pub properties: Vec<(&'a str, &'a str)>,
}

impl Default for Hello<'_> {
    fn default() -> Self {
        Self {
            method: METHOD_CONNECT,
            path: PATH_ROOT,
            client_id: None,
            client_name: None,
            client_type: None,
            client_token: None,
            properties: Vec::new(),
        }
    }
}

/// Why a Hello cannot be written. The caller's fault, never the peer's.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The first line would be read as something else.
    #[error("hello {part}: {why}")]
    RequestLine {
        /// `"method"` or `"path"`.
        part: &'static str,
        /// What it has to be.
        why: &'static str,
    },
    /// A server refuses a Hello whose keys repeat.
    #[error("a hello key repeats, or is one of those with a field of its own")]
    RepeatedKey,
    /// A server refuses a Hello with more than [`PROPERTIES_MAX`] of them.
    #[error("more than {PROPERTIES_MAX} hello properties")]
    TooManyProperties,
    /// The id could not be the target of a frame.
    #[error("a client id of {size} octets is larger than {NAME_BYTES_MAX}")]
    ClientIdTooLarge {
        /// Octets of the id.
        size: usize,
    },
    /// A property does not fit on a line.
    #[error(transparent)]
    Property(#[from] HeaderError),
}

/// The octets with which whoever dials begins: the preamble and the Hello, in one piece because servers want it so.
///
/// # Errors
///
/// As [`encode`].
pub fn opening(hello: &Hello<'_>, message_id: &[u8]) -> Result<Vec<u8>, HelloError> {
    let mut body = Vec::new();
    encode(hello, &mut body)?;
    let mut octets = PREAMBLE.to_vec();
    let frame = Frame {
        // As the original client does.
        first_acquirer: true,
        content_type: HELLO,
        id: message_id,
        source: hello.client_id.unwrap_or_default().as_bytes(),
        payload: &body,
        ..Frame::new(Kind::SERVER)
    };
    super::encode(&frame, &mut octets);
    Ok(octets)
}

/// Why what came back to an [`opening`] is no answer to it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The preamble did not come back.
    #[error("it does not speak TMQP/2.0")]
    OtherProtocol,
    /// What came behind it is no frame.
    #[error(transparent)]
    Frame(#[from] WireError),
}

/// Reads what came back to an [`opening`]: the preamble, and a frame that says what became of the Hello. With it how many octets
/// both have; `None`: not all of it is there.
///
/// # Errors
///
/// [`AnswerError`]: nothing more is to be expected.
pub fn answer<'a>(input: &'a [u8], limits: &Limits) -> Result<Option<(Frame<'a>, usize)>, AnswerError> {
    let Some((preamble, rest)) = input.split_at_checked(PREAMBLE.len()) else { return Ok(None) };
    if preamble != PREAMBLE {
        return Err(AnswerError::OtherProtocol);
    }
    let answer = super::decode(rest, limits)?;
    Ok(answer.map(|(frame, size)| (frame, PREAMBLE.len() + size)))
}

/// Reads the body of a Hello. An empty body is a client that says nothing about itself.
///
/// A property without a value is as good as absent among the four that have a field.
///
/// # Errors
///
/// [`WireError::Malformed`] for text that is not UTF-8 and for a key that repeats, [`WireError::TooLarge`] for more
/// than [`PROPERTIES_MAX`] properties and for a client id that fits no frame.
pub fn decode(body: &[u8]) -> Result<Hello<'_>, WireError> {
    let Ok(text) = str::from_utf8(body) else { return Err(malformed("not UTF-8")) };
    let first_line = text.lines().next().unwrap_or("");
    let request = request_line(first_line);
    let (method, path) = request.unwrap_or((METHOD_NONE, PATH_ROOT));
    let mut properties = properties(text.lines().skip(usize::from(request.is_some())))?;
    let client_id = take(&mut properties, key::CLIENT_ID);
    if let Some(id) = client_id
        && id.len() > NAME_BYTES_MAX
    {
        return Err(too_large("client id", id.len(), NAME_BYTES_MAX));
    }
    Ok(Hello {
        method,
        path,
        client_id,
        client_name: take(&mut properties, key::CLIENT_NAME),
        client_type: take(&mut properties, key::CLIENT_TYPE),
        client_token: take(&mut properties, key::CLIENT_TOKEN),
        properties,
    })
}

/// Appends the body of a Hello to `output` as the original client writes it, which stays as it was on an error.
///
/// # Errors
///
/// [`HelloError`] for whatever [`decode`] would not read back.
pub fn encode(hello: &Hello<'_>, output: &mut Vec<u8>) -> Result<(), HelloError> {
    check_request_line(hello)?;
    let size = hello.client_id.map_or(0, str::len);
    if size > NAME_BYTES_MAX {
        return Err(HelloError::ClientIdTooLarge { size });
    }
    let fields = [
        (key::CLIENT_NAME, hello.client_name),
        (key::CLIENT_TYPE, hello.client_type),
        (key::CLIENT_TOKEN, hello.client_token),
        (key::CLIENT_ID, hello.client_id),
    ];
    let given = fields.iter().filter_map(|&(key, value)| Some((key, value?)));
    let lines: Vec<_> = given.chain(hello.properties.iter().copied()).collect();
    if lines.len() > PROPERTIES_MAX {
        return Err(HelloError::TooManyProperties);
    }
    let mut body = format!("{} {}\r\n", hello.method, hello.path).into_bytes();
    for (index, &(key, value)) in lines.iter().enumerate() {
        let repeats = lines[..index].iter().any(|(earlier, _)| same_key(earlier, key));
        if repeats || (index >= lines.len() - hello.properties.len() && is_field(key)) {
            return Err(HelloError::RepeatedKey);
        }
        push_header(&mut body, key, format!(" {value}").as_bytes())?;
    }
    output.extend_from_slice(&body);
    Ok(())
}

/// Whether the first two octets of the first frame are those of a Twino 4.x client.
///
/// Twino 4.x sends the same preamble and then frames of another layout: its second octet is reserved and 0, its type
/// stands in the low five bits of the first. A frame of this protocol cannot look so: it would have no hops left.
/// Its peers can thus be told what is wrong instead of being ignored.
#[inline]
#[must_use]
pub const fn looks_like_twino4(first_two_octets: [u8; 2]) -> bool {
    const TYPE_MASK: u8 = 0x1F;
    const TYPE_SERVER: u8 = 0x10;
    first_two_octets[0] & TYPE_MASK == TYPE_SERVER && first_two_octets[1] == 0
}

/// Splits a first line that has a method and a path, in either order. `None`: it is a property, or nothing.
fn request_line(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let (first, rest) = line.split_once(' ')?;
    if is_path(first) {
        let (path, method) = line.rsplit_once(' ')?;
        return Some((method, path.trim_end()));
    }
    let rest = rest.trim_start();
    // The program takes any line without a colon; with one, only a path tells a request from a property.
    let is_request = !line.contains(':') || (!first.contains(':') && is_path(rest));
    is_request.then_some((first, rest))
}

/// A path from the root, or an address with a scheme.
fn is_path(word: &str) -> bool {
    word.starts_with('/') || word.split_once(':').is_some_and(|(_, rest)| rest.starts_with("//"))
}

fn properties<'a>(lines: impl Iterator<Item = &'a str>) -> Result<Vec<(&'a str, &'a str)>, WireError> {
    let mut found: Vec<(&str, &str)> = Vec::new();
    for line in lines {
        let Some((key, value)) = line.split_once(':') else { continue };
        let (key, value) = (key.trim(), value.trim());
        if key.is_empty() {
            continue;
        }
        if found.iter().any(|(earlier, _)| same_key(earlier, key)) {
            return Err(malformed("a key repeats"));
        }
        if found.len() == PROPERTIES_MAX {
            return Err(too_large("hello properties", PROPERTIES_MAX + 1, PROPERTIES_MAX));
        }
        found.push((key, value));
    }
    Ok(found)
}

/// Removes the property with this key, and answers its value unless that is empty.
fn take<'a>(properties: &mut Vec<(&'a str, &'a str)>, key: &str) -> Option<&'a str> {
    let index = properties.iter().position(|(name, _)| same_key(name, key))?;
    let (_, value) = properties.remove(index);
    (!value.is_empty()).then_some(value)
}

fn check_request_line(hello: &Hello<'_>) -> Result<(), HelloError> {
    let method_ends_early = |c: char| c.is_whitespace() || c == ':';
    if hello.method.is_empty() || hello.method.starts_with('/') || hello.method.contains(method_ends_early) {
        return Err(HelloError::RequestLine {
            part: "method",
            why: "one word without colon or leading slash",
        });
    }
    if !is_path(hello.path) || hello.path.contains(['\r', '\n']) {
        return Err(HelloError::RequestLine {
            part: "path",
            why: "one line that begins with a slash or scheme",
        });
    }
    Ok(())
}

fn is_field(name: &str) -> bool {
    [key::CLIENT_ID, key::CLIENT_NAME, key::CLIENT_TYPE, key::CLIENT_TOKEN]
        .iter()
        .any(|key| same_key(key, name))
}

fn same_key(one: &str, other: &str) -> bool {
    one.trim().eq_ignore_ascii_case(other.trim())
}

fn malformed(why: &'static str) -> WireError {
    WireError::Malformed { part: "hello", why }
}

fn too_large(part: &'static str, size: usize, max: usize) -> WireError {
    WireError::TooLarge { part, size: size as u64, max: max as u64 }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_is_read_when_all_of_it_is_there_and_only_behind_the_preamble() {
        let hello = Hello { client_id: Some("c"), ..Hello::default() };
        let octets = opening(&hello, b"h").unwrap();
        let limits = Limits::default();
        for cut in 0..octets.len() {
            assert_eq!(answer(&octets[..cut], &limits), Ok(None), "cut at {cut}");
        }
        let more = [&octets[..], b"next"].concat();
        let (frame, size) = answer(&more, &limits).unwrap().unwrap();
        assert_eq!((frame.content_type, frame.id, frame.source), (HELLO, &b"h"[..], &b"c"[..]));
        assert_eq!((size, decode(frame.payload).unwrap().client_id), (octets.len(), Some("c")));
        assert_eq!(answer(b"HTTP/1.1 400", &limits), Err(AnswerError::OtherProtocol));
        let large = Limits { frame_bytes_max: 4, ..limits };
        assert!(matches!(answer(&octets, &large), Err(AnswerError::Frame(_))));
    }

    fn method_and_path(body: &str) -> (&str, &str) {
        let hello = decode(body.as_bytes()).unwrap();
        (hello.method, hello.path)
    }

    #[test]
    fn the_first_line_is_read_in_both_orders() {
        assert_eq!(method_and_path("CONNECT /path\r\n"), ("CONNECT", "/path"));
        assert_eq!(method_and_path("tmq://remote-host CONNECT\r\n"), ("CONNECT", "tmq://remote-host"));
        assert_eq!(method_and_path("/path CONNECT"), ("CONNECT", "/path"));
        assert_eq!(method_and_path("CONNECT tmq://remote-host\n"), ("CONNECT", "tmq://remote-host"));
        assert_eq!(method_and_path("CONNECT /a b"), ("CONNECT", "/a b"));
        assert_eq!(method_and_path("GET path"), ("GET", "path"));
    }

    #[test]
    fn a_first_line_that_is_a_property_is_read_as_one() {
        let hello = decode(b"Client-Id: one\r\nClient-Name:two").unwrap();
        assert_eq!((hello.method, hello.path), (METHOD_NONE, PATH_ROOT));
        assert_eq!((hello.client_id, hello.client_name), (Some("one"), Some("two")));
    }

    #[test]
    fn properties_are_trimmed_and_keys_have_no_case() {
        let hello =
            decode(b"CONNECT /\r\n client-ID :  one two \r\nclient-token:\r\nOwn: a:b\r\nno colon\r\n:x\r\n");
        let hello = hello.unwrap();
        assert_eq!((hello.client_id, hello.client_token), (Some("one two"), None));
        assert_eq!(hello.properties, [("Own", "a:b")]);
    }

    #[test]
    fn an_empty_body_says_nothing() {
        assert_eq!(decode(b"").unwrap(), Hello { method: METHOD_NONE, ..Hello::default() });
    }

    #[test]
    fn what_cannot_be_meant_is_refused() {
        assert_eq!(decode(b"a: 1\r\nA: 2\r\n"), Err(malformed("a key repeats")));
        assert_eq!(decode(b"a: \xFF"), Err(malformed("not UTF-8")));
        let id = format!("Client-Id: {}", "i".repeat(256));
        assert_eq!(decode(id.as_bytes()), Err(too_large("client id", 256, 255)));
        let many: String = (0..=PROPERTIES_MAX).map(|n| format!("k{n}: v\n")).collect();
        assert_eq!(decode(many.as_bytes()), Err(too_large("hello properties", 129, 128)));
    }

    #[test]
    fn what_is_written_is_read_back() {
        let hello = Hello {
            client_id: Some("i"),
            client_token: Some("t"),
            properties: vec![("Own", "a:b"), ("Other", "")],
            ..Hello::default()
        };
        let mut body = Vec::new();
        encode(&hello, &mut body).unwrap();
        assert_eq!(body, b"CONNECT /\r\nClient-Token: t\r\nClient-Id: i\r\nOwn: a:b\r\nOther: \r\n");
        assert_eq!(decode(&body).unwrap(), hello);
    }

    #[test]
    fn what_would_not_be_read_back_is_not_written() {
        let mut body = Vec::new();
        let plain = Hello::default;
        for hello in [
            Hello { method: "", ..plain() },
            Hello { method: "A B", ..plain() },
            Hello { method: "A:", ..plain() },
            Hello { path: "no", ..plain() },
            Hello { path: "/\r\nClient-Id: x", ..plain() },
            Hello { client_id: Some("x\r\ny"), ..plain() },
            Hello { properties: vec![("client-id", "x")], ..plain() },
            Hello { properties: vec![("a", "x"), ("A", "x")], ..plain() },
            Hello { properties: vec![("a:b", "x")], ..plain() },
        ] {
            assert!(encode(&hello, &mut body).is_err(), "{hello:?}");
        }
        assert!(body.is_empty());
    }

    #[test]
    fn the_second_octet_tells_twino_4_apart() {
        assert!(looks_like_twino4([0x10, 0x00]));
        assert!(looks_like_twino4([0xB0, 0x00]));
        assert!(!looks_like_twino4([0x10, 0x10]));
        assert!(!looks_like_twino4([0x90, 0x10]));
        assert!(!looks_like_twino4([0x11, 0x00]));
    }
}
