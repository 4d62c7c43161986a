//! TLS: GnuTLS's clients on the other side, and what goes wrong with certificates.

use std::io::Write as _;
use std::os::unix::fs::PermissionsExt as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};

use tempfile::TempDir;
use uraid_tests::array::{Array, Content};
use uraid_tests::certificates::{Authority, Of, Valid};
use uraid_tests::image::{Random, assert_same, read_export, write_export};
use uraid_tests::process::{Output, Process};
use uraid_tests::run::{client, client_command, run};
use uraid_tests::server::Server;
use uraid_tests::shape;

use crate::control::ask;

/// An authority, and the certificates of a server and of a client.
pub(crate) struct Certified {
    directory: TempDir,
    authority: Authority,
}

impl Certified {
    pub(crate) fn new() -> Self {
        let certified = Self { directory: tempfile::tempdir().unwrap(), authority: Authority::new("uraid's tests") };
        certified.issue("server", Of::Server, Valid::Now, 1);
        certified.issue("client", Of::Client, Valid::Now, 2);
        certified.authority.trusted_in(&certified.path("anonymous"));
        certified
    }

    pub(crate) fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    pub(crate) fn issue(&self, name: &str, of: Of, valid: Valid, serial: u64) -> PathBuf {
        self.authority.issue(&self.path(name), of, valid, serial)
    }

    /// Exchanges the certificate of a server by another authority's, which clients with the directory `trusting` trust.
    pub(crate) fn issue_by_another(&self, name: &str, trusting: &str) {
        let another = Authority::new("a stranger");
        another.issue(&self.path(name), Of::Server, Valid::Now, 1);
        another.trusted_in(&self.path(trusting));
    }

    /// A server on a TCP port that requires TLS.
    #[track_caller]
    pub(crate) fn serve(&self, array: &Array, options: &[&str]) -> Server {
        let directory = self.path("server");
        let tls = ["--listen", "127.0.0.1:0", "--tls", "require", "--tls-certificates", directory.to_str().unwrap()];
        Server::start_members(array, array.members(), &[&tls, options].concat())
    }

    /// The URI of `server` for a client with the certificates in the directory `name`.
    pub(crate) fn uri(&self, server: &Server, name: &str) -> String {
        let sign = if server.uri().contains('?') { '&' } else { '?' };
        format!("{}{sign}tls-certificates={}", server.uri(), self.path(name).display())
    }
}

/// Runs a program of QEMU with the certificates in `directory`, on the server of the TCP `uri`.
fn qemu(program: &str, words: &[&str], directory: &Path, uri: &str) -> Output {
    let (address, export) = uri.strip_prefix("nbds://").unwrap().split_once('/').unwrap();
    let (host, port) = address.rsplit_once(':').unwrap();
    let credentials = format!("tls-creds-x509,id=tls,dir={},endpoint=client", directory.display());
    let image =
        format!("driver=nbd,server.type=inet,server.host={host},server.port={port},export={export},tls-creds=tls");
    let words = words.iter().copied().chain(["--object", &credentials, "--image-opts", &image]);
    client(program, words)
}

#[track_caller]
fn assert_reads(uri: &str) {
    let _ = client("nbdinfo", ["--size", uri]).success();
}

#[track_caller]
fn assert_refused(uri: &str) -> String {
    let output = client("nbdinfo", ["--size", uri]).code_is(1);
    output.stderr
}

/// What one client writes over several connections, others read; and members hold it where they should.
#[test]
fn clients_agree_over_tls() {
    for (threads, shape) in ["0", "2"].into_iter().zip([shape::raid5_of_3(), shape::rm2_of_6()]) {
        let array = Array::create(&shape);
        let certified = Certified::new();
        let server = certified.serve(&array, &["--connection-threads", threads, "--tls-verify-peer"]);
        let uri = certified.uri(&server, "client");
        assert!(uri.starts_with("nbds://127.0.0.1:"), "{uri}");
        let info = client("nbdinfo", ["--json", &uri]).success().json();
        assert_eq!((&info["TLS"], info["structured"].as_bool()), (&true.into(), Some(true)), "{info:#}");
        let image = Random::new(61).bytes(array.expected_size());
        write_export(&uri, &image);
        assert_same(&read_export(&uri), &image, "nbdcopy");
        let (directory, source) = (certified.path("client"), array.path("source.img"));
        std::fs::write(&source, &image).unwrap();
        let told = qemu("qemu-img", &["info", "--output=json"], &directory, server.uri()).success().json();
        assert_eq!(told["virtual-size"].as_u64(), Some(image.len() as u64));
        let write = ["-c", "write -P 0x5a 65000 300000", "-c", "read -P 0x5a 65000 300000", "-c", "flush"];
        let told = qemu("qemu-io", &write, &directory, server.uri()).success().text();
        assert!(!told.contains("verification failed"), "{told}");
        let mut image = image;
        image[65000..365_000].fill(0x5a);
        assert_same(&read_export(&uri), &image, "after qemu-io");
        let _ = server.stop();
        Content::read(&array).assert_holds(&image, shape.name);
    }
}

