//! Lists: whole ones for original clients, pages for clients that ask for them, and one list at a time.

use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::RequestId;
use mqcore_broker::model::page::{ListPage, Page};
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::stats::ChannelInformation;
use mqcore_session::session::Session;
use mqcore_session::tmqp::OPEN_LISTS_MAX;
use mqcore_wire::tmqp::{self, Frame, Kind};

use super::talk::{Talk, channel_information, encoded, only_frame, operation, rejection};

/// The names of the channels in an answer.
fn names(output: &[u8]) -> Vec<String> {
    let list: serde_json::Value = serde_json::from_slice(only_frame(output).payload).unwrap();
    list.as_array().unwrap().iter().map(|model| model["Name"].as_str().unwrap().to_owned()).collect()
}

fn part(names: &[&str], next: Option<&str>) -> ListPage<ChannelInformation> {
    ListPage {
        items: names.iter().map(|name| channel_information(name)).collect(),
        next: next.map(Into::into),
    }
}

/// The request that the session sends without input.
fn follow_up(talk: &mut Talk) -> (RequestId, Page) {
    match <[Command; 1]>::try_from(talk.session.take_commands()) {
        Ok([Command::Request(id, mut request)]) => (id, request.page_mut().unwrap().clone()),
        other => panic!("{other:?}"),
    }
}

/// Answers a request for a page with a part of each shard; returns the output after the last one.
fn reply_parts(talk: &mut Talk, request: RequestId, parts: [ListPage<ChannelInformation>; 4]) -> Vec<u8> {
    let mut output = Vec::new();
    for part in parts {
        assert_eq!(output, b"", "a part is missing");
        output = talk.reply(request, Ok(Reply::Channels(part)));
    }
    output
}

fn list(id: &[u8]) -> Vec<u8> {
    encoded(&Frame { id, ..operation(606, "") })
}

fn paged(headers: &[u8]) -> Vec<u8> {
    encoded(&Frame { headers, ..operation(606, "") })
}

#[test]
fn a_list_of_every_shard_is_joined_and_sorted_by_name() {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&list(b"q"));
    let parts = [part(&["d", "b"], None), part(&[], None), part(&["c"], None), part(&["a"], None)];
    let output = reply_parts(&mut talk, request, parts);
    assert_eq!(names(&output), ["a", "b", "c", "d"]);
    assert_eq!(only_frame(&output).headers, b"", "original clients know no pages");
    assert_eq!(talk.reply(request, Ok(Reply::Channels(part(&[], None)))), b"", "it was answered");
    assert!(talk.session.take_commands().is_empty());
}

#[test]
fn a_list_without_items_is_an_empty_list() {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&encoded(&operation(616, "ch")));
    let output = talk.reply(request, Ok(Reply::Queues(Vec::new().into())));
    assert_eq!(only_frame(&output).payload, b"[]");
}

#[test]
fn an_original_client_gets_all_pages_in_one_answer() {
    let mut talk = Talk::open();
    let (request, asked) = talk.request(&list(b"q"));
    assert!(
        matches!(asked, Request::ListChannels { filter: None, page } if page == Page { after: None, max: 250 })
    );
    // The second shard has read up to "c" only: what others have behind it is asked for once more.
    let parts =
        [part(&["a", "e"], Some("e")), part(&["b", "c"], Some("c")), part(&["d"], None), part(&[], None)];
    assert_eq!(reply_parts(&mut talk, request, parts), b"");
    assert_eq!(follow_up(&mut talk), (request, Page { after: Some("c".into()), max: 250 }));
    // A page may be empty, because a filter rejected what was considered.
    let parts = [part(&["e"], Some("g")), part(&[], Some("cc")), part(&["d"], None), part(&[], None)];
    assert_eq!(reply_parts(&mut talk, request, parts), b"");
    assert_eq!(follow_up(&mut talk).1.after.as_deref(), Some("cc"));
    let parts = [part(&["e"], None), part(&["f"], None), part(&["d"], None), part(&[], None)];
    assert_eq!(names(&reply_parts(&mut talk, request, parts)), ["a", "b", "c", "d", "e", "f"]);
    assert!(talk.session.take_commands().is_empty());
}

