//! clang++, the runtime of fibers, and compiled kernels: many sources in one call, kept under `target/msl` by their hash.

use super::clang::{clang, target};
use super::kernel::{Entry, Guarded, Kernel, Run, Runtime};
use super::msl_kernel::MslKernel;
use super::source::{HEADERS, Source, cpp};
use std::collections::HashMap;
use std::ffi::{CStr, CString, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, OnceLock, PoisonError};
use std::time::{Duration, Instant};

const RUNTIME: &str = include_str!("runtime/fibers.cpp");
const STDLIB: &str = include_str!("include/metal_stdlib");
/// Sources that one call of the compiler takes.
const BATCH: usize = 24;

/// How kernels are compiled.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Mode {
    /// As written.
    Plain,
    /// The same without optimization, for kernels that have little to do: it compiles in a third of the time.
    Unoptimized,
    /// With arithmetic that may assume that there is no NaN and no infinity, as Metal's compiler does by default.
    FastMath,
    /// The same for a source that makes NaN or infinity itself, which may not assume that.
    Relaxed,
    /// With checks for what C++ leaves undefined: shifts, alignment, indices of arrays, overflow of signed integers.
    Checked,
}

impl Mode {
    fn flags(self) -> &'static [&'static str] {
        match self {
            Mode::Plain => &[],
            // After what is general.
            Mode::Unoptimized => &["-O0"],
            // The rounding of other code in the process stays as it is.
            #[cfg(target_arch = "x86_64")]
            Mode::FastMath => &["-ffast-math", "-mno-daz-ftz"],
            #[cfg(not(target_arch = "x86_64"))]
            Mode::FastMath => &["-ffast-math"],
            #[cfg(target_arch = "x86_64")]
            Mode::Relaxed => &["-ffast-math", "-fno-finite-math-only", "-mno-daz-ftz"],
            #[cfg(not(target_arch = "x86_64"))]
            Mode::Relaxed => &["-ffast-math", "-fno-finite-math-only"],
            Mode::Checked => &["-fsanitize=undefined", "-fno-sanitize=function,vptr,null", "-fsanitize-minimal-runtime"],
        }
    }
}

/// What was compiled, and how long that took.
#[derive(Clone, Copy, Default)]
pub struct Compiled {
    pub sources: usize,
    pub calls: usize,
    pub time: Duration,
}

/// A compiler with the flags of a mode.
struct Compiler {
    clang: PathBuf,
    mode: Mode,
}

/// A compiler with its cache and what it compiled in one mode.
pub struct Toolchain {
    compiler: Compiler,
    folder: PathBuf,
    /// The precompiled header.
    header: PathBuf,
    /// What besides a source its library depends on, and the same with the headers that only some include.
    version: u64,
    with_headers: u64,
    /// Where those are.
    include: PathBuf,
    pub runtime: Runtime,
    made: Mutex<HashMap<String, Result<Arc<Kernel>, String>>>,
    compiled: Mutex<Compiled>,
}

fn hash(value: impl Hash) -> u64 {
    let mut h = DefaultHasher::new();
    value.hash(&mut h);
    h.finish()
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A file name beside `path` that no other thread or process has.
fn unfinished(path: &Path) -> PathBuf {
    static COUNT: AtomicUsize = AtomicUsize::new(0);
    path.with_extension(format!("{}-{}", std::process::id(), COUNT.fetch_add(1, Relaxed)))
}

/// Writes a file whole: other processes see the old one or the new one.
fn put(path: &Path, content: &str) -> Result<(), String> {
    let part = unfinished(path);
    let folder = path.parent().unwrap_or(Path::new("."));
    std::fs::create_dir_all(folder)
        .and_then(|()| std::fs::write(&part, content))
        .and_then(|()| std::fs::rename(&part, path))
        .map_err(|e| format!("{}: {e}", path.display()))
}

fn open(path: &Path, scope: i32) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a library that was compiled from the project's own sources.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | scope) };
    if handle.is_null() {
        // SAFETY: dlerror gives a string that lives until the next call.
        return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
    }
    Ok(handle)
}

fn symbol(handle: *mut c_void, name: &str) -> Result<*mut c_void, String> {
    let c_name = CString::new(name).map_err(|e| e.to_string())?;
    // SAFETY: the handle is of an open library.
    let p = unsafe { libc::dlsym(handle, c_name.as_ptr()) };
    if p.is_null() { Err(format!("{name} is missing")) } else { Ok(p) }
}

/// A source that is to be compiled.
struct Wanted {
    key: String,
    source: Source,
}

