//! The rules that both sides of a MicroMessage2 connection follow: what they agree on, and who owes an acknowledgement.

use mqcore_wire::codec::Limits;
use mqcore_wire::micromessage::extension::{Agreement, ExtensionKind};
use mqcore_wire::micromessage::failure::{ErrorToken, ProtocolFailure, TEXT_BYTES_MAX};
use mqcore_wire::micromessage::handshake::{Extension, Handshake, parse_list};
use mqcore_wire::micromessage::negotiation::{Capabilities, Lists, check_version, choose, conclude, reply};
use mqcore_wire::micromessage::window::{ReceiveOutcome, ReceiveWindow, SendWindow};
use mqcore_wire::micromessage::{Frame, decode};
use proptest::prelude::*;

fn handshake<'a>(required: &'a str, optional: &'a str) -> Handshake<'a> {
    let (required, optional) = (required.as_bytes(), optional.as_bytes());
    Handshake { major: 1, minor: 0, flags: 0, identity: b"peer", required, optional }
}

fn lists(required: &str, optional: &str) -> Lists {
    Lists::read(&handshake(required, optional)).unwrap()
}

fn demand(list: &str) -> Vec<Extension<'static>> {
    parse_list(list.as_bytes()).unwrap().into_iter().map(Extension::into_owned).collect()
}

fn shown(lists: &Lists) -> (String, String) {
    let (required, optional) = lists.write();
    (String::from_utf8(required).unwrap(), String::from_utf8(optional).unwrap())
}

fn vendors() -> Vec<Box<str>> {
    vec!["x-note".into()]
}

fn abilities(vendors: &[Box<str>]) -> Capabilities<'_> {
    Capabilities { vendors, window_max: 1000 }
}

fn answered(offer: (&str, &str), demanded: &str) -> Result<(String, String), String> {
    let known = vendors();
    let lists = reply(&lists(offer.0, offer.1), &demand(demanded), &abilities(&known));
    lists.map(|lists| shown(&lists)).map_err(|failure| failure.to_string())
}

/// The result of all three messages: the final list and the IDs, or the error.
fn agreed(offer: (&str, &str), demanded: &str) -> Result<(String, String, Agreement), String> {
    let known = vendors();
    let abilities = abilities(&known);
    let offer = lists(offer.0, offer.1);
    let text = |failure: ProtocolFailure| failure.to_string();
    let answer = reply(&offer, &demand(demanded), &abilities).map_err(text)?;
    // A client that could do with more than the server has to learn from the reply what the most is.
    let of_client = Capabilities { window_max: 32_767, ..abilities };
    let (last, agreement) = choose(&offer, &answer, &of_client).map_err(text)?;
    let concluded = conclude(&offer, &answer, &last, &abilities).map_err(text)?;
    assert_eq!(concluded, agreement, "both sides must mean the same");
    let (required, optional) = shown(&last);
    Ok((required, optional, agreement))
}

fn names(agreement: &Agreement) -> Vec<&str> {
    agreement.all().map(|extension| &*extension.name).collect()
}

#[test]
fn the_example_of_the_document_ends_with_its_three_ids() {
    let offer = lists("json;dotnet", "");
    let answer = lists("", "batch-ack");
    let last = lists("json;dotnet", "batch-ack");
    let agreement = conclude(&offer, &answer, &last, &Capabilities::default()).unwrap();
    assert_eq!(names(&agreement), ["json", "dotnet", "batch-ack"]);
    assert_eq!(agreement.id_of_kind(ExtensionKind::Type), Some(2));
    let acknowledging = agreement.acknowledging().unwrap();
    assert_eq!((acknowledging.id, acknowledging.window), (3, 10));
}

#[test]
fn of_several_serializers_the_last_message_names_one() {
    let offer = lists("json;xml;protobuf", "");
    let answer = lists("json", "ack;batch-ack");
    let (last, agreement) = choose(&offer, &answer, &Capabilities::default()).unwrap();
    assert_eq!(shown(&last), ("json".into(), String::new()));
    assert_eq!(agreement.serializer(), Some("json"));
    assert_eq!(conclude(&offer, &answer, &last, &Capabilities::default()), Ok(agreement));
    let both = conclude(&offer, &answer, &lists("json;xml", ""), &Capabilities::default()).unwrap_err();
    assert_eq!(both.token, ErrorToken::Extension);
    let none = conclude(&offer, &answer, &lists("", ""), &Capabilities::default()).unwrap_err();
    assert!(none.why.contains("json is missing"), "{none}");
}

