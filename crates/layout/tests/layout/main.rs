//! Layouts and plans against their definitions.

mod bench;
mod bounds;
mod cells;
mod extents;
mod figures;
mod mapping;
mod oracle;
mod plan;
mod repair;
mod reshape;
mod scrub;
mod seeds;
