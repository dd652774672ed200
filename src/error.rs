//! The error type: what went wrong, where (op and the user's line), the offending value, and one way to fix it.

use std::fmt;
use std::panic::Location;
use std::path::PathBuf;

/// The result of every fallible call in the library.
pub type TensorResult<T> = Result<T, TensorError>;

/// The user's line that wrote an op.
pub type At = &'static Location<'static>;

/// The error type of the library. The library does not panic on bad input.
#[derive(Clone, thiserror::Error)]
#[non_exhaustive]
pub enum TensorError {
    /// Incompatible shapes. Reported for the line that called the op.
    #[error("{op}: {message} ({}){hint}", Line(at))]
    Shape {
        /// The op's name.
        op: &'static str,
        /// What was given and what would fit.
        message: String,
        /// The line that wrote the op.
        at: At,
        /// One thing to try, such as `; did you mean b.t()?`, or nothing.
        hint: &'static str,
    },
    /// A dtype that the op does not support, or incompatible dtypes.
    #[error("{op}: {message} ({})", Line(at))]
    DType {
        /// The op's name.
        op: &'static str,
        /// What was given and what would fit.
        message: String,
        /// The line that wrote the op.
        at: At,
    },
    /// Operands of one op are on different devices.
    #[error("{op}: {message} ({})", Line(at))]
    Device {
        /// The op's name.
        op: &'static str,
        /// The devices.
        message: String,
        /// The line that wrote the op.
        at: At,
    },
    /// An index in the data is out of range; detected during evaluation.
    #[error("{op}: {message} ({})", Line(at))]
    Index {
        /// The op's name.
        op: &'static str,
        /// The index and the allowed range.
        message: String,
        /// The line that wrote the op.
        at: At,
    },
    /// An argument with a value that is not allowed. Reported for the line of the call; the message names the argument.
    #[error("{op}: {message} ({})", Line(at))]
    Argument {
        /// The call's name.
        op: &'static str,
        /// The argument, its value, and what would fit.
        message: String,
        /// The line of the call.
        at: At,
    },
    /// The requested device does not exist, or lacks a feature that an op needs.
    #[error("device: {0}")]
    UnsupportedDevice(String),
    /// An allocation failed, even after all cached buffers were released.
    #[error("out of memory on {device}: asked for {asked} bytes with {in_use} in use{}; {help}", limit.map(|l| format!(" of {l}")).unwrap_or_default())]
    OutOfMemory {
        /// The device's name.
        device: String,
        /// Requested bytes.
        asked: usize,
        /// Bytes this process holds on the device.
        in_use: usize,
        /// The current limit, if known.
        limit: Option<usize>,
        /// What to try.
        help: &'static str,
    },
    /// The device was lost. Every later call on it returns this error.
    #[error("device lost: {0}; open the device again, its tensors are gone")]
    DeviceLost(String),
    /// A file could not be read or written.
    #[error("{}: {message}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// The system's message.
        message: String,
    },
    /// A file's content is not what its format says.
    #[error("{format}: {}{message}", path.as_ref().map(|p| format!("{}: ", p.display())).unwrap_or_default())]
    Format {
        /// The format's name: `gguf`, `safetensors`, `tokenizer`, `config`.
        format: &'static str,
        /// What is wrong, and where.
        message: String,
        /// The file, where it is known and the message does not name it already.
        path: Option<PathBuf>,
    },
    /// An argument that is not allowed, such as an empty prompt, a token outside of the vocabulary, or a length that does not fit.
    #[error("{0}")]
    Value(String),
    /// Settings that are not allowed or do not fit together: of a sampler, an optimizer, an adapter, a memory limit.
    #[error("{0}")]
    Config(String),
    /// Computed numbers that cannot be used, such as NaN logits.
    #[error("{0}")]
    Numeric(String),
    /// A call that does not fit what happened before: a handle that was freed, a step without gradients, a tensor that is not tracked.
    #[error("{0}")]
    State(String),
    /// A promise inside of the library was broken, or a driver refused what it should take: worth a report.
    #[error("{0}")]
    Internal(String),
    /// Ranks of one run cannot go on together: another one failed, does not answer, or no MPI library fits the launcher.
    #[error("{0}")]
    Rank(String),
    /// Correct input that this version cannot do.
    #[error("not supported: {0}")]
    Unsupported(String),
}

/// Prints the same text as `Display`, so that errors returned from `main` or hit by `unwrap` are readable.
impl fmt::Debug for TensorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

struct Line<'a>(&'a At);
impl fmt::Display for Line<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.0.file(), self.0.line())
    }
}

impl TensorError {
    /// The message of file errors caused by a full disk.
    pub(crate) const FULL: [&str; 2] = ["the disk is full", "the disk quota is used up"];

    /// A file error with its path.
    pub fn io(path: impl Into<PathBuf>, error: std::io::Error) -> Self {
        let message = match error.kind() {
            std::io::ErrorKind::StorageFull => Self::FULL[0].into(),
            std::io::ErrorKind::QuotaExceeded => Self::FULL[1].into(),
            _ => error.to_string(),
        };
        TensorError::Io { path: path.into(), message }
    }
    /// A malformed file of `format`.
    pub fn format(format: &'static str, message: impl Into<String>) -> Self {
        TensorError::Format { format, message: message.into(), path: None }
    }
    /// This error with the file that it was met in, where it is one of a format and has none yet.
    pub fn in_file(mut self, file: impl AsRef<std::path::Path>) -> Self {
        if let TensorError::Format { path: path @ None, .. } = &mut self {
            *path = Some(file.as_ref().to_path_buf());
        }
        self
    }
    /// A shape error written at `at`.
    pub fn shape(op: &'static str, at: At, message: impl Into<String>) -> Self {
        TensorError::Shape { op, message: message.into(), at, hint: "" }
    }
    /// A dtype error written at `at`.
    pub fn dtype(op: &'static str, at: At, message: impl Into<String>) -> Self {
        TensorError::DType { op, message: message.into(), at }
    }
}
