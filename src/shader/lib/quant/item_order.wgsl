// How the quads of an item lie in a row: RUNS runs of SPAN quads lie behind each other, and an item has WIDTH quads of each.
const WIDTH: u32 = QUADS / RUNS; // neighbouring quads of an item
const SPAN_ITEMS: u32 = SPAN / WIDTH; // items that share a span of quads
// The place in a row of quad c of item i.
fn quad_of(i: u32, c: u32) -> u32 { return i / SPAN_ITEMS * (SPAN * RUNS) + c / WIDTH * SPAN + i % SPAN_ITEMS * WIDTH + c % WIDTH; }
