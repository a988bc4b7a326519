//! The negotiation of extensions. Client and server share these rules.
//!
//! ```text
//! client  offer   required: the server must support these      optional: the client would like these
//! server  reply   required: the client must also support these optional: accepted options and further suggestions
//! client  choice  required: what either side requires          optional: accepted options
//! ```

use std::borrow::Cow;

use super::extension::{
    ACK, Agreement, BATCH_ACK, ExtensionKind, MAX_COUNT, PUB_SUB, WINDOW_MAX, canonical, count,
};
use super::failure::{ErrorToken, ProtocolFailure};
use super::handshake::{EXTENSIONS_MAX, Extension, Handshake, encode_list, parse_list};

/// Supported major version.
pub const MAJOR: u8 = 1;
/// Supported minor version.
pub const MINOR: u8 = 0;

/// Largest major version that a peer can announce; a larger number is the first byte of another protocol.
pub const MAJOR_MAX: u8 = 15;

/// Rejects a peer with a lower major version. Higher versions are accepted, because both sides use the lower one, which
/// is [`MAJOR`] and [`MINOR`].
///
/// # Errors
/// [`ProtocolFailure`] with the unsupported version.
pub fn check_version(handshake: &Handshake<'_>) -> Result<(), ProtocolFailure> {
    if (MAJOR..=MAJOR_MAX).contains(&handshake.major) {
        return Ok(());
    }
    let why = format!("{}.{} is not supported", handshake.major, handshake.minor);
    Err(ProtocolFailure::new(ErrorToken::Version, why))
}

/// The two extension lists of a handshake message.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Lists {
    /// Required extensions.
    pub required: Vec<Extension<'static>>,
    /// Optional extensions.
    pub optional: Vec<Extension<'static>>,
}

impl Lists {
    /// Parses both lists. An extension in both lists is required.
    ///
    /// # Errors
    /// [`ProtocolFailure`] if a list is malformed, or if both together name more than 255 extensions.
    pub fn read(handshake: &Handshake<'_>) -> Result<Self, ProtocolFailure> {
        let own = |list: Vec<Extension<'_>>| list.into_iter().map(Extension::into_owned).collect::<Vec<_>>();
        let required = own(parse_list(handshake.required)?);
        let mut optional = own(parse_list(handshake.optional)?);
        optional.retain(|extension| !names(&required, &extension.name));
        if required.len() + optional.len() > EXTENSIONS_MAX {
            return Err(ProtocolFailure::new(
                ErrorToken::Malformed,
                "a handshake names at most 255 extensions",
            ));
        }
        Ok(Self { required, optional })
    }

    /// Encodes the lists: required, optional.
    pub fn write(&self) -> (Vec<u8>, Vec<u8>) {
        let (mut required, mut optional) = (Vec::new(), Vec::new());
        encode_list(&self.required, &mut required);
        encode_list(&self.optional, &mut optional);
        (required, optional)
    }

    /// Returns the extension with this name from either list.
    pub fn find(&self, name: &str) -> Option<&Extension<'static>> {
        self.all().find(|extension| canonical(&extension.name) == canonical(name))
    }

    /// Iterates over all extensions, required ones first.
    pub fn all(&self) -> impl Iterator<Item = &Extension<'static>> {
        self.required.iter().chain(&self.optional)
    }
}

fn names(list: &[Extension<'_>], name: &str) -> bool {
    list.iter().any(|extension| canonical(&extension.name) == canonical(name))
}

fn of_kind(extension: &Extension<'_>, kind: ExtensionKind) -> bool {
    ExtensionKind::of(&extension.name) == Some(kind)
}

/// Capabilities of one side.
#[derive(Debug, Clone, Copy)]
pub struct Capabilities<'a> {
    /// Vendor extensions in addition to those known by name. Each begins with `x-`.
    pub vendors: &'a [Box<str>],
    /// Largest acceptable number of unacknowledged messages, 1 to [`WINDOW_MAX`].
    pub window_max: u16,
}

impl Default for Capabilities<'_> {
    fn default() -> Self {
        Self { vendors: &[], window_max: WINDOW_MAX }
    }
}

