//! A small Objective-C runtime with as much of Foundation as `objc2-metal`'s users need. For tests on systems that have neither.
//!
//! Differences that help tests: an object that is released too often, or used after it was freed, ends the process with its class's name; a selector
//! that no class has does too; `live()` counts what was not freed.

use crate::faults::FAULTS;
use std::alloc::{Layout, alloc_zeroed, dealloc};
use std::cell::RefCell;
use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char, c_int, c_void};
use std::sync::atomic::{AtomicIsize, AtomicUsize, Ordering::SeqCst};
use std::sync::{Mutex, Once};

#[repr(C)]
pub struct Object {
    pub isa: *const Class,
}
pub type Id = *mut Object;
pub type Sel = *const c_char;
pub type Imp = unsafe extern "C-unwind" fn();
pub struct Method {
    sel: usize,
    imp: Imp,
    types: CString,
}
struct Ivar {
    name: CString,
    offset: usize,
    types: CString,
}
/// A class or metaclass.
#[repr(C)]
pub struct Class {
    isa: *const Class,
    parent: *const Class,
    name: *const c_char,
    meta: bool,
    size: AtomicUsize,
    methods: Mutex<BTreeMap<usize, &'static Method>>,
    ivars: Mutex<Vec<&'static Ivar>>,
}
// SAFETY: classes are never freed, and what changes is behind locks.
unsafe impl Sync for Class {}

const fn class(isa: *const Class, parent: *const Class, name: &'static CStr, meta: bool, size: usize) -> Class {
    Class {
        isa,
        parent,
        name: name.as_ptr(),
        meta,
        size: AtomicUsize::new(size),
        methods: Mutex::new(BTreeMap::new()),
        ivars: Mutex::new(Vec::new()),
    }
}
macro_rules! classes {
    ($($symbol:literal $meta:ident $class:ident: $parent:expr, $parent_meta:expr, $name:literal, $size:expr;)*) => { $(
        pub static $meta: Class = class(&raw const OBJECT_META, $parent_meta, $name, true, 0);
        #[unsafe(export_name = $symbol)]
        pub static $class: Class = class(&raw const $meta, $parent, $name, false, $size);
    )* };
}
classes! {
    "_OBJC_CLASS_NSObject" OBJECT_META OBJECT: std::ptr::null(), &raw const OBJECT, c"NSObject", 8;
    "_OBJC_CLASS_NSString" STRING_META STRING: &raw const OBJECT, &raw const OBJECT_META, c"NSString", 16;
    "_OBJC_CLASS_NSError" ERROR_META ERROR: &raw const OBJECT, &raw const OBJECT_META, c"NSError", 32;
    "_OBJC_CLASS_NSArray" ARRAY_META ARRAY: &raw const OBJECT, &raw const OBJECT_META, c"NSArray", 16;
    "_OBJC_CLASS_NSDictionary" DICTIONARY_META DICTIONARY: &raw const OBJECT, &raw const OBJECT_META, c"NSDictionary", 24;
    "_OBJC_CLASS_NSURL" URL_META URL: &raw const OBJECT, &raw const OBJECT_META, c"NSURL", 16;
    "_OBJC_CLASS_MTLBinaryArchiveDescriptor" ARCHIVE_META ARCHIVE: &raw const OBJECT, &raw const OBJECT_META, c"MTLBinaryArchiveDescriptor", 16;
    "_OBJC_CLASS_MTLComputePipelineDescriptor" PIPELINE_META PIPELINE: &raw const OBJECT, &raw const OBJECT_META, c"MTLComputePipelineDescriptor", 32;
    "_OBJC_CLASS_MTLHeapDescriptor" HEAP_META HEAP: &raw const OBJECT, &raw const OBJECT_META, c"MTLHeapDescriptor", 24;
    "_OBJC_CLASS_MTLResidencySetDescriptor" SET_META SET: &raw const OBJECT, &raw const OBJECT_META, c"MTLResidencySetDescriptor", 8;
    "_OBJC_CLASS_MTLCommandBufferDescriptor" COMMANDS_META COMMANDS: &raw const OBJECT, &raw const OBJECT_META, c"MTLCommandBufferDescriptor", 24;
    "_OBJC_CLASS_MTLCaptureDescriptor" CAPTURE_META CAPTURE: &raw const OBJECT, &raw const OBJECT_META, c"MTLCaptureDescriptor", 32;
    "_OBJC_CLASS_MTLCaptureManager" MANAGER_META MANAGER: &raw const OBJECT, &raw const OBJECT_META, c"MTLCaptureManager", 8;
    "_OBJC_CLASS_MTLCompileOptions" OPTIONS_META OPTIONS: &raw const OBJECT, &raw const OBJECT_META, c"MTLCompileOptions", 32;
}

/// What stands before each object.
#[repr(C, align(16))]
struct Head {
    refs: AtomicIsize,
    size: usize,
}
static LIVE: AtomicIsize = AtomicIsize::new(0);
/// Objects that were made and not freed.
pub fn live() -> isize {
    LIVE.load(SeqCst)
}

