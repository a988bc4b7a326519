//! Throttr requests.
//!
//! ```
//! use mqcore_wire::codec::Limits;
//! use mqcore_wire::throttr::request::{ThrottrRequest, decode, encode};
//! use mqcore_wire::throttr::{Dialect, Ttl};
//!
//! let request = ThrottrRequest::Insert { quota: 100, ttl: Ttl { unit: 4, amount: 60 }, key: b"user:7" };
//! let mut bytes = Vec::new();
//! encode(&request, Dialect::default(), &mut bytes)?;
//!
//! let decoded = decode(&bytes, Dialect::default(), &Limits::default()).expect("the request is valid");
//! assert_eq!(decoded, Some((request, bytes.len())));
//! # Ok::<(), mqcore_wire::throttr::request::TooLong>(())
//! ```

use super::{Dialect, Family, ID_BYTES, RULES_MAX, Ttl, Width};
use crate::codec::Limits;
use crate::error::WireError;

/// The first byte of each request ("Request types").
#[allow(missing_docs, reason = "the names are those of the requests")]
pub mod code {
    pub const INSERT: u8 = 0x01;
    pub const QUERY: u8 = 0x02;
    pub const UPDATE: u8 = 0x03;
    pub const PURGE: u8 = 0x04;
    pub const SET: u8 = 0x05;
    pub const GET: u8 = 0x06;
    pub const LIST: u8 = 0x07;
    pub const INFO: u8 = 0x08;
    pub const STAT: u8 = 0x09;
    pub const STATS: u8 = 0x10;
    pub const SUBSCRIBE: u8 = 0x11;
    pub const UNSUBSCRIBE: u8 = 0x12;
    pub const PUBLISH: u8 = 0x13;
    pub const CONNECTIONS: u8 = 0x14;
    pub const CONNECTION: u8 = 0x15;
    pub const CHANNELS: u8 = 0x16;
    pub const CHANNEL: u8 = 0x17;
    pub const WHOAMI: u8 = 0x18;
    pub const EVENT: u8 = 0x19;
    pub const CONSUME: u8 = 0xC0;
    pub const CONSUME_ALL: u8 = 0xC1;
}

/// UPDATE attribute: the quota.
pub const QUOTA: u8 = 0;
/// UPDATE attribute: the time to live.
pub const TTL: u8 = 1;
/// UPDATE change type: replace the value.
pub const PATCH: u8 = 0;
/// UPDATE change type: add to the value.
pub const INCREASE: u8 = 1;
/// UPDATE change type: subtract from the value.
pub const DECREASE: u8 = 2;

/// CONSUME mode: subtract the cost if enough quota is available.
pub const TAKE: u8 = 0;
/// CONSUME mode: report the available quota. Creates nothing and ignores the cost.
pub const PEEK: u8 = 1;
/// CONSUME mode: report what [`TAKE`] would answer, without subtracting anything.
pub const DRY_RUN: u8 = 2;
/// CONSUME mode: return the cost to the quota.
pub const REFUND: u8 = 3;

