//! Listening sockets: modes, leftovers, and who may remove what.

use std::{
    fs,
    io::Read as _,
    net::TcpStream,
    os::unix::{fs::PermissionsExt as _, net::UnixListener},
    rc::Rc,
    sync::{Arc, mpsc},
};

use uraid_nbd::{Endpoint, Error, ExportInfo, Limits, Listener, Scheme, Server};

use crate::{
    memory::{Finish, Memory, info},
    support::{GREETING, TestServer},
};

fn in_runtime<T>(act: impl FnOnce() -> T) -> T {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let _context = runtime.enter();
    act()
}

#[test]
fn a_socket_is_private_and_removed_at_the_end() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("a b.sock");
    in_runtime(|| {
        let listener = Listener::unix(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        let expected = format!("nbd+unix:///x?socket={}/a%20b.sock", directory.path().display());
        assert_eq!(listener.endpoint().uri(Scheme::Nbd, "x"), expected);
        drop(listener);
        assert!(!path.exists());
    });
}

#[test]
fn a_live_server_is_not_replaced() {
    let server = TestServer::start(Finish::AtOnce);
    let refused = in_runtime(|| Listener::unix(&server.socket).unwrap_err());
    assert!(matches!(&refused, Error::SocketInUse { path } if *path == server.socket), "{refused}");
    server.client(true).assert_alive();
}

#[test]
fn a_directory_that_somebody_keeps_locked_is_not_waited_for_in_silence() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let holder = fs::File::open(directory.path()).unwrap();
    holder.lock().unwrap();
    let refused = in_runtime(|| Listener::unix(&path).unwrap_err());
    assert!(matches!(&refused, Error::DirectoryLocked { path: named } if *named == path), "{refused}");
    assert!(!path.exists());
    drop(holder);
    in_runtime(|| drop(Listener::unix(&path).unwrap()));
}

#[test]
fn the_socket_of_a_dead_server_is_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    drop(UnixListener::bind(&path).unwrap()); // closed, and still on disk
    assert!(path.exists());
    in_runtime(|| {
        let listener = Listener::unix(&path).unwrap();
        assert_eq!(fs::symlink_metadata(&path).unwrap().permissions().mode() & 0o7777, 0o600);
        // Somebody else's socket under the same name is not ours to remove.
        fs::remove_file(&path).unwrap();
        let _other = UnixListener::bind(&path).unwrap();
        drop(listener);
        assert!(path.exists());
    });
}

#[test]
fn nothing_but_a_socket_is_ever_replaced() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("precious");
    fs::write(&path, "data").unwrap();
    let refused = in_runtime(|| Listener::unix(&path).unwrap_err());
    assert!(matches!(refused, Error::NotASocket { .. }), "{refused}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "data");
    let missing = in_runtime(|| Listener::unix(&directory.path().join("no/such/directory")).unwrap_err());
    assert!(matches!(missing, Error::Listen { .. }), "{missing}");
    let long = in_runtime(|| Listener::unix(&directory.path().join("x".repeat(120))).unwrap_err());
    assert!(matches!(long, Error::Listen { operation: "name a socket", .. }), "{long}");
}

#[test]
fn tcp_on_the_loopback() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let listener = Listener::tcp(&["127.0.0.1:0".parse().unwrap()]).unwrap();
        let Endpoint::Tcp(address) = *listener.endpoint() else { panic!("not TCP") };
        assert_eq!(listener.endpoint().uri(Scheme::Nbd, "mem"), format!("nbd://{address}/mem"));
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let client = std::thread::spawn(move || {
            let mut greeting = [0; 18];
            TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
            stop.send(()).unwrap();
            greeting
        });
        let memory = Memory::new(info(), Finish::AtOnce, Arc::default(), mpsc::channel().0);
        let server = Server::new(Rc::new(memory), Limits::default(), None).unwrap();
        assert!(server.serve(listener, async { stopped.await.unwrap() }).await);
        assert_eq!(client.join().unwrap(), GREETING);
    });
}

