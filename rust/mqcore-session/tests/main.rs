//! All integration tests of this crate in one program: one link instead of one for each file.

mod conversations;
mod documentation;
mod eventmq;
mod garbage;
mod micromessage;
mod micromessage_garbage;
mod micromessage_session_check;
mod micromessage_world;
mod mqks;
mod session_corpus;
mod strangers;
mod throttr_corpus;
mod throttr_session_check;
mod tmqp_session_check;
