//! What the techniques work on: inputs, sizes, and the results by definition, in f64.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::measure::hierarchy::SplitMix;
use crate::measure::limits::random;
use std::rc::Rc;

/// A kind of work at one size.
pub(super) struct Data {
    pub work: &'static str,
    pub size: String,
    /// Bytes moved at least, and floating-point operations.
    pub bytes: u64,
    pub operations: u64,
    pub inputs: [Rc<Vec<f32>>; 2],
    /// The rows of a gather; else none.
    pub index: Rc<Vec<i32>>,
    /// The result.
    pub expect: Vec<f64>,
}

fn values(shape: &[usize], seed: u64, device: &Device) -> TensorResult<Rc<Vec<f32>>> {
    Ok(Rc::new(random(shape, DType::F32, seed, device)?.to_vec()?))
}

/// The product of two matrices of `n` rows and columns.
pub(super) fn product(n: usize, device: &Device) -> TensorResult<Data> {
    let inputs = [values(&[n, n], 1, device)?, values(&[n, n], 2, device)?];
    let mut expect = vec![0f64; n * n];
    for (row, a) in expect.chunks_mut(n).zip(inputs[0].chunks(n)) {
        for (a, b) in a.iter().zip(inputs[1].chunks(n)) {
            row.iter_mut().zip(b).for_each(|(sum, b)| *sum += f64::from(*a) * f64::from(*b));
        }
    }
    let (bytes, operations) = (12 * (n * n) as u64, 2 * (n * n * n) as u64);
    Ok(Data { work: "product", size: format!("{n}x{n}"), bytes, operations, inputs, index: Rc::default(), expect })
}

/// The transposition of a matrix of `n` rows and columns.
pub(super) fn transpose(n: usize, device: &Device) -> TensorResult<Data> {
    let a = values(&[n, n], 3, device)?;
    let expect = (0..n * n).map(|i| f64::from(a[i % n * n + i / n])).collect();
    let (size, bytes) = (format!("{n}x{n}"), 8 * (n * n) as u64);
    Ok(Data { work: "transpose", size, bytes, operations: 0, inputs: [a, Rc::default()], index: Rc::default(), expect })
}

/// The softmax of the rows of a matrix.
pub(super) fn softmax(rows: usize, cols: usize, device: &Device) -> TensorResult<Data> {
    let x = values(&[rows, cols], 4, device)?;
    let mut expect = Vec::with_capacity(rows * cols);
    for row in x.chunks(cols) {
        let most = row.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
        let e: Vec<f64> = row.iter().map(|x| f64::from(x - most).exp()).collect();
        let sum: f64 = e.iter().sum();
        expect.extend(e.into_iter().map(|e| e / sum));
    }
    let (bytes, operations) = (8 * (rows * cols) as u64, 5 * (rows * cols) as u64);
    Ok(Data {
        work: "softmax",
        size: format!("{rows}x{cols}"),
        bytes,
        operations,
        inputs: [x, Rc::default()],
        index: Rc::default(),
        expect,
    })
}

/// Elements of a row of a gather: 64 bytes.
pub(super) const WIDTH: usize = 16;

/// Half as many rows as a table of `rows` has, at random places.
pub(super) fn gather(rows: usize, device: &Device) -> TensorResult<Data> {
    let table = values(&[rows, WIDTH], 5, device)?;
    let mut random = SplitMix(6);
    let index: Vec<i32> = (0..rows / 2).map(|_| random.below(rows) as i32).collect();
    let expect = picked(&table, &index);
    let (size, bytes) = (format!("{}x{WIDTH} of {rows}", rows / 2), (8 * WIDTH + 4) as u64 * (rows / 2) as u64);
    Ok(Data { work: "gather", size, bytes, operations: 0, inputs: [table, Rc::default()], index: Rc::new(index), expect })
}

/// The rows of a table at these places.
pub(super) fn picked(table: &[f32], index: &[i32]) -> Vec<f64> {
    index.iter().flat_map(|i| table[*i as usize * WIDTH..][..WIDTH].iter().map(|v| f64::from(*v))).collect()
}
