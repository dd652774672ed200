//! Attention to pages against attention to the same keys in a row, and writes against the slots that they name.

use super::PAGE;
use crate::device::{Device, under_test::devices};
use crate::dtype::DType;
use crate::ops::AttentionOptions;
use crate::ops::random::Rng;
use crate::tensor::Tensor;
use crate::tuning::Tuning;

/// A batch whose texts have keys in pages, in an order that looks random.
struct Texts {
    /// Keys and values of each text, `[Hkv,n,D]` row by row.
    rows: Vec<[Vec<f32>; 2]>,
    lens: Vec<usize>,
    pool: Tensor,
    table: Tensor,
    lens_on_device: Tensor,
}

fn ids(values: Vec<i32>, shape: &[usize], device: &Device) -> Tensor {
    Tensor::from_vec(values, shape, device).unwrap()
}

/// Writes every text's keys by [`Tensor::paged_write`], some positions at a time.
fn texts(lens: &[usize], [heads, size]: [usize; 2], dtype: DType, device: &Device) -> Texts {
    let width = lens.iter().max().unwrap().div_ceil(PAGE) + 1;
    let pages = lens.len() * width + 1;
    // Page 0 is padding's; each text's pages lie apart and backwards.
    let page = |text: usize, n: usize| pages - 1 - (n * lens.len() + text);
    let table = (0..lens.len() * width).map(|i| page(i / width, i % width) as i32).collect();
    // Where no text writes, there is what earlier ones left: at worst NaNs. Nobody writes page 0.
    let other = Tensor::full(f64::NAN, &[2, pages - 1, heads, PAGE, size], dtype, device).unwrap();
    let mut pool = Tensor::cat(&[&Tensor::zeros(&[2, 1, heads, PAGE, size], dtype, device).unwrap(), &other], 1).unwrap();
    pool.eval().unwrap();
    let mut rng = Rng::new(9);
    let longest = *lens.iter().max().unwrap();
    let shape = [lens.len(), heads, longest, size];
    let [k, v] = [(); 2].map(|()| rng.normal(&shape, dtype, device).unwrap());
    let mut at = 0;
    for count in [1, 30, 64, usize::MAX] {
        let count = count.min(longest - at);
        if count == 0 {
            break;
        }
        let slot = |i: usize| {
            let (text, position) = (i / count, at + i % count);
            let own = page(text, position / PAGE) * PAGE + position % PAGE;
            if position < lens[text] { own as i32 } else { (position % PAGE) as i32 }
        };
        let slots = ids((0..lens.len() * count).map(slot).collect(), &[lens.len(), count], device);
        let part = |t: &Tensor| t.narrow(2, at, count).unwrap();
        pool = pool.paged_write(&part(&k), &part(&v), &slots).unwrap();
        pool.eval().unwrap();
        at += count;
    }
    let flat = [k, v].map(|t| t.to_vec().unwrap());
    let row = |values: &[f32], text: usize| -> Vec<f32> {
        let of = |head: usize| &values[((text * heads + head) * longest) * size..][..lens[text] * size];
        (0..heads).flat_map(|h| of(h).to_vec()).collect()
    };
    let rows = (0..lens.len()).map(|text| [row(&flat[0], text), row(&flat[1], text)]).collect();
    let on_device = ids(lens.iter().map(|&n| n as i32).collect(), &[lens.len()], device);
    Texts { rows, lens: lens.to_vec(), pool, table: ids(table, &[lens.len(), width], device), lens_on_device: on_device }
}

