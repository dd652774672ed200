//! Batches of examples that come one after the other and can be neither counted nor indexed, shuffled in a buffer.

use super::host::{HostBatch, Ring, Worker, check};
use super::loader::hash;
use super::{Field, Part};
use crate::device::Device;
use crate::error::{TensorError, TensorResult};
use crate::tensor::Tensor;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Where streams of examples come from: files, a socket, a generator. A background thread reads them.
///
/// ```
/// use tensorlogic::data::{Field, Part, Stream, StreamLoader, StreamOptions, StreamSource};
/// use tensorlogic::prelude::*;
///
/// /// Ever the number of the epoch, twice.
/// struct Epochs;
/// struct Epoch(i32, usize);
///
/// impl StreamSource for Epochs {
///     fn fields(&self) -> Vec<Field> {
///         vec![Field { dtype: DType::I32, shape: vec![] }]
///     }
///     fn open(&self, epoch: u64) -> TensorResult<Box<dyn Stream>> {
///         Ok(Box::new(Epoch(epoch as i32, 0)))
///     }
/// }
///
/// impl Stream for Epoch {
///     fn next(&mut self, parts: &mut [Part]) -> TensorResult<bool> {
///         if let Part::I32(out) = &mut parts[0] {
///             out[0] = self.0;
///         }
///         self.1 += 1;
///         Ok(self.1 <= 2)
///     }
/// }
///
/// let mut loader = StreamLoader::new(Epochs, StreamOptions { batch: 2, buffer: 2, ..Default::default() }, &Device::cpu())?;
/// assert_eq!(loader.next_batch()?[0].to_vec()?, [0.0, 0.0]);
/// assert_eq!(loader.next_batch()?[0].to_vec()?, [1.0, 1.0]);
/// # Ok::<(), TensorError>(())
/// ```
pub trait StreamSource: Send + Sync {
    /// The parts of every example.
    fn fields(&self) -> Vec<Field>;
    /// The examples of an epoch, from the first on. The same epoch must give the same examples, for a run that is continued.
    ///
    /// # Errors
    /// If the stream cannot be opened; the loader's next call returns the error.
    fn open(&self, epoch: u64) -> TensorResult<Box<dyn Stream>>;
}

/// Examples one after the other.
///
/// ```
/// use tensorlogic::TensorResult;
/// use tensorlogic::data::{Part, Stream};
///
/// /// The numbers down to 1.
/// struct Down(f32);
///
/// impl Stream for Down {
///     fn next(&mut self, parts: &mut [Part]) -> TensorResult<bool> {
///         if let Part::F32(out) = &mut parts[0] {
///             out[0] = self.0;
///         }
///         self.0 -= 1.0;
///         Ok(self.0 >= 0.0)
///     }
/// }
///
/// let (mut stream, mut number) = (Down(1.0), [0.0]);
/// assert!(stream.next(&mut [Part::F32(&mut number)])?);
/// assert_eq!(number, [1.0]);
/// assert!(!stream.next(&mut [Part::F32(&mut number)])?); // there are no more
/// # Ok::<(), tensorlogic::TensorError>(())
/// ```
pub trait Stream: Send {
    /// Writes the next example, one part for each field; `false` at the end, after which it is not asked again.
    ///
    /// # Errors
    /// If the example cannot be read; the loader's next call returns the error.
    fn next(&mut self, parts: &mut [Part]) -> TensorResult<bool>;
}

/// Settings of a [`StreamLoader`].
#[derive(Clone, Copy, Debug)]
pub struct StreamOptions {
    /// Examples of a batch.
    pub batch: usize,
    /// Examples that wait in the shuffle buffer, of which each batch draws: the larger, the better they are mixed. 1 keeps the stream's order.
    pub buffer: usize,
    /// The seed of the draws.
    pub seed: u64,
    /// Whether examples at an epoch's end that fill no batch are left out; else the last batch is smaller.
    pub drop_last: bool,
    /// Batches that a thread reads ahead; 0 reads when asked.
    pub prefetch: usize,
}

impl Default for StreamOptions {
    fn default() -> Self {
        StreamOptions { batch: 1, buffer: 1024, seed: 0, drop_last: true, prefetch: 2 }
    }
}

