//! The body of the first frame ("Version and Handshaking"): how a client identifies itself.
//!
//! ```text
//! CONNECT /path
//! Client-Name: worker
//! Client-Id: w-1
//! ```
//!
//! The original program writes METHOD PATH on the first line; the document shows PATH METHOD
//! (`tmq://remote-host CONNECT`). The decoder accepts both and the encoder writes the program's order. Unlike in header
//! text, keys and values are trimmed, a line may end with LF alone, and keys must be unique.

use crate::codec::Limits;
use crate::error::WireError;
use crate::tmqp::header::{HeaderError, key, push_header};
use crate::tmqp::operation::HELLO;
use crate::tmqp::{Frame, Kind, NAME_BYTES_MAX, PREAMBLE};

/// The method that clients normally send.
pub const METHOD_CONNECT: &str = "CONNECT";
/// The method reported for a client that sends none.
pub const METHOD_NONE: &str = "NONE";
/// The path reported for a client that sends none.
pub const PATH_ROOT: &str = "/";
/// Maximum number of properties in one Hello. Duplicate detection compares each key with all previous ones.
pub const PROPERTIES_MAX: usize = 128;

/// A client's identification, borrowed from the body of its first frame.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Hello<'a> {
    /// Normally [`METHOD_CONNECT`]; the broker ignores it.
    pub method: &'a str,
    /// Path or complete address that the client connected to.
    pub path: &'a str,
    /// Requested client id, 1 to 255 bytes. `None`: the server generates one.
    pub client_id: Option<&'a str>,
    /// Client name, which several clients may share.
    pub client_name: Option<&'a str>,
    /// Client type, which several clients may share.
    pub client_type: Option<&'a str>,
    /// Access token.
    pub client_token: Option<&'a str>,
    /// All other properties, in the order sent.
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

/// A Hello that cannot be encoded. Caused by the caller, never by the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum HelloError {
    /// The decoder would misread the first line.
    #[error("invalid hello {part}: expected {why}")]
    RequestLine {
        /// `"method"` or `"path"`.
        part: &'static str,
        /// Expected form.
        why: &'static str,
    },
    /// A key repeats, which servers reject.
    #[error("a hello property repeats, or duplicates one of the client's own fields")]
    RepeatedKey,
    /// There are more than [`PROPERTIES_MAX`] properties, which servers reject.
    #[error("a hello has more than {PROPERTIES_MAX} properties")]
    TooManyProperties,
    /// The client id cannot be the target of a frame.
    #[error("a client id of {size} bytes exceeds the limit of {NAME_BYTES_MAX} bytes")]
    ClientIdTooLarge {
        /// Size of the client id in bytes.
        size: usize,
    },
    /// A property cannot be written as a line.
    #[error(transparent)]
    Property(#[from] HeaderError),
}

/// Encodes the first bytes that a client sends: the preamble and the Hello frame.
///
/// Send them in one write, because servers expect both together.
///
/// # Errors
///
/// The same as [`encode`].
pub fn opening(hello: &Hello<'_>, message_id: &[u8]) -> Result<Vec<u8>, HelloError> {
    let mut body = Vec::new();
    encode(hello, &mut body)?;
    let mut bytes = PREAMBLE.to_vec();
    let frame = Frame {
        // The original client sets this flag.
        first_acquirer: true,
        content_type: HELLO,
        id: message_id,
        source: hello.client_id.unwrap_or_default().as_bytes(),
        payload: &body,
        ..Frame::new(Kind::SERVER)
    };
    super::encode(&frame, &mut bytes);
    Ok(bytes)
}

/// Why a server's reply to the Hello cannot be read.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum AnswerError {
    /// The server did not echo the preamble.
    #[error("the server does not speak TMQP/2.0")]
    OtherProtocol,
    /// The bytes after the preamble are not a valid frame.
    #[error(transparent)]
    Frame(#[from] WireError),
}

/// Decodes the server's reply to a Hello: the echoed preamble and the frame that accepts or rejects the client.
///
/// Returns the frame and the total size of preamble and frame in bytes, or `None` if more bytes are needed.
///
/// # Errors
///
/// [`AnswerError`] if the server speaks another protocol or sends a malformed frame.
pub fn answer<'a>(input: &'a [u8], limits: &Limits) -> Result<Option<(Frame<'a>, usize)>, AnswerError> {
    let Some((preamble, rest)) = input.split_at_checked(PREAMBLE.len()) else { return Ok(None) };
    if preamble != PREAMBLE {
        return Err(AnswerError::OtherProtocol);
    }
    let answer = super::decode(rest, limits)?;
    Ok(answer.map(|(frame, size)| (frame, PREAMBLE.len() + size)))
}

/// Decodes the body of a Hello. An empty body identifies nothing.
///
/// An empty value counts as absent for the four properties that have their own field.
///
/// # Errors
///
/// - [`WireError::Malformed`]: the text is not UTF-8, or a key repeats.
/// - [`WireError::TooLarge`]: there are more than [`PROPERTIES_MAX`] properties, or the client id exceeds
///   [`NAME_BYTES_MAX`] bytes.
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

/// Appends the body of a Hello to `output` in the original client's format. On error, `output` is unchanged.
///
/// # Errors
///
/// [`HelloError`] if [`decode`] could not read the result back.
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

/// Whether the first two bytes of the first frame come from a Twino 4.x client.
///
/// Twino 4.x sends the same preamble, followed by frames with another layout: the second byte is reserved and 0, and the type
/// is in the low five bits of the first byte. A valid TMQP/2.0 frame cannot start like this, because it would have no hops
/// left. The server uses this to report the wrong version instead of ignoring the client.
#[inline]
#[must_use]
pub const fn looks_like_twino4(first_two_bytes: [u8; 2]) -> bool {
    const TYPE_MASK: u8 = 0x1F;
    const TYPE_SERVER: u8 = 0x10;
    first_two_bytes[0] & TYPE_MASK == TYPE_SERVER && first_two_bytes[1] == 0
}

