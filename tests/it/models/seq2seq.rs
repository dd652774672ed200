//! Models of two stacks against transformers in f64: states of the encoder, logits, greedy answers.

use crate::common::assert_close;
use serde_json::Value as Json;
use std::path::{Path, PathBuf};
use tensorlogic::io::SafeTensors;
use tensorlogic::models::inference::{Inputs, Padding};
use tensorlogic::models::seq2seq::speech;
use tensorlogic::models::{KvCache, Seq2Seq, Weights};
use tensorlogic::{DType, Device, Tensor, TensorResult};

/// A folder of the larger set, or of the one that lies here.
fn root() -> PathBuf {
    let given = std::env::var_os("TL_VECTORS").map(PathBuf::from);
    given.unwrap_or_else(|| Path::new(env!("TENSORLOGIC_ROOT")).join("tests/vectors/encoders")).join("models2")
}

fn floats(file: &SafeTensors, name: &str) -> Option<Tensor> {
    let info = file.tensor(name).ok()?;
    let values = file.bytes_of(info).chunks_exact(4).map(|b| f32::from_le_bytes(b.try_into().unwrap())).collect();
    Some(Tensor::from_vec::<f32>(values, &info.shape, &Device::cpu()).unwrap())
}

fn integers(file: &SafeTensors, name: &str) -> Option<Tensor> {
    let info = file.tensor(name).ok()?;
    let values = file.bytes_of(info).chunks_exact(8).map(|b| i64::from_le_bytes(b.try_into().unwrap()) as i32).collect();
    Some(Tensor::from_vec::<i32>(values, &info.shape, &Device::cpu()).unwrap())
}

fn close(what: &str, got: &Tensor, want: &Tensor) -> TensorResult<()> {
    let want: Vec<f64> = want.to_vec()?.into_iter().map(f64::from).collect();
    assert_close(what, &got.to_vec()?, &want, 1e-4, 2e-4);
    Ok(())
}

fn check(json: &Json) -> TensorResult<()> {
    let id = json["id"].as_str().unwrap();
    let folder = root().join(json["dir"].as_str().unwrap());
    let expected = SafeTensors::open(folder.join(json["expected"].as_str().unwrap()))?;
    let model = Seq2Seq::load(&Weights::open(&folder, &Device::cpu())?, Some(DType::F32))?;
    let want = floats(&expected, "encoder_last_hidden_state").unwrap();
    let source = match (integers(&expected, "in.input_ids"), floats(&expected, "in.input_features")) {
        (Some(ids), _) => {
            let mask = integers(&expected, "in.attention_mask").unwrap();
            let source = model.read(&Inputs::tokens(&ids).attention_mask(&mask))?;
            let shown = mask.cast(DType::F32)?.unsqueeze(-1)?;
            close(&format!("{id}: states"), &source.states()?.mul(&shown)?, &want.mul(&shown)?)?;
            source
        }
        (None, Some(features)) => {
            let source = model.listen(&features)?;
            close(&format!("{id}: states"), &source.states()?, &want)?;
            source
        }
        _ => panic!("{id}: no input"),
    };
    let tokens = integers(&expected, "in.decoder_input_ids").unwrap();
    let want = floats(&expected, "logits").unwrap();
    close(&format!("{id}: logits"), &model.logits(&tokens, &source, &mut KvCache::none())?, &want)?;
    // In steps of other sizes, with a cache.
    let mut cache = KvCache::batch(model.shape(), source.batch(), 16, &Device::cpu())?;
    let mut parts = Vec::new();
    for (start, len) in [(0, 4), (4, 1), (5, tokens.dims()[1] - 5)] {
        parts.push(model.logits(&tokens.narrow(1, start, len)?.contiguous()?, &source, &mut cache)?);
    }
    close(&format!("{id}: logits in steps"), &Tensor::cat(&parts, 1)?, &want)?;
    for g in json["greedy"].as_array().unwrap() {
        let row = g["source_row"].as_u64().unwrap() as usize;
        let source = match (integers(&expected, "in.input_ids"), floats(&expected, "in.input_features")) {
            (Some(ids), _) => {
                let ids: Vec<u32> = ids.narrow(0, row, 1)?.to_vec()?.into_iter().map(|v| v as u32).collect();
                model.read(&Inputs::padded(&[ids], Padding::Right)?)?
            }
            (None, Some(features)) => model.listen(&features.narrow(0, row, 1)?.contiguous()?)?,
            _ => panic!("{id}: no input"),
        };
        let want: Vec<u32> = g["tokens"].as_array().unwrap().iter().map(|t| t.as_u64().unwrap() as u32).collect();
        // The references go on behind tokens that end an answer.
        let mut got = vec![want[0]];
        assert_eq!(model.start(), want[0], "{id}");
        while got.len() < want.len() {
            let more = model.greedy(&source, &got, want.len() - got.len(), |_, _| true)?;
            assert!(!more.is_empty(), "{id}: no token");
            got.extend(more);
        }
        assert_eq!(got, want, "{id}: greedy tokens");
    }
    Ok(())
}

