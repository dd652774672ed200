//! Evaluation, the one thing that runs work: pending nodes become a graph, a plan and a run (`eval_all`), or a plan is repeated (`replay`, `prepared`).

mod evaluator;
mod frontier;
mod history;
mod prepared;
mod read;
mod replay;
mod run;

pub(crate) use evaluator::{Lock, activity, base, forget_inputs, inputs_of};
pub use evaluator::{cached_plans, eval_stats, fusion, order, plan_of, with_order, without_fusion};
pub(crate) use frontier::frontier;
pub use history::EvalStats;
pub(crate) use history::{Activity, Sample};
pub(crate) use prepared::{PreparedStep, download_first};
pub use read::Download;
pub(crate) use replay::Replay;
pub use run::eval_all;
pub(crate) use run::eval_on;
