//! MQKS lines: `{id} {action} {data}` from clients, `{id} ok {data}` or `{id} error {error id}` from the server.
//!
//! A line ends with LF; white space before it (a CR too) is not part of the line. The first two spaces part it;
//! `data` keeps all others. Octets are passed on untouched, whatever their encoding.
//!
//! Two kinds of mistakes differ here. A line that is too long or holds a TAB ends the conversation: it is a
//! [`WireError`]. A line that is whole and says something that nobody understands costs its sender an error line and
//! nothing else: it is decoded as `Err(`[`Mistake`]`)` inside the [`Line`].

pub mod answer;
pub mod arguments;

use crate::codec::Limits;
pub use crate::error::Shown;
use crate::error::WireError;
use arguments::{Consume, Rebind};

/// Octets of an id, a queue's or an event's name, at most.
pub const NAME_BYTES_MAX: usize = 255;
/// What stands where the id of an unreadable line would: the word that clients of the original know.
pub const NO_ID: &[u8] = b"None";

/// The word that asks for an answer, where it is the first of the data.
const CONFIRM: &[u8] = b"--confirm";

/// One request.
#[derive(Debug, Clone, PartialEq)]
pub struct Line<'a> {
    /// What the answers will carry; for a publish the message's id, for a consume the consumer's. May be empty.
    pub id: &'a [u8],
    /// The sender wants `ok` or `error` even where the action answers nothing.
    pub confirm: bool,
    /// What is asked for, or what is wrong with it.
    pub action: Result<Action<'a>, Mistake>,
}

/// What a client may ask for.
#[derive(Debug, Clone, PartialEq)]
pub enum Action<'a> {
    /// A message for every queue that is bound to its event.
    Publish {
        /// The event's name.
        event: &'a [u8],
        /// The message; at least one octet.
        data: &'a [u8],
    },
    /// Starts a consumer.
    Consume(Consume<'a>),
    /// Changes what a queue is bound to.
    Rebind(Rebind<'a>),
    /// Messages were processed.
    Ack {
        /// Whose delivery it was.
        consumer: &'a [u8],
        /// Which ones.
        which: Which<'a>,
    },
    /// Messages go back to their queue.
    Reject {
        /// Whose delivery it was.
        consumer: &'a [u8],
        /// Which ones.
        which: Which<'a>,
    },
    /// Ends a consumer.
    DeleteConsumer {
        /// Its id.
        consumer: &'a [u8],
    },
    /// Ends a queue with everything in it.
    DeleteQueue {
        /// Its name: all the data, spaces included.
        queue: &'a [u8],
    },
    /// Says who the peer is. An extension: the original knows no credentials.
    Auth {
        /// A token, or a user and a password.
        credentials: &'a [u8],
    },
    /// Wants its data back.
    Ping {
        /// What comes back.
        data: &'a [u8],
    },
    /// Asks for a statistic by the expression that the original would evaluate. Nobody evaluates it here.
    Eval {
        /// Which worker of the original it is meant for; `None`: the one that is connected.
        worker: Option<u32>,
        /// The expression.
        code: &'a [u8],
    },
}

/// Which deliveries an acknowledgement or a rejection means.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Which<'a> {
    /// The message with this id.
    One(&'a [u8]),
    /// All that are not settled.
    All,
}

/// What is wrong with a whole line.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum Mistake {
    /// Fewer than three words.
    #[error("a request is `id action data`, and this line has fewer than three words")]
    Incomplete,
    /// Nobody knows the action.
    #[error(
        "there is no action `{0}`; known are publish, consume, rebind, ack, reject, delete_consumer, delete_queue, ping, _eval and auth"
    )]
    UnknownAction(Shown),
    /// Nobody knows the flag.
    #[error("{action} has no flag `{flag}`")]
    UnknownFlag {
        /// Which action.
        action: &'static str,
        /// What stood there.
        flag: Shown,
    },
    /// Something is not a number that can be meant.
    #[error("{flag} takes {wanted}, not `{found}`")]
    BadNumber {
        /// Which flag.
        flag: &'static str,
        /// What it takes.
        wanted: &'static str,
        /// What stood there.
        found: Shown,
    },
    /// Something is missing.
    #[error("{action} needs {what}")]
    Missing {
        /// Which action.
        action: &'static str,
        /// What it needs.
        what: &'static str,
    },
    /// There is more than the action takes.
    #[error("{action} takes {takes}, and `{found}` stands behind it")]
    TooMuch {
        /// Which action.
        action: &'static str,
        /// What it takes.
        takes: &'static str,
        /// The first word too many.
        found: Shown,
    },
    /// A name is too long to be one.
    #[error("{what} of {size} octets is longer than {NAME_BYTES_MAX}")]
    NameTooLong {
        /// Which name.
        what: &'static str,
        /// How long it is.
        size: usize,
    },
}

/// Cuts a stream of octets into lines. It remembers how far it has looked for the end of an unfinished line, so that
/// a long line that arrives in small pieces is looked at once and not once a piece.
#[derive(Debug, Clone, Default)]
pub struct Lines {
    scanned: usize,
}

impl Lines {
    /// At the beginning of a line.
    pub fn new() -> Self {
        Self::default()
    }

