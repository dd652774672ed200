//! How a step's operands are read and written: layout classes, views of buffers, and the WGSL functions for both.
//!
//! A shader depends on an operand's class (dtype, form of its index, width of its accesses), never on a size or a stride: those are
//! parameters of the step.

use super::blocks;
use super::program::{cast_lane, lane, pack_f16};
use super::uniforms::{UniformWord, Uniforms};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, SCRATCH_COUNTERS, Source};
use std::fmt::Write;

/// How a binding declares its memory.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::backends) enum Ty {
    U32,
    V2,
    V4,
    /// Words that several threads write parts of.
    Atomic,
    /// Counters, and rows of four words.
    Scratch,
}

impl Ty {
    pub fn wgsl(self) -> &'static str {
        match self {
            Ty::U32 => "array<u32>",
            Ty::V2 => "array<vec2<u32>>",
            Ty::V4 => "array<vec4<u32>>",
            Ty::Atomic => "array<atomic<u32>>",
            Ty::Scratch => "Scratch",
        }
    }
    /// The type whose element holds four elements of this size.
    fn quad(bytes: usize) -> Ty {
        match bytes {
            4 => Ty::V4,
            2 => Ty::V2,
            _ => Ty::U32,
        }
    }
}

/// The buffer of a binding.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::backends) enum Bound {
    /// One that the plan names.
    Plan(Buf),
    /// The backend's error record of this number.
    Errors(usize),
    /// The backend's counters and partial results.
    Scratch,
    /// The codebooks of block formats, [`codebooks`](crate::quant::codebooks).
    Codebooks,
}

/// A binding: a buffer under one declared type.
#[derive(Clone, Debug)]
pub(in crate::backends) struct View {
    pub buf: Bound,
    pub ty: Ty,
    pub written: bool,
    pub name: String,
}

#[derive(Clone, Copy, PartialEq, Debug)]
enum Index {
    /// Always the first element.
    Const,
    /// Start + i.
    Linear,
    /// Start plus the digits of i times strides.
    Strided,
}

/// How four elements `i..i + 4` lie.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Quad {
    /// Side by side and aligned: one access.
    Load,
    /// One and the same.
    Splat,
    /// At a constant stride.
    Step,
    /// Anywhere.
    Each,
}

/// One operand, classified.
struct Operand {
    source: Source,
    sizes: Vec<usize>,
    strides: Vec<isize>,
    index: Index,
    quad: Quad,
    /// Whether eight 16-bit elements `i..i + 8` are one access, where i is a multiple of 8.
    eight: bool,
    /// Whether it is the same in every row of the result, and the kernel's code says where the row of i begins.
    same: bool,
}

impl Operand {
    fn new(source: &Source) -> Operand {
        let l = source.layout.simplified();
        let (sizes, strides) = (l.shape.dims().to_vec(), l.strides().to_vec());
        let index = match (sizes.len(), strides.first()) {
            (0, _) | (1, Some(0)) => Index::Const,
            (1, Some(1)) => Index::Linear,
            _ => Index::Strided,
        };
        let aligned = source.aligned || (source.offset.is_none() && l.offset.is_multiple_of(4));
        let quad = match index {
            Index::Const => Quad::Splat,
            Index::Linear if aligned => Quad::Load,
            Index::Linear => Quad::Each,
            Index::Strided => {
                let (last, outer) = strides.split_last().expect("strided has a dimension");
                match last {
                    _ if sizes[sizes.len() - 1] % 4 != 0 => Quad::Each,
                    1 if aligned && outer.iter().all(|s| s % 4 == 0) => Quad::Load,
                    0 => Quad::Splat,
                    _ => Quad::Step,
                }
            }
        };
        // A quad of a block format is decoded element by element.
        let quad = if source.dtype.is_block() && quad == Quad::Load { Quad::Step } else { quad };
        let whole = |n: usize| n.is_multiple_of(8);
        let eight = quad == Quad::Load
            && source.dtype.block_bytes() == 2
            && whole(l.offset)
            && (source.offset.is_none() || source.aligned)
            && (index == Index::Linear || (whole(sizes[sizes.len() - 1]) && strides.iter().rev().skip(1).all(|s| s % 8 == 0)));
        Operand { source: source.clone(), sizes, strides, index, quad, eight, same: false }
    }

