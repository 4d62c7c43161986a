//! What a server uses of the file system by its arguments, and whether it runs programs: a sandbox leaves it that.

use std::env;
use std::path::Path;

use uraid_io::member::{certificates, is_uri};
use uraid_serve::running;

use super::args::ServeArgs;
use super::sandbox::Paths;
use super::sockets::unix_socket;

/// What a server of one array uses.
pub(super) fn of_one(args: &ServeArgs) -> Paths {
    let mut paths = of_server(args);
    // For `--run` alone it makes a directory there.
    let is_private = args.run.is_some() && args.endpoint.socket.is_none() && args.endpoint.listen.is_empty();
    paths.directories.extend(is_private.then(env::temp_dir));
    paths.files.extend(unix_socket(&args.endpoint, &args.members).filter(|_| !is_private));
    add(&mut paths, args);
    paths
}

/// What a server of several arrays uses, of which the first arguments are about the server itself.
pub(super) fn of_several<'a>(server: &ServeArgs, arrays: impl Iterator<Item = &'a ServeArgs>, file: &Path) -> Paths {
    let mut paths = of_server(server);
    paths.read.push(file.to_owned());
    arrays.for_each(|array| add(&mut paths, array));
    paths
}

/// Whether the server of an array runs programs.
pub(super) fn runs_programs(args: &ServeArgs) -> bool {
    args.run.is_some() || args.watch.on_event.is_some() || args.watch.smart_every.is_some()
}

fn of_server(args: &ServeArgs) -> Paths {
    let mut directories = args.privileges.allow_path.clone();
    directories.extend(running::directory());
    let files = args.endpoint.socket.iter().cloned().collect();
    Paths { files, directories, read: args.endpoint.security.certificates().into_iter().collect() }
}

/// Adds what an array uses.
fn add(paths: &mut Paths, args: &ServeArgs) {
    // Members on a network are in no directory.
    let named = args.members.iter().chain(&args.spares);
    paths.files.extend(named.clone().filter(|path| !is_uri(path)).cloned());
    paths.read.extend(named.filter_map(|path| certificates(path)).map(|directory| directory.join("ca-cert.pem")));
    paths.files.extend(args.endpoint.socket.iter().chain(&args.watch.control).cloned());
    paths.read.extend(args.config.iter().chain(&args.watch.on_event).cloned());
    paths.read.extend(args.endpoint.security.certificates());
}
