//! Memory: reuse over a training-like loop, limits, odd sizes, profiles. One test at a time: the counters are the device's.

mod common;

use common::alone;
use std::sync::MutexGuard;
use tensorlogic::device::{BufferPool, GpuDevice, MetalDevice};
use tensorlogic::eval::eval_all;
use tensorlogic::models::{self, KvCache, MemoryPlan, Sampler, Session, Weights, Workload};
use tensorlogic::{DType, Device, Tensor, TensorError, TensorResult};

/// Waits for the turn; gives the CPU and, where there is one, the GPU of the tests, with default bounds.
fn devices() -> (MutexGuard<'static, ()>, Vec<Device>) {
    let (turn, all) = (alone(), common::devices());
    for d in &all {
        d.set_memory_limit(None);
        BufferPool::with_capacity(d, usize::MAX).set_limit(None);
        d.buffer_pool().set_enabled(true);
        d.empty_cache();
    }
    (turn, all)
}

const B: usize = 32;
const D: usize = 48;
const H: usize = 64;
const RATE: f64 = 0.05;

/// Numbers in -0.5 .. 0.5, the same in every run.
fn noise(n: usize, seed: u32) -> Vec<f32> {
    common::noise_f32(n, seed.into(), 0.5)
}

/// The data of a step.
fn batch(step: u32) -> (Vec<f32>, Vec<f32>) {
    let x = noise(B * D, step % 7 + 1);
    let y = (0..B).map(|i| x[i * D..(i + 1) * D].iter().sum::<f32>().tanh()).collect();
    (x, y)
}

/// Two layers, and one step of gradient descent written out.
struct Net {
    w1: Tensor,
    b1: Tensor,
    w2: Tensor,
}

impl Net {
    fn step(&mut self, n: u32, d: &Device) -> TensorResult<f64> {
        let (x, y) = batch(n);
        let (x, y) = (Tensor::from_vec(x, &[B, D], d)?, Tensor::from_vec(y, &[B, 1], d)?);
        let h = x.matmul(&self.w1)?.add(&self.b1)?.relu()?;
        let e = h.matmul(&self.w2)?.sub(&y)?;
        let loss = e.square()?.mean_all()?;
        let de = e.mul(2.0 / B as f64)?;
        let g2 = h.t()?.matmul(&de)?;
        let dh = de.matmul(&self.w2.t()?)?.mul(&h.gt(0.0)?.cast(DType::F32)?)?;
        let g1 = x.t()?.matmul(&dh)?;
        let gb = dh.sum(&[0], false)?;
        let w2 = self.w2.sub(&g2.mul(RATE)?)?;
        let w1 = self.w1.sub(&g1.mul(RATE)?)?;
        let b1 = self.b1.sub(&gb.mul(RATE)?)?;
        eval_all(&[&w1, &b1, &w2, &loss])?;
        (self.w1, self.b1, self.w2) = (w1, b1, w2);
        loss.item()
    }
}

/// The same steps in plain loops and f64; the loss of the last.
fn reference(steps: u32) -> f64 {
    let wide = |v: Vec<f32>| v.into_iter().map(f64::from).collect::<Vec<_>>();
    let (mut w1, mut b1, mut w2) = (wide(noise(D * H, 100)), vec![0.0; H], wide(noise(H, 101)));
    let mut loss = 0.0;
    for n in 0..steps {
        let (x, y) = batch(n);
        let (x, y) = (wide(x), wide(y));
        let mut h = vec![0.0; B * H];
        let mut e = vec![0.0; B];
        for i in 0..B {
            for j in 0..H {
                let z: f64 = (0..D).map(|k| x[i * D + k] * w1[k * H + j]).sum::<f64>() + b1[j];
                h[i * H + j] = z.max(0.0);
            }
            e[i] = (0..H).map(|j| h[i * H + j] * w2[j]).sum::<f64>() - y[i];
        }
        loss = e.iter().map(|e| e * e).sum::<f64>() / B as f64;
        let old = w2.clone();
        for j in 0..H {
            let dh = |i: usize| if h[i * H + j] > 0.0 { 2.0 / B as f64 * e[i] * old[j] } else { 0.0 };
            w2[j] -= RATE * (0..B).map(|i| h[i * H + j] * 2.0 / B as f64 * e[i]).sum::<f64>();
            b1[j] -= RATE * (0..B).map(dh).sum::<f64>();
            for k in 0..D {
                w1[k * H + j] -= RATE * (0..B).map(|i| x[i * D + k] * dh(i)).sum::<f64>();
            }
        }
    }
    loss
}

