//! Checkpoints: a folder with one sub-folder for each saved step, each written whole or not at all.

use crate::data::{DataLoader, LoaderState};
use crate::error::{TensorError, TensorResult};
use crate::io::folder::{self, FolderWriter, save_folder};
use crate::io::{SafeTensors, check_folder, write_safetensors};
use crate::nn::Module;
use crate::optim::Optimizer;
use crate::tensor::Tensor;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

const OPTIMIZER: &str = "optimizer.safetensors";
const STATE: &str = "training.json";

/// The checkpoints of a run: sub-folders `step-N` of one folder.
pub struct Checkpoints {
    folder: PathBuf,
    keep: usize,
}

impl Checkpoints {
    /// The checkpoints in `folder`, of which the newest `keep` are kept. Nothing is read or created yet.
    pub fn new(folder: impl Into<PathBuf>, keep: usize) -> Checkpoints {
        Checkpoints { folder: folder.into(), keep: keep.max(1) }
    }

    /// Every step that has a sub-folder, newest first, complete or not.
    ///
    /// # Errors
    /// I/O errors. A missing folder has no checkpoints.
    ///
    /// ```
    /// use tensorlogic::train::Checkpoints;
    ///
    /// let folder = std::env::temp_dir().join(format!("tl-doc-checkpoint-steps-{}", std::process::id()));
    /// let checkpoints = Checkpoints::new(&folder, 2);
    /// assert!(checkpoints.steps()?.is_empty()); // there is no such folder yet
    /// checkpoints.prepare()?;
    /// for step in [100, 200, 300] {
    ///     checkpoints.save(step, |files| files.bytes("notes.txt", b"good"))?;
    /// }
    /// assert_eq!(checkpoints.steps()?, [300, 200]); // the newest two are kept
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn steps(&self) -> TensorResult<Vec<u64>> {
        let entries = match std::fs::read_dir(&self.folder) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(Vec::new()),
            other => other.map_err(|e| TensorError::io(&self.folder, e))?,
        };
        let mut steps = Vec::new();
        for e in entries {
            let name = e.map_err(|e| TensorError::io(&self.folder, e))?.file_name();
            steps.extend(name.to_str().and_then(|n| n.strip_prefix("step-")).and_then(|n| n.parse::<u64>().ok()));
        }
        steps.sort_unstable_by(|a, b| b.cmp(a));
        Ok(steps)
    }

    /// The sub-folder of a step.
    pub fn path(&self, step: u64) -> PathBuf {
        self.folder.join(format!("step-{step:08}"))
    }

    /// The newest step whose sub-folder is intact, and what is wrong with newer ones.
    ///
    /// # Errors
    /// The system's.
    ///
    /// ```
    /// use tensorlogic::train::Checkpoints;
    ///
    /// let folder = std::env::temp_dir().join(format!("tl-doc-checkpoint-latest-{}", std::process::id()));
    /// let checkpoints = Checkpoints::new(&folder, 2);
    /// checkpoints.prepare()?;
    /// checkpoints.save(1, |files| files.bytes("notes.txt", b"good"))?;
    /// checkpoints.save(2, |files| files.bytes("notes.txt", b"good"))?;
    /// std::fs::write(checkpoints.path(2).join("notes.txt"), "damaged")?;
    /// let (step, wrong) = checkpoints.latest()?;
    /// assert_eq!((step, wrong.len()), (Some(1), 1));
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn latest(&self) -> TensorResult<(Option<u64>, Vec<TensorError>)> {
        let mut wrong = Vec::new();
        for step in self.steps()? {
            match check_folder(self.path(step)) {
                Ok(()) => return Ok((Some(step), wrong)),
                Err(e) => {
                    crate::events::checkpoint_damaged(step);
                    wrong.push(e);
                }
            }
        }
        Ok((None, wrong))
    }

    /// Creates the folder and removes leftovers of a killed process. No other process may be saving there.
    ///
    /// # Errors
    /// The system's.
    ///
    /// ```
    /// use tensorlogic::train::Checkpoints;
    ///
    /// let folder = std::env::temp_dir().join(format!("tl-doc-checkpoint-prepare-{}", std::process::id()));
    /// std::fs::create_dir_all(folder.join(".step-00000007.1-0.tmp"))?; // what a killed process left
    /// Checkpoints::new(&folder, 2).prepare()?;
    /// assert_eq!(std::fs::read_dir(&folder)?.count(), 0);
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn prepare(&self) -> TensorResult<()> {
        std::fs::create_dir_all(&self.folder).map_err(|e| TensorError::io(&self.folder, e))?;
        folder::sync_folder(self.folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        folder::remove_leftovers(&self.folder)
    }

    /// Saves a step through `write`. When this returns, the checkpoint is durable, and checkpoints older than the newest `keep` are gone.
    ///
    /// # Errors
    /// Those of `write`, and I/O errors. Existing checkpoints are then unaffected.
    ///
    /// ```
    /// use tensorlogic::train::Checkpoints;
    ///
    /// let folder = std::env::temp_dir().join(format!("tl-doc-checkpoint-save-{}", std::process::id()));
    /// let checkpoints = Checkpoints::new(&folder, 2);
    /// checkpoints.prepare()?;
    /// checkpoints.save(5, |files| files.bytes("notes.txt", b"good"))?;
    /// assert_eq!(std::fs::read(folder.join("step-00000005/notes.txt"))?, b"good");
    /// # std::fs::remove_dir_all(&folder)?;
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn save(&self, step: u64, write: impl FnOnce(&mut FolderWriter) -> TensorResult<()>) -> TensorResult<()> {
        save_folder(self.path(step), write)?;
        crate::events::checkpoint_saved(step);
        for old in self.steps()?.into_iter().filter(|&s| s < step).skip(self.keep - 1) {
            folder::remove_folder(self.path(old))?;
        }
        Ok(())
    }
}

