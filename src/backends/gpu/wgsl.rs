//! The code generator: one step becomes a WGSL text, its bindings and its metadata block.

use super::codegen_options::CodegenOptions;
use super::operand::{Bound, Forms, Operands, Tail, Ty, View};
use super::program::{cast_lane, function, lane};
use super::uniforms::{UniformWord, Uniforms, kernel_word};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, Kernel, Load, Plan, RawKernel, RawLanguage, RawSource, Source, Step, Store, Work};
use crate::scalar::Prim;
use std::collections::{HashMap, HashSet};
use std::fmt::Write;
use std::sync::LazyLock;

/// Workgroups per dimension that every adapter takes.
const MAX_GROUPS: u64 = 65535;

/// A step, ready to become a pipeline and a dispatch.
pub(super) struct StepShader {
    pub text: String,
    /// Bindings 1, 2, …; binding 0 is the metadata block.
    pub views: Vec<View>,
    pub words: Vec<UniformWord>,
    pub grid: [u32; 3],
    /// Whether the text can report a bad index.
    pub fails: bool,
    /// The form in the driver's own language; then `text` only tells it from others.
    pub raw: Option<RawKernel>,
}

impl StepShader {
    /// How many 16-byte rows the metadata block has; at least one, since a binding cannot be empty.
    pub fn rows(&self) -> usize {
        self.words.len().div_ceil(4).max(1)
    }
}

/// The helper functions by name: text and the helpers it calls.
static PRELUDE: LazyLock<HashMap<&'static str, (&'static str, Vec<&'static str>)>> = LazyLock::new(|| {
    let text = include_str!("prelude.wgsl");
    let mut out = HashMap::new();
    let mut rest = text;
    while let Some(start) = rest.find("\nfn ") {
        let body = &rest[start + 1..];
        let end = body.find("\n}").map_or(body.len(), |e| e + 2);
        let function = &body[..end];
        let name = &function[3..function.find('(').unwrap_or(3)];
        let calls = identifiers(&function[3..]).filter(|i| i.starts_with("tl_") && *i != name).collect();
        out.insert(name, (function, calls));
        rest = &body[end..];
    }
    out
});

fn identifiers(text: &str) -> impl Iterator<Item = &str> {
    text.split(|c: char| !(c.is_ascii_alphanumeric() || c == '_')).filter(|s| s.starts_with(|c: char| c.is_ascii_alphabetic()))
}

/// Appends the helpers that a text calls, and those that they call.
fn append_prelude(text: &mut String) {
    let mut todo: Vec<&'static str> = identifiers(text).filter_map(|i| PRELUDE.get_key_value(i).map(|(k, _)| *k)).collect();
    let mut done = HashSet::new();
    while let Some(name) = todo.pop() {
        if done.insert(name)
            && let Some((_, calls)) = PRELUDE.get(name)
        {
            todo.extend(calls);
        }
    }
    // In one order, so that equal kernels have equal texts.
    let mut names: Vec<_> = done.into_iter().collect();
    names.sort_unstable();
    for n in names {
        text.push_str(PRELUDE[n].0);
        text.push('\n');
    }
}

/// A kernel's text without its stand-ins, and its `enable` lines.
fn strip(source: &str) -> (String, String) {
    let (mut text, mut enables, mut standing) = (String::with_capacity(source.len()), String::new(), true);
    for line in source.lines() {
        match line.trim() {
            "// default" => standing = false,
            "// end" => standing = true,
            t if t.starts_with("enable ") || t.starts_with("requires ") => {
                enables.push_str(t);
                enables.push('\n');
            }
            _ if standing => {
                text.push_str(line);
                text.push('\n');
            }
            _ => {}
        }
    }
    (text, enables)
}

/// Workgroups folded from one dimension into two where there are too many for one.
fn fold(groups: u64) -> [u32; 3] {
    let y = groups.div_ceil(MAX_GROUPS);
    [groups.div_ceil(y.max(1)) as u32, y as u32, 1]
}