#[test]
fn lists_of_a_connection_are_read_one_after_the_other() {
    let mut talk = Talk::open();
    let (first, _) = talk.request(&list(b"1"));
    assert_eq!(talk.answer(&[list(b"2"), list(b"3")].concat()), b"", "they wait");
    let (other, _) = talk.request(&encoded(&operation(601, "ch")));
    assert_eq!(only_frame(&talk.reply(other, Ok(Reply::Done))).content_type, 0, "others do not wait");
    let parts = || [part(&["a"], None), part(&[], None), part(&[], None), part(&[], None)];
    assert_eq!(only_frame(&reply_parts(&mut talk, first, parts())).id, b"1");
    for id in [b"2", b"3"] {
        let (request, page) = follow_up(&mut talk);
        assert_eq!(page, Page { after: None, max: 250 });
        let output = reply_parts(&mut talk, request, parts());
        assert_eq!((only_frame(&output).id, names(&output)), (&id[..], vec!["a".to_owned()]));
    }
    assert!(talk.session.take_commands().is_empty());
    talk.request(&list(b"4"));
}

#[test]
fn a_session_with_many_unanswered_lists_reads_nothing_until_one_is_answered() {
    let mut talk = Talk::open();
    let (mut request, _) = talk.request(&list(b"first"));
    let flood: Vec<u8> =
        (1..OPEN_LISTS_MAX + 2).flat_map(|number| list(number.to_string().as_bytes())).collect();
    assert_eq!(talk.answer(&flood), b"");
    let size = list(b"256").len();
    assert_eq!(talk.unread(), 2 * size, "one list is read, 255 wait");
    assert!(talk.session.needed(&list(b"256")) <= size, "more input does not help");
    let mut too_large = Vec::new();
    tmqp::encode_head(&Frame::new(Kind::QUEUE), 1 << 40, &mut too_large);
    assert_eq!(talk.session.needed(&too_large), too_large.len(), "nor does it behind an invalid frame");
    for left in [1, 0, 0] {
        let parts = [part(&[], None), part(&[], None), part(&[], None), part(&[], None)];
        reply_parts(&mut talk, request, parts);
        request = follow_up(&mut talk).0;
        assert_eq!(talk.answer(b""), b"");
        assert_eq!(talk.unread(), left * size);
    }
}

#[test]
fn a_client_that_names_a_page_size_gets_one_page() {
    let mut talk = Talk::open();
    let (request, asked) = talk.request(&paged(b"Page-Size:2\r\n"));
    assert!(matches!(asked, Request::ListChannels { page, .. } if page == Page { after: None, max: 1 }));
    let parts = [part(&["d"], Some("d")), part(&["b"], None), part(&["a"], None), part(&["c"], None)];
    let output = reply_parts(&mut talk, request, parts);
    assert_eq!(
        (names(&output), only_frame(&output).headers),
        (vec!["a".into(), "b".into()], &b"Next-Page:b\r\n"[..])
    );
    assert!(talk.session.take_commands().is_empty());

    let (request, asked) = talk.request(&paged(b"page-size: 1000\r\nPage-After:b\r\n"));
    assert!(
        matches!(asked, Request::ListChannels { page, .. } if page == Page { after: Some("b".into()), max: 250 })
    );
    let parts = [part(&["d"], None), part(&[], None), part(&[], None), part(&["c"], None)];
    let output = reply_parts(&mut talk, request, parts);
    assert_eq!((names(&output), only_frame(&output).headers), (vec!["c".into(), "d".into()], &b""[..]));

    let frame = Frame { headers: b"Page-Size:7\r\nPage-After:3\r\n", ..operation(616, "ch") };
    let (request, asked) = talk.request(&encoded(&frame));
    assert!(
        matches!(asked, Request::ListQueues { page, .. } if page == Page { after: Some("3".into()), max: 7 })
    );
    let output =
        talk.reply(request, Ok(Reply::Queues(ListPage { items: Vec::new(), next: Some("1003".into()) })));
    assert_eq!(
        (only_frame(&output).payload, only_frame(&output).headers),
        (&b"[]"[..], &b"Next-Page:1003\r\n"[..])
    );
}

