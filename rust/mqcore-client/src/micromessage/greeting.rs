//! The handshake on the client side: the offer, the broker's choice, and the agreement.
//!
//! The broker does not answer the last message. If it answers commands (`x-mqcore`), a ping verifies that it accepted
//! the client.

use std::borrow::Cow;
use std::io;
use std::sync::Arc;

use bytes::{Buf, BytesMut};
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind, X_MQCORE};
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure};
use mqcore_wire::micromessage::field::is_field;
use mqcore_wire::micromessage::handshake::{self, Extension, Handshake, HandshakeInput};
use mqcore_wire::micromessage::negotiation::{self, Capabilities, Lists};
use mqcore_wire::micromessage::{Frame, command, decode, encode};
use tokio::io::{AsyncReadExt, AsyncWriteExt};

use super::{default_extensions, is_vendors};
use crate::address::Protocol;
use crate::config::ClientConfig;
use crate::dial::{HandshakeOutcome, OpenConnection, Stream, broken, closed_at_once, spoke_otherwise};
use crate::error::ClientError;

/// Maximum bytes of a list or an ERROR frame during the handshake.
const ANSWER_BYTES_MAX: u32 = 16 * 1024;
/// The id of the ping that verifies the handshake.
const SURE: &[u8] = b"hello";
/// The identity of a client without a name.
const IDENTITY: &str = concat!("mqcore/", env!("CARGO_PKG_VERSION"));

/// One side of the handshake.
struct Greeting<'a> {
    stream: Stream,
    input: BytesMut,
    address: &'a Arc<str>,
    identity: &'a str,
}

/// Performs the handshake.
pub(crate) async fn greet(
    stream: Stream,
    config: &ClientConfig,
    address: &Arc<str>,
) -> Result<OpenConnection, ClientError> {
    let offer = offer(config)?;
    let identity = identity(config)?;
    let mut greeting = Greeting { stream, input: BytesMut::with_capacity(4096), address, identity };
    greeting.say(&offer).await?;
    let (last, agreement) = match greeting.reply(&offer).await? {
        Ok(chosen) => chosen,
        Err(failure) => return Err(greeting.give_up(&failure).await),
    };
    greeting.say(&last).await?;
    if agreement.id_of_kind(ExtensionKind::Answers).is_some() {
        greeting.make_sure(&agreement).await?;
    }
    let Greeting { stream, input, .. } = greeting;
    Ok(OpenConnection {
        stream,
        input,
        greeted: HandshakeOutcome::Micromessage(Box::new(agreement)),
        address: address.clone(),
    })
}

/// The offered extensions, with the token if there is one.
fn offer(config: &ClientConfig) -> Result<Lists, ClientError> {
    let mut offer = config.extensions.clone().unwrap_or_else(default_extensions);
    if let Some(token) = &config.token {
        let property = (Cow::Borrowed("token"), Cow::Owned(token.clone().into_bytes()));
        let mut all = offer.required.iter_mut().chain(&mut offer.optional);
        match all.find(|extension| extension.name == X_MQCORE) {
            Some(extension) => extension.properties.push(property),
            None => {
                let properties = vec![property];
                // Required, so that a broker that ignores tokens does not accept the client anonymously.
                offer.required.push(Extension { properties, ..Extension::new(X_MQCORE) });
            }
        }
    }
    let wrong = |why: &dyn std::fmt::Display| ClientError::invalid("extensions", why.to_string());
    if let Some(odd) = offer.all().find(|extension| !is_field(extension.name.as_bytes())) {
        let why = format!("{:?} must consist of lower-case letters, digits and hyphens", odd.name);
        return Err(wrong(&why));
    }
    let (required, optional) = offer.write();
    if required.len().max(optional.len()) > ANSWER_BYTES_MAX as usize {
        return Err(wrong(&format_args!("a list must have at most {ANSWER_BYTES_MAX} bytes")));
    }
    let offered = Handshake {
        major: negotiation::MAJOR,
        minor: negotiation::MINOR,
        flags: 0,
        identity: b"",
        required: &required,
        optional: &optional,
    };
    // Parses the offer as the broker will, to find errors before sending.
    let read = Lists::read(&offered).map_err(|failure| wrong(&failure))?;
    if let Some(unknown) = read.all().find(|extension| ExtensionKind::of(&extension.name).is_none()) {
        let why = format!("{} is unknown; a vendor's extension must start with x-", unknown.name);
        return Err(wrong(&why));
    }
    Ok(read)
}

