//! The protocols as one closed set, made from the registry: what a listener speaks, its terms, what sessions share, and a
//! session of any of them.

use std::sync::Arc;

use mqcore_broker::model::client::Client;
use mqcore_broker::model::command::Command;
use mqcore_broker::model::effect::Event;
use mqcore_broker::model::time::Timestamp;
use mqcore_limiter::time::Nanos;

use crate::extension::{ExtensionFailure, VendorFrame};
use crate::job_figures::JobFigures;
use crate::listener::{BadOption, Companion, ListenerOptions};
use crate::permission::Permissions;
use crate::protocol::{
    EncodeDelivery, EncodePublication, Encoding, LimitUse, MetricFamily, Moment, Overload, ProtocolFactory,
    ServerParts,
};
use crate::registry::registered;
use crate::request_error::RequestError;
use crate::session::{Session, SessionConfig, SessionError};

/// Defines the types that have a variant or a field for each protocol.
macro_rules! define_types {
    ($($name:ident = $module:ident :: $factory:ident,)+) => {
        /// The protocol of a listener.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
        #[non_exhaustive]
        pub enum Protocol {
            $(
                #[doc = concat!("See [`", stringify!($module), "`](crate::", stringify!($module), ").")]
                $name,
            )+
        }

        impl Protocol {
            /// All protocols.
            pub const ALL: [Self; [$(stringify!($name)),+].len()] = [$(Self::$name),+];
        }

        /// The protocol of a listener, with its options.
        #[derive(Debug, Clone, PartialEq, Eq)]
        #[non_exhaustive]
        pub enum ListenerTerms {
            $(
                #[doc = concat!("See [`", stringify!($module), "`](crate::", stringify!($module), ").")]
                $name(<crate::$module::$factory as ProtocolFactory>::Terms),
            )+
        }

        impl ListenerTerms {
            /// The protocol.
            #[must_use]
            pub const fn protocol(&self) -> Protocol {
                match self {
                    $(Self::$name(_) => Protocol::$name,)+
                }
            }

            /// The terms of a URL without options.
            #[must_use]
            pub fn of(protocol: Protocol) -> Self {
                match protocol {
                    $(Protocol::$name => Self::$name(Default::default()),)+
                }
            }

            /// Takes the protocol's options out of a listener's URL.
            ///
            /// # Errors
            /// [`BadOption`] if a value is invalid.
            pub fn read(protocol: Protocol, options: &mut ListenerOptions) -> Result<Self, BadOption> {
                match protocol {
                    $(Protocol::$name => crate::$module::$factory::terms(options).map(Self::$name),)+
                }
            }

            /// The further listeners that a TCP URL with these options opens.
            ///
            /// # Errors
            /// [`BadOption`] if a value is invalid.
            pub fn companions(
                protocol: Protocol,
                options: &mut ListenerOptions,
            ) -> Result<Vec<Companion<Self>>, BadOption> {
                match protocol {
                    $(Protocol::$name => {
                        let companions = crate::$module::$factory::companions(options)?;
                        Ok(companions.into_iter().map(|companion| companion.map(Self::$name)).collect())
                    })+
                }
            }
        }

        /// The shared state of each protocol's sessions in one server.
        #[derive(Debug)]
        pub struct SharedState {
            $($module: <crate::$module::$factory as ProtocolFactory>::Shared,)+
        }

        impl SharedState {
            /// The state of a server that is about to start.
            #[must_use]
            pub fn new(server: &ServerParts) -> Self {
                Self { $($module: crate::$module::$factory::share(server),)+ }
            }

            /// The session of a connection that was opened just now.
            #[must_use]
            pub fn open(&self, terms: &ListenerTerms, config: SessionConfig, now: Moment) -> AnySession {
                match terms {
                    $(ListenerTerms::$name(terms) => {
                        AnySession::$name(crate::$module::$factory::open(terms, &self.$module, config, now))
                    })+
                }
            }

            /// The job queues and workers of all protocols.
            #[must_use]
            pub fn jobs(&self) -> JobFigures {
                let mut jobs = JobFigures::default();
                $(crate::$module::$factory::add_jobs(&self.$module, &mut jobs);)+
                jobs
            }

            /// The metrics of all protocols.
            #[must_use]
            pub fn metrics(&self, now: Nanos) -> Vec<MetricFamily> {
                let mut families = Vec::new();
                $(families.extend(crate::$module::$factory::metrics(&self.$module, now));)+
                families
            }
        }

        /// A session of whichever protocol its listener speaks.
        ///
        /// A closed set, by value: a call costs a jump, not a pointer.
        #[derive(Debug)]
        #[non_exhaustive]
        pub enum AnySession {
            $(
                #[doc = concat!("See [`", stringify!($module), "`](crate::", stringify!($module), ").")]
                $name(<crate::$module::$factory as ProtocolFactory>::Session),
            )+
        }

        impl AnySession {
            /// A session that shares nothing with others, with default terms.
            #[must_use]
            pub fn new(protocol: Protocol, config: SessionConfig, now: Timestamp) -> Self {
                match protocol {
                    $(Protocol::$name => Self::$name(crate::$module::$factory::alone(config, now)),)+
                }
            }

            /// The protocol of this session.
            #[must_use]
            pub const fn protocol(&self) -> Protocol {
                match self {
                    $(Self::$name(_) => Protocol::$name,)+
                }
            }
        }
    };
}

