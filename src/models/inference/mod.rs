//! Inference as one call: inputs in, logits and hidden states out, with the time of each stage.

pub(crate) mod inputs;
pub(crate) mod outputs;

pub use inputs::{Inputs, Padding};
pub use outputs::{Outputs, Pooling, Stages};

use crate::autograd::no_grad;
use crate::backends::stages::{Stage, StageClock, enter};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::eval::eval_all;
use crate::models::generate::pacing_for;
use crate::models::{KvCache, Model, ModelShape, Pass};
use crate::ops::loss::{NllOptions, Reduction};
use crate::plan::Timing;
use crate::strategy::{PipelineStrategy, with_pacing};
use crate::tensor::Tensor;
use inputs::{Checked, wrong};
use std::panic::Location;
use std::time::Duration;

/// What is added to the scores of masked keys: far below any score, and finite, since the states of padding have to stay finite.
pub(crate) const MASKED: f32 = -1e30;

/// Bytes of the logits that log-probabilities are computed from at a time; every adapter binds as much.
const LOG_PROB_BYTES: usize = 64 << 20;

/// Runs a model over whole batches: left- or right-padded tokens or embeddings in, logits and hidden states out. For text token by token
/// there is [`Session`](crate::models::Session).
///
/// ```
/// use tensorlogic::models::inference::{Inference, Inputs, Padding};
/// use tensorlogic::models::{self, Weights};
/// use tensorlogic::prelude::*;
///
/// let device = Device::cpu();
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
/// let model = models::load(&Weights::open(file, &device)?, None)?;
///
/// let inputs = Inputs::padded(&[vec![5, 6, 7, 8], vec![9, 10]], Padding::Right)?;
/// let outputs = Inference::new(&*model).run(&inputs)?;
/// let shape = model.shape();
/// assert_eq!(outputs.logits.dims(), [2, shape.vocab]);
/// assert_eq!(outputs.hidden_states.dims(), [2, 4, shape.width]);
/// println!("{}: {}", outputs.device, outputs.times);
/// # Ok::<(), TensorError>(())
/// ```
#[derive(Clone, Copy)]
pub struct Inference<'m> {
    model: &'m dyn Model,
    all_logits: bool,
    layers: bool,
    log_probs: bool,
    timestamps: bool,
    /// `None` for the device's.
    strategy: Option<PipelineStrategy>,
}

impl<'m> Inference<'m> {
    /// Inference with `model`, on the device of its weights.
    pub fn new(model: &'m dyn Model) -> Inference<'m> {
        Inference { model, all_logits: false, layers: false, log_probs: false, timestamps: true, strategy: None }
    }

    /// Whether logits are those of every token, `[B,T,V]`, instead of each row's last; off by default.
    pub fn all_logits(self, on: bool) -> Inference<'m> {
        Inference { all_logits: on, ..self }
    }

