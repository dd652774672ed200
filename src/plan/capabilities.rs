//! What a backend states about itself. Ops and the library choose by it; they never ask which device they are on.

/// Where the same result can be had in several ways, what tells which of them suits a backend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// Values lie in the host's memory: reading one is a copy, and nothing has to be launched.
    pub host_memory: bool,
    /// Work is queued: it runs while the host goes on, and several runs can be on their way.
    pub queue: bool,
    /// Runs are timed by a clock of the device's own.
    pub clock: bool,
    /// Kernels are shaders; elsewhere they are Rust functions.
    pub shaders: bool,
    /// Few rows take as long as many, so that it pays to round sizes up to those that there is a plan for.
    pub wide: bool,
    /// One kernel sums along rows and down columns, as gradients of norms and of attention need it; elsewhere each direction is a kernel.
    pub joint_gradients: bool,
    /// There are products of integers.
    pub integer_products: bool,
    /// Weights in f32 and bf16 are worth a conversion to f16, once, where activations are f16.
    pub f16_weights: bool,
    /// A step may read one part of a buffer and write another.
    pub ranges: bool,
    /// A part of a buffer can be bound as a buffer of its own.
    pub windows: bool,
    /// Bytes of one memory transaction.
    pub line: usize,
    /// Bytes of one tensor at most. A larger one of bytes is in parts, which products with it and lookups in it use.
    pub max_tensor_bytes: usize,
}

impl Capabilities {
    /// Those of the host's own processor.
    pub const HOST: Capabilities = Capabilities {
        host_memory: true,
        queue: false,
        clock: false,
        shaders: false,
        wide: false,
        joint_gradients: true,
        integer_products: true,
        f16_weights: false,
        ranges: true,
        windows: false,
        line: 64,
        max_tensor_bytes: usize::MAX,
    };
    /// Those of a GPU.
    pub const GPU: Capabilities = Capabilities {
        host_memory: false,
        queue: true,
        clock: true,
        shaders: true,
        wide: true,
        joint_gradients: false,
        integer_products: false,
        f16_weights: true,
        ranges: false,
        windows: true,
        line: 128,
        max_tensor_bytes: usize::MAX,
    };
}
