//! Sums in an order that lane numbers alone decide: pairs of neighbouring lanes, then pairs of pairs. Any number of ranks makes the same bits.
//! Some GPUs give 0 for a sum below the least normal number, others do not. Here all sums do, so that it does not matter which are a device's.

use super::Transport;
use crate::error::TensorResult;
use crate::ops::PadMode;
use crate::tensor::Tensor;
use std::convert::Infallible;
use std::sync::LazyLock;

/// Values that are summed by one rank at a time: slices begin at multiples of this, and so do the parts of a sum of squares.
pub const BLOCK: usize = 4096;

/// Adds lanes one after the other as the tree asks: of N lanes, at most log₂ N + 1 are kept.
///
/// ```
/// let mut tree = tensorlogic::distributed::sums::Tree::default();
/// for lane in [1e8f32, 1.0, -1e8, 1.0] {
///     tree.push(vec![lane]);
/// }
/// // (1e8 + 1) + (−1e8 + 1), each rounded to f32; one after the other they would be 1.
/// assert_eq!(tree.finish(), Some(vec![0.0]));
/// ```
#[derive(Default)]
pub struct Tree<T = Vec<f32>> {
    /// Sums of whole sub-trees, with the number of levels in each.
    kept: Vec<(u32, T)>,
}

impl<T> Tree<T> {
    /// The next lane's values, which `add` adds to those of the lanes before.
    pub(crate) fn push_with<E>(&mut self, values: T, mut add: impl FnMut(T, T) -> Result<T, E>) -> Result<(), E> {
        let mut top = (0, values);
        while let Some((level, left)) = self.kept.pop_if(|k| k.0 == top.0) {
            top = (level + 1, add(left, top.1)?);
        }
        self.kept.push(top);
        Ok(())
    }

    /// The sum of the last sub-tree: of all lanes, where their number is a power of two.
    pub(crate) fn pop(&mut self) -> Option<T> {
        self.kept.pop().map(|top| top.1)
    }
}

impl Tree {
    /// The next lane's values.
    pub fn push(&mut self, values: Vec<f32>) {
        let Ok(()) = self.push_with(values, |mut left, right| {
            add(&mut left, &right);
            Ok::<_, Infallible>(left)
        });
    }

    /// The sum of all lanes, whose number is a power of two; `None` without lanes.
    pub fn finish(mut self) -> Option<Vec<f32>> {
        let mut sum = self.pop()?;
        // Lanes that are no power of two: the smaller sub-trees come last.
        while let Some(mut left) = self.pop() {
            add(&mut left, &sum);
            sum = left;
        }
        Some(sum)
    }
}

fn plus(a: f32, b: f32) -> f32 {
    let sum = a + b;
    if sum.abs() < f32::MIN_POSITIVE { 0.0 } else { sum }
}

fn add(left: &mut [f32], right: &[f32]) {
    left.iter_mut().zip(right).for_each(|(a, b)| *a = plus(*a, *b));
}

/// The sum of at most [`BLOCK`] values of each part by the tree of their numbers, which is that of [`add_block`].
pub(super) fn add_up(parts: &[&[f32]], sum: &mut [f32]) {
    match parts {
        [] => {}
        [one] => sum.copy_from_slice(one),
        [left, right] => sum.iter_mut().zip(left.iter().zip(*right)).for_each(|(s, (a, b))| *s = plus(*a, *b)),
        _ => {
            let (left, right) = parts.split_at(parts.len().next_power_of_two() / 2);
            add_up(left, sum);
            let mut other = [0.0; BLOCK];
            let other = &mut other[..sum.len()];
            add_up(right, other);
            add(sum, other);
        }
    }
}

/// The same sum of two tensors, on their device.
pub(crate) fn add_tensors(left: &Tensor, right: &Tensor) -> TensorResult<Tensor> {
    let sum = left.add(right)?;
    sum.abs()?.lt(f32::MIN_POSITIVE)?.where_(0.0, &sum)
}

