//! The options of a listener: `emqp://127.0.0.1:47290?role=backend`.

use crate::listener::{BadOption, ListenerOptions};

/// The kind of peers on a listener; the original has a socket for each.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Default)]
pub enum Role {
    /// Workers.
    #[default]
    Backend,
    /// Clients and schedulers.
    Frontend,
    /// Administrators.
    Admin,
    /// Publishers.
    Publish,
    /// Subscribers.
    Subscribe,
}

impl Role {
    /// All roles.
    pub const ALL: [Self; 5] = [Self::Backend, Self::Frontend, Self::Admin, Self::Publish, Self::Subscribe];

    /// The value of `role` in a listener's URL.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Backend => "backend",
            Self::Frontend => "frontend",
            Self::Admin => "admin",
            Self::Publish => "publish",
            Self::Subscribe => "subscribe",
        }
    }

    /// The role with this name.
    #[must_use]
    pub fn from_name(name: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|role| role.as_str() == name)
    }

    /// Distance of the original's port from the port of its workers.
    #[must_use]
    pub const fn port_offset(self) -> u16 {
        match self {
            Self::Backend => 0,
            Self::Frontend => 1,
            Self::Admin => 3,
            Self::Publish => 8,
            Self::Subscribe => 9,
        }
    }
}

/// The options of a listener.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EventmqTerms {
    /// The kind of peers that connect. Default: workers.
    pub role: Role,
}

impl EventmqTerms {
    pub(super) fn read(options: &mut ListenerOptions) -> Result<Self, BadOption> {
        let Some(name) = options.take("role") else { return Ok(Self::default()) };
        let bad = BadOption("role must be backend, frontend, admin, publish or subscribe");
        Role::from_name(&name).map(|role| Self { role }).ok_or(bad)
    }
}
