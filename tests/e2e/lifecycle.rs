//! How servers and clients come and go: killed clients, killed servers, two servers, read-only, stops, quickstart.

mod bitmap;

use std::io::{BufRead as _, BufReader, Read as _, Write as _};
use std::path::PathBuf;
use std::time::SystemTime;

use rustix::process::{Pid, Signal, kill_process};
use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, SECTOR, assert_same, read_export, write_export};
use uraid_tests::nbd::{Command, error};
use uraid_tests::process::Process;
use uraid_tests::run::{client, client_command};
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES, Shape};

use super::control::ask;

/// Bytes that a killed server had acknowledged and flushed.
const FLUSHED: usize = 2 << 20;
/// The region that was being written when it was killed.
const BUSY: usize = 4 << 20;

/// Where nobody writes who is killed.
const ELSEWHERE: usize = 16 << 20;

#[test]
fn a_client_killed_mid_write_hurts_nobody() {
    for shape in [shape::raid5_of_5_left_symmetric(), shape::rm2_of_6()] {
        let array = Array::create(&shape);
        let server = Server::start(&array);
        let mut other = server.connect();
        let data = Random::new(31).bytes(64 << 10);
        other.write(ELSEWHERE, &data);

        // nbdcopy has half of its input and waits for the rest; fio has 16 writes in flight at any time.
        let mut nbdcopy = client_command("nbdcopy");
        nbdcopy.args(["--", "-", server.uri()]);
        let mut nbdcopy = Process::start(nbdcopy);
        let mut input = nbdcopy.take_stdin();
        input.write_all(&Random::new(32).bytes(4 << 20)).unwrap();
        nbdcopy.kill();
        drop(input);
        kill_fio_under_load(server.uri());

        // What they had asked for may still be written, where they asked for that.
        other.write(ELSEWHERE, &data);
        assert_same(&other.read(ELSEWHERE, data.len()), &data, "the client beside it goes on");
        other.disconnect();
        // Whoever comes after them finds nothing of theirs under way.
        let mut next = server.connect();
        next.write(0, &data);
        assert_same(&next.read(0, data.len()), &data, "what the successor wrote");
        next.disconnect();
        let image = read_export(server.uri());
        let _ = server.stop();
        Content::read(&array).assert_holds(&image, shape.name);
    }
}

mod killed {
    uraid_tests::for_shapes!(super::a_killed_server_keeps_what_it_flushed:
        raid0_of_4, raid1_of_3, raid10_of_5, raid5_of_3, raid5_of_5_left_symmetric, rm2_of_7_adjacent,
            rm2_of_7_partitioned);
}

fn a_killed_server_keeps_what_it_flushed(shape: &Shape) {
    let array = Array::create(shape);
    let model = killed_under_load(&array);
    let server = Server::start(&array);
    let image = read_export(server.uri());
    assert_old_or_new(&image, &model, shape.name);
    let _ = server.stop();
    Content::read(&array).assert_holds(&image, &format!("{}, resynced", shape.name));
    let state = array.examine()["state"].as_str().map(str::to_owned);
    assert_eq!(state.as_deref(), Some("clean"), "{}: after resync and a clean stop", shape.name);
}

/// Without a log, an array with parity that was not stopped cleanly can't be trusted without all of its members.
#[test]
fn dirty_and_degraded_is_refused_without_force_and_without_a_log() {
    for shape in [shape::raid5_of_5_left_symmetric(), shape::rm2_of_6()] {
        let array = Array::planned(&shape);
        let _ = array.run_create(MEMBER_BYTES, &["--consistency", "none"]).success();
        let model = killed_under_load(&array);
        assert_eq!(array.examine()["state"].as_str(), Some("dirty"), "{}: after a kill", shape.name);
        array.remove(&[1]);
        let present = array.without(&[1]);
        let before = files(&present);
        let refusal = Server::refused(&array, &present, &["--degraded"]).stderr;
        assert!(refusal.contains("--force"), "{}: the refusal says what to do: {refusal}", shape.name);
        assert!(files(&present) == before, "{}: a refused array is not written to", shape.name);
        let server = Server::start_members(&array, &present, &["--degraded", "--force"]);
        assert_eq!(read_export(server.uri()).len(), model.len(), "{}: forced, it serves", shape.name);
        let _ = server.stop();
    }
}

