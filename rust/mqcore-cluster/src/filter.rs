//! Which messages go to a master, and which a master takes: rules as data.

use mqcore_wire::tmqp::header::pairs;
use mqcore_wire::tmqp::{Frame, Kind};

/// What sort of frame a rule is about.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ForwardKind {
    /// A message for a queue.
    Queue,
    /// A message for a router.
    Router,
    /// A message from client to client.
    Direct,
    /// An acknowledgement.
    Acknowledge,
    /// A response to a direct message.
    Response,
}

impl ForwardKind {
    /// All of them.
    pub const ALL: [Self; 5] = [Self::Queue, Self::Router, Self::Direct, Self::Acknowledge, Self::Response];

    /// The kind of a frame, if frames of that sort are passed on at all: operations, pulls and events are not.
    #[must_use]
    pub const fn of(kind: Kind) -> Option<Self> {
        match kind {
            Kind::QUEUE => Some(Self::Queue),
            Kind::ROUTER => Some(Self::Router),
            Kind::DIRECT => Some(Self::Direct),
            Kind::ACKNOWLEDGE => Some(Self::Acknowledge),
            Kind::RESPONSE => Some(Self::Response),
            _ => None,
        }
    }

    /// The word in configurations.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        match self {
            Self::Queue => "queue",
            Self::Router => "router",
            Self::Direct => "direct",
            Self::Acknowledge => "acknowledge",
            Self::Response => "response",
        }
    }

    /// The kind of this word.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A text with `*` for any run of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Pattern(Box<str>);

impl Pattern {
    /// Takes a pattern as it was written.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether all of `text` fits. ASCII case does not matter, as channels are found without respect to it.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut at, mut from) = (0, 0);
        // Where the last `*` stands, and how much of the text it has swallowed so far.
        let mut star: Option<(usize, usize)> = None;
        while from < text.len() {
            match pattern.get(at) {
                Some(b'*') => {
                    star = Some((at, from));
                    at += 1;
                }
                Some(byte) if byte.eq_ignore_ascii_case(&text[from]) => {
                    at += 1;
                    from += 1;
                }
                _ => {
                    let Some((star_at, swallowed)) = star else { return false };
                    star = Some((star_at, swallowed + 1));
                    at = star_at + 1;
                    from = swallowed + 1;
                }
            }
        }
        pattern[at..].iter().all(|byte| *byte == b'*')
    }
}

/// One rule. Everything it names must hold; what it does not name does not matter.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Rule {
    /// Sorts of frames; empty: any.
    pub kinds: Vec<ForwardKind>,
    /// The channel of a queue message or of the acknowledgement of one.
    pub channel: Option<Pattern>,
    /// The queue's id; only of queue messages and their acknowledgements.
    pub queue: Option<u16>,
    /// The router; only of router messages.
    pub router: Option<Pattern>,
    /// The id of the client that produced it.
    pub client_id: Option<Pattern>,
    /// Its name. A master does not learn it: a rule that names one never matches there.
    pub client_name: Option<Pattern>,
    /// Its type. As for the name.
    pub client_type: Option<Pattern>,
    /// The name of the node that sends; only a master knows it.
    pub node: Option<Pattern>,
    /// A header, and what its value must be.
    pub header: Option<(Box<str>, Pattern)>,
}

/// Who produced a frame, as far as that is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct Sender<'a> {
    /// The client's id.
    pub id: &'a str,
    /// Its name.
    pub name: Option<&'a str>,
    /// Its type.
    pub kind: Option<&'a str>,
    /// The node that it came through, where it did not come from the client itself.
    pub node: Option<&'a str>,
}

impl Rule {
    fn matches(&self, kind: ForwardKind, frame: &Frame<'_>, sender: &Sender<'_>) -> bool {
        let of_queue =
            kind == ForwardKind::Queue || (kind == ForwardKind::Acknowledge && !frame.high_priority);
        let fits = |pattern: &Option<Pattern>, text: Option<&str>| {
            pattern.as_ref().is_none_or(|pattern| text.is_some_and(|text| pattern.matches(text)))
        };
        let target = str::from_utf8(frame.target).ok();
        (self.kinds.is_empty() || self.kinds.contains(&kind))
            && fits(&self.channel, target.filter(|_| of_queue))
            && self.queue.is_none_or(|queue| of_queue && queue == frame.content_type)
            && fits(&self.router, target.filter(|_| kind == ForwardKind::Router))
            && fits(&self.client_id, Some(sender.id))
            && fits(&self.client_name, sender.name)
            && fits(&self.client_type, sender.kind)
            && fits(&self.node, sender.node)
            && self.header.as_ref().is_none_or(|(name, pattern)| {
                pairs(frame.headers).any(|(key, value)| {
                    key.eq_ignore_ascii_case(name.as_bytes())
                        && str::from_utf8(value).is_ok_and(|value| pattern.matches(value))
                })
            })
    }
}

