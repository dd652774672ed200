//! Every directive, substitution and mistake; the time of a rendering.

use super::super::params;
use super::*;

const LIBRARY: &[(&str, &str)] = &[
    ("fetch.wgsl", "fn ${NAME}() { load_${N}(); }\n#if WIDE\nwide ${NAME}\n#endif\n"),
    ("twice.wgsl", "#include \"fetch.wgsl\" NAME = a, N = 1\n#include \"fetch.wgsl\" NAME = ${NAME}_b, N = ${N}\n"),
    ("combine.wgsl", "${JOIN};${N}\n"),
    ("circle.wgsl", "#include \"circle.wgsl\"\n"),
    ("wrong.wgsl", "fine\n${MISSING}\n"),
];

params! {
    struct Sizes {
        rows: u32,
        eps: f32,
    }
}

fn rendered(text: &'static str, values: &Values) -> Result<String> {
    Template::new("a.wgsl", text).params(Sizes::FIELDS).files(LIBRARY).render_anew(values)
}

#[track_caller]
fn check(text: &'static str, values: &[(&'static str, i64)], expect: &str) {
    let values: Vec<_> = values.iter().map(|(n, v)| (*n, TemplateValue::Int(*v))).collect();
    match rendered(text, &values) {
        Ok(out) => assert_eq!(out, expect),
        Err(e) => panic!("{e}"),
    }
}

#[track_caller]
fn check_error(text: &'static str, expect: &str) {
    let values = [("N", TemplateValue::Int(2)), ("WIDE", TemplateValue::Int(0)), ("NAME", "x".into())];
    assert_eq!(rendered(text, &values).unwrap_err().to_string(), expect);
}

#[test]
fn text_stays_as_it_is() {
    check("a { b }\n\n  // c #if\nno newline", &[], "a { b }\n\n  // c #if\nno newline");
    check("", &[], "");
}

#[test]
fn names_are_replaced() {
    check("a${N}b ${N}u N\n", &[("N", 3)], "a3b 3u N\n");
    check("${ N }\n", &[("N", 3), ("N", 4)], "4\n");
    check("${N}\n", &[("N", -3)], "-3\n");
    check("${1 << N}u ${ N - 1 }\n", &[("N", 3)], "8u 2\n");
}

#[test]
fn conditions_choose_lines() {
    let text = "1\n#if A > 1 && !B\n2\n#elif B\n3\n  #if A\n4\n  #endif\n#else\n5\n#endif\n6\n";
    check(text, &[("A", 2), ("B", 0)], "1\n2\n6\n");
    check(text, &[("A", 2), ("B", 1)], "1\n3\n4\n6\n");
    check(text, &[("A", 0), ("B", 7)], "1\n3\n6\n");
    check(text, &[("A", 1), ("B", 0)], "1\n5\n6\n");
    // What is not taken may use names without a value.
    check("#if A\n${MISSING}\n#endif\n", &[("A", 0)], "");
}

