//! Which chunk size for which disks and load: the papers' rules.
//!
//! The rules rest on one property of a disk, its *performance product*: positioning time times transfer rate, the bytes
//! it could have read while it got there (Chen & Lee 1993; Park & Choe's for RM2 count tracks). They were found on
//! arrays of rotating disks. An answer is the power of two nearest to what the rule gives, among the chunks that arrays
//! can have. [`trial`] simulates instead. Nothing here measures.

mod drive;
mod error;
pub mod trial;

use uraid_layout::{Bytes, Level};

pub use drive::Drive;
use drive::FLASH_MAX_MS;
pub use error::AdviseError;

/// What is known of the load.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Load {
    /// The share of requests that are reads, 0 to 1.
    pub reads: Option<f64>,
    /// How many requests are under way at a time.
    pub concurrency: Option<u32>,
    /// The mean size of requests.
    pub request: Option<Bytes>,
}

/// What a rule says.
#[derive(Clone, Debug, PartialEq)]
pub struct Answer {
    /// Whose rule it is, and for what.
    pub rule: &'static str,
    /// The rule with its numbers.
    pub formula: String,
    /// What it gives.
    pub exact: Bytes,
    /// The chunk to take.
    pub chunk: Bytes,
    /// What that chunk is worth.
    pub guarantee: &'static str,
}

/// What to do, and why.
#[derive(Clone, Debug, PartialEq)]
pub struct Advice {
    /// The answers: the one to take, then what else is known.
    pub answers: Vec<Answer>,
    /// What else to know about them.
    pub remarks: Vec<String>,
}

/// Table 2 of Chen & Lee, the averages: striping unit over performance product, at 17 disks.
const S_READS: f64 = 0.25;
const S_WRITES: f64 = 0.056;
const Z_READS: f64 = 0.69;
const Z_WRITES: f64 = 0.18;
/// "In the absence of specific workload information", for any number of disks.
const Z_MIX: f64 = 0.5;
const DISKS_OF_TABLE_2: f64 = 17.0;
const SECTOR: f64 = 512.0;
/// Park & Choe: of reads alone, in tracks.
const RM2_TRACKS_READS: f64 = 2.5;

/// The chunks that are offered: powers of two, which any array can have.
const CHUNK_SHIFTS: std::ops::RangeInclusive<u32> = 12..=20;

/// How far a chunk of those may be from what a rule gives, as a power of two: half way to the next.
const NEAR: f64 = 0.51;

/// Every chunk that is offered, from small to large.
pub fn chunks() -> impl Iterator<Item = Bytes> {
    CHUNK_SHIFTS.map(|shift| Bytes(1 << shift))
}

impl Load {
    /// What is known, each with the load of which it is not.
    fn facts(self) -> impl Iterator<Item = (&'static str, Self)> {
        let facts = [
            (self.reads.is_some(), "the share of reads", Self { reads: None, ..self }),
            (self.concurrency.is_some(), "the number of requests at a time", Self { concurrency: None, ..self }),
            (self.request.is_some(), "the size of requests", Self { request: None, ..self }),
        ];
        facts.into_iter().filter(|(is_known, ..)| *is_known).map(|(_, fact, without)| (fact, without))
    }
}

/// What the rules say for an array of `members` such disks.
///
/// # Errors
/// When a number makes no sense.
pub fn advise(level: Level, members: u8, drive: &Drive, load: &Load) -> Result<Advice, AdviseError> {
    drive.check()?;
    let number = |what, value, wanted| Err(AdviseError::Number { what, value, wanted });
    if let Some(reads) = load.reads
        && !(0.0..=1.0).contains(&reads)
    {
        return number("the share of reads", reads, "0 to 1");
    }
    if load.concurrency == Some(0) {
        return number("the concurrency", 0.0, "at least 1");
    }
    if load.request == Some(Bytes(0)) {
        return number("the request size", 0.0, "more than nothing");
    }
    let mut advice = by_rules(level, members, drive, load);
    if drive.positioning_ms < FLASH_MAX_MS && level != Level::Raid1 {
        advice.remarks.push(
            "these rules were found on rotating disks, and this is none: a measurement (`uraid bench chunk`) says more"
                .into(),
        );
    }
    let unused = load.facts().filter(|(_, without)| by_rules(level, members, drive, without).answers == advice.answers);
    let unused: Vec<&str> = unused.map(|(fact, _)| fact).collect();
    advice.remarks.extend(
        unused.into_iter().map(|fact| format!("these rules make no use of {fact} that is given; a simulation does")),
    );
    let Answer { exact, chunk, .. } = advice.answers[0];
    let distance = (exact.0 as f64 / chunk.0 as f64).log2().abs();
    if distance > NEAR {
        advice.remarks.push(
            "the rule's unit is beyond the chunks that arrays can have, so what it is worth holds for \
            that, not for the chunk"
                .into(),
        );
    }
    Ok(advice)
}

