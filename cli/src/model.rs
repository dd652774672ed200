//! Finding, opening and describing the model that a subcommand works on.

use crate::Global;
use crate::fetch::{self, PullError, PullOptions, builtin};
use crate::layers::RankGroup;
use crate::output::{self, Failure};
use clap::Args;
use serde_json::{Map, Value};
use std::path::{Path, PathBuf};
use tensorlogic::device::FallbackNote;
use tensorlogic::models::{self, Adapters, GenerationDefaults, Model, Rounding, Session, Weights};
use tensorlogic::text::{ChatTemplate, Message, Tokenizer};
use tensorlogic::{DType, Device, PipelineStrategy, TensorError, TensorResult};

/// The model that is used when none is named.
pub const DEFAULT: &str = "smollm2-135m-instruct";

/// Options that select the model and the device.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// Model: a GGUF file, a folder in Hub layout, a name from `tl pull --list`, or `OWNER/REPO[:FILE]` [default: smollm2-135m-instruct]
    #[arg(short, long)]
    pub model: Option<String>,
    /// Device: auto, cpu, gpu, vulkan, metal or dx12; the last four accept an index, such as vulkan:1. Of a list such as metal,vulkan,cpu the
    /// first that is there, and the next where that is lost or full. Several with + between them, such as vulkan:0+vulkan:1, share the layers
    #[arg(long, env = "TL_DEVICE", default_value = "auto")]
    pub device: String,
    /// Type of activations: f32, f16 or bf16 [default: f32 on the CPU, f16 on a GPU]
    #[arg(long)]
    pub dtype: Option<String>,
    /// Round activations before products, as llama.cpp does on a CPU: bf16 for layers in bf16 (prompts on CPUs with bf16 instructions), int8 for
    /// layers in block formats (less time a token on x86 without AVX-512, results change by about 0.4 %)
    #[arg(long, value_name = "TYPE", value_parser = Rounding::NAMES)]
    pub activations: Option<String>,
    /// Folder of LoRA adapters for the model, in PEFT's format (as written by `tl finetune`)
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Download a missing model without asking
    #[arg(short, long)]
    pub yes: bool,
}

/// An opened model.
pub struct Loaded {
    pub device: Device,
    pub model: Box<dyn Model>,
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
    /// What the model's files say about sampling.
    pub defaults: GenerationDefaults,
    path: PathBuf,
    args: ModelArgs,
    /// Whether it can be loaded again on another device.
    reloads: bool,
}

impl ModelArgs {
    /// The model's file, downloaded if needed and allowed.
    pub fn path(&self, global: Global) -> Result<PathBuf, Failure> {
        path(self.model.as_deref(), self.yes, global)
    }

    /// As [`ModelArgs::path`], and the built-in model where none is named and the usual one cannot be had without a network.
    pub fn path_or_tiny(&self, global: Global) -> Result<PathBuf, Failure> {
        let options = options(self.yes, global)?;
        match fetch::resolve(self.model.as_deref().unwrap_or(DEFAULT), &options) {
            Err(e @ (PullError::Offline { .. } | PullError::Sources { .. })) if self.model.is_none() => {
                output::note(&format!("{e}: using the bundled model {}, trained on Shakespeare only", builtin::TINY));
                Ok(builtin::tiny(&options)?)
            }
            found => Ok(found?),
        }
    }

    /// These options with the model that `tl COMMAND MODEL` names, which is as good as `-m MODEL`.
    pub fn named(&self, name: Option<&String>, command: &str) -> Result<ModelArgs, Failure> {
        if name.is_some() && self.model.is_some() {
            return Err(Failure::Usage(format!("name the model once: `tl {command} MODEL`, or -m MODEL")));
        }
        Ok(ModelArgs { model: name.or(self.model.as_ref()).cloned(), ..self.clone() })
    }

    /// The requested device, for commands whose model is in one place.
    pub fn device(&self) -> Result<Device, Failure> {
        match self.devices().count() {
            1 => open_device(&self.device),
            n => Err(Failure::Usage(format!("--device {}: this command supports one device, got {n}", self.device))),
        }
    }

    /// The names of the devices that share the model's layers.
    pub fn devices(&self) -> impl Iterator<Item = &str> {
        self.device.split('+')
    }

