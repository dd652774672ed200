//! temporary
use std::time::Instant;
use tensorlogic::backends::Bytes;
use tensorlogic::{DType, Device, Rng, Tensor, TensorResult};
fn median(mut t: Vec<f64>) -> f64 {
    t.sort_by(f64::total_cmp);
    t[t.len() / 2]
}
fn main() -> TensorResult<()> {
    let device = match std::env::var("DEV").as_deref() {
        Ok(d) => Device::open(d)?,
        _ => Device::cpu(),
    };
    let (e, n, k, used) = (32usize, 768usize, 2048usize, 4usize);
    for dtype in [DType::Q8_0, DType::F16] {
        let one = Rng::new(1).uniform(&[n, k], DType::F32, &Device::cpu())?.to_vec()?;
        let one: Vec<u8> = if dtype == DType::F16 {
            one.iter().flat_map(|v| half::f16::from_f32(*v).to_le_bytes()).collect()
        } else {
            tensorlogic::quant::quantize(dtype, &one)?
        };
        let bytes: Vec<u8> = (0..e).flat_map(|_| one.clone()).collect();
        let w = Tensor::from_bytes(Bytes::Owned(bytes.into()), dtype, &[e, n, k], &device)?;
        w.eval()?;
        for t in [1usize, 8, 64, 256] {
            let x = Rng::new(2).uniform(&[t, k], DType::F32, &device)?;
            let ids: Vec<i32> = (0..t * used).map(|p| ((p * 7 + p / 5) % e) as i32).collect();
            let all = Tensor::from_vec(ids.clone(), &[t, used], &device)?;
            x.eval()?;
            all.eval()?;
            let rows: Vec<(Tensor, Tensor)> = (0..t)
                .map(|r| {
                    let a = x.narrow(0, r, 1)?.contiguous()?;
                    a.eval()?;
                    let i = Tensor::from_vec(ids[r * used..(r + 1) * used].to_vec(), &[1, used], &device)?;
                    i.eval()?;
                    Ok((a, i))
                })
                .collect::<TensorResult<_>>()?;
            let (mut whole, mut single) = (vec![], vec![]);
            for _ in 0..(if t > 8 { 5 } else { 15 }) {
                let now = Instant::now();
                x.expert_matmul(&w, &all)?.sum_all()?.item()?;
                whole.push(now.elapsed().as_secs_f64());
                let now = Instant::now();
                let mut sums = vec![];
                for (a, i) in &rows {
                    sums.push(a.expert_matmul(&w, i)?.sum_all()?);
                }
                Tensor::stack(&sums, 0)?.to_vec()?;
                single.push(now.elapsed().as_secs_f64());
            }
            println!("{dtype} T={t}: together {:.2} ms, row by row {:.2} ms", median(whole) * 1e3, median(single) * 1e3);
        }
    }
    Ok(())
}
