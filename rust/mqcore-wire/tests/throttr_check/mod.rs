//! Checks the Throttr codec with arbitrary bytes. Shared by the tests and the fuzz target.
//!
//! The first byte of an input selects the dialect and the decoder; the rest is the input of the decoder.

use mqcore_wire::codec::Limits;
use mqcore_wire::throttr::reply::{self, Expected, FragmentedRequest};
use mqcore_wire::throttr::request::{self, ThrottrRequest};
use mqcore_wire::throttr::{Dialect, Family, Width};

/// Small, so that sizes beyond it are common.
const LIMITS: Limits = Limits { frame_bytes_max: 5000, header_bytes_max: 0 };

const EXPECTED: [Expected; 16] = [
    Expected::Status,
    Expected::Counter,
    Expected::Buffer,
    Expected::Stat,
    Expected::Fragments,
    Expected::Fragment(FragmentedRequest::List),
    Expected::Fragment(FragmentedRequest::Stats),
    Expected::Fragment(FragmentedRequest::Connections),
    Expected::Fragment(FragmentedRequest::Channels),
    Expected::Info { with_time: true },
    Expected::Info { with_time: false },
    Expected::Connection,
    Expected::Channel,
    Expected::Id,
    Expected::Verdict,
    Expected::Verdicts,
];

/// Checks every promise on one input.
pub(crate) fn check(input: &[u8]) {
    let Some((&choice, bytes)) = input.split_first() else { return };
    let width = Width::ALL[usize::from(choice & 3)];
    let family = if choice & 4 == 0 { Family::V71 } else { Family::V73 };
    let dialect = Dialect { width, family };
    if choice & 8 == 0 {
        check_requests(bytes, dialect);
    } else {
        check_replies(bytes, EXPECTED[usize::from(choice >> 4)], dialect);
    }
}

fn check_requests(mut rest: &[u8], dialect: Dialect) {
    while let Ok(Some((found, consumed))) = request::decode(rest, dialect, &LIMITS) {
        let (bytes, behind) = rest.split_at(consumed);
        assert_eq!(request::needed(rest, dialect, &LIMITS), Ok(consumed));
        assert_eq!(request::decode(bytes, dialect, &LIMITS), Ok(Some((found, consumed))));
        expect_not_yet(bytes, |part| {
            let needed = request::needed(part, dialect, &LIMITS).unwrap();
            assert!(needed == 0 || needed == consumed, "{needed} and {consumed}");
            request::decode(part, dialect, &LIMITS).unwrap().is_none()
        });
        let mut again = Vec::new();
        request::encode(&found, dialect, &mut again).unwrap();
        assert_eq!(again, bytes, "there is one way to write a request");
        if let ThrottrRequest::ConsumeAll { rules, .. } = found {
            assert_eq!(rules.iter().count(), rules.len());
        }
        rest = behind;
    }
}

fn check_replies(mut rest: &[u8], expected: Expected, dialect: Dialect) {
    while let Ok(Some((found, consumed))) = reply::decode(rest, expected, dialect, &LIMITS) {
        let (bytes, behind) = rest.split_at(consumed);
        assert!(consumed > 0);
        assert_eq!(reply::decode(bytes, expected, dialect, &LIMITS), Ok(Some((found.clone(), consumed))));
        expect_not_yet(bytes, |part| reply::decode(part, expected, dialect, &LIMITS).unwrap().is_none());
        if let reply::ThrottrReply::Fragment(fragment) = found {
            assert_eq!(fragment.iter().count(), fragment.len());
        }
        rest = behind;
    }
}

/// Every cut of something short, and some of something long.
fn expect_not_yet(bytes: &[u8], is_none: impl Fn(&[u8]) -> bool) {
    let step = 1 + bytes.len() / 300;
    for end in (0..bytes.len()).step_by(step) {
        assert!(is_none(&bytes[..end]), "cut at {end} of {}", bytes.len());
    }
}
