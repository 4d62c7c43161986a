//! Connections that one thread accepts and others serve.

use std::{
    os::unix::net::UnixStream,
    path::Path,
    rc::Rc,
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
    time::Duration,
};

use uraid_nbd::{Dispatcher, Ending, Incoming, Limits, Listener, Server};

use crate::{
    memory::{Counts, Finish, Memory, info},
    support::{Client, assert_closed},
};

const SERVERS: usize = 3;

fn connect(socket: &Path) -> UnixStream {
    let stream = UnixStream::connect(socket).unwrap();
    // Only so that a failing test ends.
    stream.set_read_timeout(Some(Duration::from_secs(30))).unwrap();
    stream
}

fn serve(incoming: Incoming, counts: Arc<Counts>) -> bool {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let (submits, _submitted) = mpsc::channel();
    let memory = Rc::new(Memory::new(info(), Finish::AtOnce, counts, submits));
    let server = Server::new(memory, Limits::default(), None).unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, server.serve_incoming(incoming)).answered
}

#[test]
fn connections_go_to_the_servers_in_turn_within_one_limit_until_the_dispatcher_stops() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nbd.sock");
    let limits = Limits { connections_max: 4, ..Limits::default() };
    let (dispatcher, incoming) = Dispatcher::new(SERVERS, limits);
    let counts: Vec<_> = (0..SERVERS).map(|_| Arc::new(Counts::default())).collect();
    let servers: Vec<_> = incoming
        .into_iter()
        .zip(&counts)
        .map(|(incoming, counts)| (incoming, Arc::clone(counts)))
        .map(|(incoming, counts)| std::thread::spawn(move || serve(incoming, counts)))
        .collect();
    let (stop, stopped) = tokio::sync::oneshot::channel::<()>();
    let (started, is_started) = mpsc::channel();
    let accepting = {
        let socket = socket.clone();
        std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let listener = Listener::unix(&socket).unwrap();
                started.send(()).unwrap();
                let stopped = async {
                    stopped.await.unwrap();
                    Ending::Close
                };
                dispatcher.run(listener, stopped).await;
            });
        })
    };
    is_started.recv().unwrap();

    let mut clients: Vec<Client> = (0..4).map(|_| Client::handshake(connect(&socket), true)).collect();
    clients.iter_mut().for_each(Client::assert_alive);
    let submitted = |index: usize| counts[index].submits.load(SeqCst);
    assert!((0..SERVERS).all(|index| submitted(index) > 0), "every server has a client");
    assert_eq!(submitted(0), 2 * submitted(1), "the first has two");
    assert_closed(&mut connect(&socket));
    clients.iter_mut().for_each(Client::assert_alive);

    // A place is free again some time after its client has gone; until then newcomers are closed.
    drop(clients.remove(1));
    let newcomer = std::iter::repeat_with(|| connect(&socket)).take(1 << 20);
    let newcomer = newcomer.filter_map(|stream| Client::try_handshake(stream, true)).next();
    newcomer.expect("a client in the place of another").assert_alive();

    stop.send(()).unwrap();
    accepting.join().unwrap();
    assert!(!socket.exists(), "the socket goes with the dispatcher");
    assert!(servers.into_iter().all(|server| server.join().unwrap()), "all requests were answered");
    clients.into_iter().for_each(|mut client| assert_closed(&mut client.stream));
}
