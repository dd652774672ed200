//! Models whose layers are distributed: over several devices of this process, or over ranks. The first device, or rank 0, holds what stands around
//! the layers too: it embeds, takes the residual stream back from the last part, and chooses tokens. Nothing else goes from part to part.

use crate::backends::Bytes;
use crate::device::Device;
use crate::distributed::Ranks;
use crate::dtype::DType;
use crate::error::{TensorError, TensorResult};
use crate::models::cache::CacheView;
use crate::models::decoder::part::{Part, layer_of};
use crate::models::{Decoder, KvCache, Layer, Model, ModelShape, Pass, Settings, Weights, describe};
use crate::tensor::Tensor;
use std::fmt;
use std::ops::Range;
use std::sync::{Arc, Mutex};

/// Which layers of a model are in which part, so that the largest part is as small as may be; known before weights are loaded.
///
/// ```
/// use tensorlogic::models::{Sampler, Session, LayerStages, Weights};
/// use tensorlogic::prelude::*;
///
/// let device = Device::cpu();
/// let file = concat!(env!("CARGO_MANIFEST_DIR"), "/models/tiny/tiny.gguf");
/// let stages = LayerStages::of(&Weights::open(file, &device)?, 2)?;
/// assert_eq!(stages.layers().iter().map(|part| part.len()).sum::<usize>(), 6);
/// // Both parts on one device here; on a machine with two GPUs: `Device::open("vulkan:0")?` and `Device::open("vulkan:1")?`.
/// let model = stages.load(&[Weights::open(file, &device)?, Weights::open(file, &device)?], None)?;
/// let mut session = Session::new(&*model, 64, &device)?;
/// assert!(session.prompt(&[5, 6, 7], || false)?.is_some());
/// # Ok::<(), TensorError>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LayerStages {
    layers: Vec<Range<usize>>,
    bytes: Vec<u64>,
}

impl LayerStages {
    /// The layers of these weights in `count` parts, by the bytes of the file.
    ///
    /// # Errors
    /// [`TensorError::Config`] where there are fewer layers than parts, or no part; those of reading the model's settings.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{LayerStages, Weights};
    /// let weights = Weights::open("models/tiny/tiny.gguf", &Device::cpu())?;
    /// let stages = LayerStages::of(&weights, 2)?;
    /// assert_eq!(stages.layers(), [0..3, 3..6]);
    /// assert!(stages.bytes()[0] > stages.bytes()[1]); // the first part has the embeddings too
    /// assert!(LayerStages::of(&weights, 7).is_err()); // there are six layers
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn of(weights: &Weights, count: usize) -> TensorResult<LayerStages> {
        let layers = describe(weights, &Settings::new(weights)?)?.layers.len();
        let (mut own, mut ends) = (vec![0u64; layers], 0);
        for (name, bytes) in weights.stored_bytes() {
            match layer_of(&name).filter(|l| *l < layers) {
                Some(layer) => own[layer] += bytes,
                None => ends += bytes,
            }
        }
        if count == 0 || count > layers {
            return Err(TensorError::Config(format!("{layers} layers in {count} parts: expected at least one layer in each")));
        }
        let layers = split(&own, ends, count);
        let bytes = layers.iter().enumerate().map(|(n, part)| own[part.clone()].iter().sum::<u64>() + if n == 0 { ends } else { 0 });
        Ok(LayerStages { bytes: bytes.collect(), layers })
    }

    /// The layers of each part, by their numbers.
    pub fn layers(&self) -> &[Range<usize>] {
        &self.layers
    }

    /// The bytes of each part's weights in the file; the first has the embeddings and the head too.
    pub fn bytes(&self) -> &[u64] {
        &self.bytes
    }

