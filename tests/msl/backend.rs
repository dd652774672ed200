//! A backend that executes the Metal form of kernels on the CPU: plans as an Apple GPU gets them, their WGSL translated as on a Mac, compiled
//! by clang++ and run on fibers.

use super::kernel::{Kernel, Memory, Orders};
use super::msl_kernel::{MslKernel, translate, without_bodies};
use super::record::{Bound, Dispatched, MAX_BYTES};
use super::toolchain::{Compiled, Mode, Toolchain};
use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, Weak};
use tensorlogic::backends::cpu::CpuBackend;
use tensorlogic::backends::gpu::{DriverQuirks, KernelBuffer, KernelDispatch, kernel_dispatches};
use tensorlogic::backends::{Backend, Buffer, Bytes, FusedGemvLimits, PoolControl};
use tensorlogic::error::At;
use tensorlogic::plan::{
    AdapterInfo, Buf, Capabilities, MemoryStats, Plan, RunTimes, SCRATCH_COUNTERS, SCRATCH_WORDS, SubgroupSync, Timing, WINDOW_UNIT,
};
use tensorlogic::tuning::{SharedTuning, Tuning};
use tensorlogic::{DType, TensorError, TensorResult};

/// What Apple's GPUs answer.
pub fn apple() -> AdapterInfo {
    AdapterInfo {
        subgroup: 32,
        f16: true,
        workgroup_bytes: 32_768,
        workgroup_threads: 1024,
        coop: 8,
        subgroup_sync: SubgroupSync::Barrier,
        metal_bodies: true,
        tuning: Arc::new(Tuning::apple()),
        ..Default::default()
    }
}

/// What those of them answer whose tensor operations are right.
pub fn apple_with_tensor_ops() -> AdapterInfo {
    AdapterInfo { tensor_ops: true, ..apple() }
}

/// A dispatch of a plan with its kernel.
struct Step {
    dispatch: KernelDispatch,
    kernel: Arc<Kernel>,
    /// Threads of a threadgroup.
    threads: [u32; 3],
}

/// The dispatches of plans, by the plan's address.
type Plans = HashMap<usize, (Weak<Plan>, Arc<Vec<Step>>)>;

/// A change of a Metal source before it is compiled, to see whether a fault is found.
pub type Change = Box<dyn Fn(&str) -> String + Send + Sync>;

/// Who is told of dispatches.
pub type Recorder = Box<dyn FnMut(Dispatched) + Send>;

/// Runs plans through their Metal sources.
pub struct MslBackend {
    host: Arc<CpuBackend>,
    info: AdapterInfo,
    toolchain: &'static Toolchain,
    mode: Mode,
    change: Option<Change>,
    plans: Mutex<Plans>,
    /// Kernels and their Metal sources, by their WGSL.
    kernels: Mutex<HashMap<String, (Arc<Kernel>, MslKernel)>>,
    /// How often each kernel, by its address, ran in three orders.
    compared: Mutex<HashMap<usize, usize>>,
    /// Counters and partial results of kernels: memory for each thread that runs one at the time.
    scratch: Mutex<Vec<Vec<u128>>>,
    trouble: Mutex<Option<TensorError>>,
    submits: AtomicU64,
    dispatches: AtomicUsize,
    /// While set, sources are only noted, and the CPU runs the plans.
    collecting: AtomicBool,
    collected: Arc<Collected>,
    /// While set, functions with a body in Metal's language have the one that naga makes of their WGSL.
    wgsl_only: AtomicBool,
    recorder: Mutex<Option<Recorder>>,
}

/// WGSL sources, each with its number of bindings, that will be needed and are not compiled.
type Collected = Mutex<Vec<(String, usize)>>;

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Dispatches of a kernel that run in three orders of threads, as a rule with other sizes each.
const COMPARED_DISPATCHES: usize = 4;
/// Bytes of fresh memory that are filled with a pattern; large memory is left as it is.
const PATTERN_BYTES: usize = 1 << 20;

