//! The command `tl`: reads the command line, runs one subcommand, turns an error into one line and an exit code.

mod answer;
mod bench;
mod bench_http;
mod bench_serve;
mod bundle;
mod chat;
mod ckpt;
mod completions;
mod device_facts;
mod devices;
mod doctor;
mod dtypes;
mod embed;
mod encoders;
mod energy;
mod entropy;
mod explain;
mod fetch;
mod finetune;
mod generate;
mod image_vectors;
mod inspect;
mod interrupt;
mod layers;
mod log;
mod machine;
mod model;
mod optimize;
mod optimizer;
mod output;
mod perplexity;
mod plan;
mod pull;
mod quantize;
mod random_model;
mod ranks;
mod score;
mod self_test;
mod self_test_text;
#[cfg(feature = "serve")]
mod serve;
mod strategies;
mod suites;
mod table;
mod texts;
mod top;
mod train;
mod transcribe;
mod tune;
mod watch;

use clap::{Args, CommandFactory, FromArgMatches, Parser, Subcommand};
use output::Failure;
use std::process::ExitCode;

/// Run, measure and explain transformer models.
#[derive(Parser)]
#[command(name = "tl", version, arg_required_else_help = true, propagate_version = true)]
#[command(after_help = "Examples:
  tl generate --yes \"Why is the sky blue?\"   generate text with a small model (downloaded on first use)
  tl chat                                     talk to it
  tl serve                                    answer many clients over HTTP
  tl pull --list                              list the named models
  tl train book.txt -o book                   train a model on a book
  tl devices                                  list processors and graphics adapters
  tl doctor                                   check memory, limits, settings and drivers
  tl -v generate \"Hi\"                         the same with a log on stderr
  tl bench decode                             measure decoding speed next to its limit
  tl bench run                                measure single operations
  tl optimize tiny                            plan a model's memory, defragment, and check the results
  tl tune                                     measure the best tiles and splits of this GPU
  tl completions bash > ~/.local/share/bash-completion/completions/tl

Results go to stdout, everything else to stderr. Exit codes: 0 success; 1 failure (file, device, network, memory); 2 wrong usage
(unknown flag, invalid value, contradicting settings); 130 interrupted by Ctrl-C.")]
struct Cli {
    #[command(flatten)]
    global: Global,
    #[command(flatten)]
    log: log::LogArgs,
    #[command(subcommand)]
    command: Command,
}

/// Options of every subcommand.
#[derive(Args, Clone, Copy)]
pub struct Global {
    /// Print the result as JSON
    #[arg(long, global = true)]
    pub json: bool,
    /// Print only the result
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
    Plan(plan::PlanArgs),
    Optimize(Box<optimize::OptimizeArgs>),
    Perplexity(Box<perplexity::PerplexityArgs>),
    Score(Box<score::ScoreArgs>),
    Embed(Box<embed::EmbedArgs>),
    Transcribe(Box<transcribe::TranscribeArgs>),
    #[cfg(feature = "serve")]
    Serve(Box<serve::ServeArgs>),
    Train(Box<train::TrainArgs>),
    Ckpt(ckpt::CkptArgs),
    Finetune(Box<finetune::FinetuneArgs>),
    Merge(Box<finetune::MergeArgs>),
    Quantize(quantize::QuantizeArgs),
    Entropy(entropy::EntropyArgs),
    Bench(Box<bench::BenchArgs>),
    Tune(tune::TuneArgs),
    Top(top::TopArgs),
    Completions(completions::CompletionsArgs),
}

/// The command with all of its help.
fn command() -> clap::Command {
    // What `tl finetune` does with two flags that other subcommands have too.
    Cli::command().mut_subcommand("finetune", |c| {
        c.mut_arg("dtype", |a| {
            a.help("Type of activations: f32, f16 or bf16; the loss is not scaled, which f16 may require [default: f32]")
        })
        .mut_arg("adapter", |a| a.help("Folder of LoRA adapters to continue from, in PEFT's format"))
    })
}

/// Reads the command line. A negative number after a flag is that flag's value, which says what is wrong with it; to clap it looks like
/// another flag.
fn parse(args: impl IntoIterator<Item = std::ffi::OsString>) -> Result<Cli, clap::Error> {
    fn with_negatives(c: clap::Command) -> clap::Command {
        let negative = |a: clap::Arg| if a.is_positional() || !a.get_action().takes_values() { a } else { a.allow_negative_numbers(true) };
        c.mut_args(negative).mut_subcommands(with_negatives)
    }
    let matches = with_negatives(command()).try_get_matches_from(args).map_err(|mut e| {
        use clap::error::{ContextKind, ContextValue, ErrorKind};
        let text = |e: &clap::Error, kind| match e.get(kind) {
            Some(ContextValue::String(s)) => s.clone(),
            _ => String::new(),
        };
        let (value, arg) = (text(&e, ContextKind::InvalidValue), text(&e, ContextKind::InvalidArg));
        if e.kind() == ErrorKind::ValueValidation && value.starts_with('-') && value.parse::<f64>().is_ok() {
            let m = format!("{value} is not a value for '{arg}': expected a non-negative integer");
            e = clap::Error::raw(ErrorKind::ValueValidation, format!("{m}\n"));
        }
        e
    })?;
    Cli::from_arg_matches(&matches)
}

