//! How a node without a group begins one with the others, or finds theirs.

use std::collections::BTreeMap;

use mqcore_consensus::membership::ReplicaId;

use crate::identity::MemberIdentity;
use crate::input::MemberGreeting;

/// The next step of a node without a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Founding {
    /// It waits for the nodes that it has not heard.
    Waits(Vec<u32>),
    /// It begins the group of these nodes, with the incarnations of their directories.
    Begins(BTreeMap<u32, u64>),
    /// It joins an existing group as a new replica.
    Joins {
        /// The first nodes of the group.
        founders: BTreeMap<u32, u64>,
        /// The generation of the new replica.
        generation: u32,
    },
    /// Several nodes have data of brokers without a cluster.
    Conflict(Vec<u32>),
}

/// Decides the next step of a node without a group, from the greetings of the others.
pub(super) fn decide(
    identity: &MemberIdentity,
    has_data: bool,
    peers: impl Iterator<Item = u32> + Clone,
    greetings: &BTreeMap<u32, MemberGreeting>,
) -> Founding {
    // Any group counts, so that a node that lost its directory never begins a second one.
    if let Some(group) = greetings.values().find(|greeting| greeting.replica.is_some()) {
        if group.founders.get(&identity.node) == Some(&identity.incarnation) {
            return Founding::Begins(group.founders.clone());
        }
        let ids = group.known.iter().filter_map(|number| ReplicaId::from_number(*number));
        let known = ids.filter(|id| id.node() == identity.node).map(|id| (id.to_number() >> 32) as u32);
        let generation = MemberIdentity::next_generation(known);
        return Founding::Joins { founders: group.founders.clone(), generation };
    }
    let missing: Vec<u32> = peers.filter(|node| !greetings.contains_key(node)).collect();
    if !missing.is_empty() {
        return Founding::Waits(missing);
    }
    let mut with_data: Vec<u32> =
        greetings.iter().filter(|(_, greeting)| greeting.has_data).map(|(node, _)| *node).collect();
    with_data.extend(has_data.then_some(identity.node));
    match with_data[..] {
        [] => {
            let founders = greetings.iter().map(|(node, greeting)| (*node, greeting.incarnation));
            Founding::Begins(founders.chain([(identity.node, identity.incarnation)]).collect())
        }
        // The others get copies of its data.
        [node] if node == identity.node => Founding::Begins([(identity.node, identity.incarnation)].into()),
        [node] => Founding::Waits(vec![node]),
        _ => Founding::Conflict(with_data),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn identity(node: u32, incarnation: u64) -> MemberIdentity {
        MemberIdentity {
            cluster: "c".to_owned(),
            node,
            incarnation,
            generation: None,
            has_log: false,
            founders: BTreeMap::new(),
            is_copying: false,
            is_log_lost: false,
        }
    }

    fn empty(incarnation: u64) -> MemberGreeting {
        MemberGreeting { incarnation, ..MemberGreeting::default() }
    }

    fn grouped(founders: &[(u32, u64)], known: &[u64]) -> MemberGreeting {
        MemberGreeting {
            replica: Some(7),
            founders: founders.iter().copied().collect(),
            known: known.into(),
            ..MemberGreeting::default()
        }
    }

    #[test]
    fn a_group_begins_when_all_nodes_are_there() {
        let me = identity(1, 11);
        let peers = [2, 3].into_iter();
        let mut greetings = BTreeMap::from([(2, empty(22))]);
        assert_eq!(decide(&me, false, peers.clone(), &greetings), Founding::Waits(vec![3]));
        greetings.insert(3, empty(33));
        let founders = [(1, 11), (2, 22), (3, 33)];
        assert_eq!(decide(&me, false, peers, &greetings), Founding::Begins(founders.into()));
    }

    #[test]
    fn a_node_that_was_there_at_the_beginning_takes_part_in_it() {
        let founders = [(1, 11), (2, 22), (3, 33)];
        let greetings = BTreeMap::from([(2, grouped(&founders, &[1, 2, 3]))]);
        let decided = decide(&identity(1, 11), false, [2, 3].into_iter(), &greetings);
        assert_eq!(decided, Founding::Begins(founders.into()));
    }

    #[test]
    fn a_node_that_lost_its_directory_joins_under_a_new_id() {
        let founders = [(1, 11), (2, 22), (3, 33)];
        let newest = u64::from(u32::MAX - 1) << 32 | 1;
        let greetings = BTreeMap::from([(2, grouped(&founders, &[1, newest, 2, 3]))]);
        let decided = decide(&identity(1, 12), false, [2, 3].into_iter(), &greetings);
        assert_eq!(decided, Founding::Joins { founders: founders.into(), generation: u32::MAX });
    }

    #[test]
    fn the_only_node_with_data_begins_the_group_alone() {
        let greetings = BTreeMap::from([(2, empty(22)), (3, empty(33))]);
        let peers = [2, 3].into_iter();
        assert_eq!(
            decide(&identity(1, 11), true, peers.clone(), &greetings),
            Founding::Begins([(1, 11)].into())
        );
        let with_data = BTreeMap::from([(2, MemberGreeting { has_data: true, ..empty(22) }), (3, empty(33))]);
        assert_eq!(decide(&identity(1, 11), false, peers.clone(), &with_data), Founding::Waits(vec![2]));
        assert_eq!(decide(&identity(1, 11), true, peers, &with_data), Founding::Conflict(vec![2, 1]));
    }
}
