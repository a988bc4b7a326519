//! Throttr requests, answers and push frames: families 7.1 and 7.3, values of 1, 2, 4 or 8 octets.
//!
//! All integers are little-endian. A connection carries bare requests one way and bare answers the other, in the order
//! of the requests, with push frames between answers. Neither the value width `N` nor the family is announced on the
//! wire: both belong to the listener, and are a [`Dialect`] here.
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
//! Two requests are this project's own, far above what the original uses:
//!
//! ```text
//! C0 CONSUME      mode, rule
//! C1 CONSUME ALL  mode, count, count rules
//!    rule:        algorithm, limit N, cost N, unit, period N, key length, key
//! ```
//!
//! [`request`] reads and writes what clients send, [`answer`] writes what a server sends, [`reply`] reads it.

pub mod answer;
pub mod reply;
pub mod request;

/// How many octets quota, time to live and sizes have. Fixed for a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
#[repr(u8)]
pub enum Width {
    /// 1 octet, values up to 255.
    U8 = 1,
    /// 2 octets, values up to 65,535.
    U16 = 2,
    /// 4 octets.
    U32 = 4,
    /// 8 octets.
    U64 = 8,
}

impl Width {
    /// All of them, narrow ones first.
    pub const ALL: [Self; 4] = [Self::U8, Self::U16, Self::U32, Self::U64];

    /// How many octets.
    #[inline]
    #[must_use]
    pub const fn bytes(self) -> usize {
        self as usize
    }

    /// The largest value that fits.
    #[inline]
    #[must_use]
    pub const fn max(self) -> u64 {
        u64::MAX >> (64 - 8 * self.bytes())
    }

    /// The name in a listener's URL: `uint8`, `uint16`, `uint32`, `uint64`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::U8 => "uint8",
            Self::U16 => "uint16",
            Self::U32 => "uint32",
            Self::U64 => "uint64",
        }
    }

    /// The width of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|width| width.as_str() == name)
    }

    /// Reads a value at `at`, which the caller has made sure is there.
    #[inline]
    pub(crate) fn read(self, input: &[u8], at: usize) -> u64 {
        let mut octets = [0; 8];
        match self {
            Self::U8 => octets[0] = input[at],
            Self::U16 => octets[..2].copy_from_slice(&input[at..at + 2]),
            Self::U32 => octets[..4].copy_from_slice(&input[at..at + 4]),
            Self::U64 => octets.copy_from_slice(&input[at..at + 8]),
        }
        u64::from_le_bytes(octets)
    }

    /// Appends a value; one that does not fit is written as the largest that does.
    #[inline]
    pub fn write(self, value: u64, output: &mut Vec<u8>) {
        let octets = value.min(self.max()).to_le_bytes();
        match self {
            Self::U8 => output.push(octets[0]),
            Self::U16 => output.extend_from_slice(&octets[..2]),
            Self::U32 => output.extend_from_slice(&octets[..4]),
            Self::U64 => output.extend_from_slice(&octets),
        }
    }
}

/// Which edition of the protocol is spoken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Family {
    /// 7.1: push frames without a channel, connection records of 235 octets, no EVENT.
    #[default]
    V71,
    /// 7.3: push frames with their channel, connection records of 237 octets, EVENT, automatic channels.
    V73,
}

impl Family {
    /// The name in a listener's URL: `7.1`, `7.3`.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::V71 => "7.1",
            Self::V73 => "7.3",
        }
    }

    /// The family of this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        [Self::V71, Self::V73].into_iter().find(|family| family.as_str() == name)
    }
}

/// What both sides of a connection have to agree on beforehand.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Dialect {
    /// The value width `N`. Default 2.
    pub width: Width,
    /// The edition. Default 7.1.
    pub family: Family,
}

impl Default for Dialect {
    fn default() -> Self {
        Self { width: Width::U16, family: Family::V71 }
    }
}

/// The first octet of a status that says yes.
pub const YES: u8 = 0x01;
/// The first octet of a status that says no.
pub const NO: u8 = 0x00;
/// The first octet of a verdict about a rule that cannot be applied to its key.
pub const IMPOSSIBLE: u8 = 0x02;
/// The first octet of a push frame of family 7.1.
pub const PUSH_V71: u8 = 0x03;
/// The first octet of a push frame of family 7.3.
pub const PUSH_V73: u8 = 0x19;
/// Octets of a key or of a channel's name, at most: the length has one octet. None is fine too.
pub const KEY_BYTES_MAX: usize = 255;
/// Octets of the id of a connection.
pub const ID_BYTES: usize = 16;
/// Rules that one CONSUME ALL may carry.
pub const RULES_MAX: usize = 32;

/// A time to live as it stands in the bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Ttl {
    /// 1 ns, 2 us, 3 ms, 4 s, 5 min, 6 h. Others are kept and mean seconds.
    pub unit: u8,
    /// How many of them.
    pub amount: u64,
}

impl Ttl {
    /// Nanoseconds of one unit.
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

    /// The whole time in nanoseconds; the largest number if it is more.
    #[inline]
    #[must_use]
    pub const fn nanos(self) -> u64 {
        self.amount.saturating_mul(Self::unit_nanos(self.unit))
    }
}

/// Whether a record counts or stores.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum KeyType {
    /// A quota.
    Counter = 0,
    /// Octets.
    Buffer = 1,
}
