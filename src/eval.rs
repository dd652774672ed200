//! The one place that runs anything: collect pending nodes, find or make their plan, bind buffers, run, store.

use crate::backends::{Backend, Buffer};
use crate::compile::{Compiled, GNode, Graph, compile};
use crate::cpu_fallback;
use crate::device::Device;
use crate::dtype::{DType, Element};
use crate::error::{TensorError, TensorResult};
use crate::plan::{Buf, IdentityHasher, Plan};
use crate::tensor::{Inputs, Key, Kind, Node, Tensor, release};
use crate::tuning::Tuning;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, OnceLock};
use std::time::{Duration, Instant};

mod replay;
pub(crate) use replay::Replay;

/// Nodes of one evaluation; more are evaluated in parts.
const MAX_EVALUATION_NODES: usize = 20_000;

/// Nodes of an evaluation up to which its successors are not all timed.
const UNTIMED_MAX_NODES: usize = 16;

/// Plans kept per device; the least recently used goes first.
const MAX_PLANS: usize = 256;

/// Statistics of a device's evaluator.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct EvalStats {
    /// Evaluations that ran a plan.
    pub evaluations: u64,
    /// Evaluations whose plan was in the cache.
    pub hits: u64,
    /// Evaluations that had to compile.
    pub misses: u64,
    /// Evaluations that replayed the previous plan without a graph: decode steps of a generation.
    pub repeats: u64,
    /// Plans in the cache.
    pub plans: usize,
    /// Dispatches of the last plan.
    pub dispatches: usize,
    /// Nodes visited by the last evaluation.
    pub nodes: usize,
    /// Time that the last evaluation spent on the graph: collecting, matching, binding, storing and dropping, without compiling or running.
    /// Sampled: of consecutive small graphs, 1 in 64 is timed; for a large graph after them, everything except collecting.
    pub overhead: Duration,
}

thread_local! {
    static FUSION: Cell<bool> = const { Cell::new(true) };
}

/// Whether evaluations on this thread fuse operations: true unless `TL_NO_FUSION=1` is set or inside [`without_fusion`].
pub fn fusion() -> bool {
    static FORBIDDEN: OnceLock<bool> = OnceLock::new();
    FUSION.get() && !*FORBIDDEN.get_or_init(|| std::env::var("TL_NO_FUSION").is_ok_and(|v| v == "1"))
}

/// Runs `work` with fusion disabled on this thread: each elementwise operation and each kernel is a separate dispatch. Use it to measure
/// what fusion gains, or to find a faulty operation. Results of f16 and bf16 are then rounded after each operation.
pub fn without_fusion<T>(work: impl FnOnce() -> T) -> T {
    struct Restore(bool);
    impl Drop for Restore {
        fn drop(&mut self) {
            FUSION.set(self.0);
        }
    }
    let _restore = Restore(FUSION.replace(false));
    work()
}

#[derive(Default)]
struct Evaluator {
    epoch: u32,
    clock: u64,
    /// Evaluations of few nodes since the last one of many.
    small: u64,
    plans: HashMap<(u64, u64), (Arc<Compiled>, u64), IdentityHasher>,
    stats: EvalStats,
    order: Vec<*const Node>,
    stack: Vec<(*const Node, u32)>,
    params: Vec<f64>,
    stored: Vec<*const Node>,
    /// In-place ops (positions in `order`) that may overwrite a value which other nodes of the same evaluation read before.
    donated: Vec<u32>,
    /// Nodes that somebody holds and that could not be computed any more after such a write: they are stored as well.
    held: Vec<u32>,
    /// Whether the next evaluation shall be told.
    record: bool,
    recorded: Option<Recorded>,
    /// The number of the device's tuning table, once it is known; 0 where it has none.
    tuning: Option<u64>,
}
// SAFETY: the raw pointers are scratch of one call and never outlive it.
unsafe impl Send for Evaluator {}

