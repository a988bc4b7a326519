//! Numbers and times in sentences.

/// A time in its largest unit: `12 s`, `5 min`, `3 h`, `2 days`.
pub(super) fn span(ms: u64) -> String {
    match ms / 1000 {
        seconds @ 0..120 => format!("{seconds} s"),
        seconds @ 120..7_200 => format!("{} min", seconds / 60),
        seconds @ 7_200..172_800 => format!("{} h", seconds / 3_600),
        seconds => format!("{} days", seconds / 86_400),
    }
}

/// A count with its noun: `1 message`, `48,120 messages`.
pub(super) fn counted(count: u64, noun: &str) -> String {
    let plural = if count == 1 { "" } else { "s" };
    format!("{} {noun}{plural}", grouped(count))
}

/// A number with a comma before every three digits.
pub(super) fn grouped(number: u64) -> String {
    let digits = number.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (index, digit) in digits.chars().enumerate() {
        if index > 0 && (digits.len() - index).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// Bytes in their largest binary unit.
pub(super) fn size(bytes: u64) -> String {
    match bytes {
        0..1_048_576 => format!("{} KiB", bytes >> 10),
        1_048_576..1_073_741_824 => format!("{} MiB", bytes >> 20),
        _ => format!("{:.1} GiB", bytes as f64 / 1_073_741_824.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_numbers_and_sizes_are_readable() {
        let spans = [0, 119_999, 120_000, 7_199_000, 7_200_000, 172_800_000].map(span);
        assert_eq!(spans, ["0 s", "119 s", "2 min", "119 min", "2 h", "2 days"]);
        assert_eq!(
            [1, 12, 999, 1_000, 48_120, 1_234_567].map(grouped),
            ["1", "12", "999", "1,000", "48,120", "1,234,567"]
        );
        assert_eq!([counted(1, "message"), counted(0, "message")], ["1 message", "0 messages"]);
        assert_eq!([size(2048), size(5 << 20), size(3 << 29)], ["2 KiB", "5 MiB", "1.5 GiB"]);
    }
}
