//! MQKS, a line-based text protocol: `{id} {action} {data}` from clients, `{id} ok {data}` or `{id} error {error id}` from
//! the server.
//!
//! A line ends with LF. White space before the LF, including CR, is not part of the line. The first two spaces separate id,
//! action and data; all other spaces belong to the data. Bytes are passed on unchanged, whatever their encoding.
//!
//! There are two kinds of errors. A line that is too long or contains a TAB ends the connection with a [`WireError`]. A
//! complete line that cannot be understood only gets an error line in response: it is decoded as `Err(`[`RequestLineError`]`)` inside
//! the [`Line`].

pub mod answer;
pub mod arguments;
pub mod message_id;

use crate::codec::Limits;
pub use crate::error::EscapedBytes;
use crate::error::WireError;
use arguments::{Consume, Rebind};

/// Maximum size in bytes of an id, a queue name or an event name.
pub const NAME_BYTES_MAX: usize = 255;
/// Replaces the id of an unreadable line. Clients of the original expect this word.
pub const NO_ID: &[u8] = b"None";

/// Requests a response. Recognized as the first word of the data only.
/// The flag of `delete_consumer` before the number of deliveries that its program got.
pub const STARTED: &[u8] = b"--started=";
const CONFIRM: &[u8] = b"--confirm";

/// A parsed request line.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// Id that the responses carry. For a publish it is the message id, for a consume the consumer id. May be empty.
    pub id: &'a [u8],
    /// The client wants `ok` or `error` even for actions that normally send no response.
    pub confirm: bool,
    /// The parsed action, or why it is invalid.
    pub action: Result<MqksAction<'a>, RequestLineError>,
}

/// An action that a client requests.
#[derive(Debug, Clone, PartialEq)]
pub enum MqksAction<'a> {
    /// Publish a message to every queue bound to the event.
    Publish {
        /// Event name.
        event: &'a [u8],
        /// Message body, at least one byte.
        data: &'a [u8],
    },
    /// Start a consumer.
    Consume(Consume<'a>),
    /// Change the bindings of a queue.
    Rebind(Rebind<'a>),
    /// Acknowledge deliveries.
    Ack {
        /// Consumer that received them.
        consumer: &'a [u8],
        /// Deliveries to acknowledge.
        which: AckScope<'a>,
    },
    /// Reject deliveries, which returns the messages to their queue.
    Reject {
        /// Consumer that received them.
        consumer: &'a [u8],
        /// Deliveries to reject.
        which: AckScope<'a>,
    },
    /// Delete a consumer.
    DeleteConsumer {
        /// Consumer id.
        consumer: &'a [u8],
        /// Number of its oldest unsettled deliveries that its program got; the attempts of the others do not count.
        /// `None`: it may have got all. An mqcore extension.
        started: Option<u32>,
    },
    /// Delete a queue and all its messages.
    DeleteQueue {
        /// Queue name: all the data, including spaces.
        queue: &'a [u8],
    },
    /// Authenticate the client. An mqcore extension: the original has no credentials.
    Auth {
        /// A token, or a user name and a password.
        credentials: &'a [u8],
    },
    /// Limit the unsettled deliveries of a consumer with `--manual-ack`. An mqcore extension: other servers answer with an
    /// error and change nothing.
    Prefetch {
        /// Consumer id. If there is no such consumer yet, the limit is for the client's next one with this id.
        consumer: &'a [u8],
        /// Maximum number of unsettled deliveries; 0: no limit.
        count: u32,
    },
    /// Start the timeout of a delivery again, because the consumer works on it. Never answered. An mqcore extension: other
    /// servers answer with an error and change nothing.
    Working {
        /// Consumer that received it.
        consumer: &'a [u8],
        /// The message's id, as a word: see [`message_id`].
        message: &'a [u8],
    },
    /// Return the data to the client.
    Ping {
        /// Data to return.
        data: &'a [u8],
    },
    /// Request a statistic by the expression that the original would evaluate. mqcore never evaluates it.
    Eval {
        /// Worker of the original to ask; `None`: the one that the client is connected to.
        worker: Option<u32>,
        /// Expression.
        code: &'a [u8],
    },
}

/// Deliveries that an acknowledgement or a rejection covers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum AckScope<'a> {
    /// The delivery of the message with this id, as a word: see [`message_id`].
    One(&'a [u8]),
    /// All unsettled deliveries of the consumer.
    All,
}

/// Why a complete request line is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RequestLineError {
    /// The line has fewer than three words.
    #[error("a request has the form `id action data`; this line has fewer than three words")]
    Incomplete,
    /// The action is unknown.
    #[error(
        "unknown action `{0}`; expected publish, consume, rebind, ack, reject, delete_consumer, delete_queue, ping, _eval, auth, prefetch or working"
    )]
    UnknownAction(EscapedBytes),
    /// The flag is unknown.
    #[error("unknown flag `{flag}` for {action}")]
    UnknownFlag {
        /// Action that was requested.
        action: &'static str,
        /// Flag as sent.
        flag: EscapedBytes,
    },
    /// A flag has an invalid number.
    #[error("{flag} expects {wanted}, got `{found}`")]
    BadNumber {
        /// Flag name.
        flag: &'static str,
        /// Expected value.
        wanted: &'static str,
        /// Value as sent.
        found: EscapedBytes,
    },
    /// A required argument is missing.
    #[error("{action} requires {what}")]
    Missing {
        /// Action that was requested.
        action: &'static str,
        /// Required argument.
        what: &'static str,
    },
    /// There are too many arguments.
    #[error("{action} takes {takes}; unexpected `{found}`")]
    TooMuch {
        /// Action that was requested.
        action: &'static str,
        /// Accepted arguments.
        takes: &'static str,
        /// First extra word.
        found: EscapedBytes,
    },
    /// A name exceeds [`NAME_BYTES_MAX`].
    #[error("{what} of {size} bytes exceeds the limit of {NAME_BYTES_MAX} bytes")]
    NameTooLong {
        /// Which name.
        what: &'static str,
        /// Size in bytes.
        size: usize,
    },
}

