//! `tl serve`: many clients at once on one model, over HTTP.

mod accept;
mod access;
mod answer;
mod anthropic;
mod ask;
mod calls;
mod embeddings;
mod error;
mod fields;
mod format;
#[cfg(feature = "grammar")]
mod grammar;
mod host;
mod idle;
mod keys;
mod metrics;
mod openai;
mod openapi;
mod peer;
mod routes;
mod sse;
mod stops;
mod texts;
mod tools;

use crate::embed::By;
use crate::output::{self, Failure};
use crate::{Global, interrupt};
use clap::Args;
use host::Models;
use idle::Idle;
use keys::Keys;
use metrics::Metrics;
use serde_json::json;
use std::net::{IpAddr, SocketAddr};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

/// Answer many clients at once over HTTP, with the interfaces of OpenAI and Anthropic
#[derive(Args, Clone)]
#[command(
    after_help = "Routes: /v1/chat/completions, /v1/completions, /v1/responses, /v1/embeddings, /v1/models; /v1/messages (Anthropic's form); /tokenize, /detokenize,
/apply-template, /props; /health, /ready, /metrics, /openapi.json; / is a page to chat on. Parameters and limits: docs/serving.md.

Examples:
  tl serve                                             the default model, on http://127.0.0.1:8080
  tl serve model.gguf --port 9000 --rows 32
  tl serve -m a.gguf -m b.gguf --memory 8192           two models, loaded when they are asked for
  tl serve --host 0.0.0.0 --api-key-file keys.txt      for others too; one key a line

  curl http://127.0.0.1:8080/v1/chat/completions -H 'Content-Type: application/json' \\
    -d '{\"messages\": [{\"role\": \"user\", \"content\": \"Why is the sky blue?\"}], \"max_tokens\": 100}'

Ctrl-C or SIGTERM: no more requests are taken, and those that run may end; a second Ctrl-C ends them."
)]
pub struct ServeArgs {
    /// Models, as of --model; requests choose one by its name, without one the first
    #[arg(value_name = "MODEL")]
    models: Vec<String>,
    /// Model: a GGUF file, a folder in Hub layout, a name from `tl pull --list`, or `OWNER/REPO[:FILE]`; may be given several times. The first is loaded
    /// at the start, others when a request names them [default: smollm2-135m-instruct]
    #[arg(short, long = "model", value_name = "MODEL")]
    more_models: Vec<String>,
    /// Address to listen on; others than this machine's own need --api-key, --api-key-file or --no-auth
    #[arg(long, default_value = "127.0.0.1")]
    host: String,
    /// Port; 0 for any that is free
    #[arg(long, default_value_t = 8080)]
    port: u16,
    /// Key that clients must send; may be given several times
    #[arg(long, value_name = "KEY")]
    api_key: Vec<String>,
    /// File of keys, one per line
    #[arg(long, value_name = "FILE")]
    api_key_file: Option<PathBuf>,
    /// Serve anyone who can reach the address
    #[arg(long)]
    no_auth: bool,
    /// Origin (scheme, host and port) whose pages may use the server in browsers; may be given several times
    #[arg(long, value_name = "ORIGIN")]
    cors_origin: Vec<String>,
    /// Name of the model in the interface [default: as it was given]
    #[arg(long, value_name = "NAME")]
    alias: Option<String>,
    /// File with the chat template, instead of the model's own
    #[arg(long, value_name = "FILE")]
    chat_template: Option<PathBuf>,
    /// Maximum requests processed at once
    #[arg(long, default_value_t = 16)]
    rows: usize,
    /// Maximum queue length; further requests get 429
    #[arg(long, default_value_t = 256)]
    waiting: usize,
    /// Maximum prompt tokens in the queue; equal prompts count once, and one request may always wait
    #[arg(long, value_name = "TOKENS", default_value_t = 1 << 20)]
    waiting_tokens: usize,
    /// Maximum seconds in the queue; a request expected to wait longer gets 429
    #[arg(long, value_name = "SECONDS", default_value_t = 600)]
    max_wait: u64,
    /// Tokens of prompt and answer together [default: what the model supports, at most 4096]
    #[arg(short, long)]
    ctx: Option<usize>,
    /// Memory for the KV cache in MiB
    #[arg(long, value_name = "MIB", default_value_t = 1024)]
    kv_memory: usize,
    /// Answers have the same bits whatever else the server does; slower
    #[arg(long)]
    deterministic: bool,
    /// Disable prompt lookup, which drafts the next tokens of answers that repeat parts of their text
    #[arg(long)]
    no_lookup: bool,
    /// Inter-token latency budget: maximum milliseconds of prompt processing between two tokens of running answers
    #[arg(long, value_name = "MS", default_value_t = 50)]
    itl_budget: u64,
    /// Maximum number of connections
    #[arg(long, default_value_t = 1024)]
    max_connections: usize,
    /// Seconds that running requests have to finish after Ctrl-C or SIGTERM
    #[arg(long, value_name = "SECONDS", default_value_t = 30)]
    drain: u64,
    /// Memory for loaded models in MiB, including KV caches; the least recently used model is unloaded first [default: no limit]
    #[arg(long, value_name = "MIB")]
    memory: Option<u64>,
    /// How hidden states become the vectors of /v1/embeddings [default: what the model's files say, else mean]
    #[arg(long, value_enum)]
    pooling: Option<By>,
    /// Device: auto, cpu, gpu, vulkan, metal or dx12; the last four accept an index, such as vulkan:1
    #[arg(long, env = "TL_DEVICE", default_value = "auto")]
    device: String,
    /// Type of activations: f32, f16 or bf16 [default: f32 on the CPU, f16 on a GPU]
    #[arg(long)]
    dtype: Option<String>,
    /// Round activations before products, as llama.cpp does on a CPU: bf16 for layers in bf16, int8 for layers in block formats; see `tl generate --help`
    #[arg(long, value_name = "TYPE", value_parser = tensorlogic::models::Rounding::NAMES)]
    activations: Option<String>,
    /// Folder of LoRA adapters for the model, in PEFT's format (as written by `tl finetune`)
    #[arg(long, value_name = "DIR")]
    adapter: Option<PathBuf>,
    /// Download a missing model without asking
    #[arg(short, long)]
    yes: bool,
}

