//! Images with classes in memory, for the classic examples.

use super::{Dataset, Field, Part};
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};

/// Images of one shape with a class each: a batch is `[B, C, H, W]` in f32 and `[B]` in i32.
pub struct Images {
    pixels: Vec<f32>,
    classes: Vec<i32>,
    shape: [usize; 3],
}

impl Images {
    /// Images `[C, H, W]` one after the other in row-major order, and their classes.
    ///
    /// # Errors
    /// If the numbers of pixels and classes do not fit together.
    ///
    /// ```
    /// use tensorlogic::data::{Dataset, Images};
    /// let images = Images::new(vec![0.0; 24], [3, 2, 2], vec![7, 1])?; // two images of 12 numbers
    /// assert_eq!(images.len(), 2);
    /// assert!(Images::new(vec![0.0; 25], [3, 2, 2], vec![7, 1]).is_err());
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn new(pixels: Vec<f32>, shape: [usize; 3], classes: Vec<i32>) -> TensorResult<Images> {
        let size: usize = shape.iter().product();
        if size == 0 || pixels.len() != size * classes.len() {
            let m = format!("{} numbers are not {} images of {shape:?}", pixels.len(), classes.len());
            return Err(TensorError::Value(m));
        }
        Ok(Images { pixels, classes, shape })
    }

    /// Images from bytes; 0 to 255 become 0 to 1.
    ///
    /// # Errors
    /// See [`Images::new`].
    ///
    /// ```
    /// use tensorlogic::data::{Dataset, Images, Part};
    /// let images = Images::from_bytes(&[0, 255, 51, 102], [1, 1, 2], vec![3, 8])?;
    /// let (mut pixels, mut class) = ([0.0; 2], [0]);
    /// images.read(1, &mut [Part::F32(&mut pixels), Part::I32(&mut class)])?;
    /// assert_eq!((pixels, class), ([0.2, 0.4], [8])); // 51 and 102 of 255
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn from_bytes(bytes: &[u8], shape: [usize; 3], classes: Vec<i32>) -> TensorResult<Images> {
        Images::new(bytes.iter().map(|&b| b as f32 / 255.0).collect(), shape, classes)
    }
}

impl Dataset for Images {
    fn len(&self) -> usize {
        self.classes.len()
    }
    fn fields(&self) -> Vec<Field> {
        vec![Field { dtype: DType::F32, shape: self.shape.to_vec() }, Field { dtype: DType::I32, shape: vec![] }]
    }
    fn read(&self, index: usize, parts: &mut [Part]) -> TensorResult<()> {
        let [Part::F32(pixels), Part::I32(class)] = parts else {
            return Err(TensorError::Value("images have pixels and a class".into()));
        };
        let size = pixels.len();
        pixels.copy_from_slice(&self.pixels[index * size..][..size]);
        class[0] = self.classes[index];
        Ok(())
    }
}
