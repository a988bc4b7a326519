//! Decodes what a server sends: push frames, and responses whose format depends on the request.
//!
//! LIST, STATS, CONNECTIONS and CHANNELS are decoded in parts: first the header, then each announced fragment. So a client
//! that receives a million records needs memory for one fragment only.

use super::answer::{
    CHANNELS_RECORD_BYTES, CONNECTION_NUMBERS, ConnectionRecord, ConsumeOutcome, INFO_BYTES,
    STATS_RECORD_BYTES, SUBSCRIBER_BYTES, UsageCounts,
};
use super::{Dialect, Family, ID_BYTES, IMPOSSIBLE, PUSH_V71, PUSH_V73, RULES_MAX, SUCCESS, Ttl, Width};
use crate::codec::Limits;
use crate::error::WireError;

/// The response to expect next, unless a push frame arrives first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Expected {
    /// INSERT, UPDATE, PURGE, SET, SUBSCRIBE, UNSUBSCRIBE or PUBLISH, or the status that precedes the response to the request
    /// inside an EVENT.
    Status,
    /// QUERY.
    Counter,
    /// GET.
    Buffer,
    /// STAT.
    Stat,
    /// Header of LIST, STATS, CONNECTIONS or CHANNELS.
    Fragments,
    /// A fragment of one of them.
    Fragment(FragmentedRequest),
    /// INFO.
    Info {
        /// Whether the response begins with the time. Family 7.1 without metrics omits it.
        with_time: bool,
    },
    /// CONNECTION.
    Connection,
    /// CHANNEL.
    Channel,
    /// WHOAMI.
    Id,
    /// CONSUME.
    Verdict,
    /// CONSUME ALL.
    Verdicts,
}

/// Requests with fragmented responses.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the names are those of the requests")]
pub enum FragmentedRequest {
    List,
    Stats,
    Connections,
    Channels,
}

/// A response or push frame, borrowed from the buffer it was decoded from. `None` means that the request failed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ThrottrReply<'a> {
    /// A push frame.
    Push {
        /// Channel name; `None` in family 7.1.
        channel: Option<&'a [u8]>,
        /// Published payload.
        payload: &'a [u8],
    },
    /// Whether the request succeeded.
    Status(bool),
    /// Quota and remaining time to live.
    Counter(Option<(u64, Ttl)>),
    /// Remaining time to live and value.
    Buffer(Option<(Ttl, &'a [u8])>),
    /// Usage counts.
    Stat(Option<UsageCounts>),
    /// Number of fragments that follow.
    Fragments(u64),
    /// A fragment.
    Fragment(Fragment<'a>),
    /// INFO's numbers, of which the first is 0 if it was omitted, and the version, padded with zeros.
    Info(Box<[u64; 52]>, [u8; 16]),
    /// A connection.
    Connection(Option<Box<ConnectionRecord>>),
    /// Encoded subscribers of [`SUBSCRIBER_BYTES`] each.
    Channel(Option<&'a [u8]>),
    /// Connection id.
    Id([u8; ID_BYTES]),
    /// Response to CONSUME.
    Verdict(ConsumeOutcome),
    /// Response to CONSUME ALL: status of the request, and the response to each rule.
    Verdicts(u8, Vec<ConsumeOutcome>),
}

/// A fragment: records of fixed size, followed by their concatenated names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Fragment<'a> {
    /// Fragment number, from 1.
    pub number: u64,
    record_bytes: usize,
    records: &'a [u8],
    names: &'a [u8],
}

impl<'a> Fragment<'a> {
    /// Number of records.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.records.len() / self.record_bytes
    }

    /// Whether the fragment has no records.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.records.is_empty()
    }

    /// Iterates over the records with their names. Connection records have empty names.
    pub fn iter(&self) -> impl Iterator<Item = (&'a [u8], &'a [u8])> + use<'a> {
        let mut names = self.names;
        let named = self.record_bytes < 235;
        self.records.chunks_exact(self.record_bytes).map(move |record| {
            let length = if named { usize::from(record[0]) } else { 0 };
            let (name, rest) = names.split_at(length);
            names = rest;
            (record, name)
        })
    }
}

