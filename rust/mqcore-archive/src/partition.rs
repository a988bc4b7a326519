//! The directory of a row, in Hive style: `channel=orders/queue_id=7/date=2026-11-21`.

use std::fmt::Write as _;
use std::sync::Arc;

/// Replaces a missing value, for events of a whole shard.
const NOTHING: &str = "__HIVE_DEFAULT_PARTITION__";
/// Maximum size in bytes of an escaped name in a directory name, which may have 255 bytes on most systems.
const NAME_BYTES_MAX: usize = 200;

/// A queue and a UTC day.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Partition {
    /// Queue address `channel/id`; empty: none.
    pub queue: Arc<str>,
    /// Days since 1970-01-01.
    pub day: u32,
}

impl Partition {
    /// Returns the partition of a row with this queue and time.
    pub fn of(queue: Arc<str>, time_ms: u64) -> Self {
        Self { queue, day: u32::try_from(time_ms / 86_400_000).unwrap_or(u32::MAX) }
    }

    /// Channel and queue id; `None` for events of a whole shard.
    pub fn address(&self) -> Option<(&str, u16)> {
        let (channel, id) = self.queue.rsplit_once('/')?;
        Some((channel, id.parse().ok()?))
    }

    /// The day as `YYYY-MM-DD`.
    pub fn date(&self) -> String {
        let (year, month, day) = civil(self.day);
        format!("{year:04}-{month:02}-{day:02}")
    }

    /// Path of the directory, relative to the table's directory.
    pub fn path(&self) -> String {
        let date = self.date();
        match self.address() {
            Some((channel, id)) => format!("channel={}/queue_id={id}/date={date}", escaped(channel)),
            None => format!("channel={NOTHING}/queue_id={NOTHING}/date={date}"),
        }
    }
}

/// Escapes a name for use in a path: everything but letters, digits, `_`, `.` and `-` becomes `%` and two hexadecimal
/// digits. A name that is too long is truncated and ends with `~` and a checksum; the rows contain it in full.
pub fn escaped(name: &str) -> String {
    let mut text = String::with_capacity(name.len());
    for byte in name.bytes() {
        if byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'.' | b'-') {
            text.push(char::from(byte));
        } else {
            // Writing to a String cannot fail.
            let _ = write!(text, "%{byte:02X}");
        }
    }
    if text.len() > NAME_BYTES_MAX {
        let sum = name.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |hash, byte| {
            (hash ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3)
        });
        let cut = text[..NAME_BYTES_MAX].rfind('%').filter(|at| at + 3 > NAME_BYTES_MAX);
        text.truncate(cut.unwrap_or(NAME_BYTES_MAX));
        let _ = write!(text, "~{sum:016x}");
    }
    text
}

/// Converts days since 1970-01-01 to year, month and day of the Gregorian calendar.
fn civil(days: u32) -> (u64, u64, u64) {
    // Years are counted from March, so that the leap day is the last day of a year.
    let days = u64::from(days) + 719_468;
    let (era, of_era) = (days / 146_097, days % 146_097);
    let year_of_era = (of_era - of_era / 1460 + of_era / 36_524 - of_era / 146_096) / 365;
    let of_year = of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * of_year + 2) / 153;
    let day = of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    (year_of_era + era * 400 + u64::from(month <= 2), month, day)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn days_are_formatted_as_calendar_dates() {
        let date = |days: u64| Partition::of("a/0".into(), days * 86_400_000).date();
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(59), "1970-03-01");
        assert_eq!(date(11_016), "2000-02-29");
        assert_eq!(date(19_723), "2024-01-01");
        assert_eq!(date(20_778), "2026-11-21");
        assert_eq!(Partition::of("a/0".into(), 86_399_999).date(), "1970-01-01");
    }

    #[test]
    fn escaped_name_is_always_a_single_directory() {
        let path = |queue: &str| Partition::of(queue.into(), 0).path();
        assert_eq!(path("orders/7"), "channel=orders/queue_id=7/date=1970-01-01");
        assert_eq!(path("logs/eu=%ü/7"), "channel=logs%2Feu%3D%25%C3%BC/queue_id=7/date=1970-01-01");
        assert_eq!(path("../../etc/0"), "channel=..%2F..%2Fetc/queue_id=0/date=1970-01-01");
        assert!(path("").starts_with("channel=__HIVE_DEFAULT_PARTITION__/queue_id=__HIVE"));
    }

    #[test]
    fn long_names_are_truncated_and_stay_distinct() {
        let (one, other) = ("ü".repeat(127), format!("{}x", "ü".repeat(126)));
        let (one, other) = (escaped(&one), escaped(&other));
        assert_ne!(one, other);
        // The checksum is FNV-1a of the whole name.
        assert_eq!(one, format!("{}~c617ad8f5bedd7da", "%C3%BC".repeat(33)));
        for name in [one, other] {
            assert!(name.len() <= 220 && !name.contains("%C~") && !name.contains("%~"), "{name}");
        }
    }
}
