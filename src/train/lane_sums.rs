//! Pieces of the gradient, summed over the lanes of one rank, and where the sums go.

use super::buckets::Buckets;
use crate::distributed::sums::{Tree, add_tensors};
use crate::error::TensorResult;
use crate::eval::{Download, eval_all};
use crate::tensor::Tensor;
use std::collections::VecDeque;

/// A piece of the gradient, for each group, summed over lanes on the device.
#[derive(Default)]
pub(super) struct LaneSums(Tree<Vec<Option<Tensor>>>);

impl LaneSums {
    /// The next lane's gradients, which are computed.
    pub fn push(&mut self, grads: Vec<Option<Tensor>>) -> TensorResult<()> {
        self.0.push_with(grads, |left, right| {
            let sum = |(a, b): (&Option<Tensor>, &Option<Tensor>)| a.as_ref().zip(b.as_ref()).map(|(a, b)| add_tensors(a, b)).transpose();
            let sums = left.iter().zip(&right).map(sum).collect::<TensorResult<Vec<_>>>()?;
            // An evaluation of its own: a driver may round a sum in another way where it is part of what computes a gradient.
            eval_all(&sums.iter().flatten().collect::<Vec<_>>())?;
            Ok(sums)
        })
    }

    /// The sums over all lanes, a power of two.
    pub fn take(&mut self) -> Vec<Option<Tensor>> {
        self.0.pop().unwrap_or_default()
    }
}

/// Where sums over the lanes of this rank go.
pub(super) enum Destination<'a> {
    /// They stay on the device: the pieces, in order.
    Device(Vec<Vec<Option<Tensor>>>),
    /// They are exchanged with those of other ranks by way of the host.
    Host {
        buckets: Buckets<'a>,
        under_way: VecDeque<UnderWay>,
        /// The beginning of each group's last part, which goes with the rest of its block.
        left: Vec<Option<Tensor>>,
    },
}

impl<'a> Destination<'a> {
    pub fn device() -> Self {
        Destination::Device(Vec::new())
    }

    pub fn host(buckets: Buckets<'a>) -> Self {
        Destination::Host { buckets, under_way: VecDeque::new(), left: Vec::new() }
    }

    /// The next piece's sums.
    pub fn push(&mut self, piece: usize, sums: Vec<Option<Tensor>>) -> TensorResult<()> {
        match self {
            Destination::Device(pieces) => pieces.push(sums),
            Destination::Host { buckets, under_way, left } => {
                let before = under_way.len();
                left.resize(sums.len(), None);
                let parts = sums.into_iter().zip(left).enumerate();
                let blocks =
                    parts.map(|(group, (sum, left))| whole_blocks(buckets, (piece, group), sum, left)).collect::<TensorResult<Vec<_>>>()?;
                let values = blocks.iter().map(|b| b.as_ref().map(Tensor::download).transpose()).collect::<TensorResult<_>>()?;
                under_way.push_back(UnderWay { piece, values });
                // What was submitted before this has had its time.
                for n in 0..=before {
                    if n < before || under_way.front().is_some_and(UnderWay::is_ready) {
                        under_way.pop_front().map_or(Ok(()), |u| u.arrive(buckets))?;
                    }
                }
            }
        }
        Ok(())
    }

    /// Waits for what is on its way to the host.
    pub fn finish(&mut self) -> TensorResult<()> {
        match self {
            Destination::Device(_) => Ok(()),
            Destination::Host { buckets, under_way, .. } => under_way.drain(..).try_for_each(|u| u.arrive(buckets)),
        }
    }
}

/// Parts of a group's buffer, one behind the other.
pub(super) fn joined(parts: &[Tensor]) -> TensorResult<Option<Tensor>> {
    match parts {
        [] => Ok(None),
        [one] => Ok(Some(one.clone())),
        _ => Tensor::cat(&parts.iter().collect::<Vec<_>>(), 0).map(Some),
    }
}

/// The whole blocks of a piece's part of a group, with what the piece before it left of its last one. What this one leaves is in `left` then.
fn whole_blocks(
    buckets: &Buckets<'_>,
    (piece, group): (usize, usize),
    sum: Option<Tensor>,
    left: &mut Option<Tensor>,
) -> TensorResult<Option<Tensor>> {
    let parts: Vec<Tensor> = sum.into_iter().chain(left.take()).collect();
    let Some(all) = joined(&parts)? else { return Ok(None) };
    let len = all.numel();
    let kept = buckets.left(piece, group, len);
    *left = if kept > 0 { Some(all.narrow(0, 0, kept)?) } else { None };
    if kept < len { Ok(Some(all.narrow(0, kept, len - kept)?)) } else { Ok(None) }
}

/// A piece of the gradient, summed over this rank's lanes, on its way to the host.
pub(super) struct UnderWay {
    piece: usize,
    /// For each group.
    values: Vec<Option<Download>>,
}

impl UnderWay {
    fn is_ready(&self) -> bool {
        self.values.iter().flatten().all(Download::is_ready)
    }

    /// Waits for the values, and exchanges them.
    fn arrive(self, buckets: &mut Buckets<'_>) -> TensorResult<()> {
        let values = self.values.into_iter().map(|v| v.map_or(Ok(Vec::new()), Download::wait::<f32>)).collect::<TensorResult<_>>()?;
        buckets.start(self.piece, values)
    }
}
