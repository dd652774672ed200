//! Results never depend on a tuning table: every class's and hostile ones against arithmetic in f64, written here.
//! A process of its own: scripts/timed-test.sh has the software driver compile its kernels, which have the sizes of every table, without optimization.
#![cfg(feature = "gpu")]

mod common;

use tensorlogic::backends::Bytes;
use tensorlogic::eval::eval_all;
use tensorlogic::ops::attention::AttentionOptions;
use tensorlogic::tuning::{ElementTile, Tuning};
use tensorlogic::{DType, Device, Tensor, TensorResult, quant};

/// Numbers in -1..1 that f16 has exactly.
fn noise(n: usize, seed: usize) -> Vec<f32> {
    common::noise(n, seed as u64).into_iter().map(|v| (v * 128.0).floor() as f32 / 128.0).collect()
}

fn tensor(shape: &[usize], seed: usize, dtype: DType, device: &Device) -> TensorResult<Tensor> {
    Tensor::from_vec(noise(shape.iter().product(), seed), shape, device)?.cast(dtype)
}

/// `a [m,k]` times the transpose of `b [n,k]`.
fn product(a: &[f32], b: &[f32], k: usize) -> Vec<f64> {
    let dot = |x: &[f32], y: &[f32]| x.iter().zip(y).map(|(x, y)| *x as f64 * *y as f64).sum();
    a.chunks(k).flat_map(|x| b.chunks(k).map(move |y| dot(x, y))).collect()
}

fn softmax(row: &[f64]) -> Vec<f64> {
    let most = row.iter().fold(f64::NEG_INFINITY, |m, v| m.max(*v));
    let e: Vec<f64> = row.iter().map(|v| (v - most).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|v| v / sum).collect()
}

/// Causal attention of `heads` heads over `t` queries and `s` keys of `d` numbers; the last query sees all keys.
fn attention(q: &[f32], k: &[f32], v: &[f32], [heads, t, s, d]: [usize; 4]) -> Vec<f64> {
    let mut out = Vec::new();
    for h in 0..heads {
        let (k, v) = (&k[h * s * d..][..s * d], &v[h * s * d..][..s * d]);
        for i in 0..t {
            let seen = s - t + i + 1;
            let scores: Vec<f64> = product(&q[(h * t + i) * d..][..d], &k[..seen * d], d).iter().map(|x| x / (d as f64).sqrt()).collect();
            let p = softmax(&scores);
            out.extend((0..d).map(|c| (0..seen).map(|j| p[j] * v[j * d + c] as f64).sum::<f64>()));
        }
    }
    out
}

/// A GPU under one table.
struct Gpu {
    device: Device,
    table: String,
}

impl Gpu {
    fn tensor(&self, shape: &[usize], seed: usize, dtype: DType) -> TensorResult<Tensor> {
        tensor(shape, seed, dtype, &self.device)
    }

    /// Compares a result with what it must be; the tolerance is relative to the largest element.
    #[track_caller]
    fn same(&self, what: &str, got: Tensor, want: &[f64], tolerance: f64) -> TensorResult<()> {
        let got = got.to_vec()?;
        assert_eq!(got.len(), want.len(), "{}: {what}", self.table);
        let size = want.iter().fold(1e-3f64, |m, v| m.max(v.abs()));
        for (i, (g, w)) in got.iter().zip(want).enumerate() {
            assert!((*g as f64 - w).abs() <= tolerance * size, "{}: {what}: element {i} is {g}, should be {w}", self.table);
        }
        Ok(())
    }
}

/// Work that is compared with f64.
type Work = fn(&Gpu) -> TensorResult<()>;
const ALL: [Work; 5] = [products, attentions, rows, blocks, experts];
/// How far results may be off in f32 and f16.
const DTYPES: [(DType, f64); 2] = [(DType::F32, 1e-5), (DType::F16, 2e-3)];

