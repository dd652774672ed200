//! The command `tl`: reads the command line, runs one subcommand, turns an error into one line and an exit code.

mod completions;
mod fetch;
mod generate;
mod interrupt;
mod model;
mod output;
mod pull;

use clap::{Args, Parser, Subcommand};
use output::Failure;
use std::process::ExitCode;

/// Run, measure and explain transformer models.
#[derive(Parser)]
#[command(name = "tl", version, arg_required_else_help = true, propagate_version = true)]
#[command(after_help = "Examples:
  tl pull smollm2-135m-instruct       get a small model that talks
  tl pull --list                      the models that have a name
  tl completions bash > ~/.local/share/bash-completion/completions/tl

Results go to stdout, everything else to stderr. Exit codes: 0 done, 1 failed, 2 wrong usage, 130 interrupted.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(subcommand)]
    command: Command,
}

/// What every subcommand understands.
#[derive(Args, Clone, Copy)]
pub struct Global {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print the result and nothing else
    #[arg(short, long, global = true)]
    pub quiet: bool,
}

#[derive(Subcommand)]
enum Command {
    Generate(Box<generate::GenerateArgs>),
    Pull(pull::PullArgs),
    Completions(completions::CompletionsArgs),
}

fn main() -> ExitCode {
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Generate(args) => generate::run(args, cli.global),
        Command::Pull(args) => pull::run(args, cli.global),
        Command::Completions(args) => completions::run::<Cli>(args),
    };
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough (`tl … | head`).
        Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(failure) => {
            output::note(&format!("tl: {failure}"));
            failure.code()
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_command_line_is_consistent() {
        use clap::CommandFactory;
        super::Cli::command().debug_assert();
    }
}
