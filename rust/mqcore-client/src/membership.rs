//! That this client takes part in something: kept for as long as somebody wants it.

use std::sync::Arc;

use crate::dialogue::Part;
use crate::shared::Shared;

/// That this client takes part in a channel, consumes a queue or hears of events. Dropping it ends that, unless others in this client
/// want it too.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<Shared>,
    part: Part,
}

impl Membership {
    /// Of a part that counts this as one of its users from now on.
    pub(crate) fn new(shared: Arc<Shared>, part: Part) -> Self {
        Self { shared, part }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.say_now(|core| core.conversation.give_up(&self.part));
    }
}