    /// Checks before anything is loaded that the device of these weights has room for what it allocates for a part; weights that are read in place from
    /// their file need none. `dtype` is as for [`LayerStages::load`].
    ///
    /// # Errors
    /// [`TensorError::Rank`] with the part, its bytes and those that are free; those of reading the model's settings.
    ///
    /// ```
    /// use tensorlogic::Device;
    /// use tensorlogic::models::{LayerStages, Weights};
    /// let open = || Weights::open("models/tiny/tiny.gguf", &Device::cpu());
    /// let stages = LayerStages::of(&open()?, 2)?;
    /// stages.check_memory(0, open()?, None)?;
    /// # Ok::<(), tensorlogic::TensorError>(())
    /// ```
    pub fn check_memory(&self, part: usize, weights: Weights, dtype: Option<DType>) -> TensorResult<()> {
        let (device, memory) = (weights.device().clone(), weights.device().buffer_pool_stats());
        let Some(limit) = memory.limit else { return Ok(()) };
        let free = limit.saturating_sub(memory.in_use - memory.mapped);
        let (dtype, dry) = (dtype_of(&weights, dtype)?, device.dry_run());
        let loaded = load_part(&weights.on(&dry), dtype, &self.part(part))?;
        crate::eval::eval_all(&loaded.weights())?;
        let needed = dry.memory().peak_allocated;
        if needed <= free {
            return Ok(());
        }
        let (layers, [needed, free]) = (&self.layers[part], [needed, free].map(|n| crate::io::human_bytes(n as u64)));
        let (first, last) = (layers.start, layers.end - 1);
        let m = format!("out of memory: layers {first}-{last} (part {part}) take {needed} of {}, where {free} are free", device.name());
        Err(TensorError::Rank(format!("{m}; use more ranks or a smaller weight type")))
    }

    fn part(&self, n: usize) -> Part {
        Part { layers: self.layers[n].clone(), ends: n == 0 }
    }

    /// The model with each part on the device of its weights, the first part's being that of sessions and tokens. `dtype` is the type of activations, by
    /// default that of [`models::load`](crate::models::load) on the first device.
    ///
    /// # Errors
    /// [`TensorError::Config`] where there is not one item of `weights` for each part, [`TensorError::Unsupported`] where layers read more of each other than
    /// the residual stream; those of [`models::load`](crate::models::load).
    ///
    /// ```
    /// use tensorlogic::models::{LayerStages, Weights};
    /// use tensorlogic::prelude::*;
    /// let weights = (0..2).map(|_| Weights::open("models/tiny/tiny.gguf", &Device::cpu())).collect::<TensorResult<Vec<_>>>()?;
    /// let model = LayerStages::of(&weights[0], 2)?.load(&weights, None)?;
    /// assert_eq!(model.shape().places.len(), 6); // a device for each layer
    /// assert!(model.shape().places.iter().all(|place| *place == Some(Device::cpu())));
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn load(&self, weights: &[Weights], dtype: Option<DType>) -> TensorResult<Box<dyn Model>> {
        if weights.len() != self.layers.len() {
            return Err(TensorError::Config(format!("weights for {} devices, {} parts", weights.len(), self.layers.len())));
        }
        let dtype = dtype_of(&weights[0], dtype)?;
        let mut parts = weights.iter().enumerate().map(|(n, w)| load_part(w, dtype, &self.part(n))).collect::<TensorResult<Vec<_>>>()?;
        let first = parts.remove(0);
        let places = self.places(|n| Some(weights[n].device().clone()));
        let devices = weights[1..].iter().map(|w| w.device().clone());
        let behind = devices.zip(parts).collect();
        Ok(Box::new(Staged {
            shape: ModelShape { places, ..first.shape() },
            home: weights[0].device().clone(),
            first,
            behind: Behind::Devices(behind),
        }))
    }

    fn places(&self, place: impl Fn(usize) -> Option<Device>) -> Arc<[Option<Device>]> {
        self.layers.iter().enumerate().flat_map(|(n, part)| part.clone().map(|_| place(n)).collect::<Vec<_>>()).collect()
    }

