//! Compiled kernels are kept in an archive for the next process; a damaged one is deleted and made anew. Alone in its program: it sets variables.

use fake_metal::metal::COUNTS;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor};

/// Opens the device and computes; gives how many kernels there were, and how many of them came from the archive.
fn work() -> [u64; 2] {
    let before = COUNTS.from_archives.load(SeqCst);
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    device.set_adaptive(false);
    let x = Tensor::from_vec((0..64 * 48).map(|n| (n % 7) as f32).collect(), &[64, 48], &device).unwrap();
    let sums: Vec<f32> = x.matmul(&x.t().unwrap()).unwrap().softmax(-1).unwrap().sum(&[1], false).unwrap().to_vec().unwrap();
    assert!(sums.iter().all(|s| (s - 1.0).abs() < 1e-5), "{sums:?}");
    let stats = device.pipeline_stats();
    assert_eq!(stats.found as u64, COUNTS.from_archives.load(SeqCst) - before, "what `tl doctor` says was found");
    [stats.pipelines as u64, stats.found as u64]
}

/// The files of a folder that end so.
fn files(folder: &Path, ending: &str) -> Vec<PathBuf> {
    std::fs::read_dir(folder).unwrap().map(|f| f.unwrap().path()).filter(|f| f.extension().is_some_and(|e| e == ending)).collect()
}

#[test]
fn kernels_come_from_the_archive_of_the_process_before_unless_it_is_damaged() {
    let folder = std::env::temp_dir().join(format!("tl-metal-kept-{}", std::process::id()));
    // SAFETY: no other thread of this program reads the environment now.
    unsafe {
        std::env::set_var("TL_PIPELINE_CACHE", "1");
        std::env::set_var("TL_CACHE_DIR", &folder);
    }
    let [kernels, found] = work();
    assert!(kernels >= 4 && found == 0, "{kernels} kernels, {found} of them found in no file");
    let (archives, sums) = (files(&folder, "metallib"), files(&folder, "sum"));
    assert_eq!((archives.len(), sums.len()), (1, 1), "a file for the device, the system and this version");
    assert_eq!(work(), [kernels, kernels], "every kernel was kept");

    let whole = std::fs::read(&archives[0]).unwrap();
    std::fs::write(&archives[0], &whole[..whole.len() - 9]).unwrap();
    assert_eq!(work(), [kernels, 0], "a file that was cut is not read");
    assert_eq!(work(), [kernels, kernels], "and is made anew");

    // One with the right sum that Metal refuses.
    let wrong = b"no archive".to_vec();
    let mut sum = DefaultHasher::new();
    wrong.hash(&mut sum);
    std::fs::write(&archives[0], &wrong).unwrap();
    std::fs::write(&sums[0], format!("{:016x}", sum.finish())).unwrap();
    assert_eq!(work(), [kernels, 0]);
    assert_eq!(work(), [kernels, kernels]);
    assert_eq!(
        files(&folder, "metallib").len() + files(&folder, "sum").len(),
        std::fs::read_dir(&folder).unwrap().count(),
        "files are left"
    );
    std::fs::remove_dir_all(&folder).unwrap();
}
