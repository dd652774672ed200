//! Model files: what other programs wrote is read value for value, and what is written here is read back.

use crate::common::devices;
use std::path::PathBuf;
use std::sync::Arc;
use tensorlogic::io::gguf::Value;
use tensorlogic::io::{Gguf, GgufWriter, MappedFile, SafeTensors};
use tensorlogic::models::Weights;
use tensorlogic::quant::{dequantize, quantize};
use tensorlogic::{DType, Device, TensorError};

/// Written by gguf-py: a value of every type; tensors f32, f16, i32, q8 and one of a type that is not supported.
static SMALL: &[u8] = include_bytes!("../../vectors/small.gguf");

fn temporary(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("tensorlogic-model-files-{}-{name}", std::process::id()));
    let _ = std::fs::remove_dir_all(&folder);
    std::fs::create_dir_all(&folder).unwrap();
    folder
}

fn f32s(bytes: &[u8]) -> Vec<f32> {
    bytes.chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect()
}
fn le(values: &[f32]) -> Vec<u8> {
    values.iter().flat_map(|x| x.to_le_bytes()).collect()
}

#[test]
fn gguf_of_another_writer() {
    let file = Gguf::from_bytes(SMALL.to_vec()).unwrap();
    assert_eq!(file.version(), 3);
    let keys: Vec<&str> = file.metadata().map(|(k, _)| k).collect();
    assert_eq!(keys[..4], ["general.architecture", "t.u8", "t.i8", "t.u16"]);
    assert_eq!(file.str("general.architecture").unwrap(), "llama");
    for (key, value) in [("t.u8", 200), ("t.u16", 60000), ("t.u32", 4_000_000_000), ("t.u64", (1 << 63) + 1)] {
        assert_eq!(file.u64(key).unwrap(), value, "{key}");
    }
    for (key, value) in [("t.i8", -5), ("t.i16", -30000), ("t.i32", -7), ("t.i64", -(1 << 40)), ("t.u8", 200)] {
        assert_eq!(file.need(key, Value::i64).unwrap(), value, "{key}");
    }
    assert_eq!(file.f64("t.f32").unwrap(), f64::from(0.1f32));
    assert_eq!(file.f64("t.f64").unwrap(), 0.1);
    assert_eq!(file.f64("t.u8").unwrap(), 200.0);
    assert!(file.bool("t.bool").unwrap());
    assert_eq!(file.str("t.str").unwrap(), "grüße 🙂");
    assert_eq!(file.strs("t.strs").unwrap(), ["a", "", "ĠĊ", "dd"]);
    assert_eq!(file.i32s("t.i32s").unwrap(), [1, -2, 3]);
    assert_eq!(file.f32s("t.f32s").unwrap(), [0.5, -1.5]);
    assert_eq!(file.get("t.i32s").unwrap().to_string(), "i32[3] [1, -2, 3]");
    assert_eq!(file.opt("t.none", Value::u64).unwrap(), None);

    let f32 = file.tensor("f32").unwrap();
    assert_eq!((f32.dtype().unwrap(), &f32.shape[..]), (DType::F32, [2, 3].as_slice()));
    assert_eq!(f32s(file.bytes_of(f32)), [0.0, 1.0, 2.0, 3.0, 4.0, 5.0]);
    let f16 = file.tensor("f16").unwrap();
    let mut values = [0.0; 24];
    dequantize(DType::F16, file.bytes_of(f16), &mut values).unwrap();
    assert_eq!((&f16.shape[..], values[23]), ([2, 3, 4].as_slice(), 23.0));
    assert_eq!(file.bytes_of(file.tensor("i32").unwrap()), [255, 255, 255, 255, 2, 0, 0, 0]);
    let q8 = file.tensor("q8").unwrap();
    assert_eq!((q8.dtype().unwrap(), &q8.shape[..], q8.count(), file.bytes_of(q8).len()), (DType::Q8_0, [3, 256].as_slice(), 768, 3 * 272));
}

