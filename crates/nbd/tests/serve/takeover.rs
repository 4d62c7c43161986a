//! A server that another one takes over from: clients go on, and nothing that they have asked for is lost.

use std::{
    os::unix::{fs::PermissionsExt as _, net::UnixStream},
    path::{Path, PathBuf},
    rc::Rc,
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
    thread::JoinHandle,
    time::{Duration, Instant},
};

use tempfile::TempDir;
use tokio::sync::mpsc as control;
use uraid_nbd::{Dispatcher, Ending, ExportInfo, Limits, Listener, Parting, Served, Server};

use crate::{
    memory::{Counts, Finish, Memory, SIZE_BYTES, info},
    support::{Client, GREETING, Reply, assert_closed, extended_request, request},
};

const WRITE: u16 = 1;
const FLUSH: u16 = 3;
const CACHE: u16 = 5;

enum Order {
    End(Ending),
    Release,
}

/// A server on a thread of its own.
struct Running {
    counts: Arc<Counts>,
    orders: control::UnboundedSender<Order>,
    submitted: mpsc::Receiver<()>,
    thread: JoinHandle<Served>,
}

impl Running {
    fn start(info: ExportInfo, finish: Finish, listener: impl FnOnce() -> Listener + Send + 'static) -> Self {
        Self::limited(info, finish, Limits::default(), listener)
    }

    fn limited(
        info: ExportInfo,
        finish: Finish,
        limits: Limits,
        listener: impl FnOnce() -> Listener + Send + 'static,
    ) -> Self {
        let (orders, mut ordered) = control::unbounded_channel();
        let (submits, submitted) = mpsc::channel();
        let (started, is_started) = mpsc::channel();
        let counts = Arc::<Counts>::default();
        let own_counts = Arc::clone(&counts);
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            let memory = Rc::new(Memory::new(info, finish, own_counts, submits));
            tokio::task::LocalSet::new().block_on(&runtime, async {
                let server = Server::new(Rc::clone(&memory), limits, None).unwrap();
                let listener = listener();
                started.send(()).unwrap();
                let (end, ended) = tokio::sync::oneshot::channel();
                let obeyed = async {
                    let mut end = Some(end);
                    while let Some(order) = ordered.recv().await {
                        match order {
                            Order::End(how) => end.take().unwrap().send(how).unwrap(),
                            Order::Release => memory.release(),
                        }
                    }
                    std::future::pending::<()>().await;
                };
                tokio::select! {
                    served = server.serve_until(listener, async { ended.await.unwrap() }) => served,
                    () = obeyed => unreachable!(),
                }
            })
        });
        is_started.recv().unwrap();
        Self { counts, orders, submitted, thread }
    }

    /// One that holds what it is asked for until it is told to release it, and its socket.
    fn first() -> (Self, TempDir, PathBuf) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("nbd.sock");
        let path = socket.clone();
        (Self::start(info(), Finish::OnRelease, move || Listener::unix(&path).unwrap()), directory, socket)
    }

    /// One that goes on with these.
    fn successor(partings: Vec<Parting>) -> Self {
        Self::start(info(), Finish::AtOnce, || Listener::take_over(partings).unwrap())
    }

    fn order(&self, order: Order) {
        self.orders.send(order).unwrap();
    }

    fn served(self) -> Served {
        self.thread.join().unwrap()
    }

    /// What is left of it, and how many of that are clients.
    fn partings(self) -> (Vec<Parting>, usize) {
        let Served { answered, partings } = self.served();
        assert!(answered, "what was begun is answered");
        let clients = partings.iter().filter(|parting| parting.is_client()).count();
        (partings, clients)
    }

    fn close(self) {
        self.order(Order::End(Ending::Close));
        let Served { answered, partings } = self.served();
        assert!(answered && partings.is_empty());
    }
}

fn until(what: &str, is_so: impl Fn() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(30);
    while !is_so() {
        assert!(Instant::now() < deadline, "{what}");
        std::thread::yield_now();
    }
}

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    // Only so that a failing test ends.
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

