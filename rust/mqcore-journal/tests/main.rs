//! All integration tests of this crate in one program: one link instead of one for each file.

mod corpus;
mod crashes;
mod damage;
mod faults;
mod files;
mod inspection;
mod lost_sectors;
mod notes;
mod random_damage;
mod reading;
mod recovery_check;
mod snapshots;
mod space;
mod torn;
mod world;
