//! `GET /users`: users and tokens, without their secrets.

use axum::Json;
use axum::extract::State;
use mqcore_authority::record::Restrictions;
use mqcore_authority::rule::PermissionRule;

use crate::admin::answers::{RestrictionsAnswer, TokenAnswer, UserAnswer, UsersAnswer};
use crate::admin::request::Admin;

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
