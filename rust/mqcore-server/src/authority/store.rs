//! The file in which users and tokens are kept: JSON, replaced as a whole, readable by its owner alone.

use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mqcore_authority::password::{PasswordError, PasswordHash};
pub use mqcore_authority::record::RecordError;
use mqcore_authority::record::{Records, Restrictions, Token, User};
use mqcore_authority::rule::Rule;
use mqcore_authority::token::{self, NewToken};
use serde::{Deserialize, Serialize};
use serde_json::json;

/// What the file is called in a data directory.
pub const FILE_NAME: &str = "authority.json";
/// The version of the file's form.
const VERSION: u32 = 1;
/// Bytes of the file at most.
const FILE_BYTES_MAX: u64 = 64 * 1024 * 1024;

/// Why users and tokens cannot be read or written.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum StoreError {
    /// The file system says no.
    #[error("{path}: {source}")]
    Io {
        /// Which file.
        path: PathBuf,
        /// The error of the system.
        source: io::Error,
    },
    /// The file is not what this version writes.
    #[error("{path} is not a file of users and tokens of this version: {why}")]
    Format {
        /// Which file.
        path: PathBuf,
        /// What is wrong. Quotes nothing of the file, which has secrets.
        why: String,
    },
    /// What should be kept cannot be.
    #[error(transparent)]
    Record(#[from] RecordError),
    /// A password that is too short or too long.
    #[error(transparent)]
    Password(#[from] PasswordError),
    /// A setting, or one of a user or a token, that cannot be understood.
    #[error("{0}")]
    Setting(String),
    /// The system has no random numbers.
    #[error("cannot read random numbers from the system: {0}")]
    Random(io::Error),
}

/// The file's form.
#[derive(Serialize, Deserialize)]
struct Contents {
    version: u32,
    #[serde(flatten)]
    records: Records,
}

/// A file of users and tokens, which need not exist yet.
#[derive(Debug, Clone)]
pub struct Store {
    path: PathBuf,
}

/// What is done to a store.
#[derive(Clone, Copy)]
pub enum Change<'a> {
    /// Adds a user, written as JSON without a password.
    AddUser {
        /// The user.
        user: &'a str,
        /// Its password; without one it only logs in by certificate.
        password: Option<&'a str>,
    },
    /// Gives a user another password.
    SetPassword {
        /// The user.
        name: &'a str,
        /// The password.
        password: &'a str,
    },
    /// Removes a user.
    RemoveUser {
        /// The user.
        name: &'a str,
    },
    /// Removes a token.
    RemoveToken {
        /// Its id.
        id: &'a str,
    },
}

/// A token as it is asked for: all but its id and its secret, which are made.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct TokenRequest {
    name: String,
    allow: Vec<Rule>,
    #[serde(default)]
    expires_ms: Option<u64>,
    #[serde(default)]
    restrict: Restrictions,
}

/// What tells one state of the file from another.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct Stamp(Option<(SystemTime, u64)>);

impl Store {
    /// The file at `path`.
    #[must_use]
    pub fn at(path: impl Into<PathBuf>) -> Self {
        Self { path: path.into() }
    }

    /// The file of a data directory.
    #[must_use]
    pub fn of_data_dir(directory: &Path) -> Self {
        Self::at(directory.join(FILE_NAME))
    }

    /// Where it is.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// What it has; nothing if it does not exist.
    ///
    /// # Errors
    /// [`StoreError`] if it exists and cannot be read or understood.
    pub fn read(&self) -> Result<Records, StoreError> {
        let format = |why: String| StoreError::Format { path: self.path.clone(), why };
        let octets = match fs::metadata(&self.path) {
            Ok(found) if found.len() > FILE_BYTES_MAX => return Err(format("it is too large".into())),
            Ok(_) => fs::read(&self.path).map_err(|source| self.io(source))?,
            Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(Records::default()),
            Err(source) => return Err(self.io(source)),
        };
        let contents: Contents = serde_json::from_slice(&octets)
            .map_err(|error| format(format!("line {}, column {}", error.line(), error.column())))?;
        if contents.version != VERSION {
            return Err(format(format!("its version is {}, not {VERSION}", contents.version)));
        }
        contents.records.check()?;
        Ok(contents.records)
    }

