//! Biases of attention scores by the distance of query and key (Raffel et al., 2020), as MPNet and T5 have them.

use super::description::RelativeSpec;
use crate::device::Device;
use crate::error::TensorResult;
use crate::tensor::Tensor;
use std::ops::Range;

/// The bucket of the key that stands `distance` positions behind the query (before it, where negative). Half of the buckets are for keys behind; half
/// of these for single distances, the others for distances that grow by a factor each.
pub(crate) fn bucket(distance: i64, s: RelativeSpec) -> usize {
    let half = s.buckets / 2;
    let base = if distance > 0 { half } else { 0 };
    base + magnitude(distance.unsigned_abs() as usize, half, s.farthest)
}

/// The bucket of a distance without a sign among `buckets`.
pub(crate) fn magnitude(distance: usize, buckets: usize, farthest: usize) -> usize {
    let exact = buckets / 2;
    if distance < exact {
        return distance;
    }
    let grown = (distance as f64 / exact as f64).ln() / (farthest as f64 / exact as f64).ln() * (buckets - exact) as f64;
    (exact + grown as usize).min(buckets - 1)
}

/// The biases `[1,H,T,T]` of a text of `len` tokens, from the table `[rows,H]`.
pub(crate) fn biases(table: &Tensor, s: RelativeSpec, len: usize, device: &Device) -> TensorResult<Tensor> {
    let at = |query: usize| (0..len).map(move |key| bucket(key as i64 - query as i64, s) as i32);
    let buckets: Vec<i32> = (0..len).flat_map(at).collect();
    let buckets = Tensor::from_vec(buckets, &[len, len], device)?;
    table.embedding(&buckets)?.permute(&[2, 0, 1])?.unsqueeze(0) // [T, T, H] → [1, H, T, T]
}

/// As [`biases`] for queries at `queries` that see only keys before them, of the first `keys`: `[1,H,queries,keys]`. All buckets are for keys behind the
/// query.
pub(crate) fn biases_behind(table: &Tensor, s: RelativeSpec, queries: Range<usize>, keys: usize, device: &Device) -> TensorResult<Tensor> {
    let rows = queries.len();
    let at = |query: usize| (0..keys).map(move |key| magnitude(query.saturating_sub(key), s.buckets, s.farthest) as i32);
    let buckets = Tensor::from_vec(queries.flat_map(at).collect::<Vec<i32>>(), &[rows, keys], device)?;
    table.embedding(&buckets)?.permute(&[2, 0, 1])?.unsqueeze(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn buckets_are_those_of_the_paper() {
        // Raffel et al. 2020, appendix: 32 buckets, up to distance 128; worked out with their formula in Python.
        let s = RelativeSpec { rows: 32, buckets: 32, farthest: 128 };
        let got: Vec<usize> = [0, -1, -7, -8, -15, -16, -127, -1000, 1, 7, 8, 16, 1000].map(|d| bucket(d, s)).into();
        assert_eq!(got, [0, 1, 7, 8, 9, 10, 15, 15, 17, 23, 24, 26, 31]);
    }
}