/// Defines three macros that evaluate an expression for the protocol at hand. `$d` is a dollar sign, which a macro within a
/// macro cannot write.
macro_rules! define_dispatch {
    ($d:tt $($name:ident = $module:ident :: $factory:ident,)+) => {
        macro_rules! each {
            ($d any:expr, $d session:ident => $d call:expr) => {
                match $d any {
                    $(AnySession::$name($d session) => $d call,)+
                }
            };
        }

        macro_rules! of_protocol {
            ($d protocol:expr, $d spoken:ident => $d call:expr) => {
                match $d protocol {
                    $(Protocol::$name => {
                        type $d spoken = crate::$module::$factory;
                        $d call
                    })+
                }
            };
        }

        macro_rules! of_terms {
            ($d any:expr, $d terms:ident, $d spoken:ident => $d call:expr) => {
                match $d any {
                    $(ListenerTerms::$name($d terms) => {
                        type $d spoken = crate::$module::$factory;
                        $d call
                    })+
                }
            };
        }
    };
}

registered!(define_types);
registered!(define_dispatch $);

impl Protocol {
    /// The scheme of its URLs, and its name in metrics and on the ready line.
    #[must_use]
    pub const fn as_str(self) -> &'static str {
        of_protocol!(self, Spoken => Spoken::NAME)
    }

    /// The port of a listener whose URL has none.
    #[must_use]
    pub const fn default_port(self) -> u16 {
        of_protocol!(self, Spoken => Spoken::DEFAULT_PORT)
    }

    /// How the server bounds the output that waits for a peer that does not read.
    #[inline]
    #[must_use]
    pub const fn overload(self) -> Overload {
        of_protocol!(self, Spoken => Spoken::OVERLOAD)
    }

    /// Whether the shard or the session encodes messages of queues.
    #[inline]
    #[must_use]
    pub const fn deliveries(self) -> Encoding<EncodeDelivery> {
        of_protocol!(self, Spoken => Spoken::DELIVERIES)
    }

    /// Whether the shard or the session encodes messages of topics.
    #[inline]
    #[must_use]
    pub const fn publications(self) -> Encoding<EncodePublication> {
        of_protocol!(self, Spoken => Spoken::PUBLICATIONS)
    }

    /// Whether its peers can create schedules.
    #[must_use]
    pub const fn has_schedules(self) -> bool {
        of_protocol!(self, Spoken => Spoken::SCHEDULES)
    }

    /// The protocol of this scheme, in upper or lower case.
    #[must_use]
    pub fn from_scheme(scheme: &str) -> Option<Self> {
        Self::ALL.into_iter().find(|protocol| protocol.as_str().eq_ignore_ascii_case(scheme))
    }
}

impl ListenerTerms {
    /// The default port of a listener with these terms.
    #[must_use]
    pub fn default_port(&self) -> u16 {
        of_terms!(self, terms, Spoken => Spoken::default_port(terms))
    }

