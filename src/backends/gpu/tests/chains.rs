//! Several runs in one submit, each of which reads what the one before it wrote.

use super::*;

#[test]
fn runs_of_a_chain_each_read_the_one_before() {
    let Some(m) = backend() else { return };
    let n = 5;
    let d = DType::F32;
    // x + x + p, or x + x alone, whose numbers never change.
    for params in [vec![3.0], vec![]] {
        let mut insts = vec![inst(Prim::Source(0), &[], d), inst(Prim::Binary(Binary::Add), &[0, 0], d)];
        if !params.is_empty() {
            insts.push(inst(Prim::Param(0), &[], d));
            insts.push(inst(Prim::Binary(Binary::Add), &[1, 2], d));
        }
        let step = map(Shape::of(&[n]), program(&insts), vec![flat(Buf::Input(0), d, n)], flat(Buf::Output(0), d, n));
        let (inputs, outputs) = (vec![Input { dtype: d, written: false }], vec![Output { dtype: d, bytes: 4 * n }]);
        let plan = Arc::new(Plan { steps: vec![step], inputs, outputs, slots: vec![], params: params.len(), memory: Default::default() });
        let growth = vec![0.5; params.len()];
        let start: Vec<f64> = (0..n).map(|i| i as f64 - 2.0).collect();
        let x = upload(&m, encode(&start, d));
        for runs in [1, 2, 9, 3, 12] {
            let out: Vec<Buffer> = (0..runs).map(|_| m.alloc(4 * n).unwrap()).collect();
            let submits = m.submits();
            m.defer_submit();
            m.run_repeated(&plan, std::slice::from_ref(&x), &out, &params, Repeat { fed: 0, growth: &growth }).unwrap();
            // All but the first element of each, one behind the other.
            let parts: Vec<_> = out.iter().map(|b| (b, 4, 4 * n - 4)).collect();
            let got = decode(&taken(m.start_reads(&parts).unwrap()), d);
            let (mut v, mut want) = (start.clone(), Vec::<f64>::new());
            for run in 0..runs {
                v.iter_mut().for_each(|v| *v = 2.0 * *v + params.first().map_or(0.0, |p| p + 0.5 * run as f64));
                want.extend(&v[1..]);
            }
            assert_eq!(got, want, "{runs} runs with {params:?}");
            assert_eq!(m.submits() - submits, 1, "{runs} runs with {params:?}");
        }
    }
}
