//! Operations of a user's own: WGSL code and a CPU function for the two usual forms, elementwise and row by row.

use crate::backends::cpu::operand::{piece, slice, target, values};
use crate::backends::cpu::share;
use crate::dtype::DType;
use crate::error::{At, TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, KernelParam, RawKernel, RawLanguage, RawSource, Step, Task, Value, Wgsl};
use crate::shader::MAX_GROUPS;
use crate::shader::row_group::{MAX, RowGroup, SUM};
use crate::shape::Shape;
use crate::tensor::{Inputs, Key, Lowered, Meta, Op, Tensor};
use smallvec::SmallVec;
use std::fmt::Write;
use std::ops::Range;
use std::panic::Location;
use std::sync::Arc;

/// The CPU form: the inputs' elements, the run-time parameters, and room for the results.
///
/// Elementwise, all slices have one length, and any length may come. Row by row, each input's slice is a row, and so is the result,
/// or one element for a reduction.
pub type CpuForm = fn(inputs: &[&[f32]], params: &[f32], out: &mut [f32]);

/// What an operation means in other operations: the oracle of tests, what gradients are taken of, and how it is done where it has
/// no form of its own.
pub type Definition = fn(inputs: &[Tensor], params: &[f64]) -> TensorResult<Tensor>;

#[derive(Clone, Copy, PartialEq, Debug)]
enum Form {
    Elementwise,
    Rows,
    RowReduction,
}

/// An operation of a user's own, usually a `static`. It computes in f32 whatever its inputs are stored in, takes any views, and fuses:
/// elementwise work on its inputs and its result becomes part of its one dispatch.
///
/// ```
/// use tensorlogic::ops::custom::CustomOp;
/// use tensorlogic::{DType, Device, Tensor, TensorResult};
///
/// /// x · sigmoid(k · x)
/// static SWISH: CustomOp = CustomOp::elementwise("swish")
///     .wgsl("fn swish(x: f32, k: f32) -> f32 { return x / (1.0 + exp(-k * x)); }")
///     .cpu(|x, p, out| {
///         for (y, &x) in out.iter_mut().zip(x[0]) {
///             *y = x / (1.0 + (-p[0] * x).exp());
///         }
///     });
///
/// # fn main() -> TensorResult<()> {
/// let x = Tensor::from_vec(vec![-1.0f32, 0.0, 2.0], &[3], &Device::cpu())?;
/// let y = SWISH.apply(&[&x], &[1.0])?;
/// assert!(y.sub(&x.silu()?)?.to_vec()?.iter().all(|d| d.abs() < 1e-6));
/// # Ok(())
/// # }
/// ```
///
/// Whatever does not fit these forms implements [`Op`] and [`Kernel`] itself.
#[derive(Clone, Copy, Debug)]
pub struct CustomOp {
    name: &'static str,
    form: Form,
    wgsl: Option<&'static str>,
    cpu: Option<CpuForm>,
    define: Option<Definition>,
    msl: Option<Raw<str>>,
    spirv: Option<Raw<[u32]>>,
    cost: u64,
}

/// A form in a driver's own language.
#[derive(Debug)]
struct Raw<T: ?Sized + 'static> {
    entry: &'static str,
    threads: u32,
    source: &'static T,
}
impl<T: ?Sized> Clone for Raw<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T: ?Sized> Copy for Raw<T> {}

impl CustomOp {
    const fn new(name: &'static str, form: Form) -> CustomOp {
        CustomOp { name, form, wgsl: None, cpu: None, define: None, msl: None, spirv: None, cost: 16 }
    }

    /// An operation on each element by itself. Inputs broadcast to one shape.
    pub const fn elementwise(name: &'static str) -> CustomOp {
        CustomOp::new(name, Form::Elementwise)
    }

    /// An operation on each row (the last dimension) by itself, with a row as result. The first input gives the shape; the others
    /// have the same, or are one row that serves for all.
    pub const fn rows(name: &'static str) -> CustomOp {
        CustomOp::new(name, Form::Rows)
    }

    /// As [`CustomOp::rows`], with one number per row as result: the last dimension goes.
    pub const fn row_reduction(name: &'static str) -> CustomOp {
        CustomOp::new(name, Form::RowReduction)
    }

