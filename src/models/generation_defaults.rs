//! What a model's files say about choosing tokens: `generation_config.json` beside the weights of a folder, `general.sampling.*` in a GGUF file.

use crate::error::{TensorError, TensorResult};
use crate::io::gguf::Value;
use crate::io::info::clip;
use crate::models::{Sampler, Weights};
use crate::ops::random::Rng;
use serde_json::{Map, Value as Json};
use std::path::Path;

/// The defaults of sampling that a model's files state.
///
/// A folder's mean what they mean to transformers: without `do_sample` the most likely token is taken, and sampling without `top_k` takes 50. A GGUF
/// file samples where it has one of `temp`, `top_k`, `top_p` and `min_p`.
#[derive(Clone, Debug, PartialEq)]
pub struct GenerationDefaults {
    /// 0 where the most likely token is to be taken.
    pub temperature: f64,
    /// See [`Sampler::top_k`].
    pub top_k: usize,
    /// See [`Sampler::top_p`].
    pub top_p: f64,
    /// See [`Sampler::min_p`].
    pub min_p: f64,
    /// See [`Sampler::repetition_penalty`].
    pub repetition_penalty: f64,
    /// Tokens that end an answer (`eos_token_id`, a number or a list). A GGUF file's are those of its tokenizer.
    pub end_tokens: Vec<u32>,
    /// The file that states them; `None` where none does.
    pub source: Option<String>,
    /// Settings that would change the tokens and are not implemented, such as `` `num_beams` is 4 ``.
    pub not_applied: Vec<String>,
}

impl Default for GenerationDefaults {
    fn default() -> Self {
        let s = Sampler::default();
        GenerationDefaults {
            temperature: s.temperature,
            top_k: s.top_k,
            top_p: s.top_p,
            min_p: s.min_p,
            repetition_penalty: s.repetition_penalty,
            end_tokens: Vec::new(),
            source: None,
            not_applied: Vec::new(),
        }
    }
}

/// The file of a folder.
const FILE: &str = "generation_config.json";
/// What transformers takes for `top_k` where a file that samples does not say it.
const TOP_K: usize = 50;

/// Keys of `generation_config.json` that do not change which tokens are likely: they tell lengths, what a call returns, how it computes, and other
/// things that have options of their own.
const WITHOUT_EFFECT: [&str; 37] = [
    "_commit_hash",
    "_from_model_config",
    "assistant_confidence_threshold",
    "assistant_early_exit",
    "assistant_lookbehind",
    "bos_token_id",
    "cache_config",
    "cache_implementation",
    "chat_format",
    "compile_config",
    "decoder_start_token_id",
    "disable_compile",
    "early_stopping",
    "is_assistant",
    "length_penalty",
    "low_memory",
    "max_length",
    "max_matching_ngram_size",
    "max_new_tokens",
    "max_window_size",
    "num_assistant_tokens",
    "num_assistant_tokens_schedule",
    "num_return_sequences",
    "output_attentions",
    "output_hidden_states",
    "output_logits",
    "output_scores",
    "pad_token_id",
    "prefill_chunk_size",
    "prompt_lookup_num_tokens",
    "renormalize_logits",
    "return_dict_in_generate",
    "return_legacy_cache",
    "target_lookbehind",
    "token_healing",
    "transformers_version",
    "use_cache",
];

/// Keys that are not implemented, with the value at which they change nothing; null, false, and empty lists change nothing either.
const NEUTRAL: [(&str, f64); 13] = [
    ("diversity_penalty", 0.0),
    ("encoder_no_repeat_ngram_size", 0.0),
    ("encoder_repetition_penalty", 1.0),
    ("epsilon_cutoff", 0.0),
    ("eta_cutoff", 0.0),
    ("guidance_scale", 1.0),
    ("min_length", 0.0),
    ("min_new_tokens", 0.0),
    ("no_repeat_ngram_size", 0.0),
    ("num_beam_groups", 1.0),
    ("num_beams", 1.0),
    ("penalty_alpha", 0.0),
    ("typical_p", 1.0),
];

