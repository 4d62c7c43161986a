//! `uraid map` and `uraid layout` say where blocks lie: checked against the member files and the published formulas.

use std::ffi::OsString;

use serde_json::Value;
use uraid_tests::array::{Array, Member};
use uraid_tests::binary;
use uraid_tests::image::{Random, SECTOR, assert_same};
use uraid_tests::placement::{Level, MemberRow};
use uraid_tests::run::client;
use uraid_tests::server::Server;
use uraid_tests::shape::{self, Shape};

uraid_tests::for_every_shape!(map_agrees_with_the_members);

fn map_agrees_with_the_members(shape: &Shape) {
    let array = Array::create(shape);
    let facts = array.facts();
    let placement = array.placement(&facts);
    let size = array.expected_size();
    let mut random = Random::new(41);
    let sectors: Vec<usize> =
        [0, 1, size / SECTOR - 1].into_iter().chain((0..9).map(|_| random.below(size / SECTOR))).collect();
    let patterns: Vec<Vec<u8>> = sectors.iter().map(|_| random.bytes(SECTOR)).collect();
    let server = Server::start(&array);
    let mut client = server.connect();
    sectors.iter().zip(&patterns).for_each(|(&sector, pattern)| client.write(sector * SECTOR, pattern));
    client.flush();
    client.disconnect();
    let _ = server.stop();

    for (&sector, pattern) in sectors.iter().zip(&patterns) {
        let what = format!("{}, LBA {sector}", shape.name);
        let map = map(&["--lba".into(), sector.to_string().into()], array.members().iter().map(OsString::from));
        let (unit, within) = (sector * SECTOR / shape.chunk_bytes(), sector * SECTOR % shape.chunk_bytes());
        let copies = placement.copies(unit);
        let at = |place| (place, within, shape.chunk_bytes());
        assert_is_at(&map, at(copies[0]), &facts, &what);
        assert_same(&sector_on_disk(&map), pattern, &what);

        let expected: Vec<MemberRow> = copies[1..].iter().copied().chain(placement.parities(unit)).collect();
        let parity = map["parity"].as_array().unwrap_or_else(|| panic!("{what}: parity is a list in {map:#}"));
        assert_eq!(parity.len(), expected.len(), "{what}: parity units in {map:#}");
        for place in expected {
            let slot = Some(place.0 as u64);
            let found = parity.iter().find(|unit| unit["member"].as_u64() == slot);
            let found = found.unwrap_or_else(|| panic!("{what}: parity on slot {} in {map:#}", place.0));
            assert_is_at(found, at(place), &facts, &what);
            if matches!(shape.level, Level::Raid1 | Level::Raid10 { .. }) {
                assert_same(&sector_on_disk(found), pattern, &format!("{what}, copy"));
            }
        }
    }
}

/// Without files, members are numbered as slots.
#[test]
fn map_needs_no_files() {
    for shape in shape::all().iter().filter(|shape| !shape.name.contains("partitioned")) {
        let placement = uraid_tests::placement::Placement::new(&shape.level, shape.members, 600);
        for unit in [0, 1, shape.members, 3 * shape.members + 1] {
            let mut options: Vec<OsString> = shape.options().into_iter().map(OsString::from).collect();
            options.extend(["--members".into(), shape.members.to_string().into()]);
            options.extend(["--lba".into(), (unit * shape.chunk_bytes() / SECTOR).to_string().into()]);
            let map = map(&options, std::iter::empty());
            let slot = placement.copies(unit)[0].0;
            assert_eq!(map["member"].as_u64(), Some(slot as u64), "{}, unit {unit}: {map:#}", shape.name);
        }
    }
}