/// Trains, and checks reuse, driver allocations and bytes on the way.
fn check_training(d: &Device, steps: u32) {
    let mut net = Net {
        w1: Tensor::from_vec(noise(D * H, 100), &[D, H], d).unwrap(),
        b1: Tensor::zeros(&[H], DType::F32, d).unwrap(),
        w2: Tensor::from_vec(noise(H, 101), &[H, 1], d).unwrap(),
    };
    let start = d.buffer_pool_stats();
    let mut after_3 = start;
    let mut loss = 0.0;
    for n in 0..steps {
        loss = net.step(n, d).unwrap();
        let now = d.buffer_pool_stats();
        if n == 2 {
            after_3 = now;
        }
        if n > 2 {
            assert_eq!(now.driver_allocations(), after_3.driver_allocations(), "{}: step {n} asked the driver", d.name());
            assert_eq!(now.in_use, after_3.in_use, "{}: bytes in use at step {n}", d.name());
        }
    }
    let end = d.buffer_pool_stats();
    let (asked, reused) = (end.allocation_count - start.allocation_count, end.reuse_count - start.reuse_count);
    let rate = reused as f64 / asked as f64;
    println!("{}: {asked} buffers asked for in {steps} steps, {:.2} % reused, {} bytes in use", d.name(), 100.0 * rate, end.in_use);
    assert!(asked >= 3 * steps as u64, "{}: {asked} requests: slots are not counted", d.name());
    assert!(rate >= 0.95, "{}: {rate}", d.name());
    let expected = reference(steps);
    assert!((loss - expected).abs() <= 1e-4 * expected.max(1e-3), "{}: loss {loss}, plain loops say {expected}", d.name());
}

#[test]
fn training_reuses_its_buffers_and_holds_no_more_of_them() {
    let (_turn, devices) = devices();
    for d in &devices {
        check_training(d, 1000);
    }
}

/// A sum of squares whose value is known: shows that a device still computes rightly.
#[track_caller]
fn check_works(d: &Device) {
    let x = Tensor::from_vec((0..1000).map(|i| i as f32 % 10.0).collect::<Vec<f32>>(), &[1000], d).unwrap();
    assert_eq!(x.square().unwrap().sum_all().unwrap().item().unwrap(), 28500.0, "{}", d.name());
}

#[test]
fn a_limit_refuses_what_is_too_much_and_nothing_is_lost() {
    let (_turn, devices) = devices();
    for d in &devices {
        let keep = Tensor::from_vec(noise(1 << 18, 5), &[1 << 18], d).unwrap();
        keep.add(0.0).unwrap().eval().unwrap();
        let held = d.buffer_pool_stats().in_use - d.buffer_pool_stats().mapped;
        // 1 MiB waits for reuse: it must go before anything is refused.
        assert!(d.buffer_pool_stats().total_memory >= 1 << 20);
        d.set_memory_limit(held + (3 << 20));
        let fits = keep.mul(2.0).unwrap();
        fits.eval().unwrap();
        let big = Tensor::ones(&[4 << 20], DType::F32, d).unwrap();
        let error = big.eval().expect_err("16 MiB do not fit into 3");
        let TensorError::OutOfMemory { asked, in_use, limit, .. } = &error else { panic!("{error}") };
        assert_eq!((*asked, *limit), (16 << 20, Some(held + (3 << 20))));
        assert!(*in_use >= held + (1 << 20), "{error}");
        assert!(error.to_string().contains("TL_MEM_LIMIT"), "{error}");
        assert_eq!(d.buffer_pool_stats().total_memory, 0, "the cache was not given back first");
        assert_eq!(fits.to_vec().unwrap(), noise(1 << 18, 5).iter().map(|v| v * 2.0).collect::<Vec<_>>());
        check_works(d);
        // The same value after the limit is gone.
        d.set_memory_limit(None);
        assert_eq!(big.sum_all().unwrap().item().unwrap(), (4 << 20) as f64);
        if d.memory_info().is_some() {
            d.set_memory_fraction(0.5).unwrap();
            assert_eq!(d.buffer_pool_stats().limit, d.memory_info().map(|r| r.total / 2));
        }
        assert!(d.set_memory_fraction(0.0).is_err() && d.set_memory_fraction(f64::NAN).is_err() && d.set_memory_fraction(1.5).is_err());
        d.set_memory_limit(None);
    }
}