impl GenerationDefaults {
    /// The defaults of the model that `weights` hold: of a folder, those of `generation_config.json`, else of the same keys in `config.json`; of a
    /// GGUF file, those below `general.sampling`.
    ///
    /// # Errors
    /// [`TensorError::Io`] where the file cannot be read; [`TensorError::Format`] where it is not JSON, or a setting has no valid value.
    ///
    /// ```
    /// use tensorlogic::models::{GenerationDefaults, Weights};
    /// use tensorlogic::prelude::*;
    ///
    /// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
    /// let defaults = GenerationDefaults::of(&Weights::open(file, &Device::cpu())?)?;
    /// assert_eq!(defaults.sampler(Rng::new(0)).temperature, 0.0); // The file does not ask for sampling.
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn of(weights: &Weights) -> TensorResult<GenerationDefaults> {
        match (weights.gguf(), weights.folder(), weights.config()) {
            (Some(gguf), ..) => of_gguf(gguf),
            (_, Some(folder), config) => of_folder(folder, config.and_then(Json::as_object)),
            _ => Ok(GenerationDefaults::default()),
        }
    }

    /// The sampler of these defaults.
    pub fn sampler(&self, rng: Rng) -> Sampler {
        let GenerationDefaults { temperature, top_k, top_p, min_p, repetition_penalty, .. } = *self;
        Sampler { temperature, top_k, top_p, min_p, repetition_penalty, rng }
    }

    /// Fails on values that a sampler does not take.
    fn checked(self, file: &str) -> TensorResult<GenerationDefaults> {
        let wrong = |e: TensorError| match e {
            TensorError::Config(m) => TensorError::format("generation_config", format!("{file}: {m}")),
            other => other,
        };
        self.sampler(Rng::new(0)).check().map_err(wrong)?;
        Ok(self)
    }
}

fn of_gguf(gguf: &crate::io::Gguf) -> TensorResult<GenerationDefaults> {
    let mut d = GenerationDefaults::default();
    let number = |name: &str| gguf.opt(&format!("general.sampling.{name}"), Value::f64);
    let whole = |name: &str, n: f64| match n >= 0.0 && n.fract() == 0.0 && n < 4e9 {
        true => Ok(n as usize),
        false => Err(TensorError::format("gguf", format!("`general.sampling.{name}` is {n}, not a whole number"))),
    };
    let (temp, top_k, top_p, min_p) = (number("temp")?, number("top_k")?, number("top_p")?, number("min_p")?);
    if temp.or(top_k).or(top_p).or(min_p).is_some() {
        d.temperature = temp.unwrap_or(1.0);
        d.top_k = whole("top_k", top_k.unwrap_or(0.0))?;
        // GGUF's floats have 32 bits: 0.95 is 0.949999988.
        (d.top_p, d.min_p) = (shortest(top_p.unwrap_or(1.0)), shortest(min_p.unwrap_or(0.0)));
        d.temperature = shortest(d.temperature);
    }
    d.repetition_penalty = number("penalty_repeat")?.map_or(1.0, shortest);
    let mut named = |name: &str, says: String| d.not_applied.push(format!("`general.sampling.{name}` is {says}"));
    for (name, neutral) in [("xtc_probability", 0.0), ("mirostat", 0.0)] {
        if let Some(v) = number(name)?.filter(|v| *v != neutral) {
            named(name, v.to_string());
        }
    }
    // The penalty here is for every earlier token.
    if let Some(n) = number("penalty_last_n")?.filter(|n| *n >= 0.0 && d.repetition_penalty != 1.0) {
        named("penalty_last_n", n.to_string());
    }
    if let Some(order) = gguf.get("general.sampling.sequence") {
        named("sequence", order.to_string());
    }
    let stated = gguf.metadata().any(|(key, _)| key.starts_with("general.sampling."));
    d.source = stated.then(|| "the GGUF file".to_string());
    d.checked("general.sampling")
}