/// Copies that were there when it was written have all of it, whoever failed before. What they have of writes that were
/// under way is made to agree.
#[test]
fn a_degraded_mirror_starts_again_after_a_kill() {
    for (shape, consistency) in [
        (shape::raid1_of_2(), "bitmap"),
        (shape::raid1_of_3(), "bitmap"),
        (shape::raid1_of_3(), "none"),
        (shape::raid10_of_5(), "bitmap"),
    ] {
        let array = Array::planned(&shape);
        let _ = array.run_create(MEMBER_BYTES, &["--consistency", consistency]).success();
        let server = Server::start(&array);
        let _ = ask(&array, &["fail", "1"]).success();
        let mut client = server.connect();
        let mut random = Random::new(77);
        let data = random.bytes(1 << 20);
        client.write(0, &data);
        client.flush();
        for _ in 0..50 {
            client.write(0, &random.bytes(64 << 10));
        }
        server.kill();
        assert_eq!(array.examine()["state"].as_str(), Some("dirty"), "{}: after a kill", shape.name);
        let server = Server::start_members(&array, &array.without(&[1]), &[]);
        let first = read_export(server.uri());
        assert!(first[64 << 10..1 << 20] == data[64 << 10..], "{}: what was flushed", shape.name);
        for _ in 0..3 {
            assert_same(&read_export(server.uri()), &first, "whichever copy is read");
        }
        let _ = server.stop();
    }
}

/// The server is killed under load and members are gone when it starts again: the log makes up for both together. Where
/// it has only sums of whole stripes, sectors that were being written may be errors.
#[test]
fn a_killed_server_that_lost_members_keeps_what_it_flushed() {
    let cases = [
        (shape::raid5_of_5_left_symmetric(), &[1][..]),
        (shape::raid5_of_3(), &[2]),
        (shape::raid6_of_6_right_asymmetric(), &[1, 4]),
        (shape::rm2_of_7_adjacent(), &[0, 4]),
        (shape::rm2_of_6(), &[3, 5]),
    ];
    for (logged, (shape, gone)) in
        ["content", "sums"].iter().flat_map(|logged| cases.iter().map(move |one| (logged, one)))
    {
        let what = format!("{}, {logged}", shape.name);
        let array = Array::create(shape);
        let model = killed_under_load_with(&array, &["--full-stripe-log", logged]);
        array.remove(gone);
        let present = array.without(gone);
        let before = files(&present);
        let server = Server::start_members(&array, &present, &["--degraded", "--read-only"]);
        let looked_at = read_around_errors(&server, &model);
        let (image, lost) = &looked_at;
        let may_be_lost = |sector: &usize| *logged == "sums" && (FLUSHED..FLUSHED + BUSY).contains(&(sector * SECTOR));
        assert_eq!(lost.iter().find(|sector| !may_be_lost(sector)), None, "{what}: a sector can't be read");
        assert_old_or_new(image, &model, &what);
        let _ = server.stop();
        assert!(files(&present) == before, "{what}: read-only writes nothing");
        let server = Server::start_members(&array, &present, &["--degraded"]);
        assert!(read_around_errors(&server, &model) == looked_at, "{what}: differs from what was read before");
        let _ = server.stop();
    }
}