impl MslBackend {
    /// A backend of a GPU that answers so, in this mode, whose sources are changed before they are compiled; `None` where there is no compiler.
    pub fn open(info: AdapterInfo, mode: Mode, change: Option<Change>) -> Option<Arc<MslBackend>> {
        MslBackend::with(info, mode, change, false, Arc::default())
    }

    /// A backend on which the CPU runs the plans, while their sources are collected for this one.
    pub fn learner(&self) -> Option<Arc<MslBackend>> {
        MslBackend::with(self.info.clone(), self.mode, None, true, self.collected.clone())
    }

    fn with(info: AdapterInfo, mode: Mode, change: Option<Change>, collecting: bool, collected: Arc<Collected>) -> Option<Arc<MslBackend>> {
        Some(Arc::new(MslBackend {
            change,
            mode,
            toolchain: Toolchain::get(mode)?,
            host: CpuBackend::open(),
            info,
            plans: Mutex::default(),
            kernels: Mutex::default(),
            compared: Mutex::default(),
            scratch: Mutex::default(),
            trouble: Mutex::default(),
            submits: AtomicU64::new(0),
            dispatches: AtomicUsize::new(0),
            collecting: AtomicBool::new(collecting),
            collected,
            wgsl_only: AtomicBool::new(false),
            recorder: Mutex::default(),
        }))
    }

    /// Does `work` twice: first, called with `true`, only to learn which kernels it needs, which are then compiled together; then in earnest.
    /// The first time the CPU runs its plans, and what it gives is dropped.
    pub fn with_kernels_of<T>(&self, mut work: impl FnMut(bool) -> T) -> T {
        self.collecting.store(true, Relaxed);
        drop(work(true));
        self.collecting.store(false, Relaxed);
        lock(&self.plans).clear();
        self.compile_collected();
        work(false)
    }

    /// Compiles what was collected. What does not compile is told when it is needed.
    fn compile_collected(&self) {
        let sources = std::mem::take(&mut *lock(&self.collected));
        let _ = self.compile(&sources);
    }

    /// Whether functions have their bodies in Metal's language; before it compiles anything.
    pub fn use_bodies(&self, bodies: bool) {
        self.wgsl_only.store(!bodies, Relaxed);
    }

    /// From now on this is told of every dispatch whose memory is small.
    pub fn record(&self, recorder: Option<Recorder>) {
        *lock(&self.recorder) = recorder;
    }

    /// The Metal sources of its kernels.
    pub fn sources(&self) -> Vec<String> {
        lock(&self.kernels).values().map(|k| k.1.source.clone()).collect()
    }

    /// What was compiled in this mode.
    pub fn compiled(&self) -> Compiled {
        self.toolchain.compiled()
    }

    /// Dispatches, kernels, and kernels that ran in three orders.
    pub fn counts(&self) -> [usize; 3] {
        [self.dispatches.load(Relaxed), lock(&self.kernels).len(), lock(&self.compared).len()]
    }

