//! Pages of lists: every entry that exists throughout is listed once, in order, in steps of bounded size.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use mqcore_broker::model::client::{Client, Introduction};
use mqcore_broker::model::command::{Command, Request};
use mqcore_broker::model::effect::Reply;
use mqcore_broker::model::id::{ChannelName, ConnectionId, RouterName};
use mqcore_broker::model::node::Upstream;
use mqcore_broker::model::options::{ChannelChanges, QueueChanges};
use mqcore_broker::model::page::{ListPage, PAGE_ENTRIES_MAX, Page};
use mqcore_broker::model::rejection::RejectionKind;
use mqcore_broker::model::router::RouterMethod;
use mqcore_broker::model::subscription::QueueJoin;

use crate::shards::{Shards, queue};

fn channel(name: &str) -> ChannelName {
    ChannelName::new(name).unwrap()
}

fn create(shards: &mut Shards, name: &str) {
    let request = Request::CreateChannel { channel: channel(name), changes: ChannelChanges::default() };
    shards.request(0, request).unwrap();
}

fn remove(shards: &mut Shards, name: &str) {
    shards.request(0, Request::RemoveChannel { channel: channel(name) }).unwrap();
}

/// The names or ids on a page, as a session merges it: `max` items of all shards together.
fn page(shards: &mut Shards, request: &Request, max: usize, after: Option<Box<str>>) -> ListPage<String> {
    let mut request = request.clone();
    let parts = request.answers(shards.brokers.len());
    *request.page_mut().unwrap() = Page { after, max: max.div_ceil(parts) };
    match shards.request(0, request).unwrap() {
        Reply::Channels(mut page) => {
            page.cut(max, |channel| channel.channel.as_str());
            named(page, |channel| channel.channel.to_string())
        }
        Reply::Routers(mut page) => {
            page.cut(max, |router| router.name.as_str());
            named(page, |router| router.name.as_str().to_owned())
        }
        Reply::Queues(page) => named(page, |queue| queue.queue.id.to_string()),
        Reply::Clients(page) => named(page, |client| client.client.id.to_string()),
        Reply::Nodes(page) => named(page, |node| node.id.clone()),
        other => panic!("{other:?}"),
    }
}

fn named<T>(page: ListPage<T>, name: impl Fn(&T) -> String) -> ListPage<String> {
    ListPage { items: page.items.iter().map(name).collect(), next: page.next }
}

/// All items, read in pages, with the number of pages. `between` runs after each page.
fn all(
    shards: &mut Shards,
    request: &Request,
    max: usize,
    mut between: impl FnMut(&mut Shards, usize),
) -> (Vec<String>, usize) {
    let (mut items, mut after) = (Vec::new(), None);
    for number in 1.. {
        let listed = page(shards, request, max, after);
        assert!(listed.items.len() <= max, "{} items", listed.items.len());
        items.extend(listed.items);
        if listed.next.is_none() {
            return (items, number);
        }
        after = listed.next;
        between(shards, number);
    }
    unreachable!("the last page has no cursor")
}

fn channels(filter: Option<&str>) -> Request {
    Request::ListChannels { filter: filter.map(Into::into), page: Page::default() }
}

fn sorted(names: impl IntoIterator<Item = String>) -> Vec<String> {
    names.into_iter().collect::<BTreeSet<_>>().into_iter().collect()
}

#[test]
fn pages_of_all_shards_have_each_channel_once_in_the_order_of_names() {
    for count in [1, 2, 4, 7] {
        let mut shards = Shards::new(count, 1);
        let names = sorted((0..300).map(|number| format!("{}{number}", ["a", "B", "c"][number % 3])));
        for name in &names {
            create(&mut shards, name);
        }
        for max in [1, 2, 5, 50, 299, 300, 1000] {
            let (listed, pages) = all(&mut shards, &channels(None), max, |_, _| {});
            assert_eq!(listed, names, "{count} shards, pages of {max}");
            // The cursor is the last name of a shard's full part.
            let part = max.div_ceil(count);
            assert!(pages <= names.len() / part + 1, "{pages} pages of {max} on {count} shards");
        }
        let (listed, _) = all(&mut shards, &channels(Some("b*")), 10, |_, _| {});
        assert_eq!(listed, Vec::<String>::new(), "a prefix respects case");
        let (listed, _) = all(&mut shards, &channels(Some("*29*")), 2, |_, _| {});
        assert_eq!(listed, sorted(names.iter().filter(|name| name.contains("29")).cloned()));
    }
}

