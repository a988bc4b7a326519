//! Promises of a replica to its caller.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use bytes::Bytes;
use mqcore_consensus::log::{Ballot, ReplicatedLog as _};
use mqcore_consensus::membership::{GroupMembers, MemberChange, ReplicaId, next_change};
use mqcore_consensus::replica::{
    ProposeError, Replica, ReplicaError, ReplicaOptions, ReplicaRole, ReplicaStartError,
};
use mqcore_testkit::{Random, seeds};

use crate::group::Group;
use crate::simulation::disk::{Contents, Machine, SimulatedLog, Store, empty_log, log_with_ballot};

fn batch(text: &'static str) -> Bytes {
    Bytes::from_static(text.as_bytes())
}

#[test]
fn proposed_entry_is_committed_with_its_index_and_term_on_all_replicas() {
    let mut group = Group::new(3);
    group.elect(1);
    let proposal = group.propose(1, batch("one")).unwrap();
    group.tick();
    group.tick();
    for applied in &group.applied {
        let entry = applied.last().unwrap();
        assert_eq!((entry.index, entry.term, &entry.data), (proposal.index, proposal.term, &batch("one")));
    }
}

#[test]
fn follower_refuses_a_proposal_and_names_the_leader() {
    let mut group = Group::new(3);
    assert_eq!(group.propose(0, batch("early")), Err(ProposeError::NotLeader { leader: None }));
    group.elect(1);
    let refused = group.propose(0, batch("one")).unwrap_err();
    assert_eq!(refused, ProposeError::NotLeader { leader: Some(ReplicaId::first(2)) });
    assert_eq!(refused.to_string(), "this replica does not lead its group; 2.0 does");
    assert!(group.applied.iter().flatten().all(|entry| entry.data.is_empty()), "nothing was proposed");
}

#[test]
fn entry_is_not_committed_before_a_majority_has_synced_it() {
    let mut group = Group::new(3);
    group.elect(0);
    group.hanging = vec![1, 2];
    let proposal = group.propose(0, batch("one")).unwrap();
    group.tick();
    assert!(group.replicas[0].committed() < proposal.index, "two of three disks hang");
    group.hanging = vec![2];
    // The last number covers all earlier ones.
    for message in group.replicas[1].persisted(u64::MAX) {
        group.replicas[0].receive(message).unwrap();
    }
    group.settle();
    assert_eq!(group.replicas[0].committed(), proposal.index);
}

#[test]
fn leader_without_a_majority_gives_up_and_a_majority_elects_another() {
    let mut group = Group::new(3);
    group.elect(0);
    group.cut = vec![0];
    for _ in 0..60 {
        group.tick();
    }
    assert_ne!(group.replicas[0].role(), ReplicaRole::Leader);
    let leader = group.leader().expect("two of three replicas elect a leader");
    let proposal = group.propose(leader, batch("new")).unwrap();
    assert_eq!(group.replicas[leader].committed(), proposal.index);
    group.cut.clear();
    for _ in 0..60 {
        group.tick();
    }
    assert_eq!(group.applied[0].last().unwrap().data, batch("new"));
}

#[test]
fn leader_whose_disk_hangs_hands_leadership_over() {
    let mut group = Group::new(3);
    group.elect(0);
    group.hanging = vec![0];
    group.propose(0, batch("one")).unwrap();
    for _ in 0..60 {
        group.tick();
    }
    let leader = group.leader().expect("there is a leader");
    assert_ne!(leader, 0);
    assert_eq!(group.applied[leader].iter().filter(|entry| entry.data == batch("one")).count(), 1);
}

#[test]
fn resigning_leader_leaves_no_gap() {
    let mut group = Group::new(3);
    group.elect(0);
    group.replicas[0].resign();
    group.settle();
    assert!(matches!(group.leader(), Some(1 | 2)), "without an election timeout");
}

