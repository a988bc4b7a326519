//! Job headers ("Headers"): comma-separated words, some with a number after a colon.

/// Options of a job or schedule. Unknown words are ignored, and an invalid number counts as 0.
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
}

impl Headers {
    /// Parses header text.
    pub fn parse(text: &[u8]) -> Self {
        let mut headers = Self::default();
        for word in text.split(|byte| *byte == b',') {
            let colon = memchr::memchr(b':', word).unwrap_or(word.len());
            let (name, value) = (word[..colon].trim_ascii(), word.get(colon + 1..));
            match name {
                b"reply-requested" => headers.reply_requested = said(value),
                b"guarantee" => headers.guarantee = said(value),
                b"nohaste" => headers.nohaste = said(value),
                b"retry-count" => headers.retry_count = number(value),
                b"timeout" => headers.timeout = number(value),
                b"priority" => headers.priority = number(value),
                b"run_count" | b"run-count" => headers.run_count = number(value),
                _ => {}
            }
        }
        headers
    }

    /// Appends the header text.
    pub fn encode(&self, output: &mut Vec<u8>) {
        let mut words = Vec::new();
        for (said, word) in [
            (self.reply_requested, "reply-requested"),
            (self.guarantee, "guarantee"),
            (self.nohaste, "nohaste"),
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

fn number(value: Option<&[u8]>) -> u32 {
    let text = value.and_then(|value| std::str::from_utf8(value.trim_ascii()).ok());
    text.and_then(|text| text.parse().ok()).unwrap_or(0)
}