    /// Compiles those of these WGSL sources, each with its number of bindings, that are new. An error names the source.
    fn compile<'t>(&self, sources: &'t [(String, usize)]) -> Result<(), (&'t str, String)> {
        let mut seen = HashSet::new();
        let (mut names, mut translated, mut failed) = (vec![], vec![], Ok(()));
        for (wgsl, bindings) in sources.iter().filter(|t| !lock(&self.kernels).contains_key(&t.0)) {
            if !seen.insert(wgsl) {
                continue;
            }
            let form = without_bodies(wgsl).filter(|_| self.wgsl_only.load(Relaxed));
            match translate(form.as_ref().unwrap_or(wgsl), *bindings) {
                Ok(mut msl) => {
                    if let Some(change) = &self.change {
                        msl.source = change(&msl.source);
                    }
                    names.push(wgsl);
                    translated.push(msl);
                }
                Err(e) => failed = failed.and(Err((wgsl.as_str(), e))),
            }
        }
        let made = self.kernels(&translated);
        for ((wgsl, msl), kernel) in names.into_iter().zip(translated).zip(made) {
            match kernel {
                Ok(kernel) => drop(lock(&self.kernels).insert(wgsl.clone(), (kernel, msl))),
                Err(e) => failed = failed.and(Err((wgsl.as_str(), format!("{e}\n{}", msl.source)))),
            }
        }
        failed
    }

    /// The kernels of these sources, compiled as the Metal backend has them compiled.
    fn kernels(&self, all: &[MslKernel]) -> Vec<Result<Arc<Kernel>, String>> {
        let relaxed = Toolchain::get(Mode::Relaxed).filter(|_| self.mode == Mode::FastMath);
        let (special, usual): (Vec<&MslKernel>, Vec<&MslKernel>) = all.iter().partition(|t| t.special && relaxed.is_some());
        let mut special = relaxed.map_or(vec![], |r| r.kernels(&special)).into_iter();
        let mut usual = self.toolchain.kernels(&usual).into_iter();
        let of = |t: &MslKernel| if t.special && relaxed.is_some() { special.next() } else { usual.next() };
        all.iter().map(of).map(|k| k.unwrap_or_else(|| Err("no kernel".into()))).collect()
    }

    /// The steps of a plan with their kernels.
    fn steps(&self, plan: &Arc<Plan>) -> TensorResult<Arc<Vec<Step>>> {
        let key = Arc::as_ptr(plan) as usize;
        if let Some((weak, steps)) = lock(&self.plans).get(&key)
            && weak.strong_count() > 0
        {
            return Ok(steps.clone());
        }
        if self.collecting.load(Relaxed) {
            let dispatches = self.dispatches(plan)?;
            lock(&self.collected).extend(dispatches.into_iter().map(|d| (d.wgsl, d.bindings.len() + 1)));
            lock(&self.plans).insert(key, (Arc::downgrade(plan), Arc::default()));
            return Ok(Arc::default());
        }
        self.compiled_steps(plan)
    }

    fn dispatches(&self, plan: &Plan) -> TensorResult<Vec<KernelDispatch>> {
        let dispatches = kernel_dispatches(plan, &self.info, DriverQuirks::default());
        dispatches.map_err(|e| TensorError::Unsupported(format!("{e}\n{plan}")))
    }

    /// The steps of a plan, whose kernels are compiled now together with those that were collected.
    fn compiled_steps(&self, plan: &Arc<Plan>) -> TensorResult<Arc<Vec<Step>>> {
        let key = Arc::as_ptr(plan) as usize;
        let dispatches = self.dispatches(plan)?;
        let sources: Vec<(String, usize)> = dispatches.iter().map(|d| (d.wgsl.clone(), d.bindings.len() + 1)).collect();
        let new = sources.iter().any(|t| !lock(&self.kernels).contains_key(&t.0));
        if new {
            self.compile_collected();
        }
        self.compile(&sources).map_err(|(wgsl, e)| {
            let name = dispatches.iter().find(|d| d.wgsl == wgsl).map_or("a step", |d| plan.steps[d.step].name);
            TensorError::Unsupported(format!("{name} on {}: {e}\n{wgsl}", self.name()))
        })?;
        let kernels = lock(&self.kernels);
        let step = |dispatch: KernelDispatch| {
            let (kernel, msl) = &kernels[&dispatch.wgsl];
            Step { kernel: kernel.clone(), threads: msl.workgroup, dispatch }
        };
        let steps = dispatches.into_iter().map(step);
        let steps: Arc<Vec<Step>> = Arc::new(steps.collect());
        lock(&self.plans).insert(key, (Arc::downgrade(plan), steps.clone()));
        Ok(steps)
    }

    fn execute(&self, plan: &Plan, step: &Step, params: &[f64], find: impl Fn(Buf) -> Option<(*mut u8, usize)>) -> TensorResult<()> {
        let dispatch = &step.dispatch;
        let of = &plan.steps[dispatch.step];
        let mut scratch = lock(&self.scratch).pop().unwrap_or_else(|| vec![0; SCRATCH_WORDS / 4]);
        let numbers = dispatch.uniforms(params, 0)?;
        let mut block: Vec<u128> = bytemuck::pod_collect_to_vec(&numbers);
        let mut record = [0u128; 1];
        let mut books: Vec<u128> = bytemuck::pod_collect_to_vec(tensorlogic::quant::codebooks());
        let mut memory =
            vec![Memory { at: block.as_mut_ptr().cast(), bytes: 16 * block.len(), written: false, ordered: true, restored: true }];
        // Sums by atomics of f32 round as they come.
        let ordered = !dispatch.wgsl.contains("atomicCompareExchange");
        for b in &dispatch.bindings {
            let (at, bytes, ordered) = match b.buffer {
                KernelBuffer::Plan(buf) => {
                    let (at, bytes) =
                        find(buf).ok_or_else(|| TensorError::Internal("a plan was run with fewer buffers than it names".into()))?;
                    (at, bytes, ordered)
                }
                KernelBuffer::Errors => (record.as_mut_ptr().cast(), 16, false),
                KernelBuffer::Scratch => (scratch.as_mut_ptr().cast(), 16 * scratch.len(), false),
                KernelBuffer::Codebooks => (books.as_mut_ptr().cast(), 16 * books.len(), ordered),
            };
            let restored = b.buffer != KernelBuffer::Scratch;
            memory.push(Memory { at, bytes, written: b.written, ordered, restored });
        }
        let orders = if step.kernel.meets && self.is_due(&step.kernel) { Orders::Three } else { Orders::One };
        // SAFETY: the buffers of the plan, as a GPU gets them; they are alive, and plans that run beside this one do not write them.
        let run = |orders| unsafe { step.kernel.run(&self.toolchain.runtime, dispatch.grid, step.threads, &memory, orders) };
        let mut recorder = lock(&self.recorder);
        let done = match recorder.as_mut().filter(|_| is_recorded(dispatch, &memory)) {
            Some(recorder) => {
                let msl = &lock(&self.kernels)[&dispatch.wgsl].1;
                recorded(of, dispatch, msl, numbers, &memory, || run(Orders::One)).map(recorder)
            }
            None => run(orders),
        };
        drop(recorder);
        done.map_err(|e| {
            let source = lock(&self.kernels).get(&dispatch.wgsl).map_or(String::new(), |k| k.1.source.clone());
            let file = self.toolchain.keep_source(of.name, &source);
            TensorError::Internal(format!("{} as Metal source, in {file}: {e}", of.name))
        })?;
        self.dispatches.fetch_add(1, Relaxed);
        let counters: &[u32] = &bytemuck::cast_slice(&scratch)[..SCRATCH_COUNTERS];
        if counters.iter().any(|c| *c != 0) {
            return Err(TensorError::Internal(format!("{} as Metal source leaves counters that are not zero", of.name)));
        }
        lock(&self.scratch).push(scratch);
        let record: &[u32] = bytemuck::cast_slice(&record);
        if record[0] != 0 {
            let message = format!("index {} lies outside its dimension", record[2] as i32);
            lock(&self.trouble).get_or_insert(TensorError::Index { op: of.name, message, at: of.at });
        }
        Ok(())
    }

    /// Whether a kernel has run in three orders only a few times so far; counts this one.
    fn is_due(&self, kernel: &Arc<Kernel>) -> bool {
        let mut compared = lock(&self.compared);
        let count = compared.entry(Arc::as_ptr(kernel) as usize).or_insert(0);
        *count += 1;
        *count <= COMPARED_DISPATCHES
    }

    fn check(&self) -> TensorResult<()> {
        lock(&self.trouble).take().map_or(Ok(()), Err)
    }
}