/// A LIST record.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Listed {
    /// 0 counter, 1 buffer.
    pub key_type: u8,
    /// Unit of its time to live.
    pub unit: u8,
    /// Expiry time, in nanoseconds since the Unix epoch.
    pub deadline: u64,
    /// Size of its value in bytes.
    pub bytes_used: u64,
}

/// Parses a LIST record. Returns `None` if its size is wrong.
#[must_use]
pub fn listed(record: &[u8], width: Width) -> Option<Listed> {
    if record.len() != FragmentedRequest::List.record_bytes(Dialect { width, family: Family::V71 }) {
        return None;
    }
    Some(Listed {
        key_type: record[1],
        unit: record[2],
        deadline: number(record, 3),
        bytes_used: width.read(record, 11),
    })
}

/// Parses a STATS record. Returns `None` if its size is wrong.
#[must_use]
pub fn uses(record: &[u8]) -> Option<UsageCounts> {
    (record.len() == STATS_RECORD_BYTES).then(|| read_uses(record, 1))
}

/// Parses a CHANNELS record: bytes read, bytes written, subscriptions. Returns `None` if its size is wrong.
#[must_use]
pub fn channel(record: &[u8]) -> Option<[u64; 3]> {
    (record.len() == CHANNELS_RECORD_BYTES).then(|| [1, 9, 17].map(|at| number(record, at)))
}

/// Parses a CONNECTIONS record. Returns `None` if its size is wrong.
#[must_use]
pub fn connection(record: &[u8], family: Family) -> Option<ConnectionRecord> {
    (record.len() == ConnectionRecord::bytes(family)).then(|| read_connection(record, family))
}

impl FragmentedRequest {
    const fn record_bytes(self, dialect: Dialect) -> usize {
        match self {
            Self::List => 11 + dialect.width.bytes(),
            Self::Stats => STATS_RECORD_BYTES,
            Self::Connections => ConnectionRecord::bytes(dialect.family),
            Self::Channels => CHANNELS_RECORD_BYTES,
        }
    }
}

/// Decodes a push frame or the expected response from the front of `input`.
///
/// # Errors
/// - [`WireError::Malformed`]: the first byte starts neither a push frame nor a response.
/// - [`WireError::TooLarge`]: the frame exceeds `limits.frame_bytes_max`.
pub fn decode<'a>(
    input: &'a [u8],
    expected: Expected,
    dialect: Dialect,
    limits: &Limits,
) -> Result<Option<(ThrottrReply<'a>, usize)>, WireError> {
    let Some(&first) = input.first() else { return Ok(None) };
    let fragment = matches!(expected, Expected::Fragment(_));
    if !fragment {
        if let Some(found) = push(first, input, dialect, limits)? {
            return Ok(found);
        }
        let verdict = matches!(expected, Expected::Verdict | Expected::Verdicts);
        if first > SUCCESS && !(verdict && first == IMPOSSIBLE) {
            return Err(WireError::Malformed { part: "response", why: "invalid status byte" });
        }
    }
    answer(input, expected, dialect, limits)
}

type Found<'a> = Option<(ThrottrReply<'a>, usize)>;

/// Decodes a push frame: `None` if it is not one, `Some(None)` if it is incomplete.
fn push<'a>(
    first: u8,
    input: &'a [u8],
    dialect: Dialect,
    limits: &Limits,
) -> Result<Option<Found<'a>>, WireError> {
    let n = dialect.width.bytes();
    let (head, named) = match (dialect.family, first) {
        (Family::V71, PUSH_V71) => (1 + n, false),
        (Family::V73, PUSH_V73) => (2 + n, true),
        _ => return Ok(None),
    };
    if input.len() < head {
        return Ok(Some(None));
    }
    let name = if named { usize::from(input[1]) } else { 0 };
    let size = checked(dialect.width.read(input, head - n), head + name, limits)?;
    Ok(Some(input.get(head..size).map(|body| {
        let (channel, payload) = body.split_at(name);
        (ThrottrReply::Push { channel: named.then_some(channel), payload }, size)
    })))
}

