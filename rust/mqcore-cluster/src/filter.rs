//! Link filters: rules that determine which messages a link forwards upstream, and which an upstream broker accepts.

use mqcore_wire::tmqp::header::pairs;
use mqcore_wire::tmqp::{Frame, Kind};

/// The kind of frame to which a rule applies.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ForwardKind {
    /// A message for a queue.
    Queue,
    /// A message for a router.
    Router,
    /// A direct message from one client to another.
    Direct,
    /// An acknowledgement.
    Acknowledge,
    /// A response to a direct message.
    Response,
}

impl ForwardKind {
    /// All kinds.
    pub const ALL: [Self; 5] = [Self::Queue, Self::Router, Self::Direct, Self::Acknowledge, Self::Response];

    /// Returns the kind of a frame, or `None` for frames that are never forwarded: operations, pulls and events.
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

    /// Name used in the configuration.
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

    /// Returns the kind with this name.
    #[must_use]
    pub fn from_word(word: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|kind| kind.as_str() == word)
    }
}

/// A pattern in which `*` matches any number of characters.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WildcardPattern(Box<str>);

impl WildcardPattern {
    /// Creates a pattern.
    #[must_use]
    pub fn new(text: &str) -> Self {
        Self(text.into())
    }

    /// Whether the whole of `text` matches. ASCII case is ignored, as in channel names.
    #[must_use]
    pub fn matches(&self, text: &str) -> bool {
        let (pattern, text) = (self.0.as_bytes(), text.as_bytes());
        let (mut at, mut from) = (0, 0);
        // Position of the last `*`, and the end of the text that it matches so far.
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

/// A filter rule. All given conditions must hold.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct FilterRule {
    /// Kinds of frames; empty: any.
    pub kinds: Vec<ForwardKind>,
    /// Channel of a queue message, or of its acknowledgement.
    pub channel: Option<WildcardPattern>,
    /// Queue id of a queue message, or of its acknowledgement.
    pub queue: Option<u16>,
    /// Router of a router message.
    pub router: Option<WildcardPattern>,
    /// Client id of the producer.
    pub client_id: Option<WildcardPattern>,
    /// Client name of the producer. Upstream brokers do not receive it, so such a rule never matches there.
    pub client_name: Option<WildcardPattern>,
    /// Client type of the producer. Upstream brokers do not receive it either.
    pub client_type: Option<WildcardPattern>,
    /// Name of the forwarding node. Known to upstream brokers only.
    pub node: Option<WildcardPattern>,
    /// Header name, and the pattern for its value.
    pub header: Option<(Box<str>, WildcardPattern)>,
}

/// The producer of a frame, as far as it is known.
#[derive(Debug, Clone, Copy, Default)]
pub struct FrameProducer<'a> {
    /// Client id.
    pub id: &'a str,
    /// Client name.
    pub name: Option<&'a str>,
    /// Client type.
    pub kind: Option<&'a str>,
    /// Node that forwarded the frame, unless it came from the client directly.
    pub node: Option<&'a str>,
}

