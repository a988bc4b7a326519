//! Answers to commands, which only brokers with `x-mqcore` send.

use mqcore_wire::error::WireError;
use mqcore_wire::micromessage::command;

use super::{Conversation, rejection};
use crate::conversation::FrameEvent;

/// Begins the id of a `fail` that has the reason for which a message is refused; the number of the message follows.
const MESSAGE: &[u8] = b"message-";
/// The command of a `fail` that does not end the subscription with its id.
const PREFETCH: &[u8] = b"prefetch";

impl<W> Conversation<W> {
    /// Handles the answer to a command: `ok;id=...` or `fail;id=...,reason=...`.
    pub(super) fn answered(&mut self, payload: &[u8]) -> Result<FrameEvent<W>, WireError> {
        let said = command::parse(payload)?;
        let id = said.argument("id").unwrap_or_default();
        let reason = || String::from_utf8_lossy(said.argument("reason").unwrap_or_default()).into_owned();
        if said.name == "fail"
            && let Some(number) =
                id.strip_prefix(MESSAGE).and_then(|number| str::from_utf8(number).ok()?.parse().ok())
        {
            self.refusal = Some((number, reason()));
            return Ok(FrameEvent::Nothing);
        }
        let Some(queue) = self.subscribed.of_id(id).cloned() else {
            // The answer to a heartbeat or an unsubscribe.
            return Ok(FrameEvent::Nothing);
        };
        if said.name == "ok" {
            return Ok(self.subscribed.agreed(&queue));
        }
        if said.argument("command") == Some(PREFETCH) {
            let reason = reason();
            tracing::warn!(queue = %queue.name(), %reason, "the broker refused a new prefetch; the earlier one stays");
            return Ok(FrameEvent::Nothing);
        }
        Ok(self.subscribed.refused(&queue, &rejection("subscribe to", queue.name().into(), &reason())))
    }
}