    /// The requested dtype.
    pub fn dtype(&self) -> Result<Option<DType>, Failure> {
        match self.dtype.as_deref() {
            None => Ok(None),
            Some("f32") => Ok(Some(DType::F32)),
            Some("f16") => Ok(Some(DType::F16)),
            Some("bf16") => Ok(Some(DType::BF16)),
            Some(other) => Err(Failure::Usage(format!("--dtype {other}: expected f32, f16 or bf16"))),
        }
    }

    /// The weights of this file, on this device.
    pub fn open(&self, path: &Path, device: &Device) -> Result<Weights, Failure> {
        Ok(self.rounded(open(path, device)?))
    }

    /// Weights by whose layers activations are rounded where that was asked for.
    pub fn rounded(&self, weights: Weights) -> Weights {
        weights.round_activations(self.activations.as_deref().and_then(Rounding::parse))
    }

    /// The model of these weights, which are those of `path`, with the adapters asked for.
    pub fn build(&self, weights: &Weights, path: &Path, dtype: Option<DType>) -> Result<Box<dyn Model>, Failure> {
        let mut model = models::load(weights, dtype).map_err(|e| unreadable(path, e))?;
        if let Some(folder) = &self.adapter {
            Adapters::load(folder, &mut *model)?;
        }
        Ok(model)
    }

    /// Opens the model with its tokenizer.
    pub fn load(&self, global: Global) -> Result<Loaded, Failure> {
        self.load_from(&self.path(global)?, global)
    }

    /// Opens the model of this file with its tokenizer.
    pub fn load_from(&self, path: &Path, global: Global) -> Result<Loaded, Failure> {
        self.load_over(path, global, &RankGroup::alone())
    }

    /// As [`ModelArgs::load_from`], with the layers that the other ranks compute.
    pub fn load_over(&self, path: &Path, global: Global, group: &RankGroup) -> Result<Loaded, Failure> {
        let dtype = self.dtype()?;
        let (device, read) = std::thread::scope(|s| {
            // A driver takes as long to start as a tokenizer takes to build.
            let device = s.spawn(|| group.device(self));
            let read = self.open(path, &Device::cpu()).and_then(|w| Ok((texts(&w, path)?, defaults(&w, path)?, w)));
            (device.join(), read)
        });
        let device = device.map_err(|_| Failure::Error("opening the device panicked".into()))??;
        if !global.quiet {
            output::note(&format!("{} on {}", path.file_name().unwrap_or(path.as_os_str()).to_string_lossy(), device.name()));
        }
        let ((tokenizer, template), defaults, mut weights) = read?;
        let mut device = device;
        let model = loop {
            weights = weights.on(&device);
            match group.build(self, &weights, dtype, |device| self.open(path, device), path, global) {
                Err(Failure::Device(e)) if !group.distributes(self) => device = go_on(&device, e)?,
                built => break built?,
            }
        };
        let reloads = !group.distributes(self);
        Ok(Loaded { device, model, tokenizer, template, defaults, path: path.to_path_buf(), args: self.clone(), reloads })
    }
}

/// The file of the model of this name (else of [`DEFAULT`]), downloaded where needed and allowed.
pub fn path(name: Option<&str>, yes: bool, global: Global) -> Result<PathBuf, Failure> {
    Ok(fetch::resolve(name.unwrap_or(DEFAULT), &options(yes, global)?)?)
}

fn options(yes: bool, global: Global) -> Result<PullOptions, Failure> {
    let mut options = PullOptions::from_env()?;
    (options.quiet, options.yes) = (global.quiet, yes);
    Ok(options)
}

/// Warns about characters that are not in the model's vocabulary. They are skipped, which changes the input.
pub fn warn_unknown<'a>(tokenizer: &Tokenizer, texts: impl IntoIterator<Item = &'a str>, global: Global) -> Result<(), Failure> {
    if global.quiet {
        return Ok(());
    }
    let mut unknown: Vec<char> = Vec::new();
    for text in texts {
        unknown.extend(tokenizer.unknown_characters(text)?);
    }
    let mut seen = std::collections::HashSet::new();
    unknown.retain(|&c| seen.insert(c));
    const SHOWN_TOKENS: usize = 16;
    let names: Vec<String> = unknown.iter().take(SHOWN_TOKENS).map(|c| format!("{c:?}")).collect();
    if !names.is_empty() {
        let more = if unknown.len() > SHOWN_TOKENS { format!(" and {} others", unknown.len() - SHOWN_TOKENS) } else { String::new() };
        output::note(&format!("not in the model's vocabulary, skipped: {}{more}", names.join(", ")));
    }
    Ok(())
}

