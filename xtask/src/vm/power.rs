//! Power cuts: QEMU killed while files are written to file systems on arrays, then a new life with the same disks.
//!
//! The disks have a volatile write cache: of what no flush covered, each sector is there or not. A file counts from the
//! moment that its guest reports it on the second serial port, after fsync returned. Disks that are lost with the power
//! are blank in the next life.

use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context as _, ensure};
use uraid_tests::image::Random;

use super::machine::{Disks, Machine, REPORTS, Setup};
use super::volatile::VolatileDisks;
use crate::project::eprint_step;

/// Bytes of random content that the guest writes parts of.
const POOL_BYTES: usize = 4 << 20;
/// Between two looks at the guest.
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// How often, and what chance decides.
#[derive(Clone, Copy)]
pub(super) struct Cuts {
    pub(super) count: u32,
    pub(super) seed: u64,
}

/// Cuts the power of guests with these disks `cuts.count` times. One of each of `losable` is lost with the power then,
/// sometimes; `setup` and `renew`, which makes an image blank, are those of the scenario.
///
/// # Errors
/// When a guest is not as it should be: a file is missing or wrong, a file system is damaged, parity does not agree.
pub(super) fn run(
    setup: &Setup<'_>,
    images: &[PathBuf],
    losable: &[&[usize]],
    cuts: &Cuts,
    within: Duration,
    renew: impl Fn(&Path) -> anyhow::Result<()>,
) -> anyhow::Result<()> {
    let mut random = Random::new(cuts.seed);
    fs::write(setup.share.join("pool"), random.bytes(POOL_BYTES)).context("writing the pool")?;
    fs::write(setup.share.join("synced"), "")?;
    let (mut lost, mut synced) = (Vec::new(), 0);
    for round in 1..=cuts.count + 1 {
        // With members lost the next load either waits for the rebuild or is cut with it; what is cut is not lost yet
        // again.
        let last = round > cuts.count;
        let wait = last || lost.is_empty() || random.below(2) == 0;
        let listed = lost.iter().fold(String::from(" "), |listed, slot| format!("{listed}{slot} "));
        let name = if last { "last".to_owned() } else { round.to_string() };
        let variables = [("ROUND", name), ("LOST", listed), ("WAIT", (if wait { "yes" } else { "no" }).to_owned())];
        let disks = VolatileDisks::serve(images, setup.share)?;
        let disks_served = Disks::Volatile(disks.sockets());
        let machine = Machine::start(&Setup { variables: &variables, disks: disks_served, ..*setup })?;
        if last {
            machine.finish(within)?;
            break;
        }
        let reports = cut(machine, setup.share, 20 + random.below(80), within, &mut random)?;
        let (cached, forgotten) = disks.cut_power(&mut random)?;
        synced += reports.lines().count();
        fs::write(setup.share.join("synced"), reports)?;
        lost = if wait && random.below(3) > 0 { choose(losable, &mut random) } else { Vec::new() };
        lost.iter().try_for_each(|&slot| renew(images.get(slot).context("the guest has this disk")?))?;
        let mut said = format!(
            "cut {round}: {synced} files were synced so far; {cached} sectors were not flushed, {forgotten} of them \
             went back"
        );
        if !lost.is_empty() {
            write!(said, ", disks {lost:?} are lost").expect("a string takes every write");
        }
        eprint_step(&said);
    }
    ensure!(synced > 0, "no guest ever reported a file");
    Ok(())
}

/// Waits until the guest has reported so many files, and a random moment longer; cuts its power and returns what it
/// reported.
fn cut(
    mut machine: Machine,
    share: &Path,
    files: usize,
    within: Duration,
    random: &mut Random,
) -> anyhow::Result<String> {
    let deadline = Instant::now() + within;
    while reports(share)?.lines().count() < files {
        machine.check_alive()?;
        if Instant::now() >= deadline {
            return Err(machine.explained(&format!("it did not report {files} files within {} s", within.as_secs())));
        }
        std::thread::sleep(LOOK_EVERY);
    }
    // The load's length is up to chance: the cut shall fall anywhere between two reports.
    std::thread::sleep(Duration::from_millis(random.bits() % 500));
    machine.cut_power();
    reports(share)
}

/// The whole lines of what the guest reported.
fn reports(share: &Path) -> anyhow::Result<String> {
    let bytes = fs::read(share.join(REPORTS)).context("reading the guest's reports")?;
    let text = String::from_utf8_lossy(&bytes).replace('\r', "");
    Ok(text.rfind('\n').map_or_else(String::new, |end| text[..=end].to_owned()))
}

fn choose(losable: &[&[usize]], random: &mut Random) -> Vec<usize> {
    losable.iter().map(|choices| random.pick(choices)).collect()
}
