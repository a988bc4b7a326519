//! Losses of journals: what recovery found, until the operator accepts it.

use std::fmt;

use mqcore_journal::recovery::{Damage, DamageCause, MissingSegment, RecordLoss, RecoveryReport};

/// A loss of records, or of a whole journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Loss {
    /// The directory of the journal: `shard-0`, `limits`, ...
    pub journal: String,
    /// The segment; 0: the whole journal.
    pub segment: u32,
    /// The kind of loss.
    pub cause: LossCause,
    /// Number of lost records of all kinds.
    pub records: RecordLoss,
    /// Numbers of the lost messages, from the first up to but not including the second. `None`: unknown.
    pub messages: Option<(u64, u64)>,
    /// Offsets and lengths of the unreadable parts, in bytes.
    pub parts: Vec<(u32, u32)>,
    /// Whether the operator has accepted it.
    pub is_accepted: bool,
    /// The finding, in one line.
    pub text: String,
}

/// The cause of a loss.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LossCause {
    /// Parts of a file are unreadable.
    Damaged,
    /// The file or directory is missing.
    Missing,
    /// The directory belongs to another data directory.
    Foreign,
    /// The disk refuses to read the file. It is left in place: if a later start can read it, the loss is over.
    Unreadable,
}

impl LossCause {
    const ALL: [Self; 4] = [Self::Damaged, Self::Missing, Self::Foreign, Self::Unreadable];

    /// Its name.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Damaged => "damaged",
            Self::Missing => "missing",
            Self::Foreign => "foreign",
            Self::Unreadable => "unreadable",
        }
    }
}

impl Loss {
    /// The loss of a whole journal.
    pub(crate) fn missing(journal: &str, text: &str) -> Self {
        Self {
            journal: journal.to_owned(),
            segment: 0,
            cause: LossCause::Missing,
            records: RecordLoss::AtLeast(0),
            messages: None,
            parts: Vec::new(),
            is_accepted: false,
            text: text.to_owned(),
        }
    }

    /// The losses that a report describes.
    pub(crate) fn of_report<'a>(
        journal: &'a str,
        report: &'a RecoveryReport,
    ) -> impl Iterator<Item = Self> + 'a {
        let damaged = report.damaged.iter().filter(|damage| damage.lost != RecordLoss::Exactly(0));
        let missing = report.missing.iter().map(|missing| Self::of_missing(journal, missing));
        damaged.map(|damage| Self::of_damage(journal, damage)).chain(missing)
    }

    /// Damage that housekeeping found in a segment. The next opening counts what is lost.
    pub(crate) fn of_housekeeping(journal: &str, segment: u32) -> Self {
        let text = format!(
            "segment {segment}: checksum mismatch, found while the broker runs; an unknown number of records is lost"
        );
        Self { segment, cause: LossCause::Damaged, ..Self::missing(journal, &text) }
    }

    /// Writes it to the log.
    pub(crate) fn log(&self) {
        tracing::warn!(
            journal = self.journal,
            loss = self.text,
            "a journal has lost records; its shard rejects durable messages until `mqcore journal accept-loss` is run while the broker is stopped"
        );
    }

    /// Why its shard takes no durable messages.
    pub(crate) fn refusal(&self) -> String {
        format!(
            "the journal {} has lost records ({}); stop the broker and run `mqcore journal accept-loss`, then it continues",
            self.journal, self.text
        )
    }

    fn of_damage(journal: &str, damage: &Damage) -> Self {
        let parts = damage.parts.iter().map(|part| (part.offset, part.bytes)).collect();
        let mut known = damage.parts.iter().map(|part| part.sequences);
        let first = known.next().flatten();
        let messages = known.fold(first, |range, part| {
            range.zip(part).map(|(all, part)| (all.0.min(part.0), all.1.max(part.1)))
        });
        let cause = match damage.cause {
            DamageCause::Unreadable(_) => LossCause::Unreadable,
            _ => LossCause::Damaged,
        };
        Self {
            segment: damage.segment,
            cause,
            records: damage.lost,
            messages: messages.filter(|(from, to)| from < to),
            parts,
            text: one_line(&damage.to_string()),
            ..Self::missing(journal, "")
        }
    }

    fn of_missing(journal: &str, missing: &MissingSegment) -> Self {
        let records = missing.records.map_or(RecordLoss::AtLeast(0), RecordLoss::Exactly);
        Self { segment: missing.segment, records, ..Self::missing(journal, &missing.to_string()) }
    }

    /// Whether this describes everything that `found` does, which another opening reported.
    pub(crate) fn covers(&self, found: &Self) -> bool {
        let inside = |&(offset, bytes): &(u32, u32)| {
            let contains = |part: &(u32, u32)| part.0 <= offset && offset + bytes <= part.0 + part.1;
            self.parts.iter().any(contains)
        };
        (&self.journal, self.segment, self.cause) == (&found.journal, found.segment, found.cause)
            && (self.parts.is_empty() || found.parts.iter().all(inside))
    }

    /// One line of the manifest.
    pub(crate) fn encode(&self) -> String {
        let Self { journal, segment, cause, records, messages, parts, is_accepted, text } = self;
        let state = if *is_accepted { "accepted" } else { "open" };
        let records = match records {
            RecordLoss::Exactly(count) => count.to_string(),
            RecordLoss::AtLeast(count) => format!("{count}+"),
        };
        let messages = messages.map_or("-".to_owned(), |(from, to)| format!("{from}-{to}"));
        let parts: Vec<String> = parts.iter().map(|(offset, bytes)| format!("{offset}+{bytes}")).collect();
        let parts = if parts.is_empty() { "-".to_owned() } else { parts.join(",") };
        format!(
            "loss {journal} {segment} {} {records} {messages} {parts} {state} {}",
            cause.as_str(),
            one_line(text)
        )
    }

    /// Parses a line without its first word.
    pub(crate) fn parse(line: &str) -> Option<Self> {
        let mut words = line.splitn(8, ' ');
        let mut next = || words.next();
        let journal = next()?.to_owned();
        let segment = next()?.parse().ok()?;
        let cause = next()?;
        let cause = LossCause::ALL.into_iter().find(|known| known.as_str() == cause)?;
        let records = next()?;
        let records = match records.strip_suffix('+') {
            Some(count) => RecordLoss::AtLeast(count.parse().ok()?),
            None => RecordLoss::Exactly(records.parse().ok()?),
        };
        let messages = match next()? {
            "-" => None,
            range => {
                let (from, to) = range.split_once('-')?;
                Some((from.parse().ok()?, to.parse().ok()?))
            }
        };
        let parts = match next()? {
            "-" => Vec::new(),
            parts => parts
                .split(',')
                .map(|part| {
                    let (offset, bytes) = part.split_once('+')?;
                    Some((offset.parse().ok()?, bytes.parse().ok()?))
                })
                .collect::<Option<_>>()?,
        };
        let is_accepted = match next()? {
            "open" => false,
            "accepted" => true,
            _ => return None,
        };
        let text = next()?.to_owned();
        Some(Self { journal, segment, cause, records, messages, parts, is_accepted, text })
    }
}

impl fmt::Display for Loss {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(formatter, "{}: {}", self.journal, self.text)
    }
}

fn one_line(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}
