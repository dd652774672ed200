//! Gather on the GPU against plain indexing.

use super::gpu::gather;
use crate::ops::tests::*;

#[test]
fn gather_of_rows() {
    for d in [F32, F16, DType::I32, DType::Q4_1, DType::Q8_0, DType::Q6_K] {
        for inner in [1, 6, 32, 256] {
            if inner % d.block() != 0 {
                continue;
            }
            let rows = 19;
            let values = noise(rows * inner, 8).into_iter().map(|v| if d == DType::I32 { (v * 1e6).round() } else { v }).collect();
            let table = Operand::new(d, &[rows, inner], values);
            let pick: Vec<f64> = (0..11).map(|i| ((i * 7 + 3) % rows) as f64).collect();
            let want: Vec<f64> = pick.iter().flat_map(|&r| table.values[r as usize * inner..(r as usize + 1) * inner].to_vec()).collect();
            for index in [DType::I32, DType::U32] {
                let loads = [table.clone(), Operand::new(index, &[11], pick.clone())];
                check(&format!("gather {d} {inner}"), gather, &loads, (d.compute(), &[11, inner]), &[], &want, 1e-7);
            }
        }
    }
}
