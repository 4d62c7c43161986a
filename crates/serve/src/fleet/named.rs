//! The files and devices that a plan names for an array, beside those that it has: administrators exchange them while
//! it is served, and change the configuration afterwards.

use std::fs;
use std::path::{Path, PathBuf};
use std::time::Duration;

use tokio::task::spawn_blocking;
use tokio::time::timeout;

use crate::orders::Orders;
use crate::protocol::{Answer, MemberState, Request, Status};

/// How long the file system may take to say where paths lead.
const LOOK_TIME_MAX: Duration = Duration::from_secs(5);

/// What a plan names: members, log devices and spares.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    /// All of them.
    pub all: Vec<PathBuf>,
    /// Those that the plan before did not name.
    pub new: Vec<PathBuf>,
}

impl Named {
    /// Whether the array that is served has all that is new, and the plan names all that it has. What the array has no
    /// more may be named.
    pub(super) async fn are_in_use(&self, orders: &Orders) -> bool {
        let Ok(Answer::Status(status)) = orders.ask(Request::Status {}).await else { return false };
        let (used, named) = (in_use(&status), self.clone());
        let compared = spawn_blocking(move || named.are(&used));
        matches!(timeout(LOOK_TIME_MAX, compared).await, Ok(Ok(true)))
    }

    fn are(&self, used: &[PathBuf]) -> bool {
        let places = |paths: &[PathBuf]| paths.iter().map(|path| place(path)).collect::<Vec<_>>();
        let (used, all, new) = (places(used), places(&self.all), places(&self.new));
        used.iter().all(|path| all.contains(path)) && new.iter().all(|path| used.contains(path))
    }
}

/// The files and devices of an array.
fn in_use(status: &Status) -> Vec<PathBuf> {
    let members = status.members.iter().filter(|member| member.state != MemberState::Missing);
    let members = members.filter_map(|member| member.path.as_ref());
    let copy = status.replace.iter().filter_map(|replace| replace.path.as_ref());
    let logs = status.log_devices.iter().filter_map(|log| log.path.as_ref());
    let spares = status.spares.iter().map(|spare| &spare.path);
    members.chain(copy).chain(logs).chain(spares).map(PathBuf::from).collect()
}

/// Where a path leads. Devices have several names.
fn place(path: &Path) -> PathBuf {
    fs::canonicalize(path).unwrap_or_else(|_| path.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_compared_by_where_they_lead() {
        let directory = tempfile::tempdir().unwrap();
        let [a, b, link, gone] = ["a", "b", "link", "gone"].map(|name| directory.path().join(name));
        fs::write(&a, "").unwrap();
        fs::write(&b, "").unwrap();
        std::os::unix::fs::symlink(&b, &link).unwrap();
        let named = |all: &[&PathBuf], new: &[&PathBuf]| {
            let paths = |paths: &[&PathBuf]| paths.iter().map(|path| (*path).clone()).collect();
            Named { all: paths(all), new: paths(new) }
        };
        let used = [a.clone(), b.clone()];
        assert!(named(&[&a, &link], &[&link]).are(&used));
        assert!(named(&[&a, &link, &gone], &[&link]).are(&used), "it was named before");
        assert!(!named(&[&a, &link, &gone], &[&link, &gone]).are(&used), "the array lacks it");
        assert!(!named(&[&link], &[]).are(&used), "the plan lacks it");
    }
}