/// The dtype of the kernel's value in a store's program.
fn value_dtype(s: &Store) -> DType {
    s.program.insts.iter().find(|i| i.op == Prim::Value).map_or(s.program.dtype(), |i| i.dtype).compute()
}

/// Whether four elements may be written past a target's end: what follows there is padding, not an element that another store leaves.
fn spills(plan: &Plan, s: &Store) -> bool {
    let t = &s.target;
    if t.offset.is_some() || t.layout.offset != 0 || !t.layout.is_contiguous() {
        return false;
    }
    let bytes = t.dtype.block_bytes();
    let end = t.layout.shape.count() * bytes;
    let spilled = end.next_multiple_of(4 * bytes);
    match t.buf {
        Buf::Output(n) => end == plan.outputs[n as usize].bytes,
        // A slot's size does not tell how long the value is: a window of it ends before another store of the same buffer does.
        Buf::Slot(n) => {
            let mut others = plan.steps.iter().flat_map(|step| &step.stores).filter(|o| o.target.buf == t.buf);
            spilled >= plan.slots[n as usize] && others.all(|o| last_byte(&o.target).is_some_and(|e| e <= end))
        }
        _ => false,
    }
}

/// Where the last element of a target ends in its buffer, in bytes; `None` where its start is known at run time only.
fn last_byte(t: &Source) -> Option<usize> {
    let last = |(&d, &s): (&usize, &isize)| d.saturating_sub(1) * s.max(0) as usize;
    let reach: usize = t.layout.shape.iter().zip(t.layout.strides()).map(last).sum();
    t.offset.is_none().then(|| (t.layout.offset + reach + 1) * t.dtype.block_bytes())
}

/// Writes a step's text; `None` where the step has nothing to do.
pub(super) fn step_text(plan: &Plan, step: &Step, style: CodegenOptions<'_>) -> TensorResult<Option<StepShader>> {
    if step.stores.iter().all(|s| s.shape.count() == 0) {
        return Ok(None);
    }
    match &step.work {
        Work::Map => map_text(plan, step, style).map(Some),
        Work::Kernel(k) => match raw_text(&**k, step, style) {
            Some(raw) => Ok(Some(raw)),
            None => step_shader(&**k, plan, step, style),
        },
    }
}

/// The kernel's form in the driver's language, where it has one and every operand is as such a form expects it.
fn raw_text(kernel: &dyn Kernel, step: &Step, style: CodegenOptions<'_>) -> Option<StepShader> {
    let language = style.adapter.raw?;
    let stored = |s: &Source| s.layout.is_contiguous() && s.layout.offset == 0 && s.offset.is_none() && s.buf != Buf::Iota;
    let mut views: Vec<View> = Vec::new();
    let view = |s: &Source, written, n| View { buf: Bound::Plan(s.buf), ty: Ty::U32, written, name: format!("b{n}") };
    for l in &step.loads {
        let s = l.plain().filter(|s| stored(s))?;
        views.push(view(s, false, views.len()));
    }
    for s in &step.stores {
        let t = s.plain().filter(|t| stored(t) && t.dtype == s.program.dtype())?;
        if views.iter().any(|v| v.buf == Bound::Plan(t.buf)) {
            return None;
        }
        views.push(view(t, true, views.len()));
    }
    let raw = kernel.raw(step, style.adapter)?;
    let matches = matches!((language, &raw.source), (RawLanguage::Msl, RawSource::Msl(_)) | (RawLanguage::SpirV, RawSource::SpirV(_)));
    if !matches || raw.grid.iter().any(|&g| g == 0 || g as u64 > MAX_GROUPS) {
        return None;
    }
    let text = format!("{:?}", (&raw.source, raw.entry, raw.workgroup, views.len()));
    Some(StepShader { text, views, words: raw.words.iter().map(kernel_word).collect(), grid: raw.grid, fails: false, raw: Some(raw) })
}