impl Compiler {
    /// The flags of the runtime and of kernels.
    fn general() -> Vec<&'static str> {
        let mut flags = vec!["-std=c++20", "-O1", "-fPIC", "-w", "-ffp-contract=off", "-fno-rtti", "-fno-exceptions"];
        #[cfg(target_arch = "x86_64")]
        if std::arch::is_x86_feature_detected!("avx2") && std::arch::is_x86_feature_detected!("f16c") {
            flags.push("-march=x86-64-v3");
        }
        flags
    }

    /// Those of kernels and their header: in Metal a literal without a suffix is a float, and every operation on halves rounds.
    fn dialect(&self) -> Vec<&'static str> {
        let dialect = ["-fvisibility=hidden", "-Xclang", "-cl-single-precision-constant", "-Xclang", "-ffloat16-excess-precision=none"];
        [&dialect, self.mode.flags()].concat()
    }

    fn call(&self, arguments: &[&str], source: &Path, out: &Path) -> Result<(), String> {
        let part = unfinished(out);
        let mut command = Command::new(&self.clang);
        command.args(Compiler::general()).args(arguments).arg(source).arg("-o").arg(&part);
        let done = command.output().map_err(|e| format!("{}: {e}", self.clang.display()))?;
        if !done.status.success() {
            return Err(String::from_utf8_lossy(&done.stderr).into_owned());
        }
        std::fs::rename(&part, out).map_err(|e| format!("{}: {e}", out.display()))
    }
}

