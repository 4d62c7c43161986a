//! `uraid configure`, and what `create` and `examine` say about consistency.

use uraid_tests::array::{Array, Content};
use uraid_tests::binary;
use uraid_tests::image::{Random, read_export, write_export};
use uraid_tests::process::Output;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, MEMBER_BYTES, Shape};

fn configure(array: &Array, absent: &[usize], mode: &str) -> Output {
    let mut words = vec!["configure".into(), "--consistency".into(), mode.into(), "--json".into()];
    words.extend(array.without(absent).into_iter().map(|member| member.into_os_string()));
    binary::uraid(words)
}

fn consistency(array: &Array) -> String {
    array.examine()["consistency"].as_str().expect("examine tells").to_owned()
}

#[test]
fn levels_have_their_own_default() {
    for (shape, expected) in [
        (shape::raid0_of_4(), "none"),
        (shape::raid1_of_2(), "bitmap"),
        (shape::raid10_of_5(), "bitmap"),
        (shape::raid5_of_3(), "log"),
        (shape::rm2_of_6(), "log"),
    ] {
        let array = Array::create(&shape);
        assert_eq!(consistency(&array), expected, "{}", shape.name);
    }
}

/// Content stays what it is, whatever the mode it was written in.
#[test]
fn the_mode_of_an_array_in_use_can_be_changed() {
    for shape in [shape::raid1_of_2(), shape::raid5_of_3(), shape::rm2_of_6()] {
        let array = Array::create(&shape);
        let mut random = Random::new(51);
        for mode in ["none", "bitmap", "log", "bitmap", "none", "log"] {
            let epoch = array.examine()["epoch"].as_u64();
            let said = configure(&array, &[], mode).success().json();
            assert_eq!(said["consistency"], mode, "{}", shape.name);
            assert_eq!(said["epoch"].as_u64(), epoch.map(|epoch| epoch + 1), "{}: a round of its own", shape.name);
            let image = random.bytes(array.expected_size());
            let server = Server::start(&array);
            write_export(server.uri(), &image);
            assert!(read_export(server.uri()) == image, "{} with {mode}", shape.name);
            let _ = server.stop();
            Content::read(&array).assert_holds(&image, shape.name);
            assert_eq!(consistency(&array), mode, "{}: after a run", shape.name);
        }
    }
}

#[test]
fn what_can_not_be_configured_says_why_and_is_left_alone() {
    let array = Array::create(&shape::raid5_of_3());
    let degraded = configure(&array, &[1], "none").code_is(1);
    assert!(degraded.stderr.contains("member 1 is missing"), "{}", degraded.stderr);
    let server = Server::start(&array);
    let busy = configure(&array, &[], "none").code_is(1);
    assert!(busy.stderr.contains(&server.pid().to_string()), "who uses it: {}", busy.stderr);
    let mut client = server.connect();
    client.write(0, &[1; 4096]);
    client.flush();
    server.kill();
    let dirty = configure(&array, &[], "none").code_is(1);
    assert!(dirty.stderr.contains("serve it and stop it once"), "what to do: {}", dirty.stderr);
    assert_eq!(consistency(&array), "log");
    let _ = Server::start(&array).stop();
    let _ = configure(&array, &[], "none").success();

    let array = Array::create(&shape::raid0_of_4());
    let useless = configure(&array, &[], "bitmap").code_is(2);
    assert!(useless.stderr.contains("--consistency none"), "what to do: {}", useless.stderr);
}

#[test]
fn a_log_has_the_size_asked_for_or_is_refused() {
    let log = |array: &Array| array.examine()["members"][0]["log_size"].as_u64().expect("examine tells");
    let shape: Shape = shape::rm2_of_6();
    let array = Array::planned(&shape);
    let _ = array.run_create(MEMBER_BYTES, &["--log-size", "5M"]).success();
    assert!(log(&array) >= 5 << 20 && log(&array) < 6 << 20, "rounded up by less than a mebibyte: {}", log(&array));

    let array = Array::planned(&shape);
    let refused = array.run_create(MEMBER_BYTES, &["--log-size", "64K"]).code_is(2);
    assert!(refused.stderr.contains("--log-size"), "what to do: {}", refused.stderr);
    let refused = array.run_create(MEMBER_BYTES, &["--log-size", "15M"]).code_is(1);
    assert!(refused.stderr.contains("make the members larger"), "what to do: {}", refused.stderr);
    assert!(array.members().iter().all(|member| !member.exists()), "no member file was made");
    let _ = array.run_create(MEMBER_BYTES, &["--log-size", "64K", "--consistency", "none"]).success();
}
