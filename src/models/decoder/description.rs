//! What a decoder is made of: sizes, layers and their parts. A layer is a value, so that patterns over layers are ordinary Rust.

use super::names::Names;
use crate::dtype::DType;
use crate::models::activation::ActivationFn;
use crate::models::rope_settings::RopeTable;

/// A decoder, before its weights are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Description {
    /// The name of the architecture, for callers.
    pub architecture: &'static str,
    /// Size d of a hidden state.
    pub width: usize,
    /// Heads of queries and of keys and their size, in layers that do not say otherwise.
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// Positions that the model was made for.
    pub context: usize,
    /// The Hub's names of tensors.
    pub names: Names,
    pub embed: Embed,
    pub layers: Vec<LayerSpec>,
    /// The norm after the last layer, where there is one.
    pub norm: NormSpec,
    pub final_norm: bool,
    pub head: HeadSpec,
    /// The rotations that layers refer to by index.
    pub ropes: Vec<RopeTable>,
    /// Positions that tables of rotations hold at most; a model with a longer context is used up to this one.
    pub rope_positions: usize,
    /// Ends of the names of tensors that old files carry and nobody needs.
    pub unused: &'static [&'static str],
    /// GGUF's name of the norm after the last layer.
    pub final_norm_name: &'static str,
    /// Starts of the names of tensors of parts that are left out: layers that predict further tokens, towers of images and sounds.
    pub left_out: Vec<String>,
    /// The usual type of activations, where it is not that of the device.
    pub dtype: Option<DType>,
}

/// From tokens to the first layer's input.
#[derive(Clone, Debug, PartialEq, Default)]
pub(crate) struct Embed {
    /// What rows of the table are multiplied with.
    pub scale: Option<f64>,
    /// The norm of the sum.
    pub norm: Option<NormSpec>,
    /// Learned positions that are added; the first of them is row `offset` of the table.
    pub positions: Option<LearnedPositions>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct LearnedPositions {
    pub offset: usize,
}

/// From normed states to logits.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct HeadSpec {
    /// Whether the embedding serves as the matrix if the settings do not say.
    pub tied: bool,
    pub bias: bool,
    /// What logits are multiplied with.
    pub scale: Option<f64>,
    /// c in c·tanh(logits/c).
    pub softcap: Option<f64>,
}

/// One layer: x ← x + r·post(mixer(norm(x))), then the same with the feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LayerSpec {
    pub flow: Flow,
    /// What is added to the residual stream is multiplied with this.
    pub residual: Option<f64>,
    pub attention_norm: Option<NormSpec>,
    pub mixer: MixerSpec,
    pub attention_post_norm: Option<NormSpec>,
    pub feed_norm: Option<NormSpec>,
    pub feed: FeedSpec,
    pub feed_post_norm: Option<NormSpec>,
    /// The feed-forward part's result is multiplied with this.
    pub feed_scale: Option<f64>,
    /// Embeddings of tokens for each layer; all layers have them or none.
    pub per_layer: Option<PerLayerSpec>,
    /// Whether the layer's result is multiplied with a learned number.
    pub scalar: bool,
    /// Alternating updates; all layers have them or none.
    pub altup: Option<AltUpSpec>,
}

/// What carries information from token to token.
#[derive(Clone, Debug, PartialEq)]
pub(crate) enum MixerSpec {
    Attention(AttentionSpec),
    ShortConv(ShortConvSpec),
    Delta(DeltaSpec),
    DeltaByRow(DeltaByRowSpec),
    Ssd(SsdSpec),
    Selective(SelectiveSpec),
    /// Attention and a state space layer beside each other.
    Beside(Box<BesideSpec>),
    Latent(LatentSpec),
}

impl MixerSpec {
    /// The attention, where that is what it consists of, or a part of it.
    pub fn attention(&self) -> Option<&AttentionSpec> {
        match self {
            MixerSpec::Attention(a) => Some(a),
            MixerSpec::Beside(b) => Some(&b.attention),
            _ => None,
        }
    }
    /// As [`MixerSpec::attention`], to be changed.
    pub fn attention_mut(&mut self) -> Option<&mut AttentionSpec> {
        match self {
            MixerSpec::Attention(a) => Some(a),
            MixerSpec::Beside(b) => Some(&mut b.attention),
            _ => None,
        }
    }
}