    /// The forms that it has of those that are asked for: eight elements are two vec4 where they are not one access.
    fn forms(&self, asked: Forms) -> Forms {
        Forms { four: asked.four || asked.eight && !self.eight, eight: asked.eight && self.eight, ..asked }
    }
}

/// Which forms of an operand a shader uses.
#[derive(Clone, Copy, Default)]
pub(super) struct Forms {
    pub one: bool,
    pub four: bool,
    /// As two vec4 where the operand does not have it.
    pub eight: bool,
}

/// What happens beyond the last element when a thread handles four.
#[derive(Clone)]
pub(super) enum Tail {
    /// It cannot happen, or what lies there is padding.
    None,
    /// Elements from this count on (a WGSL expression) must not be touched.
    Guard(String),
}

/// The operands of a step and the bindings they need.
pub(super) struct Operands {
    operands: Vec<Operand>,
    targets: Vec<(Operand, bool)>,
    written: Vec<Buf>,
    wants: Vec<(Buf, Ty, bool)>,
    pub views: Vec<View>,
    /// Whether each buffer is bound once, as words: for adapters that bind few buffers.
    pub few_bindings: bool,
    pub soft_f16: bool,
    pub wgsl: String,
}

impl Operands {
    pub fn new(soft_f16: bool, few_bindings: bool) -> Operands {
        Operands {
            operands: vec![],
            targets: vec![],
            written: vec![],
            wants: vec![],
            views: vec![],
            few_bindings,
            soft_f16,
            wgsl: String::new(),
        }
    }

    /// Registers a source; equal sources share a number.
    pub fn source(&mut self, s: &Source, forms: Forms) -> TensorResult<usize> {
        lane(s.dtype)?;
        let id = match self.operands.iter().position(|o| o.source == *s) {
            Some(id) => id,
            None => {
                self.operands.push(Operand::new(s));
                self.operands.len() - 1
            }
        };
        let o = &self.operands[id];
        if s.buf != Buf::Iota {
            let forms = o.forms(forms);
            if forms.eight {
                self.wants.push((s.buf, Ty::V4, false));
            }
            if forms.four && o.quad == Quad::Load {
                self.wants.push((s.buf, Ty::quad(s.dtype.block_bytes()), false));
            }
            if forms.one || o.quad != Quad::Load {
                self.wants.push((s.buf, Ty::U32, false));
            }
        }
        Ok(id)
    }

    /// Tells that source `id` is only read for elements of a row of `length` whose start the kernel's code keeps in `row_start`.
    pub fn in_rows(&mut self, id: usize, length: usize) {
        let o = &mut self.operands[id];
        o.same = o.sizes.len() == 2 && o.strides == [0, 1] && o.sizes[1] == length;
    }

    /// The sizes [before, run, between, inner] of a source whose neighbours in memory lie along a dimension other than the innermost.
    pub fn transposed(&self, id: usize) -> Option<[usize; 4]> {
        let o = &self.operands[id];
        let last = o.sizes.len().checked_sub(1)?;
        let at = o.strides.iter().position(|s| *s == 1).filter(|p| *p < last && o.quad == Quad::Step)?;
        Some([o.sizes[..at].iter().product(), o.sizes[at], o.sizes[at + 1..last].iter().product(), o.sizes[last]])
    }

    /// Registers a target. `full`: a quad never passes the last element, or passes into padding.
    pub fn target(&mut self, s: &Source, forms: Forms, full: bool) -> TensorResult<usize> {
        lane(s.dtype)?;
        if s.dtype.is_block() || s.buf == Buf::Iota {
            return Err(TensorError::Unsupported(format!("writing {} on a GPU", s.dtype)));
        }
        let mut o = Operand::new(s);
        if o.quad == Quad::Splat {
            o.quad = Quad::Each;
        }
        let bytes = s.dtype.block_bytes();
        let one = if bytes == 4 { Ty::U32 } else { Ty::Atomic };
        let eight = forms.eight && o.eight && full;
        let four = forms.four || (forms.eight && !eight);
        if eight {
            self.wants.push((s.buf, Ty::V4, true));
        }
        if four && o.quad == Quad::Load && full {
            self.wants.push((s.buf, Ty::quad(bytes), true));
        } else if four {
            self.wants.push((s.buf, one, true));
        }
        if forms.one {
            self.wants.push((s.buf, one, true));
        }
        if !self.written.contains(&s.buf) {
            self.written.push(s.buf);
        }
        self.targets.push((o, full));
        Ok(self.targets.len() - 1)
    }

