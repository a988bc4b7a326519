//! An entry as bytes, to be kept anywhere: what is planned, and how far it is.
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

use crate::plan::{CatchUp, CronInZone, Plan, PlanError, State, When};
use crate::scheduler::EntryId;

const VERSION: u8 = 1;

/// Why bytes are no record.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum RecordError {
    /// Written by a later version.
    #[error("a schedule of version {0} cannot be read by this version, which knows {VERSION}")]
    Version(u8),
    /// Not written by this crate.
    #[error("malformed schedule: {0}")]
    Malformed(&'static str),
    /// What it says cannot be planned: a zone is not known any more.
    #[error("a schedule cannot go on: {0}")]
    Plan(#[from] PlanError),
}

/// Makes, or finds, a cron expression (the first text) in a zone (the second).
pub type FindCron<'a> = dyn FnMut(&str, &str) -> Result<Arc<CronInZone>, PlanError> + 'a;

/// Appends who an entry is and what is planned.
pub fn encode_plan(id: &EntryId, plan: &Plan, output: &mut Vec<u8>) {
    let (how, interval, text, zone) = match &plan.when {
        When::Every(interval) => (0, *interval, "", ""),
        When::Cron(cron) => (1, 0, cron.text(), cron.zone()),
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

/// Reads what [`encode_plan`] wrote; answers with what stands behind it, too. The part of a plan that many
/// share comes from `cron`.
///
/// # Errors
/// [`RecordError`].
pub fn decode_plan<'a>(
    input: &'a [u8],
    cron: &mut FindCron<'_>,
) -> Result<(EntryId, Plan, &'a [u8]), RecordError> {
    let mut reader = Reader(input);
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
        0 => When::every(interval)?,
        1 => When::Cron(cron(text, zone)?),
        _ => return Err(RecordError::Malformed("when it is due")),
    };
    let catch_up = CatchUp::EVERY.get(usize::from(catch_up)).copied();
    let catch_up = catch_up.ok_or(RecordError::Malformed("what becomes of what was missed"))?;
    Ok((id, Plan { when, catch_up, at_once: at_once != 0, runs }, reader.0))
}

impl State {
    /// Twenty-one bytes.
    #[must_use]
    pub fn encode(&self) -> [u8; 21] {
        let mut output = [VERSION; 21];
        output[1..9].copy_from_slice(&self.due_ms.to_le_bytes());
        output[9..17].copy_from_slice(&self.fence.to_le_bytes());
        output[17..].copy_from_slice(&self.left.map_or(0, NonZeroU32::get).to_le_bytes());
        output
    }

    /// Reads what [`State::encode`] wrote.
    ///
    /// # Errors
    /// [`RecordError`].
    pub fn decode(input: &[u8]) -> Result<Self, RecordError> {
        let mut reader = Reader(input);
        reader.version()?;
        let due_ms = u64::from_le_bytes(reader.take()?);
        let fence = u64::from_le_bytes(reader.take()?);
        Ok(Self { due_ms, fence, left: NonZeroU32::new(u32::from_le_bytes(reader.take()?)) })
    }
}

struct Reader<'a>(&'a [u8]);

impl<'a> Reader<'a> {
    fn version(&mut self) -> Result<(), RecordError> {
        match self.take()? {
            [VERSION] => Ok(()),
            [version] => Err(RecordError::Version(version)),
        }
    }

    fn take<const N: usize>(&mut self) -> Result<[u8; N], RecordError> {
        let (taken, rest) = self.0.split_first_chunk().ok_or(RecordError::Malformed("it ends too early"))?;
        self.0 = rest;
        Ok(*taken)
    }

    fn text(&mut self, len: usize) -> Result<&'a str, RecordError> {
        let (taken, rest) =
            self.0.split_at_checked(len).ok_or(RecordError::Malformed("it ends too early"))?;
        self.0 = rest;
        std::str::from_utf8(taken).map_err(|_| RecordError::Malformed("a text is not UTF-8"))
    }
}
