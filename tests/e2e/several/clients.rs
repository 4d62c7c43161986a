//! Clients of a shared socket: by their exports' names, plain and over TLS, within the limits.

use std::io::Read as _;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

use uraid_tests::array::Content;
use uraid_tests::certificates::{Of, Valid};
use uraid_tests::image::{assert_same, read_export, write_export};
use uraid_tests::nbd::Client;
use uraid_tests::run::{client, client_command, run};

use super::{PATIENCE, Several, listed, stop};
use crate::tls::Certified;

/// Three arrays are written and read at once, each by clients of its own.
#[test]
fn arrays_are_chosen_by_name() {
    let names = ["one", "two", "three"];
    for (threads, is_encrypted) in [("0", false), ("2", false), ("0", true), ("2", true)] {
        let several = Several::new(&names);
        let certified = Certified::new();
        let tls = format!("tls = 'require'\ntls-certificates = {:?}\n", certified.path("server"));
        let tls = if is_encrypted { tls } else { String::new() };
        let server = several.start(&several.all(&format!("connection-threads = {threads}\n{tls}")));
        let uri = |name: &str| match is_encrypted {
            true => format!(
                "{}&tls-certificates={}",
                several.uri(name).replacen("nbd", "nbds", 1),
                certified.path("anonymous").display()
            ),
            false => several.uri(name),
        };
        let mut found = listed(&uri(""));
        found.sort();
        assert_eq!(found, ["one", "three", "two"]);
        for name in ["", "four", "on"] {
            let refused = client("nbdinfo", ["--size", &uri(name)]).code_is(1);
            assert!(refused.stderr.contains("no export named"), "{name}: {}", refused.stderr);
        }
        let images = names.map(|name| several.random(name, 5));
        for round in 0..2 {
            thread::scope(|scope| {
                for (name, image) in names.iter().zip(&images) {
                    let uri = uri(name);
                    scope.spawn(move || {
                        if round == 0 {
                            write_export(&uri, image);
                        }
                        assert_same(&read_export(&uri), image, &uri);
                    });
                }
            });
        }
        let _ = stop(server).success();
        for (name, image) in names.iter().zip(&images) {
            Content::read(several.array(name)).assert_holds(image, &format!("{name}, {threads} threads"));
        }
        assert!(!several.socket().exists() && !several.path("one.ctl").exists(), "the server leaves nothing behind");
    }
}

/// A client sees the arrays that its certificate is let in to, and no others.
#[test]
fn certificates_say_which_arrays_a_client_sees() {
    let several = Several::new(&["all", "both", "second"]);
    let certified = Certified::new();
    let second = certified.issue("second", Of::Client, Valid::Now, 3);
    let fingerprint = |directory: &str| {
        let certificate = certified.path(directory).join("client-cert.pem");
        let mut command = client_command("openssl");
        command.args(["x509", "-noout", "-fingerprint", "-sha256", "-in"]).arg(certificate);
        run(command).success().text().trim().rsplit_once('=').unwrap().1.to_owned()
    };
    let (one, two) = (fingerprint("client"), fingerprint("second"));
    let tls = format!("tls = 'require'\ntls-certificates = {:?}\n", certified.path("server"));
    let server = several.start(
        &(several.shared()
            + &tls
            + &several.table("all", "")
            + &several.table("both", &format!("tls-allow-client = ['{one}', '{two}']"))
            + &several.table("second", &format!("tls-allow-client = '{two}'"))),
    );
    let uri = |name: &str, directory: &str| {
        let path = certified.path(directory);
        format!("{}&tls-certificates={}", several.uri(name).replacen("nbd", "nbds", 1), path.display())
    };
    assert_eq!(second, certified.path("second"));
    for (directory, expected) in [("client", &["all", "both"][..]), ("second", &["all", "both", "second"])] {
        let mut found = listed(&uri("", directory));
        found.sort();
        assert_eq!(found, expected, "{directory}");
        for name in ["all", "both", "second"] {
            let asked = client("nbdinfo", ["--size", &uri(name, directory)]);
            let _ = asked.code_is(i32::from(!expected.contains(&name)));
        }
    }
    let _ = client("nbdinfo", ["--size", &uri("all", "anonymous")]).code_is(1);
    let _ = stop(server).success();
}

#[test]
fn an_array_counts_its_clients_and_not_those_of_others() {
    let several = Several::new(&["one", "two"]);
    let server =
        several.start(&(several.shared() + &several.table("one", "max-connections = 2") + &several.table("two", "")));
    let clients = [several.client("one"), several.client("one")];
    // Its handshake ends, and then it is closed.
    let mut third = several.client("one");
    assert!(third.submit(uraid_tests::nbd::Command::Read, 0, 512, &[]).and_then(|_| third.reply()).is_err());
    let others: Vec<Client> = (0..3).map(|_| several.client("two")).collect();
    let said = several.status("one");
    assert_eq!((&said["clients"], &said["clients_refused"]), (&2.into(), &1.into()), "{said:#}");
    assert_eq!(several.status("two")["clients"], 3);
    drop((clients, others));
    let deadline = Instant::now() + PATIENCE;
    while several.status("one")["clients"] != 0 {
        assert!(Instant::now() < deadline, "places become free");
    }
    several.client("one").write(0, &[1; 512]);
    let _ = stop(server).success();
}

/// Who says nothing is disconnected, and keeps nobody out.
#[test]
fn handshakes_on_a_shared_socket_have_their_limits() {
    let several = Several::new(&["one"]);
    let server = several.start(&several.all("handshake-deadline = '2s'\nmax-connections = 2\n"));
    let silent: Vec<UnixStream> = (0..4).map(|_| UnixStream::connect(several.socket()).unwrap()).collect();
    several.client("one").write(0, &[1; 512]);
    for mut stream in silent {
        stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
        let mut greeting = Vec::new();
        // All that comes before the end.
        stream.read_to_end(&mut greeting).unwrap();
        assert!(greeting.len() <= 18, "{greeting:?}");
    }
    let _ = stop(server).success();
}
