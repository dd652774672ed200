//! Metal's compiler: sources become kernels by the tools of `tests/msl`, whose cache they share.

use crate::kernel::Kernel;
use crate::toolchain::{Mode, Toolchain};
use std::collections::HashSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};

/// A kernel of a source, as the tools of `tests/msl` take it.
#[derive(Clone)]
pub struct MslKernel {
    pub source: String,
    pub entry: String,
}

/// The arithmetic that a source is to be compiled with.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Math {
    /// As written.
    Safe,
    /// Fast, but with NaN and infinity.
    Relaxed,
    /// Fast, where a compiler may assume that there is neither.
    Fast,
}

/// How many sources were to be compiled with each.
pub static ASKED: [AtomicUsize; 3] = [const { AtomicUsize::new(0) }; 3];
/// Whether kernels are compiled with the arithmetic that was asked for, instead of all as written.
pub static ARITHMETIC: AtomicBool = AtomicBool::new(false);

/// The arithmetic of Metal's number for a source, whatever is compiled.
///
/// # Errors
/// Where none is stated, or not the one that the source needs: fast arithmetic takes the places where a source makes NaN or infinity for unreachable. A source of
/// naga's that makes neither has no use for another; a user's own source may.
pub fn math(source: &str, number: Option<isize>) -> Result<Math, String> {
    let makes_special = ["tl_nan(", "tl_inf("].iter().any(|f| source.contains(f));
    let math = match number.ok_or("the kind of arithmetic is not stated")? {
        0 => Math::Safe,
        1 => Math::Relaxed,
        2 => Math::Fast,
        n => return Err(format!("there is no math mode {n}")),
    };
    match math {
        Math::Fast if makes_special => Err("a source that makes NaN or infinity, in arithmetic that assumes that there is neither".into()),
        Math::Safe | Math::Relaxed if !makes_special && source.starts_with("// language: metal") => {
            Err("a source that makes neither NaN nor infinity, in slower arithmetic than it needs".into())
        }
        math => {
            ASKED[math as usize].fetch_add(1, SeqCst);
            Ok(math)
        }
    }
}

/// A kernel that is compiled when it first runs, together with all others that wait for it.
pub struct Lazy {
    msl: MslKernel,
    mode: Mode,
    made: OnceLock<Result<Arc<Kernel>, String>>,
}

/// A kernel, ready for a pipeline.
#[derive(Clone)]
pub struct Compiled {
    pub name: String,
    /// The source and the name, for archives.
    pub key: String,
    /// `None` while kernels are only learned, see [`learn`]: its dispatches do nothing.
    lazy: Option<Arc<Lazy>>,
    /// Threads of a threadgroup at most, where the source says so.
    pub max_threads: Option<u32>,
}

impl Compiled {
    /// Whether the kernel's source contains this.
    pub fn contains(&self, part: &str) -> bool {
        self.lazy.as_ref().is_some_and(|l| l.msl.source.contains(part))
    }

    /// The kernel; `None` where its dispatches do nothing. The first call compiles every kernel that is asked for and not compiled.
    pub fn kernel(&self) -> Result<Option<Arc<Kernel>>, String> {
        let Some(lazy) = &self.lazy else { return Ok(None) };
        if lazy.made.get().is_none() {
            let waiting = std::mem::take(&mut *lock(&WAITING));
            let all: Vec<&Arc<Lazy>> = waiting.iter().chain([lazy]).collect();
            for mode in all.iter().map(|l| l.mode).collect::<HashSet<Mode>>() {
                let of_mode: Vec<_> = all.iter().filter(|l| l.mode == mode).collect();
                let made = of(mode)?.kernels(&of_mode.iter().map(|l| &l.msl).collect::<Vec<_>>());
                of_mode.iter().zip(made).for_each(|(l, made)| drop(l.made.set(made)));
            }
        }
        lazy.made.get().map_or(Ok(None), |made| made.clone().map(Some))
    }
}

/// Kernels that nothing has run yet.
static WAITING: Mutex<Vec<Arc<Lazy>>> = Mutex::new(vec![]);
/// Whether sources are collected instead of compiled.
static LEARNING: AtomicBool = AtomicBool::new(false);
/// Whether kernels are compiled without optimization.
static UNOPTIMIZED: AtomicBool = AtomicBool::new(false);
static LEARNED: Mutex<Vec<(Mode, MslKernel)>> = Mutex::new(vec![]);
/// Whether sources are compiled when a library is made of them, as by the real Metal, which tells what is wrong with them then.
pub static EAGER: AtomicBool = AtomicBool::new(false);

