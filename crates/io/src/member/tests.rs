use std::io::{BufRead as _, BufReader, Write as _};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::os::unix::net::UnixListener;
use std::process::{Command, Stdio};

use super::*;

const MIB: u64 = 1 << 20;

fn directories() -> Vec<tempfile::TempDir> {
    ["/tmp", "/dev/shm"].map(|parent| tempfile::tempdir_in(parent).unwrap()).into()
}

#[test]
fn a_created_member_is_private_whole_and_zero() {
    for directory in directories() {
        for (name, allocation) in [("full", Allocation::Full), ("sparse", Allocation::Sparse)] {
            let path = directory.path().join(name);
            let member = Member::create(&path, Bytes(MIB), allocation).unwrap();
            let metadata = std::fs::metadata(&path).unwrap();
            assert_eq!(metadata.permissions().mode() & 0o7777, 0o600);
            assert_eq!((metadata.len(), member.size()), (MIB, Bytes(MIB)));
            assert_eq!(metadata.blocks() * 512 >= MIB, allocation == Allocation::Full, "{name}");
            assert_eq!(member.peek(Bytes(0), Bytes(MIB)).unwrap(), vec![0; 1 << 20]);
            drop(member);
            assert!(matches!(Member::create(&path, Bytes(MIB), allocation), Err(MemberError::Exists { .. })));
        }
    }
}

#[test]
fn a_member_that_can_not_be_allocated_leaves_no_file() {
    let directory = tempfile::tempdir_in("/dev/shm").unwrap();
    let path = directory.path().join("huge");
    let error = Member::create(&path, Bytes(1 << 60), Allocation::Full).unwrap_err();
    assert!(matches!(error, MemberError::NoSpace { .. }), "{error}");
    assert!(!path.exists());
}

#[test]
fn blocking_transfers_round_trip_and_end_with_the_member() {
    for directory in directories() {
        let path = directory.path().join("member");
        let member = Member::create(&path, Bytes(MIB), Allocation::Full).unwrap();
        let mut buf = Buf::zeroed(Bytes(4096));
        buf.as_mut().fill(0x5a);
        member.write_at(Bytes(MIB - 4096), &buf).unwrap();
        member.sync().unwrap();
        let mut back = Buf::zeroed(Bytes(4096));
        member.read_at(Bytes(MIB - 4096), &mut back).unwrap();
        assert_eq!(back.as_ref(), vec![0x5a; 4096]);
        assert_eq!(member.peek(Bytes(MIB - 4097), Bytes(3)).unwrap(), [0, 0x5a, 0x5a]);
        assert_eq!(member.peek(Bytes(MIB - 2), Bytes(u64::MAX)).unwrap(), [0x5a, 0x5a]);
        assert_eq!(member.peek(Bytes(MIB), Bytes(1)).unwrap(), []);
        assert!(member.read_at(Bytes(MIB), &mut back).is_err());
    }
}

#[test]
fn a_size_that_is_no_whole_sector_can_be_peeked_to_its_end() {
    for directory in directories() {
        let path = directory.path().join("member");
        std::fs::write(&path, b"0123456789").unwrap();
        let member = Member::open(&path, Access::ReadOnly).unwrap();
        assert_eq!(member.peek(Bytes(8), Bytes(100)).unwrap(), b"89");
    }
}

#[test]
fn what_is_no_file_or_device_is_refused_by_its_kind() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("socket");
    let _listener = UnixListener::bind(&socket).unwrap();
    for (path, expected) in [
        (directory.path(), "is a directory"),
        (&socket, "is a socket"),
        (Path::new("/dev/null"), "is a character device"),
        (&directory.path().join("none"), "No such file"),
    ] {
        let error = Member::open(path, Access::ReadOnly).unwrap_err().to_string();
        assert!(error.contains(expected) && error.contains(path.to_str().unwrap()), "{error}");
    }
}