/// Whether a line is the request line of HTTP, such as `POST / HTTP/1.1`. None is a valid MQKS request, because its second
/// word is not an action.
pub fn is_http_request(line: &[u8]) -> bool {
    let mut words = line.split(|byte| *byte == b' ');
    let (Some(method), Some(_), Some(version), None) =
        (words.next(), words.next(), words.next(), words.next())
    else {
        return false;
    };
    !method.is_empty() && method.iter().all(u8::is_ascii_uppercase) && version.starts_with(b"HTTP/")
}

/// Splits a byte stream into lines.
///
/// It remembers how far it has scanned an incomplete line, so it scans a long line that arrives in small pieces only once.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    scanned: usize,
}

impl Lines {
    /// Creates a decoder at the beginning of a line.
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the line at the front of `input` without its line end, and its size in bytes including the line end.
    ///
    /// `None` means that more bytes are needed. Call it again with the same bytes and more after them, or with the bytes that
    /// follow the returned line.
    ///
    /// # Errors
    /// - [`WireError::TooLarge`]: the line exceeds `limits.frame_bytes_max`.
    /// - [`WireError::Malformed`]: the line contains a TAB.
    pub fn next<'a>(
        &mut self,
        input: &'a [u8],
        limits: &Limits,
    ) -> Result<Option<(&'a [u8], usize)>, WireError> {
        let from = self.scanned.min(input.len());
        let Some(end) = memchr::memchr2(b'\n', b'\t', &input[from..]).map(|at| from + at) else {
            check_size(input.len(), limits)?;
            self.scanned = input.len();
            return Ok(None);
        };
        check_size(end, limits)?;
        if input[end] == b'\t' {
            return Err(WireError::Malformed { part: "line", why: "a request must not contain a TAB" });
        }
        self.scanned = 0;
        Ok(Some((trimmed(&input[..end]), end + 1)))
    }

    /// Returns the unterminated last line after the peer closed its side, or `None` if `input` is empty.
    pub fn last(input: &[u8]) -> Option<&[u8]> {
        (!input.is_empty()).then(|| trimmed(input))
    }
}

