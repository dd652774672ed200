//! The models of a server. Those that requests name are loaded; where memory is short, the one that was not used for the longest time goes first.

use super::ask::usual_sampling;
use super::error::ApiError;
use super::format::Wanted;
#[cfg(feature = "grammar")]
use super::grammar::Grammars;
use super::openai;
use super::texts::Texts;
use super::{CONTEXT, ServeArgs, Server};
use crate::encoders;
use crate::model::{self, ModelArgs};
use crate::output::Failure;
use crate::{Global, output};
use sha2::{Digest, Sha256};
use std::io::{Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};
#[cfg(feature = "grammar")]
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};
use tensorlogic::models::inference::Pooling;
use tensorlogic::models::{Embedder, Model};
use tensorlogic::serving::{Constraint, Engine, EngineOptions, EngineStats, Refusal, Sampling};
use tensorlogic::text::ChatTemplate;
use tensorlogic::{Device, TensorError};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// A step that takes longer, and much longer than any before, means that the device hangs.
pub const STEP_TIME: Duration = Duration::from_secs(30);
/// So many lost or stuck devices within so long end the server: loading models anew does not help.
const LOSSES: usize = 3;
const LOSS_TIME: Duration = Duration::from_secs(600);
/// A model that could not be loaded anew is tried again after so long.
const RETRY_TIME: Duration = Duration::from_secs(5);
/// Requests that wait for a model to be loaded, at most.
const MAX_LOADING: usize = 8;
/// How long a request waits for models that are in use to become free.
const ROOM_TIME: Duration = Duration::from_secs(30);

/// What clients call a model.
#[derive(Clone)]
pub struct ModelName {
    pub id: String,
    /// The name of its file, which is understood too.
    file: String,
    pub created: u64,
}

impl ModelName {
    pub fn is_named(&self, name: &str) -> bool {
        name == self.id || name == self.file
    }
}

/// What a model does.
pub enum ModelKind {
    /// Writes text, and gives vectors of its last hidden states, pooled in this way.
    Decoder { engine: Engine, model: Arc<dyn Model>, pooling: Pooling },
    /// Gives vectors.
    Encoder(Box<Embedder>),
}

/// A model that is loaded.
pub struct Host {
    pub name: ModelName,
    pub texts: Texts,
    pub device: Device,
    pub kind: ModelKind,
    /// Build, model, device and mode: what an answer depends on, besides the request.
    pub fingerprint: String,
    /// How tokens are chosen where a request does not say.
    pub sampling: Sampling,
    /// Requests that are read and written at a time.
    pub rows: usize,
    /// Whoever computes vectors has its only permit.
    pub vectors: Arc<Semaphore>,
    /// Places of requests for vectors that wait or are computed.
    places: Arc<Semaphore>,
    #[cfg(feature = "grammar")]
    grammars: OnceLock<Grammars>,
}

impl Host {
    fn new(name: ModelName, texts: Texts, device: Device, kind: ModelKind, fingerprint: String, args: &ServeArgs) -> Host {
        Host {
            name,
            texts,
            device,
            kind,
            fingerprint,
            sampling: Sampling::default(),
            rows: args.rows,
            vectors: Arc::new(Semaphore::new(1)),
            places: Arc::new(Semaphore::new(args.waiting.saturating_add(1).min(Semaphore::MAX_PERMITS))),
            #[cfg(feature = "grammar")]
            grammars: OnceLock::new(),
        }
    }

    /// The engine, where the model writes text.
    pub fn engine(&self) -> Result<&Engine, ApiError> {
        match &self.kind {
            ModelKind::Decoder { engine, .. } => Ok(engine),
            ModelKind::Encoder(_) => {
                let message = format!("the model {:?} does not generate text; it gives vectors, at /v1/embeddings", self.name.id);
                Err(ApiError::field("model", message).code("model_not_supported"))
            }
        }
    }

