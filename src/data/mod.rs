//! Training data: datasets and streams, batches in a seeded order prefetched in the background, padding, token files, images in memory.

mod host;
mod images;
mod loader;
mod pad;
mod stream;
mod tokens;

pub use images::Images;
pub use loader::{DataLoader, LoaderOptions, LoaderState, Order};
pub use pad::{PadOptions, Padded, PaddedTokens, pad_rows};
pub use stream::{Stream, StreamLoader, StreamOptions, StreamSource, StreamState};
pub use tokens::{TokenFile, TokenWindows};

use crate::dtype::DType;
use crate::error::TensorResult;

/// One part of an example: an input, a target.
#[derive(Clone, Debug, PartialEq)]
pub struct Field {
    /// [`DType::F32`], [`DType::F16`], [`DType::I32`], [`DType::I64`] (which arrives as i32 on a GPU) or [`DType::U8`].
    pub dtype: DType,
    /// Sizes of one example's part, without the batch.
    pub shape: Vec<usize>,
}

/// Where one part of one example goes, in row-major order.
pub enum Part<'a> {
    /// Numbers.
    F32(&'a mut [f32]),
    /// Numbers of half the size.
    F16(&'a mut [half::f16]),
    /// Tokens, classes.
    I32(&'a mut [i32]),
    /// Large integers.
    I64(&'a mut [i64]),
    /// Bytes: pixels, masks.
    U8(&'a mut [u8]),
}

/// Examples by number. A background thread reads them.
///
/// ```
/// use tensorlogic::data::{DataLoader, Dataset, Field, LoaderOptions, Order, Part};
/// use tensorlogic::prelude::*;
///
/// /// Numbers and their squares.
/// struct Squares;
///
/// impl Dataset for Squares {
///     fn len(&self) -> usize {
///         4
///     }
///     fn fields(&self) -> Vec<Field> {
///         vec![Field { dtype: DType::F32, shape: vec![] }; 2]
///     }
///     fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
///         if let [Part::F32(x), Part::F32(y)] = parts {
///             (x[0], y[0]) = (index as f32, (index * index) as f32);
///         }
///         Ok(())
///     }
/// }
///
/// let options = LoaderOptions { batch: 4, order: Order::Sequential, ..LoaderOptions::default() };
/// let batch = DataLoader::new(Squares, options, &Device::cpu())?.next_batch()?;
/// assert_eq!(batch[1].to_vec()?, [0.0, 1.0, 4.0, 9.0]);
/// # Ok::<(), TensorError>(())
/// ```
pub trait Dataset: Send + Sync {
    /// The number of examples.
    fn len(&self) -> usize;
    /// Whether the dataset is empty.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }
    /// The parts of every example.
    fn fields(&self) -> Vec<Field>;
    /// Writes example `index`, one part for each field.
    ///
    /// # Errors
    /// If the example cannot be read; the loader's next call returns the error.
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()>;
}

impl<D: Dataset + ?Sized> Dataset for std::sync::Arc<D> {
    fn len(&self) -> usize {
        (**self).len()
    }
    fn fields(&self) -> Vec<Field> {
        (**self).fields()
    }
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
        (**self).read(index, parts)
    }
}
