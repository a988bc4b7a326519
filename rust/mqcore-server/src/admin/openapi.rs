//! `GET /openapi.json`: the documentation of the admin side for programs, made from the handlers and their types.

use axum::Json;
use utoipa::OpenApi;
use utoipa::openapi::content::ContentBuilder;
use utoipa::openapi::path::Operation;
use utoipa::openapi::response::ResponseBuilder;
use utoipa::openapi::security::{Http, HttpAuthScheme, SecurityRequirement, SecurityScheme};
use utoipa::openapi::{PathItem, Ref, RefOr};

use crate::admin::answers::ErrorAnswer;
use crate::admin::{
    access, attention, backup, changes, connections, handlers, history, overview, queue, queues, schedules,
    stream, trace, users,
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
        super::metrics_page,
        super::reload_authority,
        access::answer,
        attention::answer,
        attention::health,
        backup::download,
        changes::disconnect,
        changes::discard,
        changes::drain,
        changes::move_messages,
        changes::purge,
        changes::remove_queue,
        changes::set_status,
        connections::answer,
        handlers::stack,
        history::answer,
        overview::errors_page,
        overview::overview,
        queue::answer,
        queue::messages,
        queues::answer,
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

fn operations(item: &mut PathItem) -> impl Iterator<Item = &mut Operation> {
    [&mut item.get, &mut item.post, &mut item.delete].into_iter().flatten()
}

/// The document. Credentials are optional until there are users, except for changes.
pub(crate) fn document() -> utoipa::openapi::OpenApi {
    let mut document = Documentation::openapi();
    let components = document.components.get_or_insert_default();
    for (name, scheme) in [("token", HttpAuthScheme::Bearer), ("password", HttpAuthScheme::Basic)] {
        components.add_security_scheme(name, SecurityScheme::Http(Http::new(scheme)));
    }
    let error = RefOr::from(Ref::from_schema_name("ErrorAnswer"));
    for item in document.paths.paths.values_mut() {
        for operation in operations(item) {
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
