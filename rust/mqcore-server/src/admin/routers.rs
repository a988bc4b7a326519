//! `POST /routers/NAME/test`: where a router would send a message, and why. Nothing is sent.
//!
//! Routers in Python run for this, as they do for a message, so it needs the permission to administer.

use std::sync::Arc;

use axum::extract::State;
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mqcore_authority::login::Identity;
use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Request;
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::{ConnectionId, RouterName};
use mqcore_broker::model::message::{Message, Properties};
use mqcore_broker::model::route::RouteTest;
use mqcore_broker::model::time::Timestamp;
use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::changes::{Body, carry_out, no_result};
use crate::admin::request::{Admin, PathText, bad_request};

/// Maximum headers of a tested message.
const HEADERS_MAX: usize = 100;

/// A message that is tested.
#[derive(Deserialize, ToSchema)]
#[serde(deny_unknown_fields)]
pub(crate) struct RouterTestBody {
    /// Its headers, as pairs of name and value.
    #[serde(default)]
    #[schema(max_items = 100)]
    headers: Vec<(String, String)>,
    /// Its body (empty).
    #[serde(default)]
    body: String,
}

/// The route that a message would take.
#[derive(Serialize, ToSchema)]
pub(crate) struct RouterTestAnswer {
    router: String,
    /// How the router chooses: `distribute`, `only-first` or `round-robin`.
    method: &'static str,
    /// Whether any target would accept the message.
    taken: bool,
    /// Why no target would; null if one would.
    refusal: Option<String>,
    /// The steps in order.
    steps: Vec<RouterStepAnswer>,
    /// Bindings that would not be tried, because an earlier one accepts the message.
    skipped: Vec<String>,
}

/// A step of a route.
#[derive(Serialize, ToSchema)]
pub(crate) struct RouterStepAnswer {
    /// The binding; null for a target that a router in Python chose.
    binding: Option<String>,
    target: String,
    /// Whether the target would accept the message.
    takes: bool,
    /// Why, or why not.
    why: String,
}

#[utoipa::path(
    post,
    path = "/routers/{name}/test",
    tag = "routers",
    params(("name" = String, Path, description = "The router; a `/` in it is written `%2F`")),
    request_body = Option<RouterTestBody>,
    responses(
        (status = 200, description = "The route that the message would take", body = RouterTestAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
        (status = 404, description = "It does not exist", body = ErrorAnswer),
    )
)]
pub(crate) async fn test(
    State(admin): State<Admin>,
    Extension(identity): Extension<Arc<Identity>>,
    PathText(name): PathText,
    Body(tested): Body<RouterTestBody>,
) -> Result<Response, Response> {
    let router =
        RouterName::new(&name).map_err(|refused| bad_request(&format!("router {name:?}: {refused}")))?;
    let headers = header_text(&tested.headers)?;
    let producer = Some(Arc::new(tester(&identity)));
    let message =
        Message::from_parts(b"", headers.as_bytes(), tested.body.as_bytes(), Properties::default(), producer);
    let request = Request::TestRoute { router, message };
    match carry_out(&admin, request).await? {
        Reply::RouteTest(test) => Ok(Json(describe(name, *test)).into_response()),
        _ => Err(no_result("the test has no result; repeat it")),
    }
}

/// The client that routers in Python see as the publisher.
fn tester(identity: &Identity) -> Client {
    Client {
        connection: ConnectionId(0),
        id: "*admin*".into(),
        authenticated: true,
        protocol: "http",
        name: Some(identity.name.clone()),
        kind: None,
        admin: true,
        user: None,
        connected_at: Timestamp(0),
        data: None,
    }
}

/// Headers as messages carry them.
#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
fn header_text(headers: &[(String, String)]) -> Result<String, Response> {
    if headers.len() > HEADERS_MAX {
        let found = headers.len();
        return Err(bad_request(&format!(
            "headers has {found} entries, but at most {HEADERS_MAX} are allowed"
        )));
    }
    let mut text = String::new();
    for (name, value) in headers {
        let breaks = |text: &str| text.contains(['\r', '\n']);
        if name.is_empty() || name.contains(':') || breaks(name) || breaks(value) {
            return Err(bad_request(&format!(
                "header {name:?}: a name is not empty and has no colon, and neither name nor value has a line break"
            )));
        }
        text.extend([name, ":", value, "\r\n"]);
    }
    Ok(text)
}

fn describe(router: String, test: RouteTest) -> RouterTestAnswer {
    let steps = test.steps.into_iter().map(|step| RouterStepAnswer {
        binding: (!step.binding.is_empty()).then(|| step.binding.into()),
        target: step.target.to_string(),
        takes: step.takes,
        why: step.why,
    });
    RouterTestAnswer {
        router,
        method: test.method.as_str(),
        taken: test.refusal.is_none(),
        refusal: test.refusal.map(|refusal| refusal.reason.into_owned()),
        steps: steps.collect(),
        skipped: test.skipped.into_iter().map(Into::into).collect(),
    }
}
