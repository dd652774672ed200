//! GPT-2, Llama and Gemma 3 on small configurations, from Hub folders and GGUF files, against transformers in f64.
//!
//! A small set lies in `tests/vectors`; `TL_VECTORS=FOLDER` takes a larger one of the same layout.

use crate::common::{assert_close, on_gpu};
use serde::Deserialize;
use std::path::PathBuf;
use tensorlogic::io::SafeTensors;
use tensorlogic::models::{self, Model, Sampler, Session, Weights};
use tensorlogic::{DType, Device, TensorResult};

#[derive(Deserialize)]
struct Manifest<C> {
    models: Vec<C>,
}

/// A model as the two manifests describe it.
#[derive(Deserialize)]
struct Case {
    id: String,
    dir: Option<String>,
    file: Option<String>,
    expected: String,
    greedy: serde_json::Value,
    tol: serde_json::Value,
}

#[derive(Deserialize)]
struct Greedy {
    prompt: Vec<u32>,
    tokens: Vec<u32>,
    min_margin: f64,
}

struct Reference {
    id: String,
    weights: PathBuf,
    /// Sequences with the logits after each of their tokens.
    sequences: Vec<(Vec<u32>, Vec<f64>)>,
    /// A sequence that fills the context, with the logits after its last token.
    long: Option<(Vec<u32>, Vec<f64>)>,
    greedy: Vec<Greedy>,
    rtol: f64,
    atol: f64,
}

fn numbers(file: &SafeTensors, name: &str) -> Vec<f64> {
    let info = file.tensor(name).unwrap();
    let bytes = file.bytes_of(info);
    match info.type_name() {
        "F64" => bytes.chunks_exact(8).map(|b| f64::from_le_bytes(b.try_into().unwrap())).collect(),
        "F32" => bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        "I64" => bytes.chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as f64).collect(),
        other => panic!("{name} is {other}"),
    }
}

fn ids(file: &SafeTensors, name: &str) -> Vec<u32> {
    numbers(file, name).into_iter().map(|v| v as u32).collect()
}

/// Every model of a folder's two manifests.
fn references() -> Vec<Reference> {
    let root = std::env::var_os("TL_VECTORS").map(PathBuf::from);
    let root = root.unwrap_or_else(|| PathBuf::from(env!("TENSORLOGIC_ROOT")).join("tests/vectors"));
    let mut all = Vec::new();
    for folder in ["models", "models_gguf"] {
        let folder = root.join(folder);
        let text = std::fs::read(folder.join("manifest.json")).unwrap();
        for case in serde_json::from_slice::<Manifest<Case>>(&text).unwrap().models {
            let hub = case.dir.is_some();
            let weights = folder.join(case.dir.or(case.file).unwrap());
            let file = SafeTensors::open(if hub { weights.join(&case.expected) } else { folder.join(&case.expected) }).unwrap();
            let info = file.tensor("input_ids").unwrap();
            let (rows, len) = (info.shape[0], info.shape[1]);
            let (tokens, logits) = (ids(&file, "input_ids"), numbers(&file, "logits"));
            let per_row = logits.len() / rows;
            let sequences = (0..rows).map(|r| (tokens[r * len..][..len].to_vec(), logits[r * per_row..][..per_row].to_vec())).collect();
            let long = file.tensor("long_ids").is_ok().then(|| (ids(&file, "long_ids"), numbers(&file, "long_last_logits")));
            let greedy = match case.greedy {
                serde_json::Value::Array(list) => list,
                one => vec![one],
            };
            let tol = if hub { &case.tol["logits"]["f32_compute"] } else { &case.tol["dequantised_f32"] };
            all.push(Reference {
                id: case.id,
                weights,
                sequences,
                long,
                greedy: greedy.into_iter().map(|g| serde_json::from_value(g).unwrap()).collect(),
                rtol: tol["rtol"].as_f64().unwrap(),
                atol: tol["atol"].as_f64().unwrap(),
            });
        }
    }
    assert!(all.len() >= 6, "{} models", all.len());
    all
}

fn load(r: &Reference, device: &Device) -> Box<dyn Model> {
    let load = || models::load(&Weights::open(&r.weights, device)?, Some(DType::F32));
    load().unwrap_or_else(|e| panic!("{}: {e}", r.id))
}

fn session<'m>(model: &'m dyn Model, device: &Device) -> Session<'m> {
    Session::new(model, model.shape().context, device).unwrap()
}