#[test]
fn the_same_file_by_two_names_is_refused() {
    let directory = tempfile::tempdir().unwrap();
    let [first, link] = ["first", "link"].map(|name| directory.path().join(name));
    std::fs::write(&first, [0; 4096]).unwrap();
    symlink(&first, &link).unwrap();
    for access in [Access::ReadOnly, Access::ReadWrite] {
        let error = Member::open_all(&[&first, &link], access).unwrap_err();
        assert!(matches!(error, MemberError::SameFile { .. }), "{error}");
    }
}

#[test]
fn a_lock_ends_with_its_member_even_when_the_file_stays_open() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member");
    std::fs::write(&path, [0; 4096]).unwrap();
    let member = Member::open(&path, Access::ReadWrite).unwrap();
    let _kept = member.file().unwrap().try_clone().unwrap();
    drop(member);
    Member::open(&path, Access::ReadWrite).unwrap();
}

/// What the test below does when it is run again in a process of its own: holds the member until its input ends.
fn hold(path: &Path) {
    let access =
        if std::env::var_os("URAID_TEST_LOCK_SHARED").is_some() { Access::ReadOnly } else { Access::ReadWrite };
    let _member = Member::open(path, access).unwrap();
    io::stdout().write_all(b"\nholding\n").unwrap();
    io::stdin().lines().for_each(drop);
}

#[test]
fn two_processes_exclude_each_other_and_readers_share() {
    use Access::{ReadOnly, ReadWrite};
    if let Some(path) = std::env::var_os("URAID_TEST_LOCK_HOLDER") {
        return hold(Path::new(&path));
    }
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member");
    std::fs::write(&path, [0; 4096]).unwrap();
    for (held, asked, is_refused) in [
        (ReadWrite, ReadWrite, true),
        (ReadWrite, ReadOnly, true),
        (ReadOnly, ReadWrite, true),
        (ReadOnly, ReadOnly, false),
    ] {
        let mut command = Command::new(std::env::current_exe().unwrap());
        command.args(["--exact", "member::tests::two_processes_exclude_each_other_and_readers_share", "--nocapture"]);
        command.env("URAID_TEST_LOCK_HOLDER", &path).stdin(Stdio::piped()).stdout(Stdio::piped());
        if held == ReadOnly {
            command.env("URAID_TEST_LOCK_SHARED", "1");
        }
        let mut child = command.spawn().unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        assert!(lines.any(|line| line.unwrap() == "holding"), "the other process holds the member");
        let opened = Member::open(&path, asked);
        match opened {
            Err(MemberError::Locked { holder, .. }) if is_refused => assert_eq!(holder, Some(child.id())),
            Err(error) => panic!("held {held:?}, asked {asked:?}: {error}"),
            Ok(member) => {
                assert!(!is_refused, "held {held:?}, asked {asked:?}: opened");
                drop(member);
            }
        }
        drop(child.stdin.take());
        lines.for_each(drop);
        assert!(child.wait().unwrap().success());
        Member::open(&path, ReadWrite).unwrap();
    }
}

/// Loop devices take root: what is named so is left out without it.
mod mount {
    use super::*;

    /// A file, and a loop device that is made of it until this is dropped.
    struct Loop {
        directory: tempfile::TempDir,
        device: PathBuf,
    }

    impl Loop {
        fn new(arguments: &[&str]) -> Self {
            let directory = tempfile::tempdir().unwrap();
            std::fs::write(directory.path().join("file"), vec![0; 1 << 20]).unwrap();
            Self { device: attach(&directory.path().join("file"), arguments), directory }
        }

        fn file(&self) -> PathBuf {
            self.directory.path().join("file")
        }
    }

    impl Drop for Loop {
        fn drop(&mut self) {
            detach(&self.device);
        }
    }