/// The lock of a device's evaluator: who holds it may look into the nodes of the device.
pub(crate) struct Lock<'a>(MutexGuard<'a, Option<Box<dyn std::any::Any + Send>>>);
impl<'a> Lock<'a> {
    pub(crate) fn of(device: &'a Device) -> Lock<'a> {
        Lock(device.evaluator().lock().unwrap_or_else(|e| e.into_inner()))
    }
    fn get(&mut self) -> &mut Evaluator {
        self.0.get_or_insert_with(|| Box::new(Evaluator::default())).downcast_mut().expect("only an Evaluator is put here")
    }
}

/// The node that holds a tensor's elements: a view's base, or the node itself.
pub(crate) fn base(t: &Tensor) -> (&Node, u32) {
    match t.node.kind {
        // SAFETY: a view is never stored, so its input never changes.
        Kind::View(_) => {
            let b = unsafe { &t.node.inputs()[0] };
            (&b.node, b.out)
        }
        _ => (&t.node, t.out),
    }
}

impl Evaluator {
    /// Puts everything pending under `roots` into `order`, inputs first, with the parameters and stored buffers met on the way.
    /// Returns the key of the structure.
    fn collect(&mut self, roots: &[&Tensor]) -> (u64, u64) {
        self.epoch += 1;
        let epoch = (self.epoch as u64) << 32;
        self.order.clear();
        self.stack.clear();
        self.params.clear();
        self.stored.clear();
        let mut shared = false;
        let mut key = [Key::default(), Key::default()];
        key[1].word(if fusion() { 0x5851_F42D_4C95_7F2D } else { 0x1405_7B7E_F767_814F });
        // Plans are of one table: how many rows are joined or unpacked depends on it.
        let tuning = roots.first().map(|root| *self.tuning.get_or_insert_with(|| root.device().backend().tuning().map_or(0, Tuning::id)));
        key[0].word(tuning.unwrap_or(0));
        for root in roots {
            let (root, _) = base(root);
            if root.mark.load(Relaxed) >> 32 != epoch >> 32 {
                root.mark.store(epoch, Relaxed);
                self.stack.push((root, 0));
            }
            while let Some((node, next)) = self.stack.last_mut() {
                // SAFETY: nodes under a root live as long as the root, and inputs change only under the lock that we hold.
                let n = unsafe { &**node };
                let stored = n.stored.get();
                if stored.is_none() {
                    // SAFETY: as above.
                    let inputs = unsafe { n.inputs() };
                    if let Some(input) = inputs.get(*next as usize) {
                        *next += 1;
                        let child = &*input.node;
                        if child.mark.load(Relaxed) >> 32 != epoch >> 32 {
                            child.mark.store(epoch, Relaxed);
                            self.stack.push((child, 0));
                        }
                        continue;
                    }
                    for input in inputs.iter() {
                        let w = (input.node.mark.load(Relaxed) & 0xFFFF_FFFF) << 8 | input.out as u64;
                        key[0].word(w);
                        key[1].word(w);
                    }
                    let extra = is_donated(n) as u64 | (must_keep(n) as u64) << 1;
                    shared |= extra == 2 && overwrites(n);
                    key[0].word(n.key).word(extra);
                    key[1].word(n.key ^ extra);
                    self.params.extend_from_slice(&n.params);
                } else {
                    for m in &n.metas {
                        key.iter_mut().for_each(|k| {
                            k.word(m.dtype as u64 ^ 0xABCD);
                            m.shape.iter().for_each(|&d| {
                                k.word(d as u64);
                            })
                        });
                    }
                    self.stored.push(n);
                }
                n.mark.store(epoch | self.order.len() as u64, Relaxed);
                self.order.push(n);
                self.stack.pop();
            }
            let w = root.mark.load(Relaxed) & 0xFFFF_FFFF;
            key.iter_mut().for_each(|k| {
                k.word(w ^ 0x7007);
            });
        }
        self.donated.clear();
        self.held.clear();
        if shared {
            self.share(roots);
            for &i in self.donated.iter().chain(&[u32::MAX]).chain(&self.held) {
                key.iter_mut().for_each(|k| {
                    k.word(i as u64 ^ 0x5A4E);
                });
            }
        }
        (key[0].value(), key[1].value())
    }

