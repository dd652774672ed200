//! The settings that do not change the logits of given tokens, with the reasons.

/// Keys of `config.json` that do not change the logits of given tokens, with the reason.
const WITHOUT_EFFECT: [(&str, &[&str]); 11] = [
    (
        "training drops values out, inference does not",
        &[
            "activation_dropout",
            "attention_dropout",
            "attention_probs_dropout_prob",
            "attn_pdrop",
            "classifier_dropout",
            "dropout",
            "dropout_rate",
            "emb_pdrop",
            "embd_pdrop",
            "embed_dropout",
            "embedding_dropout",
            "hidden_dropout",
            "hidden_dropout_prob",
            "layerdrop",
            "mlp_dropout",
            "qa_dropout",
            "resid_dropout",
            "resid_pdrop",
            "residual_dropout",
            "seq_classif_dropout",
            "summary_first_dropout",
        ],
    ),
    ("weights are read, not drawn", &["init_std", "initializer_cutoff_factor", "initializer_factor", "initializer_range"]),
    (
        "it balances experts in training, or says how they are distributed",
        &["aux_loss_alpha", "ep_size", "output_router_logits", "router_aux_loss_coef", "router_z_loss_coef", "seq_aux"],
    ),
    (
        "it says which results a call returns, not what they are",
        &[
            "num_logits_to_keep",
            "output_attentions",
            "output_hidden_states",
            "output_past",
            "return_dict",
            "return_dict_in_generate",
            "output_scores",
            "use_cache",
        ],
    ),
    (
        "it orders the same sums differently, to save memory or time",
        &[
            "_attn_implementation",
            "_attn_implementation_autoset",
            "_flash_attn_2_enabled",
            "attn_implementation",
            "cache_implementation",
            "chunk_size_feed_forward",
            "deterministic_flash_attn",
            "gradient_checkpointing",
            "pretraining_tp",
            "reference_compile",
            "reorder_and_upcast_attn",
            "repad_logits_with_grad",
            "sparse_pred_ignore_index",
            "sparse_prediction",
            "torchscript",
        ],
    ),
    ("every tensor of the file names its own type", &["dtype", "torch_dtype", "use_bfloat16"]),
    (
        "the tokenizer and the sampler deal with special tokens",
        &[
            "begin_suppress_tokens",
            "bos_token_id",
            "cls_token_id",
            "decoder_start_token_id",
            "eod_token_id",
            "eos_token_id",
            "forced_bos_token_id",
            "forced_eos_token_id",
            "mask_token_id",
            "pad_token_id",
            "prefix",
            "sep_token_id",
            "suppress_tokens",
            "tokenizer_class",
            "unk_token_id",
        ],
    ),
    (
        "it is a default of sampling, which starts from the logits",
        &[
            "bad_words_ids",
            "diversity_penalty",
            "do_sample",
            "early_stopping",
            "encoder_no_repeat_ngram_size",
            "exponential_decay_length_penalty",
            "length_penalty",
            "max_length",
            "min_length",
            "no_repeat_ngram_size",
            "num_beam_groups",
            "num_beams",
            "num_return_sequences",
            "remove_invalid_values",
            "repetition_penalty",
            "temperature",
            "top_k",
            "top_p",
            "typical_p",
        ],
    ),
    (
        "it belongs to a classifier on top of the model",
        &[
            "_num_labels",
            "finetuning_task",
            "id2label",
            "label2id",
            "num_labels",
            "problem_type",
            "summary_activation",
            "summary_proj_to_labels",
            "summary_type",
            "summary_use_proj",
            "task_specific_params",
            "tf_legacy_loss",
        ],
    ),
    (
        "it tells where the file comes from",
        &[
            "_commit_hash",
            "_from_model_config",
            "_name_or_path",
            "auto_map",
            "transformers.js_config",
            "transformers_version",
            "unsloth_fixed",
            "unsloth_version",
        ],
    ),
    ("it repeats what another key or the weights say", &["is_decoder", "is_llama_config", "trained_without_biases"]),
];

/// Keys of GGUF metadata below the architecture's name that do not change the logits of given tokens, with the reason.
pub(crate) const WITHOUT_EFFECT_GGUF: [(&str, &[&str]); 2] = [
    ("embeddings are pooled, logits are not", &["pooling_type"]),
    ("it describes how the file was made", &["tensor_data_layout", "rope.scaling.finetuned"]),
];

/// Why the key of `config.json` does not change the logits of given tokens; `None` for a key that may. Of two types a key that is named here has an effect
/// all the same: the `pad_token_id` of RoBERTa, behind which positions begin, and the `eos_token_id` of CLIP's texts, whose state is the text's embedding.
///
/// ```
/// use tensorlogic::models::settings::without_effect;
/// assert_eq!(without_effect("initializer_range"), Some("weights are read, not drawn"));
/// assert_eq!(without_effect("hidden_act"), None);
/// ```
pub fn without_effect(key: &str) -> Option<&'static str> {
    WITHOUT_EFFECT.iter().find(|(_, keys)| keys.contains(&key)).map(|(why, _)| *why)
}
