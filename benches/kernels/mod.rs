//! The workloads, each with its kernel variants from the definition written down to what the engine generates.

pub mod workload;

mod byte_entropy;
mod chain;
mod product;
mod row_f16;
mod row_q4_0;
mod softmax;
mod sum;

use workload::Workload;

/// All workloads, in the order in which they run.
pub fn all() -> Vec<Workload> {
    vec![
        product::f16(),
        product::f32(),
        row_f16::workload(),
        row_q4_0::workload(),
        sum::workload(),
        softmax::workload(),
        chain::workload(),
        byte_entropy::workload(),
    ]
}