/// The sums of squares of a vector's blocks as [`squares`] has them on the host, on the vector's device. Each operation is an evaluation of its own:
/// in one, a driver may join a product and a sum, or not, by how many there are.
pub(crate) fn square_tensors(values: &Tensor) -> TensorResult<Tensor> {
    let len = values.numel();
    let whole = len.next_multiple_of(BLOCK);
    let values = if whole > len { values.pad(&[(0, (whole - len) as isize)], PadMode::Constant(0.0))? } else { values.clone() };
    let squared = values.mul(&values)?;
    squared.eval()?;
    let mut sums = squared.lt(f32::MIN_POSITIVE)?.where_(0.0, &squared)?.reshape(&[whole / BLOCK, BLOCK])?;
    let mut width = BLOCK;
    while width > 1 {
        sums.eval()?;
        width /= 2;
        sums = add_tensors(&sums.narrow(1, 0, width)?, &sums.narrow(1, width, width)?)?;
    }
    sums.reshape(&[-1])
}

/// Values that a thread is given at least.
const THREAD_VALUES: usize = 1 << 18;

/// How many of `len` values each of this machine's threads gets: whole blocks.
pub(super) fn share(len: usize) -> usize {
    // Asked once: the answer takes longer than a small sum.
    static THREADS: LazyLock<usize> = LazyLock::new(|| std::thread::available_parallelism().map_or(1, |n| n.get()));
    let threads = THREADS.min(len / THREAD_VALUES).max(1);
    len.div_ceil(threads).next_multiple_of(BLOCK).max(BLOCK)
}

/// Where each of `ranks` slices of `len` values begins, and the end: whole blocks, but for the last slice.
pub fn slices(len: usize, ranks: usize) -> Vec<usize> {
    let blocks = len.div_ceil(BLOCK);
    (0..=ranks).map(|r| (blocks * r / ranks * BLOCK).min(len)).collect()
}

/// Sums `data` over all ranks by the tree of their numbers. Afterwards this rank's slice of it, by `bounds`, is the sum; the rest is as it was.
/// `received` is memory that is used again.
///
/// # Errors
/// Those of the transport.
///
/// ```
/// use tensorlogic::distributed::{Ranks, sums};
/// let ranks = Ranks::alone();
/// let mut gradients = [1.0, 2.0, 3.0];
/// let bounds = sums::slices(gradients.len(), ranks.size());
/// sums::reduce(ranks.transport(), &mut gradients, &bounds, &mut Vec::new())?;
/// let own = bounds[ranks.rank()]..bounds[ranks.rank() + 1]; // the part that is summed here
/// assert_eq!(&gradients[own], [1.0, 2.0, 3.0]);
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn reduce(ranks: &dyn Transport, data: &mut [f32], bounds: &[usize], received: &mut Vec<f32>) -> TensorResult<()> {
    let size = ranks.size();
    if size == 1 {
        return Ok(());
    }
    let own = bounds[ranks.rank()]..bounds[ranks.rank() + 1];
    let len = own.len();
    received.resize(len * size, 0.0);
    ranks.exchange(data, bounds, received)?;
    add_parts(size, received, &mut data[own]);
    Ok(())
}

/// Values up to which more than two ranks give each other all they have: then there is one round of messages, not two.
const AT_ONCE: usize = 2 * BLOCK;

/// Whether so many ranks sum so many values by giving each other all of them, after which each adds them up, rather than by slices. Between two ranks no more
/// bytes move that way.
pub fn is_at_once(ranks: usize, len: usize) -> bool {
    ranks == 2 || ranks <= 8 && len <= AT_ONCE
}

/// Sums `data` over all ranks by the tree of their numbers: afterwards every rank has the whole sum. `received` is memory that is used again.
///
/// # Errors
/// Those of the transport.
///
/// ```
/// use tensorlogic::distributed::{Ranks, sums};
/// let ranks = Ranks::alone();
/// let mut gradients = [1.0, 2.0, 3.0];
/// sums::reduce_all(ranks.transport(), &mut gradients, &mut Vec::new())?;
/// assert_eq!(gradients, [1.0, 2.0, 3.0]); // of several ranks, each has the sum
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub fn reduce_all(ranks: &dyn Transport, data: &mut [f32], received: &mut Vec<f32>) -> TensorResult<()> {
    let size = ranks.size();
    if size > 1 && is_at_once(size, data.len()) {
        received.resize(data.len() * (size - 1), 0.0);
        ranks.gather_others(data, received)?;
        add_others(ranks.rank(), data, received);
        return Ok(());
    }
    let bounds = slices(data.len(), size);
    reduce(ranks, data, &bounds, received)?;
    ranks.gather(data, &bounds)
}