/// How the two parts of a layer are joined.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Flow {
    /// y = x + attention(norm(x)), then y + feed(norm(y)).
    Sequential,
    /// As `Sequential`, but the norms' results take the place of x and y in the sums.
    FromNorms,
    /// norm(x + attention(x)), then the same with the feed-forward part.
    NormedSums,
    /// x + attention(norm(x)) + feed(norm(x)), with one norm for both where the second is absent.
    Parallel,
    /// y = x + mixer(norm(x)): there is no feed-forward part.
    MixerOnly,
    /// y = x + feed(norm(x)): there is no mixer.
    FeedOnly,
}

impl Flow {
    pub fn has_mixer(self) -> bool {
        self != Flow::FeedOnly
    }
    pub fn has_feed(self) -> bool {
        self != Flow::MixerOnly
    }
}

/// A norm. Its weights are of the width of what it normalises.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct NormSpec {
    pub kind: NormKind,
    pub eps: f64,
    /// Whether the Hub's weights lack the 1 that they are applied with; GGUF's converter has added it.
    pub plus_one: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum NormKind {
    /// x / √mean(x²) · w (Zhang & Sennrich, 2019).
    Rms,
    /// (x − mean) / √variance · w + b (Ba et al., 2016).
    Layer,
    /// As `Layer`, without b.
    LayerWithoutBias,
    /// As `Layer`, without w and b.
    LayerWithoutWeights,
    /// x · w: a learned factor of each component, and no norm (Touvron et al., 2021).
    Factor,
    /// As `Rms`, without w.
    RmsWithoutWeights,
}

impl NormSpec {
    pub fn rms(eps: f64) -> NormSpec {
        NormSpec { kind: NormKind::Rms, eps, plus_one: false }
    }
    pub fn layer(eps: f64) -> NormSpec {
        NormSpec { kind: NormKind::Layer, eps, plus_one: false }
    }
}

/// Grouped-query attention (Ainslie et al., 2023).
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct AttentionSpec {
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    /// How q, k and v are stored.
    pub joint: JointQkv,
    /// Whether q, k and v have biases; where GGUF leaves it open, they are taken where they are.
    pub qkv_bias: Option<bool>,
    /// The same of the output matrix.
    pub output_bias: Option<bool>,
    /// Bound of |q|, |k| and |v|, behind a norm of the whole width.
    pub clip: Option<f64>,
    pub qk_norm: Option<QkNorm>,
    /// Which of the description's rotations rotates q and k; none where positions are not rotated.
    pub rope: Option<usize>,
    /// Another rotation for q alone.
    pub query_rope: Option<usize>,
    /// The rotation whose growth alone multiplies q.
    pub growth: Option<usize>,
    /// How many keys up to its own position a query sees; `None` for all.
    pub window: Option<usize>,
    /// The size of the chunks of positions, of which queries see their own alone.
    pub chunk: Option<usize>,
    /// What scores are multiplied with, where it is not 1/√D.
    pub scale: Option<f64>,
    /// c in c·tanh(scores/c).
    pub softcap: Option<f64>,
    /// Linear biases of keys' positions.
    pub alibi: Option<Alibi>,
    /// Whether each head has a learned logit that takes part in the softmax and belongs to no key.
    pub sinks: bool,
    /// The norm of the heads' results, before the output matrix.
    pub output_norm: Option<NormSpec>,
    /// What the heads' results are multiplied with.
    pub gate: Option<Gate>,
    /// Where keys and values come from.
    pub keys: KeysFrom,
    /// Whether later layers take this one's keys and values.
    pub lends: bool,
    /// The norm of each head's value.
    pub value_norm: Option<NormSpec>,
}

/// Where a layer's keys and values come from.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum KeysFrom {
    /// Matrices of its own.
    Own,
    /// A matrix of keys, whose rows before norm and rotation are the values too.
    OwnForValues,
    /// The layer of this number.
    Layer(usize),
}

/// The gate σ(…) of attention's results.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Gate {
    /// One for each head, by a matrix d → H.
    Head,
    /// One for each element: the matrix of queries has, for each head, the rows of its query and then those of its gate.
    Element,
}

/// Attention by latents (MLA, DeepSeek-AI, 2024): keys and values of all heads are products of one small vector of each position, beside which the
/// keys have a part that is rotated and that all heads share.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct LatentSpec {
    pub heads: usize,
    /// Size of the vector that queries are products of, where there is one.
    pub query_rank: Option<usize>,
    /// Size of that of keys and values.
    pub rank: usize,
    /// Sizes of the parts of a head's query and key: not rotated, and rotated.
    pub nope_dim: usize,
    pub rope_dim: usize,
    /// Size of a head's value.
    pub value: usize,
    /// The norm of both vectors.
    pub norm: NormSpec,
    /// Whether the matrices of d inputs, and the output matrix, have biases.
    pub bias: Option<bool>,
    /// Which of the description's rotations rotates the second parts; none where positions are not rotated.
    pub rope: Option<usize>,
    /// What scores are multiplied with.
    pub scale: f64,
    /// The rotation whose growth alone multiplies the queries.
    pub growth: Option<usize>,
}

