//! Products with experts' weights on the GPU against plain sums.

use super::gpu::expert_matmul;
use crate::ops::tests::*;

#[test]
fn weights_of_every_format_and_rows_of_every_length() {
    for d in DType::WEIGHTS {
        for (t, per, e, n, k) in
            [(1, 2, 5, 7, 256), (3, 4, 6, 33, 512), (4, 1, 2, 3, 36), (2, 3, 4, 5, 7), (70, 2, 3, 9, 64), (11, 3, 4, 6, 512)]
        {
            // Of the others one shape for each form of the kernel.
            let few = !WHOLE_FORMATS.contains(&d);
            if k % d.block() != 0 || few && ![(3, 4, 6, 33, 512), (11, 3, 4, 6, 512)].contains(&(t, per, e, n, k)) {
                continue;
            }
            for own_rows in [false, true] {
                let rows = if own_rows { t * per } else { t };
                let x = Operand::random(if per == 2 { F16 } else { F32 }, &[rows, k], 1);
                let w = Operand::random(d, &[e, n, k], 2);
                let ids: Vec<usize> = (0..t * per).map(|p| (p * 7 + p / 3) % e).collect();
                let mut want = Vec::new();
                for (p, id) in ids.iter().enumerate() {
                    let x = &x.values[p / (t * per / rows) * k..][..k];
                    want.extend((0..n).map(|r| w.values[(id * n + r) * k..][..k].iter().zip(x).map(|(w, x)| w * x).sum::<f64>()));
                }
                let loads = [x, w, Operand::new(DType::I32, &[t * per], ids.iter().map(|&i| i as f64).collect())];
                let name = format!("{d}, {t}x{per} of {e} experts {n}x{k}, own rows {own_rows}");
                check_weights(&name, expert_matmul, &loads, (F32, &[t * per, n]), &want, 2e-5);
            }
        }
    }
    // Weights whose columns are neighbours, as the gradient reads them.
    let (x, w) = (Operand::random(F32, &[6, 48], 1), Operand::transposed(F32, &[3, 20, 48], 2));
    let ids = [2usize, 0, 1, 1, 0, 2];
    let sum = |p: usize, r: usize| (0..48).map(|c| x.values[p * 48 + c] * w.values[(ids[p] * 20 + r) * 48 + c]).sum::<f64>();
    let want: Vec<f64> = (0..6).flat_map(|p| (0..20).map(move |r| (p, r))).map(|(p, r)| sum(p, r)).collect();
    let loads = [x.clone(), w.clone(), Operand::new(DType::I32, &[6], ids.iter().map(|&i| i as f64).collect())];
    check("transposed", expert_matmul, &loads, (F32, &[6, 20]), &[], &want, 2e-5);
}
