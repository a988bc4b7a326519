//! Routers: a name, a method, and bindings to targets.

use std::fmt;

use crate::model::command::ClientPattern;
use crate::model::id::{QueueAddress, RouterName, TopicName};
use crate::model::rejection::{Rejection, RejectionKind};

/// Maximum number of bindings of a router.
pub const ROUTER_BINDINGS_MAX: usize = 4_096;
/// Maximum number of routers of a shard.
pub const ROUTERS_MAX: usize = 65_536;
/// Maximum length of a binding's name in bytes.
const BINDING_NAME_BYTES_MAX: usize = 255;

/// Which bindings get a message. The numbers are those of the original server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum RouterMethod {
    /// All variants.
    #[default]
    Distribute = 0,
    /// One after the other; a binding that does not take the message is skipped.
    RoundRobin = 1,
    /// The binding with the highest priority; the next one if it does not take the message.
    OnlyFirst = 2,
}

impl RouterMethod {
    const ALL: [Self; 3] = [Self::Distribute, Self::RoundRobin, Self::OnlyFirst];

    /// The method with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|method| *method as u64 == number)
    }

    /// `distribute`, `round-robin` or `only-first`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Distribute => "distribute",
            Self::RoundRobin => "round-robin",
            Self::OnlyFirst => "only-first",
        }
    }

    /// Parses the names of [`RouterMethod::as_str`], ignoring case, `-` and `_`.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|method| same_word(method.as_str(), text))
    }
}

/// Which answer a binding asks its receiver for, and so what answers the producer. The numbers are
/// those of the original server.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
#[repr(u8)]
pub enum Interaction {
    /// None: the receiver's copy has its own id, and the router answers.
    #[default]
    None = 0,
    /// An acknowledgement, which goes to the producer.
    Acknowledge = 1,
    /// A response, which goes to the producer.
    Response = 2,
}

impl Interaction {
    const ALL: [Self; 3] = [Self::None, Self::Acknowledge, Self::Response];

    /// The interaction with this number.
    pub fn from_number(number: u64) -> Option<Self> {
        Self::ALL.into_iter().find(|interaction| *interaction as u64 == number)
    }

    /// `none`, `acknowledge` or `response`.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::None => "none",
            Self::Acknowledge => "acknowledge",
            Self::Response => "response",
        }
    }

    /// Parses the names of [`Interaction::as_str`], ignoring case.
    pub fn from_text(text: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|interaction| same_word(interaction.as_str(), text))
    }
}

/// Whether two words are equal apart from case, `-` and `_`.
fn same_word(one: &str, other: &str) -> bool {
    let letters = |word: &str| -> String {
        word.chars().filter(|letter| !matches!(letter, '-' | '_')).flat_map(char::to_lowercase).collect()
    };
    letters(one) == letters(other)
}

/// The target of a binding.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Target {
    /// A queue.
    Queue(QueueAddress),
    /// One client, or the clients with a name or a type.
    Client(ClientPattern),
    /// The subscribers of a topic and the queues bound to it.
    Topic(TopicName),
    /// A handler, by its key, which takes the message itself or names targets.
    Handler(Box<str>),
}

const TOPIC: &str = "@topic:";
const NAME: &str = "@name:";
const KIND: &str = "@type:";
const CLIENT: &str = "@client:";
const HANDLER: &str = "@handler:";

impl Target {
    /// Parses `@topic:NAME`, `@name:NAME`, `@type:TYPE`, `@client:ID`, `@handler:KEY`, or a queue:
    /// `orders/1001`.
    ///
    /// # Errors
    /// `BadRequest` if the text is none of these.
    pub fn parse(text: &str) -> Result<Self, Rejection> {
        let bad =
            |why: String| Rejection::new(RejectionKind::BadRequest, format!("the target {text:?}: {why}"));
        let rest = |prefix| text.strip_prefix(prefix);
        if let Some(name) = rest(TOPIC) {
            return TopicName::new(name.as_bytes()).map(Self::Topic).map_err(|error| bad(error.to_string()));
        }
        let named = [
            (NAME, ClientPattern::Name as fn(Box<str>) -> _),
            (KIND, ClientPattern::Kind),
            (CLIENT, ClientPattern::Id),
        ];
        for (prefix, pattern) in named {
            match rest(prefix) {
                Some("") => return Err(bad("a client must follow the colon".into())),
                Some(name) => return Ok(Self::Client(pattern(name.into()))),
                None => {}
            }
        }
        match rest(HANDLER) {
            Some("") => Err(bad("a handler key must follow the colon".into())),
            Some(key) => Ok(Self::Handler(key.into())),
            None => QueueAddress::parse(text).map(Self::Queue).map_err(|error| bad(error.to_string())),
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Queue(queue) => write!(formatter, "{queue}"),
            Self::Client(ClientPattern::Id(id)) => write!(formatter, "{CLIENT}{id}"),
            Self::Client(ClientPattern::Name(name)) => write!(formatter, "{NAME}{name}"),
            Self::Client(ClientPattern::Kind(kind)) => write!(formatter, "{KIND}{kind}"),
            Self::Topic(topic) => write!(formatter, "{TOPIC}{topic}"),
            Self::Handler(key) => write!(formatter, "{HANDLER}{key}"),
        }
    }
}

