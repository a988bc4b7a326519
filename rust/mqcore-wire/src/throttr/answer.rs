//! Encodes what a server sends: responses in the order of the requests, and push frames between them.

use super::{
    Dialect, FAILURE, Family, ID_BYTES, IMPOSSIBLE, KeyType, PUSH_V71, PUSH_V73, SUCCESS, Ttl, Width,
};

/// Size in bytes of INFO's numbers and version.
pub const INFO_BYTES: usize = 52 * 8 + 16;
/// Size in bytes that a fragment may count up to before the next record starts another fragment.
pub const FRAGMENT_BYTES: usize = 2048;
/// Size of a STATS record in bytes.
pub const STATS_RECORD_BYTES: usize = 33;
/// Size of a CHANNELS record in bytes.
pub const CHANNELS_RECORD_BYTES: usize = 25;
/// Size of a subscriber in a CHANNEL response in bytes.
pub const SUBSCRIBER_BYTES: usize = 40;
/// Number of counters at the end of a connection record: six of bytes, eighteen of requests.
pub const CONNECTION_NUMBERS: usize = 24;

/// Appends a success or failure status.
#[inline]
pub fn status(yes: bool, output: &mut Vec<u8>) {
    output.push(if yes { SUCCESS } else { FAILURE });
}

/// Appends the response to QUERY for an existing counter.
#[inline]
pub fn counter(quota: u64, remaining: Ttl, width: Width, output: &mut Vec<u8>) {
    output.push(SUCCESS);
    width.write(quota, output);
    ttl(remaining, width, output);
}

/// Appends the response to GET for an existing buffer. The value must not be longer than the width can express.
#[inline]
pub fn buffer(remaining: Ttl, value: &[u8], width: Width, output: &mut Vec<u8>) {
    debug_assert!(value.len() as u64 <= width.max());
    output.push(SUCCESS);
    ttl(remaining, width, output);
    width.write(value.len() as u64, output);
    output.extend_from_slice(value);
}

#[inline]
fn ttl(ttl: Ttl, width: Width, output: &mut Vec<u8>) {
    output.push(ttl.unit);
    width.write(ttl.amount, output);
}

/// Usage counts of a record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct UsageCounts {
    /// Reads in the last full minute.
    pub reads_per_minute: u64,
    /// Writes in the last full minute.
    pub writes_per_minute: u64,
    /// Total reads up to the end of the last full minute.
    pub reads: u64,
    /// Total writes up to the end of the last full minute.
    pub writes: u64,
}

impl UsageCounts {
    fn write(&self, output: &mut Vec<u8>) {
        for number in [self.reads_per_minute, self.writes_per_minute, self.reads, self.writes] {
            output.extend_from_slice(&number.to_le_bytes());
        }
    }
}

/// Appends the response to STAT for an existing record.
pub fn stat(uses: &UsageCounts, output: &mut Vec<u8>) {
    output.push(SUCCESS);
    uses.write(output);
}

/// Appends the header of a fragmented response: LIST, STATS, CONNECTIONS or CHANNELS.
pub fn fragments(count: u64, output: &mut Vec<u8>) {
    output.push(SUCCESS);
    output.extend_from_slice(&count.to_le_bytes());
}

/// Appends the header of a fragment. Fragments are numbered from 1; their names follow after all their records.
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

/// Bytes that a LIST record and its key count towards the fragment size. Family 7.3 counts two bytes too few.
#[must_use]
pub const fn list_weight(key_bytes: usize, dialect: Dialect) -> usize {
    let fixed = match dialect.family {
        Family::V71 => 11,
        Family::V73 => 9,
    };
    fixed + dialect.width.bytes() + key_bytes
}

