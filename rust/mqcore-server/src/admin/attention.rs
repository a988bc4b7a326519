//! `GET /attention`: what needs an operator's attention; `GET /healthz`: whether that is critical.

use std::time::Duration;

use axum::Json;
use axum::extract::State;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use mqcore_broker::model::time::Timestamp;

use crate::admin::answers::{AttentionAnswer, ErrorAnswer, FindingAnswer, HealthAnswer};
use crate::admin::parameters::LimitParameter;
use crate::admin::request::{Admin, error, list_limit};
use crate::attention::finding::{FindingKind, Severity};
use crate::attention::state::{Report, Reported};

/// Age of the last round at which the broker is not healthy, because a shard does not answer.
const ROUND_MAX: Duration = Duration::from_secs(30);

/// Asks no shard, so it answers even while shards are stuck.
#[utoipa::path(
    get,
    path = "/attention",
    tag = "health",
    params(LimitParameter),
    responses(
        (status = 200, description = "Findings, the most severe first", body = AttentionAnswer),
        (status = 400, description = "A wrong parameter or body", body = ErrorAnswer),
    )
)]
pub(crate) async fn answer(State(admin): State<Admin>, uri: Uri) -> Response {
    let limit = match list_limit(&uri) {
        Ok(limit) => limit,
        Err(response) => return response,
    };
    Json(describe(&admin.hub.attention.report(), limit)).into_response()
}

/// 503 while there is a critical finding, or the shards do not answer. A broker that is not healthy may still be ready:
/// restarting it repairs few of the findings, so this is for monitoring, not for liveness probes.
#[utoipa::path(
    get,
    path = "/healthz",
    tag = "health",
    responses(
        (status = 200, description = "Nothing is critical", body = HealthAnswer),
    )
)]
pub(crate) async fn health(State(admin): State<Admin>) -> Response {
    let report = admin.hub.attention.report();
    // A shard may hang before the first check, too.
    let age = match report.made_at {
        Timestamp(0) => admin.started.elapsed(),
        made_at => admin.hub.clock.now().since(made_at),
    };
    if age > ROUND_MAX {
        let message = format!("a shard has not answered for {} s", age.as_secs());
        return error(StatusCode::SERVICE_UNAVAILABLE, "stuck", &message);
    }
    let status = if report.worst() == Some(Severity::Critical) {
        StatusCode::SERVICE_UNAVAILABLE
    } else {
        StatusCode::OK
    };
    (status, Json(HealthAnswer { status: status_of(&report), summary: summary(&report) })).into_response()
}

pub(super) fn describe(report: &Report, limit: usize) -> AttentionAnswer {
    let counts = FindingKind::ALL.into_iter().map(|kind| (kind.as_str(), report.count(kind)));
    AttentionAnswer {
        status: status_of(report),
        summary: summary(report),
        checked_at_ms: report.made_at.0,
        total: report.findings.len(),
        counts: counts.filter(|(_, count)| *count > 0).collect(),
        findings: report.findings.iter().take(limit).map(FindingAnswer::from).collect(),
        limit,
    }
}

fn status_of(report: &Report) -> &'static str {
    match report.worst() {
        _ if report.made_at.0 == 0 => "starting",
        None | Some(Severity::Info) => "healthy",
        Some(severity) => severity.as_str(),
    }
}

/// The state in one sentence.
fn summary(report: &Report) -> String {
    if report.made_at.0 == 0 {
        return "The first check is not done yet.".into();
    }
    let Some(Reported { finding, .. }) = report.findings.first() else { return "Healthy.".into() };
    let others = match report.findings.len() - 1 {
        0 => String::new(),
        1 => " One more finding.".into(),
        more => format!(" {more} more findings."),
    };
    format!("{}: {}.{others}", finding.subject, finding.cause)
}