#[test]
fn two_stacks_equal_transformers() {
    let manifest: Json = serde_json::from_slice(&std::fs::read(root().join("manifest.json")).unwrap()).unwrap();
    let all = manifest["models"].as_array().unwrap().iter();
    let (mut wrong, mut count) = (Vec::new(), 0);
    for json in all.filter(|m| m["kind"] == "seq2seq" || m["kind"] == "speech") {
        count += 1;
        match std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| check(json))) {
            Ok(Ok(())) => {}
            Ok(Err(e)) => wrong.push(format!("{}: {e}", json["id"])),
            Err(panic) => wrong.push(panic.downcast_ref::<String>().cloned().unwrap_or_default().chars().take(300).collect()),
        }
    }
    assert!(wrong.is_empty() && count >= 2, "{} of {count}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn spectrograms_equal_those_of_transformers() -> TensorResult<()> {
    let file: Json = serde_json::from_str(include_str!("../../vectors/encoders/mel.json")).unwrap();
    let samples = speech::read_wav(include_bytes!("../../vectors/encoders/sound.wav"))?;
    assert_eq!(samples.len(), 16_000);
    for mels in [80, 128] {
        let got = speech::log_mel(&samples, mels, 100, &Device::cpu())?;
        assert_eq!(got.dims(), [1, mels, 100]);
        for (n, frame) in file["frames"].as_array().unwrap().iter().enumerate() {
            let got = got.narrow(2, frame.as_u64().unwrap() as usize, 1)?.to_vec()?;
            let want: Vec<f64> = file[mels.to_string()][n].as_array().unwrap().iter().map(|v| v.as_f64().unwrap()).collect();
            assert_close(&format!("{mels} bands, frame {frame}"), &got, &want, 0.0, 1e-4);
        }
    }
    Ok(())
}

#[test]
fn wav_files_are_read_or_refused_by_name() {
    let file = |kind: u16, channels: u16, rate: u32, bits: u16, data: &[u8]| {
        let mut bytes = b"RIFF\0\0\0\0WAVEfmt \x10\0\0\0".to_vec();
        bytes.extend([kind.to_le_bytes(), channels.to_le_bytes()].concat());
        bytes.extend([rate.to_le_bytes(), [0; 4]].concat());
        bytes.extend([0u16.to_le_bytes(), bits.to_le_bytes()].concat());
        // A chunk of odd length that nobody needs.
        bytes.extend(b"LIST\x03\0\0\0abc\0data");
        bytes.extend((data.len() as u32).to_le_bytes());
        bytes.extend(data);
        bytes
    };
    let read = |bytes: &[u8]| speech::read_wav(bytes);
    assert_eq!(read(&file(1, 1, 16_000, 16, &[0, 0x40, 0, 0xC0])).unwrap(), [0.5, -0.5]);
    assert_eq!(read(&file(1, 2, 16_000, 16, &[0, 0x40, 0, 0])).unwrap(), [0.25]);
    assert_eq!(read(&file(1, 1, 16_000, 8, &[192, 64])).unwrap(), [0.5, -0.5]);
    assert_eq!(read(&file(1, 1, 16_000, 24, &[0, 0, 0x40])).unwrap(), [0.5]);
    assert_eq!(read(&file(3, 1, 16_000, 32, &0.25f32.to_le_bytes())).unwrap(), [0.25]);
    let error = |bytes: &[u8]| read(bytes).unwrap_err().to_string();
    assert!(error(&file(1, 1, 44_100, 16, &[0, 0])).contains("44100"));
    assert!(error(&file(6, 1, 16_000, 8, &[0])).contains("kind 6"));
    assert!(error(b"RIFF").contains("not a WAV file"));
    for len in 0..60 {
        let whole = file(1, 1, 16_000, 16, &[0; 8]);
        let _ = read(&whole[..len.min(whole.len())]);
    }
}
