//! The ladders of `benches/kernels/`: every rung against its definition, at sizes that are multiples of nothing, and translated for every adapter.

use super::samples;
use crate::common::{gpu, selector};
use crate::kernels;
use tensorlogic::backends::gpu::{GpuBackend, kernel_shaders};
use tensorlogic::eval::plan_of;

#[test]
fn every_rung_does_what_is_defined() {
    let Some(device) = gpu() else { return };
    let adapter = GpuBackend::open(selector().unwrap()).unwrap().info().clone();
    for ladder in kernels::all() {
        for (n, rung) in ladder.rungs.iter().enumerate() {
            if let Some(reason) = (rung.lacks)(&adapter, ladder.timed) {
                assert!(n > 0 && !reason.is_empty(), "{}: the plain rung runs everywhere", ladder.name);
                continue;
            }
            let start = std::time::Instant::now();
            let on = ladder.prepare(&rung.fitted(ladder.ragged), 7, true, &device).unwrap();
            ladder.check(rung, &on, usize::MAX).unwrap().unwrap_or_else(|wrong| panic!("{wrong}"));
            println!("{}, {}: {:.2?}", ladder.name, rung.name, start.elapsed());
        }
        // One wrong number is seen.
        let mut on = ladder.prepare(ladder.ragged, 7, true, &device).unwrap();
        on.values[0][5] += 1.0;
        assert!(ladder.check(&ladder.rungs[0], &on, usize::MAX).unwrap().is_err(), "{}", ladder.name);
    }
}

#[test]
fn every_rung_translates_for_every_adapter() {
    let Some(device) = gpu() else { return };
    let mut lacking = 0;
    for ladder in kernels::all() {
        for rung in ladder.rungs.iter().filter(|r| !r.name.contains("engine")) {
            let sizes = rung.fitted(ladder.ragged);
            let inputs = (ladder.inputs)(&sizes, &mut tensorlogic::Rng::new(1), &device).unwrap();
            tensorlogic::eval::eval_all(&inputs.iter().collect::<Vec<_>>()).unwrap();
            let plan = plan_of(&[&(rung.run)(&sizes, &inputs).unwrap()]).unwrap().unwrap();
            for (kind, adapter) in samples::adapters() {
                let what = format!("{kind}: {} of {}", rung.name, ladder.name);
                if (rung.lacks)(&adapter, &sizes).is_some() {
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
    // No matrices on three of the adapters, no subgroups on one: two rungs need these.
    assert_eq!(lacking, 3 + 2);
}

#[test]
fn every_file_says_its_idea_and_its_limit() {
    let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("benches/kernels");
    let files = samples::files(&folder).unwrap();
    let rungs: Vec<_> = kernels::all().iter().flat_map(|l| l.rungs.iter().map(|r| r.idea)).collect();
    for path in &files {
        let text = std::fs::read_to_string(path).unwrap();
        let [first, second] = [0, 1].map(|n| text.lines().nth(n).unwrap());
        let name = path.display().to_string();
        assert!(second.starts_with("// Limit: "), "{name}");
        assert!(rungs.contains(&first.trim_start_matches("// ")), "{name} is on no ladder");
        samples::translate(&text, &name).unwrap_or_else(|e| panic!("{e}"));
    }
    assert!(files.len() > 20, "{files:?}");
}
