//! The seam behind which delivery handlers run, in whatever language.

use std::sync::Arc;

use mqcore_broker::model::effect::{Answer, Question};

use crate::authority::port::AuthorityPort;
use crate::extension::ExtensionPort;
use crate::nodes::filter::NodeFilters;

/// Where questions go. Called by shards; must never block and never wait for Python.
pub trait HandlerPort: Send + Sync {
    /// Takes a shard's questions of one turn, in their order. The answers go to `answers` whenever they are
    /// known, in batches as large as convenient, from any thread. Questions with `wants_answer == false` are
    /// only told.
    fn ask(&self, questions: Vec<Question>, answers: &Arc<dyn AnswerSink>);

    /// Who decides about logins and actions beside the users and tokens of the server. Asked for once, at the start.
    /// Default nobody.
    fn authority(&self) -> Option<Arc<dyn AuthorityPort>> {
        None
    }

    /// Who handles the frames of vendor extensions. Asked for once, at the start. Default nobody.
    fn extensions(&self) -> Option<Arc<dyn ExtensionPort>> {
        None
    }

    /// The program's own filters of what is passed on between nodes. Asked for once, at the start. Default none.
    fn node_filters(&self) -> NodeFilters {
        NodeFilters::default()
    }
}

/// Where answers go: the shard that asked.
pub trait AnswerSink: Send + Sync {
    /// Hands over answers. Never blocks; answers to a shard that stopped are dropped.
    fn answer(&self, answers: Vec<Answer>);
}

/// For brokers whose handlers are all ready-made policies: nothing is ever asked.
#[derive(Debug, Clone, Copy, Default)]
pub struct NoHandlers;

impl HandlerPort for NoHandlers {
    fn ask(&self, questions: Vec<Question>, _answers: &Arc<dyn AnswerSink>) {
        debug_assert!(questions.is_empty(), "no handler is registered, so nobody can be asked");
    }
}
