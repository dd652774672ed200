//! Reductions on the GPU against f64 arithmetic.

use super::gpu::reduce;
use crate::ops::tests::*;

#[test]
fn reductions_of_rows() {
    use ReduceOp::{ArgMax, ArgMaxOrNone, ArgMin, Max, Mean, Min, Prod, Sum};
    let ops = [Sum, Mean, Max, Min, Prod, ArgMax, ArgMin, ArgMaxOrNone];
    let fold = |op: ReduceOp, row: &[f64]| {
        let best = |sign: f64| {
            let nan = row.iter().position(|v| v.is_nan());
            nan.unwrap_or_else(|| (0..row.len()).fold(0, |b, i| if row[i] * sign > row[b] * sign { i } else { b }))
        };
        match op {
            ReduceOp::Sum => row.iter().sum(),
            ReduceOp::Mean => row.iter().sum::<f64>() / row.len() as f64,
            ReduceOp::Prod => row.iter().product(),
            ReduceOp::Max => row[best(1.0)],
            ReduceOp::Min => row[best(-1.0)],
            ReduceOp::ArgMax => best(1.0) as f64,
            ReduceOp::ArgMin => best(-1.0) as f64,
            ReduceOp::ArgMaxOrNone => {
                if row.iter().any(|v| v.is_nan()) {
                    -1.0
                } else {
                    best(1.0) as f64
                }
            }
        }
    };
    for op in ops {
        let index = matches!(op, ArgMax | ArgMin | ArgMaxOrNone);
        let run = |name: &str, x: Operand| {
            let (rows, cols) = (x.shape[0], x.shape[1]);
            let want: Vec<f64> = (0..rows).map(|r| fold(op, &x.values[r * cols..(r + 1) * cols])).collect();
            let out = if index { DType::I32 } else { x.dtype.compute() };
            let label = format!("{op:?} {} {name} {rows}x{cols}", x.dtype);
            check(
                &label,
                move |s, a| reduce(op, s, a),
                &[x],
                (out, &[rows]),
                &[],
                &want,
                if index {
                    0.0
                } else if op == ReduceOp::Prod {
                    3e-5
                } else {
                    3e-6
                },
            );
        };
        for (rows, cols) in [
            (1, 1),
            (1, 5),
            (3, 64),
            (7, 33),
            (70, 2),
            (100, 8),
            (2000, 17),
            (1030, 64),
            (5, 1000),
            (2, 40_003),
            (1, 50_257),
            (1, 65_536),
            (5000, 100),
        ] {
            // Factors near 1 keep products in range.
            let values = |seed| {
                noise(rows * cols, seed).into_iter().map(|v| if op == ReduceOp::Prod { 1.0 + v / 64.0 } else { v }).collect::<Vec<_>>()
            };
            run("random", Operand::new(F32, &[rows, cols], values(1)));
            run("random", Operand::new(F16, &[rows, cols], values(2)));
            let transposed = Layout::contiguous(Shape::of(&[cols, rows])).permute(&[1, 0]);
            run("transposed", Operand::view(F32, &[rows, cols], transposed, values(3)));
            if op != Prod && op != Mean && op != ArgMaxOrNone {
                let whole: Vec<f64> = values(4).into_iter().map(|v| (v * 1000.0).round()).collect();
                run("whole", Operand::new(DType::I32, &[rows, cols], whole.clone()));
                run("whole", Operand::new(DType::U32, &[rows, cols], whole.iter().map(|v| v + 1000.0).collect()));
            }
        }
        if op != ReduceOp::Prod {
            let mut values = noise(4 * 300, 5);
            values[0] = f64::NAN;
            values[300 + 123] = f64::NAN;
            values[600 + 299] = f64::NEG_INFINITY;
            values[900..1200].fill(-2.5);
            run("special", Operand::new(F32, &[4, 300], values));
            let mut values = noise(50_257, 6);
            values[50_256] = 2.0;
            run("the last", Operand::new(F32, &[1, 50_257], values.clone()));
            values[50_256] = f64::NAN;
            run("NaN at the end", Operand::new(F32, &[1, 50_257], values));
        }
    }
}
