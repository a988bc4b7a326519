//! Settings for users, tokens and the audit log.

use std::path::PathBuf;

use mqcore_authority::audit::AuditDetail;
use mqcore_authority::record::{Records, Token, User};
use mqcore_authority::rule::PermissionRule;
use serde::Deserialize;

use super::audit::AuditTarget;
use super::store::StoreError;

/// Users, tokens and the audit log.
#[derive(Debug, Clone, Default)]
pub struct AuthorityConfig {
    /// Users, tokens and rules of the configuration, in addition to those of the store. Default none.
    pub records: Records,
    /// The file of users and tokens that the command line changes. Default `authority.json` in the data directory;
    /// without a data directory there is none.
    pub store: Option<PathBuf>,
    /// Destination of audit lines. Default `audit.jsonl` in the data directory; without one, standard error.
    pub audit: Option<AuditTarget>,
    /// Which lines are written. Default: denied requests, and logins.
    pub audit_detail: AuditDetail,
}

/// Settings as in the configuration, all optional.
#[derive(Default, Deserialize)]
#[serde(default, deny_unknown_fields)]
struct Settings {
    users: Vec<User>,
    tokens: Vec<Token>,
    anonymous: Vec<PermissionRule>,
    store: Option<PathBuf>,
    audit: Option<String>,
    audit_allowed: bool,
}

/// Reads settings from JSON: `users`, `tokens`, `anonymous`, `store`, `audit` (a path, `stderr` or `off`),
/// `audit_allowed`.
///
/// # Errors
/// [`StoreError`] for an invalid setting.
pub fn settings(text: &str) -> Result<AuthorityConfig, StoreError> {
    let settings: Settings =
        serde_json::from_str(text).map_err(|error| StoreError::Setting(error.to_string()))?;
    let records = Records { users: settings.users, tokens: settings.tokens, anonymous: settings.anonymous };
    records.check()?;
    let audit = settings.audit.map(|target| match target.as_str() {
        "stderr" => AuditTarget::Stderr,
        "off" => AuditTarget::Off,
        path => AuditTarget::File(path.into()),
    });
    let audit_detail = if settings.audit_allowed { AuditDetail::All } else { AuditDetail::Denied };
    Ok(AuthorityConfig { records, store: settings.store, audit, audit_detail })
}
