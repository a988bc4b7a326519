//! Clients and forks: the threads of a client stay in the process that started them.
//!
//! A forked child has copies of all handles but none of their threads, and such a thread may have held any lock. So a
//! child must neither use nor drop its parent's objects: uses fail, and drops leak.

use std::mem::ManuallyDrop;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::error::Forked;

/// The process that first used a client; 0: none.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// Fails in a process forked from one that has used a client, because the clients' runtime belongs to the parent.
pub(crate) fn check() -> PyResult<()> {
    let this = std::process::id();
    match FIRST.compare_exchange(0, this, Ordering::AcqRel, Ordering::Acquire) {
        Ok(_) => Ok(()),
        Err(first) if first == this => Ok(()),
        Err(_) => Err(forked()),
    }
}

/// A value that only its creating process may use.
pub(crate) struct Owned<T> {
    value: ManuallyDrop<T>,
    process: u32,
}

impl<T> Owned<T> {
    /// Wraps a value of this process.
    pub(crate) fn new(value: T) -> Self {
        Self { value: ManuallyDrop::new(value), process: std::process::id() }
    }

    /// The value, unless this is a forked child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.process == std::process::id() { Ok(&self.value) } else { Err(forked()) }
    }
}

impl<T> Drop for Owned<T> {
    #[allow(unsafe_code, reason = "ManuallyDrop is how a value is kept from being dropped")]
    fn drop(&mut self) {
        if self.process == std::process::id() {
            // SAFETY: this is the one place that drops the value, and nothing reads it afterwards.
            unsafe { ManuallyDrop::drop(&mut self.value) }
        }
    }
}

fn forked() -> PyErr {
    Forked::new_err(
        "this process was forked from one that uses mqcore clients, whose threads stayed in the parent; connect before \
         forking in neither, or use the 'spawn' method of multiprocessing",
    )
}
