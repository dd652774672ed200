//! Evaluation, the one thing that runs work: pending nodes become a graph, a plan and a run (`eval_all`), or a plan is repeated (`replay`).

mod evaluator;
mod history;
mod read;
mod replay;
mod run;

pub use evaluator::{EvalStats, cached_plans, eval_stats, fusion, order, plan_of, with_order, without_fusion};
pub(crate) use evaluator::{Lock, activity, base, forget_inputs, inputs_of};
pub(crate) use history::{Activity, Sample};
pub use read::Download;
pub(crate) use replay::Replay;
pub use run::eval_all;
pub(crate) use run::eval_on;
