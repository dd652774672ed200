//! The workloads of `benches/kernels/`: every variant against its definition, at sizes that are multiples of nothing, and translated for every adapter.

use super::samples;
use crate::common::{gpu, selector};
use crate::kernels;
use tensorlogic::backends::gpu::{GpuBackend, kernel_shaders};
use tensorlogic::eval::plan_of;

#[test]
fn every_variant_does_what_is_defined() {
    let Some(device) = gpu() else { return };
    let adapter = GpuBackend::open(selector().unwrap()).unwrap().info().clone();
    for workload in kernels::all() {
        for (n, variant) in workload.variants.iter().enumerate() {
            if let Some(reason) = (variant.lacks)(&adapter, workload.timed) {
                assert!(n > 0 && !reason.is_empty(), "{}: the plain variant runs everywhere", workload.name);
                continue;
            }
            let start = std::time::Instant::now();
            let on = workload.prepare(&variant.fitted(workload.ragged), 7, true, &device).unwrap();
            workload.check(variant, &on, usize::MAX).unwrap().unwrap_or_else(|wrong| panic!("{wrong}"));
            println!("{}, {}: {:.2?}", workload.name, variant.name, start.elapsed());
        }
        // One wrong number is seen.
        let mut on = workload.prepare(workload.ragged, 7, true, &device).unwrap();
        on.values[0][5] += 1.0;
        assert!(workload.check(&workload.variants[0], &on, usize::MAX).unwrap().is_err(), "{}", workload.name);
    }
}

#[test]
fn every_variant_translates_for_every_adapter() {
    let Some(device) = gpu() else { return };
    let mut lacking = 0;
    for workload in kernels::all() {
        for variant in workload.variants.iter().filter(|r| !r.name.contains("engine")) {
            let sizes = variant.fitted(workload.ragged);
            let inputs = (workload.inputs)(&sizes, &mut tensorlogic::Rng::new(1), &device).unwrap();
            tensorlogic::eval::eval_all(&inputs.iter().collect::<Vec<_>>()).unwrap();
            let plan = plan_of(&[&(variant.run)(&sizes, &inputs).unwrap()]).unwrap().unwrap();
            for (kind, adapter) in samples::adapters() {
                let what = format!("{kind}: {} of {}", variant.name, workload.name);
                if (variant.lacks)(&adapter, &sizes).is_some() {
                    assert!(kernel_shaders(&plan, &adapter).is_err(), "{what}");
                    lacking += 1;
                    continue;
                }
                for k in kernel_shaders(&plan, &adapter).unwrap() {
                    let t = samples::translate(&k.wgsl, &what).unwrap_or_else(|e| panic!("{e}"));
                    assert!(t.msl.contains("#include <metal_stdlib>"), "{what}");
                }
            }
        }
    }
    // No matrices on three of the adapters, no subgroups on one: two variants need these.
    assert_eq!(lacking, 3 + 2);
}

#[test]
fn every_file_says_its_idea_and_its_limit() {
    let folder = std::path::Path::new(env!("TENSORLOGIC_ROOT")).join("benches/kernels");
    let files = samples::files(&folder).unwrap();
    let variants: Vec<_> = kernels::all().iter().flat_map(|l| l.variants.iter().map(|r| r.idea)).collect();
    for path in &files {
        let source = std::fs::read_to_string(path).unwrap();
        let [first, second] = [0, 1].map(|n| source.lines().nth(n).unwrap());
        let name = path.display().to_string();
        assert!(second.starts_with("// Limit: "), "{name}");
        assert!(variants.contains(&first.trim_start_matches("// ")), "{name} belongs to no workload");
    }
    assert!(files.len() > 20, "{files:?}");
}
