//! The object store of an archive: names below one URL, and the few operations that the archive needs.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::{StreamExt as _, TryStreamExt as _};
use object_store::aws::{AmazonS3Builder, AmazonS3ConfigKey};
use object_store::azure::{AzureConfigKey, MicrosoftAzureBuilder};
use object_store::gcp::{GoogleCloudStorageBuilder, GoogleConfigKey};
use object_store::local::LocalFileSystem;
use object_store::path::Path;
use object_store::{
    ClientOptions, Error, ObjectStore, ObjectStoreExt as _, ObjectStoreScheme, PutMode, PutOptions,
    RetryConfig,
};
use url::Url;
use uuid::Uuid;

use crate::error::LakeError;

/// How long a request is repeated after temporary errors. Longer outages are the caller's business.
const RETRY: Duration = Duration::from_secs(20);
/// Time limit of one request.
const REQUEST: Duration = Duration::from_secs(60);
/// Parts of the names of settings that are secret.
const SECRETS: [&str; 6] = ["secret", "key", "token", "password", "sas", "credential"];
/// Prefixes of the environment variables that configure the stores of Amazon, Microsoft and Google.
const VARIABLES: [&str; 3] = ["AWS_", "AZURE_", "GOOGLE_"];

/// Objects below one URL.
#[derive(Debug, Clone)]
pub struct Store {
    objects: Arc<dyn ObjectStore>,
    root: Path,
    /// Without a slash at the end.
    url: String,
}

/// An object found by [`Store::list`].
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Found {
    /// Name relative to the store's URL.
    pub name: String,
    /// Size in bytes.
    pub bytes: u64,
}

impl Store {
    /// Opens the store of a URL: `s3://`, `s3a://`, `gs://`, `az://`, `abfss://` or `file:///`. Sends no request.
    ///
    /// Credentials and other settings come from `options` and, below them, from the environment variables that the
    /// vendors define, such as `AWS_ACCESS_KEY_ID` and `AWS_ENDPOINT_URL`. Names of options are those of the variables,
    /// in any case.
    /// `variables` are those of another process, for those that this process does not have.
    ///
    /// # Errors
    /// [`LakeError::Url`] if the URL, an option or a variable is invalid.
    pub fn open(
        url: &str,
        options: &BTreeMap<String, String>,
        variables: &BTreeMap<String, String>,
    ) -> Result<Self, LakeError> {
        install_tls();
        let invalid = |why: String| LakeError::Url { url: url.to_owned(), why };
        let parsed = Url::parse(url).map_err(|error| invalid(error.to_string()))?;
        let unsupported = || {
            let scheme = parsed.scheme();
            invalid(format!("the scheme {scheme:?} is not supported; use s3, s3a, gs, az, abfss or file"))
        };
        let (scheme, root) = ObjectStoreScheme::parse(&parsed).map_err(|_| unsupported())?;
        let mut settings: BTreeMap<String, String> = variables
            .clone()
            .into_iter()
            .chain(std::env::vars())
            .filter(|(name, _)| VARIABLES.iter().any(|prefix| name.starts_with(prefix)))
            .map(|(name, value)| (name.to_lowercase(), value))
            .collect();
        let given: BTreeMap<_, _> =
            options.iter().map(|(name, value)| (name.to_lowercase(), value.clone())).collect();
        settings.extend(given.clone());
        let objects = match scheme {
            ObjectStoreScheme::Local => Ok(Arc::new(LocalFileSystem::new().with_fsync(true)) as _),
            ObjectStoreScheme::AmazonS3 => amazon(&parsed, &settings, &given),
            ObjectStoreScheme::GoogleCloudStorage => google(&parsed, &settings, &given),
            ObjectStoreScheme::MicrosoftAzure => azure(&parsed, &settings, &given),
            _ => return Err(unsupported()),
        };
        Ok(Self::new(objects.map_err(invalid)?, root, url))
    }

    /// Uses the objects below `root` in a store whose objects other programs find below `url`.
    pub fn new(objects: Arc<dyn ObjectStore>, root: Path, url: &str) -> Self {
        Self { objects, root, url: url.trim_end_matches('/').to_owned() }
    }

    /// The URL, without a slash at the end.
    pub fn url(&self) -> &str {
        &self.url
    }

    /// The store that contains the objects.
    pub fn objects(&self) -> &Arc<dyn ObjectStore> {
        &self.objects
    }

    /// Returns the URL of an object.
    pub fn location(&self, name: &str) -> String {
        format!("{}/{name}", self.url)
    }

