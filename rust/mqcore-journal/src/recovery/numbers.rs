//! Numbers of new records if the disk can read nothing that tells which ones were used: they follow from the time.

/// No journal uses up more numbers than this in a millisecond, on average since 1970. Thus the time of an opening gives a number
/// that is larger than all before.
const NUMBERS_PER_MS_MAX: u64 = 1 << 10;
/// No journal writes more notes than this in a millisecond, on average since [`NOTES_SINCE_MS`]. It is smaller, because readers of
/// the history append 20 bits to the number of a note.
const NOTES_PER_MS_MAX: u64 = 8;
/// The beginning of 2026, in milliseconds since the Unix epoch.
const NOTES_SINCE_MS: u64 = 1_767_225_600_000;
/// No note gets a larger number because of the time.
const NOTES_BY_TIME_MAX: u64 = 1 << 42;
/// Numbers that are skipped at least, in case the caller states no time.
const NUMBERS_SKIPPED_MIN: u64 = 1 << 32;

/// Returns a number from `next` on that no record has which cannot be read now.
pub(super) fn unused_sequence(next: u64, now_ms: u64) -> u64 {
    next.saturating_add(NUMBERS_SKIPPED_MIN).max(now_ms.saturating_mul(NUMBERS_PER_MS_MAX))
}

/// The same for a note.
pub(super) fn unused_note(next: u64, now_ms: u64) -> u64 {
    let by_time = now_ms.saturating_sub(NOTES_SINCE_MS).saturating_mul(NOTES_PER_MS_MAX);
    let skipped = next.saturating_add(NUMBERS_SKIPPED_MIN);
    // Repeated failures must not use up the numbers.
    skipped.max(by_time).min(NOTES_BY_TIME_MAX).max(next)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_of_notes_ascend_and_stay_small_whatever_fails_and_how_often() {
        let minute = 60_000;
        let mut next = 0;
        for failure in 0..100_000 {
            let number = unused_note(next, NOTES_SINCE_MS + failure * minute);
            assert!(number >= next && number <= NOTES_BY_TIME_MAX.max(next), "{number} after {next}");
            next = number + 100;
        }
        assert!(next < 1 << 43, "{next}");
    }
}