/// Whether the system has Metal 4.
pub static METAL_4: AtomicBool = AtomicBool::new(true);
/// The newest version of the language that is understood, as Metal numbers them: 65536 times the major one and the minor one.
pub static NEWEST_VERSION: AtomicUsize = AtomicUsize::new(4 << 16);

/// Why a source cannot be compiled in this version, if it cannot.
pub fn refused_version(source: &str, version: usize) -> Option<String> {
    let told = format!("{}.{}", version >> 16, version & 0xFFFF);
    match version {
        0 => Some("the version of the language is not stated".into()),
        _ if version > NEWEST_VERSION.load(SeqCst) => Some(format!("version {told} of the language is not supported")),
        _ if version < 4 << 16 && source.contains("#include <metal_tensor>") => {
            Some(format!("'metal_tensor' file not found in version {told}"))
        }
        _ => None,
    }
}

/// What a test does to sources before they are compiled, to see whether a fault is found.
pub type Change = Box<dyn Fn(&str) -> String + Send + Sync>;
static CHANGE: Mutex<Option<Change>> = Mutex::new(None);

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Changes sources from now on; `None` leaves them as they are.
pub fn change(change: Option<Change>) {
    *lock(&CHANGE) = change;
}

/// The source that is compiled for one.
pub fn changed(source: String) -> String {
    lock(&CHANGE).as_ref().map_or(source.clone(), |change| change(&source))
}

/// Compiles kernels without optimization from now on: for many that have little to do.
pub fn compile_unoptimized() {
    UNOPTIMIZED.store(true, SeqCst);
}

/// How clang++ compiles sources that are to be as written.
fn plain() -> Mode {
    if UNOPTIMIZED.load(SeqCst) { Mode::Unoptimized } else { Mode::Plain }
}

fn of(mode: Mode) -> Result<&'static Toolchain, String> {
    Toolchain::get(mode).ok_or_else(|| "there is no clang++ of version 19".to_string())
}

pub fn toolchain() -> Result<&'static Toolchain, String> {
    of(plain())
}

/// The names of a source's kernels.
pub fn kernels(source: &str) -> impl Iterator<Item = &str> {
    source.split("kernel void ").skip(1).filter_map(|rest| rest.split('(').next()).map(str::trim)
}

/// What an archive knows a kernel by.
fn key(source: &str, entry: &str, math: Math) -> String {
    let mut h = DefaultHasher::new();
    (source, entry, math).hash(&mut h);
    format!("{:016x}", h.finish())
}

/// A kernel of a source with this arithmetic.
pub fn compile(source: &str, entry: &str, math: Math) -> Result<Compiled, String> {
    let mode = match math {
        Math::Fast if ARITHMETIC.load(SeqCst) => Mode::FastMath,
        Math::Relaxed if ARITHMETIC.load(SeqCst) => Mode::Relaxed,
        _ => plain(),
    };
    let msl = MslKernel { source: source.into(), entry: entry.into() };
    let max_threads = source.split("max_total_threads_per_threadgroup(").nth(1).and_then(|t| t.split(')').next()?.trim().parse().ok());
    let lazy = match LEARNING.load(SeqCst) {
        true => {
            lock(&LEARNED).push((mode, msl));
            None
        }
        false => Some(Arc::new(Lazy { msl, mode, made: OnceLock::new() })),
    };
    lock(&WAITING).extend(lazy.clone());
    let compiled = Compiled { name: entry.into(), key: key(source, entry, math), lazy, max_threads };
    if EAGER.load(SeqCst) {
        compiled.kernel()?;
    }
    Ok(compiled)
}

/// Does `work` only to learn which kernels it needs, and compiles them together: many in one call of the compiler. Its results are arbitrary.
/// Devices that it uses are opened before, and given up behind it. Gives how many kernels there are, and how many were new.
pub fn learn<T>(work: impl FnOnce() -> T) -> [usize; 2] {
    let Ok(toolchain) = toolchain() else { return [0; 2] };
    let before = toolchain.compiled().sources;
    LEARNING.store(true, SeqCst);
    drop(work());
    LEARNING.store(false, SeqCst);
    let sources = std::mem::take(&mut *lock(&LEARNED));
    // What does not compile is told when it is needed.
    for mode in sources.iter().map(|t| t.0).collect::<HashSet<Mode>>() {
        drop(of(mode).map(|t| t.kernels(&sources.iter().filter(|t| t.0 == mode).map(|t| &t.1).collect::<Vec<_>>())));
    }
    [sources.len(), toolchain.compiled().sources - before]
}
