//! `tl ckpt`: what a run's folder can be resumed from.

use crate::Global;
use crate::output::{self, Failure};
use crate::train::{LOCK, SETTINGS};
use clap::{Args, Subcommand};
use std::path::PathBuf;
use tensorlogic::train::Checkpoints;

/// Check the checkpoints of `tl train`
#[derive(Args)]
pub struct CkptArgs {
    #[command(subcommand)]
    command: CkptCommand,
}

#[derive(Subcommand)]
enum CkptCommand {
    /// Verify every byte of the newest checkpoint and print its step, or 0 if there is none
    ///
    /// A run that was killed before its first `saved` has no checkpoint: the command prints 0, and `tl train --resume` starts the run again.
    /// A folder in which `tl train` never ran is an error.
    Verify {
        /// Folder of the run (`tl train -o`)
        dir: PathBuf,
    },
}

/// Runs the subcommand.
pub fn run(args: &CkptArgs, global: Global) -> Result<(), Failure> {
    let CkptCommand::Verify { dir } = &args.command;
    if !dir.is_dir() {
        return Err(Failure::Error(format!("{}: not a folder", dir.display())));
    }
    // The lock is the first thing that a run makes, and it stays; an empty folder may be that of a run that has not come so far.
    let empty = || Ok::<_, std::io::Error>(std::fs::read_dir(dir)?.next().is_none());
    let of_a_run = [LOCK, SETTINGS, "checkpoints"].iter().any(|name| dir.join(name).exists());
    if !of_a_run && !empty()? {
        return Err(Failure::Error(format!("{}: no run of `tl train` is in this folder", dir.display())));
    }
    let checkpoints = Checkpoints::new(dir.join("checkpoints"), 1);
    let (step, wrong) = checkpoints.latest()?;
    if !global.quiet {
        wrong.iter().for_each(|e| output::note(&format!("damaged: {e}")));
        if step.is_none() && wrong.is_empty() {
            output::note("nothing was saved yet: --resume begins at step 0");
        }
    }
    if global.json {
        let damaged: Vec<String> = wrong.iter().map(|e| e.to_string()).collect();
        output::result(&serde_json::json!({ "step": step, "damaged": damaged }).to_string())?;
    }
    match step {
        None if !wrong.is_empty() => Err(Failure::Error(format!("{}: every checkpoint is damaged", dir.display()))),
        _ if global.json => Ok(()),
        _ => output::result(&step.unwrap_or(0).to_string()),
    }
}