#[test]
fn errors_say_what_to_do() {
    // Its last tensor, 64 values of IQ4_NL, as 32 of a type that is not supported: name, number of sizes, size, type.
    let mut bytes = SMALL.to_vec();
    let entry = bytes.windows(7).position(|w| w == b"iq4\x02\0\0\0").unwrap();
    assert_eq!((bytes[entry + 15], bytes[entry + 23]), (2, 20));
    (bytes[entry + 15], bytes[entry + 23]) = (1, 9);
    let file = Gguf::from_bytes(bytes).unwrap();
    let cases: [(TensorError, &str); 8] = [
        (file.tensor("f23").unwrap_err(), "no tensor `f23`; did you mean `f32`?"),
        (file.tensor("iq4").unwrap_err(), "tensor `iq4` is stored as Q8_1"),
        (file.u64("t.u33").unwrap_err(), "no metadata key `t.u33`; did you mean `t.u32`?"),
        (file.u64("t.i8").unwrap_err(), "`t.i8` is -5 (i8), not a non-negative integer"),
        (file.str("t.u8").unwrap_err(), "`t.u8` is 200 (u8), not a string"),
        (file.strs("t.i32s").unwrap_err(), "`t.i32s` is 1 (i32), not a string"),
        (file.i32s("t.str").unwrap_err(), "`t.str` is \"grüße 🙂\" (string), not an array"),
        (Gguf::from_bytes(b"GGUF\0\0\0\x03".to_vec()).unwrap_err(), "big-endian"),
    ];
    for (error, part) in cases {
        assert!(error.to_string().contains(part), "`{error}` does not contain `{part}`");
    }
    // Listed all the same.
    let iq4 = file.tensors().iter().find(|t| &*t.name == "iq4").unwrap();
    assert_eq!((iq4.type_name(), iq4.range.len()), ("Q8_1", 36));
}

#[test]
fn gguf_round_trip() {
    let weights: Vec<f32> = (0..512).map(|i| (i as f32 * 0.37).sin()).collect();
    let mut writer = GgufWriter::new();
    writer.set("general.architecture", "gpt2").set("general.alignment", 64u32).set("n", 1u16).set("n", 7u64);
    writer.set("list", vec!["x".to_string(), String::new()]).set("floats", [0.25f32, -1.0].as_slice()).set("none", Vec::<i32>::new());
    writer.tensor("plain", DType::F32, &[3], le(&[1.0, 2.0, 3.0])).unwrap();
    writer.tensor("packed", DType::Q4_K, &[2, 256], quantize(DType::Q4_K, &weights).unwrap()).unwrap();
    writer.tensor("scalar", DType::F16, &[], vec![0, 0x3c]).unwrap();
    for (name, dtype, shape, bytes) in [
        ("plain", DType::F32, vec![1], 4),
        ("", DType::F32, vec![1], 4),
        ("a", DType::F32, vec![1], 5),
        ("b", DType::Q8_0, vec![33], 34),
        ("c", DType::U32, vec![1], 4),
    ] {
        assert!(writer.tensor(name, dtype, &shape, vec![0; bytes]).is_err(), "{name} {dtype} {shape:?}");
    }

    let path = temporary("gguf").join("model.gguf");
    writer.write(&path).unwrap();
    let file = Gguf::open(&path).unwrap();
    assert_eq!(std::fs::read(&path).unwrap(), writer.to_bytes().unwrap());
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1, "the temporary file is gone");
    assert_eq!((file.u64("n").unwrap(), file.strs("list").unwrap(), file.i32s("none").unwrap()), (7, vec!["x", ""], vec![]));
    for info in file.tensors() {
        assert_eq!(info.range.start % 64, 0, "{}", info.name);
    }
    assert_eq!(file.bytes_of(file.tensor("packed").unwrap()), quantize(DType::Q4_K, &weights).unwrap());
    assert!(file.tensor("scalar").unwrap().shape.is_empty());

    // A buffer may outlive the reader.
    let (data, range) = (Arc::clone(file.data()), file.tensor("plain").unwrap().range.clone());
    drop(file);
    assert_eq!(f32s(&data[range]), [1.0, 2.0, 3.0]);

    // Copying every value and tensor of another program's file gives the same values and tensors.
    let small = Gguf::from_bytes(SMALL.to_vec()).unwrap();
    let mut copy = GgufWriter::new();
    for (key, value) in small.metadata() {
        copy.set(key, value);
    }
    for info in small.tensors().iter().filter(|t| t.dtype().is_ok()) {
        copy.tensor(&info.name, info.dtype().unwrap(), &info.shape, small.bytes_of(info)).unwrap();
    }
    let copy = Gguf::from_bytes(copy.to_bytes().unwrap()).unwrap();
    let text = |f: &Gguf| f.metadata().map(|(k, v)| format!("{k} {v:?}")).collect::<Vec<_>>();
    assert_eq!(text(&copy), text(&small));
    assert_eq!(copy.bytes_of(copy.tensor("q8").unwrap()), small.bytes_of(small.tensor("q8").unwrap()));
}

