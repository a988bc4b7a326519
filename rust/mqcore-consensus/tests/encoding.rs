//! Messages survive their encoding, and other bytes are refused.
//!
//! The messages are those of a group that elects a leader, replicates entries and sends a snapshot.

use std::collections::BTreeSet;

use bytes::Bytes;
use mqcore_consensus::message::{DecodeError, ReplicaMessage};
use mqcore_testkit::{CorpusInput, Random, corpus, seeds, write_corpus};

use crate::group::Group;
use crate::message_check;

const TARGET: &str = "consensus_message";

/// All messages of a group with a replica that joins, and so needs a snapshot, and with a leader that resigns.
fn messages() -> Vec<ReplicaMessage> {
    let mut group = Group::new(3);
    group.record();
    group.elect(0);
    for value in 0..20 {
        group.propose(0, Bytes::from(vec![value; 40])).unwrap();
    }
    group.join(0);
    group.replicas[0].resign();
    group.settle();
    group.recorded()
}

fn encoded(message: &ReplicaMessage) -> Vec<u8> {
    let mut bytes = Vec::new();
    message.encode(&mut bytes);
    bytes
}

#[test]
fn messages_survive_their_encoding() {
    let messages = messages();
    let kinds: BTreeSet<String> =
        messages.iter().map(|message| message.to_string().split(' ').next().unwrap().to_owned()).collect();
    for kind in ["MsgAppend", "MsgAppendResponse", "MsgHeartbeat", "MsgRequestVote", "MsgSnapshot"] {
        assert!(kinds.contains(kind), "{kind} is missing among {kinds:?}");
    }
    for message in messages {
        assert_eq!(ReplicaMessage::decode(&encoded(&message).into()).as_ref(), Ok(&message));
    }
}

#[test]
fn parts_of_a_message_and_longer_bytes_are_refused() {
    for message in messages() {
        let bytes = encoded(&message);
        for length in 0..bytes.len() {
            let part = Bytes::copy_from_slice(&bytes[..length]);
            let decoded = ReplicaMessage::decode(&part);
            assert!(
                matches!(decoded, Err(DecodeError::Damaged(_))),
                "{length} of {}: {decoded:?}",
                bytes.len()
            );
        }
        let longer = [bytes.as_slice(), &[0]].concat();
        assert_eq!(ReplicaMessage::decode(&longer.into()), Err(DecodeError::Damaged("end")));
    }
}

#[test]
fn other_versions_and_types_are_refused() {
    let mut bytes = encoded(&messages()[0]);
    bytes[1] = 2;
    assert_eq!(
        ReplicaMessage::decode(&bytes.clone().into()),
        Err(DecodeError::Type(2)),
        "a proposal stays on its node"
    );
    bytes[1] = 100;
    assert_eq!(ReplicaMessage::decode(&bytes.clone().into()), Err(DecodeError::Type(100)));
    bytes[0] = 2;
    let refused = ReplicaMessage::decode(&bytes.into()).unwrap_err();
    assert_eq!(refused, DecodeError::Version(2));
    assert!(refused.to_string().contains("upgrade this node"), "{refused}");
}

#[test]
fn damaged_bytes_are_refused_or_another_message() {
    let messages: Vec<Vec<u8>> = messages().iter().map(encoded).collect();
    for seed in seeds(2_000, 100_000) {
        let mut random = Random::new(seed);
        let mut bytes = messages[random.index(messages.len())].clone();
        for _ in 0..=random.below(3) {
            let place = random.index(bytes.len());
            bytes[place] = random.number() as u8;
        }
        message_check::check(&bytes);
    }
}

#[test]
fn every_input_of_the_corpus_keeps_the_promise() {
    let inputs = corpus(TARGET);
    inputs.iter().for_each(|input| message_check::check(&input.bytes));
    assert!(inputs.len() >= 10, "only {} inputs: one of each type belongs to the corpus", inputs.len());
}

/// Renews the corpus after a change of the encoding: `MQCORE_WRITE_CORPUS=1 cargo test -p mqcore-consensus corpus`.
#[test]
fn the_corpus_can_be_renewed() {
    let mut inputs: Vec<CorpusInput> = Vec::new();
    for message in messages() {
        let name = message.to_string().split(' ').next().unwrap().to_owned();
        if inputs.iter().all(|input| input.name != name) {
            inputs.push(CorpusInput { name, bytes: encoded(&message) });
        }
    }
    if std::env::var_os("MQCORE_WRITE_CORPUS").is_some() {
        let found = corpus(TARGET).into_iter().filter(|input| !input.name.starts_with("Msg"));
        inputs.extend(found);
        inputs.sort_by(|one, other| one.name.cmp(&other.name));
        write_corpus(TARGET, &inputs);
    }
}

#[test]
fn lengths_beyond_the_message_reserve_no_memory() {
    // The number of entries is 2^63.
    let mut bytes = vec![1, 3];
    bytes.extend([0; 7]);
    bytes.extend([0, 0, 0, 0]);
    bytes.extend([0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 0x80, 1]);
    assert_eq!(ReplicaMessage::decode(&bytes.into()), Err(DecodeError::Damaged("kind of an entry")));
}
