//! Gives memory back to the system: what the pool and the backend keep, and blocks of the driver, once the values in them lie elsewhere.

use super::GpuBackend;
use super::core::Core;
use super::memory::{Free, GpuBuffer, RESULT, buffer_name};
use crate::backends::fragmentation::DriverMemory;
use crate::backends::lock::lock;
use crate::backends::pool::PoolControl;
use crate::error::TensorResult;
use std::collections::{HashMap, HashSet};

/// How often the sparsest blocks are emptied: there is more room in the others' free ranges once large values have left.
const ROUNDS: usize = 4;
/// How often new places are asked for, for values that were given places in blocks that are to be emptied.
const ATTEMPTS: usize = 8;
/// The part of other blocks' free bytes that may be filled: the rest is lost between buffers.
const MAX_FILL: f64 = 0.9;

/// A block of the driver: the names of the buffers in it, and its bytes.
struct Block {
    buffers: Vec<String>,
    used: u64,
    size: u64,
}

/// The driver's blocks; none where it does not report them.
fn blocks(core: &Core) -> Vec<Block> {
    let Some(report) = core.driver.device.generate_allocator_report() else { return Vec::new() };
    let whole = report.blocks.iter().map(|b| (b.size, report.allocations.get(b.allocations.clone()).unwrap_or_default()));
    whole
        .map(|(size, all)| {
            let used = all.iter().map(|a| a.size).sum();
            Block { buffers: all.iter().map(|a| a.name.clone()).collect(), used, size }
        })
        .collect()
}

/// The sums over the driver's blocks.
pub(super) fn driver_memory(core: &Core) -> Option<DriverMemory> {
    let report = core.driver.device.generate_allocator_report()?;
    let mut largest_free = 0;
    for block in &report.blocks {
        let mut ranges: Vec<(u64, u64)> =
            report.allocations.get(block.allocations.clone())?.iter().map(|a| (a.offset, a.offset + a.size)).collect();
        ranges.sort_unstable();
        ranges.push((block.size, block.size));
        let mut end = 0;
        for (from, to) in ranges {
            largest_free = largest_free.max(from.saturating_sub(end));
            end = end.max(to);
        }
    }
    let (reserved, allocated) = (report.total_reserved_bytes, report.total_allocated_bytes);
    Some(DriverMemory { reserved, allocated, blocks: report.blocks.len(), largest_free })
}

impl GpuBackend {
    /// The passes of `Backend::defragment`.
    pub(super) fn defragment_in(&self, passes: usize) -> TensorResult<u64> {
        if passes == 0 {
            return Ok(0);
        }
        self.core.check()?;
        // What was destroyed is free as soon as the work that uses it is done.
        self.core.memory.pool.shrink(0);
        self.core.queue.wait()?;
        if passes > 1 {
            *lock(&self.staging) = [None, None];
            lock(&self.spare).clear();
            lock(&self.runner).forget_groups();
            self.core.queue.wait()?;
        }
        let (mut moved, mut reserved) = (0, u64::MAX);
        for _ in 0..if passes > 2 { ROUNDS } else { 0 } {
            // As long as blocks are given back.
            let now = driver_memory(&self.core).map_or(0, |d| d.reserved);
            if now >= std::mem::replace(&mut reserved, now) {
                break;
            }
            moved += self.empty_blocks()?;
        }
        Ok(moved)
    }

    /// Empties the driver's sparsest blocks, as many as fit into the others. Gives the bytes that were moved.
    fn empty_blocks(&self) -> TensorResult<u64> {
        let core = &self.core;
        // No plan runs meanwhile.
        let mut runner = lock(&self.runner);
        let values: HashMap<String, GpuBuffer> =
            core.memory.values().into_iter().filter(|b| b.0.class.kind != RESULT).map(|b| (buffer_name(b.0.id()), b)).collect();
        let before = blocks(core);
        let targets = sparsest(&before, |name| values.contains_key(name));
        if targets.is_empty() {
            return Ok(0);
        }
        let leaving: Vec<&GpuBuffer> = targets.iter().flat_map(|&b| &before[b].buffers).filter_map(|name| values.get(name)).collect();
        let known: HashSet<&String> = before.iter().flat_map(|b| &b.buffers).collect();
        let emptied: HashSet<&String> = targets.iter().flat_map(|&b| &before[b].buffers).collect();
        let places = self.places(&leaving, |block| {
            // A block of new buffers only is a new one.
            block.buffers.iter().any(|name| known.contains(name)) && !block.buffers.iter().any(|name| emptied.contains(name))
        })?;
        let moved = places.iter().map(|(b, _)| b.0.size).sum();
        core.queue.send_with(|e| {
            for (from, to) in &places {
                e.copy_buffer_to_buffer(&from.0.raw(), 0, &to.raw, 0, from.0.size);
            }
        });
        let old: Vec<wgpu::Buffer> = places.into_iter().map(|(b, place)| b.0.replace(place)).collect();
        runner.forget_groups();
        drop(runner);
        // Readers may still hold the old buffers: they are let go, not destroyed.
        drop(old);
        core.queue.wait()?;
        Ok(moved)
    }

    /// New places for values, in blocks that are `good`; for as many as there are places.
    fn places<'b>(&self, values: &[&'b GpuBuffer], good: impl Fn(&Block) -> bool) -> TensorResult<Vec<(&'b GpuBuffer, Free)>> {
        let core = &self.core;
        let mut waiting: Vec<&'b GpuBuffer> = values.to_vec();
        waiting.sort_by_key(|b| b.0.size);
        let (mut found, mut ballast) = (Vec::new(), Vec::new());
        for _ in 0..ATTEMPTS {
            let mut made = Vec::new();
            // The largest first.
            for &b in waiting.iter().rev() {
                made.extend(core.memory.create(b.0.class)?.map(|place| (b, place)));
            }
            if made.is_empty() {
                break;
            }
            let fits: HashSet<String> = blocks(core).into_iter().filter(&good).flat_map(|b| b.buffers).collect();
            let (fitting, rest): (Vec<_>, Vec<_>) = made.into_iter().partition(|(_, place)| fits.contains(&buffer_name(place.id)));
            found.extend(fitting);
            waiting = rest.iter().map(|(b, _)| *b).collect();
            waiting.sort_by_key(|b| b.0.size);
            // What lies in a block that is to be emptied stays until the end, so that the next ones go elsewhere.
            ballast.extend(rest);
        }
        ballast.into_iter().for_each(|(_, place)| place.raw.destroy());
        Ok(found)
    }
}

/// The blocks with the fewest bytes in use whose buffers can all be moved, as many as have room in the free ranges of the others.
fn sparsest(blocks: &[Block], movable: impl Fn(&String) -> bool) -> Vec<usize> {
    let mut order: Vec<usize> = (0..blocks.len()).filter(|&b| blocks[b].used < blocks[b].size).collect();
    order.sort_by_key(|&b| blocks[b].used);
    let mut free: u64 = order.iter().map(|&b| blocks[b].size - blocks[b].used).sum();
    let (mut used, mut out) = (0, Vec::new());
    for b in order {
        let block = &blocks[b];
        let left = free - (block.size - block.used);
        if !block.buffers.iter().all(&movable) || used + block.used > (left as f64 * MAX_FILL) as u64 {
            continue;
        }
        (free, used) = (left, used + block.used);
        out.push(b);
    }
    out
}
