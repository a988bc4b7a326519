//! Channels, queues and routers that the program or the configuration declares.

use crate::context::Context;
use crate::context::state::ShardState;
use crate::model::conflicts::{channel_conflicts, queue_conflicts, router_conflicts};
use crate::model::declaration::{Declaration, Declared, OnConflict};
use crate::model::definition::{channel_key, queue_key, router_key};
use crate::model::id::{ChannelName, QueueAddress};
use crate::model::options::{ChannelChanges, QueueChanges};
use crate::model::record::Record;
use crate::model::rejection::{Rejection, RejectionKind};
use crate::model::router::RouterDefinition;
use crate::shard::channel::{check_changes, options_with_policies};
use crate::shard::entities::Entities;
use crate::shard::routes::check_target;

impl Entities {
    /// Creates what is declared, unless it exists.
    pub(crate) fn declare(
        &mut self,
        declaration: &Declaration,
        on_conflict: OnConflict,
        context: &mut Context<'_>,
    ) -> Result<Declared, Rejection> {
        let Some(conflicts) = self.conflicts(declaration, context.state) else {
            self.create_declared(declaration, context)?;
            return Ok(Declared::Created);
        };
        if conflicts.is_empty() {
            let key = match declaration {
                Declaration::Channel(name, _) => channel_key(name),
                Declaration::Queue(queue, _) => queue_key(queue),
                Declaration::Router(router) => router_key(&router.name),
            };
            context.check_definition(true, &key)?;
            return Ok(Declared::Unchanged);
        }
        if on_conflict == OnConflict::Reject {
            let reason = format!(
                "{} exists with other options: {}; declare what it has, or change it first",
                declaration.subject(),
                conflicts.join("; ")
            );
            return Err(Rejection::new(RejectionKind::AlreadyExists, reason));
        }
        self.replace_declared(declaration, context)?;
        Ok(Declared::Replaced(conflicts))
    }

    /// The options that differ from the declared ones; `None` if it does not exist, or its options are lost.
    fn conflicts(&mut self, declaration: &Declaration, state: &ShardState) -> Option<Vec<String>> {
        match declaration {
            Declaration::Channel(name, changes) => {
                let key = self.lookup(name)?;
                Some(channel_conflicts(&self.channels[key].options, changes))
            }
            Declaration::Queue(address, changes) => {
                let key = self.lookup(&address.channel)?;
                let queue = self.channels[key].queues.get(&address.id);
                let queue = queue.filter(|queue| !queue.metadata.options_lost)?;
                // Policies prevail over what is declared, as they did when the queue was created.
                let options = &queue.metadata.options;
                let mut wanted = options.clone();
                changes.apply_to(&mut wanted);
                let (wanted, _) = options_with_policies(address, wanted, None, state);
                Some(queue_conflicts(options, &wanted))
            }
            Declaration::Router(router) => {
                let existing = self.routers.get(&router.name)?;
                Some(router_conflicts(&existing.definition, router))
            }
        }
    }

    fn create_declared(
        &mut self,
        declaration: &Declaration,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        context.check_definitions()?;
        match declaration {
            Declaration::Channel(name, changes) => {
                self.create_channel(name, changes, None, context).map(|_key| ())
            }
            Declaration::Queue(address, changes) => self.create_queue(address, changes, None, context),
            Declaration::Router(router) => self.declare_router(router, context),
        }
    }

    fn replace_declared(
        &mut self,
        declaration: &Declaration,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        context.check_definitions()?;
        match declaration {
            Declaration::Channel(name, changes) => self.replace_channel_options(name, changes, context),
            Declaration::Queue(address, changes) => self.replace_queue_options(address, changes, context),
            Declaration::Router(router) => self.declare_router(router, context),
        }
    }

    /// The options of its existing queues stay.
    fn replace_channel_options(
        &mut self,
        name: &ChannelName,
        changes: &ChannelChanges,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        check_changes(None, &changes.queue, context.state)?;
        if let Some(key) = self.lookup(name) {
            let channel = &mut self.channels[key];
            changes.apply_to(&mut channel.options);
            channel.options_lost = false;
            context.record(Record::DefineChannel(name.clone(), Box::new(channel.options.clone())));
        }
        Ok(())
    }

    fn replace_queue_options(
        &mut self,
        address: &QueueAddress,
        changes: &QueueChanges,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        match self.lookup(&address.channel) {
            Some(key) => {
                self.channels[key].update_queue(address.id, changes, context)?;
                self.channels[key].apply_policies(address.id, None, context);
                Ok(())
            }
            None => Ok(()),
        }
    }

    fn declare_router(
        &mut self,
        router: &RouterDefinition,
        context: &mut Context<'_>,
    ) -> Result<(), Rejection> {
        for binding in &router.bindings {
            check_target(&binding.target, context.state)?;
        }
        self.redefine(router.clone(), context).map(|_done| ())
    }
}
