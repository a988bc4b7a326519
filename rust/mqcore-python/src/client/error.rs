//! Converts the client's errors to the exceptions of `mqcore.errors`, with the client's texts.

use mqcore_client::error::{ClientError, Refusal, StatusMeaning};
use pyo3::prelude::*;

use crate::error::{BadFrame, TooLarge};

pyo3::import_exception!(mqcore.errors, AlreadyExists);
pyo3::import_exception!(mqcore.errors, AuthFailed);
pyo3::import_exception!(mqcore.errors, BadAnswer);
pyo3::import_exception!(mqcore.errors, BadRequest);
pyo3::import_exception!(mqcore.errors, Busy);
pyo3::import_exception!(mqcore.errors, CertificateError);
pyo3::import_exception!(mqcore.errors, ConfirmTimeout);
pyo3::import_exception!(mqcore.errors, ConnectFailed);
pyo3::import_exception!(mqcore.errors, ConnectionLost);
pyo3::import_exception!(mqcore.errors, Draining);
pyo3::import_exception!(mqcore.errors, HandshakeError);
pyo3::import_exception!(mqcore.errors, InvalidArgument);
pyo3::import_exception!(mqcore.errors, LimitExceeded);
pyo3::import_exception!(mqcore.errors, Nacked);
pyo3::import_exception!(mqcore.errors, NoAgreement);
pyo3::import_exception!(mqcore.errors, NotFound);
pyo3::import_exception!(mqcore.errors, NotSupported);
pyo3::import_exception!(mqcore.errors, OperationError);
pyo3::import_exception!(mqcore.errors, QueueStopped);
pyo3::import_exception!(mqcore.errors, RequestTimeout);
pyo3::import_exception!(mqcore.errors, SendError);
pyo3::import_exception!(mqcore.errors, TLSError);
pyo3::import_exception!(mqcore.errors, Unacceptable);
pyo3::import_exception!(mqcore.errors, Unauthorized);
pyo3::import_exception!(mqcore.errors, VersionMismatch);

/// The exception for `failed`.
pub(crate) fn client(failed: ClientError) -> PyErr {
    let text = failed.to_string();
    match failed {
        ClientError::ConnectFailed { .. } => ConnectFailed::new_err(text),
        ClientError::ConnectionLost { sent, .. } => ConnectionLost::new_err((text, sent)),
        ClientError::Closed => Draining::new_err(text),
        ClientError::Tls { reason, .. } if reason.is_about_certificates() => {
            CertificateError::new_err((text, reason.as_str()))
        }
        ClientError::Tls { reason, .. } => TLSError::new_err((text, reason.as_str())),
        ClientError::VersionMismatch { .. } | ClientError::WidthMismatch { .. } => {
            VersionMismatch::new_err(text)
        }
        ClientError::AuthFailed { .. } => AuthFailed::new_err(text),
        ClientError::NoAgreement { .. } => NoAgreement::new_err(text),
        ClientError::HandshakeRefused { .. } => HandshakeError::new_err(text),
        ClientError::BadFrame(_) => BadFrame::new_err(text),
        ClientError::TooLarge { limit, .. } => TooLarge::new_err((text, limit)),
        ClientError::Refused(refusal) => refused(text, &refusal),
        ClientError::Nacked { target, reason } => {
            Nacked::new_err((text, reason.to_string(), target.to_string()))
        }
        ClientError::ConfirmTimeout { .. } => ConfirmTimeout::new_err(text),
        ClientError::RequestTimeout { .. } => RequestTimeout::new_err(text),
        ClientError::BadAnswer { .. } => BadAnswer::new_err(text),
        ClientError::InvalidArgument { .. } => InvalidArgument::new_err(text),
        ClientError::NotSupported { .. } => NotSupported::new_err(text),
        other => OperationError::new_err(other.to_string()),
    }
}

/// One class for each known status.
fn refused(text: String, refusal: &Refusal) -> PyErr {
    let arguments = (text, refusal.code, refusal.target.to_string());
    match refusal.status() {
        StatusMeaning::BadRequest => BadRequest::new_err(arguments),
        StatusMeaning::Unauthorized => Unauthorized::new_err(arguments),
        StatusMeaning::NotFound => NotFound::new_err(arguments),
        StatusMeaning::Unacceptable => Unacceptable::new_err(arguments),
        StatusMeaning::AlreadyExists => AlreadyExists::new_err(arguments),
        StatusMeaning::LimitExceeded => LimitExceeded::new_err(arguments),
        StatusMeaning::Busy => Busy::new_err(arguments),
        StatusMeaning::SendError => SendError::new_err(arguments),
        StatusMeaning::QueueStopped => QueueStopped::new_err(arguments),
        StatusMeaning::Failed => OperationError::new_err(arguments),
    }
}
