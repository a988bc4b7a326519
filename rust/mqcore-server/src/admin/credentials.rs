//! Requests that add, change and remove users and tokens.
//!
//! | request | body | effect |
//! |---|---|---|
//! | `POST /users/NAME` | `{"allow": ["push:orders/*"], "password": "..."}` | adds a user |
//! | `POST /users/NAME/password` | `{"password": "..."}` | sets the password of a user |
//! | `DELETE /users/NAME` | none | removes a user |
//! | `POST /tokens` | `{"name": "deploy", "allow": ["push:orders/*"]}` | creates a token, and answers it |
//! | `DELETE /tokens/ID` | none | revokes a token |
//!
//! They are answered when the change is on disk, in a cluster on the disks of a majority, and applies to all connections.

use std::sync::Arc;

use axum::Json;
use axum::extract::State;
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use mqcore_authority::action::Action;
use mqcore_authority::login::Identity;
use mqcore_authority::resource::Resource;
use serde::{Deserialize, Serialize};
use serde_json::json;
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::changes::{Body, NoMembers};
use crate::admin::request::{Admin, Operator, PathText, bad_request, error};
use crate::authority::reload;
use crate::authority::state::Authority;
use crate::authority::store::{AuthorityRecordError, Change, StoreError};

/// A user to add.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct UserBody {
    /// Its password, 8 to 1,024 bytes. Without one, the user logs in by certificate only.
    #[serde(default)]
    password: Option<String>,
    /// Name in a client certificate that replaces the password, such as `cn:worker-1`.
    #[serde(default)]
    certificate: Option<String>,
    /// Permissions, such as `push,pull:orders/*`.
    #[serde(default)]
    allow: Vec<String>,
    #[serde(default)]
    restrict: RestrictionsBody,
}

/// A new password.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct PasswordBody {
    /// 8 to 1,024 bytes.
    password: String,
}

/// A token to create.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct TokenBody {
    /// A name for people; several tokens may have it.
    name: String,
    /// Permissions, such as `push,pull:orders/*`.
    #[serde(default)]
    allow: Vec<String>,
    /// Time of expiry in Unix milliseconds (never).
    #[serde(default)]
    expires_ms: Option<u64>,
    #[serde(default)]
    restrict: RestrictionsBody,
}

/// Conditions on the use of credentials: patterns, and networks such as `10.0.0.0/8`. An empty list restricts nothing.
#[derive(Default, Serialize, Deserialize, ToSchema)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct RestrictionsBody {
    client_ids: Vec<String>,
    client_names: Vec<String>,
    client_types: Vec<String>,
    addresses: Vec<String>,
}

/// A changed user.
#[derive(Serialize, ToSchema)]
pub(crate) struct UserChanged {
    user: String,
    /// `added`, `removed` or `password set`.
    result: &'static str,
}

/// A new token.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenCreated {
    /// Its id, for revoking it.
    id: String,
    name: String,
    /// Its secret text, which the broker does not keep.
    token: String,
}

/// A revoked token.
#[derive(Serialize, ToSchema)]
pub(crate) struct TokenRevoked {
    revoked: String,
}

#[utoipa::path(
    post,
    path = "/users/{name}",
    tag = "security",
    params(("name" = String, Path, description = "The name of the user")),
    request_body = Option<UserBody>,
    responses(
        (status = 200, description = "The user is added", body = UserChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 409, description = "It exists, there are too many, or the broker cannot store users", body = ErrorAnswer),
    )
)]
pub(crate) async fn add_user(
    State(admin): State<Admin>,
    operator: Operator,
    PathText(name): PathText,
    Body(body): Body<UserBody>,
) -> Result<Response, Response> {
    let UserBody { password, certificate, allow, restrict } = body;
    let user = json!({"name": name, "certificate": certificate, "allow": allow, "restrict": restrict});
    let user = user.to_string();
    carry_out(&admin, &operator, move |authority, identity| {
        authority.change(identity, Change::AddUser { user: &user, password: password.as_deref() })
    })
    .await?;
    Ok(changed(name, "added"))
}

#[utoipa::path(
    post,
    path = "/users/{name}/password",
    tag = "security",
    params(("name" = String, Path, description = "The name of the user")),
    request_body = PasswordBody,
    responses(
        (status = 200, description = "The password is set, and connections that used the old one are closed", body = UserChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "It is in the configuration", body = ErrorAnswer),
    )
)]
pub(crate) async fn set_password(
    State(admin): State<Admin>,
    operator: Operator,
    PathText(name): PathText,
    Body(PasswordBody { password }): Body<PasswordBody>,
) -> Result<Response, Response> {
    let user = name.clone();
    carry_out(&admin, &operator, move |authority, identity| {
        authority.change(identity, Change::SetPassword { name: &user, password: &password })
    })
    .await?;
    Ok(changed(name, "password set"))
}

