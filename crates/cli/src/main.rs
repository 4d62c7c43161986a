//! The uraid command line.
fn main() {}
