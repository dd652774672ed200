//! Kernels in Metal's language of the forms that Apple's compiler is known to get wrong. The library has none of them: what they give is told, and fails
//! nothing.

use super::caught;
use super::litmus::ROUNDS;
use crate::device::Device;
use crate::error::TensorResult;
use crate::ops::custom::CustomOp;
use crate::plan::RawLanguage;
use crate::tensor::Tensor;

/// A form: what it is, a kernel of it, and what that makes of whole numbers.
struct Form {
    name: &'static str,
    op: CustomOp,
    right: fn(&[f32]) -> Vec<f32>,
}

/// Elements, and those of a threadgroup whose memory is passed by reference.
const COUNT: usize = 4096;
const GROUP: usize = 64;
/// How often that memory is written and read.
const PASSES: usize = 16;
/// How often a thread that does not leave early doubles its value.
const DOUBLED: usize = 8;

const BY_REFERENCE: &str = "#include <metal_stdlib>
struct Words {
    uint count;
};
struct Tile {
    float at[64];
};
void put(
    threadgroup Tile& tile,
    uint t,
    float x
) {
    tile.at[t] = x;
}
float take(
    threadgroup Tile& tile,
    uint t
) {
    return tile.at[t];
}
kernel void by_reference(
    constant Words& words [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device float* y [[buffer(2)]],
    metal::uint3 g [[threadgroup_position_in_grid]],
    metal::uint3 n [[threadgroups_per_grid]],
    uint t [[thread_index_in_threadgroup]]
) {
    threadgroup Tile tile;
    uint i = (g.y * n.x + g.x) * 64u + t;
    float value = i < words.count ? x[i] : 0.0;
    float sum = 0.0;
    for (uint k = 1u; k <= 16u; k++) {
        put(tile, t, value * float(k));
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
        sum += take(tile, (7u * t + k) % 64u);
        metal::threadgroup_barrier(metal::mem_flags::mem_threadgroup);
    }
    if (i < words.count) {
        y[i] = sum;
    }
}
";

const EARLY_RETURN: &str = "#include <metal_stdlib>
struct Words {
    uint count;
};
[[max_total_threads_per_threadgroup(32)]] kernel void early_return(
    constant Words& words [[buffer(0)]],
    device const float* x [[buffer(1)]],
    device float* y [[buffer(2)]],
    metal::uint3 g [[threadgroup_position_in_grid]],
    metal::uint3 n [[threadgroups_per_grid]],
    uint t [[thread_index_in_threadgroup]]
) {
    uint i = (g.y * n.x + g.x) * 32u + t;
    if (i >= words.count) {
        return;
    }
    if (x[i] < 0.0) {
        y[i] = -1.0;
        return;
    }
    float value = x[i];
    for (uint k = 0u; k < 8u; k++) {
        value = 2.0 * value + 1.0;
    }
    y[i] = value;
}
";

fn forms() -> [Form; 2] {
    // SAFETY: both kernels guard their index, and have groups of as many threads as is said.
    let [by_reference, early_return] = unsafe {
        [
            CustomOp::elementwise("by_reference").wgsl("fn by_reference(x: f32) -> f32 { return x; }").msl(
                "by_reference",
                GROUP as u32,
                BY_REFERENCE,
            ),
            CustomOp::elementwise("early_return").wgsl("fn early_return(x: f32) -> f32 { return x; }").msl(
                "early_return",
                32,
                EARLY_RETURN,
            ),
        ]
    };
    let in_group = |x: &[f32]| {
        let sum = |i: usize| (1..=PASSES).map(|k| x[i / GROUP * GROUP + (7 * (i % GROUP) + k) % GROUP] * k as f32).sum();
        (0..x.len()).map(sum).collect()
    };
    let doubled = |x: &[f32]| x.iter().map(|v| if *v < 0.0 { -1.0 } else { (0..DOUBLED).fold(*v, |v, _| 2.0 * v + 1.0) }).collect();
    [
        Form { name: "threadgroup memory that a function gets by reference (wgpu 4500)", op: by_reference, right: in_group },
        Form { name: "threads that return early from groups of 32 (MoltenVK 2711)", op: early_return, right: doubled },
    ]
}

/// How many values of so many rounds are wrong.
fn wrong(form: &Form, device: &Device) -> TensorResult<usize> {
    let mut wrong = 0;
    for round in 0..ROUNDS as usize {
        let x: Vec<f32> = (0..COUNT).map(|i| ((i * 29 + round * 7) % 31) as f32 - 9.0).collect();
        let want = (form.right)(&x);
        // Stored, as the form in Metal's language asks for.
        let x = Tensor::from_vec(x, &[COUNT], device)?;
        x.eval()?;
        wrong += form.op.apply(&[&x], &[])?.to_vec()?.iter().zip(&want).filter(|(got, want)| got != want).count();
    }
    Ok(wrong)
}

/// What became of each form; nothing where the device takes no texts in Metal's language.
pub(super) fn told(device: &Device) -> Vec<String> {
    let adapter = device.backend().adapter().filter(|a| a.info.raw == Some(RawLanguage::Msl));
    let of = |form: &Form| match caught(|| wrong(form, device)) {
        Ok(0) => format!("{}: right", form.name),
        Ok(wrong) => format!("{}: {wrong} of {} values are wrong", form.name, COUNT * ROUNDS as usize),
        Err(why) => format!("{}: {why}", form.name),
    };
    adapter.map_or(vec![], |_| forms().iter().map(of).collect())
}