    /// Returns the name of the object with this URL; `None`: it is elsewhere. Hadoop, and therefore Spark, writes the same
    /// URL in other ways: `s3a://` for `s3://`, and `file:/` for `file:///`.
    pub fn name<'a>(&self, location: &'a str) -> Option<&'a str> {
        let (own_scheme, own_path) = spelled(&self.url);
        let (scheme, path) = spelled(location);
        let name = path.strip_prefix(own_path)?.strip_prefix('/')?;
        (scheme == own_scheme).then_some(name)
    }

    /// Returns the path of an object in [`Self::objects`].
    ///
    /// # Errors
    /// [`LakeError::Url`] if the name is not a valid path.
    pub fn path(&self, name: &str) -> Result<Path, LakeError> {
        let path = format!("{}/{name}", self.root);
        Path::parse(&path)
            .map_err(|error| LakeError::Url { url: self.location(name), why: error.to_string() })
    }

    /// Writes an object. Its name must be new, or its content always the same.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn put(&self, name: &str, bytes: Bytes) -> Result<(), LakeError> {
        let path = self.path(name)?;
        self.objects.put(&path, bytes.into()).await.map(drop).map_err(LakeError::store("writing", name))
    }

    /// Creates an object. False: there is one of this name.
    ///
    /// # Errors
    /// [`LakeError::Store`]. It is then unknown whether the object was created, or will be created later.
    pub async fn create(&self, name: &str, bytes: Bytes) -> Result<bool, LakeError> {
        let path = self.path(name)?;
        let options = PutOptions { mode: PutMode::Create, ..PutOptions::default() };
        match self.objects.put_opts(&path, bytes.into(), options).await {
            Ok(_) => Ok(true),
            Err(Error::AlreadyExists { .. } | Error::Precondition { .. }) => Ok(false),
            Err(error) => Err(LakeError::store("creating", name)(error)),
        }
    }

    /// Reads an object. `None`: there is none of this name.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn get(&self, name: &str) -> Result<Option<Bytes>, LakeError> {
        let path = self.path(name)?;
        let read = async { self.objects.get(&path).await?.bytes().await };
        match read.await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(LakeError::store("reading", name)(error)),
        }
    }

    /// Reads some bytes of an object. `None`: there is none of this name.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn get_range(&self, name: &str, range: Range<u64>) -> Result<Option<Bytes>, LakeError> {
        match self.objects.get_range(&self.path(name)?, range).await {
            Ok(bytes) => Ok(Some(bytes)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(LakeError::store("reading", name)(error)),
        }
    }

    /// Whether there is an object of this name.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn exists(&self, name: &str) -> Result<bool, LakeError> {
        match self.objects.head(&self.path(name)?).await {
            Ok(_) => Ok(true),
            Err(Error::NotFound { .. }) => Ok(false),
            Err(error) => Err(LakeError::store("looking for", name)(error)),
        }
    }

    /// Reads an object that must exist.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn read(&self, name: &str) -> Result<Bytes, LakeError> {
        let path = self.path(name)?;
        let read = async { self.objects.get(&path).await?.bytes().await };
        read.await.map_err(LakeError::store("reading", name))
    }

    /// Reads an object, and when it was stored, in Unix milliseconds by the clock of the store. `None`: there is none of
    /// this name.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn get_with_time(&self, name: &str) -> Result<Option<(Bytes, u64)>, LakeError> {
        let path = self.path(name)?;
        let read = async {
            let found = self.objects.get(&path).await?;
            let stored_ms = u64::try_from(found.meta.last_modified.timestamp_millis()).unwrap_or_default();
            Ok((found.bytes().await?, stored_ms))
        };
        match read.await {
            Ok(found) => Ok(Some(found)),
            Err(Error::NotFound { .. }) => Ok(None),
            Err(error) => Err(LakeError::store("reading", name)(error)),
        }
    }

    /// Deletes objects. Names without an object are ignored.
    ///
    /// # Errors
    /// [`LakeError::Store`] for the first object that cannot be deleted; the others may or may not be.
    pub async fn delete(&self, names: &[String]) -> Result<(), LakeError> {
        let paths: Vec<_> = names.iter().map(|name| self.path(name)).collect::<Result<_, _>>()?;
        let paths = futures_util::stream::iter(paths).map(Ok).boxed();
        let mut deleted = self.objects.delete_stream(paths);
        while let Some(outcome) = deleted.next().await {
            match outcome {
                Ok(_) | Err(Error::NotFound { .. }) => {}
                Err(error) => return Err(LakeError::store("deleting", &self.url)(error)),
            }
        }
        Ok(())
    }

    /// Lists the objects whose names begin with a directory's name, which ends with a slash.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn list(&self, directory: &str) -> Result<Vec<Found>, LakeError> {
        let prefix = self.path(directory.trim_end_matches('/'))?;
        let root = format!("{}/", self.root);
        let root = if self.root.as_ref().is_empty() { "" } else { &root };
        let found = self.objects.list(Some(&prefix)).map_ok(|meta| {
            let name = meta.location.as_ref();
            Found { name: name.strip_prefix(root).unwrap_or(name).to_owned(), bytes: meta.size }
        });
        found.try_collect().await.map_err(LakeError::store("listing", directory))
    }

    /// Lists the names of the objects directly below the URL, which contain no slash.
    ///
    /// # Errors
    /// [`LakeError::Store`].
    pub async fn list_directly(&self) -> Result<Vec<String>, LakeError> {
        let root = Some(&self.root).filter(|root| !root.as_ref().is_empty());
        let found = self.objects.list_with_delimiter(root).await;
        let found = found.map_err(LakeError::store("listing", &self.url))?.objects;
        Ok(found.iter().filter_map(|meta| meta.location.filename()).map(str::to_owned).collect())
    }

    /// Checks that the store never overwrites an object that [`Self::create`] names.
    ///
    /// # Errors
    /// [`LakeError::Unconditional`] if it does, and [`LakeError::Store`].
    pub async fn probe(&self, directory: &str) -> Result<(), LakeError> {
        let name = format!("{directory}.mqcore-probe-{}", Uuid::new_v4().simple());
        // A repeated request may find the object of its first attempt.
        self.create(&name, Bytes::from_static(b"first")).await?;
        let overwritten = self.create(&name, Bytes::from_static(b"second")).await?;
        let content = self.read(&name).await?;
        self.delete(&[name]).await?;
        if overwritten || content != "first" {
            return Err(LakeError::Unconditional { url: self.url.clone() });
        }
        Ok(())
    }
}

