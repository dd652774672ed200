//! Datasets, loaders and token files: every order against plain loops, places that are continued from, memory that is used again.

mod common;

use common::devices;
use std::path::PathBuf;
use tensorlogic::data::{DataLoader, Dataset, Field, Images, LoaderOptions, Order, Part, TokenFile, TokenWindows};
use tensorlogic::{DType, Device, TensorError, TensorResult};

fn file(name: &str, bytes: &[u8]) -> PathBuf {
    let path = std::env::temp_dir().join(format!("tl-data-{}-{name}", std::process::id()));
    std::fs::write(&path, bytes).unwrap();
    path
}

fn images(n: usize) -> Images {
    Images::new((0..n * 6).map(|v| v as f32).collect(), [1, 2, 3], (0..n as i32).collect()).unwrap()
}

fn classes(loader: &mut DataLoader, batches: usize) -> Vec<i32> {
    let mut out = Vec::new();
    for _ in 0..batches {
        let b = loader.next_batch().unwrap();
        let (x, y) = (b[0].to_vec().unwrap(), b[1].to_vec_of::<i32>().unwrap());
        // Pixels and class belong together.
        for (row, &class) in y.iter().enumerate() {
            assert_eq!(x[row * 6..][..6], std::array::from_fn::<f32, 6, _>(|i| (class as usize * 6 + i) as f32));
        }
        out.extend(y);
    }
    out
}

/// The same batches with and without a thread, on every device; the given number of distinct examples in the given number of batches.
#[track_caller]
fn check(n: usize, options: LoaderOptions, batches: usize, seen: usize) -> Vec<i32> {
    let mut first = None;
    for device in devices() {
        for prefetch in [0, 1, 3] {
            let mut loader = DataLoader::new(images(n), LoaderOptions { prefetch, ..options }, &device).unwrap();
            let got = classes(&mut loader, batches);
            let mut sorted = got.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), seen, "{options:?}");
            assert_eq!(*first.get_or_insert(got.clone()), got, "{options:?} with {prefetch} ahead on {}", device.name());
            // From every place the rest is the same.
            for stop in 0..batches {
                let mut a = DataLoader::new(images(n), LoaderOptions { prefetch, ..options }, &device).unwrap();
                classes(&mut a, stop);
                let mut b = DataLoader::new(images(n), LoaderOptions { seed: 99, ..options }, &device).unwrap();
                classes(&mut b, 1);
                b.load_state(a.state()).unwrap();
                assert_eq!(classes(&mut b, batches - stop), classes(&mut a, batches - stop), "{options:?} from {stop}");
            }
        }
    }
    first.unwrap()
}

#[test]
fn orders_cover_what_they_should() {
    let o = LoaderOptions { batch: 4, seed: 3, ..LoaderOptions::default() };
    let sequential = check(10, LoaderOptions { order: Order::Sequential, ..o }, 4, 8);
    assert_eq!(sequential, (0..8).chain(0..8).collect::<Vec<i32>>());
    let whole = check(10, LoaderOptions { order: Order::Sequential, drop_last: false, ..o }, 6, 10);
    assert_eq!(whole, (0..10).chain(0..10).collect::<Vec<i32>>());
    let shuffled = check(10, LoaderOptions { drop_last: false, ..o }, 6, 10);
    let (one, two) = shuffled.split_at(10);
    for epoch in [one, two] {
        let mut sorted = epoch.to_vec();
        sorted.sort_unstable();
        assert_eq!(sorted, (0..10).collect::<Vec<i32>>(), "every example once an epoch");
    }
    assert_ne!(one, two, "another order each epoch");
    assert_ne!(check(10, LoaderOptions { drop_last: false, seed: 4, ..o }, 6, 10), shuffled, "another seed, another order");
    check(10, LoaderOptions { order: Order::Random, ..o }, 40, 10);
}