/// Splits a first line that contains a method and a path, in either order. `None`: the line is a property or empty.
fn request_line(line: &str) -> Option<(&str, &str)> {
    let line = line.trim();
    let (first, rest) = line.split_once(' ')?;
    if is_path(first) {
        let (path, method) = line.rsplit_once(' ')?;
        return Some((method, path.trim_end()));
    }
    let rest = rest.trim_start();
    // The original accepts any line without a colon. With a colon, only a path distinguishes a request from a property.
    let is_request = !line.contains(':') || (!first.contains(':') && is_path(rest));
    is_request.then_some((first, rest))
}

/// Whether `word` is an absolute path or an address with a scheme.
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

/// Removes the property with this key and returns its value, unless it is empty.
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
    fn server_reply_is_decoded_once_complete_and_only_after_the_preamble() {
        let hello = Hello { client_id: Some("c"), ..Hello::default() };
        let bytes = opening(&hello, b"h").unwrap();
        let limits = Limits::default();
        for cut in 0..bytes.len() {
            assert_eq!(answer(&bytes[..cut], &limits), Ok(None), "cut at {cut}");
        }
        let more = [&bytes[..], b"next"].concat();
        let (frame, size) = answer(&more, &limits).unwrap().unwrap();
        assert_eq!((frame.content_type, frame.id, frame.source), (HELLO, &b"h"[..], &b"c"[..]));
        assert_eq!((size, decode(frame.payload).unwrap().client_id), (bytes.len(), Some("c")));
        assert_eq!(answer(b"HTTP/1.1 400", &limits), Err(AnswerError::OtherProtocol));
        let large = Limits { frame_bytes_max: 4, ..limits };
        assert!(matches!(answer(&bytes, &large), Err(AnswerError::Frame(_))));
    }

    #[test]
    fn client_id_has_at_most_255_bytes() {
        let (longest, longer) = ("c".repeat(NAME_BYTES_MAX), "c".repeat(NAME_BYTES_MAX + 1));
        assert_eq!(NAME_BYTES_MAX, 255);
        let body = format!("CONNECT /\r\nClient-Id: {longest}\r\n");
        assert_eq!(decode(body.as_bytes()).unwrap().client_id, Some(&*longest));
        let body = format!("CONNECT /\r\nClient-Id: {longer}\r\n");
        assert!(matches!(decode(body.as_bytes()), Err(WireError::TooLarge { .. })));
    }

    fn method_and_path(body: &str) -> (&str, &str) {
        let hello = decode(body.as_bytes()).unwrap();
        (hello.method, hello.path)
    }

    #[test]
    fn first_line_accepts_method_and_path_in_either_order() {
        assert_eq!(method_and_path("CONNECT /path\r\n"), ("CONNECT", "/path"));
        assert_eq!(method_and_path("tmq://remote-host CONNECT\r\n"), ("CONNECT", "tmq://remote-host"));
        assert_eq!(method_and_path("/path CONNECT"), ("CONNECT", "/path"));
        assert_eq!(method_and_path("CONNECT tmq://remote-host\n"), ("CONNECT", "tmq://remote-host"));
        assert_eq!(method_and_path("CONNECT /a b"), ("CONNECT", "/a b"));
        assert_eq!(method_and_path("GET path"), ("GET", "path"));
    }

    #[test]
    fn first_line_with_a_property_is_decoded_as_a_property() {
        let hello = decode(b"Client-Id: one\r\nClient-Name:two").unwrap();
        assert_eq!((hello.method, hello.path), (METHOD_NONE, PATH_ROOT));
        assert_eq!((hello.client_id, hello.client_name), (Some("one"), Some("two")));
    }

    #[test]
    fn properties_are_trimmed_and_keys_ignore_case() {
        let hello =
            decode(b"CONNECT /\r\n client-ID :  one two \r\nclient-token:\r\nOwn: a:b\r\nno colon\r\n:x\r\n");
        let hello = hello.unwrap();
        assert_eq!((hello.client_id, hello.client_token), (Some("one two"), None));
        assert_eq!(hello.properties, [("Own", "a:b")]);
    }

    #[test]
    fn empty_body_decodes_to_no_properties() {
        assert_eq!(decode(b"").unwrap(), Hello { method: METHOD_NONE, ..Hello::default() });
    }

    #[test]
    fn invalid_hello_is_rejected() {
        assert_eq!(decode(b"a: 1\r\nA: 2\r\n"), Err(malformed("a key repeats")));
        assert_eq!(decode(b"a: \xFF"), Err(malformed("not UTF-8")));
        let id = format!("Client-Id: {}", "i".repeat(256));
        assert_eq!(decode(id.as_bytes()), Err(too_large("client id", 256, 255)));
        let many: String = (0..=PROPERTIES_MAX).map(|n| format!("k{n}: v\n")).collect();
        assert_eq!(decode(many.as_bytes()), Err(too_large("hello properties", 129, 128)));
    }

    #[test]
    fn encoded_hello_decodes_to_the_same_value() {
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
    fn hello_that_cannot_be_decoded_is_not_encoded() {
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
    fn second_byte_identifies_twino_4() {
        assert!(looks_like_twino4([0x10, 0x00]));
        assert!(looks_like_twino4([0xB0, 0x00]));
        assert!(!looks_like_twino4([0x10, 0x10]));
        assert!(!looks_like_twino4([0x90, 0x10]));
        assert!(!looks_like_twino4([0x11, 0x00]));
    }
}
