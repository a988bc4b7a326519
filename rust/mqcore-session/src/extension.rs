//! Frames of vendor extensions, which the program around the broker handles instead of the session.

/// A frame of a vendor extension that the program has to answer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct VendorFrame {
    /// The number of the extension on this connection; the answer names it again.
    pub id: u8,
    /// The name of the extension, which begins with `x-`.
    pub name: Box<str>,
    /// The content of the frame.
    pub payload: Box<[u8]>,
}

/// Why a frame of a vendor extension ends the conversation. The text is for the peer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ExtensionFailure {
    /// The program rejected the frame.
    Rejected(String),
    /// The handler raised an error or did not answer in time.
    Failed(String),
}