    /// The query of the URL under which clients reach a listener with these terms, with its `?`; mostly empty.
    #[must_use]
    pub fn client_query(&self) -> String {
        of_terms!(self, terms, Spoken => Spoken::client_query(terms))
    }

    /// How peers of a listener with these terms use the store of limits; `None` if they do not.
    #[must_use]
    pub fn limits(&self) -> Option<LimitUse> {
        of_terms!(self, terms, Spoken => Spoken::limits(terms))
    }
}

impl Session for AnySession {
    fn open(&mut self, ask_admission: bool, commands: &mut Vec<Command>) {
        each!(self, session => session.open(ask_admission, commands));
    }

    #[inline]
    fn set_time(&mut self, now: impl FnOnce() -> Nanos) {
        each!(self, session => session.set_time(now));
    }

    #[inline]
    fn receive(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        each!(self, session => session.receive(input, now, commands, output))
    }

    fn receive_last(
        &mut self,
        input: &[u8],
        now: Timestamp,
        commands: &mut Vec<Command>,
        output: &mut Vec<u8>,
    ) -> Result<usize, SessionError> {
        each!(self, session => session.receive_last(input, now, commands, output))
    }

    fn outlives_input(&self) -> bool {
        each!(self, session => session.outlives_input())
    }

    fn needed(&self, input: &[u8]) -> usize {
        each!(self, session => session.needed(input))
    }

    #[inline]
    fn event(&mut self, event: Event, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        each!(self, session => session.event(event, now, output))
    }

    #[inline]
    fn events_done(&mut self, output: &mut Vec<u8>) {
        each!(self, session => session.events_done(output));
    }

    #[inline]
    fn has_more(&self) -> bool {
        each!(self, session => session.has_more())
    }

    fn pump(&mut self, output: &mut Vec<u8>) {
        each!(self, session => session.pump(output));
    }

    #[inline]
    fn take_commands(&mut self) -> Vec<Command> {
        each!(self, session => session.take_commands())
    }

    #[inline]
    fn take_request_errors(&mut self) -> Vec<RequestError> {
        each!(self, session => session.take_request_errors())
    }

    #[inline]
    fn take_vendor_frames(&mut self) -> Vec<VendorFrame> {
        each!(self, session => session.take_vendor_frames())
    }

    fn extension_answered(
        &mut self,
        id: u8,
        answer: Result<Vec<Vec<u8>>, ExtensionFailure>,
        output: &mut Vec<u8>,
    ) -> Result<(), SessionError> {
        each!(self, session => session.extension_answered(id, answer, output))
    }

    fn answers_limits(&self) -> bool {
        each!(self, session => session.answers_limits())
    }

    fn restrict(&mut self, permissions: Arc<dyn Permissions>) {
        each!(self, session => session.restrict(permissions));
    }

    #[inline]
    fn waiting_bytes(&self) -> usize {
        each!(self, session => session.waiting_bytes())
    }

    #[inline]
    fn unfinished_bytes(&self) -> usize {
        each!(self, session => session.unfinished_bytes())
    }

    #[inline]
    fn is_node(&self) -> bool {
        each!(self, session => session.is_node())
    }

    fn ignored_frames(&self) -> u64 {
        each!(self, session => session.ignored_frames())
    }

    #[inline]
    fn stops_broker(&self) -> bool {
        each!(self, session => session.stops_broker())
    }

    fn next_timeout(&self) -> Timestamp {
        each!(self, session => session.next_timeout())
    }

    fn timeout(&mut self, now: Timestamp, output: &mut Vec<u8>) -> Result<(), SessionError> {
        each!(self, session => session.timeout(now, output))
    }

    fn shutdown(&mut self, output: &mut Vec<u8>) {
        each!(self, session => session.shutdown(output));
    }

    fn drain(&mut self, output: &mut Vec<u8>) -> bool {
        each!(self, session => session.drain(output))
    }

    fn has_unfinished_work(&self) -> bool {
        each!(self, session => session.has_unfinished_work())
    }

    fn leave(&mut self, commands: &mut Vec<Command>) {
        each!(self, session => session.leave(commands));
    }

    fn client(&self) -> Option<&Arc<Client>> {
        each!(self, session => session.client())
    }

    fn is_closing(&self) -> bool {
        each!(self, session => session.is_closing())
    }
}
