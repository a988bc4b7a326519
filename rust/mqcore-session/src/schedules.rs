//! Schedules as peers request them, and the jobs that their runs become.

pub use crate::eventmq::schedules::{JOB_BYTES_MAX, Run, ScheduleEnd, ScheduleRequest, Schedules};
pub use crate::eventmq::shared::job_queues;
pub use mqcore_wire::eventmq::headers::{self, Headers};
pub use mqcore_wire::eventmq::queues::DEFAULT as DEFAULT_QUEUE;
