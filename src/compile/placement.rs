//! Lifetimes in, places out: values whose lives do not overlap share a slot, and where ranges of a slot may be used, so do values side by side.

use crate::plan::WINDOW_UNIT;

/// Places within a slot are multiples of this many bytes on the CPU: a cache line, and a whole number of vectors of every dtype.
pub(super) const ALIGNMENT: usize = 64;
/// Values up to which places are searched for; the time grows with the square of their number.
const MAX_SEARCHED_VALUES: usize = 4096;
/// Places that `one_at_a_time` tries, besides a few for each value.
const TRIED_PLACES: usize = 1 << 16;
/// Placements that the last pass of `improve` tries.
const SEARCHES: usize = 24;

/// A value that needs a place. Lists of them are in order of first use.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lifetime {
    pub bytes: usize,
    /// The first and the last step that touches it.
    pub first: usize,
    pub last: usize,
}

impl Lifetime {
    fn meets(&self, other: &Lifetime) -> bool {
        self.first <= other.last && other.first <= self.last
    }
}

/// What slots are made of.
#[derive(Clone, Copy)]
pub(super) struct Memory<'a> {
    /// Of how many bytes places are multiples, where a slot may hold several values at once, side by side.
    pub ranges: Option<usize>,
    /// The bytes that the pool takes for a request.
    pub leased: &'a dyn Fn(usize) -> usize,
}

/// Slots with the place of each value in them.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Placement {
    /// Bytes of each slot.
    pub slots: Vec<usize>,
    /// Of each value its slot and its first byte there.
    pub places: Vec<(usize, usize)>,
}

impl Placement {
    /// Bytes of all slots.
    pub fn bytes(&self) -> usize {
        self.slots.iter().sum()
    }
    /// What the pool takes for them.
    pub fn leased(&self, memory: Memory<'_>) -> usize {
        self.slots.iter().map(|&bytes| (memory.leased)(bytes)).sum()
    }
}

/// Bytes that are live at the same step, at most.
pub(super) fn most_live(values: &[Lifetime]) -> usize {
    let end = values.iter().map(|v| v.last + 2).max().unwrap_or(0);
    let mut change = vec![0isize; end];
    for v in values {
        change[v.first] += v.bytes as isize;
        change[v.last + 1] -= v.bytes as isize;
    }
    let mut live = 0;
    change.into_iter().map(|c| (live += c, live).1).max().unwrap_or(0) as usize
}

/// One value after the other as they come to life: the smallest free slot that is large enough, else the largest free one, which grows: slots
/// are leased for a run, so growing costs nothing.
pub(super) fn best_fit(values: &[Lifetime]) -> Placement {
    let mut p = Placement { slots: Vec::new(), places: vec![(0, 0); values.len()] };
    let (mut free, mut held): (Vec<usize>, Vec<(usize, usize)>) = Default::default();
    for (v, value) in values.iter().enumerate() {
        held.retain(|&(last, slot)| {
            if last < value.first {
                free.push(slot);
            }
            last >= value.first
        });
        let fits = (0..free.len()).filter(|&f| p.slots[free[f]] >= value.bytes).min_by_key(|&f| p.slots[free[f]]);
        let slot = match fits.or_else(|| (0..free.len()).max_by_key(|&f| p.slots[free[f]])) {
            Some(f) => free.swap_remove(f),
            None => {
                p.slots.push(0);
                p.slots.len() - 1
            }
        };
        p.slots[slot] = p.slots[slot].max(value.bytes);
        p.places[v] = (slot, 0);
        held.push((value.last, slot));
    }
    p
}

/// All values in one buffer, in order of first use: each at the first place that is free for its life.
pub(super) fn by_first_use(values: &[Lifetime]) -> Placement {
    let mut p = Placement { slots: Vec::new(), places: vec![(0, 0); values.len()] };
    let mut placed: Vec<(usize, usize, usize)> = Vec::new();
    for (v, value) in values.iter().enumerate() {
        let (at, _) = gaps(&mut placed, values, *value, ALIGNMENT).find(|(_, room)| *room >= value.bytes).expect("the last gap has no end");
        p.places[v] = (0, at);
        placed.push((at, at + value.bytes, v));
    }
    p.slots.extend(placed.iter().map(|p| p.1).max());
    p
}

/// The free places beside `placed` (start, end, value) over a value's life, as start and room. The last one has no end.
fn gaps<'a>(
    placed: &'a mut [(usize, usize, usize)],
    values: &'a [Lifetime],
    value: Lifetime,
    alignment: usize,
) -> impl Iterator<Item = (usize, usize)> + 'a {
    placed.sort_unstable();
    let (mut end, mut closed) = (0usize, false);
    let mut others = placed.iter().filter(move |p| values[p.2].meets(&value));
    std::iter::from_fn(move || {
        if closed {
            return None;
        }
        let start = end.next_multiple_of(alignment);
        match others.next() {
            Some(&(from, to, _)) => {
                end = end.max(to);
                Some((start, from.saturating_sub(start)))
            }
            None => {
                closed = true;
                Some((start, usize::MAX))
            }
        }
    })
}