#[test]
fn a_server_replies_with_its_demands_and_supported_wishes() {
    let same = |required: &str, optional: &str| Ok((required.to_owned(), optional.to_owned()));
    assert_eq!(answered(("", ""), ""), same("", "batch-ack:max-count=1000;pub-sub"));
    assert_eq!(answered(("json;pub-sub", "ack"), ""), same("", "ack"));
    assert_eq!(answered(("", "xml;json;pub-sub;batch-ack"), ""), same("", "xml;pub-sub;batch-ack"));
    assert_eq!(answered(("pubsub;batch-ack:max-count=99999", ""), ""), same("", "batch-ack:max-count=1000"));
    assert_eq!(answered(("pub-sub;batch-ack:count=7", ""), ""), same("", "batch-ack:max-count=7"));
    assert_eq!(answered(("", "ack;pub-sub;batch-ack:max-count=4"), ""), same("", "ack;pub-sub"));
    assert_eq!(answered(("", "x-note:a=b;x-other;tomorrow;pub-sub;ack"), ""), same("", "x-note;pub-sub;ack"));
    assert_eq!(
        answered(("json", "pub-sub"), "json;batch-ack:max-count=5"),
        same("batch-ack:max-count=5", "pub-sub;batch-ack:max-count=5")
    );
}

#[test]
fn an_unknown_required_extension_is_named() {
    for (required, why) in [
        ("microauth", "extension: unsupported microauth"),
        ("json;x-other", "extension: unsupported x-other"),
        ("x-", "extension: unsupported x-"),
        ("batch-ack:max-count=0", "extension: max-count of batch-ack must be a number from 1 to 32767"),
        ("batch-ack:max-count=ten", "extension: max-count of batch-ack must be a number from 1 to 32767"),
    ] {
        assert_eq!(answered((required, ""), "").unwrap_err(), why);
    }
    let unknown = choose(&lists("json", ""), &lists("microauth", ""), &Capabilities::default()).unwrap_err();
    assert_eq!(unknown.to_string(), "extension: unsupported microauth");
}

#[test]
fn unoffered_and_missing_extensions_are_rejected() {
    let known = vendors();
    let abilities = abilities(&known);
    let (offer, answer) = (lists("json", "pub-sub"), lists("batch-ack:max-count=5", "pub-sub"));
    let concluded = |required: &str, optional: &str| {
        conclude(&offer, &answer, &lists(required, optional), &abilities)
            .map(|_| ())
            .map_err(|failure| failure.why)
    };
    assert_eq!(concluded("json;batch-ack:max-count=5", "pub-sub"), Ok(()));
    assert_eq!(concluded("", "json;batch-ack:max-count=5"), Ok(()));
    assert_eq!(
        concluded("json", "").unwrap_err(),
        "required extension batch-ack is missing in the final message"
    );
    assert_eq!(
        concluded("batch-ack", "").unwrap_err(),
        "required extension json is missing in the final message"
    );
    assert_eq!(
        concluded("json;batch-ack;x-note", "").unwrap_err(),
        "extension x-note was not offered by either side"
    );
    let window = concluded("json;batch-ack:max-count=1001", "").unwrap_err();
    assert_eq!(window, "max-count 1001 exceeds the maximum of 1000 unacknowledged messages");
}

#[test]
fn extensions_that_exclude_each_other_are_refused() {
    let of = |list: &str| Agreement::of(demand(list)).map(|_| ()).map_err(|failure| failure.why);
    assert_eq!(of("ack;batch-ack").unwrap_err(), "ack and batch-ack exclude each other");
    assert_eq!(of("x-nack").unwrap_err(), "x-nack requires ack or batch-ack");
    assert!(of("json;protobuf").unwrap_err().starts_with("json, xml and protobuf exclude each other"));
    assert_eq!(of("x-nack;batch-ack;json;x-mqcore;dotnet;pub-sub;x-note"), Ok(()));
}

#[test]
fn the_smaller_window_holds_however_it_is_spelled() {
    let window = |offer: (&str, &str)| agreed(offer, "").unwrap().2.acknowledging().unwrap().window;
    assert_eq!(window(("batch-ack:max-count=100", "")), 100);
    assert_eq!(window(("batch-ack:count=100", "")), 100);
    assert_eq!(window(("batch-ack:batch-max=100", "")), 100);
    assert_eq!(window(("batch-ack:max-count:100", "")), 100);
    assert_eq!(window(("batch-ack:max-count=60000", "")), 1000);
    assert_eq!(window(("", "batch-ack")), 10);
    assert_eq!(window(("ack", "")), 1);
    // The original library writes this for batch-ack.
    assert_eq!(window(("ack:MessagesPerAck=10,AckExpireTime=500", "")), 10);
    for offer in [("ack:max-count=1060", ""), ("", "ack:max-count=1060"), ("ack:count=60000", "batch-ack")] {
        assert_eq!(window(offer), 1000, "{offer:?}");
        assert_eq!(agreed(offer, "ack").unwrap().2.acknowledging().unwrap().window, 1000, "{offer:?}");
    }
    let demanded = agreed(("", "ack:max-count=1060"), "ack:max-count=5").unwrap();
    assert_eq!(demanded.2.acknowledging().unwrap().window, 5);
    let demanded = agreed(("batch-ack:max-count=100", ""), "batch-ack:max-count=5").unwrap();
    assert_eq!(demanded.2.acknowledging().unwrap().window, 100, "the client requires it already");
}

