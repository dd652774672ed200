// Keys and values in pages: load 3 is each text's page numbers, load 4 how many keys each text has.

const PAGE: u32 = ${PAGE}u; // keys of a page
// The keys that are there of the text that a workgroup has.
var<private> valid_keys: u32;

fn valid_of(text: u32) -> u32 { return u32(load_4(text)); }

// The row of key `j` of a text: pages are of all heads.
fn paged_row(text: u32, head: u32, j: u32) -> u32 { return (u32(load_3(text * p.pages + j / PAGE)) * p.heads_kv + head) * PAGE + j % PAGE; }
