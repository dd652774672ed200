//! Batches: joining and parting are each other's inverse, a batch gives what its members give, in as few dispatches as one of them.

use crate::common::devices;
use tensorlogic::eval::plan_of;
use tensorlogic::ops::Activation;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};

#[path = "../../../examples/batch_inference.rs"]
#[allow(dead_code)]
mod batch_inference;
#[path = "../../../examples/image_pipeline.rs"]
#[allow(dead_code)]
mod image_pipeline;

/// The values 0, 1, 2 … from `start`.
fn count(start: usize, shape: &[usize], device: &Device) -> Tensor {
    let n: usize = shape.iter().product();
    Tensor::from_vec((start..start + n).map(|v| v as f32).collect(), shape, device).unwrap()
}

/// Compares tensors with shapes and values.
#[track_caller]
fn check(got: TensorResult<Vec<Tensor>>, expect: &[(&[usize], &[f32])]) {
    let got = got.unwrap();
    assert_eq!(got.len(), expect.len());
    for (g, (shape, values)) in got.iter().zip(expect) {
        assert_eq!((g.dims(), &g.to_vec().unwrap()[..]), (*shape, *values), "on {}", g.device().name());
    }
}

#[test]
fn parting() {
    for d in devices() {
        let x = count(0, &[3, 2], &d);
        check(x.split(0), &[(&[1, 2], &[0., 1.]), (&[1, 2], &[2., 3.]), (&[1, 2], &[4., 5.])]);
        check(x.split(-1), &[(&[3, 1], &[0., 2., 4.]), (&[3, 1], &[1., 3., 5.])]);
        check(x.unstack(0), &[(&[2], &[0., 1.]), (&[2], &[2., 3.]), (&[2], &[4., 5.])]);
        check(x.unstack(1), &[(&[3], &[0., 2., 4.]), (&[3], &[1., 3., 5.])]);
        check(x.split_with_sizes(&[1, 2], 0), &[(&[1, 2], &[0., 1.]), (&[2, 2], &[2., 3., 4., 5.])]);
        check(x.chunk(2, 0), &[(&[2, 2], &[0., 1., 2., 3.]), (&[1, 2], &[4., 5.])]);
    }
}

#[test]
fn joining_takes_any_slice_of_tensors() {
    for d in devices() {
        let (a, b) = (count(0, &[1, 2], &d), count(2, &[2, 2], &d));
        let whole: (&[usize], &[f32]) = (&[3, 2], &[0., 1., 2., 3., 4., 5.]);
        check(Tensor::cat(&[&a, &b], 0).map(|t| vec![t]), &[whole]);
        check(Tensor::cat(&[a.clone(), b.clone()], 0).map(|t| vec![t]), &[whole]);
        let list: Vec<Tensor> = vec![a.clone(), b.clone()];
        check(Tensor::cat(&list, 0).map(|t| vec![t]), &[whole]);
        check(Tensor::cat(&list.iter().collect::<Vec<_>>(), 0).map(|t| vec![t]), &[whole]);
        check(Tensor::stack(&[a.clone(), a.clone()], 0).map(|t| vec![t]), &[(&[2, 1, 2], &[0., 1., 0., 1.])]);
        check(Tensor::stack(&[&a, &a], -1).map(|t| vec![t]), &[(&[1, 2, 2], &[0., 0., 1., 1.])]);
    }
}

#[test]
fn parting_undoes_joining() {
    for d in devices() {
        let x = Rng::new(3).normal(&[4, 3, 5], DType::F32, &d).unwrap();
        let values = x.to_vec().unwrap();
        for k in 0..3 {
            let k = k as isize;
            let again = [
                Tensor::cat(&x.split(k).unwrap(), k),
                Tensor::stack(&x.unstack(k).unwrap(), k),
                Tensor::cat(&x.chunk(2, k).unwrap(), k),
                Tensor::cat(&x.split_with_sizes(&[1, x.dims()[k as usize] - 1], k).unwrap(), k),
            ];
            for t in again {
                let t = t.unwrap();
                assert_eq!((t.dims(), t.to_vec().unwrap()), (x.dims(), values.clone()), "dimension {k} on {}", d.name());
            }
        }
    }
}

#[test]
fn errors_are_on_the_users_line() {
    let d = Device::cpu();
    let (a, b) = (count(0, &[1, 2], &d), count(0, &[1, 3], &d));
    let errors = [
        Tensor::cat(&[&a, &b], 0).err(),
        Tensor::stack(&[&a, &b], 0).err(),
        Tensor::cat::<Tensor>(&[], 0).err(),
        a.split(2).err(),
        a.split_with_sizes(&[3], 1).err(),
        a.unstack(-3).err(),
    ];
    for e in errors {
        let text = e.unwrap().to_string();
        assert!(text.contains("tests/it/ops/batches.rs"), "{text}");
    }
}

#[test]
fn a_batch_is_what_its_members_are_in_as_few_dispatches() {
    for d in devices() {
        let mut rng = Rng::new(5);
        let (w1, w2) = (rng.normal(&[20, 30], DType::F32, &d).unwrap(), rng.normal(&[30, 7], DType::F32, &d).unwrap());
        let inputs: Vec<Tensor> = (0..9).map(|_| rng.normal(&[1, 20], DType::F32, &d).unwrap()).collect();
        for t in inputs.iter().chain([&w1, &w2]) {
            t.eval().unwrap();
        }
        let forward =
            |x: &Tensor| x.matmul_with_activation(&w1, Activation::ReLU)?.matmul_with_activation(&w2, Activation::Tanh)?.softmax(-1);
        let dispatches = |t: &Tensor| plan_of(&[t]).unwrap().unwrap().steps.len();
        let single: Vec<Vec<f32>> = inputs.iter().map(|x| forward(x).unwrap().to_vec().unwrap()).collect();
        let batch = Tensor::cat(&inputs, 0).unwrap();
        batch.eval().unwrap();
        let output = forward(&batch).unwrap();
        assert_eq!(dispatches(&output), dispatches(&forward(&inputs[0]).unwrap()), "on {}", d.name());
        for (row, want) in output.split(0).unwrap().iter().zip(&single) {
            for (a, b) in row.to_vec().unwrap().iter().zip(want) {
                assert!((a - b).abs() < 1e-5, "{a} for {b} on {}", d.name());
            }
        }
    }
}

#[test]
fn the_batch_inference_example() {
    for d in devices() {
        let ways = batch_inference::run(&d, 1).unwrap();
        assert_eq!(ways[0].answers.len(), 64 * 10);
        for way in &ways {
            assert!(way.seconds > 0.0);
            for (a, b) in way.answers.iter().zip(&ways[0].answers) {
                assert!((a - b).abs() < 4e-3 * (1.0 + b.abs()), "{}: {a} for {b} on {}", way.name, d.name());
            }
        }
    }
}

#[test]
fn the_image_pipeline_example() {
    for d in devices() {
        let report = image_pipeline::run(&d, 16, 1).unwrap();
        assert_eq!(report.right, (16, 16), "on {}", d.name());
        assert!(report.difference < 0.01, "{} on {}", report.difference, d.name());
        assert!(report.per_second.iter().all(|&v| v > 0.0));
    }
}