/// Compares what the GPU gives under `table` with f64 arithmetic.
#[track_caller]
fn check(table: Tuning, work: &[Work]) {
    let name = table.name.clone();
    let Some(selector) = common::selector() else { return };
    let device = Device::open_with_tuning(selector, table.clone()).unwrap_or_else(|e| panic!("{name}: {e}"));
    assert_eq!(device.tuning(), Some(&table));
    device.set_adaptive(false);
    let gpu = Gpu { device, table: name };
    work.iter().for_each(|w| w(&gpu).unwrap_or_else(|e| panic!("{}: {e}", gpu.table)));
}

/// Products of one row, few rows, as many as a tile has, and more; products of one left side; the gradient of a weight.
fn products(gpu: &Gpu) -> TensorResult<()> {
    for (dtype, tolerance) in DTYPES {
        for (m, n, k) in [(1, 300, 256), (3, 64, 512), (16, 72, 256), (70, 136, 320)] {
            let want = product(&noise(m * k, 1), &noise(n * k, 2), k);
            let got = gpu.tensor(&[m, k], 1, dtype)?.matmul(&gpu.tensor(&[n, k], 2, dtype)?.t()?)?;
            gpu.same(&format!("{dtype} {m}×{n}×{k}"), got, &want, tolerance)?;
        }
        for m in [1, 8, 12] {
            let (x, k) = (gpu.tensor(&[m, 256], 16, dtype)?, 256);
            let sides = [(40, 17), (24, 18)];
            let ys = sides.map(|(n, seed)| gpu.tensor(&[n, k], seed, dtype).and_then(|w| x.matmul(&w.t()?)));
            let ys = ys.into_iter().collect::<TensorResult<Vec<_>>>()?;
            eval_all(&ys.iter().collect::<Vec<_>>())?;
            for (y, (n, seed)) in ys.into_iter().zip(sides) {
                let want = product(&noise(m * k, 16), &noise(n * k, seed), k);
                gpu.same(&format!("{dtype} fused products of {m} rows"), y, &want, tolerance)?;
            }
        }
        let (rows, k, n) = (2048, 8, 16);
        let columns = |v: &[f32], width: usize| -> Vec<f32> { (0..width * rows).map(|i| v[i % rows * width + i / rows]).collect() };
        let want = product(&columns(&noise(rows * k, 3), k), &columns(&noise(rows * n, 4), n), rows);
        let w = gpu.tensor(&[k, n], 5, dtype)?.requires_grad()?;
        let y = gpu.tensor(&[rows, k], 3, dtype)?.matmul(&w)?;
        y.mul(&gpu.tensor(&[rows, n], 4, dtype)?)?.sum(&[0, 1], false)?.backward()?;
        gpu.same(&format!("{dtype} gradient of a weight"), w.grad().expect("it has one"), &want, tolerance)?;
    }
    Ok(())
}

/// The gradients of queries, keys and values of the same attention, where the result's gradient is `g`.
fn attention_gradients(q: &[f32], k: &[f32], v: &[f32], g: &[f32], [heads, t, s, d]: [usize; 4]) -> [Vec<f64>; 3] {
    let mut out = [vec![0.0; q.len()], vec![0.0; k.len()], vec![0.0; v.len()]];
    let scale = 1.0 / (d as f64).sqrt();
    for (h, i) in (0..heads).flat_map(|h| (0..t).map(move |i| (h, i))) {
        let (row, seen) = ((h * t + i) * d, s - t + i + 1);
        let keys = h * s * d..(h * s + seen) * d;
        let p = softmax(&product(&q[row..][..d], &k[keys.clone()], d).iter().map(|x| x * scale).collect::<Vec<f64>>());
        let of_p = product(&g[row..][..d], &v[keys], d);
        let mean: f64 = p.iter().zip(&of_p).map(|(p, g)| p * g).sum();
        for (j, p) in p.iter().enumerate() {
            let (slope, key) = (scale * p * (of_p[j] - mean), (h * s + j) * d);
            for c in 0..d {
                out[0][row + c] += slope * k[key + c] as f64;
                out[1][key + c] += slope * q[row + c] as f64;
                out[2][key + c] += p * g[row + c] as f64;
            }
        }
    }
    out
}

