//! Pull requests.

use mqcore_broker::model::command::{Clear, MessageId, Pull};
use mqcore_broker::model::id::QueueAddress;
use mqcore_wire::tmqp::Frame;
use mqcore_wire::tmqp::header::{self, clear, key, no_content, pull_order};

use super::pending::{PendingPull, PendingRequests};
use super::publish::ChannelNames;

/// Reads a pull request and adds it to the pending ones; or returns the reason to end it at once.
pub(super) fn read(
    frame: &Frame<'_>,
    channels: &mut ChannelNames,
    pending: &mut PendingRequests,
) -> Result<Pull, &'static str> {
    if frame.id.is_empty() {
        return Err(no_content::ID_REQUIRED);
    }
    let count = count(frame.headers).ok_or(no_content::UNACCEPTABLE)?;
    let channel = channels.name(frame.target).map_err(|_| no_content::NO_CHANNEL)?;
    if pending.is_full() {
        return Err(no_content::UNACCEPTABLE);
    }
    let request = pending.expect_pulled(PendingPull {
        id: MessageId::from_slice(frame.id),
        first_acquirer: frame.first_acquirer,
        high_priority: frame.high_priority,
        channel: frame.target.into(),
        queue: frame.content_type,
        attempts: is(frame.headers, key::ATTEMPT, header::VALUE_YES),
    });
    Ok(Pull {
        request,
        queue: QueueAddress { channel, id: frame.content_type },
        count,
        lifo: is(frame.headers, key::ORDER, pull_order::LIFO),
        clear: cleared(frame.headers),
        info: is(frame.headers, key::INFO, header::VALUE_YES),
    })
}

/// At least one; zero if there is no count, which only caches accept. A number too large for the type means all
/// messages.
fn count(headers: &[u8]) -> Option<u32> {
    let Some(said) = header::header_value(headers, key::COUNT) else { return Some(0) };
    let text = str::from_utf8(said).ok()?;
    let count: u64 = text.trim().parse().ok()?;
    (count > 0).then(|| u32::try_from(count).unwrap_or(u32::MAX))
}

fn cleared(headers: &[u8]) -> Clear {
    let all = is(headers, key::CLEAR, clear::ALL);
    Clear {
        high_priority: all || is(headers, key::CLEAR, clear::HIGH_PRIORITY),
        normal: all || is(headers, key::CLEAR, clear::DEFAULT_PRIORITY),
    }
}

fn is(headers: &[u8], key: &str, word: &str) -> bool {
    header::header_value(headers, key)
        .is_some_and(|value| value.trim_ascii().eq_ignore_ascii_case(word.as_bytes()))
}