/// Whether a dispatch is one to record: its memory is small, and what it writes is bound once.
fn is_recorded(dispatch: &KernelDispatch, memory: &[Memory]) -> bool {
    let apart = |a: &Memory, b: &Memory| a.at.wrapping_add(a.bytes) <= b.at || b.at.wrapping_add(b.bytes) <= a.at;
    let shared = |n: usize| memory[n].written && memory.iter().enumerate().any(|(k, m)| k != n && !apart(m, &memory[n]));
    let plans = memory[1..].iter().zip(&dispatch.bindings).filter(|(_, b)| matches!(b.buffer, KernelBuffer::Plan(_)));
    plans.map(|(m, _)| m.bytes).sum::<usize>() <= MAX_BYTES && !(1..memory.len()).any(shared)
}

/// Runs a dispatch twice, the second time over other memory to see what of it is read, and gives what it did.
fn recorded(
    step: &tensorlogic::plan::Step,
    dispatch: &KernelDispatch,
    msl: &MslKernel,
    words: Vec<u32>,
    memory: &[Memory],
    run: impl Fn() -> Result<(), String>,
) -> Result<Dispatched, String> {
    // SAFETY: the dispatch's memory, which nobody else uses while it runs.
    let content = |m: &Memory| unsafe { std::slice::from_raw_parts_mut(m.at, m.bytes) };
    let bound = || memory[1..].iter().zip(&dispatch.bindings);
    let scratch = |content: &mut [u8]| {
        content.fill(0xA5);
        content[..4 * SCRATCH_COUNTERS].fill(0);
    };
    let contents =
        || bound().map(|(m, b)| if b.buffer == KernelBuffer::Scratch { vec![] } else { content(m).to_vec() }).collect::<Vec<Vec<u8>>>();
    let before = contents();
    run()?;
    let after = contents();
    for ((m, b), before) in bound().zip(&before) {
        match (b.buffer, b.written) {
            (KernelBuffer::Scratch, _) => scratch(content(m)),
            (KernelBuffer::Errors, _) => content(m).fill(0),
            (_, true) => content(m).fill(0xFF),
            (_, false) => content(m).copy_from_slice(before),
        }
    }
    run()?;
    let dtype = |buf: Buf| {
        let loads = step.loads.iter().flat_map(|l| &l.sources);
        let mut all = loads.chain(step.stores.iter().flat_map(|s| s.sources.iter().chain([&s.target])));
        all.find(|s| s.buf == buf).map_or("u32", |s| s.dtype.name())
    };
    let padded = |bytes: &Vec<u8>| {
        let mut bytes = bytes.clone();
        bytes.resize(bytes.len().next_multiple_of(4), 0xFF);
        bytes
    };
    let mut bindings = vec![];
    for (n, (m, b)) in bound().enumerate() {
        let mut bound = Bound { role: "scratch", dtype: "u32", bytes: m.bytes.next_multiple_of(4), before: None, after: None };
        match b.buffer {
            KernelBuffer::Scratch => {
                let content = content(m);
                let last = content.iter().rposition(|byte| *byte != 0xA5).unwrap_or_default();
                bound.bytes = (last + 1).next_multiple_of(4096);
                content.fill(0);
            }
            KernelBuffer::Errors => {}
            KernelBuffer::Codebooks => bound.role = "codebooks",
            KernelBuffer::Plan(buf) => {
                bound.dtype = dtype(buf);
                bound.role = if b.written { "result" } else { "read" };
                bound.before = (!b.written || content(m) != after[n]).then(|| padded(&before[n]));
                bound.after = b.written.then(|| padded(&after[n]));
                content(m).copy_from_slice(&after[n]);
            }
        }
        bindings.push(bound);
    }
    Ok(Dispatched {
        op: step.name,
        source: msl.source.clone(),
        special: msl.special,
        threads: msl.workgroup,
        grid: dispatch.grid,
        words,
        bindings,
    })
}