    /// As rank 0: the model whose other parts the other ranks have, which call [`follow`] together with this. They stop when the model is dropped.
    ///
    /// # Errors
    /// As for [`LayerStages::load`], on every rank where one has an error; those of the transport.
    ///
    /// ```
    /// use std::time::Duration;
    /// use tensorlogic::distributed::join;
    /// use tensorlogic::models::{LayerStages, Weights};
    /// use tensorlogic::prelude::*;
    /// let ranks = join(Duration::from_secs(60), |why| eprintln!("{why}"))?; // with `mpirun -n 2` there are two, without a launcher one
    /// let weights = Weights::open("models/tiny/tiny.gguf", &Device::cpu())?;
    /// if ranks.is_first() {
    ///     let (stages, model) = LayerStages::lead(Ok(&weights), None, &ranks)?;
    ///     assert_eq!(stages.layers().len(), ranks.size());
    ///     assert_eq!(model.distant_bytes(), stages.bytes()[1..].iter().sum::<u64>()); // what the other ranks hold
    /// }
    /// # Ok::<(), TensorError>(())
    /// ```
    pub fn lead(weights: TensorResult<&Weights>, dtype: Option<DType>, ranks: &Ranks) -> TensorResult<(LayerStages, Box<dyn Model>)> {
        let found = weights.and_then(|w| Ok((LayerStages::of(w, ranks.size())?, dtype_of(w, dtype)?, w)));
        let (stages, dtype, weights) = ranks.all_ok(found)?;
        let words = stages.layers.iter().map(|part| part.end as u64).chain([code_of(dtype)]);
        ranks.share(words.flat_map(u64::to_le_bytes).collect())?;
        let first = ranks.all_ok(load_part(weights, dtype, &stages.part(0)))?;
        let home = weights.device().clone();
        let places = stages.places(|n| (n == 0).then(|| home.clone()));
        let distant = stages.bytes[1..].iter().sum();
        let behind = Behind::Ranks(Leader { ranks: ranks.clone(), turn: Mutex::new(()), distant });
        let model = Staged { shape: ModelShape { places, ..first.shape() }, home, first, behind };
        Ok((stages, Box::new(model)))
    }
}

impl fmt::Display for LayerStages {
    /// A line such as `layers 0-14 (1.2 GiB), 15-29 (0.9 GiB)`.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let part = |(part, bytes): (&Range<usize>, &u64)| format!("{}-{} ({})", part.start, part.end - 1, crate::io::human_bytes(*bytes));
        write!(f, "layers {}", self.layers.iter().zip(&self.bytes).map(part).collect::<Vec<_>>().join(", "))
    }
}

/// Cuts layers of these bytes into parts whose largest is as small as may be; the first has `ends` besides.
fn split(own: &[u64], ends: u64, count: usize) -> Vec<Range<usize>> {
    let cost = |part: &Range<usize>| own[part.clone()].iter().sum::<u64>() + if part.start == 0 { ends } else { 0 };
    // best[n]: the cuts of the first n layers into as many parts as there were rounds, and their largest part.
    let mut best: Vec<Option<(u64, Vec<usize>)>> = vec![None; own.len() + 1];
    best[0] = Some((0, Vec::new()));
    for _ in 0..count {
        best = (0..=own.len())
            .map(|end| {
                let cut = |start: usize| {
                    let (largest, cuts) = best[start].as_ref()?;
                    Some(((*largest).max(cost(&(start..end))), [&cuts[..], &[end]].concat()))
                };
                (0..end).filter_map(cut).min()
            })
            .collect();
    }
    let cuts = best.pop().flatten().map_or_else(|| vec![own.len()], |(_, cuts)| cuts);
    let mut start = 0;
    cuts.into_iter().map(|end| std::mem::replace(&mut start, end)..end).collect()
}

fn dtype_of(weights: &Weights, dtype: Option<DType>) -> TensorResult<DType> {
    let described = describe(weights, &Settings::new(weights)?)?.dtype;
    Ok(dtype.or(described).unwrap_or_else(|| weights.device().default_float()))
}

fn load_part(weights: &Weights, dtype: DType, part: &Part) -> TensorResult<Decoder> {
    let settings = Settings::new(weights)?;
    Decoder::load_part(describe(weights, &settings)?, &settings, weights, dtype, part)
}

/// Types of activations, in the order of their numbers between ranks.
const DTYPES: [DType; 3] = [DType::F32, DType::F16, DType::BF16];

fn code_of(dtype: DType) -> u64 {
    DTYPES.iter().position(|d| *d == dtype).unwrap_or(0) as u64
}

/// A model whose later layers are elsewhere.
struct Staged {
    shape: ModelShape,
    home: Device,
    first: Decoder,
    behind: Behind,
}

/// The layers behind the first part.
enum Behind {
    Devices(Vec<(Device, Decoder)>),
    Ranks(Leader),
}

/// Rank 0's side of layers on other ranks.
struct Leader {
    ranks: Ranks,
    /// Passes go through the ranks one after the other.
    turn: Mutex<()>,
    /// Bytes of the other ranks' weights.
    distant: u64,
}