#[test]
fn the_pool_can_be_bounded_cleared_and_turned_off_while_in_use() {
    let (_turn, devices) = devices();
    for d in &devices {
        let pool = d.buffer_pool();
        let fill = || {
            let sizes = [1000usize, 50_000, 100_000, 200_000];
            let all: Vec<Tensor> = sizes.iter().map(|&n| Tensor::ones(&[n], DType::F32, d).unwrap()).collect();
            eval_all(&all.iter().collect::<Vec<_>>()).unwrap();
            all
        };
        let held = fill();
        drop(fill());
        let stats = pool.stats();
        assert!(stats.total_pooled >= 4 && stats.size_classes >= 4 && stats.total_memory >= 1_404_000, "{stats:?}");
        assert!(pool.clear_size(400_000) >= 400_000);
        assert_eq!(pool.clear_size(400_000), 0);
        assert!(pool.shrink_to_fit(210_000) > 0);
        assert!(pool.stats().total_memory <= 210_000);
        assert!(pool.clear() > 0 || pool.stats().total_memory == 0);
        assert_eq!((pool.stats().total_pooled, pool.stats().size_classes, pool.stats().total_memory), (0, 0, 0));
        // What is in use was not touched, and comes back to the pool.
        assert_eq!(held[3].sum_all().unwrap().item().unwrap(), 200_000.0);
        drop(held);
        assert!(pool.stats().total_pooled >= 4);

        pool.set_limit(300_000);
        assert!(pool.stats().total_memory <= 300_000 && pool.stats().cache_limit == 300_000);
        drop(fill());
        assert!(pool.stats().total_memory <= 300_000);
        pool.set_limit(None);

        pool.set_enabled(false);
        let before = pool.stats();
        assert_eq!(before.total_memory, 0);
        drop(fill());
        check_works(d);
        let after = pool.stats();
        assert!(after.total_memory == 0 && after.reuse_count == before.reuse_count && after.allocation_count > before.allocation_count);
        pool.set_enabled(true);

        let capped = BufferPool::with_capacity(d, 1);
        let three: Vec<Tensor> = (0..3).map(|_| Tensor::ones(&[30_000], DType::F32, d).unwrap()).collect();
        eval_all(&three.iter().collect::<Vec<_>>()).unwrap();
        d.empty_cache();
        drop(three);
        assert_eq!(capped.stats().total_pooled, 1);
        BufferPool::with_capacity(d, usize::MAX);
        check_works(d);
    }
}