/// The device of this name, from a flag or `TL_DEVICE`. An unknown name is wrong usage.
pub fn open_device(name: &str) -> Result<Device, Failure> {
    let is_known = |name: &str| match name.trim().split_once(':').map_or((name.trim(), None), |(k, i)| (k, Some(i))) {
        ("auto" | "cpu", None) => true,
        ("gpu" | "vulkan" | "metal" | "dx12", i) => i.is_none_or(|i| i.parse::<usize>().is_ok()),
        _ => false,
    };
    let known = name.split(',').all(is_known);
    let from = if std::env::var("TL_DEVICE").is_ok_and(|v| v == name) { "TL_DEVICE" } else { "--device" };
    if !known {
        return Err(Failure::Usage(format!("{from}: unknown device {name:?}: expected {DEVICES}")));
    }
    match Device::open(name) {
        Err(e) if from == "TL_DEVICE" => Err(Failure::Error(format!("TL_DEVICE: {e}"))),
        opened => Ok(opened?),
    }
}

/// Valid device names.
pub const DEVICES: &str = "auto, cpu, gpu, vulkan, metal or dx12; the last four accept an index, such as vulkan:1; or a list of these";

/// Rejects a file that is obviously not a model, before a parser misinterprets its first bytes.
pub fn is_model(path: &Path) -> Result<(), Failure> {
    let named = path.extension().is_some_and(|e| ["gguf", "safetensors", "json"].iter().any(|n| e.eq_ignore_ascii_case(n)));
    if named || !path.is_file() {
        return Ok(());
    }
    let failed = |e: std::io::Error| Failure::Error(format!("{}: {e}", path.display()));
    let mut start = Vec::new();
    std::io::Read::read_to_end(&mut std::io::Read::take(std::fs::File::open(path).map_err(failed)?, 48), &mut start).map_err(failed)?;
    // GGUF begins with its name, safetensors with the length of a JSON object.
    if start.starts_with(b"GGUF") || start.get(8) == Some(&b'{') && start[4..8] == [0; 4] {
        return Ok(());
    }
    let is = match std::str::from_utf8(&start).or_else(|e| std::str::from_utf8(&start[..e.valid_up_to()])) {
        _ if start.is_empty() => "is empty".to_string(),
        Ok(text) if !text.is_empty() && !text.contains('\0') => {
            format!("is text that starts with {:?}", text.lines().next().unwrap_or_default())
        }
        _ => "matches neither format".to_string(),
    };
    Err(Failure::Error(format!("{} is not a GGUF or safetensors model: it {}", path.display(), is.trim_start_matches("it "))))
}

/// The weights of a model's file or folder.
pub fn open(path: &Path, device: &Device) -> Result<Weights, Failure> {
    is_model(path)?;
    Weights::open(path, device).map_err(|e| damaged(path, e))
}

/// The error for a file with an invalid structure.
pub fn damaged(path: &Path, error: TensorError) -> Failure {
    let structure = matches!(error, TensorError::Format { format: "gguf" | "safetensors", .. });
    match unreadable(path, error) {
        Failure::Error(text) if structure && !text.contains("`tl pull") => {
            Failure::Error(format!("{text}; the file is damaged or truncated: download or create it again"))
        }
        other => other,
    }
}

/// The error for an unusable model: names the file and, if it was downloaded and is damaged, how to restore it.
pub fn unreadable(path: &Path, error: TensorError) -> Failure {
    let text = error.to_string();
    let named = text.contains(&*path.to_string_lossy());
    match error {
        TensorError::Format { .. } | TensorError::Unsupported(_) if !named => mended(path, format!("{}: {text}", path.display())),
        TensorError::Format { .. } | TensorError::Unsupported(_) | TensorError::Io { .. } => mended(path, text),
        other => other.into(),
    }
}

/// The error, with a hint how to restore the file if it was downloaded and is damaged.
fn mended(path: &Path, text: String) -> Failure {
    let help = PullOptions::from_env().ok().and_then(|options| fetch::mend(path, &options));
    Failure::Error(help.map_or(text.clone(), |help| format!("{text}; {help}")))
}

/// The device to go on with after this error, with a note.
pub fn go_on(device: &Device, error: TensorError) -> Result<Device, Failure> {
    let Some(next) = device.fallback(&error) else { return Err(Failure::Device(error)) };
    output::note(&FallbackNote::new(device, &next, &error).to_string());
    Ok(next)
}

