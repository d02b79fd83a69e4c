//! The manual page: one for the program and all of its commands.
use std::io::{Result, Write};

use clap::Command;
use clap_mangen::Man;

/// The page of this command line, in roff.
pub(crate) fn page(command: Command) -> Result<Vec<u8>> {
    let mut command = command.disable_help_subcommand(true);
    // Tells every command its whole name.
    command.build();
    let mut page = Vec::new();
    let whole = Man::new(command.clone());
    whole.render_title(&mut page)?;
    whole.render_name_section(&mut page)?;
    whole.render_synopsis_section(&mut page)?;
    whole.render_options_section(&mut page)?;
    commands(&command, &mut page)?;
    whole.render_version_section(&mut page)?;
    Ok(page)
}

/// A section for each command that has no commands of its own.
fn commands(command: &Command, page: &mut Vec<u8>) -> Result<()> {
    for command in command.get_subcommands().filter(|command| !command.is_hide_set()) {
        if command.has_subcommands() {
            commands(command, page)?;
            continue;
        }
        let man = Man::new(command.clone());
        let mut section = Vec::new();
        man.render_synopsis_section(&mut section)?;
        man.render_description_section(&mut section)?;
        man.render_options_section(&mut section)?;
        let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
        writeln!(page, ".SH \"{}\"", name.to_uppercase())?;
        // What is a section on a page of its own is part of one here.
        page.extend(String::from_utf8_lossy(&section).replace("\n.SH ", "\n.SS ").bytes());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Arg;

    use super::*;

    #[test]
    fn regression_the_page_describes_the_flags_of_every_command_and_refers_to_no_other_page() {
        let print = Command::new("print").about("Print it").arg(Arg::new("all").long("all").help("All of it"));
        let hidden = Command::new("probe").hide(true);
        let serve = Command::new("serve").about("Serve").arg(Arg::new("listen").long("listen").help("An address"));
        let config = Command::new("config").subcommand(print);
        let program = Command::new("program").version("1").subcommands([serve, config, hidden]);
        let page = String::from_utf8(page(program).unwrap()).unwrap();
        for words in ["PROGRAM SERVE", "An address", "PROGRAM CONFIG PRINT", "All of it", ".SH VERSION"] {
            assert!(page.contains(words), "{words}: {page}");
        }
        for words in ["probe", "PROBE", "(1)", "HELP\""] {
            assert!(!page.contains(words), "{words}: {page}");
        }
        assert_eq!(page.matches(".SH OPTIONS").count(), 1, "only those of the program itself: {page}");
    }
}