/// Logits of whole sequences and of the last of a full context.
fn check_logits(r: &Reference, device: &Device) -> TensorResult<()> {
    let model = load(r, device);
    for (n, (tokens, want)) in r.sequences.iter().enumerate() {
        let got = session(&*model, device).score(tokens)?.to_vec()?;
        assert_close(&format!("{} sequence {n}", r.id), &got, want, r.rtol, r.atol);
    }
    if let Some((tokens, want)) = &r.long {
        let got = session(&*model, device).prompt(tokens, || false)?.unwrap().to_vec()?;
        assert_close(&format!("{} with {} tokens", r.id, tokens.len()), &got, want, r.rtol, r.atol);
    }
    Ok(())
}

/// Greedy continuations, which have to be equal: the reference's margins are far above the tolerance of f32.
fn check_greedy(r: &Reference, device: &Device) -> TensorResult<()> {
    let model = load(r, device);
    for g in &r.greedy {
        assert!(g.min_margin > 2.0 * 2e-4, "{}: a margin of {} decides nothing", r.id, g.min_margin);
        let mut s = session(&*model, device);
        let logits = s.prompt(&g.prompt, || false)?.unwrap();
        let mut sampler = Sampler::default();
        let written = s.generate(logits, &mut sampler)?.take(g.tokens.len() - g.prompt.len()).collect::<TensorResult<Vec<u32>>>()?;
        assert_eq!(written, g.tokens[g.prompt.len()..], "{}: greedy tokens after {:?}", r.id, g.prompt);
        assert_eq!(s.tokens(), g.tokens, "{}: greedy tokens after {:?}", r.id, g.prompt);
    }
    Ok(())
}

/// Reading in steps of any size gives what reading at once gives.
fn check_steps(r: &Reference, device: &Device) -> TensorResult<()> {
    let model = load(r, device);
    let tokens = &r.sequences[0].0;
    let vocab = model.shape().vocab;
    let whole = session(&*model, device).score(tokens)?.to_vec()?;
    // Relative to the largest logit; the random block-quantized models amplify rounding more than the others.
    let tolerance = if r.weights.is_dir() { 1e-5 } else { 2e-5 } * whole.iter().fold(0f64, |m, &v| m.max(v.abs() as f64));
    let want: Vec<f64> = whole.iter().map(|&v| v as f64).collect();
    for sizes in [&[1][..], &[7], &[3, 1, 8], &[23, 1]] {
        let (mut s, mut got, mut rest) = (session(&*model, device), Vec::new(), &tokens[..]);
        for size in sizes.iter().cycle() {
            let (now, later) = rest.split_at(*size.min(&rest.len()));
            got.extend(s.score(now)?.to_vec()?);
            rest = later;
            if rest.is_empty() {
                break;
            }
        }
        assert_close(&format!("{} in steps of {sizes:?}", r.id), &got, &want, 0.0, tolerance);
    }
    // Prompts run in chunks with padding; every length and every split gives the logits after its last token.
    let mut s = session(&*model, device);
    for len in [1, 2, 7, 8, 9, 15, 24].map(|len| tokens.len().min(len)) {
        for cut in [0, 1, len / 2] {
            s.truncate(0);
            if cut > 0 && cut < len {
                s.prompt(&tokens[..cut], || false)?;
            }
            let got = s.prompt(&tokens[if cut < len { cut } else { 0 }..len], || false)?.unwrap().to_vec()?;
            assert_close(&format!("{} prompt {cut}+{}", r.id, len - cut), &got, &want[(len - 1) * vocab..len * vocab], 0.0, tolerance);
        }
    }
    Ok(())
}

/// A conversation goes on behind what was generated, however little that was: the last token that was given out may not have been read yet.
fn check_turns(r: &Reference, device: &Device) -> TensorResult<()> {
    let model = load(r, device);
    let tokens = &r.sequences[0].0;
    let (first, next) = (&tokens[..9], &tokens[9..14]);
    for count in [0, 1, 2, 5] {
        let mut s = session(&*model, device);
        for turn in 0..2 {
            let logits = s.prompt(first, || false)?.unwrap();
            let mut sampler = Sampler::default();
            let mut generation = s.generate(logits, &mut sampler)?;
            for _ in 0..count {
                generation.token()?.unwrap();
            }
            generation.finish();
            assert_eq!(s.tokens().len(), (turn + 1) * (first.len() + count), "{}: {count} tokens, turn {turn}", r.id);
        }
        let all = [s.tokens(), next].concat();
        let want: Vec<f64> = session(&*model, device).prompt(&all, || false)?.unwrap().to_vec()?.iter().map(|v| *v as f64).collect();
        let tolerance = 2e-5 * want.iter().fold(0f64, |m, v| m.max(v.abs()));
        let got = if count == 1 {
            s.score(next)?.narrow(0, next.len() - 1, 1)?.to_vec()?
        } else {
            s.prompt(next, || false)?.unwrap().to_vec()?
        };
        assert_close(&format!("{} after turns of {count} tokens", r.id), &got, &want, 0.0, tolerance);
        assert_eq!(s.tokens(), all, "{}: after turns of {count} tokens", r.id);
    }
    Ok(())
}

