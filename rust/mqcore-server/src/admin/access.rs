//! `GET /access`: what the caller may do on the admin side, so that a page offers nothing else.

use std::sync::Arc;

use axum::extract::State;
use axum::{Extension, Json};
use mqcore_authority::action::Action;
use mqcore_authority::login::Identity;
use mqcore_authority::resource::Resource;
use serde_json::{Value, json};

use crate::admin::request::Admin;

/// Changes need a token, also while there are no users. `changes` is about requests to `/queues/...`.
pub(crate) async fn answer(
    State(admin): State<Admin>,
    identity: Option<Extension<Arc<Identity>>>,
) -> Json<Value> {
    let authority = &admin.hub.authority;
    let Some(Extension(identity)) = identity else {
        return Json(json!({"user": null, "open": true, "changes": false, "messages": true}));
    };
    let may = |page| authority.may(&identity, Action::Administer, Resource::Page(page), "http");
    let changes = may("/queues/").await;
    Json(json!({"user": &*identity.name, "open": false, "changes": changes, "messages": changes}))
}