    /// A place among the requests for vectors that wait.
    ///
    /// # Errors
    /// 429 where as many wait as `--waiting` says.
    pub fn place_to_wait(&self) -> Result<OwnedSemaphorePermit, ApiError> {
        self.places.clone().try_acquire_owned().map_err(|_| Refusal::QueueFull.into())
    }

    /// What makes sure that answers have this form.
    #[cfg(feature = "grammar")]
    pub fn constraint(&self, (format, name): &Wanted) -> Result<Box<dyn Constraint>, ApiError> {
        let grammars = match self.grammars.get() {
            Some(grammars) => grammars,
            None => {
                let made = Grammars::new(&self.texts.tokenizer)?;
                self.grammars.get_or_init(|| made)
            }
        };
        grammars.compile(format, name)
    }

    /// What would make sure that answers have this form.
    #[cfg(not(feature = "grammar"))]
    pub fn constraint(&self, (_, name): &Wanted) -> Result<Box<dyn Constraint>, ApiError> {
        Err(ApiError::field(name, format!("{name}: the server was built without grammars")).code("unsupported_parameter"))
    }

    /// Whether requests can be answered.
    fn is_there(&self) -> bool {
        let stopped = matches!(&self.kind, ModelKind::Decoder { engine, .. } if !engine.is_running());
        !stopped && !self.device.is_lost()
    }

    /// Tokens of a request at most.
    pub fn longest(&self) -> usize {
        match &self.kind {
            ModelKind::Decoder { engine, .. } => engine.longest(),
            ModelKind::Encoder(embedder) => embedder.max_tokens(),
        }
    }

    /// Ids of tokens are below this number.
    pub fn vocab(&self) -> usize {
        match &self.kind {
            ModelKind::Decoder { engine, .. } => engine.vocab(),
            ModelKind::Encoder(embedder) => embedder.encoder().shape().vocab,
        }
    }
}

/// A model that may be loaded.
struct Entry {
    name: ModelName,
    args: ModelArgs,
    path: PathBuf,
    /// Bytes of its files, and of keys and values.
    bytes: u64,
}

/// A model that is loaded, since when, and when it was asked for last.
struct LoadedEntry {
    entry: usize,
    since: Instant,
    used: Instant,
    host: Arc<Host>,
}

/// A model whose device was lost, and that could not be loaded anew.
struct LostModel {
    entry: usize,
    tried: Instant,
    why: String,
}

