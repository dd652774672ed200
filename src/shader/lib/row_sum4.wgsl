// The sum of a quad.
fn sum4(x: vec4<f32>) -> f32 { return (x.x + x.y) + (x.z + x.w); }
