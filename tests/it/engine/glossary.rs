//! Words that the project once had of its own, and for which it uses the field's: none comes back.
//!
//! It cannot tell what has two meanings: `text` stays for prompts and messages, `word` for 32 bits, `number` for what is counted, `join` for paths and
//! threads, `machine` for a computer.

use super::shader_sources::files_of;
use std::collections::BTreeSet;

/// The old word, and the one that is used instead. Old words are matched as whole words, in code and comments; behind a `*` a name goes on.
const REPLACED: [(&str, &str); 99] = [
    ("BAND", "a number of rows of tiles"),
    ("BEARABLE", "MAX_OVERHEAD"),
    ("BELIEVED", "the quantity that it bounds"),
    ("CREW", "THREADS"),
    ("CpuMachine", "CpuBackend"),
    ("DEEP", "BK"),
    ("Desk", "Shared"),
    ("FEW", "of what there are few"),
    ("GpuMachine", "GpuBackend"),
    ("HUGE", "HUGE_PAGE"),
    ("Hashed", "IdentityHasher"),
    ("Joined", "FusedGemv, or Partial for parts of a softmax"),
    ("KernelText", "Shader"),
    ("KernelsByText", "KernelsBySource"),
    ("LEAST_*", "MIN_*"),
    ("LONGEST", "the quantity that it bounds"),
    ("MANY", "of what there are many"),
    ("MATVECS", "GEMVS"),
    ("MOST_*", "MAX_*"),
    ("MetaWord", "UniformWord"),
    ("Metal text*", "Metal source"),
    ("PATIENCE", "a timeout"),
    ("PIECE", "the quantity that it counts"),
    ("PIECES", "the quantity that it counts"),
    ("PROCESSORS", "compute_units"),
    ("Pace", "TileCost"),
    ("Packets", "Vec16Loader"),
    ("Partner", "gated, or swap_pair"),
    ("PlanNumbers", "PlanUniforms"),
    ("SLAB", "the quantity that it bounds"),
    ("STRIP", "STAGING"),
    ("STRIPS", "RUNS, or STAGINGS"),
    ("STRIP_*", "STAGING_*"),
    ("Shelf", "FreeList"),
    ("StepText", "StepShader"),
    ("TWINS", "PAIRS"),
    ("Team", "ThreadPool"),
    ("TextKernel", "WgslKernel"),
    ("Ticket", "AllocId"),
    ("Trouble", "DeviceError"),
    ("WGSL text*", "WGSL source"),
    ("Word::U32", "KernelParam::U32"),
    ("absorb", "fuse_norm"),
    ("agreed", "subgroup_any"),
    ("alphabet", "primitives"),
    ("check_room", "check_memory"),
    ("crew", "threads"),
    ("enum Amount", "Cost"),
    ("enum Cut", "TileConfig"),
    ("enum Lane", "SliceMut"),
    ("enum Word", "KernelParam"),
    ("flush_held", "flush_deferred"),
    ("fours", "vec4"),
    ("from_end", "wrap_negative"),
    ("has_held_run", "has_deferred_run"),
    ("host_room", "host_memory_info"),
    ("is_brought", "is_resident"),
    ("join_all", "combine_all"),
    ("joined products", "fused products"),
    ("joined_products", "fused_products"),
    ("joint_and_turned", "joint_and_rotated"),
    ("kernel text*", "kernel source"),
    ("kernel's text*", "kernel's source"),
    ("kernel's words", "kernel's parameters"),
    ("kernel_word", "uniform_word"),
    ("ladder", "workload"),
    ("matvec*", "gemv"),
    ("may_hold", "may_defer"),
    ("memory_room", "memory_info"),
    ("packet*", "a vector of eight elements"),
    ("plan::Word", "plan::KernelParam"),
    ("positions_do_not_turn", "without_rope"),
    ("run-time number*", "run-time parameter"),
    ("run_held", "run_deferred"),
    ("rung", "variant"),
    ("seat", "point_at_head"),
    ("shader text*", "shader source"),
    ("slot_sum", "subgroup_reduce"),
    ("some_rows", "gemv"),
    ("sparing", "few_bindings"),
    ("strip_eights", "staged_eights"),
    ("struct Apart", "CachePadded"),
    ("struct Chain", "RecordedPlan, or Repeat"),
    ("struct Cut", "TileConfig"),
    ("struct Extra", "RareFields"),
    ("struct Joins", "FusedGemv"),
    ("struct Kept", "FreeBlock"),
    ("struct Link", "FusedInstr"),
    ("struct Reach", "AddressRange"),
    ("struct Room", "MemoryInfo"),
    ("struct Walk", "BackwardPass"),
    ("team", "a thread pool, or a group"),
    ("tighten", "schedule_for_memory"),
    ("turned_first", "transposed_first"),
    ("turns_part", "partial_rope"),
    ("twin", "a counterpart"),
    ("unturned", "without_rope"),
    ("wants_stored", "materialize_input"),
    ("weigh", "softmax_grad"),
];

