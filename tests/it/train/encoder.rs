//! The encoder block, cross-attention and masks against PyTorch: results and the gradients of inputs and parameters.
//!
//! The vectors in `tests/vectors/encoder` are PyTorch's in f64, written by `benches/peers/pytorch_encoder.py`.

use crate::common::{devices, noise};
use std::collections::BTreeMap;
use std::path::Path;
use tensorlogic::io::{SafeTensors, write_safetensors};
use tensorlogic::nn::{EncoderBlock, EncoderConfig, Gpt, GptConfig, Module, ModuleExt, MultiHeadAttention};
use tensorlogic::ops::Activation;
use tensorlogic::{DType, Device, Rng, Tensor};

const HEADS: usize = 4;

struct Vectors {
    file: SafeTensors,
    device: Device,
}

impl Vectors {
    fn open(device: &Device) -> Vectors {
        let path = Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/encoder/encoder.safetensors");
        Vectors { file: SafeTensors::open(path).unwrap(), device: device.clone() }
    }
    fn values(&self, name: &str) -> (Vec<f64>, Vec<usize>) {
        let info = self.file.tensor(name).unwrap();
        let bytes = self.file.bytes_of(info);
        let values = match info.dtype().unwrap() {
            DType::U8 => bytes.iter().map(|&b| f64::from(b)).collect(),
            _ => bytes.as_chunks::<4>().0.iter().map(|b| f64::from(f32::from_le_bytes(*b))).collect(),
        };
        (values, info.shape.to_vec())
    }
    fn tensor(&self, name: &str) -> Tensor {
        let (values, shape) = self.values(name);
        Tensor::from_vec(values.iter().map(|&v| v as f32).collect(), &shape, &self.device).unwrap()
    }
    fn mask(&self, name: &str) -> Tensor {
        self.tensor(name).gt(0.5).unwrap()
    }
    /// The tensors whose names begin with `prefix`, by the rest of their names.
    fn with_prefix(&self, prefix: &str) -> BTreeMap<String, Tensor> {
        let names = self.file.tensors().iter().filter_map(|t| t.name.strip_prefix(prefix).map(str::to_string));
        names.map(|n| (n.clone(), self.tensor(&format!("{prefix}{n}")))).collect()
    }
    /// Fails where an element is further from PyTorch's than f32 explains.
    fn check(&self, what: &str, got: &Tensor) {
        let (want, shape) = self.values(what);
        assert_eq!(got.dims(), shape, "{what}");
        crate::common::assert_close(&format!("{what} on {}", self.device.name()), &got.to_vec().unwrap(), &want, 2e-5, 2e-5);
    }
}

/// What PyTorch calls a parameter.
fn torch_name(name: &str) -> String {
    name.replace("c_attn.", "in_proj_").replace("c_proj.", "out_proj.")
}

#[test]
fn the_encoder_block_is_pytorchs_with_its_gradients() {
    for device in devices() {
        let v = Vectors::open(&device);
        let width = v.tensor("x").shape()[2];
        for (norms, norm_first) in [("post", false), ("pre", true)] {
            for (function, activation) in [("relu", Activation::ReLU), ("gelu", Activation::Gelu)] {
                for mask in ["none", "padding", "causal"] {
                    let name = format!("{norms}.{function}.{mask}");
                    let config = EncoderConfig {
                        activation,
                        norm_first,
                        dropout: 0.0,
                        causal: mask == "causal",
                        ..EncoderConfig::new(width, HEADS, 40)
                    };
                    let block = EncoderBlock::new(config, &mut Rng::new(1), &device).unwrap();
                    block.load_torch(&v.with_prefix(&format!("{name}.param."))).unwrap();
                    let x = v.tensor("x").requires_grad().unwrap();
                    let keys = (mask == "padding").then(|| v.mask("valid").unsqueeze(1).unwrap().unsqueeze(1).unwrap());
                    let y = block.encode(&x, keys.as_ref()).unwrap();
                    v.check(&format!("{name}.y"), &y);
                    y.mul(&v.tensor("cotangent")).unwrap().sum_all().unwrap().backward().unwrap();
                    v.check(&format!("{name}.grad.x"), &x.grad().unwrap());
                    let parameters = block.named_parameters();
                    assert_eq!(parameters.len(), 12);
                    for (p, value) in parameters {
                        v.check(&format!("{name}.grad.{}", torch_name(&p)), &value.grad().unwrap());
                    }
                }
            }
        }
    }
}

#[test]
fn cross_attention_is_pytorchs_with_its_gradients() {
    for device in devices() {
        let v = Vectors::open(&device);
        let width = v.tensor("x").shape()[2];
        let layer = MultiHeadAttention::new(width, HEADS, false, true, [1.0, 1.0], &mut Rng::new(1), &device).unwrap();
        let theirs = v.with_prefix("cross.param.");
        layer
            .load_state(&layer.named_parameters().into_iter().map(|(n, _)| (n.clone(), theirs[&torch_name(&n)].clone())).collect())
            .unwrap();
        let (x, memory) = (v.tensor("x").requires_grad().unwrap(), v.tensor("memory").requires_grad().unwrap());
        let y = layer.attend(&x, Some(&memory), Some(&v.mask("cross.allowed"))).unwrap();
        v.check("cross.y", &y);
        y.mul(&v.tensor("cotangent")).unwrap().sum_all().unwrap().backward().unwrap();
        v.check("cross.grad.x", &x.grad().unwrap());
        v.check("cross.grad.memory", &memory.grad().unwrap());
        for (p, value) in layer.named_parameters() {
            v.check(&format!("cross.grad.{}", torch_name(&p)), &value.grad().unwrap());
        }
    }
}

