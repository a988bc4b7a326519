//! Detects when the system clock is set.
//!
//! Two clocks are compared: the system clock, which people and programs may set, and a monotonic clock. Their difference
//! changes when the system clock is set.

/// Smallest reported step in milliseconds. Smaller ones are normal corrections by time synchronization.
pub const STEP_MS_MIN: u64 = 1000;

/// A step of the system clock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ClockStep {
    /// Forward by this many milliseconds.
    Forward(u64),
    /// Back by this many milliseconds.
    Back(u64),
}

/// Compares the system clock with a monotonic clock.
#[derive(Debug, Clone, Default)]
pub struct ClockWatch {
    distance_ms: Option<i64>,
}

impl ClockWatch {
    /// Compares both clocks, given in milliseconds. Returns the step since the last call, if there was one.
    pub fn look(&mut self, system_ms: u64, steady_ms: u64) -> Option<ClockStep> {
        let distance = system_ms.wrapping_sub(steady_ms).cast_signed();
        let before = self.distance_ms.replace(distance)?;
        let step = distance.wrapping_sub(before);
        let size = step.unsigned_abs();
        (size >= STEP_MS_MIN).then_some(if step > 0 {
            ClockStep::Forward(size)
        } else {
            ClockStep::Back(size)
        })
    }
}
