//! Products on the GPU against f64 arithmetic: tiles, weight formats, layouts.

use super::gpu::{matmul, matmul_with_tile};
use crate::ops::tests::*;
use crate::tuning::Tuning;

#[test]
fn matmul_by_cooperative_matrices() {
    let Some(m) = backend() else { return };
    if m.info().coop == 0 {
        // A real GPU may lack them; Mesa's lavapipe, on which every change is tested, has them.
        assert!(!m.is_software() || std::env::var("TL_REQUIRE_GPU").is_err(), "{} has no cooperative matrices", m.name());
        return;
    }
    // Not another form of the product.
    let only = |s: &Step, a: &AdapterInfo| {
        let w = matmul(s, a).filter(|w| w.source.contains("coopMultiplyAdd"));
        assert!(w.is_some(), "{:?} is not multiplied by matrices", s.loads);
        w
    };
    // As Metal loads matrices: not through vectors.
    let narrow =
        move |s: &Step, a: &AdapterInfo| only(s, &AdapterInfo { coop_vectors: false, subgroup_sync: SubgroupSync::None, ..a.clone() });
    let run = |name: &str, a: Operand, b: Operand, out: DType| {
        let want = product(&a, &b);
        let shape = [a.shape[0], a.shape[1], b.shape[1]];
        let tolerance = if out == F16 { 1e-3 } else { 2e-4 };
        let operands = [a, b];
        check_on(name, only, &operands, (out, &shape), &[], &want, tolerance);
        check_on(&format!("{name}, narrow"), narrow, &operands, (out, &shape), &[], &want, tolerance);
    };
    type Make = fn(DType, &[usize], u64) -> Operand;
    let layouts: [(&str, Make); 2] = [("rows", Operand::random), ("transposed", Operand::transposed)];
    for (batch, m, n, k) in [(2, 72, 136, 104), (3, 33, 12, 67), (1, 700, 600, 48), (2, 40, 72, 128), (1, 3, 40, 330), (1, 8, 136, 520)] {
        for (left, make_a) in layouts {
            for (right, make_b) in layouts {
                if batch == 1 && left != right {
                    continue;
                }
                let name = format!("{left} {right} {batch}x{m}x{n}x{k}");
                let out = if batch == 2 { F16 } else { F32 };
                run(&name, make_a(F16, &[batch, m, k], 11), make_b(F16, &[batch, n, k], 12), out);
            }
        }
    }
    // Heads of sequences: two dimensions of memory make the batch.
    let heads = |rows: usize, seed| {
        let layout = Layout::contiguous(Shape::of(&[2, rows, 3, 16])).permute(&[0, 2, 1, 3]);
        Operand::view(F16, &[6, rows, 16], layout, noise(96 * rows, seed))
    };
    run("heads", heads(40, 5), heads(24, 6), F32);
    // Heads side by side again, [B, H, T, D] read as rows of H·D, and as columns.
    let joined = |transposed: bool, seed| {
        let l = Layout::contiguous(Shape::of(&[2, 3, 40, 16])).permute(&[0, 2, 1, 3]);
        let (l, shape) = if transposed { (l.permute(&[2, 3, 0, 1]), [1, 48, 80]) } else { (l, [1, 80, 48]) };
        Operand::view(F16, &shape, l, noise(2 * 3 * 40 * 16, seed))
    };
    run("heads side by side", joined(false, 5), Operand::random(F16, &[1, 40, 48], 6), F16);
    run("heads side by side, transposed", joined(true, 5), Operand::random(F16, &[1, 40, 80], 6), F16);
    for d in [DType::Q4_0, DType::Q4_K] {
        run(d.name(), Operand::transposed(F16, &[1, 70, 256], 3), Operand::random(d, &[1, 33, 256], 4), F16);
    }
    // Rows that begin anywhere: written by aligned quads, one by one at the edges.
    for n in [33, 71, 130] {
        run(&format!("{n} columns"), Operand::random(F16, &[1, 75, 64], 7), Operand::random(F16, &[1, n, 64], 8), F16);
    }
}

#[test]
fn matmul_in_every_tile_config() {
    if backend().is_none_or(|m| m.info().coop == 0) {
        return;
    }
    for cut in 0..Tuning::software().gemm.tiles.len() {
        // Whole tiles of columns with a ragged end of rows, and nothing whole.
        for (batch, m, n, k) in [(2, 75, 128, 384), (2, 75, 90, 584)] {
            for transposed in [[false, false], [false, true], [true, true]] {
                let make = |transposed, shape: &[usize], seed| {
                    if transposed { Operand::transposed(F16, shape, seed) } else { Operand::random(F16, shape, seed) }
                };
                let operands = [make(transposed[0], &[batch, m, k], 21), make(transposed[1], &[batch, n, k], 22)];
                let want = product(&operands[0], &operands[1]);
                // One that does not fit an adapter is never chosen there.
                let by = move |s: &Step, a: &AdapterInfo| matmul_with_tile(cut, s, a).or_else(|| matmul(s, a));
                check_on(&format!("cut {cut} {batch}x{m}x{n}x{k} {transposed:?}"), by, &operands, (F16, &[batch, m, n]), &[], &want, 1e-3);
            }
        }
    }
}