/// The largest values first, each where the pool has to give the least for it.
pub(super) fn by_size(values: &[Lifetime], memory: Memory<'_>) -> Placement {
    in_order(values, &size_order(values), memory)
}

fn size_order(values: &[Lifetime]) -> Vec<usize> {
    let mut order: Vec<usize> = (0..values.len()).collect();
    order.sort_by_key(|&v| (std::cmp::Reverse(values[v].bytes), values[v].first));
    order
}

/// Values in this order, each where the pool has to give the least for it: into a gap, behind the others of a slot, or into a new one.
fn in_order(values: &[Lifetime], order: &[usize], memory: Memory<'_>) -> Placement {
    let mut p = Placement { slots: Vec::new(), places: vec![(0, 0); values.len()] };
    let mut placed: Vec<Vec<(usize, usize, usize)>> = Vec::new();
    for &v in order {
        let value = values[v];
        // More bytes of the pool, more bytes planned, values of the slot that a step reads when it writes this one or the other way round
        // (a GPU must declare both as written), room left over.
        let mut best = (((memory.leased)(value.bytes), value.bytes, 0, 0), placed.len(), 0);
        for (s, others) in placed.iter_mut().enumerate() {
            let meets_end = |o: &&(usize, usize, usize)| values[o.2].last == value.first || values[o.2].first == value.last;
            let mixed = if memory.ranges == Some(WINDOW_UNIT) { others.iter().filter(meets_end).count() } else { 0 };
            let mut offer = |at: usize, room: usize| {
                let size = p.slots[s].max(at + value.bytes);
                let more = ((memory.leased)(size) - (memory.leased)(p.slots[s]), size - p.slots[s], mixed, room - value.bytes);
                if more < best.0 || (more == best.0 && best.1 == p.slots.len()) {
                    best = (more, s, at);
                }
            };
            if let Some(alignment) = memory.ranges {
                gaps(others, values, value, alignment).filter(|g| g.1 >= value.bytes).for_each(|(at, room)| offer(at, room));
            } else if others.iter().all(|o| !values[o.2].meets(&value)) {
                offer(0, p.slots[s].max(value.bytes));
            }
        }
        let (_, s, at) = best;
        if s == placed.len() {
            placed.push(Vec::new());
            p.slots.push(0);
        }
        p.slots[s] = p.slots[s].max(at + value.bytes);
        p.places[v] = (s, at);
        placed[s].push((at, at + value.bytes, v));
    }
    p
}

/// One value at a time in the smallest slots with which that can be done at all: the k-th largest slot has the size of the k-th largest value of
/// those that are live at one step, at most. Values in order of first use take the smallest slot that is free, with steps back where none is.
/// `None` where that fails, or takes too long.
fn one_at_a_time(values: &[Lifetime]) -> Option<Placement> {
    let (mut slots, mut live): (Vec<usize>, Vec<&Lifetime>) = Default::default();
    for value in values {
        live.retain(|other| other.last >= value.first);
        live.insert(live.partition_point(|other| other.bytes > value.bytes), value);
        slots.resize(slots.len().max(live.len()), 0);
        slots.iter_mut().zip(&live).for_each(|(slot, value)| *slot = value.bytes.max(*slot));
    }
    // The first step at which each slot is free; of each placed value its slot, and since when that had been free.
    let (mut free, mut placed) = (vec![0; slots.len()], Vec::with_capacity(values.len()));
    let (mut untried, mut tries) = (slots.len(), TRIED_PLACES + 8 * values.len());
    while let Some(value) = values.get(placed.len()) {
        tries = tries.checked_sub(1)?;
        match (0..untried).rev().find(|&s| slots[s] >= value.bytes && free[s] <= value.first) {
            Some(s) => {
                placed.push((s, std::mem::replace(&mut free[s], value.last + 1)));
                untried = slots.len();
            }
            None => {
                let (s, before) = placed.pop()?;
                free[s] = before;
                // Slots of one size that are free are alike.
                untried = slots.partition_point(|&bytes| bytes > slots[s]);
            }
        }
    }
    Some(Placement { places: placed.into_iter().map(|(s, _)| (s, 0)).collect(), slots })
}