    /// The GPU form: WGSL with a function of the operation's name. Names of other functions should begin with it too; those of generated code
    /// (`x4`, `at0`) are refused when the operation runs.
    ///
    /// Elementwise, it is `fn name(x0: f32, x1: f32, …, p0: f32, …) -> f32`: an element of each input, then the run-time parameters.
    ///
    /// Row by row, it is `fn name(row: u32, cols: u32, lane: u32)`, which all `WORKGROUP` threads of a workgroup call for one row;
    /// `lane` is the thread's number. It reads with `load_K(i) -> f32` and writes with `store_0(i, v)`, where `i` is `row * cols + c`
    /// for inputs with rows of their own and the result, `c` for a row that serves for all, and `row` for the result of a reduction.
    /// `row_sum(v)` and `row_max(v)` combine a value of each thread, and `param(n) -> f32` is a run-time parameter. All threads must
    /// reach each `row_sum` and `row_max`.
    pub const fn wgsl(mut self, source: &'static str) -> CustomOp {
        self.wgsl = Some(source);
        self
    }

    /// The CPU form.
    pub const fn cpu(mut self, form: CpuForm) -> CustomOp {
        self.cpu = Some(form);
        self
    }

    /// What the operation means in others. Needed for gradients and for f64, and used on a backend that the operation has no form for.
    pub const fn define(mut self, definition: Definition) -> CustomOp {
        self.define = Some(definition);
        self
    }

    /// Floating-point operations per element of the first input, 16 unless told: how much work is worth another thread.
    pub const fn cost(mut self, operations: u64) -> CustomOp {
        self.cost = operations;
        self
    }

    /// A form in Metal's shading language, used on Metal instead of the WGSL where all operands are f32 and stored (see
    /// [`Kernel::raw`]; the bindings are described at [`RawKernel`]).
    ///
    /// Elementwise, parameter 0 is the number of elements and each thread has one: thread `t` of workgroup `g` of `groups` in x has element
    /// `(g.y * groups + g.x) * threads + t`. Row by row, parameters 0 and 1 are rows and columns, and a workgroup has row
    /// `g.y * groups + g.x`. The run-time parameters follow as f32. There may be more threads than elements or rows. The source is compiled so that NaN
    /// and infinity keep their meaning (`MTLMathMode::Relaxed`, before macOS 15 without fast math); a pragma in it can ask for another mode.
    ///
    /// # Safety
    /// As for [`RawKernel::new`]: `entry` of the source must run in groups of `threads` in x and touch nothing but its operands.
    pub const unsafe fn msl(mut self, entry: &'static str, threads: u32, source: &'static str) -> CustomOp {
        self.msl = Some(Raw { entry, threads, source });
        self
    }

    /// As [`CustomOp::msl`], in SPIR-V for Vulkan.
    ///
    /// # Safety
    /// As for [`CustomOp::msl`].
    pub const unsafe fn spirv(mut self, entry: &'static str, threads: u32, words: &'static [u32]) -> CustomOp {
        self.spirv = Some(Raw { entry, threads, source: words });
        self
    }

