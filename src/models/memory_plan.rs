//! What memory a model will take, known before its weights are loaded.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::{self, KvCache, Sampler, Session, Weights};
use crate::tensor::Tensor;

/// What a model is asked to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Workload {
    /// Room of the cache in tokens.
    pub context: usize,
    /// Sequences that are read and written together; each has a cache of its own.
    pub sequences: usize,
    /// Tokens of a prompt.
    pub prompt: usize,
}

/// Bytes that a model takes on a device, as its pool counts them ([`Device::memory`]), which does not include the driver's own. Staging memory, which is
/// the driver's, is told apart.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryPlan {
    /// Weights that are allocated.
    pub weights: usize,
    /// Weights that are read in place from their mapped file.
    pub mapped: usize,
    /// The cache of keys and values.
    pub cache: usize,
    /// Intermediate values while a prompt is read, at most.
    pub prompt: usize,
    /// Intermediate values of a decode step, at most.
    pub step: usize,
    /// The most that is allocated at a time, mapped weights left out.
    pub peak_allocated: usize,
    /// Staging memory of the driver while weights are brought to a GPU, at most; not part of the peak, and given back behind it. A bound and no count:
    /// where host and device share memory weights are written in place. None on the CPU.
    pub staging: usize,
}

impl MemoryPlan {
    /// Makes the plans of a prompt and of decode steps for this model as `device` would, on a [dry run](Device::dry_run): nothing is loaded, allocated
    /// or computed. `dtype` is that of activations, as for [`models::load`].
    ///
    /// # Errors
    /// [`TensorError::Value`] for a workload without sequences or prompt, or whose prompt and one more token do not fit the context;
    /// those of [`models::load`] and [`Session::new`].
    ///
    /// ```
    /// use tensorlogic::models::{MemoryPlan, Weights, Workload};
    /// use tensorlogic::prelude::*;
    ///
    /// let device = Device::cpu();
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let plan = MemoryPlan::of(Weights::open(file, &device)?, None, &device, &Workload { context: 128, sequences: 1, prompt: 64 })?;
    /// assert!(plan.cache > 0 && plan.peak_allocated >= plan.cache + plan.prompt);
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn of(weights: Weights, dtype: Option<DType>, device: &Device, work: &Workload) -> TensorResult<MemoryPlan> {
        if work.sequences == 0 || work.prompt == 0 || work.prompt >= work.context {
            return Err(TensorError::Value(format!(
                "a memory plan for {} sequences with prompts of {} tokens in a context of {}: expected at least one sequence and one token, and room for one more",
                work.sequences, work.prompt, work.context
            )));
        }
        let dry = device.dry_run();
        let model = models::load(&weights.on(&dry), dtype)?;
        let weights = model.weights();
        crate::eval::eval_all(&weights)?;
        drop(weights);
        let loaded = dry.memory();
        let (mapped, peak) = (loaded.peak - loaded.peak_allocated, |dry: &Device| dry.memory().peak);
        let (prompt_peak, with_cache);
        if work.sequences == 1 {
            let mut session = Session::new(&*model, work.context, &dry)?;
            with_cache = dry.memory().in_use;
            dry.reset_peak_memory();
            let logits = session.prompt(&vec![0; work.prompt], || false)?;
            prompt_peak = peak(&dry);
            dry.reset_peak_memory();
            if let Some(logits) = logits {
                let mut sampler = Sampler::default();
                let steps = work.context - work.prompt;
                session.generate(logits, &mut sampler)?.take(steps.min(DRY_RUN_STEPS)).try_for_each(|token| token.map(drop))?;
            }
        } else {
            let mut cache = KvCache::batch(&model.shape(), work.sequences, work.context, &dry)?;
            with_cache = dry.memory().in_use;
            dry.reset_peak_memory();
            let choose = |hidden: Tensor| model.logits(&hidden.narrow(1, hidden.dims()[1] - 1, 1)?)?.argmax(-1);
            let ids = Tensor::from_vec(vec![0i32; work.sequences * work.prompt], &[work.sequences, work.prompt], &dry)?;
            let mut next = choose(model.hidden(&ids, &mut cache)?)?;
            next.eval()?;
            prompt_peak = peak(&dry);
            dry.reset_peak_memory();
            for _ in 0..DRY_RUN_STEPS.min(work.context - work.prompt) {
                next = choose(model.hidden(&next, &mut cache)?)?;
                next.eval()?;
            }
        }
        let step_peak = peak(&dry);
        Ok(MemoryPlan {
            weights: loaded.in_use - mapped,
            mapped,
            cache: with_cache - loaded.in_use,
            prompt: prompt_peak - with_cache,
            step: step_peak.saturating_sub(with_cache),
            peak_allocated: loaded.peak_allocated.max(prompt_peak.max(step_peak) - mapped),
            staging: if device.capabilities().host_memory { 0 } else { MAX_STAGING.min(loaded.in_use - mapped) },
        })
    }
}

/// Uploads go in chunks of 16 MiB, of which the fifth is written while four are on their way.
const MAX_STAGING: usize = 5 * (16 << 20);
/// Decode steps of a dry run: as many as it takes until several go in one submit.
const DRY_RUN_STEPS: usize = 24;
