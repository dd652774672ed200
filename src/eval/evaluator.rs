//! What is pending on a device, as a graph, and its plan: nodes are collected, their structure hashed, the plan found or compiled.

use super::history::{Activity, EvalStats, History};
use crate::backends::Buffer;
use crate::backends::stages::{Stage, enter};
use crate::compile::{CompileOptions, Compiled, GNode, Graph, compile};
use crate::device::Device;
use crate::error::{At, TensorError, TensorResult};
use crate::events;
use crate::plan::{BufferOrder, IdentityHasher, Plan};
use crate::tensor::{Inputs, Key, Kind, Node, Tensor, release};
use crate::tuning::Tuning;
use smallvec::SmallVec;
use std::cell::Cell;
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering::Relaxed;
use std::sync::{MutexGuard, OnceLock};

/// Plans kept per device; the least recently used goes first.
const MAX_PLANS: usize = 256;

thread_local! {
    static FUSION: Cell<bool> = const { Cell::new(true) };
    static ORDER: Cell<Option<BufferOrder>> = const { Cell::new(None) };
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

/// What `TL_ORDER` says: an order, nothing, or what is wrong with it.
fn order_of_environment() -> &'static Result<BufferOrder, String> {
    static ORDER: OnceLock<Result<BufferOrder, String>> = OnceLock::new();
    ORDER.get_or_init(|| match std::env::var("TL_ORDER") {
        Ok(name) if !name.is_empty() => name.parse(),
        _ => Ok(BufferOrder::default()),
    })
}

/// The order in which evaluations on this thread place the intermediates of new plans: that of the innermost [`with_order`], else of `TL_ORDER`,
/// else [`BufferOrder::Auto`].
///
/// # Errors
/// [`TensorError::Config`] if `TL_ORDER` is not the name of an order.
///
/// ```
/// use tensorlogic::{eval::{order, with_order}, plan::BufferOrder};
/// assert_eq!(with_order(BufferOrder::Size, order)?, BufferOrder::Size);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn order() -> TensorResult<BufferOrder> {
    match (ORDER.get(), order_of_environment()) {
        (Some(order), _) => Ok(order),
        (None, Ok(order)) => Ok(*order),
        (None, Err(e)) => Err(TensorError::Config(format!("TL_ORDER: {e}"))),
    }
}

/// Runs `work` with this order of steps and buffers on this thread. Plans of several orders are kept side by side; results are the same bits.
///
/// ```
/// use tensorlogic::{Device, DType, Rng, eval::with_order, plan::BufferOrder};
/// let x = Rng::new(1).normal(&[32, 32], DType::F32, &Device::cpu())?;
/// let y = || x.matmul(&x)?.softmax(-1)?.matmul(&x)?.relu()?.to_vec();
/// assert_eq!(with_order(BufferOrder::Temporal, y)?, with_order(BufferOrder::Program, y)?);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn with_order<T>(order: BufferOrder, work: impl FnOnce() -> T) -> T {
    struct Restore(Option<BufferOrder>);
    impl Drop for Restore {
        fn drop(&mut self) {
            ORDER.set(self.0);
        }
    }
    let _restore = Restore(ORDER.replace(Some(order)));
    work()
}