    /// What must be there of the first half of the collected nodes: what the second half needs, and the roots.
    fn cut(&self, roots: &[&Tensor]) -> Vec<Tensor> {
        let half = self.order.len() / 2;
        let mut seen = vec![false; half];
        let mut out = Vec::new();
        let mut need = |t: &Tensor| {
            let (node, _) = base(t);
            let at = (node.mark.load(Relaxed) & 0xFFFF_FFFF) as usize;
            if at < half && node.stored.get().is_none() && !std::mem::replace(&mut seen[at], true) {
                out.push(t.clone());
            }
        };
        roots.iter().for_each(|r| need(r));
        for &n in &self.order[half..] {
            // SAFETY: collected under the lock that we hold.
            let n = unsafe { &*n };
            if n.stored.get().is_none() {
                // SAFETY: as above.
                unsafe { n.inputs() }.iter().for_each(&mut need);
            }
        }
        out
    }

    /// Finds the in-place ops whose old value is read by nothing but this evaluation, and the nodes that must be stored before it goes.
    fn share(&mut self, roots: &[&Tensor]) {
        // For each node how many handles the collected graph has, and how many there are.
        let mut handles = vec![(0usize, 0usize); self.order.len()];
        let at = |n: &Node| (n.mark.load(Relaxed) & 0xFFFF_FFFF) as usize;
        let pending = |n: *const Node| {
            // SAFETY: collected under the lock that we hold.
            let n = unsafe { &*n };
            // SAFETY: as above.
            n.stored.get().is_none().then(|| (n, unsafe { n.inputs() } as &Inputs))
        };
        for (_, inputs) in self.order.iter().filter_map(|&n| pending(n)) {
            for t in inputs {
                let h = &mut handles[at(&t.node)];
                *h = (h.0 + 1, Arc::strong_count(&t.node));
            }
        }
        let asked: std::collections::HashSet<usize> = roots.iter().map(|t| at(base(t).0)).collect();
        let mut reads = vec![false; self.order.len()];
        for i in 0..self.order.len() {
            let Some((n, inputs)) = pending(self.order[i]) else { continue };
            if !overwrites(n) || is_donated(n) {
                continue;
            }
            let old = at(&inputs[0].node);
            if handles[old].0 < handles[old].1 {
                continue;
            }
            // What depends on the old value, and is held by somebody outside this evaluation.
            reads.fill(false);
            reads[old] = true;
            let mut outside = Vec::new();
            let mut possible = true;
            for j in old + 1..self.order.len() {
                let Some((m, inputs)) = pending(self.order[j]) else { continue };
                reads[j] = inputs.iter().any(|t| reads[at(&t.node)]);
                // A root that nothing else names has its handles outside.
                let free = handles[j].0 < handles[j].1 || (handles[j].1 == 0 && !asked.contains(&j));
                if !reads[j] || !free || asked.contains(&j) || j == i {
                    continue;
                }
                match m.kind {
                    Kind::View(_) => {
                        let seen = at(&inputs[0].node);
                        possible &= seen != old;
                        if self.order[seen] != self.order[old] && !asked.contains(&seen) && pending(self.order[seen]).is_some() {
                            outside.push(seen as u32);
                        }
                    }
                    _ => outside.push(j as u32),
                }
            }
            if possible {
                self.donated.push(i as u32);
                self.held.extend(outside);
            }
        }
        self.held.sort_unstable();
        self.held.dedup();
    }