#[test]
fn resigning_leader_prefers_a_replica_whose_state_is_complete() {
    let mut group = Group::new(3);
    group.elect(0);
    let complete = BTreeSet::from([ReplicaId::first(2)]);
    group.replicas[0].set_complete(complete);
    group.replicas[0].resign();
    group.settle();
    assert_eq!(group.leader(), Some(1), "not the one with the greatest id");
}

#[test]
fn resigning_leader_turns_to_another_replica_if_the_first_does_not_answer() {
    let mut group = Group::new(3);
    group.elect(0);
    group.cut = vec![2];
    // More than one check of the quorum, after each of which nothing is known about others.
    for _ in 0..40 {
        group.replicas[0].resign();
        group.tick();
    }
    assert_eq!(group.leader(), Some(1));
}

#[test]
fn replica_gets_its_vote_when_its_state_is_complete() {
    let mut group = Group::new(1);
    group.elect(0);
    group.replicas[0].set_complete(BTreeSet::new());
    let (one, two) = (ReplicaId::first(1), ReplicaId::first(2));
    group.begin(two, Contents::default());
    let adjust = |group: &mut Group| {
        for _ in 0..20 {
            group.replicas[0].adjust_membership(&[one, two].into()).unwrap();
            group.tick();
        }
        group.replicas[0].membership()
    };
    let members = adjust(&mut group);
    assert_eq!(group.replicas[0].progress()[&two], group.replicas[0].committed(), "it has the whole log");
    assert_eq!((members.voters, members.learners), ([one].into(), [two].into()));
    group.replicas[0].set_complete([two].into());
    assert_eq!(adjust(&mut group).voters, [one, two].into());
}

#[test]
fn committed_entries_come_in_parts_also_after_a_restart() {
    let members = GroupMembers::of([ReplicaId::first(1)]);
    let contents = Contents::of_group(&members);
    let machine = Rc::new(RefCell::new(Machine::of_snapshot(contents.base())));
    let store = Store::model(contents, None);
    let begin = || {
        let options = ReplicaOptions { max_committed_bytes: 1000, ..ReplicaOptions::default() };
        Replica::start(ReplicaId::first(1), store.open(&machine, None).unwrap(), options).unwrap()
    };
    let drain = |replica: &mut Replica<SimulatedLog>| {
        let mut count = 0;
        while let Some(work) = replica.poll().unwrap() {
            let bytes: usize = work.committed.iter().map(|entry| entry.data.len()).sum();
            assert!(bytes <= 1000, "{bytes} bytes at once");
            count += work.committed.iter().filter(|entry| !entry.data.is_empty()).count();
            replica.persisted(work.number);
        }
        count
    };
    let mut replica = begin();
    while replica.role() != ReplicaRole::Leader {
        replica.tick();
        drain(&mut replica);
    }
    for _ in 0..100 {
        replica.propose(Bytes::from_static(&[1; 100])).unwrap();
    }
    assert_eq!(drain(&mut replica), 100);
    assert_eq!(drain(&mut begin()), 100, "the log has all of them");
}

#[test]
fn proposals_are_refused_beyond_the_limit_and_taken_again_later() {
    let mut group = Group::new(3);
    group.elect(0);
    group.cut = vec![1, 2];
    let large = Bytes::from(vec![1; 1 << 20]);
    let taken = (0..100).take_while(|_| group.propose(0, large.clone()).is_ok()).count();
    assert!((60..=64).contains(&taken), "{taken} MiB of 64 MiB");
    assert_eq!(group.propose(0, large.clone()), Err(ProposeError::Busy));
    group.cut.clear();
    for _ in 0..5 {
        group.tick();
    }
    let leader = group.leader().unwrap();
    group.propose(leader, large).unwrap();
}