/// Rules that let through and rules that hold back. The default lets everything through.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Filter {
    /// If there are any, one of them must match.
    pub allow: Vec<Rule>,
    /// None of them may match.
    pub deny: Vec<Rule>,
}

impl Filter {
    /// Whether a frame goes through.
    #[must_use]
    pub fn passes(&self, kind: ForwardKind, frame: &Frame<'_>, sender: &Sender<'_>) -> bool {
        let any = |rules: &[Rule]| rules.iter().any(|rule| rule.matches(kind, frame, sender));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(filter: &Filter, frame: &Frame<'_>) -> bool {
        let sender = Sender { id: "c-1", name: Some("Shop"), kind: Some("web"), node: None };
        filter.passes(ForwardKind::of(frame.kind).expect("a kind that is passed on"), frame, &sender)
    }

    fn allow(rule: Rule) -> Filter {
        Filter { allow: vec![rule], deny: Vec::new() }
    }

    #[test]
    fn a_star_stands_for_any_run_of_characters() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("orders", "ORDERS", true),
            ("orders", "orders2", false),
            ("or*s", "orders", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "ab-a", false),
            ("a**", "a", true),
            ("", "a", false),
        ] {
            assert_eq!(Pattern::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
        let (pattern, text) = ("*a".repeat(500), "a".repeat(499));
        assert!(!Pattern::new(&pattern).matches(&text), "and it takes no exponential time to say so");
    }

    #[test]
    fn every_part_of_a_rule_must_hold() {
        let frame = Frame {
            content_type: 7,
            target: b"Orders",
            headers: b"Region:eu-1\r\n",
            ..Frame::new(Kind::QUEUE)
        };
        let rule = Rule {
            kinds: vec![ForwardKind::Queue],
            channel: Some(Pattern::new("ord*")),
            queue: Some(7),
            client_id: Some(Pattern::new("c-*")),
            client_name: Some(Pattern::new("shop")),
            client_type: Some(Pattern::new("web")),
            header: Some(("region".into(), Pattern::new("eu-*"))),
            ..Rule::default()
        };
        assert!(passes(&allow(rule.clone()), &frame));
        let broken = [
            Rule { kinds: vec![ForwardKind::Router], ..rule.clone() },
            Rule { channel: Some(Pattern::new("x")), ..rule.clone() },
            Rule { queue: Some(8), ..rule.clone() },
            Rule { client_name: Some(Pattern::new("x")), ..rule.clone() },
            Rule { node: Some(Pattern::new("*")), ..rule.clone() },
            Rule { router: Some(Pattern::new("*")), ..rule.clone() },
            Rule { header: Some(("region".into(), Pattern::new("us-*"))), ..rule },
        ];
        for rule in broken {
            assert!(!passes(&allow(rule.clone()), &frame), "{rule:?}");
        }
    }

    #[test]
    fn what_is_denied_stays_whatever_is_allowed() {
        let channel = |name| Rule { channel: Some(Pattern::new(name)), ..Rule::default() };
        let filter = Filter { allow: vec![channel("a*")], deny: vec![channel("*-private")] };
        let to = |target| Frame { target, ..Frame::new(Kind::QUEUE) };
        assert!(passes(&filter, &to(b"a-1")));
        assert!(!passes(&filter, &to(b"a-private")));
        assert!(!passes(&filter, &to(b"b")));
        assert!(passes(&Filter::default(), &to(b"b")));
    }

    #[test]
    fn a_rule_about_channels_is_not_about_clients_of_that_name() {
        let rule = Rule { channel: Some(Pattern::new("x")), ..Rule::default() };
        let direct = Frame { target: b"x", ..Frame::new(Kind::DIRECT) };
        assert!(!passes(&allow(rule.clone()), &direct));
        let acknowledged = Frame { target: b"x", high_priority: true, ..Frame::new(Kind::ACKNOWLEDGE) };
        assert!(!passes(&allow(rule), &acknowledged), "high priority: of a direct message");
    }
}
