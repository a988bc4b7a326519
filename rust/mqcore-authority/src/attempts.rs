//! How often one address may have a password checked: each check costs the server a lot and a guesser little.

use core::net::IpAddr;
use std::collections::HashMap;

/// Checks that an address may ask for at once.
pub const BURST: u32 = 10;
/// How long it takes until it may ask for one more, milliseconds.
pub const REFILL_MS: u64 = 1000;
/// Addresses that are remembered at most.
pub const ADDRESSES_MAX: usize = 4096;

/// What addresses have used up. A login that succeeds costs nothing.
#[derive(Debug, Default)]
pub struct Attempts {
    used: HashMap<IpAddr, Used>,
}

#[derive(Debug, Clone, Copy)]
struct Used {
    checks: u32,
    /// When `checks` held.
    at_ms: u64,
}

impl Used {
    /// What is left of it at `now_ms`.
    fn later(self, now_ms: u64) -> Self {
        let refilled = now_ms.saturating_sub(self.at_ms) / REFILL_MS;
        let checks = self.checks.saturating_sub(u32::try_from(refilled).unwrap_or(u32::MAX));
        // What is left of a second counts towards the next one.
        Self { checks, at_ms: self.at_ms + refilled * REFILL_MS }
    }
}

impl Attempts {
    /// Takes one check of `address`; false if it has none left.
    pub fn take(&mut self, address: IpAddr, now_ms: u64) -> bool {
        let key = key(address);
        if !self.used.contains_key(&key) {
            self.make_room(now_ms);
        }
        let used = self.used.entry(key).or_insert(Used { checks: 0, at_ms: now_ms });
        *used = used.later(now_ms);
        let free = used.checks < BURST;
        if free {
            used.checks += 1;
        }
        free
    }

    /// The check of `address` was of a right password: it costs nothing.
    pub fn give_back(&mut self, address: IpAddr) {
        if let Some(used) = self.used.get_mut(&key(address)) {
            used.checks = used.checks.saturating_sub(1);
        }
    }

    /// Forgets those that have all their checks again; if there is none, the one that has used the least.
    fn make_room(&mut self, now_ms: u64) {
        if self.used.len() < ADDRESSES_MAX {
            return;
        }
        self.used.retain(|_, used| used.later(now_ms).checks > 0);
        if self.used.len() >= ADDRESSES_MAX
            && let Some(least) = self.used.iter().min_by_key(|(_, used)| used.later(now_ms).checks)
        {
            let least = *least.0;
            self.used.remove(&least);
        }
    }
}

/// Whoever has one IPv6 address has the 2^64 around it.
fn key(address: IpAddr) -> IpAddr {
    match address.to_canonical() {
        IpAddr::V6(address) => IpAddr::V6((address.to_bits() & !u128::from(u64::MAX)).into()),
        address => address,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HERE: IpAddr = IpAddr::V4(core::net::Ipv4Addr::LOCALHOST);

    fn taken(attempts: &mut Attempts, address: IpAddr, now_ms: u64) -> usize {
        (0..100).take_while(|_| attempts.take(address, now_ms)).count()
    }

    #[test]
    fn a_guesser_gets_a_few_checks_and_then_one_a_second() {
        let mut attempts = Attempts::default();
        assert_eq!(taken(&mut attempts, HERE, 0), BURST as usize);
        assert_eq!(taken(&mut attempts, HERE, 999), 0);
        assert_eq!(taken(&mut attempts, HERE, 1000), 1);
        assert_eq!(taken(&mut attempts, HERE, 4500), 3);
        assert_eq!(taken(&mut attempts, HERE, 5000), 1);
        assert_eq!(taken(&mut attempts, HERE, 1_000_000), BURST as usize);
    }

    #[test]
    fn right_passwords_cost_nothing() {
        let mut attempts = Attempts::default();
        for _ in 0..1000 {
            assert!(attempts.take(HERE, 0));
            attempts.give_back(HERE);
        }
    }

    #[test]
    fn one_address_uses_up_nothing_of_another_and_a_network_counts_as_one() {
        let mut attempts = Attempts::default();
        taken(&mut attempts, HERE, 0);
        assert!(attempts.take("10.0.0.1".parse().unwrap(), 0));
        taken(&mut attempts, "2001:db8::1".parse().unwrap(), 0);
        assert!(!attempts.take("2001:db8::ffff".parse().unwrap(), 0));
        assert!(attempts.take("2001:db8:0:1::1".parse().unwrap(), 0));
        assert!(!attempts.take("::ffff:127.0.0.1".parse().unwrap(), 0));
    }

    #[test]
    fn memory_is_bounded_and_who_has_used_all_is_not_forgotten_for_it() {
        let mut attempts = Attempts::default();
        taken(&mut attempts, HERE, 0);
        for address in 0..2 * ADDRESSES_MAX as u32 {
            assert!(attempts.take(IpAddr::V4((0x0a00_0000 + address).into()), 0));
        }
        assert_eq!(attempts.used.len(), ADDRESSES_MAX);
        assert!(!attempts.take(HERE, 0));
    }
}
