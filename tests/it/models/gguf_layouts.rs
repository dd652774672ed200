//! Converts folders of transformers to GGUF files as llama.cpp's converter does it; the files' logits are compared with the folders' references in f64.

use crate::common::assert_close;
use std::path::{Path, PathBuf};
use tensorlogic::io::{Gguf, GgufWriter, SafeTensors};
use tensorlogic::models::{self, Session, Weights};
use tensorlogic::{DType, Device};

pub(super) fn folder(name: &str) -> PathBuf {
    Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors").join(name)
}

/// A tensor of a file.
#[derive(Clone)]
pub(super) struct Part {
    pub shape: Vec<usize>,
    pub values: Vec<f32>,
}

pub(super) fn read(file: &SafeTensors, name: &str) -> Part {
    let info = file.tensor(name).unwrap();
    let bytes = file.bytes_of(info);
    let values = match info.dtype().unwrap() {
        DType::F32 => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect(),
        DType::I64 => bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f32).collect(),
        other => panic!("{name} is {other}"),
    };
    Part { shape: info.shape.to_vec(), values }
}

impl Part {
    /// Rows `from..to`.
    pub(super) fn rows(&self, from: usize, to: usize) -> Part {
        let each = self.values.len() / self.shape[0];
        let shape = [&[to - from], &self.shape[1..]].concat();
        Part { shape, values: self.values[from * each..to * each].to_vec() }
    }
    pub(super) fn behind(&self, other: &Part) -> Part {
        let shape = [&[self.shape[0] + other.shape[0]], &self.shape[1..]].concat();
        Part { shape, values: [&other.values[..], &self.values].concat() }
    }
    /// One behind the other.
    pub(super) fn joined(parts: &[Part]) -> Part {
        parts[1..].iter().fold(parts[0].clone(), |all, part| part.behind(&all))
    }
    /// In columns, as state space layers have what there is one of for each head or group.
    pub(super) fn column(self) -> Part {
        let len = self.values.len();
        self.of(&[len, 1])
    }
    pub(super) fn of(self, shape: &[usize]) -> Part {
        Part { shape: shape.to_vec(), ..self }
    }
    pub(super) fn map(self, f: impl Fn(f32) -> f32) -> Part {
        Part { values: self.values.into_iter().map(f).collect(), ..self }
    }
    pub(super) fn transposed(&self) -> Part {
        let (rows, columns) = (self.shape[0], self.shape[1]);
        let values = (0..columns).flat_map(|c| (0..rows).map(move |r| (r, c))).map(|(r, c)| self.values[r * columns + c]).collect();
        Part { shape: vec![columns, rows], values }
    }
    /// Heads of `size` rows, of which `each` share a key, in the order of the first of all keys, then the second, and so on.
    pub(super) fn spread(&self, keys: usize, each: usize, size: usize) -> Part {
        let heads = (0..each).flat_map(|v| (0..keys).map(move |k| k * each + v));
        let parts: Vec<Part> = heads.map(|h| self.rows(h * size, (h + 1) * size)).collect();
        Part::joined(&parts)
    }
}

/// `a.N.b` where the pattern is `a.*.b`.
fn numbered<'n>(name: &'n str, pattern: &str) -> Option<&'n str> {
    match pattern.split_once('*') {
        Some((start, end)) => name.strip_prefix(start)?.strip_suffix(end).filter(|n| n.parse::<usize>().is_ok()),
        None => (name == pattern).then_some(""),
    }
}

/// The names of a folder and of a GGUF file, of weights and biases alike.
pub(super) type Names = [(&'static str, &'static str)];

/// Names with the layers' numbers; `change` makes the file's tensors of a folder's.
pub(super) fn convert(
    folder: &Path,
    names: &Names,
    settings: impl Fn(&mut GgufWriter),
    change: impl Fn(&str, Part) -> Vec<(String, Part)>,
) -> Vec<u8> {
    let file = SafeTensors::open(folder.join("model.safetensors")).unwrap();
    let mut w = GgufWriter::new();
    settings(&mut w);
    for info in file.tensors() {
        let found = names.iter().find_map(|(hub, gguf)| {
            ["", ".weight", ".bias"].into_iter().find_map(|end| {
                let n = numbered(&info.name, &format!("{hub}{end}"))?;
                Some(format!("{}{end}", gguf.replace('*', n)))
            })
        });
        let Some(name) = found else { continue };
        for (name, part) in change(&name, read(&file, &info.name)) {
            let bytes: Vec<u8> = part.values.iter().flat_map(|v| v.to_le_bytes()).collect();
            w.tensor(&name, DType::F32, &part.shape, bytes).unwrap();
        }
    }
    w.to_bytes().unwrap()
}

pub(super) fn open(bytes: &[u8]) -> Weights {
    Weights::from_gguf(Gguf::from_bytes(bytes.to_vec()).unwrap(), &Device::cpu())
}

/// Logits of the folder's tokens equal its reference.
pub(super) fn check(folder: &Path, bytes: &[u8]) {
    let expected = SafeTensors::open(folder.join("expected.safetensors")).unwrap();
    let (ids, want) = (read(&expected, "input_ids"), read(&expected, "logits"));
    let model = models::load(&open(bytes), Some(DType::F32)).unwrap_or_else(|e| panic!("{}: {e}", folder.display()));
    for (row, want) in ids.values.chunks(ids.shape[1]).zip(want.values.chunks(want.values.len() / ids.shape[0])) {
        let tokens: Vec<u32> = row.iter().map(|&t| t as u32).collect();
        let got = Session::new(&*model, 64, &Device::cpu()).unwrap().score(&tokens).unwrap().to_vec().unwrap();
        let want: Vec<f64> = want.iter().map(|v| f64::from(*v)).collect();
        assert_close(&folder.display().to_string(), &got, &want, 1e-4, 5e-4);
    }
}

/// Sets keys below the architecture's name.
pub(super) fn keys(w: &mut GgufWriter, architecture: &str, numbers: &[(&str, u32)], floats: &[(&str, f32)]) {
    w.set("general.architecture", architecture);
    for (key, v) in numbers {
        w.set(&format!("{architecture}.{key}"), *v);
    }
    for (key, v) in floats {
        w.set(&format!("{architecture}.{key}"), *v);
    }
}

/// What all converters of layers with states do: taps without the middle dimension, rates of decay worked out.
pub(super) fn usual(name: &str, part: Part) -> (String, Part) {
    match part.shape[..] {
        [channels, 1, taps] => (name.into(), part.of(&[channels, taps])),
        _ if name.ends_with("ssm_a") => (name.into(), part.map(|a| -a.exp())),
        _ => (name.into(), part),
    }
}
