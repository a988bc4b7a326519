//! A catalog server with Iceberg's REST protocol, such as Polaris, Lakekeeper, Nessie or Unity Catalog.
//!
//! The server writes the metadata files. A commit sends the difference to the current metadata, on the condition that the
//! table still has the same snapshot.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use iceberg::spec::{MAIN_BRANCH, TableMetadata};
use iceberg::{TableRequirement, TableUpdate};
use reqwest::{Method, StatusCode};
use serde::Deserialize;
use serde_json::{Value, json};
use tokio::sync::Mutex;
use url::form_urlencoded;

use super::versioned::Versioned;
use crate::error::LakeError;

/// Time limit of one request. A commit may take a server long.
const REQUEST: Duration = Duration::from_secs(60);
/// Separates the parts of a namespace in URLs, unless the server chooses another one.
const SEPARATOR: &str = "%1F";
/// Number of bytes of an answer that an error shows.
const SHOWN: usize = 300;

/// How to log in.
#[derive(Clone)]
pub(crate) enum Login {
    None,
    Token(String),
    /// `id:secret` for OAuth 2, with the server that issues tokens unless it is the catalog itself.
    Credential {
        credential: String,
        scope: String,
        server: Option<String>,
    },
}

/// Settings of a REST catalog.
#[derive(Clone)]
pub(crate) struct RestSettings {
    /// Without a slash at the end.
    pub(crate) url: String,
    pub(crate) warehouse: Option<String>,
    pub(crate) namespace: Vec<String>,
    pub(crate) login: Login,
}

/// URLs and token of a server, after a login.
#[derive(Debug, Clone)]
struct Session {
    /// URL of the namespace's tables.
    tables: String,
    /// URL of all namespaces.
    namespaces: String,
    token: Option<String>,
}

/// The connection to a REST catalog, which the tables of an archive share.
pub(crate) struct RestClient {
    http: reqwest::Client,
    settings: RestSettings,
    session: Mutex<Option<Arc<Session>>>,
}

impl std::fmt::Debug for RestClient {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("RestClient").field("url", &self.settings.url).finish_non_exhaustive()
    }
}

/// The state of a table in answers of the server.
#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct LoadedTable {
    metadata_location: Option<String>,
    metadata: TableMetadata,
}

/// The catalog entry of one table.
#[derive(Debug, Clone)]
pub(crate) struct RestCatalog {
    client: Arc<RestClient>,
    table: &'static str,
}

impl RestCatalog {
    pub(crate) fn new(client: Arc<RestClient>, table: &'static str) -> Self {
        Self { client, table }
    }

    /// Returns the current metadata; `None`: the table does not exist.
    ///
    /// # Errors
    /// [`LakeError::Catalog`], and [`LakeError::Table`] if the metadata is invalid.
    pub(crate) async fn load(&self) -> Result<Option<Versioned>, LakeError> {
        let path = |session: &Session| format!("{}/{}", session.tables, self.table);
        let answer = self.client.send("reading a table", Method::GET, &path, None).await?;
        match answer.status {
            StatusCode::OK => self.decoded(&answer).map(Some),
            StatusCode::NOT_FOUND => Ok(None),
            _ => Err(answer.refused()),
        }
    }

    /// Whether the table still has this metadata.
    ///
    /// # Errors
    /// As [`Self::load`].
    pub(crate) async fn is_current(&self, location: &str) -> Result<bool, LakeError> {
        Ok(self.load().await?.is_some_and(|found| found.location == location))
    }

