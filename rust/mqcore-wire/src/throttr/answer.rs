//! What a server sends: answers, in the order of the requests, and push frames between them.

use super::{Dialect, Family, ID_BYTES, IMPOSSIBLE, KeyType, NO, PUSH_V71, PUSH_V73, Ttl, Width, YES};

/// Octets of the numbers of INFO and of the version behind them.
pub const INFO_BYTES: usize = 52 * 8 + 16;
/// Octets that a fragment may count before one more record would be too much.
pub const FRAGMENT_BYTES: usize = 2048;
/// Octets of a record of STATS.
pub const STATS_RECORD_BYTES: usize = 33;
/// Octets of a record of CHANNELS.
pub const CHANNELS_RECORD_BYTES: usize = 25;
/// Octets of a subscriber in CHANNEL.
pub const SUBSCRIBER_BYTES: usize = 40;
/// Numbers at the end of a connection's record: six of octets, eighteen of requests.
pub const CONNECTION_NUMBERS: usize = 24;

/// Appends a yes or a no.
#[inline]
pub fn status(yes: bool, output: &mut Vec<u8>) {
    output.push(if yes { YES } else { NO });
}

/// Appends the answer of QUERY about a counter that is there.
#[inline]
pub fn counter(quota: u64, remaining: Ttl, width: Width, output: &mut Vec<u8>) {
    output.push(YES);
    width.write(quota, output);
    ttl(remaining, width, output);
}

/// Appends the answer of GET about a buffer that is there. The value is no longer than the width can say.
#[inline]
pub fn buffer(remaining: Ttl, value: &[u8], width: Width, output: &mut Vec<u8>) {
    debug_assert!(value.len() as u64 <= width.max());
    output.push(YES);
    ttl(remaining, width, output);
    width.write(value.len() as u64, output);
    output.extend_from_slice(value);
}

#[inline]
fn ttl(ttl: Ttl, width: Width, output: &mut Vec<u8>) {
    output.push(ttl.unit);
    width.write(ttl.amount, output);
}

/// How often a record was read and written.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Uses {
    /// Reads of the last whole minute.
    pub reads_per_minute: u64,
    /// Writes of the last whole minute.
    pub writes_per_minute: u64,
    /// Reads up to the end of it.
    pub reads: u64,
    /// Writes up to the end of it.
    pub writes: u64,
}