/// Appends a record of STATS.
pub fn stats_record(key_bytes: u8, uses: &UsageCounts, output: &mut Vec<u8>) {
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

/// Appends the header of the response to CHANNEL for a channel with subscribers.
pub fn channel(subscribers: u64, output: &mut Vec<u8>) {
    output.push(SUCCESS);
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

/// Appends the response to WHOAMI.
pub fn whoami(id: &[u8; ID_BYTES], output: &mut Vec<u8>) {
    output.push(SUCCESS);
    output.extend_from_slice(id);
}

/// Appends the response to INFO: the numbers in order, and the version truncated to 16 bytes.
///
/// Family 7.1 without metrics omits the first number (`with_time` is false).
pub fn info(numbers: &[u64; 52], version: &str, with_time: bool, output: &mut Vec<u8>) {
    output.push(SUCCESS);
    for number in &numbers[usize::from(!with_time)..] {
        output.extend_from_slice(&number.to_le_bytes());
    }
    let mut name = [0; 16];
    let length = version.len().min(name.len());
    name[..length].copy_from_slice(&version.as_bytes()[..length]);
    output.extend_from_slice(&name);
}

/// A connection, as reported by CONNECTION and CONNECTIONS.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConnectionRecord {
    /// Random connection id.
    pub id: [u8; ID_BYTES],
    /// 0 client, 1 agent. Family 7.3 only.
    pub role: u8,
    /// 0 TCP, 1 Unix socket. Family 7.3 only.
    pub transport: u8,
    /// IP version, 4 or 6.
    pub ip_version: u8,
    /// Peer address as text, padded with zeros and truncated to 16 bytes.
    pub address: [u8; 16],
    /// Peer port.
    pub port: u16,
    /// Time of the connection, in nanoseconds since the Unix epoch.
    pub connected_at: u64,
    /// Bytes read, written, published, received, allocated and consumed; then the number of requests: INSERT, SET, QUERY,
    /// GET, UPDATE, PURGE, LIST, INFO, STAT, STATS, PUBLISH, SUBSCRIBE, UNSUBSCRIBE, CONNECTIONS, CONNECTION, CHANNELS,
    /// CHANNEL, WHOAMI.
    pub numbers: [u64; CONNECTION_NUMBERS],
}

impl ConnectionRecord {
    /// Size of a record in bytes.
    #[must_use]
    pub const fn bytes(family: Family) -> usize {
        match family {
            Family::V71 => 235,
            Family::V73 => 237,
        }
    }

    /// Bytes that a record counts towards the fragment size. Family 7.1 counts eight bytes too few.
    #[must_use]
    pub const fn weight(family: Family) -> usize {
        match family {
            Family::V71 => 227,
            Family::V73 => 237,
        }
    }

    /// Appends the record.
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

/// Appends a push frame for a subscriber. The payload must not be longer than the width can express.
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

/// The response to CONSUME for one rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ConsumeOutcome {
    /// [`SUCCESS`], [`FAILURE`], or [`IMPOSSIBLE`] if the key has another type or the rule is invalid.
    pub status: u8,
    /// Limit in force.
    pub limit: u64,
    /// Quota that is available now.
    pub remaining: u64,
    /// Nanoseconds until the same request would be granted if no other client consumes quota; 0 if it was granted now,
    /// `u64::MAX` if it never will be.
    pub retry_after: u64,
    /// Nanoseconds until the full limit is available again if no client consumes quota.
    pub reset_after: u64,
}

impl ConsumeOutcome {
    /// The response for a rule that cannot be applied.
    pub const IMPOSSIBLE: Self =
        Self { status: IMPOSSIBLE, limit: 0, remaining: 0, retry_after: 0, reset_after: 0 };

    /// Encoded size in bytes.
    #[must_use]
    pub const fn bytes(width: Width) -> usize {
        1 + 2 * width.bytes() + 16
    }

    /// Appends the response: all of CONSUME's response, or one part of CONSUME ALL's.
    pub fn write(&self, width: Width, output: &mut Vec<u8>) {
        output.push(self.status);
        width.write(self.limit, output);
        width.write(self.remaining, output);
        output.extend_from_slice(&self.retry_after.to_le_bytes());
        output.extend_from_slice(&self.reset_after.to_le_bytes());
    }
}

/// Appends the response to CONSUME ALL: one status for the request and one response per rule.
pub fn verdicts(status: u8, verdicts: &[ConsumeOutcome], width: Width, output: &mut Vec<u8>) {
    output.extend_from_slice(&[status, verdicts.len() as u8]);
    for verdict in verdicts {
        verdict.write(width, output);
    }
}
