//! An index outside its dimension is an error that names the operation and the index, on every device, and the device goes on working.
//!
//! A file of its own: on a GPU the error reaches whoever reads next.

mod common;

use tensorlogic::ops::{NllOptions, Reduction};
use tensorlogic::{DType, Device, Tensor, TensorError, TensorResult};

#[track_caller]
fn check(device: &Device, op: &'static str, index: i32, make: impl Fn(&Tensor, &Tensor) -> TensorResult<Tensor>) {
    let x = Tensor::ones(&[3, 2], DType::F32, device).unwrap().add(1.0).unwrap();
    let rows = Tensor::from_vec(vec![0, index], &[2], device).unwrap();
    let error = make(&x, &rows).and_then(|y| y.to_vec()).unwrap_err();
    assert!(matches!(error, TensorError::Index { .. }), "{op} on {}: {error}", device.name());
    let text = error.to_string();
    assert!(text.contains(op) && text.contains(&index.to_string()) && text.contains(file!()), "{op} on {}: {text}", device.name());
    // Nothing of it stays behind.
    assert_eq!(x.sum(&[], false).unwrap().item().unwrap(), 12.0, "{op} on {}", device.name());
}

#[test]
fn a_bad_index_is_named() {
    for device in &common::devices() {
        for index in [3, 9, -1] {
            check(device, "index_select", index, |x, rows| x.index_select(0, rows));
            check(device, "index_add", index, |x, rows| x.index_add(0, rows, &x.narrow(0, 0, 2)?));
            check(device, "index_select", index, |x, rows| x.embedding(rows));
            let each = NllOptions { reduction: Reduction::None, ..NllOptions::default() };
            check(device, "cross_entropy", index, |x, classes| x.narrow(0, 0, 2)?.cross_entropy(classes, &each));
        }
        // Selected from all elements at once, where any index that is outside counts as -1.
        check(device, "index_select", -1, |x, rows| x.gather(1, &rows.sub(1)?.reshape(&[2, 1])?));
    }
}