#[test]
fn wrong_pages_are_refused_with_the_reason() {
    let mut talk = Talk::open();
    for code in [606, 607, 616, 631, 651] {
        for (headers, reason) in [
            (&b"Page-Size:0\r\n"[..], "Page-Size must be a number from 1 to 1000"),
            (b"Page-Size:1001\r\n", "Page-Size must be a number from 1 to 1000"),
            (b"Page-Size:-1\r\n", "Page-Size must be"),
            (b"Page-Size:many\r\n", "Page-Size must be"),
            (b"Page-Size:\r\n", "Page-Size must be"),
            (b"Page-Size:5\r\nPage-After:\xFF\r\n", "Page-After must be UTF-8"),
            (b"Page-After:a\r\n", "Page-After needs the header Page-Size"),
        ] {
            let output = talk.answer(&encoded(&Frame { headers, ..operation(code, "ch") }));
            let answer = only_frame(&output);
            assert_eq!(answer.content_type, 400, "{code} {headers:?}");
            assert!(String::from_utf8_lossy(answer.headers).contains(reason), "{answer:?}");
        }
    }
}

#[test]
fn first_rejection_of_a_shard_is_the_answer_on_any_page() {
    let mut talk = Talk::open();
    for pages in 0..3 {
        let (request, _) = talk.request(&list(b"q"));
        for _ in 0..pages {
            let parts = [part(&["a"], Some("a")), part(&[], None), part(&[], None), part(&[], None)];
            assert_eq!(reply_parts(&mut talk, request, parts), b"");
            follow_up(&mut talk);
        }
        assert_eq!(talk.reply(request, Ok(Reply::Channels(part(&[], None)))), b"");
        assert_eq!(talk.reply(request, Err(rejection(RejectionKind::Unauthorized))), b"");
        assert_eq!(talk.reply(request, Err(rejection(RejectionKind::Busy))), b"");
        let output = talk.reply(request, Ok(Reply::Channels(part(&["a"], Some("a")))));
        assert_eq!((only_frame(&output).content_type, only_frame(&output).payload), (401, &b""[..]));
        assert!(talk.session.take_commands().is_empty());
    }
}

#[test]
fn a_whole_list_above_the_largest_answer_is_refused_and_its_pages_are_not() {
    let mut talk = Talk::open();
    let (request, _) = talk.request(&list(b"q"));
    let large = ChannelInformation { queues: (0..=u16::MAX).collect(), ..channel_information("a") };
    let page = || ListPage { items: vec![large.clone(); 15], next: Some("a".into()) };
    let parts = || [page(), part(&[], None), part(&[], None), part(&[], None)];
    assert_eq!(reply_parts(&mut talk, request, parts()), b"", "about 6 MB");
    assert_eq!(follow_up(&mut talk).0, request);
    let output = reply_parts(&mut talk, request, parts());
    let answer = only_frame(&output);
    assert_eq!((answer.content_type, answer.payload), (482, &b""[..]));
    assert_eq!(
        String::from_utf8_lossy(answer.headers),
        "Reason:the list has more than 8388608 bytes; ask for pages with the header Page-Size\r\n"
    );
    let (request, _) = talk.request(&paged(b"Page-Size:1000\r\n"));
    let twice = [page(), page(), part(&[], None), part(&[], None)];
    let output = reply_parts(&mut talk, request, twice);
    assert!(String::from_utf8_lossy(only_frame(&output).headers).contains("with a smaller Page-Size"));
    let (request, _) = talk.request(&paged(b"Page-Size:15\r\n"));
    assert_eq!(names(&reply_parts(&mut talk, request, parts())).len(), 15);
}

#[test]
fn a_list_whose_answer_shows_no_items_asks_for_one() {
    let mut talk = Talk::open();
    for frame in [
        Frame { pending_response: false, ..operation(616, "ch") },
        Frame { pending_response: false, pending_acknowledge: true, ..operation(616, "ch") },
    ] {
        let (request, asked) = talk.request(&encoded(&frame));
        assert!(matches!(asked, Request::ListQueues { page, .. } if page == Page { after: None, max: 1 }));
        let output =
            talk.reply(request, Ok(Reply::Queues(ListPage { items: Vec::new(), next: Some("1".into()) })));
        assert_eq!(output.is_empty(), !frame.pending_acknowledge);
        assert!(talk.session.take_commands().is_empty());
    }
}