/// A binding of a router.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Binding {
    /// Name, unique within its router.
    pub name: Box<str>,
    /// The target.
    pub target: Target,
    /// The content type that the message gets; `None`: unchanged. Queues always get their id.
    pub content_type: Option<u16>,
    /// Bindings with higher priority come first. Default: 0.
    pub priority: i32,
    /// Which answer the receiver is asked for. Default: none.
    pub interaction: Interaction,
    /// Which of the clients with a name or type get the message. Default: all.
    pub method: RouterMethod,
}

impl Binding {
    /// A binding to `target` with default options.
    pub fn new(name: &str, target: Target) -> Self {
        Self {
            name: name.into(),
            target,
            content_type: None,
            priority: 0,
            interaction: Interaction::None,
            method: RouterMethod::Distribute,
        }
    }

    /// Checks that the binding can be encoded and decoded.
    ///
    /// # Errors
    /// `BadRequest` if its name is invalid or its target has no text form.
    pub fn check(&self) -> Result<(), Rejection> {
        let target = self.target.to_string();
        let wrong = match &*self.name {
            "" => "name is empty",
            name if name.len() > BINDING_NAME_BYTES_MAX => "name is longer than 255 bytes",
            name if name.chars().any(char::is_control) => "name contains control characters",
            _ if target.chars().any(char::is_control) => "target contains control characters",
            _ if Target::parse(&target).as_ref() != Ok(&self.target) => "target is not UTF-8 text",
            _ => return Ok(()),
        };
        Err(Rejection::new(RejectionKind::BadRequest, format!("the binding's {wrong}")))
    }
}

/// A router with its bindings.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RouterDefinition {
    /// Client name.
    pub name: RouterName,
    /// Which bindings get a message.
    pub method: RouterMethod,
    /// Whether the router takes messages. Default: true.
    pub enabled: bool,
    /// Bindings by descending priority; equal priorities in the order in which they were added.
    pub bindings: Vec<Binding>,
}

impl RouterDefinition {
    /// A router without bindings.
    pub fn new(name: RouterName, method: RouterMethod) -> Self {
        Self { name, method, enabled: true, bindings: Vec::new() }
    }

    /// Adds a binding at the position of its priority.
    ///
    /// # Errors
    /// `AlreadyExists` if a binding has this name; `LimitExceeded`; `BadRequest` for an invalid name.
    pub fn add(&mut self, binding: Binding) -> Result<(), Rejection> {
        binding.check()?;
        let (router, name) = (&self.name, &binding.name);
        if self.bindings.iter().any(|known| known.name == *name) {
            let reason = format!("router {router} already has a binding {name:?}; remove it first");
            return Err(Rejection::new(RejectionKind::AlreadyExists, reason));
        }
        if self.bindings.len() >= ROUTER_BINDINGS_MAX {
            let reason = format!(
                "router {router} has reached the limit of {ROUTER_BINDINGS_MAX} bindings; remove a binding first"
            );
            return Err(Rejection::new(RejectionKind::LimitExceeded, reason));
        }
        let place = self.bindings.partition_point(|known| known.priority >= binding.priority);
        self.bindings.insert(place, binding);
        Ok(())
    }

    /// Removes the binding with this name; `false` if there is none.
    pub fn remove(&mut self, name: &str) -> bool {
        let before = self.bindings.len();
        self.bindings.retain(|known| *known.name != *name);
        self.bindings.len() < before
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn targets_are_read_as_they_are_written() {
        for text in [
            "orders/1001",
            "logs/eu/0",
            "@topic:a.b",
            "@topic:",
            "@name:n",
            "@type:t",
            "@client:c",
            "@handler:h",
        ] {
            assert_eq!(Target::parse(text).unwrap().to_string(), text);
        }
        assert_eq!(Target::parse("orders").unwrap().to_string(), "orders/0");
        for text in ["", "@name:", "@type:", "@client:", "@handler:", "@other:x", "a b"] {
            assert_eq!(Target::parse(text).unwrap_err().kind, RejectionKind::BadRequest, "{text}");
        }
    }

    #[test]
    fn bindings_are_in_the_order_of_their_priority_and_then_of_their_coming() {
        let mut router = RouterDefinition::new(RouterName::new("r").unwrap(), RouterMethod::Distribute);
        for (name, priority) in [("a", 0), ("b", 5), ("c", 0), ("d", 5), ("e", -1)] {
            let target = Target::parse("q").unwrap();
            router.add(Binding { priority, ..Binding::new(name, target) }).unwrap();
        }
        let names: Vec<_> = router.bindings.iter().map(|binding| &*binding.name).collect();
        assert_eq!(names, ["b", "d", "a", "c", "e"]);
        let twice = router.add(Binding::new("a", Target::parse("q").unwrap()));
        assert_eq!(twice.unwrap_err().kind, RejectionKind::AlreadyExists);
        assert!(router.remove("a") && !router.remove("a"));
    }

    #[test]
    fn words_are_read_in_the_spellings_in_use() {
        for text in ["OnlyFirst", "only-first", "only_first", "ONLYFIRST"] {
            assert_eq!(RouterMethod::from_text(text), Some(RouterMethod::OnlyFirst));
        }
        assert_eq!(RouterMethod::from_text("first"), None);
        assert_eq!(Interaction::from_text("Acknowledge"), Some(Interaction::Acknowledge));
        assert_eq!(RouterMethod::from_number(1), Some(RouterMethod::RoundRobin));
    }
}
