//! Sampling by the model's files, thoughts and calls of tools, with a tiny model whose every token decides the next.

use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::OnceLock;
use tensorlogic::DType;
use tensorlogic::io::GgufWriter;

const DIM: usize = 256;
const CALL: &str = "{\"name\": \"weather\", \"arguments\": {\"city\": \"Oslo\"}}";
/// Tokens behind the bytes: text, whether it is a control token, and the token that follows.
const TOKENS: [(&str, bool, &str); 10] = [
    ("<|end|>", true, "<|end|>"),
    ("<|user|>", true, "<|end|>"),
    ("<|think|>", true, "<think>"),
    ("<|tool|>", true, "<tool_call>"),
    ("<think>", true, "h"),
    ("</think>", true, "Y"),
    ("<tool_call>", false, CALL),
    (CALL, false, "</tool_call>"),
    ("</tool_call>", false, "<|end|>"),
    ("<|stop|>", true, "<|end|>"),
];
/// What follows bytes.
const BYTES: [(u8, &str); 5] = [(b'h', "m"), (b'm', "</think>"), (b'Y', "<|end|>"), (b's', "u"), (b'u', "<|stop|>")];

/// A Llama whose one layer adds nothing: the next token depends on the last one alone. A question that ends in `?` is thought about, one that ends in
/// `!` asks for the tool, and the result of a tool is answered as well.
fn model(name: &str, change: impl FnOnce(&mut GgufWriter)) -> PathBuf {
    let mut w = GgufWriter::new();
    w.set("general.architecture", "llama");
    for (key, v) in [("block_count", 1), ("embedding_length", DIM as u32), ("feed_forward_length", 32), ("context_length", 1024)] {
        w.set(&format!("llama.{key}"), v);
    }
    w.set("llama.attention.head_count", 4u32).set("llama.attention.head_count_kv", 1u32);
    let hidden = |b: u8| !matches!(b, b'!'..=b'~' | 0xA1..=0xAC | 0xAE..=0xFF);
    let letter = |b: u8| if hidden(b) { char::from_u32(256 + (0..b).filter(|&b| hidden(b)).count() as u32).unwrap() } else { b as char };
    let mut tokens: Vec<String> = (0..=255).map(|b| letter(b).to_string()).collect();
    tokens.extend(TOKENS.iter().map(|t| t.0.to_string()));
    let types: Vec<i32> = (0..256).map(|_| 1).chain(TOKENS.iter().map(|t| if t.1 { 3 } else { 4 })).collect();
    let id = |text: &str| tokens.iter().position(|t| t == text).unwrap();
    let pairs: Vec<(usize, usize)> =
        BYTES.iter().map(|(b, next)| (*b as usize, id(next))).chain(TOKENS.iter().map(|(t, _, next)| (id(t), id(next)))).collect();
    let rows = tokens.len();
    w.set("tokenizer.ggml.model", "gpt2").set("tokenizer.ggml.pre", "gpt-2").set("tokenizer.ggml.tokens", tokens.clone());
    w.set("tokenizer.ggml.token_type", types).set("tokenizer.ggml.merges", Vec::<String>::new());
    w.set("tokenizer.ggml.eos_token_id", id("<|end|>") as u32).set("tokenizer.ggml.add_bos_token", false);
    let template = "{% if tools %}{{ tools | length }}{% endif %}{% for m in messages %}{{ m.role }}{{ m.content }}{% for c in m.tool_calls %}\
        {{ c.function.name }}{% endfor %}{% if not loop.last %}<|end|>{% endif %}{% endfor %}{% if messages[-1].content.endswith('!') %}<|tool|>\
        {% elif enable_thinking is defined and not enable_thinking %}Y{% else %}<|think|>{% endif %}";
    w.set("tokenizer.chat_template", template);
    let mut state = 1u32;
    let mut sign = || {
        state ^= state << 13;
        state ^= state >> 17;
        state ^= state << 5;
        if state & 64 == 0 { 1f32 } else { -1.0 }
    };
    let embedding: Vec<f32> = (0..rows * DIM).map(|_| sign()).collect();
    let mut output = vec![0f32; rows * DIM];
    for (token, next) in pairs {
        (0..DIM).for_each(|i| output[next * DIM + i] += embedding[token * DIM + i]);
    }
    let mut tensor = |name: &str, shape: &[usize], values: Vec<f32>| {
        let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
        w.tensor(&format!("{name}.weight"), DType::F32, shape, bytes).unwrap();
    };
    tensor("token_embd", &[rows, DIM], embedding);
    tensor("output", &[rows, DIM], output);
    for name in ["output_norm", "blk.0.attn_norm", "blk.0.ffn_norm"] {
        tensor(name, &[DIM], vec![1.0; DIM]);
    }
    let shapes = [("attn_q", DIM, DIM), ("attn_k", 64, DIM), ("attn_v", 64, DIM), ("attn_output", DIM, DIM)];
    for (name, rows, columns) in shapes.into_iter().chain([("ffn_gate", 32, DIM), ("ffn_up", 32, DIM), ("ffn_down", DIM, 32)]) {
        tensor(&format!("blk.0.{name}"), &[rows, columns], vec![0.0; rows * columns]);
    }
    change(&mut w);
    let path = std::env::temp_dir().join(format!("tl-chat-{}-{name}.gguf", std::process::id()));
    w.write(&path).unwrap();
    path
}

