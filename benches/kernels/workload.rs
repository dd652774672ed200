//! A workload: one kind of work, what it means in f64, and the kernel variants that do it. A variant's WGSL becomes an operation of the engine.

use std::panic::Location;
use std::sync::Arc;
use tensorlogic::eval::eval_all;
use tensorlogic::layout::Layout;
use tensorlogic::plan::{AdapterInfo, Kernel, KernelParam, Step, Task, Wgsl};
use tensorlogic::shader::params::{Field, FieldType};
use tensorlogic::shader::{Template, TemplateValue};
use tensorlogic::tensor::{Key, Lowered, Meta, Op};
use tensorlogic::{DType, Device, Rng, Shape, Tensor, TensorResult, quant};

/// A template of a workload with what fits it to an adapter and a size.
pub struct Shader {
    /// Its file's name.
    pub name: &'static str,
    /// The file. Its first line says which one idea it adds, its second what limits it.
    pub source: &'static str,
    /// The file as a template that reads the sizes by name.
    pub template: Template,
    /// How it is dispatched, or why this adapter cannot run it.
    pub form: fn(&AdapterInfo, &[usize]) -> Result<Form, &'static str>,
}

/// `shader!("1_plain", SIZES, form)`: the file next to the one that says so, whose sizes have these names.
macro_rules! shader {
    ($name:literal, $sizes:expr, $form:expr) => {{
        const SOURCE: &str = include_str!(concat!($name, ".wgsl"));
        let template = tensorlogic::shader::Template::new(concat!($name, ".wgsl"), SOURCE).params($sizes);
        crate::kernels::workload::Shader { name: $name, source: SOURCE, template, form: $form }
    }};
}
pub(super) use shader;

