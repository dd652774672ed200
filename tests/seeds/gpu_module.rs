//! The two pipelines that the report on a GPU module for GPT-2 draws, as programs. It has no code; what it names is called here.

use super::*;
use tensorlogic::models::inference::{Inference, Inputs};
use tensorlogic::models::{self, Weights};
use tensorlogic::{DType, PipelineStrategy, TensorResult};

#[allow(dead_code)]
#[path = "../../examples/gpt2_inference.rs"]
mod example;

/// The report's sizes: its mask has 512 positions, so its input has as many vectors.
const POSITIONS: usize = 512;
const WIDTH: usize = 768;
const VOCAB: usize = 50257;

/// GPT-2's shape with one block and random weights.
fn weights(device: &Device) -> TensorResult<Weights> {
    example::random_weights(1, device)
}

/// Elements of the table of embeddings, as the example makes it: numbers of one period, over and over.
fn table(tokens: &[usize]) -> TensorResult<Vec<f32>> {
    let noise = tensorlogic::Rng::new(1).normal(&[1_000_003], DType::F32, &Device::cpu())?.mul(0.02)?.cast(DType::F16)?.to_vec()?;
    Ok(tokens.iter().flat_map(|t| (0..WIDTH).map(|c| noise[(t * WIDTH + c) % noise.len()]).collect::<Vec<_>>()).collect())
}

/// "Shader Execution Pipeline": inputs, a pipeline by strategy, stages, outputs. There are no vertex and fragment shaders: those draw
/// pictures, and a compute kernel needs neither. A kernel's launch is part of `encode` and `submit`.
#[test]
fn shader_execution_pipeline() -> TensorResult<()> {
    let _turn = turn();
    let tokens: Vec<usize> = (0..POSITIONS).map(|i| i * 97).collect();
    for device in devices() {
        let model = models::load(&weights(&device)?, Some(DType::F32))?;

        // Input Buffer Preparation
        let model_input = Tensor::from_vec(table(&tokens)?, &[1, POSITIONS, WIDTH], &Device::cpu())?;
        let attention_mask = Tensor::ones(&[1, POSITIONS], DType::I32, &Device::cpu())?;
        let position_ids = Tensor::arange(0.0, POSITIONS as f64, 1.0, DType::I32, &Device::cpu())?.unsqueeze(0)?;
        let inputs = Inputs::embeddings(&model_input).attention_mask(&attention_mask).position_ids(&position_ids);

        // Pipeline Selection (4 strategies)
        let mut runs = Vec::new();
        for strategy in
            [PipelineStrategy::Standard, PipelineStrategy::Optimized, PipelineStrategy::LowLatency, PipelineStrategy::HighThroughput]
        {
            let outputs = Inference::new(&*model).strategy(strategy).run(&inputs)?;
            assert_eq!(outputs.strategy, strategy);

            // Shader Stages: compute, and the launch of its kernels
            let times = outputs.times;
            assert_eq!(times.named().map(|(name, _)| name), ["prepare", "compile", "encode", "submit", "execute", "read"]);
            assert!(times.execute.as_nanos() > 0 && times.total() >= times.execute + times.encode + times.submit);
            assert!(!device.is_cpu() || times.gpu.is_none());

            // Output Buffer Configuration
            assert_eq!((outputs.logits.dims(), outputs.logits.dtype()), (&[1, VOCAB][..], DType::F32));
            assert_eq!((outputs.hidden_states.dims(), outputs.hidden_states.dtype()), (&[1, POSITIONS, WIDTH][..], DType::F32));
            runs.push((outputs.logits.to_vec()?, outputs.hidden_states.to_vec()?));
        }
        assert!(runs.iter().all(|run| *run == runs[0]), "strategies change no result on {}", device.name());

        // Result Conversion: a logit is the product of the last state with the token's embedding, here in f64.
        let (logits, states) = &runs[0];
        let last: Vec<f64> = states[(POSITIONS - 1) * WIDTH..].iter().map(|v| f64::from(*v)).collect();
        let some = [0, 1, 4099, 31000, VOCAB - 1];
        for (token, row) in some.iter().zip(table(&some)?.chunks(WIDTH)) {
            let want: f64 = row.iter().zip(&last).map(|(w, v)| f64::from(*w) * v).sum();
            assert!((f64::from(logits[*token]) - want).abs() < 1e-3, "token {token}: {} for {want} on {}", logits[*token], device.name());
        }
        // The same text as tokens gives the same.
        let ids: Vec<i32> = tokens.iter().map(|t| *t as i32).collect();
        let by_tokens = example::run(&*model, &ids)?.logits.to_vec()?;
        assert!(logits.iter().zip(&by_tokens).all(|(a, b)| (a - b).abs() < 1e-3));
    }
    Ok(())
}

