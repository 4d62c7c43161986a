//! The health of an array in words: what is wrong, and what an administrator can do about it. Status, events and the
//! service manager say the same.

pub use crate::lacking::RANGES_TOLD;
use crate::log_devices;
use crate::protocol::{
    Ailing, Health, HealthState, HeldUp, Lacking, LostContent, Named, OutOfDate, Salvage, Stopping, Trouble,
    Unreadable, Unwritten,
};
use crate::text::{duration, list, name_members, size};

/// What it means that a scrub is owed, and what helps.
pub const SCRUB_OWED: &str = "a scrub is owed, because the map of what nobody had written was damaged on all members: \
    what nobody has written may read as anything, and members may not agree there; `uraid scrub start --repair` makes \
    them agree";

/// The condition of an array, in words.
#[must_use]
pub fn words(health: &Health) -> String {
    let survives = survives(health);
    let (degraded, causes) = (degraded(health), causes(health));
    let parts = match health.state {
        HealthState::Whole => vec![survives],
        HealthState::Degraded => [degraded, causes, vec![survives]].concat(),
        HealthState::Stalled => [causes, degraded, vec![survives]].concat(),
        HealthState::Failing => [causes, degraded].concat(),
        HealthState::Salvage => {
            let left = health.salvage.as_ref().map(left).unwrap_or_default();
            [left, degraded, causes, vec!["copy off what is left, and create a new array".to_owned()]].concat()
        }
        HealthState::Frozen => {
            let taken: Vec<String> = of(health, Trouble::Taken).map(name).collect();
            if !taken.is_empty() {
                let what = "so requests fail, and nothing is written any more; stop this server, and use the other one";
                return format!("frozen: another server has taken {}, {what}", name_members(&taken));
            }
            let members: Vec<String> = of(health, Trouble::Failed).map(name).collect();
            if health.log_devices_left == Some(0) && members.is_empty() {
                let what = "frozen: no log device is left that takes writes, so requests fail; stop the server and \
                    check the log devices: the last one to fail has what was acknowledged";
                return [vec![what.to_owned()], degraded, causes].concat().join("; ");
            }
            let by = match members.as_slice() {
                [] => "frozen: more members failed".to_owned(),
                members => format!("frozen by {}: more failed", name_members(members)),
            };
            let what = "than the level survives, so requests fail; stop the server and check the members";
            return [vec![format!("{by} {what}")], degraded, causes].concat().join("; ");
        }
    };
    format!("{}: {}", health.state.name(), parts.join("; "))
}

/// What a stop waits for: `stopping for 12 s: waiting for member 1 (/dev/sdb), which does not answer`.
#[must_use]
pub fn stopping(stopping: &Stopping) -> String {
    format!("stopping for {}: waiting for {}", duration(stopping.for_ms / 1000), stopping.waits_for)
}

/// What forcing a stop does that waits, with so much in memory alone.
#[must_use]
pub fn force(unwritten_bytes: u64) -> String {
    let lost = lost_by_force(unwritten_bytes);
    let lost =
        lost.unwrap_or_else(|| "the members are not marked clean then, and the next start checks them".to_owned());
    format!("`uraid stop --force` waits no longer: {lost}")
}

/// What is lost with the server's memory, if anything: the log may have what was flushed.
pub(crate) fn lost_by_force(unwritten_bytes: u64) -> Option<String> {
    let lost = || format!("what was not flushed of {} that clients have written is lost", size(unwritten_bytes));
    (unwritten_bytes > 0).then(lost)
}

/// How many more failures the array survives.
fn survives(health: &Health) -> String {
    let failures = |count: usize| match count {
        0 => "no failure".to_owned(),
        1 => "1 more failure".to_owned(),
        more => format!("{more} more failures"),
    };
    let (there, elsewhere) = (failures(health.survives), failures(health.survives_elsewhere));
    match there == elsewhere {
        true => format!("survives {there}"),
        false if health.scrub_owed => format!("survives {there} there, and {elsewhere} elsewhere"),
        false if health.lacking.is_empty() => format!("survives {there}"),
        false => format!("survives {there} where blocks are lacking, and {elsewhere} elsewhere"),
    }
}

/// The remains of an array that is served as a last resort.
fn left(salvage: &Salvage) -> Vec<String> {
    let Salvage { stale, doubtful_ranges, doubtful_bytes, unreadable_bytes, size_bytes, .. } = salvage;
    let name = |OutOfDate { slot, path, .. }: &OutOfDate| {
        path.as_ref().map_or_else(|| slot.to_string(), |path| format!("{slot} ({path})"))
    };
    let names: Vec<String> = stale.iter().map(name).collect();
    let all = size(*size_bytes);
    let mut left = Vec::new();
    let who = match names.as_slice() {
        [] => None,
        [one] => Some(format!("member {one} is read although it is out of date")),
        more => Some(format!("members {} are read although they are out of date", list(more))),
    };
    if let Some(who) = who {
        let ranges = if *doubtful_ranges == 1 { "1 range" } else { &format!("{doubtful_ranges} ranges") };
        left.push(match doubtful_ranges {
            0 => format!("{who}: nothing was written since"),
            _ => format!(
                "{who}: content in {ranges}, {} of {all}, may be old or wrong; the server listed them when it started",
                size(*doubtful_bytes)
            ),
        });
    }
    if *unreadable_bytes > 0 {
        left.push(format!("{} of {all} can't be read and give I/O errors", size(*unreadable_bytes)));
    }
    left
}