fn identity(config: &ClientConfig) -> Result<&str, ClientError> {
    let identity = config.name.as_deref().or(config.id.as_deref()).unwrap_or(IDENTITY);
    if identity.len() > 255 || !identity.is_ascii() || identity.chars().any(|c| c.is_ascii_control()) {
        let why = "it must have at most 255 ASCII characters and no control characters";
        return Err(ClientError::invalid("name", why));
    }
    Ok(identity)
}

impl Greeting<'_> {
    async fn say(&mut self, lists: &Lists) -> Result<(), ClientError> {
        let (required, optional) = lists.write();
        let mut bytes = Vec::new();
        let handshake = Handshake {
            major: negotiation::MAJOR,
            minor: negotiation::MINOR,
            flags: 0,
            identity: self.identity.as_bytes(),
            required: &required,
            optional: &optional,
        };
        handshake::encode(&handshake, &mut bytes);
        self.write(&bytes).await.map_err(|error| broken(self.address, &error))
    }

    async fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        self.stream.write_all(bytes).await?;
        self.stream.flush().await
    }

    async fn read(&mut self) -> Result<(), ClientError> {
        let read = self.stream.read_buf(&mut self.input).await;
        match read.map_err(|error| broken(self.address, &error))? {
            0 if self.input.is_empty() => Err(closed_at_once(self.address)),
            0 => Err(self.foreign()),
            _ => Ok(()),
        }
    }

    /// Reads the broker's reply. Returns the last message and the agreement, or why there is none.
    async fn reply(
        &mut self,
        offer: &Lists,
    ) -> Result<Result<(Lists, Agreement), ProtocolFailure>, ClientError> {
        let limits = Limits { header_bytes_max: ANSWER_BYTES_MAX, frame_bytes_max: ANSWER_BYTES_MAX.into() };
        loop {
            self.read().await?;
            let first = self.input[0];
            if first > negotiation::MAJOR_MAX {
                return Err(self.foreign());
            }
            let (opening, size) = match handshake::decode(&self.input, &limits) {
                Ok(None) => continue,
                Ok(Some(opening)) => opening,
                Err(error) => return Ok(Err(error.into())),
            };
            let said = match opening {
                HandshakeInput::Error { text } => return Err(self.refused(text)),
                HandshakeInput::Handshake(said) => said,
            };
            let chosen = choose(offer, &said);
            self.input.advance(size);
            return Ok(chosen);
        }
    }

    /// Waits until the broker answers a command, which it does only after accepting the client.
    async fn make_sure(&mut self, agreement: &Agreement) -> Result<(), ClientError> {
        let (mut payload, mut bytes) = (Vec::new(), Vec::new());
        command::encode("ping", &[("id", SURE)], &mut payload);
        encode(&Frame::Command { payload: &payload }, &mut bytes);
        self.write(&bytes).await.map_err(|error| broken(self.address, &error))?;
        let limits = Limits { header_bytes_max: ANSWER_BYTES_MAX, frame_bytes_max: ANSWER_BYTES_MAX.into() };
        loop {
            match decode(&self.input, agreement.len(), &limits) {
                Ok(None) => self.read().await?,
                Ok(Some((Frame::Error { text }, _))) => return Err(self.refused(text)),
                Ok(Some((Frame::Command { .. }, size))) => {
                    self.input.advance(size);
                    return Ok(());
                }
                // Any valid frame shows that the broker accepted the client.
                Ok(Some(_)) => return Ok(()),
                Err(_) => return Err(self.foreign()),
            }
        }
    }

    /// Sends the broker the reason of the failed agreement, and returns it as an error.
    async fn give_up(&mut self, failure: &ProtocolFailure) -> ClientError {
        let mut bytes = Vec::new();
        failure.encode(&mut bytes);
        // Errors are ignored, because the connection ends anyway.
        if self.write(&bytes).await.is_ok() {
            drop(self.stream.shutdown().await);
        }
        if failure.token == ErrorToken::Version {
            let wanted = Protocol::Micromessage.name();
            return ClientError::VersionMismatch {
                address: self.address.clone(),
                wanted,
                got: failure.why.clone().into(),
            };
        }
        self.no_agreement(failure.to_string())
    }

    fn no_agreement(&self, reason: String) -> ClientError {
        ClientError::NoAgreement { address: self.address.clone(), reason: reason.into() }
    }

    /// The error for an ERROR frame of the broker.
    fn refused(&self, text: &[u8]) -> ClientError {
        let text = String::from_utf8_lossy(text).into_owned();
        let address = self.address.clone();
        let token = text.split(':').next().unwrap_or_default();
        if token == ErrorToken::Auth.as_str() {
            return ClientError::AuthFailed { address, reason: text.into() };
        }
        if token == ErrorToken::Version.as_str() {
            let wanted = Protocol::Micromessage.name();
            return ClientError::VersionMismatch { address, wanted, got: text.into() };
        }
        self.no_agreement(if text.is_empty() { "the broker gave no reason".to_owned() } else { text })
    }

    /// The error for a peer of another protocol.
    fn foreign(&self) -> ClientError {
        spoke_otherwise(&self.input, Protocol::Micromessage, self.address)
    }
}

