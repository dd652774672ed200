//! Where text goes: results to stdout, everything else to stderr, and what a failed command says and returns.

use std::fmt;
use std::io::{self, Write};
use std::process::ExitCode;
use tensorlogic::error::TensorError;

/// Why a subcommand ended early.
#[derive(Debug)]
pub enum Failure {
    /// Something went wrong: one line, exit code 1.
    Error(String),
    /// The device was lost or is full: exit code 1, unless the command goes on elsewhere.
    Device(TensorError),
    /// Wrong usage: exit code 2.
    Usage(String),
    /// Ctrl-C: exit code 130.
    Interrupted,
    /// Told already, by this rank of the run or another one: this exit code, and no message.
    Told(u8),
    /// The reader closed our output: not an error.
    Closed,
}

impl Failure {
    /// The exit code of the process.
    pub fn code(&self) -> ExitCode {
        ExitCode::from(self.number())
    }

    /// The same as a number.
    pub fn number(&self) -> u8 {
        match self {
            Failure::Error(_) | Failure::Device(_) => 1,
            Failure::Told(code) => *code,
            Failure::Usage(_) => 2,
            Failure::Interrupted => 130,
            Failure::Closed => 0,
        }
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failure::Error(text) | Failure::Usage(text) => {
                // One line, whatever a library or another program put into the message.
                let mut lines = text.lines().map(str::trim).filter(|line| !line.is_empty());
                f.write_str(lines.next().unwrap_or("failed"))?;
                lines.try_for_each(|line| write!(f, " {line}"))
            }
            Failure::Device(error) => Failure::Error(error.to_string()).fmt(f),
            Failure::Told(_) => f.write_str("told already"),
            Failure::Interrupted => f.write_str("interrupted"),
            Failure::Closed => f.write_str("output closed"),
        }
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        match error.kind() {
            io::ErrorKind::BrokenPipe => Failure::Closed,
            // Files of our own say their name; this is where stdout leads.
            io::ErrorKind::StorageFull | io::ErrorKind::QuotaExceeded => {
                Failure::Error("stdout: the disk is full: the output is cut short there".into())
            }
            _ => Failure::Error(error.to_string()),
        }
    }
}

impl From<TensorError> for Failure {
    fn from(error: TensorError) -> Self {
        match error {
            // What a program would set by a parameter of the library is a flag here.
            TensorError::Numeric(_) => Failure::Error(format!("{error} (--dtype f32)")),
            TensorError::DeviceLost(_) | TensorError::OutOfMemory { .. } => Failure::Device(error),
            _ => Failure::Error(error.to_string()),
        }
    }
}

/// Formats an amount of memory for the final line of a command: whole MiB, or KiB below one MiB.
pub fn memory(bytes: usize) -> String {
    if bytes < 1 << 20 { format!("{} KiB", bytes.div_ceil(1024)) } else { format!("{:.0} MiB", bytes as f64 / 1048576.0) }
}

/// Peak memory as the last lines of commands give it: with mapped files, and what was allocated, which `TL_MEM_LIMIT` bounds.
pub fn peak_memory(stats: &tensorlogic::plan::MemoryStats) -> String {
    match stats.peak == stats.peak_allocated {
        true => format!("peak memory {}, all allocated", memory(stats.peak)),
        false => format!("peak memory {} with mapped files, {} allocated", memory(stats.peak), memory(stats.peak_allocated)),
    }
}

/// Writes one line of the result.
pub fn result(line: &str) -> Result<(), Failure> {
    let mut out = io::stdout().lock();
    writeln!(out, "{line}")?;
    Ok(out.flush()?)
}

/// Prints a message to stderr. A closed stderr is ignored.
pub fn note(line: &str) {
    let _ = writeln!(io::stderr().lock(), "{line}");
}

#[cfg(test)]
mod tests {
    #[test]
    fn little_memory_is_not_none() {
        let all = [0, 1, 300 << 10, (1 << 20) - 1, 1 << 20, 17 << 20].map(super::memory);
        assert_eq!(all, ["0 KiB", "1 KiB", "300 KiB", "1024 KiB", "1 MiB", "17 MiB"]);
    }
}
