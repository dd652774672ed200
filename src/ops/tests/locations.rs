//! Tests: whatever a composite is made of, its nodes and its errors name the user's line.

use crate::device::Device;
use crate::dtype::DType;
use crate::error::TensorResult;
use crate::eval::inputs_of;
use crate::ops::{Lit, NllOptions, Reduction, Rng};
use crate::tensor::Tensor;

/// A composite under test.
type Case = fn(&Tensor) -> TensorResult<Tensor>;

const MEAN: Reduction = Reduction::Mean;

/// One case a line: the file is what nodes must name.
const CASES: &[(&str, Case)] = &[
    ("relu6", |x| x.relu6()),
    ("leaky_relu", |x| x.leaky_relu(0.1)),
    ("elu", |x| x.elu(1.0)),
    ("selu", |x| x.selu()),
    ("silu", |x| x.silu()),
    ("gelu", |x| x.gelu()),
    ("gelu_tanh", |x| x.gelu_tanh()),
    ("softplus", |x| x.softplus()),
    ("softplus_with", |x| x.softplus_with(2.0, 20.0)),
    ("log_sigmoid", |x| x.log_sigmoid()),
    ("mish", |x| x.mish()),
    ("hardswish", |x| x.hardswish()),
    ("softshrink", |x| x.softshrink(0.5)),
    ("glu", |x| x.glu(-1)),
    ("clamp", |x| x.clamp(Some(0.0), Some(1.0))),
    ("clamp_tensors", |x| x.clamp_tensors(Some(x), Some(x))),
    ("div", |x| x.cast(DType::I32)?.div(2)),
    ("div_floor", |x| x.div_floor(2.0)),
    ("nan_to_num", |x| x.nan_to_num(0.0, None, None)),
    ("lerp", |x| x.lerp(x, x)),
    ("lerp by a number", |x| x.lerp(x, 0.75)),
    ("addcmul", |x| x.addcmul(x, x, 2.0)),
    ("addcdiv", |x| x.addcdiv(x, x, 2.0)),
    ("xlogy", |x| x.xlogy(x)),
    ("logaddexp", |x| x.logaddexp(x)),
    ("hypot", |x| x.hypot(x)),
    ("fmax", |x| x.fmax(x)),
    ("logical_and", |x| x.logical_and(x)),
    ("erfc", |x| x.erfc()),
    ("var", |x| x.var(&[1], 1, false)),
    ("std", |x| x.std(&[1], 1, false)),
    ("logsumexp", |x| x.logsumexp(&[1], false)),
    ("norm", |x| x.norm(2.0, &[1], false)),
    ("norm of order 3", |x| x.norm(3.0, &[1], false)),
    ("batch_norm", |x| x.batch_norm(None, None, None, 1e-5)),
    ("group_norm", |x| x.group_norm(2, None, None, 1e-5)),
    ("mse_loss", |x| x.mse_loss(x, MEAN)),
    ("huber_loss", |x| x.huber_loss(x, 1.0, MEAN)),
    ("cross_entropy", |x| x.cross_entropy(x, &NllOptions::default())),
    ("outer", |x| x.select(0, 0)?.outer(&x.select(0, 1)?)),
    ("tril", |x| x.tril(0)),
    ("cosine_similarity", |x| x.cosine_similarity(x, 1, 1e-8)),
    ("normalize", |x| x.normalize(2.0, 1, 1e-8)),
    ("cumsum", |x| x.cumsum(1)),
    ("cat", |x| Tensor::cat(&[x, x], 0)),
    ("stack", |x| Tensor::stack(&[x, x], 0)),
    ("split", |x| Tensor::cat(&x.split(0)?, 1)),
    ("unstack", |x| Tensor::cat(&x.unstack(0)?, 0)),
    ("linspace", |x| Tensor::linspace(0.0, 1.0, 4, DType::F32, x.device())),
    ("arange", |x| Tensor::arange(1.0, 9.0, 2.0, DType::F32, x.device())),
    ("normal", |x| Rng::new(1).normal(&[4], DType::F32, x.device())),
    ("matmul", |x| x.matmul(&x.t()?)),
    ("operator", |x| (1.0 - x)?.add(Lit(1.0))),
];

/// Every pending node under a tensor names this file.
#[track_caller]
fn check(name: &str, y: &Tensor) {
    let (mut seen, mut next) = (std::collections::HashSet::new(), vec![y.clone()]);
    while let Some(t) = next.pop() {
        if seen.insert(std::sync::Arc::as_ptr(&t.node)) {
            assert!(t.node.at.file().ends_with("locations.rs"), "{name}: a node names {}", t.node.at);
            next.extend(inputs_of(&t.node));
        }
    }
}

#[test]
fn nodes_of_composites_name_the_users_line() {
    let x = Tensor::from_vec((1..17).map(|v| v as f32).collect(), &[4, 4], &Device::cpu()).unwrap();
    for (name, case) in CASES {
        check(name, &case(&x).unwrap());
        // Where gradients are kept, some take another way.
        check(name, &case(&x.requires_grad().unwrap()).unwrap());
    }
}

#[test]
fn errors_of_composites_name_the_users_line() {
    let x = Tensor::ones(&[2, 3], DType::F32, &Device::cpu()).unwrap();
    let wrong: &[Case] = &[
        |x| x.hypot(&x.t()?),
        |x| x.mse_loss(&x.t()?, MEAN),
        |x| x.glu(-1),
        |x| x.var(&[7], 1, false),
        |x| x.cosine_similarity(&x.t()?, 0, 1e-8),
        |x| x.bitwise_not()?.logical_not(),
    ];
    for case in wrong {
        let text = case(&x).unwrap_err().to_string();
        assert!(text.contains("locations.rs"), "{text}");
    }
}
