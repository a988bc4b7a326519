//! The file of users and tokens: JSON, replaced as a whole, readable by its owner only.

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mqcore_authority::password::{PasswordError, PasswordHash};
pub use mqcore_authority::record::AuthorityRecordError;
use mqcore_authority::record::{Records, Restrictions, Token, User};
use mqcore_authority::rule::PermissionRule;
use mqcore_authority::token::{self, NewToken};
use mqcore_journal::storage::private::create_private_directory;
use mqcore_replication::identity::is_replicated;
use mqcore_replication::storage::DataFiles;
use serde::{Deserialize, Serialize};
use serde_json::json;

/// Name of the file in a data directory.
pub const FILE_NAME: &str = "authority.json";
/// Version of the file's format.
const VERSION: u32 = 1;
/// Maximum size of a file that is read, in bytes.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;
/// Maximum size of a file that is written, in bytes. Far below what can be read, so that no change makes the file unreadable.
const WRITTEN_BYTES_MAX: usize = 16 * 1024 * 1024;

/// Why users and tokens cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system returned an error.
    #[error("{path}: {source}")]
    Io {
        /// The file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file does not have the format of this version.
    #[error("{path} is not a file of users and tokens of this version: {why}")]
    Format {
        /// The file.
        path: PathBuf,
        /// The reason. Quotes nothing from the file, which contains secrets.
        why: String,
    },
    /// An invalid record.
    #[error(transparent)]
    Record(#[from] AuthorityRecordError),
    /// The other nodes of a cluster would not have the change.
    #[error(
        "{path} belongs to a node of a cluster, and the other nodes would not have the change; change users and tokens through the admin side of the running cluster"
    )]
    Replicated {
        /// The file.
        path: PathBuf,
    },
    /// A change of credentials that allow more than those of the caller.
    #[error("permission denied: your own credentials do not allow {rule}")]
    BeyondCaller {
        /// The first rule that the caller lacks.
        rule: Box<PermissionRule>,
    },
    /// A change of credentials that are valid for longer than those of the caller.
    #[error(
        "your own credentials expire at {expires_ms} (Unix time in milliseconds); a new token must expire by then, and a user or password never does"
    )]
    OutlivesCaller {
        /// When those of the caller expire.
        expires_ms: u64,
    },
    /// A change of credentials that more peers can use than those of the caller.
    #[error(
        "your own credentials are restricted to some {what}; restrict the new ones to the same or to fewer"
    )]
    LessRestricted {
        /// The restricted property of peers, for example `addresses`.
        what: &'static str,
    },
    /// The credentials of the caller have been changed or removed meanwhile.
    #[error("your own credentials are no longer valid")]
    CallerRevoked,
    /// Records that the configuration contains cannot be changed in the store.
    #[error("{what} is in the configuration of the broker; change it there")]
    Configured {
        /// The user or the token.
        what: String,
    },
    /// There is no file to change.
    #[error("the broker has no file of users and tokens; set data_dir or authority.store")]
    NoStore,
    /// A password is too short or too long.
    #[error(transparent)]
    Password(#[from] PasswordError),
    /// An invalid setting, user or token.
    #[error("{0}")]
    Setting(String),
    /// The system provides no random numbers.
    #[error("cannot read random numbers from the system: {0}")]
    Random(io::Error),
}

impl StoreError {
    /// Whether the caller of the admin side lacks the permission.
    pub(crate) fn is_denial(&self) -> bool {
        matches!(self, Self::BeyondCaller { .. } | Self::OutlivesCaller { .. } | Self::LessRestricted { .. })
    }
}

/// The format of the file.
#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    #[serde(flatten)]
    records: Records,
}

/// A file of users and tokens. It need not exist yet.
#[derive(Debug, Clone)]
pub struct UserStore {
    path: PathBuf,
    files: DataFiles,
}

/// A change of the store.
#[derive(Clone, Copy)]
pub enum Change<'a> {
    /// Adds a user, given as JSON without a password.
    AddUser {
        /// The user.
        user: &'a str,
        /// Its password. A user without one can only log in by certificate.
        password: Option<&'a str>,
    },
    /// Sets a user's password.
    SetPassword {
        /// The user.
        name: &'a str,
        /// The new password.
        password: &'a str,
    },
    /// Removes a user.
    RemoveUser {
        /// The user.
        name: &'a str,
    },
    /// Removes a token.
    RemoveToken {
        /// The token's ID.
        id: &'a str,
    },
}

