//! Every event and span of the registry is provoked by what it says, and seen by a subscriber.

use super::KINDS;
use crate::backends::gpu::tests::events as gpu_events;
use crate::data::{DataLoader, Images, LoaderOptions};
use crate::device::{StorageMode, under_test};
use crate::io::save::save;
use crate::io::write_safetensors;
use crate::leaks::LeakDetector;
use crate::models::inference::{Inference, Inputs, Padding};
use crate::models::{self, Sampler, Session, Weights};
use crate::nn::{Linear, Module, ModuleExt};
use crate::ops::custom::CustomOp;
use crate::ops::loss::Reduction;
use crate::optim::{AdamW, Optimizer};
use crate::plan::FallbackModel;
use crate::profile::{ProfileOptions, Schedule};
use crate::train::{AdaptiveBatch, Checkpoints};
use crate::tuning::Tuning;
use crate::{DType, Device, Rng, Tensor, TensorError, TensorResult};
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex};
use std::thread::ThreadId;
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Metadata, Subscriber};

/// Notes the names of what it sees on its own thread, and that their levels are the registry's.
#[derive(Clone)]
struct Seen(Arc<Mutex<BTreeSet<&'static str>>>, Arc<AtomicU64>, ThreadId);

impl Seen {
    fn add(&self, metadata: &'static Metadata<'static>) {
        let kind = KINDS.iter().find(|k| k.name == metadata.name()).unwrap_or_else(|| panic!("{} is not in the registry", metadata.name()));
        assert_eq!((kind.level, kind.span), (metadata.level().as_str().to_ascii_lowercase().as_str(), metadata.is_span()));
        if std::thread::current().id() == self.2 {
            self.0.lock().unwrap().insert(metadata.name());
        }
    }
}

impl Subscriber for Seen {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        metadata.target().starts_with("tensorlogic::")
    }
    fn new_span(&self, span: &Attributes<'_>) -> Id {
        self.add(span.metadata());
        Id::from_u64(self.1.fetch_add(1, Relaxed) + 1)
    }
    fn record(&self, _: &Id, _: &Record<'_>) {}
    fn record_follows_from(&self, _: &Id, _: &Id) {}
    fn event(&self, event: &Event<'_>) {
        self.add(event.metadata());
    }
    fn enter(&self, _: &Id) {}
    fn exit(&self, _: &Id) {}
}

/// A folder that is removed at the end.
struct Folder(PathBuf);
impl Folder {
    fn new() -> Folder {
        let path = std::env::temp_dir().join(format!("tl-events-{}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

fn ones(n: usize, d: &Device) -> TensorResult<Tensor> {
    let t = Tensor::ones(&[n], DType::F32, d)?;
    t.eval()?;
    Ok(t)
}

fn devices_and_evaluations(folder: &Path) -> TensorResult<()> {
    let d = under_test::cpu();
    under_test::fall_back();
    assert!(under_test::left().is_some_and(|d| d.is_cpu()));
    d.set_adaptive(false);
    d.synchronize()?;
    let file = folder.join("crossover.json");
    d.crossover_in(Some(file.clone()), true)?;
    under_test::cpu().crossover_in(Some(file), false)?;
    // Two evaluations of one structure; then more structures than are kept.
    for _ in 0..2 {
        ones(7, &d)?.exp()?.sum_all()?.add(1.0)?.to_vec()?;
    }
    for n in 1..300 {
        ones(8, &d)?.narrow(0, n % 8, 1)?.expand(&[n])?.add(1.0)?.eval()?;
    }
    let mut long = ones(1, &d)?;
    for _ in 0..25_000 {
        long = long.add(1.0)?;
    }
    long.eval()?;
    let x = ones(4, &d)?.mul(2.0)?;
    x.to_vec()?;
    x.add(1.0)?.eval()?;
    let mut own = Tensor::from_vec(vec![0f32; 4], &[4], &d)?;
    own.copy_from_slice(&[1f32; 4])?;
    d.profile(|| ones(3, &d)?.exp()?.eval().map(drop))?;
    let mut steps = d.profile_steps(Schedule { wait: 0, warmup: 0, active: 1, repeat: 1 }, ProfileOptions::default(), |_, _| Ok(()))?;
    ones(3, &d)?.exp()?.eval()?;
    steps.step()
}

fn memory(folder: &Path) -> TensorResult<()> {
    let d = under_test::cpu();
    drop(ones(1000, &d)?);
    drop(ones(1000, &d)?);
    d.buffer_pool().clear();
    d.defragment(1)?;
    drop(Tensor::from_vec(vec![0f32; 1 << 16], &[1 << 16], &d)?);
    d.buffer_pool().set_limit(0);
    drop(ones(1000, &d)?);
    d.set_memory_limit(usize::MAX / 2);
    // More than there are addresses.
    let huge = d.backend().alloc(1 << 55);
    assert!(matches!(huge, Err(TensorError::OutOfMemory { .. })));
    let mut leaks = LeakDetector::new(&d).tolerance(0);
    leaks.baseline();
    let (held, outlived) = d.scope(|_| ones(1000, &d))?;
    assert!(leaks.check().is_some() && outlived.len() == 1);
    assert_eq!(d.diagnose()?.len(), 1, "a recording goes on");
    crate::metrics::write_once(&folder.join("metrics.json"), &d);
    drop(held);
    Ok(())
}

/// A decoder in the folder of a model that sees images too.
fn text_side(folder: &Path, d: &Device) -> TensorResult<()> {
    let decoder = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/vectors/models/gemma3_text-pattern");
    let weights = Weights::open(decoder, d)?;
    let named = |name: &String| -> TensorResult<_> { Ok((format!("language_model.{name}"), weights.any(name)?)) };
    let mut tensors: BTreeMap<String, Tensor> = weights.stored_names().iter().map(named).collect::<TensorResult<_>>()?;
    tensors.insert("vision_tower.norm.weight".into(), ones(4, d)?);
    let text: serde_json::Value = serde_json::from_slice(&std::fs::read(format!("{decoder}/config.json")).unwrap()).unwrap();
    std::fs::write(folder.join("config.json"), serde_json::json!({ "model_type": "gemma3", "text_config": text }).to_string()).unwrap();
    let mut bytes = Vec::new();
    write_safetensors(&tensors, &[], |part| {
        bytes.extend_from_slice(part);
        Ok(())
    })?;
    std::fs::write(folder.join("model.safetensors"), bytes).unwrap();
    models::load(&Weights::open(folder, d)?, None).map(drop)
}

fn models_and_training(folder: &Path) -> TensorResult<()> {
    let d = under_test::cpu();
    text_side(folder, &d)?;
    let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    let model = models::load(&Weights::open(file, &d)?, None)?;
    let mut session = Session::new(&*model, 64, &d)?;
    let logits = session.prompt(&[5, 6, 7], || false)?.expect("nobody stopped it");
    let mut sampler = Sampler::default();
    assert_eq!(session.generate(logits, &mut sampler)?.at_most(12).count(), 12);
    Inference::new(&*model).run(&Inputs::padded(&[[1u32, 2]], Padding::Right)?)?;

    let images = Images::new((0..40).map(|v| v as f32).collect(), [1, 2, 2], (0..10).collect())?;
    DataLoader::new(images, LoaderOptions { batch: 4, ..LoaderOptions::default() }, &d)?.next_batch()?;
    let mut rng = Rng::new(1);
    let layer = Linear::new(64, 64, true, &mut rng, &d)?;
    let mut optimizer = Optimizer::new(AdamW::default(), layer.named_parameters(), 1e-2)?;
    let x = rng.normal(&[8192, 64], DType::F32, &d)?;
    x.eval()?;
    let loss = |b: &[Tensor]| layer.forward(&b[0])?.square()?.mse_loss(&b[0], Reduction::Mean);
    AdaptiveBatch::new().step(&layer, &mut optimizer, &[vec![x.clone()]], loss)?;
    // Whole batches find no memory any more.
    let pool = d.buffer_pool_stats();
    d.set_memory_limit(pool.in_use - pool.mapped + (400 << 10));
    AdaptiveBatch::new().step(&layer, &mut optimizer, &[vec![x]], loss)?;

    save(folder.join("note.txt"), |out| std::io::Write::write_all(out, b"x"))?;
    let checkpoints = Checkpoints::new(folder.join("checkpoints"), 2);
    checkpoints.prepare()?;
    checkpoints.save(1, |f| f.bytes("a", b"x"))?;
    std::fs::write(checkpoints.path(1).join("a"), b"y").unwrap();
    assert_eq!(checkpoints.latest()?.0, None);
    Ok(())
}

static BROKEN: CustomOp = CustomOp::elementwise("broken").wgsl("fn broken(a: f32) -> f32 { return nothing; }");

fn on_a_gpu(d: &Device) -> TensorResult<()> {
    under_test::open(|name| Device::open_with_tuning(name, Tuning::generic())).expect("it was opened before");
    d.set_adaptive(true);
    let none = FallbackModel { round_trip: 1.0, submit: 1.0, host: 0.0, host_element: 0.0, host_op: 0.0 };
    *d.measured() = Some(none);
    Tensor::from_vec(vec![1f32; 4], &[4], d)?.add(1.0)?.to_vec()?;
    d.set_adaptive(false);
    let small = |v: f32| Tensor::from_vec(vec![v; 4], &[4], d);
    small(1.0)?.mul(&small(2.0)?)?.to_vec()?;
    // The same kernel for another size; products that share their left side.
    for n in [100, 200] {
        ones(n, d)?.mul(3.0)?.tanh()?.eval()?;
    }
    let (x, w) = (Tensor::ones(&[1, 64], DType::F32, d)?, Tensor::ones(&[64, 64], DType::F32, d)?);
    crate::eval::eval_all(&[&x, &w])?;
    let (a, b) = (x.matmul(&w.t()?)?, x.matmul(&w.add(1.0)?.contiguous()?.t()?)?);
    crate::eval::eval_all(&[&a, &b])?;
    let large = vec![1f32; 1 << 16];
    for mode in [StorageMode::Shared, StorageMode::Private] {
        let t = Tensor::from_vec_in(large.clone(), &[1 << 16], d, mode)?;
        assert_eq!(t.to_vec()?, large);
    }
    assert!(ones(4, d)?.index_select(0, &Tensor::from_vec(vec![9i32], &[1], d)?)?.to_vec().is_err());
    assert!(BROKEN.apply(&[&ones(4, d)?], &[])?.to_vec().is_err());
    gpu_events::lost_and_kept(&std::env::temp_dir().join(format!("tl-kernels-{}", std::process::id())))
}

#[test]
fn every_event_is_provoked_and_seen() {
    let seen = Seen(Arc::default(), Arc::default(), std::thread::current().id());
    let folder = Folder::new();
    let gpu = under_test::gpu();
    // Of all threads: what another test's thread meets first would else count as unwanted in this one too.
    tracing::subscriber::set_global_default(seen.clone()).unwrap();
    devices_and_evaluations(&folder.0).unwrap();
    memory(&folder.0).unwrap();
    models_and_training(&folder.0).unwrap();
    gpu.iter().for_each(|d| on_a_gpu(d).unwrap());
    let seen = seen.0.lock().unwrap();
    // What an adapter without memory that host and device share cannot do.
    let shared = gpu.as_ref().is_some_and(|d| d.storage_mode() == StorageMode::Shared);
    let possible = |name: &str, of_gpu: bool| !of_gpu || gpu.is_some() && (shared || !name.ends_with("in_place"));
    let missing: Vec<_> = KINDS.iter().filter(|k| possible(k.name, k.gpu) && !seen.contains(k.name)).map(|k| k.name).collect();
    assert!(missing.is_empty(), "not provoked: {missing:?}");
    assert!(KINDS.len() >= 40);
}

#[test]
fn names_are_unique_and_say_what_happened() {
    let names: BTreeSet<_> = KINDS.iter().map(|k| k.name).collect();
    assert_eq!(names.len(), KINDS.len());
    for k in KINDS {
        assert!(!k.what.is_empty() && ["error", "warn", "info", "debug", "trace"].contains(&k.level), "{k:?}");
    }
}