/// fio itself finds no certificates, as libnbd lets no URI name files unless a program allows it: nbdkit speaks TLS for
/// it, over one connection for each job.
#[test]
fn fio_verifies_what_it_writes_over_tls() {
    let array = Array::create(&shape::raid5_of_5_left_symmetric());
    let certified = Certified::new();
    let server = certified.serve(&array, &["--connection-threads", "2"]);
    let fio = "fio --name=verify --ioengine=nbd --thread --rw=randwrite --bsrange=512-3m --iodepth=16 --numjobs=4 \
               --size=5000k --offset_increment=5000k --fsync=32 --randseed=5 --verify=crc32c --verify_fatal=1 \
               --verify_backlog=16 --verify_state_save=0 --uri=$uri";
    let port = server.uri().rsplit_once(':').unwrap().1.split('/').next().unwrap();
    let directory = certified.path("client");
    let to = ["hostname=127.0.0.1".to_owned(), format!("port={port}"), "tls=require".to_owned()];
    let tls = format!("tls-certificates={}", directory.display());
    let words = ["--exit-with-parent", "-U", "-", "nbd"].map(str::to_owned).into_iter().chain(to);
    let told = client("nbdkit", words.chain([tls, "--run".to_owned(), fio.to_owned()])).success().text();
    assert!(told.contains("WRITE: bw="), "fio has written: {told}");
    let image = read_export(&certified.uri(&server, "anonymous"));
    assert!(image.iter().any(|&byte| byte != 0));
    let _ = server.stop();
    Content::read(&array).assert_holds(&image, "after fio");
}

#[test]
fn tls_is_required_on_a_unix_socket_too() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    let directory = certified.path("server");
    let options = ["--tls", "require", "--tls-certificates", directory.to_str().unwrap()];
    let server = Server::start_members(&array, array.members(), &options);
    assert!(server.uri().starts_with("nbds+unix:///"), "{}", server.uri());
    let image = Random::new(62).bytes(array.expected_size());
    write_export(&certified.uri(&server, "anonymous"), &image);
    assert_same(&read_export(&certified.uri(&server, "anonymous")), &image, "over TLS");
    let said = assert_refused(&server.uri().replacen("nbds", "nbd", 1));
    assert!(said.contains("TLS"), "{said}");
    let printed = server.stop().join("\n");
    for program in ["nbdinfo", "qemu-img"] {
        assert!(printed.contains(program) && printed.contains("tls-certificates=DIR"), "{printed}");
    }
}

#[test]
fn tls_is_required_on_every_socket() {
    let array = Array::create(&shape::raid1_of_2());
    let (certified, socket) = (Certified::new(), array.socket());
    let server = certified.serve(&array, &["--socket", socket.to_str().unwrap()]);
    let tcp = server.line_after("  also ");
    let with = |uri: &str, sign| format!("{uri}{sign}tls-certificates={}", certified.path("anonymous").display());
    for (uri, sign) in [(server.uri(), '&'), (&tcp, '?')] {
        assert!(uri.starts_with("nbds"), "{uri}");
        assert_reads(&with(uri, sign));
        let said = assert_refused(&uri.replacen("nbds", "nbd", 1));
        assert!(said.contains("TLS"), "{said}");
    }
    let _ = server.stop();
}

#[test]
fn clients_in_the_clear_are_refused() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    let server = certified.serve(&array, &[]);
    let plain = server.uri().replacen("nbds", "nbd", 1);
    let said = assert_refused(&plain);
    assert!(said.contains("TLS"), "{said}");
    let said = client("qemu-img", ["info", &plain]).code_is(1).stderr;
    assert!(said.contains("TLS"), "{said}");
    let _ = client("nbdinfo", ["--list", &plain]).code_is(1);
    assert_reads(&certified.uri(&server, "anonymous"));
    let _ = server.stop();
}

#[test]
fn clients_that_insist_on_tls_do_not_get_it_from_a_server_without() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    let server = Server::start(&array);
    let insists = server.uri().replacen("nbd", "nbds", 1);
    let _ = assert_refused(&format!("{insists}&tls-certificates={}", certified.path("anonymous").display()));
    assert_reads(server.uri());
    let _ = server.stop();
}

#[test]
fn a_client_that_trusts_another_authority_leaves() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    Authority::new("a stranger").trusted_in(&certified.path("stranger"));
    let server = certified.serve(&array, &[]);
    let _ = assert_refused(&certified.uri(&server, "stranger"));
    assert_reads(&certified.uri(&server, "anonymous"));
    let _ = server.stop();
}

