//! Time, shutdown and memory, used by every task and thread of the server.
//!
//! | module | contents |
//! |---|---|
//! | `waker` | wakes a task from a thread outside the runtime |
//! | `clock` | the system clock, or a manual one for tests |
//! | `shutdown` | stopping, and the tasks that are still running |
//! | `priority` | lower priority for threads in the background |
//! | `spares` | large buffers that are used again |
//! | `allocator` | the memory allocator of every program with a server |

#[cfg(unix)]
mod allocator;
pub(crate) mod clock;
pub(crate) mod priority;
pub(crate) mod shutdown;
pub(crate) mod spares;
pub(crate) mod waker;
