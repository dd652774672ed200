//! The recorded values are complete, wrong values are told, and a report survives its file.

use super::*;
use crate::backends::codegen::kernel_shaders;
use crate::backends::cpu::CpuBackend;
use crate::backends::dry_run::DryRun;
use crate::backends::{Backend, Buffer, Bytes, PoolControl, TunedAdapter};
use crate::error::At;
use crate::plan::{AdapterInfo, Capabilities, MemoryStats, Plan, RunTimes, SubgroupSync, Timing};
use crate::shader::template::rendered_files::FILES;
use crate::tuning::{AdapterClass, Tuning, TuningSource};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering::Relaxed};

/// What the CPU gives now, in the file's form.
fn lines() -> String {
    let line = |case: &SelfTestCase| {
        let words: Vec<String> =
            samples(&values(&(case.run)(&Device::cpu()).unwrap()).unwrap()).iter().map(|v| format!("{:08x}", v.to_bits())).collect();
        format!("{}\t{}\n", case.name, words.join(" "))
    };
    cases().iter().map(line).collect()
}

/// Records the cases anew, after one was added or changed: `cargo test --lib self_test -- --ignored`.
#[test]
#[ignore = "writes the file of recorded values"]
fn record() {
    std::fs::write(concat!(env!("CARGO_MANIFEST_DIR"), "/src/measure/self_test/recorded.txt"), lines()).unwrap();
}

#[test]
fn every_case_is_recorded_once() {
    let names: Vec<String> = cases().into_iter().map(|c| c.name).collect();
    let recorded: Vec<&str> = RECORDED.lines().filter_map(|l| l.split('\t').next()).collect();
    assert_eq!(recorded, names);
    let distinct: std::collections::BTreeSet<&String> = names.iter().collect();
    assert_eq!(distinct.len(), names.len(), "two cases have one name");
    assert!(names.len() >= 200, "{} cases", names.len());
}

/// Each kind of kernel in its dtypes has a recorded dispatch: names of ops and dtypes that must be among them.
#[test]
#[cfg(feature = "metal")]
fn recorded_dispatches_cover_the_dtypes() {
    let recording = super::dispatches::Recording::read().unwrap();
    let (names, dtypes) = recording.contents();
    assert!(names.len() >= 200, "{} dispatches", names.len());
    for op in
        ["attention", "cast", "cross_entropy", "expert_matmul", "index_add", "linear_scan", "matmul", "rms_norm", "softmax", "sum", "topk"]
    {
        assert!(names.iter().any(|n| n.starts_with(&format!("{op} of "))), "no dispatch of {op}");
    }
    // f64 and integers of 16 and 64 bits are the CPU's alone.
    let on_gpus = DType::ALL.into_iter().filter(|d| !d.is_cpu_only() && *d != DType::U32);
    let missing: Vec<&str> = on_gpus.map(DType::name).filter(|name| !dtypes.contains(name)).collect();
    assert_eq!(missing, Vec::<&str>::new());
}

#[test]
fn wrong_values_are_told() {
    assert_eq!(error(&[1.0, f32::NAN], &[1.0, f32::NAN]), 0.0);
    assert_eq!(error(&[1.0, 3.0], &[1.0, 4.0]), 0.25);
    assert_eq!(error(&[1.0, f32::NAN], &[1.0, 2.0]), f64::INFINITY);
    assert_eq!(error(&[1.0], &[1.0, 2.0]), f64::INFINITY);
    let mut wrong = cases().swap_remove(0);
    let run = wrong.run;
    wrong.run = Box::new(move |d| run(d)?.add(1e-2));
    let row = run_case(&wrong, &Device::cpu(), &mut SelfTestReference::default());
    assert!(row.failed.as_ref().is_some_and(|f| f.contains("from those recorded")), "{row:?}");
    wrong.run = Box::new(|_| panic!("on purpose"));
    let row = run_case(&wrong, &Device::cpu(), &mut SelfTestReference::default());
    assert!(row.failed.as_ref().is_some_and(|f| f.contains("panicked: on purpose")), "{row:?}");
}

/// A device that computes as the CPU, until it is lost.
fn losable() -> (Device, Arc<Losable>) {
    let backend = Arc::new(Losable { cpu: CpuBackend::open(), lost: AtomicBool::new(false) });
    (Device::from_backend(backend.clone()), backend)
}