/// A request that borrows from the buffer it was decoded from.
///
/// Numbers without a defined meaning are preserved; the session decides how to answer them.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs, reason = "the fields are those of the table in the parent module")]
pub enum ThrottrRequest<'a> {
    /// Create a counter.
    Insert { quota: u64, ttl: Ttl, key: &'a [u8] },
    /// Read a counter.
    Query { key: &'a [u8] },
    /// Change a quota or a time to live.
    Update { attribute: u8, change: u8, value: u64, key: &'a [u8] },
    /// Remove a counter or buffer.
    Purge { key: &'a [u8] },
    /// Create or replace a buffer.
    Set { ttl: Ttl, key: &'a [u8], value: &'a [u8] },
    /// Read a buffer.
    Get { key: &'a [u8] },
    /// List all records.
    List,
    /// Read the server's counters.
    Info,
    /// Read the usage counts of a record.
    Stat { key: &'a [u8] },
    /// Read the usage counts of all records.
    Stats,
    /// Subscribe to a channel.
    Subscribe { channel: &'a [u8] },
    /// Unsubscribe from a channel.
    Unsubscribe { channel: &'a [u8] },
    /// Publish to the subscribers of a channel.
    Publish { channel: &'a [u8], payload: &'a [u8] },
    /// List all connections.
    Connections,
    /// Describe one connection.
    Connection { id: [u8; ID_BYTES] },
    /// List the channels that have subscribers.
    Channels,
    /// List the subscribers of a channel.
    Channel { channel: &'a [u8] },
    /// Return the id of this connection.
    WhoAmI,
    /// Execute the embedded request and publish it. Family 7.3 only. The embedded request is not decoded here.
    Event { channel: &'a [u8], request: &'a [u8] },
    /// Create a counter if needed, check it and subtract from it, in one step.
    Consume { mode: u8, rule: Rule<'a> },
    /// Apply [`ThrottrRequest::Consume`] to several keys, all or none of them.
    ConsumeAll { mode: u8, rules: Rules<'a> },
}

/// A rate limit rule of CONSUME.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rule<'a> {
    /// Algorithm: 0 fixed window, 1 sliding window, 2 GCRA (token bucket).
    pub algorithm: u8,
    /// Quota per period.
    pub limit: u64,
    /// Quota to subtract.
    pub cost: u64,
    /// Length of a period.
    pub period: Ttl,
    /// Key of the counter.
    pub key: &'a [u8],
}

/// The rules of a CONSUME ALL: 1 to [`RULES_MAX`], all complete.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rules<'a> {
    count: u8,
    width: Width,
    bytes: &'a [u8],
}

impl<'a> Rules<'a> {
    /// Number of rules.
    #[must_use]
    pub const fn len(&self) -> usize {
        self.count as usize
    }

    /// Always false, because there is at least one rule.
    #[must_use]
    pub const fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// Iterates over the rules in the order of the request.
    pub fn iter(&self) -> impl Iterator<Item = Rule<'a>> + use<'a> {
        let Self { count, width, bytes } = *self;
        let mut at = 0;
        (0..count).map_while(move |_| {
            let (rule, size) = rule(&bytes[at..], width)?;
            at += size;
            Some(rule)
        })
    }
}

/// Decodes a request from the front of `input`.
///
/// # Errors
/// - [`WireError::Malformed`]: the request code is unknown, or a CONSUME ALL has no rules or more than [`RULES_MAX`].
/// - [`WireError::TooLarge`]: the request exceeds `limits.frame_bytes_max`.
#[inline]
pub fn decode<'a>(
    input: &'a [u8],
    dialect: Dialect,
    limits: &Limits,
) -> Result<Option<(ThrottrRequest<'a>, usize)>, WireError> {
    let Some(&first) = input.first() else { return Ok(None) };
    let Some(size) = size(first, input, dialect, limits)? else { return Ok(None) };
    if input.len() < size {
        return Ok(None);
    }
    Ok(Some((read(first, &input[..size], dialect.width), size)))
}

/// Returns the size in bytes of the request at the front of `input`, or 0 if it is not known yet.
///
/// # Errors
/// The same as [`decode`].
pub fn needed(input: &[u8], dialect: Dialect, limits: &Limits) -> Result<usize, WireError> {
    let Some(&first) = input.first() else { return Ok(0) };
    Ok(size(first, input, dialect, limits)?.unwrap_or(0))
}

/// Size of the whole request, or `None` until enough of it has arrived.
#[inline]
fn size(first: u8, input: &[u8], dialect: Dialect, limits: &Limits) -> Result<Option<usize>, WireError> {
    let n = dialect.width.bytes();
    // `at` is the offset of the key length. The key follows all parts of fixed size.
    let keyed = |at: usize| Ok(input.get(at).map(|&length| at + 1 + usize::from(length)));
    match first {
        code::QUERY | code::PURGE | code::GET | code::STAT => keyed(1),
        code::SUBSCRIBE | code::UNSUBSCRIBE | code::CHANNEL => keyed(1),
        code::UPDATE => keyed(3 + n),
        code::INSERT => keyed(2 + 2 * n),
        code::LIST | code::INFO | code::STATS => Ok(Some(1)),
        code::CONNECTIONS | code::CHANNELS | code::WHOAMI => Ok(Some(1)),
        code::CONNECTION => Ok(Some(1 + ID_BYTES)),
        code::SET => sized(input, 2 + n, dialect.width, limits),
        code::PUBLISH => sized(input, 1, dialect.width, limits),
        code::EVENT if dialect.family == Family::V73 => sized(input, 1, dialect.width, limits),
        code::CONSUME => {
            Ok(input.get(2..).and_then(|rule| rule_size(rule, dialect.width)).map(|size| 2 + size))
        }
        code::CONSUME_ALL => rules_size(input, dialect.width),
        _ => Err(WireError::Malformed { part: "request", why: "unknown request code" }),
    }
}

/// Size of a request with a key length at `at`, followed by a value size, the key and the value.
#[inline]
fn sized(input: &[u8], at: usize, width: Width, limits: &Limits) -> Result<Option<usize>, WireError> {
    let head = at + 1 + width.bytes();
    if input.len() < head {
        return Ok(None);
    }
    let size = width.read(input, at + 1).saturating_add((head + usize::from(input[at])) as u64);
    match usize::try_from(size) {
        Ok(fits) if size <= limits.frame_bytes_max => Ok(Some(fits)),
        _ => Err(WireError::TooLarge { part: "request", size, max: limits.frame_bytes_max }),
    }
}

/// Size of a rule in bytes, once the key length has arrived.
#[inline]
fn rule_size(input: &[u8], width: Width) -> Option<usize> {
    let at = 2 + 3 * width.bytes();
    input.get(at).map(|&length| at + 1 + usize::from(length))
}

fn rules_size(input: &[u8], width: Width) -> Result<Option<usize>, WireError> {
    let Some(&count) = input.get(2) else { return Ok(None) };
    if count == 0 || usize::from(count) > RULES_MAX {
        return Err(WireError::Malformed { part: "request", why: "the number of rules must be 1 to 32" });
    }
    let mut at = 3;
    for _ in 0..count {
        let Some(size) = input.get(at..).and_then(|rest| rule_size(rest, width)) else { return Ok(None) };
        at += size;
    }
    Ok(Some(at))
}

/// Parses a complete request.
#[inline]
fn read(first: u8, input: &[u8], width: Width) -> ThrottrRequest<'_> {
    let n = width.bytes();
    match first {
        code::INSERT => ThrottrRequest::Insert {
            quota: width.read(input, 1),
            ttl: Ttl { unit: input[1 + n], amount: width.read(input, 2 + n) },
            key: &input[3 + 2 * n..],
        },
        code::QUERY => ThrottrRequest::Query { key: &input[2..] },
        code::UPDATE => ThrottrRequest::Update {
            attribute: input[1],
            change: input[2],
            value: width.read(input, 3),
            key: &input[4 + n..],
        },
        code::PURGE => ThrottrRequest::Purge { key: &input[2..] },
        code::SET => {
            let ttl = Ttl { unit: input[1], amount: width.read(input, 2) };
            let (key, value) = input[3 + 2 * n..].split_at(usize::from(input[2 + n]));
            ThrottrRequest::Set { ttl, key, value }
        }
        code::GET => ThrottrRequest::Get { key: &input[2..] },
        code::LIST => ThrottrRequest::List,
        code::INFO => ThrottrRequest::Info,
        code::STAT => ThrottrRequest::Stat { key: &input[2..] },
        code::STATS => ThrottrRequest::Stats,
        code::SUBSCRIBE => ThrottrRequest::Subscribe { channel: &input[2..] },
        code::UNSUBSCRIBE => ThrottrRequest::Unsubscribe { channel: &input[2..] },
        code::PUBLISH => {
            let (channel, payload) = input[2 + n..].split_at(usize::from(input[1]));
            ThrottrRequest::Publish { channel, payload }
        }
        code::CONNECTIONS => ThrottrRequest::Connections,
        code::CONNECTION => {
            let mut id = [0; ID_BYTES];
            id.copy_from_slice(&input[1..]);
            ThrottrRequest::Connection { id }
        }
        code::CHANNELS => ThrottrRequest::Channels,
        code::CHANNEL => ThrottrRequest::Channel { channel: &input[2..] },
        code::WHOAMI => ThrottrRequest::WhoAmI,
        code::CONSUME => ThrottrRequest::Consume { mode: input[1], rule: whole_rule(&input[2..], width) },
        code::CONSUME_ALL => ThrottrRequest::ConsumeAll {
            mode: input[1],
            rules: Rules { count: input[2], width, bytes: &input[3..] },
        },
        // `size` accepts no other code.
        _ => {
            let (channel, request) = input[2 + n..].split_at(usize::from(input[1]));
            ThrottrRequest::Event { channel, request }
        }
    }
}

fn rule(input: &[u8], width: Width) -> Option<(Rule<'_>, usize)> {
    let size = rule_size(input, width)?;
    input.get(..size).map(|input| (whole_rule(input, width), size))
}

#[inline]
fn whole_rule(input: &[u8], width: Width) -> Rule<'_> {
    let n = width.bytes();
    Rule {
        algorithm: input[0],
        limit: width.read(input, 1),
        cost: width.read(input, 1 + n),
        period: Ttl { unit: input[1 + 2 * n], amount: width.read(input, 2 + 2 * n) },
        key: &input[3 + 3 * n..],
    }
}

/// A part that is too long for its length field.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{part} of {size} bytes exceeds the limit of {max}")]
pub struct TooLong {
    /// One of `"key"`, `"channel"`, `"value"`, `"payload"`, `"request"` and `"rules"`.
    pub part: &'static str,
    /// Size in bytes; for `"rules"`, the number of rules.
    pub size: u64,
    /// Largest size that the length field can express.
    pub max: u64,
}

/// Appends a request. Numbers that exceed the width are written as its largest value.
///
/// # Errors
/// [`TooLong`] if a part does not fit its length field. `output` is then unchanged.
pub fn encode(request: &ThrottrRequest<'_>, dialect: Dialect, output: &mut Vec<u8>) -> Result<(), TooLong> {
    let before = output.len();
    let written = write(request, dialect.width, output);
    if written.is_err() {
        output.truncate(before);
    }
    written
}

fn write(request: &ThrottrRequest<'_>, width: Width, output: &mut Vec<u8>) -> Result<(), TooLong> {
    match *request {
        ThrottrRequest::Insert { quota, ttl, key } => {
            output.push(code::INSERT);
            width.write(quota, output);
            write_ttl(ttl, width, output);
            write_name("key", key, output)
        }
        ThrottrRequest::Query { key } => write_keyed(code::QUERY, key, output),
        ThrottrRequest::Update { attribute, change, value, key } => {
            output.extend_from_slice(&[code::UPDATE, attribute, change]);
            width.write(value, output);
            write_name("key", key, output)
        }
        ThrottrRequest::Purge { key } => write_keyed(code::PURGE, key, output),
        ThrottrRequest::Set { ttl, key, value } => {
            output.push(code::SET);
            write_ttl(ttl, width, output);
            write_pair(("key", key), ("value", value), width, output)
        }
        ThrottrRequest::Get { key } => write_keyed(code::GET, key, output),
        ThrottrRequest::List => bare(code::LIST, output),
        ThrottrRequest::Info => bare(code::INFO, output),
        ThrottrRequest::Stat { key } => write_keyed(code::STAT, key, output),
        ThrottrRequest::Stats => bare(code::STATS, output),
        ThrottrRequest::Subscribe { channel } => write_channel(code::SUBSCRIBE, channel, output),
        ThrottrRequest::Unsubscribe { channel } => write_channel(code::UNSUBSCRIBE, channel, output),
        ThrottrRequest::Publish { channel, payload } => {
            output.push(code::PUBLISH);
            write_pair(("channel", channel), ("payload", payload), width, output)
        }
        ThrottrRequest::Connections => bare(code::CONNECTIONS, output),
        ThrottrRequest::Connection { id } => {
            output.push(code::CONNECTION);
            output.extend_from_slice(&id);
            Ok(())
        }
        ThrottrRequest::Channels => bare(code::CHANNELS, output),
        ThrottrRequest::Channel { channel } => write_channel(code::CHANNEL, channel, output),
        ThrottrRequest::WhoAmI => bare(code::WHOAMI, output),
        ThrottrRequest::Event { channel, request } => {
            output.push(code::EVENT);
            write_pair(("channel", channel), ("request", request), width, output)
        }
        ThrottrRequest::Consume { mode, rule } => {
            output.extend_from_slice(&[code::CONSUME, mode]);
            write_rule(&rule, width, output)
        }
        ThrottrRequest::ConsumeAll { mode, rules } => {
            output.extend_from_slice(&[code::CONSUME_ALL, mode, rules.count]);
            rules.iter().try_for_each(|rule| write_rule(&rule, width, output))
        }
    }
}

/// Appends a CONSUME ALL for a list of rules.
///
/// # Errors
/// [`TooLong`] if a key does not fit its length field or there are more than [`RULES_MAX`] rules. `output` is then
/// unchanged.
pub fn encode_consume_all(
    mode: u8,
    rules: &[Rule<'_>],
    dialect: Dialect,
    output: &mut Vec<u8>,
) -> Result<(), TooLong> {
    if rules.len() > RULES_MAX {
        return Err(TooLong { part: "rules", size: rules.len() as u64, max: RULES_MAX as u64 });
    }
    let before = output.len();
    output.extend_from_slice(&[code::CONSUME_ALL, mode, rules.len() as u8]);
    for rule in rules {
        if let Err(error) = write_rule(rule, dialect.width, output) {
            output.truncate(before);
            return Err(error);
        }
    }
    Ok(())
}

fn bare(code: u8, output: &mut Vec<u8>) -> Result<(), TooLong> {
    output.push(code);
    Ok(())
}

fn write_keyed(code: u8, key: &[u8], output: &mut Vec<u8>) -> Result<(), TooLong> {
    output.push(code);
    write_name("key", key, output)
}

fn write_channel(code: u8, channel: &[u8], output: &mut Vec<u8>) -> Result<(), TooLong> {
    output.push(code);
    write_name("channel", channel, output)
}

fn write_ttl(ttl: Ttl, width: Width, output: &mut Vec<u8>) {
    output.push(ttl.unit);
    width.write(ttl.amount, output);
}

fn name_length(part: &'static str, name: &[u8]) -> Result<u8, TooLong> {
    u8::try_from(name.len()).map_err(|_| TooLong { part, size: name.len() as u64, max: 255 })
}

fn write_name(part: &'static str, name: &[u8], output: &mut Vec<u8>) -> Result<(), TooLong> {
    output.push(name_length(part, name)?);
    output.extend_from_slice(name);
    Ok(())
}

fn write_pair(
    name: (&'static str, &[u8]),
    body: (&'static str, &[u8]),
    width: Width,
    output: &mut Vec<u8>,
) -> Result<(), TooLong> {
    let size = body.1.len() as u64;
    if size > width.max() {
        return Err(TooLong { part: body.0, size, max: width.max() });
    }
    output.push(name_length(name.0, name.1)?);
    width.write(size, output);
    output.extend_from_slice(name.1);
    output.extend_from_slice(body.1);
    Ok(())
}

fn write_rule(rule: &Rule<'_>, width: Width, output: &mut Vec<u8>) -> Result<(), TooLong> {
    output.push(rule.algorithm);
    width.write(rule.limit, output);
    width.write(rule.cost, output);
    write_ttl(rule.period, width, output);
    write_name("key", rule.key, output)
}
