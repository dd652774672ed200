//! Models whose layers are distributed: over the ranks that a launcher started, or over the devices of a list such as `vulkan:0+vulkan:1`.

use crate::Global;
use crate::model::{self, ModelArgs};
use crate::output::{self, Failure};
use crate::ranks::{self, RankArgs, check_device, together};
use std::path::Path;
use tensorlogic::distributed::Ranks;
use tensorlogic::models::{LayerStages, Model, Weights, stages};
use tensorlogic::{DType, Device};

/// The ranks that compute a model's layers, as rank 0 sees them; this process alone without a launcher.
pub struct RankGroup {
    ranks: Ranks,
    args: RankArgs,
}

impl RankGroup {
    /// This process alone.
    pub fn alone() -> RankGroup {
        RankGroup { ranks: Ranks::alone(), args: RankArgs::default() }
    }

    /// The device of this rank: the first of a list of several.
    pub fn device(&self, model: &ModelArgs) -> Result<Device, Failure> {
        ranks::open_device(model.devices().next().unwrap_or_default(), &self.args, &self.ranks)
    }

    /// Whether a model of these options is in more than one place.
    pub fn distributes(&self, model: &ModelArgs) -> bool {
        self.ranks.size() > 1 || model.devices().count() > 1
    }

    /// The model of these weights, whose layers the ranks share, or the devices of the list; `open` gives the same weights on another device.
    pub fn build(
        &self,
        model: &ModelArgs,
        weights: &Weights,
        dtype: Option<DType>,
        open: impl Fn(&Device) -> Result<Weights, Failure>,
        path: &Path,
        global: Global,
    ) -> Result<Box<dyn Model>, Failure> {
        if !self.distributes(model) {
            return model.build(weights, path, dtype);
        }
        let size = self.ranks.size();
        if model.adapter.is_some() {
            return Err(Failure::Usage("--adapter: a model with adapters must be in one place".into()));
        }
        if size > 1 && model.devices().count() > 1 {
            return Err(Failure::Usage("--device: under a launcher each rank has one device".into()));
        }
        let unreadable = |e| model::unreadable(path, e);
        let (stages, model) = if size > 1 {
            together(&self.ranks, Ok(()))?;
            check_device(&model.device, &self.args, &self.ranks, weights.device())?;
            check_memory(&self.ranks, weights, dtype, &open)?;
            LayerStages::lead(Ok(weights), dtype, &self.ranks).map_err(unreadable)?
        } else {
            let stages = LayerStages::of(weights, model.devices().count()).map_err(unreadable)?;
            let mut all = vec![open(weights.device())?];
            for name in model.devices().skip(1) {
                all.push(open(&model::open_device(name)?)?);
            }
            let model = stages.load(&all, dtype).map_err(unreadable)?;
            (stages, model)
        };
        if !global.quiet {
            output::note(&format!("{stages} on {} {}", stages.layers().len(), if size > 1 { "ranks" } else { "devices" }));
        }
        Ok(model)
    }
}

/// Runs a command whose model ranks may share: `lead` as rank 0 or alone; another rank computes layers of the weights that `open` gives.
pub fn run(
    args: &RankArgs,
    model: &ModelArgs,
    global: Global,
    open: impl Fn(&Device) -> Result<Weights, Failure>,
    lead: impl FnOnce(&RankGroup, Global) -> Result<(), Failure>,
) -> Result<(), Failure> {
    let group = RankGroup { ranks: ranks::join(args)?, args: args.clone() };
    ranks::note_binding(&group.ranks, ranks::global_of(&group.ranks, global))?;
    if group.ranks.size() == 1 {
        return ranks::end(&group.ranks, lead(&group, global));
    }
    let result = match group.ranks.is_first() {
        true => lead(&group, global),
        false => follow(&group, model, open),
    };
    // Whoever read our output has seen enough.
    let result = if matches!(result, Err(Failure::Closed)) { Ok(()) } else { result };
    let result = together(&group.ranks, result);
    ranks::end(&group.ranks, result)
}

/// Whether every rank has room for its part, before any loads it.
fn check_memory(
    ranks: &Ranks,
    weights: &Weights,
    dtype: Option<DType>,
    open: impl Fn(&Device) -> Result<Weights, Failure>,
) -> Result<(), Failure> {
    let room = || Ok(LayerStages::of(weights, ranks.size())?.check_memory(ranks.rank(), open(weights.device())?, dtype)?);
    together(ranks, room())
}

fn follow(group: &RankGroup, model: &ModelArgs, open: impl Fn(&Device) -> Result<Weights, Failure>) -> Result<(), Failure> {
    let opened = group.device(model).and_then(|device| open(&device));
    let weights = together(&group.ranks, opened)?;
    check_device(&model.device, &group.args, &group.ranks, weights.device())?;
    check_memory(&group.ranks, &weights, model.dtype()?, open)?;
    Ok(stages::follow(Ok(&weights), &group.ranks)?)
}
