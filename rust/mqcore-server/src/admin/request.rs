//! Common parts of all admin pages: the broker, the caller, shared parameters and errors.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::{Duration, Instant};

use axum::extract::{FromRequestParts, Path};
use axum::http::request::Parts;
use axum::http::{StatusCode, Uri};
use axum::response::{IntoResponse, Response};
use axum::{Extension, Json};
use mqcore_authority::action::Action;
use mqcore_authority::login::Identity;
use mqcore_authority::resource::Resource;
use mqcore_broker::model::client::Peer;
use mqcore_broker::model::stats::ShardStats;
use percent_encoding::percent_decode_str;
use tokio::sync::Semaphore;

use crate::admin::answers::ErrorAnswer;
use crate::admin::dashboard::DashboardFiles;
use crate::authority::admission;
use crate::config::Config;
use crate::config::address::Listening;
use crate::config::mask::MaskConfig;
use crate::handler::HandlerPort;
use crate::hub::Hub;
use crate::stats::snapshot;
use crate::storage::history::{HistoryDir, StoreAccess};

/// How long shards may take to answer.
pub(crate) const SHARD_TIMEOUT: Duration = Duration::from_secs(1);

/// Entries of each list of the overview: default and maximum.
const LIST_LIMIT: (usize, usize) = (100, 10_000);

/// Maximum streams at the same time. Each costs a page of queues a second.
const STREAMS_MAX: usize = 64;

/// State available to every admin page.
#[derive(Clone)]
pub(crate) struct Admin {
    pub(crate) hub: Arc<Hub>,
    pub(crate) handlers: Arc<dyn HandlerPort>,
    /// `None`: there is no data directory.
    pub(crate) history: Option<Arc<HistoryDir>>,
    pub(crate) listeners: Arc<[Listening]>,
    pub(crate) started: Instant,
    pub(crate) dashboard: Arc<DashboardFiles>,
    pub(crate) mask: Arc<MaskConfig>,
    /// Places of streams.
    pub(crate) streams: Arc<Semaphore>,
}

impl Admin {
    pub(crate) fn new(
        hub: &Arc<Hub>,
        handlers: &Arc<dyn HandlerPort>,
        listeners: Vec<Listening>,
        config: &Config,
    ) -> Self {
        // The broker has just opened this directory itself and reported any problem with it.
        let history = config
            .data_dir
            .as_deref()
            .and_then(|path| HistoryDir::open(path, &StoreAccess::default()).ok())
            .map(Arc::new);
        Self {
            hub: Arc::clone(hub),
            handlers: Arc::clone(handlers),
            history,
            listeners: listeners.into(),
            started: Instant::now(),
            dashboard: Arc::new(DashboardFiles::read(config.dashboard_dir.as_deref())),
            mask: Arc::new(config.mask.clone()),
            streams: Arc::new(Semaphore::new(STREAMS_MAX)),
        }
    }
}

/// The address of the caller, and what its connection says about it.
#[derive(Clone)]
pub(crate) struct Caller(pub(crate) SocketAddr, pub(crate) Arc<Peer>);

/// The caller of a request that changes something, for permissions and audit lines.
pub(crate) struct Operator {
    pub(crate) identity: Arc<Identity>,
    pub(crate) address: SocketAddr,
    /// The page of the request, with its leading slash.
    pub(crate) page: String,
}

impl Operator {
    /// Writes an audit line about what the request does beyond its page, or why that is denied.
    pub(crate) fn note(&self, admin: &Admin, what: (Action, &Resource<'_>), denied: Option<&str>) {
        admission::note_request(&admin.hub, self.address, &self.identity, what, denied);
    }
}

impl<S: Send + Sync> FromRequestParts<S> for Operator {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let Extension(identity) =
            Extension::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
        let Extension(Caller(address, _)) =
            Extension::from_request_parts(parts, state).await.map_err(IntoResponse::into_response)?;
        Ok(Self { identity, address, page: parts.uri.path().to_owned() })
    }
}

