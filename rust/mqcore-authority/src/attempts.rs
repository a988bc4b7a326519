//! Rate limit on password checks per address: a check is expensive for the server and cheap for an attacker.

use core::net::IpAddr;
use std::collections::HashMap;

/// Number of checks available to an address at once.
pub const BURST: u32 = 10;
/// Time until another check becomes available, in milliseconds.
pub const REFILL_MS: u64 = 1000;
/// Maximum number of addresses remembered.
pub const ADDRESSES_MAX: usize = 4096;

/// The checks used by each address. A successful login costs nothing.
#[derive(Debug, Default)]
pub struct LoginAttempts {
    used: HashMap<IpAddr, UsedChecks>,
}

#[derive(Debug, Clone, Copy)]
struct UsedChecks {
    checks: u32,
    /// Time to which `checks` refers, in milliseconds.
    at_ms: u64,
}

impl UsedChecks {
    /// The state at `now_ms`, after refilling.
    fn later(self, now_ms: u64) -> Self {
        let refilled = now_ms.saturating_sub(self.at_ms) / REFILL_MS;
        let checks = self.checks.saturating_sub(u32::try_from(refilled).unwrap_or(u32::MAX));
        // The remaining fraction of a second counts towards the next check.
        Self { checks, at_ms: self.at_ms + refilled * REFILL_MS }
    }
}

impl LoginAttempts {
    /// Uses one check of `address`. Returns false if none is available.
    pub fn take(&mut self, address: IpAddr, now_ms: u64) -> bool {
        let key = key(address);
        if !self.used.contains_key(&key) {
            self.make_room(now_ms);
        }
        let used = self.used.entry(key).or_insert(UsedChecks { checks: 0, at_ms: now_ms });
        *used = used.later(now_ms);
        let free = used.checks < BURST;
        if free {
            used.checks += 1;
        }
        free
    }

    /// Returns the check of `address` after a successful login.
    pub fn give_back(&mut self, address: IpAddr) {
        if let Some(used) = self.used.get_mut(&key(address)) {
            used.checks = used.checks.saturating_sub(1);
        }
    }

    /// Removes addresses with all checks available; if there is none, the one that has used the fewest.
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

/// Treats a /64 network as one IPv6 address, because one client usually controls all of it.
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

    fn taken(attempts: &mut LoginAttempts, address: IpAddr, now_ms: u64) -> usize {
        (0..100).take_while(|_| attempts.take(address, now_ms)).count()
    }

    #[test]
    fn burst_is_followed_by_one_check_per_second() {
        let mut attempts = LoginAttempts::default();
        assert_eq!(taken(&mut attempts, HERE, 0), BURST as usize);
        assert_eq!(taken(&mut attempts, HERE, 999), 0);
        assert_eq!(taken(&mut attempts, HERE, 1000), 1);
        assert_eq!(taken(&mut attempts, HERE, 4500), 3);
        assert_eq!(taken(&mut attempts, HERE, 5000), 1);
        assert_eq!(taken(&mut attempts, HERE, 1_000_000), BURST as usize);
    }

    #[test]
    fn successful_logins_use_no_checks() {
        let mut attempts = LoginAttempts::default();
        for _ in 0..1000 {
            assert!(attempts.take(HERE, 0));
            attempts.give_back(HERE);
        }
    }

    #[test]
    fn addresses_are_independent_and_an_ipv6_network_counts_as_one() {
        let mut attempts = LoginAttempts::default();
        taken(&mut attempts, HERE, 0);
        assert!(attempts.take("10.0.0.1".parse().unwrap(), 0));
        taken(&mut attempts, "2001:db8::1".parse().unwrap(), 0);
        assert!(!attempts.take("2001:db8::ffff".parse().unwrap(), 0));
        assert!(attempts.take("2001:db8:0:1::1".parse().unwrap(), 0));
        assert!(!attempts.take("::ffff:127.0.0.1".parse().unwrap(), 0));
    }

    #[test]
    fn memory_is_bounded_and_exhausted_addresses_are_remembered() {
        let mut attempts = LoginAttempts::default();
        taken(&mut attempts, HERE, 0);
        for address in 0..2 * ADDRESSES_MAX as u32 {
            assert!(attempts.take(IpAddr::V4((0x0a00_0000 + address).into()), 0));
        }
        assert_eq!(attempts.used.len(), ADDRESSES_MAX);
        assert!(!attempts.take(HERE, 0));
    }
}
