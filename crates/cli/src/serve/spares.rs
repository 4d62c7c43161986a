//! The spares that a command line names, when the server starts.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use uraid_io::array::{self, Array, JoinError, Look, Patience};
use uraid_io::member::{MemberError, absolute};
use uraid_serve::spare::{SPARE_TIME_MAX, Spare};
use uuid::Uuid;

use crate::misuse::Misuse;

/// Refuses a spare that is named twice, or also as a member.
///
/// # Errors
/// If there is one.
pub(super) fn ensure_once(members: &[Look], spares: &[PathBuf]) -> Result<(), Misuse> {
    for (index, path) in spares.iter().enumerate() {
        if spares[..index].contains(path) || members.iter().any(|member| member.path == *path) {
            return Err(Misuse(format!("{}: name it once, as a member or a spare", path.display())));
        }
    }
    Ok(())
}

/// Separates the `spares` that have become members of the array of `members` from the other ones. A spare that was
/// taken is a member, and the same command line serves the array again.
pub(super) fn sort(members: &[Look], spares: Vec<Look>) -> (Vec<PathBuf>, Vec<PathBuf>) {
    let (taken, spares): (Vec<Look>, Vec<Look>) = spares.into_iter().partition(is_taken(members));
    let paths = |looks: Vec<Look>| looks.into_iter().map(|look| look.path).collect();
    (paths(taken), paths(spares))
}

/// Those of the spares that have become members of the array of `members`.
pub(super) fn taken(members: &[Look], spares: Vec<Look>) -> Vec<Look> {
    spares.into_iter().filter(is_taken(members)).collect()
}

fn is_taken(members: &[Look]) -> impl Fn(&Look) -> bool + use<> {
    let ours = members.iter().find_map(array_of);
    move |look| ours.is_some() && array_of(look) == ours
}

/// Checks the spares of an array that is about to be served, and warns about unusable ones. No spare prevents the array
/// from being served, whatever its state.
///
/// # Errors
/// If spares are of no use to the array.
pub(super) fn at_start(array: &Array, spares: Vec<PathBuf>, tick: impl FnMut() + 'static) -> Result<Vec<Spare>> {
    ensure!(
        spares.is_empty() || array.geometry.tolerance() > 0,
        Misuse(
            "RAID 0 survives no failure, so there is nothing that a spare could take over: leave --spare out".into()
        )
    );
    let paths = spares.into_iter().map(|path| absolute(&path)).collect::<std::io::Result<Vec<_>>>()?;
    let checked = array::check_all(&paths, &array.superblock, &mut Patience::new(Some(SPARE_TIME_MAX), tick))?;
    let look = |(path, checked): (PathBuf, Result<(), JoinError>)| {
        let mut spare = Spare::new(path);
        if let Err(error) = checked {
            tracing::warn!("a spare can't be taken as it is: {error}");
            spare.is_silent = matches!(error, JoinError::Member(MemberError::Silent { .. }));
            spare.problem = Some(error.to_string());
        }
        spare
    };
    Ok(paths.into_iter().zip(checked).map(look).collect())
}

/// The array that a file or device claims to be a member of.
fn array_of(look: &Look) -> Option<Uuid> {
    look.found.as_ref().ok().map(|(_, own)| own.array)
}