fn check_size(size: usize, limits: &Limits) -> Result<(), WireError> {
    if size as u64 > limits.frame_bytes_max {
        return Err(WireError::TooLarge { part: "line", size: size as u64, max: limits.frame_bytes_max });
    }
    Ok(())
}

/// Removes white space from the end of a line.
fn trimmed(line: &[u8]) -> &[u8] {
    let blank = |byte: &u8| matches!(byte, b' ' | b'\r' | b'\n' | 0x0b | 0x0c);
    let end = line.iter().rposition(|byte| !blank(byte)).map_or(0, |last| last + 1);
    &line[..end]
}

/// Splits `text` at its first space, which is removed.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b' ', text)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Parses a request line.
///
/// ```
/// use mqcore_wire::mqks::{MqksAction, parse};
///
/// let request = parse(b"m1 publish orders.created {\"id\": 7}");
/// assert_eq!(request.id, b"m1");
/// assert_eq!(request.action, Ok(MqksAction::Publish { event: b"orders.created", data: b"{\"id\": 7}" }));
/// ```
pub fn parse(line: &[u8]) -> Line<'_> {
    let Some((id, rest)) = split(line) else { return Line::incomplete() };
    let Some((action, data)) = split(rest) else { return Line::incomplete() };
    let (confirm, data) = confirm(data);
    let action = named("the request's id", id).and_then(|_| MqksAction::parse(action, data));
    Line { id: &id[..id.len().min(NAME_BYTES_MAX)], confirm, action }
}

/// Returns the id of a line of which only the beginning is available.
pub fn id_of_beginning(beginning: &[u8]) -> &[u8] {
    let end = memchr::memchr(b' ', &beginning[..beginning.len().min(NAME_BYTES_MAX + 1)]);
    end.map_or(NO_ID, |end| &beginning[..end])
}

/// Strips `--confirm` if it is the first word of the data and more data follows.
fn confirm(data: &[u8]) -> (bool, &[u8]) {
    match data.strip_prefix(CONFIRM).and_then(|rest| rest.strip_prefix(b" ")) {
        Some(rest) => (true, rest),
        None => (false, data),
    }
}

fn named<'a>(what: &'static str, name: &'a [u8]) -> Result<&'a [u8], RequestLineError> {
    if name.len() > NAME_BYTES_MAX {
        return Err(RequestLineError::NameTooLong { what, size: name.len() });
    }
    Ok(name)
}

impl Line<'_> {
    fn incomplete() -> Self {
        Self { id: NO_ID, confirm: false, action: Err(RequestLineError::Incomplete) }
    }
}

impl<'a> MqksAction<'a> {
    fn parse(action: &[u8], data: &'a [u8]) -> Result<Self, RequestLineError> {
        match action {
            b"publish" => publish(data),
            b"consume" => Consume::parse(data).map(Self::Consume),
            b"rebind" => Rebind::parse(data).map(Self::Rebind),
            b"ack" => settled("ack", data).map(|(consumer, which)| Self::Ack { consumer, which }),
            b"reject" => settled("reject", data).map(|(consumer, which)| Self::Reject { consumer, which }),
            b"delete_consumer" => delete_consumer(data),
            b"delete_queue" => Ok(Self::DeleteQueue { queue: named("the queue's name", data)? }),
            b"ping" => Ok(Self::Ping { data }),
            b"_eval" => eval(data),
            b"auth" => Ok(Self::Auth { credentials: data }),
            b"prefetch" => prefetch(data),
            b"working" => working(data),
            unknown => Err(RequestLineError::UnknownAction(EscapedBytes::new(unknown))),
        }
    }
}