    /// The plan of what was collected, from the cache or new.
    fn plan(&mut self, key: (u64, u64), roots: &[&Tensor], device: &Device) -> TensorResult<Arc<Compiled>> {
        self.clock += 1;
        if let Some((c, used)) = self.plans.get_mut(&key) {
            *used = self.clock;
            self.stats.hits += 1;
            return Ok(c.clone());
        }
        self.stats.misses += 1;
        let mut graph = Graph { nodes: Vec::with_capacity(self.order.len()), params: 0 };
        let mut bound = 0;
        for &n in &self.order {
            // SAFETY: collected under the lock that we hold.
            let node = unsafe { &*n };
            let stored = node.stored.get().is_some();
            // SAFETY: as above.
            let list: &Inputs = unsafe { node.inputs() };
            let inputs = if stored {
                SmallVec::new()
            } else {
                list.iter().map(|t| ((t.node.mark.load(Relaxed) & 0xFFFF_FFFF) as u32, t.out)).collect()
            };
            graph.nodes.push(GNode {
                node,
                inputs,
                params: graph.params,
                bound: stored.then_some(bound),
                keep: !stored && must_keep(node),
                donated: !stored && is_donated(node),
            });
            if stored {
                bound += node.metas.len() as u16;
            } else {
                graph.params += node.params.len();
            }
        }
        for &i in &self.donated {
            graph.nodes[i as usize].donated = true;
        }
        for &i in &self.held {
            graph.nodes[i as usize].keep = true;
        }
        for root in roots {
            let at = (base(root).0.mark.load(Relaxed) & 0xFFFF_FFFF) as usize;
            if graph.nodes[at].bound.is_none() {
                graph.nodes[at].keep = true;
            }
        }
        let compiled = Arc::new(compile(graph, device.backend().max_buffers(), fusion(), device.backend().fused_gemv_limits())?);
        if self.plans.len() >= MAX_PLANS {
            if let Some(oldest) = self.plans.iter().min_by_key(|(_, (_, used))| *used).map(|(k, _)| *k) {
                self.plans.remove(&oldest);
            }
        }
        self.plans.insert(key, (compiled.clone(), self.clock));
        Ok(compiled)
    }
}

/// Whether an in-place op may take its first input's memory: nothing else holds the value.
fn is_donated(n: &Node) -> bool {
    let Kind::Op(op) = &n.kind else { return false };
    if !op.in_place() {
        return false;
    }
    // SAFETY: called under the evaluator's lock.
    let first = unsafe { &n.inputs()[0] };
    first.node.metas.len() == 1
        && Arc::strong_count(&first.node) == 1
        && first.node.stored.get().is_some_and(|b| b[0].is_unique())
        && !matches!(first.node.kind, Kind::View(_))
}

/// Whether an in-place op is given a stored value whose memory nobody else shares; other nodes may read it.
fn overwrites(n: &Node) -> bool {
    let Kind::Op(op) = &n.kind else { return false };
    if !op.in_place() {
        return false;
    }
    // SAFETY: called under the evaluator's lock.
    let first = unsafe { &n.inputs()[0] };
    first.node.metas.len() == 1 && first.node.stored.get().is_some_and(|b| b[0].is_unique()) && !matches!(first.node.kind, Kind::View(_))
}

/// Whether an evaluation stores this node though nobody asked for it: window writes, and kernels that were passed before.
fn must_keep(n: &Node) -> bool {
    match &n.kind {
        Kind::Op(op) => op.in_place() || n.visited.load(Relaxed),
        _ => false,
    }
}

/// Computes and stores the values of these tensors in one evaluation: one plan, one submit. Tensors of several devices are
/// evaluated device by device.
///
/// # Errors
/// Device failures only: shapes and dtypes were checked when the graph was built.
pub fn eval_all(tensors: &[&Tensor]) -> TensorResult<()> {
    eval_for(tensors, Purpose::Keep)
}

/// What becomes of the results, which decides where small work is done.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Purpose {
    /// They are kept.
    Keep,
    /// The host reads them next.
    Read,
    /// They are kept, and copied to the host next.
    Copy,
    /// The device's own speed is measured.
    Measure,
}

fn eval_for(tensors: &[&Tensor], purpose: Purpose) -> TensorResult<()> {
    if let [only] = tensors {
        return if base(only).0.stored.get().is_none() { eval_decided(only.device(), tensors, purpose) } else { Ok(()) };
    }
    let mut rest: Vec<&Tensor> = tensors.iter().copied().filter(|t| base(t).0.stored.get().is_none()).collect();
    while let Some(first) = rest.first() {
        let device = first.device().clone();
        let (own, other): (Vec<&Tensor>, Vec<&Tensor>) = rest.iter().partition(|t| *t.device() == device);
        eval_decided(&device, &own, purpose)?;
        rest = other;
    }
    Ok(())
}