/// The missing and incomplete members.
fn degraded(health: &Health) -> Vec<String> {
    let missing = match health.missing.as_slice() {
        [] => None,
        [slot] => Some(format!("member {slot} is missing")),
        slots => Some(format!("members {} are missing", list(slots))),
    };
    let rebuilding = match health.rebuilding.as_slice() {
        [] => None,
        [slot] => Some(format!("member {slot} is being rebuilt")),
        slots => Some(format!("members {} are being rebuilt", list(slots))),
    };
    let parts: Vec<String> = missing.into_iter().chain(rebuilding).chain(log_devices::degraded(health)).collect();
    if parts.is_empty() { Vec::new() } else { vec![parts.join(", ")] }
}

/// What is wrong, and what an administrator can do about it.
fn causes(health: &Health) -> Vec<String> {
    let names = |trouble| -> Vec<String> { of(health, trouble).map(name).collect() };
    let mut causes = Vec::new();
    match names(Trouble::Deleted).as_slice() {
        [] => {}
        [one] => causes.push(format!(
            "the file of member {one} was deleted, and its content is lost when the server ends: copy the array's \
             content"
        )),
        more => causes.push(format!(
            "the files of members {} were deleted, and their content is lost when the server ends: copy the array's \
             content",
            list(more)
        )),
    }
    causes.extend(log_devices::deleted(health));
    let cut_off = names(Trouble::CutOff);
    if !cut_off.is_empty() {
        causes.push(format!(
            "the connection to {} is broken, and the array can't do without: when its server answers again, stop this \
             server and serve the array anew",
            name_members(&cut_off)
        ));
    }
    match names(Trouble::Failing).as_slice() {
        [] => {}
        [one] => {
            causes.push(format!(
                "member {one} lost content that the other members can't make up for, or has too many \
                errors: replace it"
            ));
        }
        more => causes.push(format!(
            "members {} lost content that the other members can't make up for, or have too many errors: replace them",
            list(more)
        )),
    }
    let paths: Vec<String> =
        of(health, Trouble::NoRoom).map(|one| one.path.clone().unwrap_or_else(|| name(one))).collect();
    if !paths.is_empty() {
        causes.push(format!("waiting for room on {}{}", list(&paths), longest(health, Trouble::NoRoom, "for ")));
    }
    match names(Trouble::Stalled).as_slice() {
        [] => {}
        [one] => causes.push(format!("member {one} does not answer{}", longest(health, Trouble::Stalled, "for "))),
        more => causes.push(format!(
            "members {} do not answer{}",
            list(more),
            longest(health, Trouble::Stalled, "for up to ")
        )),
    }
    causes.extend(log_devices::stalled(health));
    let is_frozen = health.state == HealthState::Frozen;
    let is_written = !is_frozen && health.state != HealthState::Salvage;
    causes.extend(health.lost.as_ref().map(|lost| self::lost(lost, is_written)));
    causes.extend(lacking(health));
    causes.extend(health.scrub_owed.then(|| SCRUB_OWED.to_owned()));
    causes.extend(health.held_up.iter().map(held_up));
    causes.extend(health.unwritten.as_ref().map(|what| unwritten(what, is_frozen)));
    causes
}

/// What is lost, and what helps if the array can be written.
fn lost(lost: &LostContent, is_written: bool) -> String {
    let what = format!("{} of the array are lost, {}", size(lost.bytes), ranges(lost));
    if is_written {
        format!(
            "{what}: reads of them fail until they are written again, from a backup; `uraid scrub start --repair` \
             tries once more to compute them"
        )
    } else {
        what
    }
}

/// The first ranges of lost content: `bytes 0 to 4096 and 8192 to 12288`.
#[must_use]
pub fn ranges(lost: &LostContent) -> String {
    let mut told: Vec<String> = lost.blocks.iter().take(RANGES_TOLD).map(bytes).collect();
    match lost.ranges.saturating_sub(told.len() as u64) {
        0 => {}
        1 => told.push("1 more range".to_owned()),
        more => told.push(format!("{more} more ranges")),
    }
    format!("bytes {}", list(&told))
}

