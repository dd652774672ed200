//! Downloads in several parts, which take turns in two staging buffers, and uploads that are written into staging memory.

use super::*;
use crate::backends::FILLED_BLOCK;

/// Bytes that differ from part to part.
fn bytes(n: usize) -> Vec<u8> {
    (0..n as u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8 ^ (i >> 12) as u8).collect()
}

/// Numbers below `n` that look random.
fn draws(seed: u32) -> impl FnMut(usize) -> usize {
    let mut state = seed;
    move |n| {
        state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
        (state >> 8) as usize % n
    }
}

#[test]
fn parts_make_up_the_whole_at_every_border() {
    let Some(m) = backend() else { return };
    let all = bytes(40_000);
    let buffer = m.core.upload(&all, memory::PRIVATE).unwrap();
    let staging = Mutex::default();
    let check = |start: usize, len: usize, part: usize| {
        let (mut got, mut sizes) = (Vec::new(), Vec::new());
        m.core
            .view(&staging, &buffer, start, len, part, &mut |bytes| {
                got.extend_from_slice(bytes);
                sizes.push(bytes.len());
            })
            .unwrap();
        assert!(got == all[start..start + len], "{len} bytes from {start} in parts of {part}");
        // All parts are whole but the last.
        let want: Vec<usize> = (0..len).step_by(part).map(|at| part.min(len - at)).collect();
        assert_eq!(sizes, want, "{len} bytes from {start} in parts of {part}");
    };
    const PART: usize = 4096;
    for parts in [1, 2, 3, 8] {
        for (start, more) in [0, 1, 3, 4, PART - 1, PART].into_iter().flat_map(|s| [-5isize, -4, -1, 0, 1, 4, 5].map(|m| (s, m))) {
            check(start, (parts * PART).saturating_add_signed(more), PART);
        }
    }
    let mut draw = draws(7);
    for _ in 0..200 {
        let start = draw(all.len());
        check(start, 1 + draw(all.len() - start), 1 + draw(9000));
    }
}

#[test]
fn values_are_filled_into_staging_memory_at_their_places() {
    let Some(m) = backend() else { return };
    const CHUNK: usize = (16 << 20) / 4;
    for len in [1, FILLED_BLOCK - 1, FILLED_BLOCK, 5 * FILLED_BLOCK + 3, CHUNK - FILLED_BLOCK, CHUNK + 2 * FILLED_BLOCK + 1] {
        let buffer = Buffer::Gpu(
            m.core
                .upload_filled(len, memory::PRIVATE, &|at, out| {
                    assert!(at % FILLED_BLOCK == 0 && out.len() <= FILLED_BLOCK);
                    out.iter_mut().enumerate().for_each(|(n, v)| *v = (at + n) as f32);
                })
                .unwrap(),
        );
        let mut got = vec![0f32; len];
        m.read(&buffer, 0, bytemuck::cast_slice_mut(&mut got)).unwrap();
        assert!(got.iter().enumerate().all(|(n, v)| *v == n as f32), "{len} values");
    }
}

#[test]
fn whole_reads_cross_the_border_of_a_chunk() {
    let Some(m) = backend() else { return };
    let all = bytes(2 * transfer::READ_CHUNK + 9);
    let buffer = Buffer::Gpu(m.core.upload(&all, memory::PRIVATE).unwrap());
    let chunk = transfer::READ_CHUNK;
    for (start, len) in [(0, all.len()), (0, chunk), (0, chunk + 1), (3, chunk), (1, 2 * chunk - 1), (5, 2 * chunk + 4)] {
        let mut got = vec![0; len];
        m.read(&buffer, start, &mut got).unwrap();
        assert!(got == all[start..start + len], "{len} bytes from {start}");
    }
}

#[test]
fn an_error_between_parts_leaves_the_staging_memory_usable() {
    let Some(m) = backend() else { return };
    let all = bytes(20_000);
    let buffer = m.core.upload(&all, memory::PRIVATE).unwrap();
    let staging = Mutex::default();
    // A record that says that step 0 met index 7.
    m.core.driver.queue.write_buffer(m.core.records.buffer(0), 0, bytemuck::cast_slice(&[1u32, 0, 7, 0]));
    m.core.records.expect(1);
    let mut shown = 0;
    let error = m.core.view(&staging, &buffer, 0, all.len(), 4096, &mut |_| shown += 1).unwrap_err();
    assert!(matches!(error, TensorError::Index { .. }), "{error}");
    assert_eq!(shown, 1);
    let mut got = Vec::new();
    m.core.view(&staging, &buffer, 0, all.len(), 4096, &mut |bytes| got.extend_from_slice(bytes)).unwrap();
    assert!(got == all);
}

#[test]
fn a_panic_between_parts_leaves_the_staging_memory_usable() {
    let Some(m) = backend() else { return };
    let all = bytes(20_000);
    let buffer = m.core.upload(&all, memory::PRIVATE).unwrap();
    let staging = Mutex::default();
    for bad in 0..5 {
        let mut shown = 0;
        let view = std::panic::AssertUnwindSafe(|| {
            m.core.view(&staging, &buffer, 0, all.len(), 4096, &mut |_| {
                assert!(shown != bad, "as the test wants it");
                shown += 1;
            })
        });
        assert!(std::panic::catch_unwind(view).is_err());
        let mut got = Vec::new();
        m.core.view(&staging, &buffer, 0, all.len(), 4096, &mut |bytes| got.extend_from_slice(bytes)).unwrap();
        assert!(got == all);
    }
}

#[test]
fn a_device_lost_between_parts_says_so() {
    let Some(m) = lesser(8, false) else { return };
    let all = bytes(20_000);
    let buffer = m.core.upload(&all, memory::PRIVATE).unwrap();
    let staging = Mutex::default();
    let mut got = Vec::new();
    // The first part is mapped here, and the second is asked for.
    let lost = m.core.view(&staging, &buffer, 0, all.len(), 4096, &mut |bytes| {
        m.core.driver.device.destroy();
        got.extend_from_slice(bytes);
    });
    let error = lost.unwrap_err();
    assert!(matches!(error, TensorError::DeviceLost(_)), "{error}");
    // What was shown before is right.
    assert!(!got.is_empty() && got.len() < all.len() && got == all[..got.len()]);
    let again = m.core.view(&staging, &buffer, 0, all.len(), 4096, &mut |_| panic!("bytes of a lost device"));
    assert!(matches!(again, Err(TensorError::DeviceLost(_))));
}