/// Evaluates tensors of one device, where it is faster.
fn eval_decided(device: &Device, roots: &[&Tensor], purpose: Purpose) -> TensorResult<()> {
    if !eval_on(device, roots, purpose)? {
        // Whether the host would be faster is not known yet.
        if device.crossover().is_err() {
            device.set_adaptive(false);
        }
        eval_on(device, roots, purpose)?;
    }
    Ok(())
}

/// Evaluates tensors of one device. Returns false, without doing anything, if deciding where to run needs a measurement.
pub(crate) fn eval_on(device: &Device, roots: &[&Tensor], purpose: Purpose) -> TensorResult<bool> {
    let mut dead;
    let mut before = None;
    let after;
    {
        let mut lock = Lock::of(device);
        let e = lock.get();
        // Asking for the time twice takes as long as an operation of a small graph does.
        let timed = e.small < 64 || e.small % 64 == 0;
        let mut start = timed.then(Instant::now);
        let key = e.collect(roots);
        if e.order.len() > UNTIMED_MAX_NODES {
            e.small = 0;
            start.get_or_insert_with(Instant::now);
        } else {
            e.small += 1;
        }
        if e.order.len() > MAX_EVALUATION_NODES {
            let cut = e.cut(roots);
            if !cut.is_empty() && cut.len() < e.order.len() / 4 {
                e.order.clear();
                drop(lock);
                eval_on(device, &cut.iter().collect::<Vec<_>>(), Purpose::Measure)?;
                return eval_on(device, roots, purpose);
            }
        }
        let misses = e.stats.misses;
        let compiled = e.plan(key, roots, device)?;
        let plan = &compiled.plan;
        let backend = device.backend();
        // SAFETY: collected under the lock that we hold.
        let bound: SmallVec<[Buffer; 4]> =
            e.stored.iter().flat_map(|&n| unsafe { &*n }.stored.get().into_iter().flatten().cloned()).collect();
        let on_host = match cpu_fallback::choose(device, &compiled, &bound, purpose) {
            Some(choice) => choice,
            None => {
                e.order.clear();
                return Ok(false);
            }
        };
        let host;
        let backend = if on_host {
            host = Device::cpu();
            host.backend()
        } else {
            backend
        };
        let mut outputs = allocate(backend, plan, purpose)?;
        if e.stats.misses == misses {
            before = start.map(|s| s.elapsed());
        }
        if on_host {
            if !plan.steps.is_empty() {
                cpu_fallback::run(backend, plan, &bound, &outputs, &e.params)?;
            }
            outputs = outputs.into_iter().map(cpu_fallback::of_device).collect();
        } else {
            e.submit(backend, plan, &bound, &outputs, purpose)?;
        }
        after = before.map(|_| Instant::now());
        // SAFETY: collected under the lock that we hold; the roots keep the nodes alive.
        dead = unsafe { e.keep(&compiled, &bound, &outputs) };
        e.order.clear();
        if std::mem::take(&mut e.record) && !on_host {
            e.recorded = Some(Recorded { compiled: compiled.clone(), params: e.params.clone(), bound: bound.into_vec() });
        }
        e.stats.evaluations += 1;
        e.stats.nodes = compiled.nodes;
        e.stats.dispatches = plan.steps.len();
        e.stats.plans = e.plans.len();
    }
    release(&mut dead);
    if let Some((before, after)) = before.zip(after) {
        Lock::of(device).get().stats.overhead = before + after.elapsed();
    }
    Ok(true)
}

/// Memory for a plan's results; tells a memory recording what it is for.
fn allocate(backend: &Arc<dyn Backend>, plan: &Plan, purpose: Purpose) -> TensorResult<SmallVec<[Buffer; 2]>> {
    let mut outputs: SmallVec<[Buffer; 2]> = SmallVec::new();
    for o in &plan.outputs {
        outputs.push(if purpose == Purpose::Read { backend.alloc_result(o.bytes, o.dtype)? } else { backend.alloc(o.bytes)? });
    }
    if backend.pool().recording() {
        for (n, output) in outputs.iter().enumerate() {
            if let Some(step) = plan.writer(Buf::Output(n as u16)) {
                backend.label(output, step.name, step.at);
            }
        }
    }
    Ok(outputs)
}

