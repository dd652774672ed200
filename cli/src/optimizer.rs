//! The optimizers that `tl train` and `tl finetune` offer, with their usual settings.

use crate::output::Failure;
use tensorlogic::nn::Param;
use tensorlogic::optim::{Adam, AdamW, Lion, Muon, Optimizer, ParamGroup, Sgd, decay_matrices};

/// The names of the optimizers, the usual one first.
pub const NAMES: [&str; 5] = ["adamw", "adam", "sgd", "lion", "muon"];

/// An optimizer by name, and the settings that it was given.
#[derive(Clone, Debug, PartialEq)]
pub struct OptimizerChoice {
    name: &'static str,
    pub betas: (f64, f64),
    pub weight_decay: f64,
}

impl OptimizerChoice {
    /// The optimizer of this name; what is not given is as usual for it.
    pub fn new(name: Option<&str>, betas: (Option<f64>, Option<f64>), weight_decay: Option<f64>) -> Result<OptimizerChoice, Failure> {
        let name = name.unwrap_or(NAMES[0]);
        let Some(name) = NAMES.into_iter().find(|n| n.eq_ignore_ascii_case(name)) else {
            return Err(Failure::Usage(format!("--optimizer: {name}: expected {}", NAMES.join(", "))));
        };
        if name == "adam" && weight_decay.is_some_and(|d| d != 0.0) {
            return Err(Failure::Usage("--weight-decay: adam does not support it; use adamw".into()));
        }
        let usual = if name == "muon" { 0.95 } else { 0.9 };
        let decay = if name == "adam" { 0.0 } else { 0.1 };
        Ok(OptimizerChoice {
            name,
            betas: (betas.0.unwrap_or(usual), betas.1.unwrap_or(0.99)),
            weight_decay: weight_decay.unwrap_or(decay),
        })
    }

    /// The usual learning rate, given AdamW's, `adamw`: plain gradients need larger steps, their signs smaller ones.
    pub fn usual_lr(&self, adamw: f64) -> f64 {
        match self.name {
            "sgd" => 100.0 * adamw,
            "lion" => 0.3 * adamw,
            _ => adamw,
        }
    }

    /// The optimizer of these parameters; weights decay in matrices only.
    pub fn build(&self, params: Vec<(String, Param)>, lr: f64) -> Result<Optimizer, Failure> {
        let (betas, weight_decay) = (self.betas, self.weight_decay);
        let adamw = AdamW { betas, eps: 1e-8, weight_decay };
        Ok(match self.name {
            "sgd" => {
                Optimizer::with_groups(Sgd { momentum: betas.0, nesterov: false, weight_decay }, decay_matrices(params, weight_decay), lr)?
            }
            "adam" => Optimizer::new(Adam { betas, eps: 1e-8 }, params, lr)?,
            "lion" => Optimizer::with_groups(Lion { betas, weight_decay }, decay_matrices(params, weight_decay), lr)?,
            "muon" => {
                // Tables and what makes the logits are not maps between layers: AdamW's, with its own decay of the mean.
                let inner = |(name, p): &(String, Param)| {
                    p.get().rank() == 2 && !["wte", "wpe", "embed", "lm_head"].iter().any(|t| name.contains(t))
                };
                let (matrices, others): (Vec<_>, Vec<_>) = params.into_iter().partition(inner);
                let rule = Muon { momentum: betas.0, weight_decay, like_adamw: true };
                let mut groups = decay_matrices(others, weight_decay);
                if !matrices.is_empty() {
                    groups.insert(0, ParamGroup::new(matrices).rule(rule).weight_decay(weight_decay));
                }
                Optimizer::with_groups(AdamW { betas: (0.9, betas.1), ..adamw }, groups, lr)?
            }
            _ => Optimizer::with_groups(adamw, decay_matrices(params, weight_decay), lr)?,
        })
    }
}
