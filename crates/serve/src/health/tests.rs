//! The wording of an array's health.

use super::*;
use crate::sweeps::Work;

fn health(state: HealthState, survives: usize) -> Health {
    Health { state, survives, survives_elsewhere: survives, ..Health::default() }
}

fn ailing(slot: u8, trouble: Trouble, waits_ms: Option<u64>) -> Ailing {
    Ailing { slot, trouble, path: Some(format!("/srv/d{slot}")), waits_ms }
}

#[test]
fn what_is_missing_is_said_in_words() {
    let said =
        |state, survives, missing: &[u8]| words(&Health { missing: missing.to_vec(), ..health(state, survives) });
    assert_eq!(said(HealthState::Whole, 2, &[]), "whole: survives 2 more failures");
    assert_eq!(said(HealthState::Whole, 0, &[]), "whole: survives no failure");
    assert_eq!(said(HealthState::Degraded, 1, &[4]), "degraded: member 4 is missing; survives 1 more failure");
    assert_eq!(said(HealthState::Degraded, 0, &[1, 4]), "degraded: members 1 and 4 are missing; survives no failure");
    let rebuilding = Health { rebuilding: vec![2], missing: vec![1], ..health(HealthState::Degraded, 0) };
    assert_eq!(words(&rebuilding), "degraded: member 1 is missing, member 2 is being rebuilt; survives no failure");
}

#[test]
fn a_scrub_that_is_owed_is_said_before_anything_is_called_whole() {
    let owed = Health { scrub_owed: true, survives: 0, ..health(HealthState::Degraded, 1) };
    let said = words(&owed);
    assert!(said.starts_with("degraded: a scrub is owed, because "), "{said}");
    assert!(said.ends_with("; survives no failure there, and 1 more failure elsewhere"), "{said}");
}

#[test]
fn troubles_are_said_with_their_members() {
    let said = |state, missing: &[u8], troubles: &[Ailing]| {
        words(&Health { missing: missing.to_vec(), troubles: troubles.to_vec(), ..health(state, 0) })
    };
    let (stalled, failing, frozen) = (HealthState::Stalled, HealthState::Failing, HealthState::Frozen);
    assert_eq!(
        said(stalled, &[2], &[ailing(0, Trouble::NoRoom, Some(12_345)), ailing(1, Trouble::NoRoom, Some(3000))]),
        "stalled: waiting for room on /srv/d0 and /srv/d1 for 12 s; member 2 is missing; survives no failure"
    );
    assert_eq!(
        said(stalled, &[], &[ailing(1, Trouble::Stalled, Some(2000))]),
        "stalled: member 1 (/srv/d1) does not answer for 2 s; survives no failure"
    );
    assert_eq!(
        said(failing, &[0], &[ailing(1, Trouble::Deleted, None), ailing(2, Trouble::Deleted, None)]),
        "failing: the files of members 1 (/srv/d1) and 2 (/srv/d2) were deleted, and their content is lost when the \
         server ends: copy the array's content; member 0 is missing"
    );
    assert!(
        said(failing, &[], &[ailing(1, Trouble::Failing, None)])
            .starts_with("failing: member 1 (/srv/d1) lost content")
    );
    assert_eq!(
        said(failing, &[0], &[ailing(2, Trouble::CutOff, None)]),
        "failing: the connection to member 2 (/srv/d2) is broken, and the array can't do without: when its server \
         answers again, stop this server and serve the array anew; member 0 is missing"
    );
    assert_eq!(
        said(frozen, &[0], &[ailing(1, Trouble::Taken, None), ailing(2, Trouble::Failed, None)]),
        "frozen: another server has taken member 1 (/srv/d1), so requests fail, and nothing is written any more; stop \
         this server, and use the other one"
    );
    let text = said(frozen, &[0], &[ailing(1, Trouble::Failed, None), ailing(3, Trouble::Failed, None)]);
    assert!(text.starts_with("frozen by members 1 (/srv/d1) and 3 (/srv/d3): "), "{text}");
    assert!(text.ends_with("; member 0 is missing"), "{text}");
    assert!(said(frozen, &[], &[]).starts_with("frozen: more members failed"));
}

#[test]
fn what_is_left_is_not_called_whole_or_degraded() {
    let stale = |slot| OutOfDate { slot, path: Some(format!("/srv/d{slot}")), epoch: 3, newest_epoch: 5 };
    let old = Salvage {
        stale: vec![stale(1)],
        doubtful_ranges: 2,
        doubtful_bytes: 1 << 20,
        doubtful: vec![[0, 1024], [4096, 5120]],
        unreadable_bytes: 0,
        size_bytes: 3 << 30,
    };
    let said = |missing: &[u8], salvage: Salvage| {
        let health = health(HealthState::Salvage, 0);
        words(&Health { missing: missing.to_vec(), salvage: Some(salvage), ..health })
    };
    assert_eq!(
        said(&[2], old.clone()),
        "salvage: member 1 (/srv/d1) is read although it is out of date: content in 2 ranges, 1 MiB of 3 GiB, may be \
         old or wrong; the server listed them when it started; member 2 is missing; copy off what is left, and \
         create a new array"
    );
    let untouched = Salvage { stale: vec![stale(0), stale(1)], doubtful_ranges: 0, ..old.clone() };
    assert_eq!(
        said(&[], untouched),
        "salvage: members 0 (/srv/d0) and 1 (/srv/d1) are read although they are out of date: nothing was written \
         since; copy off what is left, and create a new array"
    );
    let gone = Salvage { stale: Vec::new(), doubtful_ranges: 0, unreadable_bytes: 1 << 30, ..old };
    assert_eq!(
        said(&[0, 2], gone),
        "salvage: 1 GiB of 3 GiB can't be read and give I/O errors; members 0 and 2 are missing; copy off what is \
         left, and create a new array"
    );
}