impl Evaluator {
    /// Runs a plan on the device's own backend.
    fn submit(
        &self,
        backend: &Arc<dyn Backend>,
        plan: &Arc<Plan>,
        bound: &[Buffer],
        outputs: &[Buffer],
        purpose: Purpose,
    ) -> TensorResult<()> {
        if !plan.steps.is_empty() {
            if matches!(purpose, Purpose::Read | Purpose::Copy) {
                backend.defer_submit();
            }
            backend.run(plan, bound, outputs, &self.params)?;
        }
        if backend.pool().recording() {
            // Values that were in host memory until now.
            for &n in &self.stored {
                // SAFETY: collected under the lock that the caller holds.
                let n = unsafe { &*n };
                n.stored.get().into_iter().flatten().filter(|b| b.is_resident()).for_each(|b| backend.label(b, "upload", n.at));
            }
        }
        Ok(())
    }

    /// Stores an evaluation's values in their nodes; gives the inputs that are no longer needed, to be released without the lock.
    ///
    /// # Safety
    /// The nodes of `order` were collected under the lock that the caller holds, and its roots keep them alive.
    unsafe fn keep(&self, compiled: &Compiled, bound: &[Buffer], outputs: &[Buffer]) -> Inputs {
        let mut dead = Inputs::new();
        for (at, bufs) in &compiled.kept {
            // SAFETY: as the caller promises.
            let n = unsafe { &*self.order[*at as usize] };
            let value = bufs
                .iter()
                .map(|b| match *b {
                    Buf::Input(i) => bound[i as usize].clone(),
                    Buf::Output(i) => outputs[i as usize].clone(),
                    Buf::Slot(_) | Buf::Iota => unreachable!("kept values outlive the run"),
                })
                .collect();
            let _ = n.stored.set(value);
        }
        for &n in &self.order {
            // SAFETY: as above.
            let n = unsafe { &*n };
            if n.stored.get().is_none() {
                n.visited.store(true, Relaxed);
            }
        }
        // Only now may inputs go: nodes of `order` may be alive only through them.
        for (at, _) in &compiled.kept {
            // SAFETY: as above; stored nodes are not views.
            let n = unsafe { &*self.order[*at as usize] };
            if !n.tracked || n.inputs_freed.load(Relaxed) {
                // SAFETY: as above.
                let mut inputs = std::mem::take(unsafe { n.inputs() });
                if dead.is_empty() {
                    dead = inputs;
                } else {
                    dead.append(&mut inputs);
                }
            }
        }
        dead
    }
}

/// What an evaluation ran.
struct Recorded {
    compiled: Arc<Compiled>,
    params: Vec<f64>,
    bound: Vec<Buffer>,
}

/// A node's inputs, which an evaluation may take away at any time.
pub(crate) fn inputs_of(node: &Node) -> Inputs {
    let _lock = Lock::of(&node.device);
    // SAFETY: the lock is held.
    unsafe { node.inputs() }.clone()
}

/// Lets the inputs of a node go that is stored already, and those of others as soon as they are.
pub(crate) fn forget_inputs(node: &Node) {
    let mut dead = Inputs::new();
    {
        let _lock = Lock::of(&node.device);
        node.inputs_freed.store(true, Relaxed);
        if node.stored.get().is_some() {
            // SAFETY: the lock is held.
            dead.extend(unsafe { node.inputs() }.drain(..));
        }
    }
    release(&mut dead);
}

/// Statistics of the evaluator of `device`.
pub fn eval_stats(device: &Device) -> EvalStats {
    Lock::of(device).get().stats
}

/// The plan that evaluating these tensors (of one device) would run, without running it.
pub fn plan_of(tensors: &[&Tensor]) -> TensorResult<Option<Arc<Plan>>> {
    let pending: Vec<&Tensor> = tensors.iter().copied().filter(|t| base(t).0.stored.get().is_none()).collect();
    let Some(first) = pending.first() else { return Ok(None) };
    let device = first.device().clone();
    let mut lock = Lock::of(&device);
    let e = lock.get();
    let key = e.collect(&pending);
    let c = e.plan(key, &pending, &device)?;
    e.order.clear();
    Ok(Some(c.plan.clone()))
}

