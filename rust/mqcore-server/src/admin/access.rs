//! `GET /access`: what the caller may do on the admin side, so that a page offers nothing else.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use mqcore_authority::action::Action;
use mqcore_authority::login::Identity;
use mqcore_authority::resource::Resource;

use crate::admin::answers::AccessAnswer;
use crate::admin::request::Admin;

/// Parts of the admin side with requests that need the permission to administer, and a page of each.
const PARTS: [(&str, &str); 13] = [
    ("audit", "/audit"),
    ("connections", "/connections/"),
    ("drain", "/drain"),
    ("handlers", "/handlers/"),
    ("jobs", "/jobs/"),
    ("limits", "/limits"),
    ("policies", "/policies/"),
    ("queues", "/queues/"),
    ("routers", "/routers/"),
    ("schedules", "/schedules/"),
    ("tokens", "/tokens/"),
    ("user changes", "/users/"),
    ("users", "/users"),
];

/// Changes need a token, also while there are no users.
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
    let cluster = admin.hub.cluster.is_some();
    let Some(Extension(identity)) = identity else {
        let administers = Vec::new();
        return Json(AccessAnswer { user: None, open: true, administers, messages: true, cluster });
    };
    let mut administers = Vec::new();
    for (part, page) in PARTS {
        if authority.may(&identity, Action::Administer, Resource::Page(page), "http").await {
            administers.push(part);
        }
    }
    let user = Some(identity.name.to_string());
    let messages = administers.contains(&"queues");
    Json(AccessAnswer { user, open: false, administers, messages, cluster })
}
