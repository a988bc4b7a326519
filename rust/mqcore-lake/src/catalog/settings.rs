//! Which catalog an archive uses, and its settings. They are options whose names begin with `catalog`.

use std::collections::BTreeMap;
use std::sync::Arc;

use url::Url;

use super::rest::{Login, RestClient, RestSettings};
use super::sql::SqlSettings;
use crate::error::LakeError;
use crate::store::without_credentials;

/// Prefix of the environment variables of settings that are not given as options, such as `ICEBERG_CATALOG_TOKEN`.
const VARIABLES: &str = "ICEBERG_";
/// Name of a SQL catalog that has no other one.
const CATALOG_NAME: &str = "mqcore";
/// The options, besides `catalog` itself.
const NAMES: [&str; 7] = [
    "catalog_credential",
    "catalog_name",
    "catalog_namespace",
    "catalog_oauth2_server_uri",
    "catalog_scope",
    "catalog_token",
    "catalog_warehouse",
];

/// The catalog of an archive.
#[derive(Debug, Clone, Default)]
pub(crate) enum CatalogSettings {
    /// The object store itself.
    #[default]
    Objects,
    /// A server of Iceberg's REST protocol.
    Rest(Arc<RestClient>),
    /// A SQL database.
    Sql(Arc<SqlSettings>),
}

/// Whether an option belongs to the catalog, and not to the object store.
pub(crate) fn is_of_catalog(option: &str) -> bool {
    option.to_lowercase().starts_with("catalog")
}

impl CatalogSettings {
    /// Reads the options of an archive at `url`. Sends no request. `variables` are used where the environment has none of
    /// this name.
    ///
    /// # Errors
    /// [`LakeError::Url`] if an option is unknown or invalid.
    pub(crate) fn new(
        url: &str,
        options: &BTreeMap<String, String>,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, LakeError> {
        let invalid = |why: String| LakeError::Url { url: url.to_owned(), why };
        let given: BTreeMap<String, &str> =
            options.iter().map(|(name, value)| (name.to_lowercase(), value.as_str())).collect();
        if let Some(name) = given.keys().find(|name| *name != "catalog" && !NAMES.contains(&name.as_str())) {
            return Err(invalid(format!(
                "the option {name:?} is unknown; use catalog or {}",
                NAMES.join(", ")
            )));
        }
        let value = |name: &str| {
            let variable = || {
                let name = format!("{VARIABLES}{}", name.to_uppercase());
                std::env::var(&name).ok().or_else(|| variables.get(&name).cloned())
            };
            given
                .get(name)
                .map(|value| (*value).to_owned())
                .or_else(variable)
                .filter(|value| !value.is_empty())
        };
        let Some(catalog) = value("catalog") else {
            return match given.keys().next() {
                Some(name) => Err(invalid(format!("the option {name:?} needs the option \"catalog\""))),
                None => Ok(Self::Objects),
            };
        };
        let parsed = Url::parse(&catalog).map_err(|error| invalid(format!("invalid catalog: {error}")))?;
        let Some(namespace) = value("catalog_namespace").or_else(|| last_segment(url)) else {
            return Err(invalid(
                "set the option catalog_namespace: the URL has no path to name it after".to_owned(),
            ));
        };
        match parsed.scheme() {
            "http" | "https" => {
                let settings = RestSettings {
                    url: catalog.trim_end_matches('/').to_owned(),
                    warehouse: value("catalog_warehouse"),
                    namespace: namespace.split('.').map(str::to_owned).collect(),
                    login: login(&value).map_err(invalid)?,
                };
                RestClient::new(settings).map(|client| Self::Rest(Arc::new(client))).map_err(invalid)
            }
            "sqlite" | "postgresql" | "postgres" => {
                let shown = without_credentials(&catalog);
                let name = value("catalog_name").unwrap_or_else(|| CATALOG_NAME.to_owned());
                let url = match parsed.scheme() {
                    "sqlite" if parsed.query().is_none() => format!("{catalog}?mode=rwc"),
                    _ => catalog,
                };
                Ok(Self::Sql(Arc::new(SqlSettings { url, shown, catalog: name, namespace })))
            }
            scheme => Err(invalid(format!(
                "the catalog's scheme {scheme:?} is not supported; use http or https for a REST catalog, and sqlite or \
                 postgresql for a SQL catalog"
            ))),
        }
    }
}

/// Returns how to log in to a REST catalog.
fn login(value: &dyn Fn(&str) -> Option<String>) -> Result<Login, String> {
    match (value("catalog_token"), value("catalog_credential")) {
        (Some(_), Some(_)) => Err("use either catalog_token or catalog_credential, not both".to_owned()),
        (Some(token), None) => Ok(Login::Token(token)),
        (None, Some(credential)) => Ok(Login::Credential {
            credential,
            scope: value("catalog_scope").unwrap_or_else(|| "catalog".to_owned()),
            server: value("catalog_oauth2_server_uri"),
        }),
        (None, None) => Ok(Login::None),
    }
}

/// Returns the last part of a URL's path, under which Iceberg's Hadoop catalog finds the tables as well.
fn last_segment(url: &str) -> Option<String> {
    let parsed = Url::parse(url).ok()?;
    parsed.path_segments()?.rfind(|segment| !segment.is_empty()).map(|segment| segment.replace('.', "_"))
}
