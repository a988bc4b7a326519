//! Results, cancellations and flows of jobs, as peers request them.

pub use crate::eventmq::ledger::{
    Cancellation, EndedJob, Flow, FlowStep, JobBoard, JobEnd, JobLedger, LedgerRequest, RunningJob,
    STEPS_MAX, cancelled_result, failed_answer, step_message,
};
