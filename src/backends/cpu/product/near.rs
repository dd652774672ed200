//! Products whose columns stay in a core's own cache: tiles read them as they lie, and threads do not meet.

use super::tile::{Columns, Later, MAX_TILE_ROWS, ROW_PADDING, Stored, Tile, floats};
use super::{Direct, Product};
use crate::backends::cpu::operand::values;
use crate::backends::cpu::share;
use std::ops::Range;

/// Bytes of columns that every tile reads as they lie.
const UNPACKED_MAX_BYTES: usize = 512 << 10;
/// Steps of k up to which a tile's packed rows stay in the L1 cache.
const L1_STEPS: usize = 512;
/// Rows of a thread's own products from which on packed columns are quicker.
const PACK_MIN_ROWS: usize = 192;
/// Columns of a panel.
const PANEL_COLUMNS: usize = 32;

/// Rows of about one size, at most as many as the tallest tile has.
fn groups(rows: Range<usize>) -> impl Iterator<Item = Range<usize>> {
    let (first, count) = (rows.start, rows.len());
    let groups = count.div_ceil(MAX_TILE_ROWS);
    (0..groups).map(move |g| first + count * g / groups..first + count * (g + 1) / groups)
}

impl Product<'_> {
    /// Runs this thread's share, where the product is like that.
    ///
    /// # Safety
    /// See `product`.
    pub(super) unsafe fn near(&self) -> bool {
        let (s, steps, all) = (self.s, self.steps(), self.columns.rows);
        let columns = self.columns.columns_in_place(0, 0).filter(|c| !self.pairs && all * steps * c.stored.bytes() <= UNPACKED_MAX_BYTES);
        // A thread that multiplies that many rows with the same columns had better pack them, where nothing else has to be packed.
        let apart = s.batch >= self.task.threads() && s.batch > 1;
        let tall = apart && self.rows.rows >= PACK_MIN_ROWS && self.rows.rows_in_place(self.pairs, 0, 0).is_some();
        if columns.is_none() || self.transposed || tall || steps > L1_STEPS || all < PANEL_COLUMNS {
            return false;
        }
        // SAFETY: the caller's promise.
        unsafe { self.columns_in_place(steps) };
        true
    }

    /// Batches of this thread; rows, and panels, of each.
    fn shares(&self, by_rows: bool, panels: usize) -> [Range<usize>; 3] {
        let (batch, rows) = (self.s.batch, self.rows.rows);
        let own = |count: usize| share(count, 1, self.task.thread(), self.task.threads());
        if batch >= self.task.threads() && batch > 1 {
            [own(batch), 0..rows, 0..panels]
        } else if by_rows {
            [0..batch, own(rows), 0..panels]
        } else {
            [0..batch, 0..rows, own(panels)]
        }
    }

    /// A few rows at a time, packed where they have to be, times columns that lie side by side in the operand.
    ///
    /// # Safety
    /// See `product`.
    unsafe fn columns_in_place(&self, steps: usize) {
        let (s, all) = (self.s, self.columns.rows);
        let panels = all.div_ceil(PANEL_COLUMNS);
        let by_rows = self.rows.rows >= 2 * MAX_TILE_ROWS * self.task.threads() || panels < self.task.threads();
        let [batches, rows, panels] = self.shares(by_rows, panels);
        let (n0, n) = (panels.start * PANEL_COLUMNS, all.min(panels.end * PANEL_COLUMNS).saturating_sub(panels.start * PANEL_COLUMNS));
        let row = steps + ROW_PADDING;
        let buffer = values::<f32>(self.task, MAX_TILE_ROWS * row).as_mut_ptr();
        let results = values::<f32>(self.task, if self.direct.is_some() { 0 } else { MAX_TILE_ROWS * n }).as_mut_ptr();
        for batch in batches {
            for rows in groups(rows.clone()) {
                let begin = (batch * s.m + rows.start) * s.n + n0;
                // SAFETY: the buffers have room for a tile's rows; the operands lie within theirs; the result's rows and columns are this
                // thread's.
                unsafe {
                    let (numbers, row) = match self.rows.rows_in_place(self.pairs, batch, rows.start) {
                        Some(place) => place,
                        None => {
                            self.rows.pack_rows(self.pairs, batch, [rows.start, rows.len()], [0, steps], buffer, row);
                            (buffer.cast_const(), row)
                        }
                    };
                    let to = self.direct.map_or(Direct { at: results.cast(), stored: Stored::F32, row: n }, |d| d.from(begin));
                    for p in panels.clone() {
                        let t = Tile {
                            steps,
                            rows: numbers,
                            row,
                            panel: std::ptr::null(),
                            ahead: 0,
                            later: Later::NONE,
                            operand: self.columns.columns_in_place(batch, p * PANEL_COLUMNS),
                            c: to.from(p * PANEL_COLUMNS - n0).at,
                            c_row: to.row,
                            c_stored: to.stored,
                            columns: Columns::of(PANEL_COLUMNS, all - p * PANEL_COLUMNS),
                            add: false,
                        };
                        floats::tile(rows.len(), t);
                    }
                    if self.direct.is_none() {
                        self.store(begin, std::slice::from_raw_parts_mut(results, rows.len() * n), n);
                    }
                }
            }
        }
    }
}
