//! Finding, opening and describing the model that a subcommand works on.

use crate::Global;
use crate::fetch::{self, PullError, PullOptions, builtin};
use crate::output::{self, Failure};
use clap::Args;
use std::path::{Path, PathBuf};
use tensorlogic::models::{self, Adapters, Model, Weights};
use tensorlogic::text::{ChatTemplate, Message, Tokenizer};
use tensorlogic::{DType, Device};

/// The model that is used when none is named.
pub const DEFAULT: &str = "smollm2-135m-instruct";

/// Which model, where.
#[derive(Args, Clone, Debug)]
pub struct ModelArgs {
    /// A GGUF file, a folder in Hub layout, a name from `tl pull --list`, or `OWNER/REPO[:FILE]` [default: smollm2-135m-instruct]
    #[arg(short, long)]
    pub model: Option<String>,
    /// Where to run: auto, cpu, gpu, vulkan, metal or dx12; the last four also with an index, as vulkan:1
    #[arg(long, env = "TL_DEVICE", default_value = "auto")]
    pub device: String,
    /// The type of activations: f32, f16 or bf16 [default: f32 on the CPU, f16 on a GPU]
    #[arg(long)]
    pub dtype: Option<String>,
    /// A folder of LoRA adapters for the model, in PEFT's layout, as `tl finetune` writes it
    #[arg(long, value_name = "DIR")]
    pub adapter: Option<PathBuf>,
    /// Download the model without asking, if it is not here yet
    #[arg(short, long)]
    pub yes: bool,
}

/// An opened model.
pub struct Loaded {
    pub device: Device,
    pub model: Box<dyn Model>,
    pub tokenizer: Tokenizer,
    pub template: Option<ChatTemplate>,
}

impl ModelArgs {
    /// The file of the model, downloaded where needed and allowed.
    pub fn path(&self, global: Global) -> Result<PathBuf, Failure> {
        Ok(fetch::resolve(self.model.as_deref().unwrap_or(DEFAULT), &self.options(global)?)?)
    }

    /// As [`ModelArgs::path`], and the built-in model where none is named and the usual one cannot be had without a network.
    pub fn path_or_tiny(&self, global: Global) -> Result<PathBuf, Failure> {
        let options = self.options(global)?;
        match fetch::resolve(self.model.as_deref().unwrap_or(DEFAULT), &options) {
            Err(e @ (PullError::Offline { .. } | PullError::Sources { .. })) if self.model.is_none() => {
                output::note(&format!("{e}: the built-in model {} answers, which has read Shakespeare and nothing else", builtin::TINY));
                Ok(builtin::tiny(&options)?)
            }
            found => Ok(found?),
        }
    }

    fn options(&self, global: Global) -> Result<PullOptions, Failure> {
        let mut options = PullOptions::from_env()?;
        options.quiet = global.quiet;
        options.yes = self.yes;
        Ok(options)
    }

    /// The device asked for.
    pub fn device(&self) -> Result<Device, Failure> {
        Ok(Device::open(&self.device)?)
    }

    /// The dtype asked for.
    pub fn dtype(&self) -> Result<Option<DType>, Failure> {
        match self.dtype.as_deref() {
            None => Ok(None),
            Some("f32") => Ok(Some(DType::F32)),
            Some("f16") => Ok(Some(DType::F16)),
            Some("bf16") => Ok(Some(DType::BF16)),
            Some(other) => Err(Failure::Usage(format!("--dtype {other}: want f32, f16 or bf16"))),
        }
    }

    /// The model of these weights, with the adapters asked for.
    pub fn build(&self, weights: &Weights, dtype: Option<DType>) -> Result<Box<dyn Model>, Failure> {
        let mut model = models::load(weights, dtype)?;
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
        let dtype = self.dtype()?;
        let (device, read) = std::thread::scope(|s| {
            // A driver takes as long to start as a tokenizer takes to build.
            let device = s.spawn(|| self.device());
            let read = Weights::open(path, &Device::cpu()).map_err(Failure::from).and_then(|w| Ok((texts(&w, path)?, w)));
            (device.join(), read)
        });
        let device = device.map_err(|_| Failure::Error("opening the device panicked".into()))??;
        if !global.quiet {
            output::note(&format!("{} on {}", path.file_name().unwrap_or(path.as_os_str()).to_string_lossy(), device.name()));
        }
        let ((tokenizer, template), weights) = read?;
        let model = self.build(&weights.on(&device), dtype)?;
        Ok(Loaded { device, model, tokenizer, template })
    }
}

impl Loaded {
    /// A conversation as tokens, up to where the model begins to speak.
    pub fn encode_chat(&self, template: &ChatTemplate, messages: &[Message]) -> Result<Vec<u32>, Failure> {
        encode_chat(&self.tokenizer, template, messages, true)
    }
}

/// A conversation as tokens: up to where the model begins to speak (`open`), or up to the end of the last message.
pub fn encode_chat(t: &Tokenizer, template: &ChatTemplate, messages: &[Message], open: bool) -> Result<Vec<u32>, Failure> {
    let name = |id: Option<u32>| id.and_then(|id| t.token(id)).unwrap_or_default();
    let bos = name(t.bos());
    let text = template.render(messages, open, bos, name(t.end_tokens().first().copied()), None)?;
    // Templates write the begin token themselves.
    Ok(t.encode_with(&text, false, true)?)
}

/// The tokenizer of a model, and its chat template where it has one.
pub fn texts(weights: &Weights, path: &Path) -> Result<(Tokenizer, Option<ChatTemplate>), Failure> {
    if let Some(gguf) = weights.gguf() {
        let template = gguf.opt("tokenizer.chat_template", tensorlogic::io::gguf::Value::str)?;
        return Ok((Tokenizer::from_gguf(gguf)?, template.map(ChatTemplate::new).transpose()?));
    }
    let folder = if path.is_dir() { path } else { path.parent().unwrap_or(Path::new(".")) };
    let tokenizer = Tokenizer::from_file(folder.join("tokenizer.json"))?;
    Ok((tokenizer, ChatTemplate::from_folder(folder)?))
}