/// Whether this caller may read everything that is saved. Once users exist, [`guard`](super::guard) has already checked that
/// the caller may administer the page. Before that, only callers on the broker's own machine may.
pub(crate) fn may_read_everything(admin: &Admin, caller: &Caller) -> bool {
    !admin.hub.authority.is_open() || caller.0.ip().is_loopback()
}

/// The part of the path that varies. Another path gets an error in the form of all errors.
pub(crate) struct PathText(pub(crate) String);

impl<S: Send + Sync> FromRequestParts<S> for PathText {
    type Rejection = Response;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, Response> {
        let path = Path::<String>::from_request_parts(parts, state).await;
        path.map(|Path(text)| Self(text)).map_err(|refused| bad_request(&refused.body_text()))
    }
}

/// An error as every page reports it: `{"error": {"code": ..., "message": ...}}`.
pub(crate) fn error(status: StatusCode, code: &str, message: &str) -> Response {
    (status, Json(ErrorAnswer::new(code, message))).into_response()
}

pub(crate) fn busy() -> Response {
    error(StatusCode::SERVICE_UNAVAILABLE, "busy", "a shard did not answer within a second")
}

/// A snapshot of all shards, with up to `limit` entries of each list; an error if one does not answer within
/// [`SHARD_TIMEOUT`].
pub(crate) async fn look(admin: &Admin, limit: usize) -> Result<ShardStats, Response> {
    tokio::time::timeout(SHARD_TIMEOUT, snapshot::take(&admin.hub, limit)).await.map_err(|_| busy())
}

/// The value of a query parameter. Percent escapes are not decoded: values are plain words and numbers.
pub(crate) fn parameter<'a>(uri: &'a Uri, name: &str) -> Option<&'a str> {
    uri.query()?.split('&').find_map(|pair| {
        let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
        (key == name).then_some(value)
    })
}

/// An error in a parameter.
pub(crate) fn bad_request(message: &str) -> Response {
    error(StatusCode::BAD_REQUEST, "bad-request", message)
}

/// The number in a query parameter, at most `max`.
#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
pub(crate) fn number(uri: &Uri, name: &str, default: usize, max: usize) -> Result<usize, Response> {
    match parameter(uri, name).map(str::parse::<usize>) {
        None => Ok(default),
        Some(Ok(number)) => Ok(number.min(max)),
        Some(Err(_)) => Err(bad_request(&format!("{name} is a number, such as ?{name}={default}"))),
    }
}

/// Whether a query parameter is 1; it may also be 0 or missing.
#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
pub(crate) fn flag(uri: &Uri, name: &str) -> Result<bool, Response> {
    match parameter(uri, name) {
        None | Some("0") => Ok(false),
        Some("1") => Ok(true),
        Some(_) => Err(bad_request(&format!("{name} is 1 or 0"))),
    }
}

/// The text of the parameter `filter` in lower case, with percent escapes decoded; empty if there is none.
#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
pub(crate) fn filter(uri: &Uri) -> Result<String, Response> {
    let text = percent_decode_str(parameter(uri, "filter").unwrap_or_default()).decode_utf8();
    text.map(|text| text.to_lowercase()).map_err(|_| bad_request("filter is not UTF-8"))
}

/// The requested number of entries of a list.
#[expect(clippy::result_large_err, reason = "the error is the answer to the request")]
pub(crate) fn list_limit(uri: &Uri) -> Result<usize, Response> {
    match parameter(uri, "limit").map(str::parse::<usize>) {
        None => Ok(LIST_LIMIT.0),
        Some(Ok(limit)) => Ok(limit.min(LIST_LIMIT.1)),
        Some(Err(_)) => {
            let message = "limit is a number of entries, such as ?limit=100";
            Err(error(StatusCode::BAD_REQUEST, "bad-request", message))
        }
    }
}
