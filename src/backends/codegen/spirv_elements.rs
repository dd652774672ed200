//! Functions of a kernel that read and make matrices by a lane's elements: SPIR-V can name them, WGSL cannot.
//!
//! A WGSL source marks such functions (`coop_elements.wgsl`): `// spirv: read NAME` stands for a function from a matrix to an array of f32,
//! `// spirv: make NAME` for one back, whose matrix may have elements of f16. Their WGSL goes through workgroup memory; it says what is computed, and is
//! what runs where this translation is not used. In SPIR-V their bodies are accesses of the matrix's own components
//! (SPV_KHR_cooperative_matrix), in order.

use naga::back::spv;
use naga::valid::{Capabilities, ValidationFlags, Validator};

/// What stands before the kind and the name of such a function.
pub const MARK: &str = "// spirv: ";

const OP_NAME: u32 = 5;
const OP_MEMBER_NAME: u32 = 6;
const OP_TYPE_INT: u32 = 21;
const OP_TYPE_FLOAT: u32 = 22;
const OP_TYPE_ARRAY: u32 = 28;
const OP_TYPE_FUNCTION: u32 = 33;
const OP_TYPE_POINTER: u32 = 32;
const OP_CONSTANT: u32 = 43;
const OP_FUNCTION: u32 = 54;
const OP_FUNCTION_PARAMETER: u32 = 55;
const OP_FUNCTION_END: u32 = 56;
const OP_VARIABLE: u32 = 59;
const OP_LOAD: u32 = 61;
const OP_STORE: u32 = 62;
const OP_ACCESS_CHAIN: u32 = 65;
const OP_COMPOSITE_CONSTRUCT: u32 = 80;
const OP_COMPOSITE_EXTRACT: u32 = 81;
const OP_F_CONVERT: u32 = 115;
const OP_LABEL: u32 = 248;
const OP_RETURN_VALUE: u32 = 254;
const OP_TYPE_COOPERATIVE_MATRIX: u32 = 4456;
/// The storage class of a function's own variables.
const FUNCTION: u32 = 7;
/// Words of a module before its instructions; word 3 is the bound of its ids.
const HEADER: usize = 5;

/// A kernel for Vulkan's drivers.
pub struct SpirvKernel {
    /// The module.
    pub words: Vec<u32>,
    /// Threads of a workgroup.
    pub workgroup: (u32, u32, u32),
}

/// Translates a WGSL kernel whose entry point is `main`, as wgpu does for modules without runtime checks, with the marked functions in SPIR-V's own form.
///
/// # Errors
/// The message of naga, where the source is not valid or cannot be translated; a message where a marked function is not of the form above.
pub fn translate(wgsl: &str) -> Result<SpirvKernel, String> {
    let module = naga::front::wgsl::parse_str(wgsl).map_err(|e| e.emit_to_string(wgsl))?;
    let info = Validator::new(ValidationFlags::all(), Capabilities::all()).validate(&module).map_err(|e| e.emit_to_string(wgsl))?;
    let unchecked = naga::proc::BoundsCheckPolicy::Unchecked;
    let options = spv::Options {
        // What Vulkan 1.1 takes, and so does whoever has matrices.
        lang_version: (1, 3),
        // Functions are found by their names.
        flags: spv::WriterFlags::DEBUG,
        bounds_check_policies: naga::proc::BoundsCheckPolicies {
            index: unchecked,
            buffer: unchecked,
            image_load: unchecked,
            binding_array: unchecked,
        },
        zero_initialize_workgroup_memory: spv::ZeroInitializeWorkgroupMemoryMode::None,
        force_loop_bounding: false,
        emit_int_div_checks: false,
        ..Default::default()
    };
    let mut words = spv::write_vec(&module, &info, &options, None).map_err(|e| e.to_string())?;
    for (at, _) in wgsl.match_indices(MARK) {
        let line = wgsl[at + MARK.len()..].lines().next().unwrap_or("");
        words = match line.split_once(' ') {
            Some(("read", name)) => Editor::new(words).rewritten(name.trim(), true)?,
            Some(("make", name)) => Editor::new(words).rewritten(name.trim(), false)?,
            _ => return Err(format!("{line:?} marks no function")),
        };
    }
    without_names(&mut words);
    let workgroup = module.entry_points.first().map_or([1; 3], |e| e.workgroup_size).into();
    Ok(SpirvKernel { words, workgroup })
}

/// A module whose functions are rewritten.
struct Editor {
    words: Vec<u32>,
    /// The first free id.
    bound: u32,
    /// Types, constants and pointers that are added.
    globals: Vec<u32>,
}

/// An instruction: its opcode, and where its operands lie.
type Instruction = (u32, std::ops::Range<usize>);

fn push(to: &mut Vec<u32>, op: u32, operands: &[u32]) {
    to.push((operands.len() as u32 + 1) << 16 | op);
    to.extend(operands);
}

/// Drops the names of functions and variables: some of them are gone.
fn without_names(words: &mut Vec<u32>) {
    let named = Editor::new(std::mem::take(words));
    words.extend(&named.words[..HEADER]);
    for (op, operands) in named.instructions().filter(|i| ![OP_NAME, OP_MEMBER_NAME].contains(&i.0)) {
        let len = (operands.len() as u32 + 1) << 16;
        words.push(len | op);
        words.extend(&named.words[operands]);
    }
}

impl Editor {
    fn new(words: Vec<u32>) -> Editor {
        Editor { bound: words[3], words, globals: vec![] }
    }