#[test]
fn the_cpu_computes_a_case_once_for_all_devices() {
    let runs = Arc::new(AtomicUsize::new(0));
    let mut case = cases().swap_remove(0);
    let (run, count) = (case.run, runs.clone());
    case.run = Box::new(move |d| {
        count.fetch_add(usize::from(d.is_cpu()), Relaxed);
        run(d)
    });
    let mut reference = SelfTestReference::default();
    for _ in 0..3 {
        let row = run_case(&case, &losable().0, &mut reference);
        assert_eq!(row.failed, None, "{row:?}");
    }
    assert_eq!(runs.load(Relaxed), 1);
}

/// What is left when a device is lost is told apart from what failed, and what begins is told before it runs.
#[test]
fn what_comes_after_a_lost_device_is_not_done() {
    let (device, backend) = losable();
    let (mut began, mut done) = (vec![], 0);
    let options = SelfTestOptions { only: "rows", ..Default::default() };
    let report = self_test(&device, &options, &mut SelfTestReference::default(), &mut |p| match p {
        SelfTestProgress::Begins(name, rows) => {
            assert_eq!(rows.len(), began.len());
            began.push(name.to_string());
        }
        SelfTestProgress::Done(row) => {
            done += 1;
            assert!(row.name == began[began.len() - 1] || began.len() == 5, "{}", row.name);
            backend.lost.store(began.len() == 5, Relaxed);
        }
    });
    assert_eq!((began.len(), done), (5, report.rows.len()));
    let not_done = report.rows.iter().filter(|r| r.failed.as_ref().is_some_and(|f| f.contains("not done"))).count();
    assert!(not_done > 50 && not_done == report.rows.len() - 5 && !report.passes(), "{not_done} of {}", report.rows.len());

    // One that can be opened again goes on.
    let (device, backend) = losable();
    let options = SelfTestOptions { reopen: Some("cpu"), ..options };
    let report = self_test(&device, &options, &mut SelfTestReference::default(), &mut |p| {
        if matches!(p, SelfTestProgress::Done(_)) {
            backend.lost.store(true, Relaxed);
        }
    });
    assert!(report.passes() && report.rows.len() > 50, "{:?}", report.rows.iter().find(|r| r.failed.is_some()));
}

#[test]
fn a_report_survives_its_file() {
    let row = |error, failed: Option<&str>| SelfTestRow {
        name: "a".into(),
        error,
        tolerance: 1e-3,
        failed: failed.map(Into::into),
        seconds: 0.5,
    };
    let bench = vec![SelfTestBench { name: "copy".into(), seconds: 0.25, bytes: 1e6, operations: 3.0 }];
    let rows = vec![row(Some(1e-4), None), row(None, Some("no"))];
    let (not_done, refused, known_forms) = (vec!["map 3".into()], vec!["softmax: no".into()], vec!["by reference: right".into()]);
    let compiled = vec![CompiledKernel { name: "softmax".into(), seconds: 0.125, found: true }];
    let report =
        SelfTestReport { device: "d".into(), rows, not_done, bench, kernels: (3, 0.125), compiled, refused, known_forms, seconds: 2.0 };
    assert!(!report.passes());
    assert_eq!(SelfTestReport::from_json(&report.to_json()).unwrap(), report);
    assert!(SelfTestReport::from_json(&json!({ "device": "d" })).is_err());
}

#[test]
fn chips_are_known_by_their_names() {
    assert_eq!(published_bandwidth("Apple M1 (metal)", None), Some([68e9; 2]));
    assert_eq!(published_bandwidth("Apple M3 Max (metal)", None), Some([300e9, 400e9]));
    assert_eq!(published_bandwidth("Apple M3 Max (metal)", Some(30)), Some([300e9; 2]));
    assert_eq!(published_bandwidth("Apple M4 Max (metal)", Some(40)), Some([546e9; 2]));
    assert_eq!(published_bandwidth("Apple M12 (metal)", None), None);
    assert_eq!(published_bandwidth("NVIDIA H100", None), None);
}

/// The CPU as a device of its own, which is lost when a test says so.
struct Losable {
    cpu: Arc<CpuBackend>,
    lost: AtomicBool,
}

