//! Operations of MicroMessage2: agreed extensions, and frames of vendors' extensions.

use std::sync::Arc;

use bytes::Bytes;
use mqcore_wire::micromessage::extension::Agreement;

use crate::client::Client;
use crate::error::ClientError;
use crate::mailbox::{Bound, Mailbox, lock};

/// Maximum frames waiting in a stream. Later ones are dropped and counted, so that they do not delay other data.
pub const FRAMES_WAITING_MAX: usize = 4096;

impl Client {
    /// The extensions agreed with the broker on the current or last connection.
    ///
    /// # Errors
    ///
    /// [`ClientError::NotSupported`] for another protocol.
    pub fn agreement(&self) -> Result<Agreement, ClientError> {
        Ok(lock(&self.shared.core).conversation.micromessage()?.agreement().clone())
    }

    /// Receives frames of a vendor's extension, across reconnects. Each of several streams of one extension gets all
    /// frames.
    ///
    /// # Errors
    ///
    /// [`ClientError::NotSupported`] for another protocol, or if the extension was not agreed.
    pub fn extension(&self, name: &str) -> Result<ExtensionFrames, ClientError> {
        let mailbox = Mailbox::new(self.shared.gauge.clone(), Bound::Waiting(FRAMES_WAITING_MAX));
        self.shared.with_core(|core| {
            core.conversation.micromessage()?.vendor_id(name)?;
            core.add_extension_stream(name, mailbox.clone());
            Ok::<_, ClientError>(())
        })?;
        Ok(ExtensionFrames { client: self.clone(), name: name.into(), mailbox })
    }

    /// Sends a frame of a vendor's extension. Returns when it is queued for sending.
    ///
    /// # Errors
    ///
    /// As [`Client::extension`], [`ClientError::TooLarge`], [`ClientError::ConnectionLost`].
    pub async fn send_extension(&self, name: &str, payload: &[u8]) -> Result<(), ClientError> {
        let deadline = self.shared.deadline(None);
        self.shared.say(deadline, |dialogue| dialogue.micromessage()?.say_extension(name, payload)).await?
    }
}

/// A stream of frames of a vendor's extension.
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

    /// Waits until [`ExtensionFrames::take`] returns something, or the stream ends. Cancel-safe.
    pub async fn ready(&self) {
        self.mailbox.ready().await;
    }

    /// Takes up to `max` available frames without waiting.
    pub fn take(&self, max: usize) -> Vec<Bytes> {
        self.mailbox.take(max).iter().map(|queued| queued.message.body()).collect()
    }

    /// Whether the stream has ended; available elements can still be taken.
    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.mailbox.is_closed()
    }

    /// Ends the stream and wakes its waiting tasks.
    pub fn stop(&self) {
        self.mailbox.close();
    }
}

impl Drop for ExtensionFrames {
    fn drop(&mut self) {
        self.client.shared.with_core(|core| core.remove_extension_stream(&self.mailbox));
    }
}
