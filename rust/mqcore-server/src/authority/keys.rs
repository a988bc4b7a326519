//! Decides which limits a peer may request, while its requests are read, because the session answers them itself.
//!
//! Rules decide at once. If an authorizer must decide as well, the session stops at the first request without a
//! verdict. All keys read so far are asked about together, and the session then continues where it stopped.

use std::future::Future;
use std::pin::Pin;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use hashbrown::HashMap;
use mqcore_authority::action::Action;
use mqcore_authority::audit::AuditDetail;
use mqcore_authority::login::Identity;
use mqcore_authority::resource::Resource;
use mqcore_broker::model::client::Client;
use mqcore_session::permission::{Permission, PermissionSubject, Permissions};

use super::port::AuthorityPort;
use super::state::RequestOrigin;
use super::verdicts::{Answers, CachedVerdict, VERDICTS_MAX, ask, write};
use crate::hub::Hub;

/// The pending questions of one batch.
pub(crate) type Asking = Pin<Box<dyn Future<Output = Answers> + Send>>;

/// One peer's permissions.
pub(crate) struct LimitKeys {
    identity: Arc<Identity>,
    authorizer: Option<Arc<dyn AuthorityPort>>,
    client: Arc<Client>,
    origin: RequestOrigin,
    hub: Arc<Hub>,
    state: Mutex<LimitVerdicts>,
}

impl std::fmt::Debug for LimitKeys {
    fn fmt(&self, formatter: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        formatter.debug_struct("LimitKeys").field("client", &self.client.id).finish_non_exhaustive()
    }
}

#[derive(Default)]
struct LimitVerdicts {
    /// Verdicts of the authorizer.
    verdicts: HashMap<(Action, Box<str>), CachedVerdict, foldhash::fast::RandomState>,
    /// Keys about which the authorizer must be asked.
    wanted: Vec<(Action, Box<str>)>,
    /// Increases when every request that was read is answered.
    round: u64,
}

impl LimitKeys {
    pub(super) fn new(
        identity: Arc<Identity>,
        authorizer: Option<Arc<dyn AuthorityPort>>,
        client: Arc<Client>,
        origin: RequestOrigin,
        hub: Arc<Hub>,
    ) -> Self {
        Self { identity, authorizer, client, origin, hub, state: Mutex::default() }
    }

    fn lock(&self) -> MutexGuard<'_, LimitVerdicts> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// The new questions, if there are any.
    pub(crate) fn ask(&self) -> Option<Asking> {
        let wanted = std::mem::take(&mut self.lock().wanted);
        let authorizer = self.authorizer.as_ref().filter(|_| !wanted.is_empty())?;
        let (client, identity) = (Arc::clone(&self.client), Arc::clone(&self.identity));
        Some(Box::pin(ask(Arc::clone(authorizer), client, identity, wanted)))
    }

    /// Caches verdicts of the authorizer.
    pub(crate) fn remember(&self, answers: Answers) {
        let now = self.hub.clock.now();
        let cache = self.authorizer.as_ref().map(|port| port.cache()).unwrap_or_default();
        let LimitVerdicts { verdicts, round, .. } = &mut *self.lock();
        if verdicts.len() + answers.len() > VERDICTS_MAX {
            verdicts.retain(|_, said| said.holds(now, *round));
        }
        if verdicts.len() + answers.len() > VERDICTS_MAX {
            verdicts.clear();
        }
        let until = now.after(cache);
        for (key, allowed) in answers {
            verdicts.insert(key, CachedVerdict { allowed, until, round: *round });
        }
    }

    /// The session has processed its input. If no question is pending, later requests are asked about anew.
    pub(crate) fn end_round(&self) {
        let mut state = self.lock();
        if state.wanted.is_empty() {
            state.round += 1;
        }
    }

    fn said(&self, action: Action, resource: &Resource<'_>) -> Permission {
        let key = (action, Box::from(resource.to_string()));
        let mut state = self.lock();
        let said = state.verdicts.get(&key).filter(|said| said.holds(self.hub.clock.now(), state.round));
        match said {
            Some(said) if said.allowed => Permission::Granted,
            Some(_) => Permission::Denied,
            None => {
                if state.wanted.len() < VERDICTS_MAX / 2 && !state.wanted.contains(&key) {
                    state.wanted.push(key);
                }
                Permission::Undecided
            }
        }
    }

    fn note(&self, action: Action, resource: &Resource<'_>, denied: Option<&str>) {
        write(&self.hub, &self.origin, &self.client, &self.identity, (action, &resource.to_string()), denied);
    }
}

impl Permissions for LimitKeys {
    fn decide(&self, wanted: PermissionSubject<'_>) -> Permission {
        let (action, resource) = match wanted {
            PermissionSubject::Key(key) => (Action::Limit, Resource::LimitKey(key)),
            PermissionSubject::Keys => (Action::Limit, Resource::Server),
            PermissionSubject::Connections => (Action::Administer, Resource::Server),
            PermissionSubject::Channel(channel) => (Action::Administer, Resource::Topic(channel)),
        };
        if !self.identity.grants.allow(action, &resource) {
            self.hub.authority.counters.actions_denied.add(1);
            self.note(action, &resource, Some("no rule allows it"));
            return Permission::Denied;
        }
        let permission = match &self.authorizer {
            Some(_) => self.said(action, &resource),
            None => Permission::Granted,
        };
        match permission {
            Permission::Denied => {
                self.hub.authority.counters.actions_denied.add(1);
                self.note(action, &resource, Some("the authorizer says no"));
            }
            Permission::Granted if self.hub.authority.detail == AuditDetail::All => {
                self.note(action, &resource, None);
            }
            Permission::Granted | Permission::Undecided => {}
        }
        permission
    }
}