/// Linear biases of positions (ALiBi, Press et al., 2021): slope · position of the key is added to the scores.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Alibi {
    /// A slope for each head.
    pub slopes: Vec<f32>,
    /// Whether slopes and biases are rounded to bf16.
    pub bf16: bool,
    /// What the biases are multiplied with.
    pub factor: f64,
}

/// How the matrices of q, k and v are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum JointQkv {
    /// One each.
    Separate,
    /// All rows of q, then those of k, then those of v.
    Sorted,
    /// On the Hub, for each key head its queries, its key and its value; in GGUF as `Sorted`.
    Grouped,
}

/// The norm of queries and keys.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct QkNorm {
    pub norm: NormSpec,
    pub of: QkNormOf,
    /// Whether they are rotated first.
    pub after_rope: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum QkNormOf {
    /// Each head, with the same weights `[D]` for all.
    Head,
    /// Each head, with weights of its own `[H,D]`.
    EachHead,
    /// The whole width H·D.
    Width,
}

/// A gated short convolution, before its weights are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ShortConvSpec {
    /// Tokens that the convolution sees, its own included.
    pub taps: usize,
    pub bias: bool,
}

/// A gated delta rule, before its weights are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaSpec {
    pub key_heads: usize,
    /// A multiple of the heads of keys.
    pub value_heads: usize,
    /// Size of a key.
    pub key_dim: usize,
    /// Size of a value.
    pub value_dim: usize,
    /// Tokens that the convolution sees.
    pub taps: usize,
    pub activation: ActivationFn,
    /// The norm of each head's result.
    pub norm: NormSpec,
    pub inputs: DeltaInputs,
    /// Whether the heads of values that share a key are not next to each other, but as many apart as there are keys.
    pub spread: bool,
    /// What β = σ(…) is multiplied with: with 2, what a key finds can change its sign.
    pub beta_scale: f64,
}

/// How the matrices of q, k, v, z, β and α are stored.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum DeltaInputs {
    /// One each, and a convolution each for q, k and v.
    Separate,
    /// One of q, k and v, one of each of the others.
    JointQkv,
    /// One of q, k, v and z: for each key head its q, k, all its v and all its z; one of β and α alike.
    Joint,
    /// One of q, k and v, one of z, and one of β and α as in `Joint`, as GGUF's converter splits these.
    JointScales,
}

/// A delta rule whose state decays by rows, before its weights are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct DeltaByRowSpec {
    pub heads: usize,
    /// Size of a key and of a value, and rank of the matrices of decays and gates.
    pub head_dim: usize,
    /// Tokens that the convolution sees.
    pub taps: usize,
    pub activation: ActivationFn,
    /// The norm of each head's result.
    pub norm: NormSpec,
}

/// A state space layer, before its weights are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SsdSpec {
    pub heads: usize,
    /// Elements of x that a head has.
    pub head_dim: usize,
    /// Groups of heads with a B and a C of their own.
    pub groups: usize,
    /// Elements of B and C.
    pub state: usize,
    /// Tokens that the convolution sees.
    pub taps: usize,
    pub conv_bias: bool,
    pub input_bias: bool,
    pub output_bias: bool,
    pub activation: ActivationFn,
    /// The least and the largest Δ.
    pub step_limits: (f64, f64),
    pub norm: Option<GatedNorm>,
    /// What h is multiplied with.
    pub input_scale: Option<f64>,
    /// What z, x, B, C and Δ are multiplied with before anything else.
    pub scales: Option<[f64; 5]>,
}

/// The norm of y before the last matrix.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GatedNorm {
    pub eps: f64,
    /// Parts of y that are normalised by themselves.
    pub groups: usize,
    /// Whether silu(z) is multiplied with the norm's result instead of its input.
    pub gate_after: bool,
}

/// A selective state space, before its weights are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct SelectiveSpec {
    /// Channels.
    pub inner: usize,
    /// Elements of a channel's state.
    pub state: usize,
    /// Elements of δ.
    pub rank: usize,
    /// Tokens that the convolution sees.
    pub taps: usize,
    pub conv_bias: bool,
    pub bias: bool,
    pub activation: ActivationFn,
    /// The norm of δ, B and C.
    pub norm: Option<NormSpec>,
}

/// Both, before their weights are read.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct BesideSpec {
    pub attention: AttentionSpec,
    pub ssd: SsdSpec,
    /// What attention's input and result and the other's result are multiplied with.
    pub attention_scales: [f64; 2],
    pub ssd_scale: f64,
}

