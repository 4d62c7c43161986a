//! A server of several arrays that becomes another user, in a sandbox.

use std::fs;
use std::os::unix::fs::{PermissionsExt as _, chown};
use std::path::Path;

use rustix::process::Signal;

use super::{Several, stop};
use crate::privileges::{USER, assert_is_filtered, assert_is_nobodys, id, is_root};

#[test]
fn all_arrays_are_served_as_the_user_and_reloads_go_on() {
    if !is_root() {
        return;
    }
    let several = Several::new(&["one", "two"]);
    // What is read at SIGHUP the user has to be able to read, and every user tells the service manager.
    for (path, mode) in [(several.path(""), 0o755), (several.path("notify"), 0o777)] {
        fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
    }
    let keys = format!("user = '{USER}'\nsandbox = 'auto'\nwait-for-members = '1s'\n");
    let server = several.start(&several.all(&keys));
    assert_is_nobodys(server.pid());
    assert_is_filtered(server.pid());
    let mut clients = ["one", "two"].map(|name| several.client(name));
    let reload = |text: &str| {
        several.write(text);
        server.signal(Signal::HUP);
        several.until("READY=1").join("\n")
    };
    assert!(!reload(&several.all(&keys)).contains("nothing has changed"));
    for client in &mut clients {
        client.write(0, &[5; 4096]);
        client.flush();
        assert_eq!(client.read(0, 4096), [5; 4096]);
    }
    let told = reload(&several.all(&keys.replace(USER, "daemon")));
    assert!(told.contains("user of the server itself has changed"), "{told}");
    let told = reload(&several.all(&keys.replace("auto", "off")));
    assert!(told.contains("sandbox of the server itself has changed"), "{told}");
    // Its filter lets no program run, as there was none.
    let program = several.all(&(keys.clone() + "on-event = '/bin/true'\n"));
    let told = reload(&program);
    assert!(told.contains("nothing has changed") && told.contains("runs a program"), "{told}");

    // What is opened anew is opened by the user.
    let changed =
        several.shared() + &keys + &several.table("one", "") + &several.table("two", "connection-threads = 1");
    let told = reload(&changed);
    assert!(told.contains("two is not served") && told.contains(&format!("runs as {USER}")), "{told}");
    clients[0].write(0, &[6; 4096]);
    let array = several.array("two");
    let user = id("-u").parse().unwrap();
    let own = |path: &Path| chown(path, Some(user), None).unwrap();
    // Its control socket is in that of the server's.
    [several.path(""), array.path("")].iter().for_each(|directory| own(directory));
    array.members().iter().for_each(|member| own(member));
    let _ = reload(&changed);
    let mut listed = several.listed();
    listed.sort();
    assert_eq!(listed, ["one", "two"]);
    let mut again = several.client("two");
    assert_eq!(again.read(0, 4096), [5; 4096]);
    assert_is_nobodys(server.pid());
    assert_is_filtered(server.pid());
    drop((clients, again));
    let _ = stop(server).success();
    for name in ["one", "two"] {
        assert_eq!(several.array(name).examine()["state"], "clean", "{name}");
    }
}

#[test]
fn what_can_not_be_given_up_is_refused_before_anything_is_opened() {
    let several = Several::new(&["one"]);
    let refused = |text: &str, code| uraid_tests::run::run(several.command(text)).code_is(code).stderr;
    let unknown = refused(&several.all("user = 'no-such-user'\n"), 1);
    assert!(unknown.contains("there is no such user"), "{unknown}");
    assert!(!several.socket().exists());
    let table = several.shared() + &several.table("one", "user = 'nobody'");
    let refused = refused(&table, 2);
    assert!(refused.contains("user is of the whole server: move it above the tables"), "{refused}");
}