fn publish(data: &[u8]) -> Result<MqksAction<'_>, RequestLineError> {
    match split(data) {
        Some((event, data)) if !event.is_empty() && !data.is_empty() => {
            Ok(MqksAction::Publish { event: named("the event's name", event)?, data })
        }
        _ => Err(RequestLineError::Missing { action: "publish", what: "an event and a message body" }),
    }
}

fn settled<'a>(action: &'static str, data: &'a [u8]) -> Result<(&'a [u8], AckScope<'a>), RequestLineError> {
    let missing = || RequestLineError::Missing { action, what: "a consumer and a message id or --all" };
    let mut words = words(data);
    let consumer = named("the consumer's id", words.next().ok_or_else(missing)?)?;
    let which = match words.next().ok_or_else(missing)? {
        b"--all" => AckScope::All,
        word => {
            named("the message's id", &message_id::read(word))?;
            AckScope::One(word)
        }
    };
    match words.next() {
        None => Ok((consumer, which)),
        Some(word) => Err(RequestLineError::TooMuch {
            action,
            takes: "a consumer and one message id or --all",
            found: EscapedBytes::new(word),
        }),
    }
}

fn delete_consumer(data: &[u8]) -> Result<MqksAction<'_>, RequestLineError> {
    let all =
        || Ok(MqksAction::DeleteConsumer { consumer: named("the consumer's id", data)?, started: None });
    let Some((consumer, flag)) = split(data) else { return all() };
    let Some(number) = flag.strip_prefix(STARTED) else { return all() };
    let started = Some(messages("--started", number)?);
    Ok(MqksAction::DeleteConsumer { consumer: named("the consumer's id", consumer)?, started })
}

fn working(data: &[u8]) -> Result<MqksAction<'_>, RequestLineError> {
    match settled("working", data)? {
        (consumer, AckScope::One(message)) => Ok(MqksAction::Working { consumer, message }),
        (_, AckScope::All) => {
            Err(RequestLineError::Missing { action: "working", what: "a consumer and a message id" })
        }
    }
}

fn messages(flag: &'static str, number: &[u8]) -> Result<u32, RequestLineError> {
    let count = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    count.ok_or_else(|| RequestLineError::BadNumber {
        flag,
        wanted: "a number of messages up to 4294967295",
        found: EscapedBytes::new(number),
    })
}

fn prefetch(data: &[u8]) -> Result<MqksAction<'_>, RequestLineError> {
    let missing = RequestLineError::Missing { action: "prefetch", what: "a consumer and a number" };
    let (consumer, number) = split(data).ok_or(missing)?;
    let count = messages("prefetch", number)?;
    Ok(MqksAction::Prefetch { consumer: named("the consumer's id", consumer)?, count })
}

fn eval(data: &[u8]) -> Result<MqksAction<'_>, RequestLineError> {
    let Some(rest) = data.strip_prefix(b"--worker=") else {
        return Ok(MqksAction::Eval { worker: None, code: data });
    };
    let missing = RequestLineError::Missing { action: "_eval", what: "an expression" };
    let (number, code) = split(rest).ok_or(missing)?;
    let worker = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    let worker = worker.ok_or_else(|| RequestLineError::BadNumber {
        flag: "--worker",
        wanted: "the number of a worker",
        found: EscapedBytes::new(number),
    })?;
    Ok(MqksAction::Eval { worker: Some(worker), code })
}

/// Splits `data` at spaces and skips empty words.
fn words(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.split(|byte| *byte == b' ').filter(|word| !word.is_empty())
}

/// Appends a complete request line: `{id} {action} [--confirm] {data}`.
pub fn encode_request(id: &[u8], action: &str, confirm: bool, data: &[&[u8]], output: &mut Vec<u8>) {
    output.extend_from_slice(id);
    output.push(b' ');
    output.extend_from_slice(action.as_bytes());
    if confirm {
        output.push(b' ');
        output.extend_from_slice(CONFIRM);
    }
    for part in data {
        output.push(b' ');
        output.extend_from_slice(part);
    }
    output.push(b'\n');
}
