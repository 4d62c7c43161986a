//! An array in a temporary directory: created by the real binary, its member files read by this harness alone.

use std::ffi::OsString;
use std::fs::OpenOptions;
use std::os::unix::fs::{FileExt as _, MetadataExt as _};
use std::path::{Path, PathBuf};

use serde_json::Value;
use tempfile::TempDir;

use crate::binary;
use crate::image::assert_same;
use crate::placement::{MemberRow, Placement, product};
use crate::process::Output;
use crate::shape::{MEMBER_BYTES, Shape};

/// Members of one array, in slot order, in a directory that goes when this is dropped.
#[derive(Debug)]
pub struct Array {
    /// What the array was created as.
    pub shape: Shape,
    directory: TempDir,
    members: Vec<PathBuf>,
}

/// A member as `uraid examine --json` tells it.
#[derive(Clone, Debug)]
pub struct Member {
    /// Its own UUID.
    pub uuid: String,
    /// First byte of the data area.
    pub data_offset: usize,
    /// Bytes of the data area.
    pub data_size: usize,
}

/// Bytes of space that a file has.
#[must_use]
pub fn space(path: &Path) -> u64 {
    std::fs::metadata(path).expect("it is there").blocks() * 512
}

impl Array {
    /// A new array of members of [`MEMBER_BYTES`].
    #[must_use]
    #[track_caller]
    pub fn create(shape: &Shape) -> Self {
        Self::create_sized(shape, MEMBER_BYTES)
    }

    /// A new array of members of `member_bytes`.
    #[must_use]
    #[track_caller]
    pub fn create_sized(shape: &Shape, member_bytes: usize) -> Self {
        let array = Self::planned(shape);
        let _ = array.run_create(member_bytes, &[]).success();
        array
    }

    /// The paths of an array that does not exist yet.
    ///
    /// # Panics
    /// When no temporary directory can be made.
    #[must_use]
    pub fn planned(shape: &Shape) -> Self {
        Self::planned_in(shape, &std::env::temp_dir())
    }

    /// The paths of an array that does not exist yet, in a new directory in `place`.
    ///
    /// # Panics
    /// When the directory can't be made.
    #[must_use]
    pub fn planned_in(shape: &Shape, place: &Path) -> Self {
        let directory = tempfile::Builder::new().prefix("uraid-").tempdir_in(place).expect("a temporary directory");
        let members = (0..shape.members).map(|slot| directory.path().join(format!("member{slot}"))).collect();
        Self { shape: shape.clone(), directory, members }
    }

    /// Runs `uraid create` for this array's members, with `more` options.
    #[track_caller]
    pub fn run_create(&self, member_bytes: usize, more: &[&str]) -> Output {
        let mut arguments: Vec<OsString> = vec!["create".into()];
        arguments.extend(self.shape.options().into_iter().map(OsString::from));
        arguments.extend(["--size".into(), format!("{}M", member_bytes >> 20).into()]);
        arguments.extend(more.iter().map(OsString::from));
        arguments.extend(self.members.iter().map(OsString::from));
        binary::uraid(arguments)
    }

    /// The same array once more, byte by byte, in a directory of its own.
    ///
    /// # Panics
    /// When a member can't be copied.
    #[must_use]
    pub fn copy(&self) -> Self {
        let copy = Self::planned(&self.shape);
        for (from, to) in self.members.iter().zip(&copy.members) {
            std::fs::copy(from, to).expect("copying a member");
        }
        copy
    }

    /// Leaves the directory where it is, which is returned.
    #[must_use]
    pub fn keep(self) -> PathBuf {
        self.directory.keep()
    }

    /// Every member, in slot order.
    #[must_use]
    pub fn members(&self) -> &[PathBuf] {
        &self.members
    }

    /// Bytes of space that the members have.
    #[must_use]
    pub fn space(&self) -> u64 {
        self.members.iter().map(|member| space(member)).sum()
    }

    /// The members that are not in `absent`.
    #[must_use]
    pub fn without(&self, absent: &[usize]) -> Vec<PathBuf> {
        let present = self.members.iter().enumerate().filter(|(slot, _)| !absent.contains(slot));
        present.map(|(_, member)| member.clone()).collect()
    }

    /// Moves the members in `absent` out of the way, so that nothing can open them.
    ///
    /// # Panics
    /// When one can't be renamed.
    pub fn remove(&self, absent: &[usize]) {
        for &slot in absent {
            std::fs::rename(&self.members[slot], self.moved(slot)).expect("moving a member away");
        }
    }

    /// Moves the members in `absent` back.
    ///
    /// # Panics
    /// When one can't be renamed.
    pub fn restore(&self, absent: &[usize]) {
        for &slot in absent {
            std::fs::rename(self.moved(slot), &self.members[slot]).expect("moving a member back");
        }
    }