/// All of an export, and which sectors can't be read: there it is as in `model`.
fn read_around_errors(server: &Server, model: &[u8]) -> (Vec<u8>, Vec<usize>) {
    const PIECE: usize = 64 << 10;
    let mut client = server.connect();
    let (mut image, mut lost) = (model.to_vec(), Vec::new());
    let mut read = |range: std::ops::Range<usize>| {
        let length = u32::try_from(range.len()).expect("a request's length fits 32 bits");
        let reply = client.call(Command::Read, range.start as u64, length, &[]);
        let is_read = reply.error == 0;
        if is_read {
            image[range].copy_from_slice(&reply.data);
        }
        is_read
    };
    for start in (0..model.len()).step_by(PIECE) {
        let piece = start..model.len().min(start + PIECE);
        if !read(piece.clone()) {
            let sectors = piece.step_by(SECTOR);
            lost.extend(sectors.filter(|&at| !read(at..at + SECTOR)).map(|at| at / SECTOR));
        }
    }
    client.disconnect();
    (image, lost)
}

#[test]
fn a_second_server_is_refused_and_told_the_pid() {
    let array = Array::create(&shape::raid5_of_3());
    let server = Server::start(&array);
    let data = Random::new(33).bytes(4096);
    let mut client = server.connect();
    client.write(0, &data);
    let other_socket = array.path("second.sock");
    for (options, present) in [(&[][..], 3), (&["--degraded"], 2), (&["--read-only"], 3)] {
        let mut second = binary::command();
        second.arg("serve").arg("--socket").arg(&other_socket).args(options).args(&array.members()[..present]);
        let refusal = Server::spawn(second, other_socket.clone()).expect_err("a second server is refused").code_is(1);
        assert!(refusal.stderr.contains(&server.pid().to_string()), "the holder's pid: {}", refusal.stderr);
    }
    let created = array.run_create(16 << 20, &["--force"]).code_is(1);
    assert!(
        created.stderr.contains(&server.pid().to_string()),
        "--force is not for members in use: {}",
        created.stderr
    );
    assert_same(&client.read(0, data.len()), &data, "the first server goes on");
    client.disconnect();
    let _ = server.stop();
}

#[test]
fn read_only_writes_not_one_byte() {
    for shape in [shape::raid5_of_5_left_symmetric(), shape::raid1_of_2(), shape::rm2_of_7_adjacent()] {
        let array = Array::create(&shape);
        let image = Random::new(34).bytes(array.expected_size());
        let server = Server::start(&array);
        write_export(server.uri(), &image);
        let _ = server.stop();

        for absent in [&[][..], &[1]] {
            let present = array.without(absent);
            let before = files(&present);
            let options = if absent.is_empty() { &["--read-only"][..] } else { &["--read-only", "--degraded"] };
            let server = Server::start_members(&array, &present, options);
            let _ = client("nbdinfo", ["--is", "read-only", server.uri()]).success();
            assert_same(&read_export(server.uri()), &image, shape.name);
            let mut client = server.connect();
            for (command, payload) in
                [(Command::Write, &[1; 512][..]), (Command::WriteZeroes, &[]), (Command::Trim, &[])]
            {
                assert_eq!(client.call(command, 0, 512, payload).error, error::EPERM, "{command:?}");
            }
            client.flush();
            client.disconnect();
            let _ = server.stop();
            assert!(files(&present) == before, "{} without {absent:?}: contents and times stay", shape.name);
        }
    }
}

/// Not even the resync that an unclean stop asks for.
#[test]
fn read_only_leaves_a_dirty_array_as_it_is() {
    let array = Array::create(&shape::raid5_of_3());
    let model = killed_under_load(&array);
    let before = files(array.members());
    let server = Server::start_members(&array, array.members(), &["--read-only"]);
    assert_old_or_new(&read_export(server.uri()), &model, "read-only after a kill");
    let _ = server.stop();
    assert!(files(array.members()) == before, "contents and times stay");
}

#[test]
fn signals_stop_a_server_with_clients_connected() {
    for signal in [Signal::TERM, Signal::INT, Signal::HUP] {
        let array = Array::create(&shape::raid10_of_5());
        let server = hearing_hangups(&array, "default");
        let data = Random::new(35).bytes(64 << 10);
        let mut client = server.connect();
        let idle = server.connect();
        client.write(4096, &data);
        let socket = server.socket().to_owned();
        let _ = server.stop_with(signal);
        drop((client, idle));
        assert!(!socket.exists(), "the socket goes with the server");
        assert_eq!(array.examine()["state"].as_str(), Some("clean"));
        assert_same(&Content::read(&array).image()[4096..4096 + data.len()], &data, "acknowledged before the stop");
    }
}