/// A new token without its ID and its secret, which are generated.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRequest {
    name: String,
    allow: Vec<PermissionRule>,
    #[serde(default)]
    expires_ms: Option<u64>,
    #[serde(default)]
    restrict: Restrictions,
}

/// Distinguishes versions of the file: modification time and size.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp(Option<(SystemTime, u64)>);

impl UserStore {
    /// The file at `path`.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into(), files: DataFiles::Local }
    }

    /// The same file on the nodes of a cluster, if that has `files`.
    #[must_use]
    pub(crate) fn with(self, files: &DataFiles) -> Self {
        Self { files: files.clone(), ..self }
    }

    /// The file in a data directory.
    #[must_use]
    pub fn of_data_dir(directory: &Path) -> Self {
        Self::at(directory.join(FILE_NAME))
    }

    /// The path of the file.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// The records of the file; none if it does not exist.
    ///
    /// # Errors
    /// [`StoreError`] if it exists and cannot be read or parsed.
    pub fn read(&self) -> Result<Records, StoreError> {
        let format = |why: String| StoreError::Format { path: self.path.clone(), why };
        let bytes = match fs::metadata(&self.path) {
            Ok(found) if found.len() > FILE_BYTES_MAX => return Err(format("it is too large".into())),
            Ok(_) => fs::read(&self.path).map_err(|source| self.io(source))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Records::default()),
            Err(source) => return Err(self.io(source)),
        };
        let contents: Contents = serde_json::from_slice(&bytes)
            .map_err(|error| format(format!("line {}, column {}", error.line(), error.column())))?;
        if contents.version != VERSION {
            return Err(format(format!("its version is {}, not {VERSION}", contents.version)));
        }
        contents.records.check()?;
        Ok(contents.records)
    }

    /// Reads the records, applies `change` and writes them. Concurrent changes wait for each other, and concurrent
    /// readers see the old or the new state.
    ///
    /// # Errors
    /// [`StoreError`]; the file is then unchanged.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut Records) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory {
            if self.files.replicator().is_none() && is_replicated(directory) {
                return Err(StoreError::Replicated { path: self.path.clone() });
            }
            create_private_directory(directory).map_err(|source| self.io(source))?;
        }
        let lock = private_file(&self.beside("lock")).map_err(|source| self.io(source))?;
        lock.lock().map_err(|source| self.io(source))?;
        let mut records = self.read()?;
        let outcome = change(&mut records)?;
        records.check()?;
        let bytes = encoded(&records).map_err(|source| self.io(source))?;
        let is_growing = || !fs::metadata(&self.path).is_ok_and(|found| bytes.len() as u64 <= found.len());
        if bytes.len() > WRITTEN_BYTES_MAX && is_growing() {
            let what = "bytes of users and tokens";
            return Err(AuthorityRecordError::TooMany { what, most: WRITTEN_BYTES_MAX }.into());
        }
        self.files.replace(&self.path, &bytes).map_err(|source| self.io(source))?;
        Ok(outcome)
    }

    /// Applies one change.
    ///
    /// # Errors
    /// [`StoreError`]; the file is then unchanged.
    pub fn apply(&self, change: Change<'_>) -> Result<(), StoreError> {
        self.apply_checked(change, |_, _| Ok(()))
    }

    /// Applies one change, unless `check` refuses it. It gets the records before and after.
    pub(crate) fn apply_checked(
        &self,
        change: Change<'_>,
        check: impl FnOnce(&Records, &Records) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        match change {
            Change::AddUser { user, password } => {
                let mut user: User = parsed(user)?;
                user.password = password.map(password_hash).transpose()?;
                self.change_checked(|records| records.add_user(user), check)
            }
            Change::SetPassword { name, password } => {
                let hash = password_hash(password)?;
                self.change_checked(|records| records.set_password(name, hash), check)
            }
            Change::RemoveUser { name } => self.change_checked(|records| records.remove_user(name), check),
            Change::RemoveToken { id } => self.change_checked(|records| records.remove_token(id), check),
        }
    }

    /// Adds a token given as JSON. Returns its ID and its text, which is not stored anywhere.
    ///
    /// # Errors
    /// [`StoreError`]; the file is then unchanged.
    pub fn add_token(&self, request: &str) -> Result<(String, String), StoreError> {
        self.add_token_checked(request, |_, _| Ok(()))
    }

    /// Adds a token as [`UserStore::add_token`] does, unless `check` refuses it.
    pub(crate) fn add_token_checked(
        &self,
        request: &str,
        check: impl FnOnce(&Records, &Records) -> Result<(), StoreError>,
    ) -> Result<(String, String), StoreError> {
        let TokenRequest { name, allow, expires_ms, restrict } = parsed(request)?;
        let NewToken { id, text, hash } = token::mint(random::<{ token::ENTROPY_BYTES }>()?);
        let record = Token { id: id.clone(), name, hash, allow, expires_ms, restrict };
        self.change_checked(|records| records.add_token(record), check)?;
        Ok((id, text))
    }

    fn change_checked(
        &self,
        change: impl FnOnce(&mut Records) -> Result<(), AuthorityRecordError>,
        check: impl FnOnce(&Records, &Records) -> Result<(), StoreError>,
    ) -> Result<(), StoreError> {
        self.change(|records| {
            let before = records.clone();
            change(records)?;
            check(&before, records)
        })
    }

    /// Whether the other nodes of a cluster get changes of this file.
    pub(crate) fn is_copied(&self) -> bool {
        self.files.replicator().is_some()
    }

    /// All records without hashes, as JSON.
    ///
    /// # Errors
    /// As for [`UserStore::read`].
    pub fn show(&self) -> Result<String, StoreError> {
        let records = self.read()?;
        let users: Vec<_> = records
            .users
            .iter()
            .map(|user| {
                let (name, allow, restrict) = (&user.name, &user.allow, &user.restrict);
                let (password, certificate) = (user.password.is_some(), &user.certificate);
                json!({"name": name, "password": password, "certificate": certificate, "allow": allow, "restrict": restrict})
            })
            .collect();
        let tokens: Vec<_> = records
            .tokens
            .iter()
            .map(|token| {
                let (id, name, allow) = (&token.id, &token.name, &token.allow);
                let (expires_ms, restrict) = (token.expires_ms, &token.restrict);
                json!({"id": id, "name": name, "allow": allow, "expires_ms": expires_ms, "restrict": restrict})
            })
            .collect();
        Ok(json!({"users": users, "tokens": tokens}).to_string())
    }

    fn beside(&self, extension: &str) -> PathBuf {
        let mut path = self.path.clone().into_os_string();
        path.push(".");
        path.push(extension);
        path.into()
    }

    fn io(&self, source: io::Error) -> StoreError {
        StoreError::Io { path: self.path.clone(), source }
    }

    /// Changes whenever the file does.
    pub(crate) fn stamp(&self) -> Stamp {
        let found = fs::metadata(&self.path).ok();
        Stamp(found.and_then(|found| Some((found.modified().ok()?, identity(&found)))))
    }

    /// Whether users other than the owner can read the file.
    pub(crate) fn is_exposed(&self) -> bool {
        #[cfg(unix)]
        {
            use std::os::unix::fs::PermissionsExt;
            fs::metadata(&self.path).is_ok_and(|found| found.permissions().mode() & 0o077 != 0)
        }
        #[cfg(not(unix))]
        false
    }
}