    /// A path in the array's directory.
    #[must_use]
    pub fn path(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    /// Where the array is served.
    #[must_use]
    pub fn socket(&self) -> PathBuf {
        self.path("nbd.sock")
    }

    /// What `uraid examine --json` tells of all members.
    #[must_use]
    #[track_caller]
    pub fn examine(&self) -> Value {
        binary::examine(&self.members)
    }

    /// Has the first row rot: a block of what two members hold there is another one.
    ///
    /// # Panics
    /// When the members can't be written.
    #[track_caller]
    pub fn rot_first_row(&self) {
        let examined = self.examine();
        for slot in [0, 1] {
            let start = examined["members"][slot]["data_offset"].as_u64().expect("a member has data");
            let file = OpenOptions::new().write(true).open(&self.members[slot]).expect("a member's file");
            file.write_all_at(&[7; 4096], start).expect("the file can be written");
        }
    }

    /// The facts of each member, in slot order.
    #[must_use]
    #[track_caller]
    pub fn facts(&self) -> Vec<Member> {
        let examined = self.examine();
        let listed = examined["members"].as_array().expect("examine lists members");
        assert_eq!(listed.len(), self.members.len(), "examine lists every member: {examined:#}");
        let of_slot = |slot: usize| {
            let number = u64::try_from(slot).expect("a slot fits 64 bits");
            let member = listed.iter().find(|member| member["slot"].as_u64() == Some(number));
            let member = member.unwrap_or_else(|| panic!("slot {slot} is in {examined:#}"));
            let path = member["path"].as_str().map(Path::new);
            assert_eq!(path, Some(self.members[slot].as_path()), "slots follow the order given to create");
            let size = |field: &str| {
                let bytes = member[field].as_u64().unwrap_or_else(|| panic!("{field} is a number in {member:#}"));
                usize::try_from(bytes).expect("a size fits the address space")
            };
            let uuid = member["uuid"].as_str().unwrap_or_else(|| panic!("uuid is text in {member:#}")).to_owned();
            Member { uuid, data_offset: size("data_offset"), data_size: size("data_size") }
        };
        (0..self.members.len()).map(of_slot).collect()
    }

    /// The array's size in bytes, from the level's formula and the members' data areas.
    #[must_use]
    #[track_caller]
    pub fn expected_size(&self) -> usize {
        self.placement(&self.facts()).units() * self.shape.chunk_bytes()
    }

    /// Where the array's blocks lie, given its members' facts.
    #[must_use]
    pub fn placement(&self, facts: &[Member]) -> Placement {
        let smallest = facts.iter().map(|member| member.data_size).min().expect("an array has members");
        Placement::new(&self.shape.level, facts.len(), smallest / self.shape.chunk_bytes())
    }

    fn moved(&self, slot: usize) -> PathBuf {
        self.path(&format!("gone{slot}"))
    }
}

/// The data areas of all members, and where the array's blocks lie in them.
#[derive(Debug)]
pub struct Content {
    facts: Vec<Member>,
    placement: Placement,
    chunk_bytes: usize,
    areas: Vec<Vec<u8>>,
}

impl Content {
    /// Reads every member of an array that nothing serves.
    ///
    /// # Panics
    /// When a member can't be read or is shorter than its superblock says.
    #[must_use]
    #[track_caller]
    pub fn read(array: &Array) -> Self {
        let facts = array.facts();
        let area = |(path, member): (&PathBuf, &Member)| {
            let bytes = std::fs::read(path).expect("reading a member");
            bytes[member.data_offset..member.data_offset + member.data_size].to_vec()
        };
        let areas: Vec<Vec<u8>> = array.members.iter().zip(&facts).map(area).collect();
        Self { placement: array.placement(&facts), chunk_bytes: array.shape.chunk_bytes(), areas, facts }
    }

    /// The array's data, put together from the members by the placement's formulas.
    #[must_use]
    pub fn image(&self) -> Vec<u8> {
        let units = 0..self.placement.units();
        units.map(|unit| self.chunk(self.placement.copies(unit)[0])).collect::<Vec<_>>().concat()
    }

    /// Fails unless every parity group agrees and every copy equals its original.
    #[track_caller]
    pub fn assert_consistent(&self, what: &str) {
        for group in self.placement.groups() {
            let mut sum = vec![0; self.chunk_bytes];
            for &(place, factor) in &group {
                for (byte, &operand) in sum.iter_mut().zip(self.chunk(place)) {
                    *byte ^= if factor == 1 { operand } else { product(operand, factor) };
                }
            }
            if let Some(at) = sum.iter().position(|&byte| byte != 0) {
                panic!("{what}: the group of (slot, row) {group:?} does not agree from byte {at} of the chunk");
            }
        }
    }

    /// Fails unless the members hold `expected`, where the formulas say, with every parity right.
    #[track_caller]
    pub fn assert_holds(&self, expected: &[u8], what: &str) {
        assert_same(&self.image(), expected, &format!("{what}: data put together from the members"));
        self.assert_consistent(what);
    }

    /// What the members said of themselves.
    #[must_use]
    pub fn facts(&self) -> &[Member] {
        &self.facts
    }

    /// What a member holds at a place.
    #[must_use]
    pub fn at(&self, place: MemberRow) -> &[u8] {
        self.chunk(place)
    }

    fn chunk(&self, (slot, row): MemberRow) -> &[u8] {
        &self.areas[slot][row * self.chunk_bytes..(row + 1) * self.chunk_bytes]
    }
}
