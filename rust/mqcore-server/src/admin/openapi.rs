//! `GET /openapi.json`: the documentation of the admin side for programs, made from the handlers and their types.

use axum::Json;
use utoipa::OpenApi;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{PathItem, Ref, RefOr, Schema};

use crate::admin::answers::ErrorAnswer;
use crate::admin::{
    access, attention, audit, backup, cancellation, changes, connections, credentials, handlers, history,
    jobs, limits, overview, policies, queue, queues, routers, schedules, stream, trace, users,
};

#[derive(OpenApi)]
#[openapi(
    info(
        title = "mqcore admin API",
        description = "Health, contents and changes of a broker. docs/operations.md explains it."
    ),
    paths(
        super::livez,
        super::readyz,
        super::cluster::answer,
        super::metrics_page,
        super::reload_authority,
        access::answer,
        attention::answer,
        attention::health,
        audit::answer,
        backup::download,
        cancellation::cancel,
        changes::disconnect,
        changes::discard,
        changes::drain,
        changes::move_messages,
        changes::purge,
        changes::remove_queue,
        changes::set_status,
        connections::answer,
        credentials::add_user,
        credentials::create_token,
        credentials::remove_user,
        credentials::revoke_token,
        credentials::set_password,
        handlers::stack,
        history::answer,
        jobs::answer,
        limits::list,
        limits::remove,
        limits::set,
        overview::errors_page,
        overview::overview,
        policies::list,
        policies::remove,
        policies::set,
        queue::answer,
        queue::messages,
        queues::answer,
        routers::test,
        schedules::end,
        schedules::list,
        stream::stream,
        stream::totals,
        trace::answer,
        users::answer,
    ),
    components(schemas(ErrorAnswer))
)]
struct Documentation;

/// Errors of every request.
const COMMON: [(&str, &str); 5] = [
    ("401", "No or wrong credentials"),
    ("403", "Not allowed"),
    ("405", "Another method"),
    ("429", "Too many wrong passwords"),
    ("503", "Busy or stopping"),
];

/// Members of answers that are missing if they have no value. All others are always present, if need be as null.
const OMITTED: [(&str, &str); 7] = [
    ("ContentAnswer", "body"),
    ("ContentAnswer", "body_base64"),
    ("ReadyAnswer", "archive"),
    ("ReadyAnswer", "backup"),
    ("ReadyAnswer", "queues_without_handler"),
    ("TickAnswer", "queue"),
    ("TickAnswer", "queues"),
];

/// Documents that an answer has all of its members. The derived schema takes each `Option` for one that may be missing.
fn require_members(name: &str, schema: &mut RefOr<Schema>) {
    let RefOr::T(Schema::Object(object)) = schema else { return };
    for member in object.properties.keys() {
        if !OMITTED.contains(&(name, member)) && !object.required.contains(member) {
            object.required.push(member.clone());
        }
    }
}

/// The operations of a path, each with its method.
fn operations(item: &mut PathItem) -> impl Iterator<Item = (&'static str, &mut Operation)> {
    let found = [("get", &mut item.get), ("post", &mut item.post), ("delete", &mut item.delete)];
    found.into_iter().filter_map(|(method, operation)| Some((method, operation.as_mut()?)))
}

/// A name of an operation that no other one has, such as `get_queues_channel_id`, for generated clients.
fn operation_id(method: &str, path: &str) -> String {
    let words = path.split(|character: char| !character.is_alphanumeric()).filter(|word| !word.is_empty());
    std::iter::once(method).chain(words).collect::<Vec<_>>().join("_")
}

/// The document. Credentials are optional until there are users, except for changes.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    let mut document = Documentation::openapi();
    let components = document.components.get_or_insert_default();
    for (name, scheme) in [("token", HttpAuthScheme::Bearer), ("password", HttpAuthScheme::Basic)] {
        components.add_security_scheme(name, SecurityScheme::Http(Http::new(scheme)));
    }
    for (name, schema) in &mut components.schemas {
        // Callers may leave out members of what they send.
        if !name.ends_with("Body") {
            require_members(name, schema);
        }
    }
    let error = RefOr::from(Ref::from_schema_name("ErrorAnswer"));
    for (path, item) in &mut document.paths.paths {
        for (method, operation) in operations(item) {
            operation.operation_id = Some(operation_id(method, path));
            for (status, description) in COMMON {
                let content = ContentBuilder::new().schema(Some(error.clone())).build();
                let response = ResponseBuilder::new()
                    .description(description)
                    .content("application/json", content)
                    .build();
                operation.responses.responses.entry(status.into()).or_insert_with(|| response.into());
            }
        }
    }
    let nothing: [&str; 0] = [];
    document.security = Some(vec![
        SecurityRequirement::new("token", nothing),
        SecurityRequirement::new("password", nothing),
        SecurityRequirement::default(),
    ]);
    document
}

pub(crate) async fn answer() -> Json<utoipa::openapi::OpenApi> {
    Json(document())
}