/// The sum of all ranks' values by the tree of their numbers, in `own`, which are this rank's; those of the others are in `others`, in their order.
pub fn add_others(rank: usize, own: &mut [f32], others: &mut [f32]) {
    let len = own.len();
    if len == 0 {
        return;
    }
    let each = share(len);
    let mut parts: Vec<_> = others.chunks_mut(len).map(|part| part.chunks_mut(each)).collect();
    parts.insert(rank, own.chunks_mut(each));
    let shares = (0..len.div_ceil(each)).map(|_| parts.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>());
    on_threads(shares.collect(), |mut parts: Vec<&mut [f32]>| {
        for at in (0..parts[0].len()).step_by(BLOCK) {
            let block = at..(at + BLOCK).min(parts[0].len());
            add_block(&mut parts, &block);
            let (sum, others) = parts.split_at_mut(1);
            if rank > 0 {
                others[rank - 1][block.clone()].copy_from_slice(&sum[0][block]);
            }
        }
    });
}

/// The sum of `size` ranks' parts, one after the other in `received`, by the tree of their numbers.
pub fn add_parts(size: usize, received: &mut [f32], sum: &mut [f32]) {
    let len = sum.len();
    if len == 0 {
        return;
    }
    let each = share(len);
    let mut parts: Vec<_> = received.chunks_mut(len).take(size).map(|part| part.chunks_mut(each)).collect();
    let shares = sum.chunks_mut(each).map(|sum| (parts.iter_mut().filter_map(Iterator::next).collect::<Vec<_>>(), sum));
    on_threads(shares.collect(), |(mut parts, sum)| add_share(&mut parts, sum));
}

/// The sum of parts of one length by the tree of their numbers.
fn add_share(parts: &mut [&mut [f32]], sum: &mut [f32]) {
    let len = sum.len();
    // Blocks that stay in the cache while the tree is walked.
    for at in (0..len).step_by(BLOCK) {
        let block = at..(at + BLOCK).min(len);
        add_block(parts, &block);
        sum[block.clone()].copy_from_slice(&parts[0][block]);
    }
}

/// Adds a block of all parts up in the first.
fn add_block(parts: &mut [&mut [f32]], block: &std::ops::Range<usize>) {
    let (size, mut step) = (parts.len(), 1);
    while step < size {
        for left in (0..size - step).step_by(2 * step) {
            let (a, b) = parts.split_at_mut(left + step);
            add(&mut a[left][block.clone()], &b[0][block.clone()]);
        }
        step *= 2;
    }
}

/// Does each work on a thread of its own, the first on this one.
pub(super) fn on_threads<T: Send>(work: Vec<T>, f: impl Fn(T) + Sync) {
    let mut work = work.into_iter();
    let first = work.next();
    std::thread::scope(|scope| {
        for other in work {
            let f = &f;
            scope.spawn(move || f(other));
        }
        first.into_iter().for_each(&f);
    });
}

/// Where the parts of `bounds` begin in the window `range`, from its beginning, and the end.
pub fn within(bounds: &[usize], range: &std::ops::Range<usize>) -> Vec<usize> {
    bounds.iter().map(|b| b.clamp(&range.start, &range.end) - range.start).collect()
}

/// Windows of `range` of at most `most` values, a multiple of [`BLOCK`].
pub fn windows(range: std::ops::Range<usize>, most: usize) -> impl Iterator<Item = std::ops::Range<usize>> {
    let most = (most / BLOCK).max(1) * BLOCK;
    range.clone().step_by(most).map(move |at| at..at.saturating_add(most).min(range.end))
}

