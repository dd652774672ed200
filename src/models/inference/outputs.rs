//! What an inference gives: tensors in host memory, and where its time went.

use crate::device::Device;
use crate::error::TensorResult;
use crate::strategy::PipelineStrategy;
use crate::tensor::Tensor;
use std::fmt;
use std::time::Duration;

/// The results of [`Inference::run`](super::Inference::run), in f32 and in host memory: tensors of [`Device::cpu`].
#[derive(Clone, Debug)]
pub struct Outputs {
    /// Logits `[B,V]` of each row's last valid token; with [`Inference::all_logits`](super::Inference::all_logits) `[B,T,V]`, of every
    /// token.
    pub logits: Tensor,
    /// Hidden states `[B,T,d]` after the final norm: transformers' `hidden_states[-1]`. Those of padding mean nothing.
    pub hidden_states: Tensor,
    /// With [`Inference::layers`](super::Inference::layers), transformers' `hidden_states`: the input `[B,T,d]` of each block, and last the
    /// states after the final norm.
    pub layers: Option<Vec<Tensor>>,
    /// With [`Inference::log_probs`](super::Inference::log_probs), the natural logarithm `[B,T]` of the probability of each token after
    /// those before it. 0 for padding and for the first token of a row, so that the sum over a row is its log-likelihood.
    pub log_probs: Option<Tensor>,
    /// Where the time went.
    pub times: Stages,
    /// Bytes that the model read besides its weights: tokens or embeddings, and where needed positions and mask.
    pub bytes_in: u64,
    /// Bytes of the results that were copied to the host (of the CPU's: that are there).
    pub bytes_out: u64,
    /// The device's name.
    pub device: String,
    /// The strategy that it ran by; what was chosen, where that is [`PipelineStrategy::Auto`].
    pub strategy: PipelineStrategy,
    /// Row by row, whether there was a token.
    pub(super) valid: Vec<bool>,
}

/// How the hidden states of a row become one vector.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Pooling {
    /// The mean over the row's tokens.
    Mean,
    /// That of its last token, which has seen all others.
    Last,
    /// That of its first token, `[CLS]` of an encoder.
    Cls,
    /// The largest value of each component.
    Max,
    /// The sum over the row's n tokens by √n.
    MeanSqrtLength,
    /// The mean with weights that are the tokens' numbers, counted from 1.
    WeightedMean,
}

impl fmt::Display for Pooling {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Pooling::Mean => "mean",
            Pooling::Last => "last",
            Pooling::Cls => "cls",
            Pooling::Max => "max",
            Pooling::MeanSqrtLength => "mean-sqrt-length",
            Pooling::WeightedMean => "weighted-mean",
        })
    }
}

impl Outputs {
    /// One embedding `[B,d]` per row, of the hidden states of its tokens; sums are in f64.
    ///
    /// # Errors
    /// Those of the evaluation.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inference, Inputs, Padding, Pooling};
    /// use tensorlogic::models::{self, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// let outputs = Inference::new(&*model).run(&Inputs::padded(&[vec![5, 6, 7], vec![8]], Padding::Left)?)?;
    /// let vectors = outputs.pooled(Pooling::Last)?;
    /// assert_eq!(vectors.dims(), [2, 384]);
    /// assert_eq!(vectors.to_vec()?[..384], outputs.token_states(0)?[2]); // the state of the last token
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn pooled(&self, pooling: Pooling) -> TensorResult<Tensor> {
        pooled(&self.hidden_states, &self.valid, pooling)
    }

    /// The hidden states of a row's tokens, without those of padding.
    ///
    /// # Errors
    /// Those of the evaluation, or when there is no such row.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inference, Inputs, Padding};
    /// use tensorlogic::models::{self, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// let outputs = Inference::new(&*model).run(&Inputs::padded(&[vec![5, 6, 7], vec![8]], Padding::Left)?)?;
    /// let states = outputs.token_states(1)?;
    /// assert_eq!((states.len(), states[0].len()), (1, 384)); // one token: two of the three columns are padding
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn token_states(&self, row: usize) -> TensorResult<Vec<Vec<f32>>> {
        token_states(&self.hidden_states, &self.valid, row)
    }
}