impl Backend for Losable {
    fn name(&self) -> String {
        "a device that is lost when a test says so".into()
    }
    fn supports(&self, dtype: DType) -> bool {
        self.cpu.supports(dtype)
    }
    fn is_lost(&self) -> bool {
        self.lost.load(Relaxed)
    }
    fn size_class(&self, bytes: usize) -> Option<usize> {
        self.cpu.size_class(bytes)
    }
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer> {
        self.cpu.alloc(bytes)
    }
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        self.cpu.upload(bytes)
    }
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
        self.cpu.run(plan, inputs, outputs, params)
    }
    fn start_timing(&self, detail: Timing) -> TensorResult<()> {
        self.cpu.start_timing(detail)
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        self.cpu.finish_timing()
    }
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        self.cpu.read(buffer, start, out)
    }
    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        self.cpu.view(buffer, start, len, show)
    }
    fn overwrite(&self, buffer: &Buffer, bytes: &[u8]) -> TensorResult<()> {
        self.cpu.overwrite(buffer, bytes)
    }
    fn synchronize(&self) -> TensorResult<()> {
        Ok(())
    }
    fn max_buffers(&self) -> usize {
        self.cpu.max_buffers()
    }
    fn capabilities(&self) -> Capabilities {
        self.cpu.capabilities()
    }
    fn memory(&self) -> MemoryStats {
        self.cpu.memory()
    }
    fn pool(&self) -> &dyn PoolControl {
        self.cpu.pool()
    }
    fn label(&self, buffer: &Buffer, op: &'static str, at: At) {
        self.cpu.label(buffer, op, at);
    }
    fn submits(&self) -> u64 {
        self.cpu.submits()
    }
    fn is_busy(&self) -> bool {
        false
    }
}

/// A GPU that computes nothing: the kernels of what it is given are written.
struct Writer {
    dry: DryRun,
    adapter: TunedAdapter,
}

impl Backend for Writer {
    fn name(&self) -> String {
        format!("a writer of kernels ({})", self.adapter.info.tuning.name)
    }
    fn supports(&self, dtype: DType) -> bool {
        !dtype.is_cpu_only()
    }
    fn size_class(&self, bytes: usize) -> Option<usize> {
        self.dry.size_class(bytes)
    }
    fn alloc(&self, bytes: usize) -> TensorResult<Buffer> {
        self.dry.alloc(bytes)
    }
    fn upload(&self, bytes: Bytes) -> TensorResult<Buffer> {
        self.dry.upload(bytes)
    }
    fn run(&self, plan: &Arc<Plan>, inputs: &[Buffer], outputs: &[Buffer], params: &[f64]) -> TensorResult<()> {
        kernel_shaders(plan, &self.adapter.info)?;
        self.dry.run(plan, inputs, outputs, params)
    }
    fn start_timing(&self, detail: Timing) -> TensorResult<()> {
        self.dry.start_timing(detail)
    }
    fn finish_timing(&self) -> TensorResult<Vec<RunTimes>> {
        self.dry.finish_timing()
    }
    fn read(&self, buffer: &Buffer, start: usize, out: &mut [u8]) -> TensorResult<()> {
        self.dry.read(buffer, start, out)
    }
    fn view(&self, buffer: &Buffer, start: usize, len: usize, show: &mut dyn FnMut(&[u8])) -> TensorResult<()> {
        self.dry.view(buffer, start, len, show)
    }
    fn overwrite(&self, buffer: &Buffer, bytes: &[u8]) -> TensorResult<()> {
        self.dry.overwrite(buffer, bytes)
    }
    fn synchronize(&self) -> TensorResult<()> {
        Ok(())
    }
    fn max_buffers(&self) -> usize {
        16
    }
    fn capabilities(&self) -> Capabilities {
        Capabilities::GPU
    }
    fn adapter(&self) -> Option<&TunedAdapter> {
        Some(&self.adapter)
    }
    fn memory(&self) -> MemoryStats {
        self.dry.memory()
    }
    fn pool(&self) -> &dyn PoolControl {
        self.dry.pool()
    }
    fn label(&self, buffer: &Buffer, op: &'static str, at: At) {
        self.dry.label(buffer, op, at);
    }
    fn submits(&self) -> u64 {
        self.dry.submits()
    }
    fn is_busy(&self) -> bool {
        false
    }
}

