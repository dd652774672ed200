//! `shader-hashes`: a hash of every kernel's shader source, so that a change of the code that assembles it shows what it changed.

use crate::samples::{adapters, results};
use crate::variants::variants;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use tensorlogic::backends::gpu::{DriverQuirks, Shader, kernel_shaders_for};
use tensorlogic::eval::plan_of;
use tensorlogic::plan::{AdapterInfo, Plan, SubgroupSync};
use tensorlogic::{Tensor, TensorError};

/// FNV-1a of 64 bits: the same on every machine and in every version.
fn hash(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |h, b| (h ^ b as u64).wrapping_mul(0x100_0000_01b3))
}

/// A kind of adapter: its name, what it answers, and its driver's quirks.
type Kind = (&'static str, AdapterInfo, DriverQuirks);

/// The kinds of adapter that are listed: those of the samples, and some as their drivers describe themselves.
fn kinds() -> Vec<Kind> {
    let none = DriverQuirks::default();
    let mut out: Vec<Kind> = adapters().into_iter().map(|(name, a)| (name, a, none)).collect();
    let adapter = |name: &str| out.iter().find(|k| k.0 == name).map_or_else(AdapterInfo::default, |k| k.1.clone());
    let (plain, apple, nvidia) = (adapter("plain"), adapter("apple"), adapter("nvidia"));
    let nvidia = AdapterInfo { byte_dots: true, ..nvidia };
    let lavapipe = AdapterInfo {
        subgroup: 8,
        coop: 8,
        coop_vectors: true,
        coherent: true,
        byte_dots: true,
        subgroup_sync: SubgroupSync::Lockstep,
        ..apple.clone()
    };
    let amd = AdapterInfo { subgroup: 64, coop: 16, workgroup_bytes: 65_536, subgroup_sync: SubgroupSync::None, ..nvidia.clone() };
    let small = AdapterInfo { subgroup: 32, byte_dots: true, workgroup_bytes: 16_384, workgroup_threads: 128, ..plain.clone() };
    let odd = DriverQuirks { soft_f16: true, ordered: true, infinite: true, few_bindings: true };
    out.extend([
        ("nvidia_byte_dots", nvidia, none),
        ("lavapipe", lavapipe, none),
        ("amd", amd, none),
        ("small", small, none),
        ("plain_quirks", plain, odd),
        ("apple_quirks", apple, DriverQuirks { few_bindings: false, ..odd }),
    ]);
    out
}

/// Whether a kind of adapter is asked for this sample: quirks show in how operands are read and written, for which few samples suffice, and
/// all others that NVIDIA's answers decide are listed with its dot products of bytes.
fn listed((kind, _, quirks): &Kind, sample: &str) -> bool {
    !sample.starts_with("variant_") || (*quirks == DriverQuirks::default() && *kind != "nvidia")
}

/// The plans of all samples by name, one for each name.
fn plans() -> Result<Vec<(String, Arc<Plan>)>, String> {
    let mut out = BTreeMap::new();
    let mut take = |name: String, t: Tensor| {
        if let Some(plan) = plan_of(&[&t])?
            && out.insert(name.clone(), plan).is_some()
        {
            return Err(TensorError::Value(format!("two samples are called {name}")));
        }
        Ok(())
    };
    results().and_then(|list| list.into_iter().try_for_each(|(name, t)| take(name, t))).map_err(|e| e.to_string())?;
    variants(&mut take).map_err(|e| e.to_string())?;
    Ok(out.into_iter().collect())
}

/// A source without its comments, its words and signs apart by one space or none: what a change of its layout leaves as it is.
fn tokens(source: &str) -> String {
    let mut out = String::with_capacity(source.len());
    let is_word = |c: char| c.is_ascii_alphanumeric() || c == '_';
    for word in source.lines().flat_map(|l| l.split("//").next().unwrap_or_default().split_whitespace()) {
        if out.ends_with(is_word) && word.starts_with(is_word) {
            out.push(' ');
        }
        out += word;
    }
    out
}

/// The tokens of a source, with a number for each name that it declares, in the order in which they appear: what a change of names leaves as it is.
fn unnamed(tokens: &str) -> String {
    let mut parts = Vec::new();
    let mut rest = tokens;
    while let Some(c) = rest.chars().next() {
        let word = rest.bytes().take_while(|&b| b.is_ascii_alphanumeric() || b == b'_').count();
        let (part, behind) = rest.split_at(word.max(c.len_utf8()));
        parts.extend(Some(part).filter(|p| *p != " "));
        rest = behind;
    }
    let declares = |n: usize| {
        let before = n.checked_sub(1).map_or("", |m| parts[m]);
        let is_name = parts[n].starts_with(|c: char| c.is_ascii_alphabetic() || c == '_');
        // `var<workgroup> name`, and a parameter or a field.
        let behind_space = before == ">" && parts[..n].iter().rev().take(6).any(|p| *p == "var");
        is_name && (["fn", "let", "var", "const", "struct", "alias"].contains(&before) || behind_space || parts.get(n + 1) == Some(&":"))
    };
    let declared: HashSet<&str> = (0..parts.len()).filter(|&n| declares(n)).map(|n| parts[n]).collect();
    let mut numbers = HashMap::new();
    let mut out = String::with_capacity(tokens.len());
    for part in parts {
        match declared.contains(part) {
            true => {
                let next = numbers.len();
                out += &format!("${} ", numbers.entry(part).or_insert(next));
            }
            false => out += &format!("{part} "),
        }
    }
    out
}

/// What a kernel's line says behind its name: hashes of its source, of its source whatever its layout, of its grid and parameters, and of its source
/// whatever its layout and names.
fn line(k: &Shader) -> String {
    let params = hash(&format!("{:?} {}", k.grid, k.params)) >> 32;
    let tokens = tokens(&k.wgsl);
    format!("{:016x} {:016x} {params:08x} {:016x}", hash(&k.wgsl), hash(&tokens), hash(&unnamed(&tokens)))
}

/// What is said of every kernel, by name: the kind of adapter, the sample, the number of the step in its plan, the op.
fn listing(say: &(dyn Fn(&Shader) -> String + Sync), wanted: &str) -> Result<BTreeMap<String, String>, String> {
    let (plans, kinds) = (plans()?, kinds());
    let next = AtomicUsize::new(0);
    let work = || {
        let mut out = Vec::new();
        while let Some((sample, plan)) = plans.get(next.fetch_add(1, Ordering::Relaxed)) {
            for (kind, adapter, quirks) in kinds
                .iter()
                .filter(|k| listed(k, sample))
                .filter(|k| wanted.is_empty() || wanted.starts_with(&format!("{}/{sample}/", k.0)))
            {
                match kernel_shaders_for(plan, adapter, *quirks) {
                    Ok(shaders) => out.extend(
                        shaders.iter().enumerate().map(|(n, k)| (format!("{kind}/{sample}/{n}/{}", k.name.replace(' ', "_")), say(k))),
                    ),
                    // Not every adapter has every kernel, and that is part of the listing.
                    Err(_) => out.push((format!("{kind}/{sample}/0/none"), "unsupported".to_string())),
                }
            }
        }
        out
    };
    let threads = std::thread::available_parallelism().map_or(1, |n| n.get());
    let parts = std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        all.into_iter().map(|t| t.join().map_err(|_| "a thread of the listing failed".to_string())).collect::<Result<Vec<_>, _>>()
    })?;
    Ok(parts.into_iter().flatten().collect())
}

