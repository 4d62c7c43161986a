//! What a server gives up when it has opened what it needs: root's identity and capabilities, the rest of the file
//! system, most system calls.
//!
//! The order is fixed. First everything is checked that can be refused, before anything is opened. Then, while there is
//! one thread, new privileges and the rest of the file system are given up, and all later threads are born without
//! them. When members and sockets are open, the server becomes another user and makes sure that there is no way back.
//! The capabilities go with root's identity: the kernel takes them from a thread whose last user ID stops being 0. The
//! thread that does it keeps one, to give the sockets to the user, until that is done: as long as the user's programs
//! can reach a socket, there is nothing of root's behind it.

use std::ffi::CString;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex};
use std::{fs, io, mem};

use anyhow::{Context as _, Result, bail, ensure};
use clap::Args;
use nix::unistd::{User, getgrouplist, setgroups, setresgid, setresuid};
use rustix::fs::{Access, AtFlags, Gid, Mode, OFlags, Uid};
use rustix::process::{Pid, Signal, geteuid, getppid, set_parent_process_death_signal};
use rustix::thread::{
    CapabilitySet, CapabilitySets, capabilities, capabilities_secure_bits, set_capabilities, set_keep_capabilities,
    set_no_new_privs,
};
use uraid_io::member::{is_uri, know_oneself};
use uraid_nbd::{Listener, SocketFile, UnixSocket};
use uraid_serve::server::Sockets;
use uraid_serve::{Confinement, running};

use super::sandbox::{Paths, Sandbox, SandboxName};
use crate::misuse::Misuse;
use crate::values::UID_MAX;

/// What a server gives up.
#[derive(Clone, Debug, Default, Args)]
pub(crate) struct PrivilegeArgs {
    /// Become this user, by name or number, when members and sockets are open
    ///
    /// Only root can. The server takes the user's groups, gives it the sockets, and gives up all capabilities; programs
    /// that it runs can't get any. A number that no user has is its only group, too. The user has to be able to open
    /// what is opened later: spares, new members, and files that are read again at SIGHUP.
    #[arg(long, value_name = "USER", help_heading = "Privileges", hide_short_help = true)]
    pub(crate) user: Option<String>,
    /// Have the kernel refuse files and system calls that the server has no use for
    ///
    /// The server keeps the directories of members, spares and sockets, /dev, and each --allow-path; to read, also
    /// those of the configuration file, of certificates, and of the system, such as /usr and /etc. Programs that it
    /// runs are in the same sandbox.
    #[arg(long, value_enum, default_value_t, value_name = "WHETHER", help_heading = "Privileges")]
    #[arg(hide_short_help = true)]
    pub(crate) sandbox: SandboxName,
    /// Keep this directory or file in the sandbox; repeatable
    ///
    /// For members that will be added, for file systems that will be mounted (name the directory above), and for what
    /// programs need.
    #[arg(long, value_name = "PATH", help_heading = "Privileges", hide_short_help = true)]
    pub(crate) allow_path: Vec<PathBuf>,
}

/// What a server is to give up, or has.
#[derive(Debug)]
pub(super) struct Privileges {
    heir: Option<Heir>,
    sandbox: Sandbox,
    /// Whether the server runs programs.
    runs_programs: bool,
    exits_with_parent: bool,
    /// The process that started the server, unless another PID namespace has it.
    parent: Option<Pid>,
    /// Where the server's links are, if it makes that directory itself.
    registry: Option<PathBuf>,
    spares: Vec<PathBuf>,
}

/// The user that a server of root's becomes.
#[derive(Clone, Debug)]
pub(super) struct Heir {
    name: String,
    user: Uid,
    group: Gid,
    groups: Vec<nix::unistd::Gid>,
    /// What the server has made as root, and is the user's then.
    made: Arc<Mutex<Vec<Made>>>,
}

/// Something in the file system.
#[derive(Debug)]
enum Made {
    Socket(SocketFile),
    Directory(PathBuf),
}