/// The sum of squares of each block of `values`, whose first begins at a multiple of [`BLOCK`], as bits of an f64. NaN or infinity where a value is.
/// The squares are f32; they are summed in halves: the second half of a block is added to the first, and so on.
pub fn squares(values: &[f32], out: &mut [u64]) {
    let of = |block: &[f32]| {
        let mut sums = [0.0f32; BLOCK];
        sums.iter_mut().zip(block).for_each(|(s, v)| *s = if v * v < f32::MIN_POSITIVE { 0.0 } else { v * v });
        let mut len = BLOCK;
        while len > 1 {
            len /= 2;
            let (low, high) = sums.split_at_mut(len);
            add(low, &high[..len]);
        }
        f64::from(sums[0]).to_bits()
    };
    let each = share(values.len());
    let shares = values.chunks(each).zip(out.chunks_mut(each / BLOCK)).collect();
    on_threads(shares, |(values, out): (&[f32], &mut [u64])| values.chunks(BLOCK).zip(out).for_each(|(block, out)| *out = of(block)));
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Numbers whose sums depend on the order.
    fn lane(n: usize) -> Vec<f32> {
        (0..10).map(|i| ((n * 31 + i * 17) as f32 * 0.7).sin() * 10f32.powi((n as i32 * 5 + i as i32) % 7)).collect()
    }

    /// The tree by its definition.
    fn sum(lanes: std::ops::Range<usize>) -> Vec<f32> {
        if lanes.len() == 1 {
            return lane(lanes.start);
        }
        let middle = lanes.start + lanes.len() / 2;
        sum(lanes.start..middle).iter().zip(sum(middle..lanes.end)).map(|(a, b)| a + b).collect()
    }

    #[test]
    fn lanes_one_by_one_make_the_tree() {
        for lanes in [1, 2, 4, 8, 16] {
            let mut tree = Tree::default();
            (0..lanes).for_each(|n| {
                tree.push(lane(n));
                assert!(tree.kept.len() <= lanes.ilog2() as usize + 1);
            });
            assert_eq!(tree.finish().unwrap(), sum(0..lanes), "{lanes} lanes");
            // Another order makes other bits, or this test would show nothing.
            let in_turn = (1..lanes).fold(lane(0), |mut a, n| {
                add(&mut a, &lane(n));
                a
            });
            assert!(lanes <= 2 || in_turn != sum(0..lanes), "{lanes} lanes");
        }
        assert!(Tree::default().finish().is_none());
    }

    #[test]
    fn slices_are_whole_blocks() {
        assert_eq!(slices(10 * BLOCK + 5, 4), [0, 2 * BLOCK, 5 * BLOCK, 8 * BLOCK, 10 * BLOCK + 5]);
        assert_eq!(slices(5, 4), [0, 0, 0, 0, 5]);
        assert_eq!(slices(0, 2), [0, 0, 0]);
        assert_eq!(within(&[0, 8, 20, 30], &(10..25)), [0, 0, 10, 15]);
        let all: Vec<_> = windows(BLOCK..4 * BLOCK + 7, 2 * BLOCK + 1).collect();
        assert_eq!(all, [BLOCK..3 * BLOCK, 3 * BLOCK..4 * BLOCK + 7]);
        assert_eq!(windows(5..5, 1).count(), 0);
        assert_eq!(windows(BLOCK..9 * BLOCK, usize::MAX).collect::<Vec<_>>(), std::slice::from_ref(&(BLOCK..9 * BLOCK)));
    }

    #[test]
    fn squares_are_summed_in_order_whichever_thread_does() {
        let of = |values: &[f32]| {
            let mut out = vec![0; values.len().div_ceil(BLOCK)];
            squares(values, &mut out);
            out.into_iter().map(f64::from_bits).collect::<Vec<_>>()
        };
        assert_eq!(of(&[1.0, 2.0]), [5.0]);
        assert!(of(&[]).is_empty() && of(&[f32::INFINITY, 1.0])[0].is_infinite());
        let many: Vec<f32> = (0..3 * THREAD_VALUES + 5).map(|i| (i as f32 * 0.37).sin()).collect();
        let alone: Vec<f64> = many.chunks(BLOCK).flat_map(of).collect();
        assert_eq!(of(&many), alone);
        for (got, block) in alone.iter().zip(many.chunks(BLOCK)) {
            let exact: f64 = block.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
            assert!((got / exact - 1.0).abs() < 1e-6, "{got} for {exact}");
        }
    }

    /// The same bits on every device: a norm must not depend on who summed the squares.
    #[test]
    fn squares_of_tensors_are_those_of_the_host() {
        let least = f32::MIN_POSITIVE;
        let special =
            [0.0, -0.0, least, least.sqrt(), -0.9 * least.sqrt(), 1.3 * least.sqrt(), 1e-20, -1e18, 1e19, f32::INFINITY, f32::NAN];
        for (len, special) in [(0, &[][..]), (1, &[]), (BLOCK - 1, &[]), (3 * BLOCK, &[]), (5 * BLOCK + 7, &special[..])] {
            let mut values: Vec<f32> = (0..len).map(|i| (i as f32 * 0.7).sin() * 10f32.powi(i as i32 % 9 - 4)).collect();
            // Each into a block of its own, as far as there are some.
            special.iter().enumerate().for_each(|(n, v)| values[n % 5 * BLOCK + 31 * n] = *v);
            let mut want = vec![0; len.div_ceil(BLOCK)];
            squares(&values, &mut want);
            for device in crate::device::under_test::devices() {
                let got: Vec<f32> = square_tensors(&Tensor::from_vec(values.clone(), &[len], &device).unwrap()).unwrap().to_vec().unwrap();
                assert_eq!(got.len(), want.len(), "{len} values on {}", device.name());
                for (n, (got, want)) in got.iter().zip(&want).enumerate() {
                    let want = f64::from_bits(*want);
                    assert!(
                        f64::from(*got) == want || got.is_nan() && want.is_nan(),
                        "block {n} of {len} on {}: {got:e}, not {want:e}",
                        device.name()
                    );
                }
            }
        }
    }

    #[test]
    fn parts_are_summed_alike_by_any_number_of_threads() {
        for len in [0, 1, 7, BLOCK + 3, 2 * THREAD_VALUES + BLOCK / 2 + 1] {
            for size in [2usize, 4, 8] {
                let part =
                    |rank: usize| (0..len).map(move |i| ((rank * 31 + i * 17) as f32 * 0.7).sin() * 10f32.powi((rank * 5 + i) as i32 % 7));
                let mut received: Vec<f32> = (0..size).flat_map(part).collect();
                let mut tree = Tree::default();
                (0..size).for_each(|rank| tree.push(part(rank).collect()));
                let mut sum = vec![f32::NAN; len];
                add_parts(size, &mut received, &mut sum);
                let whole = tree.finish().unwrap();
                assert!(sum == whole, "{size} parts of {len}");
                let parts: Vec<Vec<f32>> = (0..size).map(|rank| part(rank).collect()).collect();
                for at in (0..len).step_by(BLOCK) {
                    let block = at..(at + BLOCK).min(len);
                    let blocks: Vec<&[f32]> = parts.iter().map(|p| &p[block.clone()]).collect();
                    sum[block.clone()].fill(f32::NAN);
                    add_up(&blocks, &mut sum[block]);
                }
                assert!(sum == whole, "{size} parts of {len}, block by block");
                for rank in [0, size / 2, size - 1] {
                    let mut own: Vec<f32> = part(rank).collect();
                    let mut others: Vec<f32> = (0..size).filter(|r| *r != rank).flat_map(part).collect();
                    add_others(rank, &mut own, &mut others);
                    assert!(own == whole, "rank {rank} of {size}, {len} values");
                }
            }
        }
    }

    /// On every device, also where sums are below the least normal number, infinite or not a number.
    #[test]
    fn tensors_are_added_as_on_the_host() {
        let least = f32::MIN_POSITIVE;
        let special = [
            0.0,
            -0.0,
            least,
            -least,
            1.5 * least,
            -1.25 * least,
            2.0 * least,
            1.0,
            -1.0,
            f32::MAX,
            f32::INFINITY,
            f32::NEG_INFINITY,
            f32::NAN,
        ];
        let (a, b): (Vec<f32>, Vec<f32>) = special.iter().flat_map(|a| special.iter().map(|b| (*a, *b))).unzip();
        let mut want = a.clone();
        add(&mut want, &b);
        assert!(want.iter().all(|v| !v.is_subnormal()) && a.iter().zip(&b).any(|(a, b)| (a + b).is_subnormal()));
        for device in crate::device::under_test::devices() {
            let tensor = |v: &[f32]| Tensor::from_vec(v.to_vec(), &[v.len()], &device).unwrap();
            let got: Vec<f32> = add_tensors(&tensor(&a), &tensor(&b)).unwrap().to_vec().unwrap();
            for ((a, b), (got, want)) in a.iter().zip(&b).zip(got.iter().zip(&want)) {
                assert!(
                    got.to_bits() == want.to_bits() || got.is_nan() && want.is_nan(),
                    "{}: {a:e} + {b:e} = {got:e}, not {want:e}",
                    device.name()
                );
            }
        }
    }
}
