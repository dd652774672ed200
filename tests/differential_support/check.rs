//! One graph on one machine after the other, forward and backward, against f64.

use super::graph::{Graph, Kind, Program, tensor};
use crate::conformance_support::{Array, noise, read};
use std::time::{Duration, Instant};
use tensorlogic::eval::eval_all;
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// Elements of the leaves whose gradient is compared with finite differences.
const SAMPLES: usize = 5;

/// What a machine gave: the roots, and each float leaf's gradient.
struct Results {
    roots: Vec<Array>,
    gradients: Vec<Array>,
}

/// Runs a graph, with gradients or without, on the CPU in f64, on the CPU and on the GPU, if there is one, in its own type.
///
/// # Errors
/// What differs, in words; with the time that the GPU took otherwise.
pub fn check(graph: &Graph, gradients: bool, gpu: Option<&Device>) -> Result<Duration, String> {
    let program = graph.program().map_err(|e| format!("f64 on the CPU, step by step: {e}"))?;
    if program.calls.is_empty() {
        return Ok(Duration::ZERO);
    }
    let leaves: Vec<Option<Array>> = program.leaves.iter().map(|l| l.as_ref().map(|l| l.array())).collect();
    let cpu = Device::cpu();
    let exact = run(&program, &leaves, DType::F64, gradients, &cpu).map_err(|e| format!("f64 on the CPU: {e}"))?;
    compare_roots(&program, &exact, "f64 on the CPU", |error, scale| 1e-5 * error + 1e-9 * scale.max(1.0))?;
    let spread = if gradients { gradient_errors(&program, &leaves, &exact, &cpu)? } else { Vec::new() };
    let mut took = Duration::ZERO;
    for device in [Some(&cpu), gpu].into_iter().flatten() {
        let name = format!("{} on {}", program.dtype, if device.is_cpu() { "the CPU".into() } else { device.name() });
        let start = Instant::now();
        let got = run(&program, &leaves, program.dtype, gradients, device).map_err(|e| format!("{name}: {e}"))?;
        took = start.elapsed();
        compare_roots(&program, &got, &name, |error, scale| 8.0 * error + 1e-6 * scale)?;
        for ((k, (g, w)), tolerance) in program.float_leaves().iter().zip(got.gradients.iter().zip(&exact.gradients)).zip(&spread) {
            compare(&format!("{name}: the gradient of v{k}"), g, w, *tolerance)?;
        }
    }
    Ok(if gpu.is_some() { took } else { Duration::ZERO })
}

/// Builds the program on a device and evaluates its roots, and with `gradients` those of their weighted sum, in one plan.
fn run(program: &Program, leaves: &[Option<Array>], dtype: DType, gradients: bool, device: &Device) -> TensorResult<Results> {
    let floats = program.float_leaves();
    let mut values: Vec<Option<Tensor>> = Vec::new();
    for (i, a) in leaves.iter().enumerate() {
        let made = match a {
            Some(a) => {
                let kind = program.values[i].as_ref().expect("a leaf is a value").kind;
                let t = tensor(a, kind, dtype, device)?;
                Some(if gradients && floats.contains(&i) { t.requires_grad()? } else { t })
            }
            None => None,
        };
        values.push(made);
    }
    values.resize(program.values.len(), None);
    for (i, call) in &program.calls {
        let inputs: Vec<Tensor> = call.inputs.iter().map(|&k| values[k].clone().expect("made before")).collect();
        values[*i] = Some((call.run)(&inputs)?);
    }
    let of = |i: &usize| values[*i].clone().expect("made before");
    let roots: Vec<Tensor> = program.roots().iter().map(of).collect();
    let leaves: Vec<Tensor> = floats.iter().map(of).collect();
    if gradients {
        if let Some(total) = total(program, &roots, dtype)?.filter(Tensor::is_tracked) {
            total.backward()?;
        }
    }
    let found: Vec<Option<Tensor>> = leaves.iter().map(Tensor::grad).collect();
    eval_all(&roots.iter().chain(found.iter().flatten()).collect::<Vec<_>>())?;
    let array = |t: &Tensor| Ok(Array { shape: t.dims().to_vec(), data: read(t)? });
    let gradient = |(g, leaf): (&Option<Tensor>, &Tensor)| match g {
        Some(g) => array(g),
        None => Ok(Array { shape: leaf.dims().to_vec(), data: vec![0.0; leaf.numel()] }),
    };
    Ok(Results {
        roots: roots.iter().map(array).collect::<TensorResult<_>>()?,
        gradients: if gradients { found.iter().zip(&leaves).map(gradient).collect::<TensorResult<_>>()? } else { Vec::new() },
    })
}

/// The weight of a root's element in the sum that is differentiated, which every type holds.
fn weight(i: usize) -> f64 {
    1.0 + (i * 37 % 64) as f64 / 64.0
}

fn total(program: &Program, roots: &[Tensor], dtype: DType) -> TensorResult<Option<Tensor>> {
    let wide = if dtype == DType::F64 { DType::F64 } else { DType::F32 };
    let mut sum: Option<Tensor> = None;
    for (i, y) in program.roots().into_iter().zip(roots) {
        if program.values[i].as_ref().is_none_or(|v| v.kind != Kind::Float) {
            continue;
        }
        let weights = Array { shape: y.dims().to_vec(), data: (0..y.numel()).map(weight).collect() };
        let part = y.cast(wide)?.mul(&tensor(&weights, Kind::Float, wide, y.device())?)?.sum_all()?;
        sum = Some(match sum {
            Some(s) => s.add(&part)?,
            None => part,
        });
    }
    Ok(sum)
}