/// A stream loader's state.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default, serde::Serialize, serde::Deserialize)]
pub struct StreamState {
    /// The seed of the draws.
    pub seed: u64,
    /// The epoch.
    pub epoch: u64,
    /// Batches of it that were given.
    pub batches: u64,
}

/// The reading side.
struct Reader {
    source: Arc<dyn StreamSource>,
    fields: Arc<Vec<Field>>,
    options: StreamOptions,
    /// The open epoch; `None` before the first.
    open: Option<Epoch>,
    /// The next epoch to open.
    epoch: u64,
}

/// An epoch that is being read.
struct Epoch {
    number: u64,
    stream: Box<dyn Stream>,
    /// Whether the stream may have more.
    more: bool,
    /// The shuffle buffer.
    waiting: HostBatch,
    drawn: u64,
    batches: u64,
}

impl Reader {
    /// A reader whose next batch is the one of `state`. Examples before it are read again and left out: the buffer's content follows from all of them.
    fn at(source: Arc<dyn StreamSource>, fields: Arc<Vec<Field>>, options: StreamOptions, state: StreamState) -> TensorResult<Reader> {
        let options = StreamOptions { seed: state.seed, ..options };
        let mut reader = Reader { source, fields, options, open: None, epoch: state.epoch };
        let mut used = None;
        for _ in 0..state.batches {
            used = Some(reader.batch(used)?);
        }
        Ok(reader)
    }

    /// The next batch of this epoch, or the first of the next.
    fn batch(&mut self, used: Option<HostBatch>) -> TensorResult<HostBatch> {
        let mut out = used.unwrap_or_else(|| HostBatch::new(&self.fields, self.options.batch));
        // A whole epoch without a batch would be followed by others without end.
        for _ in 0..2 {
            let mut epoch = match self.open.take() {
                Some(epoch) => epoch,
                None => self.begin()?,
            };
            out.rows = 0;
            while out.rows < self.options.batch && epoch.waiting.rows > 0 {
                epoch.draw(&self.fields, self.options, &mut out)?;
            }
            if out.rows == self.options.batch || (out.rows > 0 && !self.options.drop_last) {
                epoch.batches += 1;
                out.place = (epoch.number, epoch.batches);
                self.open = Some(epoch);
                return Ok(out);
            }
            if epoch.batches == 0 {
                let m =
                    format!("epoch {} of the stream has {} examples, fewer than a batch of {}", epoch.number, out.rows, self.options.batch);
                return Err(TensorError::Config(m));
            }
        }
        Err(TensorError::Internal("an epoch of a stream began without a batch".into()))
    }

    /// Opens the next epoch and fills its buffer.
    fn begin(&mut self) -> TensorResult<Epoch> {
        let waiting = HostBatch::new(&self.fields, self.options.buffer);
        let stream = self.source.open(self.epoch)?;
        let mut epoch = Epoch { number: self.epoch, stream, more: true, waiting, drawn: 0, batches: 0 };
        self.epoch += 1;
        while epoch.more && epoch.waiting.rows < self.options.buffer {
            let row = epoch.waiting.rows;
            epoch.read(&self.fields, row)?;
            epoch.waiting.rows += usize::from(epoch.more);
        }
        Ok(epoch)
    }
}

impl Epoch {
    /// Reads the stream's next example into row `row` of the buffer, if there is one.
    fn read(&mut self, fields: &[Field], row: usize) -> TensorResult<()> {
        self.more = self.more && self.stream.next(&mut self.waiting.row(fields, row))?;
        Ok(())
    }

    /// Moves an example of the buffer to the end of `out`; the stream's next one takes its place.
    fn draw(&mut self, fields: &[Field], options: StreamOptions, out: &mut HostBatch) -> TensorResult<()> {
        let bits = hash(hash(options.seed, self.number), self.drawn);
        let row = ((u128::from(bits) * self.waiting.rows as u128) >> 64) as usize;
        self.drawn += 1;
        out.copy_row(fields, out.rows, &self.waiting, row);
        out.rows += 1;
        self.read(fields, row)?;
        if !self.more {
            self.waiting.rows -= 1;
            self.waiting.move_row(fields, self.waiting.rows, row);
        }
        Ok(())
    }
}