#[test]
fn epochs_are_counted_and_mistakes_are_said() {
    let device = Device::cpu();
    let o = LoaderOptions { batch: 3, ..LoaderOptions::default() };
    let mut l = DataLoader::new(images(10), o, &device).unwrap();
    assert_eq!((l.batches_per_epoch(), l.epoch()), (3, 0));
    classes(&mut l, 7);
    assert_eq!(l.epoch(), 2);
    let few = DataLoader::new(images(2), o, &device).map(|_| ()).unwrap_err().to_string();
    assert!(few.contains("2 examples are fewer than a batch of 3"), "{few}");
    assert!(Images::new(vec![0.0; 5], [1, 2, 3], vec![0]).is_err());
    assert_eq!(Images::from_bytes(&[0, 255], [1, 1, 1], vec![1, 2]).unwrap().len(), 2);
}

#[test]
fn batches_use_memory_again_unless_they_are_held() {
    for device in devices() {
        let n = 64;
        let big = |k: usize| Images::new(vec![0.5; k * 64 * 64], [1, 64, 64], vec![0; k]).unwrap();
        let mut l = DataLoader::new(big(n), LoaderOptions { batch: 16, ..LoaderOptions::default() }, &device).unwrap();
        for _ in 0..4 {
            l.next_batch().unwrap()[0].sum_all().unwrap().item().unwrap();
        }
        let held = device.memory().in_use;
        for _ in 0..20 {
            l.next_batch().unwrap()[0].sum_all().unwrap().item().unwrap();
        }
        // Other tests hold a little meanwhile, and less than a batch.
        let now = device.memory().in_use;
        assert!(now.abs_diff(held) < 16 * 64 * 64 * 4, "{}: {held} bytes, later {now}", device.name());
    }
    // A batch that somebody holds is not written to.
    let mut l =
        DataLoader::new(images(8), LoaderOptions { batch: 2, order: Order::Sequential, ..LoaderOptions::default() }, &Device::cpu());
    let l = l.as_mut().unwrap();
    let held: Vec<_> = (0..4).map(|_| l.next_batch().unwrap()).collect();
    for (i, b) in held.iter().enumerate() {
        assert_eq!(b[1].to_vec_of::<i32>().unwrap(), [2 * i as i32, 2 * i as i32 + 1]);
    }
}

/// Fails at one example.
struct Broken(usize);
impl Dataset for Broken {
    fn len(&self) -> usize {
        10
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field { dtype: DType::I32, shape: vec![] }]
    }
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
        if index == self.0 {
            return Err(TensorError::Value("example 5 cannot be read".into()));
        }
        if index == 9 {
            panic!("a dataset's own mistake");
        }
        let [Part::I32(v)] = parts else { unreachable!() };
        v[0] = index as i32;
        Ok(())
    }
}

#[test]
fn a_dataset_that_fails_fails_the_batch_alone() {
    for prefetch in [0, 2] {
        let o = LoaderOptions { order: Order::Sequential, prefetch, ..LoaderOptions::default() };
        let mut l = DataLoader::new(Broken(5), o, &Device::cpu()).unwrap();
        for i in 0..5 {
            assert_eq!(l.next_batch().unwrap()[0].to_vec_of::<i32>().unwrap(), [i]);
        }
        for _ in 0..2 {
            assert!(l.next_batch().unwrap_err().to_string().contains("example 5"));
        }
        let mut place = l.state();
        place.position = 6;
        l.load_state(place).unwrap();
        assert_eq!(l.next_batch().unwrap()[0].to_vec_of::<i32>().unwrap(), [6]);
    }
    // A panic in the thread is an error here.
    let o = LoaderOptions { order: Order::Sequential, prefetch: 1, ..LoaderOptions::default() };
    let mut l = DataLoader::new(Broken(99), o, &Device::cpu()).unwrap();
    (0..9).for_each(|_| drop(l.next_batch().unwrap()));
    assert!(l.next_batch().unwrap_err().to_string().contains("ended"));
}