/// The number of the fewest digits that has this f32.
fn shortest(v: f64) -> f64 {
    (v as f32).to_string().parse().unwrap_or(v)
}

fn of_folder(folder: &Path, config: Option<&Map<String, Json>>) -> TensorResult<GenerationDefaults> {
    let path = folder.join(FILE);
    match std::fs::read(&path) {
        Ok(text) => {
            let name = path.display().to_string();
            let json: Json = serde_json::from_slice(&text).map_err(|e| TensorError::format("generation_config", format!("{name}: {e}")))?;
            let Json::Object(keys) = json else {
                return Err(TensorError::format("generation_config", format!("{name}: not a JSON object")));
            };
            let mut d = of_keys(&keys, &name)?;
            d.not_applied =
                keys.iter().filter(|(k, v)| changes(k, v)).map(|(k, v)| format!("`{}` is {}", clip(k), clip(&v.to_string()))).collect();
            d.source = Some(FILE.into());
            d.checked(&name)
        }
        // Models from before that file was invented.
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => {
            let Some(keys) = config else { return Ok(GenerationDefaults::default()) };
            let mut d = of_keys(keys, "config.json")?;
            d.source = (d.temperature > 0.0 || d.repetition_penalty != 1.0).then(|| "config.json".to_string());
            d.checked("config.json")
        }
        Err(e) => Err(TensorError::io(&path, e)),
    }
}

/// The keys that are honoured.
const HONOURED: [&str; 7] = ["do_sample", "eos_token_id", "min_p", "repetition_penalty", "temperature", "top_k", "top_p"];

fn of_keys(keys: &Map<String, Json>, file: &str) -> TensorResult<GenerationDefaults> {
    let wrong = |key: &str, want: &str| {
        TensorError::format("generation_config", format!("{file}: `{key}` is {}, not {want}", clip(&keys[key].to_string())))
    };
    let known = |key: &str| keys.get(key).filter(|v| !v.is_null());
    let number = |key: &str| known(key).map(|v| v.as_f64().ok_or_else(|| wrong(key, "a number"))).transpose();
    let sample = known("do_sample").map(|v| v.as_bool().ok_or_else(|| wrong("do_sample", "true or false"))).transpose()?.unwrap_or(false);
    let top_k = match number("top_k")? {
        Some(n) if n >= 0.0 && n.fract() == 0.0 && n < 4e9 => Some(n as usize),
        Some(_) => return Err(wrong("top_k", "a whole number")),
        None => None,
    };
    let temperature = number("temperature")?.unwrap_or(1.0);
    let token = |v: &Json| v.as_u64().and_then(|n| u32::try_from(n).ok());
    let end_tokens = match known("eos_token_id") {
        None => Some(Vec::new()),
        Some(Json::Array(all)) => all.iter().map(token).collect(),
        // Some files write −1 for none.
        Some(v) => Some(token(v).into_iter().collect()),
    };
    Ok(GenerationDefaults {
        temperature: if sample { temperature } else { 0.0 },
        top_k: top_k.unwrap_or(if sample { TOP_K } else { 0 }),
        top_p: number("top_p")?.unwrap_or(1.0),
        min_p: number("min_p")?.unwrap_or(0.0),
        repetition_penalty: number("repetition_penalty")?.unwrap_or(1.0),
        end_tokens: end_tokens.ok_or_else(|| wrong("eos_token_id", "a token or a list of them"))?,
        ..GenerationDefaults::default()
    })
}