/// All models of a server.
pub struct Models {
    entries: Vec<Entry>,
    loaded: Mutex<Vec<LoadedEntry>>,
    /// Held by whoever loads a model, or makes room for one.
    turn: Mutex<()>,
    loading: AtomicUsize,
    /// What engines did that are not there any more.
    past: Mutex<EngineStats>,
    /// Which devices were lost or given up, and when.
    losses: Mutex<Vec<(String, Instant)>>,
    failed: Mutex<Vec<LostModel>>,
    /// Whether models are being loaded anew.
    reviving: AtomicBool,
    /// Whether no model is loaded any more.
    leaving: AtomicBool,
    /// Times that a model was loaded.
    pub loads: AtomicUsize,
    /// Bytes that all loaded models may take.
    most: u64,
    args: ServeArgs,
    template: Option<String>,
    global: Global,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Models {
    /// Finds the files of all models, and loads the first.
    pub fn open(args: &ServeArgs, global: Global) -> Result<Models, Failure> {
        let named = args.models.iter().chain(&args.more_models).map(|name| Some(name.clone()));
        let mut names: Vec<Option<String>> = named.collect();
        if names.is_empty() {
            names.push(None);
        }
        if names.len() > 1 && (args.alias.is_some() || args.chat_template.is_some() || args.adapter.is_some()) {
            return Err(Failure::Usage("--alias, --chat-template and --adapter are for one model; several are given".into()));
        }
        let read = |file: &PathBuf| std::fs::read_to_string(file).map_err(|e| Failure::Error(format!("{}: {e}", file.display())));
        let template = args.chat_template.as_ref().map(read).transpose()?;
        let mut entries: Vec<Entry> = Vec::new();
        for name in names {
            let entry = Entry::new(args, name, global)?;
            if entries.iter().any(|e| e.name.id == entry.name.id) {
                return Err(Failure::Usage(format!("--model: {:?} is given twice", entry.name.id)));
            }
            entries.push(entry);
        }
        let most = args.memory.map_or(u64::MAX, |mib| mib.saturating_mul(1 << 20));
        if let Some(e) = entries.iter().find(|e| e.bytes > most) {
            return Err(Failure::Usage(format!("--memory {}: {:?} alone takes {} MiB", most >> 20, e.name.id, e.bytes.div_ceil(1 << 20))));
        }
        let (loaded, turn, loading, loads) = (Mutex::default(), Mutex::default(), AtomicUsize::new(0), AtomicUsize::new(0));
        let leaving = AtomicBool::new(false);
        let (losses, failed, reviving) = (Mutex::default(), Mutex::default(), AtomicBool::new(false));
        let (past, args) = (Mutex::default(), args.clone());
        let models =
            Models { entries, loaded, past, turn, loading, losses, failed, reviving, leaving, loads, most, args, template, global };
        // What is wrong with the first model is wrong with the command.
        models.load(0)?;
        Ok(models)
    }

    /// The names of all models, loaded or not, the usual one first, with the tokens of a request where they are known.
    pub fn names(&self) -> Vec<(ModelName, Option<usize>)> {
        let loaded = lock(&self.loaded);
        let longest = |n: usize| loaded.iter().find(|l| l.entry == n).map(|l| l.host.longest());
        self.entries.iter().enumerate().map(|(n, e)| (e.name.clone(), longest(n))).collect()
    }

    /// All models that are loaded.
    pub fn loaded(&self) -> Vec<Arc<Host>> {
        lock(&self.loaded).iter().map(|l| l.host.clone()).collect()
    }

    /// What all engines did and have to do.
    pub fn stats(&self) -> EngineStats {
        let mut all = lock(&self.past).clone();
        for host in self.loaded() {
            let ModelKind::Decoder { engine, .. } = &host.kind else { continue };
            all.add(&engine.stats());
        }
        all
    }

    /// Keeps the counts of a model that goes; those of what there is go with it.
    fn remember(&self, gone: &LoadedEntry) {
        let ModelKind::Decoder { engine, .. } = &gone.host.kind else { return };
        let mut done = engine.stats();
        (done.running, done.waiting, done.pages, done.pages_available, done.pages_cached) = (0, 0, 0, 0, 0);
        lock(&self.past).add(&done);
    }

    /// The longest time that an engine has been in its round; an error where one has stopped, or a model's device is lost.
    pub fn in_round(&self) -> Result<Duration, ApiError> {
        let mut longest = Duration::ZERO;
        if self.reviving.load(Relaxed) {
            return Err(ApiError::unavailable("a model is being reloaded"));
        }
        if let Some(failed) = lock(&self.failed).first() {
            return Err(self.not_loaded(failed.entry, &failed.why));
        }
        for host in self.loaded() {
            if !host.is_there() {
                return Err(ApiError::unavailable(format!("the model {:?} has stopped: its device was lost", host.name.id)));
            }
            if let ModelKind::Decoder { engine, .. } = &host.kind {
                longest = longest.max(engine.in_round());
            }
        }
        Ok(longest)
    }

    /// Ends all requests.
    pub fn stop(&self) {
        self.leaving.store(true, Relaxed);
        for host in self.loaded() {
            if let ModelKind::Decoder { engine, .. } = &host.kind {
                engine.stop();
            }
        }
    }

    /// The model of this name, or the usual one; loads it where it is not there. Blocks.
    pub fn get(&self, name: Option<&str>) -> Result<Arc<Host>, ApiError> {
        let n = match name {
            None => 0,
            Some(name) => self.entries.iter().position(|e| e.name.is_named(name)).ok_or_else(|| self.no_model(name))?,
        };
        if let Some(host) = self.find(n) {
            return Ok(host);
        }
        if self.loading.fetch_add(1, Relaxed) >= MAX_LOADING {
            self.loading.fetch_sub(1, Relaxed);
            return Err(ApiError::unavailable("too many requests wait for a model to be loaded"));
        }
        let loaded = self.load(n);
        self.loading.fetch_sub(1, Relaxed);
        loaded.map_err(|e| self.not_loaded(n, &e))
    }

    fn not_loaded(&self, n: usize, why: &dyn std::fmt::Display) -> ApiError {
        ApiError::unavailable(format!("the model {:?} could not be loaded: {why}", self.entries[n].name.id))
    }

    /// Gives up engines that are stuck: their requests end. Then models are loaded anew whose device was lost or hangs. Blocks.
    fn leave_stuck(&self, limit: Duration) {
        for host in self.loaded() {
            let ModelKind::Decoder { engine, .. } = &host.kind else { continue };
            if engine.is_stuck(limit) {
                let message = format!("a step has taken {:.0} s on {}", engine.in_round().as_secs_f64(), host.device.name());
                output::note(&format!("{message}: reloading the model {:?}", host.name.id));
                host.device.give_up();
                engine.give_up(&TensorError::DeviceLost(format!("{message}, and does not end")));
            }
        }
        self.revive();
    }

    /// Counts a device that was lost or given up, once for all models that were on it; ends the process where there were too many.
    fn count_loss(&self, gone: &LoadedEntry) {
        let mut losses = lock(&self.losses);
        losses.retain(|(_, at)| at.elapsed() < LOSS_TIME);
        let name = gone.host.device.name();
        if losses.iter().any(|(device, at)| *device == name && gone.since < *at) {
            return;
        }
        losses.push((name, Instant::now()));
        if losses.len() >= LOSSES {
            output::note(&format!(
                "devices were lost or hung {LOSSES} times within {} minutes: the server exits",
                LOSS_TIME.as_secs() / 60
            ));
            // A moment for the answers that say so.
            std::thread::sleep(Duration::from_millis(500));
            std::process::exit(1);
        }
    }

    /// Loads models anew whose device was lost, also those for which that failed a while ago. Blocks.
    pub fn revive(&self) {
        let mut gone: Vec<usize> = lock(&self.loaded).iter().filter(|l| !l.host.is_there()).map(|l| l.entry).collect();
        gone.extend(lock(&self.failed).iter().filter(|f| f.tried.elapsed() > RETRY_TIME).map(|f| f.entry));
        if gone.is_empty() || self.leaving.load(Relaxed) || self.reviving.swap(true, Relaxed) {
            return;
        }
        for n in gone {
            if let Err(e) = self.load(n) {
                let mut failed = lock(&self.failed);
                failed.retain(|f| f.entry != n);
                failed.push(LostModel { entry: n, tried: Instant::now(), why: e.to_string() });
            }
        }
        self.reviving.store(false, Relaxed);
    }

    /// The error for a name that no model has.
    pub fn no_model(&self, name: &str) -> ApiError {
        let own: Vec<String> = self.entries.iter().map(|e| format!("{:?}", e.name.id)).collect();
        let message = format!("there is no model {name:?}; this server has {}", own.join(", "));
        ApiError { status: hyper::StatusCode::NOT_FOUND, ..ApiError::field("model", message) }.code("model_not_found")
    }

    fn find(&self, n: usize) -> Option<Arc<Host>> {
        let mut loaded = lock(&self.loaded);
        let at = loaded.iter().position(|l| l.entry == n)?;
        // One whose device was lost is loaded anew.
        if !loaded[at].host.is_there() && !self.leaving.load(Relaxed) {
            let gone = loaded.swap_remove(at);
            self.remember(&gone);
            drop(loaded);
            self.count_loss(&gone);
            return None;
        }
        loaded[at].used = Instant::now();
        Some(loaded[at].host.clone())
    }

    fn load(&self, n: usize) -> Result<Arc<Host>, Failure> {
        let turn = lock(&self.turn);
        // Another request may have loaded it meanwhile.
        if let Some(host) = self.find(n) {
            return Ok(host);
        }
        self.unload_for(self.entries[n].bytes)?;
        let host = Arc::new(self.entries[n].load(&self.args, self.template.as_deref(), self.global)?);
        self.loads.fetch_add(1, Relaxed);
        let now = Instant::now();
        lock(&self.loaded).push(LoadedEntry { entry: n, since: now, used: now, host: host.clone() });
        lock(&self.failed).retain(|f| f.entry != n);
        drop(turn);
        Ok(host)
    }

    /// Unloads idle models, least recently used first, until so many bytes fit.
    fn unload_for(&self, bytes: u64) -> Result<(), Failure> {
        let start = Instant::now();
        loop {
            let mut loaded = lock(&self.loaded);
            let taken: u64 = loaded.iter().map(|l| self.entries[l.entry].bytes).sum();
            if taken.saturating_add(bytes) <= self.most {
                return Ok(());
            }
            // Whoever uses a model has a handle of it, and new ones are given out under this lock.
            let idle = |l: &LoadedEntry| Arc::strong_count(&l.host) == 1;
            let oldest = (0..loaded.len()).filter(|&i| idle(&loaded[i])).min_by_key(|&i| loaded[i].used);
            let gone = oldest.map(|i| loaded.swap_remove(i));
            gone.iter().for_each(|gone| self.remember(gone));
            drop(loaded);
            match gone {
                Some(gone) => {
                    if !self.global.quiet {
                        output::note(&format!("unloading {} to free memory", gone.host.name.id));
                    }
                    drop(gone);
                }
                None if start.elapsed() > ROOM_TIME => return Err(Failure::Error("all loaded models are in use".into())),
                None => std::thread::sleep(Duration::from_millis(20)),
            }
        }
    }
}

impl Entry {
    fn new(args: &ServeArgs, name: Option<String>, global: Global) -> Result<Entry, Failure> {
        let (device, dtype, adapter) = (args.device.clone(), args.dtype.clone(), args.adapter.clone());
        let args_of = ModelArgs { model: name.clone(), device, dtype, adapter, yes: args.yes, activations: args.activations.clone() };
        let path = args_of.path(global)?;
        let file = path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        let given = name.unwrap_or(model::DEFAULT.into());
        // A path is nobody's business.
        let given = if Path::new(&given).exists() { file.clone() } else { given };
        let id = args.alias.clone().unwrap_or(given);
        let bytes = size(&path).saturating_add((args.kv_memory as u64).saturating_mul(1 << 20));
        Ok(Entry { name: ModelName { id, file, created: openai::now() }, args: args_of, path, bytes })
    }

