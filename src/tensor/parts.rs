//! Tensors that no one buffer of their device can hold: in parts, over which products and lookups are spread.

use super::{Inputs, Key, Kind, Lowered, Meta, Mode, Op, Tensor};
use crate::backends::Bytes;
use crate::device::Device;
use crate::error::{At, TensorResult};

/// Rows of a part are a multiple of this where it has as many, so that tiles of a product are whole.
const ROW_MULTIPLE: usize = 256;

/// Values side by side along a dimension, as `cat`, but in any dtype. Whoever stores it needs one buffer for it.
struct Parts {
    dim: usize,
    parts: Vec<Tensor>,
}

impl Op for Parts {
    fn name(&self) -> &'static str {
        "parts"
    }
    fn key(&self, key: &mut Key) {
        key.word(self.dim as u64);
    }
    fn define(&self, _: &[Tensor]) -> Option<TensorResult<Tensor>> {
        None
    }
    fn lower(&self, inputs: &[Meta], outputs: &[Meta]) -> Lowered {
        Lowered::side_by_side(self.dim, inputs, outputs)
    }
    fn parts(&self) -> Option<(usize, &[Tensor])> {
        Some((self.dim, &self.parts))
    }
}

impl Tensor {
    /// One tensor of parts side by side along dimension `dim`, which have one dtype and agree in all other sizes.
    pub(crate) fn of_parts(dim: usize, parts: Vec<Tensor>, at: At) -> TensorResult<Tensor> {
        let size = parts.iter().map(|p| p.shape()[dim]).sum();
        let meta = Meta { dtype: parts[0].dtype(), shape: parts[0].shape().with(dim, size) };
        let inputs: Inputs = parts.iter().cloned().collect();
        Tensor::op1(Parts { dim, parts }, inputs, Default::default(), meta, at)
    }

    /// The dimension along which this tensor is in parts, and these; `None` where one buffer holds it.
    pub(crate) fn parts(&self) -> Option<(usize, &[Tensor])> {
        match &self.node.kind {
            Kind::Op(op) => op.parts(),
            _ => None,
        }
    }

    /// What `run` makes of each part, side by side along dimension `dim`.
    pub(crate) fn each_part(
        (dim, parts): (usize, &[Tensor]),
        at: At,
        run: impl Fn(&Tensor) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let made = Mode { at: Some(at), ..Mode::current() }.run(|| parts.iter().map(run).collect::<TensorResult<_>>())?;
        Tensor::of_parts(dim, made, at)
    }

    /// What the parts have at these indices of the dimension along which they are parts: `of` gives a part's, whose first index is its second argument, at
    /// indices of its own, and `spread` makes the choice between parts, one for each index, as wide as what they give. A bad index is the first part's.
    pub(crate) fn at_indices(
        (dim, parts): (usize, &[Tensor]),
        index: &Tensor,
        spread: impl Fn(Tensor) -> TensorResult<Tensor>,
        of: impl Fn(&Tensor, usize, &Tensor) -> TensorResult<Tensor>,
    ) -> TensorResult<Tensor> {
        let between = |from: usize, to: usize| index.ge(from as i64)?.bitwise_and(&index.lt(to as i64)?);
        let all = parts.iter().map(|part| part.dims()[dim]).sum();
        let mut start = parts[0].dims()[dim];
        let mut found = of(&parts[0], 0, &between(start, all)?.where_(0i64, index)?.cast(index.dtype())?)?;
        for part in &parts[1..] {
            let end = start + part.dims()[dim];
            let inside = between(start, end)?;
            let own = inside.where_(&index.sub(start as i64)?, 0i64)?.cast(index.dtype())?;
            found = spread(inside)?.where_(&of(part, start, &own)?, &found)?;
            start = end;
        }
        Ok(found)
    }

    /// The range `start..start + len` of the dimension along which these are parts.
    pub(crate) fn narrow_parts((dim, parts): (usize, &[Tensor]), start: usize, len: usize, at: At) -> TensorResult<Tensor> {
        let mut first = 0;
        let of_part = |part: &Tensor| {
            let size = part.shape()[dim];
            let (from, to) = (start.max(first), (start + len).min(first + size));
            first += size;
            (from < to).then(|| part.narrow(dim, from + size - first, to - from))
        };
        let mode = Mode { at: Some(at), ..Mode::current() };
        let mut kept = mode.run(|| parts.iter().filter_map(of_part).collect::<TensorResult<Vec<_>>>())?;
        match kept.len() {
            0 => mode.run(|| parts[0].narrow(dim, 0, 0)),
            1 => Ok(kept.remove(0)),
            _ => Tensor::of_parts(dim, kept, at),
        }
    }