/// Prints what differs from a saved listing; whether nothing does.
fn compare(file: &str, now: &BTreeMap<String, String>) -> Result<bool, String> {
    let saved = std::fs::read_to_string(file).map_err(|e| format!("{file}: {e}"))?;
    let before: BTreeMap<&str, &str> = saved.lines().filter_map(|l| l.split_once(' ')).collect();
    let mut counts = BTreeMap::<&str, usize>::new();
    let mut tell = |what: &'static str, name: &str| {
        println!("{what}: {name}");
        *counts.entry(what).or_default() += 1;
    };
    for (name, value) in now {
        let part = |text: &str, n: usize| text.split(' ').nth(n).map(str::to_string);
        match before.get(name.as_str()) {
            None => tell("added", name),
            Some(old) if old == value => {}
            Some(old) if part(old, 3) != part(value, 3) => tell("source changed", name),
            Some(old) if part(old, 1) != part(value, 1) => tell("names changed", name),
            Some(old) if part(old, 2) != part(value, 2) => tell("grid or parameters changed", name),
            Some(_) => tell("layout changed", name),
        }
    }
    before.keys().filter(|n| !now.contains_key(**n)).for_each(|n| tell("removed", n));
    let summary: Vec<String> = counts.iter().map(|(what, n)| format!("{n} {what}")).collect();
    println!("{} kernels: {}", now.len(), if summary.is_empty() { "no change".to_string() } else { summary.join(", ") });
    Ok(counts.is_empty())
}

/// The command; whether it found no difference.
pub fn run(args: &[String]) -> Result<bool, String> {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args[..] {
        [] => {
            let all = listing(&line, "")?;
            print!("{}", all.iter().map(|(name, value)| format!("{name} {value}\n")).collect::<String>());
            Ok(true)
        }
        ["--diff", file] => compare(file, &listing(&line, "")?),
        ["--show", name] => {
            let all = listing(&|k| format!("// grid {:?}, params {}\n{}", k.grid, k.params, k.wgsl), name)?;
            let source = all.get(name).ok_or_else(|| format!("no kernel is called {name}"))?;
            println!("{source}");
            Ok(true)
        }
        _ => Err("usage: cargo xtask shader-hashes [--diff FILE] [--show NAME]".into()),
    }
}