/// Attention of few and of many queries.
fn attentions(gpu: &Gpu) -> TensorResult<()> {
    for (dtype, tolerance) in DTYPES {
        for (heads, queries, keys, d) in [(4, 1, 700, 64), (2, 3, 50, 32), (2, 75, 75, 32)] {
            let t = |n: usize, seed| gpu.tensor(&[1, heads, n, d], seed, dtype);
            let v = |n: usize, seed| noise(heads * n * d, seed);
            let want = attention(&v(queries, 6), &v(keys, 7), &v(keys, 8), [heads, queries, keys, d]);
            let options = AttentionOptions { causal: true, ..Default::default() };
            let got = t(queries, 6)?.attention(&t(keys, 7)?, &t(keys, 8)?, None, &options)?;
            gpu.same(&format!("{dtype} attention of {queries} queries over {keys} keys"), got, &want, tolerance)?;
        }
    }
    Ok(())
}

/// Attention in f16 with its gradients, whose scores can stay in the elements of matrices.
fn element_tiles(gpu: &Gpu) -> TensorResult<()> {
    let (dtype, tolerance) = DTYPES[1];
    for (heads, tokens, d) in [(2, 75, 32), (1, 40, 80)] {
        let v = |seed| noise(heads * tokens * d, seed);
        let want = attention_gradients(&v(6), &v(7), &v(8), &v(9), [heads, tokens, tokens, d]);
        let t = |seed| gpu.tensor(&[1, heads, tokens, d], seed, dtype);
        let inputs = [t(6)?.requires_grad()?, t(7)?.requires_grad()?, t(8)?.requires_grad()?];
        let options = AttentionOptions { causal: true, ..Default::default() };
        let y = inputs[0].attention(&inputs[1], &inputs[2], None, &options)?;
        y.mul(&t(9)?)?.sum_all()?.backward()?;
        for ((input, want), name) in inputs.iter().zip(&want).zip(["queries", "keys", "values"]) {
            let got = input.grad().expect("it has one");
            gpu.same(&format!("{dtype} gradient of {name}, {tokens} tokens of {d}"), got, want, 3.0 * tolerance)?;
        }
    }
    Ok(())
}

/// Reductions, softmax, elementwise work, a transpose, and rows that are added by index.
fn rows(gpu: &Gpu) -> TensorResult<()> {
    for (dtype, tolerance) in DTYPES {
        for (rows, cols) in [(1, 70_000), (37, 515), (700, 24)] {
            let v = noise(rows * cols, 9);
            let x = gpu.tensor(&[rows, cols], 9, dtype)?;
            let wide = x.cast(DType::F32)?;
            let f64s = |row: &[f32]| row.iter().map(|v| *v as f64).collect::<Vec<f64>>();
            let sums: Vec<f64> = v.chunks(cols).map(|r| f64s(r).iter().sum()).collect();
            gpu.same(&format!("sums of {rows} rows of {cols}"), wide.sum(&[-1], false)?, &sums, 1e-4)?;
            let columns: Vec<f64> = (0..cols).map(|c| (0..rows).map(|r| v[r * cols + c] as f64).sum()).collect();
            gpu.same("sums of columns", wide.sum(&[0], false)?, &columns, 1e-4)?;
            let first_of_most = |r: &[f32]| (0..r.len()).rev().max_by(|&a, &b| r[a].total_cmp(&r[b])).map_or(0.0, |i| i as f64);
            let places: Vec<f64> = v.chunks(cols).map(first_of_most).collect();
            gpu.same("places of the largest", x.argmax(-1)?.cast(DType::F32)?, &places, 0.0)?;
            let p: Vec<f64> = v.chunks(cols).flat_map(|r| softmax(&f64s(r))).collect();
            gpu.same(&format!("softmax of {rows} rows of {cols}"), x.softmax(-1)?, &p, tolerance)?;
        }
        let sum: Vec<f64> = noise(9001, 10).iter().zip(noise(9001, 11)).map(|(a, b)| (*a + b) as f64).collect();
        gpu.same("sum of two", gpu.tensor(&[9001], 10, dtype)?.add(&gpu.tensor(&[9001], 11, dtype)?)?, &sum, tolerance)?;
        // Read across, so that a tile transposes it.
        let v = noise(64 * 80, 12);
        let transposed: Vec<f64> = (0..64 * 80).map(|i| v[i % 64 * 80 + i / 64] as f64 + 1.0).collect();
        gpu.same("a transpose and one", gpu.tensor(&[64, 80], 12, dtype)?.t()?.add(1.0)?, &transposed, tolerance)?;
    }
    let index: Vec<i32> = (0..50).map(|i| i * 7 % 11).collect();
    let values = noise(50 * 12, 13);
    let mut want = vec![0f64; 11 * 12];
    for (i, &row) in index.iter().enumerate() {
        (0..12).for_each(|c| want[row as usize * 12 + c] += values[i * 12 + c] as f64);
    }
    let index = Tensor::from_vec(index, &[50], &gpu.device)?;
    let zeros = Tensor::zeros(&[11, 12], DType::F32, &gpu.device)?;
    gpu.same("rows added by index", zeros.index_add(0, &index, &gpu.tensor(&[50, 12], 13, DType::F32)?)?, &want, 1e-5)
}

