//! What only MicroMessage2 has: what was agreed on, and frames of vendors' extensions.

use std::sync::Arc;

use bytes::Bytes;
use mqcore_wire::micromessage::extension::Agreement;

use crate::client::Client;
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox, lock};

/// Frames of an extension that may wait in a stream; later ones are dropped and counted, because nothing else must wait
/// for them.
pub const FRAMES_WAITING_MAX: usize = 4096;

impl Client {
    /// What was agreed on with the broker, on the connection that stands or on the last one.
    ///
    /// # Errors
    ///
    /// [`ClientError::NotSupported`] where something else is spoken.
    pub fn agreement(&self) -> Result<Agreement, ClientError> {
        Ok(lock(&self.shared.core).conversation.micromessage()?.agreement().clone())
    }

    /// Frames of a vendor's extension from now on, over all reconnects. Several streams of one extension get the same.
    ///
    /// # Errors
    ///
    /// [`ClientError::NotSupported`] where something else is spoken, or the extension is not in force.
    pub fn extension(&self, name: &str) -> Result<ExtensionFrames, ClientError> {
        let mailbox = Mailbox::new(self.shared.gauge.clone(), Bound::Waiting(FRAMES_WAITING_MAX));
        self.shared.say_now(|core| {
            core.conversation.micromessage()?.vendor_id(name)?;
            core.add_extension_stream(name, mailbox.clone());
            Ok::<_, ClientError>(())
        })?;
        Ok(ExtensionFrames { client: self.clone(), name: name.into(), mailbox })
    }

    /// Sends a frame of a vendor's extension. Answers as soon as it is on its way.
    ///
    /// # Errors
    ///
    /// As [`Client::extension`], [`ClientError::TooLarge`], [`ClientError::ConnectionLost`].
    pub async fn send_extension(&self, name: &str, payload: &[u8]) -> Result<(), ClientError> {
        let deadline = self.shared.deadline(None);
        self.shared.say(deadline, |dialogue| dialogue.micromessage()?.say_extension(name, payload)).await?
    }
}

/// Frames of a vendor's extension as they come.
#[derive(Debug)]
pub struct ExtensionFrames {
    client: Client,
    name: Box<str>,
    mailbox: Arc<Mailbox>,
}

impl ExtensionFrames {
    /// Sends one; see [`Client::send_extension`].
    ///
    /// # Errors
    ///
    /// As [`Client::send_extension`].
    pub async fn send(&self, payload: &[u8]) -> Result<(), ClientError> {
        self.client.send_extension(&self.name, payload).await
    }

    /// Waits until [`ExtensionFrames::take`] finds something, or nothing will come any more. Cancelling it loses nothing.
    pub async fn ready(&self) {
        self.mailbox.ready().await;
    }

    /// Takes up to `max` of the frames that are there now, without waiting.
    pub fn take(&self, max: usize) -> Vec<Bytes> {
        self.mailbox.take(max).iter().map(|letter| letter.message.body()).collect()
    }

    /// Whether no more will come: what is there now is the rest.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Ends the waiting of whoever takes from it.
    pub fn stop(&self) {
        self.mailbox.close();
    }
}

impl Drop for ExtensionFrames {
    fn drop(&mut self) {
        self.client.shared.say_now(|core| core.remove_extension_stream(&self.mailbox));
    }
}