impl Toolchain {
    /// The compiler in this mode; `None`, with a message, where there is none and `TL_REQUIRE_MSL` is not 1.
    pub fn get(mode: Mode) -> Option<&'static Toolchain> {
        static MADE: [OnceLock<Option<Toolchain>>; 5] = [const { OnceLock::new() }; 5];
        let make = || {
            let (clang, version) = clang()?;
            Some(Toolchain::new(mode, clang, &version).unwrap_or_else(|e| panic!("the runtime of Metal kernels: {e}")))
        };
        MADE[mode as usize].get_or_init(make).as_ref()
    }

    fn new(mode: Mode, clang: PathBuf, version: &str) -> Result<Toolchain, String> {
        let folder = target().join("msl");
        let compiler = Compiler { clang, mode };
        let general = hash((version, RUNTIME, Compiler::general()));
        let runtime = folder.join(format!("runtime-{general:016x}.so"));
        if !runtime.exists() {
            let source = runtime.with_extension("cpp");
            put(&source, RUNTIME)?;
            compiler.call(&["-shared"], &source, &runtime)?;
        }
        let version = hash((general, STDLIB, compiler.dialect()));
        let include = folder.join(format!("include-{version:016x}"));
        let header = include.join("metal.pch");
        if !header.exists() {
            let stdlib = include.join("metal_stdlib");
            put(&stdlib, STDLIB)?;
            compiler.call(&[&["-x", "c++-header"][..], &compiler.dialect()].concat(), &stdlib, &header)?;
        }
        let with_headers = hash((version, HEADERS));
        let include = folder.join(format!("headers-{with_headers:016x}"));
        for (name, content) in HEADERS.iter().filter(|h| !include.join(h.0).exists()) {
            put(&include.join(name), content)?;
        }
        // The kernels find the runtime's functions.
        let handle = open(&runtime, libc::RTLD_GLOBAL)?;
        // SAFETY: fibers.cpp has these functions with these types.
        let runtime = unsafe {
            Runtime {
                run: std::mem::transmute::<*mut c_void, Run>(symbol(handle, "tl_run")?),
                guarded: std::mem::transmute::<*mut c_void, Guarded>(symbol(handle, "tl_guarded")?),
            }
        };
        Ok(Toolchain {
            compiler,
            folder,
            header,
            version,
            with_headers,
            include,
            runtime,
            made: Mutex::default(),
            compiled: Mutex::default(),
        })
    }

    /// What was compiled so far.
    pub fn compiled(&self) -> Compiled {
        *lock(&self.compiled)
    }

    /// Writes down a source that failed; gives the file.
    pub fn keep_source(&self, name: &str, source: &str) -> String {
        let file = self.folder.join(format!("failed-{name}.metal"));
        put(&file, source).map_or_else(|e| e, |()| file.display().to_string())
    }

    /// The kernel of a source, compiled now unless it was before.
    pub fn kernel(&self, msl: &MslKernel) -> Result<Arc<Kernel>, String> {
        self.kernels(&[msl]).remove(0)
    }

    /// The kernels of several sources; those that are new are compiled together, on as many threads as the processor has.
    pub fn kernels(&self, all: &[&MslKernel]) -> Vec<Result<Arc<Kernel>, String>> {
        let keys: Vec<String> = all.iter().map(|t| format!("{:016x}", hash((&t.source, &t.entry, self.version_of(&t.source))))).collect();
        let mut wanted: Vec<Wanted> = vec![];
        for (key, msl) in keys.iter().zip(all) {
            if lock(&self.made).contains_key(key) || wanted.iter().any(|w| w.key == *key) {
                continue;
            }
            match cpp(&msl.source, &msl.entry, key) {
                Ok(source) => wanted.push(Wanted { key: key.clone(), source }),
                Err(e) => drop(lock(&self.made).insert(key.clone(), Err(e))),
            }
        }
        let new: Vec<&Wanted> = wanted.iter().filter(|w| !self.library_of(&w.key).is_some_and(|l| l.exists())).collect();
        let failed = self.compile(&new);
        for w in &wanted {
            let kernel = match failed.get(&w.key) {
                Some(e) => Err(e.clone()),
                None => self.load(w),
            };
            lock(&self.made).insert(w.key.clone(), kernel);
        }
        let made = lock(&self.made);
        keys.iter().map(|k| made[k].clone()).collect()
    }

    /// What besides a source its library depends on.
    fn version_of(&self, source: &str) -> u64 {
        if HEADERS.iter().any(|h| source.contains(h.0)) { self.with_headers } else { self.version }
    }

    /// The library that holds a source's kernel.
    fn library_of(&self, key: &str) -> Option<PathBuf> {
        let name = std::fs::read_to_string(self.folder.join(format!("{key}.in"))).ok()?;
        Some(self.folder.join(name))
    }

    /// Compiles these in batches; gives the messages of those that do not compile.
    fn compile(&self, new: &[&Wanted]) -> HashMap<String, String> {
        let failed = Mutex::new(HashMap::new());
        if new.is_empty() {
            return HashMap::new();
        }
        let start = Instant::now();
        let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
        let size = new.len().div_ceil(threads).clamp(1, BATCH);
        let batches: Vec<&[&Wanted]> = new.chunks(size).collect();
        let (next, calls) = (AtomicUsize::new(0), AtomicUsize::new(0));
        let work = || {
            while let Some(batch) = batches.get(next.fetch_add(1, Relaxed)) {
                calls.fetch_add(1, Relaxed);
                if self.compile_batch(batch).is_err() {
                    // One by one, to tell whose fault it is.
                    for one in *batch {
                        calls.fetch_add(1, Relaxed);
                        if let Err(e) = self.compile_batch(&[one]) {
                            lock(&failed).insert(one.key.clone(), e);
                        }
                    }
                }
            }
        };
        std::thread::scope(|s| (0..threads.min(batches.len())).for_each(|_| drop(s.spawn(work))));
        let mut compiled = lock(&self.compiled);
        compiled.sources += new.len();
        compiled.calls += calls.into_inner();
        compiled.time += start.elapsed();
        failed.into_inner().unwrap_or_else(PoisonError::into_inner)
    }

    fn compile_batch(&self, batch: &[&Wanted]) -> Result<(), String> {
        let cpp: String = batch.iter().map(|w| w.source.cpp.as_str()).collect();
        let name = format!("k-{:016x}.so", hash((&cpp, self.version_of(&cpp))));
        let library = self.folder.join(&name);
        // Another process may compile the same, and removes its own.
        let source = PathBuf::from(format!("{}.cpp", unfinished(&library).display()));
        put(&source, &cpp)?;
        let [header, include] = [&self.header, &self.include].map(|path| path.to_string_lossy());
        self.compiler.call(
            &[&["-shared", "-include-pch", &header, "-I", &include][..], &self.compiler.dialect()].concat(),
            &source,
            &library,
        )?;
        let _ = std::fs::remove_file(&source);
        batch.iter().try_for_each(|w| put(&self.folder.join(format!("{}.in", w.key)), &name))
    }

    fn load(&self, wanted: &Wanted) -> Result<Arc<Kernel>, String> {
        let library = self.library_of(&wanted.key).ok_or("a compiled kernel is gone")?;
        let handle = open(&library, libc::RTLD_LOCAL)?;
        // SAFETY: the types of the functions that `cpp` wrote.
        let (entry, bytes) = unsafe {
            let bytes = symbol(handle, &format!("tl_bytes_{}", wanted.key))?;
            let entry = symbol(handle, &format!("tl_entry_{}", wanted.key))?;
            (std::mem::transmute::<*mut c_void, Entry>(entry), std::mem::transmute::<*mut c_void, extern "C" fn() -> u32>(bytes)())
        };
        Ok(Arc::new(Kernel { entry, room: bytes, parameters: wanted.source.parameters.clone(), meets: wanted.source.meets }))
    }
}
