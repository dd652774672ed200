//! Graph in, plan out. The passes, in order: common subexpressions, users, fusion and emission of steps, siblings, order, fusion, memory.

mod expr;
mod fuse;
mod fuse_gemv;
mod memory;
mod padding;
mod placement;
mod schedule;
mod views;

use crate::backends::FusedGemvLimits;
use crate::error::{TensorError, TensorResult};
use crate::events::{SpanKind, span};
use crate::plan::{Buf, BufferOrder, Input, Plan};
use crate::tensor::{Kind, Meta, Node};
use smallvec::SmallVec;
use std::collections::HashMap;

pub(crate) use views::compose;

/// A pending graph in topological order, as `eval` collected it.
pub(crate) struct Graph<'a> {
    /// Every node passed, inputs before users.
    pub nodes: Vec<GNode<'a>>,
    /// How many run-time parameters the nodes have in all.
    pub params: usize,
}

/// One node of a collected graph.
pub(crate) struct GNode<'a> {
    pub node: &'a Node,
    /// Position and output number of each input; empty for stored nodes.
    pub inputs: SmallVec<[(u32, u32); 3]>,
    /// Index of the node's first run-time parameter.
    pub params: usize,
    /// The value is in memory already: its number among the bound inputs.
    pub bound: Option<u16>,
    /// The value must be stored.
    pub keep: bool,
    /// An in-place op that may overwrite its first input.
    pub donated: bool,
}

/// A plan and where the caller finds what it kept.
pub(crate) struct Compiled {
    pub plan: std::sync::Arc<Plan>,
    /// For each kept node (position in the graph): where each of its outputs is.
    pub kept: Vec<(u32, SmallVec<[Buf; 1]>)>,
    /// Nodes of the graph.
    pub nodes: usize,
    /// How much there is to do.
    pub work: crate::plan::WorkCost,
    /// How its parameters grow where it is repeated as the steps of a generation, once that is known.
    pub growth: std::sync::OnceLock<Vec<f64>>,
}

impl<'a> GNode<'a> {
    pub(crate) fn meta(&self, out: u32) -> Meta {
        self.node.metas[out as usize]
    }
    pub(crate) fn is_view(&self) -> bool {
        self.bound.is_none() && matches!(self.node.kind, Kind::View(_))
    }
    pub(crate) fn is_map(&self) -> bool {
        self.bound.is_none() && matches!(self.node.kind, Kind::Map(..))
    }
}

/// What a plan is made for.
pub(crate) struct CompileOptions<'a> {
    /// How many buffers the backend can bind in one step.
    pub buffers: usize,
    /// Whether anything fuses; else every node is a step of its own.
    pub fuse: bool,
    /// Up to how many rows the backend does several products at once.
    pub fused_gemv: Option<FusedGemvLimits>,
    /// How intermediates are placed in memory.
    pub order: BufferOrder,
    /// Whether a step may read one part of a buffer and write another.
    pub ranges: bool,
    /// Whether a part of a buffer can be bound as a buffer of its own.
    pub windows: bool,
    /// Bytes of one memory transaction.
    pub line: usize,
    /// The bytes that the pool takes for a request.
    pub leased: &'a dyn Fn(usize) -> usize,
    /// Whether the backend has buffers of so many bytes.
    pub fits: &'a dyn Fn(usize) -> bool,
}

/// Nodes of a graph, and parameters, at most: plans number them in 16 bits.
const MAX_NODES: usize = 60_000;

/// Compiles a graph.
pub(crate) fn compile(mut graph: Graph, options: &CompileOptions<'_>) -> TensorResult<Compiled> {
    if graph.nodes.len() > MAX_NODES || graph.params > MAX_NODES {
        return Err(TensorError::Unsupported(format!("an evaluation of {} nodes; call eval() in between", graph.nodes.len())));
    }
    let same = {
        let _span = span(SpanKind::PassCommon);
        merge_common(&mut graph)
    };
    loop {
        let (steps, inputs) = emit(&graph, &same, options);
        match steps.overwritten_too_early(&graph) {
            // Something would read the old value after it is gone: that write goes elsewhere.
            Some(node) => graph.nodes[node as usize].donated = false,
            None => {
                let _span = span(SpanKind::PassMemory);
                return memory::plan(steps, &graph, &same, inputs, options);
            }
        }
    }
}

/// Steps of a graph, and what they are bound to.
fn emit(graph: &Graph, same: &[u32], options: &CompileOptions<'_>) -> (fuse::Steps, Vec<Input>) {
    let CompileOptions { buffers, fuse, fused_gemv, .. } = *options;
    let mut inputs = Vec::new();
    for n in &graph.nodes {
        if n.bound.is_some() {
            for m in &n.node.metas {
                inputs.push(Input { dtype: m.dtype, written: false });
            }
        }
    }
    let mut steps = {
        let _span = span(SpanKind::PassFuse);
        let users = users(graph, same);
        fuse::Fuser::new(graph, same, &users, buffers, fuse).run()
    };
    if fuse {
        let _span = span(SpanKind::PassSiblings);
        steps.merge_siblings(buffers);
    }
    let kept: Vec<bool> = steps.values.iter().map(|v| v.of.is_some_and(|(n, _)| graph.nodes[n as usize].keep)).collect();
    {
        let _span = span(SpanKind::PassOrder);
        steps.schedule_for_memory(|v| kept[v]);
    }
    if let Some(limits) = fused_gemv.filter(|_| fuse) {
        let _span = span(SpanKind::PassProducts);
        steps.fuse_gemvs(fuse_gemv::GemvFusion { buffers, limits }, |v| kept[v]);
    }
    (steps, inputs)
}

/// For each node the first node of the same structure over the same inputs. Nodes with run-time parameters are never merged: the parameters
/// may differ in the next run.
fn merge_common(graph: &mut Graph) -> Vec<u32> {
    type Structure = (u64, SmallVec<[(u32, u32); 3]>);
    let mut first: HashMap<Structure, u32> = HashMap::new();
    let mut same: Vec<u32> = Vec::with_capacity(graph.nodes.len());
    for i in 0..graph.nodes.len() {
        let n = &mut graph.nodes[i];
        for input in n.inputs.iter_mut() {
            input.0 = same[input.0 as usize];
        }
        let merge = n.bound.is_none() && n.node.params.is_empty() && !n.donated;
        let canonical = if merge { *first.entry((n.node.key, n.inputs.clone())).or_insert(i as u32) } else { i as u32 };
        same.push(canonical);
        if canonical != i as u32 && graph.nodes[i].keep {
            graph.nodes[canonical as usize].keep = true;
        }
    }
    same
}

/// For each node the distinct live nodes that read it, looking through views.
fn users(graph: &Graph, same: &[u32]) -> Vec<SmallVec<[u32; 4]>> {
    let mut users = vec![SmallVec::new(); graph.nodes.len()];
    let mut live = vec![false; graph.nodes.len()];
    for i in (0..graph.nodes.len()).rev() {
        let n = &graph.nodes[i];
        live[i] |= n.keep && same[i] == i as u32;
        if !live[i] {
            continue;
        }
        for &(input, _) in &n.inputs {
            live[input as usize] = true;
            if n.is_view() {
                continue;
            }
            let mut base = input as usize;
            if graph.nodes[base].is_view() {
                base = graph.nodes[base].inputs[0].0 as usize;
                live[base] = true;
            }
            let list: &mut SmallVec<[u32; 4]> = &mut users[base];
            if list.last() != Some(&(i as u32)) {
                list.push(i as u32);
            }
        }
    }
    users
}