#[test]
fn token_files_of_every_kind_are_read() {
    let tokens: Vec<u32> = (0..1000).map(|i| (i * i + 7) % 50_000).collect();
    let read = |t: &TokenFile| {
        let mut out = vec![0i32; t.len()];
        t.read(0, &mut out).unwrap();
        out.iter().map(|&v| v as u32).collect::<Vec<u32>>()
    };
    // nanoGPT's: nothing but the tokens.
    let plain: Vec<u8> = tokens.iter().flat_map(|&t| (t as u16).to_le_bytes()).collect();
    let nano = TokenFile::open(file("nano.bin", &plain)).unwrap();
    assert_eq!(read(&nano), tokens);
    // llm.c's, as its dev/data/data_common.py writes it: 256 numbers, of which three are set.
    let mut llmc = vec![0u8; 1024];
    for (at, n) in [(0, 20240520i32), (4, 1), (8, 1000)] {
        llmc[at..at + 4].copy_from_slice(&n.to_le_bytes());
    }
    llmc.extend(&plain);
    let path = file("llmc.bin", &llmc);
    assert_eq!(read(&TokenFile::open(&path).unwrap()), tokens);
    // Ours, narrow and wide.
    for high in [50_000, 100_000] {
        let mut all = tokens.clone();
        all.push(high);
        let path = std::env::temp_dir().join(format!("tl-data-{}-own-{high}.bin", std::process::id()));
        TokenFile::write(&path, &all).unwrap();
        let t = TokenFile::open(&path).unwrap();
        assert_eq!((read(&t), t.max()), (all.clone(), high));
        if high < 65_536 {
            assert_eq!(std::fs::metadata(&path).unwrap().len(), 1024 + 2 * 1001);
            assert_eq!(std::fs::read(&path).unwrap()[..8], llmc[..8]);
        }
    }
    let mut short = [0i32; 5];
    assert!(nano.read(996, &mut short).is_err());
    assert!(nano.read(usize::MAX, &mut short).is_err());
    let bad = |name: &str, bytes: &[u8], word: &str| {
        let e = TokenFile::open(file(name, bytes)).map(|_| ()).unwrap_err().to_string();
        assert!(e.contains(word), "{e}");
    };
    bad("odd.bin", &plain[..99], "not a multiple of a 16-bit token");
    bad("cut.bin", &llmc[..1500], "1000 tokens");
    let mut version = llmc.clone();
    version[4] = 9;
    bad("version.bin", &version, "version 9");
    let mut negative = llmc.clone();
    negative[8..12].copy_from_slice(&(-4i32).to_le_bytes());
    bad("negative.bin", &negative, "-1 tokens");
    assert!(TokenFile::open(std::env::temp_dir().join("tl-no-such-file.bin")).is_err());
}

#[test]
fn windows_are_the_tokens_and_those_one_further() {
    let tokens = std::sync::Arc::new(TokenFile::from_tokens(&(0..50).collect::<Vec<u32>>()));
    for (range, context, stride, count) in [(0..50, 8, 1, 42), (0..50, 8, 8, 6), (10..20, 8, 1, 2), (10..19, 8, 8, 1), (0..50, 7, 7, 7)] {
        let w = TokenWindows::new(tokens.clone(), range.clone(), context, stride).unwrap();
        assert_eq!(w.len(), count, "{range:?} {context} {stride}");
        for i in 0..count {
            let (mut x, mut y) = (vec![0; context], vec![0; context]);
            w.read(i, &mut [Part::I32(&mut x), Part::I32(&mut y)]).unwrap();
            let start = (range.start + i * stride) as i32;
            assert!(x.iter().copied().eq(start..start + context as i32) && y.iter().copied().eq(start + 1..start + 1 + context as i32));
            assert!(*y.last().unwrap() < range.end as i32);
        }
    }
    for (range, context, stride) in [(0..8, 8, 1), (0..50, 0, 1), (0..50, 8, 0), (0..51, 8, 1), (45..46, 8, 1)] {
        assert!(TokenWindows::new(tokens.clone(), range, context, stride).is_err());
    }
}
