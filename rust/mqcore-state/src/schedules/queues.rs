//! The queue of each schedule, for sessions: a schedule may be changed or ended only with a right on its queue.

use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use mqcore_broker::model::id::QueueAddress;
use mqcore_scheduler::scheduler::EntryId;
use mqcore_session::schedules::DEFAULT_QUEUE;

/// The runs by the ids of their schedules, of which the thread that runs schedules is the only writer.
#[derive(Debug, Default)]
pub struct ScheduleQueues {
    runs: Mutex<HashMap<EntryId, Arc<[u8]>, foldhash::fast::RandomState>>,
}

impl ScheduleQueues {
    fn lock(&self) -> MutexGuard<'_, HashMap<EntryId, Arc<[u8]>, foldhash::fast::RandomState>> {
        self.runs.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The queue of a schedule; `None` if there is no such schedule.
    pub fn find(&self, id: &EntryId) -> Option<QueueAddress> {
        let run = self.lock().get(id).map(Arc::clone)?;
        Some(named_queue(&run))
    }

    /// Notes the run of a schedule that begins or changes.
    pub fn insert(&self, id: EntryId, run: &Arc<[u8]>) {
        self.lock().insert(id, Arc::clone(run));
    }

    /// Removes a schedule that has ended.
    pub fn remove(&self, id: &EntryId) {
        self.lock().remove(id);
    }
}

/// The queue, the headers and the job of a run.
pub fn parts(run: &[u8]) -> Option<(&[u8], &[u8], &[u8])> {
    let (queue_len, rest) = run.split_first_chunk()?;
    let (headers_len, rest) = rest.split_first_chunk()?;
    let (queue, rest) = rest.split_at_checked(u16::from_le_bytes(*queue_len).into())?;
    let (headers, job) = rest.split_at_checked(u16::from_le_bytes(*headers_len).into())?;
    Some((queue, headers, job))
}

/// The queue for jobs that name an unknown queue.
pub fn default_queue() -> QueueAddress {
    QueueAddress::parse(DEFAULT_QUEUE).expect("the name is one")
}

/// The queue that a run names. An invalid name is an unknown queue.
pub fn named_queue(run: &[u8]) -> QueueAddress {
    let name = parts(run).and_then(|(queue, _, _)| str::from_utf8(queue).ok());
    name.and_then(|name| QueueAddress::parse(name).ok()).unwrap_or_else(default_queue)
}