/// Comments and names of a template are part of the generated sources: a change of them is a change of every pipeline's key.
const TEMPLATE: &str = "a template's comments and names are part of the generated source";

/// Where an old word stays: a part of the files' paths, the word, and the reason.
const STAYS: [(&str, &str, &str); 4] = [
    (".wgsl", "LEAST_*", TEMPLATE),
    ("src/distributed/mpi.rs", "LEAST_*", "the least rate that is hoped for is a rate, not a bound"),
    ("src/models/architectures/", "team", "authors of papers"),
    ("src/text/", "alphabet", "letters of a tokenizer"),
];

/// How often `text` has `word` as a whole word.
fn count(text: &str, word: &str) -> usize {
    let part = |c: Option<char>| c.is_some_and(|c| c.is_alphanumeric() || c == '_');
    let (start, open) = word.strip_suffix('*').map_or((word, false), |start| (start, true));
    let whole = |at: &usize| !part(text[..*at].chars().next_back()) && (open || !part(text[at + start.len()..].chars().next()));
    text.match_indices(start).map(|(at, _)| at).filter(whole).count()
}

/// Every file that is read, by its path in the repository.
fn files() -> Vec<(String, String)> {
    let folders = ["src", "cli", "xtask", "tests", "docs", "benches", "examples"];
    let mut all: Vec<_> = ["rs", "wgsl", "md"].iter().flat_map(|extension| files_of("", &folders, extension)).collect();
    // What a build has left, and the words themselves.
    all.retain(|(name, _)| !name.contains("/target/") && name != "tests/it/engine/glossary.rs");
    for name in ["ARCHITECTURE.md", "CONTRIBUTING.md", "README.md"] {
        let path = std::path::Path::new(env!("TENSORLOGIC_ROOT")).join(name);
        all.push((name.to_string(), std::fs::read_to_string(path).unwrap()));
    }
    all
}

#[test]
fn no_old_word_comes_back() {
    assert_eq!((count("a seat, seats, (seat)", "seat"), count("my_seat", "seat")), (2, 0));
    assert_eq!((count("MOST_ROWS, ALMOST_ALL", "MOST_*"), count("the kernel's texts", "kernel's text")), (1, 0));
    assert!(REPLACED.is_sorted(), "the list is in order");
    let all = files();
    assert!(all.len() > 1000, "the sources were not found");
    let mut needed = BTreeSet::new();
    for (name, text) in &all {
        for (word, instead) in REPLACED {
            if count(text, word) == 0 {
                continue;
            }
            let exception = STAYS.iter().find(|(path, stays, _)| name.contains(path) && *stays == word);
            needed.insert(exception.unwrap_or_else(|| panic!("{name} has `{word}`; say {instead}")));
        }
    }
    let outlived: Vec<_> = STAYS.iter().filter(|e| !needed.contains(e)).collect();
    assert!(outlived.is_empty(), "exceptions that nothing needs: {outlived:?}");
}