fn plain() -> &'static Path {
    static FILE: OnceLock<PathBuf> = OnceLock::new();
    FILE.get_or_init(|| model("plain", |_| {}))
}

/// Runs `tl` and gives both streams.
#[track_caller]
fn tl(model: &Path, args: &[&str], stdin: &str, code: i32) -> (String, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_tl"));
    command.args(args).args(["-m", model.to_str().unwrap()]).env("TL_DEVICE", "cpu").env("TL_OFFLINE", "1");
    let mut child = command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    child.stdin.take().unwrap().write_all(stdin.as_bytes()).unwrap();
    let output = child.wait_with_output().unwrap();
    let (out, err) = (String::from_utf8(output.stdout).unwrap(), String::from_utf8(output.stderr).unwrap());
    assert_eq!(output.status.code(), Some(code), "{args:?}: {out}\n{err}");
    assert!(!err.contains("panicked"), "{err}");
    (out, err)
}

fn tools() -> PathBuf {
    let path = std::env::temp_dir().join(format!("tl-chat-{}-tools.json", std::process::id()));
    let function =
        serde_json::json!({ "name": "weather", "parameters": { "type": "object", "properties": { "city": { "type": "string" } } } });
    std::fs::write(&path, serde_json::json!([{ "type": "function", "function": function }]).to_string()).unwrap();
    path
}

#[test]
fn thoughts_are_shown_apart() {
    let (out, err) = tl(plain(), &["chat"], "Why?\n", 0);
    assert_eq!(out, "Y\n");
    assert!(err.contains("[thinking] hm\n"), "{err:?}");
    let (out, err) = tl(plain(), &["chat", "-q"], "Why?\n", 0);
    assert_eq!((out.as_str(), err.as_str()), ("Y\n", ""));
    let (out, _) = tl(plain(), &["chat", "--json"], "Why?\nWhy?\n", 0);
    let answers: Vec<serde_json::Value> = out.lines().map(|l| serde_json::from_str(l).unwrap()).collect();
    assert_eq!(answers.len(), 2);
    for a in answers {
        assert_eq!((&a["text"], &a["thinking"], &a["end"]), (&"Y".into(), &"hm".into(), &"end".into()));
    }
    let (out, err) = tl(plain(), &["generate", "Why?"], "", 0);
    assert!(out == "Y\n" && err.contains("[thinking] hm\n"), "{out:?} {err:?}");
    // Raw text has no parts; its control tokens are hidden.
    let (out, _) = tl(plain(), &["generate", "--raw", "h"], "", 0);
    assert_eq!(out, "mY\n");
    let (out, err) = tl(plain(), &["generate", "--thinking", "off", "Why?"], "", 0);
    assert!(out.trim().is_empty() && !err.contains("[thinking]"), "{out:?} {err:?}");
}

#[test]
fn a_call_of_a_tool_is_shown_and_answered() {
    let tools = tools();
    let tools = tools.to_str().unwrap();
    let (out, err) = tl(plain(), &["chat", "--tools", tools], "Oslo!\n/tool rain\n/tool again\n", 0);
    assert_eq!(out, "[tool call] weather {\"city\":\"Oslo\"}\nY\n");
    assert!(err.contains("no result is due"), "{err}");
    let (out, _) = tl(plain(), &["generate", "--json", "--tools", tools, "Oslo!"], "", 0);
    let answer: serde_json::Value = serde_json::from_str(&out).unwrap();
    assert_eq!(answer["tool_calls"], serde_json::json!([{ "name": "weather", "arguments": { "city": "Oslo" } }]));
    assert_eq!(answer["text"], "");
    // A file that is no list of functions, and a template without tools.
    let (_, err) = tl(plain(), &["generate", "--tools", "/dev/null", "x"], "", 1);
    assert!(err.contains("/dev/null"), "{err}");
    let bare = model("bare", |w| {
        w.set("tokenizer.chat_template", "{{ messages[0].content }}");
    });
    let (_, err) = tl(&bare, &["generate", "--tools", tools, "x"], "", 2);
    assert!(err.contains("does not take tools"), "{err}");
    let (_, err) = tl(&bare, &["chat", "--thinking", "on"], "", 2);
    assert!(err.contains("no such switch"), "{err}");
    std::fs::remove_file(bare).unwrap();
}

