//! What every backend of GPUs knows about its adapter, and by which numbers its work is paced.

use super::tuning_file;
use crate::error::TensorResult;
use crate::plan::AdapterInfo;
use crate::strategy::{Pacing, PipelineStrategy, in_force};
use crate::tuning::{AdapterClass, GEMV_ROW_LIMIT, SharedTuning, Tuning, TuningSource};
use std::borrow::Cow;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering::Relaxed};

/// How many rows products that share their left side may have so that they run faster in one step, and how large a left side that is normalised may be.
#[derive(Clone, Copy, Debug)]
pub struct FusedGemvLimits {
    /// Of any dtype.
    pub any: usize,
    /// Of f16 times weights of f16.
    pub halves: usize,
    /// Bytes of the left side as f32, with rows rounded up to a power of two, up to which it is normalised in that step.
    pub norm_bytes: usize,
}

/// Families of GPUs by Metal's names, and the numbers that it has for them.
const FAMILIES: [(&str, isize); 15] = [
    ("Apple1", 1001),
    ("Apple2", 1002),
    ("Apple3", 1003),
    ("Apple4", 1004),
    ("Apple5", 1005),
    ("Apple6", 1006),
    ("Apple7", 1007),
    ("Apple8", 1008),
    ("Apple9", 1009),
    ("Apple10", 1010),
    ("Common1", 3001),
    ("Common2", 3002),
    ("Common3", 3003),
    ("Metal3", 5001),
    ("Metal4", 5002),
];

/// What Metal says of a GPU, whatever probes find.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct NativeFacts {
    /// The families that it belongs to, by Metal's names.
    pub families: Vec<&'static str>,
    /// Its limits, each with a name.
    pub limits: Vec<(&'static str, u64)>,
}

impl NativeFacts {
    /// Those of a GPU of the families, by their numbers, that `has` says, with these bytes of a buffer, a working set and a threadgroup, and threads of
    /// a threadgroup, all at most.
    pub fn new(has: impl Fn(isize) -> bool, [buffer, working_set, threadgroup]: [u64; 3], threads: u64) -> NativeFacts {
        let limits = vec![
            ("buffer_bytes", buffer),
            ("working_set_bytes", working_set),
            ("threadgroup_bytes", threadgroup),
            ("threadgroup_threads", threads),
        ];
        NativeFacts { families: FAMILIES.iter().filter(|f| has(f.1)).map(|f| f.0).collect(), limits }
    }
}

/// An opened adapter: what kernels may ask about it, its tuning table, and the strategy of its work.
pub struct TunedAdapter {
    /// What kernels may ask, with the tuning table of the adapter.
    pub info: AdapterInfo,
    /// Where `info.tuning` comes from.
    pub tuning_source: TuningSource,
    /// What kind of adapter this is.
    pub class: AdapterClass,
    /// Adapter and driver, for what is kept between processes.
    pub key: String,
    /// Why functions of kernels that have a body in Metal's language have their WGSL, where this is Metal and they do.
    pub lacks_metal_bodies: Option<String>,
    /// Why kernels leave out Metal 4's tensor operations, where this is Metal and they do.
    pub lacks_tensor_ops: Option<String>,
    /// What the probes of the GPU's features found missing, each with the reason.
    pub failed_probes: Vec<String>,
    /// What Metal says of the GPU; empty elsewhere, and through wgpu.
    pub native: NativeFacts,
    /// The strategy of work whose thread has none, by its place in `PipelineStrategy::ALL`.
    strategy: AtomicU8,
}

impl TunedAdapter {
    /// An adapter with this table's source, of this class, under this key.
    pub fn new(info: AdapterInfo, tuning_source: TuningSource, class: AdapterClass, key: String) -> TunedAdapter {
        TunedAdapter {
            info,
            tuning_source,
            class,
            key,
            lacks_metal_bodies: None,
            lacks_tensor_ops: None,
            failed_probes: vec![],
            native: NativeFacts::default(),
            strategy: AtomicU8::new(PipelineStrategy::Standard as u8),
        }
    }