    /// Reads, lets `change` do its work, and writes. Two that do so at the same time wait for each other, and one who reads
    /// meanwhile sees the old state or the new.
    ///
    /// # Errors
    /// [`StoreError`]; the file is then as it was.
    pub fn change<T>(
        &self,
        change: impl FnOnce(&mut Records) -> Result<T, StoreError>,
    ) -> Result<T, StoreError> {
        let directory = self.path.parent().filter(|parent| !parent.as_os_str().is_empty());
        if let Some(directory) = directory {
            fs::create_dir_all(directory).map_err(|source| self.io(source))?;
        }
        let lock = private_file(&self.beside("lock")).map_err(|source| self.io(source))?;
        lock.lock().map_err(|source| self.io(source))?;
        let mut records = self.read()?;
        let outcome = change(&mut records)?;
        records.check()?;
        self.replace(&records).map_err(|source| self.io(source))?;
        Ok(outcome)
    }

    /// Does one change.
    ///
    /// # Errors
    /// [`StoreError`]; the file is then as it was.
    pub fn apply(&self, change: Change<'_>) -> Result<(), StoreError> {
        match change {
            Change::AddUser { user, password } => {
                let mut user: User = parsed(user)?;
                user.password = password.map(password_hash).transpose()?;
                self.change(|records| Ok(records.add_user(user)?))
            }
            Change::SetPassword { name, password } => {
                let hash = password_hash(password)?;
                self.change(|records| Ok(records.set_password(name, hash)?))
            }
            Change::RemoveUser { name } => self.change(|records| Ok(records.remove_user(name)?)),
            Change::RemoveToken { id } => self.change(|records| Ok(records.remove_token(id)?)),
        }
    }

    /// Adds a token that is written as JSON; its id and its text, which is kept nowhere.
    ///
    /// # Errors
    /// [`StoreError`]; the file is then as it was.
    pub fn add_token(&self, request: &str) -> Result<(String, String), StoreError> {
        let TokenRequest { name, allow, expires_ms, restrict } = parsed(request)?;
        let NewToken { id, text, hash } = token::mint(random::<{ token::ENTROPY_BYTES }>()?);
        let record = Token { id: id.clone(), name, hash, allow, expires_ms, restrict };
        self.change(|records| Ok(records.add_token(record)?))?;
        Ok((id, text))
    }

    /// All that may be shown, as JSON: no hashes.
    ///
    /// # Errors
    /// As [`Store::read`].
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

    fn replace(&self, records: &Records) -> io::Result<()> {
        let contents = Contents { version: VERSION, records: records.clone() };
        let mut octets = serde_json::to_vec_pretty(&contents)?;
        octets.push(b'\n');
        let new = self.beside("new");
        // One that was left behind by somebody who died.
        match fs::remove_file(&new) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
            _ => {}
        }
        let mut file = private_file(&new)?;
        file.write_all(&octets)?;
        file.sync_all()?;
        fs::rename(&new, &self.path)?;
        #[cfg(unix)]
        if let Some(directory) = self.path.parent() {
            let directory = if directory.as_os_str().is_empty() { Path::new(".") } else { directory };
            File::open(directory)?.sync_all()?;
        }
        Ok(())
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

    /// Whether others than its owner may read it.
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

/// Two writes within the clock's step differ in their file, because each makes a new one.
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

/// The hash of a password, as configurations hold it.
///
/// # Errors
/// [`StoreError`] for a password that is too short or too long.
pub fn hash_password(password: &str) -> Result<String, StoreError> {
    Ok(password_hash(password)?.into())
}

/// Fresh random bytes of the system.
///
/// # Errors
/// [`StoreError::Random`] if it has none.
pub fn random<const N: usize>() -> Result<[u8; N], StoreError> {
    let mut octets = [0; N];
    getrandom::fill(&mut octets).map_err(|error| StoreError::Random(io::Error::other(error.to_string())))?;
    Ok(octets)
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
        let store = Store::of_data_dir(&directory);
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
        let store = Store::of_data_dir(&directory);
        store.change(|records| Ok(records.add_user(user("ann"))?)).unwrap();
        let before = (fs::read(store.path()).unwrap(), store.stamp());
        assert!(store.change(|records| Ok(records.add_user(user("ann"))?)).is_err());
        assert_eq!((fs::read(store.path()).unwrap(), store.stamp()), before);
        fs::remove_dir_all(directory).unwrap();
    }

    #[test]
    fn a_file_of_something_else_is_refused_without_being_quoted() {
        let directory = place("other");
        fs::create_dir_all(&directory).unwrap();
        let store = Store::of_data_dir(&directory);
        for text in [r#"{"version":1,"users":[{"name":"hunter2"}]}"#, r#"{"version":2}"#, "hunter2", "[]"] {
            fs::write(store.path(), text).unwrap();
            let error = store.read().unwrap_err();
            assert!(matches!(error, StoreError::Format { .. }), "{text}");
            assert!(!error.to_string().contains("hunter2"));
        }
        fs::remove_dir_all(directory).unwrap();
    }
}
