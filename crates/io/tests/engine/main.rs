//! The engine on members in memory: content, the cache, faults, what is on record when, and how many operations it
//! takes.

mod ahead;
mod badblocks;
mod blank;
mod cache;
mod content;
mod counts;
mod create;
mod faults;
mod grow;
mod intent;
mod log;
mod opening;
mod rebuild;
mod record;
mod recovery;
mod replace;
mod reshape;
mod reshape_served;
mod scrub;
mod sectors;
mod slow;
mod sums;
mod support;
mod troubles;
mod upkeep;
