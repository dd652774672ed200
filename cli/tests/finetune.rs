//! `tl finetune`, `tl merge` and `--adapter` with small random models that the tests write.

use serde_json::Value;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use tensorlogic::DType;
use tensorlogic::io::{Gguf, GgufWriter};
use tensorlogic::quant;

const DIM: usize = 64;
const TEXT: &str = "the cat sat on the mat. the dog sat on the log. ";

/// GPT-2's printable character for each byte.
fn byte_char(b: u8) -> char {
    let printable = |b: u8| matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    match printable(b) {
        true => b as char,
        false => char::from_u32(256 + (0..b).filter(|&b| !printable(b)).count() as u32).unwrap(),
    }
}

/// A folder of a test's own.
fn place(name: &str) -> PathBuf {
    let p = std::env::temp_dir().join(format!("tl-finetune-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&p);
    std::fs::create_dir_all(&p).unwrap();
    p
}

/// A random model of two blocks whose tokens are bytes; the last token ends a text.
fn model(folder: &Path, architecture: &str, dtype: DType) -> PathBuf {
    let mut w = GgufWriter::new();
    w.set("general.architecture", architecture);
    for (key, v) in [("block_count", 2), ("embedding_length", DIM as u32), ("feed_forward_length", 128), ("context_length", 128)] {
        w.set(&format!("{architecture}.{key}"), v);
    }
    w.set(&format!("{architecture}.attention.head_count"), 4u32);
    if architecture == "llama" {
        w.set("llama.attention.head_count_kv", 2u32);
    }
    let mut tokens: Vec<String> = (0..=255).map(|b| byte_char(b).to_string()).collect();
    tokens.push("<|end|>".into());
    let mut types = vec![1i32; 256];
    types.push(3);
    w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2").set("tokenizer.ggml.tokens", tokens);
    w.set("tokenizer.ggml.token_type", types).set("tokenizer.ggml.merges", Vec::<String>::new());
    w.set("tokenizer.ggml.eos_token_id", 256u32).set("tokenizer.ggml.add_bos_token", false);
    w.set("tokenizer.chat_template", "{% for m in messages %}[{{ m.role }}]{{ m.content }}{% if m.role == 'assistant' %}<|end|>{% endif %}{% endfor %}{% if add_generation_prompt %}[assistant]{% endif %}");
    let mut state = 7u64;
    let mut tensor = |name: String, shape: &[usize], packed: bool, ones: bool| {
        let values: Vec<f32> = (0..shape.iter().product::<usize>())
            .map(|_| {
                state ^= state << 13;
                state ^= state >> 7;
                state ^= state << 17;
                if ones { 1.0 } else { ((state >> 40) as f32 / (1 << 24) as f32 - 0.5) * 0.4 }
            })
            .collect();
        let dtype = if packed { dtype } else { DType::F32 };
        w.tensor(&name, dtype, shape, quant::quantize(dtype, &values).unwrap()).unwrap();
    };
    tensor("token_embd.weight".into(), &[257, DIM], true, false);
    tensor("output_norm.weight".into(), &[DIM], false, true);
    let gpt2 = architecture == "gpt2";
    if gpt2 {
        tensor("output_norm.bias".into(), &[DIM], false, false);
        tensor("position_embd.weight".into(), &[128, DIM], false, false);
    }
    let llama_parts = [
        ("attn_q", DIM, DIM),
        ("attn_k", 32, DIM),
        ("attn_v", 32, DIM),
        ("attn_output", DIM, DIM),
        ("ffn_gate", 128, DIM),
        ("ffn_up", 128, DIM),
        ("ffn_down", DIM, 128),
    ];
    let gpt2_parts = [("attn_qkv", 3 * DIM, DIM), ("attn_output", DIM, DIM), ("ffn_up", 128, DIM), ("ffn_down", DIM, 128)];
    for i in 0..2 {
        for norm in ["attn_norm", "ffn_norm"] {
            tensor(format!("blk.{i}.{norm}.weight"), &[DIM], false, true);
            if gpt2 {
                tensor(format!("blk.{i}.{norm}.bias"), &[DIM], false, false);
            }
        }
        for &(part, rows, columns) in if gpt2 { &gpt2_parts[..] } else { &llama_parts[..] } {
            tensor(format!("blk.{i}.{part}.weight"), &[rows, columns], true, false);
            if gpt2 {
                tensor(format!("blk.{i}.{part}.bias"), &[rows], false, false);
            }
        }
    }
    let path = folder.join(format!("{architecture}.gguf"));
    w.write(&path).unwrap();
    path
}

fn tl(args: &[&str]) -> Output {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").stdin(Stdio::null());
    command.output().unwrap()
}

/// Runs a command and compares the exit code and words of both streams.
#[track_caller]
fn check(args: &[&str], code: i32, out: &str, err: &str) -> String {
    let output = tl(args);
    let (stdout, stderr) = (String::from_utf8_lossy(&output.stdout).into_owned(), String::from_utf8_lossy(&output.stderr));
    assert_eq!(output.status.code(), Some(code), "{args:?}: stdout {stdout:?}\nstderr {stderr}");
    assert!(stdout.contains(out) && stderr.contains(err) && !stderr.contains("panicked"), "{args:?}: stdout {stdout:?}\nstderr {stderr}");
    stdout
}

fn json(args: &[&str]) -> Value {
    serde_json::from_str(&check(&[args, &["--json"]].concat(), 0, "", "")).unwrap()
}

#[test]
fn a_packed_model_learns_a_text_and_is_merged() {
    for (architecture, dtype) in [("llama", DType::Q4_0), ("gpt2", DType::Q8_0), ("llama", DType::F32)] {
        let folder = place(&format!("text-{architecture}-{dtype}"));
        let base = model(&folder, architecture, dtype);
        let (base, text) = (base.to_str().unwrap(), folder.join("text.txt"));
        std::fs::write(&text, TEXT.repeat(40)).unwrap();
        let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
        let (text, adapter, merged) = (text.to_str().unwrap(), file("adapter"), file("merged.gguf"));
        let bytes = std::fs::read(base).unwrap();
        let learn = ["finetune", text, "-m", base, "-o", &adapter, "-n", "40", "-b", "4", "-c", "32", "--lr", "1e-2"];
        let v = json(&[&learn[..], &["--targets", "all", "--merge", &merged, "--save-every", "15"]].concat());
        let number = |key: &str| v[key].as_f64().unwrap();
        assert!(number("held_out_after") < 0.6 * number("held_out_before"), "{v}");
        assert_eq!(v["steps"], 40);
        assert!(std::fs::read(base).unwrap() == bytes, "the model's own file stays as it is");

        // What the three ways of running it say of the text.
        let loss =
            |args: &[&str]| json(&[&["perplexity", "-f", text, "-c", "32", "-n", "400"], args].concat())["mean_nll"].as_f64().unwrap();
        let (plain, adapted, one) = (loss(&["-m", base]), loss(&["-m", base, "--adapter", &adapter]), loss(&["-m", &merged]));
        assert!(adapted < 0.6 * plain, "{plain} {adapted}");
        let tolerance = if dtype == DType::F32 { 1e-5 } else { 2e-3 };
        assert!((one - adapted).abs() < tolerance * adapted.max(1.0), "{dtype}: merged {one}, adapted {adapted}");
        let gguf = Gguf::open(&merged).unwrap();
        let part = if architecture == "gpt2" { "attn_qkv" } else { "attn_q" };
        let want = if dtype == DType::F32 { DType::F32 } else { DType::F16 };
        assert_eq!(gguf.tensor(&format!("blk.0.{part}.weight")).unwrap().dtype().unwrap(), want);
        assert_eq!(gguf.tensor("token_embd.weight").unwrap().dtype().unwrap(), dtype);
        let say = |args: &[&str]| check(&[&["generate", "--raw", "the cat", "-n", "24", "-q"], args].concat(), 0, "", "");
        assert_eq!(say(&["-m", base, "--adapter", &adapter]), say(&["-m", &merged]));
        // Packed again, it is a smaller model of about the same answers.
        let small = file("small.gguf");
        check(&["quantize", &merged, &small, "-t", "q8_0"], 0, &small, "bits each");
        assert!((loss(&["-m", &small]) - adapted).abs() < 0.1, "{} {adapted}", loss(&["-m", &small]));
        assert_eq!(Gguf::open(&small).unwrap().tensor(&format!("blk.0.{part}.weight")).unwrap().dtype().unwrap(), DType::Q8_0);
        // Merging later gives the same file; going on from the adapters begins where they are.
        let later = file("later.gguf");
        let v = json(&["merge", "-m", base, "--adapter", &adapter, &later]);
        assert_eq!(v["merged"].as_str(), Some(&*later), "{v}");
        assert!(std::fs::read(&later).unwrap() == std::fs::read(&merged).unwrap());
        let more = json(&["finetune", text, "-m", base, "-o", &file("more"), "--adapter", &adapter, "-n", "1", "-c", "32", "--lr", "1e-6"]);
        assert!((more["held_out_before"].as_f64().unwrap() - number("held_out_after")).abs() < 1e-5, "{more} {v}");
        // What was learnt is not replaced unless that is asked for.
        let before = std::fs::read(folder.join("adapter/adapter_model.safetensors")).unwrap();
        check(&learn, 2, "", "already contains an adapter: --overwrite replaces it");
        assert!(std::fs::read(folder.join("adapter/adapter_model.safetensors")).unwrap() == before);
        for optimizer in ["adam", "sgd", "lion", "muon"] {
            let v = json(&["finetune", text, "-m", base, "-o", &adapter, "-n", "6", "-c", "32", "--optimizer", optimizer, "--overwrite"]);
            assert!(v["held_out_after"].as_f64() < v["held_out_before"].as_f64(), "{optimizer}: {v}");
        }
        std::fs::remove_dir_all(folder).unwrap();
    }
}

#[test]
fn conversations_are_learnt_and_prompts_masked() {
    let folder = place("chat");
    let base = model(&folder, "llama", DType::Q8_0);
    let base = base.to_str().unwrap();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let data = file("chat.jsonl");
    let mut lines = String::new();
    for i in 0..12 {
        lines += &serde_json::json!({ "prompt": format!("{i} x"), "completion": "yes" }).to_string();
        lines += "\n\n";
        lines += &serde_json::json!({ "messages": [{ "role": "user", "content": format!("{i} y") }, { "role": "assistant", "content": "yes" }] }).to_string();
        lines += "\n";
    }
    std::fs::write(&data, &lines).unwrap();
    let learn = |out: &str, more: &[&str]| {
        let out = file(out);
        json(&[&["finetune", data.as_str(), "-m", base, "-o", &out, "-n", "60", "--lr", "1e-2", "--targets", "all"], more].concat())
    };
    let masked = learn("a", &["--mask-prompt"]);
    // Only the answer and its end count, which are always the same; what is left is what the frozen output matrix cannot say more clearly.
    assert!(masked["held_out_after"].as_f64().unwrap() < 0.5, "{masked}");
    check(&["generate", "-m", base, "--adapter", &file("a"), "7 z", "-q"], 0, "yes\n", "");
    let whole = learn("b", &[]);
    assert!(whole["held_out_before"].as_f64().unwrap() != masked["held_out_before"].as_f64().unwrap());
    // The same seed gives the same adapters.
    learn("c", &[]);
    let bytes = |name: &str| std::fs::read(folder.join(name).join("adapter_model.safetensors")).unwrap();
    assert!(bytes("b") == bytes("c") && bytes("a") != bytes("b"));
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn a_batch_that_does_not_fit_is_computed_in_parts() {
    let folder = place("memory");
    let base = model(&folder, "llama", DType::Q8_0);
    let text = folder.join("text.txt");
    std::fs::write(&text, TEXT.repeat(60)).unwrap();
    let learn = |out: &str, limit: Option<u64>, more: &[&str]| {
        let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
        command.arg("finetune").args(more).args([
            text.to_str().unwrap(),
            "-m",
            base.to_str().unwrap(),
            "-o",
            folder.join(out).to_str().unwrap(),
            "--json",
        ]);
        command.args(["-n", "8", "-b", "16", "-c", "64", "--lr", "5e-3", "--targets", "all", "--dropout", "0.1"]);
        command.env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").env_remove("TL_MEM_LIMIT").stdin(Stdio::null());
        if let Some(bytes) = limit {
            command.env("TL_MEM_LIMIT", bytes.to_string());
        }
        let output = command.output().unwrap();
        let stderr = String::from_utf8_lossy(&output.stderr).into_owned();
        (output.status.code(), serde_json::from_slice::<Value>(&output.stdout).unwrap_or_default(), stderr)
    };
    let (code, whole, stderr) = learn("whole", None, &[]);
    assert_eq!(code, Some(0), "{stderr}");
    let peak = whole["peak_memory_bytes"].as_u64().unwrap();
    // Blocks that keep only their inputs draw the same dropout again.
    let (code, kept, stderr) = learn("kept", None, &["--checkpointing"]);
    let less = kept["peak_memory_bytes"].as_u64();
    assert!(code == Some(0) && less.is_some_and(|less| less < peak * 8 / 10), "{less:?} of {peak}\n{stderr}");
    assert!((kept["held_out_after"].as_f64().unwrap() - whole["held_out_after"].as_f64().unwrap()).abs() < 1e-3, "{whole} {kept}");
    let (code, parts, stderr) = learn("parts", Some(peak / 2), &[]);
    assert!(code == Some(0) && stderr.contains("batches are now computed in"), "{stderr}");
    // What the limit does not count is small.
    assert!(parts["peak_memory_bytes"].as_u64().unwrap() < peak * 6 / 10, "{parts} {peak}");
    // Dropout draws other elements for a part than for the whole.
    let after = |v: &Value| v["held_out_after"].as_f64().unwrap();
    assert!(
        (after(&whole) - after(&parts)).abs() < 0.1 && after(&parts) < 0.9 * parts["held_out_before"].as_f64().unwrap(),
        "{whole} {parts}"
    );
    let (code, _, stderr) = learn("none", Some(peak / 100), &[]);
    assert!(code == Some(1) && stderr.contains("TL_MEM_LIMIT") && !folder.join("none").exists(), "{stderr}");
    std::fs::remove_dir_all(folder).unwrap();
}

#[test]
fn finetune_says_what_is_wrong() {
    let folder = place("wrong");
    let base = model(&folder, "llama", DType::Q4_0);
    let base = base.to_str().unwrap();
    let file = |name: &str| folder.join(name).to_str().unwrap().to_string();
    let (text, out) = (file("text.txt"), file("out"));
    std::fs::write(&text, TEXT).unwrap();
    let with = |args: &[&str], code, err: &str| {
        let own = ["finetune", &text, "-m", base, "-o", &out, "-n", "1"];
        check(&[&own[..], args].concat(), code, "", err);
        assert!(!Path::new(&out).exists());
    };
    with(&["--targets", "nonsense"], 2, "expected all, q_proj");
    with(&["--rank", "0"], 2, "rank");
    check(&["quantize", base, "-t", "q9"], 2, "", "OUT");
    check(&["quantize", base, &file("q.gguf"), "-t", "q9"], 2, "", "expected one of f32");
    check(&["quantize", base, base], 2, "", "the model itself");
    let packed = file("packed.gguf");
    check(&["quantize", base, &packed, "-t", "q4_K"], 0, &packed, "rows that are not a multiple of 256, as q4_K requires: stored as");
    check(&["quantize", base, &packed], 2, "", "exists; --overwrite replaces it");
    check(&["quantize", base, &packed, "--overwrite"], 0, &packed, "bits each");
    let v = json(&["quantize", base, &packed, "--overwrite", "-t", "q8_0"]);
    assert_eq!((v["type"].as_str(), v["bytes"].as_u64()), (Some("q8_0"), Some(std::fs::metadata(&packed).unwrap().len())), "{v}");
    with(&["--lr", "0"], 2, "--lr");
    with(&["--lr", "-1"], 2, "--lr: -1 is not a learning rate above 0");
    with(&["--optimizer", "adagrad"], 2, "--optimizer: adagrad: expected adamw, adam, sgd, lion, muon");
    with(&["-c", "1"], 2, "2 tokens");
    with(&["--merge", &file("folder")], 2, "ends in .gguf");
    with(&["--adapter", "/nowhere"], 1, "/nowhere");
    check(&["finetune", "/nowhere.txt", "-m", base, "-o", &out], 1, "", "/nowhere.txt");
    check(&["finetune", &text, "-m", base, "-o", "/nowhere/out"], 1, "", "folder /nowhere does not exist");
    // A folder with other things in it is left alone.
    check(&["finetune", &text, "-m", base, "-o", folder.to_str().unwrap()], 1, "", "has no adapter_config.json");
    assert!(Path::new(&text).exists());
    let bad = file("bad.jsonl");
    for (line, err) in
        [("{", "line 1"), ("{\"a\": 1}", "expected \"text\""), ("{\"messages\": []}", "`messages` is empty"), ("", "no training examples")]
    {
        std::fs::write(&bad, line).unwrap();
        check(&["finetune", &bad, "-m", base, "-o", &out], 1, "", err);
    }
    check(&["merge", "-m", base, &file("m.gguf")], 2, "", "--adapter");
    // Weights are added up on the CPU in f32, wherever the model will run.
    check(&["merge", "-m", base, "--adapter", &out, "--device", "cpu", &file("m.gguf")], 2, "", "unexpected argument '--device'");
    std::fs::remove_dir_all(folder).unwrap();
}

#[cfg(unix)]
#[test]
fn ctrl_c_saves_what_was_learnt() {
    use std::io::{BufRead, BufReader};
    let folder = place("interrupt");
    let base = model(&folder, "llama", DType::Q4_0);
    let (text, out) = (folder.join("text.txt"), folder.join("out"));
    std::fs::write(&text, TEXT.repeat(40)).unwrap();
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args([
        "finetune",
        text.to_str().unwrap(),
        "-m",
        base.to_str().unwrap(),
        "-o",
        out.to_str().unwrap(),
        "-n",
        "100000",
        "-c",
        "16",
    ]);
    let mut child = command.env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1").stdout(Stdio::null()).stderr(Stdio::piped()).spawn().unwrap();
    // The second line comes when it begins to learn.
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    assert!(lines.by_ref().map_while(Result::ok).any(|l| l.contains("trainable parameters")));
    std::thread::sleep(std::time::Duration::from_millis(500));
    assert!(Command::new("kill").args(["-INT", &child.id().to_string()]).status().unwrap().success());
    let rest: Vec<String> = lines.map_while(Result::ok).collect();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest:?}");
    assert!(out.join("adapter_model.safetensors").exists() && rest.iter().any(|l| l.contains("steps, loss")), "{rest:?}");
    std::fs::remove_dir_all(folder).unwrap();
}