fn finish(head: String, o: Operands, meta: Uniforms, body: &str, grid: [u32; 3], fails: bool) -> StepShader {
    let mut text = head;
    let _ = writeln!(text, "@group(0) @binding(0) var<uniform> m_: array<vec4<u32>, {}>;", meta.rows());
    for (n, v) in o.views.iter().enumerate() {
        let access = if v.written { "read_write" } else { "read" };
        let coherent = if v.ty == Ty::Scratch { "@coherent " } else { "" };
        let _ = writeln!(text, "@group(0) @binding({}) {coherent}var<storage, {access}> {}: {};", n + 1, v.name, v.ty.wgsl());
    }
    text += &o.text;
    text += body;
    append_prelude(&mut text);
    StepShader { text, views: o.views, words: meta.words, grid, fails, raw: None }
}

fn map_text(plan: &Plan, step: &Step, style: CodegenOptions<'_>) -> TensorResult<StepShader> {
    let count = step.stores[0].shape.count();
    if count > u32::MAX as usize - 4 {
        return Err(TensorError::Unsupported(format!("{} elements in one step on a GPU", count)));
    }
    let forms = Forms { four: true, ..Forms::default() };
    let mut meta = Uniforms::default();
    let n = meta.size(count);
    let exact = count.is_multiple_of(4);
    let tail = if exact { Tail::None } else { Tail::Guard(n.clone()) };
    let mut o = Operands::new(style.quirks.soft_f16, style.quirks.few_bindings);
    let mut ids = Vec::new();
    let mut targets = Vec::new();
    for s in &step.stores {
        ids.push(s.sources.iter().map(|s| o.source(s, forms)).collect::<TensorResult<Vec<_>>>()?);
        targets.push(o.target(&s.target, forms, exact || spills(plan, s))?);
    }
    let mut distinct: Vec<usize> = ids.iter().flatten().copied().collect();
    distinct.sort_unstable();
    distinct.dedup();
    // A thread of a large step handles as many quads as make 16 or 32 bytes of its widest operand, a workgroup apart from each other.
    let widest = step.stores.iter().flat_map(|s| s.sources.iter().chain([&s.target])).map(|s| s.dtype.block_bytes().clamp(1, 4)).max();
    let workgroup = style.adapter.workgroup_threads.clamp(1, 256);
    let tuning = &style.adapter.tuning.map;
    let tiles =
        distinct.iter().find_map(|&id| o.transposed(id)).filter(|t| count >= tuning.tile_min_elements && t[1] >= 8 && workgroup == 256);
    let quads = match count {
        _ if tiles.is_some() => 1,
        n if n >= tuning.multi_quad_elements[1] => 8 / widest.unwrap_or(4),
        n if n >= tuning.multi_quad_elements[0] => 4 / widest.unwrap_or(4),
        _ => 1,
    };
    let last = if quads > 1 { meta.size((count - 1) / 4 * 4) } else { String::new() };
    let (mut loads, mut values, mut stores, mut functions) = (String::new(), String::new(), String::new(), String::new());
    for u in 1..quads {
        // Beyond the end the last quad is read again, and not written.
        let _ = write!(loads, "  let i{u} = i0 + {}u * WORKGROUP;\n  let j{u} = min(i{u}, {last});\n", 4 * u);
    }
    for &id in &distinct {
        o.read(id, forms, &tail, &mut meta)?;
        for u in 0..quads {
            let _ = writeln!(loads, "  let a{id}_{u} = x{id}v({}{u});", if u == 0 { "i" } else { "j" });
        }
    }
    for (k, s) in step.stores.iter().enumerate() {
        o.write(targets[k], forms, &tail, &mut meta)?;
        let t = lane(s.target.dtype)?;
        let dtypes: Vec<DType> = s.sources.iter().map(|s| s.dtype).collect();
        let identity = s.program.is_identity();
        if !identity {
            functions += &function(&s.program, &format!("ps{k}"), None, &dtypes, &mut meta, style.into(s.target.dtype))?;
        }
        for u in 0..quads {
            let [x, y, z, w] = ["x", "y", "z", "w"].map(|c| {
                let args: Vec<String> = ids[k].iter().map(|id| format!("a{id}_{u}.{c}")).collect();
                match identity {
                    true => cast_lane(&args[0], dtypes[0], s.target.dtype),
                    false => cast_lane(&format!("ps{k}({})", args.join(", ")), s.program.dtype(), s.target.dtype),
                }
            });
            let _ = writeln!(values, "  let v{k}_{u} = vec4<{t}>({}, {}, {}, {});", x?, y?, z?, w?);
        }
    }
    for u in 0..quads {
        let all: String = targets.iter().enumerate().map(|(k, target)| format!("    z{target}v(i{u}, v{k}_{u});\n")).collect();
        let _ = match u {
            0 => write!(stores, "{all}"),
            _ => write!(stores, "  if i{u} < {n} {{\n{all}  }}\n"),
        };
    }
    let (place, groups) = match tiles {
        None => {
            let place = format!("  let i0 = (linear * (WORKGROUP * {quads}u) + lane) * 4u;\n  if i0 >= {n} {{\n    return;\n  }}\n");
            (place, (count as u64).div_ceil((4 * quads) as u64 * workgroup as u64))
        }
        // A workgroup takes 32 by 32 elements, so that what one thread fetches beside its element serves another from the cache.
        Some([before, run, between, inner]) => {
            let [p, b, c] = [run, between, inner].map(|v| meta.size(v));
            let [np, nc] = [run, inner].map(|v| meta.size(v.div_ceil(32)));
            let place = format!(
                "  let t0 = linear / {nc};
  let t1 = t0 / {b};
  let t2 = t1 / {np};
  let row = (t1 - t2 * {np}) * 32u + lane / 8u;
  let column = (linear - t0 * {nc}) * 32u + lane % 8u * 4u;
  let i0 = ((t2 * {p} + row) * {b} + (t0 - t1 * {b})) * {c} + column;
  if row >= {p} || column >= {c} || i0 >= {n} {{
    return;
  }}
"
            );
            (place, before as u64 * run.div_ceil(32) as u64 * between as u64 * inner.div_ceil(32) as u64)
        }
    };
    let body = format!(
        "{functions}@compute @workgroup_size(WORKGROUP)
fn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: vec3<u32>, @builtin(local_invocation_index) lane: u32) {{
  let linear = group.y * groups.x + group.x;
{place}{loads}{values}{stores}}}
"
    );
    Ok(finish(format!("const WORKGROUP: u32 = {workgroup}u;\n"), o, meta, &body, fold(groups), false))
}

