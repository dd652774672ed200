// What attention and its gradients without matrices keep in workgroup memory: TILE rows of two operands, ${D} of DK and ${V} of DV quads for each
// of the four threads that share a row. A workgroup has ROWS rows of its own.
const ROWS: u32 = WORKGROUP / 4u * THREAD_ROWS;
const QD: u32 = 4u * DK; // quads of a staged row
const QV: u32 = 4u * DV;
var<private> thread: u32;
var<workgroup> ${D}: array<vec4<f32>, TILE * QD>;
var<workgroup> ${V}: array<vec4<f32>, TILE * QV>;