#[test]
fn a_query_without_a_key_gives_the_projections_bias_and_finite_gradients() {
    for device in devices() {
        let mut rng = Rng::new(1);
        let layer = MultiHeadAttention::new(8, 2, false, true, [0.5, 0.5], &mut rng, &device).unwrap();
        layer.c_proj.bias.as_ref().unwrap().set(&Tensor::arange(0.0, 8.0, 1.0, DType::F32, &device).unwrap()).unwrap();
        let x = rng.normal(&[1, 3, 8], DType::F32, &device).unwrap().requires_grad().unwrap();
        let mask = Tensor::new(&[[1, 1, 0], [0, 0, 0], [1, 0, 0]], &device).unwrap().gt(0).unwrap();
        let y = layer.attend(&x, None, Some(&mask)).unwrap();
        let row = y.narrow(1, 1, 1).unwrap().to_vec().unwrap();
        assert_eq!(row, (0..8).map(|v| v as f32).collect::<Vec<_>>(), "on {}", device.name());
        y.square().unwrap().sum_all().unwrap().backward().unwrap();
        assert!(x.grad().unwrap().to_vec().unwrap().iter().all(|g| g.is_finite()), "on {}", device.name());
    }
}

#[test]
fn wrong_inputs_of_attention_are_named() {
    let (device, mut rng) = (Device::cpu(), Rng::new(1));
    let layer = |causal, rng: &mut Rng| MultiHeadAttention::new(8, 2, causal, true, [0.1, 0.1], rng, &device).unwrap();
    let x = rng.normal(&[2, 3, 8], DType::F32, &device).unwrap();
    let e = layer(true, &mut rng).attend(&x, Some(&x), None).unwrap_err().to_string();
    assert!(e.contains("a causal layer cannot attend to a memory"), "{e}");
    let other = rng.normal(&[1, 3, 8], DType::F32, &device).unwrap();
    let e = layer(false, &mut rng).attend(&x, Some(&other), None).unwrap_err().to_string();
    assert!(e.contains("[2,3,8] and [1,3,8]; expected [B,T,8]"), "{e}");
    let e = layer(false, &mut rng).attend(&x, None, Some(&other.gt(0.0).unwrap())).unwrap_err().to_string();
    assert!(e.contains("mask [1,3,8] does not broadcast") || e.contains("broadcast"), "{e}");
}

/// Rows of the table that are no tokens change neither logits nor gradients, and no file has them.
#[test]
fn a_padded_vocabulary_changes_nothing() {
    let config = GptConfig { vocab: 29, context: 8, layers: 2, heads: 2, width: 16, bias: true, dropout: 0.0 };
    for device in devices() {
        let plain = Gpt::new(config, &mut Rng::new(5), &device).unwrap();
        let padded = Gpt::padded(config, 64, &mut Rng::new(5), &device).unwrap();
        assert_eq!(padded.state()["wte.weight"].dims(), [64, 16]);
        let tokens = |seed| {
            let v = noise(16, seed).iter().map(|v| ((v.abs() * 1e4) as i32) % 29).collect::<Vec<_>>();
            Tensor::from_vec(v, &[2, 8], &device).unwrap()
        };
        let (x, y) = (tokens(1), tokens(2));
        let grads = [&plain, &padded].map(|m| {
            let loss = m.loss(&x, &y).unwrap();
            loss.backward().unwrap();
            let table = m.named_parameters()[0].1.grad().unwrap();
            (loss.to_vec().unwrap(), m.forward(&x).unwrap().to_vec().unwrap(), table.narrow(0, 0, 29).unwrap().to_vec().unwrap(), table)
        });
        let wide = |v: &[f32]| v.iter().map(|&v| f64::from(v)).collect::<Vec<_>>();
        crate::common::assert_close("loss", &grads[1].0, &wide(&grads[0].0), 1e-6, 0.0);
        crate::common::assert_close("logits", &grads[1].1, &wide(&grads[0].1), 1e-5, 1e-6);
        crate::common::assert_close("gradient", &grads[1].2, &wide(&grads[0].2), 1e-5, 1e-6);
        assert!(grads[1].3.narrow(0, 29, 35).unwrap().to_vec().unwrap().iter().all(|g| *g == 0.0));
        let saved = config.weights_to_hub(&padded.state()).unwrap();
        assert_eq!(saved["transformer.wte.weight"].dims(), [29, 16]);
        let mut bytes = Vec::new();
        let put = |part: &[u8]| {
            bytes.extend_from_slice(part);
            Ok(())
        };
        write_safetensors(&saved, &[], put).unwrap();
        let again = Gpt::padded(config, 64, &mut Rng::new(6), &device).unwrap();
        again.load_hub(&SafeTensors::from_bytes(bytes).unwrap()).unwrap();
        assert_eq!(again.forward(&x).unwrap().to_vec().unwrap(), grads[1].1);
    }
}
