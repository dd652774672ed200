//! The command `tl`: reads the command line, runs one subcommand, turns an error into one line and an exit code.

mod bench;
mod chat;
mod ckpt;
mod completions;
mod devices;
mod doctor;
mod explain;
mod fetch;
mod finetune;
mod generate;
mod inspect;
mod interrupt;
mod model;
mod optimizer;
mod output;
mod perplexity;
mod pull;
mod quantize;
mod random_model;
mod suites;
mod table;
mod train;

use clap::{Args, Parser, Subcommand};
use output::Failure;
use std::process::ExitCode;

/// Run, measure and explain transformer models.
#[derive(Parser)]
#[command(name = "tl", version, arg_required_else_help = true, propagate_version = true)]
#[command(after_help = "Examples:
  tl generate --yes \"Why is the sky blue?\"   a small model writes text; the first time it is downloaded
  tl chat                                     a conversation with it
  tl pull --list                              the models that have a name
  tl train book.txt -o book                   a model of a book of yours
  tl devices                                  what this machine can compute on
  tl doctor                                   memory, limits, settings, and what is wrong with the drivers
  tl bench decode                             how fast it is, beside how fast it could be
  tl bench run                                the same of single operations
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
    Chat(Box<chat::ChatArgs>),
    Pull(pull::PullArgs),
    Inspect(inspect::InspectArgs),
    Devices(devices::DevicesArgs),
    Doctor(doctor::DoctorArgs),
    Explain(Box<explain::ExplainArgs>),
    Perplexity(Box<perplexity::PerplexityArgs>),
    Train(Box<train::TrainArgs>),
    Ckpt(ckpt::CkptArgs),
    Finetune(Box<finetune::FinetuneArgs>),
    Merge(Box<finetune::MergeArgs>),
    Quantize(quantize::QuantizeArgs),
    Bench(Box<bench::BenchArgs>),
    Completions(completions::CompletionsArgs),
}

fn main() -> ExitCode {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Without a desktop, a layer that Mesa puts into every Vulkan program complains about that on stderr.
        // SAFETY: no other thread is running yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
    let cli = Cli::parse();
    let result = match &cli.command {
        Command::Generate(args) => generate::run(args, cli.global),
        Command::Chat(args) => chat::run(args, cli.global),
        Command::Pull(args) => pull::run(args, cli.global),
        Command::Inspect(args) => inspect::run(args, cli.global),
        Command::Devices(args) => devices::run(args, cli.global),
        Command::Doctor(args) => doctor::run(args, cli.global),
        Command::Explain(args) => explain::run(args, cli.global),
        Command::Perplexity(args) => perplexity::run(args, cli.global),
        Command::Train(args) => train::run(args, cli.global),
        Command::Ckpt(args) => ckpt::run(args, cli.global),
        Command::Finetune(args) => finetune::run(args, cli.global),
        Command::Merge(args) => finetune::run_merge(args, cli.global),
        Command::Quantize(args) => quantize::run(args, cli.global),
        Command::Bench(args) => bench::run(args, cli.global),
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