#[test]
fn clients_prove_themselves_where_that_is_asked_for() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    certified.issue("expired", Of::Client, Valid::Before, 3);
    certified.issue("early", Of::Client, Valid::Later, 4);
    certified.issue("revoked", Of::Client, Valid::Now, 5);
    let stranger = certified.path("stranger");
    Authority::new("a stranger").issue(&stranger, Of::Client, Valid::Now, 2);
    certified.authority.trusted_in(&stranger);
    // As a client it trusts the authority, and its own certificate is one for servers.
    certified.issue("wrong-purpose", Of::Server, Valid::Now, 6);
    for kind in ["cert", "key"] {
        let path = |of: &str| certified.path("wrong-purpose").join(format!("{of}-{kind}.pem"));
        std::fs::rename(path("server"), path("client")).unwrap();
    }
    certified.authority.revoke_in(&certified.path("server"), 5);
    let server = certified.serve(&array, &["--tls-verify-peer"]);
    for name in ["anonymous", "expired", "early", "revoked", "stranger", "wrong-purpose"] {
        let said = assert_refused(&certified.uri(&server, name));
        assert!(!said.is_empty(), "{name}");
    }
    let _ = qemu("qemu-img", &["info"], &certified.path("anonymous"), server.uri()).code_is(1);
    assert_reads(&certified.uri(&server, "client"));
    let _ = server.stop();
}

#[test]
fn only_clients_on_the_list_are_let_in() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    certified.issue("other", Of::Client, Valid::Now, 3);
    let file = certified.path("client").join("client-cert.pem");
    let printed = client("openssl", ["x509", "-noout", "-fingerprint", "-sha256", "-in", file.to_str().unwrap()]);
    let printed = printed.success().text();
    let fingerprint = printed.trim().split_once('=').unwrap().1;
    let server = certified.serve(&array, &["--tls-allow-client", fingerprint]);
    assert_reads(&certified.uri(&server, "client"));
    let _ = assert_refused(&certified.uri(&server, "other"));
    let _ = assert_refused(&certified.uri(&server, "anonymous"));
    let _ = server.stop();
    let refused = certified_command(&array, &certified.path("server"), &["--tls-allow-client", "ab:cd"]).code_is(2);
    assert!(refused.stderr.contains("64 hexadecimal digits"), "{}", refused.stderr);
}

#[test]
fn a_client_that_is_killed_while_it_writes_over_tls_is_missed_by_nobody() {
    let array = Array::create(&shape::raid5_of_3());
    let certified = Certified::new();
    let server = certified.serve(&array, &[]);
    let uri = certified.uri(&server, "anonymous");
    let mut copy = client_command("nbdcopy");
    copy.args(["--", "-", &uri]);
    let mut copy = Process::start(copy);
    // When the pipe has taken it all, the client has sent most of it, and waits for more.
    let mut input = copy.take_stdin();
    input.write_all(&Random::new(64).bytes(array.expected_size() / 2)).unwrap();
    copy.kill();
    drop(input);
    let image = Random::new(63).bytes(array.expected_size());
    write_export(&uri, &image);
    assert_same(&read_export(&uri), &image, "after another client was killed");
    let _ = server.stop();
    Content::read(&array).assert_holds(&image, "after a client was killed");
}

/// Tries to serve with these certificates, which must fail.
#[track_caller]
fn certified_command(array: &Array, directory: &Path, options: &[&str]) -> Output {
    let tls = ["--tls", "require", "--tls-certificates", directory.to_str().unwrap()];
    match Server::try_start(array, array.members(), &[&tls, options].concat()) {
        Ok(server) => panic!("it serves at {}", server.uri()),
        Err(output) => *output,
    }
}

