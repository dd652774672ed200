//! What two evaluations of one graph have in common: stored by the first, it is not computed again by the second.

use super::evaluator::{Lock, base};
use crate::tensor::{Kind, Node, Tensor};
use std::collections::HashSet;

/// The pending values that are computed on the way to `first` and read on the way to `rest`. Evaluated together with `first`, they are all that `rest`
/// needs of that work. All tensors are of one device.
pub(crate) fn frontier(first: &[&Tensor], rest: &[&Tensor]) -> Vec<Tensor> {
    let Some(device) = first.first().map(|t| t.device().clone()) else { return Vec::new() };
    let _lock = Lock::of(&device);
    let mut before = HashSet::new();
    walk(first, &mut before, |_| true);
    let (mut seen, mut common, mut found) = (HashSet::new(), Vec::new(), HashSet::new());
    // A root of both is evaluated with the first.
    let own: Vec<&Tensor> = rest.iter().copied().filter(|t| !before.contains(&key(base(t).0))).collect();
    walk(&own, &mut seen, |input| {
        let (node, out) = base(input);
        if !before.contains(&key(node)) {
            return true;
        }
        if found.insert((key(node), out)) {
            common.push(whole(input));
        }
        false
    });
    common
}

fn key(node: &Node) -> *const Node {
    node
}

/// The value that a view shows, or the value itself.
fn whole(t: &Tensor) -> Tensor {
    match t.node.kind {
        // SAFETY: a view is never stored, so its input never changes.
        Kind::View(_) => unsafe { t.node.inputs()[0].clone() },
        _ => t.clone(),
    }
}

/// Passes everything pending under `roots` once; `enter` says whether what is below an input counts.
fn walk(roots: &[&Tensor], seen: &mut HashSet<*const Node>, mut enter: impl FnMut(&Tensor) -> bool) {
    let mut stack: Vec<*const Node> = Vec::new();
    let mut push = |stack: &mut Vec<*const Node>, t: &Tensor| {
        let (node, _) = base(t);
        if node.stored.get().is_none() && seen.insert(key(node)) {
            stack.push(node);
        }
    };
    roots.iter().for_each(|t| push(&mut stack, t));
    while let Some(node) = stack.pop() {
        // SAFETY: the roots keep the nodes alive, and inputs change only under the lock that the caller holds.
        let inputs = unsafe { (*node).inputs() };
        for input in inputs.iter() {
            if base(input).0.stored.get().is_none() && enter(input) {
                push(&mut stack, input);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::error::TensorResult;
    use crate::eval::{eval_all, eval_stats};

    #[test]
    fn what_two_evaluations_share_is_computed_once() -> TensorResult<()> {
        // A device of the test's own, whose counts no other test changes.
        let device = Device::from_backend(crate::backends::cpu::CpuBackend::with_threads(1));
        let t = |k: usize| Tensor::from_vec((0..64).map(|i| ((i * k) as f32 * 0.3).sin()).collect::<Vec<f32>>(), &[8, 8], &device);
        let graph = || -> TensorResult<[Tensor; 2]> {
            let hidden = t(1)?.matmul(&t(2)?)?.relu()?;
            let next = hidden.transpose(0, 1)?.matmul(&t(3)?)?;
            Ok([next.exp()?, next.matmul(&hidden)?.add(&hidden)?])
        };
        let dispatches = |work: &dyn Fn() -> TensorResult<()>| -> TensorResult<u64> {
            let before = eval_stats(&device).steps;
            work()?;
            Ok(eval_stats(&device).steps - before)
        };
        let [a, b] = graph()?;
        let together = dispatches(&|| eval_all(&[&a, &b]))?;
        let [c, d] = graph()?;
        let common = frontier(&[&c], &[&d]);
        assert_eq!(common.len(), 2, "the hidden layer and the next one's product");
        let first = dispatches(&|| eval_all(&[&c].into_iter().chain(&common).collect::<Vec<_>>()))?;
        let second = dispatches(&|| eval_all(&[&d]))?;
        assert!(first + second <= together + 1, "{first} and {second}, together {together}");
        assert_eq!((a.to_vec()?, b.to_vec()?), (c.to_vec()?, d.to_vec()?));
        // What is stored already is not common work.
        assert!(frontier(&[&c], &[&d]).is_empty());
        Ok(())
    }
}
