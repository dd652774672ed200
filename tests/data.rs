//! Datasets, loaders and token files: every order against plain loops, places that are continued from, memory that is used again.
//!
//! It is a program of its own since it compares what the device holds, in which other tests would have a part.

mod common;

use common::devices;
use std::path::PathBuf;
use tensorlogic::data::{
    DataLoader, Dataset, Field, Images, LoaderOptions, Order, PadOptions, PaddedTokens, Part, Stream, StreamLoader, StreamOptions,
    StreamSource, StreamState, TokenFile, TokenWindows, pad_rows,
};
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
    // On the CPU a large batch is the memory that it was read into, and that of a batch which nobody holds is filled again.
    let large = Images::new((0..8 * 128 * 128).map(|v| v as f32).collect(), [1, 128, 128], vec![0; 8]).unwrap();
    let options = LoaderOptions { batch: 2, order: Order::Sequential, ..LoaderOptions::default() };
    let mut l = DataLoader::new(large, options, &Device::cpu()).unwrap();
    let held: Vec<_> = (0..4).map(|_| l.next_batch().unwrap().swap_remove(0)).collect();
    for (i, b) in held.iter().enumerate() {
        assert_eq!(
            b.narrow(0, 0, 1).unwrap().flatten(0, -1).unwrap().narrow(0, 0, 1).unwrap().to_vec().unwrap(),
            [(i * 2 * 128 * 128) as f32]
        );
    }
    drop(held);
    let mut seen = std::collections::BTreeSet::new();
    for _ in 0..20 {
        let batch = l.next_batch().unwrap();
        seen.insert(batch[0].with_slice(|v: &[f32]| v.as_ptr() as usize).unwrap());
    }
    assert!(seen.len() <= 10, "20 batches lie in {} places", seen.len());
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

/// Examples whose fields have every type, with values that follow from their number.
struct Every;

const TYPES: [DType; 5] = [DType::F32, DType::F16, DType::I32, DType::I64, DType::U8];

impl Dataset for Every {
    fn len(&self) -> usize {
        23
    }
    fn fields(&self) -> Vec<Field> {
        TYPES.map(|dtype| Field { dtype, shape: vec![3] }).into()
    }
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
        for part in parts {
            let values = (0..3).map(|i| index * 3 + i);
            match part {
                Part::F32(p) => p.iter_mut().zip(values).for_each(|(p, v)| *p = v as f32 / 4.0),
                Part::F16(p) => p.iter_mut().zip(values).for_each(|(p, v)| *p = half::f16::from_f32(v as f32 / 4.0)),
                Part::I32(p) => p.iter_mut().zip(values).for_each(|(p, v)| *p = -(v as i32)),
                Part::I64(p) => p.iter_mut().zip(values).for_each(|(p, v)| *p = -(v as i64) << 40),
                Part::U8(p) => p.iter_mut().zip(values).for_each(|(p, v)| *p = v as u8),
            }
        }
        Ok(())
    }
}

/// Numbers of tokens as i64, as other libraries store them.
struct Tokens;

impl Dataset for Tokens {
    fn len(&self) -> usize {
        8
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field { dtype: DType::I64, shape: vec![2] }]
    }
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
        let Part::I64(p) = &mut parts[0] else { panic!("not i64") };
        p.copy_from_slice(&[index as i64, i64::from(i32::MAX) - index as i64]);
        Ok(())
    }
}

