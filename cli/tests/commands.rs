//! `generate`, `chat` and the commands that measure, as a user or a script sees them, with a tiny model whose answers are known.

#[path = "../../tests/common/mod.rs"]
mod common;

use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use tensorlogic::io::GgufWriter;
use tensorlogic::measure::EnergyMeter;
use tensorlogic::{DType, Device};

const DIM: usize = 256;
const END: usize = 256;
const CONTEXT: u32 = 32768;

/// What follows each byte. After `x` the model says é€ and ends, after `a` it says `b`, `a`, `b` … without end, after `n` it breaks.
const AFTER: [(u8, usize); 8] =
    [(b'x', 0xC3), (0xC3, 0xA9), (0xA9, 0xE2), (0xE2, 0x82), (0x82, 0xAC), (0xAC, END), (b'a', b'b' as usize), (b'b', b'a' as usize)];

/// GPT-2's printable character for each byte.
fn byte_char(b: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match printable(b) {
        true => b as char,
        false => char::from_u32(256 + (0..b).filter(|&b| !printable(b)).count() as u32).unwrap(),
    }
}

/// A Llama whose one layer adds nothing: the next token depends on the last one alone, through the output matrix.
fn model() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| {
        let mut w = GgufWriter::new();
        w.set("general.architecture", "llama");
        for (key, v) in [("block_count", 1), ("embedding_length", DIM as u32), ("feed_forward_length", 32), ("context_length", CONTEXT)] {
            w.set(&format!("llama.{key}"), v);
        }
        w.set("llama.attention.head_count", 4u32).set("llama.attention.head_count_kv", 1u32);
        let mut tokens: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
        tokens.push("<|end|>".into());
        let mut types = vec![1i32; 256];
        types.push(3);
        w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2").set("tokenizer.ggml.tokens", tokens);
        w.set("tokenizer.ggml.token_type", types).set("tokenizer.ggml.merges", Vec::<String>::new());
        w.set("tokenizer.ggml.eos_token_id", END as u32).set("tokenizer.ggml.add_bos_token", false);
        let template = "{% for m in messages %}{{ m.content }}{% if m.role == 'user' %}x{% else %}<|end|>{% endif %}{% endfor %}";
        w.set("tokenizer.chat_template", template);
        let mut state = 1u32;
        let mut sign = || {
            state ^= state << 13;
            state ^= state >> 17;
            state ^= state << 5;
            if state & 64 == 0 { 1f32 } else { -1.0 }
        };
        // Random signs in 256 dimensions are as good as orthogonal.
        let mut embedding: Vec<f32> = (0..257 * DIM).map(|_| sign()).collect();
        let mut output = vec![0f32; 257 * DIM];
        for (token, next) in AFTER {
            output[next * DIM..][..DIM].copy_from_slice(&embedding[token as usize * DIM..][..DIM]);
        }
        embedding[b'n' as usize * DIM] = f32::NAN;
        let mut tensor = |name: &str, shape: &[usize], values: Vec<f32>| {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            w.tensor(&format!("{name}.weight"), DType::F32, shape, bytes).unwrap();
        };
        tensor("token_embd", &[257, DIM], embedding);
        tensor("output", &[257, DIM], output);
        for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
            tensor(name, &[DIM], vec![1.0; DIM]);
        }
        let shapes = [("attn_q", DIM, DIM), ("attn_k", 64, DIM), ("attn_v", 64, DIM), ("attn_output", DIM, DIM)];
        for (name, rows, columns) in shapes.into_iter().chain([("ffn_gate", 32, DIM), ("ffn_up", 32, DIM), ("ffn_down", DIM, 32)]) {
            tensor(&format!("blk.0.{name}"), &[rows, columns], vec![0.0; rows * columns]);
        }
        let path = std::env::temp_dir().join(format!("tl-commands-{}.gguf", std::process::id()));
        w.write(&path).unwrap();
        path
    })
}

fn tl(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).args(["-m", model().to_str().unwrap()]).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1");
    command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// Runs a command with this stdin and compares the exit code and words of both streams. Output is always whole UTF-8.
#[track_caller]
fn check(mut command: Command, stdin: &str, code: i32, out: &str, err: &str) -> String {
    let mut child = command.stdin(Stdio::piped()).spawn().unwrap();
    let _ = child.stdin.take().unwrap().write_all(stdin.as_bytes());
    let output: Output = child.wait_with_output().unwrap();
    let stdout = String::from_utf8(output.stdout).expect("stdout is UTF-8");
    let stderr = String::from_utf8(output.stderr).expect("stderr is UTF-8");
    assert_eq!(output.status.code(), Some(code), "stdout {stdout:?}\nstderr {stderr}");
    assert!(stdout.contains(out), "stdout {stdout:?} lacks {out:?}");
    assert!(stderr.contains(err) && !stderr.contains("panicked"), "stderr {stderr:?} lacks {err:?}");
    stdout
}