    /// The operation's name.
    pub const fn name(&self) -> &'static str {
        self.name
    }

    /// Applies the operation. `params` are run-time parameters: they may change from call to call without a new plan.
    ///
    /// The result has the inputs' common float type; integers count as f32.
    ///
    /// # Errors
    /// When the shapes do not fit the form, the inputs live on different devices, or there is neither a form for this backend (or f64)
    /// nor a definition. WGSL code that the driver refuses is reported by the evaluation, with the code.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// use tensorlogic::ops::custom::CustomOp;
    ///
    /// static TIMES: CustomOp = CustomOp::elementwise("times")
    ///     .wgsl("fn times(x: f32, k: f32) -> f32 { return k * x; }")
    ///     .cpu(|x, p, out| out.iter_mut().zip(x[0]).for_each(|(y, x)| *y = p[0] * x));
    ///
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// assert_eq!(TIMES.apply(&[&x], &[3.0])?.to_vec()?, [3.0, 6.0]);
    /// assert_eq!(TIMES.apply(&[&x], &[0.5])?.to_vec()?, [0.5, 1.0]); // by the same plan
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn apply(&self, inputs: &[&Tensor], params: &[f64]) -> TensorResult<Tensor> {
        let at = Location::caller();
        let Some(first) = inputs.first() else { return Err(TensorError::shape(self.name, at, "an operation needs an input")) };
        let shape = self.shape(inputs, at)?;
        let mut dtype: Option<DType> = None;
        let mut list = Inputs::new();
        for t in inputs {
            let float = t.dtype().is_float() && !t.dtype().is_block();
            let t = if float { (*t).clone() } else { t.cast(DType::F32)? };
            dtype = Some(match dtype {
                Some(d) => d.promote(t.dtype())?,
                None => t.dtype(),
            });
            list.push(t);
        }
        let dtype = dtype.unwrap_or(DType::F32);
        let has_form = if first.device().capabilities().shaders { self.wgsl.is_some() } else { self.cpu.is_some() };
        if !has_form || dtype == DType::F64 {
            let Some(define) = self.define else {
                let lacks = if has_form { "f64; cast to f32" } else { "this backend; provide one" };
                return Err(TensorError::Unsupported(format!(
                    "{} on {}: no kernel for {lacks}, or add a `define` fallback ({at})",
                    self.name,
                    first.device().name()
                )));
            };
            return define(&list, params);
        }
        let op = Call { op: *self, params: params.into() };
        Tensor::op1(op, list, params.into(), Meta { dtype, shape }, at)
    }

    /// The result's shape.
    fn shape(&self, inputs: &[&Tensor], at: At) -> TensorResult<Shape> {
        let first = *inputs[0].shape();
        if self.form == Form::Elementwise {
            return inputs[1..].iter().try_fold(first, |s, t| s.broadcast(t.shape(), self.name, at));
        }
        let Some(&cols) = first.last() else { return Err(TensorError::shape(self.name, at, "a scalar has no rows")) };
        for t in &inputs[1..] {
            if *t.shape() != first && t.dims() != [cols] {
                let message = format!("an input of {} next to {first}: it must have the same shape, or be one row of {cols}", t.shape());
                return Err(TensorError::shape(self.name, at, message));
            }
        }
        Ok(if self.form == Form::Rows { first } else { first.without(first.rank() - 1) })
    }
}

/// One use of an operation.
struct Call {
    op: CustomOp,
    params: SmallVec<[f64; 2]>,
}

impl Op for Call {
    fn name(&self) -> &'static str {
        self.op.name
    }
    fn key(&self, key: &mut Key) {
        let o = &self.op;
        key.text("custom").word(o.form as u64).word(self.params.len() as u64).word(o.cost);
        key.text(o.wgsl.unwrap_or_default()).word(o.cpu.map_or(0, |f| f as usize as u64));
        key.text(o.msl.map_or("", |r| r.source));
        for w in o.spirv.map_or(&[][..], |r| r.source) {
            key.word(*w as u64);
        }
    }
    fn define(&self, inputs: &[Tensor]) -> Option<TensorResult<Tensor>> {
        self.op.define.map(|d| d(inputs, &self.params))
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let out = outputs[0].shape;
        let all = |m: &Meta| Layout::contiguous(m.shape);
        let kernel = Arc::new(CustomKernel { op: self.op });
        if self.op.form == Form::Elementwise {
            let flat = Shape::of(&[out.count()]);
            let loads = inputs.iter().enumerate().map(|(k, m)| (k, all(m).broadcast_to(out), flat)).collect();
            return Lowered::Kernel { kernel, loads, stores: vec![(0, all(&outputs[0]), flat)] };
        }
        let shape = inputs[0].shape;
        let cols = shape[shape.rank() - 1];
        let rows: usize = shape[..shape.rank() - 1].iter().product();
        let table = Shape::of(&[rows, cols]);
        let logical = |m: &Meta| if m.shape == shape { table } else { m.shape };
        let loads = inputs.iter().enumerate().map(|(k, m)| (k, all(m), logical(m))).collect();
        let result = if self.op.form == Form::Rows { table } else { Shape::of(&[rows]) };
        Lowered::Kernel { kernel, loads, stores: vec![(0, all(&outputs[0]), result)] }
    }
}

/// Elements that an elementwise CPU form gets at a time.
const ELEMENTS_PER_CALL: usize = 4096;
/// Threads of an elementwise workgroup.
const WORKGROUP_THREADS: u32 = 256;

struct CustomKernel {
    op: CustomOp,
}