/// What goes from rank to rank before the residual stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Order {
    /// Compute your layers and pass on.
    Pass(PassView),
    /// A rank failed: pass on, there is nothing to compute.
    Failed(u64),
    /// There will be no other pass.
    End,
}

/// A pass, as a later part needs to know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct PassView {
    cache: CacheView,
    batch: usize,
    t: usize,
    /// The length of the text that is read.
    text: usize,
}

impl Order {
    const BYTES: usize = 80;

    fn to_bytes(self) -> [u8; Order::BYTES] {
        let words: [u64; Order::BYTES / 8] = match self {
            Order::Pass(PassView { cache: c, batch, t, text }) => {
                let [cb, cc, cl, ck, b, t, text] = [c.batch, c.capacity, c.len, c.kept, batch, t, text].map(|n| n as u64);
                [0, c.number, cb, cc, cl, ck, b, t, text, 0]
            }
            Order::Failed(rank) => [1, rank, 0, 0, 0, 0, 0, 0, 0, 0],
            Order::End => [2, 0, 0, 0, 0, 0, 0, 0, 0, 0],
        };
        let mut bytes = [0; Order::BYTES];
        bytes.chunks_mut(8).zip(words).for_each(|(b, w)| b.copy_from_slice(&w.to_le_bytes()));
        bytes
    }

    fn from_bytes(bytes: &[u8; Order::BYTES]) -> Order {
        let word = |n: usize| u64::from_le_bytes(bytes[8 * n..8 * n + 8].try_into().unwrap_or_default());
        let size = |n: usize| word(n) as usize;
        match word(0) {
            0 => {
                let cache = CacheView { number: word(1), batch: size(2), capacity: size(3), len: size(4), kept: size(5) };
                Order::Pass(PassView { cache, batch: size(6), t: size(7), text: size(8) })
            }
            1 => Order::Failed(word(1)),
            _ => Order::End,
        }
    }
}

/// The residual stream `[B,T,width]` on a device, from its bytes.
fn residual(bytes: Vec<u8>, dtype: DType, sizes: [usize; 3], device: &Device) -> TensorResult<Tensor> {
    Tensor::from_bytes(Bytes::Owned(Arc::new(bytes)), dtype, &sizes, device)
}

impl Staged {
    /// One position of each sequence: what the parts compute is recorded and run again.
    fn step(&self, ids: &Tensor, cache: &mut KvCache) -> TensorResult<Tensor> {
        // What was recorded reads i32 from the beginning of a buffer: of a view, a copy.
        let ids = &ids.cast(DType::I32)?.contiguous()?;
        ids.eval()?;
        let pass = &mut Pass::tokens(ids);
        let (dtype, sizes) = (self.shape.dtype, [ids.numel(), 1, self.shape.width]);
        let mut bytes = cache.step(0, ids, |cache| Ok(self.first.begin(pass, cache)?.0))?;
        match &self.behind {
            Behind::Devices(parts) => {
                for (n, (device, part)) in parts.iter().enumerate() {
                    let x = residual(bytes, dtype, sizes, device)?;
                    let mut there = pass.beside(None, None);
                    bytes = cache.step(n + 1, &x, |cache| part.go_on(x.clone(), &mut there, cache))?;
                }
            }
            Behind::Ranks(leader) => {
                let view = PassView { cache: cache.view(), batch: sizes[0], t: 1, text: cache.len() + 1 };
                bytes = leader.pass(&bytes, view)?;
            }
        }
        cache.advance(1);
        residual(bytes, dtype, sizes, &self.home)
    }
}

fn send(ranks: &Ranks, to: usize, order: Order, data: &[u8]) -> TensorResult<()> {
    ranks.transport().send(to, &order.to_bytes())?;
    if data.is_empty() { Ok(()) } else { ranks.transport().send(to, data) }
}

/// An order, and the residual stream `[B,T,width]` that comes with a pass.
fn receive(ranks: &Ranks, from: usize, element: usize) -> TensorResult<(Order, Vec<u8>)> {
    let mut order = [0; Order::BYTES];
    ranks.transport().receive(from, &mut order)?;
    let order = Order::from_bytes(&order);
    let mut data = match order {
        Order::Pass(p) => vec![0; p.batch * p.t * element],
        _ => Vec::new(),
    };
    if !data.is_empty() {
        ranks.transport().receive(from, &mut data)?;
    }
    Ok((order, data))
}