/// A file that the format's own crate writes.
fn reference(tensors: &[(&str, safetensors::Dtype, &[usize], &[u8])]) -> Vec<u8> {
    let views = tensors
        .iter()
        .map(|(name, dtype, shape, data)| (*name, safetensors::tensor::TensorView::new(*dtype, shape.to_vec(), data).unwrap()));
    safetensors::serialize(views, Some([("format".to_string(), "pt".to_string())].into())).unwrap()
}

#[test]
fn safetensors_of_another_writer() {
    use safetensors::Dtype as D;
    let data: Vec<u8> = (0..=255).collect();
    let types = [
        (D::F64, Some(DType::F64), 8),
        (D::F32, Some(DType::F32), 4),
        (D::F16, Some(DType::F16), 2),
        (D::BF16, Some(DType::BF16), 2),
        (D::I64, Some(DType::I64), 8),
        (D::I32, Some(DType::I32), 4),
        (D::U32, Some(DType::U32), 4),
        (D::I8, Some(DType::I8), 1),
        (D::U8, Some(DType::U8), 1),
        (D::BOOL, Some(DType::Bool), 1),
        (D::I16, Some(DType::I16), 2),
        (D::U16, Some(DType::U16), 2),
        (D::U64, Some(DType::U64), 8),
        (D::F8_E4M3, None, 1),
        (D::F8_E5M2, None, 1),
    ];
    for (stored, dtype, size) in types {
        let bytes =
            reference(&[("w", stored, &[3, 2], &data[..6 * size]), ("empty", stored, &[0], &[]), ("scalar", stored, &[], &data[..size])]);
        let file = SafeTensors::from_bytes(bytes).unwrap();
        assert_eq!(file.tensors().len(), 3);
        assert_eq!(file.metadata(), [("format".to_string(), "pt".to_string())]);
        let info = file.tensors().iter().find(|t| &*t.name == "w").unwrap();
        assert_eq!((&info.shape[..], file.bytes_of(info)), ([3, 2].as_slice(), &data[..6 * size]));
        assert_eq!(file.tensor("w").ok().map(|t| t.dtype().unwrap()), dtype, "{stored:?}");
    }
}