fn answer<'a>(
    input: &'a [u8],
    expected: Expected,
    dialect: Dialect,
    limits: &Limits,
) -> Result<Found<'a>, WireError> {
    let Dialect { width, family } = dialect;
    let n = width.bytes();
    let yes = input[0] == SUCCESS;
    if !yes && matches!(expected, Expected::Info { .. } | Expected::Id) {
        return Err(WireError::Malformed { part: "response", why: "this request cannot fail" });
    }
    // The size of a fixed-size response: one byte on failure.
    let fixed = |size: usize| -> Option<usize> {
        let size = if yes { size } else { 1 };
        (input.len() >= size).then_some(size)
    };
    Ok(match expected {
        Expected::Status => Some((ThrottrReply::Status(yes), 1)),
        Expected::Counter => fixed(2 + 2 * n).map(|size| {
            let counter = yes.then(|| (width.read(input, 1), read_ttl(input, 1 + n, width)));
            (ThrottrReply::Counter(counter), size)
        }),
        Expected::Buffer => return read_buffer(input, width, limits),
        Expected::Stat => fixed(33).map(|size| (ThrottrReply::Stat(yes.then(|| read_uses(input, 1))), size)),
        Expected::Fragments => {
            fixed(9).map(|size| (ThrottrReply::Fragments(if yes { number(input, 1) } else { 0 }), size))
        }
        Expected::Fragment(listing) => return read_fragment(input, listing, dialect, limits),
        Expected::Info { with_time } => read_info(input, with_time),
        Expected::Connection => fixed(1 + ConnectionRecord::bytes(family)).map(|size| {
            (ThrottrReply::Connection(yes.then(|| Box::new(read_connection(&input[1..], family)))), size)
        }),
        Expected::Channel => return read_channel(input, limits),
        Expected::Id => input.get(1..1 + ID_BYTES).map(|bytes| {
            let mut id = [0; ID_BYTES];
            id.copy_from_slice(bytes);
            (ThrottrReply::Id(id), 1 + ID_BYTES)
        }),
        Expected::Verdict => {
            let size = ConsumeOutcome::bytes(width);
            (input.len() >= size).then(|| (ThrottrReply::Verdict(read_verdict(input, width)), size))
        }
        Expected::Verdicts => return read_verdicts(input, width),
    })
}

/// Adds the announced size and the bytes before it, and checks the sum against the limits.
fn checked(announced: u64, before: usize, limits: &Limits) -> Result<usize, WireError> {
    let size = announced.saturating_add(before as u64);
    match usize::try_from(size) {
        Ok(fits) if size <= limits.frame_bytes_max => Ok(fits),
        _ => Err(WireError::TooLarge { part: "response", size, max: limits.frame_bytes_max }),
    }
}

fn number(input: &[u8], at: usize) -> u64 {
    Width::U64.read(input, at)
}

fn read_ttl(input: &[u8], at: usize, width: Width) -> Ttl {
    Ttl { unit: input[at], amount: width.read(input, at + 1) }
}

fn read_uses(input: &[u8], at: usize) -> UsageCounts {
    UsageCounts {
        reads_per_minute: number(input, at),
        writes_per_minute: number(input, at + 8),
        reads: number(input, at + 16),
        writes: number(input, at + 24),
    }
}

fn read_buffer<'a>(input: &'a [u8], width: Width, limits: &Limits) -> Result<Found<'a>, WireError> {
    let n = width.bytes();
    if input[0] != SUCCESS {
        return Ok(Some((ThrottrReply::Buffer(None), 1)));
    }
    let head = 2 + 2 * n;
    if input.len() < head {
        return Ok(None);
    }
    let size = checked(width.read(input, 2 + n), head, limits)?;
    let value = input.get(head..size);
    Ok(value.map(|value| (ThrottrReply::Buffer(Some((read_ttl(input, 1, width), value))), size)))
}

