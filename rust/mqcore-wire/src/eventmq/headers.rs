//! Job headers ("Headers"): comma-separated words, some with a number after a colon.

use crate::error::EscapedBytes;

const TIMEOUT: &str = "timeout";

/// Why a header is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum EmqpHeaderError {
    /// The value is not a number in the range of its header.
    #[error(
        "invalid header `{name}:{value}`: the value must be a whole number from 0 to {max}; without the header it is 0"
    )]
    Number {
        /// Name of the header.
        name: &'static str,
        /// Value that was sent.
        value: EscapedBytes,
        /// Largest valid value.
        max: u32,
    },
    /// The time limit is not a number of seconds.
    #[error(
        "invalid header `timeout:{0}`: the value must be a number of seconds from 0 to 4294967295; without the header, or with 0, there is no limit"
    )]
    Timeout(EscapedBytes),
}

/// Options of a job or schedule. Unknown words are ignored.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers {
    /// `reply-requested`: the client wants the result.
    pub reply_requested: bool,
    /// `guarantee`: the broker keeps the job until a worker has finished it.
    pub guarantee: bool,
    /// `nohaste`: the first run starts after one interval instead of immediately.
    pub nohaste: bool,
    /// `retry-count:N`: how often a failed job is retried. Default 0.
    pub retry_count: u32,
    /// `timeout:N`: time limit of the job in seconds. Default 0: no limit.
    pub timeout: u32,
    /// `priority:N`: a job above 0 runs before all jobs of priority 0. Default 0.
    pub priority: u32,
    /// `run_count:N`: total number of runs of a schedule. Default 0: no limit.
    pub run_count: u32,
    /// `create-queue`: the broker creates the queue of the job if it does not exist. Without it, the job goes to the queue
    /// `default`. Not in the original.
    pub create_queue: bool,
}

impl Headers {
    /// Parses header text that [`Headers::check`] has accepted, or that a worker's message carries: an invalid number
    /// counts as 0.
    pub fn parse(text: &[u8]) -> Self {
        Self::read(text).0
    }

    /// Parses the header text of a request.
    ///
    /// # Errors
    /// [`EmqpHeaderError`] for the first value that its header cannot have.
    pub fn check(text: &[u8]) -> Result<Self, EmqpHeaderError> {
        match Self::read(text) {
            (headers, None) => Ok(headers),
            (_, Some(mistake)) => Err(mistake),
        }
    }

    fn read(text: &[u8]) -> (Self, Option<EmqpHeaderError>) {
        let mut headers = Self::default();
        let mut first = None;
        let mut number = |name, value: Option<&[u8]>| {
            read_number(name, value.unwrap_or_default().trim_ascii()).unwrap_or_else(|mistake| {
                first.get_or_insert(mistake);
                0
            })
        };
        for word in text.split(|byte| *byte == b',') {
            let colon = memchr::memchr(b':', word).unwrap_or(word.len());
            let (name, value) = (word[..colon].trim_ascii(), word.get(colon + 1..));
            match name {
                b"reply-requested" => headers.reply_requested = said(value),
                b"guarantee" => headers.guarantee = said(value),
                b"nohaste" => headers.nohaste = said(value),
                b"retry-count" => headers.retry_count = number("retry-count", value),
                b"timeout" => headers.timeout = number(TIMEOUT, value),
                b"priority" => headers.priority = number("priority", value),
                b"run_count" | b"run-count" => headers.run_count = number("run_count", value),
                b"create-queue" => headers.create_queue = said(value),
                _ => {}
            }
        }
        (headers, first)
    }

    /// Appends the header text.
    pub fn encode(&self, output: &mut Vec<u8>) {
        let mut words = Vec::new();
        for (said, word) in [
            (self.reply_requested, "reply-requested"),
            (self.guarantee, "guarantee"),
            (self.nohaste, "nohaste"),
            (self.create_queue, "create-queue"),
        ] {
            if said {
                words.push(word.to_owned());
            }
        }
        for (number, word) in [
            (self.retry_count, "retry-count"),
            (self.timeout, "timeout"),
            (self.priority, "priority"),
            (self.run_count, "run_count"),
        ] {
            if number > 0 {
                words.push(format!("{word}:{number}"));
            }
        }
        output.extend_from_slice(words.join(",").as_bytes());
    }
}

/// Returns the key of `unique:KEY`. A queue holds at most one job per key. The key may contain any bytes except a comma.
pub fn unique_key(text: &[u8]) -> Option<&[u8]> {
    value(text, b"unique")
}

/// Returns the value of the word `name`, which is empty if the word has none. For words unknown to [`Headers`].
#[must_use]
pub fn value<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    words(text).find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// Iterates over all non-empty words with their values.
pub fn words(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|byte| *byte == b',').map(<[u8]>::trim_ascii).filter(|word| !word.is_empty()).map(|word| {
        let colon = memchr::memchr(b':', word).unwrap_or(word.len());
        (word[..colon].trim_ascii(), word.get(colon + 1..).unwrap_or_default().trim_ascii())
    })
}

/// A word sets its option unless its value is `0` or `false`.
fn said(value: Option<&[u8]>) -> bool {
    value.is_none_or(|value| {
        let value = value.trim_ascii();
        value != b"0" && !value.eq_ignore_ascii_case(b"false")
    })
}

fn read_number(name: &'static str, value: &[u8]) -> Result<u32, EmqpHeaderError> {
    let text = str::from_utf8(value).unwrap_or_default();
    if let Ok(number) = text.parse() {
        return Ok(number);
    }
    if name != TIMEOUT {
        return Err(EmqpHeaderError::Number { name, value: EscapedBytes::new(value), max: u32::MAX });
    }
    // Workers accept fractions of a second; the broker waits for the next whole one.
    let seconds = text.parse::<f64>().ok().filter(|seconds| (0.0..=f64::from(u32::MAX)).contains(seconds));
    seconds
        .map(|seconds| seconds.ceil() as u32)
        .ok_or_else(|| EmqpHeaderError::Timeout(EscapedBytes::new(value)))
}