#[test]
fn empty_and_impossible_sizes() {
    let (_turn, devices) = devices();
    for d in &devices {
        let none = Tensor::from_vec(Vec::<f32>::new(), &[0, 4], d).unwrap();
        assert_eq!(none.relu().unwrap().to_vec().unwrap(), Vec::<f32>::new());
        assert_eq!(none.sum_all().unwrap().item().unwrap(), 0.0);
        let held = d.buffer_pool_stats().in_use;
        let huge = Tensor::zeros(&[1 << 20, 1 << 19], DType::F32, d).unwrap();
        for _ in 0..2 {
            let error = huge.eval().expect_err("2 TiB do not fit");
            assert!(matches!(error, TensorError::OutOfMemory { asked, .. } if asked == 1 << 41), "{error}");
        }
        assert_eq!(d.buffer_pool_stats().in_use, held);
        check_works(d);
    }
    // A value that takes no memory, read into more of the host's than there is.
    let vast = Tensor::zeros(&[1 << 44], DType::F32, &Device::cpu()).unwrap();
    for error in [vast.to_vec().map(drop).unwrap_err(), vast.to_bytes().map(drop).unwrap_err()] {
        assert!(matches!(&error, TensorError::OutOfMemory { asked, .. } if *asked == 1 << 46), "{error}");
    }
}

#[test]
fn a_profile_names_who_holds_what() {
    let (_turn, devices) = devices();
    for d in &devices {
        let old = Tensor::ones(&[1000], DType::F32, d).unwrap();
        old.eval().unwrap();
        let before = d.buffer_pool_stats();
        let profile = d.memory_profile();
        let x = Tensor::from_vec(noise(256 * 256, 3), &[256, 256], d).unwrap();
        let line = line!() + 1;
        let y = x.matmul(&x).unwrap();
        let z = y.softmax(-1).unwrap().matmul(&x).unwrap();
        eval_all(&[&y, &z]).unwrap();
        drop(z);
        let report = profile.report();
        assert_eq!((report.before, report.in_use), (before.in_use, d.buffer_pool_stats().in_use), "{report}");
        let held = |op: &str| report.held.iter().find(|h| h.op == op).unwrap_or_else(|| panic!("no {op} in\n{report}"));
        assert_eq!((held("matmul").at.unwrap().line(), held("matmul").buffers), (line, 1), "{report}");
        assert!(held("matmul").bytes >= 4 * 256 * 256);
        assert!(held("from_vec").at.unwrap().file().ends_with("memory.rs"));
        assert_eq!(report.held.iter().map(|h| h.bytes).sum::<usize>(), report.in_use - report.before, "{report}");
        assert_eq!(report.at_peak.iter().map(|h| h.bytes).sum::<usize>(), report.peak - report.before, "{report}");
        assert!(report.peak > report.in_use && report.at_peak.len() >= report.held.len(), "{report}");
        assert_eq!(report.timeline.iter().map(|p| p.1).max(), Some(report.peak));
        assert_eq!(report.timeline.last().unwrap().1, report.in_use);
        assert!(report.to_string().contains(&format!("memory.rs:{line}")), "{report}");
        let lines = report.to_json_lines();
        let parsed: Vec<serde_json::Value> = lines.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
        assert_eq!(parsed[0]["kind"], "summary");
        assert_eq!(parsed[0]["peak"], report.peak);
        assert!(parsed.iter().any(|l| l["kind"] == "held" && l["op"] == "matmul" && l["bytes"].as_u64() >= Some(262_144)));
        drop((x, y));
        assert!(profile.report().held.is_empty(), "{}", profile.report());
        drop(profile);
        // Off again: nothing is collected.
        check_works(d);
        assert!(d.memory_profile().report().taken == 0);
    }
}

#[test]
fn devices_of_one_kind_are_devices() {
    let (_turn, devices) = devices();
    match MetalDevice::new() {
        Ok(m) => assert!(!m.is_cpu()),
        Err(e) => assert!(matches!(&e, TensorError::UnsupportedDevice(m) if m.contains("GpuDevice::new()")), "{e}"),
    }
    assert!(GpuDevice::open("cpu").is_err());
    if devices.len() > 1 {
        let gpu = GpuDevice::open(common::selector().unwrap()).unwrap();
        assert_eq!(*gpu, devices[1]);
        assert_eq!(gpu.buffer_pool_stats().limit, devices[1].buffer_pool_stats().limit);
        let x = Tensor::ones(&[3], DType::F32, &gpu).unwrap();
        assert_eq!(x.to_vec().unwrap(), [1.0; 3]);
        assert_eq!(Device::from(gpu), devices[1]);
    }
}