#[test]
fn expressions_have_the_usual_precedence() {
    let cases: [(&'static str, i64); 14] = [
        ("1 + 2 * 3", 7),
        ("(1 + 2) * 3", 9),
        ("10 - 4 - 3", 3),
        ("7 / 2u % 2", 1),
        ("-3 + 5", 2),
        ("!0 + !5", 1),
        ("1 < 2 == 1", 1),
        ("2 <= 1 || 3 >= 3", 1),
        ("1 == 1 && 2 != 2", 0),
        ("A * A - 1", 24),
        ("${A}0", 50),
        ("1 || 0 && 0", 1),
        ("1 << 2 + 1", 8),
        ("3 << 2 < 13", 1),
    ];
    for (text, expect) in cases {
        let r = Renderer {
            template: &Template::new("", ""),
            names: vec![("A", TemplateValue::Int(5))],
            out: String::new(),
            next: None,
            depth: 0,
        };
        assert_eq!(r.integer(Place { file: "a.wgsl", line: 1 }, text), Ok(expect), "{text}");
    }
}

#[test]
fn lines_are_repeated() {
    check("#for I in 0..N\nx${I}\n#endfor\nend\n", &[("N", 3)], "x0\nx1\nx2\nend\n");
    check("#for I in 1..N / 2\n#for J in 0..I + 1\n${I}${J}\n#endfor\n#endfor\n", &[("N", 6)], "10\n11\n20\n21\n22\n");
    check("#for I in 2..N\nx\n#endfor\n", &[("N", 1)], "");
    check("#for I in 0..2\n#if I == 1\nlast\n#else\nfirst\n#endif\n#endfor\n", &[], "first\nlast\n");
}

#[test]
fn loops_are_written_out() {
    check(
        "  #unroll\n  for (var i = 0u; i < N; i++) { a[i] = 1u; }\nrest\n",
        &[("N", 2)],
        "  { const i = 0u; a[i] = 1u; }\n{ const i = 1u; a[i] = 1u; }\n\nrest\n",
    );
    check("#unroll\nfor (var i = 0u; i < N; i++) { a; }\n", &[("N", 0)], "\n");
    // Loops in each other, a count that is an expression, braces in a comment, lines that directives decide about.
    let nested =
        "#unroll\nfor (var i = 0u; i < N / 2u; i++) {\n// }\n#if N\n#unroll\nfor (var j = 0u; j < N; j++) { f(i, j); }\n#endif\n}\n";
    let inner = "{ const j = 0u; f(i, j); }\n{ const j = 1u; f(i, j); }\n";
    check(nested, &[("N", 2)], &format!("{{ const i = 0u;\n// }}\n{inner}\n}}\n\n"));
    let kept = "#unroll N > 8\nfor (var i = 0u; i < N; i++) { a; }\n";
    check(kept, &[("N", 2)], "for (var i = 0u; i < N; i++) { a; }\n");
    check("#unroll\nif (x) { for (var i = 0u; i < N; i++) { a; } }\n", &[("N", 1)], "if (x) { { const i = 0u; a; }\n }\n");
}

#[test]
fn files_are_included() {
    let values = &[("WIDE", 1), ("N", 5)];
    check("#include \"fetch.wgsl\" NAME = get_${N}, N = 2\n${N}\n", values, "fn get_5() { load_2(); }\nwide get_5\n5\n");
    let twice = "fn a() { load_1(); }\nfn z_b() { load_5(); }\n";
    check("#include \"twice.wgsl\" NAME = z\n", &[("WIDE", 0), ("N", 5)], twice);
    check("#include \"fetch.wgsl\" NAME = \"a b\", N = 0\n", &[("WIDE", 0)], "fn a b() { load_0(); }\n");
    check("#include \"combine.wgsl\" JOIN = \"max(a, b)\", N = 3\n", &[], "max(a, b);3\n");
    check("#include \"fetch.wgsl\" NAME = x, N = (${N} * 2 + WIDE)\n", values, "fn x() { load_11(); }\nwide x\n");
    let by_name = rendered("#include \"${F}.wgsl\" NAME = y, N = 3\n", &[("F", "fetch".into()), ("WIDE", TemplateValue::Int(0))]).unwrap();
    assert_eq!(by_name, "fn y() { load_3(); }\n");
}

#[test]
fn parameters_are_read_by_name() {
    let same = |text| check(text, &[], text);
    same("let n = p.rows + q.p.cols + up.cols; // p.cols\n");
    let named = rendered("f(p.eps, p.${F}ows)\n", &[("F", "r".into())]).unwrap();
    assert_eq!(named, "f(p.eps, p.rows)\n");
    // A `p` of its own, and text of several lines.
    same("fn f(p: X) { p.x } // p.y\nfn g(q: X, p: X) { p.x }\nlet wrap: u32 = p.rows;\n");
    let lines = rendered("${F}\n", &[("F", "fn f(p: X) { p.x }\n// p.y\nfn g() { p.rows }".into())]).unwrap();
    assert_eq!(lines, "fn f(p: X) { p.x }\n// p.y\nfn g() { p.rows }\n");
    // The struct comes first, where a kernel is made of it.
    static ONE: Template = Template::new("a.wgsl", "f(p.rows)\n").params(Sizes::FIELDS);
    assert_eq!(&*ONE.render(&[]).unwrap(), "struct Params {\n  rows: u32,\n  eps: f32,\n}\nf(p.rows)\n");
}

#[test]
fn mistakes_are_named_with_file_and_line() {
    check_error("a\n#iff\n", "a.wgsl:2: #iff is not a directive; there are #include, #if, #for and #unroll");
    check_error("a\n#if N\nb\n", "a.wgsl:2: #if without #endif");
    check_error("a\n#for I in 0..1\nb\n", "a.wgsl:2: #for without #endfor");
    check_error("#endif\n", "a.wgsl:1: #endif without its beginning");
    check_error("#if N\n#else\n#else\n#endif\n", "a.wgsl:3: #else in the #if of line 1");
    check_error("#if N\n#endfor\n", "a.wgsl:2: #endfor in the #if of line 1");
    check_error("#for I in 0..1\n#endif\n", "a.wgsl:2: #endif in the #for of line 1");
    check_error("#for I of 0..1\n#endfor\n", "a.wgsl:1: #for expects NAME in A..B");
    check_error("#for I in 0..1000000\n#endfor\n", "a.wgsl:1: 0..1000000 are too many turns");
    check_error("\n${MISSING}\n", "a.wgsl:2: MISSING has no value");
    check_error("${N\n", "a.wgsl:1: ${ without }");
    check_error("#if MISSING\n#endif\n", "a.wgsl:1: MISSING has no value");
    check_error("#if NAME + 1\n#endif\n", "a.wgsl:1: NAME is text, not an integer");
    check_error("#if N +\n#endif\n", "a.wgsl:1: `N +` is not an expression");
    check_error("#if N 3\n#endif\n", "a.wgsl:1: `N 3` is not an expression: at `3`");
    check_error("#if N / 0\n#endif\n", "a.wgsl:1: `N / 0`: 2 / 0 has no value");
    check_error("x\n#unroll\n", "a.wgsl:2: no line follows #unroll");
    check_error("#unroll\n#if N\n#endif\n", "a.wgsl:2: no line follows #unroll");
    check_error("#unroll\nwhile (true) {}\n", "a.wgsl:1: #unroll expects a line with `for (var i = 0u; i < COUNT; i++) {` after it");
    check_error("#unroll\nfor (var i = 0u; i < M; i++) { }\n", "a.wgsl:2: M has no value");
    check_error("#include fetch.wgsl\n", "a.wgsl:1: #include expects a file in double quotes");
    check_error("#include \"none.wgsl\"\n", "a.wgsl:1: there is no file none.wgsl to include");
    check_error("#include \"fetch.wgsl\" NAME\n", "a.wgsl:1: `NAME`: #include expects NAME = value after its file");
    check_error("#include \"circle.wgsl\"\n", "circle.wgsl:1: circle.wgsl includes itself");
    check_error("#include \"wrong.wgsl\"\n", "wrong.wgsl:2: MISSING has no value");
    check_error("let n = p.columns;\n", "a.wgsl:1: the parameters have no field `columns`; they are rows, eps");
}

#[test]
fn what_is_rendered_is_remembered_by_its_values() {
    static TEMPLATE: Template = Template::new("a.wgsl", "${N}\n");
    let one = TEMPLATE.render(&[("N", TemplateValue::Int(1))]).unwrap();
    let again = TEMPLATE.render(&[("N", TemplateValue::Int(1))]).unwrap();
    let other = TEMPLATE.render(&[("N", TemplateValue::Int(2))]).unwrap();
    assert!(Arc::ptr_eq(&one, &again) && &*one == "1\n" && &*other == "2\n");
    assert_eq!(TEMPLATE.source(&[]), "template error: a.wgsl:1: N has no value\n");
}