#[test]
fn a_step_considers_a_bounded_number_of_entries_although_a_filter_rejects_most() {
    let mut shards = Shards::new(1, 1);
    for number in 0..PAGE_ENTRIES_MAX * 2 + 10 {
        create(&mut shards, &format!("c{number:05}"));
    }
    let last = format!("c{:05}", PAGE_ENTRIES_MAX * 2 + 9);
    let request = channels(Some(&last));
    let first = page(&mut shards, &request, PAGE_ENTRIES_MAX, None);
    assert_eq!((first.items.len(), first.next.as_deref()), (0, Some("c00999")));
    let (listed, pages) = all(&mut shards, &request, PAGE_ENTRIES_MAX, |_, _| {});
    assert_eq!((listed, pages), (vec![last], 3));
    let much = page(&mut shards, &channels(None), usize::MAX, None);
    assert_eq!(much.items.len(), PAGE_ENTRIES_MAX);
}

#[test]
fn what_exists_throughout_is_listed_once_although_others_come_and_go() {
    let mut shards = Shards::new(4, 1);
    let stays: Vec<_> = (0..100).map(|number| format!("s{number:03}")).collect();
    let goes: Vec<_> = (0..100).map(|number| format!("s{number:03}-goes")).collect();
    for name in stays.iter().chain(&goes) {
        create(&mut shards, name);
    }
    // Each page is followed by removals before and behind the cursor, and of the cursor itself, and by new channels.
    let mut going = goes.iter();
    let (listed, _) = all(&mut shards, &channels(None), 9, |shards, number| {
        for name in going.by_ref().step_by(2).take(3) {
            remove(shards, name);
        }
        create(shards, &format!("a-new-{number}"));
        create(shards, &format!("z-new-{number}"));
    });
    assert_eq!(sorted(listed.iter().cloned()).len(), listed.len(), "{listed:?}");
    let kept: Vec<_> = listed.iter().filter(|name| stays.contains(name)).cloned().collect();
    assert_eq!(kept, stays);
    assert!(listed.iter().all(|name| !name.starts_with("a-new-")), "that is before the cursor");
}

#[test]
fn a_channel_that_was_created_again_with_another_case_is_listed_under_its_new_name() {
    let mut shards = Shards::new(2, 1);
    for (name, listed) in [("name", "name"), ("NAME", "NAME"), ("Name", "Name")] {
        create(&mut shards, name);
        assert_eq!(all(&mut shards, &channels(None), 5, |_, _| {}).0, [listed]);
        remove(&mut shards, &name.to_uppercase());
        assert!(all(&mut shards, &channels(None), 5, |_, _| {}).0.is_empty());
    }
}

#[test]
fn queues_routers_and_clients_are_listed_in_pages() {
    let mut shards = Shards::new(4, 1);
    for id in (0..70_u16).map(|number| number * 900) {
        let address = queue(&format!("ch/{id}"));
        shards.request(0, Request::CreateQueue { queue: address, changes: QueueChanges::default() }).unwrap();
    }
    let request = Request::ListQueues { channel: channel("ch"), page: Page::default() };
    let (listed, pages) = all(&mut shards, &request, 20, |_, _| {});
    assert_eq!((listed, pages), ((0..70).map(|number| (number * 900).to_string()).collect(), 4));

    for number in 0..60 {
        let router = RouterName::new(&format!("r{number:02}")).unwrap();
        shards.request(0, Request::CreateRouter { router, method: RouterMethod::Distribute }).unwrap();
    }
    shards.request(0, Request::RemoveRouter { router: RouterName::new("r10").unwrap() }).unwrap();
    let request = Request::ListRouters { filter: Some("r1*".into()), page: Page::default() };
    let (listed, _) = all(&mut shards, &request, 4, |_, _| {});
    assert_eq!(listed, (11..20).map(|number| format!("r{number}")).collect::<Vec<_>>());

    for number in 1..12 {
        shards.connect(&format!("k{number}"), ["even", "odd"][number % 2]);
    }
    let request = Request::ListClients { kind: Some("odd".into()), page: Page::default() };
    let (listed, _) = all(&mut shards, &request, 2, |shards, _| {
        // The client of the cursor may have left.
        let left = shards.client(2).connection;
        for broker in &mut shards.brokers {
            broker.closed(left, shards.now, &mut Vec::new());
        }
    });
    assert_eq!(listed, ["k1", "k3", "k5", "k7", "k9", "k11"]);
}

