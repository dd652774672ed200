// How a workgroup normalises a left side: sums over its threads, and what rows are multiplied with and what is added.
${NORM_SUM}
#if GAIN
fn gain4(c: u32) -> vec4<f32> { return load4_${GAIN_LOAD}(c); }
#endif
#if SHIFT
fn shift4(c: u32) -> vec4<f32> { return load4_${SHIFT_LOAD}(c); }
#endif