#[test]
fn the_files_defaults_of_sampling_are_honoured() {
    let warm = model("warm", |w| {
        w.set("general.sampling.temp", 0.01f32).set("general.sampling.top_k", 3i32).set("general.sampling.penalty_repeat", 1.05f32);
        w.set("general.sampling.mirostat", 2i32);
    });
    let (out, err) = tl(&warm, &["generate", "--raw", "--stats", "h"], "", 0);
    assert_eq!(out, "mY\n");
    assert!(err.contains("the GGUF file: --temp 0.01 --top-k 3 --repeat-penalty 1.05"), "{err}");
    assert!(err.contains("not applied: `general.sampling.mirostat` is 2") && err.contains("sampled on the host"), "{err}");
    let (_, err) = tl(&warm, &["generate", "--raw", "--temp", "0", "--repeat-penalty", "1", "--stats", "h"], "", 0);
    assert!(!err.contains("--temp 0.01") && !err.contains("--top-k 3") && err.contains("sampled on the device"), "{err}");
    let wrong = model("wrong", |w| {
        w.set("general.sampling.top_p", 1.5f32);
    });
    let (_, err) = tl(&wrong, &["generate", "--raw", "h"], "", 1);
    assert!(err.contains("general.sampling") && err.contains("top-p is 1.5"), "{err}");
    for path in [warm, wrong] {
        std::fs::remove_file(path).unwrap();
    }
}

/// The tokens that end an answer, all of a list: a copy of a folder of the tests with a `generation_config.json` of its own.
#[test]
fn every_end_token_of_a_list_ends_an_answer() {
    let from = Path::new(env!("CARGO_MANIFEST_DIR")).join("../tests/vectors/models/gpt2-odd");
    let to = std::env::temp_dir().join(format!("tl-chat-{}-folder", std::process::id()));
    std::fs::create_dir_all(&to).unwrap();
    for name in ["config.json", "model.safetensors"] {
        std::fs::copy(from.join(name), to.join(name)).unwrap();
    }
    let config: serde_json::Value = serde_json::from_slice(&std::fs::read(from.join("config.json")).unwrap()).unwrap();
    let name = |id: u64| if id < 3 { ["!", "\"", "#"][id as usize].to_string() } else { format!("<{id}>") };
    let vocab: serde_json::Map<String, serde_json::Value> =
        (0..config["vocab_size"].as_u64().unwrap()).map(|id| (name(id), id.into())).collect();
    let json = serde_json::json!({ "version": "1.0", "decoder": { "type": "ByteLevel" }, "model": { "type": "BPE", "vocab": vocab, "merges": [] } });
    std::fs::write(to.join("tokenizer.json"), json.to_string()).unwrap();
    let set = |config: serde_json::Value| std::fs::write(to.join("generation_config.json"), config.to_string()).unwrap();
    let run = || {
        let (out, _) = tl(&to, &["generate", "--raw", "--json", "-n", "6", "!\"#"], "", 0);
        serde_json::from_str::<serde_json::Value>(&out).unwrap()
    };
    set(serde_json::json!({}));
    let all = run();
    let ids: Vec<u64> = all["text"].as_str().unwrap().split(['<', '>']).filter_map(|n| n.parse().ok()).collect();
    assert_eq!((all["end"].as_str(), ids.len()), (Some("length"), 6), "{all}");
    let before = ids.iter().position(|id| *id == ids[3]).unwrap();
    set(serde_json::json!({ "eos_token_id": [0, ids[3]] }));
    let ended = run();
    // The end token is generated and not shown.
    assert_eq!((ended["end"].as_str(), ended["generated_tokens"].as_u64()), (Some("end"), Some(before as u64 + 1)), "{ended}");
    assert_eq!(ended["text"].as_str().unwrap().matches('<').count(), before, "{ended}");
    set(serde_json::json!({ "do_sample": "yes" }));
    let (_, err) = tl(&to, &["generate", "--raw", "!"], "", 1);
    assert!(err.contains("`do_sample` is") && err.contains("not true or false"), "{err}");
    std::fs::remove_dir_all(&to).unwrap();
}