/// "Memory Optimization Pipeline", of one work. Of caches there is what a plan tells: the bytes between a touch of memory and
/// the next one, which a cache must hold for the read to be served by it.
#[test]
fn memory_optimization_pipeline() -> TensorResult<()> {
    use tensorlogic::plan::BufferOrder::{Program, Size, Spatial, Temporal, Workgroup};
    let _turn = turn();
    const N: usize = 96;
    for device in devices() {
        let x = random(&[N, N], 0.3, &device).cast(DType::F32)?.mul(0.1)?;
        x.eval()?;
        let work = || x.matmul(&x)?.softmax(-1)?.matmul(&x);
        let want = {
            let x = wide::<f32>(&x);
            let mut scores = product(&x, &x, [N, N, N]);
            for row in scores.chunks_mut(N) {
                let sum: f64 = row.iter().map(|v| v.exp()).sum();
                row.iter_mut().for_each(|v| *v = v.exp() / sum);
            }
            product(&scores, &x, [N, N, N])
        };
        let report = device.optimize_memory_of(work)?;

        // Buffer Analysis
        assert!(report.plans > 0 && report.most_live >= 4 * N * N);

        // Reordering (4 strategies)
        for order in [Spatial, Temporal, Size, Workgroup] {
            let (_, planned, live) = report.orders.iter().find(|o| o.0 == order).unwrap_or_else(|| panic!("{order} is not there"));
            assert!(planned >= live && *live > 0, "{order}: {report}");
        }
        let program = report.orders.iter().find(|o| o.0 == Program).map(|o| o.1);
        assert!(report.program_bytes == program && report.planned_bytes <= program.unwrap(), "{report}");

        // Defragmentation (3 passes)
        let (before, after) = (&report.defragmentation.before, &report.defragmentation.after);
        assert!(before.waiting > 0 && after.waiting == 0, "on {}: {report}", device.name());
        assert_eq!((before.asked, before.given), (after.asked, after.given));

        // Cache Optimization (4 techniques)
        let result = work()?;
        let plan = tensorlogic::eval::plan_of(&[&result])?.expect("something is pending");
        assert!(plan.reuse_distances().iter().any(|(_, bytes)| *bytes >= (4 * N * N) as u64), "{:?}", plan.reuse_distances());
        assert!(report.reuse.total() >= (4 * N * N) as u64, "{report}");

        // Performance Validation
        assert_eq!(report.same_bits, Some(true));
        let values = result.to_vec()?;
        assert!(values.iter().zip(&want).all(|(g, w)| (f64::from(*g) - w).abs() < 1e-5), "on {}", device.name());

        // Metrics Reporting
        let ([peak_before, peak_after], seconds) = (report.peaks.unwrap(), report.seconds.unwrap());
        assert!(peak_after <= peak_before && seconds.iter().all(|s| *s > 0.0), "{report}");
        let text = report.to_string();
        for part in [
            "planned: ",
            "caches: ",
            "before: ",
            "after: ",
            "defragmentation: ",
            "peak of a run: ",
            "time of a run: ",
            "every bit is the same",
        ] {
            assert!(text.contains(part), "no `{part}` in\n{text}");
        }
    }
    Ok(())
}
