//! The encoders of texts that there are, a file for each family: what it has that BERT has not, and where their heads stand.

mod bert;
mod common;
mod distilbert;
mod eurobert;
mod jina;
mod modernbert;
mod mpnet;
mod nomic_bert;
mod roberta;

pub(crate) use common::of_states;

use crate::error::TensorResult;
use crate::models::encoder::description::EncoderSpec;
use crate::models::settings::Settings;

/// An encoder's architecture.
pub(crate) struct EncoderArchitecture {
    /// Its names in `model_type`, and those in GGUF that are others. The first is the one that messages say.
    pub names: &'static [&'static str],
    /// What the settings describe.
    pub describe: fn(&Settings<'_>) -> TensorResult<EncoderSpec>,
}

/// The list.
pub(crate) const ENCODERS: &[EncoderArchitecture] = &[
    EncoderArchitecture { names: &["bert"], describe: bert::describe },
    EncoderArchitecture { names: &["roberta", "camembert"], describe: roberta::describe },
    EncoderArchitecture { names: &["xlm-roberta"], describe: roberta::describe_xlm },
    EncoderArchitecture { names: &["distilbert"], describe: distilbert::describe },
    EncoderArchitecture { names: &["mpnet"], describe: mpnet::describe },
    EncoderArchitecture { names: &["nomic_bert", "nomic-bert"], describe: nomic_bert::describe },
    EncoderArchitecture { names: &["jina_embeddings_v3"], describe: jina::describe },
    EncoderArchitecture { names: &["modernbert"], describe: modernbert::describe },
    EncoderArchitecture { names: &["eurobert"], describe: eurobert::describe },
];

/// Those that GGUF files are read of, by their first names.
pub(crate) const IN_GGUF: [&str; 2] = ["bert", "nomic_bert"];

/// The architecture of this name.
pub(crate) fn find(name: &str) -> Option<&'static EncoderArchitecture> {
    ENCODERS.iter().find(|a| a.names.contains(&name))
}