#[test]
fn client_and_server_agree_on_required_and_common_extensions() {
    let (required, optional, agreement) =
        agreed(("json;x-note:v=1", "pub-sub;x-mqcore;tomorrow"), "dotnet").unwrap();
    assert_eq!((&*required, &*optional), ("json;x-note:v=1;dotnet", "pub-sub;x-mqcore"));
    assert_eq!(names(&agreement), ["json", "x-note", "dotnet", "pub-sub", "x-mqcore"]);
    assert_eq!(agreement.get(2).unwrap().1, Some(ExtensionKind::Vendor));
    assert_eq!((agreement.get(0), agreement.get(6)), (None, None));
    assert_eq!(
        agreed(("ack", ""), "batch-ack").unwrap_err(),
        "extension: ack and batch-ack exclude each other"
    );
}

#[test]
fn higher_version_is_accepted_and_a_lower_or_impossible_one_is_not() {
    for (major, minor) in [(1, 9), (2, 1), (15, 0)] {
        assert_eq!(check_version(&Handshake { major, minor, ..handshake("", "") }), Ok(()));
    }
    for major in [0, 16, b'G'] {
        let failure = check_version(&Handshake { major, ..handshake("", "") }).unwrap_err();
        let mut bytes = Vec::new();
        failure.encode(&mut bytes);
        assert!(bytes.ends_with(format!("version: {major}.0 is not supported").as_bytes()));
    }
}

#[test]
fn the_text_of_an_error_has_at_most_255_bytes() {
    let mut bytes = Vec::new();
    ProtocolFailure::new(ErrorToken::Internal, "\u{e9}".repeat(500)).encode(&mut bytes);
    let Ok(Some((Frame::Error { text }, _))) = decode(&bytes, 0, &Limits::default()) else {
        panic!("an ERROR frame")
    };
    assert!(text.len() <= TEXT_BYTES_MAX && std::str::from_utf8(text).is_ok());
}

fn settled(sent: &mut SendWindow<u32>, number: u16) -> Result<Vec<u32>, ErrorToken> {
    let mut all = Vec::new();
    sent.acknowledge(number, |one| all.push(one)).map(|()| all).map_err(|failure| failure.token)
}

#[test]
fn an_acknowledgement_covers_everything_before_it_also_across_the_wrap() {
    let mut sent = SendWindow::new(10);
    for number in 1..=65_533_u32 {
        assert_eq!(u32::from(sent.push(number)), number);
        assert_eq!(settled(&mut sent, number as u16), Ok(vec![number]));
    }
    let numbers: Vec<_> = (0..5).map(|index| sent.push(index)).collect();
    assert_eq!(numbers, [65_534, 65_535, 1, 2, 3]);
    assert_eq!(settled(&mut sent, 65_533), Ok(vec![]), "the last one again is fine");
    assert_eq!(settled(&mut sent, 3), Ok(vec![0, 1, 2, 3, 4]));
    assert_eq!(sent.open(), 0);
}

#[test]
fn an_unsent_message_cannot_be_acknowledged() {
    let mut sent = SendWindow::new(10);
    assert_eq!(settled(&mut sent, 1), Err(ErrorToken::Ack));
    for index in 0..7 {
        sent.push(index);
    }
    assert_eq!(settled(&mut sent, 4), Ok(vec![0, 1, 2, 3]));
    for wrong in [0, 8, 9, 3, 65_535] {
        assert_eq!(settled(&mut sent, wrong), Err(ErrorToken::Ack), "{wrong}");
    }
    assert_eq!(settled(&mut sent, 7), Ok(vec![4, 5, 6]));
}

#[test]
fn a_message_settled_alone_makes_room_and_an_acknowledgement_passes_over_it() {
    let mut sent = SendWindow::new(3);
    for index in 0..3 {
        sent.push(index);
    }
    assert!(!sent.has_room());
    assert_eq!(sent.settle_one(2), Ok(Some(1)));
    assert!(sent.has_room());
    assert_eq!(sent.settle_one(2), Ok(None));
    assert_eq!(settled(&mut sent, 2), Ok(vec![0]));
    assert_eq!(sent.settle_one(3), Ok(Some(2)));
    assert_eq!(sent.settle_one(4).unwrap_err().token, ErrorToken::Ack);
    assert_eq!((sent.open(), sent.push(9)), (0, 4));
}

