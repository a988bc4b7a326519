//! A user of a subscription.

use std::sync::Arc;

use crate::dialogue::Part;
use crate::shared::{Core, SharedClient};

/// A user of a joined channel, a consumed queue or an event subscription. Dropping the last one in this client ends it.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<SharedClient>,
    /// `None`: already ended.
    part: Option<Part>,
}

impl Membership {
    /// Wraps a subscription that already counts this user.
    pub(crate) fn new(shared: Arc<SharedClient>, part: Part) -> Self {
        Self { shared, part: Some(part) }
    }

    /// Removes the user, whose program has `started` messages that it has not settled, in the same step as other
    /// changes to `core`. Returns whether the broker confirms that it delivers nothing more.
    pub(crate) fn end(&mut self, core: &mut Core, started: usize) -> bool {
        self.part.take().is_some_and(|part| core.conversation.give_up(&part, started))
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        let _ = shared.with_core(|core| self.end(core, 0));
    }
}
