//! Runs Metal kernels on a CPU: a text is compiled by clang++ with a stand-in for `<metal_stdlib>` and loaded as a shared library.
//!
//! `TL_CLANG` names the compiler, `TL_MSL_CACHE` the folder for what is compiled, `TL_MSL_SEED` the order of threads (0: as numbered),
//! `TL_MSL_FLAGS` further options, such as `-ffast-math`.

use std::collections::HashMap;
use std::ffi::{CStr, CString, c_char, c_void};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::{Arc, Mutex, OnceLock};

const SHIM: &str = include_str!("../cpp/metal_stdlib");
const RUNTIME: &str = include_str!("../cpp/rt.cpp");

/// A parameter of a kernel, as its text declares it.
#[derive(Clone, Debug, PartialEq)]
pub enum Arg {
    /// `[[buffer(n)]]`; whether the kernel may write it.
    Buffer { index: usize, written: bool, name: String },
    /// `[[threadgroup(n)]]`: memory whose size the dispatch gives.
    Threadgroup { index: usize },
    /// Threadgroup memory of the size of its type.
    Shared,
    /// What the hardware knows.
    Builtin,
}

type Entry = unsafe extern "C" fn(*const c_void, *const *mut c_void);
type Poison = unsafe extern "C" fn(i32);
type Run = unsafe extern "C" fn(Entry, Poison, *const u32, *const u32, *const *mut c_void, u64) -> *const c_char;

/// A compiled kernel.
pub struct Kernel {
    entry: Entry,
    poison: Poison,
    run: Run,
    /// Its parameters, in order.
    pub args: Vec<Arg>,
    /// Threads of a threadgroup at most, where the text says so.
    pub max_threads: Option<u32>,
}

fn env(name: &str, default: &str) -> String {
    std::env::var(name).ok().filter(|v| !v.is_empty()).unwrap_or_else(|| default.into())
}

fn hash(v: impl Hash) -> u64 {
    let mut h = DefaultHasher::new();
    v.hash(&mut h);
    h.finish()
}