#[test]
fn what_was_begun_is_answered_here_and_what_follows_elsewhere() {
    let (first, _directory, socket) = Running::first();
    let mut client = Client::handshake(connect(&socket), true);
    let (begun, next) = (request(0, FLUSH, 1, 0, 0), request(0, CACHE, 2, 512, 512));
    client.send(&[&begun[..], &next[..10]].concat());
    first.submitted.recv().unwrap();
    first.order(Order::End(Ending::HandOver));
    first.order(Order::Release);
    assert_eq!(client.reply(), Reply::done(1));
    let (partings, clients) = first.partings();
    assert_eq!((partings.len(), clients), (2, 1), "a socket and a client");
    let waiting = connect(&socket);
    assert!(socket.exists(), "the socket's file stays");

    client.send(&next[10..]);
    let second = Running::successor(partings);
    assert_eq!(client.reply(), Reply::done(2));
    Client::handshake(waiting, true).assert_alive();
    Client::handshake(connect(&socket), false).assert_alive();
    client.assert_alive();
    second.close();
    assert!(!socket.exists(), "the socket's file goes with its last server");
    client.assert_closed();
}

#[test]
fn a_write_whose_data_are_on_their_way_is_finished_first() {
    let (first, _directory, socket) = Running::first();
    let mut client = Client::handshake(connect(&socket), true);
    // The data of one that is refused are skipped to their end, too.
    let refused = [request(0, WRITE, 7, SIZE_BYTES, 2048), vec![7; 2048]].concat();
    let write = [request(0, WRITE, 8, 0, 204_800), vec![8; 204_800]].concat();
    client.send(&refused[..1000]);
    let mut other = Client::handshake(connect(&socket), true);
    other.send(&request(0, FLUSH, 1, 0, 0));
    first.submitted.recv().unwrap();
    other.send(&write[..100_000]);
    until("the write has its memory", || first.counts.buffers_live.load(SeqCst) > 0);
    first.order(Order::End(Ending::HandOver));
    client.send(&refused[1000..]);
    other.send(&write[100_000..]);
    assert_eq!(client.reply(), Reply::error(7, 28));
    first.submitted.recv().unwrap();
    first.order(Order::Release);
    assert_eq!([other.reply().cookie(), other.reply().cookie()], [1, 8]);
    let (partings, clients) = first.partings();
    assert_eq!(clients, 2);

    let second = Running::successor(partings);
    client.assert_alive();
    other.assert_alive();
    second.close();
}

#[test]
fn who_shakes_hands_meanwhile_goes_on_elsewhere() {
    let (first, _directory, socket) = Running::first();
    let mut early = Client { stream: connect(&socket) };
    assert_eq!(early.receive(GREETING.len()), GREETING);
    let mut busy = Client::handshake(connect(&socket), true);
    busy.send(&request(0, FLUSH, 1, 0, 0));
    first.submitted.recv().unwrap();
    first.order(Order::End(Ending::HandOver));
    // The option to go on with the default export, without structured replies.
    early.send(b"\0\0\0\x03IHAVEOPT\0\0\0\x07\0\0\0\x06\0\0\0\0\0\0");
    assert_eq!(early.receive(32 + 20)[44..], [0, 0, 0, 1, 0, 0, 0, 0]);
    first.order(Order::Release);
    assert_eq!(busy.reply(), Reply::done(1));
    let (partings, clients) = first.partings();
    assert_eq!(clients, 2);
    let second = Running::successor(partings);
    early.assert_alive();
    busy.assert_alive();
    second.close();
}

#[test]
fn nobody_waits_for_silent_handshakes() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let path = socket.clone();
    // Nothing else ends them while this test waits.
    let forever = Duration::from_secs(3600);
    let limits = Limits { handshake_timeout: forever, shutdown_timeout: forever, ..Limits::default() };
    let first = Running::limited(info(), Finish::OnRelease, limits, move || Listener::unix(&path).unwrap());
    let mut silent = Client { stream: connect(&socket) };
    assert_eq!(silent.receive(GREETING.len()), GREETING);
    first.order(Order::End(Ending::HandOver));
    silent.assert_closed();
    let (partings, clients) = first.partings();
    assert_eq!((partings.len(), clients), (1, 0));
    drop(partings);
}

#[test]
fn what_does_not_arrive_leaves_no_file() {
    let (first, _directory, socket) = Running::first();
    first.order(Order::End(Ending::HandOver));
    let (partings, _) = first.partings();
    assert!(socket.exists());
    drop(partings);
    assert!(!socket.exists());

    // One that has arrived is somebody else's.
    let (first, _directory, socket) = Running::first();
    first.order(Order::End(Ending::HandOver));
    first.partings().0.into_iter().for_each(Parting::has_arrived);
    assert!(socket.exists());
}

#[test]
fn a_socket_whose_file_was_removed_is_made_again() {
    let (first, _directory, socket) = Running::first();
    let mut client = Client::handshake(connect(&socket), true);
    std::fs::remove_file(&socket).unwrap();
    first.order(Order::End(Ending::HandOver));
    let second = Running::successor(first.partings().0);
    client.assert_alive();
    Client::handshake(connect(&socket), true).assert_alive();
    second.close();
    assert!(!socket.exists());
}