/// With members failed it still answers; in words as well as in JSON.
#[test]
fn map_tells_of_failed_members() {
    let array = Array::create(&shape::rm2_of_7_adjacent());
    for json in [&["--json"][..], &[]] {
        let mut words: Vec<OsString> =
            vec!["map".into(), "--lba".into(), "128".into(), "--failed".into(), "1,3".into()];
        words.extend(json.iter().map(OsString::from).chain(array.members().iter().map(OsString::from)));
        assert!(!binary::uraid(words).success().stdout.is_empty());
    }
    let beyond = (array.expected_size() / SECTOR).to_string();
    let words = ["map", "--lba", &beyond].into_iter().map(OsString::from);
    let refused = binary::uraid(words.chain(array.members().iter().map(OsString::from)));
    assert!(matches!(refused.code, Some(1 | 2)), "an LBA beyond the end: {refused:?}");
    assert!(!refused.stderr.contains("panicked"), "{}", refused.stderr);
}

/// The published figures, row by row.
#[test]
fn layout_draws_the_published_figures() {
    let raid5 = ["layout", "--level", "5", "--members", "5"];
    assert_draws(&raid5, &["0 1 2 3 P0", "5 6 7 P1 4", "10 11 P2 8 9", "15 P3 12 13 14", "P4 16 17 18 19"]);
    let raid6 = ["layout", "--level", "6", "--members", "5"];
    assert_draws(&raid6, &["Q0 0 1 2 P0", "3 4 5 P1 Q1", "7 8 P2 Q2 6", "11 P3 Q3 9 10", "P4 Q4 12 13 14"]);
    let rm2 = ["layout", "--level", "rm2", "--members", "7", "--rm2-m", "3"];
    let rows = ["P0 P1 P2 P3 P4 P5 P6", "D2,3 D3,4 D4,5 D5,6 D0,6 D0,1 D1,2", "D1,4 D2,5 D3,6 D0,4 D1,5 D2,6 D0,3"];
    assert_draws(&rm2, &rows);
}

/// `--stripes` counts parity stripes, however many rows the level gives one.
#[test]
fn layout_draws_as_many_stripes_as_asked_for() {
    for shape in [&["--level", "5", "--members", "5"][..], &["--level", "rm2", "--members", "7", "--rm2-m", "3"]] {
        let words = ["layout", "--json", "--stripes", "2"].iter().chain(shape);
        let drawn = binary::uraid(words).success().json();
        assert_eq!(drawn["stripes"].as_array().map(Vec::len), Some(2), "{shape:?}: {drawn:#}");
    }
}

/// Signs that are drawn are explained, and no others.
#[test]
fn layout_explains_its_signs() {
    let rm2 = ["--level", "rm2", "--members", "7", "--rm2-m", "3"];
    let cases: [(&[&str], &[&str]); 5] = [
        (&["--level", "0", "--members", "2"], &["n"]),
        (&["--level", "5", "--members", "3"], &["n", "Pn"]),
        (&["--level", "6", "--members", "4"], &["n", "Pn", "Qn"]),
        (&["--level", "10", "--members", "5", "--copies", "3"], &["n", "n'", "n'2"]),
        (&rm2, &["Da,b", "Pa"]),
    ];
    for (shape, signs) in cases {
        let drawn = binary::uraid(["layout"].iter().chain(shape)).success().text();
        let (_, legend) = drawn.split_once("\n\n").unwrap_or_else(|| panic!("a legend under:\n{drawn}"));
        let explained: Vec<&str> = legend.lines().skip(1).filter_map(|line| line.split_whitespace().next()).collect();
        assert_eq!(explained, signs, "{drawn}");
    }
}

