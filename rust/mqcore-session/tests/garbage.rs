//! A TMQP session under arbitrary scripts: valid frames, damaged frames, random bytes, and a broker that answers in any
//! order, too often, or not at all.

use crate::tmqp_session_check;
use mqcore_wire::tmqp::{Frame, Kind, encode};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::{Index, select};

/// Frames of every kind that a client sends, most of them with a defect.
fn frame() -> impl Strategy<Value = Vec<u8>> {
    let kind = prop_oneof![4 => 0x10_u8..0x18, 1 => 0x08_u8..0x0B, 1 => 0_u8..64];
    let content_type = prop_oneof![
        2 => select(vec![0_u16, 1, 7]),
        3 => select(vec![601_u16, 602, 603, 604, 605, 606, 607, 610, 611, 612, 613, 615, 616, 621, 631, 641, 651]),
        1 => any::<u16>(),
    ];
    let id = select(vec!["", "m1", "m2", "a\r\nb"]);
    let source = prop_oneof![9 => select(vec!["", "cli"]), 1 => Just("somebody")];
    let target = select(vec![
        "",
        "ch",
        "other-channel",
        "a b",
        "cli",
        "@name:x",
        "@type:\"t\"",
        "ClientConnected",
        "MessageProduced",
        "\u{0}",
    ]);
    let line = select(vec![
        "Queue-Id:7\r\n",
        "Queue-Id:x\r\n",
        "Channel-Name:ch\r\n",
        "Channel-Name:*\r\n",
        "Count:1\r\n",
        "Count:0\r\n",
        "CC:b\r\n",
        "CC:b;2;id\r\n",
        "cc: c ; x\r\n",
        "Nack-Reason:none\r\n",
        "Info:yes\r\n",
        "Order:LIFO\r\n",
        "Clear:all\r\n",
        "Queue-Status:pull\r\n",
        "no colon\r\n",
        "own:1",
    ]);
    let body = prop_oneof![
        select(vec![
            &b""[..],
            b"x",
            b"\x07\x00",
            b"{}",
            b"{\"Status\":3}",
            b"{\"Status\":9}",
            b"[1]",
            b"null"
        ])
        .prop_map(<[u8]>::to_vec),
        vec(any::<u8>(), 0..300),
    ];
    let flags = (any::<[bool; 4]>(), prop_oneof![9 => 1_u8..32, 1 => Just(0_u8)]);
    (kind, content_type, flags, (id, source, target), vec(line, 0..4), body).prop_map(
        |(kind, content_type, (flags, hops), (id, source, target), lines, body)| {
            let kind = Kind(kind);
            let lines = if matches!(kind, Kind::PING | Kind::PONG) { String::new() } else { lines.concat() };
            let frame = Frame {
                first_acquirer: flags[0],
                high_priority: flags[1],
                kind,
                pending_response: flags[2],
                pending_acknowledge: flags[3],
                hops,
                content_type,
                id: id.as_bytes(),
                source: source.as_bytes(),
                target: target.as_bytes(),
                headers: lines.as_bytes(),
                payload: &body,
            };
            let mut bytes = Vec::new();
            encode(&frame, &mut bytes);
            bytes
        },
    )
}

/// Bytes as steps of the script: in pieces, because the length of a piece has seven bits.
fn arriving(bytes: &[u8]) -> Vec<u8> {
    bytes.chunks(127).flat_map(|piece| [&[piece.len() as u8], piece].concat()).collect()
}

fn step() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![
        8 => frame().prop_map(|bytes| arriving(&bytes)),
        1 => (frame(), any::<Index>(), any::<u8>()).prop_map(|(mut bytes, at, byte)| {
            let at = at.index(bytes.len().min(24));
            bytes[at] = byte;
            arriving(&bytes)
        }),
        6 => (128_u8..192).prop_map(|answer| vec![answer]),
        1 => (192_u8..200).prop_map(|wait| vec![wait]),
        1 => (216_u8..224).prop_map(|happening| vec![happening]),
    ]
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(mqcore_testkit::by_depth(250, 1000)))]

    #[test]
    fn any_conversation_after_the_handshake_keeps_the_promises(steps in vec(step(), 0..40)) {
        let script = [&[208][..], &steps.concat()].concat();
        tmqp_session_check::check(&script);
    }

    #[test]
    fn any_beginning_keeps_the_promises(
        preamble in prop_oneof![Just("TMQP/2.0".to_owned()), Just("TMQ/1.01".to_owned()), "[TMQP/2.0]{0,8}"],
        steps in vec(step(), 0..10),
    ) {
        let script = [arriving(preamble.as_bytes()), steps.concat()].concat();
        tmqp_session_check::check(&script);
    }

    #[test]
    fn random_bytes_keep_the_promises(script in vec(any::<u8>(), 0..600)) {
        tmqp_session_check::check(&script);
        tmqp_session_check::check(&[&[208], &script[..]].concat());
    }
}