fn by_rules(level: Level, members: u8, drive: &Drive, load: &Load) -> Advice {
    let rules = Rules { product: drive.product_bytes(), load: *load };
    match level {
        Level::Raid0 => rules.striped(members.into(), Vec::new()),
        Level::Raid10 { copies } => {
            let remark = "nothing is published for striped mirrors: the rules for RAID 0 are taken, with the disks \
                that one copy has";
            rules.striped(f64::from(members) / f64::from(copies), vec![remark.into()])
        }
        Level::Raid1 => Advice {
            answers: vec![answer(
                "RAID 1",
                "the default, as every member has all of the data".into(),
                f64::from(64 << 10),
                "as much as any other chunk",
            )],
            remarks: Vec::new(),
        },
        Level::Raid5 { .. } => rules.raid5(members.into()),
        Level::Raid6 { .. } => {
            let mut advice = rules.raid5(members.into());
            advice.remarks.push("nothing is published for RAID 6: the rules for RAID 5 are taken".into());
            advice
        }
        Level::Rm2 { height, .. } => rules.rm2(members.into(), height, drive.track),
    }
}

/// What all rules need.
struct Rules {
    /// The performance product.
    product: f64,
    load: Load,
}

impl Rules {
    /// Reads of all levels, and writes where there is no parity.
    fn striped(&self, disks: f64, mut remarks: Vec<String>) -> Advice {
        let mut answers = match self.load.concurrency {
            Some(concurrency) => self.known(concurrency, S_READS, "reads", "95 % of the best for any request size"),
            None => vec![self.unknown_reads(disks)],
        };
        answers.extend(self.lee_katz(disks));
        self.remark(&mut remarks);
        Advice { answers, remarks }
    }

    fn raid5(&self, disks: f64) -> Advice {
        let Load { reads, concurrency, .. } = self.load;
        if reads == Some(1.0) {
            return self.striped(disks, Vec::new());
        }
        let mut remarks = Vec::new();
        let mix = answer(
            "Chen & Lee, nothing known",
            format!("1/2 x {}", kib(self.product)),
            Z_MIX * self.product,
            "60 % of the best for any request size, concurrency, mix of reads and writes, and number of disks",
        );
        let answers = match (reads, concurrency) {
            (Some(0.0), Some(concurrency)) => {
                self.known(concurrency, S_WRITES, "writes", "90 % of the best for any request size")
            }
            (Some(0.0), None) => {
                if disks < DISKS_OF_TABLE_2 {
                    remarks.push(
                        "with fewer than 17 disks the best unit for writes is somewhat smaller (Chen & Lee Figure 7)"
                            .into(),
                    );
                }
                let formula = format!("{Z_WRITES} x {}", kib(self.product));
                let guarantee = "70 % of the best for any request size and concurrency";
                vec![answer("Chen & Lee, writes", formula, Z_WRITES * self.product, guarantee), mix]
            }
            (_, Some(concurrency)) => {
                remarks.push(
                    "no rule is published for a mix of known concurrency; its best unit is between those of \
                    reads and of writes alone"
                        .into(),
                );
                let mut answers = vec![mix];
                answers.extend(self.known(
                    concurrency,
                    S_READS,
                    "reads",
                    "95 % of the best for any request size, of reads",
                ));
                answers.extend(self.known(
                    concurrency,
                    S_WRITES,
                    "writes",
                    "90 % of the best for any request size, of writes",
                ));
                answers
            }
            (_, None) => vec![mix],
        };
        self.remark(&mut remarks);
        Advice { answers, remarks }
    }