impl CustomKernel {
    /// The parameters of a WGSL or raw form: sizes, then the run-time ones.
    fn params(&self, step: &Step) -> Option<Vec<KernelParam>> {
        let small = |n: usize| u32::try_from(n).ok().map(KernelParam::U32);
        let mut params = match self.op.form {
            Form::Elementwise => vec![small(step.stores[0].shape.count())?],
            _ => vec![small(step.loads[0].shape[0])?, small(step.loads[0].shape[1])?],
        };
        small(step.loads[0].shape.count())?;
        params.extend(step.params.iter().map(|&p| KernelParam::ParamF32(p)));
        Some(params)
    }

    /// Applies the CPU form to a part of the result and to elements from `starts` on of the loads.
    fn piece(&self, task: &dyn Task, starts: &[usize], buffers: &mut [&mut [f32]], params: &[f32], part: Range<usize>, out: &mut [f32]) {
        let (start, len) = (part.start, part.len());
        let Some(cpu) = self.op.cpu else { return };
        let mut inputs: SmallVec<[&[f32]; 4]> = SmallVec::new();
        for (k, b) in buffers.iter_mut().enumerate() {
            inputs.push(piece(task, k, slice::<f32>(task, k), starts[k], b));
        }
        match target::<f32>(task, 0, start, len) {
            Some(out) => cpu(&inputs, params, out),
            None => {
                cpu(&inputs, params, &mut out[..len]);
                task.store(0, start, f32::slice_mut(&mut out[..len]));
            }
        }
    }
}

impl Kernel for CustomKernel {
    fn portable(&self) -> bool {
        self.op.cpu.is_some()
    }
    fn cpu(&self, task: &dyn Task) {
        let step = task.step();
        let params: SmallVec<[f32; 4]> = (0..step.params.len()).map(|n| task.param(n) as f32).collect();
        let elementwise = self.op.form == Form::Elementwise;
        let (count, width, out_width) = match self.op.form {
            Form::Elementwise => (step.stores[0].shape.count(), ELEMENTS_PER_CALL, ELEMENTS_PER_CALL),
            Form::Rows => (step.loads[0].shape[0], step.loads[0].shape[1], step.loads[0].shape[1]),
            Form::RowReduction => (step.loads[0].shape[0], step.loads[0].shape[1], 1),
        };
        let range = share(count, if elementwise { ELEMENTS_PER_CALL } else { 1 }, task.thread(), task.threads());
        if range.is_empty() {
            return;
        }
        let mut buffers: SmallVec<[&mut [f32]; 4]> = step.loads.iter().map(|_| values::<f32>(task, width)).collect();
        let out = values::<f32>(task, out_width);
        let mut starts: SmallVec<[usize; 4]> = smallvec::smallvec![0; buffers.len()];
        if elementwise {
            for start in range.clone().step_by(ELEMENTS_PER_CALL) {
                let len = ELEMENTS_PER_CALL.min(range.end - start);
                starts.fill(start);
                let mut parts: SmallVec<[&mut [f32]; 4]> = buffers.iter_mut().map(|b| &mut b[..len]).collect();
                self.piece(task, &starts, &mut parts, &params, start..start + len, out);
            }
            return;
        }
        for row in range {
            for (k, l) in step.loads.iter().enumerate() {
                starts[k] = if l.shape.rank() == 2 { row * width } else { 0 };
            }
            self.piece(task, &starts, &mut buffers, &params, row * out_width..(row + 1) * out_width, out);
        }
    }

    fn ops(&self, step: &Step) -> u64 {
        let elements = if self.op.form == Form::Elementwise { step.stores[0].shape.count() } else { step.loads[0].shape.count() };
        self.op.cost.saturating_mul(elements as u64)
    }

