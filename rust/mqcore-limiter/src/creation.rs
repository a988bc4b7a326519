//! The properties and the owner of an entry that a call may create.

use std::sync::Arc;

use crate::owner::KeyOwner;
use crate::shard::EntryProperties;

/// Properties of an entry that a call may create, and the owner whose limit applies to it.
#[derive(Debug, Clone, Copy)]
pub struct Creation<'a> {
    /// Width of a counter, and persistence.
    pub properties: EntryProperties,
    /// `None`: the entry counts for no owner.
    pub owner: Option<&'a Arc<KeyOwner>>,
}

impl From<u8> for Creation<'_> {
    /// A counter of this width that is not persistent and has no owner.
    fn from(bits: u8) -> Self {
        EntryProperties::from(bits).into()
    }
}

impl From<EntryProperties> for Creation<'_> {
    /// Without an owner.
    fn from(properties: EntryProperties) -> Self {
        Self { properties, owner: None }
    }
}