fn taken(received: &mut ReceiveWindow, number: u16) -> u32 {
    match received.receive(number) {
        Ok(ReceiveOutcome::New(receipt)) => receipt,
        other => panic!("{number}: {other:?}"),
    }
}

#[test]
fn messages_are_acknowledged_in_order_however_they_are_accepted() {
    let mut received = ReceiveWindow::new(10);
    let receipts: Vec<_> = (1..=4).map(|number| taken(&mut received, number)).collect();
    assert_eq!(received.accept(receipts[2]), Some(3));
    assert_eq!(received.take_acknowledgement(), None);
    assert_eq!(received.accept(receipts[0]), Some(1));
    assert_eq!(received.take_acknowledgement(), Some(1));
    assert_eq!(received.settle_alone(receipts[1]), Some(2));
    assert_eq!(received.settle_alone(receipts[1]), None);
    assert_eq!(received.take_acknowledgement(), Some(3));
    assert_eq!(received.unacknowledged(), 1);
    assert_eq!(received.settle_alone(receipts[3]), Some(4));
    assert_eq!((received.take_acknowledgement(), received.unacknowledged()), (None, 0));
}

#[test]
fn a_repeated_message_is_acknowledged_again_if_it_was() {
    let mut received = ReceiveWindow::new(10);
    let receipt = taken(&mut received, 65_535);
    assert_eq!(received.receive(65_535), Ok(ReceiveOutcome::Repeated));
    assert_eq!(received.take_acknowledgement(), None, "it is not accepted yet");
    received.accept(receipt);
    assert_eq!(received.take_acknowledgement(), Some(65_535));
    let after = taken(&mut received, 1);
    assert_eq!(received.receive(65_535), Ok(ReceiveOutcome::Repeated));
    assert_eq!(received.take_acknowledgement(), Some(65_535));
    taken(&mut received, 7);
    received.accept(after);
    assert_eq!(received.take_acknowledgement(), Some(1));
}

#[test]
fn more_unacknowledged_messages_than_agreed_and_the_number_0_are_refused() {
    let mut received = ReceiveWindow::new(2);
    assert_eq!(received.receive(0).unwrap_err().token, ErrorToken::Ack);
    taken(&mut received, 1);
    let second = taken(&mut received, 2);
    assert_eq!(received.receive(3).unwrap_err().token, ErrorToken::Ack);
    received.settle_alone(second);
    taken(&mut received, 3);
}

proptest! {
    #[test]
    fn sender_and_receiver_never_lose_count(window in 1_u16..50, steps in prop::collection::vec(0_u8..4, 1..2000)) {
        let (mut sent, mut received) = (SendWindow::new(window), ReceiveWindow::new(window));
        let mut open: Vec<u32> = Vec::new();
        let (mut count, mut settled, mut refused) = (0_u32, 0, 0);
        for step in steps {
            match step {
                0 | 1 if sent.has_room() => {
                    let number = sent.push(count);
                    count += 1;
                    open.push(taken(&mut received, number));
                }
                2 if !open.is_empty() => {
                    let receipt = open.remove(count as usize % open.len());
                    received.accept(receipt).unwrap();
                }
                3 if !open.is_empty() => {
                    let number = received.settle_alone(open.remove(0)).unwrap();
                    prop_assert!(sent.settle_one(number).unwrap().is_some());
                    refused += 1;
                }
                _ => {}
            }
            if let Some(number) = received.take_acknowledgement() {
                sent.acknowledge(number, |_| settled += 1).unwrap();
            }
            prop_assert!(sent.open() <= usize::from(window));
            prop_assert_eq!(count, settled + refused + sent.open() as u32);
        }
    }

    #[test]
    fn whatever_two_sides_offer_they_agree_or_both_give_up(
        required in prop::sample::subsequence(NAMES.to_vec(), 0..4),
        optional in prop::sample::subsequence(NAMES.to_vec(), 0..8),
        demanded in prop::sample::subsequence(NAMES[..5].to_vec(), 0..3),
    ) {
        // `agreed` asserts that both sides understand the same.
        if let Ok((_, _, agreement)) = agreed((&required.join(";"), &optional.join(";")), &demanded.join(";")) {
            let names = names(&agreement);
            prop_assert!(required.iter().all(|one| names.contains(&one.split(':').next().unwrap())
                || ["json", "xml", "protobuf"].contains(one)));
        }
    }
}

const NAMES: [&str; 11] = [
    "json",
    "batch-ack:max-count=77",
    "dotnet",
    "pub-sub",
    "x-note:v=1",
    "ack",
    "xml",
    "x-nack",
    "x-mqcore",
    "protobuf",
    "x-other",
];