/// Batches of a stream, epoch after epoch: one tensor `[batch, …]` for each field. Memory is used again as in [`super::DataLoader`].
///
/// ```
/// # use tensorlogic::{DType, Device, TensorResult};
/// # use tensorlogic::data::{Field, Part, Stream, StreamLoader, StreamOptions, StreamSource};
/// /// The numbers 0 to 99.
/// struct Numbers;
/// impl StreamSource for Numbers {
///     fn fields(&self) -> Vec<Field> {
///         vec![Field { dtype: DType::U8, shape: vec![] }]
///     }
///     fn open(&self, _epoch: u64) -> TensorResult<Box<dyn Stream>> {
///         Ok(Box::new(Count(0)))
///     }
/// }
/// struct Count(u8);
/// impl Stream for Count {
///     fn next(&mut self, parts: &mut [Part]) -> TensorResult<bool> {
///         if let Part::U8(out) = &mut parts[0] {
///             out[0] = self.0;
///         }
///         self.0 += 1;
///         Ok(self.0 <= 100)
///     }
/// }
/// # fn main() -> TensorResult<()> {
/// let mut loader = StreamLoader::new(Numbers, StreamOptions { batch: 8, buffer: 32, ..Default::default() }, &Device::cpu())?;
/// loader.next_batch()?;
/// let place = loader.state(); // for a checkpoint
/// let next = loader.next_batch()?[0].to_vec_of::<u8>()?;
/// assert!(next.iter().all(|n| *n < 48)); // of the first 32 and those that took their places
/// loader.load_state(place);
/// assert_eq!(loader.next_batch()?[0].to_vec_of::<u8>()?, next);
/// # Ok(())
/// # }
/// ```
pub struct StreamLoader {
    source: Arc<dyn StreamSource>,
    fields: Arc<Vec<Field>>,
    options: StreamOptions,
    device: Device,
    state: StreamState,
    /// Reads when asked, where there is no thread.
    reader: Option<Reader>,
    worker: Option<Worker>,
    ring: Ring,
    stalled: Duration,
}

impl StreamLoader {
    /// A loader at the start of the first epoch.
    ///
    /// # Errors
    /// If a batch or the buffer has no examples, or a field has a dtype that is none of f32, f16, i32, i64 and u8 or that the device lacks.
    ///
    /// ```
    /// # use tensorlogic::data::{Field, Part, Stream, StreamLoader, StreamOptions, StreamSource};
    /// # use tensorlogic::prelude::*;
    /// /// The numbers from 0 to 3.
    /// struct Numbers(i32);
    /// # impl StreamSource for Numbers {
    /// #     fn fields(&self) -> Vec<Field> {
    /// #         vec![Field { dtype: DType::I32, shape: vec![] }]
    /// #     }
    /// #     fn open(&self, _epoch: u64) -> TensorResult<Box<dyn Stream>> {
    /// #         Ok(Box::new(Numbers(0)))
    /// #     }
    /// # }
    /// # impl Stream for Numbers {
    /// #     fn next(&mut self, parts: &mut [Part]) -> TensorResult<bool> {
    /// #         if let Part::I32(out) = &mut parts[0] {
    /// #             out[0] = self.0;
    /// #         }
    /// #         self.0 += 1;
    /// #         Ok(self.0 <= 4)
    /// #     }
    /// # }
    /// // One example waits at a time, so that the stream's order is kept.
    /// let options = StreamOptions { batch: 2, buffer: 1, ..StreamOptions::default() };
    /// let mut loader = StreamLoader::new(Numbers(0), options, &Device::cpu())?;
    /// assert_eq!(loader.next_batch()?[0].to_vec()?, [0.0, 1.0]);
    /// assert!(StreamLoader::new(Numbers(0), StreamOptions { buffer: 0, ..options }, &Device::cpu()).is_err());
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn new(source: impl StreamSource + 'static, options: StreamOptions, device: &Device) -> TensorResult<StreamLoader> {
        let fields = source.fields();
        check(&fields, device)?;
        if options.batch == 0 || options.buffer == 0 {
            return Err(TensorError::Config(format!("batches of {} from a buffer of {} examples", options.batch, options.buffer)));
        }
        Ok(StreamLoader {
            source: Arc::new(source),
            fields: Arc::new(fields),
            options,
            device: device.clone(),
            state: StreamState { seed: options.seed, ..StreamState::default() },
            reader: None,
            worker: None,
            ring: Ring::default(),
            stalled: Duration::ZERO,
        })
    }