/// Whether no other step reads what a step leaves in this buffer.
fn is_unread(plan: &Plan, step: &Step, buf: Buf) -> bool {
    let read = |s: &Step| s.loads.iter().flat_map(|l| &l.sources).chain(s.stores.iter().flat_map(|t| &t.sources)).any(|s| s.buf == buf);
    matches!(buf, Buf::Slot(_)) && plan.steps.iter().all(|s| std::ptr::eq(s, step) || !read(s))
}

fn step_shader(kernel: &dyn Kernel, plan: &Plan, step: &Step, style: CodegenOptions<'_>) -> TensorResult<Option<StepShader>> {
    let Some(w) = kernel.wgsl(step, style.adapter) else {
        return Err(TensorError::Unsupported(format!("{} on this GPU ({}:{})", step.name, step.at.file(), step.at.line())));
    };
    let mut grid = w.grid;
    if grid.contains(&0) {
        return Ok(None);
    }
    if grid[0] as u64 > MAX_GROUPS && grid[1] == 1 && grid[2] == 1 {
        grid = fold(grid[0] as u64);
    }
    if grid.iter().any(|&g| g as u64 > MAX_GROUPS) {
        return Err(TensorError::Unsupported(format!("{}: a grid of {:?} workgroups", step.name, w.grid)));
    }
    let (text, mut head) = strip(&w.source);
    let names: HashSet<&str> = identifiers(&text).collect();
    let forms = |verb: &str, k: usize| Forms {
        one: names.contains(format!("{verb}_{k}").as_str()),
        four: names.contains(format!("{verb}4_{k}").as_str()) || verb == "store" && names.contains(format!("write4_{k}").as_str()),
        eight: names.contains(format!("{verb}8_{k}").as_str()) || verb == "store" && names.contains(format!("write8_{k}").as_str()),
    };
    for (name, v) in &w.consts {
        let _ = writeln!(head, "const {name}: u32 = {v}u;");
    }
    let _ = writeln!(head, "const WORKGROUP: u32 = {}u;", w.workgroup);
    let mut meta = Uniforms::default();
    let mut body = String::new();
    // The kernel's own numbers come first: `word(n)` finds them by position.
    meta.words.extend(w.words.iter().map(kernel_word));
    let mut o = Operands::new(style.quirks.soft_f16, style.quirks.few_bindings);
    let mut loads = Vec::new();
    let mut stores = Vec::new();
    let transposed = |(k, l): (usize, &Load)| match w.transposed.contains(&(k as u8)) {
        true => l.transposed().ok_or_else(|| TensorError::Internal(format!("{}: load {k} cannot be transposed", step.name))),
        false => Ok(l.clone()),
    };
    let step_loads = step.loads.iter().enumerate().map(transposed).collect::<TensorResult<Vec<_>>>()?;
    for (k, l) in step_loads.iter().enumerate() {
        let f = forms("load", k);
        let used = if f.one || f.four { &l.sources[..] } else { &[] };
        loads.push(used.iter().map(|s| o.source(s, f)).collect::<TensorResult<Vec<_>>>()?);
    }
    for (k, s) in step.stores.iter().enumerate() {
        let f = forms("store", k);
        // One of several results that nobody wants is not written: its buffer would make steps wait for each other.
        if k > 0 && f.one && !f.four && !f.eight && is_unread(plan, step, s.target.buf) {
            let _ = writeln!(body, "fn store_{k}(i: u32, v: V_{k}) {{ }}");
            stores.push(None);
        } else if f.one || f.four || f.eight {
            let sources = s.sources.iter().map(|s| o.source(s, f)).collect::<TensorResult<Vec<_>>>()?;
            stores.push(Some((sources, o.target(&s.target, f, true)?)));
        } else {
            stores.push(None);
        }
    }
    if names.contains("row_start") {
        for (s, ids) in step.stores.iter().zip(stores.iter().flatten()).map(|(s, (ids, _))| (s, ids)) {
            let length = s.shape.dims().last().copied().unwrap_or(1);
            ids.iter().filter(|id| !loads.iter().flatten().any(|l| l == *id)).for_each(|&id| o.in_rows(id, length));
        }
    }
    // A source may serve several loads and stores: its functions are written once, in every form that one of them needs.
    let mut all: Vec<(usize, Forms)> = Vec::new();
    let uses = loads.iter().enumerate().map(|(k, ids)| (ids, forms("load", k)));
    let epilogues = stores.iter().enumerate().filter_map(|(k, s)| s.as_ref().map(|s| (&s.0, forms("store", k))));
    for (ids, f) in uses.chain(epilogues) {
        for &id in ids {
            match all.iter_mut().find(|a| a.0 == id) {
                Some(a) => a.1 = Forms { one: a.1.one || f.one, four: a.1.four || f.four, eight: a.1.eight || f.eight },
                None => all.push((id, f)),
            }
        }
    }
    for (id, f) in all {
        o.read(id, f, &Tail::None, &mut meta)?;
    }
    let quad = ["x", "y", "z", "w"];
    for (k, l) in step_loads.iter().enumerate() {
        let t = lane(l.dtype())?;
        let _ = writeln!(head, "alias T_{k} = {t};");
        let (f, ids) = (forms("load", k), &loads[k]);
        if !f.one && !f.four {
            continue;
        }
        let dtypes: Vec<DType> = l.sources.iter().map(|s| s.dtype).collect();
        let call = |args: Vec<String>| {
            if l.plain().is_some() { cast_lane(&args[0], dtypes[0], l.dtype()) } else { Ok(format!("pl{k}({})", args.join(", "))) }
        };
        if l.plain().is_none() {
            body += &function(&l.program, &format!("pl{k}"), None, &dtypes, &mut meta, style)?;
        }
        if f.one {
            let v = call(ids.iter().map(|id| format!("x{id}(i)")).collect())?;
            let _ = write!(body, "fn load_{k}(i: u32) -> T_{k} {{\n  return {v};\n}}\n");
        }
        if f.four {
            let _ = writeln!(body, "fn load4_{k}(i: u32) -> vec4<T_{k}> {{");
            for (n, id) in ids.iter().enumerate() {
                let _ = writeln!(body, "  let a{n} = x{id}v(i);");
            }
            let v = quad.map(|c| call((0..ids.len()).map(|n| format!("a{n}.{c}")).collect()));
            let [x, y, z, w] = v;
            let _ = write!(body, "  return vec4<T_{k}>({}, {}, {}, {});\n}}\n", x?, y?, z?, w?);
        }
    }
    for (k, s) in step.stores.iter().enumerate() {
        let value = value_dtype(s);
        let _ = writeln!(head, "alias V_{k} = {};", lane(value)?);
        let Some((ids, target)) = &stores[k] else { continue };
        let f = forms("store", k);
        o.write(*target, f, &Tail::None, &mut meta)?;
        let t = lane(s.target.dtype)?;
        let dtypes: Vec<DType> = s.sources.iter().map(|s| s.dtype).collect();
        if !s.program.is_value() {
            body += &function(&s.program, &format!("ps{k}"), Some(value), &dtypes, &mut meta, style.into(s.target.dtype))?;
        }
        let paired = s.program.has(Prim::SwapPair);
        if paired && f.one {
            return Err(TensorError::Internal(format!("{}: a value's partner is known where fours are written only", step.name)));
        }
        let call = |v: String, partner: Option<String>, args: Vec<String>| {
            if s.program.is_value() {
                cast_lane(&v, value, s.target.dtype)
            } else {
                let args: Vec<String> = [v].into_iter().chain(partner).chain(args).collect();
                cast_lane(&format!("ps{k}({})", args.join(", ")), s.program.dtype(), s.target.dtype)
            }
        };
        if f.one {
            let v = call("v".into(), None, ids.iter().map(|id| format!("x{id}(i)")).collect())?;
            let _ = write!(body, "fn store_{k}(i: u32, v: V_{k}) {{\n  z{target}(i, {v});\n}}\n");
        }
        // Four elements, which come as `v`.
        let four = |v: &str| -> TensorResult<String> {
            let [x, y, z, w] = [("x", "y"), ("y", "x"), ("z", "w"), ("w", "z")].map(|(c, other)| {
                let partner = paired.then(|| format!("{v}.{other}"));
                call(format!("{v}.{c}"), partner, (0..ids.len()).map(|n| format!("{v}{n}.{c}")).collect())
            });
            Ok(format!("vec4<{t}>({}, {}, {}, {})", x?, y?, z?, w?))
        };
        if f.four {
            let value = four("v")?;
            if names.contains(format!("write4_{k}").as_str()) {
                // In two halves, so that a kernel can ask for what its results are combined with before it has them.
                let fields: TensorResult<Vec<String>> =
                    dtypes.iter().enumerate().map(|(n, d)| Ok(format!("v{n}: vec4<{}>", lane(*d)?))).collect();
                let fields = if ids.is_empty() { "nothing: u32".into() } else { fields?.join(", ") };
                let values =
                    if ids.is_empty() { "0u".into() } else { ids.iter().map(|id| format!("x{id}v(i)")).collect::<Vec<_>>().join(", ") };
                let names: String = (0..ids.len()).map(|n| format!("  let v{n} = r.v{n};\n")).collect();
                let _ = write!(
                    body,
                    "struct Reads_{k} {{ {fields} }}\nfn reads4_{k}(i: u32) -> Reads_{k} {{\n  return Reads_{k}({values});\n}}\n\
                     fn write4_{k}(i: u32, v: vec4<V_{k}>, r: Reads_{k}) {{\n{names}  z{target}v(i, {value});\n}}\n"
                );
            } else {
                let reads: String = ids.iter().enumerate().map(|(n, id)| format!("  let v{n} = x{id}v(i);\n")).collect();
                let _ = write!(body, "fn store4_{k}(i: u32, v: vec4<V_{k}>) {{\n{reads}  z{target}v(i, {value});\n}}\n");
            }
        }
        if f.eight {
            // What eight elements are combined with, or that part of it which is the same in all rows, or the other part.
            let reads = |part: Option<bool>| -> String {
                let read = |(n, &id): (usize, &usize)| match o.reads_eight(id) {
                    true => format!("  let both{n} = x{id}w(i);\n  let v{n} = both{n}[0];\n  let w{n} = both{n}[1];\n"),
                    false => format!("  let v{n} = x{id}v(i);\n  let w{n} = x{id}v(i + 4u);\n"),
                };
                ids.iter().enumerate().filter(|(_, id)| part.is_none_or(|p| p == o.is_same(**id))).map(read).collect()
            };
            let (v, w) = (four("v")?, four("w")?);
            let write = match o.has_eight(*target) {
                true => format!("z{target}w(i, {v}, {w});"),
                false => format!("z{target}v(i, {v});\n  z{target}v(i + 4u, {w});"),
            };
            if names.contains(format!("store8_{k}").as_str()) {
                let _ = write!(body, "fn store8_{k}(i: u32, v: vec4<V_{k}>, w: vec4<V_{k}>) {{\n{}  {write}\n}}\n", reads(None));
            }
            if names.contains(format!("write8_{k}").as_str()) {
                let (mut fields, mut values, mut kept) = ("nothing: u32".to_string(), "0u".to_string(), String::new());
                for (n, d) in dtypes.iter().enumerate().filter(|(n, _)| o.is_same(ids[*n])) {
                    let t = lane(*d)?;
                    let _ = write!(fields, ", v{n}: vec4<{t}>, w{n}: vec4<{t}>");
                    let _ = write!(values, ", v{n}, w{n}");
                    let _ = write!(kept, "  let v{n} = c.v{n};\n  let w{n} = c.w{n};\n");
                }
                let (same, rest) = (reads(Some(true)), reads(Some(false)));
                let _ = write!(
                    body,
                    "struct Columns_{k} {{ {fields} }}\nfn columns8_{k}(i: u32) -> Columns_{k} {{\n{same}  return Columns_{k}({values});\n}}\n\
                     fn write8_{k}(i: u32, v: vec4<V_{k}>, w: vec4<V_{k}>, c: Columns_{k}) {{\n{kept}{rest}  {write}\n}}\n"
                );
            }
        }
    }
    for &k in &w.raw {
        let source = step
            .loads
            .get(k as usize)
            .and_then(|l| l.plain())
            .ok_or_else(|| TensorError::Internal(format!("{}: load {k} is not plain", step.name)))?;
        for (name, wide) in [(format!("raw_{k}"), !source.dtype.is_block()), (format!("wide_{k}"), true)] {
            if names.contains(name.as_str()) {
                o.raw(source, name, wide);
            }
        }
    }
    if names.contains("word") {
        body += "fn word(n: u32) -> u32 {\n  return m_[n >> 2u][n & 3u];\n}\n";
    }
    if names.contains("scratch") {
        o.scratch();
    }
    if names.contains("scratch4") {
        o.scratch4();
    }
    let fails = names.contains("fail");
    if fails {
        o.error();
        let tag = meta.push(UniformWord::Tag);
        let _ = write!(
            body,
            "fn fail(code: u32) {{\n  if atomicOr(&e_[0], 1u) == 0u {{\n    atomicStore(&e_[1], {tag});\n    atomicStore(&e_[2], code);\n  }}\n}}\n"
        );
    }
    body += &text;
    Ok(Some(finish(head, o, meta, &body, grid, fails)))
}