    /// Whether source `id` is the same in every row, which is looked at if the kernel's code keeps `row_start`.
    pub fn is_same(&self, id: usize) -> bool {
        self.operands[id].same
    }

    /// Whether source `id` has a function for eight elements.
    pub fn reads_eight(&self, id: usize) -> bool {
        self.operands[id].eight
    }

    /// Whether target `id` has a function for eight elements.
    pub fn has_eight(&self, id: usize) -> bool {
        let (o, full) = &self.targets[id];
        o.eight && *full
    }

    /// The binding of a buffer that wants type `ty`. One that is both read and written is bound under one type only.
    fn view(&mut self, buf: Buf, ty: Ty) -> View {
        let written = self.written.contains(&buf);
        let mut ty = if self.few_bindings && ty != Ty::Atomic { Ty::U32 } else { ty };
        if written && (self.few_bindings || self.wants.iter().any(|w| w.0 == buf && !w.2)) {
            let mut tys = self.wants.iter().filter(|w| w.0 == buf).map(|w| w.1);
            if self.wants.iter().any(|w| w.0 == buf && w.1 == Ty::Atomic) {
                ty = Ty::Atomic;
            } else if tys.any(|t| t != ty) {
                ty = Ty::U32;
            }
        }
        if let Some(v) = self.views.iter().find(|v| v.buf == Bound::Plan(buf) && v.ty == ty) {
            return v.clone();
        }
        let v = View { buf: Bound::Plan(buf), ty, written, name: format!("b{}", self.views.len()) };
        self.views.push(v.clone());
        v
    }

    /// Declares what lies beside a written value in one slot as writable, too: WebGPU forbids to bind parts of one buffer for reading and for
    /// writing in one dispatch, and allows any number of parts for writing.
    pub fn share_slots(&mut self) {
        let written: Vec<u16> = self.written.iter().filter_map(|b| b.slot()).collect();
        for v in &mut self.views {
            if let Bound::Plan(Buf::Window { slot, .. }) = v.buf {
                v.written |= written.contains(&slot);
            }
        }
    }

    /// A binding that the kernel's code reads by itself.
    pub fn raw(&mut self, s: &Source, name: String, wide: bool) {
        let written = self.written.contains(&s.buf);
        let ty = if wide { Ty::V4 } else { Ty::U32 };
        self.views.push(View { buf: Bound::Plan(s.buf), ty, written, name });
    }

    /// The backend's error record.
    pub fn error(&mut self) {
        self.views.push(View { buf: Bound::Errors(0), ty: Ty::Atomic, written: true, name: "e_".into() });
    }

    /// The backend's scratch.
    pub fn scratch(&mut self) {
        self.views.push(View { buf: Bound::Scratch, ty: Ty::Atomic, written: true, name: "scratch".into() });
    }

    /// The same, for one word or four at a time.
    pub fn scratch4(&mut self) {
        self.views.push(View { buf: Bound::Scratch, ty: Ty::Scratch, written: true, name: "scratch4".into() });
        let _ = writeln!(self.wgsl, "struct Scratch {{ counters: array<atomic<u32>, {SCRATCH_COUNTERS}>, data: array<vec4<u32>> }}");
    }

    /// The codebooks of block formats.
    pub fn codebooks(&mut self) {
        self.views.push(View { buf: Bound::Codebooks, ty: Ty::U32, written: false, name: "codebooks".into() });
    }

