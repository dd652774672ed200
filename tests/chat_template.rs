//! Chat templates of published models against the texts that Jinja2 makes of them, and templates that mean harm.
//!
//! It is a program of its own since it bounds the time that a harmful template may take.
#![cfg(feature = "text")]

mod text_support;

use std::time::{Duration, Instant};

use serde_json::{Map, Value, json};
use tensorlogic::text::{ChatTemplate, Message};
use text_support::vector;

fn vectors() -> Value {
    serde_json::from_slice(&vector("chat_template/vectors.json")).unwrap()
}

/// The variables that `transformers` gives a template.
fn variables(case: &Value) -> Map<String, Value> {
    let mut variables = case["vars"].as_object().cloned().unwrap_or_default();
    variables.insert("messages".into(), case["messages"].clone());
    variables.insert("add_generation_prompt".into(), case["add_generation_prompt"].clone());
    variables.insert("tools".into(), case.get("tools").cloned().unwrap_or(Value::Null));
    variables.insert("documents".into(), Value::Null);
    variables
}

#[test]
fn published_templates_render_as_jinja2_does() {
    let vectors = vectors();
    let (mut checked, mut wrong) = (0, Vec::new());
    for case in vectors["vectors"].as_array().unwrap() {
        let Some(name) = case["template"].as_str() else { continue };
        let template = ChatTemplate::new(vectors["templates"][name].as_str().unwrap()).unwrap_or_else(|e| panic!("{name}: {e}"));
        let got = template.render_variables(&variables(case));
        checked += 1;
        let fits = match (&got, case["expected"].as_str()) {
            (Ok(text), Some(expected)) => text == expected,
            (Err(_), None) => true,
            _ => false,
        };
        if !fits {
            wrong.push(format!("{name} {}\n  got  {got:?}\n  want {:?} {:?}", case["conversation"], case["expected"], case["error"]));
        }
    }
    assert_eq!(checked, 254);
    assert!(wrong.is_empty(), "{} of {checked} wrong\n{}", wrong.len(), wrong.join("\n"));
}

/// Parses and renders within a tenth of a second and a megabyte, whatever comes out. A busy machine gets a few tries.
fn check_harmless(name: &str, source: &str) -> Result<String, String> {
    let mut variables = variables(&json!({ "messages": [{ "role": "user", "content": "Hello" }], "add_generation_prompt": true }));
    variables.insert("bos_token".into(), "<s>".into());
    let mut times = Vec::new();
    loop {
        let start = Instant::now();
        let result = ChatTemplate::new(source).and_then(|t| t.render_variables(&variables));
        times.push(start.elapsed());
        if times.last().is_some_and(|t| *t < Duration::from_millis(if cfg!(debug_assertions) { 1000 } else { 100 })) {
            if let Ok(text) = &result {
                assert!(text.len() <= 1 << 20, "{name}: {} bytes", text.len());
            }
            return result.map_err(|e| e.to_string());
        }
        assert!(times.len() < 5, "{name}: {times:?}");
    }
}