/// The embeddings, before their weights are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct PerLayerSpec {
    /// Size P of a layer's part.
    pub size: usize,
    /// Tokens that have an embedding; the others share the first.
    pub vocab: usize,
    pub norm: NormSpec,
    pub activation: ActivationFn,
}

/// Alternating updates, before their weights are read.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct AltUpSpec {
    /// Copies n of the residual stream.
    pub copies: usize,
    /// The copy a that layers compute.
    pub active: usize,
    /// Whether the copy is scaled before a layer's embeddings are added.
    pub scaled: bool,
    /// Rank of the augmented residual.
    pub laurel: usize,
    pub norm: NormSpec,
}

/// The feed-forward part.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct FeedSpec {
    pub size: usize,
    pub form: FeedForm,
    pub activation: ActivationFn,
    pub bias: Option<bool>,
    /// The norm before the last matrix.
    pub inner_norm: Option<NormSpec>,
    /// α₊, α₋, β and ε of xIELU, where the settings say them and not tensors.
    pub xielu: Option<[f64; 4]>,
    /// Where there are several such parts, of which each token takes a few: how.
    pub experts: Option<ExpertsSpec>,
}

/// Experts (Shazeer et al., 2017): Σ w_e·feed_e(x) over the experts e that a router chooses for x.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ExpertsSpec {
    pub count: usize,
    /// How many of them each token takes.
    pub used: usize,
    pub router: RouterSpec,
    pub layout: ExpertLayout,
    /// Whether the experts' matrices have biases; where GGUF leaves it open, they are taken where they are.
    pub bias: Option<bool>,
    /// Experts that every token takes, as one part.
    pub shared: Option<SharedSpec>,
    /// A dense part with an input of its own beside the experts.
    pub with_dense: Option<DenseWithExperts>,
}

/// A dense feed-forward part beside experts, norm₁(dense(h)) + norm₂(experts(norm(x))): h is x behind the norm of the layer's feed-forward part, and
/// the router reads x itself.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct DenseWithExperts {
    /// The size of an expert; the dense part has that of the layer.
    pub expert_size: usize,
    /// The three norms.
    pub norm: NormSpec,
}

/// How the Hub's folders have the experts' matrices; GGUF has one tensor for all gates, one for all ups and one for all downs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum ExpertLayout {
    /// Tensors of their own for each expert.
    OneByOne,
    /// One tensor `[E,2f,d]` with the gates' rows first.
    Joint,
    /// One tensor `[E,d,2f]` with the gates' columns first; that of downs is `[E,f,d]`.
    JointTransposed,
    /// The same with gates and ups interleaved.
    InterleavedTransposed,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct SharedSpec {
    pub size: usize,
    /// Whether its result is multiplied with σ(w·x).
    pub gated: bool,
    /// Whether the result is the mean of both parts, not the sum.
    pub mean: bool,
}

/// How experts are chosen and weighted, in f32.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct RouterSpec {
    /// What is made of the logits W·x of all experts.
    pub scores: Scores,
    /// Whether the logits have a bias.
    pub bias: bool,
    /// Whether a learned bias is added to the scores for the choice, and for nothing else.
    pub correction: bool,
    pub groups: Option<GroupSpec>,
    /// What is made of the scores of the chosen experts.
    pub chosen: Scores,
    /// What the weights are divided by: at least `least`, their sum and `plus`.
    pub divisor: Option<Divisor>,
    /// What the weights are multiplied with then.
    pub scale: f64,
    /// Whether the weights multiply the experts' inputs, not their results.
    pub to_input: bool,
    /// ε of the choice by SparseMixer (Liu et al., 2023), which takes the place of the rest.
    pub sparse_mixer: Option<f64>,
    /// ε of the RMS norm of the input, times a learned factor of each component and 1/√d.
    pub input_norm: Option<f64>,
    /// Whether the weight of each expert has a learned factor, behind the divisor.
    pub factors: bool,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Scores {
    AsTheyAre,
    Softmax,
    Sigmoid,
}

/// Experts stand in `count` groups of equal size, and are chosen from the `used` groups whose `best` best experts have the largest sum.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct GroupSpec {
    pub count: usize,
    pub used: usize,
    pub best: usize,
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Divisor {
    pub plus: f64,
    pub least: f64,
}

impl RouterSpec {
    /// Scores of all experts, of which the chosen ones' are the weights as they are.
    pub const fn new(scores: Scores) -> RouterSpec {
        RouterSpec {
            scores,
            bias: false,
            correction: false,
            groups: None,
            chosen: Scores::AsTheyAre,
            divisor: None,
            scale: 1.0,
            to_input: false,
            sparse_mixer: None,
            input_norm: None,
            factors: false,
        }
    }

