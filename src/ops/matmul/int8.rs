//! Products whose left side is rounded to int8, with weights in block formats: opt-in.

use super::{sizes, stream};
use crate::autograd::no_grad;
use crate::backends::cpu::operand::values;
use crate::backends::cpu::{dot, path, share};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::layout::Layout;
use crate::plan::{AdapterInfo, Kernel, Step, Task, Value, Wgsl};
use crate::shape::Shape;
use crate::tensor::{Grads, Key, Lowered, Meta, Op, Tensor, Vjp};
use std::panic::Location;
use std::sync::Arc;

/// a `[1, M, K]`, which is rounded, and b `[1, N, K]` in a block format to `[1, M, N]`, of few rows, on a processor.
#[derive(Clone, Debug)]
struct Int8MatMulKernel;

impl Kernel for Int8MatMulKernel {
    fn cpu(&self, task: &dyn Task) {
        let streamed = stream(task, &sizes(task.step()), true);
        assert!(streamed, "a product with activations of int8 has few rows and whole rows of blocks");
    }
    fn ops(&self, step: &Step) -> u64 {
        let s = sizes(step);
        2 * (s.m * s.n * s.k) as u64
    }
    fn wgsl(&self, _: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}

/// The product of x `[M, K]`, rounded, and the transpose of a weight `[N, K]`.
struct Int8MatMul;

impl Op for Int8MatMul {
    fn name(&self) -> &'static str {
        "matmul_int8"
    }
    fn key(&self, _: &mut Key) {}
    fn define(&self, inputs: &[Tensor]) -> Option<TensorResult<Tensor>> {
        Some(inputs[1].t().and_then(|w| inputs[0].rounded_to_int8()?.matmul(&w)))
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let load = |i: usize| {
            let dims = inputs[i].shape;
            (i, Layout::contiguous(dims), Shape::of(&[1, dims[0], dims[1]]))
        };
        let out = outputs[0].shape;
        let stores = vec![(0, Layout::contiguous(out), Shape::of(&[1, out[0], out[1]]))];
        Lowered::Kernel { kernel: Arc::new(Int8MatMulKernel), loads: vec![load(0), load(1)], stores }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        // As if nothing was rounded.
        Some(v.grad().matmul(&v.inputs[1]).map(|g| vec![Some(g), None]))
    }
}

/// Elements that a thread rounds at a time.
const PIECE_ELEMENTS: usize = 4096;

/// x `[count]` to the same, rounded, on a processor.
#[derive(Clone, Debug)]
struct Int8RoundKernel;

impl Kernel for Int8RoundKernel {
    fn cpu(&self, task: &dyn Task) {
        let count = task.step().loads[0].shape.count();
        let buffer: &mut [f32] = values(task, PIECE_ELEMENTS.min(count));
        for start in share(count, PIECE_ELEMENTS, task.thread(), task.threads()).step_by(PIECE_ELEMENTS) {
            let piece = &mut buffer[..PIECE_ELEMENTS.min(count - start)];
            task.load(0, start, f32::slice_mut(piece));
            dot::round_int8(path::current(), piece);
            task.store(0, start, f32::slice_mut(piece));
        }
    }
    fn ops(&self, step: &Step) -> u64 {
        4 * step.loads[0].shape.count() as u64
    }
    fn wgsl(&self, _: &Step, _: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}

/// Each 32 neighbours of x `[…, K]` as int8 times the largest of them over 127.
struct Int8Round;

impl Op for Int8Round {
    fn name(&self) -> &'static str {
        "round_int8"
    }
    fn key(&self, _: &mut Key) {}
    fn define(&self, inputs: &[Tensor]) -> Option<TensorResult<Tensor>> {
        let x = &inputs[0];
        let mut groups = x.dims().to_vec();
        let k = groups.pop().unwrap_or_default();
        groups.extend([k / dot::INT8_GROUP, dot::INT8_GROUP]);
        let run = || {
            let grouped = x.reshape(&groups)?;
            let most = grouped.abs()?.max(&[-1], true)?;
            let zero = most.lt(dot::INT8_SMALLEST)?;
            let inverse = zero.where_(0.0, &most.full_like(127.0)?.div(&most)?)?;
            let scale = zero.where_(0.0, &most.div(127.0)?)?;
            grouped.mul(&inverse)?.round()?.mul(&scale)?.reshape(x.dims())
        };
        Some(run())
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        let flat = |m: &Meta| (0, Layout::contiguous(m.shape), Shape::of(&[m.shape.count()]));
        Lowered::Kernel { kernel: Arc::new(Int8RoundKernel), loads: vec![flat(&inputs[0])], stores: vec![flat(&outputs[0])] }
    }
    fn grad(&self, v: &Vjp) -> Option<TensorResult<Grads>> {
        // As if nothing was rounded.
        Some(Ok(vec![Some(v.grad().clone())]))
    }
}

impl Tensor {
    /// Each 32 neighbours as int8 times the largest of them over 127; the gradient passes as if nothing was rounded.
    #[track_caller]
    fn rounded_to_int8(&self) -> TensorResult<Tensor> {
        let at = Location::caller();
        let meta = Meta { dtype: DType::F32, shape: *self.shape() };
        if self.device().backend().int8_rows() > 0 {
            return Tensor::op1(Int8Round, smallvec::smallvec![self.clone()], Default::default(), meta, at);
        }
        // A definition has the gradient of a rounding, which is 0.
        let rounded = no_grad(|| Int8Round.define(std::slice::from_ref(self)).unwrap_or_else(|| Ok(self.clone())))?;
        if self.is_tracked() { self.add(&rounded.sub(&self.detach())?) } else { Ok(rounded) }
    }