/// Fills memory that nobody wrote with a pattern.
fn fill(buffer: &Buffer, pattern: u8) {
    if let Buffer::Cpu(b) = buffer
        && b.is_unique()
        && b.len() <= PATTERN_BYTES
    {
        // SAFETY: nobody else holds the buffer.
        unsafe { b.as_ptr().write_bytes(pattern, b.len()) };
    }
}

fn place(buffer: &Buffer) -> Option<(*mut u8, usize)> {
    buffer.on_host().map(|b| (b.as_ptr(), b.len()))
}

impl Backend for MslBackend {
    fn name(&self) -> String {
        "Apple GPU's kernels on the CPU (msl)".into()
    }
    fn supports(&self, dtype: DType) -> bool {
        !dtype.is_cpu_only()
    }
    fn size_class(&self, bytes: usize) -> Option<usize> {
        self.host.size_class(bytes)
    }
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer> {
        let buffer = self.host.alloc(bytes)?;
        fill(&buffer, 0xFF);
        Ok(buffer)
    }
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        self.host.upload(bytes)
    }
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
        self.submits.fetch_add(1, Relaxed);
        let steps = self.steps(plan)?;
        // A step that only a GPU does is executed already now.
        let steps = match (self.collecting.load(Relaxed), steps.is_empty()) {
            (true, true) => match self.host.run(plan, inputs, outputs, params) {
                Err(TensorError::Unsupported(_)) => self.compiled_steps(plan)?,
                done => return done,
            },
            _ => steps,
        };
        let slots = plan.slots.iter().map(|&bytes| self.alloc(bytes)).collect::<TensorResult<Vec<_>>>()?;
        let find = |buf: Buf| match buf {
            Buf::Input(n) => inputs.get(n as usize).and_then(place),
            Buf::Output(n) => outputs.get(n as usize).and_then(place),
            Buf::Slot(n) => slots.get(n as usize).and_then(place),
            Buf::Window { slot, units, .. } => {
                let (at, bytes) = slots.get(slot as usize).and_then(place)?;
                // SAFETY: a window lies within its slot.
                Some((unsafe { at.add(buf.start()) }, (bytes - buf.start()).min(units as usize * WINDOW_UNIT)))
            }
            Buf::Iota => None,
        };
        steps.iter().try_for_each(|step| self.execute(plan, step, params, find))
    }
    fn start_timing(&self, _: Timing) -> TensorResult<()> {
        Err(TensorError::State("kernels that are executed by fibers take no time that means anything".into()))
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        Ok(vec![])
    }
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        self.check()?;
        self.host.read(buffer, start, out)
    }
    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        self.check()?;
        self.host.view(buffer, start, len, show)
    }
    fn overwrite(&self, buffer: &Buffer, bytes: &[u8]) -> TensorResult<()> {
        self.host.overwrite(buffer, bytes)
    }
    fn synchronize(&self) -> TensorResult<()> {
        self.check()
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities { clock: false, ..Capabilities::GPU }
    }
    fn max_buffers(&self) -> usize {
        16
    }
    fn fused_gemv_limits(&self) -> Option<FusedGemvLimits> {
        let gemv = &self.info.tuning.gemv;
        Some(FusedGemvLimits { any: gemv.max_rows, halves: gemv.max_rows_f16, norm_bytes: gemv.max_norm_bytes })
    }
    fn tuning(&self) -> Option<&Tuning> {
        Some(&self.info.tuning)
    }
    fn tuning_in_force(&self) -> Option<SharedTuning> {
        Some(self.info.tuning.clone())
    }
    fn matrices(&self) -> bool {
        self.info.coop > 0
    }
    fn matrix_unit(&self) -> Option<[u32; 2]> {
        Some([self.info.coop, self.info.subgroup])
    }
    fn memory(&self) -> MemoryStats {
        self.host.memory()
    }
    fn pool(&self) -> &dyn PoolControl {
        self.host.pool()
    }
    fn label(&self, buffer: &Buffer, op: &'static str, at: At) {
        self.host.label(buffer, op, at);
    }
    fn submits(&self) -> u64 {
        self.submits.load(Relaxed)
    }
    fn is_busy(&self) -> bool {
        false
    }
}