impl Loaded {
    /// A session that goes on with the next device of the list where its own is lost or full.
    pub fn session(&self, context: usize, strategy: PipelineStrategy) -> Result<Session<'_>, Failure> {
        if !self.reloads {
            return Ok(Session::new(&*self.model, context, &self.device)?.strategy(strategy));
        }
        let reload = |device: &Device, dtype: DType| self.reload(device, dtype);
        Ok(Session::with_reload(&*self.model, context, &self.device, Box::new(reload))?.strategy(strategy))
    }

    /// The model on another device, with activations of this dtype.
    fn reload(&self, device: &Device, dtype: DType) -> TensorResult<Box<dyn Model>> {
        let mut model = models::load(&self.args.rounded(Weights::open(&self.path, device)?), Some(dtype))?;
        if let Some(folder) = &self.args.adapter {
            Adapters::load(folder, &mut *model)?;
        }
        Ok(model)
    }

    /// What `work` gives for the model and its device. Where the device is lost or full, the model moves to the next one of the list, and `work`
    /// is done again there.
    pub fn recovering<T>(&mut self, mut work: impl FnMut(&dyn Model, &Device) -> Result<T, Failure>) -> Result<T, Failure> {
        loop {
            let mut error = match work(&*self.model, &self.device) {
                Err(Failure::Device(e)) if self.reloads => e,
                done => return done,
            };
            let dtype = self.model.shape().dtype;
            loop {
                self.device = go_on(&self.device, error)?;
                match self.reload(&self.device, dtype).map_err(Failure::from) {
                    Err(Failure::Device(e)) => error = e,
                    model => break self.model = model?,
                }
            }
        }
    }

    /// An error of running the model. NaN may come from a damaged file; if it is damaged, the error says so.
    pub fn failed(&self, error: Failure) -> Failure {
        match error {
            Failure::Error(text) if text.contains("NaN") => mended(&self.path, text),
            other => other,
        }
    }

    /// A conversation as tokens, up to where the model begins to speak; `variables` are what the template gets besides the messages.
    pub fn encode_messages(
        &self,
        template: &ChatTemplate,
        messages: &[Value],
        variables: &Map<String, Value>,
    ) -> Result<Vec<u32>, Failure> {
        encode_messages(&self.tokenizer, template, messages, true, variables)
    }
}

/// A conversation as tokens: up to where the model begins to speak (`open`), or up to the end of the last message.
pub fn encode_chat(t: &Tokenizer, template: &ChatTemplate, messages: &[Message], open: bool) -> Result<Vec<u32>, Failure> {
    let messages: Vec<Value> = messages.iter().map(|m| crate::answer::message(&m.role, &m.content)).collect();
    encode_messages(t, template, &messages, open, &Map::new())
}

fn encode_messages(
    t: &Tokenizer,
    template: &ChatTemplate,
    messages: &[Value],
    open: bool,
    variables: &Map<String, Value>,
) -> Result<Vec<u32>, Failure> {
    let name = |id: Option<u32>| id.and_then(|id| t.token(id)).unwrap_or_default();
    let text = template.render_messages(messages, open, name(t.bos()), name(t.eos()), variables.clone())?;
    // Templates write the begin token themselves.
    Ok(t.encode_with(&text, false, true)?)
}

/// What the model's files say about sampling.
fn defaults(weights: &Weights, path: &Path) -> Result<GenerationDefaults, Failure> {
    GenerationDefaults::of(weights).map_err(|e| unreadable(path, e))
}

/// The tokenizer of a model, and its chat template where it has one.
pub fn texts(weights: &Weights, path: &Path) -> Result<(Tokenizer, Option<ChatTemplate>), Failure> {
    if let Some(gguf) = weights.gguf() {
        let read = || {
            let template = gguf.opt("tokenizer.chat_template", tensorlogic::io::gguf::Value::str)?;
            Ok((Tokenizer::from_gguf(gguf)?, template.map(ChatTemplate::new).transpose()?))
        };
        return read().map_err(|e| unreadable(path, e));
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let read = || {
        let mut tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
        // A model may end its answers by other tokens than the one that its tokenizer names.
        GenerationDefaults::of(weights)?.end_tokens.into_iter().for_each(|id| tokenizer.add_end_token(id));
        Ok((tokenizer, ChatTemplate::from_folder(folder)?))
    };
    read().map_err(|e| unreadable(path, e))
}