/// Few and many rows times weights in block formats.
fn blocks(gpu: &Gpu) -> TensorResult<()> {
    for format in [DType::Q4_0, DType::Q4_K] {
        let (n, k) = (132, 512);
        let bytes = quant::quantize(format, &noise(n * k, 14))?;
        let mut weights = vec![0.0; n * k];
        quant::dequantize(format, &bytes, &mut weights)?;
        let w = Tensor::from_bytes(Bytes::Owned(bytes.into()), format, &[n, k], &gpu.device)?;
        for m in [1, 4, 12, 70] {
            let want = product(&noise(m * k, 15), &weights, k);
            for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 6e-3)] {
                let got = gpu.tensor(&[m, k], 15, dtype)?.matmul(&w.t()?)?;
                gpu.same(&format!("{dtype} {m} rows times {format}"), got, &want, tolerance)?;
            }
        }
    }
    Ok(())
}

/// Rows times the weights of the experts that they name: few pairs, and many.
fn experts(gpu: &Gpu) -> TensorResult<()> {
    let (experts, n, k, per) = (3, 40, 64, 2);
    for (dtype, tolerance) in [(DType::F32, 1e-5), (DType::F16, 6e-3)] {
        let weights = gpu.tensor(&[experts, n, k], 20, dtype)?;
        for t in [2, 70] {
            let ids: Vec<i32> = (0..t * per).map(|p| ((p * 7 + p / 3) % experts) as i32).collect();
            let (x, w) = (noise(t * k, 19), noise(experts * n * k, 20));
            let of = |(p, id): (usize, &i32)| product(&x[p / per * k..][..k], &w[*id as usize * n * k..][..n * k], k);
            let want: Vec<f64> = ids.iter().enumerate().flat_map(of).collect();
            let got = gpu.tensor(&[t, k], 19, dtype)?.expert_matmul(&weights, &Tensor::from_vec(ids, &[t, per], &gpu.device)?)?;
            gpu.same(&format!("{dtype} experts of {t} rows"), got, &want, tolerance)?;
        }
    }
    Ok(())
}

/// A table with other numbers.
fn with(name: &str, change: impl FnOnce(&mut Tuning)) -> Tuning {
    let mut t = Tuning { name: name.into(), ..Tuning::generic() };
    change(&mut t);
    t
}