/// The content of `training.json`.
#[derive(Serialize, Deserialize)]
struct State {
    /// Updates made by the optimizer.
    updates: u64,
    /// The data loader's state.
    data: Option<LoaderState>,
    /// The state of each random stream of the model: seed and draws.
    random: BTreeMap<String, (u64, u32)>,
    /// The caller's own data.
    own: serde_json::Value,
}

/// Writes everything a run needs to resume bit-exactly: values in full precision and the optimizer's state (`optimizer.safetensors`), the
/// number of updates, the random streams of the model, the data's position, and the caller's data `own` (`training.json`).
///
/// # Errors
/// The system's and the device's.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use serde_json::json;
/// use tensorlogic::io::save_folder;
/// use tensorlogic::nn::{Linear, ModuleExt};
/// use tensorlogic::optim::{AdamW, Optimizer};
/// use tensorlogic::train::save_training;
///
/// let folder = std::env::temp_dir().join(format!("tl-doc-save-training-{}", std::process::id()));
/// let model = Linear::new(2, 1, true, &mut Rng::new(1), &Device::cpu())?;
/// let optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
/// save_folder(&folder, |files| save_training(files, &model, &optimizer, None, json!({ "loss": 2.5 })))?;
/// assert!(folder.join("optimizer.safetensors").is_file() && folder.join("training.json").is_file());
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_training(
    folder: &mut FolderWriter,
    model: &dyn Module,
    optimizer: &Optimizer,
    data: Option<&DataLoader>,
    own: serde_json::Value,
) -> TensorResult<()> {
    save_training_state(folder, model, optimizer.state()?, data, own)
}

