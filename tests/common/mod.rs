//! What all test programs share: the devices under test, numbers that look random, and comparisons.
//!
//! `TL_TEST_DEVICE` names the GPU under test as `Device::open` does (`gpu`, `vulkan`, `metal`, `vulkan:1`), or is `cpu` for none. Unset, it is
//! the machine's GPU, else a software Vulkan driver. Where there is neither, the GPU's tests are skipped, unless `TL_REQUIRE_GPU=1`, with which they
//! also fail where wgpu stands in for the Metal backend.
#![allow(dead_code)]

use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::models::{self, Weights};
use tensorlogic::quant::quantize;
use tensorlogic::{DType, Device};

/// The name by which the GPU under test is opened; `None` where there is none and none is required.
pub fn selector() -> Option<&'static str> {
    static SELECTOR: OnceLock<Option<String>> = OnceLock::new();
    SELECTOR.get_or_init(choose).as_deref()
}

fn choose() -> Option<String> {
    match std::env::var("TL_TEST_DEVICE").ok().filter(|name| !name.is_empty()) {
        Some(name) if name == "cpu" => None,
        Some(name) => {
            let device = Device::open(&name).unwrap_or_else(|e| panic!("TL_TEST_DEVICE={name}: {e}"));
            // What another backend does says nothing about the one that is to be tested.
            if let Some(why) = device.stands_in().filter(|_| is_required()) {
                panic!("TL_TEST_DEVICE={name}: {} stands in for it: {why}", device.name());
            }
            Some(name)
        }
        None => match Device::open("gpu").map(|_| "gpu").or_else(|_| Device::open("vulkan").map(|_| "vulkan")) {
            Ok(name) => Some(name.to_string()),
            Err(e) if is_required() => panic!("{e}"),
            Err(_) => None,
        },
    }
}

/// Whether tests on a GPU must run.
fn is_required() -> bool {
    std::env::var("TL_REQUIRE_GPU").is_ok_and(|v| v == "1")
}

/// The GPU under test, on which small cases run too; `None` where there is none and none is required.
pub fn gpu() -> Option<Device> {
    let name = selector()?;
    // One name for each device: `vulkan` and `vulkan:0` are opened apart, on the same adapter.
    let device = match SHARE.with(|s| s.0) {
        1 => Device::open(&format!("{name}:0")).ok().filter(|d| Device::open(name).is_ok_and(|first| first.name() == d.name())),
        _ => None,
    };
    let device = device.unwrap_or_else(|| Device::open(name).unwrap_or_else(|e| panic!("{name}: {e}")));
    device.set_adaptive(false);
    Some(device)
}

/// The CPU, and the GPU under test where there is one.
pub fn devices() -> Vec<Device> {
    [Some(Device::cpu()), gpu()].into_iter().flatten().collect()
}

/// Does `work` on the GPU under test, where there is one. The program `msl` does it twice, see there.
pub fn on_gpu(work: impl Fn(&Device)) {
    if let Some(gpu) = gpu() {
        work(&gpu);
    }
}

/// Tests that run on this device number of the program `it`. Two tests compile and run kernels at the same time only on two devices, since a
/// device's evaluations take turns.
struct Share(usize);
static SHARES: [AtomicUsize; 2] = [AtomicUsize::new(0), AtomicUsize::new(0)];
thread_local! {
    static SHARE: Share = {
        // A program that counts what its device does has one.
        let fewer = env!("CARGO_CRATE_NAME") == "it" && SHARES[1].load(Relaxed) < SHARES[0].load(Relaxed);
        SHARES[usize::from(fewer)].fetch_add(1, Relaxed);
        Share(usize::from(fewer))
    };
}
impl Drop for Share {
    fn drop(&mut self) {
        SHARES[self.0].fetch_sub(1, Relaxed);
    }
}

/// Holds off the other tests of a program that counts what its device does, or measures it.
pub fn alone() -> MutexGuard<'static, ()> {
    static ONE: Mutex<()> = Mutex::new(());
    ONE.lock().unwrap_or_else(PoisonError::into_inner)
}

