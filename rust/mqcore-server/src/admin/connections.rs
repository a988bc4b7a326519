//! `GET /connections`: connected clients of all protocols, filtered and paged here.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::stats::ClientInformation;

use crate::admin::answers::{ConnectionAnswer, ConnectionsAnswer, ErrorAnswer};
use crate::admin::parameters::PageParameters;
use crate::admin::request::{Admin, filter, list_limit, look, number};

#[utoipa::path(
    get,
    path = "/connections",
    tag = "connections",
    params(PageParameters),
    responses(
        (status = 200, description = "A page of clients", body = ConnectionsAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>, uri: Uri) -> Response {
    match page(&admin, &uri).await {
        Ok(page) => Json(page).into_response(),
        Err(response) => response,
    }
}

/// A page of clients, the longest connected first.
async fn page(admin: &Admin, uri: &Uri) -> Result<ConnectionsAnswer, Response> {
    let (limit, offset) = (list_limit(uri)?, number(uri, "offset", 0, usize::MAX)?);
    let filter = filter(uri)?;
    let mut clients = look(admin, usize::MAX).await?.clients;
    let total = clients.len();
    clients.retain(|information| matches(information, &filter));
    clients.sort_unstable_by_key(|information| std::cmp::Reverse(information.online_ms));
    Ok(ConnectionsAnswer {
        total,
        matched: clients.len(),
        offset,
        limit,
        connections: clients.iter().skip(offset).take(limit).map(describe).collect(),
    })
}

fn matches(information: &ClientInformation, filter: &str) -> bool {
    let client = &information.client;
    let texts = [
        Some(&*client.id),
        client.name.as_deref(),
        client.kind.as_deref(),
        client.user.as_deref(),
        Some(client.protocol),
    ];
    texts.into_iter().flatten().any(|text| text.to_lowercase().contains(filter))
}

fn describe(information: &ClientInformation) -> ConnectionAnswer {
    let client = &information.client;
    ConnectionAnswer {
        id: client.id.to_string(),
        name: client.name.as_deref().map(Into::into),
        r#type: client.kind.as_deref().map(Into::into),
        protocol: client.protocol,
        user: client.user.as_deref().map(Into::into),
        connection: client.connection.0,
        online_seconds: information.online_ms as f64 / 1000.0,
    }
}
