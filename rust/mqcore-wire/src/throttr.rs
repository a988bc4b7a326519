//! Throttr requests, responses and push frames for the protocol families 7.1 and 7.3, with values of 1, 2, 4 or 8 bytes.
//!
//! All integers are little-endian. Clients send bare requests; the server sends bare responses in the order of the requests,
//! with push frames between them. Neither the value width `N` nor the family is announced on the wire: both are part of the
//! listener's configuration and form a [`Dialect`].
//!
//! ```text
//! 01 INSERT   quota N, unit, ttl N, key length, key       0B..0F and beyond 19: unknown, unless listed below
//! 02 QUERY    key length, key                             11 SUBSCRIBE    length, channel
//! 03 UPDATE   attribute, change, value N, length, key     12 UNSUBSCRIBE  length, channel
//! 04 PURGE    key length, key                             13 PUBLISH      length, size N, channel, payload
//! 05 SET      unit, ttl N, key length, size N, key, value 14 CONNECTIONS
//! 06 GET      key length, key                             15 CONNECTION   id 16
//! 07 LIST                                                 16 CHANNELS
//! 08 INFO                                                 17 CHANNEL      length, channel
//! 09 STAT     key length, key                             18 WHOAMI
//! 10 STATS                                                19 EVENT (7.3)  length, size N, channel, request
//! ```
//!
//! mqcore adds two requests, with codes far above those of the original:
//!
//! ```text
//! C0 CONSUME      mode, rule
//! C1 CONSUME ALL  mode, count, count rules
//!    rule:        algorithm, limit N, cost N, unit, period N, key length, key
//! ```
//!
//! [`request`] encodes and decodes requests, [`answer`] encodes responses and push frames, [`reply`] decodes them.

pub mod answer;
pub mod reply;
pub mod request;

/// Size of quotas, times to live and sizes in bytes, fixed for a listener ("Dynamic Value Size").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Width {
    /// 1 byte, values up to 255.
    U8 = 1,
    /// 2 bytes, values up to 65,535.
    U16 = 2,
    /// 4 bytes.
    U32 = 4,
    /// 8 bytes.
    U64 = 8,
}

impl Width {
    /// All widths, narrowest first.
    pub const ALL: [Self; 4] = [Self::U8, Self::U16, Self::U32, Self::U64];

    /// Size in bytes.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// Largest value of this width.
    #[inline]
    #[must_use]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }

    /// Returns the name in a listener URL: `uint8`, `uint16`, `uint32` or `uint64`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
        }
    }

    /// Returns the width with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|width| width.as_str() == name)
    }

    /// Reads the value at offset `at`. The caller has checked that it is complete.
    #[inline]
    pub(crate) fn read(self, input: &[u8], at: usize) -> u64 {
        let mut bytes = [0; 8];
        match self {
            Self::U8 => bytes[0] = input[at],
            Self::U16 => bytes[..2].copy_from_slice(&input[at..at + 2]),
            Self::U32 => bytes[..4].copy_from_slice(&input[at..at + 4]),
            Self::U64 => bytes.copy_from_slice(&input[at..at + 8]),
        }
        u64::from_le_bytes(bytes)
    }

    /// Appends `value`, or the largest value of this width if it does not fit.
    #[inline]
    pub fn write(self, value: u64, output: &mut Vec<u8>) {
        let bytes = value.min(self.max()).to_le_bytes();
        match self {
            Self::U8 => output.push(bytes[0]),
            Self::U16 => output.extend_from_slice(&bytes[..2]),
            Self::U32 => output.extend_from_slice(&bytes[..4]),
            Self::U64 => output.extend_from_slice(&bytes),
        }
    }
}

/// Protocol family: the edition of the protocol.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Family {
    /// 7.1: push frames without a channel, connection records of 235 bytes, no EVENT.
    #[default]
    V71,
    /// 7.3: push frames with a channel, connection records of 237 bytes, EVENT, automatic channels.
    V73,
}

impl Family {
    /// Returns the name in a listener URL: `7.1` or `7.3`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V71 => "7.1",
            Self::V73 => "7.3",
        }
    }

    /// Returns the family with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::V71, Self::V73].into_iter().find(|family| family.as_str() == name)
    }
}

/// Settings on which both sides of a connection must agree in advance.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dialect {
    /// Value width `N`. Default: 2 bytes.
    pub width: Width,
    /// Protocol family. Default: 7.1.
    pub family: Family,
}

impl Default for Dialect {
    fn default() -> Self {
        Self { width: Width::U16, family: Family::V71 }
    }
}

/// Status byte of a successful request.
pub const SUCCESS: u8 = 0x01;
/// Status byte of a failed request.
pub const FAILURE: u8 = 0x00;
/// Status byte of a CONSUME rule that cannot be applied to its key.
pub const IMPOSSIBLE: u8 = 0x02;
/// First byte of a push frame in family 7.1.
pub const PUSH_V71: u8 = 0x03;
/// First byte of a push frame in family 7.3.
pub const PUSH_V73: u8 = 0x19;
/// Maximum size of a key or channel name in bytes: its length field has one byte. An empty name is valid.
pub const KEY_BYTES_MAX: usize = 255;
/// Size of a connection id in bytes.
pub const ID_BYTES: usize = 16;
/// Maximum number of rules in one CONSUME ALL.
pub const RULES_MAX: usize = 32;

/// A time to live, as encoded on the wire ("TTL Types").
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ttl {
    /// Time unit: 1 ns, 2 us, 3 ms, 4 s, 5 min, 6 h. Other values are preserved and mean seconds.
    pub unit: u8,
    /// Number of units.
    pub amount: u64,
}

impl Ttl {
    /// Nanoseconds per unit.
    #[inline]
    #[must_use]
    pub const fn unit_nanos(unit: u8) -> u64 {
        match unit {
            1 => 1,
            2 => 1_000,
            3 => 1_000_000,
            5 => 60_000_000_000,
            6 => 3_600_000_000_000,
            _ => 1_000_000_000,
        }
    }

    /// The time in nanoseconds, saturated at `u64::MAX`.
    #[inline]
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.amount.saturating_mul(Self::unit_nanos(self.unit))
    }
}

/// Type of a stored record.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KeyType {
    /// A counter with a quota.
    Counter = 0,
    /// A buffer of bytes.
    Buffer = 1,
}