    /// Applies updates to the table, unless it has got another snapshot than `current`. `None` creates the table.
    ///
    /// # Errors
    /// [`LakeError::Conflict`] if another commit came first. [`LakeError::Catalog`]: it may be unknown whether the commit has
    /// happened.
    pub(crate) async fn commit(
        &self,
        current: Option<&Versioned>,
        updates: Vec<TableUpdate>,
    ) -> Result<Versioned, LakeError> {
        let requirements = match current {
            Some(current) => vec![
                TableRequirement::UuidMatch { uuid: current.metadata.uuid() },
                TableRequirement::RefSnapshotIdMatch {
                    r#ref: MAIN_BRANCH.to_owned(),
                    snapshot_id: current.metadata.current_snapshot_id(),
                },
            ],
            None => {
                self.client.create_namespace().await?;
                vec![TableRequirement::NotExist]
            }
        };
        let identifier = json!({"namespace": self.client.settings.namespace, "name": self.table});
        let body = json!({"identifier": identifier, "requirements": requirements, "updates": updates});
        let path = |session: &Session| format!("{}/{}", session.tables, self.table);
        let answer = self.client.send("committing to a table", Method::POST, &path, Some(body)).await?;
        match answer.status {
            StatusCode::OK => self.decoded(&answer),
            StatusCode::CONFLICT => Err(LakeError::Conflict { table: self.table }),
            _ => Err(answer.refused()),
        }
    }

    fn decoded(&self, answer: &Answer) -> Result<Versioned, LakeError> {
        let loaded: LoadedTable =
            serde_json::from_slice(&answer.body).map_err(|error| answer.failed(error.to_string()))?;
        let location =
            loaded.metadata_location.ok_or_else(|| answer.failed("it names no metadata file".to_owned()))?;
        Ok(Versioned { version: 0, location, metadata: loaded.metadata })
    }
}

impl RestClient {
    pub(crate) fn new(settings: RestSettings) -> Result<Self, String> {
        crate::store::install_tls();
        let http = reqwest::Client::builder().timeout(REQUEST).build().map_err(|error| error.to_string())?;
        Ok(Self { http, settings, session: Mutex::new(None) })
    }

    async fn create_namespace(&self) -> Result<(), LakeError> {
        let body = json!({"namespace": self.settings.namespace, "properties": {}});
        let path = |session: &Session| session.namespaces.clone();
        let answer = self.send("creating a namespace", Method::POST, &path, Some(body)).await?;
        match answer.status {
            StatusCode::OK | StatusCode::CONFLICT => Ok(()),
            _ => Err(answer.refused()),
        }
    }

    /// Sends a request, once more with a new token if the old one is not valid any more.
    async fn send(
        &self,
        doing: &'static str,
        method: Method,
        url: &(dyn Fn(&Session) -> String + Sync),
        body: Option<Value>,
    ) -> Result<Answer, LakeError> {
        let session = self.session().await?;
        let answer = self
            .request(doing, method.clone(), &url(&session), session.token.as_deref(), body.clone())
            .await?;
        let renewable = matches!(self.settings.login, Login::Credential { .. });
        if answer.status != StatusCode::UNAUTHORIZED || !renewable {
            return Ok(answer);
        }
        *self.session.lock().await = None;
        let session = self.session().await?;
        self.request(doing, method, &url(&session), session.token.as_deref(), body).await
    }

    /// Returns the session, after a login if there is none.
    async fn session(&self) -> Result<Arc<Session>, LakeError> {
        let mut known = self.session.lock().await;
        if let Some(session) = known.as_ref() {
            return Ok(Arc::clone(session));
        }
        let token = match &self.settings.login {
            Login::None => None,
            Login::Token(token) => Some(token.clone()),
            Login::Credential { credential, scope, server } => {
                let own = || format!("{}/v1/oauth/tokens", self.settings.url);
                Some(self.token(&server.clone().unwrap_or_else(own), credential, scope).await?)
            }
        };
        let session = Arc::new(self.configured(token).await?);
        *known = Some(Arc::clone(&session));
        Ok(session)
    }