    /// The line at the front of `input` without its end, and how many octets it takes with it. `None`: more is needed.
    /// Call it again with the same octets and more behind them, or with what follows a line that was found.
    ///
    /// # Errors
    /// [`WireError::TooLarge`] for a line beyond `limits.frame_bytes_max`, [`WireError::Malformed`] for a TAB in it.
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
            return Err(WireError::Malformed { part: "line", why: "a TAB may stand nowhere in a request" });
        }
        self.scanned = 0;
        Ok(Some((trimmed(&input[..end]), end + 1)))
    }

    /// What is left when the peer says nothing more: a line whose end never came.
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

/// Without white space at its end.
fn trimmed(line: &[u8]) -> &[u8] {
    let blank = |octet: &u8| matches!(octet, b' ' | b'\r' | b'\n' | 0x0b | 0x0c);
    let end = line.iter().rposition(|octet| !blank(octet)).map_or(0, |last| last + 1);
    &line[..end]
}

/// What comes before the first space, and what comes behind it.
fn split(text: &[u8]) -> Option<(&[u8], &[u8])> {
    let at = memchr::memchr(b' ', text)?;
    Some((&text[..at], &text[at + 1..]))
}

/// Reads a request.
pub fn parse(line: &[u8]) -> Line<'_> {
    let Some((id, rest)) = split(line) else { return Line::incomplete() };
    let Some((action, data)) = split(rest) else { return Line::incomplete() };
    let (confirm, data) = confirm(data);
    let action = named("the request's id", id).and_then(|_| Action::parse(action, data));
    Line { id: &id[..id.len().min(NAME_BYTES_MAX)], confirm, action }
}

/// The id of a line of which only the beginning is known.
pub fn id_of_beginning(beginning: &[u8]) -> &[u8] {
    let end = memchr::memchr(b' ', &beginning[..beginning.len().min(NAME_BYTES_MAX + 1)]);
    end.map_or(NO_ID, |end| &beginning[..end])
}

/// `--confirm` counts where it is the first word of the data and something stands behind it.
fn confirm(data: &[u8]) -> (bool, &[u8]) {
    match data.strip_prefix(CONFIRM).and_then(|rest| rest.strip_prefix(b" ")) {
        Some(rest) => (true, rest),
        None => (false, data),
    }
}

fn named<'a>(what: &'static str, name: &'a [u8]) -> Result<&'a [u8], Mistake> {
    if name.len() > NAME_BYTES_MAX {
        return Err(Mistake::NameTooLong { what, size: name.len() });
    }
    Ok(name)
}

impl Line<'_> {
    fn incomplete() -> Self {
        Self { id: NO_ID, confirm: false, action: Err(Mistake::Incomplete) }
    }
}

impl<'a> Action<'a> {
    fn parse(action: &[u8], data: &'a [u8]) -> Result<Self, Mistake> {
        match action {
            b"publish" => publish(data),
            b"consume" => Consume::parse(data).map(Self::Consume),
            b"rebind" => Rebind::parse(data).map(Self::Rebind),
            b"ack" => settled("ack", data).map(|(consumer, which)| Self::Ack { consumer, which }),
            b"reject" => settled("reject", data).map(|(consumer, which)| Self::Reject { consumer, which }),
            b"delete_consumer" => Ok(Self::DeleteConsumer { consumer: named("the consumer's id", data)? }),
            b"delete_queue" => Ok(Self::DeleteQueue { queue: named("the queue's name", data)? }),
            b"ping" => Ok(Self::Ping { data }),
            b"_eval" => eval(data),
            b"auth" => Ok(Self::Auth { credentials: data }),
            unknown => Err(Mistake::UnknownAction(Shown::new(unknown))),
        }
    }
}

fn publish(data: &[u8]) -> Result<Action<'_>, Mistake> {
    match split(data) {
        Some((event, data)) if !event.is_empty() && !data.is_empty() => {
            Ok(Action::Publish { event: named("the event's name", event)?, data })
        }
        _ => Err(Mistake::Missing { action: "publish", what: "an event and data" }),
    }
}

fn settled<'a>(action: &'static str, data: &'a [u8]) -> Result<(&'a [u8], Which<'a>), Mistake> {
    let missing = || Mistake::Missing { action, what: "a consumer and a message id or --all" };
    let mut words = words(data);
    let consumer = named("the consumer's id", words.next().ok_or_else(missing)?)?;
    let which = match words.next().ok_or_else(missing)? {
        b"--all" => Which::All,
        id => Which::One(named("the message's id", id)?),
    };
    match words.next() {
        None => Ok((consumer, which)),
        Some(word) => Err(Mistake::TooMuch {
            action,
            takes: "a consumer and one message id or --all",
            found: Shown::new(word),
        }),
    }
}

fn eval(data: &[u8]) -> Result<Action<'_>, Mistake> {
    let Some(rest) = data.strip_prefix(b"--worker=") else {
        return Ok(Action::Eval { worker: None, code: data });
    };
    let missing = Mistake::Missing { action: "_eval", what: "an expression" };
    let (number, code) = split(rest).ok_or(missing)?;
    let worker = std::str::from_utf8(number).ok().and_then(|number| number.parse().ok());
    let worker = worker.ok_or_else(|| Mistake::BadNumber {
        flag: "--worker",
        wanted: "the number of a worker",
        found: Shown::new(number),
    })?;
    Ok(Action::Eval { worker: Some(worker), code })
}

/// The words of `data`: whatever stands between spaces.
fn words(data: &[u8]) -> impl Iterator<Item = &[u8]> {
    data.split(|octet| *octet == b' ').filter(|word| !word.is_empty())
}

/// Appends a request that is complete in itself: `{id} {action} [--confirm] {data}`.
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
