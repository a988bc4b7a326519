//! Changes of users and tokens by a caller, who gives and takes no more than its own permissions.

use hashbrown::HashMap;
use mqcore_authority::grants::Grants;
use mqcore_authority::record::{Records, Token, User};
use mqcore_authority::rule::PermissionRule;

use super::state::Authority;
use super::store::{Change, StoreError, UserStore};

impl Authority {
    /// Applies a change of a caller with `grants`.
    ///
    /// # Errors
    /// [`StoreError`]; nothing has changed then.
    pub(crate) fn change(&self, grants: &Grants, change: Change<'_>) -> Result<(), StoreError> {
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
        self.changeable()?.apply_checked(change, |before, after| self.permit(grants, before, after))
    }

    /// Adds a token given as JSON for a caller with `grants`. Returns its ID and its text.
    ///
    /// # Errors
    /// As for [`Authority::change`].
    pub(crate) fn add_token(&self, grants: &Grants, request: &str) -> Result<(String, String), StoreError> {
        self.changeable()?.add_token_checked(request, |before, after| self.permit(grants, before, after))
    }

    fn changeable(&self) -> Result<&UserStore, StoreError> {
        self.store().ok_or(StoreError::NoStore)
    }

    /// Accepts new records that agree with those of the configuration, if the caller may do all that the changed ones
    /// allow. Otherwise it could use a new token, or the new password of a user, to do more than before.
    fn permit(&self, grants: &Grants, before: &Records, after: &Records) -> Result<(), StoreError> {
        // Records that contradict each other would keep the broker from starting.
        self.configured.clone().joined(after.clone())?;
        let users =
            differing(&before.users, &after.users, |user: &User| &user.name).flat_map(|user| &user.allow);
        let tokens = differing(&before.tokens, &after.tokens, |token: &Token| &token.id)
            .flat_map(|token| &token.allow);
        match users.chain(tokens).find(|rule: &&PermissionRule| !grants.covers(rule)) {
            None => Ok(()),
            Some(rule) => Err(StoreError::BeyondCaller { rule: Box::new(rule.clone()) }),
        }
    }
}

fn refuse_configured(is_configured: bool, kind: &str, name: &str) -> Result<(), StoreError> {
    if is_configured {
        return Err(StoreError::Configured { what: format!("{kind} {name:?}") });
    }
    Ok(())
}

/// Records of both lists that the other one does not have in the same form. `key` is unique in a list.
fn differing<'a, T: PartialEq>(
    before: &'a [T],
    after: &'a [T],
    key: fn(&T) -> &str,
) -> impl Iterator<Item = &'a T> {
    let by_key = |list: &'a [T]| list.iter().map(|record| (key(record), record)).collect::<HashMap<_, _>>();
    let (old, new) = (by_key(before), by_key(after));
    let removed = before.iter().filter(move |record| new.get(key(record)) != Some(record));
    removed.chain(after.iter().filter(move |record| old.get(key(record)) != Some(record)))
}
