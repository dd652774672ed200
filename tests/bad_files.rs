//! Malformed model files: the right verdict, no panic, at most 1 s and 16 MiB + 4 × the file's size of memory each.

use proptest::prelude::*;
use safetensors::SafeTensors as Reference;
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::time::Duration;
use tensorlogic::TensorResult;
use tensorlogic::io::{Gguf, SafeTensors};

/// `FORMAT/CASE/VERDICT` → the file's bytes. The verdict is what the format's specification says, `either` where it leaves that open.
static VECTORS: &[u8] = include_bytes!("vectors/bad_files.safetensors");
static SMALL_GGUF: &[u8] = include_bytes!("vectors/small.gguf");

/// Counts what each thread holds, to see the most that a load took.
struct Counting;
thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static PEAK: Cell<isize> = const { Cell::new(0) };
}
fn count(bytes: isize) {
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = PEAK.try_with(|peak| peak.set(peak.get().max(held.get())));
    });
}
// SAFETY: every call goes to the system's allocator unchanged; the counters are plain cells that allocate nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: the caller's promise about `layout` is passed on.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: `at` came from `alloc` above with this layout.
        unsafe { System.dealloc(at, layout) }
    }
}
#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// A file in a folder of its own, removed with it.
struct Folder(PathBuf);
impl Folder {
    fn new(name: &str) -> Folder {
        let path = std::env::temp_dir().join(format!("tensorlogic-bad-files-{}-{name}", std::process::id()));
        std::fs::create_dir_all(&path).unwrap();
        Folder(path)
    }
    fn file(&self, name: &str, bytes: &[u8]) -> PathBuf {
        let path = self.0.join(name);
        std::fs::write(&path, bytes).unwrap();
        path
    }
}
impl Drop for Folder {
    fn drop(&mut self) {
        let _ = std::fs::remove_dir_all(&self.0);
    }
}

/// Opens a GGUF file and uses everything it says, so that a lie that opening did not notice is met too.
fn use_gguf(path: &Path) -> TensorResult<()> {
    let file = Gguf::open(path)?;
    for (key, value) in file.metadata().take(1000) {
        let _ = (value.u64(), value.i64(), value.f64(), value.bool(), value.str(), value.array().map(|a| a.len()));
        let _ = (value.strs().map(|v| v.len()), value.i32s().map(|v| v.len()), value.f32s().map(|v| v.len()));
        assert!(file.get(key).is_some() && !format!("{value}").is_empty());
    }
    for info in file.tensors() {
        let bytes = file.bytes_of(info);
        assert_eq!(bytes.len(), info.range.len());
        let _ = (bytes.first(), bytes.last());
        match file.tensor(&info.name) {
            Ok(info) => assert_eq!(info.dtype().unwrap().bytes(info.count()), Some(bytes.len())),
            Err(e) => assert!(e.to_string().contains(info.type_name()), "{e}"),
        }
    }
    let _ = file.str("general.architecturE");
    file.data().check()
}

/// The same for safetensors.
fn use_safetensors(path: &Path) -> TensorResult<()> {
    let file = SafeTensors::open(path)?;
    for info in file.tensors() {
        let bytes = file.bytes_of(info);
        assert_eq!(bytes.len(), info.range.len());
        let _ = (bytes.first(), bytes.last());
        if let Ok(info) = file.tensor(&info.name) {
            assert_eq!(info.dtype().unwrap().bytes(info.count()), Some(bytes.len()));
        }
        file.data_of(info).unwrap().check()?;
    }
    Ok(())
}

/// The time this thread has worked, which other programs on the machine do not lengthen.
#[cfg(target_os = "linux")]
fn busy() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: `time` is a valid place for the answer.
    assert_eq!(unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) }, 0);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}
#[cfg(not(target_os = "linux"))]
fn busy() -> Duration {
    static START: std::sync::LazyLock<std::time::Instant> = std::sync::LazyLock::new(std::time::Instant::now);
    START.elapsed()
}