    fn attach(file: &Path, arguments: &[&str]) -> PathBuf {
        let attached = Command::new("losetup").args(["--find", "--show"]).args(arguments).arg(file).output().unwrap();
        assert!(attached.status.success(), "{attached:?}");
        String::from_utf8(attached.stdout).unwrap().trim().into()
    }

    /// Has the device go when nobody has it open any more.
    fn detach(device: &Path) {
        assert!(Command::new("losetup").arg("--detach").arg(device).status().unwrap().success());
    }

    /// A member on a loop device with sectors of so many bytes.
    fn on_loop_device(sector: u64) -> Member {
        let made = Loop::new(&["--sector-size", &sector.to_string()]);
        Member::open(&made.device, Access::ReadOnly).unwrap()
    }

    #[test]
    fn a_file_and_the_loop_device_over_it_are_one() {
        let made = Loop::new(&[]);
        let (file, device) = (made.file(), made.device.clone());
        assert_eq!(FileId::of(&file).unwrap(), FileId::of(&device).unwrap());
        for (first, second) in [(&file, &device), (&device, &file)] {
            let same = Member::open_all(&[first, second], Access::ReadWrite).unwrap_err();
            assert!(matches!(same, MemberError::SameFile { .. }), "{same}");
            for (held, asked) in [
                (Access::ReadWrite, Access::ReadWrite),
                (Access::ReadWrite, Access::ReadOnly),
                (Access::ReadOnly, Access::ReadWrite),
            ] {
                let _held = Member::open(first, held).unwrap();
                let refused = Member::open_waiting(second, asked, Wait::Never).unwrap_err();
                assert!(matches!(refused, MemberError::Locked { .. }), "{held:?}, {asked:?}: {refused}");
            }
            let _readers = [first, second].map(|path| Member::open(path, Access::ReadOnly).unwrap());
        }
        Member::open(&file, Access::ReadWrite).unwrap();
        Member::open(&device, Access::ReadWrite).unwrap();
    }

    #[test]
    fn the_file_beneath_a_loop_device_stays_locked_between_two_processes() {
        let made = Loop::new(&[]);
        let (file, device) = (made.file(), made.device.clone());
        let is_locked = || {
            let opened = Member::open_waiting(&file, Access::ReadOnly, Wait::Never);
            matches!(opened, Err(MemberError::Locked { .. }))
        };
        let left = Member::open(&device, Access::ReadWrite).unwrap().leave().unwrap();
        assert!(is_locked());
        let inheritance = Inheritance::new(left);
        let heir = Member::open_waiting(&device, Access::ReadWrite, Wait::Never).unwrap();
        drop(inheritance);
        assert!(is_locked());
        drop(heir);
        assert!(!is_locked());
    }

    #[test]
    fn a_file_is_refused_whose_loop_device_the_kernel_uses() {
        let made = Loop::new(&[]);
        // As mount(8) has it.
        let flags = OFlags::EXCL.bits().cast_signed();
        let used = OpenOptions::new().read(true).custom_flags(flags).open(&made.device).unwrap();
        let refused = Member::open_waiting(&made.file(), Access::ReadWrite, Wait::Never).unwrap_err();
        assert!(matches!(&refused, MemberError::BusyAbove { device, .. } if *device == made.device), "{refused}");
        Member::open(&made.file(), Access::ReadOnly).unwrap();
        drop(used);
        let _member = Member::open(&made.file(), Access::ReadWrite).unwrap();
        let used = OpenOptions::new().read(true).custom_flags(flags).open(&made.device);
        assert_eq!(used.unwrap_err().raw_os_error(), Some(Errno::BUSY.raw_os_error()), "it stays ours");
    }

    #[test]
    fn parts_of_a_file_are_members_of_their_own() {
        let made = Loop::new(&["--sizelimit", "524288"]);
        let other = attach(&made.file(), &["--offset", "524288"]);
        let members = Member::open_all(&[&made.device, &other], Access::ReadWrite);
        let refused = Member::open_waiting(&made.file(), Access::ReadWrite, Wait::Never);
        detach(&other);
        assert_eq!(members.unwrap().len(), 2);
        assert!(matches!(refused, Err(MemberError::Locked { .. })), "{refused:?}");
    }

