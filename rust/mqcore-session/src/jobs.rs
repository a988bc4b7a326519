//! Results, cancellations and flows of jobs, as peers request them.

pub use crate::eventmq::board::{Cancellation, JobBoard, LongestRunning, RunningJob};
pub use crate::eventmq::ledger::{
    EndReceiver, EndedJob, Flow, FlowStep, JOB_ID_BYTES_MAX, JobEnd, JobLedger, LedgerRequest, STEPS_MAX,
    cancelled_result, failed_answer, step_message,
};
