//! A user of a subscription.

use std::sync::Arc;

use crate::dialogue::Part;
use crate::shared::{Core, Shared};

/// A user of a joined channel, a consumed queue or an event subscription. Dropping the last one in this client ends it.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<Shared>,
    /// `None`: already ended.
    part: Option<Part>,
}

impl Membership {
    /// Wraps a subscription that already counts this user.
    pub(crate) fn new(shared: Arc<Shared>, part: Part) -> Self {
        Self { shared, part: Some(part) }
    }

    /// Removes the user in the same step as other changes to `core`.
    pub(crate) fn end(&mut self, core: &mut Core) {
        if let Some(part) = self.part.take() {
            core.conversation.give_up(&part);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        shared.with_core(|core| self.end(core));
    }
}