    #[test]
    fn a_device_that_takes_no_writes_is_refused_before_any() {
        let (opened_so, set_so) = (Loop::new(&["--read-only"]), Loop::new(&[]));
        let set = |how| assert!(Command::new("blockdev").arg(how).arg(&set_so.device).status().unwrap().success());
        set("--setro");
        let devices = [&opened_so.device, &set_so.device].into_iter();
        let [writers, readers] = [Access::ReadWrite, Access::ReadOnly].map(|access| {
            let opened = devices.clone().map(|device| Member::open_waiting(device, access, Wait::Never));
            opened.collect::<Vec<_>>()
        });
        // The next file on this loop device would have it, too.
        set("--setrw");
        for (writer, reader) in writers.into_iter().zip(readers) {
            let refused = writer.unwrap_err();
            assert!(refused.protection().is_some(), "{refused}");
            reader.unwrap();
        }
    }

    #[test]
    fn a_device_without_a_medium_has_failed() {
        let made = Loop::new(&[]);
        File::create(made.file()).unwrap();
        assert!(Command::new("losetup").arg("--set-capacity").arg(&made.device).status().unwrap().success());
        let error = Member::open(&made.device, Access::ReadOnly).unwrap_err();
        assert_eq!(error.failure(), Some(("find anything on it", Errno::NOMEDIUM)), "{error}");
    }

    #[test]
    fn sectors_of_4096_bytes_are_seen_whoever_is_asked() {
        for size in [512, 4096] {
            let member = on_loop_device(size);
            assert!(member.is_direct());
            assert_eq!(member.alignment().offset, Bytes(size), "as statx tells");
            assert_eq!(sector_size(member.file().unwrap()), Bytes(size), "as BLKSSZGET tells");
            assert_eq!(smallest_direct(member.file().unwrap()), Bytes(size), "as trying tells");
        }
    }

    #[test]
    fn a_device_is_not_in_memory_though_its_name_is() {
        let file_system = fstatfs(File::open("/dev").unwrap()).unwrap();
        assert_eq!(file_system.f_type, TMPFS_MAGIC, "this proves nothing where /dev is not in memory");
        assert!(!on_loop_device(512).is_in_memory());
    }
}

#[test]
fn a_lock_that_was_left_to_another_process_is_held_all_the_time() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("member");
    let member = Member::create(&path, Bytes(MIB), Allocation::Full).unwrap();
    let is_free = || match Member::open_waiting(&path, Access::ReadWrite, Wait::Never) {
        Err(MemberError::Locked { .. }) => false,
        opened => opened.is_ok(),
    };
    let left = member.leave().unwrap();
    drop(member);
    assert!(!is_free());
    let inheritance = Inheritance::new(left);
    // Whoever only looks does not take it.
    drop(Member::open(&path, Access::Inspect).unwrap());
    let heir = Member::open_waiting(&path, Access::ReadWrite, Wait::Never).unwrap();
    drop(inheritance);
    assert!(!is_free());
    assert_eq!(Member::user(&path), Some(std::process::id()));
    drop(heir);
    assert!(is_free());

    // What is not taken is let go of, and what was opened for something else is not used.
    let left = Member::open(&path, Access::ReadWrite).unwrap().leave().unwrap();
    assert!(!is_free());
    drop(Inheritance::new(left));
    assert!(is_free());
    let left = Member::open(&path, Access::ReadOnly).unwrap().leave().unwrap();
    let _inheritance = Inheritance::new(left);
    Member::open(&path, Access::ReadWrite).unwrap().write_at(Bytes(0), &Buf::zeroed(Bytes(4096))).unwrap();
}
