//! Ranges of network addresses, for example `10.0.0.0/8`.

use core::net::IpAddr;
use std::fmt;
use std::str::FromStr;

use serde::{Deserialize, Serialize};

/// All addresses that share a prefix.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct AddressRange {
    first: IpAddr,
    bits: u8,
}

/// The text is not an address range.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text:?} is not an address range; expected for example 10.0.0.0/8, 192.168.1.7 or fd00::/8")]
pub struct AddressRangeError {
    text: String,
}

impl AddressRange {
    /// Whether the range contains `address`. An IPv4-mapped IPv6 address counts as IPv4.
    #[must_use]
    pub fn contains(&self, address: IpAddr) -> bool {
        match (self.first, address.to_canonical()) {
            (IpAddr::V4(first), IpAddr::V4(given)) => {
                same_start(u128::from(first.to_bits()) << 96, u128::from(given.to_bits()) << 96, self.bits)
            }
            (IpAddr::V6(first), IpAddr::V6(given)) => same_start(first.to_bits(), given.to_bits(), self.bits),
            _ => false,
        }
    }

    /// Whether this range contains every address that `other` contains.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        self.first.is_ipv4() == other.first.is_ipv4() && self.bits <= other.bits && self.contains(other.first)
    }
}

fn same_start(one: u128, other: u128, bits: u8) -> bool {
    // Shifting by the full width is undefined in Rust; an empty prefix matches every address.
    bits == 0 || (one ^ other) >> (128 - u32::from(bits)) == 0
}

impl FromStr for AddressRange {
    type Err = AddressRangeError;

    fn from_str(text: &str) -> Result<Self, AddressRangeError> {
        let wrong = || AddressRangeError { text: text.to_owned() };
        let (address, bits) = match text.split_once('/') {
            Some((address, bits)) => (address, Some(bits.parse::<u8>().map_err(|_| wrong())?)),
            None => (text, None),
        };
        let first: IpAddr = address.parse().map_err(|_| wrong())?;
        let most = if first.is_ipv4() { 32 } else { 128 };
        let bits = bits.unwrap_or(most);
        if bits > most {
            return Err(wrong());
        }
        Ok(Self { first, bits })
    }
}

impl TryFrom<String> for AddressRange {
    type Error = AddressRangeError;

    fn try_from(text: String) -> Result<Self, AddressRangeError> {
        text.parse()
    }
}

impl From<AddressRange> for String {
    fn from(range: AddressRange) -> Self {
        range.to_string()
    }
}

impl fmt::Display for AddressRange {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}/{}", self.first, self.bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn contains(range: &str, address: &str) -> bool {
        range.parse::<AddressRange>().unwrap().contains(address.parse().unwrap())
    }

    #[test]
    fn range_contains_the_addresses_with_its_prefix() {
        assert!(contains("10.0.0.0/8", "10.255.1.2"));
        assert!(!contains("10.0.0.0/8", "11.0.0.1"));
        assert!(contains("192.168.1.7", "192.168.1.7"));
        assert!(!contains("192.168.1.7", "192.168.1.6"));
        assert!(contains("0.0.0.0/0", "8.8.8.8"));
        assert!(contains("fd00::/8", "fdff::1"));
        assert!(!contains("fd00::/8", "fe80::1"));
        assert!(!contains("::/0", "1.2.3.4"));
        assert!(contains("10.0.0.0/8", "::ffff:10.1.1.1"));
    }

    #[test]
    fn invalid_ranges_are_rejected() {
        for text in ["", "10.0.0.0/33", "10.0.0/8", "fd00::/129", "localhost", "10.0.0.0/-1", "10.0.0.0/x"] {
            assert!(text.parse::<AddressRange>().is_err(), "{text}");
        }
    }
}