    /// Writes `name(i) -> u32`, the position of element `i` in its buffer.
    fn index(wgsl: &mut String, o: &Operand, name: &str, meta: &mut Uniforms) {
        let start = match o.source.offset {
            Some(p) => meta.push(UniformWord::Offset(o.source.layout.offset as u32, p), &format!("{name}_start")),
            None => meta.size(o.source.layout.offset, &format!("{name}_start")),
        };
        let body = match o.index {
            Index::Const => format!("return {start};"),
            Index::Linear => format!("return {start} + i;"),
            Index::Strided if o.same => format!("return {start} + (i - row_start);"),
            Index::Strided => {
                let mut b = format!("var o = {start};\n  var r = i;\n");
                let stride =
                    |meta: &mut Uniforms, d: usize| meta.push(UniformWord::Const(o.strides[d] as u32), &format!("{name}_stride_{d}"));
                for d in (1..o.sizes.len()).rev() {
                    let (size, stride) = (meta.size(o.sizes[d], &format!("{name}_size_{d}")), stride(meta, d));
                    let _ = write!(b, "  let q{d} = r / {size};\n  o += (r - q{d} * {size}) * {stride};\n  r = q{d};\n");
                }
                let _ = write!(b, "  return o + r * {};", stride(meta, 0));
                b
            }
        };
        let _ = write!(wgsl, "fn {name}(i: u32) -> u32 {{\n  {body}\n}}\n");
    }

    /// Writes the reading functions of source `id`: `x{id}(i)`, `x{id}v(i)` and, if it has one, `x{id}w(i)` for eight elements in two columns.
    pub fn read(&mut self, id: usize, forms: Forms, tail: &Tail, meta: &mut Uniforms) -> TensorResult<()> {
        let o = &self.operands[id];
        let (d, quad, buf) = (o.source.dtype, o.quad, o.source.buf);
        let t = lane(d)?;
        let step = o.strides.last().copied().unwrap_or(0);
        let forms = o.forms(forms);
        let mut wgsl = String::new();
        Self::index(&mut wgsl, o, &format!("at{id}"), meta);
        let one = forms.one || quad != Quad::Load;
        if one {
            let body = match (buf, d.format()) {
                (Buf::Iota, _) => format!("return {};", cast_lane("e", DType::U32, d)?),
                (_, Some(format)) => {
                    wgsl += &blocks::decode(format, &self.view(buf, Ty::U32).name, id);
                    String::new()
                }
                _ => decode(&self.view(buf, Ty::U32), d),
            };
            if !body.is_empty() {
                let _ = write!(wgsl, "fn d{id}(e: u32) -> {t} {{\n  {body}\n}}\n");
            }
            let _ = write!(wgsl, "fn x{id}(i: u32) -> {t} {{\n  return d{id}(at{id}(i));\n}}\n");
        }
        if forms.eight {
            let v = self.view(buf, Ty::V4);
            let _ = write!(wgsl, "fn x{id}w(i: u32) -> mat2x4<f32> {{\n  let e = at{id}(i);\n  {}\n}}\n", decode8(&v, d));
        }
        if forms.four {
            let body = match quad {
                Quad::Load if buf == Buf::Iota => {
                    let k = |n: u32| cast_lane(&format!("(e + {n}u)"), DType::U32, d);
                    format!("let e = at{id}(i);\n  return vec4<{t}>({}, {}, {}, {});", k(0)?, k(1)?, k(2)?, k(3)?)
                }
                Quad::Load => {
                    let v = self.view(buf, Ty::quad(d.block_bytes()));
                    format!("let e = at{id}(i);\n  {}", decode4(&v, d))
                }
                Quad::Splat => format!("return vec4<{t}>(x{id}(i));"),
                Quad::Step => {
                    let s = meta.push(UniformWord::Const(step as u32), &format!("at{id}_step"));
                    format!(
                        "let e = at{id}(i);\n  let s = {s};\n  return vec4<{t}>(d{id}(e), d{id}(e + s), d{id}(e + s + s), d{id}(e + s + s + s));"
                    )
                }
                Quad::Each => {
                    let k = |n: u32| match tail {
                        Tail::None => format!("x{id}(i + {n}u)"),
                        Tail::Guard(count) => format!("x{id}(min(i + {n}u, {count} - 1u))"),
                    };
                    format!("return vec4<{t}>(x{id}(i), {}, {}, {});", k(1), k(2), k(3))
                }
            };
            let _ = write!(wgsl, "fn x{id}v(i: u32) -> vec4<{t}> {{\n  {body}\n}}\n");
        }
        self.wgsl += &wgsl;
        Ok(())
    }