/// Starts a server whose terminal may close, whatever these tests were started with: `default` or `ignore`.
fn hearing_hangups(array: &Array, how: &str) -> Server {
    let server = Server::command(array, array.members(), &[]);
    let mut command = std::process::Command::new("env");
    command.arg(format!("--{how}-signal=HUP")).arg(server.get_program()).args(server.get_args());
    command.envs(server.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Server::spawn(command, array.socket()).unwrap()
}

/// As nohup has it.
#[test]
fn a_server_that_is_to_ignore_hangups_does() {
    let array = Array::create(&shape::raid1_of_2());
    let server = hearing_hangups(&array, "ignore");
    let pid = Pid::from_raw(i32::try_from(server.pid()).unwrap()).unwrap();
    kill_process(pid, Signal::HUP).unwrap();
    let mut client = server.connect();
    client.write(0, &[3; 4096]);
    assert_eq!(client.read(0, 4096), [3; 4096]);
    let _ = server.stop();
}

#[test]
fn examine_tells_what_one_member_knows() {
    let array = Array::create(&shape::rm2_of_7_partitioned());
    let whole = array.examine();
    let uuids: Vec<String> = array.facts().into_iter().map(|member| member.uuid).collect();
    let alone = binary::examine(&array.members()[3..4]);
    for field in ["uuid", "name", "level", "layout", "chunk", "epoch", "state", "size"] {
        assert!(!whole[field].is_null(), "{field} in {whole:#}");
        assert_eq!(alone[field], whole[field], "{field}: each member knows the array");
    }
    assert_eq!((&whole["level"], &whole["layout"]), (&"rm2".into(), &"partitioned".into()));
    assert_eq!(alone["missing"].as_array().map(Vec::len), Some(6), "{alone:#}");
    let asked: Vec<_> = alone["members"].as_array().expect("examine lists members").iter().collect();
    let present = asked.iter().find(|member| member["path"].as_str() == array.members()[3].to_str());
    let present = present.unwrap_or_else(|| panic!("the member that was asked is in {alone:#}"));
    assert_eq!((present["uuid"].as_str(), present["slot"].as_u64()), (Some(uuids[3].as_str()), Some(3)));

    let stranger = array.path("stranger");
    std::fs::write(&stranger, vec![0; 4 << 20]).unwrap();
    let refusal = binary::uraid(["examine".as_ref(), stranger.as_os_str()]).code_is(1);
    assert!(refusal.stderr.contains("stranger"), "the file is named: {}", refusal.stderr);
}

#[test]
fn quickstart_serves_and_keeps_its_data() {
    let array = Array::planned(&shape::raid5_of_3());
    let demo = array.path("demo");
    let data = Random::new(36).bytes(128 << 10);
    for round in 0..2 {
        let mut quickstart = binary::command();
        quickstart.arg("quickstart").arg(&demo).current_dir(array.path("."));
        let server = Server::spawn(quickstart, demo.clone()).unwrap_or_else(|output| panic!("{output:?}"));
        let image = read_export(server.uri());
        assert!(image.len() >= 1 << 20, "an array worth trying: {} bytes", image.len());
        if round == 0 {
            assert!(image.iter().all(|&byte| byte == 0), "a new array reads as zeroes");
            let source = array.path("source.img");
            std::fs::write(&source, &data).unwrap();
            let arguments = ["convert", "-n", "-f", "raw", "-O", "raw", source.to_str().unwrap(), server.uri()];
            let _ = client("qemu-img", arguments).success();
        } else {
            assert_same(&image[..data.len()], &data, "started again, it serves the array that it made");
        }
        let _ = server.stop();
    }
}

/// fio's first report shows that it is in the middle of its writes; then it is gone.
fn kill_fio_under_load(uri: &str) {
    let mut fio = client_command("fio");
    fio.args(["--name=killed", "--ioengine=nbd", "--thread", "--rw=randwrite", "--bsrange=512-128k", "--iodepth=16"]);
    fio.args(["--size=8m", "--time_based", "--runtime=100", "--status-interval=1", "--output-format=json"]);
    fio.arg(format!("--uri={uri}"));
    let mut fio = Process::start_with_open_stdout(fio);
    let mut lines = BufReader::new(fio.take_stdout()).lines().map_while(Result::ok);
    assert!(lines.any(|line| line.contains("\"write\"")), "fio reports while it runs");
    fio.kill();
}

/// Fills the array, flushes more, then kills the server while writes to the busy region are in flight. Returns what the
/// array holds outside of the busy region, which is the `BUSY` bytes after the first `FLUSHED`.
fn killed_under_load(array: &Array) -> Vec<u8> {
    killed_under_load_with(array, &[])
}

/// The same, of a server with these options.
fn killed_under_load_with(array: &Array, options: &[&str]) -> Vec<u8> {
    let size = array.expected_size();
    let mut random = Random::new(37);
    let mut model = random.bytes(size);
    let server = Server::start_members(array, array.members(), options);
    write_export(server.uri(), &model);
    let mut client = server.connect();
    for _ in 0..32 {
        let (offset, length) = random.sectors(FLUSHED, 96 << 10);
        let data = random.bytes(length);
        client.write(offset, &data);
        model[offset..offset + length].copy_from_slice(&data);
    }
    client.flush();

    let mut in_flight = 0;
    for round in 0..200 {
        let (offset, length) = random.sectors(BUSY, 64 << 10);
        let payload = busy_sector(round).repeat(length / SECTOR);
        let size = u32::try_from(length).expect("a request's length fits 32 bits");
        client.submit(Command::Write, (FLUSHED + offset) as u64, size, &payload).expect("sending a write");
        in_flight += 1;
        if in_flight == 16 {
            assert_eq!(client.reply().expect("a reply").error, 0);
            in_flight -= 1;
        }
    }
    server.kill();
    // The kernel ends what the process had under way a moment after it, and then lets go of the members' locks.
    for member in array.members() {
        let words = ["--exclusive".as_ref(), member.as_os_str(), "true".as_ref()];
        let _ = uraid_tests::run::client("flock", words).success();
    }
    model
}

/// A sector of the load's write number `round`: the number all over.
fn busy_sector(round: u64) -> Vec<u8> {
    (0xb500 + round).to_le_bytes().repeat(SECTOR / 8)
}

/// What was flushed is there; each sector of the busy region is as it was before or whole from one of the load's
/// writes.
fn assert_old_or_new(image: &[u8], model: &[u8], what: &str) {
    let busy = FLUSHED..FLUSHED + BUSY;
    assert_same(&image[..busy.start], &model[..busy.start], &format!("{what}: flushed before the kill"));
    assert_same(&image[busy.end..], &model[busy.end..], &format!("{what}: not written since"));
    for (sector, (found, old)) in image[busy.clone()].chunks(SECTOR).zip(model[busy].chunks(SECTOR)).enumerate() {
        let word = u64::from_le_bytes(found[..8].try_into().expect("eight bytes"));
        let new = word.checked_sub(0xb500).filter(|&round| round < 200);
        let whole = found == old || new.is_some_and(|round| found == busy_sector(round));
        assert!(whole, "{what}: sector {sector} of the busy region is neither old nor new");
    }
}

/// Contents and modification times.
fn files(members: &[PathBuf]) -> Vec<(Vec<u8>, SystemTime)> {
    let file = |member: &PathBuf| {
        let mut open = std::fs::File::open(member).unwrap();
        let mut bytes = Vec::new();
        open.read_to_end(&mut bytes).unwrap();
        (bytes, open.metadata().unwrap().modified().unwrap())
    };
    members.iter().map(file).collect()
}