impl Uses {
    fn write(&self, output: &mut Vec<u8>) {
        for number in [self.reads_per_minute, self.writes_per_minute, self.reads, self.writes] {
            output.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Appends the answer of STAT about a record that is there.
pub fn stat(uses: &Uses, output: &mut Vec<u8>) {
    output.push(YES);
    uses.write(output);
}

/// Appends the head of an answer in fragments: LIST, STATS, CONNECTIONS, CHANNELS.
pub fn fragments(count: u64, output: &mut Vec<u8>) {
    output.push(YES);
    output.extend_from_slice(&count.to_le_bytes());
}

/// Appends the head of a fragment. Numbers begin with 1; behind its records stand all their names.
pub fn fragment(number: u64, records: u64, output: &mut Vec<u8>) {
    output.extend_from_slice(&number.to_le_bytes());
    output.extend_from_slice(&records.to_le_bytes());
}

/// Appends a record of LIST.
pub fn list_record(
    key_bytes: u8,
    key_type: KeyType,
    unit: u8,
    deadline_unix_nanos: u64,
    bytes_used: u64,
    width: Width,
    output: &mut Vec<u8>,
) {
    output.extend_from_slice(&[key_bytes, key_type as u8, unit]);
    output.extend_from_slice(&deadline_unix_nanos.to_le_bytes());
    width.write(bytes_used, output);
}

/// Octets that a record of LIST and its key count in a fragment. Family 7.3 forgets two of them.
#[must_use]
pub const fn list_weight(key_bytes: usize, dialect: Dialect) -> usize {
    let fixed = match dialect.family {
        Family::V71 => 11,
        Family::V73 => 9,
    };
    fixed + dialect.width.bytes() + key_bytes
}

/// Appends a record of STATS.
pub fn stats_record(key_bytes: u8, uses: &Uses, output: &mut Vec<u8>) {
    output.push(key_bytes);
    uses.write(output);
}

/// Appends a record of CHANNELS.
pub fn channels_record(
    name_bytes: u8,
    read_bytes: u64,
    write_bytes: u64,
    subscriptions: u64,
    output: &mut Vec<u8>,
) {
    output.push(name_bytes);
    for number in [read_bytes, write_bytes, subscriptions] {
        output.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends the head of CHANNEL's answer about a channel that somebody has subscribed to.
pub fn channel(subscribers: u64, output: &mut Vec<u8>) {
    output.push(YES);
    output.extend_from_slice(&subscribers.to_le_bytes());
}

/// Appends a subscriber of CHANNEL.
pub fn subscriber(
    id: &[u8; ID_BYTES],
    subscribed_at_unix_nanos: u64,
    read_bytes: u64,
    write_bytes: u64,
    output: &mut Vec<u8>,
) {
    output.extend_from_slice(id);
    for number in [subscribed_at_unix_nanos, read_bytes, write_bytes] {
        output.extend_from_slice(&number.to_le_bytes());
    }
}

/// Appends the answer of WHOAMI.
pub fn whoami(id: &[u8; ID_BYTES], output: &mut Vec<u8>) {
    output.push(YES);
    output.extend_from_slice(id);
}

/// Appends the answer of INFO: the numbers in their order and the version, cut at 16 octets. Family 7.1 without metrics
/// leaves the first of the numbers out.
pub fn info(numbers: &[u64; 52], version: &str, with_time: bool, output: &mut Vec<u8>) {
    output.push(YES);
    for number in &numbers[usize::from(!with_time)..] {
        output.extend_from_slice(&number.to_le_bytes());
    }
    let mut name = [0; 16];
    let length = version.len().min(name.len());
    name[..length].copy_from_slice(&version.as_bytes()[..length]);
    output.extend_from_slice(&name);
}

/// A connection as CONNECTION and CONNECTIONS tell of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// Its random id.
    pub id: [u8; ID_BYTES],
    /// 0 client, 1 agent. 7.3 only.
    pub role: u8,
    /// 0 TCP, 1 Unix socket. 7.3 only.
    pub transport: u8,
    /// 4 or 6.
    pub ip_version: u8,
    /// The address as text, zeros behind it, cut at 16 octets.
    pub address: [u8; 16],
    /// The peer's port.
    pub port: u16,
    /// Unix nanoseconds.
    pub connected_at: u64,
    /// Octets read, written, published, received, allocated, consumed; then requests: INSERT, SET, QUERY, GET, UPDATE,
    /// PURGE, LIST, INFO, STAT, STATS, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, CONNECTIONS, CONNECTION, CHANNELS, CHANNEL, WHOAMI.
    pub numbers: [u64; CONNECTION_NUMBERS],
}

impl ConnectionRecord {
    /// Octets of a record.
    #[must_use]
    pub const fn bytes(family: Family) -> usize {
        match family {
            Family::V71 => 235,
            Family::V73 => 237,
        }
    }

    /// What a record counts in a fragment. Family 7.1 forgets eight octets.
    #[must_use]
    pub const fn weight(family: Family) -> usize {
        match family {
            Family::V71 => 227,
            Family::V73 => 237,
        }
    }

    /// Appends it.
    pub fn write(&self, family: Family, output: &mut Vec<u8>) {
        output.extend_from_slice(&self.id);
        if family == Family::V73 {
            output.extend_from_slice(&[self.role, self.transport]);
        }
        output.push(self.ip_version);
        output.extend_from_slice(&self.address);
        output.extend_from_slice(&self.port.to_le_bytes());
        output.extend_from_slice(&self.connected_at.to_le_bytes());
        for number in self.numbers {
            output.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Appends what a subscriber receives. A payload that the width cannot express must not come here.
pub fn push(channel: &[u8], payload: &[u8], dialect: Dialect, output: &mut Vec<u8>) {
    debug_assert!(payload.len() as u64 <= dialect.width.max() && channel.len() <= 255);
    match dialect.family {
        Family::V71 => {
            output.push(PUSH_V71);
            dialect.width.write(payload.len() as u64, output);
        }
        Family::V73 => {
            output.extend_from_slice(&[PUSH_V73, channel.len() as u8]);
            dialect.width.write(payload.len() as u64, output);
            output.extend_from_slice(channel);
        }
    }
    output.extend_from_slice(payload);
}

/// Octets that [`push`] appends.
#[must_use]
pub const fn push_size(channel: usize, payload: usize, dialect: Dialect) -> usize {
    match dialect.family {
        Family::V71 => 1 + dialect.width.bytes() + payload,
        Family::V73 => 2 + dialect.width.bytes() + channel + payload,
    }
}

/// What CONSUME answers about one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Verdict {
    /// [`YES`], [`NO`], or [`IMPOSSIBLE`]: the key holds something else, or the rule makes no sense.
    pub status: u8,
    /// The limit in force.
    pub limit: u64,
    /// What can still be taken now.
    pub remaining: u64,
    /// Nanoseconds after which the same request is granted if nobody else takes anything; 0 if it was granted now, the
    /// largest number if it never will be.
    pub retry_after: u64,
    /// Nanoseconds after which all of the limit is there again if nobody takes anything.
    pub reset_after: u64,
}

impl Verdict {
    /// What is said about a rule that cannot be applied.
    pub const IMPOSSIBLE: Self =
        Self { status: IMPOSSIBLE, limit: 0, remaining: 0, retry_after: 0, reset_after: 0 };

    /// Octets of a verdict.
    #[must_use]
    pub const fn bytes(width: Width) -> usize {
        1 + 2 * width.bytes() + 16
    }

    /// Appends it: the whole answer of CONSUME, and a part of that of CONSUME ALL.
    pub fn write(&self, width: Width, output: &mut Vec<u8>) {
        output.push(self.status);
        width.write(self.limit, output);
        width.write(self.remaining, output);
        output.extend_from_slice(&self.retry_after.to_le_bytes());
        output.extend_from_slice(&self.reset_after.to_le_bytes());
    }
}

/// Appends the answer of CONSUME ALL: one status for all, and a verdict for each rule.
pub fn verdicts(status: u8, verdicts: &[Verdict], width: Width, output: &mut Vec<u8>) {
    output.extend_from_slice(&[status, verdicts.len() as u8]);
    for verdict in verdicts {
        verdict.write(width, output);
    }
}
