//! Steps with a kernel as WGSL: the kernel's own code, and the functions by which it reads its loads and writes its stores.

use super::operand::{Forms, Operands, Tail};
use super::options::CodegenOptions;
use super::program::{cast_lane, function, lane};
use super::step_shader::{MAX_GROUPS, StepShader, assemble, fold, identifiers};
use super::uniforms::{UniformWord, Uniforms, uniform_word};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, Kernel, KernelParam, Load, Plan, Step, Store};
use crate::scalar::Prim;
use std::collections::HashSet;
use std::fmt::Write;

/// A kernel's code and, apart from it, its `enable` lines: these come before everything that is generated.
fn split_enables(source: &str) -> (String, String) {
    let (mut code, mut enables) = (String::with_capacity(source.len()), String::new());
    for line in source.lines() {
        let trimmed = line.trim();
        if trimmed.starts_with("enable ") || trimmed.starts_with("requires ") {
            enables.push_str(trimmed);
            enables.push('\n');
        } else {
            code.push_str(line);
            code.push('\n');
        }
    }
    (code, enables)
}

/// The struct of parameters that a kernel's code declares: names and types of its members, and the code without it.
fn split_params(code: &str) -> Option<(Vec<(&str, &str)>, String)> {
    let (before, rest) = code.split_once("struct Params {")?;
    let (members, after) = rest.split_once('}')?;
    let members = members.lines().flat_map(|line| line.split("//").next().unwrap_or_default().split(','));
    let members = members.filter_map(|m| m.split_once(':')).map(|(name, ty)| (name.trim(), ty.trim())).collect();
    Some((members, format!("{before}{after}")))
}

/// The parameters of a kernel: members of the struct that its code declares, or words that it reads by number.
fn parameters(params: &[KernelParam], declared: Option<&[(&str, &str)]>) -> Result<Uniforms, String> {
    let words: Vec<UniformWord> = params.iter().map(uniform_word).collect();
    let Some(declared) = declared else { return Ok(if words.is_empty() { Uniforms::default() } else { Uniforms::numbered(words) }) };
    if declared.len() < words.len() {
        return Err(format!("declares `struct Params` of {} members for {} parameters", declared.len(), words.len()));
    }
    // A variant that does not read the last fields is given none for them.
    let member = |&(name, ty): &(_, &str)| match ["u32", "i32", "f32"].into_iter().find(|t| *t == ty) {
        Some(ty) => Ok((name, ty)),
        None => Err(format!("declares `{name}: {ty}` in `struct Params`")),
    };
    let members = declared[..words.len()].iter().map(member).collect::<Result<Vec<_>, _>>()?;
    Ok(Uniforms::named(words, &members))
}

/// The dtype of the kernel's value in a store's program.
fn value_dtype(s: &Store) -> DType {
    s.program.insts.iter().find(|i| i.op == Prim::Value).map_or(s.program.dtype(), |i| i.dtype).compute()
}

/// Whether no other step reads what a step leaves in this buffer.
fn is_unread(plan: &Plan, step: &Step, buf: Buf) -> bool {
    let read = |s: &Step| s.loads.iter().flat_map(|l| &l.sources).chain(s.stores.iter().flat_map(|t| &t.sources)).any(|s| s.buf == buf);
    buf.slot().is_some() && plan.steps.iter().all(|s| std::ptr::eq(s, step) || !read(s))
}

/// The workgroups of a kernel in x, y and z, folded into two dimensions where there are too many for one; `None` where there are none.
fn grid_of(step: &Step, asked: [u32; 3]) -> TensorResult<Option<[u32; 3]>> {
    if asked.contains(&0) {
        return Ok(None);
    }
    let folded = asked[0] as u64 > MAX_GROUPS && asked[1] == 1 && asked[2] == 1;
    let grid = if folded { fold(asked[0] as u64) } else { asked };
    match grid.iter().any(|&g| g as u64 > MAX_GROUPS) {
        true => Err(TensorError::Unsupported(format!("{}: a grid of {asked:?} workgroups", step.name))),
        false => Ok(Some(grid)),
    }
}

