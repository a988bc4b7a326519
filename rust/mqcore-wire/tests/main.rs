//! All integration tests of this crate in one program: one link instead of one for each file.

mod corpus;
mod eventmq;
mod eventmq_check;
mod garbage;
mod micromessage;
mod micromessage_agreement;
mod micromessage_check;
mod mqks;
mod mqks_check;
mod throttr_check;
mod throttr_corpus;
mod throttr_records;
mod throttr_vectors;
mod tmqp_check;
mod vectors;
mod zmtp;
mod zmtp_check;