/// The same sum by the reference.
fn exact_total(program: &Program, leaves: &[Option<Array>]) -> TensorResult<f64> {
    let values = program.exact(leaves)?;
    let float = |i: &usize| program.values[*i].as_ref().is_some_and(|v| v.kind == Kind::Float);
    let sum = |i: usize| values[i].as_ref().map_or(0.0, |a| a.data.iter().enumerate().map(|(n, v)| weight(n) * v).sum::<f64>());
    Ok(program.roots().into_iter().filter(float).map(sum).sum())
}

/// Compares the f64 gradients with finite differences, and says how far those in another type may be from them.
fn gradient_errors(program: &Program, leaves: &[Option<Array>], exact: &Results, cpu: &Device) -> Result<Vec<f64>, String> {
    let floats = program.float_leaves();
    let largest = exact.gradients.iter().flat_map(|g| &g.data).fold(1.0f64, |m, v| m.max(v.abs()));
    if !program.calls.iter().any(|(_, c)| c.cuts) {
        finite_differences(program, leaves, exact, largest)?;
    }
    // The same from leaves that are a little different: what rounding does to the gradients.
    let unit = super::graph::unit(program.dtype);
    let mut moved = leaves.to_vec();
    for &i in &floats {
        let a = moved[i].as_mut().expect("a leaf that is read");
        let signs = noise(a.data.len(), 17 + i as u64);
        a.data.iter_mut().zip(signs).for_each(|(v, s)| *v += 4.0 * unit * if s < 0.5 { -1.0 } else { 1.0 });
    }
    let other = run(program, &moved, DType::F64, true, cpu).map_err(|e| format!("f64 on the CPU, moved: {e}"))?;
    let apart = |(a, b): (&Array, &Array)| a.data.iter().zip(&b.data).fold(0.0f64, |m, (x, y)| m.max((x - y).abs()));
    let spread = exact.gradients.iter().zip(&other.gradients).map(apart).fold(0.0, f64::max);
    // Where a small move changes all of it, nothing can be said.
    let tolerance = if spread > 0.2 * largest { f64::INFINITY } else { 10.0 * spread + 40.0 * unit * largest };
    Ok(vec![tolerance; floats.len()])
}

fn finite_differences(program: &Program, leaves: &[Option<Array>], exact: &Results, largest: f64) -> Result<(), String> {
    let fail = |e: tensorlogic::TensorError| format!("finite differences: {e}");
    let places: Vec<(usize, usize)> =
        program.float_leaves().iter().enumerate().flat_map(|(k, _)| (0..exact.gradients[k].data.len()).map(move |i| (k, i))).collect();
    let step = (places.len() / SAMPLES).max(1);
    for &(k, i) in places.iter().skip(places.len() % step).step_by(step) {
        let leaf = program.float_leaves()[k];
        let at = |by: f64| {
            let mut moved = leaves.to_vec();
            moved[leaf].as_mut().expect("a leaf that is read").data[i] += by;
            exact_total(program, &moved)
        };
        let slope = |h: f64| Ok((at(h)? - at(-h)?) / (2.0 * h));
        let (coarse, fine) = (slope(2e-4).map_err(fail)?, slope(1e-4).map_err(fail)?);
        let got = exact.gradients[k].data[i];
        let tolerance = 3.0 * (coarse - fine).abs() + 1e-5 * largest.max(fine.abs());
        if !((got - fine).abs() <= tolerance) {
            return Err(format!("f64 on the CPU: the gradient of v{leaf}, element {i}, is {got}; finite differences give {fine}"));
        }
    }
    Ok(())
}

fn compare_roots(program: &Program, got: &Results, name: &str, tolerance: impl Fn(f64, f64) -> f64) -> Result<(), String> {
    for (i, root) in program.roots().into_iter().zip(&got.roots) {
        let want = program.values[i].as_ref().expect("a root is a value");
        let allowed = if want.kind == Kind::Float { tolerance(want.error, want.scale()) } else { 0.0 };
        compare(&format!("{name}: v{i}"), root, &want.array, allowed)?;
    }
    Ok(())
}

fn compare(name: &str, got: &Array, want: &Array, tolerance: f64) -> Result<(), String> {
    if got.shape != want.shape || got.data.len() != want.data.len() {
        return Err(format!("{name} has shape {:?} and {} elements, not {:?}", got.shape, got.data.len(), want.shape));
    }
    for (i, (g, w)) in got.data.iter().zip(&want.data).enumerate() {
        if !((g - w).abs() <= tolerance) {
            return Err(format!(
                "{name}, element {i}, is {g}, not {w} (within {tolerance:.1e})\n  got  {:?}\n  want {:?}",
                short(&got.data),
                short(&want.data)
            ));
        }
    }
    Ok(())
}

fn short(v: &[f64]) -> Vec<f32> {
    v.iter().take(16).map(|&x| x as f32).collect()
}
