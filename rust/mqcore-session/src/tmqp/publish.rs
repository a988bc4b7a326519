//! Queue messages: the message itself, and the copies that its CC headers ask for.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::id::{ChannelName, QueueAddress};
use mqcore_broker::model::message::{Layout, Message, Properties};
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_wire::tmqp::header::{self, key};
use mqcore_wire::tmqp::{Frame, HOPS_FRESH};

use super::answer::{self, RepeatedParts};
use super::frame::properties;
use crate::message_id::MessageIds;

/// Maximum copies of one message.
pub(super) const COPIES_MAX: usize = 64;

/// Names remembered by one session.
const NAMES: usize = 4;
/// Source and target are between id and body on the wire, and a stored message needs neither. Up to this many bytes are
/// stored with it, because that is cheaper than moving the body.
const GAP_BYTES_KEPT: usize = 16;
/// Larger messages are stored in their wire layout: moving them would cost more than the gap.
const MOVED_BYTES_MAX: usize = 512;

/// The most recent names in this session's frames, so that a message to a known channel allocates no name.
#[derive(Debug, Default)]
pub(super) struct ChannelNames {
    known: [Option<ChannelName>; NAMES],
    /// Index that the next unknown name overwrites.
    oldest: usize,
}

impl ChannelNames {
    /// The channel that a frame's target names.
    #[inline]
    pub(super) fn name(&mut self, target: &[u8]) -> Result<ChannelName, Rejection> {
        for known in self.known.iter().flatten() {
            if known.as_str().as_bytes() == target {
                return Ok(known.clone());
            }
        }
        self.learn(target)
    }

    #[cold]
    fn learn(&mut self, target: &[u8]) -> Result<ChannelName, Rejection> {
        let name = channel_name(target)?;
        self.known[self.oldest] = Some(name.clone());
        self.oldest = (self.oldest + 1) % NAMES;
        Ok(name)
    }
}

/// Reads a channel's name.
pub(super) fn channel_name(bytes: &[u8]) -> Result<ChannelName, Rejection> {
    let bad = |why: String| Rejection::new(RejectionKind::BadRequest, format!("invalid channel name: {why}"));
    let text = str::from_utf8(bytes).map_err(|_| bad("it is not UTF-8".into()))?;
    ChannelName::new(text).map_err(|error| bad(error.to_string()))
}

/// Parses a queue id in a header.
pub(super) fn queue_id(value: &[u8]) -> Result<u16, Rejection> {
    let id = str::from_utf8(value.trim_ascii()).ok().and_then(|text| text.parse().ok());
    id.ok_or_else(|| {
        Rejection::new(RejectionKind::BadRequest, "a queue id must be a decimal number up to 65535")
    })
}

/// Publishes one client's messages to queues.
#[derive(Debug)]
pub(super) struct Publisher<'a> {
    pub(super) client: &'a Arc<Client>,
    pub(super) channels: &'a mut ChannelNames,
    pub(super) ids: &'a mut MessageIds,
    pub(super) copied_bytes_max: u64,
}

impl Publisher<'_> {
    /// Publishes the message of a frame whose bytes are in `bytes`, and then its copies. A message without an id stays
    /// without one here: an option of its queue decides whether it gets one.
    #[inline]
    pub(super) fn publish(
        &mut self,
        frame: &Frame<'_>,
        bytes: &[u8],
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) {
        match self.channels.name(frame.target) {
            Ok(channel) => {
                let queue = QueueAddress { channel, id: frame.content_type };
                let message = stored(frame, bytes, self.client);
                match message.check_terms() {
                    Ok(()) => commands.push(Command::Publish { queue, message }),
                    Err(rejection) => refuse(frame, &rejection, output),
                }
            }
            Err(rejection) => refuse(frame, &rejection, output),
        }
        if !frame.headers.is_empty() {
            self.publish_copies(frame, commands, output);
        }
    }

    fn publish_copies(&mut self, frame: &Frame<'_>, commands: &mut Vec<Command>, output: &mut Vec<u8>) {
        let mut wanted =
            header::pairs(frame.headers).filter(|(name, _)| name.eq_ignore_ascii_case(key::CC.as_bytes()));
        let mut headers = None;
        let mut room = self.copied_bytes_max;
        for index in 0.. {
            let Some((_, value)) = wanted.next() else { return };
            let headers = headers.get_or_insert_with(|| copied_headers(frame.headers));
            let size = (headers.len() + frame.payload.len()) as u64;
            if index == COPIES_MAX || size > room {
                refuse_rest(frame, std::iter::once(value).chain(wanted.map(|(_, value)| value)), output);
                return;
            }
            room -= size;
            match self.copy(frame, value, headers) {
                Ok(command) => commands.push(command),
                Err(rejection) => refuse_copy(frame, value, &rejection, output),
            }
        }
    }

    /// The copy that one CC header asks for. It starts here: its hops are reset, and channel and queue are its own.
    fn copy(&mut self, frame: &Frame<'_>, value: &[u8], headers: &[u8]) -> Result<Command, Rejection> {
        let wanted = CopyRequest::read(value);
        let channel = self.channels.name(wanted.channel)?;
        let id = match wanted.queue {
            [] => frame.content_type,
            digits => queue_id(digits)?,
        };
        let fresh;
        let message_id = match wanted.message_id {
            [] => {
                fresh = self.ids.next();
                &fresh[..]
            }
            given if given.len() > mqcore_wire::tmqp::NAME_BYTES_MAX => {
                return Err(Rejection::new(
                    RejectionKind::BadRequest,
                    "a message id must have at most 255 bytes",
                ));
            }
            given => given,
        };
        let properties = Properties {
            hops: HOPS_FRESH,
            content_type: id,
            pending_response: false,
            // The producer can match the acknowledgement of a copy only if it chose the id.
            pending_acknowledge: frame.pending_acknowledge && !wanted.message_id.is_empty(),
            ..properties(frame)
        };
        let producer = Some(self.client.clone());
        let message = Message::from_parts(message_id, headers, frame.payload, properties, producer);
        message.check_terms()?;
        Ok(Command::Publish { queue: QueueAddress { channel, id }, message })
    }
}

