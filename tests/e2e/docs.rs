//! What documents tell readers to type does what they say.

use std::path::Path;

use uraid_tests::{binary, console};

/// Runs a document of the repository.
fn run(name: &str) -> usize {
    console::run(&Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/..")).join(name), binary::path())
}

#[test]
fn the_readme_can_be_followed() {
    assert!(run("README.md") > 10);
}

#[test]
fn the_guide_can_be_followed() {
    assert!(run("docs/guide.md") > 20);
}
