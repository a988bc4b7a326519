//! The binary format of a persisted entry: its plan and its progress.
//!
//! All numbers are little-endian.
//!
//! ```text
//! plan    version 1, how 1 (0 interval, 1 cron), catch-up 1, at once 1, runs 4, id 20, interval 8
//!         length of the expression 2, length of the zone 1, the expression, the zone
//! state   version 1, due 8, fence 8, runs left 4
//! ```

use std::num::NonZeroU32;
use std::sync::Arc;

use crate::plan::{CatchUp, CronInZone, Plan, PlanError, PlanProgress, Recurrence};
use crate::scheduler::EntryId;

const VERSION: u8 = 1;

/// Why a record is invalid.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum ScheduleDecodeError {
    /// A newer version wrote the record.
    #[error(
        "a schedule has format version {0}, but this version supports only {VERSION}; use a newer mqcore"
    )]
    Version(u8),
    /// The bytes are not a valid record.
    #[error("malformed schedule: {0}")]
    Malformed(&'static str),
    /// The plan is not valid any more, for example because its time zone was removed.
    #[error("a stored schedule cannot be resumed: {0}")]
    Plan(#[from] PlanError),
}

/// Callback that creates or finds a cron expression (first argument) in a zone (second argument).
pub type FindCron<'a> = dyn FnMut(&str, &str) -> Result<Arc<CronInZone>, PlanError> + 'a;

/// Appends the id and the plan of an entry.
pub fn encode_plan(id: &EntryId, plan: &Plan, output: &mut Vec<u8>) {
    let (how, interval, text, zone) = match &plan.when {
        Recurrence::Every(interval) => (0, *interval, "", ""),
        Recurrence::Cron(cron) => (1, 0, cron.text(), cron.zone()),
    };
    let catch_up = CatchUp::EVERY.iter().position(|known| *known == plan.catch_up).unwrap_or_default();
    output.extend_from_slice(&[VERSION, how, catch_up as u8, plan.at_once.into()]);
    output.extend_from_slice(&plan.runs.map_or(0, NonZeroU32::get).to_le_bytes());
    output.extend_from_slice(&id.0);
    output.extend_from_slice(&interval.to_le_bytes());
    output.extend_from_slice(&(text.len() as u16).to_le_bytes());
    output.push(zone.len() as u8);
    output.extend_from_slice(text.as_bytes());
    output.extend_from_slice(zone.as_bytes());
}

/// Decodes what [`encode_plan`] wrote, and also returns the remaining input. `cron` provides shared cron expressions.
///
/// # Errors
/// [`ScheduleDecodeError`] if the input is malformed, of a newer version, or its plan is invalid.
pub fn decode_plan<'a>(
    input: &'a [u8],
    cron: &mut FindCron<'_>,
) -> Result<(EntryId, Plan, &'a [u8]), ScheduleDecodeError> {
    let mut reader = RecordReader(input);
    reader.version()?;
    let [how, catch_up, at_once] = reader.take()?;
    let runs = NonZeroU32::new(u32::from_le_bytes(reader.take()?));
    let id = EntryId(reader.take()?);
    let interval = u64::from_le_bytes(reader.take()?);
    let text_len = usize::from(u16::from_le_bytes(reader.take()?));
    let [zone_len] = reader.take()?;
    let text = reader.text(text_len)?;
    let zone = reader.text(zone_len.into())?;
    let when = match how {
        0 => Recurrence::every(interval)?,
        1 => Recurrence::Cron(cron(text, zone)?),
        _ => return Err(ScheduleDecodeError::Malformed("unknown kind of recurrence")),
    };
    let catch_up = CatchUp::EVERY.get(usize::from(catch_up)).copied();
    let catch_up = catch_up.ok_or(ScheduleDecodeError::Malformed("unknown catch-up policy"))?;
    Ok((id, Plan { when, catch_up, at_once: at_once != 0, runs }, reader.0))
}

impl PlanProgress {
    /// Encodes the progress in 21 bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 21] {
        let mut output = [VERSION; 21];
        output[1..9].copy_from_slice(&self.due_ms.to_le_bytes());
        output[9..17].copy_from_slice(&self.fence.to_le_bytes());
        output[17..].copy_from_slice(&self.left.map_or(0, NonZeroU32::get).to_le_bytes());
        output
    }

    /// Decodes what [`PlanProgress::encode`] wrote.
    ///
    /// # Errors
    /// [`ScheduleDecodeError`] if the input is malformed or of a newer version.
    pub fn decode(input: &[u8]) -> Result<Self, ScheduleDecodeError> {
        let mut reader = RecordReader(input);
        reader.version()?;
        let due_ms = u64::from_le_bytes(reader.take()?);
        let fence = u64::from_le_bytes(reader.take()?);
        Ok(Self { due_ms, fence, left: NonZeroU32::new(u32::from_le_bytes(reader.take()?)) })
    }
}

struct RecordReader<'a>(&'a [u8]);

impl<'a> RecordReader<'a> {
    fn version(&mut self) -> Result<(), ScheduleDecodeError> {
        match self.take()? {
            [VERSION] => Ok(()),
            [version] => Err(ScheduleDecodeError::Version(version)),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], ScheduleDecodeError> {
        let (taken, rest) =
            self.0.split_first_chunk().ok_or(ScheduleDecodeError::Malformed("unexpected end"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, ScheduleDecodeError> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or(ScheduleDecodeError::Malformed("unexpected end"))?;
        self.0 = rest;
        std::str::from_utf8(taken).map_err(|_| ScheduleDecodeError::Malformed("invalid UTF-8"))
    }
}