    fn instructions(&self) -> impl Iterator<Item = Instruction> + '_ {
        let mut at = HEADER;
        std::iter::from_fn(move || {
            let first = *self.words.get(at)?;
            let (start, len) = (at + 1, (first >> 16).max(1) as usize);
            at += len;
            Some((first & 0xffff, start..at))
        })
    }

    /// The operands of the first instruction of this kind that `fits`.
    fn find(&self, op: u32, fits: impl Fn(&[u32]) -> bool) -> Option<&[u32]> {
        self.instructions().filter(|i| i.0 == op).map(|i| &self.words[i.1]).find(|o| fits(o))
    }

    fn id(&mut self) -> u32 {
        self.bound += 1;
        self.bound - 1
    }

    /// The id of a type that the module has, or of one that is added.
    fn type_of(&mut self, op: u32, operands: &[u32]) -> u32 {
        let known = self.find(op, |o| &o[1..] == operands).map(|o| o[0]);
        known.unwrap_or_else(|| {
            let id = self.id();
            push(&mut self.globals, op, &[&[id], operands].concat());
            id
        })
    }

    /// The ids of 0, 1, … as u32.
    fn indices(&mut self, count: u32) -> Vec<u32> {
        let uint = self.type_of(OP_TYPE_INT, &[32, 0]);
        let constant = |e: &mut Editor, n| {
            let known = e.find(OP_CONSTANT, |o| o.len() == 3 && o[0] == uint && o[2] == n).map(|o| o[1]);
            known.unwrap_or_else(|| {
                let id = e.id();
                push(&mut e.globals, OP_CONSTANT, &[uint, id, n]);
                id
            })
        };
        (0..count).map(|n| constant(self, n)).collect()
    }

    /// The module with another body of a function: from a matrix to an array (`read`), or back.
    fn rewritten(mut self, name: &str, read: bool) -> Result<Vec<u32>, String> {
        let wrong = |what: &str| format!("the function {name} {what}");
        let named = |o: &[u32]| bytemuck::cast_slice::<u32, u8>(&o[1..]).split(|b| *b == 0).next() == Some(name.as_bytes());
        let function = self.find(OP_NAME, named).ok_or_else(|| wrong("has no name in SPIR-V"))?[0];
        let head = self.find(OP_FUNCTION, |o| o[1] == function).ok_or_else(|| wrong("is missing in SPIR-V"))?.to_vec();
        let parameters = self.find(OP_TYPE_FUNCTION, |o| o[0] == head[3]).ok_or_else(|| wrong("has no type"))?[2..].to_vec();
        let first = *parameters.first().ok_or_else(|| wrong("has no parameter"))?;
        let (matrix, array) = if read { (first, head[0]) } else { (head[0], first) };
        let component = self.find(OP_TYPE_COOPERATIVE_MATRIX, |o| o[0] == matrix).ok_or_else(|| wrong("has no matrix"))?[1];
        let halves = self.find(OP_TYPE_FLOAT, |o| o[0] == component).is_some_and(|o| o[1] == 16);
        let &[_, float, length] = self.find(OP_TYPE_ARRAY, |o| o[0] == array).ok_or_else(|| wrong("has no array"))? else {
            return Err(wrong("has another array"));
        };
        let count = self.find(OP_CONSTANT, |o| o[1] == length).ok_or_else(|| wrong("has no length"))?[2];
        let to_matrix = self.type_of(OP_TYPE_POINTER, &[FUNCTION, matrix]);
        let to_component = self.type_of(OP_TYPE_POINTER, &[FUNCTION, component]);
        let indices = self.indices(count);

        // Where the function's parameters end and where it does.
        let (mut from, mut to, mut parameter, mut inside) = (0, 0, None, false);
        for (op, operands) in self.instructions() {
            inside |= op == OP_FUNCTION && self.words[operands.clone()][1] == function;
            if inside && op == OP_FUNCTION_PARAMETER {
                parameter = parameter.or(Some(self.words[operands.clone()][1]));
                from = operands.end;
            }
            if inside && op == OP_FUNCTION_END {
                to = operands.start - 1;
                break;
            }
        }
        let parameter = parameter.filter(|_| to > from).ok_or_else(|| wrong("has no body"))?;
        let (mut body, label, held) = (vec![], self.id(), self.id());
        push(&mut body, OP_LABEL, &[label]);
        push(&mut body, OP_VARIABLE, &[to_matrix, held, FUNCTION]);
        let result = if read {
            push(&mut body, OP_STORE, &[held, parameter]);
            let mut all = vec![];
            for index in indices {
                let (at, element) = (self.id(), self.id());
                push(&mut body, OP_ACCESS_CHAIN, &[to_component, at, held, index]);
                push(&mut body, OP_LOAD, &[float, element, at]);
                all.push(element);
            }
            let made = self.id();
            push(&mut body, OP_COMPOSITE_CONSTRUCT, &[&[array, made], &all[..]].concat());
            made
        } else {
            for (n, index) in indices.iter().enumerate() {
                let (at, mut element) = (self.id(), self.id());
                push(&mut body, OP_ACCESS_CHAIN, &[to_component, at, held, *index]);
                push(&mut body, OP_COMPOSITE_EXTRACT, &[float, element, parameter, n as u32]);
                if halves {
                    let wide = std::mem::replace(&mut element, self.id());
                    push(&mut body, OP_F_CONVERT, &[component, element, wide]);
                }
                push(&mut body, OP_STORE, &[at, element]);
            }
            let made = self.id();
            push(&mut body, OP_LOAD, &[matrix, made, held]);
            made
        };
        push(&mut body, OP_RETURN_VALUE, &[result]);
        self.words.splice(from..to, body);
        // Types and constants end where the first function begins.
        let first = self.instructions().find(|i| i.0 == OP_FUNCTION).map_or(self.words.len(), |i| i.1.start - 1);
        self.words.splice(first..first, std::mem::take(&mut self.globals));
        self.words[3] = self.bound;
        Ok(self.words)
    }
}
