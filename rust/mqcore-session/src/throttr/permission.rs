//! Which permissions a Throttr request needs.
//!
//! The session answers requests about counters itself, so it asks for permission before each of them. Commands that concern
//! topics go to the broker, where the server checks them.

use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::request::{self, ThrottrRequest};
use mqcore_wire::throttr::{Dialect, ID_BYTES};

use crate::permission::{Permission, PermissionSubject, Permissions};

/// Decides about a request of the peer with this id: all of it must be allowed.
pub(super) fn of_request(
    permissions: &dyn Permissions,
    request: &ThrottrRequest<'_>,
    own: &[u8; ID_BYTES],
    (dialect, limits): (Dialect, &Limits),
) -> Permission {
    let decide = |wanted| permissions.decide(wanted);
    match request {
        ThrottrRequest::Insert { key, .. }
        | ThrottrRequest::Query { key }
        | ThrottrRequest::Update { key, .. }
        | ThrottrRequest::Purge { key }
        | ThrottrRequest::Set { key, .. }
        | ThrottrRequest::Get { key }
        | ThrottrRequest::Stat { key } => decide(PermissionSubject::Key(key)),
        ThrottrRequest::Consume { rule, .. } => decide(PermissionSubject::Key(rule.key)),
        // The check asks for all keys, so that an authorizer decides about all of them at once.
        ThrottrRequest::ConsumeAll { rules, .. } => {
            let each = rules.iter().map(|rule| decide(PermissionSubject::Key(rule.key)));
            each.max().unwrap_or(Permission::Granted)
        }
        ThrottrRequest::List | ThrottrRequest::Stats => decide(PermissionSubject::Keys),
        ThrottrRequest::Connection { id } if id == own => Permission::Granted,
        ThrottrRequest::Connections | ThrottrRequest::Channels | ThrottrRequest::Connection { .. } => {
            decide(PermissionSubject::Connections)
        }
        ThrottrRequest::Channel { channel } => decide(PermissionSubject::Channel(channel)),
        // The inner request needs the permission. An invalid one is rejected as such.
        ThrottrRequest::Event { request: inner, .. } => match request::decode(inner, dialect, limits) {
            Ok(Some((ThrottrRequest::Event { .. }, _))) | Ok(None) | Err(_) => Permission::Granted,
            Ok(Some((inner, _))) => of_request(permissions, &inner, own, (dialect, limits)),
        },
        ThrottrRequest::Info
        | ThrottrRequest::WhoAmI
        | ThrottrRequest::Subscribe { .. }
        | ThrottrRequest::Unsubscribe { .. }
        | ThrottrRequest::Publish { .. } => Permission::Granted,
    }
}
