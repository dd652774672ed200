//! Why a model could not be found or downloaded.

use crate::output::Failure;
use std::path::{Path, PathBuf};
use std::{fs, io};
use tensorlogic::io::write_error;

/// Why a model could not be found or downloaded.
#[derive(Debug, thiserror::Error)]
pub enum PullError {
    /// The name means nothing.
    #[error("unknown model \"{name}\"{}; known names: {}; or use OWNER/REPO[:FILE] on the Hugging Face Hub, or a file",
        nearest.as_ref().map(|n| format!(", did you mean {n}?")).unwrap_or_default(), known.join(", "))]
    Unknown {
        /// What was asked for.
        name: String,
        /// The most similar name.
        nearest: Option<String>,
        /// All names.
        known: Vec<&'static str>,
    },
    /// A path that does not exist.
    #[error("file {} does not exist", .0.display())]
    NoFile(PathBuf),
    /// A folder without a model.
    #[error("{} is not a model directory: config.json is missing", .0.display())]
    NoModel(PathBuf),
    /// A repository with several models.
    #[error("{repo} has {}; name one: {repo}:{}", if files.is_empty() { "no supported model file".into() } else { format!("several models: {}", files.join(", ")) },
        files.first().map_or("FILE", String::as_str))]
    Which {
        /// The repository.
        repo: String,
        /// The models in it.
        files: Vec<String>,
    },
    /// Not in the cache folder, and offline.
    #[error("{name} is not in {} and TL_OFFLINE is set", folder.display())]
    Offline {
        /// What was asked for.
        name: String,
        /// Where it was looked for.
        folder: PathBuf,
    },
    /// Damaged in the cache folder, and offline.
    #[error("{} is damaged ({why}) and TL_OFFLINE is set; unset it and run `tl pull {name}` to download the file again", path.display())]
    Damaged {
        /// What was asked for.
        name: String,
        /// The file.
        path: PathBuf,
        /// What is wrong with it.
        why: String,
    },
    /// Confirmation is needed, but input is not interactive.
    #[error("{name} is not downloaded yet: add --yes to download {what}")]
    NeedsYes {
        /// What was asked for.
        name: String,
        /// What would be downloaded, from where.
        what: String,
    },
    /// The user said no.
    #[error("nothing was downloaded")]
    Declined,
    /// Ctrl-C.
    #[error("interrupted")]
    Interrupted,
    /// The cache folder cannot be written.
    #[error("{0}")]
    Store(tensorlogic::TensorError),
    /// No source had it.
    #[error("{name} could not be downloaded: {}", reasons.join("; "))]
    Sources {
        /// What was asked for.
        name: String,
        /// Each source with what it said.
        reasons: Vec<String>,
    },
    /// No cache folder is known.
    #[error("no cache folder found: set TL_CACHE_DIR")]
    NoFolder,
    /// An invalid address.
    #[error("HF_ENDPOINT is \"{0}\", which is not an http or https address")]
    Endpoint(String),
}

/// A source's error message.
pub(super) struct Why(pub(super) String);

/// A failed source, or a reason not to try others.
pub(super) enum Failed {
    Source(String),
    Fatal(PullError),
}

impl From<Why> for Failed {
    fn from(why: Why) -> Self {
        Failed::Source(why.0)
    }
}

impl From<PullError> for Failed {
    fn from(error: PullError) -> Self {
        Failed::Fatal(error)
    }
}

impl Failed {
    /// The error of a pull for which this was the only source.
    pub(super) fn at(self, name: &str, source: &str) -> PullError {
        match self {
            Failed::Source(why) => PullError::Sources { name: name.into(), reasons: vec![format!("{source}: {why}")] },
            Failed::Fatal(error) => error,
        }
    }
}

impl PullError {
    /// A write that failed; a full disk says so.
    pub fn store(path: &Path, source: io::Error) -> Self {
        let held = fs::metadata(path).map_or(0, |data| if data.is_file() { data.len() } else { 0 });
        // The user knows the cache folder, not what lies in it for a moment.
        let inner = path.ancestors().find(|part| part.file_name().is_some_and(|name| name.to_string_lossy().starts_with(".partial-")));
        // What is there of the file goes away now.
        let held = if inner.is_some() { held } else { 0 };
        PullError::Store(write_error(inner.and_then(Path::parent).unwrap_or(path), source, held))
    }
}

impl From<PullError> for Failure {
    fn from(error: PullError) -> Self {
        match error {
            PullError::Interrupted => Failure::Interrupted,
            other => Failure::Error(other.to_string()),
        }
    }
}