fn read_fragment<'a>(
    input: &'a [u8],
    listing: FragmentedRequest,
    dialect: Dialect,
    limits: &Limits,
) -> Result<Found<'a>, WireError> {
    if input.len() < 16 {
        return Ok(None);
    }
    let record_bytes = listing.record_bytes(dialect);
    let records_end = checked(number(input, 8).saturating_mul(record_bytes as u64), 16, limits)?;
    let Some(records) = input.get(16..records_end) else { return Ok(None) };
    let names_bytes = match listing {
        FragmentedRequest::Connections => 0,
        _ => records.chunks_exact(record_bytes).map(|record| usize::from(record[0])).sum(),
    };
    let end = checked(names_bytes as u64, records_end, limits)?;
    let fragment = |names| Fragment { number: number(input, 0), record_bytes, records, names };
    Ok(input.get(records_end..end).map(|names| (ThrottrReply::Fragment(fragment(names)), end)))
}

fn read_info(input: &[u8], with_time: bool) -> Found<'_> {
    let left_out = usize::from(!with_time);
    let size = 1 + INFO_BYTES - 8 * left_out;
    let input = input.get(..size)?;
    let mut numbers = Box::new([0; 52]);
    for (index, place) in numbers[left_out..].iter_mut().enumerate() {
        *place = number(input, 1 + 8 * index);
    }
    let mut version = [0; 16];
    version.copy_from_slice(&input[size - 16..]);
    Some((ThrottrReply::Info(numbers, version), size))
}

fn read_channel<'a>(input: &'a [u8], limits: &Limits) -> Result<Found<'a>, WireError> {
    if input[0] != SUCCESS {
        return Ok(Some((ThrottrReply::Channel(None), 1)));
    }
    if input.len() < 9 {
        return Ok(None);
    }
    let size = checked(number(input, 1).saturating_mul(SUBSCRIBER_BYTES as u64), 9, limits)?;
    Ok(input.get(9..size).map(|subscribers| (ThrottrReply::Channel(Some(subscribers)), size)))
}

fn read_connection(input: &[u8], family: Family) -> ConnectionRecord {
    let mut id = [0; ID_BYTES];
    id.copy_from_slice(&input[..ID_BYTES]);
    let (role, transport, at) = match family {
        Family::V71 => (0, 0, ID_BYTES),
        Family::V73 => (input[ID_BYTES], input[ID_BYTES + 1], ID_BYTES + 2),
    };
    let mut address = [0; 16];
    address.copy_from_slice(&input[at + 1..at + 17]);
    let mut numbers = [0; CONNECTION_NUMBERS];
    for (index, place) in numbers.iter_mut().enumerate() {
        *place = number(input, at + 27 + 8 * index);
    }
    ConnectionRecord {
        id,
        role,
        transport,
        ip_version: input[at],
        address,
        port: u16::from_le_bytes([input[at + 17], input[at + 18]]),
        connected_at: number(input, at + 19),
        numbers,
    }
}

fn read_verdict(input: &[u8], width: Width) -> ConsumeOutcome {
    let n = width.bytes();
    ConsumeOutcome {
        status: input[0],
        limit: width.read(input, 1),
        remaining: width.read(input, 1 + n),
        retry_after: number(input, 1 + 2 * n),
        reset_after: number(input, 9 + 2 * n),
    }
}

fn read_verdicts(input: &[u8], width: Width) -> Result<Found<'_>, WireError> {
    let Some(&count) = input.get(1) else { return Ok(None) };
    if usize::from(count) > RULES_MAX {
        return Err(WireError::Malformed { part: "response", why: "more than 32 rule responses" });
    }
    let each = ConsumeOutcome::bytes(width);
    let size = 2 + usize::from(count) * each;
    Ok(input.get(2..size).map(|body| {
        let verdicts = body.chunks_exact(each).map(|verdict| read_verdict(verdict, width)).collect();
        (ThrottrReply::Verdicts(input[0], verdicts), size)
    }))
}