/// From here on it is looked up whether the host has the memory for what is read; asking the system takes longer than a small read.
const CHECKED_READ_BYTES: usize = 256 << 20;

/// Memory of the host for what is read. Rust ends a process that asks for more than there is; this is an error.
fn host_memory<T: Clone>(len: usize, value: T) -> TensorResult<Vec<T>> {
    let asked = len.saturating_mul(size_of::<T>());
    // Systems may promise memory that they do not have.
    let possible =
        || crate::backends::limits::host_room().is_none_or(|r| asked <= r.total) && Vec::<T>::new().try_reserve_exact(len).is_ok();
    if asked >= CHECKED_READ_BYTES && !possible() {
        let help = "read the tensor in parts (narrow), or a smaller one";
        return Err(TensorError::OutOfMemory { device: "the host".into(), asked, in_use: 0, limit: None, help });
    }
    Ok(vec![value; len])
}

/// Elements on their way to the host. See [`Tensor::download`].
pub struct Download {
    pending: crate::backends::PendingRead,
    dtype: DType,
}

impl Download {
    /// Whether the elements have arrived. Does not wait.
    pub fn is_ready(&self) -> bool {
        (self.pending.ready)()
    }

    /// Waits and returns the elements in row-major order.
    ///
    /// # Errors
    /// If `T` is not the tensor's type, for a bad index met on the way, or a lost device.
    #[track_caller]
    pub fn wait<T: Element>(self) -> TensorResult<Vec<T>> {
        if self.dtype != T::DTYPE {
            let at = std::panic::Location::caller();
            return Err(TensorError::dtype("wait", at, format!("the tensor is {}, not {}", self.dtype, T::DTYPE)));
        }
        let bytes = (self.pending.wait)()?;
        let mut out = vec![T::zeroed(); bytes.len() / size_of::<T>()];
        bytemuck::cast_slice_mut(&mut out).copy_from_slice(&bytes);
        Ok(out)
    }
}