#[test]
fn fields_of_every_type_arrive_as_they_were_read() {
    let cpu = Device::cpu();
    for prefetch in [0, 2] {
        let options = LoaderOptions { batch: 4, order: Order::Sequential, drop_last: false, prefetch, ..LoaderOptions::default() };
        let mut loader = DataLoader::new(Every, options, &cpu).unwrap();
        let mut at = 0;
        for batch in loader.epoch_batches() {
            let batch = batch.unwrap();
            assert_eq!(batch.iter().map(|t| t.dtype()).collect::<Vec<_>>(), TYPES);
            let rows = batch[0].dims()[0];
            let numbers: Vec<usize> = (at * 3..(at + rows) * 3).collect();
            let of = |f: &dyn Fn(usize) -> f64| numbers.iter().map(|&v| f(v)).collect::<Vec<f64>>();
            let quarters = of(&|v| v as f64 / 4.0);
            assert_eq!(batch[0].to_vec().unwrap().iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), quarters);
            assert_eq!(batch[1].to_vec_of::<half::f16>().unwrap().iter().map(|v| v.to_f64()).collect::<Vec<_>>(), quarters);
            assert_eq!(batch[2].to_vec_of::<i32>().unwrap().iter().map(|&v| f64::from(v)).collect::<Vec<_>>(), of(&|v| -(v as f64)));
            assert_eq!(batch[3].to_vec_of::<i64>().unwrap(), numbers.iter().map(|&v| -(v as i64) << 40).collect::<Vec<_>>());
            assert_eq!(batch[4].to_vec_of::<u8>().unwrap(), numbers.iter().map(|&v| v as u8).collect::<Vec<_>>());
            at += rows;
        }
        assert_eq!(at, 23);
    }
    // Devices without i64 get i32, where the values are some.
    for device in devices().iter().filter(|d| !d.is_cpu()) {
        let options = LoaderOptions { batch: 4, order: Order::Sequential, ..LoaderOptions::default() };
        let mut loader = DataLoader::new(Tokens, options, device).unwrap();
        for batch in 0..2 {
            let ids = loader.next_batch().unwrap().remove(0);
            assert_eq!((ids.dtype(), ids.dims()), (DType::I32, &[4, 2][..]));
            let want: Vec<i32> = (4 * batch..4 * batch + 4).flat_map(|i| [i, i32::MAX - i]).collect();
            assert_eq!(ids.to_vec_of::<i32>().unwrap(), want, "on {}", device.name());
        }
        let e = DataLoader::new(Every, LoaderOptions::default(), device).unwrap().next_batch().unwrap_err().to_string();
        assert!(e.contains("does not fit i32") && e.contains("does not support i64"), "{e}");
    }
    struct Wide;
    impl Dataset for Wide {
        fn len(&self) -> usize {
            1
        }
        fn fields(&self) -> Vec<Field> {
            vec![Field { dtype: DType::F64, shape: vec![] }]
        }
        fn read(&self, _: usize, _: &mut [Part]) -> TensorResult<()> {
            Ok(())
        }
    }
    let e = DataLoader::new(Wide, LoaderOptions::default(), &cpu).err().unwrap().to_string();
    assert!(e.contains("f32, f16, i32, i64 or u8, not f64"), "{e}");
}

/// Numbers from 1000·epoch on, as bytes and floats; epoch 1 is short, and reading fails at `fails`.
struct Numbers {
    count: [u64; 3],
    fails: Option<u64>,
}

struct Count {
    at: u64,
    end: u64,
    fails: Option<u64>,
}

impl StreamSource for Numbers {
    fn fields(&self) -> Vec<Field> {
        vec![Field { dtype: DType::I32, shape: vec![] }, Field { dtype: DType::U8, shape: vec![2] }]
    }
    fn open(&self, epoch: u64) -> TensorResult<Box<dyn Stream>> {
        Ok(Box::new(Count { at: 1000 * epoch, end: 1000 * epoch + self.count[epoch as usize % 3], fails: self.fails }))
    }
}

impl Stream for Count {
    fn next(&mut self, parts: &mut [Part]) -> TensorResult<bool> {
        if self.fails == Some(self.at) {
            return Err(TensorError::Value(format!("number {} cannot be read", self.at)));
        }
        if self.at == self.end {
            return Ok(false);
        }
        let [Part::I32(number), Part::U8(bytes)] = parts else { panic!("two parts") };
        number[0] = self.at as i32;
        bytes.copy_from_slice(&[self.at as u8, !self.at as u8]);
        self.at += 1;
        Ok(true)
    }
}

