//! Refuses tuning tables with sizes for which there is no kernel.

use super::{AttentionTuning, MAX_NORM_BYTES, MAX_WORKGROUP_THREADS, Tuning};
use crate::error::{TensorError, TensorResult};

impl Tuning {
    /// Refuses values with which a kernel could not be written, or that only a damaged file has: zero where something is divided by it, tiles
    /// without subgroups, times that are not valid times. Thresholds are free: with any of them results are right, only slower.
    ///
    /// # Errors
    /// [`TensorError::Config`], which names the value.
    ///
    /// ```
    /// use tensorlogic::tuning::Tuning;
    /// let mut table = Tuning::generic();
    /// table.check()?;
    /// table.gemm.tiles[0].bk = 0;
    /// assert!(table.check().unwrap_err().to_string().contains("gemm.tiles[0].bk is 0"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn check(&self) -> TensorResult<()> {
        let wrong = |what: String| Err(TensorError::Config(format!("tuning table {:?}: {what}", self.name)));
        for (i, tile) in self.gemm.tiles.iter().enumerate() {
            let counts = [
                ("warps", tile.warps[0].min(tile.warps[1]), tile.warps[0].max(tile.warps[1]), 32),
                ("fragments", tile.fragments[0].min(tile.fragments[1]), tile.fragments[0].max(tile.fragments[1]), 16),
                ("bk", tile.bk, tile.bk, 4096),
            ];
            for (name, least, most, limit) in counts {
                if least == 0 || most > limit {
                    let value = if least == 0 { least } else { most };
                    return wrong(format!("gemm.tiles[{i}].{name} is {value}; expected 1 to {limit}"));
                }
            }
            if !tile.bk.is_multiple_of(16) {
                return wrong(format!("gemm.tiles[{i}].bk is {}; expected a multiple of 16", tile.bk));
            }
        }
        let AttentionTuning { elements, elements_queries, elements_keys, .. } = &self.attention;
        for (name, tiles) in [("elements", elements), ("elements_queries", elements_queries), ("elements_keys", elements_keys)] {
            for (i, tile) in tiles.iter().enumerate().filter(|(_, t)| t.subgroups > 0) {
                let (columns, counts) = (tile.columns, [("subgroups", tile.subgroups, 32), ("fragments", tile.fragments, 16)]);
                if let Some((field, value, limit)) = counts.into_iter().find(|&(_, n, limit)| n == 0 || n > limit) {
                    return wrong(format!("attention.{name}[{i}].{field} is {value}; expected 1 to {limit}"));
                }
                if columns == 0 || columns > 1024 || !columns.is_multiple_of(8) {
                    return wrong(format!("attention.{name}[{i}].columns is {columns}; expected a multiple of 8 up to 1024"));
                }
            }
        }
        let tile_times = self.gemm.tiles.iter().flat_map(|t| t.busy_us.iter().chain([&t.alone_us]));
        let times = tile_times.chain(&self.gemm.split_us).chain([&self.gemm.store_us]);
        if let Some(t) = times.into_iter().find(|t| !(0.0..=1e9).contains(*t)) {
            return wrong(format!("a time of gemm is {t}; expected microseconds from 0 to 1e9"));
        }
        let divisors = [
            ("compute_units", self.compute_units as usize),
            ("gemv.int8_max_threads", self.gemv.int8_max_threads),
            ("gemv.int8_full_threads", self.gemv.int8_full_threads),
            ("attention.split_bytes", self.attention.split_bytes),
            ("attention.split_groups[0]", self.attention.split_groups[0]),
            ("attention.split_groups[1]", self.attention.split_groups[1]),
            ("reduce.full_groups", self.reduce.full_groups),
            ("reduce.split_elements", self.reduce.split_elements),
            ("reduce.arg_split_elements", self.reduce.arg_split_elements),
            ("reduce.index_add_groups", self.reduce.index_add_groups),
            ("submit.max_ops", self.submit.max_ops as usize),
            ("submit.max_steps", self.submit.max_steps),
        ];
        if let Some(rows) = self.metal.gemv_rows.into_iter().find(|&rows| rows > 4) {
            return wrong(format!("metal.gemv_rows has {rows}; expected at most 4"));
        }
        if let Some((name, _)) = divisors.into_iter().find(|d| d.1 == 0) {
            return wrong(format!("{name} is 0; expected 1 or more"));
        }
        if let Some((name, n, [least, most])) = self.sizes().into_iter().find(|(_, n, [least, most])| n < least || n > most) {
            return wrong(format!("{name} is {n}; expected {least} to {most}"));
        }
        match self.workgroups().into_iter().find(|(_, n, _)| !n.is_power_of_two()) {
            Some((name, n, _)) => wrong(format!("{name} is {n}; expected a power of two")),
            None => Ok(()),
        }
    }

    /// Sizes of kernels: loops that are written out, threads, memory. Each with the least and the largest for which there is a kernel.
    fn sizes(&self) -> Vec<(&'static str, usize, [usize; 2])> {
        let (gemv, experts, attention, rows) = (&self.gemv, &self.experts, &self.attention, &self.rows);
        let (most, list, items) = (MAX_WORKGROUP_THREADS as usize, 1 << 16, [1, 16]);
        let mut all = vec![
            ("gemv.int8_rows[0]", gemv.int8_rows[0], [1, gemv.int8_rows[1]]),
            ("gemv.int8_rows[1]", gemv.int8_rows[1], [1, 32]),
            ("gemv.column_groups", gemv.column_groups, [1, usize::MAX]),
            ("gemv.max_norm_bytes", gemv.max_norm_bytes, [0, MAX_NORM_BYTES]),
            ("experts.segment_pairs", experts.segment_pairs as usize, [1, 2048]),
            ("experts.full_list", experts.full_list as usize, [1, list]),
            ("experts.subgroups", experts.subgroups as usize, [1, 32]),
            ("experts.min_step", experts.min_step as usize, [8, most]),
            ("attention.split_queries", attention.split_queries, [1, 8]),
            ("attention.split_threads[0]", attention.split_threads[0] as usize, [4, most]),
            ("attention.split_threads[1]", attention.split_threads[1] as usize, [4, most]),
            ("unpack.workgroup_threads", self.unpack.workgroup_threads as usize, [1, most]),
            ("byte_entropy.table_entries", self.byte_entropy.table_entries, [0, 2048]),
            ("byte_entropy.unit_threads", self.byte_entropy.unit_threads, [1, usize::MAX]),
            ("byte_entropy.workgroup_threads", self.byte_entropy.workgroup_threads, [1, most]),
        ];
        let in_flight = gemv.in_flight.map(|n| ("gemv.in_flight", n));
        let written_out = [
            ("experts.in_flight", experts.in_flight),
            ("experts.pairs_per_read", experts.pairs_per_read),
            ("experts.vec4_reads", experts.vec4_reads),
            ("rows.in_flight", rows.in_flight),
        ];
        all.extend(in_flight.into_iter().chain(written_out).map(|(name, n)| (name, n as usize, items)));
        all.extend(experts.tile_pairs.map(|[height, _]| ("experts.tile_pairs", height as usize, [8, most])));
        all.extend(experts.tile_rows.map(|n| ("experts.tile_rows", n as usize, [8, most])));
        all.extend(self.workgroups().into_iter().map(|(name, n, most)| (name, n as usize, [64, most as usize])));
        all.extend(rows.registers.map(|n| ("rows.registers", n, [0, 64])));
        all.extend([("rows.grad_quads", rows.grad_quads), ("rows.topk_elements", rows.topk_elements)].map(|(name, n)| (name, n, [0, 64])));
        all.push(("rows.thread_vectors", rows.thread_vectors, [0, 1024]));
        all
    }

    /// Threads of workgroups that groups of a power of two share, and the most for which every adapter has the memory that the kernel needs.
    fn workgroups(&self) -> Vec<(&'static str, u32, u32)> {
        let (gemv, attention, rows) = (&self.gemv, &self.attention, &self.rows);
        let mut all = vec![
            ("gemv.column_threads", gemv.column_threads, MAX_WORKGROUP_THREADS),
            ("rows.topk_threads", rows.topk_threads, MAX_WORKGROUP_THREADS),
            ("attention.tiled_threads", attention.tiled_threads, 256),
        ];
        all.extend(gemv.workgroup_threads.map(|n| ("gemv.workgroup_threads", n, 256)));
        all.extend(rows.workgroup_threads.map(|n| ("rows.workgroup_threads", n, MAX_WORKGROUP_THREADS)));
        all.extend(attention.decode_threads.map(|n| ("attention.decode_threads", n, 512)));
        all
    }
}