impl FilterRule {
    fn matches(&self, kind: ForwardKind, frame: &Frame<'_>, sender: &FrameProducer<'_>) -> bool {
        let of_queue =
            kind == ForwardKind::Queue || (kind == ForwardKind::Acknowledge && !frame.high_priority);
        let fits = |pattern: &Option<WildcardPattern>, text: Option<&str>| {
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

/// A link filter. The default passes every frame.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct LinkFilter {
    /// If not empty, at least one of these rules must match.
    pub allow: Vec<FilterRule>,
    /// None of these rules may match.
    pub deny: Vec<FilterRule>,
}

impl LinkFilter {
    /// Whether a frame passes.
    #[must_use]
    pub fn passes(&self, kind: ForwardKind, frame: &Frame<'_>, sender: &FrameProducer<'_>) -> bool {
        let any = |rules: &[FilterRule]| rules.iter().any(|rule| rule.matches(kind, frame, sender));
        (self.allow.is_empty() || any(&self.allow)) && !any(&self.deny)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn passes(filter: &LinkFilter, frame: &Frame<'_>) -> bool {
        let sender = FrameProducer { id: "c-1", name: Some("Shop"), kind: Some("web"), node: None };
        filter.passes(ForwardKind::of(frame.kind).expect("the kind is forwarded"), frame, &sender)
    }

    fn allow(rule: FilterRule) -> LinkFilter {
        LinkFilter { allow: vec![rule], deny: Vec::new() }
    }

    #[test]
    fn star_matches_any_number_of_characters() {
        for (pattern, text, expected) in [
            ("*", "", true),
            ("orders", "ORDERS", true),
            ("orders", "orders2", false),
            ("or*s", "orders", true),
            ("*a*b*", "xxaxxbxx", true),
            ("*a*b", "ab-a", false),
            ("a**", "a", true),
            ("a*bc", "ababc", true),
            ("a*bc", "abab", false),
            ("", "a", false),
        ] {
            assert_eq!(WildcardPattern::new(pattern).matches(text), expected, "{pattern} on {text}");
        }
        let (pattern, text) = ("*a".repeat(500), "a".repeat(499));
        assert!(!WildcardPattern::new(&pattern).matches(&text), "matching takes no exponential time");
    }

    #[test]
    fn all_conditions_of_a_rule_must_hold() {
        let frame = Frame {
            content_type: 7,
            target: b"Orders",
            headers: b"Region:eu-1\r\n",
            ..Frame::new(Kind::QUEUE)
        };
        let rule = FilterRule {
            kinds: vec![ForwardKind::Queue],
            channel: Some(WildcardPattern::new("ord*")),
            queue: Some(7),
            client_id: Some(WildcardPattern::new("c-*")),
            client_name: Some(WildcardPattern::new("shop")),
            client_type: Some(WildcardPattern::new("web")),
            header: Some(("region".into(), WildcardPattern::new("eu-*"))),
            ..FilterRule::default()
        };
        assert!(passes(&allow(rule.clone()), &frame));
        let broken = [
            FilterRule { kinds: vec![ForwardKind::Router], ..rule.clone() },
            FilterRule { channel: Some(WildcardPattern::new("x")), ..rule.clone() },
            FilterRule { queue: Some(8), ..rule.clone() },
            FilterRule { client_name: Some(WildcardPattern::new("x")), ..rule.clone() },
            FilterRule { node: Some(WildcardPattern::new("*")), ..rule.clone() },
            FilterRule { router: Some(WildcardPattern::new("*")), ..rule.clone() },
            FilterRule { header: Some(("region".into(), WildcardPattern::new("us-*"))), ..rule },
        ];
        for rule in broken {
            assert!(!passes(&allow(rule.clone()), &frame), "{rule:?}");
        }
    }

    #[test]
    fn deny_rules_take_precedence_over_allow_rules() {
        let channel =
            |name| FilterRule { channel: Some(WildcardPattern::new(name)), ..FilterRule::default() };
        let filter = LinkFilter { allow: vec![channel("a*")], deny: vec![channel("*-private")] };
        let to = |target| Frame { target, ..Frame::new(Kind::QUEUE) };
        assert!(passes(&filter, &to(b"a-1")));
        assert!(!passes(&filter, &to(b"a-private")));
        assert!(!passes(&filter, &to(b"b")));
        assert!(passes(&LinkFilter::default(), &to(b"b")));
    }

    #[test]
    fn channel_rule_does_not_match_client_names() {
        let rule = FilterRule { channel: Some(WildcardPattern::new("x")), ..FilterRule::default() };
        let direct = Frame { target: b"x", ..Frame::new(Kind::DIRECT) };
        assert!(!passes(&allow(rule.clone()), &direct));
        let acknowledged = Frame { target: b"x", high_priority: true, ..Frame::new(Kind::ACKNOWLEDGE) };
        assert!(
            !passes(&allow(rule), &acknowledged),
            "high priority marks the acknowledgement of a direct message"
        );
    }
}