/// The header text of a copy: it asks for no copies itself.
pub(crate) fn copied_headers(headers: &[u8]) -> Vec<u8> {
    answer::without(headers, key::CC)
}

/// One CC header: `channel[;queue id[;message id]]`.
pub(super) struct CopyRequest<'a> {
    pub(super) channel: &'a [u8],
    /// Empty: the queue id of the original message.
    pub(super) queue: &'a [u8],
    /// Empty: one is generated.
    pub(super) message_id: &'a [u8],
}

impl<'a> CopyRequest<'a> {
    pub(super) fn read(value: &'a [u8]) -> Self {
        let mut parts = value.splitn(3, |&byte| byte == b';').map(<[u8]>::trim_ascii);
        let mut part = || parts.next().unwrap_or_default();
        Self { channel: part(), queue: part(), message_id: part() }
    }
}

pub(super) fn refuse(frame: &Frame<'_>, rejection: &Rejection, output: &mut Vec<u8>) {
    let repeated = RepeatedParts::by_frame(frame);
    let (target, queue) = (frame.target, frame.content_type);
    answer::publish_refused(&repeated, frame.pending_acknowledge, target, queue, rejection, output);
}

/// Reports that a copy is impossible: under the copy's id if it has one, otherwise under the message's.
fn refuse_copy(frame: &Frame<'_>, value: &[u8], rejection: &Rejection, output: &mut Vec<u8>) {
    let wanted = CopyRequest::read(value);
    let id = match wanted.message_id {
        [] => frame.id,
        given => answer::name(given),
    };
    let repeated = RepeatedParts { id, ..RepeatedParts::by_frame(frame) };
    answer::publish_refused(&repeated, false, wanted.channel, frame.content_type, rejection, output);
}

/// Reports that no further copy is possible: under the id of each copy that has one, and once under the message's id if
/// some copy has none.
#[cold]
fn refuse_rest<'a>(frame: &Frame<'_>, values: impl Iterator<Item = &'a [u8]>, output: &mut Vec<u8>) {
    let reason = format!(
        "a message may have at most {COPIES_MAX} copies, and together they may not exceed the size limit of a frame"
    );
    let rejection = Rejection::new(RejectionKind::LimitExceeded, reason);
    let mut some_without_id = false;
    for value in values {
        if CopyRequest::read(value).message_id.is_empty() {
            some_without_id = true;
        } else {
            refuse_copy(frame, value, &rejection, output);
        }
    }
    if some_without_id {
        let repeated = RepeatedParts::by_frame(frame);
        answer::publish_refused(&repeated, false, frame.target, frame.content_type, &rejection, output);
    }
}

/// The message of a frame whose bytes are in `bytes`, in one allocation.
#[inline]
pub(super) fn stored(frame: &Frame<'_>, bytes: &[u8], producer: &Arc<Client>) -> Message {
    let gap = frame.source.len() + frame.target.len();
    let kept = frame.id.len() + frame.headers.len() + frame.payload.len();
    if gap > GAP_BYTES_KEPT && kept <= MOVED_BYTES_MAX {
        return moved_together(frame, producer);
    }
    let header_length_bytes = if frame.headers.is_empty() { 0 } else { 2 };
    let block_size = kept + gap + header_length_bytes;
    let block = &bytes[bytes.len() - block_size..];
    let headers_at = frame.id.len() + gap + header_length_bytes;
    let body_at = headers_at + frame.headers.len();
    let layout = Layout {
        id: 0..frame.id.len(),
        source: 0..0,
        headers: headers_at..body_at,
        body: body_at..block.len(),
    };
    Message::new(block, &layout, properties(frame), Some(producer.clone()))
}

fn moved_together(frame: &Frame<'_>, producer: &Arc<Client>) -> Message {
    let mut block = [0; MOVED_BYTES_MAX];
    let headers_at = frame.id.len();
    let body_at = headers_at + frame.headers.len();
    let end = body_at + frame.payload.len();
    block[..headers_at].copy_from_slice(frame.id);
    block[headers_at..body_at].copy_from_slice(frame.headers);
    block[body_at..end].copy_from_slice(frame.payload);
    let layout = Layout { id: 0..headers_at, source: 0..0, headers: headers_at..body_at, body: body_at..end };
    Message::new(&block[..end], &layout, properties(frame), Some(producer.clone()))
}
