//! Groups of three and five replicas on a simulated network, disks and clocks: replicas apply the same entries in the same
//! order, what was confirmed stays, and the group continues by itself when the faults end. Everything follows from a seed.
//!
//! Networks are cut, also in one direction only or between some replicas, and lose, delay and double messages. Nodes lose
//! power, pause, have clocks of different speed and disks that hang. A disk loses everything, and its node returns with an empty
//! replica. Members are replaced while all this happens. In a third of the groups, one of three or two of five nodes are
//! witnesses, which keep entries and no state. [`Mistake`] has errors that a wrong integration could make; the last
//! test shows that the simulation finds each of them.
//!
//! Seeds: see the crate `mqcore-testkit`. `MQCORE_TELL=1` prints what happens.

pub(crate) mod disk;
mod oracle;
mod world;

use mqcore_testkit::{by_depth, seeds};
use world::World;

/// An error that a wrong integration of the replicas could make.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Mistake {
    /// Entries and votes count as persisted before the sync, as with a log that is confirmed from the page cache.
    AcknowledgesBeforeSync,
    /// A node whose disk lost everything continues with its old id, and votes.
    DamagedReplicaVotes,
    /// A changed entry is not noticed: the replica continues with it, and may lead.
    TrustsDamagedEntry,
    /// A snapshot lacks the last entry that it claims to contain.
    SnapshotWithoutTail,
    /// A restart cuts the last entry, although it was synced.
    CutsTail,
    /// Entries of a new leader do not replace those of an earlier one.
    KeepsConflicts,
    /// A vote is not saved.
    ForgetsVote,
    /// A crash keeps new entries without the ballot that was written with them.
    SplitsWrites,
    /// A witness forgets entries that another node may need.
    WitnessForgets,
    /// A client hears that its entry is confirmed when another entry has its index.
    IgnoresTerm,
}

const MISTAKES: [Mistake; 10] = [
    Mistake::AcknowledgesBeforeSync,
    Mistake::DamagedReplicaVotes,
    Mistake::TrustsDamagedEntry,
    Mistake::SnapshotWithoutTail,
    Mistake::CutsTail,
    Mistake::KeepsConflicts,
    Mistake::ForgetsVote,
    Mistake::SplitsWrites,
    Mistake::WitnessForgets,
    Mistake::IgnoresTerm,
];

#[test]
fn replicas_agree_and_keep_what_was_confirmed() {
    let (mut confirmed, mut elections, mut replaced) = (0, 0, 0);
    for seed in seeds(300, 100_000) {
        let end = World::new(seed, None).run();
        let end = end.unwrap_or_else(|finding| panic!("seed {seed}: {finding}"));
        confirmed += end.confirmed;
        elections += end.elections;
        replaced += end.replaced;
    }
    eprintln!(
        "{confirmed} entries confirmed, {elections} leaders, {replaced} replicas replaced after a loss"
    );
    assert!(confirmed > 0 && elections > 0 && replaced > 0, "the simulation does nothing");
}

#[test]
fn seed_determines_everything() {
    for seed in seeds(20, 500) {
        assert_eq!(World::new(seed, None).run(), World::new(seed, None).run(), "seed {seed}");
    }
}

#[test]
fn mistakes_are_found() {
    let most = by_depth(1_000, 50_000);
    // Rare: only the full depth finds it.
    let rare = by_depth(Some(Mistake::SplitsWrites), None);
    for mistake in MISTAKES.into_iter().filter(|&mistake| Some(mistake) != rare) {
        let found = (0..most).find_map(|seed| Some((seed, World::new(seed, Some(mistake)).run().err()?)));
        let Some((seed, finding)) = found else { panic!("{mistake:?} was not found in {most} seeds") };
        eprintln!("{mistake:?}: seed {seed}: {finding}");
    }
}