/// Returns the usual scheme of a URL, and the rest of it.
fn spelled(url: &str) -> (&str, &str) {
    let (scheme, rest) = url.split_once(':').unwrap_or(("", url));
    match scheme {
        "s3a" | "s3n" => ("s3", rest),
        "file" => (scheme, rest.strip_prefix("//").unwrap_or(rest)),
        _ => (scheme, rest),
    }
}

/// Whether the value of a setting must not be stored or logged.
pub fn is_secret(setting: &str) -> bool {
    let setting = setting.to_lowercase();
    SECRETS.iter().any(|secret| setting.contains(secret))
}

/// Returns a URL without user name, password and secret parameters, and any other text as it is.
pub fn without_credentials(text: &str) -> String {
    let Ok(mut url) = Url::parse(text) else { return text.to_owned() };
    let parameters = |url: &Url| -> Vec<(String, String)> { url.query_pairs().into_owned().collect() };
    let (known, mut open) = (parameters(&url), parameters(&url));
    open.retain(|(name, _)| !is_secret(name));
    let has_secrets = open.len() < known.len();
    if url.username().is_empty() && url.password().is_none() && !has_secrets {
        return text.to_owned();
    }
    if has_secrets {
        url.set_query(None);
    }
    if has_secrets && !open.is_empty() {
        url.query_pairs_mut().extend_pairs(open);
    }
    // URLs that have credentials can lose them.
    let _ = url.set_username("").and_then(|()| url.set_password(None));
    url.into()
}

/// TLS of the requests, which the HTTP client takes from the process. Programs may have chosen another implementation.
pub(crate) fn install_tls() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

fn retries() -> RetryConfig {
    RetryConfig { retry_timeout: RETRY, ..RetryConfig::default() }
}

fn client(settings: &BTreeMap<String, String>) -> ClientOptions {
    let mut options = ClientOptions::new().with_timeout(REQUEST);
    for (name, value) in settings {
        let name = name.trim_start_matches("aws_").trim_start_matches("azure_").trim_start_matches("google_");
        if let Ok(key) = name.parse() {
            options = options.with_config(key, value.as_str());
        }
    }
    options
}

/// Returns the settings that a store knows. Unknown variables are ignored; unknown options are errors.
fn known<K: std::str::FromStr>(
    settings: &BTreeMap<String, String>,
    given: &BTreeMap<String, String>,
) -> Result<Vec<(K, String)>, String> {
    let mut known = Vec::new();
    for (name, value) in settings {
        match name.parse::<K>() {
            Ok(key) => known.push((key, value.clone())),
            Err(_) if given.contains_key(name) => return Err(format!("the option {name:?} is unknown")),
            Err(_) => {}
        }
    }
    Ok(known)
}

type Opened = Result<Arc<dyn ObjectStore>, String>;

fn amazon(url: &Url, settings: &BTreeMap<String, String>, given: &BTreeMap<String, String>) -> Opened {
    let mut builder = AmazonS3Builder::new();
    for (key, value) in known::<AmazonS3ConfigKey>(settings, given)? {
        builder = builder.with_config(key, value);
    }
    let builder = builder.with_url(url.as_str()).with_retry(retries()).with_client_options(client(settings));
    builder.build().map(|store| Arc::new(store) as _).map_err(|error| error.to_string())
}

fn google(url: &Url, settings: &BTreeMap<String, String>, given: &BTreeMap<String, String>) -> Opened {
    let mut builder = GoogleCloudStorageBuilder::new();
    for (key, value) in known::<GoogleConfigKey>(settings, given)? {
        builder = builder.with_config(key, value);
    }
    let builder = builder.with_url(url.as_str()).with_retry(retries()).with_client_options(client(settings));
    builder.build().map(|store| Arc::new(store) as _).map_err(|error| error.to_string())
}

fn azure(url: &Url, settings: &BTreeMap<String, String>, given: &BTreeMap<String, String>) -> Opened {
    let mut builder = MicrosoftAzureBuilder::new();
    for (key, value) in known::<AzureConfigKey>(settings, given)? {
        builder = builder.with_config(key, value);
    }
    let builder = builder.with_url(url.as_str()).with_retry(retries()).with_client_options(client(settings));
    builder.build().map(|store| Arc::new(store) as _).map_err(|error| error.to_string())
}
