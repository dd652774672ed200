// The 16-bit floats of two words as f32.
#if BF16
fn ${NAME}(h: vec2<u32>) -> vec4<f32> { return bitcast<vec4<f32>>(vec4<u32>(h.x << 16u, h.x & 0xffff0000u, h.y << 16u, h.y & 0xffff0000u)); }
#else
fn ${NAME}(h: vec2<u32>) -> vec4<f32> { return vec4<f32>(unpack2x16float(h.x), unpack2x16float(h.y)); }
#endif