#[test]
fn hostile_templates_end_soon() {
    let vectors = vectors();
    let mut checked = 0;
    for case in vectors["vectors"].as_array().unwrap() {
        let Some(source) = case["template_text"].as_str() else { continue };
        let _ = check_harmless(case["bad"].as_str().unwrap(), source);
        checked += 1;
    }
    assert_eq!(checked, 20);
    let deep = |open: &str, inner: &str, close: &str| format!("{{{{ {}{inner}{} }}}}", open.repeat(50_000), close.repeat(50_000));
    let growing = |body: &str| {
        format!("{{% set ns = namespace(x='ab', l=[1, 2], d={{'a': 1}}) %}}{{% for i in range(90000) %}}{body}{{% endfor %}}{{{{ ns.x }}}}")
    };
    for (name, source) in [
        ("doubling by set", "{% set x = 'ab' %}".to_string() + &"{% set x = x ~ x %}".repeat(60) + "{{ x }}"),
        ("doubling by capture", "{% set x = 'ab' %}".to_string() + &"{% set x %}{{ x }}{{ x }}{% endset %}".repeat(60) + "{{ x }}"),
        ("doubling by macro", "{% macro f(x) %}{{ f(x ~ x) }}{% endmacro %}{{ f('ab') }}".into()),
        ("recursion", "{% macro f(x) %}{{ f(x) }}{% endmacro %}{{ f(1) }}".into()),
        ("recursion by two", "{% macro f(n) %}{% if n %}{{ f(n - 1) }}{{ f(n - 1) }}{% endif %}{% endmacro %}{{ f(60) }}".into()),
        ("doubling by replace", growing("{% set ns.x = ns.x | replace('a', 'aaaa') %}")),
        ("doubling by method", growing("{% set ns.x = ns.x.replace('a', 'aaaa') %}")),
        ("doubling a list", growing("{% set ns.l = ns.l + ns.l %}")),
        ("multiplying a list", growing("{% set ns.l = ns.l * 1000 %}")),
        ("joining a growing list", growing("{% set ns.x = [ns.x, ns.x] | join %}")),
        ("nesting lists", growing("{% set ns.l = [ns.l] %}")),
        ("nesting dictionaries", growing("{% set ns.d = {'a': ns.d} %}")),
        ("sharing lists", growing("{% set ns.l = [ns.l, ns.l] %}")),
        ("printing shared lists", "{% set ns = namespace(l=[1]) %}{% for i in range(50) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l }}".into()),
        ("comparing shared lists", "{% set ns = namespace(l=[1], m=[1]) %}{% for i in range(50) %}{% set ns.l = [ns.l, ns.l] %}{% set ns.m = [ns.m, ns.m] %}{% endfor %}{{ ns.l == ns.m }}".into()),
        ("json of shared lists", "{% set ns = namespace(l=[1]) %}{% for i in range(50) %}{% set ns.l = [ns.l, ns.l] %}{% endfor %}{{ ns.l | tojson }}".into()),
        ("a namespace in itself", "{% set ns = namespace() %}{% set ns.me = ns %}{% set ns.l = [ns] %}{{ ns.me.me.me }}{{ ns.l }}".into()),
        ("keeping loops", growing("{% set ns.l = [loop] %}")),
        ("loops in loops", "{% for a in range(9999) %}{% for b in range(9999) %}{% for c in range(9999) %}x{% endfor %}{% endfor %}{% endfor %}".into()),
        ("output", "{% for a in range(99999) %}xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx{% endfor %}".into()),
        ("indent", "{{ [[1]] | tojson(indent=1000000000) }}{{ 'a\nb' | indent(10000000000) }}".into()),
        ("batch", "{{ [1] | batch(10000000000, 0) | list }}{{ [1] | slice(10000000000) | list }}".into()),
        ("slices", growing("{% set ns.l = range(90000)[::1] %}")),
        ("sorting", "{{ range(90000) | sort | sort | sort | list | length }}".into()),
        ("unique", "{{ range(90000) | unique | list | length }}".into()),
        ("format", "{{ '%999999999s' % 1 }}".into()),
        ("power", "{{ 2 ** 62 * 4 }}".into()),
        ("negating", "{{ -(-9223372036854775807 - 1) }}".into()),
        ("dividing", "{{ (-9223372036854775807 - 1) // -1 }}{{ (-9223372036854775807 - 1) % -1 }}".into()),
        ("abs", "{{ (-9223372036854775807 - 1) | abs }}".into()),
        ("range", "{{ range(-9223372036854775807, 9223372036854775807, 9223372036854775807) | list }}".into()),
        ("slice ends", "{{ 'abc'[-9223372036854775807:9223372036854775807:9223372036854775807] }}{{ 'abc'[::-9223372036854775807] }}".into()),
        ("many terms", format!("{{{{ {}1 }}}}", "1 + ".repeat(50_000))),
        ("many attributes", format!("{{{{ a{} }}}}", ".b".repeat(50_000))),
        ("many filters", format!("{{{{ 'a'{} }}}}", "|trim".repeat(50_000))),
        ("many nots", format!("{{{{ {}1 }}}}", "not ".repeat(50_000))),
        ("many minuses", format!("{{{{ {}1 }}}}", "-".repeat(50_000))),
        ("many ifs", format!("{{{{ {}1 }}}}", "1 if 1 else ".repeat(20_000))),
        ("many texts", format!("{{{{ {} }}}}", "'a' ".repeat(60_000))),
        ("many elifs", format!("{{% if 0 %}}{}{{% endif %}}", "{% elif 0 %}".repeat(20_000))),
        ("many fors", "{% for a in [1] %}".repeat(14_000) + "{% endfor %}"),
        ("brackets", deep("(", "1", ")")),
        ("lists", deep("[", "1", "]")),
        ("dictionaries", deep("{1:", "1", "}")),
        ("calls", deep("f(", "1", ")")),
        ("indices", deep("a[", "1", "]")),
        ("open tag", "{{ ".repeat(80_000)),
        ("open comment", "{# ".repeat(80_000)),
        ("open raw", "{% raw %}".to_string() + &"{% ".repeat(80_000)),
        ("open text", "{{ 'a".into()),
        ("too large", " ".repeat(1 << 20)),
    ] {
        let _ = check_harmless(name, &source);
    }
}