#[test]
fn leader_sends_a_part_of_the_log_at_once_to_a_replica_that_returns() {
    let mut group = Group::new(3);
    group.elect(0);
    group.cut = vec![2];
    for number in 0..32 << 10 {
        group.replicas[0].propose(Bytes::from_static(&[1; 1 << 10])).unwrap();
        if number % 64 == 0 {
            group.settle();
        }
    }
    group.settle();
    let last = group.replicas[0].log().last_index();
    let mut largest = 0;
    for _ in 0..10 {
        group.replicas[0].tick();
        while let Some(work) = group.replicas[0].poll().unwrap() {
            let messages = work.messages.into_iter().chain(group.replicas[0].persisted(work.number));
            let mut bytes = Vec::new();
            for message in messages.filter(|message| message.to() == Some(ReplicaId::first(3))) {
                message.encode(&mut bytes);
                group.replicas[2].receive(message).unwrap();
            }
            largest = largest.max(bytes.len());
            while let Some(work) = group.replicas[2].poll().unwrap() {
                let messages = work.messages.into_iter().chain(group.replicas[2].persisted(work.number));
                for message in messages.collect::<Vec<_>>() {
                    group.replicas[0].receive(message).unwrap();
                }
            }
        }
    }
    assert_eq!(group.replicas[2].log().last_index(), last, "it gets all of them");
    assert!(largest < 17 << 20, "{largest} bytes at once");
}

#[test]
fn replica_that_lost_entries_reports_it_instead_of_acknowledging_more() {
    let ballot = Ballot { term: 3, voted_for: None, committed: 9 };
    let log = log_with_ballot(Contents::of_group(&GroupMembers::of([ReplicaId::first(1)])), ballot);
    let refused = Replica::start(ReplicaId::first(1), log, ReplicaOptions::default()).map(drop).unwrap_err();
    assert_eq!(refused, ReplicaStartError::LogLost { last: 1, committed: 9 });
    assert!(refused.to_string().contains("next generation"), "{refused}");

    let mut group = Group::new(3);
    group.elect(0);
    group.record();
    for _ in 0..5 {
        group.tick();
    }
    // Heartbeats for replica 2 reach an empty one with its id.
    let mut empty = Replica::start(ReplicaId::first(2), empty_log(), ReplicaOptions::default()).unwrap();
    let heartbeats: Vec<_> =
        group.recorded().into_iter().filter(|message| message.to() == Some(ReplicaId::first(2))).collect();
    let received: Vec<_> = heartbeats.iter().map(|message| empty.receive(message.clone())).collect();
    let lost = received.iter().any(|received| matches!(received, Err(ReplicaError::LogLost { last: 0, .. })));
    assert!(lost, "{received:?}");
    // The next replica of the node has promised nothing.
    let next = ReplicaId::first(2).next_generation();
    let mut next = Replica::start(next, empty_log(), ReplicaOptions::default()).unwrap();
    for message in heartbeats {
        next.receive(message).unwrap();
    }
}

#[test]
fn leader_that_cannot_read_an_entry_for_another_replica_reports_it() {
    let mut group = Group::new(3);
    group.elect(0);
    group.cut = vec![2];
    let proposal = group.propose(0, batch("one")).unwrap();
    group.propose(0, batch("two")).unwrap();
    group.replicas[0].log_mut().damage(proposal.index);
    // The log is read for replica 3 when that answers.
    let mut failed = None;
    for _ in 0..10 {
        group.replicas[0].tick();
        while failed.is_none() {
            match group.replicas[0].poll() {
                Ok(None) => break,
                Ok(Some(work)) => {
                    let messages = work.messages.into_iter().chain(group.replicas[0].persisted(work.number));
                    let theirs = messages.filter(|message| message.to() == Some(ReplicaId::first(3)));
                    for message in theirs.collect::<Vec<_>>() {
                        group.replicas[2].receive(message).unwrap();
                    }
                }
                Err(error) => failed = Some(error),
            }
        }
        while let Some(work) = group.replicas[2].poll().unwrap() {
            let messages = work.messages.into_iter().chain(group.replicas[2].persisted(work.number));
            for message in messages.collect::<Vec<_>>() {
                group.replicas[0].receive(message).unwrap();
            }
        }
    }
    assert!(matches!(failed, Some(ReplicaError::Log(_))), "{failed:?}");
}