    fn rm2(&self, disks: f64, height: u8, track: Option<Bytes>) -> Advice {
        let Some(track) = track else {
            let mut advice =
                Rules { product: self.product, load: Load { concurrency: None, ..self.load } }.raid5(disks);
            advice
                .remarks
                .push("RM2's rules count tracks, and this disk's are not known: those for RAID 5 are taken".into());
            return advice;
        };
        let track_bytes = track.0 as f64;
        let mut remarks = Vec::new();
        let first = if self.load.reads == Some(1.0) {
            let formula = format!("{RM2_TRACKS_READS} x {}, a track", kib(track_bytes));
            answer(
                "Park & Choe, RM2, reads alone",
                formula,
                RM2_TRACKS_READS * track_bytes,
                "the best unit that Park & Choe simulated; they give no share",
            )
        } else {
            let formula = format!("{}, a track, / {height}, the rows of a parity stripe", kib(track_bytes));
            remarks.push(
                "a track then holds all that one disk has of a parity stripe, which large writes read and \
                write back; zoned disks have longer tracks outside"
                    .into(),
            );
            answer(
                "Park & Choe, RM2, any writes",
                formula,
                track_bytes / f64::from(height),
                "the best unit that Park & Choe simulated; they give no share",
            )
        };
        let half = format!("1/2 x {}", kib(self.product));
        let second =
            answer("Chen & Lee, RAID 5, nothing known", half, Z_MIX * self.product, "60 % of the best, on RAID 5");
        Advice { answers: vec![first, second], remarks }
    }

    /// Chen & Lee's rule where the concurrency is known.
    fn known(&self, concurrency: u32, slope: f64, of: &str, guarantee: &'static str) -> Vec<Answer> {
        let rule = if of == "reads" {
            "Chen & Lee, reads of known concurrency"
        } else {
            "Chen & Lee, writes of known concurrency"
        };
        let formula = format!("{slope} x {} x ({concurrency} - 1) + 1 sector", kib(self.product));
        vec![answer(rule, formula, slope * self.product * f64::from(concurrency - 1) + SECTOR, guarantee)]
    }

    /// Table 2's coefficient at 17 disks, and Figure 7's trend from there.
    fn unknown_reads(&self, disks: f64) -> Answer {
        let z = Z_READS * (DISKS_OF_TABLE_2 / disks).cbrt();
        let formula = format!("{z:.2} x {} (0.69 at 17 disks, falling with their cube root)", kib(self.product));
        answer("Chen & Lee, reads", formula, z * self.product, "70 % of the best for any request size and concurrency")
    }

    fn lee_katz(&self, disks: f64) -> Option<Answer> {
        let (concurrency, request) = (self.load.concurrency?, self.load.request?);
        let formula =
            format!("sqrt({} x ({concurrency} - 1) x {} / {disks})", kib(self.product), kib(request.0 as f64));
        let exact = (self.product * f64::from(concurrency - 1) * request.0 as f64 / disks).sqrt();
        Some(answer("Lee & Katz, RAID 0", formula, exact, "the best unit of Lee & Katz's analytic model"))
    }

    fn remark(&self, remarks: &mut Vec<String>) {
        if self.load.concurrency == Some(1) {
            remarks.push(
                "one request at a time leaves most disks idle unless it is spread over all: the smallest unit \
                is best, for sequential requests, too"
                    .into(),
            );
        }
        if self.load.concurrency.is_some_and(|concurrency| concurrency > 20) {
            remarks.push("the rule was found with up to 20 requests at a time".into());
        }
    }
}

fn answer(rule: &'static str, formula: String, exact_bytes: f64, guarantee: &'static str) -> Answer {
    let exact = exact_bytes.max(1.0);
    let shift = (exact.log2().round() as u32).clamp(*CHUNK_SHIFTS.start(), *CHUNK_SHIFTS.end());
    Answer { rule, formula, exact: Bytes(exact.round() as u64), chunk: Bytes(1 << shift), guarantee }
}