/// Opens `bytes` as a file of this format; says what is wrong with how that went.
fn judge(folder: &Folder, format: &str, bytes: &[u8], verdict: &str) -> Result<(), String> {
    let (name, open): (&str, fn(&Path) -> TensorResult<()>) = match format {
        "gguf" => ("model.gguf", use_gguf),
        "safetensors" => ("model.safetensors", use_safetensors),
        "index.json" => ("model.safetensors.index.json", use_safetensors),
        other => return Err(format!("unknown format {other}")),
    };
    let path = folder.file(name, bytes);
    let start = busy();
    let before = HELD.get();
    PEAK.set(before);
    let result = catch_unwind(AssertUnwindSafe(|| open(&path))).map_err(|_| "panicked".to_string())?;
    let (taken, peak) = (busy() - start, PEAK.get() - before);
    let limit = (16 << 20) + 4 * bytes.len() as isize;
    match (&result, verdict) {
        _ if taken > Duration::from_secs(1) => Err(format!("took {taken:?}")),
        _ if peak > limit => Err(format!("took {peak} bytes of at most {limit}")),
        (Ok(()), "reject") => Err("accepted".into()),
        (Err(e), "accept") => Err(format!("refused: {e}")),
        (Err(e), _) if e.to_string().len() > 2000 => Err(format!("a message of {} bytes", e.to_string().len())),
        _ => Ok(()),
    }
}

#[test]
fn verdicts() {
    let folder = Folder::new("verdicts");
    let vectors = Reference::deserialize(VECTORS).unwrap();
    let mut names = vectors.names();
    names.sort_unstable();
    let wrong: Vec<String> = names
        .iter()
        .filter_map(|name| {
            let part: Vec<&str> = name.split('/').collect();
            let bytes = vectors.tensor(name).unwrap();
            judge(&folder, part[0], bytes.data(), part[2]).err().map(|e| format!("{name}: {e}"))
        })
        .collect();
    assert!(wrong.is_empty(), "{} of {}:\n{}", wrong.len(), names.len(), wrong.join("\n"));
    assert!(names.len() > 900);
}

/// A GGUF header with these counts; what follows is up to the caller.
fn gguf(tensors: u64, keys: u64) -> Vec<u8> {
    [b"GGUF".as_slice(), &3u32.to_le_bytes(), &tensors.to_le_bytes(), &keys.to_le_bytes()].concat()
}
fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u64).to_le_bytes(), text].concat()
}
/// A key of this type code and encoded value.
fn key(name: &[u8], code: u32, value: &[u8]) -> Vec<u8> {
    [&string(name), code.to_le_bytes().as_slice(), value].concat()
}
/// A one-dimensional tensor entry.
fn tensor(name: &[u8], code: u32, size: u64, offset: u64) -> Vec<u8> {
    [&string(name), 1u32.to_le_bytes().as_slice(), &size.to_le_bytes(), &code.to_le_bytes(), &offset.to_le_bytes()].concat()
}
fn padded(parts: &[&[u8]], data: usize) -> Vec<u8> {
    let mut file = parts.concat();
    file.resize(file.len().next_multiple_of(32) + data, 0);
    file
}
fn header(json: &str, data: usize) -> Vec<u8> {
    let mut file = [&(json.len() as u64).to_le_bytes(), json.as_bytes()].concat();
    file.resize(file.len() + data, 0);
    file
}

