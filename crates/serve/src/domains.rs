//! Failure domains: members that fail together, such as the disks of one machine.
//!
//! A member's domain is the one that was named for it. Without that it is the host of its URI; members on this machine
//! are in none, as nothing is served without it. Nothing of that is on the members.

use std::path::{Path, PathBuf};

use uraid_io::member::{absolute, host};
use uraid_layout::repair::Repair;
use uraid_layout::{Geometry, MemberIndex, MemberSet};

/// A member's domain, by name.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// What it is called.
    pub name: String,
    /// The member.
    pub member: PathBuf,
}

impl Domain {
    /// Reads `NAME=MEMBER`.
    ///
    /// # Errors
    /// If it is something else; the error says what to write.
    pub fn parse(text: &str) -> Result<Self, String> {
        match text.split_once('=') {
            Some((name, member)) if !name.is_empty() && !member.is_empty() => {
                Ok(Self { name: name.to_owned(), member: member.into() })
            }
            _ => Err(format!("'{text}' is not NAME=MEMBER, such as rack1=nbd://host1/")),
        }
    }
}

/// Domains with more than one member whose loss an array of these shapes does not survive, though it survives some.
#[must_use]
pub fn crowded<'a>(
    named: &[Domain],
    shapes: &[Geometry],
    members: impl IntoIterator<Item = (MemberIndex, &'a Path)>,
) -> Vec<(String, MemberSet)> {
    let mut domains: Vec<(String, MemberSet)> = Vec::new();
    for (slot, path) in members {
        let Some(name) = name_of(named, path) else { continue };
        match domains.iter_mut().find(|(known, _)| *known == name) {
            Some((_, set)) => *set = set.with(slot),
            None => domains.push((name, MemberSet::EMPTY.with(slot))),
        }
    }
    let is_fatal =
        |set: MemberSet| shapes.iter().any(|shape| shape.tolerance() > 0 && Repair::new(shape, set).is_err());
    domains.retain(|(_, set)| set.len() > 1 && is_fatal(*set));
    domains
}

fn name_of(named: &[Domain], path: &Path) -> Option<String> {
    let same = |one: &Path| absolute(one).ok() == absolute(path).ok();
    named.iter().find(|domain| same(&domain.member)).map(|domain| domain.name.clone()).or_else(|| host(path))
}

#[cfg(test)]
mod tests {
    use uraid_layout::{Bytes, Level, Rotation, Sectors, Spec};

    use super::*;

    fn crowds(level: Level, named: &[&str], paths: &[&str]) -> Vec<(String, Vec<u8>)> {
        let members = u8::try_from(paths.len()).unwrap();
        let spec = Spec { level, members, chunk: Bytes(64 << 10), member_size: Sectors(1 << 16) };
        let shapes = [Geometry::new(spec).expect("an array")];
        let named: Vec<Domain> = named.iter().map(|text| Domain::parse(text).unwrap()).collect();
        let members = (0..).map(MemberIndex).zip(paths.iter().map(Path::new));
        let slots = |(name, set): (String, MemberSet)| (name, set.iter().map(|slot| slot.0).collect());
        crowded(&named, &shapes, members).into_iter().map(slots).collect()
    }

    #[test]
    fn who_shares_a_host_is_lost_with_it() {
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let apart = ["nbd://one/a", "nbd://two/a", "nbd://three/a"];
        assert_eq!(crowds(raid5, &[], &apart), []);
        let pair = ["nbd://one/a", "nbd://two/a", "nbd://one:10810/b", "/srv/d", "/srv/e"];
        assert_eq!(crowds(raid5, &[], &pair), [("one".to_owned(), vec![0, 2])]);
        assert_eq!(crowds(Level::Raid6 { rotation: Rotation::LeftSymmetric }, &[], &pair), [], "it survives two");
        assert_eq!(crowds(Level::Raid0, &[], &pair), [], "nothing helps there");
    }

    #[test]
    fn names_count_more_than_hosts() {
        let raid5 = Level::Raid5 { rotation: Rotation::LeftSymmetric };
        let paths = ["nbd://one/a", "nbd://two/a", "nbd://one/b"];
        assert_eq!(crowds(raid5, &["rack=nbd://two/a"], &paths), [("one".to_owned(), vec![0, 2])]);
        let named = ["rack=nbd://one/a", "rack=nbd://two/a", "shelf=nbd://one/b"];
        assert_eq!(crowds(raid5, &named, &paths), [("rack".to_owned(), vec![0, 1])]);
        assert!(Domain::parse("nbd://one/a").is_err() && Domain::parse("=x").is_err());
    }

    /// Copies of a RAID 10 are next to each other.
    #[test]
    fn it_counts_which_members_share_a_host() {
        let raid10 = Level::Raid10 { copies: 2 };
        assert_eq!(crowds(raid10, &[], &["nbd://one/a", "nbd://two/a", "nbd://one/b", "nbd://two/b"]), []);
        let wrong = crowds(raid10, &[], &["nbd://one/a", "nbd://one/b", "nbd://two/a", "nbd://two/b"]);
        assert_eq!(wrong, [("one".to_owned(), vec![0, 1]), ("two".to_owned(), vec![2, 3])]);
    }
}