impl Capabilities<'_> {
    /// Whether an extension with this name is supported.
    pub fn know(&self, name: &str) -> bool {
        match ExtensionKind::of(name) {
            Some(ExtensionKind::Vendor) => self.vendors.iter().any(|known| **known == *name),
            Some(_) => true,
            None => false,
        }
    }

    /// Rejects required extensions that are not supported.
    fn check(&self, required: &[Extension<'_>]) -> Result<(), ProtocolFailure> {
        match required.iter().find(|extension| !self.know(&extension.name)) {
            Some(unknown) => {
                Err(ProtocolFailure::new(ErrorToken::Extension, format!("unsupported {}", unknown.name)))
            }
            None => Ok(()),
        }
    }
}

/// Computes the server's reply to an offer. `demanded` are the extensions that the server always requires.
///
/// The reply accepts the supported optional extensions, but only the first serializer and the first acknowledgement mode.
/// It also suggests `batch-ack` and `pub-sub` to a client that does not mention them.
///
/// # Errors
/// [`ProtocolFailure`] if the client requires an unsupported extension, or a `max-count` is not a number.
pub fn reply(
    offer: &Lists,
    demanded: &[Extension<'static>],
    abilities: &Capabilities<'_>,
) -> Result<Lists, ProtocolFailure> {
    abilities.check(&offer.required)?;
    let mut required: Vec<_> =
        demanded.iter().filter(|extension| !names(&offer.required, &extension.name)).cloned().collect();
    let mut optional: Vec<Extension<'static>> = Vec::new();
    let taken = |optional: &[Extension<'_>], kind| {
        offer.required.iter().chain(&required).chain(optional).any(|extension| of_kind(extension, kind))
    };
    for wish in &offer.optional {
        let exclusive = [ExtensionKind::Serializer, ExtensionKind::Acknowledges];
        let late = exclusive.into_iter().any(|kind| of_kind(wish, kind) && taken(&optional, kind));
        if abilities.know(&wish.name) && !late && !names(&required, &wish.name) {
            // The client's properties are input for the server; the reply carries the server's own.
            optional.push(Extension::new(wish.name.clone()));
        }
    }
    let batch =
        offer.find(BATCH_ACK).or_else(|| required.iter().find(|extension| extension.name == BATCH_ACK));
    if let Some(batch) = batch {
        let count = count(batch)?.map(|count| count.min(abilities.window_max));
        optional.retain(|extension| extension.name != BATCH_ACK);
        if let Some(count) = count
            && !taken_otherwise(&offer.required, &optional)
        {
            optional.push(batch_ack(count));
        } else if names(&offer.optional, BATCH_ACK) && !taken_otherwise(&offer.required, &optional) {
            optional.push(Extension::new(BATCH_ACK));
        }
    } else if !taken(&optional, ExtensionKind::Acknowledges) {
        optional.push(batch_ack(abilities.window_max));
    }
    if let Some(ack) = offer.find(ACK)
        && count(ack)?.is_some_and(|asked| asked > abilities.window_max)
    {
        // Some clients mean batch-ack. They must learn the server's maximum here, or their choice is rejected.
        let most = windowed(ACK, abilities.window_max);
        match required.iter_mut().chain(&mut optional).find(|extension| extension.name == ACK) {
            Some(named) if count(named)?.is_none_or(|own| own > abilities.window_max) => *named = most,
            None if names(&offer.required, ACK) => optional.push(most),
            _ => {}
        }
    }
    if offer.find(PUB_SUB).is_none() && !names(&required, PUB_SUB) {
        optional.push(Extension::new(PUB_SUB));
    }
    Ok(Lists { required, optional })
}

/// Whether the connection will acknowledge messages by `ack`.
fn taken_otherwise(required: &[Extension<'_>], optional: &[Extension<'_>]) -> bool {
    names(required, ACK) || names(optional, ACK)
}

/// Returns `batch-ack` with a window of `count` unacknowledged messages.
pub fn batch_ack(count: u16) -> Extension<'static> {
    windowed(BATCH_ACK, count)
}