#[test]
fn what_holds_up_a_rebuild_is_said_with_its_place() {
    let held = HeldUp {
        work: Work::Rebuild,
        slots: vec![1],
        stripe: 4,
        unreadable: vec![Unreadable { slot: 3, path: Some("/srv/d3".into()), member_sector: 512 }],
        sectors: 8,
        blocks: vec![[1664, 1672]],
        stripe_blocks: [1536, 1920],
    };
    let text = words(&Health { rebuilding: vec![1], held_up: vec![held], ..health(HealthState::Failing, 0) });
    assert_eq!(
        text,
        "failing: rebuilding member 1 is held up at parity stripe 4, because the list of bad blocks is full and member \
         3 (/srv/d3) can't be read at sector 512 of its data, for 8 sectors; no member has bytes 851968 to 856064 of \
         the array. It continues after a single write of all of bytes 786432 to 983040, or when other lost content is \
         written again, from a backup: or restore the array elsewhere; member 1 is being rebuilt"
    );
}

#[test]
fn what_is_lost_is_said_with_its_place_and_what_helps() {
    let lacking = |slot: u8, blocks| Lacking { slot, path: Some(format!("/srv/d{slot}")), blocks };
    let lost = LostContent { bytes: 20 << 10, ranges: 2, blocks: vec![[96, 104], [128, 160]] };
    let bad =
        Health { lost: Some(lost), lacking: vec![lacking(1, 5), lacking(3, 1)], ..health(HealthState::Failing, 0) };
    assert_eq!(
        words(&bad),
        "failing: 20 KiB of the array are lost, bytes 49152 to 53248 and 65536 to 81920: reads of them fail until they \
         are written again, from a backup; `uraid scrub start --repair` tries once more to compute them; member 1 \
         (/srv/d1) lacks 5 blocks and member 3 (/srv/d3) lacks 1 block"
    );
    let frozen = words(&Health { state: HealthState::Frozen, ..bad });
    assert!(frozen.contains("20 KiB of the array are lost, bytes 49152 to 53248 and 65536 to 81920; "), "{frozen}");
    let many = LostContent { bytes: 20 << 12, ranges: 20, blocks: (0..20).map(|at| [at * 16, at * 16 + 8]).collect() };
    assert!(ranges(&many).ends_with(", 122880 to 126976 and 4 more ranges"), "{}", ranges(&many));
    let one_more = LostContent { ranges: 17, ..many };
    assert!(ranges(&one_more).ends_with(" and 1 more range"), "{}", ranges(&one_more));
}

#[test]
fn what_members_lack_is_said_with_the_redundancy_that_is_left() {
    let lacking = vec![Lacking { slot: 1, path: Some("/srv/d1".into()), blocks: 3 }];
    let bad = Health { lacking, survives_elsewhere: 1, ..health(HealthState::Degraded, 0) };
    assert_eq!(
        words(&bad),
        "degraded: member 1 (/srv/d1) lacks 3 blocks, which the other members make up for: `uraid scrub start \
         --repair` writes them again; survives no failure where blocks are lacking, and 1 more failure elsewhere"
    );
    assert_eq!(
        words(&Health { missing: vec![2], survives_elsewhere: 0, ..bad }),
        "degraded: member 2 is missing; member 1 (/srv/d1) lacks 3 blocks; survives no failure"
    );
}

#[test]
fn what_can_not_be_written_out_is_said_with_its_place_and_what_helps() {
    let named = |slot: u8| Named { slot, path: Some(format!("/srv/d{slot}")) };
    let one = Unwritten {
        bytes: 4096,
        blocks: vec![[1664, 1672]],
        stripe_blocks: vec![[1536, 1920]],
        unreadable: vec![named(0), named(3)],
        unwritable: vec![],
        flushes_fail: true,
        replacing: vec![],
    };
    let said = |unwritten| words(&Health { unwritten: Some(unwritten), ..health(HealthState::Failing, 0) });
    assert_eq!(
        said(one.clone()),
        "failing: 4 KiB that clients have written can't be written out, bytes 851968 to 856064 of the array: members 0 \
         (/srv/d0) and 3 (/srv/d3) can't be read there; reads give it from memory, and flushes fail. It is written out \
         after a write of all of bytes 786432 to 983040, or when the members can be read there"
    );
    let frozen = words(&Health { unwritten: Some(one), ..health(HealthState::Frozen, 0) });
    assert!(
        frozen.contains("can't be written out any more") && frozen.contains("lost when the server ends"),
        "{frozen}"
    );
    assert!(!frozen.contains("after a write") && !frozen.contains("reads give it"), "{frozen}");
    let many = Unwritten {
        bytes: 1 << 20,
        blocks: vec![[0, 8], [384, 392]],
        stripe_blocks: vec![[0, 768]],
        unreadable: vec![],
        unwritable: vec![Named { path: None, ..named(2) }],
        flushes_fail: false,
        replacing: vec![named(1)],
    };
    assert_eq!(
        said(many),
        "failing: 1 MiB that clients have written can't be written out, bytes 0 to 4096 and 196608 to 200704 and more \
         of the array: member 2 can't be written there; reads give it from memory, and flushes keep it in the log \
         while that has room. It is written out after a write of all of bytes 0 to 393216 and more, or when the \
         members take it. Member 1 (/srv/d1) is replaced only then"
    );
}