/// Every threshold at `n`.
fn thresholds(t: &mut Tuning, n: usize) {
    t.gemm.min_split_k = n;
    t.gemm.split_rows = [n, n];
    (t.gemv.max_rows, t.gemv.max_rows_f16, t.gemv.full_threads, t.gemv.busy_rows) = (n, n, n, n);
    t.gemv.int8_min_blocks = [n, n];
    (t.attention.flash_min_queries, t.attention.large_groups, t.attention.subgroup_sync_groups, t.attention.split_min_bytes) = (n, n, n, n);
    t.attention.shared_bytes = [n, n];
    (t.rows.multi_row_min_rows, t.rows.subgroup_min_rows) = (n, n);
    (t.unpack.min_rows, t.unpack.min_rows_large, t.unpack.large_elements, t.unpack.max_elements) = (n, n, n, n);
    (t.map.multi_quad_elements, t.map.tile_min_elements, t.map.tile_min_run) = ([n, n], n, n);
    (t.gemm.tiled_groups, t.gemv.max_rows_affine, t.gemv.wide_workgroup_rows, t.gemv.four_rows_items) = (n, n, n, n);
    t.experts.grouped_min_pairs = [n, n];
    let narrow = n.min(u32::MAX as usize) as u32;
    (t.attention.own_rows_elements, t.attention.prefetch_elements, t.attention.tiled_quads) = (narrow, narrow, narrow);
    (t.attention.split_wide_keys, t.attention.decode_few_keys, t.attention.decode_full_groups) = (n, n, n);
    (t.reduce.column_full_rows, t.rows.thread_min_rows, t.rows.long_row, t.rows.exp_vectors) = (n, n, [n, n], narrow);
    t.byte_entropy.min_positions = n;
}

/// Every size of a kernel at its least, or at its largest.
fn sizes(t: &mut Tuning, largest: bool) {
    let pick = |least: u32, most: u32| if largest { most } else { least };
    let threads = |most: u32| pick(64, most);
    let g = &mut t.gemv;
    (g.workgroup_threads, g.column_threads, g.in_flight, g.busy_lanes) =
        ([threads(256); 2], threads(1024), [pick(1, 16); 3], f64::from(pick(0, 1)));
    (g.int8_rows, g.max_norm_bytes) = ([pick(1, 32) as usize; 2], pick(0, 8192) as usize);
    (g.workgroup_bytes, g.column_groups) = ([pick(0, u32::MAX); 2], pick(1, 1 << 20) as usize);
    let e = &mut t.experts;
    (e.pairs_per_read, e.in_flight, e.vec4_reads, e.segment_pairs) = (pick(1, 16), pick(1, 16), pick(1, 16), pick(1, 2048));
    (e.subgroups, e.tile_pairs, e.tile_rows, e.min_step) = (pick(1, 8), [[pick(8, 64), 0]; 2], [pick(8, 64), pick(16, 256)], pick(8, 128));
    e.full_list = pick(1, 1024);
    let a = &mut t.attention;
    (a.split_queries, a.split_threads) = (pick(1, 8) as usize, [pick(4, 1024); 2]);
    (a.decode_threads, a.tiled_threads, a.tiled_bytes) = ([threads(512); 3], threads(256), pick(0, u32::MAX));
    let r = &mut t.rows;
    (r.workgroup_threads, r.thread_vectors, r.registers, r.in_flight) =
        ([threads(1024); 2], pick(0, 16) as usize, [pick(0, 64) as usize; 2], pick(1, 16));
    (r.topk_elements, r.grad_quads, t.unpack.workgroup_threads) = (pick(0, 64) as usize, pick(0, 8) as usize, pick(1, 1024));
    r.topk_threads = threads(1024);
}

#[test]
fn the_generic_table_gives_right_results() {
    check(Tuning::generic(), &ALL);
}

#[test]
fn the_nvidia_table_gives_right_results() {
    check(Tuning::nvidia(), &ALL);
}

#[test]
fn the_apple_table_gives_right_results() {
    check(Tuning::apple(), &ALL);
}

#[test]
fn without_thresholds_results_are_right() {
    check(with("no thresholds", |t| thresholds(t, 0)), &ALL);
}