/// Writes the WGSL of a step with a kernel; `None` where the step has nothing to do.
pub(super) fn shader(kernel: &dyn Kernel, plan: &Plan, step: &Step, options: CodegenOptions<'_>) -> TensorResult<Option<StepShader>> {
    let Some(w) = kernel.wgsl(step, options.adapter) else {
        return Err(TensorError::Unsupported(format!("{} on this GPU ({}:{})", step.name, step.at.file(), step.at.line())));
    };
    let Some(grid) = grid_of(step, w.grid)? else { return Ok(None) };
    let (source, mut head) = split_enables(&w.source);
    let split = split_params(&source);
    let (declared, wgsl) = split.as_ref().map_or((None, &source), |(declared, wgsl)| (Some(&declared[..]), wgsl));
    let refused = |what: String, help: &str| {
        TensorError::Config(format!("{}: the kernel {what} ({}:{}): {help}", step.name, step.at.file(), step.at.line()))
    };
    if let Some(name) = generated_name(wgsl) {
        return Err(refused(format!("declares `{name}`"), "generated code uses such names; give it another one"));
    }
    let own = parameters(&w.params, declared);
    let own = own.map_err(|what| refused(what, "its members must be the kernel's parameters in order, each u32, i32 or f32"))?;
    for (name, v) in &w.consts {
        let _ = writeln!(head, "const {name}: u32 = {v}u;");
    }
    let _ = writeln!(head, "const WORKGROUP: u32 = {}u;", w.workgroup);
    let transposed = |(k, l): (usize, &Load)| match w.transposed.contains(&(k as u8)) {
        true => l.transposed().ok_or_else(|| TensorError::Internal(format!("{}: load {k} cannot be transposed", step.name))),
        false => Ok(l.clone()),
    };
    let loads = step.loads.iter().enumerate().map(transposed).collect::<TensorResult<Vec<_>>>()?;
    let mut k = KernelShader {
        step,
        options,
        names: identifiers(wgsl).collect(),
        operands: Operands::new(options.quirks.soft_f16, options.quirks.few_bindings),
        meta: own,
        head,
        body: String::new(),
        loads: Vec::new(),
        stores: Vec::new(),
    };
    k.register(plan, &loads)?;
    k.source_functions()?;
    for (n, load) in loads.iter().enumerate() {
        k.load_functions(n, load)?;
    }
    for (n, store) in step.stores.iter().enumerate() {
        k.store_functions(n, store)?;
    }
    k.raw_bindings(&w.raw)?;
    let fails = k.services();
    k.body += wgsl;
    Ok(Some(StepShader { fails, ..assemble(k.head, k.operands, k.meta, &k.body, grid) }))
}

/// The first function, constant or alias of a kernel's own code whose name is one that generated code may use, whether or not it does here:
/// which operands there are depends on what was fused. Nor may a variable of the module be called `p`, the name of the parameters.
fn generated_name(wgsl: &str) -> Option<&str> {
    let mut before = "";
    identifiers(wgsl).find(|name| {
        let keyword = std::mem::replace(&mut before, name);
        if *name == "p" && matches!(keyword, "fn" | "alias" | "private" | "workgroup") {
            return true;
        }
        let declared = matches!(keyword, "fn" | "const" | "alias");
        let number = name.trim_end_matches(['v', 'w']);
        let stem = number.trim_end_matches(|c: char| c.is_ascii_digit());
        declared && stem.len() < number.len() && ["at", "az", "b", "d", "pl", "ps", "w", "x", "y", "z"].contains(&stem)
    })
}

/// The components of four elements.
const QUAD: [&str; 4] = ["x", "y", "z", "w"];

/// The parts of the shader while it is written.
struct KernelShader<'a> {
    step: &'a Step,
    options: CodegenOptions<'a>,
    /// The names that the kernel's own code uses.
    names: HashSet<&'a str>,
    operands: Operands,
    meta: Uniforms,
    head: String,
    body: String,
    /// The sources of each load, and of each store that is written, with its target.
    loads: Vec<Vec<usize>>,
    stores: Vec<Option<(Vec<usize>, usize)>>,
}

