//! The handshake: agreeing on extensions.

use mqcore_broker::model::client::Introduction;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::time::Timestamp;
use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::extension::X_MQCORE;
use mqcore_wire::micromessage::failure::ProtocolFailure;
use mqcore_wire::micromessage::handshake::{self, Handshake, HandshakeInput};
use mqcore_wire::micromessage::negotiation::{self, Lists};

use super::{IDENTITY, LIST_BYTES_MAX, MicroMessageSession, Stage};
use crate::micromessage::incoming::Incoming;
use crate::micromessage::outgoing::OutgoingMessages;

impl MicroMessageSession {
    /// Takes a message of the handshake, if it is complete.
    pub(super) fn shake_hands(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, ProtocolFailure> {
        let longest =
            self.config.limits.header_bytes_max.min(LIST_BYTES_MAX).min(self.config.login_bytes_max);
        // The other limits apply to an ERROR frame, which can replace the handshake.
        let limits = Limits { header_bytes_max: longest, frame_bytes_max: LIST_BYTES_MAX.into() };
        let Some((opening, size)) = handshake::decode(input, &limits)? else { return Ok(0) };
        let said = match opening {
            HandshakeInput::Handshake(said) => said,
            HandshakeInput::Error { .. } => {
                self.stage = Stage::Over;
                return Ok(size);
            }
        };
        match std::mem::replace(&mut self.stage, Stage::Over) {
            Stage::Offering => self.reply(&said, output)?,
            Stage::Concluding { offer, reply } => self.conclude(&said, &offer, &reply, now, commands)?,
            other => self.stage = other,
        }
        Ok(size)
    }

    pub(super) fn reply(
        &mut self,
        said: &Handshake<'_>,
        output: &mut Vec<u8>,
    ) -> Result<(), ProtocolFailure> {
        negotiation::check_version(said)?;
        let offer = Lists::read(said)?;
        let reply = negotiation::reply(&offer, &self.terms.required, &self.abilities())?;
        let (required, optional) = reply.write();
        let answer = Handshake {
            major: negotiation::MAJOR,
            minor: negotiation::MINOR,
            flags: 0,
            identity: IDENTITY.as_bytes(),
            required: &required,
            optional: &optional,
        };
        handshake::encode(&answer, output);
        self.stage = Stage::Concluding { offer: offer.into(), reply: reply.into() };
        Ok(())
    }

    pub(super) fn conclude(
        &mut self,
        said: &Handshake<'_>,
        offer: &Lists,
        reply: &Lists,
        now: Timestamp,
        commands: &mut Vec<Command>,
    ) -> Result<(), ProtocolFailure> {
        let last = Lists::read(said)?;
        self.agreement = negotiation::conclude(offer, reply, &last, &self.abilities())?;
        self.incoming = Incoming::new(self.config.connection, now, &self.agreement);
        self.outgoing = OutgoingMessages::new(&self.agreement);
        let token = [offer, &last].into_iter().find_map(|lists| lists.find(X_MQCORE)?.property("token"));
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let introduction = Introduction {
            name: (!said.identity.is_empty()).then(|| text(said.identity)),
            token: token.map(text),
            ..Introduction::default()
        };
        commands.push(Command::Introduce(introduction.into()));
        self.stage = Stage::Introduced;
        Ok(())
    }
}
