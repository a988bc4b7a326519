//! Which permissions a Throttr request needs.
//!
//! The session answers requests about counters itself, so it asks for permission before each of them. Commands that concern
//! topics go to the broker, where the server checks them.

use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::request::{self, Request};
use mqcore_wire::throttr::{Dialect, ID_BYTES};

use crate::permission::{Permission, Permissions, Wanted};

/// Decides about a request of the peer with this id: all of it must be allowed.
pub(super) fn of_request(
    permissions: &dyn Permissions,
    request: &Request<'_>,
    own: &[u8; ID_BYTES],
    (dialect, limits): (Dialect, &Limits),
) -> Permission {
    let decide = |wanted| permissions.decide(wanted);
    match request {
        Request::Insert { key, .. }
        | Request::Query { key }
        | Request::Update { key, .. }
        | Request::Purge { key }
        | Request::Set { key, .. }
        | Request::Get { key }
        | Request::Stat { key } => decide(Wanted::Key(key)),
        Request::Consume { rule, .. } => decide(Wanted::Key(rule.key)),
        // The check asks for all keys, so that an authorizer decides about all of them at once.
        Request::ConsumeAll { rules, .. } => {
            let each = rules.iter().map(|rule| decide(Wanted::Key(rule.key)));
            each.max().unwrap_or(Permission::Granted)
        }
        Request::List | Request::Stats => decide(Wanted::Keys),
        Request::Connection { id } if id == own => Permission::Granted,
        Request::Connections | Request::Channels | Request::Connection { .. } => decide(Wanted::Connections),
        Request::Channel { channel } => decide(Wanted::Channel(channel)),
        // The inner request needs the permission. An invalid one is rejected as such.
        Request::Event { request: inner, .. } => match request::decode(inner, dialect, limits) {
            Ok(Some((Request::Event { .. }, _))) | Ok(None) | Err(_) => Permission::Granted,
            Ok(Some((inner, _))) => of_request(permissions, &inner, own, (dialect, limits)),
        },
        Request::Info
        | Request::WhoAmI
        | Request::Subscribe { .. }
        | Request::Unsubscribe { .. }
        | Request::Publish { .. } => Permission::Granted,
    }
}
