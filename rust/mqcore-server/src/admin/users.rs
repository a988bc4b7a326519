//! `GET /users`: users and tokens, without their secrets.

use axum::Json;
use axum::extract::State;
use mqcore_authority::record::Restrictions;
use mqcore_authority::rule::PermissionRule;
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::request::Admin;

/// Users and tokens.
#[derive(Serialize, ToSchema)]
pub(crate) struct UsersAnswer {
    /// Whether everyone may do everything, because there are neither users nor tokens nor an authenticator.
    open: bool,
    users: Vec<UserAnswer>,
    tokens: Vec<TokenAnswer>,
    /// Permissions of peers without credentials.
    anonymous: Vec<String>,
    /// Successful logins since the start.
    logins: u64,
    /// Refused logins since the start.
    logins_refused: u64,
    /// Denied actions since the start.
    actions_denied: u64,
}

/// A user.
#[derive(Serialize, ToSchema)]
pub(crate) struct UserAnswer {
    name: String,
    has_password: bool,
    /// Name in a client certificate that replaces the password.
    certificate: Option<String>,
    /// Permissions, such as `push,pull:orders/*`.
    allow: Vec<String>,
    restrict: RestrictionsAnswer,
    /// Whether it is in the configuration, and not in the store.
    configured: bool,
    /// Open connections.
    connections: u64,
}

/// A token, without its secret.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenAnswer {
    id: String,
    name: String,
    /// Permissions, such as `push,pull:orders/*`.
    allow: Vec<String>,
    restrict: RestrictionsAnswer,
    /// Time of expiry in Unix milliseconds; `null`: never.
    expires_ms: Option<u64>,
    /// Whether it is in the configuration, and not in the store.
    configured: bool,
    /// Open connections.
    connections: u64,
}

/// Conditions on the use of credentials. An empty list restricts nothing.
#[derive(Serialize, ToSchema)]
pub(crate) struct RestrictionsAnswer {
    client_ids: Vec<String>,
    client_names: Vec<String>,
    client_types: Vec<String>,
    addresses: Vec<String>,
}

#[utoipa::path(
    get,
    path = "/users",
    tag = "security",
    responses(
        (status = 200, description = "Users and tokens by name, from the configuration and the store", body = UsersAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>) -> Json<UsersAnswer> {
    let authority = &admin.hub.authority;
    let (records, logged_in) = (authority.records(), authority.logged_in());
    let mut users: Vec<_> = records
        .users
        .iter()
        .map(|user| UserAnswer {
            name: user.name.clone(),
            has_password: user.password.is_some(),
            certificate: user.certificate.as_ref().map(ToString::to_string),
            allow: rules(&user.allow),
            restrict: restrictions(&user.restrict),
            configured: authority.configured.users.iter().any(|known| known.name == user.name),
            connections: logged_in.users.get(&user.name).copied().unwrap_or(0),
        })
        .collect();
    let mut tokens: Vec<_> = records
        .tokens
        .iter()
        .map(|token| TokenAnswer {
            id: token.id.clone(),
            name: token.name.clone(),
            allow: rules(&token.allow),
            restrict: restrictions(&token.restrict),
            expires_ms: token.expires_ms,
            configured: authority.configured.tokens.iter().any(|known| known.id == token.id),
            connections: logged_in.tokens.get(&token.id).copied().unwrap_or(0),
        })
        .collect();
    users.sort_by(|one, other| one.name.cmp(&other.name));
    tokens.sort_by(|one, other| (&one.name, &one.id).cmp(&(&other.name, &other.id)));
    let counters = &authority.counters;
    Json(UsersAnswer {
        open: authority.is_open(),
        users,
        tokens,
        anonymous: rules(&records.anonymous),
        logins: counters.logins.get(),
        logins_refused: counters.logins_refused.get(),
        actions_denied: counters.actions_denied.get(),
    })
}

fn rules(allow: &[PermissionRule]) -> Vec<String> {
    allow.iter().map(ToString::to_string).collect()
}

fn restrictions(restrict: &Restrictions) -> RestrictionsAnswer {
    fn texts<T: ToString>(list: &[T]) -> Vec<String> {
        list.iter().map(ToString::to_string).collect()
    }
    RestrictionsAnswer {
        client_ids: texts(&restrict.client_ids),
        client_names: texts(&restrict.client_names),
        client_types: texts(&restrict.client_types),
        addresses: texts(&restrict.addresses),
    }
}