fn numbers(loader: &mut StreamLoader, batches: usize) -> Vec<Vec<i32>> {
    let mut out = Vec::new();
    for _ in 0..batches {
        let b = loader.next_batch().unwrap();
        let (number, bytes) = (b[0].to_vec_of::<i32>().unwrap(), b[1].to_vec_of::<u8>().unwrap());
        assert_eq!(bytes, number.iter().flat_map(|&n| [n as u8, !n as u8]).collect::<Vec<_>>());
        out.push(number);
    }
    out
}

#[test]
fn streams_are_shuffled_in_a_buffer_and_continued_bit_for_bit() {
    let source = || Numbers { count: [103, 17, 64], fails: None };
    for device in devices() {
        for drop_last in [true, false] {
            let options = StreamOptions { batch: 8, buffer: 20, seed: 5, drop_last, prefetch: 0 };
            let make = |prefetch| StreamLoader::new(source(), StreamOptions { prefetch, ..options }, &device).unwrap();
            // Two rounds of the three epochs.
            let per_epoch = [103usize, 17, 64].map(|n| if drop_last { n / 8 } else { n.div_ceil(8) });
            let all = numbers(&mut make(0), 2 * per_epoch.iter().sum::<usize>());
            assert_eq!(numbers(&mut make(2), all.len()), all, "read ahead on {}", device.name());
            let mut at = 0;
            for epoch in 0..6u64 {
                let n = [103, 17, 64][epoch as usize % 3];
                let seen: Vec<i32> = all[at..at + per_epoch[epoch as usize % 3]].concat();
                at += per_epoch[epoch as usize % 3];
                let mut sorted = seen.clone();
                sorted.sort_unstable();
                sorted.dedup();
                assert_eq!((sorted.len(), seen.len()), (seen.len(), if drop_last { n / 8 * 8 } else { n }));
                assert!(sorted.iter().all(|&v| (1000 * epoch as i32..1000 * epoch as i32 + n as i32).contains(&v)));
                // An example is never earlier than the buffer allows, and the order is another one than the stream's.
                assert!(seen.iter().enumerate().all(|(i, &v)| (v - 1000 * epoch as i32) < i as i32 + 20), "{seen:?}");
                assert!(n < 20 || seen.windows(2).filter(|w| w[0] + 1 == w[1]).count() < n / 4, "{seen:?}");
            }
            for stop in 0..all.len() {
                for prefetch in [0, 2] {
                    let mut a = make(prefetch);
                    numbers(&mut a, stop);
                    let text = serde_json::to_string(&a.state()).unwrap();
                    let mut b = StreamLoader::new(source(), StreamOptions { prefetch, seed: 77, ..options }, &device).unwrap();
                    numbers(&mut b, 1);
                    b.load_state(serde_json::from_str(&text).unwrap());
                    let rest = (all.len() - stop).min(14);
                    assert_eq!(numbers(&mut b, rest), all[stop..stop + rest], "from {stop} with {prefetch} ahead");
                }
            }
        }
        // A buffer of one keeps the order.
        let options = StreamOptions { batch: 4, buffer: 1, ..StreamOptions::default() };
        let plain = numbers(&mut StreamLoader::new(source(), options, &device).unwrap(), 5).concat();
        assert_eq!(plain, (0..20).collect::<Vec<_>>());
    }
}