/// A process of this program, for the driver under test. A program on a private driver was started by that driver's loader, which
/// `scripts/with-lavapipe.sh` asks again.
pub fn command(program: &str) -> Command {
    let by_loader = std::env::current_exe().is_ok_and(|p| p.file_name().is_some_and(|n| n.to_string_lossy().starts_with("ld-linux")));
    if !by_loader {
        return Command::new(program);
    }
    let manifest = std::path::Path::new(env!("CARGO_MANIFEST_DIR"));
    let script = manifest.ancestors().map(|folder| folder.join("scripts/with-lavapipe.sh")).find(|file| file.exists());
    let mut c = Command::new(script.expect("the repository has scripts/with-lavapipe.sh"));
    c.arg(program);
    c
}

/// Numbers in [−1, 1) that look random and are the same every time.
pub fn noise(count: usize, seed: u64) -> Vec<f64> {
    let mut s = (seed + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    (0..count)
        .map(|_| {
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            (s >> 40) as f64 / (1u64 << 23) as f64 - 1.0
        })
        .collect()
}

/// The same as f32, times `scale`.
pub fn noise_f32(count: usize, seed: u64, scale: f64) -> Vec<f32> {
    noise(count, seed).into_iter().map(|v| (v * scale) as f32).collect()
}

/// Whether each element is within `rtol` of its expected value's size, plus `atol`.
#[track_caller]
pub fn assert_close(what: &str, got: &[f32], want: &[f64], rtol: f64, atol: f64) {
    assert_eq!(got.len(), want.len(), "{what}");
    for (i, (&g, &w)) in got.iter().zip(want).enumerate() {
        assert!((f64::from(g) - w).abs() <= atol + rtol * w.abs(), "{what}: element {i} is {g}, not {w}");
    }
}

/// A Llama of two small layers with random weights.
pub fn tiny_llama(device: &Device) -> Box<dyn models::Model> {
    models::load(&Weights::from_gguf(tiny_llama_file(DType::F32, |_, _| ()), device), Some(DType::F32)).unwrap()
}

/// The file of [`tiny_llama`], whose matrices are of this dtype; `change` may change the values of each tensor.
pub fn tiny_llama_file(dtype: DType, change: impl Fn(&str, &mut [f32])) -> Gguf {
    let (d, ff, vocab, layers) = (32usize, 64usize, 96usize, 2usize);
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama");
    for (k, v) in [
        ("block_count", layers),
        ("context_length", 2048),
        ("embedding_length", d),
        ("feed_forward_length", ff),
        ("attention.head_count", 4),
        ("attention.head_count_kv", 2),
    ] {
        w.set(&format!("llama.{k}"), v as u32);
    }
    w.set("llama.attention.layer_norm_rms_epsilon", 1e-5f32);
    let mut state = 1u32;
    let mut values = |n: usize| -> Vec<f32> {
        let mut next = || {
            state = state.wrapping_mul(1664525).wrapping_add(1013904223);
            (state >> 8) as f32 / 16_777_216.0 - 0.5
        };
        (0..n).map(|_| next()).collect()
    };
    let mut add = |name: String, shape: &[usize]| {
        let mut values = values(shape.iter().product());
        change(&name, &mut values);
        let dtype = if shape.len() > 1 { dtype } else { DType::F32 };
        w.tensor(&name, dtype, shape, quantize(dtype, &values).unwrap()).unwrap();
    };
    add("token_embd.weight".into(), &[vocab, d]);
    add("output_norm.weight".into(), &[d]);
    for i in 0..layers {
        for (n, shape) in [
            ("attn_norm", vec![d]),
            ("attn_q", vec![d, d]),
            ("attn_k", vec![d / 2, d]),
            ("attn_v", vec![d / 2, d]),
            ("attn_output", vec![d, d]),
            ("ffn_norm", vec![d]),
            ("ffn_gate", vec![ff, d]),
            ("ffn_up", vec![ff, d]),
            ("ffn_down", vec![d, ff]),
        ] {
            add(format!("blk.{i}.{n}.weight"), &shape);
        }
    }
    Gguf::from_bytes(w.to_bytes().unwrap()).unwrap()
}

/// A new folder of the system's temporary one with `text.txt`, which the smallest models learn something from.
pub fn folder_with_text(name: &str) -> std::path::PathBuf {
    let folder = std::env::temp_dir().join(format!("tl-{name}-{}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    let line = "The quick brown fox jumps over the lazy dog. Pack my box with five dozen liquor jugs!\n";
    std::fs::write(folder.join("text.txt"), line.repeat(30)).unwrap();
    folder
}