    /// Writes the writing functions of target `id`: `z{id}(i, v)`, `z{id}v(i, v)` and, if it has one, `z{id}w(i, v, w)` for eight elements.
    pub fn write(&mut self, id: usize, forms: Forms, tail: &Tail, meta: &mut Uniforms) -> TensorResult<()> {
        let (o, full) = &self.targets[id];
        let (d, quad, buf, full) = (o.source.dtype, o.quad, o.source.buf, *full);
        let t = lane(d)?;
        let bytes = d.block_bytes();
        let step = o.strides.last().copied().unwrap_or(0);
        let mut wgsl = String::new();
        Self::index(&mut wgsl, o, &format!("az{id}"), meta);
        let whole = quad == Quad::Load && full;
        let eight = forms.eight && o.eight && full;
        let four = forms.four || (forms.eight && !eight);
        if eight {
            let v = self.view(buf, Ty::V4);
            let put = self.put8(&v, d);
            let _ = write!(wgsl, "fn z{id}w(i: u32, v: vec4<{t}>, w: vec4<{t}>) {{\n  let e = az{id}(i);\n  {put}\n}}\n");
        }
        if forms.one || (four && !whole) {
            let v = self.view(buf, if bytes == 4 { Ty::U32 } else { Ty::Atomic });
            let _ = write!(wgsl, "fn w{id}(e: u32, v: {t}) {{\n  {}\n}}\n", self.put(&v, d));
            let _ = write!(wgsl, "fn z{id}(i: u32, v: {t}) {{\n  w{id}(az{id}(i), v);\n}}\n");
        }
        if four {
            let lanes = ["x", "y", "z", "w"];
            let each = |guard: &dyn Fn(usize, String) -> String| {
                (0..4).map(|n| guard(n, format!("z{id}(i + {n}u, v.{});", lanes[n]))).collect::<Vec<_>>().join("\n  ")
            };
            let body = match quad {
                Quad::Load => {
                    let v = self.view(
                        buf,
                        if whole {
                            Ty::quad(bytes)
                        } else if bytes == 4 {
                            Ty::U32
                        } else {
                            Ty::Atomic
                        },
                    );
                    let put = self.put4(&v, d);
                    match tail {
                        Tail::Guard(count) if !whole => format!(
                            "if i + 4u <= {count} {{\n  let e = az{id}(i);\n  {put}\n  return;\n  }}\n  {}",
                            each(&|n, put| if n == 3 { String::new() } else { format!("if i + {n}u < {count} {{ {put} }}") })
                        ),
                        _ => format!("let e = az{id}(i);\n  {put}"),
                    }
                }
                Quad::Step => {
                    let s = meta.push(UniformWord::Const(step as u32), &format!("az{id}_step"));
                    format!(
                        "let e = az{id}(i);\n  let s = {s};\n  w{id}(e, v.x);\n  w{id}(e + s, v.y);\n  w{id}(e + s + s, v.z);\n  w{id}(e + s + s + s, v.w);"
                    )
                }
                _ => match tail {
                    Tail::None => each(&|_, put| put),
                    Tail::Guard(count) => each(&|n, put| format!("if i + {n}u < {count} {{ {put} }}")),
                },
            };
            let _ = write!(wgsl, "fn z{id}v(i: u32, v: vec4<{t}>) {{\n  {body}\n}}\n");
        }
        self.wgsl += &wgsl;
        Ok(())
    }

