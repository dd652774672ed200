// A score as the softmax takes it where scores are capped: c·tanh(x/c).
fn softcap(x: f32) -> f32 { return ${SOFTCAP} * tl_tanh(x / ${SOFTCAP}); }