    /// These bytes as parts along dimension 0 that a buffer of at most `most` bytes holds each; `None` where a row is larger, or all of it is one row of blocks.
    pub(super) fn upload_parts(bytes: &Bytes, meta: Meta, device: &Device, most: usize, at: At) -> TensorResult<Option<Tensor>> {
        let rows = meta.shape.dims().first().copied().unwrap_or(0);
        if rows == 0 || meta.shape.rank() == 1 && meta.dtype.is_block() {
            return Ok(None);
        }
        let row_bytes = bytes.len() / rows;
        let fitting = most / row_bytes;
        let height = if fitting > ROW_MULTIPLE { fitting / ROW_MULTIPLE * ROW_MULTIPLE } else { fitting };
        if height == 0 {
            return Ok(None);
        }
        let part = |start: usize| {
            let len = height.min(rows - start);
            let shape = meta.shape.with(0, len);
            let buffer = device.upload(bytes.range(start * row_bytes, len * row_bytes))?;
            Ok(Tensor::leaf(device, Meta { shape, ..meta }, buffer, "from_bytes", at))
        };
        let parts = (0..rows).step_by(height).map(part).collect::<TensorResult<Vec<_>>>()?;
        Tensor::of_parts(0, parts, at).map(Some)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::dtype::DType;
    use crate::error::TensorError;
    use std::panic::Location;

    fn values(shape: &[usize], seed: usize) -> Tensor {
        let n: usize = shape.iter().product();
        let v: Vec<f32> = (0..n).map(|i| (((i + seed) * 2_654_435_761) >> 9 & 255) as f32 / 64.0 - 2.0).collect();
        Tensor::from_vec(v, shape, &Device::cpu()).unwrap()
    }

    /// A tensor, and the same in parts of these sizes along dimension 0.
    fn both(shape: &[usize], sizes: &[usize]) -> [Tensor; 2] {
        let whole = values(shape, 1);
        let parts = whole.split_with_sizes(sizes, 0).unwrap();
        let parts = parts.iter().map(|p| p.contiguous().unwrap()).collect();
        [whole, Tensor::of_parts(0, parts, Location::caller()).unwrap()]
    }

    #[track_caller]
    fn check(pair: &[Tensor; 2], run: impl Fn(&Tensor) -> TensorResult<Tensor>) {
        let [whole, parts] = pair.each_ref().map(|t| run(t).unwrap());
        assert_eq!(whole.dims(), parts.dims());
        for (a, b) in whole.to_vec().unwrap().iter().zip(parts.to_vec().unwrap()) {
            assert!((a - b).abs() <= 1e-5 * a.abs().max(1.0), "{a} and {b}");
        }
    }

    #[test]
    fn products_and_lookups_are_those_of_the_whole() {
        let ints = |v: Vec<i32>, shape: &[usize]| Tensor::from_vec(v, shape, &Device::cpu()).unwrap();
        let matrix = both(&[11, 6], &[4, 1, 6]);
        check(&matrix, |w| Ok(w.clone()));
        check(&matrix, |w| values(&[2, 3, 6], 5).matmul(&w.t()?));
        check(&matrix, |w| values(&[6], 5).matmul(&w.t()?));
        check(&matrix, |w| values(&[2, 11], 7).matmul(w));
        check(&matrix, |w| values(&[2, 3], 7).matmul(&w.narrow(1, 2, 3)?.t()?));
        for (start, len) in [(0, 4), (3, 3), (4, 1), (2, 9), (5, 0)] {
            check(&matrix, |w| values(&[2, 6], 5).matmul(&w.narrow(0, start, len)?.t()?));
        }
        check(&matrix, |w| w.embedding(&ints(vec![10, 0, 3, 4, 5, 10], &[2, 3])));
        check(&matrix, |w| w.t()?.index_select(1, &ints(vec![4, 0, 10], &[3])));
        check(&matrix, |w| w.index_select(1, &ints(vec![5, 0], &[2])));
        check(&matrix, |w| {
            let x = values(&[2, 6], 5).requires_grad()?;
            x.matmul(&w.t()?)?.square()?.sum_all()?.backward()?;
            x.grad().ok_or_else(|| TensorError::Internal("no gradient".into()))
        });
        let experts = both(&[5, 3, 6], &[2, 3]);
        let (ids, bias) = (ints(vec![0, 4, 2, 1], &[2, 2]), values(&[5, 3], 9));
        check(&experts, |w| values(&[2, 6], 5).expert_linear(w, Some(&bias), &ids));
        check(&experts, |w| values(&[2, 2, 6], 5).expert_sum(w, None, &ids, &values(&[2, 2], 3)));
    }

    #[test]
    fn bytes_are_cut_between_rows() {
        let (cpu, at) = (Device::cpu(), Location::caller());
        let packed = crate::quant::quantize(DType::Q8_0, &values(&[10, 32], 3).to_vec().unwrap()).unwrap();
        let bytes = Bytes::Owned(packed.into());
        let whole = Tensor::from_bytes(bytes.clone(), DType::Q8_0, &[10, 32], &cpu).unwrap();
        let upload = |shape: &[usize], most| {
            let meta = Meta { dtype: DType::Q8_0, shape: crate::shape::Shape::of(shape) };
            Tensor::upload_parts(&bytes, meta, &cpu, most, at).unwrap()
        };
        for (most, count) in [(34, 10), (101, 5), (136, 3)] {
            let parts = upload(&[10, 32], most).unwrap();
            assert_eq!(parts.parts().unwrap().1.len(), count);
            check(&[whole.clone(), parts], |w| values(&[2, 32], 5).matmul(&w.t()?));
        }
        // A row is never cut.
        assert!(upload(&[10, 32], 33).is_none() && upload(&[320], 200).is_none());
    }

    #[test]
    fn sizes_that_differ_are_errors() {
        let [_, matrix] = both(&[5, 3], &[2, 3]);
        for right in [matrix.clone(), matrix.t().unwrap()] {
            let e = values(&[2, 4], 5).matmul(&right).unwrap_err().to_string();
            assert!(e.contains("inner sizes 4 and"), "{e}");
        }
    }
}