    /// The loader's state, which determines all following batches of the same stream.
    pub fn state(&self) -> StreamState {
        self.state
    }

    /// Restores the state of another loader of the same stream with the same options. The next call reads the epoch's examples up to there again.
    pub fn load_state(&mut self, state: StreamState) {
        (self.worker, self.reader) = (None, None);
        self.state = state;
    }

    /// How long calls of [`StreamLoader::next_batch`] waited for examples to be read, in all.
    pub fn stalled(&self) -> Duration {
        self.stalled
    }

    /// The next batch.
    ///
    /// # Errors
    /// Those of the stream and of the device, and when an epoch has fewer examples than a batch. The next call begins where this one did.
    ///
    /// ```
    /// # use tensorlogic::data::{Field, Part, Stream, StreamLoader, StreamOptions, StreamSource};
    /// # use tensorlogic::prelude::*;
    /// /// The numbers from 0 to 3.
    /// struct Numbers(i32);
    /// # impl StreamSource for Numbers {
    /// #     fn fields(&self) -> Vec<Field> {
    /// #         vec![Field { dtype: DType::I32, shape: vec![] }]
    /// #     }
    /// #     fn open(&self, _epoch: u64) -> TensorResult<Box<dyn Stream>> {
    /// #         Ok(Box::new(Numbers(0)))
    /// #     }
    /// # }
    /// # impl Stream for Numbers {
    /// #     fn next(&mut self, parts: &mut [Part]) -> TensorResult<bool> {
    /// #         if let Part::I32(out) = &mut parts[0] {
    /// #             out[0] = self.0;
    /// #         }
    /// #         self.0 += 1;
    /// #         Ok(self.0 <= 4)
    /// #     }
    /// # }
    /// let options = StreamOptions { batch: 2, buffer: 1, ..StreamOptions::default() };
    /// let mut loader = StreamLoader::new(Numbers(0), options, &Device::cpu())?;
    /// for expected in [[0.0, 1.0], [2.0, 3.0], [0.0, 1.0]] {
    ///     assert_eq!(loader.next_batch()?[0].to_vec()?, expected);
    /// }
    /// assert_eq!(loader.state().epoch, 1); // the third batch began the second epoch
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn next_batch(&mut self) -> TensorResult<Vec<Tensor>> {
        let began = Instant::now();
        let host = self.next_on_host();
        self.stalled += began.elapsed();
        let host = host.inspect_err(|_| (self.worker, self.reader) = (None, None))?;
        let place = host.place;
        let (tensors, free) = self.ring.tensors(host, &self.fields, self.options.batch, &self.device)?;
        (self.state.epoch, self.state.batches) = place;
        if let (Some(w), Some(free)) = (&self.worker, free) {
            w.give_back(free);
        }
        Ok(tensors)
    }

    fn next_on_host(&mut self) -> TensorResult<HostBatch> {
        if self.worker.is_none() && self.reader.is_none() && self.options.prefetch > 0 {
            let (source, fields, options, state) = (self.source.clone(), self.fields.clone(), self.options, self.state);
            let mut reader = None;
            self.worker = Worker::start(options.prefetch, move |used| {
                if reader.is_none() {
                    reader = Some(Reader::at(source.clone(), fields.clone(), options, state)?);
                }
                match &mut reader {
                    Some(reader) => reader.batch(used),
                    None => Err(TensorError::Internal("a stream without a reader".into())),
                }
            });
        }
        if let Some(w) = &self.worker {
            return w.next();
        }
        let reader = match self.reader.take() {
            Some(reader) => reader,
            None => Reader::at(self.source.clone(), self.fields.clone(), self.options, self.state)?,
        };
        self.reader.insert(reader).batch(None)
    }
}