fn choose(offer: &Lists, said: &Handshake<'_>) -> Result<(Lists, Agreement), ProtocolFailure> {
    negotiation::check_version(said)?;
    let vendors: Vec<Box<str>> = offer
        .all()
        .filter(|extension| is_vendors(&extension.name))
        .map(|extension| (*extension.name).into())
        .collect();
    let abilities = Capabilities { vendors: &vendors, ..Capabilities::default() };
    negotiation::choose(offer, &Lists::read(said)?, &abilities)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn named(lists: &Lists) -> String {
        let (required, optional) = lists.write();
        format!("{} | {}", required.escape_ascii(), optional.escape_ascii())
    }

    #[test]
    fn a_client_offers_what_it_can_do_and_shows_its_token() {
        let plain = offer(&ClientConfig::default()).unwrap();
        assert_eq!(named(&plain), " | batch-ack:max-count=1000;pub-sub;x-nack;x-mqcore");
        let token = Some("a b".to_owned());
        let shown = offer(&ClientConfig { token: token.clone(), ..ClientConfig::default() }).unwrap();
        assert_eq!(named(&shown), " | batch-ack:max-count=1000;pub-sub;x-nack;x-mqcore:token=a%20b");
        let own = Lists { required: vec![Extension::new("json")], optional: Vec::new() };
        let config = ClientConfig { token, extensions: Some(own), ..ClientConfig::default() };
        assert_eq!(named(&offer(&config).unwrap()), "json;x-mqcore:token=a%20b | ");
    }

    #[test]
    fn unknown_extensions_are_rejected_before_the_offer() {
        for name in ["microauth", "Json", "a b", "", "x-"] {
            let own = Lists { required: vec![Extension::new(name)], optional: Vec::new() };
            let config = ClientConfig { extensions: Some(own), ..ClientConfig::default() };
            assert!(offer(&config).is_err(), "{name:?}");
        }
        let name = Some("größe".to_owned());
        assert!(identity(&ClientConfig { name, ..ClientConfig::default() }).is_err());
    }
}
