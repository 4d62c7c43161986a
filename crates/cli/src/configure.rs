//! `uraid configure` and `uraid rename`: change settings of an array that is not being served.

use std::path::PathBuf;

use anyhow::Result;
use uraid_io::array::{Array, OpenOptions, Setting};
use uraid_io::member::Access;

use crate::args::{ConfigureArgs, RenameArgs};
use crate::examine;

/// Runs `uraid configure`.
pub(crate) fn run(args: &ConfigureArgs) -> Result<()> {
    change(&args.members, &Setting::Consistency(args.consistency.consistency()), args.json)
}

/// Runs `uraid rename`.
pub(crate) fn rename(args: &RenameArgs) -> Result<()> {
    change(&args.members, &Setting::Name(args.name.clone()), args.json)
}

fn change(members: &[PathBuf], setting: &Setting, json: bool) -> Result<()> {
    // Open an array that is not whole, too: `configure` refuses it with advice.
    let options = OpenOptions { access: Access::ReadWrite, allow_degraded: true, force: true };
    let array = Array::open(members, options)?;
    drop(array.configure(setting)?);
    examine::show(&examine::report(members)?, json)
}
