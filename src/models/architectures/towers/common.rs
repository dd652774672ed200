//! What towers have in common: the keys of sizes, layers with norms before their parts and biases everywhere.

use crate::error::TensorResult;
use crate::models::activation::ActivationFn;
use crate::models::decoder::Description;
use crate::models::decoder::description::{FeedForm, NormSpec, Sizes};
use crate::models::decoder::names::Names;
use crate::models::settings::{NONE, Settings};
use crate::models::vision::description::{ImagePool, VisionSpec};

/// The keys of one tower, which are in an object of a pair's `config.json`.
#[derive(Clone, Copy)]
pub(super) struct TowerKeys<'a, 's> {
    pub settings: &'a Settings<'s>,
    /// The object with its dot; empty for a tower by itself.
    pub object: &'static str,
}

/// What holds where keys are missing.
#[derive(Clone, Copy)]
pub(super) struct UsualTower {
    pub width: usize,
    pub layers: usize,
    pub heads: usize,
    pub feed: usize,
    pub eps: f64,
    pub activation: ActivationFn,
}

impl TowerKeys<'_, '_> {
    /// A key's path.
    pub fn key(&self, name: &str) -> String {
        format!("{}{name}", self.object)
    }

    /// A size, or `usual`.
    pub fn size(&self, name: &str, usual: usize) -> TensorResult<usize> {
        Ok(self.settings.size(NONE, &self.key(name), 1 << 24)?.unwrap_or(usual))
    }

    /// A switch, or `usual`.
    pub fn flag(&self, name: &str, usual: bool) -> TensorResult<bool> {
        Ok(self.settings.flag(NONE, &self.key(name))?.unwrap_or(usual))
    }

    /// One size for height and width, or both in a list.
    pub fn square(&self, name: &str, usual: usize) -> TensorResult<[usize; 2]> {
        let key = self.key(name);
        if !self.settings.is_list(&key) {
            let n = self.size(name, usual)?;
            return Ok([n, n]);
        }
        let values = self.settings.numbers(&key)?.unwrap_or_default();
        match values[..] {
            [h, w] if h >= 1.0 && w >= 1.0 && h.fract() == 0.0 && w.fract() == 0.0 && h.max(w) < 65_536.0 => Ok([h as usize, w as usize]),
            _ => Err(self.settings.refuse(NONE, &key, "expected a size, or height and width")),
        }
    }

    /// Layers of equal parts, x ← x + attention(norm(x)), x ← x + W₂·act(W₁·norm(x)), with a norm behind them; `feed` is the size of the latter, where
    /// it has no key.
    pub fn layers(
        &self,
        architecture: &'static str,
        usual: &UsualTower,
        feed: Option<usize>,
        context: usize,
        names: Names,
    ) -> TensorResult<Description> {
        let s = self.settings;
        let (width, heads) = (self.size("hidden_size", usual.width)?, self.size("num_attention_heads", usual.heads)?);
        if width % heads != 0 {
            return Err(s.wrong(format!("{heads} heads do not divide {width} ({})", s.sizes())));
        }
        let layers = self.size("num_hidden_layers", usual.layers)?;
        if layers > 4096 {
            return Err(s.refuse(NONE, &self.key("num_hidden_layers"), "at most 4096 layers are implemented"));
        }
        let feed = feed.map_or_else(|| self.size("intermediate_size", usual.feed), Ok)?;
        let z = Sizes { width, layers, heads, kv_heads: heads, head_dim: width / heads, feed, context };
        let eps = s.positive(NONE, &self.key("layer_norm_eps"))?.unwrap_or(usual.eps);
        let activation = ActivationFn::read(s, &self.key("hidden_act"), usual.activation)?;
        let mut d = Description::new(architecture, z, NormSpec::layer(eps), names);
        d.attentions(|a| (a.rope, a.qkv_bias, a.output_bias) = (None, Some(true), Some(true)));
        d.each(|l| (l.feed.form, l.feed.activation, l.feed.bias) = (FeedForm::Plain, activation, Some(true)));
        // Numbers that are counted, in old files, and what stands for hidden patches in training.
        d.unused = &["embeddings.position_ids", "embeddings.mask_token"];
        Ok(d)
    }

    /// A tower over patches with a class token, and nothing behind it.
    pub fn tower(&self, stack: Description, image: usize, patch: usize) -> TensorResult<VisionSpec> {
        let (image, patch) = (self.square("image_size", image)?, self.square("patch_size", patch)?);
        if patch[0] > image[0] || patch[1] > image[1] {
            return Err(self.settings.refuse(NONE, &self.key("patch_size"), &format!("images have {} × {} pixels", image[0], image[1])));
        }
        let channels = self.size("num_channels", 3)?;
        Ok(VisionSpec {
            stack,
            image,
            patch,
            channels,
            patch_bias: true,
            class_token: true,
            first_norm: None,
            any_size: false,
            pool: ImagePool::None,
            labels: None,
        })
    }
}

/// The one name that `architectures` has, if it is `known`.
pub(super) fn class<'s>(s: &Settings<'s>, known: &[&str]) -> TensorResult<Option<&'s str>> {
    let names = if s.has_object("architectures") { s.texts("architectures")?.unwrap_or_default() } else { Vec::new() };
    match names[..] {
        [] => Ok(None),
        [name] if known.contains(&name) => Ok(Some(name)),
        _ => Err(s.refuse(NONE, "architectures", &format!("supported: {}", known.join(", ")))),
    }
}

/// The names of the tensors of CLIP's and SigLIP's layers.
pub(super) const LAYER: &[(&str, &str)] = &[
    ("attn_norm", "layer_norm1"),
    ("attn_q", "self_attn.q_proj"),
    ("attn_k", "self_attn.k_proj"),
    ("attn_v", "self_attn.v_proj"),
    ("attn_output", "self_attn.out_proj"),
    ("ffn_norm", "layer_norm2"),
    ("ffn_up", "mlp.fc1"),
    ("ffn_down", "mlp.fc2"),
];
