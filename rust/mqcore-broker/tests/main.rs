//! All integration tests of this crate in one program: one link instead of one for each file.

mod collections;
mod definitions;
mod duplicates;
mod durability;
mod handlers;
mod history;
mod lists;
mod losses;
mod model;
mod moves;
mod policies;
mod prefetch;
mod retries;
mod routers;
mod samples;
mod scenarios;
mod shards;
mod subscriptions;
mod terms;
mod topics;
mod watermark;
mod world;