/// 203.0.113.0/24 is for documentation: nobody has it.
#[test]
fn tcp_on_several_addresses() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let addresses = ["127.0.0.1:0", "203.0.113.1:0", "127.0.0.2:0"].map(|address| address.parse().unwrap());
        let listener = Listener::tcp(&addresses).unwrap();
        let endpoints = listener.endpoints().to_vec();
        let [Endpoint::Tcp(first), Endpoint::Tcp(second)] = endpoints[..] else { panic!("{endpoints:?}") };
        assert_eq!((first.ip(), second.ip()), (addresses[0].ip(), addresses[2].ip()));
        assert_eq!(first.port(), second.port(), "the port is the same everywhere");
        assert_eq!(*listener.endpoint(), endpoints[0]);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let client = std::thread::spawn(move || {
            let greetings = [second, first, second].map(|address| {
                let mut greeting = [0; 18];
                TcpStream::connect(address).unwrap().read_exact(&mut greeting).unwrap();
                greeting
            });
            stop.send(()).unwrap();
            greetings
        });
        let memory = Memory::new(info(), Finish::AtOnce, Arc::default(), mpsc::channel().0);
        let server = Server::new(Rc::new(memory), Limits::default(), None).unwrap();
        assert!(server.serve(listener, async { stopped.await.unwrap() }).await);
        assert_eq!(client.join().unwrap(), [GREETING; 3]);
    });
    let strange = ["203.0.113.1:0", "203.0.113.2:0"].map(|address| address.parse().unwrap());
    assert!(matches!(in_runtime(|| Listener::tcp(&strange).unwrap_err()), Error::Listen { .. }));
    let taken = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let addresses = ["127.0.0.2:0".parse().unwrap(), taken.local_addr().unwrap()];
    assert!(matches!(in_runtime(|| Listener::tcp(&addresses).unwrap_err()), Error::Listen { .. }));
}

#[test]
fn a_unix_socket_and_tcp_take_turns() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("nbd.sock");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async {
        let addresses =
            ["127.0.0.1:0", "127.0.0.2:0"].map(|address| Listener::tcp(&[address.parse().unwrap()]).unwrap());
        let listener = addresses.into_iter().fold(Listener::unix(&path).unwrap(), Listener::and);
        let endpoints = listener.endpoints().to_vec();
        let [Endpoint::Unix(named), Endpoint::Tcp(first), Endpoint::Tcp(second)] = &endpoints[..] else {
            panic!("{endpoints:?}")
        };
        assert_eq!((named, listener.endpoint()), (&path, &endpoints[0]));
        let (path, first, second) = (path.clone(), *first, *second);
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let client = std::thread::spawn(move || {
            let mut greetings = [[0; 18]; 6];
            let connect_local = || std::os::unix::net::UnixStream::connect(&path).unwrap();
            let connect = |address| TcpStream::connect(address).unwrap();
            let [one, two, ..] = &mut greetings;
            connect_local().read_exact(one).unwrap();
            connect(first).read_exact(two).unwrap();
            // All of these wait at the same time.
            let mut waiting: Vec<Box<dyn std::io::Read>> = vec![Box::new(connect(second)), Box::new(connect(first))];
            waiting.push(Box::new(connect_local()));
            waiting.push(Box::new(connect_local()));
            let rest = greetings[2..].iter_mut().zip(&mut waiting);
            rest.for_each(|(greeting, stream)| stream.read_exact(greeting).unwrap());
            stop.send(()).unwrap();
            greetings
        });
        let memory = Memory::new(info(), Finish::AtOnce, Arc::default(), mpsc::channel().0);
        let server = Server::new(Rc::new(memory), Limits::default(), None).unwrap();
        assert!(server.serve(listener, async { stopped.await.unwrap() }).await);
        assert_eq!(client.join().unwrap(), [GREETING; 6]);
    });
    assert!(!path.exists());
}

#[test]
fn exports_that_the_protocol_can_not_describe_are_refused() {
    let mut odd = info();
    odd.size_bytes += 1;
    let mut long = info();
    long.name = "x".repeat(4097);
    let mut sizes = vec![];
    for (minimum, preferred, maximum) in [
        (0, 4096, 1 << 20),
        (3, 4096, 1 << 20),
        (1 << 17, 1 << 17, 1 << 20),
        (1, 256, 1 << 20),
        (1, 4096, 2048),
        (1, 4096, 65 << 20),
    ] {
        let mut info = info();
        info.block_sizes.minimum_bytes = minimum;
        info.block_sizes.preferred_bytes = preferred;
        info.block_sizes.maximum_bytes = maximum;
        sizes.push(info);
    }
    for info in [odd, long, ExportInfo { name: "a\0b".into(), ..info() }].into_iter().chain(sizes) {
        assert!(matches!(info.validate(), Err(Error::InvalidExport { .. })), "{info:?}");
    }
    assert!(info().validate().is_ok());
}