    /// Whether the hidden states of every layer are given: transformers' `output_hidden_states`; off by default.
    pub fn layers(self, on: bool) -> Inference<'m> {
        Inference { layers: on, ..self }
    }

    /// Whether the log-probability of each given token is computed, on the device: of all logits only these numbers are read. Off by
    /// default.
    pub fn log_probs(self, on: bool) -> Inference<'m> {
        Inference { log_probs: on, ..self }
    }

    /// Whether the GPU's clock is read around its work, for [`Stages::gpu`]; on by default. It counts everything that the device runs
    /// meanwhile, also for other threads.
    pub fn timestamps(self, on: bool) -> Inference<'m> {
        Inference { timestamps: on, ..self }
    }

    /// Paces this inference by a strategy instead of its device's. A batch of four or more rows is a load for which
    /// [`PipelineStrategy::Auto`] is for throughput.
    pub fn strategy(self, strategy: PipelineStrategy) -> Inference<'m> {
        Inference { strategy: Some(strategy), ..self }
    }

    /// Runs the model once over a batch, and waits for the results.
    ///
    /// # Errors
    /// [`TensorError::Argument`] when an input has a wrong shape, dtype or value; the message names it and the caller's line. Otherwise
    /// those of the evaluation: out of memory, a lost device.
    ///
    /// ```
    /// use tensorlogic::models::inference::{Inference, Inputs, Padding};
    /// use tensorlogic::models::{self, Weights};
    /// use tensorlogic::prelude::*;
    /// let model = models::load(&Weights::open("models/tiny/tiny.gguf", &Device::cpu())?, None)?;
    /// let inputs = Inputs::padded(&[vec![30, 27, 25, 17, 27]], Padding::Right)?; // ROMEO
    /// let outputs = Inference::new(&*model).log_probs(true).run(&inputs)?;
    /// assert_eq!(outputs.logits.argmax(-1)?.to_vec1::<i32>()?, [10]); // a colon
    /// let log_probs = outputs.log_probs.expect("asked for").to_vec()?;
    /// assert_eq!(log_probs[0], 0.0); // nothing stands before the first token
    /// assert!(log_probs[3].exp() > 0.9); // E behind ROM
    /// # Ok::<(), TensorError>(())
    /// ```
    #[track_caller]
    pub fn run(&self, inputs: &Inputs) -> TensorResult<Outputs> {
        let at = Location::caller();
        let clock = StageClock::start(Stage::Prepare);
        let shape = self.model.shape();
        let checked = inputs.check(&shape, at)?;
        if inputs.token_type_ids.is_some() {
            return Err(wrong(at, "token_type_ids: only encoders have kinds of tokens".into()));
        }
        if self.log_probs && checked.tokens.is_none() {
            return Err(wrong(at, "log_probs: they are those of tokens, and embeddings are given".into()));
        }
        let device = self.model.weights().first().map_or_else(Device::cpu, |w| w.device().clone());
        let asked = self.strategy.unwrap_or_else(|| device.strategy());
        let pacing = pacing_for(asked, self.model, &device, checked.batch);
        with_pacing(&pacing, || self.run_paced(checked, &shape, &device, pacing.strategy, clock))
    }

    fn run_paced(
        &self,
        checked: Checked,
        shape: &ModelShape,
        device: &Device,
        strategy: PipelineStrategy,
        clock: StageClock,
    ) -> TensorResult<Outputs> {
        let (results, bytes_in) = {
            let _prepare = enter(Stage::Prepare);
            no_grad(|| self.graph(&checked, shape, device))?
        };
        let timed = self.timestamps && device.capabilities().clock && device.backend().start_timing(Timing::Runs).is_ok();
        let done = execute(device, &results.all());
        let _read = enter(Stage::Read);
        let gpu = if timed { gpu_time(device)? } else { None };
        done?;
        let host = results.on_host(device, &checked)?;
        let [prepare, compile, encode, submit, execute, read] = clock.times();
        crate::events::inference_run(checked.batch, checked.len);
        Ok(Outputs {
            logits: host.logits,
            hidden_states: host.hidden,
            layers: host.layers,
            log_probs: host.log_probs,
            times: Stages { prepare, compile, encode, submit, execute, read, gpu },
            bytes_in,
            bytes_out: results.all().iter().map(|t| 4 * t.numel() as u64).sum(),
            device: device.name(),
            strategy,
            valid: checked.valid,
        })
    }

    /// The graph of everything that is asked for, and the bytes of its inputs.
    fn graph(&self, c: &Checked, shape: &ModelShape, device: &Device) -> TensorResult<(Results, u64)> {
        let (batch, len) = (c.batch, c.len);
        let mut bytes = 0;
        let mut upload = |values: Vec<i32>, sizes: &[usize]| {
            bytes += 4 * values.len() as u64;
            Tensor::from_vec(values, sizes, device)
        };
        let tokens = c.tokens.clone().map(|ids| upload(ids, &[batch, len])).transpose()?;
        let positions = c.positions.clone().map(|p| upload(p, &[batch, len])).transpose()?;
        let ends = c.last.iter().enumerate().map(|(row, &last)| (row * len + last) as i32).collect();
        let ends = if self.all_logits { None } else { Some(upload(ends, &[batch])?) };
        let targets = if self.log_probs { Some(upload(targets(c), &[batch * len])?) } else { None };
        let embeddings = match &c.embeddings {
            Some(x) => {
                let x = if x.dtype() == DType::F64 { x.cast(DType::F32)? } else { x.clone() };
                bytes += x.dtype().bytes(x.numel()).unwrap_or(0) as u64;
                Some(x.to_device(device)?)
            }
            None => None,
        };
        let mask = if c.masked {
            bytes += 4 * c.valid.len() as u64;
            let added = c.valid.iter().map(|&v| if v { 0.0 } else { MASKED }).collect();
            Some(Tensor::from_vec::<f32>(added, &[batch, 1, 1, len], device)?)
        } else {
            None
        };
        let mut pass = match (&tokens, &embeddings) {
            (Some(tokens), _) => Pass::tokens(tokens),
            (None, Some(x)) => Pass::embeddings(x),
            (None, None) => return Err(TensorError::Internal("inputs without tokens and embeddings passed the checks".into())),
        };
        (pass.positions, pass.mask) = (positions.as_ref(), mask.as_ref());
        if self.layers {
            pass = pass.keep_layers();
        }
        let residual = self.model.forward(&mut pass, &mut KvCache::none())?;
        let normed = self.model.norm(&residual)?;
        let rows = normed.flatten(0, 1)?; // [B·T, d]
        let logits = match &ends {
            Some(ends) => self.model.head(&rows.index_select(0, ends)?)?,
            None => self.model.head(&normed)?,
        };
        let log_probs = targets.map(|targets| self.log_probs_of(&rows, &targets, shape)).transpose()?;
        let hidden = normed.cast(DType::F32)?;
        let layers =
            pass.into_layers().map(|kept| kept.iter().map(|x| x.cast(DType::F32)).collect::<TensorResult<Vec<_>>>()).transpose()?;
        Ok((Results { logits, hidden, layers, log_probs }, bytes))
    }

    /// For each of the states `[N,d]` the log-probability of its target, of those that have one.
    fn log_probs_of(&self, rows: &Tensor, targets: &Tensor, shape: &ModelShape) -> TensorResult<Tensor> {
        let options = NllOptions { ignore_index: -1, reduction: Reduction::None, ..Default::default() };
        let count = rows.dims()[0];
        let at_once = (LOG_PROB_BYTES / (4 * shape.vocab)).max(1);
        let parts = (0..count).step_by(at_once).map(|start| {
            let size = at_once.min(count - start);
            let logits = self.model.head(&rows.narrow(0, start, size)?)?;
            logits.cross_entropy_wide(&targets.narrow(0, start, size)?, &options)?.neg()
        });
        Tensor::cat(&parts.collect::<TensorResult<Vec<_>>>()?, 0)
    }
}

