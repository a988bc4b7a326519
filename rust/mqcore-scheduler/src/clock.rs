//! Steps of the system's clock: told from time that just passes.
//!
//! Two clocks are looked at: the system's, which people and programs may set, and one that only ever goes on steadily. Their
//! distance changes where the first one was set.

/// Steps that are smaller, in milliseconds, are none: clocks that are kept in time are pushed a little now and then.
pub const STEP_MS_MIN: u64 = 1000;

/// How the system's clock was set.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Forward, by so many milliseconds.
    Forward(u64),
    /// Back, by so many milliseconds.
    Back(u64),
}

/// What was seen of both clocks so far.
#[derive(Debug, Clone, Default)]
pub struct ClockWatch {
    distance_ms: Option<i64>,
}

impl ClockWatch {
    /// Looks at both clocks, in milliseconds; answers with the step since the last look, if there was one.
    pub fn look(&mut self, system_ms: u64, steady_ms: u64) -> Option<Step> {
        let distance = system_ms.wrapping_sub(steady_ms).cast_signed();
        let before = self.distance_ms.replace(distance)?;
        let step = distance.wrapping_sub(before);
        let size = step.unsigned_abs();
        (size >= STEP_MS_MIN).then_some(if step > 0 { Step::Forward(size) } else { Step::Back(size) })
    }
}
