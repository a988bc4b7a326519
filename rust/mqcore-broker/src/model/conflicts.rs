//! Differences between declared options and those of existing channels, queues and routers.

use crate::model::definition::{channel_differences, queue_differences};
use crate::model::options::{ChannelChanges, ChannelOptions, QueueOptions};
use crate::model::router::RouterDefinition;

/// The declared options of a channel that differ from the options that it has.
#[must_use]
pub fn channel_conflicts(options: &ChannelOptions, declared: &ChannelChanges) -> Vec<String> {
    let mut wanted = options.clone();
    declared.apply_to(&mut wanted);
    if wanted == *options { Vec::new() } else { channel_differences(options, &wanted) }
}

/// The options of a queue that differ from those that it should have.
#[must_use]
pub fn queue_conflicts(options: &QueueOptions, wanted: &QueueOptions) -> Vec<String> {
    if wanted == options { Vec::new() } else { queue_differences(options, wanted) }
}

/// The properties of a router that differ from the declared ones.
#[must_use]
pub fn router_conflicts(existing: &RouterDefinition, declared: &RouterDefinition) -> Vec<String> {
    let mut conflicts = Vec::new();
    if existing.method != declared.method {
        let (is, wanted) = (existing.method.as_str(), declared.method.as_str());
        conflicts.push(format!("method is {is}, declared {wanted}"));
    }
    if existing.enabled != declared.enabled {
        conflicts.push(format!("enabled is {}, declared {}", existing.enabled, declared.enabled));
    }
    for binding in &declared.bindings {
        match existing.bindings.iter().find(|known| known.name == binding.name) {
            None => conflicts.push(format!("the declared binding {} is missing", binding.name)),
            Some(known) if known != binding => {
                conflicts.push(format!("binding {} differs from the declared one", binding.name));
            }
            Some(_) => {}
        }
    }
    let declares = |name: &str| declared.bindings.iter().any(|binding| &*binding.name == name);
    let others = existing.bindings.iter().filter(|binding| !declares(&binding.name));
    conflicts.extend(others.map(|binding| format!("binding {} is not declared", binding.name)));
    conflicts
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::id::RouterName;
    use crate::model::options::{QueueChanges, Status};
    use crate::model::router::{Binding, RouterMethod, Target};

    #[test]
    fn only_declared_options_can_conflict() {
        let options = QueueOptions { status: Status::Pull, message_limit: 7, ..QueueOptions::default() };
        let conflicts = |declared: &QueueChanges| {
            let mut wanted = options.clone();
            declared.apply_to(&mut wanted);
            queue_conflicts(&options, &wanted)
        };
        assert_eq!(conflicts(&QueueChanges::default()), [""; 0]);
        let same = QueueChanges { status: Some(Status::Pull), ..QueueChanges::default() };
        assert_eq!(conflicts(&same), [""; 0]);
        let other =
            QueueChanges { message_limit: Some(8), tag: Some("new".into()), ..QueueChanges::default() };
        assert_eq!(conflicts(&other), ["message_limit is 7, declared 8", "tag is not set, declared new"]);
        let channel = ChannelOptions { client_limit: 3, queue: options, ..ChannelOptions::default() };
        let other = ChannelChanges { client_limit: Some(4), queue: other, ..ChannelChanges::default() };
        assert_eq!(
            channel_conflicts(&channel, &other),
            [
                "queue.message_limit is 7, declared 8",
                "queue.tag is not set, declared new",
                "client_limit is 3, declared 4"
            ]
        );
    }

    #[test]
    fn bindings_of_a_router_are_compared_without_their_order() {
        let router = |names: &[&str]| {
            let mut router =
                RouterDefinition::new(RouterName::new("r").expect("a name"), RouterMethod::Distribute);
            for name in names {
                let target = Target::parse(name).expect("a queue");
                router.bindings.push(Binding::new(name, target));
            }
            router
        };
        assert_eq!(router_conflicts(&router(&["a/1", "b/1"]), &router(&["b/1", "a/1"])), [""; 0]);
        assert_eq!(
            router_conflicts(&router(&["a/1"]), &router(&["b/1"])),
            ["the declared binding b/1 is missing", "binding a/1 is not declared"]
        );
    }
}
