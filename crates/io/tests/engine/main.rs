//! The engine on members in memory: content, faults, what is on record when, and how many operations it takes.

mod ahead;
mod content;
mod counts;
mod faults;
mod record;
mod support;
