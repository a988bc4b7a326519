//! That this client takes part in something: kept for as long as somebody wants it.

use std::sync::Arc;

use crate::dialogue::Part;
use crate::shared::{Core, Shared};

/// That this client takes part in a channel, consumes a queue or hears of events. Dropping it ends that, unless others in this client
/// want it too.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<Shared>,
    /// None: it was ended already.
    part: Option<Part>,
}

impl Membership {
    /// Of a part that counts this as one of its users from now on.
    pub(crate) fn new(shared: Arc<Shared>, part: Part) -> Self {
        Self { shared, part: Some(part) }
    }

    /// Ends it in one step with what else is done to `core`.
    pub(crate) fn end(&mut self, core: &mut Core) {
        if let Some(part) = self.part.take() {
            core.conversation.give_up(&part);
        }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        let shared = self.shared.clone();
        shared.say_now(|core| self.end(core));
    }
}