/// As [`save_training`], with what [`Optimizer::state`] or [`LaneStep::state`](super::LaneStep::state) gave.
///
/// # Errors
/// Those of [`save_training`].
///
/// ```
/// # use tensorlogic::prelude::*;
/// use serde_json::json;
/// use tensorlogic::io::{SafeTensors, save_folder};
/// use tensorlogic::nn::{Linear, ModuleExt};
/// use tensorlogic::optim::{AdamW, Optimizer};
/// use tensorlogic::train::save_training_state;
///
/// let folder = std::env::temp_dir().join(format!("tl-doc-save-training-state-{}", std::process::id()));
/// let model = Linear::new(2, 1, true, &mut Rng::new(1), &Device::cpu())?;
/// let optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
/// save_folder(&folder, |files| save_training_state(files, &model, optimizer.state()?, None, json!(null)))?;
/// // Weight and bias: the value of each, and two states.
/// assert_eq!(SafeTensors::open(folder.join("optimizer.safetensors"))?.tensors().len(), 2 * 3);
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn save_training_state(
    folder: &mut FolderWriter,
    model: &dyn Module,
    (tensors, updates): (BTreeMap<String, Tensor>, u64),
    data: Option<&DataLoader>,
    own: serde_json::Value,
) -> TensorResult<()> {
    folder.file(OPTIMIZER, |out| write_safetensors(&tensors, &[], |bytes| out.put(bytes)))?;
    let state = State { updates, data: data.map(DataLoader::state), random: model.random_state(), own };
    let text = serde_json::to_vec_pretty(&state).map_err(|e| TensorError::format("training.json", e.to_string()))?;
    folder.bytes(STATE, &text)
}

/// Restores what [`save_training`] wrote into `folder`; returns the caller's data.
///
/// # Errors
/// If a file is missing, or does not match the model and optimizer.
///
/// ```
/// # use tensorlogic::prelude::*;
/// use serde_json::json;
/// use tensorlogic::io::save_folder;
/// use tensorlogic::nn::{Linear, ModuleExt};
/// use tensorlogic::optim::{AdamW, Optimizer};
/// use tensorlogic::train::{load_training, save_training};
///
/// let folder = std::env::temp_dir().join(format!("tl-doc-load-training-{}", std::process::id()));
/// let model = Linear::new(2, 1, true, &mut Rng::new(1), &Device::cpu())?;
/// let mut optimizer = Optimizer::new(AdamW::default(), model.named_parameters(), 1e-2)?;
/// let saved = model.weight.get().to_vec()?;
/// save_folder(&folder, |files| save_training(files, &model, &optimizer, None, json!({ "loss": 2.5 })))?;
/// model.weight.get().sum_all()?.backward()?;
/// optimizer.step()?; // further, and back again
/// assert_eq!(load_training(&folder, &model, &mut optimizer, None)?["loss"], 2.5);
/// assert_eq!((model.weight.get().to_vec()?, optimizer.steps()), (saved, 0));
/// # std::fs::remove_dir_all(&folder)?;
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn load_training(
    folder: &Path,
    model: &dyn Module,
    optimizer: &mut Optimizer,
    data: Option<&mut DataLoader>,
) -> TensorResult<serde_json::Value> {
    let path = folder.join(STATE);
    let text = std::fs::read(&path).map_err(|e| TensorError::io(&path, e))?;
    let state: State = serde_json::from_slice(&text).map_err(|e| TensorError::format("training.json", e.to_string()))?;
    let files = SafeTensors::open(folder.join(OPTIMIZER))?;
    let device = optimizer.device();
    let mut tensors = BTreeMap::new();
    for info in files.tensors() {
        let bytes = crate::backends::Bytes::Owned(std::sync::Arc::new(files.bytes_of(info).to_vec()));
        tensors.insert(info.name.to_string(), Tensor::from_bytes(bytes, info.dtype()?, &info.shape, &device)?);
    }
    optimizer.load_state(&tensors, state.updates)?;
    model.load_random_state(&state.random)?;
    if let (Some(loader), Some(place)) = (data, state.data) {
        loader.load_state(place)?;
    }
    Ok(state.own)
}