/// For each token the next one of its row, −1 for the last and for padding.
fn targets(c: &Checked) -> Vec<i32> {
    let mut targets = vec![-1; c.valid.len()];
    for_each_next(c, |at, next| targets[at] = c.tokens.as_ref().map_or(-1, |t| t[next]));
    targets
}

/// Calls `f` with the index of each token and of the next one of its row.
fn for_each_next(c: &Checked, mut f: impl FnMut(usize, usize)) {
    for start in (0..c.valid.len()).step_by(c.len) {
        let tokens: Vec<usize> = (start..start + c.len).filter(|&i| c.valid[i]).collect();
        tokens.windows(2).for_each(|pair| f(pair[0], pair[1]));
    }
}

/// Evaluates everything at once and waits until the device is done.
fn execute(device: &Device, tensors: &[&Tensor]) -> TensorResult<()> {
    eval_all(tensors)?;
    let _execute = enter(Stage::Execute);
    device.backend().synchronize()
}

/// What the GPU's clock says of the runs since timing began, which ends.
fn gpu_time(device: &Device) -> TensorResult<Option<Duration>> {
    let runs = device.backend().finish_timing()?;
    let seconds = runs.iter().filter_map(|r| r.run).map(|[from, to]| to - from).fold(None, |sum, s| Some(sum.unwrap_or(0.0) + s));
    Ok(seconds.map(Duration::from_secs_f64))
}

/// What is computed: of one evaluation, then in host memory.
struct Results {
    logits: Tensor,
    hidden: Tensor,
    layers: Option<Vec<Tensor>>,
    log_probs: Option<Tensor>,
}

impl Results {
    fn all(&self) -> Vec<&Tensor> {
        [&self.logits, &self.hidden].into_iter().chain(self.layers.iter().flatten()).chain(&self.log_probs).collect()
    }

    /// The results in host memory; log-probabilities stand at the tokens that they are of.
    fn on_host(&self, device: &Device, c: &Checked) -> TensorResult<Results> {
        let host = |t: &Tensor| match device.capabilities().host_memory {
            // They are there; looking at them gives the error of the evaluation, if there is one.
            true => t.with_slice(|_: &[f32]| t.clone()),
            false => Tensor::from_vec(t.to_vec_of::<f32>()?, t.dims(), &Device::cpu()),
        };
        let hidden = host(&self.hidden)?;
        let layers = match &self.layers {
            Some(layers) => Some(layers.iter().map(host).chain([Ok(hidden.clone())]).collect::<TensorResult<Vec<_>>>()?),
            None => None,
        };
        let log_probs = match &self.log_probs {
            Some(t) => {
                let (given, mut moved) = (t.to_vec_of::<f32>()?, vec![0f32; c.valid.len()]);
                for_each_next(c, |at, next| moved[next] = given[at]);
                Some(Tensor::from_vec(moved, &[c.batch, c.len], &Device::cpu())?)
            }
            None => None,
        };
        Ok(Results { logits: host(&self.logits)?, hidden, layers, log_probs })
    }
}
