//! Requests in JSON: the view, its columns, and conditions on rows.

use regex::Regex;
use serde::Deserialize;

use super::ReadError;
use super::columns::{Shape, View};
use crate::manifest::FileEntry;

/// Maximum number of queue patterns.
const QUEUES_MAX: usize = 1024;
/// Maximum size of a compiled regular expression in bytes.
const PATTERN_BYTES_MAX: usize = 1 << 20;

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct JsonRequest {
    view: View,
    columns: Vec<String>,
    #[serde(default)]
    texts: Vec<String>,
    #[serde(default)]
    queues: Option<Vec<String>>,
    #[serde(default)]
    pattern: Option<String>,
    #[serde(default)]
    kinds: Option<Vec<String>>,
    #[serde(default)]
    since_us: Option<i64>,
    #[serde(default)]
    until_us: Option<i64>,
}

/// A parsed request: the selected columns, and the conditions on rows.
#[derive(Debug)]
pub struct HistoryRequest {
    /// Selected columns.
    pub shape: Shape,
    /// Lower-case patterns `channel` or `channel/id` with `*` as wildcard; `None`: all queues.
    queues: Option<Vec<Box<str>>>,
    pattern: Option<Regex>,
    kinds: Option<Vec<Box<str>>>,
    since_us: i64,
    until_us: i64,
}

impl HistoryRequest {
    /// Parses a request in JSON:
    ///
    /// | member | meaning |
    /// |---|---|
    /// | `view` | `messages` or `steps` |
    /// | `columns` | names of the columns, in order |
    /// | `texts` | binary columns to convert to text; invalid UTF-8 is replaced |
    /// | `queues` | channels (all their queues) or `channel/id`, case-insensitive, with `*` as wildcard |
    /// | `pattern` | a regular expression that must match the whole of `channel/id` |
    /// | `kinds` | kinds of lifecycle events |
    /// | `since_us`, `until_us` | first time and end of the time range, in microseconds since the Unix epoch |
    ///
    /// # Errors
    /// [`ReadError::Request`] with the reason.
    pub fn parse(json: &str) -> Result<Self, ReadError> {
        let words: JsonRequest =
            serde_json::from_str(json).map_err(|error| ReadError::Request(error.to_string()))?;
        let shape = Shape::new(words.view, &words.columns, &words.texts).map_err(ReadError::Request)?;
        if words.queues.as_ref().is_some_and(|queues| queues.len() > QUEUES_MAX) {
            return Err(ReadError::Request(format!("a request names at most {QUEUES_MAX} queues")));
        }
        let pattern = words.pattern.map(|pattern| {
            let whole = format!("^(?:{pattern})$");
            let built = regex::RegexBuilder::new(&whole).size_limit(PATTERN_BYTES_MAX).build();
            built.map_err(|error| ReadError::Request(format!("invalid pattern {pattern:?}: {error}")))
        });
        let lower = |name: String| name.to_lowercase().into_boxed_str();
        Ok(Self {
            shape,
            queues: words.queues.map(|queues| queues.into_iter().map(lower).collect()),
            pattern: pattern.transpose()?,
            kinds: words.kinds.map(|kinds| kinds.into_iter().map(String::into_boxed_str).collect()),
            since_us: words.since_us.unwrap_or(i64::MIN),
            until_us: words.until_us.unwrap_or(i64::MAX),
        })
    }

    /// Whether rows of this queue match; `None` for rows of a whole shard.
    pub(super) fn wants_queue(&self, queue: Option<&str>) -> bool {
        let Some(queue) = queue else { return self.queues.is_none() && self.pattern.is_none() };
        let named = self.queues.as_ref().is_none_or(|wanted| {
            let queue = queue.to_lowercase();
            let channel = queue.rsplit_once('/').map_or(queue.as_str(), |(channel, _)| channel);
            wanted.iter().any(|wanted| fits(wanted, &queue) || fits(wanted, channel))
        });
        named && self.pattern.as_ref().is_none_or(|pattern| pattern.is_match(queue))
    }

    pub(super) fn wants_kind(&self, kind: &str) -> bool {
        self.kinds.as_ref().is_none_or(|kinds| kinds.iter().any(|wanted| **wanted == *kind))
    }

    pub(super) fn wants_time(&self, us: i64) -> bool {
        self.since_us <= us && us < self.until_us
    }

