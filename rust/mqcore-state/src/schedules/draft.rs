//! Requests for schedules, parsed, and the cron expressions in use.

use std::sync::{Arc, Mutex, PoisonError, Weak};

use hashbrown::HashMap;
use jiff::tz::TimeZoneDatabase;
use mqcore_broker::model::id::QueueAddress;
use mqcore_broker::model::rejection::{Rejection, RejectionKind};
use mqcore_scheduler::plan::{CatchUp, CronInZone, Plan, PlanError, Recurrence};
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::schedules::ScheduleRequest;

/// Expressions cached before unused ones are removed.
const CRONS_KEPT: usize = 1_024;

/// A parsed request for a schedule.
#[derive(Debug)]
pub struct ScheduleDraft {
    /// Its id: a hash of the call.
    pub id: EntryId,
    pub(crate) plan: Plan,
    pub(crate) run: Arc<[u8]>,
    /// Whether an ended schedule with the same terms stays ended.
    pub(crate) unless_ended: bool,
    /// The queues to which the client may publish.
    pub(crate) allowed: Box<[QueueAddress]>,
}

impl ScheduleDraft {
    /// Its approximate size in bytes.
    #[must_use]
    pub fn bytes(&self) -> usize {
        size_of::<Self>() + self.run.len()
    }
}

/// An expression and a time zone.
type CronKey = (Box<str>, Box<str>);

/// The cron expressions in use, each once.
#[derive(Debug, Default)]
pub struct Crons {
    known: Mutex<HashMap<CronKey, Weak<CronInZone>>>,
}

impl Crons {
    /// The parsed expression in the zone, shared by all schedules with the same text.
    ///
    /// # Errors
    /// [`PlanError`] if the expression or the zone is invalid.
    pub fn find(
        &self,
        text: &str,
        zone: &str,
        zones: &TimeZoneDatabase,
    ) -> Result<Arc<CronInZone>, PlanError> {
        let mut known = self.known.lock().unwrap_or_else(PoisonError::into_inner);
        let key = (text.into(), zone.into());
        if let Some(found) = known.get(&key).and_then(Weak::upgrade) {
            return Ok(found);
        }
        let made = Arc::new(CronInZone::new(text, zone, zones)?);
        if known.len() >= CRONS_KEPT && known.len() == known.capacity() {
            known.retain(|_, cron| cron.strong_count() > 0);
        }
        known.insert(key, Arc::downgrade(&made));
        Ok(made)
    }
}

/// Parses a client's request.
///
/// # Errors
/// [`Rejection`] with the reason.
pub fn parse_request(
    request: &ScheduleRequest,
    allowed: &[QueueAddress],
    crons: &Crons,
) -> Result<ScheduleDraft, Rejection> {
    let bad = |why: String| Rejection::new(RejectionKind::BadRequest, why);
    let refused = |error: PlanError| bad(error.to_string());
    let seconds = request.interval.as_deref().map(|text| str::from_utf8(text).unwrap_or_default().trim());
    let seconds = seconds.filter(|text| !text.is_empty());
    let when = if let Some(millis) = request.interval_ms() {
        let millis =
            millis.parse().map_err(|_| bad(format!("{millis:?} is not a number of milliseconds")))?;
        Recurrence::every(millis).map_err(refused)?
    } else if let Some(seconds) = seconds.filter(|text| !text.starts_with('-')) {
        let seconds: u64 =
            seconds.parse().map_err(|_| bad(format!("{seconds:?} is not a whole number of seconds")))?;
        Recurrence::every(seconds.saturating_mul(1000)).map_err(refused)?
    } else {
        let text = request.cron.as_deref().map(|cron| str::from_utf8(cron).unwrap_or("\u{fffd}").trim());
        let text = text.filter(|text| !text.is_empty());
        let text = text.ok_or_else(|| bad("a schedule needs an interval or a cron expression".to_owned()))?;
        let zone = request.timezone().unwrap_or_default();
        Recurrence::Cron(crons.find(text, zone, jiff::tz::db()).map_err(refused)?)
    };
    let catch_up = match request.catch_up() {
        None => CatchUp::default(),
        Some(text) => CatchUp::from_text(text)
            .ok_or_else(|| bad(format!("catch-up is none, latest or all, not {text:?}")))?,
    };
    let runs = std::num::NonZeroU32::new(request.wishes.run_count);
    let plan = Plan { when, catch_up, at_once: !request.wishes.nohaste, runs };
    // An expression without a match in fifty years never matches.
    Plan { at_once: false, ..plan.clone() }.begin(0).map_err(refused)?;
    let headers = request.headers_of_runs();
    let lengths = (u16::try_from(request.queue.len()), u16::try_from(headers.len()));
    let (Ok(queue_len), Ok(headers_len)) = lengths else {
        return Err(bad("a schedule's queue and headers have at most 65535 bytes each".to_owned()));
    };
    let parts: [&[u8]; 5] =
        [&queue_len.to_le_bytes(), &headers_len.to_le_bytes(), &request.queue, &headers, &request.job];
    let (id, run) = (EntryId(request.identity()), parts.concat().into());
    Ok(ScheduleDraft { id, plan, run, unless_ended: request.unless_ended(), allowed: allowed.into() })
}