/// Sizes of these names, in the order in which [`Shader::apply`] gets them.
pub const fn sizes<const N: usize>(names: [&'static str; N]) -> [Field; N] {
    let mut fields = [Field { group: "", name: "", ty: FieldType::U32 }; N];
    let mut n = 0;
    while n < N {
        fields[n].name = names[n];
        n += 1;
    }
    fields
}

/// How a template is rendered and dispatched.
#[derive(Default)]
pub struct Form {
    /// Values of the template's `${NAME}`.
    pub values: Vec<(&'static str, TemplateValue)>,
    /// Constants put before the source.
    pub consts: Vec<(&'static str, u32)>,
    /// Threads of a workgroup.
    pub workgroup: u32,
    /// Workgroups in x and y.
    pub grid: [usize; 2],
    /// Inputs whose buffers the source reads itself.
    pub raw: Vec<u8>,
}

/// One use of a shader: the operation and its kernel.
#[derive(Clone)]
struct Call {
    shader: &'static Shader,
    sizes: Vec<usize>,
}

impl Shader {
    /// The operation on inputs that are stored row by row; `sizes` are the numbers that the template knows by name.
    #[track_caller]
    pub fn apply(&'static self, inputs: &[&Tensor], sizes: &[usize], dtype: DType, shape: &[usize]) -> TensorResult<Tensor> {
        let inputs = inputs.iter().map(|t| (*t).clone()).collect();
        let call = Call { shader: self, sizes: sizes.to_vec() };
        Tensor::op1(call, inputs, Default::default(), Meta { dtype, shape: Shape::of(shape) }, Location::caller())
    }

    /// The idea that it adds: its first line.
    pub fn idea(&self) -> &'static str {
        self.source.lines().next().unwrap_or_default().trim_start_matches("// ")
    }
}

impl Op for Call {
    fn name(&self) -> &'static str {
        self.shader.name
    }
    fn key(&self, key: &mut Key) {
        key.text(self.shader.source);
        for s in &self.sizes {
            key.word(*s as u64);
        }
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let whole = |list: &[Meta]| list.iter().enumerate().map(|(n, m)| (n, Layout::contiguous(m.shape), m.shape)).collect();
        Lowered::Kernel { kernel: Arc::new(self.clone()), loads: whole(inputs), stores: whole(outputs) }
    }
}

impl Kernel for Call {
    // Variants are for GPUs: the benchmark refuses a CPU, and `portable` keeps one from taking over.
    fn cpu(&self, _: &dyn Task) {}
    fn portable(&self) -> bool {
        false
    }
    fn ops(&self, _: &Step) -> u64 {
        2 * self.sizes.iter().map(|s| *s as u64).product::<u64>()
    }
    fn wgsl(&self, _: &Step, adapter: &AdapterInfo) -> Option<Wgsl> {
        let form = (self.shader.form)(adapter, &self.sizes).ok()?;
        let small = |n: usize| u32::try_from(n).ok();
        let params = self.sizes.iter().map(|s| small(*s).map(KernelParam::U32)).collect::<Option<_>>()?;
        let source = self.shader.template.source(&form.values);
        let grid = [small(form.grid[0])?, small(form.grid[1])?, 1];
        Some(Wgsl { source, consts: form.consts, workgroup: form.workgroup, grid, params, raw: form.raw, transposed: vec![] })
    }
}

/// A value of the definition, and the size of what was added up for it: rounding is relative to that.
pub struct Truth {
    pub value: f64,
    pub scale: f64,
}

/// What a kind of work is compared with.
pub enum Limit {
    /// So many bytes, at the bandwidth of a copy.
    Copy(fn(&[usize]) -> usize),
    /// So many operations, at the rate of f32 multiplications and additions in registers.
    Operations(fn(&[usize]) -> usize),
}

/// How a variant makes its result, not evaluated, of inputs of these sizes.
type Run = Box<dyn Fn(&[usize], &[Tensor]) -> TensorResult<Tensor>>;

/// Why an adapter cannot do work of these sizes.
type Lacks = Box<dyn Fn(&AdapterInfo, &[usize]) -> Option<&'static str>>;

/// One way to do the work.
pub struct Variant {
    pub name: &'static str,
    pub idea: &'static str,
    /// What each size must be a multiple of; other sizes are the variants' below.
    pub whole: &'static [usize],
    /// Why an adapter cannot do it at a size.
    pub lacks: Lacks,
    pub run: Run,
}

impl Variant {
    /// A variant that is a template; `run` says how often and on what.
    pub fn of(
        shader: &'static Shader,
        whole: &'static [usize],
        run: impl Fn(&[usize], &[Tensor]) -> TensorResult<Tensor> + 'static,
    ) -> Variant {
        let lacks = Box::new(|a: &AdapterInfo, s: &[usize]| (shader.form)(a, s).err());
        Variant { name: shader.name, idea: shader.idea(), whole, lacks, run: Box::new(run) }
    }
    /// The same variant, whose template runs on every adapter at every size.
    pub fn everywhere(self) -> Variant {
        Variant { lacks: Box::new(|_, _| None), ..self }
    }
    /// The engine's own kernel, as users call it.
    pub fn engine(run: impl Fn(&[Tensor]) -> TensorResult<Tensor> + 'static) -> Variant {
        let (name, idea) = ("the engine", "What the library generates for this adapter, through its ordinary operations.");
        Variant { name, idea, whole: &[], lacks: Box::new(|_, _| None), run: Box::new(move |_, x| run(x)) }
    }

    /// The sizes, each brought to the next that the variant takes.
    pub fn fitted(&self, sizes: &[usize]) -> Vec<usize> {
        sizes.iter().enumerate().map(|(n, s)| s.next_multiple_of(*self.whole.get(n).unwrap_or(&1))).collect()
    }
}

/// One kind of work.
pub struct Workload {
    pub name: &'static str,
    /// The sizes that are timed, those of a quick run, and those of the check, which are multiples of nothing.
    pub timed: &'static [usize],
    pub small: &'static [usize],
    pub ragged: &'static [usize],
    pub limit: Limit,
    /// How many evaluations of it are timed together, side by side.
    pub together: usize,
    /// Inputs of these sizes from a seed.
    pub inputs: fn(&[usize], &mut Rng, &Device) -> TensorResult<Vec<Tensor>>,
    /// How many elements the result has.
    pub results: fn(&[usize]) -> usize,
    /// Element `at` of the result, from its definition.
    pub truth: fn(sizes: &[usize], inputs: &[Vec<f32>], at: usize) -> Truth,
    pub variants: Vec<Variant>,
}

/// Whether a variant did what is defined, or where it did not.
pub type Verdict = Result<(), String>;

/// Inputs on the device, and where they were decoded, their values on the host.
pub struct Prepared {
    pub sizes: Vec<usize>,
    pub inputs: Vec<Tensor>,
    pub values: Vec<Vec<f32>>,
}

/// Rounding of sums, of their terms' magnitude; and of a result that is stored as f16, of its value.
const SUMS: f64 = 4e-6;
const HALVES: f64 = 1e-3;

impl Workload {
    /// Inputs of these sizes; with `decode`, their values too.
    pub fn prepare(&self, sizes: &[usize], seed: u64, decode: bool, device: &Device) -> TensorResult<Prepared> {
        let inputs = (self.inputs)(sizes, &mut Rng::new(seed), device)?;
        eval_all(&inputs.iter().collect::<Vec<_>>())?;
        let values = if decode { inputs.iter().map(host).collect::<TensorResult<_>>()? } else { vec![] };
        Ok(Prepared { sizes: sizes.to_vec(), inputs, values })
    }

    /// Compares a variant's result with the definition: all of it, or `most` elements spread over it, the last among them.
    pub fn check(&self, variant: &Variant, on: &Prepared, most: usize) -> TensorResult<Verdict> {
        let result = (variant.run)(&on.sizes, &on.inputs)?;
        let (dtype, got) = (result.dtype(), host(&result)?);
        let count = (self.results)(&on.sizes);
        if got.len() != count {
            return Ok(Err(format!("{} of {}: {} results instead of {count}", variant.name, self.name, got.len())));
        }
        let places = most.min(count);
        for at in (0..places).map(|n| if places == 1 { 0 } else { (n as u128 * (count - 1) as u128 / (places - 1) as u128) as usize }) {
            let want = (self.truth)(&on.sizes, &on.values, at);
            let allowed = SUMS * want.scale + if dtype == DType::F16 { HALVES * want.value.abs() + 6e-8 } else { 0.0 };
            let off = (got[at] as f64 - want.value).abs();
            if !(off <= allowed) {
                let sizes = on.sizes.iter().map(|s| s.to_string()).collect::<Vec<_>>().join(" × ");
                let (name, is, want) = (variant.name, got[at], want.value);
                return Ok(Err(format!("{name} of {} {sizes}: element {at} is {is} and should be {want} ± {allowed:.1e}", self.name)));
            }
        }
        Ok(Ok(()))
    }
}

/// The elements as they are stored, decoded on the host.
fn host(t: &Tensor) -> TensorResult<Vec<f32>> {
    if t.dtype().is_int() {
        return t.cast(DType::F32)?.to_vec();
    }
    let mut values = vec![0.0; t.numel()];
    quant::dequantize(t.dtype(), &t.to_bytes()?, &mut values)?;
    Ok(values)
}

/// Random numbers around 0, 0.5 wide on either side.
pub fn random(shape: &[usize], dtype: DType, rng: &mut Rng, device: &Device) -> TensorResult<Tensor> {
    rng.uniform(shape, DType::F32, device)?.sub(0.5)?.cast(dtype)
}