impl Leader {
    /// Takes the residual stream through the layers of the other ranks.
    fn pass(&self, bytes: &[u8], view: PassView) -> TensorResult<Vec<u8>> {
        let _turn = self.turn.lock().unwrap_or_else(|e| e.into_inner());
        send(&self.ranks, 1, Order::Pass(view), bytes)?;
        let element = bytes.len() / (view.batch * view.t).max(1);
        match receive(&self.ranks, self.ranks.size() - 1, element)? {
            (Order::Pass(_), data) => Ok(data),
            (Order::Failed(rank), _) => Err(TensorError::Rank(format!("rank {rank} failed"))),
            (Order::End, _) => Err(TensorError::Internal("a rank ended before rank 0".into())),
        }
    }
}

impl Drop for Leader {
    fn drop(&mut self) {
        // A rank that is gone has ended the job already.
        let _ = send(&self.ranks, 1, Order::End, &[]);
    }
}

/// As a rank other than 0: computes this rank's layers for the model that rank 0 runs ([`LayerStages::lead`]), until that is dropped.
///
/// # Errors
/// This rank's own; [`TensorError::Rank`] where another rank failed before the first pass.
///
/// ```
/// use std::time::Duration;
/// use tensorlogic::distributed::join;
/// use tensorlogic::models::{Weights, stages::follow};
/// use tensorlogic::prelude::*;
/// let ranks = join(Duration::from_secs(60), |why| eprintln!("{why}"))?; // with `mpirun -n 2` there are two, without a launcher one
/// let weights = Weights::open("models/tiny/tiny.gguf", &Device::cpu())?;
/// if !ranks.is_first() {
///     follow(Ok(&weights), &ranks)?; // rank 0 calls `LayerStages::lead`
/// }
/// # Ok::<(), TensorError>(())
/// ```
pub fn follow(weights: TensorResult<&Weights>, ranks: &Ranks) -> TensorResult<()> {
    let weights = ranks.all_ok(weights)?;
    let words: Vec<u64> = ranks.share(Vec::new())?.chunks_exact(8).map(|b| u64::from_le_bytes(b.try_into().unwrap_or_default())).collect();
    let (rank, size) = (ranks.rank(), ranks.size());
    let end = |n: usize| words.get(n).map_or(0, |w| *w as usize);
    let dtype = DTYPES[end(size).min(DTYPES.len() - 1)];
    let part = Part { layers: end(rank - 1)..end(rank), ends: false };
    let decoder = ranks.all_ok(load_part(weights, dtype, &part))?;
    let device = weights.device();
    let own = |layer| part.layers.contains(&layer).then(|| device.clone());
    let shape = ModelShape { places: (0..end(size - 1)).map(own).collect(), ..decoder.shape() };
    let element = shape.width * dtype.block_bytes();
    let (mut cache, mut failed, next) = (KvCache::none(), None, (rank + 1) % size);
    loop {
        let (order, data) = receive(ranks, rank - 1, element)?;
        let view = match order {
            Order::Pass(view) => view,
            Order::End if next == 0 => break,
            Order::End => {
                send(ranks, next, Order::End, &[])?;
                break;
            }
            Order::Failed(_) => {
                send(ranks, next, order, &[])?;
                continue;
            }
        };
        let run = || -> TensorResult<Vec<u8>> {
            cache.follow(&view.cache, &shape, device)?;
            let x = residual(data, dtype, [view.batch, view.t, shape.width], device)?;
            let ids = Tensor::zeros(&[view.batch, view.t], DType::I32, device)?;
            let mut pass = Pass::tokens(&ids).of_text(view.text);
            let bytes = if view.cache.number != 0 && pass.next_tokens(view.cache.len).is_some() {
                cache.step(0, &x, |cache| decoder.go_on(x.clone(), &mut pass, cache))?
            } else {
                cache.forget_steps();
                decoder.go_on(x, &mut pass, &mut cache)?.to_bytes()?
            };
            cache.advance(view.t);
            Ok(bytes)
        };
        match run() {
            Ok(bytes) => send(ranks, next, order, &bytes)?,
            Err(e) => {
                send(ranks, next, Order::Failed(rank as u64), &[])?;
                failed.get_or_insert(e);
            }
        }
    }
    failed.map_or(Ok(()), Err)
}