    /// Asks the server where the tables are.
    async fn configured(&self, token: Option<String>) -> Result<Session, LakeError> {
        #[derive(Deserialize)]
        struct Config {
            #[serde(default)]
            defaults: serde_json::Map<String, Value>,
            #[serde(default)]
            overrides: serde_json::Map<String, Value>,
        }
        let warehouse = self.settings.warehouse.as_ref().map(|warehouse| {
            let query =
                form_urlencoded::Serializer::new(String::new()).append_pair("warehouse", warehouse).finish();
            format!("?{query}")
        });
        let url = format!("{}/v1/config{}", self.settings.url, warehouse.unwrap_or_default());
        let answer =
            self.request("reading the configuration", Method::GET, &url, token.as_deref(), None).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refused());
        }
        let config: Config =
            serde_json::from_slice(&answer.body).map_err(|error| answer.failed(error.to_string()))?;
        let value = |name: &str| {
            let found = config.overrides.get(name).or_else(|| config.defaults.get(name));
            found.and_then(Value::as_str).map(str::to_owned)
        };
        let base = value("uri").unwrap_or_else(|| self.settings.url.clone());
        let prefix = value("prefix").map(|prefix| format!("/{prefix}")).unwrap_or_default();
        let namespaces = format!("{}/v1{prefix}/namespaces", base.trim_end_matches('/'));
        let separator = value("namespace-separator").unwrap_or_else(|| SEPARATOR.to_owned());
        let parts: Vec<String> = self.settings.namespace.iter().map(|part| escaped(part)).collect();
        let tables = format!("{namespaces}/{}/tables", parts.join(&separator));
        Ok(Session { tables, namespaces, token })
    }

    /// Exchanges a credential for a token.
    async fn token(&self, server: &str, credential: &str, scope: &str) -> Result<String, LakeError> {
        #[derive(Deserialize)]
        struct Token {
            access_token: String,
        }
        let (id, secret) = credential.split_once(':').unwrap_or(("", credential));
        let mut form = form_urlencoded::Serializer::new(String::new());
        form.append_pair("grant_type", "client_credentials").append_pair("scope", scope);
        if !id.is_empty() {
            form.append_pair("client_id", id);
        }
        form.append_pair("client_secret", secret);
        let request = self
            .http
            .post(server)
            .header("content-type", "application/x-www-form-urlencoded")
            .body(form.finish());
        let answer = Answer::of("logging in", server, request).await?;
        if answer.status != StatusCode::OK {
            return Err(answer.refused());
        }
        // The reason of an invalid answer could quote the token.
        let token: Token = serde_json::from_slice(&answer.body)
            .map_err(|_| answer.failed("the answer is not a token of OAuth 2".to_owned()))?;
        Ok(token.access_token)
    }

    async fn request(
        &self,
        doing: &'static str,
        method: Method,
        url: &str,
        token: Option<&str>,
        body: Option<Value>,
    ) -> Result<Answer, LakeError> {
        let mut request = self.http.request(method, url);
        if let Some(token) = token {
            request = request.bearer_auth(token);
        }
        if let Some(body) = body {
            request = request.header("content-type", "application/json").body(body.to_string());
        }
        Answer::of(doing, url, request).await
    }
}

/// The answer to a request.
#[derive(Debug)]
struct Answer {
    doing: &'static str,
    url: String,
    status: StatusCode,
    body: Bytes,
}

impl Answer {
    async fn of(doing: &'static str, url: &str, request: reqwest::RequestBuilder) -> Result<Self, LakeError> {
        let sent = async {
            let response = request.send().await?;
            Ok((response.status(), response.bytes().await?))
        };
        match sent.await {
            Ok((status, body)) => Ok(Self { doing, url: url.to_owned(), status, body }),
            Err(error) => Err(LakeError::Catalog { doing, url: url.to_owned(), why: causes(&error) }),
        }
    }

    fn failed(&self, why: String) -> LakeError {
        LakeError::Catalog { doing: self.doing, url: self.url.clone(), why }
    }

    /// Returns the error of a status that says that the request had no effect, or an unknown one.
    fn refused(&self) -> LakeError {
        let error: Option<Value> = serde_json::from_slice(&self.body).ok();
        let message = error.as_ref().and_then(|error| error["error"]["message"].as_str().map(str::to_owned));
        let text = || String::from_utf8_lossy(&self.body).chars().take(SHOWN).collect();
        self.failed(format!("{}: {}", self.status, message.unwrap_or_else(text)))
    }
}

/// Returns an error with its causes, which `reqwest` leaves out.
fn causes(error: &reqwest::Error) -> String {
    let mut text = error.to_string();
    let mut cause = std::error::Error::source(error);
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    text
}

/// Escapes a part of a path.
fn escaped(text: &str) -> String {
    form_urlencoded::byte_serialize(text.as_bytes()).collect::<String>().replace('+', "%20")
}