    fn load(&self, args: &ServeArgs, template: Option<&str>, global: Global) -> Result<Host, Failure> {
        if encoders::is_for(&self.path)? {
            let opened = encoders::Opened::new(&self.args, &self.path, global)?;
            let embedder = match args.pooling {
                Some(pooling) => opened.embedder.with_pooling(pooling.into()),
                None => opened.embedder,
            };
            let fingerprint = self.fingerprint(&opened.device, &format!("{:?}", embedder.encoder().shape().dtype), false);
            let (texts, kind) = (Texts::new(opened.tokenizer, None), ModelKind::Encoder(Box::new(embedder.normalized(true))));
            return Ok(Host::new(self.name.clone(), texts, opened.device, kind, fingerprint, args));
        }
        let loaded = self.args.load_from(&self.path, global)?;
        let template = template.map(ChatTemplate::new).transpose()?;
        let shape = loaded.model.shape();
        let context = Some(args.ctx.unwrap_or(CONTEXT.min(shape.context)));
        let kv_bytes = args.kv_memory.saturating_mul(1 << 20);
        let options = EngineOptions {
            rows: args.rows,
            waiting: args.waiting,
            waiting_tokens: args.waiting_tokens,
            max_wait: Some(Duration::from_secs(args.max_wait)),
            kv_bytes,
            context,
            deterministic: args.deterministic,
            itl_budget: Duration::from_millis(args.itl_budget),
            lookup: EngineOptions::default().lookup.filter(|_| !args.no_lookup),
            ..Default::default()
        };
        let fingerprint = self.fingerprint(&loaded.device, &shape.dtype.to_string(), args.deterministic);
        let model: Arc<dyn Model> = loaded.model.into();
        let engine = Engine::start(model.clone(), &loaded.device, options)?;
        let kind = ModelKind::Decoder { engine, model, pooling: args.pooling.map_or(Pooling::Mean, Pooling::from) };
        let texts = Texts::new(loaded.tokenizer, template.or(loaded.template));
        let sampling = usual_sampling(&loaded.defaults);
        if let Some(source) = loaded.defaults.source.filter(|_| !loaded.defaults.not_applied.is_empty() && !global.quiet) {
            output::note(&format!("{}: {source}: not applied: {}", self.name.id, loaded.defaults.not_applied.join(", ")));
        }
        Ok(Host { sampling, ..Host::new(self.name.clone(), texts, loaded.device, kind, fingerprint, args) })
    }

