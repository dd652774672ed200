//! The largest few on the GPU against sorting.

use super::TopKKernel;
use super::gpu::topk;
use crate::ops::tests::*;

#[test]
fn places_of_the_largest_few() {
    for d in [F32, F16] {
        for (rows, n, k) in [(1, 2, 1), (3, 7, 7), (5, 32, 4), (40, 129, 8), (2, 1000, 32)] {
            for largest in [true, false] {
                // Few values, so that there are equal ones.
                let x = Operand::new(d, &[rows, n], noise(rows * n, 3).into_iter().map(|v| (v * 9.0).round() / 4.0).collect());
                let want: Vec<f64> = (0..rows)
                    .flat_map(|r| {
                        let row = &x.values[r * n..(r + 1) * n];
                        let mut order: Vec<usize> = (0..n).collect();
                        order.sort_by(|&a, &b| if largest { row[b].total_cmp(&row[a]) } else { row[a].total_cmp(&row[b]) });
                        order.into_iter().take(k).map(|i| i as f64).collect::<Vec<_>>()
                    })
                    .collect();
                let elements: Vec<f64> = want.iter().enumerate().map(|(i, &c)| x.values[i / k * n + c as usize]).collect();
                let by = move |s: &Step, a: &AdapterInfo| topk(&TopKKernel { k, largest, softmax: false }, s, a);
                let name = format!("{d} {rows}x{n}, {k}, {largest}");
                check(&name, by, std::slice::from_ref(&x), (DType::I32, &[rows, k]), &[], &want, 0.0);
                let outs: [(DType, &[usize], &[f64]); 2] = [(DType::I32, &[rows, k], &want), (d, &[rows, k], &elements)];
                check_all(&format!("{name}, with elements"), by, std::slice::from_ref(&x), &outs, &[], 0.0);
                if largest {
                    let softmax = elements.chunks(k).flat_map(|row| {
                        let e: Vec<f64> = row.iter().map(|v| (v - row[0]).exp()).collect();
                        e.iter().map(|v| v / e.iter().sum::<f64>()).collect::<Vec<_>>()
                    });
                    let softmax: Vec<f64> = softmax.collect();
                    let by = move |s: &Step, a: &AdapterInfo| topk(&TopKKernel { k, largest, softmax: true }, s, a);
                    let outs: [(DType, &[usize], &[f64]); 2] = [(DType::I32, &[rows, k], &want), (F32, &[rows, k], &softmax)];
                    check_all(&format!("{name}, with their softmax"), by, &[x], &outs, &[], 2e-6);
                }
            }
        }
    }
}
