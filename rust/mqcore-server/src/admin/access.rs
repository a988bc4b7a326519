//! `GET /access`: what the caller may do on the admin side, so that a page offers nothing else.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use mqcore_authority::action::Action;
use mqcore_authority::login::Identity;
use mqcore_authority::resource::Resource;

use crate::admin::answers::AccessAnswer;
use crate::admin::request::Admin;

/// Changes need a token, also while there are no users. `changes` is about requests to `/queues/...`.
#[utoipa::path(
    get,
    path = "/access",
    tag = "security",
    responses(
        (status = 200, description = "Permissions of the caller", body = AccessAnswer),
    )
)]
pub(crate) async fn answer(
    State(admin): State<Admin>,
    identity: Option<Extension<Arc<Identity>>>,
) -> Json<AccessAnswer> {
    let authority = &admin.hub.authority;
    let Some(Extension(identity)) = identity else {
        return Json(AccessAnswer { user: None, open: true, changes: false, messages: true });
    };
    let may = |page| authority.may(&identity, Action::Administer, Resource::Page(page), "http");
    let changes = may("/queues/").await;
    let user = Some(identity.name.to_string());
    Json(AccessAnswer { user, open: false, changes, messages: changes })
}
