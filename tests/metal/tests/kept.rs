//! Compiled kernels are kept in an archive for the next process, and what probes found in files; damaged ones are made anew. Alone in its program: it sets variables.

use fake_metal::metal::COUNTS;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering::SeqCst;
use tensorlogic::tuning::Tuning;
use tensorlogic::{Device, Tensor};

/// Opens the device and computes; gives how many kernels there were, how many of them came from the archive, and the command buffers of probes.
fn work() -> [u64; 3] {
    let [before, probed] = [&COUNTS.from_archives, &COUNTS.command_buffers].map(|c| c.load(SeqCst));
    let device = Device::open_with_tuning("metal", Tuning::apple()).unwrap();
    let probed = COUNTS.command_buffers.load(SeqCst) - probed;
    device.set_adaptive(false);
    let x = Tensor::from_vec((0..64 * 48).map(|n| (n % 7) as f32).collect(), &[64, 48], &device).unwrap();
    let sums: Vec<f32> = x.matmul(&x.t().unwrap()).unwrap().softmax(-1).unwrap().sum(&[1], false).unwrap().to_vec().unwrap();
    assert!(sums.iter().all(|s| (s - 1.0).abs() < 1e-5), "{sums:?}");
    let stats = device.pipeline_stats();
    assert_eq!(stats.found as u64, COUNTS.from_archives.load(SeqCst) - before, "what `tl doctor` says was found");
    assert_eq!(stats.kernels.iter().filter(|k| k.found).count(), stats.found, "which of them were found");
    assert!(
        stats.kernels.len() == stats.pipelines && stats.kernels.iter().any(|k| k.name == "matmul" && k.seconds > 0.0),
        "{:?}",
        stats.kernels
    );
    [stats.pipelines as u64, stats.found as u64, probed]
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
    let [of_all, found, probed] = work();
    assert!(of_all >= 4 && found == 0 && probed >= 5, "{of_all} kernels, {found} of them found in no file, {probed} probes");
    let (archives, found, sums) = (files(&folder, "metallib"), files(&folder, "json"), files(&folder, "sum"));
    assert_eq!((archives.len(), found.len(), sums.len()), (1, 2, 3), "files for the device, the system and this version");
    let [kernels, found_again, probed_again] = work();
    assert!(kernels > 0 && kernels < of_all, "{kernels} kernels besides those of probes, of {of_all}");
    assert_eq!((found_again, probed_again), (kernels, 0), "every kernel was kept, and what probes found");

    let whole = std::fs::read(&archives[0]).unwrap();
    std::fs::write(&archives[0], &whole[..whole.len() - 9]).unwrap();
    assert_eq!(work(), [kernels, 0, 0], "a file that was cut is not read");
    assert_eq!(work(), [kernels, kernels, 0], "and is made anew");

    // So it is with what probes found; and what was found without something is not kept.
    for file in &found {
        std::fs::write(file, "{}").unwrap();
    }
    assert_eq!(work()[2], probed, "probes run again");
    assert_eq!(work()[2], 0);
    // SAFETY: as above.
    unsafe { std::env::set_var("TL_GPU_WITHOUT", "metal bodies") };
    let [.., with_less] = work();
    assert!(with_less > 0 && with_less < probed, "{with_less} of {probed} probes");
    // SAFETY: as above.
    unsafe { std::env::remove_var("TL_GPU_WITHOUT") };
    assert_eq!(work()[2], 0);

    // One with the right sum that Metal refuses.
    let wrong = b"no archive".to_vec();
    let mut sum = DefaultHasher::new();
    wrong.hash(&mut sum);
    std::fs::write(&archives[0], &wrong).unwrap();
    std::fs::write(archives[0].with_extension("sum"), format!("{:016x}", sum.finish())).unwrap();
    assert_eq!(work(), [kernels, 0, 0]);
    assert_eq!(work(), [kernels, kernels, 0]);
    assert_eq!(std::fs::read_dir(&folder).unwrap().count(), archives.len() + found.len() + sums.len(), "files are left");
    std::fs::remove_dir_all(&folder).unwrap();
}