#[test]
fn sharded_model() {
    use safetensors::Dtype::F32;
    let folder = temporary("shards");
    let shards = ["model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"];
    std::fs::write(folder.join(shards[0]), reference(&[("a", F32, &[2], &le(&[1.0, 2.0]))])).unwrap();
    std::fs::write(folder.join(shards[1]), reference(&[("b", F32, &[1], &le(&[3.0])), ("c", F32, &[1], &le(&[4.0]))])).unwrap();
    let index = format!(r#"{{"metadata":{{"total_size":16}},"weight_map":{{"a":"{0}","b":"{1}","c":"{1}"}}}}"#, shards[0], shards[1]);
    let index_path = folder.join("model.safetensors.index.json");
    std::fs::write(&index_path, index).unwrap();
    for path in [&folder, &index_path] {
        let model = SafeTensors::open(path).unwrap();
        let value = |name: &str| f32s(model.bytes_of(model.tensor(name).unwrap()));
        assert_eq!((value("a"), value("b"), value("c")), (vec![1.0, 2.0], vec![3.0], vec![4.0]));
        let b = model.tensor("b").unwrap();
        assert_eq!(f32s(&model.data_of(b).unwrap()[b.range.clone()]), [3.0]);
    }
    let swapped = format!(r#"{{"weight_map":{{"a":"{1}","b":"{0}"}}}}"#, shards[0], shards[1]);
    std::fs::write(&index_path, swapped).unwrap();
    assert!(SafeTensors::open(&folder).unwrap_err().to_string().contains("tensor `a` is not in"));
    std::fs::remove_file(&index_path).unwrap();
    assert!(SafeTensors::open(&folder).unwrap_err().to_string().contains("has neither"));
    // A single file comes before an index.
    std::fs::write(folder.join("model.safetensors"), reference(&[("d", F32, &[1], &le(&[5.0]))])).unwrap();
    assert!(SafeTensors::open(&folder).unwrap().tensor("d").is_ok());
}

#[test]
fn a_mapped_file_that_changes() {
    let path = temporary("mapped").join("file");
    let open = || {
        std::fs::write(&path, [7; 9000]).unwrap();
        MappedFile::open(&path).unwrap()
    };
    let file = open();
    file.check().unwrap();
    assert_eq!((file.len(), file[8999], file.path()), (9000, 7, Some(path.as_path())));

    std::fs::File::options().write(true).open(&path).unwrap().set_len(100).unwrap();
    assert!(file.check().unwrap_err().to_string().contains("was 9000 bytes when it was opened and is 100 now"));

    let file = open();
    let later = std::time::SystemTime::now() + std::time::Duration::from_secs(9);
    std::fs::File::options().write(true).open(&path).unwrap().set_modified(later).unwrap();
    assert!(file.check().unwrap_err().to_string().contains("was written to"));

    // Replacing by renaming leaves the mapped bytes as they were.
    let file = open();
    tensorlogic::io::save::save(&path, |out| std::io::Write::write_all(out, b"new")).unwrap();
    file.check().unwrap();
    assert_eq!((file[8999], std::fs::read(&path).unwrap()), (7, b"new".to_vec()));

    // A failed save leaves the old file and nothing else.
    let failed = tensorlogic::io::save::save(&path, |_| Err(std::io::Error::other("disk full")));
    assert!(failed.unwrap_err().to_string().contains("disk full"));
    assert_eq!(std::fs::read(&path).unwrap(), b"new");
    assert_eq!(std::fs::read_dir(path.parent().unwrap()).unwrap().count(), 1);
    MappedFile::from(vec![1]).check().unwrap();
}

/// A model in three files is read as one, whichever of them is opened; a part that is missing or belongs elsewhere is named.
#[test]
fn split_gguf_files() {
    let folder = std::env::temp_dir().join(format!("tl-split-{}", std::process::id()));
    std::fs::create_dir_all(&folder).unwrap();
    let path = |n: usize| folder.join(format!("m-{n:05}-of-00003.gguf"));
    let write = |n: usize, no: u64| {
        let mut w = GgufWriter::new();
        if n == 1 {
            w.set("general.architecture", "llama");
            w.set("split.tensors.count", 3u64);
        }
        w.set("split.no", no);
        w.set("split.count", 3u64);
        w.tensor(&format!("t{n}"), DType::F32, &[2], [n as f32, 0.5].iter().flat_map(|x| x.to_le_bytes()).collect::<Vec<u8>>()).unwrap();
        w.write(&path(n)).unwrap();
    };
    (1..=3).for_each(|n| write(n, n as u64 - 1));
    for n in 1..=3 {
        let weights = Weights::open(path(n), &Device::cpu()).unwrap();
        assert_eq!((weights.architecture().unwrap(), weights.gguf().unwrap().files()), ("llama", 3));
        for t in 1..=3 {
            assert_eq!(weights.any(&format!("t{t}")).unwrap().to_vec().unwrap(), [t as f32, 0.5]);
        }
    }
    write(2, 2);
    let e = Gguf::open(path(1)).unwrap_err().to_string();
    assert!(e.contains("split.no") && e.contains("m-00002-of-00003.gguf"), "{e}");
    std::fs::remove_file(path(2)).unwrap();
    let e = Gguf::open(path(1)).unwrap_err().to_string();
    assert!(e.contains("m-00002-of-00003.gguf"), "{e}");
    std::fs::rename(path(1), folder.join("m.gguf")).unwrap();
    let e = Gguf::open(folder.join("m.gguf")).unwrap_err().to_string();
    assert!(e.contains("-00001-of-00003.gguf"), "{e}");
    let _ = std::fs::remove_dir_all(folder);
}

/// A safetensors file with one tensor `t`.
fn one_tensor(dtype: &str, shape: &str, bytes: &[u8]) -> SafeTensors {
    let header = format!(r#"{{"t":{{"dtype":"{dtype}","shape":{shape},"data_offsets":[0,{}]}}}}"#, bytes.len());
    let file = [&(header.len() as u64).to_le_bytes()[..], header.as_bytes(), bytes].concat();
    SafeTensors::from_bytes(file).unwrap()
}

/// On the CPU with their own type; a GPU reads those of two bytes as i32, and refuses u64.
#[test]
fn integers_of_two_bytes_and_u64_are_read_on_every_device() {
    let shorts = [i16::MIN, -1, 0, i16::MAX];
    for device in devices() {
        let load = |dtype: &str, shape: &str, bytes: Vec<u8>| one_tensor(dtype, shape, &bytes).load("t", &device);
        let dtype = |own: DType, wide: DType| if device.is_cpu() { own } else { wide };
        let t = load("I16", "[2,2]", shorts.iter().flat_map(|v| v.to_le_bytes()).collect()).unwrap();
        assert_eq!((t.dtype(), t.dims()), (dtype(DType::I16, DType::I32), &[2, 2][..]));
        assert_eq!(t.cast(DType::I32).unwrap().to_vec_of::<i32>().unwrap(), shorts.map(i32::from));
        let t = load("U16", "[3]", [0u16, 1, u16::MAX].iter().flat_map(|v| v.to_le_bytes()).collect()).unwrap();
        assert_eq!(t.dtype(), dtype(DType::U16, DType::I32));
        assert_eq!(t.cast(DType::I32).unwrap().to_vec_of::<i32>().unwrap(), [0, 1, 65_535]);
        let wide = load("U64", "[2]", [7u64, 1 << 63].iter().flat_map(|v| v.to_le_bytes()).collect());
        if device.is_cpu() {
            assert_eq!(wide.unwrap().to_vec_of::<u64>().unwrap(), [7, 1 << 63]);
        } else {
            let e = wide.unwrap_err().to_string();
            assert!(e.contains("no u64") && e.contains("use the CPU"), "{e}");
        }
    }
}

#[test]
fn types_that_tensors_lack_are_named() {
    let cpu = Device::cpu();
    let load = |dtype: &str, shape: &str, bytes: Vec<u8>| one_tensor(dtype, shape, &bytes).load("t", &cpu);
    let e = load("C64", "[1]", vec![0; 8]).unwrap_err().to_string();
    assert!(e.contains("`t` is stored as C64"), "{e}");
    let e = one_tensor("I16", "[1]", &[0, 0]).load("u", &cpu).unwrap_err().to_string();
    assert!(e.contains("no tensor `u`"), "{e}");
}
