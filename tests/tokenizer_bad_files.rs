//! Malformed `tokenizer.json` files: the right verdict, no panic, at most a second, and memory bounded by the file's size.
//! A process of its own: its allocator counts the bytes of every allocation.
#![cfg(feature = "text")]

mod text_support;

use std::alloc::{GlobalAlloc, Layout, System};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use tensorlogic::text::Tokenizer;
use text_support::vector;

/// Counts live bytes and their peak. One test in this file, so nothing else allocates meanwhile.
struct Counting;

static LIVE: AtomicUsize = AtomicUsize::new(0);
static PEAK: AtomicUsize = AtomicUsize::new(0);

// SAFETY: every call goes to the system's allocator unchanged.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        let live = LIVE.fetch_add(layout.size(), Ordering::Relaxed) + layout.size();
        PEAK.fetch_max(live, Ordering::Relaxed);
        // SAFETY: the caller's promises are the system allocator's.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        LIVE.fetch_sub(layout.size(), Ordering::Relaxed);
        // SAFETY: as above.
        unsafe { System.dealloc(pointer, layout) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

struct File<'a> {
    id: String,
    expect: String,
    bytes: &'a [u8],
}

/// The archive's entries: a line `id <tab> verdict <tab> length`, the bytes, a line end.
fn files(mut archive: &[u8]) -> Vec<File<'_>> {
    let mut files = Vec::new();
    while let Some(end) = archive.iter().position(|&b| b == b'\n') {
        let head = std::str::from_utf8(&archive[..end]).unwrap();
        let fields: Vec<&str> = head.split('\t').collect();
        let len: usize = fields[2].parse().unwrap();
        files.push(File { id: fields[0].into(), expect: fields[1].into(), bytes: &archive[end + 1..end + 1 + len] });
        archive = &archive[end + 2 + len..];
    }
    files
}

/// Files that the vectors leave out, each of which broke some reader.
fn more() -> Vec<(&'static str, String)> {
    let base = |normalizer: &str, pre: &str, post: &str, merges: &str, extra: &str| {
        format!(
            r#"{{"version":"1.0","added_tokens":[],"normalizer":{normalizer},"pre_tokenizer":{pre},"post_processor":{post},"decoder":null,
            "model":{{"type":"BPE","vocab":{{"a":0,"b":1,"ab":2,"é":3}},"merges":{merges}{extra}}}}}"#
        )
    };
    let double = r#"{"type":"Replace","pattern":{"String":"a"},"content":"aa"}"#;
    let doubles = format!(r#"{{"type":"Sequence","normalizers":[{}]}}"#, [double; 40].join(","));
    vec![
        ("growth", base(&doubles, "null", "null", "[]", "")),
        ("empty_replace", base(r#"{"type":"Replace","pattern":{"String":""},"content":"x"}"#, "null", "null", "[]", "")),
        (
            "template_without_its_token",
            base(
                "null",
                "null",
                r#"{"type":"TemplateProcessing","single":[{"SpecialToken":{"id":"X","type_id":0}},{"Sequence":{"id":"A","type_id":0}}],"pair":[],"special_tokens":{}}"#,
                "[]",
                "",
            ),
        ),
        (
            "template_of_the_second_text",
            base(
                "null",
                "null",
                r#"{"type":"TemplateProcessing","single":[{"Sequence":{"id":"B","type_id":0}}],"pair":[],"special_tokens":{}}"#,
                "[]",
                "",
            ),
        ),
        ("prefix_longer_than_token", base("null", "null", "null", r#"[["a","b"]]"#, r#","continuing_subword_prefix":"@@@@""#)),
        ("merge_of_three", base("null", "null", "null", r#"[["a","b","ab"]]"#, "")),
        (
            "regex_unclosed",
            base("null", r#"{"type":"Split","pattern":{"Regex":"("},"behavior":"Isolated","invert":false}"#, "null", "[]", ""),
        ),
        (
            "regex_deep",
            base(
                "null",
                &format!(
                    r#"{{"type":"Split","pattern":{{"Regex":"{}a{}"}},"behavior":"Isolated","invert":false}}"#,
                    "(".repeat(20_000),
                    ")".repeat(20_000)
                ),
                "null",
                "[]",
                "",
            ),
        ),
    ]
}

/// Loads and, if that works, encodes and decodes a few texts; both within the limits.
fn check(id: &str, bytes: &[u8], expect: &str) {
    let before = LIVE.load(Ordering::Relaxed);
    PEAK.store(before, Ordering::Relaxed);
    let start = Instant::now();
    let loaded = std::panic::catch_unwind(|| Tokenizer::from_json(bytes));
    let (time, memory) = (start.elapsed(), PEAK.load(Ordering::Relaxed) - before);
    let loaded = loaded.unwrap_or_else(|_| panic!("{id}: panicked"));
    assert!(time < Duration::from_secs(1), "{id}: {time:?}");
    assert!(memory <= (16 << 20) + 4 * bytes.len(), "{id}: {memory} bytes for a file of {}", bytes.len());
    match (expect, &loaded) {
        ("accept", Err(e)) => panic!("{id}: rejected: {e}"),
        ("reject", Ok(_)) => panic!("{id}: accepted"),
        _ => {}
    }
    if let Ok(tokenizer) = loaded {
        let start = Instant::now();
        for text in ["", "a", "hello world", " é日本 \u{0} <s></s> 123\n\n", &"a b".repeat(2000), &"a".repeat(3000)] {
            let ids = std::panic::catch_unwind(|| tokenizer.encode(text, true)).unwrap_or_else(|_| panic!("{id}: encoding panicked"));
            if let Ok(ids) = ids {
                std::panic::catch_unwind(|| tokenizer.decode(&ids, false).unwrap()).unwrap_or_else(|_| panic!("{id}: decoding panicked"));
            }
        }
        assert!(start.elapsed() < Duration::from_secs(1), "{id}: encoding took {:?}", start.elapsed());
    }
}

#[test]
fn malformed_files_are_refused_or_harmless() {
    let archive = vector("tokenizer/bad_files");
    let files = files(&archive);
    assert_eq!(files.len(), 174);
    for file in &files {
        check(&file.id, file.bytes, &file.expect);
    }
    for (id, text) in more() {
        check(id, text.as_bytes(), "reject");
    }
    let good = files.iter().find(|f| f.id.ends_with("merges_dup")).unwrap().bytes;
    // One letter of a well-formed file at a time: the file ends there, or the letter is another.
    for at in (0..good.len()).step_by(13) {
        check(&format!("cut at {at}"), &good[..at], "reject");
        let mut changed = good.to_vec();
        changed[at] ^= 1;
        check(&format!("changed at {at}"), &changed, "either");
    }
}