/// The states of a row of `[B,T,d]` that are `valid`.
pub(crate) fn token_states(states: &Tensor, valid: &[bool], row: usize) -> TensorResult<Vec<Vec<f32>>> {
    let (len, width) = (states.dims()[1], states.dims()[2]);
    let states = states.narrow(0, row, 1)?.to_vec()?;
    let valid = &valid[row * len..][..len];
    Ok(states.chunks(width).zip(valid).filter(|(_, v)| **v).map(|(state, _)| state.to_vec()).collect())
}

/// One vector `[B,d]` per row of hidden states `[B,T,d]`, of those that are `valid`; sums are in f64.
pub(crate) fn pooled(states: &Tensor, valid: &[bool], pooling: Pooling) -> TensorResult<Tensor> {
    let [batch, len, width] = states.dims() else { return Ok(states.clone()) };
    let values = states.to_vec()?;
    let mut out = Vec::with_capacity(batch * width);
    for (row, valid) in values.chunks(len * width).zip(valid.chunks(*len)) {
        let tokens: Vec<&[f32]> = row.chunks(*width).zip(valid).filter(|(_, v)| **v).map(|(state, _)| state).collect();
        let n = tokens.len() as f64;
        let weighted = |i: usize, weight: &dyn Fn(usize) -> f64| -> f64 {
            tokens.iter().enumerate().map(|(t, state)| f64::from(state[i]) * weight(t)).sum()
        };
        match pooling {
            Pooling::Last => out.extend_from_slice(tokens.last().copied().unwrap_or_default()),
            Pooling::Cls => out.extend_from_slice(tokens.first().copied().unwrap_or_default()),
            Pooling::Max => out.extend((0..*width).map(|i| tokens.iter().map(|state| state[i]).fold(f32::NEG_INFINITY, f32::max))),
            Pooling::Mean => out.extend((0..*width).map(|i| (weighted(i, &|_| 1.0) / n) as f32)),
            Pooling::MeanSqrtLength => out.extend((0..*width).map(|i| (weighted(i, &|_| 1.0) / n.sqrt()) as f32)),
            Pooling::WeightedMean => {
                let all = n * (n + 1.0) / 2.0;
                out.extend((0..*width).map(|i| (weighted(i, &|t| (t + 1) as f64) / all) as f32));
            }
        }
    }
    Tensor::from_vec(out, &[*batch, *width], &Device::cpu())
}

/// Wall-clock times of the stages of an inference, each measured where the work happens. Every moment belongs to one stage: their sum is
/// the time that [`Inference::run`](super::Inference::run) took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Stages {
    /// Checking the inputs, building the graph, finding its plan, taking memory.
    pub prepare: Duration,
    /// Making a plan and compiling kernels; next to nothing once a plan for these sizes exists.
    pub compile: Duration,
    /// Binding buffers and recording commands.
    pub encode: Duration,
    /// Handing the commands to the driver; nothing on the CPU.
    pub submit: Duration,
    /// Computing: the CPU's threads at work, or the wait for the GPU after the last submit.
    pub execute: Duration,
    /// Copying the results to the host, and reading the GPU's clock.
    pub read: Duration,
    /// The time between the first and the last command by the GPU's own clock. It overlaps with `submit` and `execute`, and is not part of
    /// the sum. `None` on the CPU, on a GPU without timestamps, while the device is profiled already, and where
    /// [`Inference::timestamps`](super::Inference::timestamps) is off.
    pub gpu: Option<Duration>,
}

impl Stages {
    /// The sum of the stages on the wall clock.
    pub fn total(&self) -> Duration {
        self.named().iter().map(|(_, time)| *time).sum()
    }

    /// The stages of the sum by name, in their order.
    pub fn named(&self) -> [(&'static str, Duration); 6] {
        [
            ("prepare", self.prepare),
            ("compile", self.compile),
            ("encode", self.encode),
            ("submit", self.submit),
            ("execute", self.execute),
            ("read", self.read),
        ]
    }
}

impl fmt::Display for Stages {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ms = |time: Duration| time.as_secs_f64() * 1e3;
        for (name, time) in self.named() {
            write!(f, "{name} {:.2}, ", ms(time))?;
        }
        write!(f, "total {:.2} ms", ms(self.total()))?;
        match self.gpu {
            Some(gpu) => write!(f, " (GPU clock {:.2} ms)", ms(gpu)),
            None => Ok(()),
        }
    }
}