impl PrivilegeArgs {
    /// Checks what is to be given up.
    ///
    /// # Errors
    /// If it can't be, for a reason that is known already.
    pub(super) fn check(&self) -> Result<Privileges> {
        let heir = self.user.as_deref().map(Heir::new).transpose()?.flatten();
        for path in &self.allow_path {
            fs::metadata(path).with_context(|| format!("--allow-path {}", path.display()))?;
        }
        let is_meant = self.sandbox != SandboxName::Off;
        ensure!(
            is_meant || self.allow_path.is_empty(),
            Misuse("--allow-path is about the sandbox, and there is none: give --sandbox auto, too".into())
        );
        let sandbox = Sandbox::new(self.sandbox)?;
        let registry = running::directory().filter(|directory| !directory.exists());
        Ok(Privileges {
            heir,
            sandbox,
            runs_programs: false,
            exits_with_parent: false,
            parent: getppid(),
            registry,
            spares: Vec::new(),
        })
    }
}

impl Privileges {
    /// The same for a server that `runs_programs`, has these spares, and ends with its parent if that is asked for.
    ///
    /// # Errors
    /// If the parent has ended.
    pub(super) fn of(self, runs_programs: bool, spares: Vec<PathBuf>, exits_with_parent: bool) -> Result<Self> {
        let privileges = Self { runs_programs, spares, exits_with_parent, ..self };
        privileges.follow_parent()?;
        Ok(privileges)
    }

    /// Gives up what the start does not need: later threads are born without it. To be called by the only thread.
    ///
    /// # Errors
    /// If the kernel does not do it.
    pub(super) fn close(&self, paths: &Paths) -> Result<()> {
        // What it says of itself on members on a network is nowhere to be found later.
        know_oneself();
        if self.heir.is_some() || self.sandbox.is_any() {
            set_no_new_privs(true).context("can't do without new privileges")?;
        }
        if let Some(directory) = running::directory().filter(|_| self.sandbox.closes_paths()) {
            // It has to be there to stay open. Without it commands do not find the server.
            let _ = running::make_directory(&directory);
        }
        self.sandbox.close_paths(paths)
    }

    /// The user that the server becomes.
    pub(super) fn heir(&self) -> Option<&Heir> {
        self.heir.as_ref()
    }

    /// What errors are explained by.
    pub(super) fn confinement(&self) -> Confinement {
        let user = self.heir.as_ref().map(|heir| heir.name.clone());
        Confinement { user, started_as: own_name(), sandbox: self.sandbox.told() }
    }

    /// Whether the server may run programs once it has started.
    pub(super) fn may_run_programs(&self) -> bool {
        !self.sandbox.stops_programs(self.runs_programs)
    }

    /// Gives up the rest: everything is open.
    ///
    /// # Errors
    /// If any of it is not gone; then the server must not go on.
    pub(super) fn give_up(&self) -> Result<()> {
        if let Some(heir) = &self.heir {
            self.registry.iter().for_each(|registry| heir.gets_directory(registry));
            heir.take_over().with_context(|| format!("--user {}", heir.name))?;
            // The kernel forgets that when the user changes.
            self.follow_parent()?;
            tracing::info!(user = %heir.name, "the server is root's no more");
            heir.look_at(self.spares.clone());
        }
        self.sandbox.close_calls(self.runs_programs)
    }

    /// Lets the end of the parent process count as SIGTERM, if that is asked for.
    fn follow_parent(&self) -> Result<()> {
        if !self.exits_with_parent {
            return Ok(());
        }
        set_parent_process_death_signal(Some(Signal::TERM)).context("--exit-with-parent")?;
        ensure!(getppid() == self.parent, "the process that started the server has ended");
        Ok(())
    }
}

/// The user that this process runs as, by name if the system knows one: variables say what somebody else has set.
fn own_name() -> String {
    let own = nix::unistd::geteuid();
    User::from_uid(own).ok().flatten().map_or_else(|| own.to_string(), |user| user.name)
}

