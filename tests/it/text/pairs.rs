//! Two texts as one input: the tokens, their kinds and what is cut, against the `tokenizers` package of Python (`tests/vectors/tokenizer/pairs.json`).

use serde_json::Value as Json;
use tensorlogic::TensorError;
use tensorlogic::text::Tokenizer;

fn numbers<T: TryFrom<u64>>(list: &Json) -> Vec<T> {
    list.as_array().unwrap().iter().map(|v| T::try_from(v.as_u64().unwrap()).ok().unwrap()).collect()
}

#[test]
fn pairs_equal_the_tokenizers_package() {
    let file: Json = serde_json::from_str(include_str!("../../vectors/tokenizer/pairs.json")).unwrap();
    let cases = file["cases"].as_array().unwrap();
    for case in cases {
        let mut document = file["document"].clone();
        document["post_processor"] = file["posts"][case[0].as_str().unwrap()].clone();
        let tokenizer = Tokenizer::from_json(document.to_string().as_bytes()).unwrap();
        let max = case[3].as_u64().map(|n| n as usize);
        let (first, second) = (case[1].as_str().unwrap(), case[2].as_str().unwrap());
        let (ids, kinds, whole) = tokenizer.encode_pair(first, second, max).unwrap();
        assert_eq!((ids, kinds), (numbers(&case[4]), numbers(&case[5])), "{case}");
        assert_eq!(whole, tokenizer.encode_pair(first, second, None).unwrap().0.len() == case[4].as_array().unwrap().len(), "{case}");
    }
    assert_eq!(cases.len(), 105);
}

#[test]
fn texts_are_cut_and_files_without_a_form_for_pairs_refuse() {
    let file: Json = serde_json::from_str(include_str!("../../vectors/tokenizer/pairs.json")).unwrap();
    let mut document = file["document"].clone();
    let plain = Tokenizer::from_json(document.to_string().as_bytes()).unwrap();
    assert!(matches!(plain.encode_pair("a", "b", None), Err(TensorError::Unsupported(_))));
    document["post_processor"] = file["posts"]["bert template"].clone();
    let tokenizer = Tokenizer::from_json(document.to_string().as_bytes()).unwrap();
    assert_eq!(tokenizer.encode_up_to("a b c", 5).unwrap(), (vec![2, 4, 5, 6, 3], true));
    assert_eq!(tokenizer.encode_up_to("a b c", 4).unwrap(), (vec![2, 4, 5, 3], false));
    assert!(matches!(tokenizer.encode_up_to("a b c", 2), Err(TensorError::Value(_))));
}
