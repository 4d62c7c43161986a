//! The layouts' judges: Linux md for the levels that it has, in the guest; for RM2 the published formulas, here.
//!
//! Content is put together from the members by the end-to-end tests' oracle, which knows none of the crates under test.

use std::fs;
use std::path::Path;

use anyhow::{Context as _, ensure};
use serde_json::Value;
use uraid_tests::image::Random;
use uraid_tests::placement::{MemberRow, Placement};
use uraid_tests::shape::{self, Shape};

/// Bytes of random content that the guest writes parts of: more than the largest array has.
const POOL_BYTES: usize = 40 << 20;

/// The guest's script: `script`, and a line for each RM2 array.
pub(super) fn script(script: &str) -> String {
    rm2().iter().fold(script.to_owned(), |script, (name, shape)| {
        format!("{script}leave {name} {} {}\n", shape.members, shape.options().join(" "))
    })
}

/// Puts the pool into the share.
pub(super) fn prepare(share: &Path) -> anyhow::Result<()> {
    fs::write(share.join("pool"), Random::new(1).bytes(POOL_BYTES)).context("writing the pool")
}

/// Judges the RM2 arrays that the guest left in `share`.
///
/// # Errors
/// When data is not where the formulas say, or a parity group does not XOR to zero.
pub(super) fn judge(share: &Path) -> anyhow::Result<()> {
    for (name, shape) in rm2() {
        let members = Members::read(&share.join(name), &shape).with_context(|| format!("reading {name}"))?;
        let expected = fs::read(share.join(name).join("expected"))?;
        members.judge(&expected).with_context(|| name.to_owned())?;
    }
    Ok(())
}

fn rm2() -> [(&'static str, Shape); 3] {
    [
        ("rm2-of-7-adjacent", shape::rm2_of_7_adjacent()),
        ("rm2-of-7-partitioned", shape::rm2_of_7_partitioned()),
        ("rm2-of-6", shape::rm2_of_6()),
    ]
}

/// The data areas of an array's members.
struct Members {
    placement: Placement,
    chunk: usize,
    areas: Vec<Vec<u8>>,
}

impl Members {
    fn read(directory: &Path, shape: &Shape) -> anyhow::Result<Self> {
        let examined: Value = serde_json::from_slice(&fs::read(directory.join("examined"))?)?;
        let listed = examined["members"].as_array().context("examine lists members")?;
        let mut areas = vec![Vec::new(); shape.members];
        for member in listed {
            let number = |field: &str| -> anyhow::Result<usize> {
                let value = member[field].as_u64().with_context(|| format!("{field} is a number in {member}"))?;
                Ok(usize::try_from(value)?)
            };
            let (slot, offset, size) = (number("slot")?, number("data_offset")?, number("data_size")?);
            let bytes = fs::read(directory.join(format!("member{slot}")))?;
            let area = bytes.get(offset..offset + size).context("a member holds its data area")?;
            *areas.get_mut(slot).context("a slot of this shape")? = area.to_vec();
        }
        let chunk = shape.chunk_bytes();
        let smallest = areas.iter().map(Vec::len).min().unwrap_or_default();
        Ok(Self { placement: Placement::new(&shape.level, shape.members, smallest / chunk), chunk, areas })
    }

    fn judge(&self, expected: &[u8]) -> anyhow::Result<()> {
        let units = self.placement.units();
        ensure!(expected.len() == units * self.chunk, "{} bytes, and not {units} units", expected.len());
        for (unit, expected) in expected.chunks_exact(self.chunk).enumerate() {
            let place = self.placement.copies(unit)[0];
            ensure!(self.chunk_at(place) == expected, "unit {unit} is not at (slot, row) {place:?}");
        }
        for group in self.placement.groups() {
            let mut sum = vec![0; self.chunk];
            for &(place, _) in &group {
                sum.iter_mut().zip(self.chunk_at(place)).for_each(|(sum, byte)| *sum ^= byte);
            }
            ensure!(sum.iter().all(|&byte| byte == 0), "the group of (slot, row) {group:?} does not XOR to zero");
        }
        Ok(())
    }

    fn chunk_at(&self, (slot, row): MemberRow) -> &[u8] {
        &self.areas[slot][row * self.chunk..(row + 1) * self.chunk]
    }
}
