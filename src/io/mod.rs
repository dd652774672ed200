//! Files: GGUF, safetensors.
