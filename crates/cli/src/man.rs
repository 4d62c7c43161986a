//! `uraid man`: manual pages of the program and of each command, generated from the definitions behind `--help`.

use std::fs;
use std::io::Write as _;
use std::path::Path;
use std::path::PathBuf;

use anyhow::{Context, Result};
use clap::Args;
use clap_mangen::Man;
use clap_mangen::roff::{Roff, roman};

/// Arguments of `uraid man`.
#[derive(Debug, Args)]
pub(crate) struct ManArgs {
    /// Directory that exists
    #[arg(value_name = "DIRECTORY")]
    directory: PathBuf,
}

/// Writes `uraid.1`, `uraid-create.1` and so on, for this command line.
pub(crate) fn run(args: &ManArgs, command: clap::Command) -> Result<()> {
    let mut command = command.disable_help_subcommand(true);
    command.build();
    write(&command, &args.directory)
}

/// Writes the page of a command, and those of its subcommands.
fn write(command: &clap::Command, directory: &Path) -> Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        write(command, directory)?;
    }
    let man = Man::new(command.clone());
    let path = directory.join(man.get_filename());
    let page = page(command, &man).with_context(|| format!("can't render {}", path.display()))?;
    fs::write(&path, page).with_context(|| format!("can't write {}", path.display()))
}

fn page(command: &clap::Command, man: &Man) -> Result<Vec<u8>> {
    let mut page = Vec::new();
    let name = command.get_display_name().unwrap_or_else(|| command.get_name());
    // No date: builds of the same source produce the same page. `Man::render_title` omits an empty date.
    writeln!(page, ".TH {name} 1 \"\" \"uraid {}\" \"User Commands\"", env!("CARGO_PKG_VERSION"))?;
    man.render_name_section(&mut page)?;
    man.render_synopsis_section(&mut page)?;
    man.render_description_section(&mut page)?;
    let is_program = command.get_name() == "uraid";
    // For the program itself, this is the overview of the commands, which have their own section.
    let after = command.get_after_help().filter(|_| !is_program).map(ToString::to_string).unwrap_or_default();
    let (notes, examples) = match after.find("Example") {
        Some(at) => after.split_at(at),
        None => (after.as_str(), ""),
    };
    let mut roff = Roff::new();
    if !notes.trim().is_empty() {
        roff.control("PP", []).text([roman(notes.trim())]);
    }
    roff.to_writer(&mut page)?;
    if command.get_arguments().any(|argument| !argument.is_hide_set()) {
        man.render_options_section(&mut page)?;
    }
    if command.has_subcommands() {
        man.render_subcommands_section(&mut page)?;
    }
    let mut roff = Roff::new();
    if let Some((_, lines)) = examples.split_once('\n') {
        roff.control("SH", ["EXAMPLES"]).control("nf", []);
        for line in lines.lines() {
            roff.text([roman(line.trim_start())]);
        }
        roff.control("fi", []);
    }
    roff.control("SH", ["EXIT STATUS"]).text([roman("0: done; 1: failed; 2: wrong usage.")]);
    if !is_program {
        roff.control("SH", ["SEE ALSO"]).text([roman("uraid(1)")]);
    }
    roff.to_writer(&mut page)?;
    Ok(page)
}
