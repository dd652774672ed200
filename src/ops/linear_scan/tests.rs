//! The scan against the recurrence in f64: decay by head and by row, with and without the delta rule, several sequences, states that go on.

use super::LinearScan;
use crate::device::Device;
use crate::dtype::DType;
use crate::tensor::Tensor;

/// Sizes [B, T, G, H, N, P].
const SIZES: [[usize; 6]; 5] = [[1, 1, 1, 1, 3, 2], [2, 5, 2, 6, 8, 12], [1, 9, 1, 3, 37, 17], [2, 1, 4, 4, 16, 33], [1, 3, 5, 5, 128, 1]];

/// Numbers in [−1, 1) that depend on the seed only.
fn numbers(count: usize, seed: u64) -> Vec<f32> {
    let mut x = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) | 1;
    let mut next = || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        (x >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    };
    (0..count).map(|_| next()).collect()
}

/// What a case consists of: q, k, v, decay, β, state.
struct Case {
    sizes: [usize; 6],
    delta: bool,
    by_row: bool,
    data: [Vec<f32>; 6],
}

impl Case {
    fn new(sizes: [usize; 6], delta: bool, by_row: bool) -> Case {
        let [b, t, g, h, n, p] = sizes;
        let counts = [b * t * g * n, b * t * g * n, b * t * h * p, b * t * h * if by_row { n } else { 1 }, b * t * h, b * h * n * p];
        let mut data = [0, 1, 2, 3, 4, 5].map(|i| numbers(counts[i], 7 + i as u64 + (n * 31 + p) as u64));
        // Keys of about length 1 and decays between 0 and 1, as models have them: the recurrence does not grow.
        data[1].iter_mut().for_each(|k| *k /= (n as f32).sqrt());
        data[3].iter_mut().chain([]).for_each(|a| *a = 0.5 + 0.5 * a.abs());
        data[4].iter_mut().for_each(|beta| *beta = beta.abs());
        Case { sizes, delta, by_row, data }
    }

    /// y and the state, in f64.
    fn expected(&self) -> (Vec<f64>, Vec<f64>) {
        let [b, t, g, h, n, p] = self.sizes;
        let [q, k, v, a, beta, state] = self.data.each_ref().map(|x| x.iter().map(|v| f64::from(*v)).collect::<Vec<f64>>());
        let (mut y, mut state) = (vec![0.0; v.len()], state);
        for (batch, head) in (0..b).flat_map(|b| (0..h).map(move |h| (b, h))) {
            let s = &mut state[(batch * h + head) * n * p..][..n * p];
            for token in batch * t..(batch + 1) * t {
                let key = (token * g + head / (h / g)) * n;
                let value = token * h + head;
                for row in 0..n {
                    let decay = a[if self.by_row { value * n + row } else { value }];
                    s[row * p..][..p].iter_mut().for_each(|s| *s *= decay);
                }
                for column in 0..p {
                    let found: f64 = (0..n).map(|row| k[key + row] * s[row * p + column]).sum();
                    let own = v[value * p + column];
                    let u = if self.delta { beta[value] * (own - found) } else { own };
                    (0..n).for_each(|row| s[row * p + column] += k[key + row] * u);
                    y[value * p + column] = (0..n).map(|row| q[key + row] * s[row * p + column]).sum();
                }
            }
        }
        (y, state)
    }

    /// The inputs on a device.
    fn tensors(&self, device: &Device) -> [Tensor; 6] {
        let [b, t, g, h, n, p] = self.sizes;
        let decay = if self.by_row { vec![b, t, h, n] } else { vec![b, t, h] };
        let shapes = [vec![b, t, g, n], vec![b, t, g, n], vec![b, t, h, p], decay, vec![b, t, h], vec![b, h, n, p]];
        std::array::from_fn(|i| Tensor::from_vec(self.data[i].clone(), &shapes[i], device).unwrap())
    }

    fn check(&self, device: &Device) {
        let (y, state) = self.expected();
        let tensors = self.tensors(device);
        let [q, k, v, decay, beta, start] = &tensors;
        let scan = LinearScan { q, k, v, decay, beta: self.delta.then_some(beta), state: start };
        let same = |got: &Tensor, want: &[f64], what: &str| {
            let far = got.to_vec().unwrap().iter().zip(want).map(|(a, b)| (f64::from(*a) - b).abs()).fold(0.0, f64::max);
            assert!(far < 2e-5, "{what} of {:?}, delta {}, by row {}: off by {far:e}", self.sizes, self.delta, self.by_row);
        };
        let (got, last) = scan.run().unwrap();
        same(&got, &y, "y");
        same(&last, &state, "the state");
        let (got, last) = scan.composed().unwrap();
        same(&got, &y, "y, composed,");
        same(&last, &state, "the state, composed,");
    }
}

fn check_all(device: &Device) {
    for sizes in SIZES {
        for (delta, by_row) in [(false, false), (true, false), (false, true), (true, true)] {
            Case::new(sizes, delta, by_row).check(device);
        }
    }
}

#[test]
fn the_cpu_agrees_with_f64() {
    check_all(&Device::cpu());
}

#[cfg(feature = "gpu")]
#[test]
fn the_gpu_agrees_with_f64() {
    let Some(gpu) = crate::device::under_test::gpu() else { return };
    check_all(&gpu);
}

#[test]
fn shapes_that_do_not_fit_are_refused() {
    let case = Case::new([1, 2, 2, 4, 3, 5], true, false);
    let [q, k, v, decay, beta, state] = case.tensors(&Device::cpu());
    let other = Tensor::zeros(&[1, 2, 3, 5], DType::F32, &Device::cpu()).unwrap();
    for v in [&other, &v.narrow(1, 0, 1).unwrap()] {
        let e = LinearScan { q: &q, k: &k, v, decay: &decay, beta: Some(&beta), state: &state }.run().unwrap_err().to_string();
        assert!(e.contains("linear_scan") && e.contains("do not fit together"), "{e}");
    }
}
