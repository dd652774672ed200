// What threads wait by that share a part of workgroup memory: the subgroup, where it can wait alone, or is in lockstep and need not wait.
#if SUBGROUP_LOCKSTEP
fn subgroup_barrier() { }
#elif SUBGROUP_BARRIER
fn subgroup_barrier() { subgroupBarrier(); }
#else
fn subgroup_barrier() { workgroupBarrier(); }
#endif
