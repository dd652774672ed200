//! The backend: errors, memory, and steps in order.

use super::*;

/// A plan of one step over one input and one output of f32.
fn small_plan(step: Step, inputs: usize, bytes: usize) -> Arc<Plan> {
    Arc::new(Plan {
        steps: vec![step],
        inputs: vec![Input { dtype: F32, written: false }; inputs],
        outputs: vec![Output { dtype: F32, bytes }],
        slots: vec![],
        params: 1,
        memory: Default::default(),
    })
}

#[test]
fn a_bad_index_is_an_error_of_the_next_read() {
    let backend = CpuBackend::with_threads(2);
    for bad in [-1.0, 4.0] {
        let upload = |d, v: &[f64]| backend.upload(Bytes::Owned(Arc::new(encode(d, v)))).unwrap();
        let (table, idx) = (upload(F32, &[1.0, 2.0, 3.0, 4.0]), upload(I32, &[1.0, bad]));
        let source = |n, dtype, dims: &[usize]| Source {
            buf: Buf::Input(n),
            dtype,
            layout: Layout::contiguous(Shape::of(dims)),
            offset: None,
            aligned: true,
        };
        let load = |n, dtype, dims: &[usize]| Load {
            shape: Shape::of(dims),
            program: Program::identity(dtype),
            sources: vec![source(n, dtype, dims)],
        };
        let loads = vec![load(0, F32, &[4, 1]), load(1, I32, &[2])];
        let plan = small_plan(step("gather", Work::Kernel(Arc::new(GatherKernel)), loads, vec![plain_store(&[2, 1], F32)], vec![]), 2, 8);
        let out = backend.alloc(8).unwrap();
        backend.run(&plan, &[table, idx], std::slice::from_ref(&out), &[0.0]).unwrap();
        let mut bytes = [0; 8];
        let error = backend.read(&out, 0, &mut bytes).unwrap_err();
        assert!(matches!(&error, TensorError::Index { op: "gather", .. }) && error.to_string().contains("of size 4"), "{error}");
        backend.read(&out, 0, &mut bytes).unwrap();
    }
}

#[test]
fn a_window_outside_its_buffer_is_refused() {
    let backend = CpuBackend::with_threads(2);
    let shape = Shape::of(&[8]);
    let source = Source { buf: Buf::Input(0), dtype: F32, layout: Layout::contiguous(shape), offset: Some(0), aligned: false };
    let store = Store { shape, program: Program::identity(F32), sources: vec![source], target: target(0, F32, shape) };
    let plan = small_plan(step("slice", Work::Map, vec![], vec![store], vec![]), 1, 32);
    let x = backend.upload(Bytes::Owned(Arc::new(vec![0; 64]))).unwrap();
    let out = backend.alloc(32).unwrap();
    for (start, fits) in [(0.0, true), (8.0, true), (9.0, false), (-1.0, false), (f64::NAN, false), (1e300, false)] {
        let result = backend.run(&plan, std::slice::from_ref(&x), std::slice::from_ref(&out), &[start]);
        assert_eq!(result.is_ok(), fits, "start {start}");
    }
}

/// A kernel that panics on one of its threads while the others wait for it.
struct Panics;
impl Kernel for Panics {
    fn cpu(&self, task: &dyn Task) {
        if task.thread() + 1 == task.threads() {
            std::panic::resume_unwind(Box::new("a bug"));
        }
        task.barrier();
    }
    fn ops(&self, _step: &Step) -> u64 {
        u64::MAX
    }
    fn wgsl(&self, _step: &Step, _adapter: &AdapterInfo) -> Option<Wgsl> {
        None
    }
}

#[test]
fn a_panic_in_a_kernel_is_an_error_and_the_machine_goes_on() {
    let backend = CpuBackend::with_threads(3);
    let plan = small_plan(step("bug", Work::Kernel(Arc::new(Panics)), vec![], vec![plain_store(&[1], F32)], vec![]), 0, 4);
    let out = backend.alloc(4).unwrap();
    for _ in 0..3 {
        assert!(backend.run(&plan, &[], std::slice::from_ref(&out), &[0.0]).is_err());
    }
}