/// The content of a file.
fn encoded(records: &Records) -> io::Result<Vec<u8>> {
    let contents = Contents { version: VERSION, records: records.clone() };
    let mut bytes = serde_json::to_vec_pretty(&contents)?;
    bytes.push(b'\n');
    Ok(bytes)
}

/// Distinguishes two writes within one step of the clock: each creates a new file.
fn identity(found: &fs::Metadata) -> u64 {
    #[cfg(unix)]
    {
        use std::os::unix::fs::MetadataExt;
        found.ino() ^ found.len().rotate_left(32)
    }
    #[cfg(not(unix))]
    found.len()
}

fn private_file(path: &Path) -> io::Result<File> {
    let mut options = File::options();
    options.create(true).truncate(false).write(true);
    #[cfg(unix)]
    {
        use std::os::unix::fs::OpenOptionsExt;
        options.mode(0o600);
    }
    options.open(path)
}

fn parsed<'a, T: Deserialize<'a>>(text: &'a str) -> Result<T, StoreError> {
    serde_json::from_str(text).map_err(|error| StoreError::Setting(error.to_string()))
}

fn password_hash(password: &str) -> Result<PasswordHash, StoreError> {
    Ok(PasswordHash::of(password, random()?)?)
}

/// The hash of a password, for configurations.
///
/// # Errors
/// [`StoreError`] for a password that is too short or too long.
pub fn hash_password(password: &str) -> Result<String, StoreError> {
    Ok(password_hash(password)?.into())
}