#[test]
fn peaks_are_named_with_mapped_files_and_without() {
    const BYTES: usize = 8 << 20;
    let (_turn, devices) = devices();
    // Only the CPU reads files where they lie.
    let d = &devices[0];
    let path = std::env::temp_dir().join(format!("tl-peaks-{}.safetensors", std::process::id()));
    let header = format!(r#"{{"x":{{"dtype":"F32","shape":[{}],"data_offsets":[0,{BYTES}]}}}}"#, BYTES / 4);
    let header = format!("{header:<width$}", width = header.len().next_multiple_of(64) - 8 + 64);
    let ones = 1f32.to_le_bytes().repeat(BYTES / 4);
    std::fs::write(&path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &ones].concat()).unwrap();
    let allocated = |s: &tensorlogic::device::BufferPoolStats| s.in_use - s.mapped;
    let before = d.buffer_pool_stats();
    d.reset_peak_memory();
    assert_eq!((d.memory().peak, d.memory().peak_allocated), (before.in_use, allocated(&before)));
    let profile = d.memory_profile();
    // A limit that the file alone exceeds: it bounds what is allocated.
    d.set_memory_limit(allocated(&before) + BYTES / 4);
    let file = tensorlogic::io::SafeTensors::open(&path).unwrap();
    let info = file.tensor("x").unwrap();
    let (mapped, start) = (file.data_of(info).unwrap(), file.bytes_of(info).as_ptr() as usize);
    let start = start - mapped.as_ptr() as usize;
    let bytes = tensorlogic::backends::Bytes::Shared(mapped.clone(), start, BYTES);
    let x = Tensor::from_bytes(bytes, DType::F32, &[BYTES / 4], d).unwrap();
    assert_eq!(x.mul(3.0).unwrap().sum_all().unwrap().item().unwrap(), 3.0 * (BYTES / 4) as f64);
    let (stats, memory, report) = (d.buffer_pool_stats(), d.memory(), profile.report());
    d.set_memory_limit(None);
    std::fs::remove_file(&path).unwrap();
    assert_eq!(stats.mapped - before.mapped, BYTES);
    assert!(memory.peak >= before.in_use + BYTES, "{memory:?}");
    assert!(memory.peak_allocated > allocated(&before) && memory.peak_allocated <= allocated(&before) + BYTES / 4, "{memory:?}");
    assert_eq!((stats.peak, stats.peak_allocated), (memory.peak, memory.peak_allocated));
    assert_eq!((report.peak, report.peak_allocated, report.mapped), (memory.peak, memory.peak_allocated, stats.mapped), "{report}");
    let text = report.to_string();
    assert!(text.contains("mapped files included") && text.contains("to which TL_MEM_LIMIT applies"), "{text}");
}

/// Runs a model as a plan of its memory supposes, and gives the most bytes that were allocated meanwhile.
fn measured_peak(file: &str, device: &Device, work: &Workload) -> TensorResult<usize> {
    device.empty_cache();
    device.reset_peak_memory();
    let before = device.memory().peak_allocated;
    let model = models::load(&Weights::open(file, device)?, None)?;
    if work.sequences == 1 {
        let mut session = Session::new(&*model, work.context, device)?;
        let logits = session.prompt(&vec![5; work.prompt], || false)?.unwrap();
        let mut sampler = Sampler::default();
        session.generate(logits, &mut sampler)?.try_for_each(|token| token.map(drop))?;
    } else {
        let mut cache = KvCache::batch(&model.shape(), work.sequences, work.context, device)?;
        let choose = |hidden: Tensor| model.logits(&hidden.narrow(1, hidden.dims()[1] - 1, 1)?)?.argmax(-1);
        let ids = Tensor::from_vec(vec![5i32; work.sequences * work.prompt], &[work.sequences, work.prompt], device)?;
        let mut next = choose(model.hidden(&ids, &mut cache)?)?;
        for _ in work.prompt..work.context {
            next.eval()?;
            next = choose(model.hidden(&next, &mut cache)?)?;
        }
        next.eval()?;
    }
    device.synchronize()?;
    Ok(device.memory().peak_allocated - before)
}

