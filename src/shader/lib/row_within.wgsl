// Whether vector number h of a thread, of the RESIDENT that it keeps, lies in the row: only the last one may not.
fn within(h: u32, lane: u32, cols: u32) -> bool { return h + 1u < RESIDENT || lane + h * ROW_THREADS < (cols + 7u) / 8u; }