impl Model for Staged {
    fn shape(&self) -> ModelShape {
        self.shape.clone()
    }

    fn forward(&self, pass: &mut Pass<'_>, cache: &mut KvCache) -> TensorResult<Tensor> {
        if cache.pages().is_some() {
            return Err(TensorError::Unsupported("a model whose layers are distributed keeps no pages of keys".into()));
        }
        // Beyond the end, what follows says so.
        let room = cache.len() < cache.capacity().min(self.shape.context);
        if let Some(ids) = pass.next_tokens(cache.len()).filter(|_| cache.view().number != 0 && room) {
            return self.step(ids, cache);
        }
        cache.forget_steps();
        let (mut x, t) = self.first.begin(pass, cache)?;
        match &self.behind {
            Behind::Devices(parts) => {
                for (device, part) in parts {
                    let moved = |t: Option<&Tensor>| t.map(|t| t.to_device(device)).transpose();
                    let (positions, mask) = (moved(pass.positions)?, moved(pass.mask)?);
                    let mut there = pass.beside(positions.as_ref(), mask.as_ref());
                    x = part.go_on(x.to_device(device)?, &mut there, cache)?;
                }
                x = x.to_device(&self.home)?;
            }
            Behind::Ranks(leader) => {
                if pass.positions.is_some() || pass.mask.is_some() || pass.checkpoints() {
                    let m = "layers on other ranks read tokens one after the other: no positions, masks or checkpoints".into();
                    return Err(TensorError::Unsupported(m));
                }
                let text = pass.text_length(cache.len() + t);
                let &[batch, _, width] = x.dims() else { return Err(TensorError::Internal("a residual stream without a batch".into())) };
                let view = PassView { cache: cache.view(), batch, t, text };
                x = residual(leader.pass(&x.to_bytes()?, view)?, x.dtype(), [batch, t, width], &self.home)?;
            }
        }
        cache.advance(t);
        Ok(x)
    }

    fn norm(&self, residual: &Tensor) -> TensorResult<Tensor> {
        self.first.norm(residual)
    }

    fn head(&self, normed: &Tensor) -> TensorResult<Tensor> {
        self.first.head(normed)
    }

    fn rereads_beyond(&self) -> Option<usize> {
        self.first.rereads_beyond()
    }

    fn weights(&self) -> Vec<&Tensor> {
        let mut all = self.first.weights();
        if let Behind::Devices(parts) = &self.behind {
            all.extend(parts.iter().flat_map(|(_, part)| part.weights()));
        }
        all
    }

    fn unread_bytes(&self) -> u64 {
        let others = match &self.behind {
            Behind::Devices(parts) => parts.iter().map(|(_, part)| part.unread_bytes()).sum(),
            Behind::Ranks(_) => 0,
        };
        self.first.unread_bytes() + others
    }

    fn distant_bytes(&self) -> u64 {
        match &self.behind {
            Behind::Devices(_) => 0,
            Behind::Ranks(leader) => leader.distant,
        }
    }

    fn layers(&mut self) -> Vec<Layer<'_>> {
        let mut all = self.first.layers();
        if let Behind::Devices(parts) = &mut self.behind {
            all.extend(parts.iter_mut().flat_map(|(_, part)| part.layers()));
        }
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_largest_part_is_as_small_as_may_be() {
        assert_eq!(split(&[1, 1, 1, 1], 0, 2), [0..2, 2..4]);
        // The first part has the embeddings and the head.
        assert_eq!(split(&[1, 1, 1, 1, 1, 1], 2, 2), [0..2, 2..6]);
        assert_eq!(split(&[5, 1, 1, 1, 4], 0, 3)[0], 0..1);
        assert_eq!(split(&[2, 1, 1, 1, 4], 0, 3), [0..1, 1..4, 4..5]);
        assert_eq!(split(&[1, 1, 1], 100, 3), [0..1, 1..2, 2..3]);
    }

    #[test]
    fn orders_are_read_as_they_were_written() {
        let cache = CacheView { number: 7, batch: 1, capacity: 64, len: 3, kept: 2 };
        for order in [Order::Pass(PassView { cache, batch: 2, t: 5, text: 9 }), Order::Failed(3), Order::End] {
            assert_eq!(Order::from_bytes(&order.to_bytes()), order);
        }
    }
}