#[test]
fn nothing_outside_can_be_reached() {
    for (source, why) in [
        ("{% include '/etc/passwd' %}", "include"),
        ("{% import 'os' as os %}", "import"),
        ("{% extends 'x' %}", "extends"),
        ("{{ ''.__class__.__mro__ }}", "no attribute '__class__'"),
        ("{{ messages.append(1) }}", "unsafe"),
        ("{{ messages[0].update({}) }}", "unsafe"),
        ("{{ raise_exception('as asked') }}", "as asked"),
        ("{{ nothing() }}", "'nothing' is undefined"),
        ("{{ 'x' + nothing }}", "'nothing' is undefined"),
        ("line one\n{% if %}", "line 2"),
    ] {
        let error = check_harmless(source, source).unwrap_err();
        assert!(error.contains(why), "{source}: {error}");
    }
}

/// Expressions and what Jinja2 3.1 with `transformers`' settings prints for them.
#[test]
fn expressions_print_as_in_python() {
    let mut wrong = Vec::new();
    for (source, want) in EXPRESSIONS {
        let got = check_harmless(source, source);
        if got.as_deref() != Ok(*want) {
            wrong.push(format!("{source}\n  got  {got:?}\n  want {want:?}"));
        }
    }
    assert!(wrong.is_empty(), "{} of {} wrong\n{}", wrong.len(), EXPRESSIONS.len(), wrong.join("\n"));
}

