//! Random graphs evaluated at once, which fuses, and step by step, which does not; both against f64.

use crate::conformance_support::{devices, noise, read};
use tensorlogic::eval::eval_all;
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// Choices that look random and are the same every time.
struct Dice(u64);
impl Dice {
    fn roll(&mut self, sides: usize) -> usize {
        self.0 = self.0.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        ((self.0 >> 33) as usize) % sides.max(1)
    }
}

/// What a graph is made of.
#[derive(Clone, Copy, PartialEq)]
pub(crate) enum Diet {
    /// Elementwise functions and views.
    Elementwise,
    /// Also reductions, products, softmax, norms, concatenations and window writes.
    All,
}

/// A graph over leaves of the same values. `settle` is applied to every tensor that is made.
pub(crate) struct Grower<'a> {
    pub device: &'a Device,
    pub dtype: DType,
    pub settle: &'a dyn Fn(&Tensor) -> TensorResult<()>,
}

impl Grower<'_> {
    fn leaf(&self, shape: &[usize], seed: u64) -> TensorResult<Tensor> {
        let values = noise(shape.iter().product(), seed).into_iter().map(|v| (4.0 * v - 2.0) as f32);
        match self.dtype {
            DType::F64 => Tensor::from_vec(values.map(f64::from).collect(), shape, self.device),
            _ => Tensor::from_vec(values.collect(), shape, self.device),
        }
    }

    /// Grows `steps` operations by the dice; the last few tensors are the results. `data` picks the leaves' values and numbers, not the structure.
    pub fn grow(&self, seed: u64, data: u64, diet: Diet, steps: usize) -> TensorResult<Vec<Tensor>> {
        let mut dice = Dice(seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1);
        let mut pool = Vec::new();
        for (n, shape) in [&[4usize, 6][..], &[6], &[4, 1], &[3, 4, 6], &[1]].into_iter().enumerate() {
            pool.push(self.leaf(shape, data * 100 + n as u64)?);
        }
        let number = noise(64, data + 77);
        for step in 0..steps {
            // Young tensors are taken more often.
            let x = pool[if dice.roll(3) > 0 { pool.len() - 1 - dice.roll(3.min(pool.len())) } else { dice.roll(pool.len()) }].clone();
            let y = pool[dice.roll(pool.len())].clone();
            let choice = dice.roll(if diet == Diet::All { 25 } else { 16 });
            let made = self.operation(choice, &x, &y, number[step] + 0.5, &mut dice)?;
            // Numbers stay near 1, so that errors stay comparable.
            let made = if step % 4 == 3 { made.tanh()? } else { made };
            if made.numel() == 0 || made.numel() > 2000 || made.rank() > 5 {
                continue;
            }
            (self.settle)(&made)?;
            pool.push(made);
        }
        let first = pool.len() - 1 - dice.roll(3.min(pool.len() - 5));
        Ok(pool.split_off(first))
    }

    fn operation(&self, choice: usize, x: &Tensor, y: &Tensor, number: f64, dice: &mut Dice) -> TensorResult<Tensor> {
        let sizes = |t: &Tensor| t.dims().iter().map(|&d| d as isize).collect::<Vec<_>>();
        let d = dice.roll(x.rank());
        let last = x.dims().last().copied().unwrap_or(1);
        // A partner whose shape broadcasts, else the tensor itself.
        let fits = |a: &Tensor, b: &Tensor| a.add(b).is_ok();
        let y = if fits(x, y) { y.clone() } else { x.clone() };
        match choice {
            0 => x.add(&y),
            1 => x.sub(&y),
            2 => x.tanh()?.mul(&y),
            3 => x.div(&y.abs()?.add(1.5)?),
            4 => x.maximum(&y)?.neg(),
            5 => x.sigmoid()?.mul(number),
            6 => x.minimum(number)?.exp(),
            7 => x.gelu(),
            8 => x.abs()?.add(0.5)?.sqrt()?.add(x),
            9 => x.leaky_relu(0.125),
            10 => x.sin()?.mul(x)?.add(number),
            // Views
            11 => x.t()?.contiguous(),
            12 => x.reshape(&[-1, last as isize])?.flip(0),
            13 if x.dims()[d] > 1 => x.narrow(d as isize, dice.roll(x.dims()[d] - 1), 2)?.add(1.0),
            14 => x.unsqueeze(d as isize)?.expand(&[&sizes(x)[..d], &[2], &sizes(x)[d..]].concat()),
            15 => x.flatten(0, -1)?.reshape(&sizes(x)),
            // Kernels
            16 => x.sum(&[d as isize], true)?.mul(0.2),
            17 => x.mean(&[-1], false)?.unsqueeze(-1),
            18 => x.max(&[d as isize], true),
            19 => x.softmax(-1)?.mul(&y),
            20 => x.layer_norm(None, None, 0.1),
            21 => {
                // A square matrix of the last dimension's size, out of the other tensor.
                let wide = y.flatten(0, -1)?.narrow(0, 0, 1)?.expand(&[last as isize])?;
                x.reshape(&[-1, last as isize])?.matmul(&wide.unsqueeze(0)?.mul(&x.flatten(0, -1)?.narrow(0, 0, last)?.unsqueeze(1)?)?)
            }
            22 => Tensor::cat(&[x, &x.mul(number)?], d as isize),
            23 if x.dims()[d] > 1 => x.write(&x.narrow(d as isize, 0, 1)?.add(1.0)?, d as isize, 1),
            24 => x.rms_norm(None, 0.1)?.add(&y),
            _ => x.neg(),
        }
    }
}