impl KernelShader<'_> {
    /// Whether the kernel's code uses a name.
    fn uses(&self, name: &str) -> bool {
        self.names.contains(name)
    }

    /// The forms in which the kernel's code reads or writes operand `k`.
    fn forms(&self, verb: &str, k: usize) -> Forms {
        let or_write = |width: usize| verb == "store" && self.uses(&format!("write{width}_{k}"));
        Forms {
            one: self.uses(&format!("{verb}_{k}")),
            four: self.uses(&format!("{verb}4_{k}")) || or_write(4),
            eight: self.uses(&format!("{verb}8_{k}")) || or_write(8),
        }
    }

    /// Registers the sources and targets that the kernel's code uses.
    fn register(&mut self, plan: &Plan, loads: &[Load]) -> TensorResult<()> {
        for (k, l) in loads.iter().enumerate() {
            let f = self.forms("load", k);
            let used = if f.one || f.four { &l.sources[..] } else { &[] };
            self.loads.push(used.iter().map(|s| self.operands.source(s, f)).collect::<TensorResult<Vec<_>>>()?);
        }
        for (k, s) in self.step.stores.iter().enumerate() {
            let f = self.forms("store", k);
            // One of several results that nobody wants is not written: its buffer would make steps wait for each other.
            if k > 0 && f.one && !f.four && !f.eight && is_unread(plan, self.step, s.target.buf) {
                let _ = writeln!(self.body, "fn store_{k}(i: u32, v: V_{k}) {{ }}");
                self.stores.push(None);
            } else if f.one || f.four || f.eight {
                let sources = s.sources.iter().map(|s| self.operands.source(s, f)).collect::<TensorResult<Vec<_>>>()?;
                self.stores.push(Some((sources, self.operands.target(&s.target, f, true)?)));
            } else {
                self.stores.push(None);
            }
        }
        if self.uses("row_start") {
            self.mark_rows();
        }
        Ok(())
    }

    /// Tells which sources of stores are read in rows whose start the kernel's code keeps.
    fn mark_rows(&mut self) {
        for (s, ids) in self.step.stores.iter().zip(self.stores.iter().flatten()).map(|(s, (ids, _))| (s, ids)) {
            let length = s.shape.dims().last().copied().unwrap_or(1);
            let own = ids.iter().filter(|id| !self.loads.iter().flatten().any(|l| l == *id));
            own.for_each(|&id| self.operands.in_rows(id, length));
        }
    }

    /// The functions that read sources. A source may serve several loads and stores: its functions are written once, in every form that one
    /// of them needs.
    fn source_functions(&mut self) -> TensorResult<()> {
        let mut all: Vec<(usize, Forms)> = Vec::new();
        let uses = self.loads.iter().enumerate().map(|(k, ids)| (ids, self.forms("load", k)));
        let epilogues = self.stores.iter().enumerate().filter_map(|(k, s)| s.as_ref().map(|s| (&s.0, self.forms("store", k))));
        for (ids, f) in uses.chain(epilogues) {
            for &id in ids {
                match all.iter_mut().find(|a| a.0 == id) {
                    Some(a) => a.1 = Forms { one: a.1.one || f.one, four: a.1.four || f.four, eight: a.1.eight || f.eight },
                    None => all.push((id, f)),
                }
            }
        }
        all.into_iter().try_for_each(|(id, f)| self.operands.read(id, f, &Tail::None, &mut self.meta))
    }

    /// `load_k` and `load4_k`, where the kernel's code calls them.
    fn load_functions(&mut self, k: usize, l: &Load) -> TensorResult<()> {
        let t = lane(l.dtype())?;
        let _ = writeln!(self.head, "alias T_{k} = {t};");
        let f = self.forms("load", k);
        if !f.one && !f.four {
            return Ok(());
        }
        let ids = &self.loads[k];
        let dtypes: Vec<DType> = l.sources.iter().map(|s| s.dtype).collect();
        let call = |args: Vec<String>| {
            if l.plain().is_some() { cast_lane(&args[0], dtypes[0], l.dtype()) } else { Ok(format!("pl{k}({})", args.join(", "))) }
        };
        let body = &mut self.body;
        if l.plain().is_none() {
            *body += &function(&l.program, &format!("pl{k}"), None, &dtypes, &mut self.meta, self.options)?;
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
            let [x, y, z, w] = QUAD.map(|c| call((0..ids.len()).map(|n| format!("a{n}.{c}")).collect()));
            let _ = write!(body, "  return vec4<T_{k}>({}, {}, {}, {});\n}}\n", x?, y?, z?, w?);
        }
        Ok(())
    }

    /// The functions that write store `k`, in the forms that the kernel's code calls.
    fn store_functions(&mut self, k: usize, s: &Store) -> TensorResult<()> {
        let value = value_dtype(s);
        let _ = writeln!(self.head, "alias V_{k} = {};", lane(value)?);
        let Some((ids, target)) = self.stores[k].clone() else { return Ok(()) };
        let f = self.forms("store", k);
        self.operands.write(target, f, &Tail::None, &mut self.meta)?;
        let dtypes: Vec<DType> = s.sources.iter().map(|s| s.dtype).collect();
        if !s.program.is_value() {
            let options = self.options.into(s.target.dtype);
            self.body += &function(&s.program, &format!("ps{k}"), Some(value), &dtypes, &mut self.meta, options)?;
        }
        let paired = s.program.has(Prim::SwapPair);
        if paired && f.one {
            return Err(TensorError::Internal(format!("{}: a value's partner is known only where vec4 are written", self.step.name)));
        }
        let store = StoreFunction { k, store: s, value, dtypes, paired, ids: &ids, target };
        if f.one {
            self.body += &store.one()?;
        }
        if f.four {
            self.body += &match self.uses(&format!("write4_{k}")) {
                true => store.four_in_halves()?,
                false => store.four()?,
            };
        }
        if f.eight {
            let write = store.write_eight(&self.operands)?;
            if self.uses(&format!("store8_{k}")) {
                self.body += &store.eight(&self.operands, &write);
            }
            if self.uses(&format!("write8_{k}")) {
                self.body += &store.eight_in_columns(&self.operands, &write)?;
            }
        }
        Ok(())
    }

    /// The bindings of loads that the kernel's code reads by itself.
    fn raw_bindings(&mut self, raw: &[u8]) -> TensorResult<()> {
        for &k in raw {
            let source = self.step.loads.get(k as usize).and_then(|l| l.plain());
            let source = source.ok_or_else(|| TensorError::Internal(format!("{}: load {k} is not plain", self.step.name)))?;
            for (name, wide) in [(format!("raw_{k}"), !source.dtype.is_block()), (format!("wide_{k}"), true)] {
                if self.uses(&name) {
                    self.operands.raw(source, name, wide);
                }
            }
        }
        Ok(())
    }

    /// What else the kernel's code may use: its own parameters, scratch, and the error record. Gives whether it can report an index.
    fn services(&mut self) -> bool {
        if self.uses("word") && self.meta.is_numbered() {
            self.body += "fn word(n: u32) -> u32 {\n  return p.numbered[n >> 2u][n & 3u];\n}\n";
        }
        if self.uses("scratch") {
            self.operands.scratch();
        }
        if self.uses("scratch4") {
            self.operands.scratch4();
        }
        let fails = self.uses("fail");
        if fails {
            self.operands.error();
            let tag = self.meta.push(UniformWord::Tag, "step_tag");
            let _ = write!(
                self.body,
                "fn fail(code: u32) {{\n  if atomicOr(&e_[0], 1u) == 0u {{\n    atomicStore(&e_[1], {tag});\n    atomicStore(&e_[2], code);\n  }}\n}}\n"
            );
        }
        fails
    }
}

