//! Words that the project once had of its own, and for which it uses the field's: none comes back.

use super::shader_sources::files_of;

/// The old word, and the one that is used instead. Old words are matched as whole words, in code and comments.
const REPLACED: [(&str, &str); 37] = [
    ("CREW", "THREADS"),
    ("CpuMachine", "CpuBackend"),
    ("DEEP", "BK"),
    ("GpuMachine", "GpuBackend"),
    ("HUGE", "HUGE_PAGE"),
    ("Joined", "FusedGemv, or Partial for parts of a softmax"),
    ("KernelText", "Shader"),
    ("KernelsByText", "KernelsBySource"),
    ("LONGEST", "the quantity that it bounds"),
    ("MetaWord", "UniformWord"),
    ("PIECES", "the quantity that it counts"),
    ("SLAB", "the quantity that it bounds"),
    ("StepText", "StepShader"),
    ("TWINS", "PAIRS"),
    ("Team", "ThreadPool"),
    ("TextKernel", "WgslKernel"),
    ("agreed", "subgroup_any"),
    ("check_room", "check_memory"),
    ("flush_held", "flush_deferred"),
    ("fours", "vec4"),
    ("has_held_run", "has_deferred_run"),
    ("host_room", "host_memory_info"),
    ("joint_and_turned", "joint_and_rotated"),
    ("ladder", "workload"),
    ("matvec_walk", "gemv_int8"),
    ("may_hold", "may_defer"),
    ("memory_room", "memory_info"),
    ("positions_do_not_turn", "without_rope"),
    ("run_held", "run_deferred"),
    ("rung", "variant"),
    ("seat", "point_at_head"),
    ("slot_sum", "subgroup_reduce"),
    ("sparing", "few_bindings"),
    ("turned_first", "transposed_first"),
    ("turns_part", "partial_rope"),
    ("unturned", "without_rope"),
    ("weigh", "softmax_grad"),
];

/// How often `text` has `word` as a whole word.
fn count(text: &str, word: &str) -> usize {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let whole = |at: &usize| !part(text[..*at].chars().next_back()) && !part(text[at + word.len()..].chars().next());
    text.match_indices(word).map(|(at, _)| at).filter(whole).count()
}

#[test]
fn no_old_word_comes_back() {
    assert_eq!((count("a seat, seats, (seat)", "seat"), count("my_seat", "seat")), (2, 0));
    assert!(REPLACED.is_sorted(), "the list is in order");
    let folders = ["src", "cli/src", "xtask/src", "benches"];
    let all: Vec<_> = ["rs", "wgsl"].iter().flat_map(|extension| files_of("", &folders, extension)).collect();
    assert!(all.len() > 500, "the sources were not found");
    for (name, text) in &all {
        for (word, instead) in REPLACED {
            assert_eq!(count(text, word), 0, "{name} has `{word}`; say {instead}");
        }
    }
}
