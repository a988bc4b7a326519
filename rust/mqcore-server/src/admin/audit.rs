//! `GET /audit`: the latest lines of the audit log.

use axum::Json;
use axum::extract::State;
use axum::http::Uri;
use axum::response::{IntoResponse, Response};
use mqcore_authority::audit::{AuditEvent, AuditOutcome, AuditRecord};
use serde::Serialize;
use utoipa::ToSchema;

use crate::admin::answers::ErrorAnswer;
use crate::admin::parameters::LimitParameter;
use crate::admin::request::{Admin, list_limit};
use crate::authority::audit::RECENT_MAX;

/// The latest lines of the audit log.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditAnswer {
    /// The newest first, at most 1,000 since the start.
    lines: Vec<AuditLineAnswer>,
    /// Lines that were not written because the disk was too slow.
    lost: u64,
    limit: usize,
}

/// A line of the audit log.
#[derive(Serialize, ToSchema)]
pub(crate) struct AuditLineAnswer {
    /// Time in Unix milliseconds.
    time_ms: u64,
    /// `login`, `action`, `revoked`, `reload` or `lost`.
    event: &'static str,
    /// `allowed` or `denied`.
    verdict: &'static str,
    /// The name of the user or token; null for a rejected login.
    who: Option<String>,
    /// The source of the identity: `user`, `token`, `anonymous`, `authenticator` or `open`.
    by: Option<&'static str>,
    /// The client's id.
    client: Option<String>,
    /// The number of its connection.
    connection: Option<u64>,
    /// Its address with the port.
    address: Option<String>,
    protocol: Option<&'static str>,
    action: Option<&'static str>,
    /// The object of the action.
    resource: Option<String>,
    /// The reason of a denial.
    why: Option<String>,
    /// Number of closed connections or lost lines.
    count: Option<u64>,
}

#[utoipa::path(
    get,
    path = "/audit",
    tag = "security",
    params(LimitParameter),
    responses(
        (status = 200, description = "The latest lines of the audit log", body = AuditAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>, uri: Uri) -> Response {
    let limit = match list_limit(&uri) {
        Ok(limit) => limit.min(RECENT_MAX),
        Err(response) => return response,
    };
    let audit = &admin.hub.authority.audit;
    let lines = audit.recent(limit).into_iter().map(describe).collect();
    Json(AuditAnswer { lines, lost: audit.lost(), limit }).into_response()
}

fn describe(line: AuditRecord) -> AuditLineAnswer {
    AuditLineAnswer {
        time_ms: line.time_ms,
        event: match line.event {
            AuditEvent::Login => "login",
            AuditEvent::Action => "action",
            AuditEvent::Revoked => "revoked",
            AuditEvent::Reload => "reload",
            AuditEvent::Lost => "lost",
        },
        verdict: match line.verdict {
            AuditOutcome::Allowed => "allowed",
            AuditOutcome::Denied => "denied",
        },
        who: line.who.map(Into::into),
        by: line.by,
        client: line.client.map(Into::into),
        connection: line.connection,
        address: line.address,
        protocol: line.protocol,
        action: line.action,
        resource: line.resource,
        why: line.why,
        count: line.count,
    }
}
