// Of the ${PARTS} workgroups that share counter ${COUNTER}, the last to arrive goes on, and sees what the others have left in common memory.
    storageBarrier();
    if (lid == 0u) { arrived = atomicAdd(&scratch[${COUNTER}], 1u); }
    if (workgroupUniformLoad(&arrived) != ${PARTS} - 1u) { return; }
    storageBarrier();
