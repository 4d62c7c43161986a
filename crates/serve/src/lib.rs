//! A running server of an array: the thread that runs the engine, the threads that serve clients beside it, the
//! administrators' socket, events, metrics and spares.
//!
//! [`server::serve`] serves an array that is open. The crate knows neither the command line nor how an array was found
//! and opened. What it shares with commands is [`client`] and [`protocol`], which ask a running server, and words for
//! people ([`text`], [`health`], [`names`]).

mod away;
mod calls;
mod captive;
pub mod client;
mod clients;
pub mod clock;
mod commands;
mod condition;
mod confinement;
mod connections;
mod control;
mod description;
mod disk;
pub mod domains;
mod events;
mod export_size;
pub mod fleet;
pub mod front;
pub mod health;
mod lacking;
mod lines;
mod log_devices;
mod log_report;
pub mod logging;
mod meter;
pub mod metrics;
pub mod names;
pub mod orders;
pub mod patience;
pub mod plain;
pub mod protocol;
mod reactor;
mod recorder;
pub mod running;
pub mod server;
mod service;
pub mod shape;
pub mod signals;
pub mod smart;
pub mod spare;
mod spin;
pub mod sweeps;
pub mod systemd;
pub mod takeover;
pub mod text;
mod turns;

pub use condition::LastResort;
pub use confinement::Confinement;
pub use description::Config;
pub use disk::LiveDisk;
pub use events::check_program;
pub use reactor::{Caching, Settings};