/// The files of the kernels that the cases need on a GPU with this table, subgroups of so many threads and matrices of this edge, with tensor operations
/// or without.
fn kernel_files(tuning: Tuning, [subgroup, coop]: [u32; 2], tensor_ops: bool) -> BTreeSet<&'static str> {
    let info = AdapterInfo {
        subgroup,
        f16: true,
        workgroup_bytes: if tuning.name == "nvidia" { 48 << 10 } else { 32 << 10 },
        workgroup_threads: 1024,
        coop,
        coop_vectors: false,
        subgroup_sync: if subgroup > 0 { SubgroupSync::Barrier } else { SubgroupSync::None },
        coherent: false,
        byte_dots: tuning.name == "nvidia",
        elements: None,
        metal_bodies: tuning.name == "apple",
        tensor_ops,
        raw: None,
        tuning: Arc::new(tuning),
    };
    let class = AdapterClass { vendor: 0, metal: false, software: false };
    let adapter = TunedAdapter::new(info, TuningSource::Given, class, String::new());
    let device = Device::from_backend(Arc::new(Writer { dry: DryRun::of(CpuBackend::open()), adapter }));
    FILES.with_borrow_mut(BTreeSet::clear);
    for case in cases() {
        if let Err(e) = (case.run)(&device).and_then(|t| t.eval().map(drop)) {
            panic!("{}: {e}", case.name);
        }
    }
    FILES.with_borrow(BTreeSet::clone)
}

/// The files of kernels that the sources name.
fn all_files() -> BTreeSet<String> {
    let mut folders = vec![std::path::PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/src/ops"))];
    let mut files = BTreeSet::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap().map(|e| e.unwrap().path()) {
            if entry.is_dir() {
                folders.push(entry);
            } else if entry.extension().is_some_and(|e| e == "rs") && !entry.ends_with("tests.rs") {
                let text = std::fs::read_to_string(&entry).unwrap();
                files.extend(text.split("Template::new(\"").skip(1).filter_map(|t| Some(t.split('"').next()?.to_string())));
            }
        }
    }
    files
}

#[test]
fn cases_need_every_kernel_there_is() {
    let apple = kernel_files(Tuning::apple(), [32, 8], false);
    let tensors = kernel_files(Tuning::apple(), [32, 8], true);
    let other = kernel_files(Tuning::nvidia(), [32, 16], false);
    let plain = kernel_files(Tuning::generic(), [0, 0], false);
    let known: BTreeSet<String> = apple.iter().chain(&tensors).chain(&other).chain(&plain).map(|f| f.to_string()).collect();
    let missing: Vec<String> = all_files().difference(&known).cloned().collect();
    assert_eq!(missing, Vec::<String>::new(), "no case needs these");
    println!("on Apple's GPUs {} kernels: {apple:?}", apple.len());
    assert!(apple.len() >= 25, "{} kernels on Apple's GPUs", apple.len());
}

#[test]
fn cases_have_every_dtype_of_their_kind() {
    let names: Vec<String> = cases().into_iter().map(|c| c.name).collect();
    let has = |kind: &str, dtype: DType| names.iter().any(|n| n.starts_with(kind) && n.ends_with(&format!(" {dtype}")));
    for kind in [
        "map",
        "rows",
        "product",
        "attention",
        "gradients",
        "cross_entropy",
        "experts",
        "pages",
        "scan",
        "gather",
        "scatter",
        "copy",
        "sort",
    ] {
        let missing: Vec<DType> = [DType::F32, DType::F16, DType::BF16].into_iter().filter(|d| !has(kind, *d)).collect();
        assert_eq!(missing, [], "{kind}");
    }
    for dtype in DType::BLOCKS.into_iter().filter(|d| crate::quant::quantize(*d, &vec![0.5; d.block()]).is_ok()) {
        assert!(has("product", dtype) && has("unpack", dtype), "{dtype}");
    }
}

#[test]
fn where_the_time_is_up_cases_are_named_and_barriers_still_tested() {
    let options = SelfTestOptions { until: Some(std::time::Instant::now()), ..Default::default() };
    let report = self_test(&Device::cpu(), &options, &mut Default::default(), &mut |_| {});
    assert_eq!((report.not_done.len(), report.rows.len()), (cases().len(), LITMUS.len()));
    assert!(report.passes() && report.rows.iter().all(|r| r.name.starts_with("litmus")));
    let options = SelfTestOptions { only: "map", ..options };
    let report = self_test(&Device::cpu(), &options, &mut Default::default(), &mut |_| {});
    assert!(report.rows.is_empty() && report.not_done.len() > 50 && report.not_done.iter().all(|n| n.starts_with("map")));
}
