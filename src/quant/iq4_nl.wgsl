// IQ4_NL: a scale and indices of a table. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_iq4_nl${S}(b: u32, g: u32) -> vec4<u32> { return four_words${S}(18u * b + 2u); }
fn second_iq4_nl${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(half_bits${S}(18u * b), 0u, 0u, 0u); }
#else
fn packed_iq4_nl${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return levels${T}((x[c & 3u] >> (c & 4u)) & 0x0f0f0f0fu); }
fn scale_iq4_nl${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(y.x), 0.0); }
#endif
