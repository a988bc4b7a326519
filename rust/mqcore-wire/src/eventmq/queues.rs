//! The queues that a worker serves, as announced in INFORM: `[[30, "high"], [10, "default"]]`.
//!
//! The original programs send JSON. The published document shows `[30, 'high'], [10, 'default']`, without an outer list and
//! with single quotes. The parser accepts both. Empty text means the queue `default`.

use super::{EmqpError, NAME_BYTES_MAX};

/// Maximum number of queues per worker.
pub const QUEUES_MAX: usize = 256;
/// Queue of workers that name none, and of jobs whose queue has no workers.
pub const DEFAULT: &str = "default";
/// Weight of [`DEFAULT`] if the worker names no queue.
pub const DEFAULT_WEIGHT: i32 = 10;

/// A queue that a worker serves.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WeightedQueue {
    /// Jobs go to the workers with the largest weight for their queue first.
    pub weight: i32,
    /// Queue name.
    pub name: String,
}

/// Parses the queues in the order in which they appear. A queue that appears twice keeps its first weight.
///
/// # Errors
/// - [`EmqpError::Queues`]: the text is not a list of pairs, or has more than [`QUEUES_MAX`] of them.
/// - [`EmqpError::NameTooLong`]: a queue name exceeds [`NAME_BYTES_MAX`] bytes.
pub fn parse(text: &[u8]) -> Result<Vec<WeightedQueue>, EmqpError> {
    let text = std::str::from_utf8(text).map_err(|_| EmqpError::Queues("it is not valid UTF-8"))?;
    let mut reader = JsonReader { rest: text.trim() };
    let mut queues = Vec::new();
    if !reader.is_empty() {
        let listed = reader.begins_list();
        reader.pairs(&mut queues)?;
        if listed {
            reader.expect(']')?;
        }
        if !reader.is_empty() {
            return Err(EmqpError::Queues("unexpected text after the list"));
        }
    }
    if queues.is_empty() {
        queues.push(WeightedQueue { weight: DEFAULT_WEIGHT, name: DEFAULT.into() });
    }
    Ok(queues)
}

/// Appends `queues` as JSON.
pub fn encode(queues: &[WeightedQueue], output: &mut String) {
    output.push('[');
    for (index, queue) in queues.iter().enumerate() {
        output.push_str(if index == 0 { "[" } else { ", [" });
        output.push_str(&queue.weight.to_string());
        output.push_str(", ");
        encode_text(&queue.name, output);
        output.push(']');
    }
    output.push(']');
}

/// Appends `text` as a JSON string in ASCII.
pub fn encode_text(text: &str, output: &mut String) {
    output.push('"');
    for unit in text.encode_utf16() {
        match u8::try_from(unit) {
            Ok(byte @ (b'"' | b'\\')) => output.extend(['\\', char::from(byte)]),
            Ok(byte @ b' '..=b'~') => output.push(char::from(byte)),
            _ => output.push_str(&format!("\\u{unit:04x}")),
        }
    }
    output.push('"');
}

struct JsonReader<'a> {
    rest: &'a str,
}

impl<'a> JsonReader<'a> {
    fn is_empty(&mut self) -> bool {
        self.rest = self.rest.trim_start();
        self.rest.is_empty()
    }

    fn take(&mut self, wanted: char) -> bool {
        match self.rest.trim_start().strip_prefix(wanted) {
            Some(rest) => {
                self.rest = rest;
                true
            }
            None => false,
        }
    }

    fn expect(&mut self, wanted: char) -> Result<(), EmqpError> {
        if self.take(wanted) {
            return Ok(());
        }
        Err(EmqpError::Queues("each queue must be a list of a weight and a name"))
    }

    /// Whether there is an outer list; consumes its opening bracket.
    fn begins_list(&mut self) -> bool {
        let listed = self.rest.strip_prefix('[').map(str::trim_start);
        match listed {
            Some(rest) if rest.starts_with(['[', ']']) => {
                self.rest = rest;
                true
            }
            _ => false,
        }
    }

    fn pairs(&mut self, queues: &mut Vec<WeightedQueue>) -> Result<(), EmqpError> {
        if self.rest.starts_with(']') {
            return Ok(());
        }
        loop {
            self.expect('[')?;
            let weight = self.number()?;
            self.expect(',')?;
            let name = self.text()?;
            self.expect(']')?;
            if name.len() > NAME_BYTES_MAX {
                return Err(EmqpError::NameTooLong { what: "the queue's name", size: name.len() });
            }
            if !queues.iter().any(|queue| queue.name == name) {
                queues.push(WeightedQueue { weight, name });
            }
            if queues.len() > QUEUES_MAX {
                return Err(EmqpError::Queues("a worker serves at most 256 queues"));
            }
            if !self.take(',') {
                return Ok(());
            }
        }
    }

    fn number(&mut self) -> Result<i32, EmqpError> {
        let rest = self.rest.trim_start();
        let end = rest.find(|c: char| c != '-' && !c.is_ascii_digit()).unwrap_or(rest.len());
        let (number, rest) = rest.split_at(end);
        self.rest = rest;
        number.parse().map_err(|_| EmqpError::Queues("a weight must be an integer"))
    }

    fn text(&mut self) -> Result<String, EmqpError> {
        let unfinished = EmqpError::Queues("a name must be enclosed in quotes");
        let rest = self.rest.trim_start();
        let quote = rest.chars().next().filter(|c| matches!(c, '"' | '\'')).ok_or(unfinished.clone())?;
        let mut chars = rest[1..].chars();
        let mut units = Vec::new();
        loop {
            let c = chars.next().ok_or(unfinished.clone())?;
            if c == quote {
                break;
            }
            if c == '\\' {
                units.push(escaped(&mut chars).ok_or(EmqpError::Queues("unknown escape sequence"))?);
            } else {
                units.extend_from_slice(c.encode_utf16(&mut [0; 2]));
            }
            // A longer name exceeds the limit in any encoding, so scanning stops here.
            if units.len() > 4 * NAME_BYTES_MAX {
                return Err(EmqpError::NameTooLong { what: "the queue's name", size: units.len() });
            }
        }
        self.rest = chars.as_str();
        String::from_utf16(&units).map_err(|_| EmqpError::Queues("unpaired surrogate in a name"))
    }
}

fn escaped(chars: &mut std::str::Chars<'_>) -> Option<u16> {
    Some(match chars.next()? {
        c @ ('"' | '\'' | '\\' | '/') => c as u16,
        'b' => 8,
        'f' => 12,
        'n' => 10,
        'r' => 13,
        't' => 9,
        'u' => {
            let digits = chars.as_str().get(..4)?;
            *chars = chars.as_str()[4..].chars();
            // `from_str_radix` would accept a sign.
            if !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
                return None;
            }
            u16::from_str_radix(digits, 16).ok()?
        }
        _ => return None,
    })
}
