// Q1_0: a scale and signs. PART 1: how items are loaded, for loads.wgsl; 2: how they are unpacked, for coded.wgsl.

#if PART == 1
fn first_q1_0${S}(b: u32, g: u32) -> vec4<u32> { return vec4<u32>(one_word${S}(18u * b + 2u + 4u * g), half_bits${S}(18u * b), 0u, 0u); }
#else
fn packed_q1_0${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, c: u32) -> u32 { return 2u * ones${T}(x.x >> (4u * c)); }
fn scale_q1_0${T}(x: vec4<u32>, y: vec4<u32>, z: vec4<u32>, g: u32, s: u32) -> vec2<f32> { return vec2<f32>(bitcast<f32>(x.y), 0.0); }
#endif