/// The members with bad blocks, in one sentence, and what helps if the others make up for all of them.
fn lacking(health: &Health) -> Option<String> {
    let each = |Lacking { slot, path, blocks }: &Lacking| {
        let path = path.as_ref().map_or_else(String::new, |path| format!(" ({path})"));
        let blocks = if *blocks == 1 { "1 block".to_owned() } else { format!("{blocks} blocks") };
        format!("member {slot}{path} lacks {blocks}")
    };
    let members: Vec<String> = health.lacking.iter().map(each).collect();
    let is_made_up_for = health.lost.is_none() && health.missing.is_empty() && health.rebuilding.is_empty();
    let helps = if is_made_up_for {
        ", which the other members make up for: `uraid scrub start --repair` writes them again"
    } else {
        ""
    };
    (!members.is_empty()).then(|| format!("{}{helps}", list(&members)))
}

/// What can't be written out, why, and what helps. Nothing helps where the array is frozen.
fn unwritten(unwritten: &Unwritten, is_frozen: bool) -> String {
    let Unwritten { bytes: all, blocks, stripe_blocks, unreadable, unwritable, flushes_fail, replacing } = unwritten;
    let told: u64 = blocks.iter().map(|[start, end]| (end - start) * 512).sum();
    let more = if told < *all { " and more" } else { "" };
    let [blocks, stripe_blocks] =
        [blocks, stripe_blocks].map(|ranges| list(&ranges.iter().map(bytes).collect::<Vec<_>>()));
    if is_frozen {
        return format!(
            "{} that clients have written can't be written out any more, bytes {blocks}{more} of the array: it is only \
             in memory, and lost when the server ends",
            size(*all)
        );
    }
    let names = |members: &[Named]| -> Vec<String> {
        let name = |Named { slot, path }: &Named| {
            path.as_ref().map_or_else(|| slot.to_string(), |path| format!("{slot} ({path})"))
        };
        members.iter().map(name).collect()
    };
    let members = |members: &[Named], what: &str| {
        let names = names(members);
        (!names.is_empty()).then(|| format!("{} {what}", name_members(&names)))
    };
    let why = [members(unreadable, "can't be read there"), members(unwritable, "can't be written there")];
    let why: Vec<String> = why.into_iter().flatten().collect();
    let because = if why.is_empty() { String::new() } else { format!(": {}", list(&why)) };
    let helps = if unwritable.is_empty() { "can be read there" } else { "take it" };
    let flushes = if *flushes_fail { "flushes fail" } else { "flushes keep it in the log while that has room" };
    let replaced = if replacing.is_empty() {
        String::new()
    } else {
        format!(". Member {} is replaced only then", list(&names(replacing)))
    };
    format!(
        "{} that clients have written can't be written out, bytes {blocks}{more} of the array{because}; reads give it \
         from memory, and {flushes}. It is written out after a write of all of bytes {stripe_blocks}{more}, or when \
         the members {helps}{replaced}",
        size(*all)
    )
}

/// What holds up a rebuild or a copy, in one sentence.
fn held_up(held: &HeldUp) -> String {
    let HeldUp { work, slots, stripe, unreadable, sectors, blocks, stripe_blocks } = held;
    let doing = format!("{} member {}", work.doing(), list(slots));
    let unread: Vec<String> = unreadable
        .iter()
        .map(|Unreadable { slot, path, member_sector }| {
            let path = path.as_ref().map_or_else(String::new, |path| format!(" ({path})"));
            format!("member {slot}{path} can't be read at sector {member_sector} of its data, for {sectors} sectors")
        })
        .collect();
    let because = if unread.is_empty() { String::new() } else { format!(" and {}", list(&unread)) };
    let ranges: Vec<String> = blocks.iter().map(bytes).collect();
    let lost = if ranges.is_empty() {
        "no content is lost".to_owned()
    } else {
        format!("no member has bytes {} of the array", list(&ranges))
    };
    format!(
        "{doing} is held up at parity stripe {stripe}, because the list of bad blocks is full{because}; {lost}. It \
         continues after a single write of all of bytes {}, or when other lost content is written again, from a \
         backup: or restore the array elsewhere",
        bytes(stripe_blocks)
    )
}

fn of(health: &Health, trouble: Trouble) -> impl Iterator<Item = &Ailing> {
    health.troubles.iter().filter(move |ailing| ailing.trouble == trouble)
}

/// `1 (/srv/d1)`.
fn name(ailing: &Ailing) -> String {
    let Ailing { slot, path, .. } = ailing;
    path.as_ref().map_or_else(|| slot.to_string(), |path| format!("{slot} ({path})"))
}

/// ` for 12 s`, if known.
fn longest(health: &Health, trouble: Trouble, before: &str) -> String {
    let waits = of(health, trouble).filter_map(|ailing| ailing.waits_ms).max();
    waits.map_or_else(String::new, |ms| format!(" {before}{}", duration(ms / 1000)))
}

/// `0 to 4096`, for a half-open range of sectors.
pub(crate) fn bytes([start, end]: &[u64; 2]) -> String {
    format!("{} to {}", start * 512, end * 512)
}

#[cfg(test)]
mod tests;
