// Four numbers of a field of block `b`, one in each byte: number 4·v and the three behind it. AT, WIDTH, LANES: where its bits lie, as BitField in
// quant/block.rs says.

#if LANES == 1
#if IN_WORDS
fn ${NAME}${S}(b: u32, v: u32) -> u32 { return spread(raw_${N}[${BYTES / 4}u * b + ${AT / 4}u] >> (4u * v)); }
#else
fn ${NAME}${S}(b: u32, v: u32) -> u32 { return spread(word_at${S}(${BYTES}u * b + ${AT}u) >> (4u * v)); }
#endif
#else
fn ${NAME}${S}(b: u32, v: u32) -> u32 {
#if BLOCK_QUADS * WIDTH > 2 * LANES
  let row = v / ${2 * LANES / WIDTH}u;
  let shift = v / ${LANES / 4}u % ${8 / WIDTH}u * ${WIDTH}u;
#else
  let row = 0u;
  let shift = v / ${LANES / 4}u * ${WIDTH}u;
#endif
#if IN_WORDS
  let w = raw_${N}[${BYTES / 4}u * b + ${AT / 4}u + row * ${LANES / 4}u + v % ${LANES / 4}u];
#else
  let w = word_at${S}(${BYTES}u * b + ${AT}u + row * ${LANES}u + v % ${LANES / 4}u * 4u);
#endif
#if WIDTH == 8
  return w;
#else
  return (w >> shift) & ${((1 << WIDTH) - 1) * 16843009}u;
#endif
}
#endif