/// Returns an acknowledgement extension with a window of `count` unacknowledged messages.
fn windowed(name: &'static str, count: u16) -> Extension<'static> {
    let count = Cow::Owned(count.to_string().into_bytes());
    Extension { properties: vec![(MAX_COUNT.into(), count)], ..Extension::new(name) }
}

/// Validates the client's final choice and returns the resulting agreement.
///
/// # Errors
/// [`ProtocolFailure`] if a required extension is missing, an extension was never offered, the window exceeds the server's maximum,
/// or the extensions are incompatible.
pub fn conclude(
    offer: &Lists,
    reply: &Lists,
    last: &Lists,
    abilities: &Capabilities<'_>,
) -> Result<Agreement, ProtocolFailure> {
    let refuse = |why: String| Err(ProtocolFailure::new(ErrorToken::Extension, why));
    for required in [&offer.required, &reply.required] {
        let serializers =
            required.iter().filter(|extension| of_kind(extension, ExtensionKind::Serializer)).count();
        for extension in required {
            // Of several required serializers, the client chooses one.
            let one_of = serializers > 1 && of_kind(extension, ExtensionKind::Serializer);
            let instead = one_of && last.all().any(|extension| of_kind(extension, ExtensionKind::Serializer));
            if !instead && last.find(&extension.name).is_none() {
                return refuse(format!(
                    "required extension {} is missing in the final message",
                    extension.name
                ));
            }
        }
    }
    let offered = |name: &str| offer.find(name).is_some() || reply.find(name).is_some();
    if let Some(unasked) = last.all().find(|extension| !offered(&extension.name)) {
        return refuse(format!("extension {} was not offered by either side", unasked.name));
    }
    abilities.check(&last.required)?;
    abilities.check(&last.optional)?;
    let agreement = Agreement::of(last.all().cloned().collect())?;
    if let Some(acknowledging) = agreement.acknowledging()
        && acknowledging.window > abilities.window_max
    {
        let (asked, max) = (acknowledging.window, abilities.window_max);
        return refuse(format!("max-count {asked} exceeds the maximum of {max} unacknowledged messages"));
    }
    Ok(agreement)
}

/// Computes the client's final choice from the server's reply to its offer, and the resulting agreement.
///
/// The choice contains everything that either side requires, and the optional extensions that both sides named. If both
/// specify a window, the smaller one applies.
///
/// # Errors
/// [`ProtocolFailure`] if the server requires an unsupported extension, or one that is incompatible with the client's requirements.
pub fn choose(
    offer: &Lists,
    reply: &Lists,
    abilities: &Capabilities<'_>,
) -> Result<(Lists, Agreement), ProtocolFailure> {
    abilities.check(&reply.required)?;
    let mut last = Lists::default();
    for extension in offer.required.iter().chain(&reply.required) {
        if !names(&last.required, &extension.name) {
            last.required.push(merged(offer, reply, extension, abilities)?);
        }
    }
    let serializers =
        |list: &[Extension<'_>]| list.iter().filter(|one| of_kind(one, ExtensionKind::Serializer)).count();
    if serializers(&last.required) > 1 {
        let named = |extension: &Extension<'_>| {
            of_kind(extension, ExtensionKind::Serializer) && offer.find(&extension.name).is_some()
        };
        let chosen =
            reply.all().find(|one| named(one)).or_else(|| last.required.iter().find(|one| named(one)));
        let chosen = chosen.map(|extension| extension.name.clone());
        last.required
            .retain(|one| !of_kind(one, ExtensionKind::Serializer) || Some(&one.name) == chosen.as_ref());
    }
    for extension in &offer.optional {
        let exclusive = [ExtensionKind::Serializer, ExtensionKind::Acknowledges]
            .into_iter()
            .any(|kind| of_kind(extension, kind) && last.all().any(|other| of_kind(other, kind)));
        if reply.find(&extension.name).is_some() && !exclusive && !names(&last.required, &extension.name) {
            let merged = merged(offer, reply, extension, abilities)?;
            last.optional.push(merged);
        }
    }
    let agreement = Agreement::of(last.all().cloned().collect())?;
    Ok((last, agreement))
}

/// Returns an extension with the client's properties and the smaller of the two windows.
fn merged(
    offer: &Lists,
    reply: &Lists,
    extension: &Extension<'static>,
    abilities: &Capabilities<'_>,
) -> Result<Extension<'static>, ProtocolFailure> {
    let ours = offer.find(&extension.name).unwrap_or(extension);
    let name = match &*ours.name {
        ACK => ACK,
        BATCH_ACK => BATCH_ACK,
        _ => return Ok(ours.clone()),
    };
    let mut smallest = None;
    for side in [offer.find(name), reply.find(name)].into_iter().flatten() {
        if let Some(count) = count(side)? {
            smallest = Some(smallest.map_or(count, |other: u16| other.min(count)));
        }
    }
    Ok(match smallest {
        Some(count) => windowed(name, count.min(abilities.window_max)),
        None => Extension::new(name),
    })
}