pub fn die(what: &str) -> ! {
    eprintln!("objc: {what}");
    std::process::abort()
}
fn text(p: *const c_char) -> String {
    // SAFETY: names are C strings that live for ever.
    unsafe { CStr::from_ptr(p) }.to_string_lossy().into_owned()
}
fn head(o: Id) -> &'static Head {
    // SAFETY: every object was made by `class_createInstance`.
    unsafe { &*(o as *const Head).sub(1) }
}
fn is_object(o: Id) -> bool {
    if o.is_null() {
        return false;
    }
    // SAFETY: objects, classes and blocks all begin with a pointer to a class.
    let isa = unsafe { (*o).isa };
    !std::ptr::eq(isa, &raw const _NSConcreteStackBlock as *const Class)
        && !std::ptr::eq(isa, &raw const _NSConcreteGlobalBlock as *const Class)
        && !std::ptr::eq(isa, &raw const _NSConcreteMallocBlock as *const Class)
        // SAFETY: as above; a class's class is a metaclass.
        && !unsafe { (*isa).meta }
}
/// Whether an object was freed. Freed objects keep their head, so that this can be asked.
pub fn is_freed(o: Id) -> bool {
    head(o).refs.load(SeqCst) <= 0
}

// ---- selectors ----
static NAMES: Mutex<BTreeMap<CString, usize>> = Mutex::new(BTreeMap::new());
#[unsafe(no_mangle)]
pub extern "C" fn sel_registerName(name: *const c_char) -> Sel {
    // SAFETY: a C string by contract.
    let name = unsafe { CStr::from_ptr(name) };
    let mut names = NAMES.lock().unwrap();
    if let Some(s) = names.get(name) {
        return *s as Sel;
    }
    let kept = name.to_owned().into_raw();
    names.insert(name.to_owned(), kept as usize);
    kept
}
#[unsafe(no_mangle)]
pub extern "C" fn sel_getName(s: Sel) -> *const c_char {
    s
}
#[unsafe(no_mangle)]
pub extern "C" fn sel_isEqual(a: Sel, b: Sel) -> u8 {
    std::ptr::eq(a, b) as u8
}

