//! That this client takes part in something: kept for as long as somebody wants it.

use std::sync::Arc;

use crate::request::Intent;
use crate::shared::Shared;

/// That this client takes part in a channel or hears of events. Dropping it ends that, unless others in this client
/// want it too.
#[derive(Debug)]
pub struct Membership {
    shared: Arc<Shared>,
    intent: Intent,
}

impl Membership {
    /// Of an intent that counts this as one of its users from now on.
    pub(crate) fn new(shared: Arc<Shared>, intent: Intent) -> Self {
        Self { shared, intent }
    }
}

impl Drop for Membership {
    fn drop(&mut self) {
        self.shared.say_now(|core| core.conversation.give_up(&self.intent));
    }
}
