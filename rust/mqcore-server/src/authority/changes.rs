//! Changes of users and tokens by a caller, who gives and takes no more than its own permissions, and for no longer.

use hashbrown::HashMap;
use mqcore_authority::login::Identity;
use mqcore_authority::record::{Records, Token, User};

use super::state::Authority;
use super::store::{Change, StoreError, UserStore};

impl Authority {
    /// Applies a change of a caller.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub(crate) fn change(&self, caller: &Identity, change: Change<'_>) -> Result<(), StoreError> {
        match change {
            Change::SetPassword { name, .. } | Change::RemoveUser { name } => {
                let is_configured = self.configured.users.iter().any(|user| user.name == name);
                refuse_configured(is_configured, "user", name)?;
            }
            Change::RemoveToken { id } => {
                let is_configured = self.configured.tokens.iter().any(|token| token.id == id);
                refuse_configured(is_configured, "token", id)?;
            }
            Change::AddUser { .. } => {}
        }
        self.changeable()?.apply_checked(change, |before, after| self.permit(caller, before, after))
    }

    /// Adds a token given as JSON for a caller. Returns its ID and its text.
    ///
    /// # Errors
    /// As for [`Authority::change`].
    pub(crate) fn add_token(&self, caller: &Identity, request: &str) -> Result<(String, String), StoreError> {
        self.changeable()?.add_token_checked(request, |before, after| self.permit(caller, before, after))
    }

    fn changeable(&self) -> Result<&UserStore, StoreError> {
        self.store().ok_or(StoreError::NoStore)
    }

    /// Accepts new records that agree with those of the configuration, if the caller may do all that the changed ones
    /// allow, for as long and from as many places. Otherwise it could use a new token, or the new password of a user, to
    /// do more than before.
    fn permit(&self, caller: &Identity, before: &Records, after: &Records) -> Result<(), StoreError> {
        // Its request may have waited while someone revoked its token. Expiry was checked before.
        if !self.configured.clone().joined(before.clone())?.uphold(caller, 0) {
            return Err(StoreError::CallerRevoked);
        }
        // Records that contradict each other would keep the broker from starting.
        self.configured.clone().joined(after.clone())?;
        let (new_users, old_users) = differing(&before.users, &after.users, |user: &User| &user.name);
        let (new_tokens, old_tokens) = differing(&before.tokens, &after.tokens, |token: &Token| &token.id);
        let users = new_users.iter().chain(&old_users).flat_map(|user| &user.allow);
        let tokens = new_tokens.iter().chain(&old_tokens).flat_map(|token| &token.allow);
        if let Some(rule) = users.chain(tokens).find(|rule| !caller.grants.covers(rule)) {
            return Err(StoreError::BeyondCaller { rule: Box::new(rule.clone()) });
        }
        let restrictions =
            new_users.iter().map(|user| &user.restrict).chain(new_tokens.iter().map(|token| &token.restrict));
        if let Some(own) = caller.restrictions()
            && let Some(what) = restrictions.filter_map(|new| own.widened_by(new)).next()
        {
            return Err(StoreError::LessRestricted { what });
        }
        if let Some(expires_ms) = caller.expires_ms {
            let is_longer = |token: &&Token| token.expires_ms.is_none_or(|new| new > expires_ms);
            if !new_users.is_empty() || new_tokens.iter().any(is_longer) {
                return Err(StoreError::OutlivesCaller { expires_ms });
            }
        }
        Ok(())
    }
}

fn refuse_configured(is_configured: bool, kind: &str, name: &str) -> Result<(), StoreError> {
    if is_configured {
        return Err(StoreError::Configured { what: format!("{kind} {name:?}") });
    }
    Ok(())
}

/// Records of the second list that the first one does not have in the same form, and those of the first one that the second
/// one does not have. `key` is unique in a list.
fn differing<'a, T: PartialEq>(
    before: &'a [T],
    after: &'a [T],
    key: fn(&T) -> &str,
) -> (Vec<&'a T>, Vec<&'a T>) {
    let by_key = |list: &'a [T]| list.iter().map(|record| (key(record), record)).collect::<HashMap<_, _>>();
    let (old, new) = (by_key(before), by_key(after));
    let added = after.iter().filter(|record| old.get(key(record)) != Some(record));
    let removed = before.iter().filter(|record| new.get(key(record)) != Some(record));
    (added.collect(), removed.collect())
}
