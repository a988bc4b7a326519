//! Priorities of threads that work in the background.

/// About a tenth of the processor time of a thread that competes with it. With the lowest priority, 19, a busy machine
/// would leave a thread so little that it takes minutes to notice a stop.
#[cfg(target_os = "linux")]
const NICENESS: i32 = 10;

/// Lowers the priority of this thread. Only Linux has priorities of single threads.
pub(crate) fn lower() {
    #[cfg(target_os = "linux")]
    if let Err(error) = rustix::process::nice(NICENESS) {
        tracing::debug!(%error, "cannot lower the priority of a thread");
    }
}