    /// Statements that write `v` as element `e`.
    fn put(&self, view: &View, d: DType) -> String {
        let b = &view.name;
        if d.block_bytes() == 4 {
            let word = if d.compute() == DType::U32 { "v".into() } else { "bitcast<u32>(v)".to_string() };
            return assign(view, "e", &word);
        }
        let bits = match d {
            DType::F16 => format!("({}(v, 0.0) & 0xffffu)", pack_f16(self.soft_f16)),
            DType::BF16 => "tl_bf16(v)".into(),
            DType::Bool => "u32(v != 0u)".into(),
            _ => "(bitcast<u32>(v) & 0xffu)".to_string(),
        };
        // Only the element's own bits are touched: neighbours in the word may be written at the same time.
        let (at, shift, mask) =
            if d.block_bytes() == 2 { ("e >> 1u", "((e & 1u) << 4u)", "0xffffu") } else { ("e >> 2u", "((e & 3u) << 3u)", "0xffu") };
        format!("let s = {shift};\n  atomicAnd(&{b}[{at}], ~({mask} << s));\n  atomicOr(&{b}[{at}], {bits} << s);")
    }

    /// Statements that write `v` and `w` as elements `e..e + 8` of 16 bits.
    fn put8(&self, view: &View, d: DType) -> String {
        let pair = |v: &str, x: &str, y: &str| match d {
            DType::F16 => format!("{}({v}.{x}, {v}.{y})", pack_f16(self.soft_f16)),
            _ => format!("tl_bf16({v}.{x}) | (tl_bf16({v}.{y}) << 16u)"),
        };
        let words = [pair("v", "x", "y"), pair("v", "z", "w"), pair("w", "x", "y"), pair("w", "z", "w")];
        if view.ty == Ty::V4 {
            return format!("{}[e >> 3u] = vec4<u32>({});", view.name, words.join(", "));
        }
        let each = words.iter().enumerate().map(|(k, word)| assign(view, &format!("(e >> 1u) + {k}u"), word));
        each.collect::<Vec<_>>().join("\n  ")
    }

    /// Statements that write `v` as elements `e..e + 4`, which own whole words.
    fn put4(&self, view: &View, d: DType) -> String {
        let pack = pack_f16(self.soft_f16);
        let words: Vec<String> = match d {
            DType::F16 => vec![format!("{pack}(v.x, v.y)"), format!("{pack}(v.z, v.w)")],
            DType::BF16 => vec!["tl_bf16(v.x) | (tl_bf16(v.y) << 16u)".into(), "tl_bf16(v.z) | (tl_bf16(v.w) << 16u)".into()],
            DType::Bool => vec!["u32(v.x != 0u) | (u32(v.y != 0u) << 8u) | (u32(v.z != 0u) << 16u) | (u32(v.w != 0u) << 24u)".into()],
            DType::I8 | DType::U8 => vec!["pack4xU8(bitcast<vec4<u32>>(v))".into()],
            DType::U32 => ["x", "y", "z", "w"].map(|c| format!("v.{c}")).to_vec(),
            _ => ["x", "y", "z", "w"].map(|c| format!("bitcast<u32>(v.{c})")).to_vec(),
        };
        match (view.ty, words.len()) {
            (Ty::V4, 4) => format!("{}[e >> 2u] = {};", view.name, if d == DType::U32 { "v" } else { "bitcast<vec4<u32>>(v)" }),
            (Ty::V2, 2) => format!("{}[e >> 2u] = vec2<u32>({});", view.name, words.join(", ")),
            (_, n) => {
                let first = ["", "e >> 2u", "e >> 1u", "", "e"][n];
                let mut s = format!("let w = {first};\n");
                for (k, word) in words.iter().enumerate() {
                    let _ = writeln!(s, "  {}", assign(view, &format!("w + {k}u"), word));
                }
                s
            }
        }
    }
}

/// A statement that writes one word.
fn assign(view: &View, at: &str, word: &str) -> String {
    match view.ty {
        Ty::Atomic | Ty::Scratch => format!("atomicStore(&{}[{at}], {word});", view.name),
        Ty::U32 => format!("{}[{at}] = {word};", view.name),
        // Reached only if a buffer bound as vectors is written by words; component stores are legal everywhere.
        Ty::V2 => format!("{}[({at}) >> 1u][({at}) & 1u] = {word};", view.name),
        Ty::V4 => format!("{}[({at}) >> 2u][({at}) & 3u] = {word};", view.name),
    }
}