/// Context where `--ctx` does not say it, and the model supports as many.
const CONTEXT: usize = 4096;

/// Threads that read requests, load models and compute vectors, at most.
const MAX_BLOCKING: usize = 16;

/// What all requests share.
pub struct Server {
    pub models: Models,
    pub keys: Keys,
    /// Origins whose pages may use the server.
    pub origins: Vec<String>,
    pub metrics: Metrics,
    pub idle: Arc<Idle>,
    /// Whether no more work is taken.
    pub leaving: AtomicBool,
}

/// Runs the subcommand.
pub fn run(args: &ServeArgs, global: Global) -> Result<(), Failure> {
    let address = address(args)?;
    let keys = keys(args)?;
    if !address.ip().is_loopback() && keys.is_empty() && !args.no_auth {
        let m = format!("--host {}: others could use the server; give --api-key or --api-key-file, or say --no-auth", args.host);
        return Err(Failure::Usage(m));
    }
    accept::raise_limit();
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().enable_time().max_blocking_threads(MAX_BLOCKING).build()?;
    let inside = runtime.enter();
    // Before the model is loaded, so that a port that is taken is found at once.
    let socket = accept::bind(address).map_err(|e| Failure::Usage(format!("{address}: {e}")))?;
    let server = Arc::new(Server {
        models: Models::open(args, global)?,
        keys,
        origins: args.cors_origin.clone(),
        metrics: Metrics::new(),
        idle: Arc::default(),
        leaving: AtomicBool::new(false),
    });
    interrupt::install();
    let listener = accept::listen(socket).map_err(|e| Failure::Usage(format!("{address}: {e}")))?;
    let at = listener.local_addr()?;
    drop(inside);
    let url = format!("http://{at}");
    match global.json {
        true => {
            let models = server.models.names();
            let ids: Vec<&str> = models.iter().map(|(name, _)| &*name.id).collect();
            output::result(&json!({ "url": url, "model": ids[0], "models": ids, "context": models[0].1 }).to_string())?;
        }
        false => output::result(&url)?,
    }
    host::watch(&server)?;
    let drain = Duration::from_secs(args.drain);
    runtime.block_on(accept::serve(listener, server, args.max_connections.max(1), drain, global.quiet));
    runtime.shutdown_timeout(Duration::from_secs(1));
    Ok(())
}

fn address(args: &ServeArgs) -> Result<SocketAddr, Failure> {
    let host = if args.host == "localhost" { "127.0.0.1" } else { &args.host };
    let ip: IpAddr = host.parse().map_err(|_| Failure::Usage(format!("--host {host}: expected an IP address or localhost")))?;
    Ok(SocketAddr::new(ip, args.port))
}

fn keys(args: &ServeArgs) -> Result<Keys, Failure> {
    let mut keys = Keys::default();
    let mut all = args.api_key.clone();
    if let Some(file) = &args.api_key_file {
        let text = std::fs::read_to_string(file).map_err(|e| Failure::Error(format!("{}: {e}", file.display())))?;
        let before = all.len();
        all.extend(text.lines().map(str::trim).filter(|key| !key.is_empty()).map(String::from));
        if all.len() == before {
            return Err(Failure::Usage(format!("--api-key-file {}: the file must contain a key", file.display())));
        }
    }
    if all.iter().any(|key| key.is_empty()) {
        return Err(Failure::Usage("--api-key: a key must not be empty".into()));
    }
    all.iter().for_each(|key| keys.add(key));
    Ok(keys)
}