#[test]
fn matmul_of_every_weight_format() {
    let run = |name: String, a: Operand, b: Operand, out: DType| {
        let want = product(&a, &b);
        let shape = [a.shape[0], a.shape[1], b.shape[1]];
        check_weights(&name, matmul, &[a, b], (out, &shape), &want, if out == F16 { 1e-3 } else { 2e-5 });
    };
    for d in DType::WEIGHTS {
        // The others share all but their reader with one of these.
        let few = !WHOLE_FORMATS.contains(&d);
        for (m, n, k) in [
            (1, 1, 1),
            (1, 37, 256),
            (1, 576, 512),
            (2, 20, 768),
            (3, 5, 72),
            (5, 36, 1280),
            (8, 8, 256),
            (9, 7, 33),
            (20, 70, 512),
            (65, 68, 256),
            (1, 12, 4864),
            (8, 6, 2560),
        ] {
            if few && ![(1, 576, 512), (8, 8, 256), (20, 70, 512)].contains(&(m, n, k)) {
                continue;
            }
            for da in if m <= 2 && k > 512 { &[F32, F16][..] } else { &[F32] } {
                if k % d.block() == 0 {
                    run(format!("{da}·{d} {m}x{n}x{k}"), Operand::random(*da, &[1, m, k], 1), Operand::random(d, &[1, n, k], 2), F32);
                }
            }
        }
    }
    // A window of rows of a larger weight.
    for d in [F32, F16, DType::Q4_0, DType::Q4_1, DType::Q6_K] {
        let layout = Layout::contiguous(Shape::of(&[40, 512])).slice(0, 7, 21, 1);
        for m in [1, 30] {
            run(
                format!("{d} window, {m} rows"),
                Operand::random(F32, &[1, m, 512], 3),
                Operand::view(d, &[1, 21, 512], layout, noise(40 * 512, 4)),
                F32,
            );
        }
    }
    for (m, n, k) in [(1, 96, 64), (3, 33, 700), (8, 7, 5), (40, 50, 60), (17, 64, 32)] {
        for (da, db) in [(F32, F32), (F16, F16), (F32, F16)] {
            run(
                format!("transposed weight {da} {db} {m}x{n}x{k}"),
                Operand::random(da, &[2, m, k], 5),
                Operand::transposed(db, &[2, n, k], 6),
                F32,
            );
            run(
                format!("transposed both {da} {db} {m}x{n}x{k}"),
                Operand::transposed(da, &[2, m, k], 5),
                Operand::transposed(db, &[2, n, k], 6),
                F32,
            );
            run(format!("batch {da} {db} {m}x{n}x{k}"), Operand::random(da, &[3, m, k], 7), Operand::random(db, &[3, n, k], 8), F32);
            run(format!("f16 result {da} {db} {m}x{n}x{k}"), Operand::random(da, &[1, m, k], 7), Operand::random(db, &[1, n, k], 8), F16);
        }
    }
    run("many rows".into(), Operand::random(F32, &[1, 1, 64], 9), Operand::random(F16, &[1, 9001, 64], 10), F32);
    run("large tiles".into(), Operand::random(F32, &[1, 1500, 40], 9), Operand::random(F16, &[1, 1400, 40], 10), F32);
    run("middle tiles".into(), Operand::random(F32, &[1, 700, 64], 9), Operand::random(DType::Q8_0, &[1, 900, 64], 10), F32);
}

#[test]
fn a_row_times_long_weights_in_blocks() {
    let gemv_int8 = |s: &Step, a: &AdapterInfo| {
        let w = matmul(s, a)?;
        assert!(a.subgroup < 8 || w.source.contains("rows_sum"), "another kernel");
        Some(w)
    };
    let run = |d: DType, n: usize, k: usize, out: DType, tolerance: f64, values: &dyn Fn(&mut Vec<f64>)| {
        let (mut a, b) = (Operand::random(F16, &[1, 1, k], 1), Operand::random(d, &[1, n, k], 2));
        let mut x = a.values.clone();
        values(&mut x);
        a = Operand::new(F16, &[1, 1, k], x);
        let want = product(&a, &b);
        check(&format!("{d} {n}x{k}"), gemv_int8, &[a, b], (out, &[1, 1, n]), &[], &want, tolerance);
    };
    for d in DType::WEIGHTS.into_iter().filter(|d| d.format().is_some_and(|f| f.linear().is_some())) {
        run(d, 1030, 8192, F32, 2e-5, &|_| ());
    }
    // Rows that end a workgroup's steps early; two items a thread; two rounds of them.
    run(DType::Q4_K, 4100, 2048, F16, 1e-3, &|_| ());
    run(DType::Q4_0, 4099, 2048, F32, 2e-5, &|_| ());
    run(DType::Q6_K, 900, 10240, F32, 2e-5, &|_| ());
    run(DType::Q8_0, 500, 17408, F32, 2e-5, &|_| ());
    // A few large activations, zeros, and the smallest ones.
    run(DType::Q4_1, 1028, 8192, F32, 1e-4, &|x| x.iter_mut().step_by(1000).for_each(|v| *v *= 1000.0));
    run(DType::Q5_0, 1028, 8192, F32, 2e-5, &|x| x[64..5000].fill(0.0));
    run(DType::Q4_K, 1028, 8192, F32, 2e-5, &|x| x.iter_mut().for_each(|v| *v *= 6e-8));
    // What is not a number comes through.
    run(DType::Q4_0, 1028, 8192, F32, 2e-5, &|x| x[77] = f64::NAN);
}