/// The state of a device's evaluations.
#[derive(Default)]
pub(super) struct Evaluator {
    epoch: u32,
    clock: u64,
    /// Evaluations of few nodes since the last one of many.
    pub small: u64,
    pub plans: HashMap<(u64, u64), (Arc<Compiled>, u64), IdentityHasher>,
    pub stats: EvalStats,
    pub history: History,
    /// The line of the last value whose read cut a chain, and that of the last plan that was compiled.
    pub cut_at: Option<At>,
    pub missed_at: Option<At>,
    pub order: Vec<*const Node>,
    stack: Vec<(*const Node, u32)>,
    pub params: Vec<f64>,
    pub stored: Vec<*const Node>,
    /// In-place ops (positions in `order`) that take the memory of a value which nobody else holds. Asked once: a submit of another thread may let
    /// go of that memory meanwhile, and the plan has to be what the key says.
    in_place: Vec<u32>,
    /// In-place ops (positions in `order`) that may overwrite a value which other nodes of the same evaluation read before.
    donated: Vec<u32>,
    /// Nodes that somebody holds and that could not be computed any more after such a write: they are stored as well.
    held: Vec<u32>,
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
    pub(super) fn get(&mut self) -> &mut Evaluator {
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
    pub fn collect(&mut self, roots: &[&Tensor]) -> (u64, u64) {
        self.epoch += 1;
        let epoch = (self.epoch as u64) << 32;
        self.order.clear();
        self.stack.clear();
        self.params.clear();
        self.stored.clear();
        self.in_place.clear();
        let mut shared = false;
        let mut key = [Key::default(), Key::default()];
        key[1].word(if fusion() { 0x5851_F42D_4C95_7F2D } else { 0x1405_7B7E_F767_814F });
        // A wrong setting is reported when a plan is made.
        key[1].word(order().map_or(u64::MAX, |o| o as u64));
        // Plans are of one table, the device's or a strategy's: how many rows are fused or unpacked depends on it.
        let tuning = roots.first().map(|root| *self.tuning.get_or_insert_with(|| root.device().backend().tuning().map_or(0, Tuning::id)));
        key[0].word(tuning.unwrap_or(0) ^ roots.first().map_or(0, |root| root.device().plan_key()));
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
                    let donated = is_donated(n);
                    if donated {
                        self.in_place.push(self.order.len() as u32);
                    }
                    let extra = donated as u64 | (must_keep(n) as u64) << 1;
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
    pub fn cut(&self, roots: &[&Tensor]) -> Vec<Tensor> {
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
            if !overwrites(n) || self.in_place.binary_search(&(i as u32)).is_ok() {
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
    pub fn plan(&mut self, key: (u64, u64), roots: &[&Tensor], device: &Device) -> TensorResult<Arc<Compiled>> {
        self.clock += 1;
        if let Some((c, used)) = self.plans.get_mut(&key) {
            *used = self.clock;
            self.stats.hits += 1;
            events::plan_hit(self.order.len());
            return Ok(c.clone());
        }
        self.stats.misses += 1;
        events::plan_missed(self.order.len(), self.plans.len());
        self.missed_at = roots.first().map(|root| root.node.at);
        let _stage = enter(Stage::Compile);
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
                donated: false,
            });
            if stored {
                bound += node.metas.len() as u16;
            } else {
                graph.params += node.params.len();
            }
        }
        for &i in self.in_place.iter().chain(&self.donated) {
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
        let (backend, suits) = (device.backend(), device.capabilities());
        let options = CompileOptions {
            buffers: backend.max_buffers(),
            fuse: fusion(),
            fused_gemv: backend.fused_gemv_limits(),
            order: order()?,
            ranges: suits.ranges,
            windows: suits.windows,
            line: suits.line,
            leased: &|bytes| backend.pool().leased(bytes),
            fits: &|bytes| backend.size_class(bytes).is_some(),
        };
        let compiled = Arc::new(compile(graph, &options)?);
        events::plan_compiled(compiled.plan.steps.len(), compiled.plan.slots.len(), compiled.plan.slots.iter().sum());
        if self.plans.len() >= MAX_PLANS {
            if let Some(oldest) = self.plans.iter().min_by_key(|(_, (_, used))| *used).map(|(k, _)| *k) {
                self.plans.remove(&oldest);
                self.stats.evicted += 1;
                events::plan_evicted(self.plans.len());
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
/// What an evaluation ran.
pub(super) struct Recorded {
    pub compiled: Arc<Compiled>,
    pub params: Vec<f64>,
    pub bound: Vec<Buffer>,
}

thread_local! {
    // Of the thread, not of the evaluator: evaluations of other threads are not what a recording asks for.
    static RECORD: Cell<bool> = const { Cell::new(false) };
    static RECORDED: Cell<Option<Recorded>> = const { Cell::new(None) };
}

/// Calls `f`, and gives what the first evaluation of this thread in it ran.
pub(super) fn recording<T>(f: impl FnOnce() -> T) -> (T, Option<Recorded>) {
    RECORD.set(true);
    let result = f();
    RECORD.set(false);
    (result, RECORDED.take())
}

/// Takes note of what ran, if this thread asked for it.
pub(super) fn record_if_asked(ran: impl FnOnce() -> Recorded) {
    if RECORD.take() {
        RECORDED.set(Some(ran()));
    }
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

/// What the evaluator of `device` did and does.
pub(crate) fn activity(device: &Device) -> Activity {
    let mut lock = Lock::of(device);
    let e = lock.get();
    Activity {
        stats: e.stats,
        samples: e.history.samples(),
        plans: e.plans.values().map(|(c, _)| c.plan.clone()).collect(),
        cut_at: e.cut_at,
        missed_at: e.missed_at,
    }
}

/// Statistics of the evaluator of `device`.
pub fn eval_stats(device: &Device) -> EvalStats {
    Lock::of(device).get().stats
}

/// The plans that a device keeps for evaluations to come, in no order.
pub fn cached_plans(device: &Device) -> Vec<Arc<Plan>> {
    Lock::of(device).get().plans.values().map(|(c, _)| c.plan.clone()).collect()
}

/// The plan that evaluating these tensors (of one device) would run, without running it.
///
/// # Errors
/// `TensorError::Unsupported` where the graph has too many nodes for one evaluation.
///
/// ```
/// use tensorlogic::{Device, Tensor, eval::plan_of};
/// let x = Tensor::new(&[1.0, 2.0], &Device::cpu())?;
/// let y = x.exp()?.add(1.0)?;
/// let plan = plan_of(&[&y])?.expect("y is not computed yet");
/// assert_eq!((plan.steps.len(), plan.params), (1, 1)); // both operations in one step; the 1.0 is given when it runs
/// y.eval()?;
/// assert!(plan_of(&[&y])?.is_none());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
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