#[test]
fn attention_to_pages_is_attention_to_the_same_keys_in_a_row() {
    // Heads of queries, of keys, their size, queries, window, soft cap; texts of ragged lengths, ends of pages among them.
    let cases = [
        ([4, 2, 16], 1, None, None, vec![1, 63, 64, 65, 200, 128]),
        ([3, 3, 64], 1, None, Some(1.5), vec![5, 300]),
        ([8, 2, 24], 3, Some(70), Some(2.0), vec![3, 70, 131, 192]),
        ([2, 1, 8], 40, None, None, vec![40, 41, 103, 128, 260]),
        ([4, 4, 20], 33, Some(50), Some(1.0), vec![33, 180]),
        ([4, 1, 128], 17, None, None, vec![17, 90]),
    ];
    for device in devices() {
        for dtype in [DType::F32, DType::F16].into_iter().filter(|&d| device.supports(d)) {
            for ([h, hkv, d], t, window, softcap, lens) in &cases {
                let all = texts(lens, [*hkv, *d], dtype, &device);
                let q = Rng::new(2).normal(&[lens.len(), *h, *t, *d], dtype, &device).unwrap();
                let options = AttentionOptions { window: *window, softcap: *softcap, ..Default::default() };
                let got = q.paged_attention(&all.pool, &all.table, &all.lens_on_device, &options).unwrap().to_vec().unwrap();
                for (text, [k, v]) in all.rows.iter().enumerate() {
                    let n = all.lens[text];
                    let cache = |x: &[f32]| Tensor::from_vec(x.to_vec(), &[1, *hkv, n, *d], &device).unwrap().cast(dtype).unwrap();
                    let one = q.narrow(0, text, 1).unwrap();
                    let want = one.attention(&cache(k), &cache(v), None, &options).unwrap().to_vec().unwrap();
                    let own = &got[text * want.len()..][..want.len()];
                    let most = if dtype == DType::F32 { 1e-5 } else { 4e-3 };
                    let wrong = own.iter().zip(&want).position(|(a, b)| (a - b).abs() > most || a.is_nan());
                    assert_eq!(wrong, None, "{}, {dtype}, text {text} of {lens:?}, {t} queries of {h} heads of {d}", device.name());
                }
            }
        }
    }
}

#[test]
fn a_write_replaces_the_slots_that_it_names_and_no_others() {
    // A GPU of its own: who evaluates next on a device is told of a slot that does not exist.
    let own = crate::device::under_test::open(|name| Device::open_with_tuning(name, Tuning::generic())).inspect(|d| d.set_adaptive(false));
    for device in [Device::cpu()].into_iter().chain(own) {
        for size in [3, 8] {
            let pool = Rng::new(1).normal(&[2, 4, 2, PAGE, size], DType::F32, &device).unwrap();
            let before = pool.to_vec().unwrap();
            let [k, v] = [5, 6].map(|seed| Rng::new(seed).normal(&[2, 2, 3, size], DType::F32, &device).unwrap());
            // The middle one is padding.
            let slots = [64, 7, 3 * 64 + 63, 2 * 64 + 5, 64 + 63, 2 * 64];
            let written = pool.paged_write(&k, &v, &ids(slots.to_vec(), &[2, 3], &device)).unwrap().to_vec().unwrap();
            let mut want = before.clone();
            for (half, values) in [k.to_vec().unwrap(), v.to_vec().unwrap()].iter().enumerate() {
                for (i, &slot) in slots.iter().enumerate().filter(|(_, s)| **s >= 64) {
                    for head in 0..2 {
                        let to = (((half * 4 + slot as usize / PAGE) * 2 + head) * PAGE + slot as usize % PAGE) * size;
                        let from = ((i / 3 * 2 + head) * 3 + i % 3) * size;
                        want[to..to + size].copy_from_slice(&values[from..from + size]);
                    }
                }
            }
            assert_eq!(written, want, "{}", device.name());
            // Somebody holds the old value: it stays.
            assert_eq!(pool.to_vec().unwrap(), before);
            let outside = pool.paged_write(&k, &v, &ids(vec![64, 65, 66, 67, 68, 4 * 64], &[2, 3], &device)).unwrap();
            assert!(outside.to_vec().is_err(), "a slot outside the pool on {}", device.name());
        }
    }
}

#[test]
fn shapes_that_do_not_fit_are_errors() {
    let device = Device::cpu();
    let zeros = |shape: &[usize]| Tensor::zeros(shape, DType::F32, &device).unwrap();
    let (pool, k) = (zeros(&[2, 3, 2, PAGE, 8]), zeros(&[1, 2, 4, 8]));
    let error = |r: crate::error::TensorResult<Tensor>| r.err().map(|e| e.to_string()).unwrap_or_default();
    let slots = ids(vec![0; 3], &[1, 3], &device);
    assert!(error(pool.paged_write(&k, &k, &slots)).contains("expected [2,pages,Hkv,64,D]"));
    let (table, lens) = (ids(vec![1], &[1, 1], &device), ids(vec![1, 2], &[2], &device));
    assert!(error(k.paged_attention(&pool, &table, &lens, &Default::default())).contains("expected [B,H,T,D]"));
}