#[test]
fn streams_that_fail_or_are_too_short_say_so_and_can_be_asked_again() {
    let device = Device::cpu();
    for prefetch in [0, 2] {
        let options = StreamOptions { batch: 4, buffer: 4, prefetch, ..StreamOptions::default() };
        let mut loader = StreamLoader::new(Numbers { count: [50; 3], fails: Some(10) }, options, &device).unwrap();
        let first = numbers(&mut loader, 1);
        for _ in 0..2 {
            let e = loader.next_batch().unwrap_err().to_string();
            assert!(e.contains("number 10 cannot be read"), "{e}");
        }
        loader.load_state(StreamState::default());
        assert_eq!(numbers(&mut loader, 1), first);
        let mut short = StreamLoader::new(Numbers { count: [3; 3], fails: None }, options, &device).unwrap();
        let e = short.next_batch().unwrap_err().to_string();
        assert!(e.contains("epoch 0 of the stream has 3 examples, fewer than a batch of 4"), "{e}");
        assert!(StreamLoader::new(Numbers { count: [3; 3], fails: None }, StreamOptions { buffer: 0, ..options }, &device).is_err());
    }
}

#[test]
fn rows_of_different_lengths_are_padded_with_a_mask() {
    for device in devices() {
        let rows: [&[f32]; 3] = [&[1.0, 2.0, 3.0], &[], &[4.0]];
        for left in [false, true] {
            let padded = pad_rows(&rows, -1.0, &PadOptions { length: Some(4), left, ..PadOptions::default() }, &device).unwrap();
            let want = if left {
                [-1., 1., 2., 3., -1., -1., -1., -1., -1., -1., -1., 4.]
            } else {
                [1., 2., 3., -1., -1., -1., -1., -1., 4., -1., -1., -1.]
            };
            assert_eq!((padded.values.dims(), padded.values.to_vec().unwrap()), (&[3, 4][..], want.to_vec()));
            assert_eq!(padded.mask.dtype(), DType::Bool);
            assert_eq!(padded.mask.to_vec().unwrap(), want.map(|v| f32::from(u8::from(v > 0.0))));
        }
        assert_eq!(pad_rows(&rows, 0.0, &PadOptions { multiple: 8, ..PadOptions::default() }, &device).unwrap().values.dims(), [3, 8]);
        let e = pad_rows(&rows, 0.0, &PadOptions { length: Some(2), ..PadOptions::default() }, &device).unwrap_err().to_string();
        assert!(e.contains("3 rows of up to 3 elements do not fit a length of 2"), "{e}");
        assert!(pad_rows::<i32>(&[], 0, &PadOptions::default(), &device).is_err());
        let tokens = PaddedTokens::new(vec![vec![7, 8], vec![1, 2, 3, 4, 5]], 3, -100, false).unwrap();
        let options = LoaderOptions { batch: 2, order: Order::Sequential, ..LoaderOptions::default() };
        let batch = DataLoader::new(tokens, options, &device).unwrap().next_batch().unwrap();
        assert_eq!(batch[0].to_vec_of::<i32>().unwrap(), [7, 8, -100, 1, 2, 3]);
        assert_eq!(batch[1].to_vec_of::<u8>().unwrap(), [1, 1, 0, 1, 1, 1]);
    }
}

/// A dataset that takes its time is waited for; the time is counted.
#[test]
fn waiting_for_data_is_measured() {
    struct Slow;
    impl Dataset for Slow {
        fn len(&self) -> usize {
            100
        }
        fn fields(&self) -> Vec<Field> {
            vec![Field { dtype: DType::U8, shape: vec![] }]
        }
        fn read(&self, _: usize, _: &mut [Part]) -> TensorResult<()> {
            std::thread::sleep(std::time::Duration::from_millis(5));
            Ok(())
        }
    }
    for prefetch in [0, 1] {
        let mut loader = DataLoader::new(Slow, LoaderOptions { batch: 2, prefetch, ..LoaderOptions::default() }, &Device::cpu()).unwrap();
        assert!(loader.stalled().is_zero());
        let began = std::time::Instant::now();
        (0..5).for_each(|_| drop(loader.next_batch().unwrap()));
        let stalled = loader.stalled();
        assert!(stalled.as_millis() >= 40 && stalled <= began.elapsed(), "{stalled:?}");
    }
}
