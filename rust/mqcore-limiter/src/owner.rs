//! The owner of entries: a client, or all clients of a user, that may have a limited number of them.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts the entries that its clients have created. Share it as `Arc<KeyOwner>`.
#[derive(Debug)]
pub struct KeyOwner {
    keys: AtomicU64,
    keys_max: u64,
}

impl KeyOwner {
    /// An owner without entries, which may have `keys_max`.
    #[must_use]
    pub const fn new(keys_max: u64) -> Self {
        Self { keys: AtomicU64::new(0), keys_max }
    }

    /// Number of entries.
    #[must_use]
    pub fn keys(&self) -> u64 {
        self.keys.load(Ordering::Relaxed)
    }

    /// Takes a place for an entry. Returns false if there is none.
    pub(crate) fn take(&self) -> bool {
        let more = |keys| (keys < self.keys_max).then_some(keys + 1);
        self.keys.fetch_update(Ordering::Relaxed, Ordering::Relaxed, more).is_ok()
    }

    /// Gives the place of an entry back.
    pub(crate) fn give_back(&self) {
        self.keys.fetch_sub(1, Ordering::Relaxed);
    }
}

#[cfg(test)]
mod tests {
    use std::hash::RandomState;
    use std::sync::Arc;

    use super::*;
    use crate::creation::Creation;
    use crate::limiter::{EntryProperties, Limiter, LimiterConfig};
    use crate::rule::{Algorithm, ConsumeMode, Rule, RuleError};
    use crate::time::{Nanos, Ttl};

    const MINUTE: Ttl = Ttl { unit: 5, amount: 1 };
    const PROPERTIES: EntryProperties = EntryProperties { bits: 64, kept: false };
    const RULE: Rule = Rule { algorithm: Algorithm::Gcra, limit: 2, cost: 1, period: MINUTE };

    fn store() -> Limiter {
        Limiter::new(LimiterConfig::default(), RandomState::new())
    }

    fn of(owner: &Arc<KeyOwner>) -> Creation<'_> {
        Creation { properties: PROPERTIES, owner: Some(owner) }
    }

    #[test]
    fn an_owner_creates_no_more_keys_than_it_may_have() {
        let (store, owner, other) = (store(), Arc::new(KeyOwner::new(3)), Arc::new(KeyOwner::new(3)));
        let now = Nanos(1);
        assert!(store.insert(b"counter", 1, of(&owner), MINUTE, now));
        assert!(store.set_for(Some(&owner), b"buffer", b"text", false, MINUTE, now));
        assert!(store.consume(b"bucket", &RULE, ConsumeMode::Take, of(&owner), now).unwrap().allowed);
        assert_eq!(owner.keys(), 3);
        assert!(!store.insert(b"another", 1, of(&owner), MINUTE, now));
        assert!(!store.set_for(Some(&owner), b"another", b"text", false, MINUTE, now));
        let refused = store.consume(b"another", &RULE, ConsumeMode::Take, of(&owner), now);
        assert_eq!(refused, Err(RuleError::OwnerFull));
        let mut verdicts = Vec::new();
        let all = [(&b"bucket"[..], RULE), (&b"another"[..], RULE)];
        let refused = store.consume_all(&all, ConsumeMode::Take, of(&owner), now, &mut verdicts);
        assert_eq!((refused, verdicts.len()), (Err(RuleError::OwnerFull), 0));
        assert_eq!((store.rejected(), store.keys()), (4, 3));
        // Its own keys stay usable, and others create keys.
        assert!(store.set_for(Some(&owner), b"buffer", b"new text", false, MINUTE, now));
        assert!(store.consume(b"bucket", &RULE, ConsumeMode::Take, of(&owner), now).unwrap().allowed);
        assert!(store.insert(b"another", 1, of(&other), MINUTE, now));
        assert_eq!((owner.keys(), other.keys()), (3, 1));
    }

    #[test]
    fn removed_expired_and_evicted_keys_give_their_places_back() {
        let (store, owner) = (store(), Arc::new(KeyOwner::new(2)));
        let now = Nanos(1);
        assert!(store.insert(b"a", 1, of(&owner), MINUTE, now));
        assert!(store.insert(b"b", 1, of(&owner), MINUTE, now));
        assert!(store.purge(b"a", now));
        assert_eq!(owner.keys(), 1);
        assert!(store.insert(b"c", 1, 64, MINUTE, now), "it reuses the place, and counts for no owner");
        assert_eq!(owner.keys(), 1);
        let later = now.after(2 * MINUTE.nanos());
        assert_eq!(store.query(b"b", later), None);
        assert_eq!(owner.keys(), 0);
        let full =
            Limiter::new(LimiterConfig { keys_max: 1, ..LimiterConfig::default() }, RandomState::new());
        for key in [b"a", b"b", b"c"] {
            assert!(full.insert(key, 1, of(&owner), MINUTE, now));
        }
        assert_eq!((full.keys(), owner.keys()), (1, 1));
    }

    #[test]
    fn a_renewed_key_changes_its_owner() {
        let (store, first, second) = (store(), Arc::new(KeyOwner::new(1)), Arc::new(KeyOwner::new(1)));
        let mut now = Nanos(1);
        for owner in [&first, &first, &second] {
            assert!(store.consume(b"bucket", &RULE, ConsumeMode::Take, of(owner), now).unwrap().allowed);
            assert_eq!(owner.keys(), 1);
            now = now.after(10 * MINUTE.nanos());
        }
        assert_eq!(first.keys(), 0);
        assert!(store.consume(b"bucket", &RULE, ConsumeMode::Take, 64, now).unwrap().allowed);
        assert_eq!(second.keys(), 0);
    }

    #[test]
    fn a_key_that_is_not_stored_takes_no_place() {
        let (store, owner) = (store(), Arc::new(KeyOwner::new(1)));
        for mode in [ConsumeMode::Peek, ConsumeMode::DryRun] {
            store.consume(b"bucket", &RULE, mode, of(&owner), Nanos(1)).unwrap();
            assert_eq!(owner.keys(), 0);
        }
        assert!(store.insert(b"a", 1, of(&owner), Ttl { unit: 5, amount: 0 }, Nanos(1)));
        assert_eq!(owner.keys(), 0);
    }
}