    /// The same with weights that add up to 1 if `normalised`.
    pub fn normalised(self, normalised: bool) -> RouterSpec {
        RouterSpec { divisor: normalised.then_some(Divisor { plus: 0.0, least: 0.0 }), ..self }
    }
}

#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum FeedForm {
    /// down(act(up(x))).
    Plain,
    /// down(act(gate(x)) · up(x)) (Shazeer, 2020).
    Gated,
    /// As `Gated`, with the rows of gate and up in one matrix, those of gate first.
    GatedJoint,
    /// down((u + 1)·g·σ(α·g)) with g = gate(x) up to `limit` and u = up(x) within ±`limit`.
    GatedClamped { alpha: f64, limit: f64 },
}

/// The sizes of a decoder whose layers are alike.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub kv_heads: usize,
    pub head_dim: usize,
    pub feed: usize,
    pub context: usize,
}

impl Description {
    /// A decoder of equal layers: attention with separate matrices that rotates whole heads by the first rotation, a gated SiLU feed-forward part,
    /// `norm` before both of them and at the end, no biases.
    pub fn new(architecture: &'static str, z: Sizes, norm: NormSpec, names: Names) -> Description {
        let attention = AttentionSpec {
            heads: z.heads,
            kv_heads: z.kv_heads,
            head_dim: z.head_dim,
            joint: JointQkv::Separate,
            qkv_bias: Some(false),
            output_bias: Some(false),
            clip: None,
            qk_norm: None,
            rope: Some(0),
            query_rope: None,
            growth: None,
            window: None,
            chunk: None,
            scale: None,
            softcap: None,
            alibi: None,
            sinks: false,
            output_norm: None,
            gate: None,
            keys: KeysFrom::Own,
            lends: false,
            value_norm: None,
        };
        let feed = FeedSpec {
            size: z.feed,
            form: FeedForm::Gated,
            activation: ActivationFn::Silu,
            bias: Some(false),
            inner_norm: None,
            xielu: None,
            experts: None,
        };
        let layer = LayerSpec {
            flow: Flow::Sequential,
            residual: None,
            attention_norm: Some(norm),
            mixer: MixerSpec::Attention(attention),
            attention_post_norm: None,
            feed_norm: Some(norm),
            feed,
            feed_post_norm: None,
            feed_scale: None,
            per_layer: None,
            scalar: false,
            altup: None,
        };
        Description {
            architecture,
            width: z.width,
            heads: z.heads,
            kv_heads: z.kv_heads,
            head_dim: z.head_dim,
            context: z.context,
            names,
            embed: Embed::default(),
            layers: vec![layer; z.layers],
            norm,
            final_norm: true,
            head: HeadSpec { tied: false, bias: false, scale: None, softcap: None },
            ropes: Vec::new(),
            rope_positions: 1 << 17,
            unused: &[],
            final_norm_name: "output_norm",
            left_out: Vec::new(),
            dtype: None,
        }
    }

    /// Changes every layer.
    pub fn each(&mut self, change: impl FnMut(&mut LayerSpec)) {
        self.layers.iter_mut().for_each(change);
    }

    /// The attention of the layers that have one, first to last.
    pub fn attention_layers(&mut self) -> impl Iterator<Item = &mut AttentionSpec> {
        self.layers.iter_mut().filter_map(|l| l.mixer.attention_mut())
    }

    /// Changes the attention of every layer that has one.
    pub fn attentions(&mut self, change: impl FnMut(&mut AttentionSpec)) {
        self.attention_layers().for_each(change);
    }

    /// Puts `norm` in the place of every norm of the residual stream.
    pub fn norms(&mut self, norm: NormSpec) {
        self.norm = norm;
        self.each(|l| {
            let all = [&mut l.attention_norm, &mut l.attention_post_norm, &mut l.feed_norm, &mut l.feed_post_norm];
            all.into_iter().flatten().for_each(|n| *n = norm);
        });
    }

    /// Moves the norms behind attention and feed-forward part.
    pub fn norms_after(&mut self) {
        self.each(|l| {
            l.attention_post_norm = l.attention_norm.take();
            l.feed_post_norm = l.feed_norm.take();
        });
    }

    /// Adds norms behind attention and feed-forward part to those before them.
    pub fn norms_after_too(&mut self) {
        self.each(|l| {
            l.attention_post_norm = l.attention_norm;
            l.feed_post_norm = l.feed_norm;
        });
    }
}