/// An expression for word `at` of a view.
fn word(view: &View, at: &str) -> String {
    match view.ty {
        Ty::Atomic | Ty::Scratch => format!("atomicLoad(&{}[{at}])", view.name),
        Ty::U32 => format!("{}[{at}]", view.name),
        Ty::V2 => format!("{}[({at}) >> 1u][({at}) & 1u]", view.name),
        Ty::V4 => format!("{}[({at}) >> 2u][({at}) & 3u]", view.name),
    }
}

/// Statements that return element `e`.
fn decode(view: &View, d: DType) -> String {
    let shifted = |word: String, shift: &str| format!("let w = {word} >> {shift};\n  ");
    match d {
        DType::U32 => format!("return {};", word(view, "e")),
        DType::I32 => format!("return bitcast<i32>({});", word(view, "e")),
        DType::F16 => shifted(word(view, "e >> 1u"), "((e & 1u) << 4u)") + "return unpack2x16float(w).x;",
        DType::BF16 => shifted(word(view, "e >> 1u"), "((e & 1u) << 4u)") + "return bitcast<f32>(w << 16u);",
        DType::I8 => shifted(word(view, "e >> 2u"), "((e & 3u) << 3u)") + "return bitcast<i32>(w << 24u) >> 24u;",
        DType::U8 => shifted(word(view, "e >> 2u"), "((e & 3u) << 3u)") + "return i32(w & 0xffu);",
        DType::Bool => shifted(word(view, "e >> 2u"), "((e & 3u) << 3u)") + "return u32((w & 0xffu) != 0u);",
        _ => format!("return bitcast<f32>({});", word(view, "e")),
    }
}

/// Statements that return elements `e..e + 4`, aligned.
fn decode4(view: &View, d: DType) -> String {
    let n = d.block_bytes();
    let w = match (n, view.ty) {
        (4, Ty::V4) | (2, Ty::V2) => format!("{}[e >> 2u]", view.name),
        (4, _) => format!("vec4<u32>({}, {}, {}, {})", word(view, "e"), word(view, "e + 1u"), word(view, "e + 2u"), word(view, "e + 3u")),
        (2, _) => format!("vec2<u32>({}, {})", word(view, "e >> 1u"), word(view, "(e >> 1u) + 1u")),
        _ => word(view, "e >> 2u"),
    };
    let value = match d {
        DType::U32 => "w",
        DType::I32 => "bitcast<vec4<i32>>(w)",
        DType::F16 => "vec4<f32>(unpack2x16float(w.x), unpack2x16float(w.y))",
        DType::BF16 => "bitcast<vec4<f32>>(vec4<u32>(w.x << 16u, w.x & 0xffff0000u, w.y << 16u, w.y & 0xffff0000u))",
        DType::I8 => "unpack4xI8(w)",
        DType::U8 => "bitcast<vec4<i32>>(unpack4xU8(w))",
        DType::Bool => "vec4<u32>(unpack4xU8(w) != vec4<u32>(0u))",
        _ => "bitcast<vec4<f32>>(w)",
    };
    format!("let w = {w};\n  return {value};")
}

/// The same for eight elements of 16 bits.
fn decode8(view: &View, d: DType) -> String {
    let w = match view.ty {
        Ty::V4 => format!("{}[e >> 3u]", view.name),
        _ => format!("vec4<u32>({})", (0..4).map(|n| word(view, &format!("(e >> 1u) + {n}u"))).collect::<Vec<_>>().join(", ")),
    };
    let column = |x: &str, y: &str| match d {
        DType::F16 => format!("unpack2x16float(w.{x}), unpack2x16float(w.{y})"),
        _ => format!("bitcast<vec4<f32>>(vec4<u32>(w.{x} << 16u, w.{x} & 0xffff0000u, w.{y} << 16u, w.{y} & 0xffff0000u))"),
    };
    format!("let w = {w};\n  return mat2x4<f32>(vec4<f32>({}), vec4<f32>({}));", column("x", "y"), column("z", "w"))
}
