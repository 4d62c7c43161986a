use std::io::ErrorKind;
use std::process::Command;

use super::*;

/// What `run` returns on a thread of its own, to which alone restrictions apply.
fn apart<T: Send>(run: impl FnOnce() -> T + Send) -> T {
    thread::scope(|scope| scope.spawn(run).join().unwrap())
}

#[test]
fn programs_run_only_where_the_server_has_some_to_run() {
    assert!(has_seccomp(), "the tests need a kernel with seccomp");
    let status = |runs| {
        apart(move || {
            seccompiler::apply_filter(&filter(runs).unwrap()).unwrap();
            Command::new("/bin/true").status()
        })
    };
    assert!(status(true).unwrap().success());
    assert_eq!(status(false).unwrap_err().kind(), ErrorKind::PermissionDenied);
}

#[test]
fn what_only_administrators_do_is_refused() {
    // As root this succeeds, as it leads nowhere else.
    let change = || rustix::process::chroot("/");
    assert_eq!(apart(change).is_ok(), rustix::process::geteuid().is_root());
    let refused = apart(|| {
        seccompiler::apply_filter(&filter(true).unwrap()).unwrap();
        change()
    });
    assert_eq!(refused, Err(rustix::io::Errno::PERM));
}

#[test]
fn each_call_is_refused_by_all_of_its_numbers() {
    let all: Vec<i64> = REFUSED.iter().chain(REFUSED_HERE).flat_map(|number| every_number(*number)).collect();
    let mut once = all.clone();
    once.sort_unstable();
    once.dedup();
    assert_eq!(once.len(), all.len(), "each number is of one call");
    if cfg!(target_arch = "x86_64") {
        assert_eq!(every_number(libc::SYS_mount).collect::<Vec<_>>(), [165, 0x4000_00a5]);
        assert_eq!(every_number(libc::SYS_ptrace).collect::<Vec<_>>(), [101, 0x4000_0065, 0x4000_0209]);
    }
}

#[test]
fn paths_are_closed_but_for_those_that_are_named() {
    let directory = tempfile::tempdir().unwrap();
    let path = |name: &str| directory.path().join(name);
    for name in ["members", "other", "linked", "allowed"] {
        fs::create_dir(path(name)).unwrap();
        fs::write(path(name).join("file"), name).unwrap();
    }
    std::os::unix::fs::symlink(path("linked").join("file"), path("members").join("link")).unwrap();
    let paths = Paths {
        files: vec![path("members").join("link"), path("members").join("late")],
        directories: vec![path("allowed")],
        read: Vec::new(),
    };
    let sandbox = Sandbox { has_landlock: has_landlock(), has_seccomp: false };
    let (inside, outside) = apart(|| {
        sandbox.close_paths(&paths).unwrap();
        let inside = ["members", "linked", "allowed"].map(|name| fs::write(path(name).join("new"), name));
        let outside = fs::read(path("other").join("file"));
        (inside, outside.map_err(|error| error.kind()))
    });
    assert!(inside.iter().all(Result::is_ok), "{inside:?}");
    assert_eq!(outside.err(), sandbox.closes_paths().then_some(ErrorKind::PermissionDenied));
}

#[test]
fn the_directory_of_a_file_is_not_the_root_directory() {
    assert_eq!(around(Path::new("/no-such-file")), [PathBuf::from("/no-such-file")]);
    assert_eq!(around(Path::new("/no-such/dir/file")), [PathBuf::from("/no-such/dir/file")]);
    let directory = tempfile::tempdir().unwrap();
    let directory = directory.path().canonicalize().unwrap();
    assert_eq!(around(&directory.join("no/such/file")), [directory]);
}

#[test]
fn a_sandbox_is_as_complete_as_the_kernel_or_refused() {
    let complete = Sandbox { has_landlock: has_landlock(), has_seccomp: has_seccomp() };
    assert_eq!(Sandbox::new(SandboxName::Auto).unwrap(), complete);
    assert!(!Sandbox::new(SandboxName::Off).unwrap().is_any());
    match Sandbox::new(SandboxName::On) {
        Ok(sandbox) => assert!(sandbox == complete && complete.has_landlock && complete.has_seccomp),
        Err(error) => {
            assert!(!complete.has_landlock || !complete.has_seccomp);
            assert!(error.to_string().contains("this kernel has no "), "{error}");
        }
    }
}