#[test]
fn certificates_that_can_not_work_are_refused_before_anything_is_opened() {
    let array = Array::create(&shape::raid1_of_2());
    let before: Vec<Vec<u8>> = array.members().iter().map(|member| std::fs::read(member).unwrap()).collect();
    let certified = Certified::new();
    let refused = |name: &str, options: &[&str], message: &str| {
        let output = certified_command(&array, &certified.path(name), options).code_is(1);
        assert!(output.stderr.contains(message), "{name}: {}", output.stderr);
    };
    let server = |name: &str| certified.issue(name, Of::Server, Valid::Now, 7);
    refused("no-such-directory", &[], "server-cert.pem: No such file");
    std::fs::remove_file(server("no-key").join("server-key.pem")).unwrap();
    refused("no-key", &[], "server-key.pem: No such file");
    std::fs::write(server("empty").join("server-cert.pem"), "").unwrap();
    refused("empty", &[], "holds no certificate in PEM format");
    let garbage = "-----BEGIN CERTIFICATE-----\nAAAA\n-----END CERTIFICATE-----\n";
    std::fs::write(server("garbage").join("server-cert.pem"), garbage).unwrap();
    refused("garbage", &[], "server-cert.pem can't be used");
    let key = server("mismatch").join("server-key.pem");
    std::fs::copy(certified.path("server").join("server-key.pem"), &key).unwrap();
    refused("mismatch", &[], "server-key.pem is not the key of");
    let key = server("exposed").join("server-key.pem");
    std::fs::set_permissions(key, std::fs::Permissions::from_mode(0o644)).unwrap();
    refused("exposed", &[], "every user of this machine may open");
    certified.issue("expired", Of::Server, Valid::Before, 8);
    refused("expired", &[], "server-cert.pem has expired");
    certified.issue("early", Of::Server, Valid::Later, 9);
    refused("early", &[], "is not valid yet");
    std::fs::remove_file(server("no-authority").join("ca-cert.pem")).unwrap();
    refused("no-authority", &["--tls-verify-peer"], "ca-cert.pem: No such file");
    std::fs::write(server("bad-list").join("ca-crl.pem"), garbage).unwrap();
    refused("bad-list", &["--tls-verify-peer"], "holds no list of revoked certificates");
    let after: Vec<Vec<u8>> = array.members().iter().map(|member| std::fs::read(member).unwrap()).collect();
    assert!(before == after);
}

/// What was read is used until something else can be.
#[test]
fn certificates_are_read_anew() {
    for threads in ["0", "2"] {
        let array = Array::create(&shape::raid1_of_2());
        let (certified, control) = (Certified::new(), array.path("nbd.ctl"));
        let server =
            certified.serve(&array, &["--connection-threads", threads, "--control", control.to_str().unwrap()]);
        let [known, stranger] = ["anonymous", "stranger"].map(|name| certified.uri(&server, name));
        certified.issue_by_another("server", "stranger");
        assert_reads(&known);
        let _ = ask(&array, &["set", "--reload-certificates"]).success();
        let _ = assert_refused(&known);
        assert_reads(&stranger);
        std::fs::write(certified.path("server").join("server-cert.pem"), "").unwrap();
        let refused = ask(&array, &["set", "--reload-certificates"]).code_is(1).stderr;
        assert!(refused.contains("stay as they were") && refused.contains("holds no certificate"), "{refused}");
        assert_reads(&stranger);
        let _ = server.stop();
    }
    let array = Array::create(&shape::raid1_of_2());
    let server = Server::start(&array);
    let refused = ask(&array, &["set", "--reload-certificates"]).code_is(1).stderr;
    assert!(refused.contains("without TLS"), "{refused}");
    let _ = server.stop();
}

#[test]
fn other_hosts_connect_in_the_clear_only_if_that_is_said() {
    let array = Array::create(&shape::raid1_of_2());
    let certified = Certified::new();
    for listen in ["0.0.0.0:0", "[::]:0"] {
        let refused = Server::try_start(&array, array.members(), &["--listen", listen]).unwrap_err().code_is(2);
        assert!(refused.stderr.contains("--tls require") && refused.stderr.contains("--insecure"), "{refused:?}");
    }
    let _ = Server::start_members(&array, array.members(), &["--listen", "0.0.0.0:0", "--insecure"]).stop();
    let directory = certified.path("server");
    let tls = ["--listen", "0.0.0.0:0", "--tls", "require", "--tls-certificates", directory.to_str().unwrap()];
    let _ = Server::start_members(&array, array.members(), &tls).stop();
    for (options, message) in
        [(&["--tls", "require"][..], "--tls-certificates"), (&["--tls-verify-peer"], "--tls require")]
    {
        let refused = Server::try_start(&array, array.members(), options).unwrap_err().code_is(2);
        assert!(refused.stderr.contains(message), "{refused:?}");
    }
}

#[test]
fn only_named_users_connect_to_the_socket() {
    const NOBODY: u32 = 65534;
    let array = Array::create(&shape::raid1_of_2());
    std::fs::set_permissions(array.socket().parent().unwrap(), std::fs::Permissions::from_mode(0o755)).unwrap();
    for (admitted, lets_in) in [("1", false), ("65534", true)] {
        let server = Server::start_members(&array, array.members(), &["--allow-uid", admitted]);
        let mode = std::fs::metadata(server.socket()).unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o666);
        assert_reads(server.uri());
        if rustix::process::geteuid().is_root() {
            let mut info = client_command("nbdinfo");
            info.args(["--size", server.uri()]).uid(NOBODY).gid(NOBODY);
            let output = run(info);
            assert_eq!(output.stderr.is_empty(), lets_in, "{output:?}");
        } else {
            println!("left out: only root can connect as another user");
        }
        let control = server.socket().with_extension("ctl");
        assert_eq!(std::fs::metadata(control).unwrap().permissions().mode() & 0o777, 0o600);
        let _ = server.stop();
    }
}