/// Looks for a placement of fewer bytes than `known`, in two passes: by size, then by moving values forward that made slots grow. Gives
/// the best, and the number of passes until it needed no more than `bound` bytes.
pub(super) fn improve(values: &[Lifetime], known: Placement, bound: usize, memory: Memory<'_>) -> (Placement, usize) {
    if known.bytes() <= bound || values.len() > MAX_SEARCHED_VALUES {
        return (known, 0);
    }
    if let Some(least) = memory.ranges.is_none().then(|| one_at_a_time(values)).flatten() {
        return (least, 1);
    }
    let most = known.bytes();
    let cost = |p: &Placement| (p.leased(memory), p.bytes());
    let mut best = known;
    let mut order = size_order(values);
    let mut tried = in_order(values, &order, memory);
    let mut passes = 1;
    for search in 0..=SEARCHES {
        if tried.bytes() <= most && cost(&tried) < cost(&best) {
            best = tried.clone();
        }
        if best.bytes() <= bound || search == SEARCHES {
            break;
        }
        passes = 2;
        // The value that ends last in the slot that was made last goes before all others.
        let Some(late) = order.iter().rposition(|&v| {
            let (s, at) = tried.places[v];
            at + values[v].bytes == tried.slots[s] && (tried.slots.len() == 1 || s > 0)
        }) else {
            break;
        };
        if late == 0 {
            break;
        }
        let v = order.remove(late);
        order.insert(0, v);
        tried = in_order(values, &order, memory);
    }
    (best, passes)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn random(seed: u64, count: usize) -> Vec<Lifetime> {
        let mut state = seed.wrapping_mul(0x9E37_79B9_7F4A_7C15) + 1;
        let mut roll = |sides: usize| {
            state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
            (state >> 33) as usize % sides
        };
        let life = |n: usize| Lifetime { bytes: 16 + 4 * roll(1 << (2 + 2 * (n % 6))), first: n, last: n + roll(12) };
        (0..count).map(life).collect()
    }

    fn check(values: &[Lifetime], p: &Placement, what: &str) {
        for (a, &(slot, start)) in p.places.iter().enumerate() {
            assert!(start.is_multiple_of(ALIGNMENT) && start + values[a].bytes <= p.slots[slot], "{what}: value {a}");
            for (b, &(other, from)) in p.places[..a].iter().enumerate() {
                let apart = slot != other || start + values[a].bytes <= from || from + values[b].bytes <= start;
                assert!(apart || !values[a].meets(&values[b]), "{what}: values {a} and {b} share bytes");
            }
        }
        assert!(p.bytes() >= most_live(values), "{what}: no placement needs fewer bytes than are live");
    }

    #[test]
    fn values_that_live_at_the_same_time_are_apart() {
        for seed in 0..200 {
            let values = random(seed, 5 + seed as usize % 60);
            let bound = most_live(&values);
            let counted = (0..80).map(|i| values.iter().filter(|v| v.first <= i && i <= v.last).map(|v| v.bytes).sum::<usize>());
            assert_eq!(bound, counted.max().unwrap());
            let program = best_fit(&values);
            check(&values, &program, "best fit");
            check(&values, &by_first_use(&values), "by first use");
            for ranges in [None, Some(ALIGNMENT), Some(256)] {
                let memory = Memory { ranges, leased: &|bytes| bytes.next_multiple_of(1024) };
                check(&values, &by_size(&values, memory), "by size");
                let (best, _) = improve(&values, program.clone(), bound, memory);
                check(&values, &best, "improved");
                assert!(best.bytes() <= program.bytes() && best.leased(memory) <= program.leased(memory));
                let step = ranges.unwrap_or(usize::MAX);
                assert!(best.places.iter().all(|p| p.1.is_multiple_of(step)), "places are multiples of {step}");
            }
        }
    }

    #[test]
    fn slots_of_one_value_at_a_time_are_as_small_as_they_can_be() {
        let (mut found, mut fewer) = (0, 0);
        for seed in 0..200 {
            let values = random(seed, 5 + seed as usize % 60);
            let Some(p) = one_at_a_time(&values) else { continue };
            check(&values, &p, "one at a time");
            assert!(p.places.iter().all(|place| place.1 == 0));
            let whole = Memory { ranges: None, leased: &|bytes| bytes };
            let others = best_fit(&values).bytes().min(by_size(&values, whole).bytes());
            assert!(p.bytes() <= others, "{} and {others} bytes", p.bytes());
            (found, fewer) = (found + 1, fewer + usize::from(p.bytes() < others));
        }
        assert!(found > 50 && fewer > 20, "{found} of 200 found, {fewer} of fewer bytes");
    }

    #[test]
    fn small_values_go_beside_each_other_under_a_large_one() {
        let life = |bytes, first, last| Lifetime { bytes, first, last };
        let values = [life(1024, 0, 1), life(512, 2, 3), life(512, 2, 3), life(256, 4, 5)];
        let whole = Memory { ranges: None, leased: &|bytes| bytes };
        assert_eq!(best_fit(&values).slots, [1024, 512]);
        assert_eq!(by_size(&values, whole).slots, [1024, 512]);
        let (p, passes) = improve(&values, best_fit(&values), 1024, Memory { ranges: Some(ALIGNMENT), ..whole });
        assert_eq!((p.slots, p.places, passes), (vec![1024], vec![(0, 0), (0, 0), (0, 512), (0, 0)], 1));
    }
}
