//! PNG and JPEG files to images in red, green and blue, with the values that PIL's `convert("RGB")` gives.

use super::RgbImage;
use super::rgb_image::check_size;
use crate::error::{TensorError, TensorResult};
use image::{DynamicImage, ImageDecoder, ImageError, ImageFormat, ImageReader, Limits};
use std::io::Cursor;
use std::path::Path;

/// Memory that a decoder may take.
const MAX_BYTES: u64 = 1 << 30;

/// Where a PNG file has the number of bits of a level, and behind it the kind of its colours.
const PNG_DEPTH: usize = 24;

impl RgbImage {
    /// Reads a PNG or JPEG file.
    ///
    /// # Errors
    /// [`TensorError::Io`] where it cannot be read; those of [`RgbImage::decode`], which name the file.
    ///
    /// ```
    /// use tensorlogic::models::RgbImage;
    /// let image = RgbImage::open("tests/vectors/images/palette.png")?;
    /// assert_eq!(image.size(), [37, 53]);
    /// assert!(RgbImage::open("Cargo.toml").unwrap_err().to_string().contains("Cargo.toml: neither PNG nor JPEG"));
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn open(path: impl AsRef<Path>) -> TensorResult<RgbImage> {
        let path = path.as_ref();
        let bytes = std::fs::read(path).map_err(|e| TensorError::io(path, e))?;
        RgbImage::decode(&bytes).map_err(|e| match e {
            TensorError::Unsupported(message) => TensorError::Unsupported(format!("{}: {message}", path.display())),
            TensorError::Value(message) => TensorError::Value(format!("{}: {message}", path.display())),
            other => other.in_file(path),
        })
    }

    /// Decodes the content of a PNG or JPEG file. Transparency is dropped, grey, palettes and 16 bits are converted, and colour profiles left aside,
    /// all as PIL's `Image.open(file).convert("RGB")` does; also as there, a camera's note that the image is turned (EXIF) is not followed.
    ///
    /// # Errors
    /// [`TensorError::Format`] for bytes that are no such file, or one that is cut or damaged; [`TensorError::Value`] for more than 89,478,485 pixels;
    /// [`TensorError::Unsupported`] for JPEG files of four inks and other rare kinds.
    ///
    /// ```
    /// use tensorlogic::models::RgbImage;
    /// let file = std::fs::read("tests/vectors/images/palette.png").expect("it is there");
    /// assert_eq!(RgbImage::decode(&file)?.size(), [37, 53]);
    /// assert!(RgbImage::decode(&file[..file.len() / 2]).is_err()); // half of it
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn decode(bytes: &[u8]) -> TensorResult<RgbImage> {
        let format = match image::guess_format(bytes) {
            Ok(format @ (ImageFormat::Png | ImageFormat::Jpeg)) => format,
            _ if bytes.is_empty() => return Err(TensorError::format("image", "the file is empty")),
            _ => return Err(TensorError::format("image", "neither PNG nor JPEG")),
        };
        if format == ImageFormat::Jpeg {
            check_jpeg(bytes)?;
        }
        let name = if format == ImageFormat::Png { "png" } else { "jpeg" };
        let wrong = |e: ImageError| match e {
            ImageError::Unsupported(e) => TensorError::Unsupported(e.to_string()),
            ImageError::Limits(_) => TensorError::Value(format!("decoding the image needs more than {MAX_BYTES} bytes")),
            other => TensorError::format(name, other.to_string()),
        };
        let mut limits = Limits::default();
        limits.max_alloc = Some(MAX_BYTES);
        let mut reader = ImageReader::with_format(Cursor::new(bytes), format);
        reader.limits(limits);
        let decoder = reader.into_decoder().map_err(wrong)?;
        let (width, height) = decoder.dimensions();
        let size = [height as usize, width as usize];
        check_size("an image", size)?;
        let decoded = DynamicImage::from_decoder(decoder).map_err(wrong)?;
        let png = bytes.get(PNG_DEPTH..PNG_DEPTH + 2).filter(|_| format == ImageFormat::Png);
        let was_rgb = png.map_or(matches!(decoded, DynamicImage::ImageRgb8(_)), |depth_and_kind| depth_and_kind[1] == 2);
        Ok(RgbImage::new(size, levels(decoded, png == Some(&[16, 0]))?)?.converted(was_rgb))
    }
}

/// The levels of red, green and blue. PIL takes the upper half of 16 bits, but where there is grey alone (`only_grey`), it cuts values to 255.
fn levels(image: DynamicImage, only_grey: bool) -> TensorResult<Vec<u8>> {
    let upper = |v: u16| (v >> 8) as u8;
    let grey = |v: u16| if only_grey { v.min(255) as u8 } else { upper(v) };
    Ok(match image {
        DynamicImage::ImageRgb8(i) => i.into_raw(),
        DynamicImage::ImageRgba8(i) => i.pixels().flat_map(|p| [p[0], p[1], p[2]]).collect(),
        DynamicImage::ImageLuma8(i) => i.pixels().flat_map(|p| [p[0]; 3]).collect(),
        DynamicImage::ImageLumaA8(i) => i.pixels().flat_map(|p| [p[0]; 3]).collect(),
        DynamicImage::ImageLuma16(i) => i.pixels().flat_map(|p| [grey(p[0]); 3]).collect(),
        DynamicImage::ImageLumaA16(i) => i.pixels().flat_map(|p| [grey(p[0]); 3]).collect(),
        DynamicImage::ImageRgb16(i) => i.pixels().flat_map(|p| [p[0], p[1], p[2]].map(upper)).collect(),
        DynamicImage::ImageRgba16(i) => i.pixels().flat_map(|p| [p[0], p[1], p[2]].map(upper)).collect(),
        other => return Err(TensorError::Unsupported(format!("an image in {:?}", other.color()))),
    })
}

/// Refuses JPEG files that stop before their end, for which the decoder would make grey up, and those of four inks, which it converts otherwise than PIL.
fn check_jpeg(bytes: &[u8]) -> TensorResult<()> {
    const END: u8 = 0xd9;
    const SCAN: u8 = 0xda;
    let cut = || TensorError::format("jpeg", format!("truncated file: the image continues after its {} bytes", bytes.len()));
    let byte = |at: usize| bytes.get(at).copied().ok_or_else(cut);
    let mut at = 2;
    loop {
        // The next marker, which any number of bytes of ones may precede.
        while byte(at)? != 0xff || byte(at + 1)? == 0xff {
            at += 1;
        }
        let marker = byte(at + 1)?;
        at += 2;
        match marker {
            END => return Ok(()),
            // Markers by themselves, and a byte of ones in the data of a scan.
            0x00 | 0x01 | 0xd0..=0xd7 => continue,
            // The header of a frame; among the numbers are those of tables, c4, c8 and cc.
            0xc0..=0xcf if ![0xc4, 0xc8, 0xcc].contains(&marker) && byte(at + 7)? == 4 => {
                return Err(TensorError::Unsupported("a JPEG file of four inks (CMYK); convert it to RGB".into()));
            }
            _ => {}
        }
        at += usize::from(byte(at)?) << 8 | usize::from(byte(at + 1)?);
        if marker == SCAN {
            while byte(at)? != 0xff || matches!(byte(at + 1)?, 0x00 | 0xd0..=0xd7 | 0xff) {
                at += 1;
            }
        }
    }
}