/// Random bytes from the system.
///
/// # Errors
/// [`StoreError::Random`] if the system provides none.
pub fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut bytes = [0; N];
    getrandom::fill(&mut bytes).map_err(|error| StoreError::Random(io::Error::other(error.to_string())))?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn place(name: &str) -> PathBuf {
        let path = std::env::temp_dir().join(format!("mqcore-store-{}-{name}", std::process::id()));
        let _ = fs::remove_dir_all(&path);
        path
    }

    fn user(name: &str) -> User {
        User {
            name: name.into(),
            password: None,
            certificate: None,
            allow: vec!["push:orders/*".parse().unwrap()],
            restrict: Restrictions::default(),
        }
    }

    #[test]
    fn what_is_kept_comes_back_and_only_its_owner_may_read_it() {
        let directory = place("kept");
        let store = UserStore::of_data_dir(&directory);
        assert_eq!(store.read().unwrap(), Records::default());
        store.change(|records| Ok(records.add_user(user("ann"))?)).unwrap();
        let before = store.stamp();
        store.change(|records| Ok(records.add_user(user("bob"))?)).unwrap();
        assert_ne!(store.stamp(), before);
        assert_eq!(store.read().unwrap().users, [user("ann"), user("bob")]);
        assert!(!store.is_exposed());
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_change_that_is_refused_changes_nothing() {
        let directory = place("refused");
        let store = UserStore::of_data_dir(&directory);
        store.change(|records| Ok(records.add_user(user("ann"))?)).unwrap();
        let before = (fs::read(store.path()).unwrap(), store.stamp());
        assert!(store.change(|records| Ok(records.add_user(user("ann"))?)).is_err());
        assert_eq!((fs::read(store.path()).unwrap(), store.stamp()), before);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_does_not_grow_beyond_what_can_be_read_and_can_shrink_again() {
        let directory = place("large");
        let store = UserStore::of_data_dir(&directory);
        let large = |name: String| User {
            restrict: Restrictions {
                client_ids: (0..256)
                    .map(|number| format!("{number}{}", "x".repeat(500)).parse().unwrap())
                    .collect(),
                ..Restrictions::default()
            },
            ..user(&name)
        };
        let refused = (0..200).find_map(|number| {
            let added = large(format!("user{number}"));
            store.change(|records| Ok(records.add_user(added)?)).err()
        });
        assert!(refused.expect("there is a limit").to_string().contains("too many bytes"));
        let users = store.read().unwrap().users.len();
        assert!(users > 50);
        store.apply(Change::RemoveUser { name: "user0" }).unwrap();
        assert_eq!(store.read().unwrap().users.len(), users - 1);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_of_something_else_is_refused_without_being_quoted() {
        let directory = place("other");
        fs::create_dir_all(&directory).unwrap();
        let store = UserStore::of_data_dir(&directory);
        for text in [r#"{"version":1,"users":[{"name":"hunter2"}]}"#, r#"{"version":2}"#, "hunter2", "[]"] {
            fs::write(store.path(), text).unwrap();
            let error = store.read().unwrap_err();
            assert!(matches!(error, StoreError::Format { .. }), "{text}");
            assert!(!error.to_string().contains("hunter2"));
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
