//! Pieces of the gradient, summed over the lanes of one rank, and where the sums go.

use super::buckets::{Buckets, UnderWay};
use crate::distributed::sums::{Tree, add_tensors};
use crate::error::TensorResult;
use crate::eval::eval_all;
use crate::tensor::Tensor;

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
pub(super) enum Destination {
    /// They stay on the device: the pieces, in order.
    Device(Vec<Vec<Option<Tensor>>>),
    /// They are exchanged with those of other ranks by way of the host.
    Ranks {
        under_way: UnderWay,
        /// The beginning of each group's last part, which goes with the rest of its block.
        left: Vec<Option<Tensor>>,
    },
}

impl Destination {
    pub fn device() -> Self {
        Destination::Device(Vec::new())
    }

    pub fn ranks(under_way: UnderWay) -> Self {
        Destination::Ranks { under_way, left: Vec::new() }
    }

    /// The next piece's sums.
    pub fn push(&mut self, piece: usize, sums: Vec<Option<Tensor>>) -> TensorResult<()> {
        match self {
            Destination::Device(pieces) => {
                pieces.push(sums);
                Ok(())
            }
            Destination::Ranks { under_way, left } => {
                left.resize(sums.len(), None);
                let parts = sums.into_iter().zip(left).enumerate();
                let buckets = under_way.buckets();
                let blocks =
                    parts.map(|(group, (sum, left))| whole_blocks(buckets, (piece, group), sum, left)).collect::<TensorResult<Vec<_>>>()?;
                eval_all(&blocks.iter().flatten().collect::<Vec<_>>())?;
                under_way.push(piece, &blocks)
            }
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
    buckets: &Buckets,
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
