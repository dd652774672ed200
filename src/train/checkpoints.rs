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
    pub fn prepare(&self) -> TensorResult<()> {
        std::fs::create_dir_all(&self.folder).map_err(|e| TensorError::io(&self.folder, e))?;
        folder::sync_folder(self.folder.parent().filter(|p| !p.as_os_str().is_empty()).unwrap_or(Path::new(".")))?;
        folder::remove_leftovers(&self.folder)
    }

    /// Saves a step through `write`. When this returns, the checkpoint is durable, and checkpoints older than the newest `keep` are gone.
    ///
    /// # Errors
    /// Those of `write`, and I/O errors. Existing checkpoints are then unaffected.
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