fn folder() -> PathBuf {
    std::env::var_os("TL_MSL_CACHE")
        .map_or_else(|| Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/fake-metal/msl"), PathBuf::from)
}

/// Writes a file whole: other processes see the old one or the new one.
fn put(path: &Path, text: &str) -> Result<(), String> {
    if std::fs::read_to_string(path).is_ok_and(|t| t == text) {
        return Ok(());
    }
    let part = path.with_extension(format!("part{}-{:?}", std::process::id(), std::thread::current().id()));
    std::fs::create_dir_all(path.parent().unwrap_or(Path::new("."))).map_err(|e| e.to_string())?;
    std::fs::write(&part, text).and_then(|()| std::fs::rename(&part, path)).map_err(|e| format!("{}: {e}", path.display()))
}

fn compiler(arguments: &[&str], out: &Path) -> Result<(), String> {
    let part = out.with_extension(format!("part{}-{:?}", std::process::id(), std::thread::current().id()));
    let extra = env("TL_MSL_FLAGS", "");
    let run = Command::new(env("TL_CLANG", "clang++-19")).args(arguments).args(extra.split_whitespace()).arg("-o").arg(&part).output();
    let run = run.map_err(|e| format!("the compiler: {e}"))?;
    if !run.status.success() {
        return Err(String::from_utf8_lossy(&run.stderr).into_owned());
    }
    std::fs::rename(&part, out).map_err(|e| e.to_string())
}

fn open(path: &Path, global: bool) -> Result<*mut c_void, String> {
    let name = CString::new(path.as_os_str().as_encoded_bytes()).map_err(|e| e.to_string())?;
    // SAFETY: a library that was compiled from our own text; it has no constructors that do anything.
    let handle = unsafe { libc::dlopen(name.as_ptr(), libc::RTLD_NOW | if global { libc::RTLD_GLOBAL } else { libc::RTLD_LOCAL }) };
    if handle.is_null() {
        // SAFETY: dlerror gives a string that lives until the next call.
        return Err(unsafe { CStr::from_ptr(libc::dlerror()) }.to_string_lossy().into_owned());
    }
    Ok(handle)
}

fn symbol(handle: *mut c_void, name: &CStr) -> Result<*mut c_void, String> {
    // SAFETY: the handle is of an open library.
    let p = unsafe { libc::dlsym(handle, name.as_ptr()) };
    if p.is_null() { Err(format!("{} is missing", name.to_string_lossy())) } else { Ok(p) }
}

const FLAGS: [&str; 11] = [
    "-std=c++20",
    "-O1",
    "-march=native",
    "-fPIC",
    "-shared",
    "-w",
    "-ffp-contract=off",
    "-fno-exceptions",
    "-fno-rtti",
    "-Xclang",
    "-cl-single-precision-constant",
];

/// The fibers, compiled once.
fn runtime() -> Result<Run, String> {
    static RUN: OnceLock<Result<usize, String>> = OnceLock::new();
    let made = RUN.get_or_init(|| {
        let key = hash((RUNTIME, SHIM));
        let (source, out) = (folder().join(format!("rt-{key:016x}.cpp")), folder().join(format!("rt-{key:016x}.so")));
        put(&source, RUNTIME)?;
        for (name, text) in [
            ("metal_stdlib", SHIM),
            ("simd/simd.h", "#pragma once\n#include \"../metal_stdlib\"\n"),
            ("metal_simdgroup_matrix", "#pragma once\n#include \"metal_stdlib\"\n"),
            ("metal_simdgroup", "#pragma once\n#include \"metal_stdlib\"\n"),
            ("metal_math", "#pragma once\n#include \"metal_stdlib\"\n"),
            ("metal_atomic", "#pragma once\n#include \"metal_stdlib\"\n"),
        ] {
            put(&folder().join(format!("include-{key:016x}")).join(name), text)?;
        }
        if !out.exists() {
            compiler(&["-std=c++20", "-O2", "-fPIC", "-shared", &source.to_string_lossy()], &out)?;
        }
        Ok(symbol(open(&out, true)?, c"tl_run")? as usize)
    });
    // SAFETY: `tl_run` has this type.
    made.clone().map(|p| unsafe { std::mem::transmute::<usize, Run>(p) })
}

/// Splits at commas that stand in no brackets.
fn parts(text: &str) -> Vec<&str> {
    let (mut depth, mut start, mut out) = (0i32, 0, vec![]);
    for (i, c) in text.char_indices() {
        match c {
            '(' | '[' | '<' | '{' => depth += 1,
            ')' | ']' | '>' | '}' => depth -= 1,
            ',' if depth == 0 => {
                out.push(&text[start..i]);
                start = i + 1;
            }
            _ => {}
        }
    }
    out.push(&text[start..]);
    out.into_iter().map(str::trim).filter(|p| !p.is_empty()).collect()
}

/// The kernels of a text by name, with their parameters' texts.
pub fn kernels(text: &str) -> Vec<(String, Vec<String>)> {
    let mut out = vec![];
    let mut rest = text;
    while let Some(at) = rest.find("kernel void ") {
        rest = &rest[at + "kernel void ".len()..];
        let Some(open) = rest.find('(') else { break };
        let name = rest[..open].trim().to_string();
        let mut depth = 0;
        let Some(close) = rest.char_indices().find_map(|(i, c)| {
            depth += (c == '(') as i32 - (c == ')') as i32;
            (c == ')' && depth == 0).then_some(i)
        }) else {
            break;
        };
        out.push((name, parts(&rest[open + 1..close]).into_iter().map(String::from).collect()));
        rest = &rest[close..];
    }
    out
}

/// What the wrapper passes for a parameter, and what it declares for it.
fn argument(n: usize, text: &str) -> Result<(Arg, String, String), String> {
    let (head, attribute) = match text.find("[[") {
        Some(at) => (text[..at].trim(), text[at + 2..].split("]]").next().unwrap_or("").trim()),
        None => (text.trim(), ""),
    };
    let name_at = head.rfind(|c: char| !(c.is_alphanumeric() || c == '_')).map_or(0, |p| p + 1);
    let (kind, name) = (head[..name_at].trim(), &head[name_at..]);
    let number = || attribute.split(['(', ')']).nth(1).and_then(|v| v.trim().parse::<usize>().ok());
    let target = kind.trim_end_matches(['&', '*']).trim();
    let (reference, pointer) = (kind.ends_with('&'), kind.ends_with('*'));
    let at = |array: &str, index: usize| match pointer {
        true => format!("({target}*){array}[{index}]"),
        false => format!("*({target}*){array}[{index}]"),
    };
    if attribute.starts_with("buffer") {
        let index = number().ok_or(format!("{text}: no index"))?;
        let written = target.contains("device") && !target.contains("const");
        return Ok((Arg::Buffer { index, written, name: name.into() }, at("b", index), String::new()));
    }
    if attribute.starts_with("threadgroup(") {
        let index = number().ok_or(format!("{text}: no index"))?;
        return Ok((Arg::Threadgroup { index }, at("(b + 32)", index), String::new()));
    }
    if attribute.is_empty() && target.contains("threadgroup") && reference {
        // Room for its type, of alignment 16, filled with a pattern before each threadgroup.
        let declare =
            format!("alignas(16) static thread_local unsigned char tg{n}[sizeof(std::remove_cvref_t<decltype(*({target}*)nullptr)>)];\n");
        return Ok((Arg::Shared, format!("*({target}*)tg{n}"), declare));
    }
    let field = match attribute {
        "thread_position_in_grid" => {
            ["t->group[0] * t->size[0] + t->at[0]", "t->group[1] * t->size[1] + t->at[1]", "t->group[2] * t->size[2] + t->at[2]"]
        }
        "thread_position_in_threadgroup" => ["t->at[0]", "t->at[1]", "t->at[2]"],
        "threadgroup_position_in_grid" => ["t->group[0]", "t->group[1]", "t->group[2]"],
        "threadgroups_per_grid" => ["t->groups[0]", "t->groups[1]", "t->groups[2]"],
        "threads_per_threadgroup" => ["t->size[0]", "t->size[1]", "t->size[2]"],
        "threads_per_grid" => ["t->groups[0] * t->size[0]", "t->groups[1] * t->size[1]", "t->groups[2] * t->size[2]"],
        "thread_index_in_threadgroup" => ["t->index", "", ""],
        "thread_index_in_simdgroup" => ["t->lane", "", ""],
        "simdgroup_index_in_threadgroup" => ["t->simd", "", ""],
        "threads_per_simdgroup" | "thread_execution_width" => ["32u", "", ""],
        "simdgroups_per_threadgroup" => ["(t->size[0] * t->size[1] * t->size[2] + 31u) / 32u", "", ""],
        other => return Err(format!("parameter {text:?}: {other:?} is not known")),
    };
    let count = if kind.ends_with('3') {
        3
    } else if kind.ends_with('2') {
        2
    } else {
        1
    };
    Ok((Arg::Builtin, format!("{kind}({})", field[..count].join(", ")), String::new()))
}

/// naga's threadgroup memory, references among the kernel's parameters, becomes declarations in the kernel's body: Apple's compiler is known to move
/// accesses of such parameters across barriers (wgpu issue 4500).
pub fn localize(text: &str) -> String {
    let (mut out, mut moved) = (String::with_capacity(text.len()), Vec::new());
    for line in text.lines() {
        match line.strip_prefix(", threadgroup ").and_then(|l| l.split_once("& ")) {
            Some((kind, name)) if !name.contains(['[', ',']) => moved.push(format!("    threadgroup {kind} {name};\n")),
            _ => {
                out.push_str(line);
                out.push('\n');
                if line == ") {" {
                    moved.drain(..).for_each(|m| out.push_str(&m));
                }
            }
        }
    }
    out
}

/// Threadgroup memory declared in a kernel's body is shared by its threads.
fn shared_in_bodies(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for line in text.lines() {
        let t = line.trim_start();
        let declares = t.starts_with("threadgroup ")
            && line.len() > t.len()
            && t.ends_with(';')
            && !t.contains('(')
            && !t.contains('&')
            && !t.contains('*');
        match declares {
            true => out.push_str(&line.replacen("threadgroup ", "static thread_local ", 1)),
            false => out.push_str(line),
        }
        out.push('\n');
    }
    out
}

/// Vector comparisons that become numbers: clang's give 0 and -1, Metal's false and true. `static_cast<uint4>(a < b)` gets a `bool4` inside.
fn bools(text: &str) -> String {
    let (mut out, mut rest) = (String::with_capacity(text.len()), text);
    while let Some(at) = rest.find("static_cast<metal::") {
        let (before, cast) = rest.split_at(at);
        out.push_str(before);
        let Some(open) = cast.find(">(").map(|p| p + 2) else { break };
        let size = cast[..open - 2].chars().last().filter(|c| ('2'..='4').contains(c));
        let (mut depth, mut compares, mut close) = (1i32, false, None);
        for (i, c) in cast[open..].char_indices() {
            match c {
                '(' | '[' => depth += 1,
                ')' | ']' => depth -= 1,
                ' ' if depth == 1 => {
                    compares |= [" == ", " != ", " < ", " > ", " <= ", " >= "].iter().any(|o| cast[open + i..].starts_with(o));
                }
                _ => {}
            }
            if depth == 0 {
                close = Some(open + i);
                break;
            }
        }
        match (size, compares, close) {
            (Some(n), true, Some(close)) => {
                out += &format!("{}metal::bool{n}({})", &cast[..open], &cast[open..close]);
                rest = &cast[close..];
            }
            _ => {
                out.push_str(&cast[..open]);
                rest = &cast[open..];
            }
        }
    }
    out + rest
}

impl Kernel {
    /// Compiles a kernel of a text, or finds it among those that were compiled.
    pub fn compile(text: &str, name: &str) -> Result<Arc<Kernel>, String> {
        static MADE: Mutex<Option<HashMap<u64, Arc<Kernel>>>> = Mutex::new(None);
        let run = runtime()?;
        let all = kernels(text);
        let (_, parameters) = all.iter().find(|k| k.0 == name).ok_or(format!("no kernel {name:?} in the text"))?;
        let made = parameters.iter().enumerate().map(|(n, p)| argument(n, p)).collect::<Result<Vec<_>, _>>()?;
        let mut source = bools(&shared_in_bodies(text));
        let (mut passed, mut declared, mut poison) = (vec![], String::new(), String::new());
        let mut args = vec![];
        for (n, (arg, pass, declare)) in made.into_iter().enumerate() {
            if arg == Arg::Shared {
                poison += &format!("  memset(tg{n}, byte, sizeof tg{n});\n");
            }
            args.push(arg);
            passed.push(pass);
            declared += &declare;
        }
        source += &format!(
            "\n{declared}extern \"C\" __attribute__((visibility(\"default\"))) void tl_entry(const tl_thread* t, void* const* b) {{\n  {name}({});\n}}\n\
             extern \"C\" void tl_poison(int byte) {{\n{poison}}}\n",
            passed.join(", ")
        );
        let lock = || MADE.lock().unwrap_or_else(|e| e.into_inner());
        let key = hash((&source, SHIM, env("TL_MSL_FLAGS", ""), FLAGS));
        if let Some(k) = lock().get_or_insert_default().get(&key) {
            return Ok(k.clone());
        }
        let out = folder().join(format!("k-{key:016x}.so"));
        if !out.exists() {
            let file = folder().join(format!("k-{key:016x}.cpp"));
            put(&file, &source)?;
            let include = format!("-I{}", folder().join(format!("include-{:016x}", hash((RUNTIME, SHIM)))).display());
            let path = file.to_string_lossy().into_owned();
            let flags: Vec<&str> = FLAGS.iter().copied().chain([include.as_str(), path.as_str()]).collect();
            compiler(&flags, &out)?;
        }
        let handle = open(&out, false)?;
        // SAFETY: the wrapper written above has these types.
        let kernel = unsafe {
            Kernel {
                entry: std::mem::transmute::<*mut c_void, Entry>(symbol(handle, c"tl_entry")?),
                poison: std::mem::transmute::<*mut c_void, Poison>(symbol(handle, c"tl_poison")?),
                run,
                args,
                max_threads: text.split("max_total_threads_per_threadgroup(").nth(1).and_then(|t| t.split(')').next()?.trim().parse().ok()),
            }
        };
        let kernel = Arc::new(kernel);
        lock().get_or_insert_default().insert(key, kernel.clone());
        Ok(kernel)
    }

    /// Runs a grid of threadgroups over buffers by index.
    ///
    /// # Safety
    /// Every buffer that the kernel declares is there, aligned to 16 bytes, and as long as the kernel's accesses reach.
    pub unsafe fn run(&self, groups: [u32; 3], threads: [u32; 3], buffers: &[*mut c_void], threadgroup: &[usize]) -> Result<(), String> {
        let mut table = [std::ptr::null_mut(); 64];
        table[..buffers.len()].copy_from_slice(buffers);
        let mut room: Vec<Vec<u128>> = threadgroup.iter().map(|b| vec![0xA7A7_A7A7_A7A7_A7A7; b.div_ceil(16)]).collect();
        for (n, r) in room.iter_mut().enumerate() {
            table[32 + n] = r.as_mut_ptr().cast();
        }
        for a in &self.args {
            if let Arg::Buffer { index, name, .. } = a
                && table[*index].is_null()
            {
                return Err(format!("buffer {index} ({name}) is not bound"));
            }
        }
        let seed = env("TL_MSL_SEED", "0").parse().unwrap_or(0);
        // SAFETY: the caller's promise; the tables are long enough for every index that the text may name.
        let error = unsafe { (self.run)(self.entry, self.poison, groups.as_ptr(), threads.as_ptr(), table.as_ptr(), seed) };
        // SAFETY: a string that lives until this thread's next run.
        if error.is_null() { Ok(()) } else { Err(unsafe { CStr::from_ptr(error) }.to_string_lossy().into_owned()) }
    }
}
