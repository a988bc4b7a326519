//! Random numbers for ids and jitter. Not for secrets.

use std::hash::{BuildHasher, Hasher, RandomState};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// A number that is unlikely to repeat in another call, thread or process.
///
/// Includes process and time, because a forked process would otherwise continue its parent's sequence.
pub(crate) fn random_u64() -> u64 {
    let mut hasher = RandomState::new().build_hasher();
    hasher.write_u32(std::process::id());
    if let Ok(elapsed) = SystemTime::now().duration_since(UNIX_EPOCH) {
        hasher.write_u128(elapsed.as_nanos());
    }
    hasher.finish()
}

/// A random time between half of `span` and `span`, so that clients of one lost broker do not reconnect at the same
/// moment.
pub(crate) fn jittered(span: Duration) -> Duration {
    let fraction = (random_u64() >> 11) as f64 / (1_u64 << 53) as f64;
    span.mul_f64(0.5 + fraction / 2.0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn jitter_stays_between_half_and_all() {
        let span = Duration::from_secs(2);
        let spans: Vec<_> = (0..100).map(|_| jittered(span)).collect();
        assert!(spans.iter().all(|&s| s >= span / 2 && s <= span));
        assert!(spans.iter().any(|&s| s != spans[0]));
    }
}