impl Tensor {
    /// Computes and stores the value now. Returns the tensor itself for chaining.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let y = x.exp()?;
    /// y.eval()?; // computed once, read as often as one likes
    /// assert!(y.explain()?.is_empty());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn eval(&self) -> TensorResult<&Tensor> {
        eval_all(&[self])?;
        Ok(self)
    }

    /// The plan that asking for this value would run, one line a dispatch, as SQL's EXPLAIN. Empty for a stored value.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// assert!(x.exp()?.explain()?.ends_with("1 dispatch\n"));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn explain(&self) -> TensorResult<String> {
        Ok(plan_of(&[self])?.map(|p| p.to_string()).unwrap_or_default())
    }

    /// The elements in row-major order as f32. f64, integers and bool are converted; block formats are decoded.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.t()?.to_vec()?, [1.0, 3.0, 2.0, 4.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_vec(&self) -> TensorResult<Vec<f32>> {
        match self.dtype() {
            DType::F32 => self.to_vec_of::<f32>(),
            DType::F64 => Ok(self.to_vec_of::<f64>()?.into_iter().map(|v| v as f32).collect()),
            DType::I64 => Ok(self.to_vec_of::<i64>()?.into_iter().map(|v| v as f32).collect()),
            _ => self.cast(DType::F32)?.to_vec_of::<f32>(),
        }
    }

    /// The elements in row-major order in their own type; bool as u8.
    ///
    /// # Errors
    /// If `T` is not the tensor's type, or for what the evaluation met.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[1, 2], [3, 4]], &Device::cpu())?;
    /// assert_eq!(x.to_vec_of::<i32>()?, [1, 2, 3, 4]);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn to_vec_of<T: Element>(&self) -> TensorResult<Vec<T>> {
        if self.dtype() != T::DTYPE && !(self.dtype() == DType::Bool && T::DTYPE == DType::U8) {
            let at = std::panic::Location::caller();
            return Err(TensorError::dtype("to_vec_of", at, format!("the tensor is {}, not {}", self.dtype(), T::DTYPE)));
        }
        let mut out = host_memory(self.numel(), T::zeroed())?;
        self.read_into(bytemuck::cast_slice_mut(&mut out))?;
        Ok(out)
    }

    /// The elements' bytes in row-major order as stored.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1, 258], &Device::cpu())?;
    /// assert_eq!(x.to_bytes()?, [1, 0, 0, 0, 2, 1, 0, 0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn to_bytes(&self) -> TensorResult<Vec<u8>> {
        let mut out = host_memory(self.dtype().bytes(self.numel()).unwrap_or(0), 0u8)?;
        self.read_into(&mut out)?;
        Ok(out)
    }

    fn read_into(&self, out: &mut [u8]) -> TensorResult<()> {
        let layout = self.layout();
        if matches!(self.node.kind, Kind::View(_)) && !layout.is_contiguous() {
            return self.contiguous()?.read_into(out);
        }
        if out.is_empty() {
            return Ok(());
        }
        eval_for(&[self], Purpose::Read)?;
        let (node, output) = base(self);
        let buffer = &node.stored.get().expect("evaluated")[output as usize];
        let size = self.dtype().block_bytes();
        self.device().backend().read(buffer, layout.offset / self.dtype().block() * size, out)
    }

    /// Evaluates and submits the copy to the host without waiting for it: work submitted afterwards overlaps with it.
    ///
    /// # Errors
    /// For what the evaluation meets: a bad index, no room, a lost device.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let download = x.exp()?.download()?;
    /// let other = x.neg()?; // further work while the values arrive
    /// assert_eq!(download.wait::<f32>()?.len(), other.numel());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn download(&self) -> TensorResult<Download> {
        let layout = self.layout();
        if matches!(self.node.kind, Kind::View(_)) && !layout.is_contiguous() {
            return self.contiguous()?.download();
        }
        eval_for(&[self], Purpose::Copy)?;
        let (node, output) = base(self);
        let buffer = &node.stored.get().expect("evaluated")[output as usize];
        let size = self.dtype().block_bytes();
        let len = self.dtype().bytes(self.numel()).unwrap_or(0);
        let pending = self.device().backend().start_read(buffer, layout.offset / self.dtype().block() * size, len)?;
        Ok(Download { pending, dtype: self.dtype() })
    }

    /// Like [`Tensor::to_vec_of`] for threads that must not block: an executor's, or a browser's only one. The work is submitted when this
    /// is first polled; the executor is free until it is done.
    ///
    /// # Errors
    /// Those of [`Tensor::to_vec_of`].
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
    /// let values = async { x.neg()?.to_vec_async::<f32>().await };
    /// # let mut values = std::pin::pin!(values);
    /// # let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    /// # let values = loop {
    /// #     if let std::task::Poll::Ready(values) = values.as_mut().poll(&mut context) {
    /// #         break values;
    /// #     }
    /// # };
    /// assert_eq!(values?, [-1.0, -2.0]);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub async fn to_vec_async<T: Element>(&self) -> TensorResult<Vec<T>> {
        let download = self.download()?;
        self.device().backend().done().await;
        download.wait()
    }

    /// The one element, as f64.
    ///
    /// # Errors
    /// If the tensor has more or fewer elements than one.
    ///
    /// ```
    /// # use tensorlogic::prelude::*;
    /// let x = Tensor::new(&[[7.5]], &Device::cpu())?;
    /// assert_eq!(x.item()?, 7.5);
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn item(&self) -> TensorResult<f64> {
        if self.numel() != 1 {
            return Err(TensorError::shape(
                "item",
                std::panic::Location::caller(),
                format!("shape {} has {} elements, not 1", self.shape(), self.numel()),
            ));
        }
        Ok(match self.dtype() {
            DType::F64 => self.to_vec_of::<f64>()?[0],
            DType::I64 => self.to_vec_of::<i64>()?[0] as f64,
            DType::I32 => self.to_vec_of::<i32>()?[0] as f64,
            DType::U32 => self.to_vec_of::<u32>()?[0] as f64,
            _ => self.to_vec()?[0] as f64,
        })
    }
}
