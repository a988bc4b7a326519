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
    /// These nodes are witnesses, and no majority would be left without them.
    TooManyWitnesses(Vec<u32>),
}

/// Decides the next step of a node without a group, from the greetings of the others.
pub(super) fn decide(
    identity: &MemberIdentity,
    (has_data, is_witness): (bool, bool),
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
    let mut witnesses: Vec<u32> =
        greetings.iter().filter(|(_, greeting)| greeting.is_witness).map(|(node, _)| *node).collect();
    witnesses.extend(is_witness.then_some(identity.node));
    if witnesses.len() * 2 > greetings.len() {
        return Founding::TooManyWitnesses(witnesses);
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

    const NOTHING: (bool, bool) = (false, false);
    const DATA: (bool, bool) = (true, false);

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
            is_witness: false,
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
        assert_eq!(decide(&me, NOTHING, peers.clone(), &greetings), Founding::Waits(vec![3]));
        greetings.insert(3, empty(33));
        let founders = [(1, 11), (2, 22), (3, 33)];
        assert_eq!(decide(&me, NOTHING, peers, &greetings), Founding::Begins(founders.into()));
    }

    #[test]
    fn a_node_that_was_there_at_the_beginning_takes_part_in_it() {
        let founders = [(1, 11), (2, 22), (3, 33)];
        let greetings = BTreeMap::from([(2, grouped(&founders, &[1, 2, 3]))]);
        let decided = decide(&identity(1, 11), NOTHING, [2, 3].into_iter(), &greetings);
        assert_eq!(decided, Founding::Begins(founders.into()));
    }

    #[test]
    fn a_node_that_lost_its_directory_joins_under_a_new_id() {
        let founders = [(1, 11), (2, 22), (3, 33)];
        let newest = u64::from(u32::MAX - 1) << 32 | 1;
        let greetings = BTreeMap::from([(2, grouped(&founders, &[1, newest, 2, 3]))]);
        let decided = decide(&identity(1, 12), NOTHING, [2, 3].into_iter(), &greetings);
        assert_eq!(decided, Founding::Joins { founders: founders.into(), generation: u32::MAX });
    }

    #[test]
    fn the_only_node_with_data_begins_the_group_alone() {
        let greetings = BTreeMap::from([(2, empty(22)), (3, empty(33))]);
        let peers = [2, 3].into_iter();
        assert_eq!(
            decide(&identity(1, 11), DATA, peers.clone(), &greetings),
            Founding::Begins([(1, 11)].into())
        );
        let with_data = BTreeMap::from([(2, MemberGreeting { has_data: true, ..empty(22) }), (3, empty(33))]);
        assert_eq!(decide(&identity(1, 11), NOTHING, peers.clone(), &with_data), Founding::Waits(vec![2]));
        assert_eq!(decide(&identity(1, 11), DATA, peers, &with_data), Founding::Conflict(vec![2, 1]));
    }

    #[test]
    fn a_group_with_too_many_witnesses_does_not_begin() {
        let witness = |incarnation| MemberGreeting { is_witness: true, ..empty(incarnation) };
        let peers = [2, 3].into_iter();
        let one = BTreeMap::from([(2, empty(22)), (3, witness(33))]);
        let founders = [(1, 11), (2, 22), (3, 33)];
        let begins = Founding::Begins(founders.into());
        assert_eq!(decide(&identity(1, 11), NOTHING, peers.clone(), &one), begins);
        let two = decide(&identity(1, 11), (false, true), peers, &one);
        assert_eq!(two, Founding::TooManyWitnesses(vec![3, 1]));
    }
}