// ---- classes ----
static TABLE: Mutex<BTreeMap<CString, usize>> = Mutex::new(BTreeMap::new());
fn find(mut c: *const Class, s: Sel) -> Option<&'static Method> {
    foundation();
    while !c.is_null() {
        // SAFETY: classes live for ever.
        let class = unsafe { &*c };
        if let Some(m) = class.methods.lock().unwrap().get(&(s as usize)) {
            return Some(m);
        }
        c = class.parent;
    }
    None
}
fn add(c: &'static Class, name: &CStr, imp: Imp, types: &CStr) {
    let s = sel_registerName(name.as_ptr());
    let m: &'static Method = Box::leak(Box::new(Method { sel: s as usize, imp, types: types.to_owned() }));
    c.methods.lock().unwrap().insert(s as usize, m);
}
#[unsafe(no_mangle)]
pub extern "C" fn objc_getClass(name: *const c_char) -> *const Class {
    foundation();
    // SAFETY: a C string by contract.
    TABLE.lock().unwrap().get(unsafe { CStr::from_ptr(name) }).map_or(std::ptr::null(), |c| *c as *const Class)
}
#[unsafe(no_mangle)]
pub extern "C" fn objc_allocateClassPair(parent: *const Class, name: *const c_char, _extra: usize) -> *mut Class {
    if !objc_getClass(name).is_null() {
        return std::ptr::null_mut();
    }
    // SAFETY: a C string and a class, by contract.
    let (name, p) = unsafe { (CStr::from_ptr(name).to_owned(), &*parent) };
    let name: &'static CStr = Box::leak(name.into_boxed_c_str());
    let meta = Box::leak(Box::new(class(&raw const OBJECT_META, p.isa, name, true, 0)));
    Box::leak(Box::new(class(meta, parent, name, false, p.size.load(SeqCst))))
}
#[unsafe(no_mangle)]
pub extern "C" fn objc_registerClassPair(c: *mut Class) {
    // SAFETY: made above.
    let name = unsafe { CStr::from_ptr((*c).name) };
    TABLE.lock().unwrap().insert(name.to_owned(), c as usize);
}
#[unsafe(no_mangle)]
pub extern "C" fn objc_disposeClassPair(_: *mut Class) {}
#[unsafe(no_mangle)]
pub extern "C" fn class_addMethod(c: *mut Class, s: Sel, imp: Imp, types: *const c_char) -> u8 {
    // SAFETY: by contract.
    unsafe { add(&*c, CStr::from_ptr(s), imp, CStr::from_ptr(types)) };
    1
}
#[unsafe(no_mangle)]
pub extern "C" fn class_addIvar(c: *mut Class, name: *const c_char, size: usize, align: u8, types: *const c_char) -> u8 {
    // SAFETY: by contract.
    let (c, name, types) = unsafe { (&*c, CStr::from_ptr(name).to_owned(), CStr::from_ptr(types).to_owned()) };
    let offset = c.size.load(SeqCst).next_multiple_of(1 << align);
    c.size.store(offset + size, SeqCst);
    c.ivars.lock().unwrap().push(Box::leak(Box::new(Ivar { name, offset, types })));
    1
}
#[unsafe(no_mangle)]
pub extern "C" fn class_addProtocol(_: *mut Class, _: *const c_void) -> u8 {
    1
}
#[unsafe(no_mangle)]
pub extern "C" fn class_getInstanceVariable(mut c: *const Class, name: *const c_char) -> *const c_void {
    while !c.is_null() {
        // SAFETY: classes live for ever.
        let (class, name) = unsafe { (&*c, CStr::from_ptr(name)) };
        if let Some(i) = class.ivars.lock().unwrap().iter().find(|i| i.name.as_c_str() == name) {
            return std::ptr::from_ref(*i).cast();
        }
        c = class.parent;
    }
    std::ptr::null()
}
#[unsafe(no_mangle)]
pub extern "C" fn ivar_getOffset(i: *const c_void) -> isize {
    // SAFETY: from above.
    unsafe { (*(i as *const Ivar)).offset as isize }
}
#[unsafe(no_mangle)]
pub extern "C" fn ivar_getTypeEncoding(i: *const c_void) -> *const c_char {
    // SAFETY: from above.
    unsafe { (*(i as *const Ivar)).types.as_ptr() }
}
#[unsafe(no_mangle)]
pub extern "C" fn ivar_getName(i: *const c_void) -> *const c_char {
    // SAFETY: from above.
    unsafe { (*(i as *const Ivar)).name.as_ptr() }
}
#[unsafe(no_mangle)]
pub extern "C" fn class_getInstanceMethod(c: *const Class, s: Sel) -> *const Method {
    find(c, s).map_or(std::ptr::null(), |m| std::ptr::from_ref(m))
}
#[unsafe(no_mangle)]
pub extern "C" fn class_getClassMethod(c: *const Class, s: Sel) -> *const Method {
    // SAFETY: a class.
    class_getInstanceMethod(unsafe { (*c).isa }, s)
}
#[unsafe(no_mangle)]
pub extern "C" fn class_respondsToSelector(c: *const Class, s: Sel) -> u8 {
    find(c, s).is_some() as u8
}
macro_rules! ask {
    ($($name:ident($c:ident) -> $t:ty { $e:expr })*) => { $(
        #[unsafe(no_mangle)]
        pub extern "C" fn $name(c: *const Class) -> $t {
            // SAFETY: classes live for ever.
            let $c = unsafe { &*c };
            $e
        }
    )* };
}
ask! {
    class_getName(c) -> *const c_char { c.name }
    class_getSuperclass(c) -> *const Class { c.parent }
    class_getInstanceSize(c) -> usize { c.size.load(SeqCst) }
    class_isMetaClass(c) -> u8 { c.meta as u8 }
}
#[unsafe(no_mangle)]
pub extern "C" fn method_getTypeEncoding(m: *const Method) -> *const c_char {
    // SAFETY: methods live for ever.
    unsafe { (*m).types.as_ptr() }
}
#[unsafe(no_mangle)]
pub extern "C" fn method_getImplementation(m: *const Method) -> Imp {
    // SAFETY: as above.
    unsafe { (*m).imp }
}
#[unsafe(no_mangle)]
pub extern "C" fn method_getName(m: *const Method) -> Sel {
    // SAFETY: as above.
    unsafe { (*m).sel as Sel }
}
#[unsafe(no_mangle)]
pub extern "C" fn objc_getProtocol(_: *const c_char) -> *const c_void {
    std::ptr::null()
}
macro_rules! unused {
    ($($name:ident)*) => { $( #[unsafe(no_mangle)] pub extern "C" fn $name() { die(concat!(stringify!($name), " is not in this runtime")); } )* };
}
unused! {
    protocol_isEqual protocol_getName protocol_conformsToProtocol class_conformsToProtocol class_copyMethodList class_copyIvarList class_copyProtocolList
    objc_copyClassList objc_getClassList objc_copyProtocolList method_copyReturnType method_copyArgumentType method_getNumberOfArguments
    protocol_copyMethodDescriptionList protocol_copyProtocolList objc_initWeak objc_destroyWeak objc_copyWeak objc_loadWeakRetained
    objc_exception_throw objc_setAssociatedObject class_getIvarLayout class_getClassVariable method_setImplementation method_exchangeImplementations
    objc_allocateProtocol objc_registerProtocol protocol_addMethodDescription protocol_addProtocol objc_msgSend
}

// ---- objects ----
#[unsafe(no_mangle)]
pub extern "C" fn class_createInstance(c: *const Class, extra: usize) -> Id {
    // SAFETY: a class; the layout is not empty.
    unsafe {
        let size = (*c).size.load(SeqCst) + extra;
        let layout = Layout::from_size_align(size_of::<Head>() + size, 16).unwrap();
        let h = alloc_zeroed(layout).cast::<Head>();
        h.write(Head { refs: AtomicIsize::new(1), size });
        let o = h.add(1).cast::<Object>();
        (*o).isa = c;
        LIVE.fetch_add(1, SeqCst);
        o
    }
}
#[unsafe(no_mangle)]
pub extern "C" fn object_dispose(o: Id) -> Id {
    LIVE.fetch_sub(1, SeqCst);
    // The memory stays, so that a later use is noticed: tests are short. `objc_release` has set the count to 0.
    let _ = (dealloc as unsafe fn(*mut u8, Layout), head(o).size);
    std::ptr::null_mut()
}
#[unsafe(no_mangle)]
pub extern "C" fn object_getClass(o: Id) -> *const Class {
    // SAFETY: an object.
    if o.is_null() { std::ptr::null() } else { unsafe { (*o).isa } }
}
#[unsafe(no_mangle)]
pub extern "C" fn object_setClass(o: Id, c: *const Class) -> *const Class {
    // SAFETY: an object.
    unsafe { std::mem::replace(&mut (*o).isa, c) }
}
fn check(o: Id, what: &str) {
    if is_object(o) && is_freed(o) {
        // SAFETY: its head and class pointer are still there.
        die(&format!("{what} of a freed {}", text(unsafe { (*(*o).isa).name })));
    }
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_retain(o: Id) -> Id {
    if is_object(o) {
        check(o, "retain");
        head(o).refs.fetch_add(1, SeqCst);
    }
    o
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_release(o: Id) {
    if !is_object(o) {
        return;
    }
    check(o, "release");
    if head(o).refs.fetch_sub(1, SeqCst) == 1 {
        // `dealloc` may look at the object; a count of 0 would make that a use after the end.
        head(o).refs.store(1, SeqCst);
        let s = sel_registerName(c"dealloc".as_ptr());
        // SAFETY: `dealloc` has this type.
        unsafe { std::mem::transmute::<Imp, extern "C-unwind" fn(Id, Sel)>(objc_msg_lookup(o, s))(o, s) };
        head(o).refs.store(0, SeqCst);
    }
}
thread_local! {
    static POOLS: RefCell<Vec<Vec<Id>>> = const { RefCell::new(Vec::new()) };
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_autoreleasePoolPush() -> *mut c_void {
    POOLS.with_borrow_mut(|p| {
        p.push(Vec::new());
        p.len() as *mut c_void
    })
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_autoreleasePoolPop(pool: *mut c_void) {
    while POOLS.with_borrow(|p| p.len()) >= pool as usize {
        let Some(all) = POOLS.with_borrow_mut(Vec::pop) else { break };
        all.into_iter().for_each(|o| objc_release(o));
    }
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_autorelease(o: Id) -> Id {
    if is_object(o) && !POOLS.with_borrow_mut(|p| p.last_mut().map(|l| l.push(o)).is_some()) {
        eprintln!("objc: an object is autoreleased where there is no pool, and leaks: {}", text(unsafe { (*(*o).isa).name }));
    }
    o
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_autoreleaseReturnValue(o: Id) -> Id {
    objc_autorelease(o)
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_retainAutoreleasedReturnValue(o: Id) -> Id {
    objc_retain(o)
}

// ---- messages ----
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_msg_lookup(o: Id, s: Sel) -> Imp {
    check(o, &format!("message {:?}", text(s)));
    // SAFETY: an object or a class.
    let c = unsafe { (*o).isa };
    let plus = if unsafe { (*c).meta } { '+' } else { '-' };
    find(c, s).map(|m| m.imp).unwrap_or_else(|| die(&format!("{plus}[{} {}] does not exist", text(unsafe { (*c).name }), text(s))))
}
#[repr(C)]
pub struct Super {
    receiver: Id,
    class: *const Class,
}
#[unsafe(no_mangle)]
pub extern "C-unwind" fn objc_msg_lookup_super(s: *const Super, sel: Sel) -> Imp {
    // SAFETY: by contract.
    find(unsafe { (*s).class }, sel).map(|m| m.imp).unwrap_or_else(|| die(&format!("super has no {}", text(sel))))
}

// ---- blocks ----
#[unsafe(no_mangle)]
pub static _NSConcreteStackBlock: [usize; 32] = [0; 32];
#[unsafe(no_mangle)]
pub static _NSConcreteGlobalBlock: [usize; 32] = [0; 32];
#[unsafe(no_mangle)]
pub static _NSConcreteMallocBlock: [usize; 32] = [0; 32];
#[repr(C)]
struct Block {
    isa: *const c_void,
    flags: c_int,
    reserved: c_int,
    invoke: *const c_void,
    descriptor: *const Descriptor,
}
#[repr(C)]
struct Descriptor {
    reserved: usize,
    size: usize,
    copy: unsafe extern "C-unwind" fn(*mut c_void, *const c_void),
    dispose: unsafe extern "C-unwind" fn(*mut c_void),
}
const NEEDS_FREE: c_int = 1 << 24;
const HAS_COPY: c_int = 1 << 25;
const IS_GLOBAL: c_int = 1 << 28;
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Block_copy(b: *const c_void) -> *mut c_void {
    // SAFETY: a block by contract. The counter in `flags` counts by two.
    unsafe {
        let block = b as *mut Block;
        if b.is_null() || (*block).flags & IS_GLOBAL != 0 {
            return b.cast_mut();
        }
        if (*block).flags & NEEDS_FREE != 0 {
            (*block).flags += 2;
            return b.cast_mut();
        }
        let size = (*(*block).descriptor).size;
        let copy = alloc_zeroed(Layout::from_size_align(size, 16).unwrap()).cast::<Block>();
        std::ptr::copy_nonoverlapping(b.cast::<u8>(), copy.cast::<u8>(), size);
        (*copy).isa = (&raw const _NSConcreteMallocBlock).cast();
        (*copy).flags = ((*copy).flags & !0xffff) | NEEDS_FREE | 2;
        if (*copy).flags & HAS_COPY != 0 {
            ((*(*copy).descriptor).copy)(copy.cast(), b);
        }
        LIVE.fetch_add(1, SeqCst);
        copy.cast()
    }
}
#[unsafe(no_mangle)]
pub unsafe extern "C-unwind" fn _Block_release(b: *const c_void) {
    // SAFETY: as above.
    unsafe {
        let block = b as *mut Block;
        if b.is_null() || (*block).flags & IS_GLOBAL != 0 || (*block).flags & NEEDS_FREE == 0 {
            return;
        }
        (*block).flags -= 2;
        if (*block).flags & 0xffff == 0 {
            if (*block).flags & HAS_COPY != 0 {
                ((*(*block).descriptor).dispose)(block.cast());
            }
            LIVE.fetch_sub(1, SeqCst);
            dealloc(b as *mut u8, Layout::from_size_align((*(*block).descriptor).size, 16).unwrap());
        }
    }
}
unused! { _Block_object_assign _Block_object_dispose }

// ---- Foundation ----
/// The value behind an object's class pointer.
fn slot<T>(o: Id, n: usize) -> *mut T {
    // SAFETY: the class's size has room for it.
    unsafe { o.cast::<u8>().add(8 + 8 * n).cast() }
}
/// What compile options state: the language's version, 0 where that was not set, and the number of the math mode.
pub fn compile_options(o: Id) -> (usize, Option<isize>) {
    // SAFETY: an object of this class, whose slots hold both, the second one behind whether it was set.
    unsafe { (*slot::<usize>(o, 0), (*slot::<usize>(o, 2) != 0).then_some(*slot::<isize>(o, 1))) }
}
/// A string with a count of one.
pub fn string(s: &str) -> Id {
    let o = class_createInstance(&raw const STRING, 0);
    // SAFETY: the slot holds a string's pointer.
    unsafe { *slot::<*mut c_char>(o, 0) = CString::new(s.replace('\0', "")).unwrap().into_raw() };
    o
}
/// An error with a count of one. `info` has a count of one too, which goes to the error; it may be null.
pub fn error(code: isize, message: &str, info: Id) -> Id {
    let o = class_createInstance(&raw const ERROR, 0);
    // SAFETY: the slots hold a string, a dictionary and a code.
    unsafe {
        *slot::<Id>(o, 0) = string(message);
        *slot::<Id>(o, 1) = info;
        *slot::<isize>(o, 2) = code;
    }
    o
}
/// A dictionary of one value, with a count of one. It retains the value; keys live for ever.
pub fn dictionary(key: Id, value: Id) -> Id {
    let o = class_createInstance(&raw const DICTIONARY, 0);
    // SAFETY: the slots hold a value and its key.
    unsafe {
        *slot::<Id>(o, 0) = objc_retain(value);
        *slot::<Id>(o, 1) = key;
    }
    o
}
/// A string that lives for ever.
#[repr(C)]
struct StaticString {
    head: Head,
    isa: *const Class,
    text: *const c_char,
}
// SAFETY: never changed but for its count.
unsafe impl Sync for StaticString {}
static ENCODER_INFO: StaticString =
    StaticString { head: Head { refs: AtomicIsize::new(1 << 60), size: 16 }, isa: &raw const STRING, text: c"encoder info".as_ptr() };
/// The place of a string.
#[repr(transparent)]
pub struct StringPlace(*const *const Class);
// SAFETY: as above.
unsafe impl Sync for StringPlace {}
#[unsafe(no_mangle)]
pub static MTLCommandBufferEncoderInfoErrorKey: StringPlace = StringPlace(&raw const ENCODER_INFO.isa);
/// The key of what an error tells about encoders.
pub fn encoder_info_key() -> Id {
    (&raw const ENCODER_INFO.isa).cast_mut().cast()
}
/// Adds a method to one of this runtime's classes, or to its metaclass.
pub fn extend_capture_manager(meta: bool, name: &CStr, imp: Imp, types: &CStr) {
    add(if meta { &MANAGER_META } else { &MANAGER }, name, imp, types);
}
/// An object of the class of capture managers, with a count of one.
pub fn capture_manager() -> Id {
    class_createInstance(&raw const MANAGER, 0)
}

macro_rules! imp {
    ($f:expr, $t:ty) => {
        // SAFETY: called with the type that its encoding says.
        unsafe { std::mem::transmute::<$t, Imp>($f) }
    };
}
// ---- properties ----
extern "C-unwind" fn set_object<const N: usize>(o: Id, _: Sel, v: Id) {
    // SAFETY: the class has this slot, which holds an object or null.
    objc_release(unsafe { std::mem::replace(&mut *slot::<Id>(o, N), objc_retain(v)) });
}
extern "C-unwind" fn get_object<const N: usize>(o: Id, _: Sel) -> Id {
    // SAFETY: as above.
    objc_autorelease(objc_retain(unsafe { *slot::<Id>(o, N) }))
}
extern "C-unwind" fn set_value<const N: usize>(o: Id, _: Sel, v: usize) {
    // SAFETY: the class has this slot.
    unsafe { *slot::<usize>(o, N) = v };
}
extern "C-unwind" fn get_value<const N: usize>(o: Id, _: Sel) -> usize {
    // SAFETY: as above.
    unsafe { *slot::<usize>(o, N) }
}
/// Frees an object whose first slots hold objects.
extern "C-unwind" fn drop_objects<const N: usize>(o: Id, _: Sel) {
    // SAFETY: as above.
    (0..N).for_each(|n| objc_release(unsafe { *slot::<Id>(o, n) }));
    object_dispose(o);
}
/// Arrays, dictionaries, file URLs and Metal's descriptors.
fn collections() {
    type Get = extern "C-unwind" fn(Id, Sel) -> Id;
    type Set = extern "C-unwind" fn(Id, Sel, Id);
    type Free = extern "C-unwind" fn(Id, Sel);
    type SetValue = extern "C-unwind" fn(Id, Sel, usize);
    type GetValue = extern "C-unwind" fn(Id, Sel) -> usize;
    let object = |c: &'static Class, n: usize, set: &CStr, get: &CStr| {
        let (put, take): (Set, Get) = match n {
            0 => (set_object::<0>, get_object::<0>),
            1 => (set_object::<1>, get_object::<1>),
            _ => (set_object::<2>, get_object::<2>),
        };
        add(c, set, imp!(put, Set), c"v24@0:8@16");
        add(c, get, imp!(take, Get), c"@16@0:8");
    };
    object(&ARCHIVE, 0, c"setUrl:", c"url");
    add(&ARCHIVE, c"dealloc", imp!(drop_objects::<1>, Free), c"v16@0:8");
    object(&PIPELINE, 0, c"setComputeFunction:", c"computeFunction");
    object(&PIPELINE, 1, c"setLabel:", c"label");
    object(&PIPELINE, 2, c"setBinaryArchives:", c"binaryArchives");
    add(&PIPELINE, c"dealloc", imp!(drop_objects::<3>, Free), c"v16@0:8");
    object(&CAPTURE, 0, c"setCaptureObject:", c"captureObject");
    object(&CAPTURE, 1, c"setOutputURL:", c"outputURL");
    add(&CAPTURE, c"setDestination:", imp!(set_value::<2>, SetValue), c"v24@0:8q16");
    add(&CAPTURE, c"destination", imp!(get_value::<2>, GetValue), c"q16@0:8");
    add(&CAPTURE, c"dealloc", imp!(drop_objects::<2>, Free), c"v16@0:8");
    add(&HEAP, c"setSize:", imp!(set_value::<0>, SetValue), c"v24@0:8Q16");
    add(&HEAP, c"size", imp!(get_value::<0>, GetValue), c"Q16@0:8");
    add(&HEAP, c"setResourceOptions:", imp!(set_value::<1>, SetValue), c"v24@0:8Q16");
    add(&HEAP, c"resourceOptions", imp!(get_value::<1>, GetValue), c"Q16@0:8");
    extern "C-unwind" fn set_flag(o: Id, _: Sel, v: u8) {
        // SAFETY: the class has this slot.
        unsafe { *slot::<usize>(o, 0) = v.into() };
    }
    extern "C-unwind" fn get_flag(o: Id, _: Sel) -> u8 {
        // SAFETY: as above.
        unsafe { *slot::<usize>(o, 0) as u8 }
    }
    add(&COMMANDS, c"setRetainedReferences:", imp!(set_flag, extern "C-unwind" fn(Id, Sel, u8)), c"v20@0:8C16");
    add(&COMMANDS, c"retainedReferences", imp!(get_flag, extern "C-unwind" fn(Id, Sel) -> u8), c"C16@0:8");
    add(&COMMANDS, c"setErrorOptions:", imp!(set_value::<1>, SetValue), c"v24@0:8Q16");
    add(&COMMANDS, c"errorOptions", imp!(get_value::<1>, GetValue), c"Q16@0:8");

    extern "C-unwind" fn file_url(_: Id, _: Sel, path: Id) -> Id {
        let o = class_createInstance(&raw const URL, 0);
        set_object::<0>(o, std::ptr::null(), path);
        objc_autorelease(o)
    }
    add(&URL_META, c"fileURLWithPath:", imp!(file_url, extern "C-unwind" fn(Id, Sel, Id) -> Id), c"@24@0:8@16");
    add(&URL, c"path", imp!(get_object::<0>, Get), c"@16@0:8");
    add(&URL, c"dealloc", imp!(drop_objects::<1>, Free), c"v16@0:8");

    extern "C-unwind" fn with_objects(o: Id, _: Sel, objects: *const Id, count: usize) -> Id {
        // SAFETY: by contract.
        let all: Vec<Id> = unsafe { std::slice::from_raw_parts(objects, count) }.iter().map(|o| objc_retain(*o)).collect();
        // SAFETY: an array's slot.
        unsafe { *slot::<*mut Vec<Id>>(o, 0) = Box::into_raw(Box::new(all)) };
        o
    }
    fn items(o: Id) -> &'static Vec<Id> {
        // SAFETY: set when it was made.
        unsafe { &**slot::<*mut Vec<Id>>(o, 0) }
    }
    extern "C-unwind" fn count(o: Id, _: Sel) -> usize {
        items(o).len()
    }
    extern "C-unwind" fn at(o: Id, _: Sel, n: usize) -> Id {
        objc_autorelease(objc_retain(items(o)[n]))
    }
    extern "C-unwind" fn drop_array(o: Id, _: Sel) {
        // SAFETY: made by `into_raw`, once.
        unsafe { Box::from_raw(*slot::<*mut Vec<Id>>(o, 0)) }.into_iter().for_each(|o| objc_release(o));
        object_dispose(o);
    }
    let with = imp!(with_objects, extern "C-unwind" fn(Id, Sel, *const Id, usize) -> Id);
    add(&ARRAY, c"initWithObjects:count:", with, c"@32@0:8^@16Q24");
    add(&ARRAY, c"count", imp!(count, GetValue), c"Q16@0:8");
    add(&ARRAY, c"objectAtIndex:", imp!(at, extern "C-unwind" fn(Id, Sel, usize) -> Id), c"@24@0:8Q16");
    add(&ARRAY, c"dealloc", imp!(drop_array, Free), c"v16@0:8");

    extern "C-unwind" fn for_key(o: Id, s: Sel, key: Id) -> Id {
        // SAFETY: a dictionary's slot.
        if unsafe { *slot::<Id>(o, 1) } == key { get_object::<0>(o, s) } else { std::ptr::null_mut() }
    }
    add(&DICTIONARY, c"objectForKey:", imp!(for_key, extern "C-unwind" fn(Id, Sel, Id) -> Id), c"@24@0:8@16");
    add(&DICTIONARY, c"dealloc", imp!(drop_objects::<1>, Free), c"v16@0:8");
}
/// The math mode of compile options.
fn put_math(o: Id, v: isize) {
    // SAFETY: room for three.
    unsafe {
        *slot::<isize>(o, 1) = v;
        *slot::<usize>(o, 2) = 1;
    }
}
fn foundation() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        type One = extern "C-unwind" fn(Id, Sel) -> Id;
        extern "C-unwind" fn alloc(c: Id, _: Sel) -> Id {
            class_createInstance(c.cast(), 0)
        }
        extern "C-unwind" fn alloc_zone(c: Id, _: Sel, _: *const c_void) -> Id {
            class_createInstance(c.cast(), 0)
        }
        extern "C-unwind" fn same(o: Id, _: Sel) -> Id {
            o
        }
        extern "C-unwind" fn new(c: Id, _: Sel) -> Id {
            let o = class_createInstance(c.cast(), 0);
            let s = sel_registerName(c"init".as_ptr());
            // SAFETY: `init` has this type.
            unsafe { std::mem::transmute::<Imp, One>(objc_msg_lookup(o, s))(o, s) }
        }
        extern "C-unwind" fn dispose(o: Id, _: Sel) {
            object_dispose(o);
        }
        extern "C-unwind" fn retain(o: Id, _: Sel) -> Id {
            objc_retain(o)
        }
        extern "C-unwind" fn release(o: Id, _: Sel) {
            objc_release(o)
        }
        extern "C-unwind" fn equal(a: Id, _: Sel, b: Id) -> u8 {
            std::ptr::eq(a, b) as u8
        }
        let (o, m) = (&OBJECT, &OBJECT_META);
        add(m, c"alloc", imp!(alloc, One), c"@16@0:8");
        add(m, c"allocWithZone:", imp!(alloc_zone, extern "C-unwind" fn(Id, Sel, *const c_void) -> Id), c"@24@0:8^v16");
        add(m, c"new", imp!(new, One), c"@16@0:8");
        add(o, c"init", imp!(same, One), c"@16@0:8");
        add(o, c"dealloc", imp!(dispose, extern "C-unwind" fn(Id, Sel)), c"v16@0:8");
        add(o, c"retain", imp!(retain, One), c"@16@0:8");
        add(o, c"release", imp!(release, extern "C-unwind" fn(Id, Sel)), c"v16@0:8");
        extern "C-unwind" fn responds(o: Id, _: Sel, s: Sel) -> u8 {
            class_respondsToSelector(object_getClass(o), s)
        }
        add(o, c"respondsToSelector:", imp!(responds, extern "C-unwind" fn(Id, Sel, Sel) -> u8), c"C24@0:8:16");
        add(o, c"isEqual:", imp!(equal, extern "C-unwind" fn(Id, Sel, Id) -> u8), c"C24@0:8@16");

        extern "C-unwind" fn with_bytes(o: Id, _: Sel, p: *const c_void, len: usize, _: c_int) -> Id {
            // SAFETY: by contract.
            let bytes = unsafe { std::slice::from_raw_parts(p.cast::<u8>(), len) };
            let s = CString::new(bytes.iter().copied().filter(|b| *b != 0).collect::<Vec<_>>()).unwrap();
            // SAFETY: a string's slot.
            unsafe { *slot::<*mut c_char>(o, 0) = s.into_raw() };
            o
        }
        extern "C-unwind" fn utf8(o: Id, _: Sel) -> *const c_char {
            // SAFETY: as above.
            unsafe { *slot::<*mut c_char>(o, 0) }
        }
        extern "C-unwind" fn length(o: Id, s: Sel, _: c_int) -> usize {
            // SAFETY: as above.
            unsafe { CStr::from_ptr(utf8(o, s)) }.count_bytes()
        }
        extern "C-unwind" fn drop_string(o: Id, _: Sel) {
            // SAFETY: made by `into_raw`, once.
            unsafe {
                let p = *slot::<*mut c_char>(o, 0);
                if !p.is_null() {
                    drop(CString::from_raw(p));
                }
            }
            object_dispose(o);
        }
        add(
            &STRING,
            c"initWithBytes:length:encoding:",
            imp!(with_bytes, extern "C-unwind" fn(Id, Sel, *const c_void, usize, c_int) -> Id),
            c"@36@0:8^v16Q24i32",
        );
        add(&STRING, c"UTF8String", imp!(utf8, extern "C-unwind" fn(Id, Sel) -> *const c_char), c"*16@0:8");
        add(&STRING, c"lengthOfBytesUsingEncoding:", imp!(length, extern "C-unwind" fn(Id, Sel, c_int) -> usize), c"Q20@0:8i16");
        add(&STRING, c"dealloc", imp!(drop_string, extern "C-unwind" fn(Id, Sel)), c"v16@0:8");

        extern "C-unwind" fn info(o: Id, s: Sel) -> Id {
            let told = get_object::<1>(o, s);
            // As the real one: never null.
            if told.is_null() { objc_autorelease(class_createInstance(&raw const DICTIONARY, 0)) } else { told }
        }
        add(&ERROR, c"code", imp!(get_value::<2>, extern "C-unwind" fn(Id, Sel) -> usize), c"q16@0:8");
        add(&ERROR, c"localizedDescription", imp!(get_object::<0>, One), c"@16@0:8");
        add(&ERROR, c"userInfo", imp!(info, One), c"@16@0:8");
        add(&ERROR, c"dealloc", imp!(drop_objects::<2>, extern "C-unwind" fn(Id, Sel)), c"v16@0:8");
        collections();
        crate::tools::capture_manager_methods();

        extern "C-unwind" fn set_slot(o: Id, _: Sel, v: usize) {
            // SAFETY: room for three.
            unsafe { *slot::<usize>(o, 0) = v };
        }
        extern "C-unwind" fn set_math(o: Id, _: Sel, v: isize) {
            if FAULTS.old_system.load(SeqCst) {
                die("setMathMode: is sent to a system before macOS 15");
            }
            put_math(o, v);
        }
        extern "C-unwind" fn set_fast_math(o: Id, _: Sel, fast: u8) {
            put_math(o, if fast != 0 { 2 } else { 0 });
        }
        extern "C-unwind" fn options_respond(o: Id, _: Sel, s: Sel) -> u8 {
            let unknown = FAULTS.old_system.load(SeqCst) && sel_isEqual(s, sel_registerName(c"setMathMode:".as_ptr())) != 0;
            class_respondsToSelector(object_getClass(o), s) & u8::from(!unknown)
        }
        add(&OPTIONS, c"setLanguageVersion:", imp!(set_slot, extern "C-unwind" fn(Id, Sel, usize)), c"v24@0:8Q16");
        add(&OPTIONS, c"setMathMode:", imp!(set_math, extern "C-unwind" fn(Id, Sel, isize)), c"v24@0:8q16");
        add(&OPTIONS, c"setFastMathEnabled:", imp!(set_fast_math, extern "C-unwind" fn(Id, Sel, u8)), c"v20@0:8C16");
        add(&OPTIONS, c"respondsToSelector:", imp!(options_respond, extern "C-unwind" fn(Id, Sel, Sel) -> u8), c"C24@0:8:16");
        for c in
            [&OBJECT, &STRING, &ERROR, &OPTIONS, &ARRAY, &DICTIONARY, &URL, &ARCHIVE, &PIPELINE, &HEAP, &SET, &COMMANDS, &CAPTURE, &MANAGER]
        {
            // SAFETY: a static name.
            TABLE.lock().unwrap().insert(unsafe { CStr::from_ptr(c.name) }.to_owned(), std::ptr::from_ref(c) as usize);
        }
    });
}