    /// The adapter with the tuning table of work of this thread: another one than `info`'s where a strategy brings it.
    pub fn info_in_force(&self) -> Cow<'_, AdapterInfo> {
        match self.pacing(|p| p.table.clone()) {
            Some(tuning) => Cow::Owned(AdapterInfo { tuning, ..self.info.clone() }),
            None => Cow::Borrowed(&self.info),
        }
    }

    /// The tuning table of work of this thread.
    pub fn tuning_in_force(&self) -> SharedTuning {
        self.pacing(|p| p.table.clone()).unwrap_or_else(|| self.info.tuning.clone())
    }

    /// What `look` finds in the values by which work of this thread is paced.
    pub fn pacing<T>(&self, look: impl FnOnce(&Pacing) -> T) -> T {
        in_force(PipelineStrategy::ALL[usize::from(self.strategy.load(Relaxed))], look)
    }

    /// Sets how work is paced whose thread says nothing else.
    pub fn set_strategy(&self, strategy: PipelineStrategy) {
        self.strategy.store(strategy as u8, Relaxed);
    }

    /// Whether products of f16 go by matrix units.
    pub fn matrices(&self) -> bool {
        self.info.coop > 0
    }

    /// The edge of matrices that matrix units multiply, and the threads that do so together; `None` where there are no such units.
    pub fn matrix_unit(&self) -> Option<[u32; 2]> {
        let unit = [self.info.coop, self.info.subgroup];
        (unit[0] > 0 && unit[1] > 0).then_some(unit)
    }

    /// How many rows products that share their left side may have to run faster in one step.
    pub fn fused_gemv_limits(&self) -> FusedGemvLimits {
        let table = self.tuning_in_force();
        let any = table.gemv.max_rows.min(GEMV_ROW_LIMIT);
        let halves = if self.matrices() { table.gemv.max_rows_f16.min(GEMV_ROW_LIMIT) } else { any };
        FusedGemvLimits { any, halves, norm_bytes: table.gemv.max_norm_bytes }
    }

    /// The table of this adapter's class, which is in force where nothing was measured.
    pub fn class_tuning(&self) -> Tuning {
        Tuning::of_class(self.class)
    }

    /// The numbers that were measured here for a model with this key; `None` where there are none, or somebody chose a table.
    pub fn model_tuning(&self, model: &str) -> Option<Tuning> {
        // Whoever chose a table wants that one.
        let chosen = matches!(self.tuning_source, TuningSource::Environment(_) | TuningSource::Given);
        if chosen { None } else { tuning_file::of_model(&self.key, model) }
    }

    /// Keeps a table for this adapter, its driver and this version of the library in the user's cache folder, beside the crossover: whoever opens
    /// the GPU from now on has it, or whoever runs a model with this key. Gives the file.
    ///
    /// # Errors
    /// Those of [`Tuning::check`]; [`TensorError::UnsupportedDevice`](crate::TensorError::UnsupportedDevice) where there is no cache folder;
    /// [`TensorError::Config`](crate::TensorError::Config) where it cannot be written: the file is then as it was.
    ///
    /// ```no_run
    /// # // Not run: it would replace the table that this machine's programs use.
    /// use tensorlogic::{backends::Backend, backends::gpu::GpuBackend, tuning::Tuning};
    /// let gpu = GpuBackend::open("gpu")?;
    /// let adapter = gpu.adapter().expect("a GPU has one");
    /// let file = adapter.store_tuning(None, &Tuning { name: "mine".into(), ..adapter.class_tuning() })?;
    /// println!("kept in {}", file.display());
    /// assert_eq!(GpuBackend::open("gpu")?.info().tuning.name, "mine");
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn store_tuning(&self, model: Option<&str>, table: &Tuning) -> TensorResult<PathBuf> {
        table.check()?;
        match model {
            None => tuning_file::store(&self.key, table),
            Some(model) => tuning_file::store(&tuning_file::with_model(&self.key, model), table),
        }
    }
}