/// Whether a key that is not honoured would change the tokens.
fn changes(key: &str, value: &Json) -> bool {
    if HONOURED.contains(&key) || WITHOUT_EFFECT.contains(&key) {
        return false;
    }
    match value {
        Json::Null | Json::Bool(false) => false,
        Json::Array(a) => !a.is_empty(),
        Json::Object(o) => !o.is_empty(),
        v => !NEUTRAL.iter().any(|(name, neutral)| *name == key && v.as_f64() == Some(*neutral)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::device::Device;
    use crate::io::{Gguf, GgufWriter};
    use serde_json::json;

    fn of(json: Json) -> TensorResult<GenerationDefaults> {
        let folder = std::env::temp_dir().join(format!("tl-generation-{}-{:?}", std::process::id(), std::thread::current().id()));
        std::fs::create_dir_all(&folder).unwrap();
        std::fs::write(folder.join(FILE), json.to_string()).unwrap();
        let d = of_folder(&folder, None);
        std::fs::remove_dir_all(&folder).unwrap();
        d
    }

    #[test]
    fn keys_of_a_folder_are_honoured_or_named() {
        let d = of(json!({ "do_sample": true, "temperature": 0.6, "top_k": 20, "top_p": 0.95, "min_p": 0.01, "repetition_penalty": 1.05,
            "eos_token_id": [151645, 151643], "bos_token_id": 151643, "transformers_version": "4.51.0", "num_beams": 4, "typical_p": 1.0,
            "suppress_tokens": [], "begin_suppress_tokens": [1], "unheard_of": 0.5 }))
        .unwrap();
        assert_eq!((d.temperature, d.top_k, d.top_p, d.min_p, d.repetition_penalty), (0.6, 20, 0.95, 0.01, 1.05));
        assert_eq!(d.end_tokens, [151645, 151643]);
        assert_eq!(d.not_applied, ["`num_beams` is 4", "`begin_suppress_tokens` is [1]", "`unheard_of` is 0.5"]);
        assert_eq!(d.source.as_deref(), Some(FILE));
    }

    #[test]
    fn as_transformers_reads_what_is_left_out() {
        let greedy = of(json!({ "temperature": 0.6, "top_p": 0.9, "eos_token_id": 2 })).unwrap();
        assert_eq!((greedy.temperature, greedy.top_k, greedy.end_tokens), (0.0, 0, vec![2]));
        let sampled = of(json!({ "do_sample": true })).unwrap();
        assert_eq!((sampled.temperature, sampled.top_k, sampled.top_p), (1.0, 50, 1.0));
    }

    #[test]
    fn values_that_are_none_are_refused_by_name() {
        for (json, name) in [
            (json!({ "do_sample": true, "top_p": 1.5 }), "top-p is 1.5"),
            (json!({ "temperature": "warm" }), "not a number"),
            (json!({ "top_k": 2.5 }), "`top_k` is 2.5"),
            (json!({ "eos_token_id": ["</s>"] }), "`eos_token_id`"),
            (json!({ "do_sample": 1 }), "`do_sample` is 1"),
            (json!({ "repetition_penalty": 0 }), "repetition penalty is 0"),
        ] {
            let e = of(json.clone()).unwrap_err().to_string();
            assert!(e.contains(name) && e.contains(FILE), "{json}: {e}");
        }
    }

    #[test]
    fn a_gguf_file_states_its_defaults() {
        let read =
            |w: &GgufWriter| GenerationDefaults::of(&Weights::from_gguf(Gguf::from_bytes(w.to_bytes().unwrap()).unwrap(), &Device::cpu()));
        let mut w = GgufWriter::new();
        w.set("general.architecture", "llama");
        assert_eq!(read(&w).unwrap(), GenerationDefaults::default());
        w.set("general.sampling.temp", 0.7f32).set("general.sampling.top_p", 0.95f32).set("general.sampling.top_k", 20i32);
        w.set("general.sampling.penalty_repeat", 1.05f32)
            .set("general.sampling.penalty_last_n", 64i32)
            .set("general.sampling.mirostat", 2i32);
        let d = read(&w).unwrap();
        assert_eq!((d.temperature, d.top_k, d.top_p, d.min_p, d.repetition_penalty), (0.7, 20, 0.95, 0.0, 1.05));
        assert_eq!(d.not_applied, ["`general.sampling.mirostat` is 2", "`general.sampling.penalty_last_n` is 64"]);
        w.set("general.sampling.top_k", -3i32);
        assert!(read(&w).unwrap_err().to_string().contains("`general.sampling.top_k` is -3"));
    }
}