/// Cases that are large or beside the set above.
#[test]
fn large_and_odd_files() {
    let folder = Folder::new("odd");
    let nested = |depth: usize| {
        let level = [9u32.to_le_bytes().as_slice(), &1u64.to_le_bytes()].concat();
        let inner = [4u32.to_le_bytes().as_slice(), &0u64.to_le_bytes()].concat();
        padded(&[&gguf(0, 1), &key(b"a", 9, &[level.repeat(depth), inner].concat())], 0)
    };
    let long = vec![b'n'; 1_000_000];
    let many_tensors: Vec<u8> = (0..300_000u64).flat_map(|i| tensor(format!("{i:x}").as_bytes(), 24, 0, 0)).collect();
    let many_keys: Vec<u8> = (0..700_000u32).flat_map(|i| key(format!("{i:x}").as_bytes(), 0, &[1])).collect();
    let one = r#"{"dtype":"U8","shape":[1],"data_offsets":[0,1]}"#;
    let many: String = (0..100_000).map(|i| format!(r#","{i:x}":{{"dtype":"U8","shape":[0],"data_offsets":[1,1]}}"#)).collect();
    let dims = "1,".repeat(2_000_000);
    let strings: String = (0..60_000).map(|i| format!(r#""{i:x}":"","#)).collect();
    let shards: String = (0..200_000).map(|i| format!(r#""{i:x}":"{i:x}.safetensors","#)).collect();
    let cases: Vec<(&str, &str, Vec<u8>, &str)> = vec![
        ("gguf", "arrays nested 2 deep", nested(2), "accept"),
        ("gguf", "arrays nested 100,000 deep", nested(100_000), "reject"),
        ("gguf", "a tensor name of 1 MB", padded(&[&gguf(1, 0), &tensor(&long, 0, 4, 0)], 32), "either"),
        ("gguf", "a key of 1 MB", padded(&[&gguf(0, 1), &key(&long, 0, &[1])], 0), "reject"),
        ("gguf", "an empty key", padded(&[&gguf(0, 1), &key(b"", 0, &[1])], 0), "reject"),
        ("gguf", "a key twice", padded(&[&gguf(0, 2), &key(b"a", 0, &[1]), &key(b"a", 0, &[1])], 0), "reject"),
        ("gguf", "an alignment of 0", padded(&[&gguf(0, 1), &key(b"general.alignment", 4, &[0; 4])], 0), "reject"),
        ("gguf", "300,000 tensors", padded(&[&gguf(300_000, 0), &many_tensors], 0), "accept"),
        ("gguf", "300,000 tensors, 300,001 promised", padded(&[&gguf(300_001, 0), &many_tensors], 0), "reject"),
        ("gguf", "700,000 keys", padded(&[&gguf(0, 700_000), &many_keys], 0), "accept"),
        ("gguf", "as many tensors as keys have room", padded(&[&gguf(400_000, 700_000), &many_keys], 0), "reject"),
        ("gguf", "a removed type", padded(&[&gguf(1, 0), &tensor(b"a", 4, 32, 0)], 64), "reject"),
        ("gguf", "a type that is not supported", padded(&[&gguf(1, 0), &tensor(b"a", 20, 32, 0)], 18), "accept"),
        ("gguf", "no padding after the last tensor", padded(&[&gguf(1, 0), &tensor(b"a", 0, 1, 0)], 4), "accept"),
        ("gguf", "one byte too few", padded(&[&gguf(1, 0), &tensor(b"a", 0, 1, 0)], 3), "reject"),
        ("safetensors", "arrays nested 200,000 deep", header(&"[".repeat(200_000), 0), "reject"),
        ("safetensors", "nested in an unknown field", header(&format!(r#"{{"a":{{"x":{}"#, "[".repeat(200_000)), 0), "reject"),
        ("safetensors", "objects nested 50,000 deep", header(&r#"{"a":"#.repeat(50_000), 0), "reject"),
        ("safetensors", "one tensor", header(&format!(r#"{{"a":{one}}}"#), 1), "accept"),
        ("safetensors", "a name twice", header(&format!(r#"{{"a":{one},"a":{one}}}"#), 1), "reject"),
        ("safetensors", "a name twice, once escaped", header(&format!(r#"{{"a":{one},"\u0061":{one}}}"#), 1), "reject"),
        ("safetensors", "an empty tensor's name twice", header(&r#"{"a":E,"a":E}"#.replace('E', &one.replace('1', "0")), 0), "reject"),
        ("safetensors", "a field twice", header(r#"{"a":{"dtype":"U8","dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1), "reject"),
        ("safetensors", "metadata twice", header(r#"{"__metadata__":{},"__metadata__":{}}"#, 0), "reject"),
        ("safetensors", "a metadata key twice", header(r#"{"__metadata__":{"a":"1","a":"1"}}"#, 0), "reject"),
        ("safetensors", "an entry as an array", header(r#"{"a":["U8",[1],[0,1]]}"#, 1), "reject"),
        ("safetensors", "spaces before the object", header(&format!(r#"  {{"a":{one}}}"#), 1), "reject"),
        ("safetensors", "100,001 tensors", header(&format!(r#"{{"a_":{one}{many}}}"#), 1), "accept"),
        (
            "safetensors",
            "2,000,000 dimensions",
            header(&format!(r#"{{"a":{{"dtype":"U8","shape":[{dims}1],"data_offsets":[0,1]}}}}"#), 1),
            "either",
        ),
        ("safetensors", "60,000 metadata strings", header(&format!(r#"{{"__metadata__":{{{strings}"a_":""}}}}"#), 0), "accept"),
        ("index.json", "200,000 shards", format!(r#"{{"weight_map":{{{shards}"a_":"a"}}}}"#).into_bytes(), "reject"),
    ];
    for (format, what, bytes, verdict) in cases {
        if let Err(e) = judge(&folder, format, &bytes, verdict) {
            panic!("{format}, {what}: {e}");
        }
    }
}

/// Shards are plain file names beside the index; here every target exists, so only the name can be what is refused.
#[test]
fn an_index_leads_nowhere_else() {
    let folder = Folder::new("index");
    std::fs::create_dir_all(folder.0.join("inner")).unwrap();
    let one = header(r#"{"a":{"dtype":"U8","shape":[1],"data_offsets":[0,1]}}"#, 1);
    let target = folder.file("target.safetensors", &one);
    folder.file("target.bin", &one);
    let inner = Folder(folder.0.join("inner"));
    inner.file("ok.safetensors", &one);
    std::fs::create_dir_all(inner.0.join("folder.safetensors")).unwrap();
    let absolute = target.to_str().unwrap().replace('\\', "/");
    let cases = [
        ("ok.safetensors", "accept"),
        ("../target.safetensors", "reject"),
        ("..\\target.safetensors", "reject"),
        ("./ok.safetensors", "reject"),
        (&absolute, "reject"),
        ("file:ok.safetensors", "reject"),
        ("../target.bin", "reject"),
        ("folder.safetensors", "reject"),
        ("missing.safetensors", "reject"),
        ("", "reject"),
        (".", "reject"),
        ("ok.safetensors\\u0000", "reject"),
    ];
    for (name, verdict) in cases {
        let index = format!(r#"{{"metadata":{{"total_size":1}},"weight_map":{{"a":"{}"}}}}"#, name.replace("..\\", "..\\\\"));
        if let Err(e) = judge(&inner, "index.json", index.as_bytes(), verdict) {
            panic!("{name}: {e}");
        }
    }
    for (index, why) in [
        (r#"{"weight_map":{"b":"ok.safetensors"}}"#, "a tensor that the shard lacks"),
        (r#"{"weight_map":{"a":"ok.safetensors","a":"ok.safetensors"}}"#, "a tensor twice"),
        (r#"{"weight_map":{"a":"ok.safetensors"},"weight_map":{"a":"ok.safetensors"}}"#, "two maps"),
        (r#"{"weight_map":["ok.safetensors"]}"#, "a list"),
        (r#"{}"#, "no map"),
        ("", "nothing"),
    ] {
        assert_eq!(judge(&inner, "index.json", index.as_bytes(), "reject"), Ok(()), "{why}");
    }
}

/// What is not a file is refused without waiting for it.
#[cfg(unix)]
#[test]
fn not_regular_files() {
    let folder = Folder::new("kinds");
    let pipe = folder.0.join("pipe.gguf");
    let name = std::ffi::CString::new(pipe.to_str().unwrap()).unwrap();
    // SAFETY: `name` is a C string that lives through the call.
    assert_eq!(unsafe { libc::mkfifo(name.as_ptr(), 0o600) }, 0);
    let link = folder.0.join("loop.gguf");
    std::os::unix::fs::symlink(&link, &link).unwrap();
    for path in [pipe.as_path(), &link, &folder.0, Path::new("/dev/zero"), &folder.0.join("missing")] {
        assert!(Gguf::open(path).is_err() && SafeTensors::open(path).is_err(), "{}", path.display());
    }
}

/// A small valid safetensors file of several types.
fn small_safetensors() -> Vec<u8> {
    use safetensors::tensor::{Dtype, TensorView};
    let data: Vec<u8> = (0..96).collect();
    let view = |dtype, shape: &[usize], len: usize| TensorView::new(dtype, shape.to_vec(), &data[..len]).unwrap();
    let views = [
        ("a.weight", view(Dtype::F32, &[2, 3, 4], 96)),
        ("b", view(Dtype::F16, &[5], 10)),
        ("c", view(Dtype::BOOL, &[], 1)),
        ("d", view(Dtype::I64, &[0, 7], 0)),
    ];
    safetensors::serialize(views, Some([("format".to_string(), "pt".to_string())].into())).unwrap()
}

/// One change to a file.
#[derive(Debug, Clone)]
enum Change {
    Byte(usize, u8),
    Word(usize, u64),
    Cut(usize),
    Remove(usize, usize),
    Repeat(usize, usize),
}

fn change() -> impl Strategy<Value = Change> {
    let edge =
        prop_oneof![Just(0u64), Just(1), Just(u64::MAX), Just(u64::MAX - 31), Just(1 << 63), Just(1 << 62), Just(1 << 32), any::<u64>()];
    prop_oneof![
        4 => (any::<usize>(), any::<u8>()).prop_map(|(at, to)| Change::Byte(at, to)),
        3 => (any::<usize>(), edge).prop_map(|(at, to)| Change::Word(at, to)),
        1 => any::<usize>().prop_map(Change::Cut),
        1 => (any::<usize>(), 1usize..40).prop_map(|(at, n)| Change::Remove(at, n)),
        1 => (any::<usize>(), 1usize..40).prop_map(|(at, n)| Change::Repeat(at, n)),
    ]
}

fn apply(file: &mut Vec<u8>, change: &Change) {
    let len = file.len().max(1);
    let span = |at: usize, n: usize| (at % len)..(at % len + n).min(file.len());
    match *change {
        _ if file.is_empty() => {}
        Change::Byte(at, to) => file[at % len] = to,
        Change::Word(at, to) => {
            let span = span(at, 8);
            let bytes = to.to_le_bytes();
            let count = span.len();
            file[span].copy_from_slice(&bytes[..count]);
        }
        Change::Cut(at) => file.truncate(at % len),
        Change::Remove(at, n) => drop(file.drain(span(at, n))),
        Change::Repeat(at, n) => {
            let span = span(at, n);
            let piece = file[span.clone()].to_vec();
            file.splice(span.end..span.end, piece);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 4000, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn changed_gguf(changes in proptest::collection::vec(change(), 1..5)) {
        let mut file = SMALL_GGUF.to_vec();
        changes.iter().for_each(|c| apply(&mut file, c));
        let folder = Folder::new("changed-gguf");
        prop_assert_eq!(judge(&folder, "gguf", &file, "either"), Ok(()));
    }

    /// Whatever this reader accepts, the format's own reader accepts too.
    #[test]
    fn changed_safetensors(changes in proptest::collection::vec(change(), 1..5)) {
        let mut file = small_safetensors();
        changes.iter().for_each(|c| apply(&mut file, c));
        let folder = Folder::new("changed-safetensors");
        let verdict = if Reference::deserialize(&file).is_err() { "reject" } else { "either" };
        prop_assert_eq!(judge(&folder, "safetensors", &file, verdict), Ok(()));
    }
}
