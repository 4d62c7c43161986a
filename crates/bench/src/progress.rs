//! What is being done, for the person at the terminal.

/// Says it on standard error.
#[expect(clippy::print_stderr, reason = "progress for the person at the terminal")]
pub(crate) fn say(step: &str) {
    eprintln!("bench: {step}");
}