impl Heir {
    /// The user of this name or number; `None` if that is who runs this process.
    fn new(named: &str) -> Result<Option<Self>> {
        let number = named.parse().ok().filter(|number| *number <= UID_MAX);
        let by_name = User::from_name(named).transpose();
        let by_number = || number.map(nix::unistd::Uid::from_raw).and_then(|uid| User::from_uid(uid).transpose());
        let found = by_name.or_else(by_number).transpose().with_context(|| format!("--user {named}"))?;
        let (name, uid, gid, groups) = match (found, number) {
            (Some(User { name, uid, gid, .. }), _) => {
                let c_name = CString::new(name.as_str()).context("--user")?;
                let groups = getgrouplist(&c_name, gid);
                let groups = groups.with_context(|| format!("--user {name}: its groups can't be found"))?;
                (name, uid.as_raw(), gid.as_raw(), groups)
            }
            // Containers have numbers without users. A group of root's would be too much.
            (None, Some(number)) => (number.to_string(), number, number, vec![nix::unistd::Gid::from_raw(number)]),
            (None, None) => bail!("--user {named}: there is no such user; `getent passwd` lists users"),
        };
        let own = geteuid();
        let (user, group) = (Uid::from_raw(uid), Gid::from_raw(gid));
        let heir = Self { name, user, group, groups, made: Arc::default() };
        if heir.user == own && !own.is_root() {
            return Ok(None);
        }
        let name = &heir.name;
        ensure!(!heir.user.is_root(), Misuse("--user: root is who the server is not to be: name another user".into()));
        ensure!(
            own.is_root(),
            "--user {name}: only root can become another user: start the server as root or as {name}"
        );
        let needed = CapabilitySet::SETUID | CapabilitySet::SETGID | CapabilitySet::CHOWN;
        let has_all = capabilities(None).context("can't look at the capabilities")?.effective.contains(needed);
        ensure!(
            has_all,
            "--user {name}: root lacks CAP_SETUID, CAP_SETGID or CAP_CHOWN here: start the server as {name}"
        );
        let bits = capabilities_secure_bits().context("can't look at the secure bits")?;
        ensure!(bits.is_empty(), "--user {name}: root has secure bits here ({bits:?}): start the server as {name}");
        Ok(Some(heir))
    }

    /// Notes sockets that are to be this user's.
    pub(super) fn gets(&self, Sockets { listener, control }: &Sockets) {
        self.gets_listener(listener);
        control.iter().filter_map(UnixSocket::file).for_each(|file| self.note(Made::Socket(file)));
    }

    /// The same where administrators have no socket.
    pub(super) fn gets_listener(&self, listener: &Listener) {
        listener.files().into_iter().for_each(|file| self.note(Made::Socket(file)));
    }

    /// Notes a directory that is to be this user's.
    pub(super) fn gets_directory(&self, directory: &Path) {
        self.note(Made::Directory(directory.to_owned()));
    }

    fn note(&self, made: Made) {
        // What is made later is the user's own.
        if geteuid().is_root() {
            self.made.lock().expect("a panic ends the process").push(made);
        }
    }

    /// Makes all threads of this process this user's, for good, and what the server has made.
    fn take_over(&self) -> Result<()> {
        let made = mem::take(&mut *self.made.lock().expect("a panic ends the process"));
        let made: Vec<OwnedFd> = made.iter().filter_map(Made::open).collect();
        let (user, group) = (self.user.as_raw().into(), self.group.as_raw().into());
        setgroups(&self.groups).context("can't take its groups")?;
        setresgid(group, group, group).context("can't take its group")?;
        // Of this thread alone, and for one thing: whoever reaches a socket must not find root behind it. (Workers of
        // io_uring, which are none of the process's own threads, act with the identity of whoever asks them to.)
        set_keep_capabilities(true).context("can't keep the capability to change owners")?;
        setresuid(user, user, user).context("can't become this user")?;
        set_only(CapabilitySet::CHOWN)?;
        for file in made {
            let owned = rustix::fs::chownat(&file, "", Some(self.user), Some(self.group), AtFlags::EMPTY_PATH);
            owned.context("can't give it its sockets")?;
        }
        set_only(CapabilitySet::empty())?;
        set_keep_capabilities(false).context("can't give up to keep capabilities")?;
        let root = nix::unistd::Uid::from_raw(0);
        ensure!(setresuid(root, root, root).is_err(), "the server could become root again: it does not go on");
        let left = capabilities(None).context("can't look at the capabilities")?.permitted;
        ensure!(left.is_empty(), "capabilities are left to the server: it does not go on");
        Ok(())
    }