    fn wgsl(&self, step: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        let name = self.op.name;
        let mut source = String::from(self.op.wgsl?);
        let params = self.params(step)?;
        let head = "@compute @workgroup_size(WORKGROUP)\nfn main(@builtin(workgroup_id) group: vec3<u32>, @builtin(num_workgroups) groups: \
                    vec3<u32>, @builtin(local_invocation_index) lane: u32) {\n  let linear = group.y * groups.x + group.x;\n";
        let most = adapter.workgroup_threads.max(1);
        if self.op.form == Form::Elementwise {
            let count = step.stores[0].shape.count();
            let vector = count.is_multiple_of(4);
            let each = if vector { 4 } else { 1 };
            let call = |lane: &str| {
                let mut args: Vec<String> = match lane {
                    "" => (0..step.loads.len()).map(|k| format!("load_{k}(i)")).collect(),
                    _ => (0..step.loads.len()).map(|k| format!("a{k}.{lane}")).collect(),
                };
                args.extend((0..step.params.len()).map(|n| format!("p.param_{n}")));
                format!("{name}({})", args.join(", "))
            };
            let members: String = (0..step.params.len()).map(|n| format!(", param_{n}: f32")).collect();
            let _ = write!(
                source,
                "\nstruct Params {{ count: u32{members} }}\n{head}  let i = (linear * WORKGROUP + lane) * {each}u;\n  if (i < p.count) {{\n"
            );
            if vector {
                for k in 0..step.loads.len() {
                    let _ = writeln!(source, "    let a{k} = load4_{k}(i);");
                }
                let _ =
                    writeln!(source, "    store4_0(i, vec4<f32>({}, {}, {}, {}));\n  }}\n}}", call("x"), call("y"), call("z"), call("w"));
            } else {
                let _ = writeln!(source, "    store_0(i, {});\n  }}\n}}", call(""));
            }
            let workgroup = WORKGROUP_THREADS.min(most);
            let groups = u32::try_from(count.div_ceil(each).div_ceil(workgroup as usize)).ok()?;
            return Some(Wgsl {
                source: source.into(),
                consts: vec![],
                workgroup,
                grid: [groups, 1, 1],
                params,
                raw: vec![],
                transposed: vec![],
            });
        }
        let (rows, cols) = (step.loads[0].shape[0], step.loads[0].shape[1]);
        // At least 64: Apple's compiler is known to break smaller workgroups some of whose threads return early.
        let workgroup = (cols.clamp(64, WORKGROUP_THREADS as usize).next_power_of_two() as u32).min(1 << most.ilog2());
        let group = RowGroup { workgroup, size: workgroup, col_major: false };
        for (helper, combine) in [("row_sum", SUM), ("row_max", MAX)] {
            if source.contains(helper) {
                source += &group.function(helper, combine, adapter);
            }
        }
        let members: String = (0..step.params.len()).map(|n| format!(", param_{n}: f32")).collect();
        let cases: String = (0..step.params.len()).map(|n| format!("    case {n}u: {{ return p.param_{n}; }}\n")).collect();
        let _ = write!(
            source,
            "\nstruct Params {{ rows: u32, cols: u32{members} }}\nvar<private> thread: u32;\nfn param(n: u32) -> f32 {{\n  switch (n) {{\n{cases}    \
             default: {{ return 0.0; }}\n  }}\n}}\n{head}  thread = lane;\n  if (linear < p.rows) {{ {name}(linear, p.cols, lane); }}\n}}\n"
        );
        Some(Wgsl {
            source: source.into(),
            consts: vec![],
            workgroup,
            grid: [u32::try_from(rows).ok()?, 1, 1],
            params,
            raw: vec![],
            transposed: vec![],
        })
    }

    fn raw(&self, step: &Step, adapter: &AdapterInfo) -> Option<RawKernel> {
        let floats = step.loads.iter().all(|l| l.dtype() == DType::F32) && step.stores.iter().all(|s| s.target.dtype == DType::F32);
        let (source, entry, threads) = match adapter.raw.filter(|_| floats)? {
            RawLanguage::Msl => self.op.msl.map(|r| (RawSource::Msl(r.source.into()), r.entry, r.threads))?,
            RawLanguage::SpirV => self.op.spirv.map(|r| (RawSource::SpirV(r.source.into()), r.entry, r.threads))?,
        };
        let groups = match self.op.form {
            Form::Elementwise => step.stores[0].shape.count().div_ceil(threads.max(1) as usize),
            _ => step.loads[0].shape[0],
        };
        let groups = u32::try_from(groups).ok()?;
        let y = groups.div_ceil(MAX_GROUPS).max(1);
        // SAFETY: whoever gave the source to `msl` or `spirv` vouched for it.
        Some(unsafe { RawKernel::new(source, entry, [threads, 1, 1], [groups.div_ceil(y), y, 1], self.params(step)?) })
    }
}
