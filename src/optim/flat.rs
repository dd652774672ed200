//! Updates from gradients that were summed outside of the device, and groups of which this process updates a slice (Rajbhandari et al., 2020: ZeRO,
//! stage 1). A slice is a buffer of its own, which the rule updates as it would the whole, bit for bit.

use super::{Group, Optimizer, clip};
use crate::autograd::no_grad;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::eval::{Download, eval_all};
use crate::tensor::Tensor;
use std::collections::BTreeMap;

/// The gradient of a step, after it was summed.
pub(crate) struct Summed {
    /// For each group, the gradient of the part that this process updates, a vector on the device, still multiplied by the loss scale.
    pub grads: Vec<Tensor>,
    /// The sum of squares of the whole gradient; not finite where an element is not. Not read without [`Optimizer::needs_norm`].
    pub squares: f64,
}

/// Values of gradients in a piece at least, and pieces at most.
const MIN_PART_ELEMENTS: usize = 1 << 20;
const MAX_PARTS: usize = 7;

/// The number of a parameter's layer, which is the first number in its name.
fn layer(name: &str) -> Option<usize> {
    name.split('.').find_map(|part| part.parse().ok())
}

impl Optimizer {
    /// The length of each group's buffer.
    pub(crate) fn lengths(&self) -> Vec<usize> {
        self.groups.iter().map(|g| g.flat.numel()).collect()
    }

    /// The pieces in which gradients are computed, the last layers' first, as a backward pass has them: for each piece, where its part of each group begins;
    /// it ends where the piece before begins. They follow from the parameters alone. Pieces are whole layers; what is in front of the first layer is the last
    /// piece, since embeddings have their gradient at the very end, whatever their size.
    pub(crate) fn pieces(&self) -> Vec<Vec<usize>> {
        let pieces = (self.lengths().iter().sum::<usize>() / MIN_PART_ELEMENTS).clamp(1, MAX_PARTS);
        let in_front: Vec<usize> = self.groups.iter().map(Group::in_front_of_layers).collect();
        let layers = if pieces > 1 && in_front.iter().any(|n| *n > 0) { pieces - 1 } else { pieces };
        let cuts: Vec<Vec<usize>> = self.groups.iter().map(Group::cuts).collect();
        let begin = |group: usize, n: usize| {
            let (end, front) = (self.groups[group].flat.numel(), in_front[group]);
            let at = front + (end - front) * layers.saturating_sub(n) / layers;
            cuts[group].iter().copied().find(|start| *start >= at).unwrap_or(end)
        };
        let of = |n: usize| (0..self.groups.len()).map(|group| if n == pieces { 0 } else { begin(group, n) }).collect();
        let mut all: Vec<Vec<usize>> = (1..=pieces).map(of).collect();
        // Without pieces that have nothing.
        all.dedup();
        all
    }

    /// The gradients collected so far, not computed yet, and forgotten by the parameters: for each piece, the part of each group, `None` where it has none.
    pub(crate) fn take_gradients(&mut self, pieces: &[Vec<usize>]) -> TensorResult<Vec<Vec<Option<Tensor>>>> {
        let mut ends = self.lengths();
        let mut all = Vec::new();
        for begins in pieces {
            let parts = self.groups.iter().zip(begins.iter().zip(&ends));
            let part = |(g, (&begin, &end)): (&Group, (&usize, &usize))| match begin < end {
                true => g.gradients_of(begin..end).map(Some),
                false => Ok(None),
            };
            all.push(no_grad(|| parts.map(part).collect::<TensorResult<Vec<_>>>())?);
            ends.clone_from(begins);
        }
        self.zero_grad()?;
        Ok(all)
    }

    /// Whether an update asks for the gradient's norm.
    pub(crate) fn needs_norm(&self) -> bool {
        self.max_norm.is_some() || self.scaler.is_some()
    }

    /// One update from a gradient that is known. Loss scale and clipping are as in [`Optimizer::step`], with the norm that is given.
    pub(crate) fn step_from(&mut self, summed: Summed) -> TensorResult<()> {
        self.run(&[], |o| o.build_from(summed))
    }

    fn build_from(&mut self, summed: Summed) -> TensorResult<()> {
        let device = self.device();
        let number = |v: f64| Tensor::from_vec(vec![v as f32], &[], &device);
        let mut grads = summed.grads;
        // What all groups share is computed first: kernels of an update then read it, whether there are several groups that do or one.
        let mut factors = Vec::new();
        let mut keep = None;
        let mut norm = number(summed.squares.sqrt())?;
        if let Some(s) = &mut self.scaler {
            let inverse = s.scale().reciprocal()?;
            let finite = number(summed.squares)?.isfinite()?;
            norm = norm.mul(&inverse)?;
            factors.push(inverse);
            s.decide(&finite)?;
            keep = Some(finite);
        }
        if let Some(max) = self.max_norm {
            factors.push(clip::factor(&norm, max)?);
            self.norm = Some(norm);
        }
        eval_all(&factors.iter().chain(&keep).chain(&self.norm).collect::<Vec<_>>())?;
        for factor in &factors {
            grads = grads.iter().map(|g| g.mul(factor)).collect::<TensorResult<_>>()?;
        }
        // Not inside of the rule's kernels: a driver may join this factor with the rule's own, in one way in a kernel that uses the product once, and in
        // another where two states use it; and which states share a kernel depends on how long a slice is.
        eval_all(&grads.iter().collect::<Vec<_>>())?;
        self.update(grads, keep.as_ref())
    }