#[allow(irrefutable_let_patterns)]
fn host(b: &Buffer) -> &CpuBuffer {
    let Buffer::Cpu(b) = b else { panic!("not host memory") };
    b
}

#[test]
fn memory_is_pooled_and_counted() {
    let backend = CpuBackend::with_threads(1);
    let a = backend.alloc(1000).unwrap();
    let b = host(&a);
    assert!(b.len() == 1000 && b.as_ptr() as usize % 64 == 0 && a.is_unique());
    let held = backend.memory().in_use;
    assert!(held >= 1000);
    let copy = a.clone();
    assert!(!a.is_unique() && a.same(&copy));
    drop((a, copy));
    let stats = backend.memory();
    assert!(stats.in_use == 0 && stats.pooled == held && stats.peak == held, "{stats:?}");
    let again = backend.alloc(990).unwrap();
    assert_eq!(backend.memory().reused, 1);
    drop(again);
    backend.pool().shrink(0);
    assert_eq!(backend.memory().pooled, 0);
    assert!(matches!(backend.alloc(usize::MAX / 4), Err(TensorError::OutOfMemory { .. })));
    // A part of something shared is read in place and never written.
    let owner: Arc<dyn std::ops::Deref<Target = [u8]> + Send + Sync> = Arc::new(vec![7u8; 64]);
    let at = owner.as_ptr();
    let shared = backend.upload(Bytes::Shared(owner, 8, 16)).unwrap();
    let s = host(&shared);
    assert!(std::ptr::eq(s.as_ptr(), at.wrapping_add(8)) && !shared.is_unique());
    let mut bytes = [0; 16];
    backend.read(&shared, 0, &mut bytes).unwrap();
    assert_eq!(bytes, [7; 16]);
    assert!(backend.read(&shared, 1, &mut bytes).is_err());
}

#[test]
fn many_small_and_large_steps_stay_in_order() {
    // Each step adds 1 to a slot; sizes alternate between one thread and all of them.
    let sizes = [10, 50_000, 10, 10, 90_000, 7];
    let shape = |n| Shape::of(&[n]);
    let mut p = Program::identity(F32);
    let one = p.push(Inst { op: Prim::Lit(1f64.to_bits()), args: [0; 3], dtype: F32 });
    p.push(Inst { op: Prim::Binary(Binary::Add), args: [0, one, 0], dtype: F32 });
    let at = |buf, n| Source { buf, dtype: F32, layout: Layout::contiguous(shape(n)), offset: None, aligned: true };
    let mut steps = vec![];
    for i in 0..60 {
        let n = sizes[i % 6];
        let from = if i < 2 { Buf::Input(0) } else { Buf::Slot((i % 2) as u16) };
        let store =
            Store { shape: shape(n), program: p.clone(), sources: vec![at(from, n)], target: at(Buf::Slot(((i + 1) % 2) as u16), n) };
        steps.push(step("add", Work::Map, vec![], vec![store], vec![]));
    }
    let copy =
        Store { shape: shape(7), program: Program::identity(F32), sources: vec![at(Buf::Slot(0), 7)], target: at(Buf::Output(0), 7) };
    steps.push(step("copy", Work::Map, vec![], vec![copy], vec![]));
    let plan = Arc::new(Plan {
        steps,
        inputs: vec![Input { dtype: F32, written: false }],
        outputs: vec![Output { dtype: F32, bytes: 28 }],
        slots: vec![360_000; 2],
        params: 0,
        memory: Default::default(),
    });
    let results: Vec<Vec<f64>> = BACKENDS
        .iter()
        .map(|backend| {
            let x = backend.upload(Bytes::Owned(Arc::new(encode(F32, &vec![0.0; 90_000])))).unwrap();
            let out = backend.alloc(28).unwrap();
            let mut bytes = vec![0; 28];
            for _ in 0..200 {
                backend.run(&plan, std::slice::from_ref(&x), std::slice::from_ref(&out), &[]).unwrap();
                backend.read(&out, 0, &mut bytes).unwrap();
                assert_eq!(decode(F32, &bytes), vec![59.0; 7]);
            }
            decode(F32, &bytes)
        })
        .collect();
    assert_eq!(results[0], results[2]);
}
