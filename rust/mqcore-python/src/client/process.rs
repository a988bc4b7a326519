//! Clients and forks: the threads of a client stay in the process that started them.
//!
//! A forked child has copies of all handles but none of their threads, and such a thread may have held any lock. So a
//! child must neither use nor drop its parent's objects: uses fail, and drops leak.
//!
//! Each call asks whether this is still the process of its client. Asking the system for the process id would cost each
//! published message a system call, so the C library counts forks instead.

use std::mem::ManuallyDrop;
use std::sync::Once;
use std::sync::atomic::{AtomicU32, Ordering};

use pyo3::prelude::*;

use crate::error::Forked;

/// Forks between the process that first asked and this one, plus one.
static PROCESS: AtomicU32 = AtomicU32::new(1);

/// The number of the process that first used a client; 0: none.
static FIRST: AtomicU32 = AtomicU32::new(0);

/// A number that a process does not share with the processes that it was forked from.
fn this_process() -> u32 {
    static COUNTING: Once = Once::new();
    COUNTING.call_once(count_forks);
    PROCESS.load(Ordering::Relaxed)
}

/// Has every forked child count itself.
#[cfg(unix)]
#[allow(unsafe_code, reason = "the C library is the only one to know of every fork")]
fn count_forks() {
    extern "C" fn in_child() {
        PROCESS.fetch_add(1, Ordering::Relaxed);
    }
    // SAFETY: the function does nothing but an atomic addition, which is allowed in a forked child, and Python never
    // unloads the extension module that has it.
    let failed = unsafe { libc::pthread_atfork(None, None, Some(in_child)) };
    assert_eq!(failed, 0, "there is no memory for a fork handler");
}

/// Nothing: this system has no fork.
#[cfg(not(unix))]
fn count_forks() {}

/// Fails in a process forked from one that has used a client, because the clients' runtime belongs to the parent.
pub(crate) fn check() -> PyResult<()> {
    let this = this_process();
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
        Self { value: ManuallyDrop::new(value), process: this_process() }
    }

    /// The value, unless this is a forked child.
    pub(crate) fn get(&self) -> PyResult<&T> {
        if self.process == this_process() { Ok(&self.value) } else { Err(forked()) }
    }
}

impl<T> Drop for Owned<T> {
    #[allow(unsafe_code, reason = "ManuallyDrop is how a value is kept from being dropped")]
    fn drop(&mut self) {
        if self.process == this_process() {
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
