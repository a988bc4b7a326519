//! Which shard owns a channel, a router or a topic.

use siphasher::sip::SipHasher13;

/// The key of a placement: 128 random bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PlacementKey(pub [u64; 2]);

/// The rule by which a broker spreads names over its shards. Journals are per shard, so a data directory keeps its rule.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Placement {
    shards: usize,
    key: Option<PlacementKey>,
}

impl Placement {
    /// The shard that knows all clients.
    pub const HOME: usize = 0;

    /// The rule with a key: a client that does not know the key cannot choose names of the same shard.
    #[must_use]
    pub const fn keyed(shards: usize, key: PlacementKey) -> Self {
        Self { shards, key: Some(key) }
    }

    /// The rule without a key, of data directories of older versions. It does not spread names that differ in the last byte.
    #[must_use]
    pub const fn unkeyed(shards: usize) -> Self {
        Self { shards, key: None }
    }

    /// Number of shards.
    #[must_use]
    pub const fn shards(&self) -> usize {
        self.shards
    }

    /// The shard of a name.
    #[must_use]
    pub(crate) fn of(&self, name: &[u8]) -> usize {
        debug_assert!(self.shards > 0);
        match self.key {
            // The upper bits are as good as the lower ones, and a multiplication is cheaper than a division.
            Some(key) => ((u128::from(siphash(key, name)) * self.shards as u128) >> 64) as usize,
            None => ((fnv(name) >> 32) as usize) % self.shards,
        }
    }

    /// The shard of a name whose case does not matter. Names are at most 255 bytes.
    #[must_use]
    pub(crate) fn of_caseless(&self, name: &str) -> usize {
        let mut lowercase = [0; 255];
        let Some(lowercase) = lowercase.get_mut(..name.len()) else {
            return self.of(name.to_ascii_lowercase().as_bytes());
        };
        lowercase.copy_from_slice(name.as_bytes());
        lowercase.make_ascii_lowercase();
        self.of(lowercase)
    }
}

/// FNV-1a.
fn fnv(bytes: &[u8]) -> u64 {
    bytes.iter().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
        (hash ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
    })
}

/// SipHash-1-3. The standard library has it too, but does not promise to keep it.
fn siphash(PlacementKey([first, second]): PlacementKey, bytes: &[u8]) -> u64 {
    SipHasher13::new_with_keys(first, second).hash(bytes)
}

#[cfg(test)]
mod tests {
    use std::hash::{DefaultHasher, Hasher};

    use super::*;
    use crate::model::id::ChannelName;

    const KEY: PlacementKey = PlacementKey([0x0706_0504_0302_0100, 0x0f0e_0d0c_0b0a_0908]);

    #[test]
    fn siphash_is_that_of_the_reference_and_of_the_standard_library() {
        assert_eq!(siphash(KEY, b""), u64::from_le_bytes([0xdc, 0xc4, 0x0f, 0x05, 0x58, 0x01, 0xac, 0xab]));
        let bytes: Vec<u8> = (0..255).collect();
        for length in 0..=bytes.len() {
            let mut standard = DefaultHasher::new();
            standard.write(&bytes[..length]);
            assert_eq!(siphash(PlacementKey([0, 0]), &bytes[..length]), standard.finish(), "{length} bytes");
        }
    }

    fn counts(placement: Placement, names: impl Iterator<Item = String>) -> Vec<usize> {
        let mut counts = vec![0; placement.shards()];
        for name in names {
            counts[ChannelName::new(&name).unwrap().shard(placement)] += 1;
        }
        counts
    }

    #[test]
    fn sequential_names_spread_over_all_shards() {
        for (prefix, width) in [("q", 1), ("user.", 4), ("orders-eu-", 6)] {
            let names = || (0..1000).map(|number| format!("{prefix}{number:0width$}"));
            let counts = counts(Placement::keyed(8, KEY), names());
            assert!(counts.iter().all(|count| (100..=150).contains(count)), "{prefix}: {counts:?}");
        }
    }

    #[test]
    fn names_chosen_for_one_shard_spread_under_another_key() {
        for known in [Placement::unkeyed(4), Placement::keyed(4, KEY)] {
            let of_one = (0..).map(|number| format!("name-{number}"));
            let of_one = of_one.filter(|name| ChannelName::new(name).unwrap().shard(known) == 3).take(1000);
            let counts = counts(Placement::keyed(4, PlacementKey([17, 4])), of_one);
            assert!(counts.iter().all(|count| (200..=300).contains(count)), "{counts:?}");
        }
    }

    #[test]
    fn case_does_not_change_the_shard_of_a_channel() {
        let long = "X".repeat(255);
        for placement in [Placement::unkeyed(16), Placement::keyed(16, KEY)] {
            for name in ["Orders", "ÄB", &long] {
                let lower = ChannelName::new(&name.to_ascii_lowercase()).unwrap();
                assert_eq!(ChannelName::new(name).unwrap().shard(placement), lower.shard(placement));
            }
        }
    }
}
