//! Files: GGUF, safetensors.
//!
//! Reading never trusts the file: every length, count and offset is checked against the bytes that are there before it is used.

pub mod disk;
pub mod folder;
pub mod gguf;
pub mod info;
pub mod mapped;
pub mod safetensors;
pub mod save;
pub(crate) mod widen;

pub use disk::{human_bytes, write_error};
pub use folder::{FolderWriter, check_folder, save_folder};
pub use gguf::{Gguf, GgufWriter};
pub use info::TensorInfo;
pub use mapped::MappedFile;
pub use safetensors::{SafeTensors, write_safetensors};
