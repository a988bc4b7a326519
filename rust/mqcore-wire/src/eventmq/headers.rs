//! The headers of a job: words between commas, some with a number behind a colon.

/// What the sender wishes for its job. Words that nobody knows are skipped; a number that nobody can mean counts as not
/// given.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Headers {
    /// `reply-requested`: the sender wants the result.
    pub reply_requested: bool,
    /// `guarantee`: the job stays until a worker has finished it.
    pub guarantee: bool,
    /// `nohaste`: the first run is after the interval, not at once.
    pub nohaste: bool,
    /// `retry-count:N`: how often a job that failed is tried again. Default 0.
    pub retry_count: u32,
    /// `timeout:N`: seconds that a job may take; 0, the default: no end.
    pub timeout: u32,
    /// `priority:N`: above 0, the default: before all jobs that have 0.
    pub priority: u32,
    /// `run_count:N`: how often a schedule runs in all; 0, the default: without end.
    pub run_count: u32,
}

impl Headers {
    /// Reads them.
    pub fn parse(text: &[u8]) -> Self {
        let mut headers = Self::default();
        for word in text.split(|octet| *octet == b',') {
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

    /// As it is written.
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

/// `unique:KEY`: of all jobs of this key a queue has one at a time. Any octets but a comma, as they stand there.
pub fn unique_key(text: &[u8]) -> Option<&[u8]> {
    value(text, b"unique")
}

/// The value of a word that [`Headers`] does not know; empty if it has none.
#[must_use]
pub fn value<'a>(text: &'a [u8], name: &[u8]) -> Option<&'a [u8]> {
    words(text).find(|(found, _)| *found == name).map(|(_, value)| value)
}

/// All words with their values, as far as they are not empty.
pub fn words(text: &[u8]) -> impl Iterator<Item = (&[u8], &[u8])> {
    text.split(|octet| *octet == b',').map(<[u8]>::trim_ascii).filter(|word| !word.is_empty()).map(|word| {
        let colon = memchr::memchr(b':', word).unwrap_or(word.len());
        (word[..colon].trim_ascii(), word.get(colon + 1..).unwrap_or_default().trim_ascii())
    })
}

/// A word that stands there is meant, unless it says that it is not.
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