    /// Whether the request has no conditions on rows.
    pub(super) fn wants_all(&self) -> bool {
        let timeless = self.since_us == i64::MIN && self.until_us == i64::MAX;
        timeless && self.queues.is_none() && self.pattern.is_none() && self.kinds.is_none()
    }

    /// Whether a time range overlaps the requested one.
    pub(super) fn overlaps_ms(&self, first: u64, last: u64) -> bool {
        let us = |ms: u64| i64::try_from(ms.saturating_mul(1000)).unwrap_or(i64::MAX);
        self.since_us <= us(last) && us(first) < self.until_us
    }

    /// The same in microseconds.
    pub(super) fn overlaps_us(&self, first: i64, last: i64) -> bool {
        self.since_us <= last && first < self.until_us
    }

    /// Whether a file of the archive may contain matching rows.
    pub(super) fn may_want(&self, file: &FileEntry) -> bool {
        file.table == self.shape.view().table().as_str()
            && self.overlaps_ms(file.min_time_ms, file.max_time_ms)
            && self.may_want_queues(file)
    }

    fn may_want_queues(&self, file: &FileEntry) -> bool {
        match &file.queues {
            // Patterns ignore case, so that only a file with one queue can be excluded.
            Some((first, last)) => first != last || self.wants_queue(Some(first)),
            None => {
                let queue = file.channel.as_ref().zip(file.queue_id);
                let queue = queue.map(|(channel, id)| format!("{channel}/{id}"));
                self.wants_queue(queue.as_deref())
            }
        }
    }
}

/// Caches whether the last queue matches, because consecutive rows usually have the same queue.
#[derive(Debug, Default)]
pub(super) struct QueueMemory(Option<(Option<Box<str>>, bool)>);

impl QueueMemory {
    /// Returns what `wants` returns for the queue.
    pub(super) fn wants(&mut self, queue: Option<&str>, wants: impl FnOnce(Option<&str>) -> bool) -> bool {
        if let Some((known, wanted)) = &self.0
            && known.as_deref() == queue
        {
            return *wanted;
        }
        let wanted = wants(queue);
        self.0 = Some((queue.map(Box::from), wanted));
        wanted
    }
}

/// Whether a text matches a pattern in which `*` stands for any characters, including none.
fn fits(pattern: &str, text: &str) -> bool {
    let Some((first, mut rest)) = pattern.split_once('*') else { return pattern == text };
    let Some(mut text) = text.strip_prefix(first) else { return false };
    while let Some((part, behind)) = rest.split_once('*') {
        let Some(at) = text.find(part) else { return false };
        text = &text[at + part.len()..];
        rest = behind;
    }
    text.ends_with(rest)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(rest: &str) -> HistoryRequest {
        HistoryRequest::parse(&format!(r#"{{"view":"steps","columns":["kind"]{rest}}}"#)).expect("it is one")
    }

    #[test]
    fn queues_are_selected_by_channel_address_and_pattern() {
        let some = request(r#","queues":["Orders","logs/1","a*z"]"#);
        for (queue, wanted) in [
            ("orders/1", true),
            ("ORDERS/9", true),
            ("orders2/1", false),
            ("logs/1", true),
            ("logs/11", false),
            ("abcz/3", true),
            ("abc/3", false),
        ] {
            assert_eq!(some.wants_queue(Some(queue)), wanted, "{queue}");
        }
        assert!(!some.wants_queue(None) && request("").wants_queue(None));
        let pattern = request(r#","pattern":"log.*/[0-9]""#);
        assert!(pattern.wants_queue(Some("logs/1")) && !pattern.wants_queue(Some("logs/11")));
    }

    #[test]
    fn invalid_requests_name_the_problem() {
        for (text, word) in [
            ("{}", "view"),
            (r#"{"view":"steps","columns":["nothing"]}"#, "available columns: timestamp"),
            (r#"{"view":"steps","columns":["kind"],"texts":["kind"]}"#, "no bytes"),
            (r#"{"view":"steps","columns":[],"pattern":"("}"#, "pattern"),
            (r#"{"view":"steps","columns":[],"since":1}"#, "since"),
        ] {
            let refused = HistoryRequest::parse(text).expect_err(text).to_string();
            assert!(refused.contains(word), "{refused}");
        }
    }
}
