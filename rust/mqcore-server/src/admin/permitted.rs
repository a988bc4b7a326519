//! Requests that outlast the permission of their caller: bodies that come late, and responses that take long.

use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use axum::body::{Body, Bytes, HttpBody, to_bytes};
use axum::extract::Request;
use axum::http::StatusCode;
use axum::response::Response;
use hyper::body::{Frame, SizeHint};
use mqcore_authority::login::Identity;

use crate::admin::request::{bad_request, error};
use crate::hub::Hub;

/// Time for the body of a request. Meanwhile it has the place of another one.
const BODY_TIMEOUT: Duration = Duration::from_secs(10);
/// Maximum bytes of the body of any request. Single requests allow less.
const BODY_BYTES_MAX: usize = 2 << 20;

/// Receives the body of a request that changes something, so that its caller can be checked afterwards.
pub(super) async fn with_body(request: Request) -> Result<Request, Response> {
    let (head, body) = request.into_parts();
    match tokio::time::timeout(BODY_TIMEOUT, to_bytes(body, BODY_BYTES_MAX)).await {
        Ok(Ok(bytes)) => Ok(Request::from_parts(head, Body::from(bytes))),
        Ok(Err(refused)) => Err(bad_request(&format!("the body: {refused}"))),
        Err(_) => {
            let message = "the body of the request is not complete after 10 s";
            Err(error(StatusCode::REQUEST_TIMEOUT, "timeout", message))
        }
    }
}

/// A response that fails when its caller may no longer read it.
pub(super) struct PermittedBody {
    body: Body,
    hub: Arc<Hub>,
    /// `None`: there were no users, so that anyone could read.
    identity: Option<Arc<Identity>>,
}

impl PermittedBody {
    pub(super) fn new(body: Body, hub: Arc<Hub>, identity: Option<Arc<Identity>>) -> Self {
        Self { body, hub, identity }
    }
}

impl HttpBody for PermittedBody {
    type Data = Bytes;
    type Error = axum::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, axum::Error>>> {
        if !self.hub.authority.still_admits(self.identity.as_deref(), self.hub.clock.expiry_ms()) {
            return Poll::Ready(Some(Err(axum::Error::new("the credentials are no longer valid"))));
        }
        Pin::new(&mut self.body).poll_frame(context)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