    fn fingerprint(&self, device: &Device, dtype: &str, deterministic: bool) -> String {
        let mode = format!("{} {} {dtype} {deterministic}", env!("CARGO_PKG_VERSION"), device.name());
        let mut hash = Sha256::new_with_prefix(mode.as_bytes());
        sample(&self.path, &mut hash);
        let hash = hash.finalize();
        format!("fp_{:02x}{:02x}{:02x}{:02x}{:02x}", hash[0], hash[1], hash[2], hash[3], hash[4])
    }
}

/// Hashes the size of a file, or of each file of a folder, and parts of it that are spread over it: files may have gigabytes.
fn sample(path: &Path, hash: &mut Sha256) {
    const PARTS: u64 = 64;
    const PART_BYTES: u64 = 16 << 10;
    if let Ok(files) = std::fs::read_dir(path) {
        let mut files: Vec<PathBuf> = files.flatten().map(|file| file.path()).filter(|file| file.is_file()).collect();
        files.sort();
        files.iter().for_each(|file| sample(file, hash));
        return;
    }
    let bytes = size(path);
    hash.update(bytes.to_le_bytes());
    let Ok(mut file) = std::fs::File::open(path) else { return };
    let mut part = Vec::new();
    for n in 0..PARTS {
        part.clear();
        let at = bytes.saturating_sub(PART_BYTES) * n / (PARTS - 1);
        if file.seek(SeekFrom::Start(at)).is_ok() && file.by_ref().take(PART_BYTES).read_to_end(&mut part).is_ok() {
            hash.update(&part);
        }
    }
}

/// Looks after the engines of a server, on a thread of its own, until it leaves.
pub fn watch(server: &Arc<Server>) -> std::io::Result<()> {
    // Tests have no half a minute.
    let limit = std::env::var("TL_TEST_STEP_TIME_MS").ok().and_then(|ms| ms.parse().ok()).map_or(STEP_TIME, Duration::from_millis);
    let server = Arc::downgrade(server);
    let look = move || {
        while let Some(server) = server.upgrade().filter(|server| !server.leaving.load(Relaxed)) {
            server.models.leave_stuck(limit);
            drop(server);
            std::thread::sleep((limit / 10).min(Duration::from_secs(1)));
        }
    };
    std::thread::Builder::new().name("watchdog".into()).spawn(look).map(drop)
}

/// Bytes of a file, or of the files of a folder.
fn size(path: &Path) -> u64 {
    let own = |path: &Path| std::fs::metadata(path).map_or(0, |m| m.len());
    match std::fs::read_dir(path) {
        Ok(files) => files.flatten().map(|file| own(&file.path())).sum(),
        Err(_) => own(path),
    }
}