#[test]
fn generate_ends_where_it_should() {
    let out = check(tl(&["generate", "--raw", "--stats", "x"]), "", 0, "", "sampled on the device");
    assert_eq!(out, "é€\n");
    check(tl(&["generate", "--raw", "--stats", "--temp", "0.01", "--top-k", "3", "x"]), "", 0, "é€\n", "sampled on the host");
    check(tl(&["generate", "--raw", "--temp", "0.01", "--seed", "3", "x", "-q"]), "", 0, "é€\n", "");
    check(tl(&["generate", "--raw", "--json", "-p", "x"]), "", 0, r#""end":"end""#, "");
    // From stdin, from a file, through the template, which puts the x behind.
    check(tl(&["generate", "--raw"]), "x", 0, "é€\n", "generated: 6 tok");
    let file = std::env::temp_dir().join(format!("tl-prompt-{}.txt", std::process::id()));
    std::fs::write(&file, "x").unwrap();
    check(tl(&["generate", "--raw", "-f", file.to_str().unwrap()]), "", 0, "é€\n", "");
    std::fs::remove_file(&file).unwrap();
    check(tl(&["generate", "hello"]), "", 0, "é€\n", "prompt: 6 tok");
    // Half a character is never printed.
    for n in ["1", "3", "4"] {
        check(tl(&["generate", "--raw", "-n", n, "x"]), "", 0, "", "");
    }
    check(tl(&["generate", "--raw", "-n", "7", "a"]), "", 0, "bababab\n", "generated: 7 tok");
    check(tl(&["generate", "--raw", "-n", "0", "a"]), "", 0, "", "generated: 0 tok");
    // The context holds ten tokens, and the one after them is known.
    check(tl(&["generate", "--raw", "--ctx", "10", "a"]), "", 0, "bababababa\n", "the context is full");
    check(tl(&["generate", "--raw", "--ctx", "10", "--top-k", "2", "--json", "a"]), "", 0, r#""end":"context""#, "");
}

#[test]
fn a_damaged_model_is_named_by_every_command() {
    let bytes = std::fs::read(model()).unwrap();
    let mut renamed = bytes.clone();
    let key = bytes.windows(17).position(|w| w == b"llama.block_count").unwrap();
    renamed[key] = b'x';
    let path = std::env::temp_dir().join(format!("tl-broken-{}.gguf", std::process::id()));
    let file = path.to_str().unwrap();
    let cut = "the file is damaged or truncated: download or create it again";
    for (content, says) in [(&bytes[..bytes.len() / 2], cut), (&bytes[..100], cut), (&renamed, "`llama.block_count` is missing")] {
        std::fs::write(&path, content).unwrap();
        let runs =
            [&["generate", "-q", "x", "-m", file][..], &["chat", "-m", file], &["explain", "-m", file], &["bench", "decode", "-m", file]];
        // `inspect` needs the structure alone.
        for args in runs.into_iter().chain((says == cut).then_some(&["inspect", file][..])) {
            for words in [says, &format!("{file}: ")] {
                let mut c = Command::new(env!("CARGO_BIN_EXE_tl"));
                c.args(args).env("TL_DEVICE", "cpu").stdout(Stdio::piped()).stderr(Stdio::piped());
                check(c, "", 1, "", words);
            }
        }
    }
    std::fs::remove_file(&path).unwrap();
}

#[test]
fn generate_says_what_is_wrong() {
    check(tl(&["generate"]), "", 2, "", "no prompt");
    check(tl(&["generate", "-p", ""]), "", 2, "", "no prompt");
    check(tl(&["generate", "x", "--temp=-1"]), "", 2, "", "temp");
    check(tl(&["generate", "x", "--ctx", "0"]), "", 2, "", "--ctx");
    // A context that the model does not have is not taken in silence.
    let less = "--ctx 100000: the model supports 32768 tokens, so the context is 32768";
    check(tl(&["generate", "--raw", "x", "--ctx", "100000"]), "", 0, "é€\n", less);
    check(tl(&["chat", "-c", "100000"]), "hello\n", 0, "é€\n", less);
    check(tl(&["explain", "--ctx", "100000"]), "", 0, "", less);
    check(tl(&["generate", "x", "--dtype", "q4_0"]), "", 2, "", "expected f32, f16 or bf16");
    check(tl(&["generate", "x", "-f", "/nowhere"]), "", 1, "", "/nowhere");
    check(tl(&["generate", "--raw", "xxxxxxxxxxx", "--ctx", "10"]), "", 1, "", "the prompt has 11 tokens, the context holds 10");
    for sampling in [&["--temp", "0"][..], &["--temp", "1"], &["--temp", "1", "--top-k", "5"]] {
        check(tl(&[&["generate", "--raw", "n"], sampling].concat()), "", 1, "", "NaN");
    }
    check(
        tl(&["generate", "x", "--device", "toaster"]),
        "",
        2,
        "",
        "--device: unknown device \"toaster\": expected auto, cpu, gpu, vulkan",
    );
    check(tl(&["generate", "x", "-n", "-1"]), "", 2, "", "-1 is not a value for '--max-tokens");
    check(tl(&["generate", "x", "--temp", "-1"]), "", 2, "", "temp");
    let set = |name: &str, value: &str| {
        let mut c = tl(&["generate", "--raw", "x", "-n", "1"]);
        c.env(name, value);
        c
    };
    check(set("TL_DEVICE", "foo"), "", 2, "", "TL_DEVICE: unknown device \"foo\": expected auto, cpu, gpu, vulkan");
    // An empty one is none.
    for name in ["TL_DEVICE", "TL_CPU", "TL_NUM_THREADS", "TL_ADAPTIVE", "TL_MEM_LIMIT"] {
        check(set(name, ""), "", 0, "", "");
    }
    check(set("TL_MEM_LIMIT", "abc"), "", 2, "", "TL_MEM_LIMIT: \"abc\" is not an amount of memory; expected bytes, 512M, 2G, 75% or auto");
    check(set("TL_CPU", "sse"), "", 2, "", "TL_CPU=sse: unknown instruction set; expected");
    check(set("TL_NUM_THREADS", "0"), "", 2, "", "TL_NUM_THREADS is \"0\"");
    check(set("TL_ORDER", "largest"), "", 2, "", "TL_ORDER: \"largest\" is not a buffer order; expected one of program,");
    check(set("TL_ADAPTIVE", "maybe"), "", 2, "", "TL_ADAPTIVE is \"maybe\"; expected 0 or 1");
    check(tl(&["generate", "--raw", "x", "--system", "y"]), "", 2, "", "cannot be used with");
    let long = "x".repeat(CONTEXT as usize + 1);
    check(tl(&["generate", "--raw", &long]), "", 1, "", "but the model supports 32768; shorten it");
    check(plain(&["generate", "x", "-m", env!("CARGO_MANIFEST_DIR")]), "", 1, "", "is not a model directory: config.json is missing");
}

/// A generation that takes long, of which some text has come.
fn endless() -> Child {
    let mut child = tl(&["generate", "--raw", "--ctx", "32768", "-n", "32000", "a"]).spawn().unwrap();
    let mut first = [0; 8];
    child.stdout.as_mut().unwrap().read_exact(&mut first).unwrap();
    assert_eq!(&first, b"babababa");
    child
}

#[test]
fn a_closed_pipe_ends_generate() {
    let mut child = endless();
    drop(child.stdout.take());
    let output = child.wait_with_output().unwrap();
    assert_eq!(output.status.code(), Some(0), "{}", String::from_utf8_lossy(&output.stderr));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_generate_with_what_there_is() {
    let child = endless();
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let output = child.wait_with_output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!(output.status.code(), Some(130), "{stderr}");
    assert!(output.stdout.ends_with(b"\n") && output.stdout.len() < 32000 && stderr.contains("generated:"), "{stderr}");
}

#[test]
fn chat_reads_only_what_is_new() {
    let out = check(tl(&["chat", "--json", "-q"]), "hello\n\nyou\n/reset\nhello\n", 0, "", "");
    let turns: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    let count = |turn: usize, key: &str| turns[turn][key].as_u64().unwrap();
    assert_eq!(turns.len(), 3, "{out}");
    assert!(turns.iter().all(|t| t["text"] == "é€" && t["end"] == "end"), "{out}");
    // hellox, then é€ and the end; of the second turn only `youx` is new; after /reset everything is.
    assert_eq!([0, 1, 2].map(|t| count(t, "prompt_tokens")), [6, 4, 6]);
    assert_eq!([0, 1, 2].map(|t| count(t, "context_tokens")), [12, 22, 12]);
    check(tl(&["chat"]), "hello\n/exit\nhello\n", 0, "é€\n", "");
    check(tl(&["chat"]), "/what\n", 0, "", "unknown command /what");
    check(tl(&["chat", "--ctx", "8"]), "hello there\n", 1, "", "/reset starts over");
    check(tl(&["chat", "-n", "1"]), "", 0, "", "");
}

#[test]
fn the_measuring_commands() {
    let text = std::env::temp_dir().join(format!("tl-text-{}.txt", std::process::id()));
    std::fs::write(&text, "abababababab").unwrap();
    let file = text.to_str().unwrap();
    // Every token but the first is nearly certain.
    let out = check(tl(&["perplexity", "-f", file, "--ctx", "4", "--json"]), "", 0, "", "");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!((v["predicted_tokens"].as_u64(), v["tokens"].as_u64()), (Some(9), Some(12)));
    assert!((1.0..1.01).contains(&v["perplexity"].as_f64().unwrap()), "{out}");
    std::fs::write(&text, "xaxaxa").unwrap();
    let out = check(tl(&["perplexity", "-f", file, "--json"]), "", 0, "", "");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(v["perplexity"].as_f64().unwrap() > 1e3, "{out}");
    check(tl(&["perplexity", "-f", file, "-n", "1"]), "", 1, "", "perplexity needs at least 2 tokens");
    std::fs::remove_file(&text).unwrap();

    // No run is faster than the limit that is printed beside it, however busy the machine is.
    let out = check(tl(&["bench", "decode", "-p", "4", "-n", "12", "-r", "3", "--json"]), "", 0, "", "");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!((0.0..=1.0).contains(&v["of_limit"].as_f64().unwrap()), "{out}");
    assert!(v["tokens_per_s"]["most"].as_f64() <= v["limit_tokens_per_s"].as_f64().map(|l| l * 1.000001), "{out}");

    check(tl(&["explain"]), "", 0, " dispatches: ", "").lines().find(|l| l.contains("matmul")).unwrap();
    let out = check(tl(&["explain", "--json", "--position", "7"]), "", 0, "", "");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(v["dispatches"].as_u64().unwrap() as usize, v["steps"].as_array().unwrap().len());
    // The output matrix alone is read whole.
    assert!(v["read_bytes"].as_u64().unwrap() > 257 * 256 * 4 && v["read_bytes"].as_u64().unwrap() < 2 << 20, "{out}");
    check(tl(&["explain", "--plan"]), "", 0, "attention", "");
    check(tl(&["explain", "--position", "99999"]), "", 1, "", "outside the context");

    let out = check(tl(&["optimize", "--prompt", "9", "--position", "5", "--json"]), "", 0, "", "");
    let reports: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(reports.iter().map(|r| r["work"].as_str().unwrap()).collect::<Vec<_>>(), ["decode step", "prompt"]);
    for r in &reports {
        assert!(r["same_bits"] == true && r["orders"].as_array().unwrap().len() == 6, "{r}");
        assert!(
            r["bound_bytes"].as_u64() <= r["planned_bytes"].as_u64() && r["planned_bytes"].as_u64() <= r["program_bytes"].as_u64(),
            "{r}"
        );
        assert!(r["slack"].as_f64().unwrap() <= 0.02, "{r}");
    }
    let out = check(tl(&["optimize", "--prompt", "9", "--position", "5", "--energy"]), "", 0, "validation: every bit is the same", "");
    let counted = EnergyMeter::of(&Device::cpu()).is_some();
    let energy = if counted { "energy of a run: " } else { "energy: not reported by this system" };
    assert!(out.contains(energy) && out.contains("caches: of the bytes read of intermediates "), "{out}");
    check(tl(&["optimize", "--prompt", "99999"]), "", 2, "", "--prompt: the model's context has");

    let out = check(tl(&["bench", "decode", "-p", "8", "-n", "8", "--runs", "2", "--json"]), "", 0, "", "");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(v["tokens_per_s"]["median"].as_f64().unwrap() > 0.0 && v["bandwidth_bytes_per_s"].as_f64().unwrap() > 0.0, "{out}");
    check(tl(&["bench", "decode", "-n", "1"]), "", 2, "", "at least");
    // Energy is there where the system counts it, and said to be absent elsewhere.
    let words = if counted { "mJ a token above rest" } else { "not reported by this system" };
    check(tl(&["bench", "decode", "-p", "4", "-n", "12", "-r", "1", "--energy"]), "", 0, words, "");
}

/// One model in several types of weights: the perplexity of each is that of the file that `tl quantize` makes.
#[test]
fn bench_dtypes_compares_types_of_weights() {
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");
    let folder = std::env::temp_dir().join(format!("tl-types-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let (text, other) = (folder.join("text.txt"), folder.join("q4_0.gguf"));
    std::fs::write(&text, "First Citizen:\nBefore we proceed any further, hear me speak.\n\nAll:\nSpeak, speak.\n").unwrap();
    let text = text.to_str().unwrap();
    let run = |args: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
        command
            .args(args)
            .env("TL_DEVICE", "cpu")
            .env("TL_OFFLINE", "1")
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        command
    };
    let out = check(run(&["bench", "dtypes", tiny, "--types", "f32,q4_0", "-f", text, "-n", "4", "-r", "2", "--json"]), "", 0, "", "");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    let [f32, q4_0] = [0, 1].map(|i| &v["types"][i]);
    assert_eq!((f32["type"].as_str(), q4_0["type"].as_str(), &f32["ratio"]), (Some("f32"), Some("q4_0"), &serde_json::json!(1.0)));
    assert!(f32["verdict"].is_null() && ["faster", "slower", "no difference"].contains(&q4_0["verdict"].as_str().unwrap()), "{out}");
    assert!(f32["file_bytes"].as_u64() > q4_0["file_bytes"].as_u64().map(|b| 5 * b), "{out}");
    let table = check(run(&["bench", "dtypes", tiny, "--types", "f32,f32", "-n", "4", "-r", "1"]), "", 0, "verdict", "");
    // Of the first type twice: no row has a verdict.
    assert!(!table.contains("faster") && !table.contains("slower"), "{table}");
    check(run(&["quantize", tiny, other.to_str().unwrap(), "--type", "q4_0"]), "", 0, "", "");
    for (model, row) in [(tiny, f32), (other.to_str().unwrap(), q4_0)] {
        let alone = check(run(&["perplexity", "-m", model, "-f", text, "--json"]), "", 0, "", "");
        let alone: serde_json::Value = serde_json::from_str(&alone).unwrap();
        assert!((alone["perplexity"].as_f64().unwrap() - row["perplexity"].as_f64().unwrap()).abs() < 1e-9, "{alone} {row}");
    }
    check(run(&["bench", "dtypes", "-m", tiny, "--types", "q4_9"]), "", 2, "", "--types q4_9: expected some of f32");
    check(run(&["bench", "dtypes", "-m", tiny, "-n", "1"]), "", 2, "", "2 tokens to generate");
    check(run(&["bench", "dtypes", tiny, "-m", tiny]), "", 2, "", "`tl bench dtypes MODEL`, or -m MODEL");
    std::fs::remove_dir_all(folder).unwrap();
}

/// `tl plan` with the model as an argument or as an option, and what does not fit together.
#[test]
fn plan_tells_the_memory_of_a_model() {
    let tiny = concat!(env!("CARGO_MANIFEST_DIR"), "/../models/tiny/tiny.gguf");
    let on_cpu = |args: &[&str]| {
        let mut command = plain(args);
        command.env("TL_DEVICE", "cpu");
        command
    };
    let out = check(on_cpu(&["plan", tiny, "--ctx", "100", "--sequences", "3", "--prompt", "20", "--json"]), "", 0, "", "");
    let v: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!([&v["context"], &v["sequences"], &v["prompt"]].map(|n| n.as_u64().unwrap()), [100, 3, 20]);
    let bytes = |name: &str| v[name].as_u64().unwrap_or_else(|| panic!("no {name} in {out}"));
    assert!(bytes("mapped_weights") + bytes("weights") > 0 && bytes("peak_allocated") > bytes("cache"), "{out}");
    let one = check(on_cpu(&["plan", "-m", tiny, "--ctx", "100", "--prompt", "20", "--json"]), "", 0, "", "");
    let one: serde_json::Value = serde_json::from_str(&one).unwrap();
    // Sizes are rounded up to classes.
    let times = v["cache"].as_u64().unwrap() as f64 / one["cache"].as_u64().unwrap() as f64;
    assert!((2.5..3.5).contains(&times), "{one} {v}");
    check(on_cpu(&["plan", tiny, "--ctx", "100"]), "", 0, "keys and values", "");
    check(on_cpu(&["plan", tiny, "-m", tiny]), "", 2, "", "name the model once: `tl plan MODEL`, or -m MODEL");
}

#[test]
fn strategies_are_compared_and_write_the_same() {
    for sequences in ["1", "3"] {
        let args = ["bench", "decode", "-p", "4", "-n", "6", "-r", "2", "-s", sequences, "--strategy", "all"];
        let out = check(tl(&[&args[..], &["--json"]].concat()), "", 0, "", "");
        let v: serde_json::Value = serde_json::from_str(&out).unwrap();
        assert_eq!((v["tokens_equal"].as_bool(), v["runs"].as_u64()), (Some(true), Some(7)), "{out}");
        let rows = v["rows"].as_array().unwrap();
        assert_eq!(rows.len(), 6 * 5, "{out}");
        for row in rows {
            assert!(row["seconds"].as_f64().unwrap() >= 0.0, "{row}");
            let verdict = row["verdict"].as_str();
            assert_eq!(verdict.is_none(), row["strategy"] == "standard", "{row}");
            assert!(verdict.is_none_or(|v| ["less", "more", "no difference"].contains(&v)), "{row}");
        }
        let text = check(tl(&args), "", 0, "greedy tokens are equal in all strategies", "");
        assert!(text.contains("between tokens, p99") && text.contains("high-throughput"), "{text}");
    }
    check(tl(&["bench", "decode", "--strategy", "fast"]), "", 2, "", "\"fast\" is not a strategy; expected one of standard");
    check(tl(&["generate", "--strategy", "fast", "x"]), "", 2, "", "is not a strategy");
    let mut wrong = tl(&["generate", "x"]);
    wrong.env("TL_STRATEGY", "fast");
    check(wrong, "", 2, "", "\"fast\" is not a strategy");
    for strategy in ["low-latency", "high-throughput", "auto", "optimized"] {
        check(tl(&["generate", "--raw", "-n", "6", "--strategy", strategy, "a"]), "", 0, "bababa", "");
    }
}

/// Runs `tl` without a model.
fn plain(args: &[&str]) -> Command {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).env("TL_OFFLINE", "1").stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

#[test]
fn inspect_and_devices() {
    let file = model().to_str().unwrap();
    check(plain(&["inspect", file]), "", 0, "llama.block_count", "");
    check(plain(&["inspect", file, "--tensors"]), "", 0, "blk.0.attn_q.weight", "");
    let v: serde_json::Value = serde_json::from_str(&check(plain(&["inspect", file, "--json"]), "", 0, "", "")).unwrap();
    assert_eq!(v["metadata"]["tokenizer.ggml.tokens"]["length"], 257);
    assert_eq!((v["tensors"][0]["name"].as_str(), v["tensors"][0]["bytes"].as_u64()), (Some("token_embd.weight"), Some(257 * 256 * 4)));
    let hub = concat!(env!("CARGO_MANIFEST_DIR"), "/../tests/vectors/models/gpt2-odd");
    check(plain(&["inspect", hub, "-t"]), "", 0, "config.n_embd", "");
    // An architecture that is not known: what the nearest one lacks.
    let unknown = std::env::temp_dir().join(format!("tl-unknown-{}.gguf", std::process::id()));
    let mut w = GgufWriter::new();
    w.set("general.architecture", "swirl").set("swirl.block_count", 1u32).set("swirl.swirl_rate", 3u32);
    w.tensor("blk.0.swirl.weight", DType::F32, &[2], vec![0; 8]).unwrap();
    w.write(&unknown).unwrap();
    check(plain(&["inspect", unknown.to_str().unwrap()]), "", 0, "the architecture \"swirl\" is not known; the nearest is", "");
    check(plain(&["inspect", unknown.to_str().unwrap()]), "", 0, "`swirl.swirl_rate` is 3", "");
    let v: serde_json::Value =
        serde_json::from_str(&check(plain(&["inspect", unknown.to_str().unwrap(), "--json"]), "", 0, "", "")).unwrap();
    assert_eq!(v["lacks"]["tensors"], serde_json::json!([{ "name": "blk.*.swirl.weight", "count": 1, "shape": [2] }]));
    assert!(v["lacks"]["refusal"].is_string());
    std::fs::remove_file(unknown).unwrap();
    // What is not a model is said not to be one, whatever its first bytes would mean in a format.
    let page = concat!(env!("CARGO_MANIFEST_DIR"), "/../README.md");
    check(
        plain(&["inspect", page]),
        "",
        1,
        "",
        "README.md is not a GGUF or safetensors model: it is text that starts with \"# tensorlogic\"",
    );
    check(plain(&["generate", "x", "-m", page]), "", 1, "", "is not a GGUF or safetensors model");
    check(plain(&["inspect", env!("CARGO_BIN_EXE_tl")]), "", 1, "", "is not a GGUF or safetensors model");
    check(plain(&["inspect", "/nowhere/x.gguf"]), "", 1, "", "/nowhere/x.gguf");
    check(plain(&["devices"]), "", 0, "cpu", "");
    let v: serde_json::Value = serde_json::from_str(&check(plain(&["devices", "--json"]), "", 0, "", "")).unwrap();
    assert!(v["cpu"]["threads"].as_u64().unwrap() > 0 && v["gpus"].is_array());
    // Both say the same of an adapter's memory.
    let w: serde_json::Value = serde_json::from_str(&check(plain(&["doctor", "--json"]), "", 0, "", "")).unwrap();
    for (a, b) in v["gpus"].as_array().unwrap().iter().zip(w["gpus"].as_array().unwrap()) {
        assert_eq!((&a["device"], &a["memory_bytes"]), (&b["device"], &b["memory"]["total_bytes"]));
    }
    check(plain(&["bench", "decode", "--shape", "llama-7t"]), "", 2, "", "smollm2-135m");
    check(plain(&["bench", "decode", "-m", "tiny", "--type", "f16"]), "", 2, "", "--type");
    check(plain(&["bench", "decode", "-m", "tiny", "--sequences", "99999999999"]), "", 2, "", "the maximum is 65536");
    check(plain(&["bench", "decode", "-m", "tiny", "-p", "18446744073709551615"]), "", 2, "", "the model supports 256");
    check(plain(&["bench", "decode", "--shape", "smollm2-135m", "--type", "q4_K"]), "", 2, "", "multiple of the block size");
}

#[test]
fn caches_are_measured_and_plotted() {
    let folder = std::env::temp_dir().join(format!("tl-caches-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let (lines, svg) = (file("a.jsonl"), file("plot.svg"));
    let run = ["bench", "run", "--suite", "caches", "--device", "cpu", "--quick"];
    let out = check(plain(&[&run[..], &["--save", &lines, "--plot", &svg]].concat()), "", 0, "", "");
    assert!(out.contains("=== Memory Hierarchy of cpu (") && out.contains("level up to"), "{out}");
    for (technique, work) in [("tiling", "product"), ("blocking", "softmax"), ("transposition", "product"), ("order", "gather")] {
        let row = out.lines().find(|l| l.starts_with(&format!("{technique:<14} {work} ")));
        assert!(row.is_some_and(|r| [" gain", " loss", " no difference"].iter().any(|v| r.contains(v))), "{technique}: {out}");
    }
    assert!(std::fs::read_to_string(&svg).unwrap().contains("<polyline"));
    // What was saved is compared like any suite's.
    let out = check(plain(&["bench", "compare", &lines, &lines]), "", 0, "", "");
    assert!(out.contains("product: tiles of 32 40x40"), "{out}");
    let out = check(plain(&[&run[..], &["--json"]].concat()), "", 0, "", "");
    let first: serde_json::Value = serde_json::from_str(out.lines().next().unwrap()).unwrap();
    assert_eq!(first["points"].as_array().unwrap().len(), 5);
    std::fs::remove_dir_all(&folder).unwrap();
}

#[test]
fn suites_are_measured_saved_compared_and_plotted() {
    let folder = std::env::temp_dir().join(format!("tl-suites-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let (a, b, svg, html) = (file("a.jsonl"), file("b.jsonl"), file("plot.svg"), file("plot.html"));
    let run = ["bench", "run", "--device", "cpu", "--quick", "--category", "reduction", "--save", &a, "--plot", &svg];
    let out = check(plain(&run), "", 0, "", "");
    assert!(out.lines().next().unwrap().starts_with("cpu ("), "the adapter's name stands at the top: {out}");
    assert_eq!(out.lines().filter(|l| l.starts_with("Sum ")).count(), 4);
    assert!(out.contains("Performance Summary"), "{out}");
    assert_eq!(std::fs::read_to_string(&svg).unwrap().matches("<title>Sum").count(), 4);
    let out =
        check(plain(&["bench", "run", "--device", "cpu", "--quick", "--category", "reduction", "--json", "--plot", &html]), "", 0, "", "");
    assert_eq!(out.lines().count(), 4);
    assert!(out.lines().all(|l| serde_json::from_str::<serde_json::Value>(l).unwrap()["wall"]["samples"].as_array().unwrap().len() == 3));
    assert!(std::fs::read_to_string(&html).unwrap().contains("</svg>"));
    check(plain(&["bench", "run", "--suite", "nonsense"]), "", 2, "", "metal");

    // Made-up samples: the sums of 1K are half slower in b, the rest is the same.
    let lines = |slow: f64| {
        let line = |(n, l): (usize, &str)| {
            let mut v: serde_json::Value = serde_json::from_str(l).unwrap();
            let samples: Vec<f64> = (0..6).map(|i| (1.0 + i as f64 * 1e-4) * if n == 0 { slow } else { 1.0 }).collect();
            v["wall"]["samples"] = samples.into();
            v.to_string() + "\n"
        };
        out.lines().enumerate().map(line).collect::<String>()
    };
    std::fs::write(&a, lines(1.0)).unwrap();
    std::fs::write(&b, lines(1.5)).unwrap();
    let out = check(plain(&["bench", "compare", &a, &b]), "", 0, "", "");
    assert!(out.contains("+50.0 %") && out.matches("slower").count() == 1 && out.matches("same").count() == 3, "{out}");
    check(plain(&["bench", "compare", &a, &b, "--fail-on-regression", "60"]), "", 0, "", "");
    check(plain(&["bench", "compare", &a, &b, "--fail-on-regression", "20"]), "", 1, "", "Sum 1K");
    check(plain(&["bench", "compare", &b, &a, "--fail-on-regression", "0"]), "", 0, "", "");
    check(plain(&["bench", "compare", &a, &svg]), "", 1, "", "line 1");
    // The same measurements of another device.
    let other: String = lines(1.5)
        .lines()
        .map(|l| {
            let mut v: serde_json::Value = serde_json::from_str(l).unwrap();
            v["device"] = "another".into();
            v.to_string() + "\n"
        })
        .collect();
    std::fs::write(&b, other).unwrap();
    check(plain(&["bench", "compare", &a, &b]), "", 1, "", "operation, size and device in common; --across compares devices");
    let out = check(plain(&["bench", "compare", "--across", &a, &b]), "", 0, "", "after: another");
    assert!(out.contains("+50.0 %") && out.matches("slower").count() == 1 && out.matches("same").count() == 3, "{out}");
    let _ = std::fs::remove_dir_all(folder);
}

#[test]
fn doctor_shows_settings_memory_and_problems() {
    let plain = |args: &[&str]| {
        let mut c = plain(args);
        c.env_remove("TL_MEM_LIMIT").env_remove("TL_CACHE_LIMIT");
        c
    };
    let text = check(plain(&["doctor"]), "", 0, "settings", "");
    for part in ["TL_MEM_LIMIT", "TL_OFFLINE", "= 1", "kept for reuse at most", "set_memory_limit"] {
        assert!(text.contains(part), "no {part} in\n{text}");
    }
    let mut wrong = plain(&["doctor", "--json"]);
    wrong.env("TL_DEVICE", "foo").env("TL_MEM_LIMIT", "lots").env("TL_MEN_LIMIT", "1G").env("TL_CACHE_LIMIT", "64M");
    let v: serde_json::Value = serde_json::from_str(&check(wrong, "", 0, "", "")).unwrap();
    let problems = v["problems"].to_string();
    assert!(problems.contains("TL_DEVICE: unknown device \\\"foo\\\": expected auto, cpu"), "{problems}");
    assert_eq!(problems.matches("not an amount of memory").count(), 1, "said once, and no driver is blamed: {problems}");
    assert!(problems.contains("not an amount of memory") && problems.contains("did you mean TL_MEM_LIMIT?"), "{problems}");
    assert_eq!(v["variables"]["TL_CACHE_LIMIT"], "64M");
    let limited = || {
        let mut c = plain(&["doctor", "--json"]);
        c.env("TL_MEM_LIMIT", "1G").env("TL_CACHE_LIMIT", "64M");
        c
    };
    let v: serde_json::Value = serde_json::from_str(&check(limited(), "", 0, "", "")).unwrap();
    assert_eq!(
        (v["cpu"]["memory"]["limit_bytes"].as_u64(), v["cpu"]["memory"]["cache_limit_bytes"].as_u64()),
        (Some(1 << 30), Some(64 << 20))
    );
    assert!(v["cpu"]["memory"]["total_bytes"].as_u64() > Some(0));
}

/// Runs `tl` with this cache folder, on the driver of the tests.
fn on_gpu(args: &[&str], cache: &Path) -> Command {
    let mut command = common::command(env!("CARGO_BIN_EXE_tl"));
    command.args(args).env("TL_CACHE_DIR", cache).env_remove("TL_TUNING").env_remove("TL_DEVICE");
    command.stdout(Stdio::piped()).stderr(Stdio::piped());
    command
}

/// The tuning table that `tl doctor` shows of the adapter of this name, and all problems.
fn table_in_force(adapter: &str, cache: &Path, setting: Option<&str>) -> (serde_json::Value, String) {
    let mut c = on_gpu(&["doctor", "--json"], cache);
    c.envs(setting.map(|s| ("TL_TUNING", s)));
    let v: serde_json::Value = serde_json::from_str(&check(c, "", 0, "", "")).unwrap();
    (
        v["gpus"].as_array().unwrap().iter().find(|g| g["name"].as_str().is_some_and(|n| adapter.contains(n))).unwrap()["tuning"].clone(),
        v["problems"].to_string(),
    )
}

#[test]
fn tune_measures_a_table_that_every_command_uses() {
    check(plain(&["tune", "--device", "cpu"]), "", 2, "", "the cpu has no tuning table");
    check(plain(&["tune", "--device", "cpu", "--seconds", "0"]), "", 2, "", "--seconds: 0 is out of range");
    let mut wrong = plain(&["devices"]);
    wrong.env("TL_TUNING", "toaster");
    check(wrong, "", 2, "", "TL_TUNING is \"toaster\": neither one of generic, nvidia, apple, software nor a readable file");

    let cache = std::env::temp_dir().join(format!("tl-tune-{}", std::process::id()));
    let kept = cache.join("tuning.json");
    let Some(device) = common::selector() else { return println!("skipped: there is no GPU") };
    let adapter = Device::open(device).unwrap().name();
    let table_in_force = |setting| table_in_force(&adapter, &cache, setting);
    let dry_run = on_gpu(&["tune", "--device", device, "--seconds", "3", "--dry-run"], &cache);
    check(dry_run, "", 0, "nothing was kept: --dry-run", "kinds of work");
    assert!(!kept.exists());
    let (class, problems) = table_in_force(None);
    assert!(class["source"].as_str().unwrap().starts_with("of its class") && !problems.contains("tuning"), "{class} {problems}");

    let out = check(on_gpu(&["tune", "--device", device, "--seconds", "6", "--json"], &cache), "", 0, "", "");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(report["cases"][0].as_u64() > Some(0) && report["seconds"].as_f64() < Some(120.0), "{out}");
    let rows = report["rows"].as_array().unwrap();
    let slower = |r: &serde_json::Value| r["kept"] == true && r["after_s"].as_f64() > r["before_s"].as_f64().map(|b| b * 1.031);
    assert!(!rows.iter().any(slower), "something that is kept is slower: {out}");
    let (measured, _) = table_in_force(None);
    assert_eq!(measured["table"], report["table"]);
    assert!(measured["source"].as_str().unwrap().starts_with("measured here"), "{measured}");
    assert_eq!(table_in_force(Some("apple")).0["name"], "apple");

    // A table for one model, which the strategy takes.
    let optimized = ["generate", "--raw", "-n", "6", "--device", device, "--strategy", "optimized", "a", "-m", model().to_str().unwrap()];
    check(on_gpu(&optimized, &cache), "", 0, "bababa", "no table was measured for this model");
    let tune = ["tune", "--device", device, "--seconds", "5", "-m", model().to_str().unwrap(), "--json"];
    let out = check(on_gpu(&tune, &cache), "", 0, "", "");
    let report: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert!(report["cases"][0].as_u64() > Some(0) && report["seconds"].as_f64() < Some(60.0), "{out}");
    let err = on_gpu(&optimized, &cache).output().unwrap().stderr;
    assert!(!String::from_utf8_lossy(&err).contains("no table"), "{}", String::from_utf8_lossy(&err));
    assert_eq!(table_in_force(None).0["table"], measured["table"], "the device's table is another");

    #[cfg(unix)]
    {
        let before = std::fs::read(&kept).unwrap();
        let child = on_gpu(&["tune", "--device", device], &cache).spawn().unwrap();
        std::thread::sleep(std::time::Duration::from_secs(5));
        assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
        assert_eq!(child.wait_with_output().unwrap().status.code(), Some(130));
        assert!(std::fs::read(&kept).unwrap() == before, "Ctrl-C changed what is kept");
    }

    // A damaged file stops nothing, and is told of.
    std::fs::write(&kept, "{ \"").unwrap();
    let (table, problems) = table_in_force(None);
    assert_eq!(table["table"], class["table"]);
    assert!(problems.contains("tuning.json is damaged") && problems.contains("tl tune"), "{problems}");
    std::fs::remove_dir_all(cache).unwrap();
}
