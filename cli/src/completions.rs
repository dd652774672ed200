//! `tl completions SHELL`: prints the completion script of a shell.

use crate::output::{self, Failure};
use clap::{Args, CommandFactory};
use clap_complete::Shell;

/// Print a shell's completion script
#[derive(Args)]
#[command(after_help = "Examples:
  tl completions bash > ~/.local/share/bash-completion/completions/tl
  tl completions zsh > \"${fpath[1]}/_tl\"
  tl completions fish > ~/.config/fish/completions/tl.fish")]
pub struct CompletionsArgs {
    /// Shell
    shell: Shell,
}

/// Runs the subcommand for the command line `C`.
pub fn run<C: CommandFactory>(args: &CompletionsArgs) -> Result<(), Failure> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut C::command(), "tl", &mut script);
    output::result(String::from_utf8_lossy(&script).trim_end())
}
