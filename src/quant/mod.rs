//! GGML block formats: one file each = layout, unpack, pack.
