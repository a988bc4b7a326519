//! The TMQP codec with arbitrary frames, arbitrary bytes and damaged frames.

use crate::tmqp_check;
use mqcore_wire::codec::Limits;
use mqcore_wire::error::WireError;
use mqcore_wire::tmqp::{Frame, Kind, decode, encode, header};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::sample::Index;

/// A frame that owns its parts.
#[derive(Debug, Clone)]
struct OwnedFrame {
    /// First acquirer, high priority, pending response, pending acknowledge.
    flags: [bool; 4],
    kind: u8,
    hops: u8,
    content_type: u16,
    names: [Vec<u8>; 3],
    headers: Vec<u8>,
    payload: Vec<u8>,
}

impl OwnedFrame {
    fn borrow(&self) -> Frame<'_> {
        let kind = Kind(self.kind);
        let headers = if matches!(kind, Kind::PING | Kind::PONG) { &[] } else { &self.headers[..] };
        Frame {
            first_acquirer: self.flags[0],
            high_priority: self.flags[1],
            kind,
            pending_response: self.flags[2],
            pending_acknowledge: self.flags[3],
            hops: self.hops,
            content_type: self.content_type,
            id: &self.names[0],
            source: &self.names[1],
            target: &self.names[2],
            headers,
            payload: &self.payload,
        }
    }

    fn encoded(&self) -> Vec<u8> {
        let mut output = Vec::new();
        encode(&self.borrow(), &mut output);
        output
    }
}

fn name() -> impl Strategy<Value = Vec<u8>> {
    prop_oneof![4 => vec(any::<u8>(), 0..24), 1 => vec(any::<u8>(), 250..=255)]
}

/// Around the sizes at which the length takes another form, and anything small.
fn payload() -> impl Strategy<Value = Vec<u8>> {
    let size = prop_oneof![8 => 0_usize..300, 2 => 250_usize..260, 1 => 65_530_usize..65_540];
    (size, any::<u8>()).prop_map(|(size, first)| (0..size).map(|at| first.wrapping_add(at as u8)).collect())
}

fn header_text() -> impl Strategy<Value = Vec<u8>> {
    let line = ("[A-Za-z-]{1,12}", vec(any::<u8>(), 0..24));
    prop_oneof![
        Just(Vec::new()),
        vec(any::<u8>(), 1..64),
        vec(line, 0..6).prop_map(|lines| {
            let mut headers = Vec::new();
            for (key, value) in lines {
                let _: Result<(), _> = header::push_header(&mut headers, &key, &value);
            }
            headers
        }),
    ]
}

fn frame() -> impl Strategy<Value = OwnedFrame> {
    let fixed = (any::<[bool; 4]>(), 0_u8..64, 0_u8..32, any::<u16>());
    (fixed, [name(), name(), name()], header_text(), payload()).prop_map(
        |(fixed, names, headers, payload)| {
            let (flags, kind, hops, content_type) = fixed;
            OwnedFrame { flags, kind, hops, content_type, names, headers, payload }
        },
    )
}

/// Bytes whose fixed part is plausible more often than in random bytes.
fn frame_like() -> impl Strategy<Value = Vec<u8>> {
    let fixed =
        (any::<[u8; 2]>(), [0_u8..8, 0..8, 0..8], any::<[u8; 2]>(), prop_oneof![0_u8..16, 250_u8..=255]);
    (fixed, vec(prop_oneof![Just(0_u8), any::<u8>()], 0..200)).prop_map(|(fixed, rest)| {
        let (flags, names, content_type, length) = fixed;
        [&flags[..], &names, &content_type, &[length], &rest].concat()
    })
}

/// Reads the stream in these pieces. Returns the frames, and the error that ended it.
fn read_in_pieces<'a>(
    pieces: impl Iterator<Item = &'a [u8]>,
    limits: &Limits,
) -> (Vec<Vec<u8>>, Option<WireError>) {
    let mut buffer = Vec::new();
    let mut frames = Vec::new();
    for piece in pieces {
        buffer.extend_from_slice(piece);
        loop {
            match decode(&buffer, limits) {
                Ok(Some((_, consumed))) => frames.push(buffer.drain(..consumed).collect()),
                Ok(None) => break,
                Err(error) => return (frames, Some(error)),
            }
        }
    }
    (frames, None)
}

fn cut<'a>(input: &'a [u8], cuts: &[Index]) -> Vec<&'a [u8]> {
    let mut ends: Vec<usize> = cuts.iter().map(|cut| cut.index(input.len() + 1)).collect();
    ends.push(input.len());
    ends.sort_unstable();
    let starts = [0].into_iter().chain(ends.iter().copied());
    starts.zip(ends.iter()).map(|(start, &end)| &input[start..end]).collect()
}

fn limits() -> impl Strategy<Value = Limits> {
    prop_oneof![
        Just(Limits::default()),
        (0_u64..400, 0_u32..64)
            .prop_map(|(frame_bytes_max, header_bytes_max)| Limits { frame_bytes_max, header_bytes_max }),
    ]
}

proptest! {
    #[test]
    fn a_frame_comes_back_as_it_was(frame in frame(), tail in vec(any::<u8>(), 0..20)) {
        let bytes = frame.encoded();
        prop_assert_eq!(frame.borrow().encoded_size(), bytes.len());
        let input = [&bytes[..], &tail].concat();
        let found = decode(&input, &Limits::default());
        prop_assert_eq!(found, Ok(Some((frame.borrow(), bytes.len()))));
    }

    #[test]
    fn nothing_beyond_the_limits_is_accepted(frame in frame(), limits in limits()) {
        let bytes = frame.encoded();
        let frame = frame.borrow();
        let fits = bytes.len() as u64 <= limits.frame_bytes_max
            && frame.headers.len() as u64 <= u64::from(limits.header_bytes_max);
        match decode(&bytes, &limits) {
            Ok(found) => prop_assert!(fits && found == Some((frame, bytes.len()))),
            Err(WireError::TooLarge { .. }) => prop_assert!(!fits),
            Err(error) => prop_assert!(false, "{}", error),
        }
    }

    #[test]
    fn arbitrary_bytes_do_no_harm(input in vec(any::<u8>(), 0..600)) {
        tmqp_check::check(&input);
    }

    #[test]
    fn bytes_that_resemble_a_frame_do_no_harm(input in frame_like()) {
        tmqp_check::check(&input);
    }

    #[test]
    fn a_damaged_frame_does_no_harm(
        frame in frame(),
        damage in vec((any::<Index>(), any::<u8>()), 1..6),
        near_the_front in any::<bool>(),
    ) {
        let mut bytes = frame.encoded();
        let reach = if near_the_front { 20.min(bytes.len()) } else { bytes.len() };
        for (at, byte) in damage {
            bytes[at.index(reach)] = byte;
        }
        tmqp_check::check(&bytes);
    }

    #[test]
    fn the_split_into_reads_changes_nothing(
        frames in vec(frame(), 0..4),
        garbage in frame_like(),
        cuts in vec(any::<Index>(), 0..12),
        limits in limits(),
    ) {
        let mut input: Vec<u8> = frames.iter().flat_map(OwnedFrame::encoded).take(20_000).collect();
        input.extend_from_slice(&garbage);
        let whole = read_in_pieces([&input[..]].into_iter(), &limits);
        prop_assert_eq!(&read_in_pieces(cut(&input, &cuts).into_iter(), &limits), &whole);
        if input.len() < 2000 {
            prop_assert_eq!(&read_in_pieces(input.chunks(1), &limits), &whole);
        }
    }
}
