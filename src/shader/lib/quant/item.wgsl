// An item as it is stored: x, y and z, rows of four words, of which a format has PLANES. OF: the end of the names of the functions that load them;
// PLACE: their arguments.
    let x = first${OF}(${PLACE});
    var y = vec4<u32>(0u); var z = vec4<u32>(0u);
#if PLANES > 1
    y = second${OF}(${PLACE});
#endif
#if PLANES > 2
    z = third${OF}(${PLACE});
#endif