/// The functions of one store.
struct StoreFunction<'a> {
    k: usize,
    store: &'a Store,
    /// The dtype of the kernel's value.
    value: DType,
    /// The dtypes of the sources.
    dtypes: Vec<DType>,
    /// Whether the program reads a value's partner.
    paired: bool,
    ids: &'a [usize],
    target: usize,
}

impl StoreFunction<'_> {
    /// The stored value for a value of the kernel, its partner and an element of each source.
    fn call(&self, v: String, partner: Option<String>, args: Vec<String>) -> TensorResult<String> {
        let (k, s) = (self.k, self.store);
        if s.program.is_value() {
            return cast_lane(&v, self.value, s.target.dtype);
        }
        let args: Vec<String> = [v].into_iter().chain(partner).chain(args).collect();
        cast_lane(&format!("ps{k}({})", args.join(", ")), s.program.dtype(), s.target.dtype)
    }

    /// Four stored values for four values `v` of the kernel and the sources' `v0`, `v1`, ….
    fn quad(&self, v: &str) -> TensorResult<String> {
        let [x, y, z, w] = [("x", "y"), ("y", "x"), ("z", "w"), ("w", "z")].map(|(c, other)| {
            let partner = self.paired.then(|| format!("{v}.{other}"));
            self.call(format!("{v}.{c}"), partner, (0..self.ids.len()).map(|n| format!("{v}{n}.{c}")).collect())
        });
        Ok(format!("vec4<{}>({}, {}, {}, {})", lane(self.store.target.dtype)?, x?, y?, z?, w?))
    }

    /// `store_k`.
    fn one(&self) -> TensorResult<String> {
        let Self { k, target, .. } = self;
        let v = self.call("v".into(), None, self.ids.iter().map(|id| format!("x{id}(i)")).collect())?;
        Ok(format!("fn store_{k}(i: u32, v: V_{k}) {{\n  z{target}(i, {v});\n}}\n"))
    }

    /// `store4_k`.
    fn four(&self) -> TensorResult<String> {
        let (Self { k, target, .. }, value) = (self, self.quad("v")?);
        let reads: String = self.ids.iter().enumerate().map(|(n, id)| format!("  let v{n} = x{id}v(i);\n")).collect();
        Ok(format!("fn store4_{k}(i: u32, v: vec4<V_{k}>) {{\n{reads}  z{target}v(i, {value});\n}}\n"))
    }

    /// `reads4_k` and `write4_k`: in two halves, so that a kernel can ask for what its results are combined with before it has them.
    fn four_in_halves(&self) -> TensorResult<String> {
        let (Self { k, target, ids, .. }, value) = (self, self.quad("v")?);
        let fields: TensorResult<Vec<String>> =
            self.dtypes.iter().enumerate().map(|(n, d)| Ok(format!("v{n}: vec4<{}>", lane(*d)?))).collect();
        let fields = if ids.is_empty() { "nothing: u32".into() } else { fields?.join(", ") };
        let values = if ids.is_empty() { "0u".into() } else { ids.iter().map(|id| format!("x{id}v(i)")).collect::<Vec<_>>().join(", ") };
        let names: String = (0..ids.len()).map(|n| format!("  let v{n} = r.v{n};\n")).collect();
        Ok(format!(
            "struct Reads_{k} {{ {fields} }}\nfn reads4_{k}(i: u32) -> Reads_{k} {{\n  return Reads_{k}({values});\n}}\n\
             fn write4_{k}(i: u32, v: vec4<V_{k}>, r: Reads_{k}) {{\n{names}  z{target}v(i, {value});\n}}\n"
        ))
    }

    /// What eight elements are combined with, or that part of it which is the same in all rows, or the other part.
    fn read_eight(&self, o: &Operands, part: Option<bool>) -> String {
        let read = |(n, &id): (usize, &usize)| match o.reads_eight(id) {
            true => format!("  let both{n} = x{id}w(i);\n  let v{n} = both{n}[0];\n  let w{n} = both{n}[1];\n"),
            false => format!("  let v{n} = x{id}v(i);\n  let w{n} = x{id}v(i + 4u);\n"),
        };
        self.ids.iter().enumerate().filter(|(_, id)| part.is_none_or(|p| p == o.is_same(**id))).map(read).collect()
    }

    /// The statements that write eight elements `v` and `w`.
    fn write_eight(&self, o: &Operands) -> TensorResult<String> {
        let (target, v, w) = (self.target, self.quad("v")?, self.quad("w")?);
        Ok(match o.has_eight(target) {
            true => format!("z{target}w(i, {v}, {w});"),
            false => format!("z{target}v(i, {v});\n  z{target}v(i + 4u, {w});"),
        })
    }

    /// `store8_k`.
    fn eight(&self, o: &Operands, write: &str) -> String {
        let (k, reads) = (self.k, self.read_eight(o, None));
        format!("fn store8_{k}(i: u32, v: vec4<V_{k}>, w: vec4<V_{k}>) {{\n{reads}  {write}\n}}\n")
    }

    /// `columns8_k` and `write8_k`: what is the same in every row is read once per thread.
    fn eight_in_columns(&self, o: &Operands, write: &str) -> TensorResult<String> {
        let k = self.k;
        let (mut fields, mut values, mut kept) = ("nothing: u32".to_string(), "0u".to_string(), String::new());
        for (n, d) in self.dtypes.iter().enumerate().filter(|(n, _)| o.is_same(self.ids[*n])) {
            let t = lane(*d)?;
            let _ = write!(fields, ", v{n}: vec4<{t}>, w{n}: vec4<{t}>");
            let _ = write!(values, ", v{n}, w{n}");
            let _ = write!(kept, "  let v{n} = c.v{n};\n  let w{n} = c.w{n};\n");
        }
        let (same, rest) = (self.read_eight(o, Some(true)), self.read_eight(o, Some(false)));
        Ok(format!(
            "struct Columns_{k} {{ {fields} }}\nfn columns8_{k}(i: u32) -> Columns_{k} {{\n{same}  return Columns_{k}({values});\n}}\n\
             fn write8_{k}(i: u32, v: vec4<V_{k}>, w: vec4<V_{k}>, c: Columns_{k}) {{\n{kept}{rest}  {write}\n}}\n"
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PARAMS: [KernelParam; 3] = [KernelParam::U32(7), KernelParam::F32(0.5), KernelParam::ParamU32(2)];

    #[test]
    fn a_struct_names_the_words_and_is_completed() {
        let source = "struct Params {\n  rows: u32, // of x, y\n  eps: f32, len: u32, unread: f32\n}\nfn main() { }\n";
        let (members, rest) = split_params(source).unwrap();
        assert_eq!(members, [("rows", "u32"), ("eps", "f32"), ("len", "u32"), ("unread", "f32")]);
        assert_eq!(rest, "\nfn main() { }\n");
        let mut p = parameters(&PARAMS, Some(&members)).unwrap();
        let reads = [
            p.size(3, "rows"),
            p.push(UniformWord::Param(2, DType::U32), "scalar"),
            p.push(UniformWord::Param(2, DType::F16), "scalar"),
            p.push(UniformWord::Param(2, DType::I8), "scalar"),
        ];
        assert_eq!(reads, ["p.rows_", "p.len", "p.scalar", "p.scalar_"]);
        let wgsl = "struct Params {\n  rows: u32,\n  eps: f32,\n  len: u32,\n  rows_: u32,\n  scalar: f32,\n  scalar_: i32,\n}\n";
        assert!(p.declaration().starts_with(wgsl), "{}", p.declaration());
        assert_eq!(p.words.len(), 6);
    }

    #[test]
    fn words_without_names_are_rows_of_four() {
        let mut p = parameters(&[&PARAMS[..], &[KernelParam::ParamF32(1), KernelParam::U32(4)]].concat(), None).unwrap();
        let reads = [p.push(UniformWord::Param(1, DType::F32), "x"), p.push(UniformWord::Param(2, DType::U32), "x"), p.size(1, "start")];
        assert_eq!(reads, ["bitcast<f32>(p.numbered[0].w)", "p.numbered[0].z", "p.start"]);
        assert!(p.declaration().starts_with("struct Params {\n  numbered: array<vec4<u32>, 2>,\n  start: u32,\n}\n"));
        assert_eq!((p.words.len(), p.words[7]), (9, UniformWord::Const(0)));
        assert!(Uniforms::default().declaration().starts_with("struct Params {\n  nothing: u32,\n}\n"));
    }

    #[test]
    fn a_struct_that_does_not_fit_is_refused() {
        let refused = |members: &[(&str, &str)]| parameters(&PARAMS, Some(members)).err().unwrap();
        assert_eq!(refused(&[("rows", "u32")]), "declares `struct Params` of 1 members for 3 parameters");
        assert_eq!(refused(&[("a", "u32"), ("b", "vec2<f32>"), ("c", "f32")]), "declares `b: vec2<f32>` in `struct Params`");
        assert_eq!(generated_name("fn p(x: f32) { }"), Some("p"));
        assert_eq!(generated_name("var<private> p: u32;"), Some("p"));
        assert_eq!(generated_name("fn f(p: u32) { let q = p; var p = 1; }"), None);
    }
}