    /// The product of x `[…, K]`, each 32 neighbours rounded to int8 with a scale of their own, and the transpose of a weight `[N, K]` in a block format:
    /// `[…, N]`. For a few rows a processor multiplies integers where that is faster
    /// (`dot::gemv_int8`); otherwise the rounded numbers are multiplied as floats.
    ///
    /// # Errors
    /// Those of [`Tensor::matmul`].
    #[track_caller]
    pub(crate) fn matmul_int8(&self, weight: &Tensor) -> TensorResult<Tensor> {
        let at = Location::caller();
        let &[n, k] = weight.dims() else {
            return Err(TensorError::shape(
                "matmul_int8",
                at,
                format!("the weight must have two dimensions, not shape {}", weight.shape()),
            ));
        };
        let whole = weight.dtype().is_block() && weight.layout().is_contiguous() && weight.parts().is_none();
        let rows = self.numel() / k.max(1);
        let most = self.device().backend().int8_rows();
        if !whole || rows > most || rows == 0 || n * k == 0 || self.dtype() != DType::F32 || self.dims().last() != Some(&k) {
            return self.rounded_to_int8()?.matmul(&weight.t()?);
        }
        let mut dims = self.dims().to_vec();
        dims.pop();
        dims.push(n);
        let meta = Meta { dtype: DType::F32, shape: Shape::of(&[rows, n]) };
        let y = Tensor::op1(Int8MatMul, smallvec::smallvec![self.reshape(&[rows, k])?, weight.clone()], Default::default(), meta, at)?;
        y.reshape(&dims)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Device;
    use crate::backends::Bytes;
    use crate::quant::quantize;

    /// x `[rows, k]` and a weight `[40, k]` of this type.
    fn case(rows: usize, k: usize, dtype: DType) -> TensorResult<(Tensor, Tensor)> {
        let device = Device::cpu();
        let mut rng = crate::Rng::new((rows * 1000 + k) as u64);
        let x = rng.normal(&[rows, k], DType::F32, &device)?;
        let packed = quantize(dtype, &rng.normal(&[40, k], DType::F32, &device)?.to_vec()?)?;
        Ok((x, Tensor::from_bytes(Bytes::Owned(Arc::new(packed)), dtype, &[40, k], &device)?))
    }

    /// Rows that are multiplied as integers, and more of them: the sums in f64 of what the definition says.
    #[test]
    fn products_are_those_of_the_rounded_numbers() -> TensorResult<()> {
        for dtype in [DType::Q4_0, DType::Q4_1, DType::Q8_0, DType::Q4_K, DType::Q6_K] {
            for rows in [1, 2, 3, 4, 5, 8, 9, 40] {
                let k = 512;
                let (x, w) = case(rows, k, dtype)?;
                let (y, x, w) = (x.matmul_int8(&w)?.to_vec2::<f32>()?, x.to_vec2::<f32>()?, w.cast(DType::F32)?.to_vec2::<f32>()?);
                for (r, c) in (0..rows).flat_map(|r| (0..40).map(move |c| (r, c))) {
                    let (mut want, mut size) = (0.0, 0.0);
                    for (x, w) in x[r].chunks(32).zip(w[c].chunks(32)) {
                        let most = x.iter().fold(0.0, |m: f64, &x| m.max(f64::from(x).abs()));
                        for (&x, &w) in x.iter().zip(w) {
                            let product = (f64::from(x) * 127.0 / most).round_ties_even() * most / 127.0 * f64::from(w);
                            want += product;
                            size += product.abs();
                        }
                    }
                    // An integer that f32 rounds the other way is one of `most / 127` off.
                    let got = f64::from(y[r][c]);
                    assert!((got - want).abs() <= 2e-6 * size, "{dtype}, {rows} rows: [{r}, {c}] is {got} instead of {want}");
                }
            }
        }
        Ok(())
    }

    #[test]
    fn the_kernel_rounds_as_the_definition_does() -> TensorResult<()> {
        let (x, _) = case(7, 96, DType::Q8_0)?;
        let x = Tensor::cat(&[&x, &x.mul(1e-36)?, &x.mul(0.0)?], 0)?;
        let (got, want) = (x.rounded_to_int8()?.to_vec()?, Int8Round.define(std::slice::from_ref(&x)).expect("a definition")?.to_vec()?);
        for (i, (got, want)) in got.into_iter().zip(want).enumerate() {
            assert!((got - want).abs() <= 1e-6 * want.abs(), "{i}: {got} instead of {want}");
        }
        Ok(())
    }

    #[test]
    fn gradients_pass_as_if_nothing_was_rounded() -> TensorResult<()> {
        for rows in [1, 9] {
            let (x, w) = case(rows, 64, DType::Q8_0)?;
            let x = x.requires_grad()?;
            x.matmul_int8(&w)?.sum(&[], false)?.backward()?;
            let want = w.cast(DType::F32)?.sum(&[0], false)?.to_vec()?;
            for row in x.grad().expect("a gradient").to_vec2::<f32>()? {
                assert!(row.iter().zip(&want).all(|(g, w)| (g - w).abs() < 1e-4), "{row:?} instead of {want:?}");
            }
        }
        Ok(())
    }
}