    /// Warns about spares that this user, who runs the process now, can't use. Nobody waits for a file system.
    fn look_at(&self, spares: Vec<PathBuf>) {
        let name = self.name.clone();
        let look = move || {
            for spare in spares.into_iter().filter(|spare| !is_uri(spare)) {
                let flags = AtFlags::EACCESS;
                let usable = rustix::fs::accessat(rustix::fs::CWD, &spare, Access::READ_OK | Access::WRITE_OK, flags);
                if let Err(error) = usable {
                    let path = spare.display();
                    tracing::warn!(%path, %error, "the spare can't be taken: let {name} read and write it");
                }
            }
        };
        if let Err(error) = std::thread::Builder::new().name("spares".into()).spawn(look) {
            tracing::debug!(%error, "nobody looks whether spares can be used");
        }
    }
}

impl Made {
    /// A handle on it, if it is still there: one of several arrays may have ended, or none have needed the directory.
    fn open(&self) -> Option<OwnedFd> {
        let opened = match self {
            Self::Socket(file) => file.open(),
            Self::Directory(path) => {
                let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
                rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)
            }
        };
        opened.inspect_err(|error| tracing::debug!(%error, made = ?self, "it is not the server's any more")).ok()
    }
}

/// Leaves this thread these capabilities, of those that it has.
fn set_only(capabilities: CapabilitySet) -> Result<()> {
    let sets = CapabilitySets { effective: capabilities, permitted: capabilities, inheritable: CapabilitySet::empty() };
    set_capabilities(None, sets).context("can't give up capabilities")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn refused(named: &str) -> String {
        format!("{:#}", Heir::new(named).unwrap_err())
    }

    #[test]
    fn a_user_has_a_name_or_a_number() {
        assert!(refused("no-such-user").contains("no such user"));
        for number in ["4294967295", "-1", "4294967296"] {
            assert!(refused(number).contains("no such user"), "{number}");
        }
        assert!(refused("no\0user").contains("--user"));
        if geteuid().is_root() {
            let [by_name, by_number] = ["nobody", "65534"].map(|named| Heir::new(named).unwrap().unwrap());
            assert_eq!((&by_name.name, by_name.user), (&by_number.name, by_number.user));
            let nobodys = Heir::new("4000000000").unwrap().unwrap();
            assert_eq!((nobodys.user.as_raw(), nobodys.group.as_raw()), (4_000_000_000, 4_000_000_000));
            assert_eq!(nobodys.groups, [nix::unistd::Gid::from_raw(4_000_000_000)], "none of root's");
            assert!(refused("root").contains("name another user"));
        } else {
            assert!(Heir::new(&geteuid().as_raw().to_string()).unwrap().is_none());
            assert!(refused("root").contains("name another user"));
            assert!(refused("nobody").contains("only root"));
        }
    }

    #[test]
    fn a_path_is_allowed_where_there_is_a_sandbox_and_the_path() {
        let args = PrivilegeArgs { allow_path: vec!["/".into()], ..PrivilegeArgs::default() };
        assert!(args.check().unwrap_err().to_string().contains("--sandbox auto"));
        let args = PrivilegeArgs { sandbox: SandboxName::Auto, ..args };
        assert!(args.check().is_ok());
        let args = PrivilegeArgs { allow_path: vec!["/no/such".into()], ..args };
        assert!(format!("{:#}", args.check().unwrap_err()).contains("--allow-path /no/such"));
    }
}
