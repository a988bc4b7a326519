//! A joined channel.

use mqcore_client::membership::Membership as CoreMembership;
use pyo3::prelude::*;

use super::process::{self, Owned};

/// A membership that keeps a channel joined.
#[pyclass(frozen, module = "mqcore._core")]
pub(super) struct Membership {
    core: std::sync::Mutex<Option<Owned<CoreMembership>>>,
}

impl Membership {
    pub(super) fn new(core: CoreMembership) -> Self {
        Self { core: std::sync::Mutex::new(Some(Owned::new(core))) }
    }
}

#[pymethods]
impl Membership {
    /// Leaves the channel, unless other users in this client keep it joined.
    fn leave(&self) -> PyResult<()> {
        process::check()?;
        let core = self.core.lock().unwrap_or_else(std::sync::PoisonError::into_inner).take();
        drop(core);
        Ok(())
    }
}