/// Tokens of one generation, whose later steps are repeated without a graph, and of a generation of its own for each token.
fn check_repeats(r: &Reference, device: &Device) -> TensorResult<()> {
    let model = load(r, device);
    let prompt = &r.sequences[0].0[..7];
    for temperature in [0.0, 0.7] {
        let sampler = || Sampler { temperature, rng: tensorlogic::Rng::new(5), ..Sampler::default() };
        let (mut one, mut each) = (sampler(), sampler());
        let mut s = session(&*model, device);
        let logits = s.prompt(prompt, || false)?.unwrap();
        let mut generation = s.generate(logits, &mut one)?;
        let got: Vec<u32> = (0..14).map(|_| generation.token().unwrap().unwrap()).collect();
        generation.finish();
        let mut want = prompt.to_vec();
        for _ in 0..got.len() {
            let mut s = session(&*model, device);
            let logits = s.prompt(&want, || false)?.unwrap();
            let token = s.generate(logits, &mut each)?.token()?.unwrap();
            want.push(token);
        }
        assert_eq!(got, want[prompt.len()..], "{} at temperature {temperature}", r.id);
        assert_eq!(one.rng.draws, each.rng.draws, "{}: numbers drawn for tokens that nobody saw", r.id);
        // And the conversation goes on behind it.
        let next = &r.sequences[0].0[7..10];
        let after: Vec<f64> =
            session(&*model, device).prompt(&[&want, next].concat(), || false)?.unwrap().to_vec()?.iter().map(|v| *v as f64).collect();
        let tolerance = 2e-5 * after.iter().fold(0f64, |m, v| m.max(v.abs()));
        assert_close(&format!("{} behind repeated steps", r.id), &s.prompt(next, || false)?.unwrap().to_vec()?, &after, 0.0, tolerance);
    }
    Ok(())
}

/// Runs a check for every model, or for those whose name starts with one of `names`; gives how many these are.
fn check(device: &Device, names: &[&str], run: fn(&Reference, &Device) -> TensorResult<()>) -> usize {
    let chosen: Vec<Reference> =
        references().into_iter().filter(|r| names.is_empty() || names.iter().any(|n| r.id.starts_with(n))).collect();
    assert!(!chosen.is_empty(), "no model of {names:?}");
    for r in &chosen {
        run(r, device).unwrap_or_else(|e| panic!("{}: {e}", r.id));
    }
    chosen.len()
}

#[test]
fn logits_equal_transformers() {
    check(&Device::cpu(), &[], check_logits);
}

#[test]
fn greedy_continuations_equal_transformers() {
    check(&Device::cpu(), &[], check_greedy);
}

#[test]
fn any_split_of_the_tokens_gives_the_same() {
    check(&Device::cpu(), &[], check_steps);
}

#[test]
fn a_conversation_goes_on_behind_what_was_generated() {
    check(&Device::cpu(), &["gpt2", "llama3-rope"], check_turns);
}

#[test]
fn repeated_steps_give_what_single_ones_give() {
    check(&Device::cpu(), &[], check_repeats);
}

#[test]
fn the_gpu_agrees() {
    let few = ["gpt2-odd", "llama3-rope", "llama-mha.Q4_1", "llama-k256.Q4_K"];
    // TL_MODELS=all: every model there is.
    let some = if std::env::var("TL_MODELS").is_ok_and(|v| v == "all") { &[] } else { &few[..] };
    on_gpu(|gpu| {
        let count = check(gpu, some, check_logits);
        check(gpu, some, check_greedy);
        check(gpu, &few[1..3], check_steps);
        check(gpu, &few[..2], check_turns);
        check(gpu, some, check_repeats);
        println!("{count} of {count} models are right on {}", gpu.name());
    });
}

#[test]
fn a_full_context_ends_the_generation() {
    let all = references();
    let r = all.iter().find(|r| r.long.is_some()).unwrap();
    let model = load(r, &Device::cpu());
    let context = model.shape().context;
    let (tokens, _) = r.long.as_ref().unwrap();
    let mut s = session(&*model, &Device::cpu());
    let logits = s.prompt(&tokens[..context - 2], || false).unwrap().unwrap();
    let mut sampler = Sampler::default();
    let mut generation = s.generate(logits, &mut sampler).unwrap();
    // The token after the last position is known as well; it has no place in the cache.
    assert_eq!(generation.by_ref().collect::<TensorResult<Vec<u32>>>().unwrap().len(), 3);
    assert!(generation.next().is_none());
    generation.finish();
    assert!(s.prompt(&[1], || false).is_err());
}
