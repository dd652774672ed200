//! An image of 8 bits for each of red, green and blue, as processors and decoders hand it on.

use crate::error::{TensorError, TensorResult};
use std::fmt;

/// The most pixels of an image: that many at which PIL begins to warn of files that are small and decode to much. Their levels are 256 MiB.
pub(super) const MAX_PIXELS: usize = (1 << 30) / 4 / 3;

/// An image in memory: rows from the top, in each its pixels from the left, of each red, green and blue from 0 to 255.
#[derive(Clone, PartialEq, Eq)]
pub struct RgbImage {
    size: [usize; 2],
    levels: Vec<u8>,
    /// Whether it was in red, green and blue of 8 bits before.
    was_rgb: bool,
}

impl fmt::Debug for RgbImage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "RgbImage({} × {})", self.size[0], self.size[1])
    }
}

impl RgbImage {
    /// An image of `height` · `width` pixels with these levels `[height,width,3]`.
    ///
    /// # Errors
    /// [`TensorError::Value`] for no pixels, more than 89,478,485 of them, or another number of levels.
    ///
    /// ```
    /// use tensorlogic::models::RgbImage;
    /// let red_and_blue = RgbImage::new([1, 2], vec![255, 0, 0, 0, 0, 255])?;
    /// assert_eq!(red_and_blue.size(), [1, 2]);
    /// assert!(RgbImage::new([1, 2], vec![255, 0, 0]).is_err()); // one pixel instead of two
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new([height, width]: [usize; 2], levels: Vec<u8>) -> TensorResult<RgbImage> {
        check_size("an image", [height, width])?;
        if levels.len() != 3 * height * width {
            let message = format!("an image of {height} × {width} pixels has {} levels, not {}", 3 * height * width, levels.len());
            return Err(TensorError::Value(message));
        }
        Ok(RgbImage { size: [height, width], levels, was_rgb: true })
    }

    /// Marks it as converted from another kind of image.
    #[cfg(feature = "images")]
    pub(super) fn converted(self, was_rgb: bool) -> RgbImage {
        RgbImage { was_rgb, ..self }
    }

    /// Height and width.
    pub fn size(&self) -> [usize; 2] {
        self.size
    }

    /// The levels `[height,width,3]`.
    pub fn levels(&self) -> &[u8] {
        &self.levels
    }

    pub(super) fn was_rgb(&self) -> bool {
        self.was_rgb
    }
}

/// Refuses sizes without a pixel or with too many of them.
pub(super) fn check_size(what: &str, [height, width]: [usize; 2]) -> TensorResult<()> {
    match height.checked_mul(width) {
        Some(1..=MAX_PIXELS) => Ok(()),
        Some(0) => Err(TensorError::Value(format!("{what} of {height} × {width} pixels has none"))),
        _ => Err(TensorError::Value(format!("{what} of {height} × {width} pixels is larger than the {MAX_PIXELS} that are read"))),
    }
}
