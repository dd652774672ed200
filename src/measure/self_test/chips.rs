//! What the makers of chips publish about their memory.

/// GB/s of memory by the chip's name in a device's, as Apple publishes them; two where a name stands for two chips. Longer names come first.
const BANDWIDTH: [(&str, [u32; 2]); 18] = [
    ("M1 Ultra", [800, 800]),
    ("M1 Max", [400, 400]),
    ("M1 Pro", [200, 200]),
    ("M2 Ultra", [800, 800]),
    ("M2 Max", [400, 400]),
    ("M2 Pro", [200, 200]),
    ("M3 Ultra", [819, 819]),
    ("M3 Max", [300, 400]),
    ("M3 Pro", [150, 150]),
    ("M4 Max", [410, 546]),
    ("M4 Pro", [273, 273]),
    ("M5 Max", [460, 614]),
    ("M5 Pro", [307, 307]),
    ("M1", [68, 68]),
    ("M2", [100, 100]),
    ("M3", [100, 100]),
    ("M4", [120, 120]),
    ("M5", [153, 153]),
];

/// GPU cores from which a chip of two versions is the faster one.
const CORES_OF_FASTER: u32 = 40;

/// The published memory bandwidth of the chip that a device's name tells, in bytes per second: of its slowest and its fastest version, which are the
/// same where there is one version, or where the number of its GPU's cores tells which it is.
pub fn published_bandwidth(device: &str, cores: Option<u32>) -> Option<[f64; 2]> {
    let name = device.strip_prefix("Apple ")?;
    let (_, [slow, fast]) =
        BANDWIDTH.iter().find(|(chip, _)| name.strip_prefix(chip).is_some_and(|rest| !rest.starts_with(|c: char| c.is_alphanumeric())))?;
    let versions = match cores {
        Some(n) if n >= CORES_OF_FASTER => [fast, fast],
        Some(_) => [slow, slow],
        None => [slow, fast],
    };
    Some(versions.map(|gb| f64::from(*gb) * 1e9))
}