    /// Where each of `ranks` slices of a group begins, and the end; `cut` says where slices of so many values may be cut.
    pub(crate) fn slices(&self, group: usize, ranks: usize, cut: impl Fn(usize, usize) -> Vec<usize>) -> Vec<usize> {
        let g = &self.groups[group];
        let len = g.flat.numel();
        let even = cut(len, ranks);
        if g.rule.is_elementwise() {
            return even;
        }
        let begins = || g.members.iter().map(|m| m.start).chain([len]);
        even.iter().map(|&at| begins().min_by_key(|b| b.abs_diff(at)).unwrap_or(len)).collect()
    }

    /// From here on this process updates, and remembers for, these parts of the groups alone. What it remembers of them stays.
    pub(crate) fn keep_slices(&mut self, own: Vec<std::ops::Range<usize>>) -> TensorResult<()> {
        for (g, own) in self.groups.iter_mut().zip(own) {
            g.own = own;
            let states = g.states.iter().map(|s| g.part(s)).collect::<TensorResult<Vec<_>>>()?;
            (g.slice, g.states) = (Some(g.part(&g.flat)?), states);
        }
        let kept: Vec<&Tensor> = self.groups.iter().flat_map(|g| g.states.iter().chain(&g.slice)).collect();
        eval_all(&kept)
    }

    /// The values that this process updates of each group, on their way to the host.
    pub(crate) fn own_values(&self) -> TensorResult<Vec<Download>> {
        self.groups.iter().map(|g| g.slice.as_ref().unwrap_or(&g.flat).download()).collect()
    }

    /// Replaces the values of each group, some of which other ranks have updated.
    pub(crate) fn set_values(&mut self, values: Vec<Vec<f32>>) -> TensorResult<()> {
        for (g, values) in self.groups.iter_mut().zip(values) {
            g.flat = Tensor::from_vec(values, &[g.flat.numel()], g.flat.device())?;
            if let Some(s) = &mut g.shadow {
                *s = no_grad(|| s.write(&g.flat.cast(s.dtype())?, 0, 0))?;
            }
        }
        let roots: Vec<&Tensor> = self.groups.iter().flat_map(|g| g.shadow.iter().chain([&g.flat])).collect();
        eval_all(&roots)?;
        self.publish()
    }

    /// Every parameter in full precision.
    pub(crate) fn values(&self) -> TensorResult<Vec<(String, Tensor)>> {
        self.groups.iter().flat_map(|g| g.members.iter().map(|m| Ok((m.name.clone(), m.part(&g.flat)?)))).collect()
    }

    /// How many states each group has.
    pub(crate) fn state_counts(&self) -> Vec<usize> {
        self.groups.iter().map(|g| g.states.len()).collect()
    }

    /// The part of state `k` of a group that this process remembers.
    pub(crate) fn own_state(&self, group: usize, k: usize) -> TensorResult<Vec<f32>> {
        self.groups[group].states[k].to_vec()
    }

    /// As [`Optimizer::state`], with states of whole groups that were gathered from all ranks.
    pub(crate) fn state_with(&self, gathered: Vec<Vec<Vec<f32>>>) -> TensorResult<(BTreeMap<String, Tensor>, u64)> {
        let cpu = crate::device::Device::cpu();
        let tensor = |values: Vec<f32>| {
            let len = values.len();
            Tensor::from_vec(values, &[len], &cpu)
        };
        let states = gathered.into_iter().map(|g| g.into_iter().map(tensor).collect()).collect::<TensorResult<Vec<_>>>()?;
        self.state_of(&states)
    }

    /// Bytes of the states that this process remembers.
    ///
    /// ```
    /// # use tensorlogic::nn::Param;
    /// # use tensorlogic::optim::{AdamW, Optimizer};
    /// # use tensorlogic::{DType, Device, Tensor};
    /// # fn main() -> tensorlogic::TensorResult<()> {
    /// let weight = Param::new(&Tensor::zeros(&[8, 16], DType::F32, &Device::cpu())?)?;
    /// let optimizer = Optimizer::new(AdamW::default(), vec![("weight".into(), weight)], 1e-3)?;
    /// assert_eq!(optimizer.state_bytes(), 2 * 8 * 16 * 4); // mean and mean of squares in f32
    /// # Ok(())
    /// # }
    /// ```
    pub fn state_bytes(&self) -> usize {
        self.groups.iter().flat_map(|g| &g.states).map(|s| s.numel() * DType::F32.block_bytes()).sum()
    }
}

impl Group {
    /// Values in front of the first layer; 0 where there are no layers.
    fn in_front_of_layers(&self) -> usize {
        self.members.iter().find(|m| layer(&m.name).is_some()).map_or(0, |m| m.start)
    }

    /// Where pieces may begin: at layers, or at any parameter where there are none.
    fn cuts(&self) -> Vec<usize> {
        let layers: Vec<_> = self.members.iter().map(|m| layer(&m.name)).collect();
        let some = layers.iter().any(Option::is_some);
        let begins = |n: usize| n == 0 || !some || layers[n] != layers[n - 1];
        self.members.iter().enumerate().filter(|(n, _)| begins(*n)).map(|(_, m)| m.start).collect()
    }

    /// The part of `whole` that this process updates, in memory of its own even where it is all of it.
    pub(super) fn part(&self, whole: &Tensor) -> TensorResult<Tensor> {
        let values: Vec<f32> = whole.narrow(0, self.own.start, self.own.len())?.to_vec()?;
        Tensor::from_vec(values, &[self.own.len()], whole.device())
    }
}