/// The drawing needs nothing of a viewer that some do otherwise: no styles, no opacity, and each element says how it
/// is painted. librsvg and ImageMagick paint it light, with the colours that it names.
#[test]
fn layout_draws_for_all_viewers() {
    let directory = tempfile::tempdir().unwrap();
    let path = directory.path().join("rm2.svg");
    let file = path.to_str().unwrap();
    let words = ["layout", "--level", "rm2", "--members", "7", "--rm2-m", "3", "--svg"];
    assert_eq!(binary::uraid(words.iter().chain(&[file])).success().text(), "");
    let svg = std::fs::read_to_string(&path).unwrap();
    assert_eq!(binary::uraid(words.iter().chain(&["-"])).success().text(), svg);
    assert!(!svg.contains("style") && !svg.contains("opacity") && !svg.contains("class"), "{svg}");
    for element in svg.lines().filter(|line| line.starts_with("<rect") || line.starts_with("<text")) {
        assert!(element.contains(" fill=\"") && element.contains(" stroke=\""), "{element}");
    }
    for name in ["disk6", "P0", "D2,3", "row 0 (parity)", "parity of group a"] {
        assert!(svg.contains(&format!(">{name}")), "{name} is in {svg}");
    }
    let refused = binary::uraid(words.iter().chain(&["/no/such/directory/x.svg"])).code_is(1).stderr;
    assert!(refused.contains("/no/such/directory/x.svg"), "{refused}");

    let raw = |name: &str| directory.path().join(name).to_str().unwrap().to_owned();
    let (png, from_librsvg, from_imagemagick) = (raw("a.png"), raw("a.ppm"), raw("b.ppm"));
    let _ = client("rsvg-convert", ["--output", &png, file]).success();
    let _ = client("convert", [&png, "-depth", "8", &from_librsvg]).success();
    let _ = client("convert", [file, "-depth", "8", &from_imagemagick]).success();
    for picture in [&from_librsvg, &from_imagemagick] {
        let pixels = pixels(&std::fs::read(picture).unwrap());
        let share =
            |is: &dyn Fn(&[u8; 3]) -> bool| pixels.iter().filter(|pixel| is(pixel)).count() * 100 / pixels.len();
        assert!(share(&|pixel| pixel.iter().all(|&value| value < 64)) < 10, "{picture} is light");
        assert!(share(&|&pixel| pixel == [0xdc, 0xeb, 0xf7]) > 10, "{picture} has the colour of data");
        assert!(share(&|&pixel| pixel == [0xfd, 0xe3, 0xc8]) > 5, "{picture} has the colour of parity");
    }
}

/// The pixels of a binary PPM of 8 bits.
fn pixels(file: &[u8]) -> Vec<[u8; 3]> {
    let header = file.iter().enumerate().filter(|(_, byte)| byte.is_ascii_whitespace()).nth(3).unwrap().0;
    assert!(file.starts_with(b"P6"), "a binary PPM");
    file[header + 1..].chunks_exact(3).map(|pixel| [pixel[0], pixel[1], pixel[2]]).collect()
}

fn assert_draws(arguments: &[&str], rows: &[&str]) {
    let drawn = binary::uraid(arguments).success().text();
    let lines: Vec<String> = drawn.lines().map(|line| line.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    let mut rest = lines.iter();
    for row in rows {
        assert!(rest.any(|line| line.ends_with(row)), "the row {row} in its place in:\n{drawn}");
    }
}

fn map(options: &[OsString], members: impl Iterator<Item = OsString>) -> Value {
    let words = ["map", "--json"].into_iter().map(OsString::from);
    binary::uraid(words.chain(options.iter().cloned()).chain(members)).success().json()
}

/// Fails unless `found` names this place: slot, and sector counted from the start of the member file.
fn assert_is_at(found: &Value, (place, within, chunk): (MemberRow, usize, usize), facts: &[Member], what: &str) {
    let (slot, row) = place;
    let sector = (facts[slot].data_offset + row * chunk + within) / SECTOR;
    assert_eq!(found["member"].as_u64(), Some(slot as u64), "{what}: member in {found:#}");
    assert_eq!(found["sector"].as_u64(), Some(sector as u64), "{what}: sector in {found:#}");
}

/// The sector that `found` names, read from the file that it names.
fn sector_on_disk(found: &Value) -> Vec<u8> {
    let path = found["path"].as_str().unwrap_or_else(|| panic!("path in {found:#}"));
    let sector = found["sector"].as_u64().unwrap_or_else(|| panic!("sector in {found:#}"));
    let start = usize::try_from(sector).expect("a sector number fits a size") * SECTOR;
    std::fs::read(path).expect("reading a member")[start..start + SECTOR].to_vec()
}