const EXPRESSIONS: &[(&str, &str)] = &[
    (
        "{{ 1 }} {{ 1.0 }} {{ 1e16 }} {{ 1e-5 }} {{ 0.1 + 0.2 }} {{ 1e22 }} {{ 123456789.125 }} {{ 1_000 }}",
        "1 1.0 1e+16 1e-05 0.30000000000000004 1e+22 123456789.125 1000",
    ),
    (
        "{{ true }} {{ none }} {{ [1, 'a', \"it's\", none, true, 1.5, (1,), (), {}] }} {{ {'a': [1], 'b': {'c': \"x\\ny\"}} }}",
        "True None [1, 'a', \"it's\", None, True, 1.5, (1,), (), {}] {'a': [1], 'b': {'c': 'x\\ny'}}",
    ),
    (
        "{{ 7 // 2 }} {{ -7 // 2 }} {{ 7 % 3 }} {{ -7 % 3 }} {{ 7 / 2 }} {{ 2 ** 10 }} {{ 2 ** -1 }} {{ -2 ** 2 }} {{ 7.5 // 2 }} {{ -7.5 % 2 }}",
        "3 -4 1 2 3.5 1024 0.5 4 3.0 0.5",
    ),
    (
        "{{ 'a' ~ 1 ~ none ~ true ~ [1] }} {{ 'ab' * 3 }} {{ [1] * 2 }} {{ [1] + [2] }} {{ (1, 2) + (3,) }}",
        "a1NoneTrue[1] ababab [1, 1] [1, 2] (1, 2, 3)",
    ),
    (
        "{{ 1 < 2 < 3 }} {{ 1 < 3 < 2 }} {{ 1 == 1.0 }} {{ true == 1 }} {{ 'a' < 'b' }} {{ [1, 2] < [1, 3] }} {{ 'a' == none }}",
        "True False True True True True False",
    ),
    ("{{ 'ell' in 'hello' }} {{ 1 in [1, 2] }} {{ 'a' in {'a': 1} }} {{ 3 not in [1] }} {{ not 1 in [1] }}", "True True True True False"),
    ("{{ 1 if true }}|{{ 1 if false }}|{{ 1 if false else 2 }}|{{ 1 if false else 2 if true else 3 }}", "1||2|2"),
    ("{{ 0 or 'x' }} {{ 1 and 'y' }} {{ '' and 'z' }} {{ none or false }} {{ not '' }}", "x y  False True"),
    (
        "{{ 'héllo'[0] }}{{ 'héllo'[-1] }}{{ 'héllo'[1:3] }}{{ 'héllo'[::-1] }}{{ 'héllo'[:-1] }}{{ 'héllo'[10:] }}{{ 'héllo'[::2] }}{{ 'abc'[-100:100] }}{{ 'abcdef'[4:1:-2] }}",
        "hoélolléhhéllhloabcec",
    ),
    (
        "{{ [1,2,3][1:] }} {{ [1,2,3][-2] }} {{ (1,2,3)[::-1] }} {{ [1,2,3][5] }}| {{ {'a': 1}.b }}| {{ {'a': 1}['a'] }} {{ {1: 2}[1] }}",
        "[2, 3] 2 (3, 2, 1) | | 1 2",
    ),
    (
        "{{ messages[0].content }} {{ messages[0]['role'] }} {{ messages[-1].role }} {{ messages|length }} {{ messages[0]|length }}",
        "Hello user user 1 2",
    ),
    (
        "{{ ' a b '.strip() }}|{{ 'xxaxx'.strip('x') }}|{{ 'xxaxx'.lstrip('x') }}|{{ 'xxaxx'.rstrip('x') }}|{{ 'a,b,c'.split(',') }}|{{ ' a  b '.split() }}|{{ 'a,b,c'.split(',', 1) }}|{{ 'a,b,c'.rsplit(',', 1) }}|{{ ' a b c'.split(none, 1) }}",
        "a b|a|axx|xxa|['a', 'b', 'c']|['a', 'b']|['a', 'b,c']|['a,b', 'c']|['a', 'b c']",
    ),
    (
        "{{ ''.split(',') }} {{ ''.split() }} {{ 'a\\nb\\n'.splitlines() }} {{ 'abc'.startswith('ab') }} {{ 'abc'.endswith(('x', 'bc')) }} {{ 'abc'.find('c') }} {{ 'abc'.find('z') }} {{ 'aXbX'.replace('X', '-') }} {{ 'aXbX'.replace('X', '-', 1) }} {{ 'banana'.count('an') }}",
        "[''] [] ['a', 'b'] True True 2 -1 a-b- a-bX 2",
    ),
    (
        "{{ 'hello world'.title() }} {{ 'hELLO'.capitalize() }} {{ 'aB'.upper() }} {{ 'aB'.lower() }} {{ ','.join(['a', 'b']) }} {{ 'a-b'.partition('-') }} {{ 'abc'.removeprefix('a') }} {{ 'abc'.removesuffix('c') }} {{ '12'.isdigit() }} {{ ''.isdigit() }} {{ 'ab'.isalpha() }}",
        "Hello World Hello AB ab a,b ('a', '-', 'b') bc ab True False True",
    ),
    (
        "{{ {'a': 1, 'b': 2}.items()|list }} {{ {'a': 1}.keys()|list }} {{ {'a': 1}.values()|list }} {{ {'a': 1}.get('a') }} {{ {'a': 1}.get('b') }} {{ {'a': 1}.get('b', 3) }} {{ {'z': 1, 'a': 2}|items|list }}",
        "[('a', 1), ('b', 2)] ['a'] [1] 1 None 3 [('z', 1), ('a', 2)]",
    ),
    (
        "{{ {'b': 1, 'a': [1, 2.5, none, true, \"é\\\"\\n\\u2028\"]}|tojson }} {{ {'b': 1, 'a': []}|tojson(indent=2) }} {{ [1, {'x': {}}]|tojson(indent=4) }} {{ {'b': 1, 'a': 2}|tojson(sort_keys=true) }} {{ [1, 2]|tojson(separators=(',', ':')) }} {{ 'é😀'|tojson(ensure_ascii=true) }} {{ 1e100|tojson }} {{ '<a>&\\''|tojson }}",
        "{\"b\": 1, \"a\": [1, 2.5, null, true, \"é\\\"\\n\u{2028}\"]} {\n  \"b\": 1,\n  \"a\": []\n} [\n    1,\n    {\n        \"x\": {}\n    }\n] {\"a\": 2, \"b\": 1} [1,2] \"\\u00e9\\ud83d\\ude00\" 1e+100 \"<a>&'\"",
    ),
    (
        "{{ ' x '|trim }}|{{ 'Ab'|lower }}|{{ 'Ab'|upper }}|{{ 'hello wORLD'|title }}|{{ 'hello'|capitalize }}|{{ 'aXb'|replace('X', '-') }}|{{ 'a\\nb\\n\\nc'|indent }}|{{ 'a\\nb'|indent(2, true) }}|{{ 'abc'|center(9) }}|{{ 'a b c'|wordcount }}",
        "x|ab|AB|Hello World|Hello|a-b|a\n    b\n\n    c|  a\n  b|   abc   |3",
    ),
    (
        "{{ [3, 1, 2]|sort }} {{ ['b', 'A', 'c']|sort }} {{ [3, 1, 2]|sort(reverse=true) }} {{ [{'a': 2}, {'a': 1}]|sort(attribute='a') }} {{ [1, 2, 3]|sum }} {{ [1, 2, 3]|min }} {{ [1, 3, 2]|max }} {{ [1, 2, 1]|unique|list }} {{ [1, 2, 3]|reverse|list }} {{ 'abc'|reverse }} {{ [1, 2]|first }} {{ [1, 2]|last }}",
        "[1, 2, 3] ['A', 'b', 'c'] [3, 2, 1] [{'a': 1}, {'a': 2}] 6 1 3 [1, 2] [3, 2, 1] cba 1 2",
    ),
    (
        "{{ [1, 2, 3, 4]|select('even')|list }} {{ [1, 2, 3]|reject('odd')|list }} {{ [0, 1, '']|select|list }} {{ [{'a': 1}, {'a': 2}, {}]|selectattr('a')|list }} {{ [{'a': 1}, {'a': 2}]|selectattr('a', 'equalto', 2)|list }} {{ [{'a': 1}, {}]|rejectattr('a', 'defined')|list }} {{ [{'a': 1}, {'a': 2}]|map(attribute='a')|list }} {{ ['a', 'b']|map('upper')|join('-') }} {{ [{'a': {'b': 5}}]|map(attribute='a.b')|list }} {{ [{}]|map(attribute='a', default=7)|list }}",
        "[2, 4] [2] [1] [{'a': 1}, {'a': 2}] [{'a': 2}] [{}] [1, 2] A-B [5] [7]",
    ),
    (
        "{{ x|default('d') }} {{ ''|default('d') }} {{ ''|default('d', true) }} {{ none|default('d') }} {{ x|d(1) }} {{ '12'|int }} {{ 'x'|int }} {{ 'x'|int(5) }} {{ '1.5'|float }} {{ 3.7|int }} {{ -3|abs }} {{ 2.5|round }} {{ 2.567|round(2) }} {{ 2.1|round(0, 'ceil') }} {{ 1|string ~ 'a' }}",
        "d  d None 1 12 0 5 1.5 3 3 2.0 2.57 3.0 1a",
    ),
    (
        "{{ x is defined }} {{ messages is defined }} {{ none is none }} {{ 'a' is string }} {{ 1 is number }} {{ 1.5 is float }} {{ 1 is integer }} {{ true is integer }} {{ true is boolean }} {{ {} is mapping }} {{ [] is iterable }} {{ 'a' is iterable }} {{ 1 is iterable }} {{ [] is sequence }} {{ 3 is odd }} {{ 4 is divisibleby 2 }} {{ 1 is eq 1 }} {{ 2 is gt(1) }} {{ 'a' is in ['a'] }} {{ not x is defined }} {{ x is not defined }} {{ 'a' is lower }} {{ range is callable }} {{ none is not none }} {{ 1 is sameas 1 }} {{ false is false }} {{ 1 is true }}",
        "False True True True True True True False True True True True False True True True True True True True True True True False True True False",
    ),
    (
        "{{ range(5)|list }} {{ range(1, 10, 3)|list }} {{ range(5, 0, -2)|list }} {{ dict(a=1, b=2) }}",
        "[0, 1, 2, 3, 4] [1, 4, 7] [5, 3, 1] {'a': 1, 'b': 2}",
    ),
    (
        "{% for i in range(3) %}{{ loop.index }}{{ loop.index0 }}{{ loop.first }}{{ loop.last }}{{ loop.length }}{{ loop.revindex }}{{ loop.revindex0 }}{{ loop.previtem }}{{ loop.nextitem }}{{ loop.cycle('a', 'b') }};{% endfor %}",
        "10TrueFalse3321a;21FalseFalse32102b;32FalseTrue3101a;",
    ),
    (
        "{% for i in [] %}x{% else %}empty{% endfor %}{% for k, v in {'a': 1}.items() %}{{ k }}={{ v }}{% endfor %}{% for i in [1,2,3,4] if i is even %}{{ loop.index }}:{{ i }} {% endfor %}{% for a in (1, 2) %}{{ a }}{% endfor %}{% for c in 'ab' %}{{ c }}.{% endfor %}",
        "emptya=11:2 2:4 12a.b.",
    ),
    ("{% for i in range(10) %}{% if i == 2 %}{% continue %}{% endif %}{% if i == 5 %}{% break %}{% endif %}{{ i }}{% endfor %}", "0134"),
    (
        "{% set x = 1 %}{% for i in [1, 2] %}{% set x = i + 10 %}{{ x }},{% endfor %}{{ x }}{% if true %}{% set x = 5 %}{% endif %}{{ x }}",
        "11,12,15",
    ),
    (
        "{% set ns = namespace(n=0, l=[]) %}{% for i in [1, 2, 3] %}{% set ns.n = ns.n + i %}{% set ns.l = ns.l + [i] %}{% endfor %}{{ ns.n }} {{ ns.l }}",
        "6 [1, 2, 3]",
    ),
    (
        "{% set a, b = 1, 2 %}{{ a }}{{ b }}{% set t %}hello {{ a }}{% endset %}{{ t }}{% set u | upper %}abc{% endset %}{{ u }}{% filter upper %}xyz{% endfilter %}{% with q = 3 %}{{ q }}{% endwith %}{{ q }}",
        "12hello 1ABCXYZ3",
    ),
    (
        "{% macro f(a, b=2, c=none) %}[{{ a }} {{ b }} {{ c }}]{% endmacro %}{{ f(1) }}{{ f(1, c=3) }}{{ f(1, 5, 6) }}{{ f() }}{{ f(b=1, a=0) }}",
        "[1 2 None][1 2 3][1 5 6][ 2 None][0 1 None]",
    ),
    ("{% macro g(n) %}{% if n > 0 %}{{ n }}{{ g(n - 1) }}{% endif %}{% endmacro %}{{ g(4) }}{% set m = g %}{{ m(2) }}", "432121"),
    (
        "a{# comment #}b{#- c -#} d{% raw %}{{ x }}{% endraw %}e{{ '{{' }}{{ \"a\" \"b\" }}{{ 'it\\'s' }}{{ \"\\u00e9\\x41\\t|\" }}",
        "abd{{ x }}e{{abit'séA\t|",
    ),
    ("{{- 'a' -}}   b   {{- 'c' }}  {%- if true %}  d  {%- endif %}  e", "abc  d  e"),
    (
        "{{ \"x\"|safe + \"<\" }} {{ \"<\" + \"x\"|safe }} {{ (\"a\"|safe) ~ \"<\" }} {{ \"<\"|escape }} {{ \"<\"|e + \"<\" }} {{ (\"a\"|safe).upper() + \"&\" }}",
        "x&lt; &lt;x a< &lt; &lt;&lt; A&amp;",
    ),
    (
        "{{ '%s and %d and %.2f and %5s|%-5s|%05d%%' % ('a', 3, 1.5, 'b', 'c', 42) }} {{ '%s' % 'x' }} {{ '{} {1}'|replace('{} ', '') }} {{ '{} {}'.format(1, 'a') }} {{ '{0}{1}{0}'.format('a', 'b') }} {{ '{x}'.format(x=1) }}",
        "a and 3 and 1.50 and     b|c    |00042% x {1} 1 a aba 1",
    ),
    (
        "{{ [1, 2, 3, 4, 5]|batch(2)|list }} {{ [1, 2, 3]|batch(2, 0)|list }} {{ [1, 2, 3, 4, 5]|slice(2)|list }} {{ {'b': 1, 'a': 2}|dictsort }} {{ [{'a': 1, 'b': 2}, {'a': 1, 'b': 3}]|groupby('a')|list|length }} {{ 'hello world foo bar baz'|truncate(12) }} {{ 'a b/c'|urlencode }}",
        "[[1, 2], [3, 4], [5]] [[1, 2], [3, 0]] [[1, 2, 3], [4, 5]] [('a', 2), ('b', 1)] 1 hello... a%20b/c",
    ),
    (
        "{{ none|selectattr('a')|list }} {{ none|map('upper')|list }} {{ x|list }} {{ x|length }} {{ x|join }} {{ x }} {{ x is iterable }} {{ [x] }} {{ 'a' in x }} {{ x == y }} {{ x or 1 }}",
        "[] [] [] 0   True [Undefined] False True 1",
    ),
    (
        "{{ messages.items }}{{ 'a'.b }}{{ none.a }}{{ 1 .x }} {{ ([1] | selectattr('x') | list) }} {{ '' if not tools else 'tools' }} {{ (1, 2)|list }} {{ 'a', 'b' }} {{ {'a': 1}|length }} {{ ('a')|length }}",
        " []  [1, 2] ('a', 'b') 1 1",
    ),
    (
        "{{ [1,2,3].index(2) }} {{ [1,1].count(1) }} {{ 'abc'.index('b') }} {{ 'a' 'b' ~ 'c' }} {{ [[1, 2], [3]]|map('first')|list }} {{ [1, 2, 3]|map('string')|join(', ') }} {{ ['x']|join }} {{ [1, [2, [3]]]|string }} {{ 10|float }} {{ '5'|int + 1 }} {{ 'x' ~ 5 }} {{ -1 }} {{ +1 }} {{ (-1)|abs }} {{ -1|abs }}",
        "1 2 1 abc [1, 3] 1, 2, 3 x [1, [2, [3]]] 10.0 6 x5 -1 1 1 1",
    ),
    ("  {% if true %}\n  x\n  {% endif %}\ny", "  x\ny"),
    ("{% if true %}\n\nx\n{% endif %}\n\ny\n", "\nx\n\ny"),
    ("a  {% if true %}b{% endif %}\nc", "a  bc"),
    ("  {%+ if true %}x{% endif +%}\ny", "  x\ny"),
    ("{{ 'a' }}\nb\n{# c #}\nd", "a\nb\nd"),
    ("  {# c #}\n  x", "  x"),
    ("{%- for i in [1, 2] -%}\n  {{ i }}\n{%- endfor -%}\n  z", "12z"),
    ("a\n  {%- if true %}\n    b\n  {%- endif %}\nc", "a    bc"),
    ("x {% raw %}\n {{ a }} {% endraw %}\n y", "x \n {{ a }}  y"),
    ("{% set x = 1 %}   \n  {% set y = 2 %}\nz", "   \nz"),
    ("\r\na\r\n{% if 1 %}\r\nb{% endif %}\r\n", "\na\nb"),
    ("{{ 'a' }}  {% if true %}x{% endif %}", "a  x"),
    ("\n\n", "\n"),
    ("{% for i in [1,2] %}\n  {{ i }}\n{% endfor %}\n", "  1\n  2\n"),
    ("{{ {'a': {'b': 1}} }}", "{'a': {'b': 1}}"),
    ("{{ {'a': {'b': {}}}}}", "{'a': {'b': {}}}"),
    ("a{%if true%}b{%endif%}c", "abc"),
    ("{% if false %}a{% elif true %}b{% else %}c{% endif %}", "b"),
    ("{{ '}}' }}{{ '%}' }}{% set a = '%}' %}{{ a }}", "}}%}%}"),
    ("{% macro f() %}\n  x\n{% endmacro %}\n[{{ f() }}]", "[  x\n]"),
    ("{# a {{ b }} {% c %} #}x", "x"),
    ("{{ 1\n+\n2 }}", "3"),
    ("{% set x = [\n1,\n2,\n] %}{{ x }}", "[1, 2]"),
    ("{%- macro f(x) -%}\n  {{- x -}}\n{%- endmacro -%}\n{{ f('a') }} {{ f('b') }}", "a b"),
];

#[test]
fn a_conversation_in_chatml() {
    let template = "{% for m in messages %}{{ '<|im_start|>' + m['role'] + '\n' + m['content'] + '<|im_end|>' + '\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}";
    let template = ChatTemplate::new(template).unwrap();
    let messages = [Message::new("system", "Be brief."), Message::new("user", "Hi {{ 7 * 7 }}")];
    let head = "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHi {{ 7 * 7 }}<|im_end|>\n";
    assert_eq!(template.render(&messages, false, "", "", None).unwrap(), head);
    assert_eq!(template.render(&messages, true, "", "", None).unwrap(), format!("{head}<|im_start|>assistant\n"));
    fn shared<T: Send + Sync>(_: &T) {}
    shared(&template);
    // A long conversation is no attack.
    let long: Vec<Message> = (0..3000).map(|i| Message::new(if i % 2 == 0 { "user" } else { "assistant" }, "word ".repeat(200))).collect();
    assert!(template.render(&long, true, "", "", None).unwrap().len() > 3_000_000);
}
