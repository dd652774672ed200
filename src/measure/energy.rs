//! Energy that the system counts: a processor's by RAPL (Linux), an NVIDIA GPU's by its management library. Absent elsewhere, never estimated.

use crate::backends::EnergyCounter;
use crate::device::Device;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A counter of the energy that a device takes.
///
/// On a CPU under Linux it is the sum over the processor packages of RAPL's counters (`/sys/class/powercap`, often readable by root only), which
/// count everything that runs there; for an NVIDIA GPU it is the whole board's, by NVML.
///
/// ```
/// use tensorlogic::measure::EnergyMeter;
/// use tensorlogic::prelude::*;
///
/// if let Some(mut meter) = EnergyMeter::of(&Device::auto()?) {
///     let idle = meter.idle_power(std::time::Duration::from_millis(200));
///     println!("{}: {idle:?} W at rest", meter.source());
/// }
/// # Ok::<(), TensorError>(())
/// ```
pub struct EnergyMeter {
    source: Source,
}

/// Where the counts come from.
enum Source {
    Rapl(Vec<Package>),
    #[cfg(feature = "gpu")]
    Nvml(nvml::Board),
}

/// A span of time with what the device took in it.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Energy {
    /// Joules, all of the device.
    pub joules: f64,
    /// Seconds.
    pub seconds: f64,
}

impl Energy {
    /// Joules beyond what a device at rest, which takes `idle` watts, would have taken.
    pub fn above(&self, idle: f64) -> f64 {
        self.joules - idle * self.seconds
    }
}

impl EnergyMeter {
    /// The meter of a device; `None` where the system does not tell, or does not let this user read it.
    pub fn of(device: &Device) -> Option<EnergyMeter> {
        let source = match device.backend().energy_counter()? {
            EnergyCounter::Packages => Source::Rapl(Some(packages(Path::new("/sys/class/powercap"))).filter(|p| !p.is_empty())?),
            #[cfg(feature = "gpu")]
            EnergyCounter::Board(address) => Source::Nvml(nvml::Board::at(address)?),
            #[cfg(not(feature = "gpu"))]
            EnergyCounter::Board(_) => return None,
        };
        Some(EnergyMeter { source })
    }

    /// What the figures are of: `RAPL, 2 packages`.
    pub fn source(&self) -> String {
        match &self.source {
            Source::Rapl(packages) => match packages.len() {
                1 => "RAPL, 1 package".into(),
                n => format!("RAPL, {n} packages"),
            },
            #[cfg(feature = "gpu")]
            Source::Nvml(_) => "NVML, the whole board".into(),
        }
    }

    /// Joules since some time in the past, which grows; `None` where the counter cannot be read any more. RAPL's counters wrap after some
    /// minutes at full load, which is noticed if this is called more often than that.
    pub fn joules(&mut self) -> Option<f64> {
        match &mut self.source {
            Source::Rapl(packages) => packages.iter_mut().map(Package::joules).sum(),
            #[cfg(feature = "gpu")]
            Source::Nvml(board) => board.joules(),
        }
    }

    /// Watts while nothing runs: waits for this long. Something else that runs on the machine is in it.
    pub fn idle_power(&mut self, time: Duration) -> Option<f64> {
        let ((), energy) = self.measure(|| std::thread::sleep(time));
        energy.map(|e| e.joules / e.seconds)
    }

    /// Runs `work` and tells what the device took meanwhile. Counters move about every millisecond (RAPL) to every 100 ms (NVML): measure at
    /// least some seconds.
    pub fn measure<T>(&mut self, work: impl FnOnce() -> T) -> (T, Option<Energy>) {
        let (start, before) = (Instant::now(), self.joules());
        let done = work();
        let energy = before.zip(self.joules()).map(|(a, b)| Energy { joules: b - a, seconds: start.elapsed().as_secs_f64() });
        (done, energy)
    }
}

/// The counter of a processor package.
struct Package {
    file: PathBuf,
    /// Where the counter begins anew, in microjoules.
    range: u64,
    last: u64,
    wraps: u64,
}

impl Package {
    /// The counter of a folder, if it is a package's and can be read.
    fn of(folder: &Path) -> Option<Package> {
        let number = |name: &str| std::fs::read_to_string(folder.join(name)).ok()?.trim().parse().ok();
        let name = std::fs::read_to_string(folder.join("name")).ok()?;
        let (range, last) = (number("max_energy_range_uj")?, number("energy_uj")?);
        name.starts_with("package").then(|| Package { file: folder.join("energy_uj"), range, last, wraps: 0 })
    }

    fn joules(&mut self) -> Option<f64> {
        let now = std::fs::read_to_string(&self.file).ok()?.trim().parse().ok()?;
        self.wraps += (now < self.last) as u64;
        self.last = now;
        Some((self.wraps as f64 * self.range as f64 + now as f64) * 1e-6)
    }
}

/// The packages under this folder.
fn packages(root: &Path) -> Vec<Package> {
    let entries = std::fs::read_dir(root).into_iter().flatten().flatten();
    // A package's own parts (`intel-rapl:0:1`) are in its count.
    let whole = |path: &PathBuf| path.file_name().and_then(|n| n.to_str()).is_some_and(|n| n.matches(':').count() == 1);
    entries.map(|e| e.path()).filter(whole).filter_map(|p| Package::of(&p)).collect()
}