/// Whoever hands something over may have left its descriptors blocking, and may do so at any time before.
#[test]
fn descriptors_that_would_block_do_not() {
    let (first, _directory, socket) = Running::first();
    let port = Running::start(info(), Finish::AtOnce, || Listener::tcp(&["127.0.0.1:0".parse().unwrap()]).unwrap());
    let mut client = Client::handshake(connect(&socket), true);
    first.order(Order::End(Ending::HandOver));
    port.order(Order::End(Ending::HandOver));
    let (mut partings, _) = first.partings();
    partings.extend(port.partings().0);
    assert_eq!(partings.len(), 3, "two sockets and a client");
    for parting in &partings {
        rustix::io::ioctl_fionbio(parting.parts().0, false).unwrap();
    }
    let second = Running::successor(partings);
    client.assert_alive();
    Client::handshake(connect(&socket), true).assert_alive();
    second.close();
}

#[test]
fn extended_headers_stay_what_was_agreed_on() {
    let (first, _directory, socket) = Running::first();
    let mut client = Client::extended_handshake(connect(&socket));
    first.order(Order::End(Ending::HandOver));
    let (partings, _) = first.partings();
    let second = Running::successor(partings);
    client.send(&extended_request(0, FLUSH, 5, 0, 0));
    assert_eq!(client.reply(), Reply::extended(0, 5, 0, &[]));
    second.close();
}

#[test]
fn who_may_connect_is_said_anew() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let path = socket.clone();
    let open_to_others = move || Listener::unix(&path).unwrap().admit(vec![12_345]).unwrap();
    let first = Running::start(info(), Finish::AtOnce, open_to_others);
    let mode = || std::fs::metadata(&socket).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(), 0o666);
    first.order(Order::End(Ending::HandOver));
    let second = Running::successor(first.partings().0);
    assert_eq!(mode(), 0o600);
    second.close();
}

#[test]
fn a_socket_that_another_has_put_in_the_place_of_the_first_stays() {
    let (first, _directory, socket) = Running::first();
    std::fs::remove_file(&socket).unwrap();
    let _other = std::os::unix::net::UnixListener::bind(&socket).unwrap();
    first.order(Order::End(Ending::HandOver));
    Running::successor(first.partings().0).close();
    assert!(socket.exists());
}

#[test]
fn a_client_that_was_told_something_else_of_the_export_is_disconnected() {
    let (first, _directory, socket) = Running::first();
    let mut client = Client::handshake(connect(&socket), true);
    first.order(Order::End(Ending::HandOver));
    let (partings, _) = first.partings();
    let read_only = ExportInfo { read_only: true, ..info() };
    let second = Running::start(read_only, Finish::AtOnce, || Listener::take_over(partings).unwrap());
    assert_closed(&mut client.stream);
    Client::handshake(connect(&socket), true).assert_alive();
    second.close();
}

#[test]
fn clients_of_several_threads_go_on_with_one() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let (dispatcher, incoming) = Dispatcher::new(2, Limits::default());
    let (end, ended) = tokio::sync::oneshot::channel::<Ending>();
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let servers = incoming.into_iter().map(|incoming| {
        std::thread::spawn(move || {
            let memory = Memory::new(info(), Finish::AtOnce, Arc::default(), mpsc::channel().0);
            let server = Server::new(Rc::new(memory), Limits::default(), None).unwrap();
            tokio::task::LocalSet::new().block_on(&runtime(), server.serve_incoming(incoming))
        })
    });
    let servers: Vec<_> = servers.collect();
    let (path, (started, is_started)) = (socket.clone(), mpsc::channel());
    let accepting = std::thread::spawn(move || {
        runtime().block_on(async {
            let listener = Listener::unix(&path).unwrap();
            started.send(()).unwrap();
            dispatcher.run(listener, async { ended.await.unwrap() }).await
        })
    });
    is_started.recv().unwrap();
    let mut clients: Vec<Client> = (0..4).map(|_| Client::handshake(connect(&socket), true)).collect();
    clients.iter_mut().for_each(Client::assert_alive);
    end.send(Ending::HandOver).unwrap();
    let mut partings = accepting.join().unwrap();
    assert_eq!(partings.len(), 1, "the socket");
    partings.extend(servers.into_iter().flat_map(|server| server.join().unwrap().partings));
    assert_eq!(partings.len(), 5, "and the clients");
    let second = Running::successor(partings);
    clients.iter_mut().for_each(Client::assert_alive);
    second.close();
}
