//! The header of a message in a queue that names the topic it was published to.

use std::borrow::Cow;

use crate::model::id::TopicName;
use crate::model::message::Message;

const HEADER: &[u8] = b"Topic:";

/// The header line with this topic. `None` if a header cannot contain the name: readers would drop spaces at its ends, and
/// take it for another topic.
#[must_use]
pub fn header_line(topic: &[u8]) -> Option<Vec<u8>> {
    let fits = !topic.iter().any(u8::is_ascii_control) && topic.trim_ascii().len() == topic.len();
    fits.then(|| [HEADER, topic, b"\r\n"].concat())
}

/// The topic in header text.
#[must_use]
pub fn topic_in(headers: &[u8]) -> Option<&[u8]> {
    headers.split(|byte| *byte == b'\n').find_map(|line| {
        let (name, value) = line.split_at_checked(HEADER.len())?;
        name.eq_ignore_ascii_case(HEADER).then(|| value.trim_ascii())
    })
}

/// The message with the header, unless it has one already or has no room for it.
pub(crate) fn with_topic<'a>(message: &'a Message, topic: &TopicName) -> Cow<'a, Message> {
    if topic_in(message.headers()).is_some() {
        return Cow::Borrowed(message);
    }
    let line = header_line(topic.as_bytes());
    line.and_then(|line| message.with_headers(&line)).map_or(Cow::Borrowed(message), Cow::Owned)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_that_a_header_cannot_contain_is_not_written() {
        for name in [&b"a.b"[..], b"a b", b"\xff\xfe", "größe".as_bytes()] {
            let line = header_line(name).expect("a header can contain it");
            assert_eq!(topic_in(&line), Some(name));
        }
        for name in [&b"a\nb"[..], b"a\r\nEvil:1", b"a\0b", b"a\x7f", b" a.b", b"a.b ", b"\ta", b" "] {
            assert_eq!(header_line(name), None, "{name:?} would be read as another topic");
        }
    }
}