#[test]
fn replica_that_cannot_read_a_committed_entry_reports_it() {
    let mut group = Group::new(3);
    group.elect(0);
    group.hanging = vec![1, 2];
    let proposal = group.propose(0, batch("one")).unwrap();
    group.replicas[0].log_mut().damage(proposal.index);
    for message in group.replicas[1].persisted(u64::MAX) {
        group.replicas[0].receive(message).unwrap();
    }
    let failed = group.replicas[0].poll();
    assert!(matches!(failed, Err(ReplicaError::Log(_))), "{failed:?}");
}

#[test]
fn invalid_options_are_refused() {
    let options = ReplicaOptions { heartbeat_ticks: 10, election_ticks: 10, ..ReplicaOptions::default() };
    let refused = Replica::start(ReplicaId::first(1), empty_log(), options).map(drop).unwrap_err();
    assert!(matches!(refused, ReplicaStartError::Options(_)), "{refused}");
}

/// The members after a change that is complete.
fn after(members: &GroupMembers, changes: &[MemberChange]) -> GroupMembers {
    let mut members = members.clone();
    for change in changes {
        match *change {
            MemberChange::AddLearner(id) => {
                members.learners.insert(id);
            }
            MemberChange::Promote(id) => {
                members.learners.remove(&id);
                members.voters.insert(id);
            }
            MemberChange::Remove(id) => {
                members.learners.remove(&id);
                members.voters.remove(&id);
            }
        }
    }
    members
}

#[test]
fn changes_lead_to_the_wanted_members_without_fewer_voters_than_needed() {
    for seed in seeds(2_000, 100_000) {
        let mut random = Random::new(seed);
        let mut some = |count: u64| -> BTreeSet<ReplicaId> {
            let id = |random: &mut Random| {
                let first = ReplicaId::first(1 + random.below(6) as u32);
                if random.one_in(2) { first.next_generation() } else { first }
            };
            (0..count).map(|_| id(&mut random)).collect()
        };
        let (voters, wanted, extra) = (some(3), some(3), some(1));
        let learners = extra.difference(&voters).copied().collect();
        let mut members = GroupMembers { voters, learners, ..GroupMembers::default() };
        let fewest = members.voters.len().min(wanted.len());
        for _ in 0..20 {
            let changes = next_change(&members, &wanted, |_| true);
            if changes.is_empty() {
                break;
            }
            members = after(&members, &changes);
            assert!(members.voters.len() >= fewest, "seed {seed}: {members:?}");
        }
        assert_eq!(members, GroupMembers::of(wanted), "seed {seed}");
    }
}

#[test]
fn next_change_waits_until_the_last_one_is_complete() {
    let [one, two, three] = [1, 2, 3].map(ReplicaId::first);
    let outgoing = BTreeSet::from([one, two]);
    let changing = GroupMembers { outgoing, ..GroupMembers::of([one, three]) };
    assert!(changing.is_changing());
    assert_eq!(next_change(&changing, &[one, two, three].into(), |_| true), []);
}

#[test]
fn new_replica_of_a_node_replaces_the_old_one_of_that_node() {
    let [one, two, three] = [1, 2, 3].map(ReplicaId::first);
    let repaired = three.next_generation();
    let mut members = GroupMembers::of([one, two, three]);
    members.learners.insert(repaired);
    // Node 2 shall leave, too.
    let changes = next_change(&members, &[one, repaired].into(), |_| true);
    assert_eq!(changes, [MemberChange::Promote(repaired), MemberChange::Remove(three)]);
}

#[test]
fn ids_are_numbers_and_back() {
    let id = ReplicaId::first(7).next_generation().next_generation();
    assert_eq!(ReplicaId::from_number(id.to_number()), Some(id));
    assert_eq!((id.to_string(), id.node()), ("7.2".to_owned(), 7));
    assert_eq!(ReplicaId::from_number(0), None);
    assert_eq!(ReplicaId::from_number(1 << 32), None);
}