/// Settings that mean nothing end a command, except the one that tells of all of them.
fn check_settings(command: &Command) -> Result<(), Failure> {
    let wrong = match command {
        Command::Doctor(_) | Command::Completions(_) => None,
        _ => doctor::wrong_settings().into_iter().next(),
    };
    wrong.map_or(Ok(()), |(what, help)| Err(Failure::Usage(format!("{what}; {help}"))))
}

/// What a launcher started several times must work on several ranks, or only look at something.
fn check_launch(command: &Command) -> Result<(), Failure> {
    let Some(ranks) = tensorlogic::distributed::Launch::from_env().and_then(|l| l.size).filter(|n| *n > 1) else { return Ok(()) };
    let fits = match command {
        Command::Train(_) | Command::Generate(_) | Command::Perplexity(_) => true,
        Command::Bench(args) => args.runs_on_ranks(),
        Command::Devices(_) | Command::Doctor(_) | Command::Inspect(_) | Command::Plan(_) | Command::Ckpt(_) => true,
        Command::Completions(_) | Command::Top(_) => true,
        // Replicas share nothing.
        #[cfg(feature = "serve")]
        Command::Serve(_) => true,
        _ => false,
    };
    if fits {
        return Ok(());
    }
    let m = "runs as one process: start it without mpirun or srun (train, generate, perplexity and bench decode run on several ranks)";
    Err(Failure::Usage(format!("a launcher started {ranks} ranks, and this command {m}")))
}

fn main() -> ExitCode {
    if cfg!(target_os = "linux") && std::env::var_os("XDG_RUNTIME_DIR").is_none() {
        // Without a desktop, a layer that Mesa puts into every Vulkan program complains about that on stderr.
        // SAFETY: no other thread is running yet.
        unsafe { std::env::set_var("NODEVICE_SELECT", "1") };
    }
    // `TL_DEVICE= tl …` is how a shell unsets one for a moment.
    for name in doctor::names().filter(|name| std::env::var_os(name).is_some_and(|v| v.is_empty())) {
        // SAFETY: no other thread is running yet.
        unsafe { std::env::remove_var(name) };
    }
    let cli = match parse(std::env::args_os()) {
        Ok(cli) => cli,
        Err(e) => e.exit(),
    };
    let checked = check_settings(&cli.command).and_then(|()| check_launch(&cli.command));
    let result = checked.and_then(|()| log::install(&cli.log)).and_then(|()| match &cli.command {
        Command::Generate(args) => generate::run(args, cli.global),
        Command::Chat(args) => chat::run(args, cli.global),
        Command::Pull(args) => pull::run(args, cli.global),
        Command::Inspect(args) => inspect::run(args, cli.global),
        Command::Devices(args) => devices::run(args, cli.global),
        Command::Doctor(args) => doctor::run(args, cli.global),
        Command::Explain(args) => explain::run(args, cli.global),
        Command::Plan(args) => plan::run(args, cli.global),
        Command::Optimize(args) => optimize::run(args, cli.global),
        Command::Perplexity(args) => perplexity::run(args, cli.global),
        Command::Score(args) => score::run(args, cli.global),
        Command::Embed(args) => embed::run(args, cli.global),
        Command::Transcribe(args) => transcribe::run(args, cli.global),
        #[cfg(feature = "serve")]
        Command::Serve(args) => serve::run(args, cli.global),
        Command::Train(args) => train::run(args, cli.global),
        Command::Ckpt(args) => ckpt::run(args, cli.global),
        Command::Finetune(args) => finetune::run(args, cli.global),
        Command::Merge(args) => finetune::run_merge(args, cli.global),
        Command::Quantize(args) => quantize::run(args, cli.global),
        Command::Entropy(args) => entropy::run(args, cli.global),
        Command::Bench(args) => bench::run(args, cli.global),
        Command::Tune(args) => tune::run(args, cli.global),
        Command::Top(args) => top::run(args, cli.global),
        Command::Completions(args) => completions::run::<Cli>(args),
    });
    match result {
        Ok(()) => ExitCode::SUCCESS,
        // Whoever read our output has seen enough (`tl … | head`).
        Err(Failure::Closed) => ExitCode::SUCCESS,
        Err(failure @ Failure::Told(_)) => failure.code(),
        Err(failure) => {
            output::note(&format!("tl: {failure}"));
            failure.code()
        }
    }
}

#[cfg(test)]
mod tests {
    #[test]
    fn negative_numbers_reach_the_flag_that_they_follow() {
        let check = |line: &str, expect: &str| {
            let all = ["tl"].into_iter().chain(line.split(' ')).map(std::ffi::OsString::from);
            match super::parse(all) {
                Ok(_) => assert_eq!(expect, "", "{line}"),
                Err(e) => assert!(!expect.is_empty() && e.to_string().contains(expect) && e.exit_code() == 2, "{line}: {e}"),
            }
        };
        check("train a.txt -o b --lr -1", "");
        check("generate hello --temp -0.5", "");
        check("generate hello -n -1", "-1 is not a value for '--max-tokens <MAX_TOKENS>'");
        check("train a.txt -o b --steps -3", "-3 is not a value for '--steps <STEPS>'");
        check("generate hello --nothing", "--nothing");
        check("generate hello -q -n 1", "");
        check("generate -vv hello -n 1", "");
        check("-v --log-json log.jsonl devices", "");
    }

    #[test]
    fn the_command_line_is_consistent() {
        super::command().debug_assert();
    }
}