const TINY: &str = concat!(env!("TENSORLOGIC_ROOT"), "/models/tiny/tiny.gguf");

/// Holds a plan against what is allocated then, within 5 %.
fn check_plan(file: &str, d: &Device, (context, sequences, prompt): (usize, usize, usize)) {
    let work = Workload { context, sequences, prompt };
    let before = d.memory();
    let plan = MemoryPlan::of(Weights::open(file, d).unwrap(), None, d, &work).unwrap();
    assert_eq!(d.memory().in_use, before.in_use, "planning takes no memory");
    assert!(if d.is_cpu() { plan.staging == 0 } else { (1..=plan.weights).contains(&plan.staging) }, "{}: {plan:?}", d.name());
    let measured = measured_peak(file, d, &work).unwrap();
    let off = (plan.peak_allocated as f64 / measured as f64 - 1.0).abs();
    println!("{}: {work:?}: planned {}, measured {measured}, {:.1} %", d.name(), plan.peak_allocated, 100.0 * off);
    assert!(off <= 0.05, "{}: {work:?}: {plan:?}, measured {measured}", d.name());
}

/// A model of 135 million parameters, some of them in blocks. Needs its file, which `scripts/test.sh` gets with `tl pull`.
#[test]
fn a_plan_of_a_real_model_is_what_is_measured_then() {
    let file = match std::env::var("TL_TEST_MODEL") {
        Ok(path) if !path.is_empty() => path,
        _ if std::env::var("TL_REQUIRE_MODEL").is_ok_and(|v| v == "1") => panic!("TL_TEST_MODEL names no model"),
        _ => return,
    };
    let (_turn, all) = devices();
    for d in &all {
        // A step takes a software driver seconds.
        let works: &[_] = if d.is_cpu() { &[(24, 1, 16), (12, 2, 8)] } else { &[(12, 1, 8)] };
        works.iter().for_each(|&work| check_plan(&file, d, work));
    }
}

#[test]
fn a_plan_before_loading_is_what_is_measured_then() {
    let (_turn, all) = devices();
    for d in &all {
        [(100, 1, 20), (128, 1, 127), (60, 3, 17), (40, 8, 30)].into_iter().for_each(|work| check_plan(TINY, d, work));
        let wrong = |context, sequences, prompt| {
            MemoryPlan::of(Weights::open(TINY, d).unwrap(), None, d, &Workload { context, sequences, prompt }).unwrap_err().to_string()
        };
        assert!(wrong(10, 0, 1).contains("at least one sequence") && wrong(10, 1, 10).contains("room for one more"));
        assert!(wrong(1 << 20, 1, 1).contains("supports"), "{}", wrong(1 << 20, 1, 1));
    }
}

/// Numbers that look random, the same in every run.
fn dice(state: &mut u64) -> usize {
    *state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
    (*state >> 33) as usize
}