#[utoipa::path(
    delete,
    path = "/users/{name}",
    tag = "security",
    params(("name" = String, Path, description = "The name of the user")),
    responses(
        (status = 200, description = "The user is removed, and its connections are closed", body = UserChanged),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "It is in the configuration", body = ErrorAnswer),
    )
)]
pub(crate) async fn remove_user(
    State(admin): State<Admin>,
    operator: Operator,
    PathText(name): PathText,
    Body(NoMembers {}): Body<NoMembers>,
) -> Result<Response, Response> {
    let user = name.clone();
    carry_out(&admin, &operator, move |authority, identity| {
        authority.change(identity, Change::RemoveUser { name: &user })
    })
    .await?;
    Ok(changed(name, "removed"))
}

#[utoipa::path(
    post,
    path = "/tokens",
    tag = "security",
    request_body = TokenBody,
    responses(
        (status = 200, description = "The token is created", body = TokenCreated),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 409, description = "There are too many, or the broker cannot store tokens", body = ErrorAnswer),
    )
)]
pub(crate) async fn create_token(
    State(admin): State<Admin>,
    operator: Operator,
    Body(body): Body<TokenBody>,
) -> Result<Response, Response> {
    let TokenBody { name, allow, expires_ms, restrict } = body;
    let request = json!({"name": name, "allow": allow, "expires_ms": expires_ms, "restrict": restrict});
    let request = request.to_string();
    let (id, token) =
        carry_out(&admin, &operator, move |authority, identity| authority.add_token(identity, &request))
            .await?;
    // The line of the request does not name the token, of which nothing else tells who created it.
    operator.note(&admin, (Action::Administer, &Resource::Page(&format!("/tokens/{id}"))), None);
    Ok(Json(TokenCreated { id, name, token }).into_response())
}

#[utoipa::path(
    delete,
    path = "/tokens/{id}",
    tag = "security",
    params(("id" = String, Path, description = "The id of the token")),
    responses(
        (status = 200, description = "The token is revoked, and its connections are closed", body = TokenRevoked),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
        (status = 409, description = "It is in the configuration", body = ErrorAnswer),
    )
)]
pub(crate) async fn revoke_token(
    State(admin): State<Admin>,
    operator: Operator,
    PathText(id): PathText,
    Body(NoMembers {}): Body<NoMembers>,
) -> Result<Response, Response> {
    let token = id.clone();
    carry_out(&admin, &operator, move |authority, identity| {
        authority.change(identity, Change::RemoveToken { id: &token })
    })
    .await?;
    Ok(Json(TokenRevoked { revoked: id }).into_response())
}

fn changed(user: String, result: &'static str) -> Response {
    Json(UserChanged { user, result }).into_response()
}

/// Changes the file of users and tokens off the tasks of connections, because hashes of passwords and disks take time, and
/// applies it to all connections.
async fn carry_out<T: Send + 'static>(
    admin: &Admin,
    operator: &Operator,
    change: impl FnOnce(&Authority, &Identity) -> Result<T, StoreError> + Send + 'static,
) -> Result<T, Response> {
    let (hub, identity) = (Arc::clone(&admin.hub), Arc::clone(&operator.identity));
    if hub.cluster.is_some()
        && let Some(store) = hub.authority.store().filter(|store| !store.is_copied())
    {
        let message = format!(
            "the nodes of the cluster read users and tokens from {}, which they do not copy; change it on all of them",
            store.path().display()
        );
        return Err(error(StatusCode::CONFLICT, "unacceptable", &message));
    }
    let changed = hub.runtime.clone().spawn_blocking(move || change(&hub.authority, &identity)).await;
    let changed = match changed {
        Ok(Ok(changed)) => changed,
        Ok(Err(refused)) => {
            if refused.is_denial() {
                let page = Resource::Page(&operator.page);
                operator.note(admin, (Action::Administer, &page), Some(&refused.to_string()));
            }
            return Err(refusal(&refused));
        }
        Err(panicked) => std::panic::resume_unwind(panicked.into_panic()),
    };
    reload::reload(&admin.hub, false).await.map_err(|refused| refusal(&refused))?;
    Ok(changed)
}

fn refusal(refused: &StoreError) -> Response {
    let message = refused.to_string();
    match refused {
        StoreError::Record(AuthorityRecordError::Exists { .. }) => {
            error(StatusCode::CONFLICT, "already-exists", &message)
        }
        StoreError::Record(AuthorityRecordError::Missing { .. }) => {
            error(StatusCode::NOT_FOUND, "not-found", &message)
        }
        StoreError::Record(AuthorityRecordError::TooMany { .. }) => {
            error(StatusCode::CONFLICT, "limit-exceeded", &message)
        }
        StoreError::Record(_) | StoreError::Password(_) | StoreError::Setting(_) => bad_request(&message),
        StoreError::BeyondCaller { .. }
        | StoreError::OutlivesCaller { .. }
        | StoreError::LessRestricted { .. } => error(StatusCode::FORBIDDEN, "forbidden", &message),
        StoreError::CallerRevoked => error(StatusCode::UNAUTHORIZED, "unauthorized", &message),
        StoreError::Configured { .. } | StoreError::NoStore | StoreError::Replicated { .. } => {
            error(StatusCode::CONFLICT, "unacceptable", &message)
        }
        StoreError::Io { .. } | StoreError::Format { .. } | StoreError::Random(_) => {
            error(StatusCode::INSUFFICIENT_STORAGE, "not-saved", &message)
        }
    }
}