#[test]
fn consumers_are_listed_in_the_order_in_which_they_joined() {
    let mut shards = Shards::new(2, 1);
    create(&mut shards, "ch");
    let clients: Vec<_> = (0..30).map(|number| shards.connect(&format!("k{number}"), "t")).collect();
    let join = |queues: Option<Vec<u16>>| match queues {
        None => Request::Join { channel: channel("ch") },
        Some(queues) => {
            Request::JoinQueues(Box::new(QueueJoin { channel: channel("ch"), queues, prefetch: 0 }))
        }
    };
    // The newest connection joins first, every third one for some queues.
    for client in clients.iter().rev() {
        shards.now = shards.now.after(Duration::from_millis(5));
        shards.request(*client, join((client % 3 == 0).then(Vec::new))).unwrap();
    }
    let request = Request::ListConsumers { channel: channel("ch"), page: Page::default() };
    let expected: Vec<_> = (0..30).rev().map(|number| format!("k{number}")).collect();
    assert_eq!(all(&mut shards, &request, 1000, |_, _| {}), (expected.clone(), 1));
    // A client that now joins for some queues keeps its place.
    let (listed, pages) = all(&mut shards, &request, 7, |shards, number| {
        shards.request(clients[number], join(Some(Vec::new()))).unwrap();
        shards.request(clients[29 - number], join(Some(Vec::new()))).unwrap();
    });
    assert_eq!((listed, pages), (expected, 5));
}

#[test]
fn a_cursor_of_another_list_is_refused() {
    let mut shards = Shards::new(1, 1);
    create(&mut shards, "ch");
    for cursor in ["x", "", "-1", "65536", "1-2-3", "1-2-3-4-5"] {
        let page = Page { after: Some(cursor.into()), max: 5 };
        let of_queues = Request::ListQueues { channel: channel("ch"), page: page.clone() };
        let of_consumers = Request::ListConsumers { channel: channel("ch"), page: page.clone() };
        let mut requests = vec![of_queues, of_consumers];
        if cursor != "65536" {
            requests.push(Request::ListClients { kind: None, page });
        }
        for request in requests {
            let refused = shards.request(0, request).unwrap_err();
            assert_eq!(refused.kind, RejectionKind::BadRequest);
            assert!(refused.reason.contains("cursor"), "{refused}");
        }
    }
}

#[test]
fn pages_of_nodes_have_upstream_brokers_and_then_downstream_brokers() {
    let mut shards = Shards::new(2, 1);
    let (now, since) = (shards.now, shards.now);
    for index in [2, 0, 10, 1] {
        let (id, name, host) = (format!("up-{index}"), "north".to_owned(), "127.0.0.1:1".to_owned());
        let upstream = Upstream { index, id, name, host, connected_since: Some(since) };
        shards.brokers[0].upstream(upstream, now, &mut Vec::new());
    }
    let plain = shards.client(0);
    let connect = |shards: &mut Shards, number: u64| {
        let client = Client { connection: ConnectionId(100 + number), ..(*plain).clone() };
        let introduction = Introduction {
            id: Some(format!("down-{number}")),
            node: Some("10.0.0.1".into()),
            ..Introduction::default()
        };
        let command = Command::Introduce(Box::new(introduction));
        shards.brokers[0].command(&Arc::new(client), command, now, &mut Vec::new());
    };
    for number in 0..6 {
        connect(&mut shards, number);
    }
    let mut expected: Vec<_> = [0, 1, 2, 10].iter().map(|index| format!("up-{index}")).collect();
    expected.extend((0..6).map(|number| format!("down-{number}")));
    let request = Request::ListNodes { page: Page::default() };
    for max in [1, 2, 3, 4, 5, 9, 10, 1000] {
        let (listed, pages) = all(&mut shards, &request, max, |_, _| {});
        assert_eq!(listed, expected, "pages of {max}");
        assert_eq!(pages, expected.len().div_ceil(max));
    }
    // One that leaves between two pages is skipped, one that comes is listed at the end.
    let (listed, _) = all(&mut shards, &request, 5, |shards, number| {
        if number == 1 {
            shards.brokers[0].closed(ConnectionId(100), now, &mut Vec::new());
            shards.brokers[0].closed(ConnectionId(101), now, &mut Vec::new());
            connect(shards, 6);
        }
    });
    let up = ["up-0", "up-1", "up-2", "up-10", "down-0"].map(str::to_owned);
    let down = (2..7).map(|number| format!("down-{number}"));
    assert_eq!(listed, up.into_iter().chain(down).collect::<Vec<_>>());
    for cursor in ["", "u", "u-1", "x", "-1"] {
        let page = Page { after: Some(cursor.into()), max: 5 };
        let rejected = shards.request(0, Request::ListNodes { page }).expect_err(cursor);
        assert_eq!(rejected.kind, RejectionKind::BadRequest, "{cursor}");
    }
}