#[test]
fn a_defragmentation_shrinks_what_is_reserved_and_keeps_every_bit() {
    let (_turn, devices) = devices();
    for d in &devices {
        let mut state = 7;
        let value = |n: usize, count: usize| (0..count).map(|i| (i * 31 + n * 17) as f32 * 0.25).collect::<Vec<f32>>();
        // 64 to 600 KiB each.
        let sizes: Vec<usize> = (0..1000).map(|_| (16 << 10) + dice(&mut state) % (134 << 10)).collect();
        let all: Vec<Tensor> =
            sizes.iter().enumerate().map(|(n, &count)| Tensor::from_vec(value(n, count), &[count], d).unwrap()).collect();
        // Memory of the pool, as a result's is.
        let all: Vec<Tensor> = all.into_iter().map(|t| t.add(1.0).unwrap()).collect();
        eval_all(&all.iter().collect::<Vec<_>>()).unwrap();
        d.synchronize().unwrap();
        let full = d.fragmentation();
        let kept: Vec<(usize, Tensor)> = all.into_iter().enumerate().filter(|_| dice(&mut state) % 3 == 0).collect();
        let (view_of, view) = (kept[5].0, kept[5].1.narrow(0, 100, 50).unwrap());
        let pending = kept[9].1.download().unwrap();
        let report = d.defragment(3).unwrap();
        println!("{}: 1000 buffers: {full}\n  before: {}\n  after: {}\n  {report:?}", d.name(), report.before, report.after);
        let bytes = kept.iter().map(|(n, _)| 4 * sizes[*n]).sum::<usize>();
        assert!(report.before.waiting > bytes && report.after.waiting == 0, "{}: {report:?}", d.name());
        assert_eq!((report.before.asked, report.before.given), (report.after.asked, report.after.given));
        assert!(report.after.asked >= bytes && report.after.given >= report.after.asked && report.after.internal() < 0.25, "{report:?}");
        match (report.before.driver, report.after.driver) {
            (Some(before), Some(after)) => {
                assert!(after.reserved < before.reserved && after.blocks < before.blocks, "{}: {report:?}", d.name());
                assert!(report.moved_bytes > 0 && report.freed_bytes == before.reserved - after.reserved, "{report:?}");
                assert!(after.reserved >= after.allocated && after.allocated >= report.after.given as u64, "{report:?}");
            }
            (None, None) => assert_eq!((report.moved_bytes, report.freed_bytes), (0, report.before.waiting as u64)),
            _ => panic!("{report:?}"),
        }
        let expect = |n: usize| value(n, sizes[n]).into_iter().map(|v| v + 1.0).collect::<Vec<f32>>();
        assert!(pending.wait::<f32>().unwrap() == expect(kept[9].0), "a download on its way");
        assert!(view.to_vec().unwrap() == expect(view_of)[100..150], "a view");
        for (n, t) in &kept {
            assert!(t.to_vec().unwrap() == expect(*n), "{}: tensor {n}", d.name());
        }
        // Plans go on with the values where they are now.
        let sum = kept[0].1.narrow(0, 0, 1000).unwrap().add(&kept[1].1.narrow(0, 0, 1000).unwrap()).unwrap().to_vec().unwrap();
        let (a, b) = (expect(kept[0].0), expect(kept[1].0));
        assert!(sum.iter().zip(a.iter().zip(&b)).all(|(s, (a, b))| *s == a + b));
    }
}

#[test]
fn fragmentation_is_counted_from_what_was_asked_for() {
    let (_turn, devices) = devices();
    for d in &devices {
        d.empty_cache();
        let before = d.fragmentation();
        let x = Tensor::ones(&[100_001], DType::F32, d).unwrap();
        x.eval().unwrap();
        let held = d.fragmentation();
        assert_eq!(held.asked - before.asked, 400_004, "{}", d.name());
        assert!(held.given - before.given >= 400_004 && held.internal() > 0.0 && held.internal() < 1.0, "{held:?}");
        drop(x);
        let free = d.fragmentation();
        assert_eq!((free.asked, free.given), (before.asked, before.given));
        assert!(free.waiting >= 400_004 && free.stranded == 0, "asked for a moment ago: {free:?}");
        // 300 requests of another size strand it.
        for n in 0..300 {
            Tensor::full(n as f64, &[20_000], DType::F32, d).unwrap().eval().unwrap();
        }
        let later = d.fragmentation();
        assert!(later.stranded >= 400_004 && later.external() > 0.5, "{later:?}");
        assert_eq!(d.defragment(0).unwrap().after.waiting, later.waiting, "no pass changes nothing");
        assert_eq!(d.defragment(1).unwrap().after.waiting, 0);
    }
}