#[test]
fn with_least_divisors_results_are_right() {
    let table = with("least divisors", |t| {
        thresholds(t, 0);
        t.unpack.max_elements = 1 << 27;
        t.compute_units = 1;
        t.attention.split_groups = [usize::MAX >> 8; 2];
        (t.attention.split_bytes, t.gemv.int8_full_threads, t.gemv.int8_max_threads) = (1, 1, 1);
        (t.reduce.full_groups, t.reduce.split_elements, t.reduce.arg_split_elements) = (usize::MAX >> 8, 1, 1);
        (t.submit.max_ops, t.submit.max_steps, t.reduce.index_add_groups) = (1, 1, 1);
    });
    check(table, &ALL);
}

#[test]
fn with_huge_thresholds_results_are_right() {
    let table = with("huge thresholds", |t| {
        let huge = usize::MAX >> 8;
        thresholds(t, huge);
        t.compute_units = u32::MAX;
        (t.reduce.split_elements, t.reduce.arg_split_elements, t.reduce.index_add_groups) = (huge, huge, huge);
        t.gemv.int8_full_threads = huge;
    });
    check(table, &ALL);
}

#[test]
fn with_least_and_largest_sizes_results_are_right() {
    check(with("least sizes", |t| sizes(t, false)), &ALL);
    check(with("largest sizes", |t| sizes(t, true)), &ALL);
}

#[test]
fn with_one_tile_or_none_results_are_right() {
    check(with("no tiles", |t| t.gemm.tiles.clear()), &[products]);
    for i in [0, 3, 8] {
        let table = with(&format!("tile {i} alone, split for nothing"), |t| {
            t.gemm.tiles = vec![t.gemm.tiles[i]];
            (t.gemm.split_us, t.gemm.min_split_k) = ([0.0; 3], 1);
            (t.gemv.max_rows, t.gemv.max_rows_f16) = (0, 0);
        });
        check(table, &[products]);
    }
}

#[test]
fn with_any_tiles_of_elements_results_are_right() {
    for (n, tile) in [(32, 16, 1024), (1, 1, 8)].into_iter().enumerate() {
        let tile = ElementTile::new(tile.0, tile.1, tile.2);
        let table = with(&format!("tiles of elements {n}"), |t| {
            let tiles = &mut t.attention;
            (tiles.elements, tiles.elements_queries, tiles.elements_keys) = ([tile; 2], [tile; 2], [tile; 2]);
        });
        check(table, &[element_tiles]);
    }
}

#[test]
fn absurd_tables_are_refused_by_name() {
    let Some(device) = common::selector() else { return };
    let refused = |change: fn(&mut Tuning), says: &str| {
        let e = Device::open_with_tuning(device, with("absurd", change)).expect_err("it is refused").to_string();
        assert!(e.contains("tuning table \"absurd\"") && e.contains(says), "{e}");
    };
    refused(|t| t.compute_units = 0, "compute_units is 0; expected 1 or more");
    refused(|t| t.gemm.tiles[2].warps = [0, 1], "gemm.tiles[2].warps is 0; expected 1 to 32");
    refused(|t| t.gemm.tiles[1].fragments = [1, 99], "gemm.tiles[1].fragments is 99; expected 1 to 16");
    refused(|t| t.gemm.tiles[0].bk = 40, "gemm.tiles[0].bk is 40; expected a multiple of 16");
    refused(|t| t.gemm.tiles[0].busy_us[3] = f64::NAN, "a time of gemm is NaN");
    refused(|t| t.gemm.store_us = -1.0, "a time of gemm is -1");
    refused(|t| t.attention.split_bytes = 0, "attention.split_bytes is 0");
    // The kernel's sizes are products of these numbers.
    refused(|t| t.attention.elements[0].subgroups = 1 << 31, "attention.elements[0].subgroups is 2147483648; expected 1 to 32");
    refused(
        |t| t.attention.elements_queries[1] = ElementTile::new(4, 0, 64),
        "attention.elements_queries[1].fragments is 0; expected 1 to 16",
    );
    let columns = "attention.elements_keys[1].columns is 268435456; expected a multiple of 8 up to 1024";
    refused(|t| t.attention.elements_keys[1] = ElementTile::new(4, 1, 1 << 28), columns);
    refused(|t| t.attention.elements_keys[0] = ElementTile::new(4, 1, 36), "columns is 36");
    refused(|t| t.reduce.arg_split_elements = 0, "reduce.arg_split_elements is 0");
    refused(|t| t.submit.max_steps = 0, "submit.max_steps is 0");
    refused(|t| t.gemv.workgroup_threads[1] = 96, "gemv.workgroup_threads is 96; expected a power of two");
    refused(|t| t.rows.workgroup_threads[0] = 2048, "rows.workgroup_threads is 2048; expected 64 to 1024");
    refused(|t| t.gemv.in_flight[2] = 0, "gemv.in_flight is 0; expected 1 to 16");
    refused(|t| t.gemv.int8_rows = [16, 8], "gemv.int8_rows[0] is 16; expected 1 to 8");
    refused(|t| t.gemv.max_norm_bytes = 1 << 20, "gemv.max_norm_bytes is 1048576; expected 0 to 8192");
    refused(|t| t.experts.tile_pairs[1] = [0, 0], "experts.tile_pairs is 0; expected 8 to 1024");
    refused(|t| t.attention.split_queries = 0, "attention.split_queries is 0; expected 1 to 8");
    refused(|t| t.byte_entropy.unit_threads = 0, "byte_entropy.unit_threads is 0; expected 1");
}

