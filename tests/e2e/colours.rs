//! Colours: on a terminal that shows them, and nowhere else.

use uraid_tests::array::Array;
use uraid_tests::binary;
use uraid_tests::process::Output;
use uraid_tests::run::{client_command, run};
use uraid_tests::server::Server;
use uraid_tests::shape;

/// What of the environment that the tests run in would decide for or against colours (`CI`: for them on any terminal).
const DECIDING: [&str; 4] = ["NO_COLOR", "CLICOLOR", "CLICOLOR_FORCE", "CI"];

/// Runs `uraid status` on a terminal of its own.
fn on_terminal(array: &Array, variables: &[(&str, &str)]) -> Output {
    let mut command = client_command("script");
    let line = format!("'{}' status --socket '{}'", binary::path().display(), array.socket().display());
    command.args(["--quiet", "--return", "--command", &line, "/dev/null"]);
    for variable in DECIDING {
        command.env_remove(variable);
    }
    command.env("TERM", "xterm").envs(variables.iter().copied());
    run(command)
}

#[test]
fn states_stand_out_on_a_terminal_unless_that_is_not_wanted() {
    const YELLOW: &str = "\u{1b}[33mdegraded: member 1";
    const RED: &str = "\u{1b}[31mmissing";
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start_members(&array, &array.without(&[1]), &["--degraded"]);
    let screen = on_terminal(&array, &[]).success().text();
    assert!(screen.contains(YELLOW) && screen.contains(RED), "{screen:?}");
    for plain in [("NO_COLOR", "1"), ("CLICOLOR", "0"), ("TERM", "dumb")] {
        let screen = on_terminal(&array, &[plain]).success().text();
        assert!(screen.contains("degraded: member 1") && !screen.contains('\u{1b}'), "{plain:?}: {screen:?}");
    }
    let piped = binary::uraid(["status".as_ref(), "--socket".as_ref(), array.socket().as_os_str()]).success().text();
    assert!(piped.contains("degraded: member 1") && !piped.contains('\u{1b}'), "{piped:?}");
    let _ = server.stop();
    let gone = on_terminal(&array, &[]).code_is(1).text();
    assert!(gone.contains("\u{1b}[31muraid:\u{1b}[0m no server answers"), "{gone:?}");
}