/// Evaluates one structure three ways for two sets of values and compares.
fn check(device: &Device, seed: u64, diet: Diet, steps: usize, exact: bool, tolerance: f64) {
    let lazy = |_: &Tensor| Ok(());
    let eager = |t: &Tensor| t.eval().map(|_| ());
    // The second set of values runs the cached plan.
    for data in 0..2 {
        let run = |device: &Device, dtype: DType, settle: &dyn Fn(&Tensor) -> TensorResult<()>| -> TensorResult<Vec<Vec<f64>>> {
            let roots = Grower { device, dtype, settle }.grow(seed, data + 1, diet, steps)?;
            eval_all(&roots.iter().collect::<Vec<_>>())?;
            roots.iter().map(read).collect()
        };
        let name = format!("graph {seed} with data {data} on {}", device.name());
        let fused = run(device, DType::F32, &lazy).unwrap_or_else(|e| panic!("{name}: {e}"));
        let single = run(device, DType::F32, &eager).unwrap_or_else(|e| panic!("{name}, step by step: {e}"));
        let wide = run(&Device::cpu(), DType::F64, &eager).unwrap_or_else(|e| panic!("{name} in f64: {e}"));
        for (root, ((a, b), c)) in fused.iter().zip(&single).zip(&wide).enumerate() {
            assert!(a.len() == b.len() && b.len() == c.len(), "{name}, result {root}: sizes");
            let scale = c.iter().fold(1.0f64, |m, v| m.max(v.abs()));
            for i in 0..a.len() {
                assert!(!exact || a[i].to_bits() == b[i].to_bits(), "{name}, result {root}, element {i}: {} fused, {} alone", a[i], b[i]);
                for (how, v) in [("fused", a[i]), ("step by step", b[i])] {
                    assert!((v - c[i]).abs() <= tolerance * scale, "{name}, result {root}, element {i}, {how}: {v} instead of {}", c[i]);
                }
            }
        }
    }
}

#[test]
fn fused_elementwise_work_has_the_same_bits_on_the_cpu() {
    for seed in 0..200 {
        check(&Device::cpu(), seed, Diet::Elementwise, 5 + seed as usize % 16, true, 1e-4);
    }
}

#[test]
fn fused_graphs_agree_with_f64() {
    for device in devices() {
        let (graphs, tolerance) = if device.is_cpu() { (300, 1e-4) } else { (40, 1e-3) };
        for seed in 0..graphs {
            check(&device, 1000 + seed, Diet::All, 5 + seed as usize % 16, false, tolerance);
        }
    }
}