#[test]
fn a_setting_that_means_no_table_is_refused_by_name() {
    let file = std::env::temp_dir().join(format!("tl-table-{}.json", std::process::id()));
    let path = file.to_str().unwrap();
    let refused = |value: &str, text: &str, says: &str| {
        std::fs::write(&file, text).unwrap();
        let e = Tuning::from_setting(value).expect_err("it is refused").to_string();
        assert!(e.contains("TL_TUNING") && e.contains(says), "{e}");
    };
    let table = serde_json::to_string(&with("mine", |_| {})).unwrap();
    refused("toaster", "", "\"toaster\": neither one of generic, nvidia, apple, software nor a readable file");
    refused(path, "", "is not a tuning table");
    refused(path, &table[..200], "is not a tuning table");
    refused(path, &table.replacen("\"busy_rows\":", "\"wings\":2,\"busy_rows\":", 1), "unknown field `wings`");
    refused(path, &table.replacen("\"compute_units\":32", "\"compute_units\":0", 1), "compute_units is 0; expected 1 or more");
    refused(path, &table.replacen("\"compute_units\":32,", "", 1), "missing field `compute_units`");
    // A table of an earlier version, which had fewer numbers.
    refused(path, &table.replacen(",\"column_groups\":128", "", 1), "missing field `column_groups`");
    std::fs::write(&file, &table).unwrap();
    assert_eq!(Tuning::from_setting(path).unwrap(), with("mine", |_| {}));
    assert_eq!(Tuning::from_setting("apple").unwrap(), Tuning::apple());
    std::fs::remove_file(&file).unwrap();
}

#[test]
fn tables_survive_a_file_and_have_ids_of_their_own() {
    let mut ids = Vec::new();
    for name in Tuning::NAMES {
        let table = Tuning::named(name).unwrap();
        table.check().unwrap();
        let text = serde_json::to_string(&table).unwrap();
        let back: Tuning = serde_json::from_str(&text).unwrap();
        assert_eq!((&back, back.id()), (&table, table.id()));
        ids.push(table.id());
        ids.push(Tuning { compute_units: table.compute_units + 1, ..table }.id());
        let unknown = text.replacen("\"gemv\":{", "\"gemv\":{\"wings\":2,", 1);
        let e = serde_json::from_str::<Tuning>(&unknown).unwrap_err().to_string();
        assert!(e.contains("unknown field `wings`"), "{e}");
    }
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 2 * Tuning::NAMES.len());
}
