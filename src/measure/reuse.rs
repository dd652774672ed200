//! How far back intermediates were touched when a plan reads them: what a cache must hold for a read not to go to memory.

use crate::io::human_bytes;
use crate::plan::Plan;
use serde_json::{Value, json};
use std::fmt;

/// The bytes that plans read of intermediates, by their reuse distance: the bytes that steps moved since the same memory was last touched. Counted
/// from the plans ([`Plan::reuse_distances`]), not measured.
///
/// ```
/// # use tensorlogic::{Device, DType, Tensor, measure::ReuseHistogram};
/// let x = Tensor::ones(&[64, 64], DType::F32, &Device::cpu())?;
/// let y = x.matmul(&x)?.softmax(-1)?.matmul(&x)?;
/// let plan = tensorlogic::eval::plan_of(&[&y])?.expect("something is pending");
/// let reuse = ReuseHistogram::of([&*plan]);
/// assert_eq!(reuse.total(), plan.reuse_distances().iter().map(|(_, bytes)| bytes).sum::<u64>());
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ReuseHistogram {
    /// Bytes read within each distance of [`ReuseHistogram::BOUNDS`] and beyond the one before; the last are those beyond all of them.
    pub bytes: [u64; 7],
}

impl ReuseHistogram {
    /// The distances in bytes that are told apart.
    pub const BOUNDS: [u64; 6] = [4 << 10, 32 << 10, 256 << 10, 2 << 20, 16 << 20, 128 << 20];

    /// Of all reads of these plans.
    pub fn of<'p>(plans: impl IntoIterator<Item = &'p Plan>) -> ReuseHistogram {
        let mut out = ReuseHistogram::default();
        for (distance, bytes) in plans.into_iter().flat_map(Plan::reuse_distances) {
            out.bytes[Self::BOUNDS.partition_point(|&bound| bound < distance)] += bytes;
        }
        out
    }

    /// All bytes read of intermediates.
    pub fn total(&self) -> u64 {
        self.bytes.iter().sum()
    }

    /// The classes that have bytes, with their bound; the last has none.
    fn rows(&self) -> impl Iterator<Item = (Option<u64>, u64)> {
        let bounds = Self::BOUNDS.into_iter().map(Some).chain([None]);
        bounds.zip(self.bytes).filter(|(_, bytes)| *bytes > 0)
    }

    /// The classes that have bytes, as a JSON array; `within_bytes` of the last, which has no bound, is null.
    pub fn to_json(&self) -> Value {
        self.rows().map(|(bound, bytes)| json!({ "within_bytes": bound, "bytes": bytes })).collect()
    }
}

impl fmt::Display for ReuseHistogram {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let percent = |bytes: u64| 100.0 * bytes as f64 / self.total() as f64;
        let rows: Vec<String> = self
            .rows()
            .map(|(bound, bytes)| match bound {
                Some(bound) => format!("{:.0} % within {}", percent(bytes), human_bytes(bound)),
                None => format!("{:.0} % beyond", percent(bytes)),
            })
            .collect();
        f.write_str(if rows.is_empty() { "nothing is read again" } else { "" })?;
        f.write_str(&rows.join(", "))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::eval::plan_of;
    use crate::{DType, Tensor};

    #[test]
    fn bytes_are_counted_by_their_distance() {
        let device = crate::device::under_test::cpu();
        let plan_of_width = |n: usize| {
            let x = Tensor::ones(&[n, n], DType::F32, &device).unwrap();
            x.eval().unwrap();
            let first = x.matmul(&x).unwrap();
            let last = first.softmax(-1).unwrap().matmul(&x).unwrap();
            plan_of(&[&last.matmul(&first).unwrap()]).unwrap().unwrap()
        };
        // Four reads of intermediates of 4n² bytes: three by the step after the one that wrote them, and one of the first product once the softmax and
        // the second product have moved five such matrices.
        let (small, large) = (plan_of_width(32), plan_of_width(512));
        assert_eq!(ReuseHistogram::of([&*small]).bytes, [3 << 12, 1 << 12, 0, 0, 0, 0, 0]);
        assert_eq!(ReuseHistogram::of([&*small, &*large]).bytes, [(3 << 12) + (3 << 20), 1 << 12, 0, 0, 1 << 20, 0, 0]);
        assert_eq!(ReuseHistogram { bytes: [0, 3, 0, 0, 0, 0, 1] }.to_string(), "75 % within 32 KiB, 25 % beyond");
        assert_eq!(ReuseHistogram::default().to_string(), "nothing is read again");
        let json = ReuseHistogram { bytes: [0, 3, 0, 0, 0, 0, 1] }.to_json();
        assert_eq!(json, json!([{ "within_bytes": 32768, "bytes": 3 }, { "within_bytes": null, "bytes": 1 }]));
    }
}