fn kib(bytes: f64) -> String {
    format!("{:.1} KiB", bytes / 1024.0)
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Bytes, Geometry, Level, Placement, Rotation, Sectors, Spec};

    use super::{Advice, Drive, Load, advise, chunks};

    const RAID5: Level = Level::Raid5 { rotation: Rotation::LeftSymmetric };
    /// Chen & Lee Table 1: 48 sectors in 13.9 ms, 19.2 ms to get there.
    const LIGHTNING: Drive =
        Drive { positioning_ms: 19.2, transfer_mb_s: 48.0 * 512.0 / 13.9 / 1e3, track: Some(Bytes(24 << 10)) };
    const NOTHING: Load = Load { reads: None, concurrency: None, request: None };
    const READS: Load = Load { reads: Some(1.0), ..NOTHING };
    const WRITES: Load = Load { reads: Some(0.0), ..NOTHING };

    fn ask(level: Level, members: u8, drive: &Drive, load: &Load) -> Advice {
        advise(level, members, drive, load).expect("the question makes sense")
    }

    /// What the first answer gives, in KiB.
    fn exact_kib(level: Level, members: u8, drive: &Drive, load: &Load) -> f64 {
        ask(level, members, drive, load).answers[0].exact.0 as f64 / 1024.0
    }

    #[test]
    fn the_papers_recommendations_come_out() {
        assert!((LIGHTNING.product_bytes() / 1024.0 - 33.0).abs() < 0.5, "Table 1: 33 KB");
        // Section 4: 24, 6 and 16 KB for 17 of these disks; the averages of Table 2 are within a tenth of Lightning's
        // own coefficients.
        for (load, wanted) in [(READS, 24.0), (WRITES, 6.0), (NOTHING, 16.0)] {
            let got = exact_kib(RAID5, 17, &LIGHTNING, &load);
            assert!((got / wanted - 1.0).abs() < 0.1, "{load:?}: {got} KiB, the paper {wanted}");
        }
        // Section 5, with the seeks of whole disks: 18, 38 and 20 KB.
        let disks = [(12.5, 13.9, 48.0, 18.0), (11.0, 11.1, 99.0, 38.0), (16.5, 16.7, 53.0, 20.0)];
        for (seek, turn, sectors, wanted) in disks {
            let drive = Drive { positioning_ms: seek + turn / 2.0, transfer_mb_s: sectors * 0.512 / turn, track: None };
            let got = exact_kib(RAID5, 17, &drive, &NOTHING);
            assert!((got - wanted).abs() < 1.3, "{got} KiB, the paper {wanted}");
        }
    }

    #[test]
    fn known_concurrency_gives_chen_and_lees_line_and_lee_and_katzs_root() {
        let load = Load { concurrency: Some(4), request: Some(Bytes(100 << 10)), ..READS };
        let answers = ask(RAID5, 17, &LIGHTNING, &load).answers;
        let product = LIGHTNING.product_bytes();
        assert_eq!(answers[0].exact.0, (0.25 * product * 3.0 + 512.0).round() as u64);
        assert_eq!(answers[1].exact.0, (product * 3.0 * 102_400.0 / 17.0).sqrt().round() as u64);
        let one = Load { concurrency: Some(1), ..READS };
        let advice = ask(RAID5, 17, &LIGHTNING, &one);
        assert_eq!((advice.answers[0].exact, advice.answers[0].chunk), (Bytes(512), Bytes(4096)));
        assert!(!advice.remarks.is_empty());
        let writes = Load { concurrency: Some(11), ..WRITES };
        assert_eq!(
            ask(RAID5, 17, &LIGHTNING, &writes).answers[0].exact.0,
            (0.056 * product * 10.0 + 512.0).round() as u64
        );
    }

    #[test]
    fn more_disks_mean_smaller_units_for_reads_alone() {
        let at = |disks, load| exact_kib(RAID5, disks, &LIGHTNING, load);
        assert!((at(17, &READS) / at(4, &READS) - (4.0_f64 / 17.0).cbrt()).abs() < 1e-3);
        assert!((at(5, &NOTHING) - at(40, &NOTHING)).abs() < 1e-9, "without knowledge their number is nothing");
    }

    #[test]
    fn rm2_counts_tracks() {
        let rm2 = Level::Rm2 { height: 3, placement: Placement::Adjacent };
        assert!((exact_kib(rm2, 9, &LIGHTNING, &READS) - 60.0).abs() < 1e-9, "2.5 tracks");
        for load in [WRITES, NOTHING, Load { reads: Some(0.6), ..NOTHING }] {
            assert!((exact_kib(rm2, 9, &LIGHTNING, &load) - 8.0).abs() < 1e-9, "a third of a track");
        }
        assert_eq!(ask(rm2, 9, &LIGHTNING, &READS).answers[0].chunk, Bytes(64 << 10));
        assert_eq!(ask(rm2, 9, &LIGHTNING, &READS).remarks, Vec::<String>::new());
        let unknown = ask(rm2, 9, &Drive { track: None, ..LIGHTNING }, &NOTHING);
        assert!(unknown.remarks.iter().any(|remark| remark.contains("tracks")), "{unknown:?}");
    }

    /// Whatever is said of a load changes the answers, or it is said that it does not.
    #[test]
    fn what_is_known_of_a_load_is_used_or_named() {
        let rm2 = Level::Rm2 { height: 3, placement: Placement::Adjacent };
        let known = Load { reads: Some(0.5), concurrency: Some(5), request: Some(Bytes(64 << 10)) };
        let facts = [
            ("the share of reads", Load { reads: known.reads, ..NOTHING }),
            ("the number of requests", Load { concurrency: known.concurrency, ..NOTHING }),
            ("the size of requests", Load { request: known.request, ..NOTHING }),
        ];
        for level in [Level::Raid0, Level::Raid1, Level::Raid10 { copies: 2 }, RAID5, rm2] {
            let plain = ask(level, 9, &LIGHTNING, &NOTHING);
            for (fact, load) in &facts {
                let advice = ask(level, 9, &LIGHTNING, load);
                let is_named = advice.remarks.iter().any(|remark| remark.contains(fact));
                assert_ne!(advice.answers == plain.answers, !is_named, "{level:?} {fact}: {advice:?}");
            }
        }
        assert_eq!(ask(RAID5, 9, &LIGHTNING, &Load { concurrency: Some(5), ..READS }).remarks, Vec::<String>::new());
        let all = Load { reads: Some(1.0), ..known };
        assert!(ask(RAID5, 9, &LIGHTNING, &all).remarks.is_empty(), "sizes count where the concurrency is known");
    }

    #[test]
    fn every_chunk_on_offer_can_be_had() {
        for chunk in chunks() {
            let member_size = Sectors(1 << 20);
            assert!(Geometry::new(Spec { level: RAID5, members: 5, chunk, member_size }).is_ok(), "{chunk}");
        }
        let extremes = [(0.001, 1.0), (1000.0, 10_000.0), (13.0, 200.0)];
        for (positioning_ms, transfer_mb_s) in extremes {
            let drive = Drive { positioning_ms, transfer_mb_s, track: None };
            let advice = ask(RAID5, 5, &drive, &NOTHING);
            // Half the product is 0.5 and 5 MB, and 1.3 MB.
            let is_far = advice.remarks.iter().any(|remark| remark.contains("beyond"));
            assert_eq!(is_far, positioning_ms != 13.0, "{advice:?}");
            for answer in advice.answers {
                assert!(chunks().any(|chunk| chunk == answer.chunk), "{answer:?}");
            }
        }
    }

    #[test]
    fn what_makes_no_sense_is_refused() {
        let refused = |drive: Drive, load: Load| advise(RAID5, 5, &drive, &load).is_err();
        for number in [0.0, -1.0, f64::NAN, f64::INFINITY] {
            assert!(refused(Drive { positioning_ms: number, ..LIGHTNING }, NOTHING));
            assert!(refused(Drive { transfer_mb_s: number, ..LIGHTNING }, NOTHING));
        }
        assert!(refused(LIGHTNING, Load { reads: Some(1.5), ..NOTHING }));
        assert!(refused(LIGHTNING, Load { concurrency: Some(0), ..NOTHING }));
        assert!(refused(LIGHTNING, Load { request: Some(Bytes(0)), ..NOTHING }));
    }
}
