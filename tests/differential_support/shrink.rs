//! A graph that fails, made as small as it can be while it fails.

use super::graph::{Graph, Kind};
use std::time::{Duration, Instant};
use tensorlogic::DType;

/// How long a graph is made smaller.
const TIME: Duration = Duration::from_secs(60);

/// The smallest graph found for which `fails` gives a reason, with that reason.
pub fn shrink(graph: Graph, reason: String, fails: impl Fn(&Graph) -> Option<String>) -> (Graph, String) {
    let start = Instant::now();
    let (mut best, mut why) = (graph, reason);
    'again: loop {
        for smaller in variants(&best) {
            if start.elapsed() > TIME {
                break 'again;
            }
            if let Some(reason) = fails(&smaller) {
                (best, why) = (smaller, reason);
                continue 'again;
            }
        }
        break;
    }
    (best, why)
}

/// Graphs that are smaller than this one by one thing, the largest things first.
fn variants(g: &Graph) -> Vec<Graph> {
    let mut all = Vec::new();
    let mut add = |change: &dyn Fn(&mut Graph)| {
        let mut other = g.clone();
        change(&mut other);
        all.push(other);
    };
    for i in (0..g.steps.len()).filter(|&i| g.steps[i].is_some()) {
        add(&|g| g.steps[i] = None);
    }
    for (i, leaf) in g.leaves.iter().enumerate() {
        let Some(leaf) = leaf else { continue };
        if g.leaves.iter().flatten().count() > 1 {
            add(&|g| g.leaves[i] = None);
        }
        for d in 0..leaf.shape.len() {
            add(&|g| {
                g.leaves[i].as_mut().expect("a leaf").shape.remove(d);
            });
            for size in [1, 2, leaf.shape[d] / 2, leaf.shape[d].saturating_sub(1)] {
                if size < leaf.shape[d] && size > 0 {
                    // The same size everywhere, so that leaves still fit each other, or here alone.
                    add(&|g| {
                        let old = leaf.shape[d];
                        g.leaves.iter_mut().flatten().flat_map(|l| &mut l.shape).filter(|s| **s == old).for_each(|s| *s = size);
                    });
                    add(&|g| g.leaves[i].as_mut().expect("a leaf").shape[d] = size);
                }
            }
        }
        if leaf.kind != Kind::Float {
            add(&|g| g.leaves[i].as_mut().expect("a leaf").kind = Kind::Float);
        }
    }
    if g.dtype != DType::F32 {
        add(&|g| g.dtype = DType::F32);
    }
    for (i, step) in g.steps.iter().enumerate() {
        let Some(step) = step else { continue };
        for k in (0..step.choices.len()).filter(|&k| step.choices[k] != 0) {
            add(&|g| g.steps[i].as_mut().expect("a step").choices[k] = 0);
        }
        if step.choices.last() == Some(&0) {
            let used = step.choices.iter().rposition(|&c| c != 0).map_or(0, |k| k + 1);
            add(&|g| g.steps[i].as_mut().expect("a step").choices.truncate(used));
        }
    }
    all
}