#[cfg(feature = "gpu")]
mod nvml {
    //! NVIDIA's management library, which comes with its driver and is looked up at run time. Functions and meanings: "NVML API Reference Guide".

    #[cfg(not(target_arch = "wasm32"))]
    pub use native::Board;

    #[cfg(target_arch = "wasm32")]
    pub enum Board {}
    #[cfg(target_arch = "wasm32")]
    impl Board {
        pub fn at(_: &str) -> Option<Board> {
            None
        }
        pub fn joules(&self) -> Option<f64> {
            match *self {}
        }
    }

    #[cfg(not(target_arch = "wasm32"))]
    mod native {
        use libloading::Library;
        use std::ffi::{CString, c_char, c_int, c_uint, c_ulonglong, c_void};

        /// A GPU, by its handle in the library.
        pub struct Board {
            library: Library,
            handle: *mut c_void,
        }
        // SAFETY: the library's functions may be called from any thread, and the handle is a number to us.
        unsafe impl Send for Board {}

        const NAMES: [&str; 2] = if cfg!(windows) { ["nvml.dll", "nvml.dll"] } else { ["libnvidia-ml.so.1", "libnvidia-ml.so"] };

        impl Board {
            /// The GPU at this address of the PCI bus; `None` without the library or where the GPU does not count energy.
            pub fn at(address: &str) -> Option<Board> {
                let address = CString::new(address).ok()?;
                // SAFETY: the library is the driver's, whose initialisation has no preconditions; the signatures are those of nvml.h.
                unsafe {
                    let library = NAMES.iter().find_map(|name| Library::new(name).ok())?;
                    let mut handle = std::ptr::null_mut();
                    let started = library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlInit_v2\0").ok()?() == 0;
                    let find = library
                        .get::<unsafe extern "C" fn(*const c_char, *mut *mut c_void) -> c_int>(b"nvmlDeviceGetHandleByPciBusId_v2\0")
                        .ok()?;
                    let found = started && find(address.as_ptr(), &mut handle) == 0;
                    let board = Board { library, handle };
                    (found && board.joules().is_some()).then_some(board)
                }
            }

            /// Joules since the driver was loaded.
            pub fn joules(&self) -> Option<f64> {
                let mut millijoules: c_ulonglong = 0;
                // SAFETY: the handle is one of this library, which stays loaded; the signature is that of nvml.h.
                let error: c_uint = unsafe {
                    let count = self
                        .library
                        .get::<unsafe extern "C" fn(*mut c_void, *mut c_ulonglong) -> c_uint>(b"nvmlDeviceGetTotalEnergyConsumption\0");
                    count.ok()?(self.handle, &mut millijoules)
                };
                (error == 0).then_some(millijoules as f64 * 1e-3)
            }
        }

        impl Drop for Board {
            fn drop(&mut self) {
                // SAFETY: as above; every initialisation is counted, so others of the process keep the library.
                unsafe {
                    if let Ok(stop) = self.library.get::<unsafe extern "C" fn() -> c_int>(b"nvmlShutdown\0") {
                        stop();
                    }
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn packages_are_summed_and_a_counter_that_wraps_goes_on() {
        let root = std::env::temp_dir().join(format!("tl-powercap-{}", std::process::id()));
        let write = |domain: &str, file: &str, text: &str| {
            std::fs::create_dir_all(root.join(domain)).unwrap();
            std::fs::write(root.join(domain).join(file), text).unwrap();
        };
        for (domain, name, energy) in [
            ("intel-rapl:0", "package-0\n", "1000000\n"),
            ("intel-rapl:1", "package-1\n", "5000000\n"),
            ("intel-rapl:0:0", "core\n", "700000\n"),
            ("intel-rapl:2", "psys\n", "9000000\n"),
        ] {
            write(domain, "name", name);
            write(domain, "max_energy_range_uj", "10000000\n");
            write(domain, "energy_uj", energy);
        }
        // One that this user may not read, and one with nonsense.
        write("intel-rapl:3", "name", "package-3\n");
        write("intel-rapl:4", "name", "package-4\n");
        write("intel-rapl:4", "max_energy_range_uj", "many\n");
        write("intel-rapl:4", "energy_uj", "1\n");
        let mut meter = EnergyMeter { source: Source::Rapl(packages(&root)) };
        assert_eq!((meter.source().as_str(), meter.joules()), ("RAPL, 2 packages", Some(6.0)));
        let ((), spent) = meter.measure(|| {
            write("intel-rapl:0", "energy_uj", "3000000");
            write("intel-rapl:1", "energy_uj", "500000");
        });
        let spent = spent.unwrap();
        assert!((spent.joules - 7.5).abs() < 1e-9, "2 J of one, and 5.5 J of the other past its range: {spent:?}");
        assert!((Energy { joules: 10.0, seconds: 2.0 }.above(3.0) - 4.0).abs() < 1e-12);
        std::fs::remove_dir_all(&root).unwrap();
        assert_eq!(meter.joules(), None);
        assert!(packages(&root).is_empty());
    }
}
