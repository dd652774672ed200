//! The techniques on a GPU: texts in WGSL with switches, and the library's operations.

use super::data::{Data, WIDTH, gather, picked, product, softmax, transpose};
use super::{Make, Side, TechniquePair};
use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::measure::wgsl_kernel::WgslKernel;
use crate::tensor::Tensor;

/// Edge of a square of threads.
const EDGE: usize = 16;

fn on_device(data: &Data, n: usize, shape: &[usize], device: &Device) -> TensorResult<Tensor> {
    let x = Tensor::from_vec(data.inputs[n].to_vec(), shape, device)?;
    x.eval()?;
    Ok(x)
}

/// Switches of the kernel `product.wgsl`.
#[derive(Clone, Copy, Default)]
struct Switches {
    transposed: bool,
    tiled: bool,
    ahead: bool,
}

/// The product by that kernel.
fn multiplied(a: &Tensor, b: &Tensor, s: Switches) -> TensorResult<Tensor> {
    let n = a.dims()[0];
    let consts = vec![("TRANSPOSED", s.transposed.into()), ("TILED", s.tiled.into()), ("AHEAD", s.ahead.into())];
    let (name, source, grid) = ("product", include_str!("product.wgsl"), [n / EDGE; 2]);
    WgslKernel { name, source, consts, params: vec![n], workgroup: (EDGE * EDGE) as u32, grid }.of(&[a, b], DType::F32, &[n, n])
}

/// A way to compute something of two tensors.
type Binary = fn(&Tensor, &Tensor) -> TensorResult<Tensor>;
/// A way to compute something of one.
type Unary = fn(&Tensor) -> TensorResult<Tensor>;

/// Both sides of a product, made of its operands.
fn product_pair(name: &'static str, n: usize, device: &Device, ways: [(&'static str, Binary); 2]) -> TensorResult<TechniquePair> {
    let data = product(n, device)?;
    let (a, b) = (on_device(&data, 0, &[n, n], device)?, on_device(&data, 1, &[n, n], device)?);
    let sides = ways.map(|(how, work)| {
        let (a, b) = (a.clone(), b.clone());
        Side::device(how, move || work(&a, &b))
    });
    Ok(TechniquePair { name, data, sides })
}

fn plain(a: &Tensor, b: &Tensor) -> TensorResult<Tensor> {
    multiplied(a, b, Switches::default())
}

fn tiled(a: &Tensor, b: &Tensor) -> TensorResult<Tensor> {
    multiplied(a, b, Switches { tiled: true, ..Switches::default() })
}

fn ahead(a: &Tensor, b: &Tensor) -> TensorResult<Tensor> {
    multiplied(a, b, Switches { tiled: true, ahead: true, ..Switches::default() })
}

fn transposed_first(a: &Tensor, b: &Tensor) -> TensorResult<Tensor> {
    multiplied(a, &transposed(b, true)?, Switches { transposed: true, ..Switches::default() })
}

/// The transposed matrix.
fn transposed(a: &Tensor, tiled: bool) -> TensorResult<Tensor> {
    let n = a.dims()[0];
    let (name, source, consts) = ("transpose", include_str!("transpose.wgsl"), vec![("TILED", tiled.into())]);
    let kernel = WgslKernel { name, source, consts, params: vec![n], workgroup: (EDGE * EDGE) as u32, grid: [n / EDGE; 2] };
    kernel.of(&[a], DType::F32, &[n, n])
}

fn transpose_tiling(n: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = transpose(n, device)?;
    let a = on_device(&data, 0, &[n, n], device)?;
    let sides = [("row by row", false), ("tiles in workgroup memory", true)].map(|(how, tiled)| {
        let a = a.clone();
        Side::device(how, move || transposed(&a, tiled))
    });
    Ok(TechniquePair { name: "tiling", data, sides })
}

/// Softmax by a text.
fn normalized(x: &Tensor, blocked: bool) -> TensorResult<Tensor> {
    let (name, source, consts) = ("softmax", include_str!("softmax.wgsl"), vec![("BLOCKED", blocked.into())]);
    WgslKernel { name, source, consts, params: vec![x.dims()[1]], workgroup: 256, grid: [x.dims()[0], 1] }.of(&[x], DType::F32, x.dims())
}

fn row_in_workgroup(x: &Tensor) -> TensorResult<Tensor> {
    normalized(x, true)
}

fn softmax_pair(name: &'static str, shape: [usize; 2], device: &Device, ways: [(&'static str, Unary); 2]) -> TensorResult<TechniquePair> {
    let data = softmax(shape[0], shape[1], device)?;
    let x = on_device(&data, 0, &shape, device)?;
    let sides = ways.map(|(how, work)| {
        let x = x.clone();
        Side::device(how, move || work(&x))
    });
    Ok(TechniquePair { name, data, sides })
}

/// The library's gather of the same rows at random and in ascending order, on any device.
pub(super) fn gather_order(rows: usize, device: &Device) -> TensorResult<TechniquePair> {
    let data = gather(rows, device)?;
    let table = on_device(&data, 0, &[rows, WIDTH], device)?;
    let mut sorted = data.index.to_vec();
    sorted.sort_unstable();
    let in_order = picked(&data.inputs[0], &sorted);
    let side = |how: &'static str, index: Vec<i32>| -> TensorResult<Side> {
        let index = Tensor::from_vec(index.clone(), &[index.len()], device)?;
        index.eval()?;
        let table = table.clone();
        Ok(Side::device(how, move || table.index_select(0, &index)))
    };
    let on = Side { expect: Some(in_order), ..side("in order", sorted)? };
    Ok(TechniquePair { name: "order", sides: [side("at random", data.index.to_vec())?, on], data })
}

/// The pairs, `quick` at small sizes.
pub(super) fn pairs(quick: bool) -> Vec<Make> {
    let n = if quick { 48 } else { 512 };
    let large = if quick { 64 } else { 2048 };
    let shape = if quick { [4, 300] } else { [2048, 2048] };
    let table = if quick { 256 } else { 1 << 20 };
    let library: fn(&Tensor, &Tensor) -> TensorResult<Tensor> = |a, b| a.matmul(b);
    let again: fn(&Tensor) -> TensorResult<Tensor> = |x| normalized(x, false);
    vec![
        Box::new(move |d| product_pair("tiling", n, d, [("from memory", plain), ("tiles in workgroup memory", tiled)])),
        Box::new(move |d| transpose_tiling(large, d)),
        Box::new(move |d| {
            softmax_pair("blocking", shape, d, [("read for each pass", again), ("row in workgroup memory", row_in_workgroup)])
        }),
        Box::new(move |d| product_pair("transposition", n, d, [("columns of b", plain), ("b transposed first", transposed_first)])),
        Box::new(move |d| product_pair("prefetching", n, d, [("tile by tile", tiled), ("next tiles ahead", ahead)])),
        Box::new(move |d| gather_order(table, d)),
        Box::new(move |d| product_pair("library", n, d, [("tiles in workgroup memory", tiled), ("the library's kernel", library)])),
        Box::new(move |d| {
            softmax_pair("library", shape, d, [("row in workgroup memory", row_in_workgroup), ("the library's kernel", |x| x.softmax(1))])
        }),
    ]
}
