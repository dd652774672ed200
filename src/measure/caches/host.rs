//! The techniques on the host: loops of one thread, and the library's operations on all.

use super::data::{Data, WIDTH, gather, product, softmax, transpose};
use super::{Make, Side, TechniquePair, loops};
use crate::device::Device;
use crate::error::TensorResult;
use crate::tensor::Tensor;
use std::cell::RefCell;

/// The library's operation on the first `inputs` of the data, brought to the device.
fn library(
    data: &Data,
    device: &Device,
    shapes: &[[usize; 2]],
    op: impl Fn(&[Tensor]) -> TensorResult<Tensor> + 'static,
) -> TensorResult<Side> {
    let inputs = data.inputs.iter().zip(shapes).map(|(x, s)| Tensor::from_vec(x.to_vec(), s, device)).collect::<TensorResult<Vec<_>>>()?;
    Ok(Side::device("the library's kernel, all threads", move || op(&inputs)))
}

/// A way to multiply, by a loop.
fn multiplied(data: &Data, n: usize, how: &'static str, work: fn(&[f32], &[f32], usize, &mut [f32])) -> Side {
    let [a, b] = data.inputs.clone();
    Side::host(how, n * n, move |out| work(&a, &b, n, out))
}

fn product_tiling(n: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = product(n, device)?;
    let sides = [multiplied(&data, n, "result by result", loops::product), multiplied(&data, n, "tiles of 32", loops::product_tiled)];
    Ok(TechniquePair { name: "tiling", data, sides })
}

fn product_transposition(n: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = product(n, device)?;
    let ([a, b], transposed) = (data.inputs.clone(), RefCell::new(vec![0f32; n * n]));
    let on = Side::host("b transposed first", n * n, move |out| loops::product_transposed(&a, &b, n, &mut transposed.borrow_mut(), out));
    let sides = [multiplied(&data, n, "columns of b", loops::product), on];
    Ok(TechniquePair { name: "transposition", data, sides })
}

fn product_library(n: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = product(n, device)?;
    let on = library(&data, device, &[[n, n]; 2], |x| x[0].matmul(&x[1]))?;
    let sides = [multiplied(&data, n, "tiles of 32, one thread", loops::product_tiled), on];
    Ok(TechniquePair { name: "library", data, sides })
}

fn transpose_tiling(n: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = transpose(n, device)?;
    let side = |how: &'static str, work: fn(&[f32], usize, &mut [f32])| {
        let a = data.inputs[0].clone();
        Side::host(how, n * n, move |out| work(&a, n, out))
    };
    let sides = [side("row by row", loops::transpose), side("tiles of 32", loops::transpose_tiled)];
    Ok(TechniquePair { name: "tiling", data, sides })
}

/// Softmax by a loop, so many rows at a time.
fn rows_at_a_time(data: &Data, cols: usize, block: usize, how: &'static str) -> Side {
    let x = data.inputs[0].clone();
    Side::host(how, x.len(), move |out| loops::softmax(&x, cols, block, out))
}

fn softmax_blocking(rows: usize, cols: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = softmax(rows, cols, device)?;
    let sides = [rows_at_a_time(&data, cols, rows, "pass by pass"), rows_at_a_time(&data, cols, 1, "row by row")];
    Ok(TechniquePair { name: "blocking", data, sides })
}

fn softmax_library(rows: usize, cols: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = softmax(rows, cols, device)?;
    let on = library(&data, device, &[[rows, cols]], |x| x[0].softmax(1))?;
    let sides = [rows_at_a_time(&data, cols, 1, "row by row, one thread"), on];
    Ok(TechniquePair { name: "library", data, sides })
}

fn gather_prefetching(rows: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = gather(rows, device)?;
    let side = |how: &'static str, work: fn(&[f32], usize, &[i32], &mut [f32])| {
        let (table, index) = (data.inputs[0].clone(), data.index.clone());
        Side::host(how, index.len() * WIDTH, move |out| work(&table, WIDTH, &index, out))
    };
    let sides = [side("row by row", loops::gather::<false>), side("16 rows ahead", loops::gather::<true>)];
    Ok(TechniquePair { name: "prefetching", data, sides })
}

/// The pairs, `quick` at small sizes.
pub(super) fn pairs(quick: bool) -> Vec<Make> {
    let n = if quick { 40 } else { 512 };
    let large = if quick { 72 } else { 2048 };
    let (rows, cols) = if quick { (8, 64) } else { (1024, 4096) };
    let table = if quick { 256 } else { 1 << 20 };
    let mut all: Vec<Make> = vec![
        Box::new(move |d| product_tiling(n, d)),
        Box::new(move |d| transpose_tiling(large, d)),
        Box::new(move |d| softmax_blocking(rows, cols, d)),
        Box::new(move |d| product_transposition(n, d)),
    ];
    if loops::PREFETCHES {
        all.push(Box::new(move |d| gather_prefetching(table, d)));
    }
    all.push(Box::new(move |d| super::device::gather_order(table, d)));
    all.push(Box::new(move |d| product_library(n, d)));
    all.push(Box::new(move |d| softmax_library(rows, cols, d)));
    all
}
