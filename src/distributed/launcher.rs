//! Which launcher started this process, by the variables that it sets, and which MPI libraries may belong to it.

use std::fmt;

/// Whose launcher it is, as far as it tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Family {
    /// Open MPI's `mpirun`.
    OpenMpi,
    /// MPICH's `mpiexec`, or another launcher that speaks PMI: Intel's, Cray's, `srun --mpi=pmi2`.
    Mpich,
    /// A launcher that speaks PMIx, such as `srun --mpi=pmix`: either library may answer.
    Pmix,
}

/// What a launcher says about this process.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Whose launcher it is.
    pub family: Family,
    /// How many ranks it started; `None` where it does not tell.
    pub size: Option<usize>,
    /// The library that `TL_MPI` names.
    pub library: Option<String>,
}

impl Launch {
    /// What the environment says; `None` where no launcher started this process.
    pub fn from_env() -> Option<Launch> {
        Launch::from(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
    }

    /// What these variables say.
    fn from(variable: impl Fn(&str) -> Option<String>) -> Option<Launch> {
        let number = |name: &str| variable(name).and_then(|v| v.parse::<usize>().ok());
        let (family, size) = if variable("OMPI_COMM_WORLD_RANK").is_some() {
            (Family::OpenMpi, number("OMPI_COMM_WORLD_SIZE"))
        } else if variable("PMI_RANK").is_some() {
            (Family::Mpich, number("PMI_SIZE").or_else(|| number("SLURM_STEP_NUM_TASKS")))
        } else if variable("PMIX_RANK").is_some() {
            (Family::Pmix, number("SLURM_STEP_NUM_TASKS").or_else(|| number("SLURM_NTASKS")))
        } else {
            return None;
        };
        Some(Launch { family, size, library: variable("TL_MPI") })
    }

    /// The libraries to try, in order: files or names that the system's loader looks up.
    pub fn libraries(&self) -> Vec<String> {
        if let Some(library) = &self.library {
            return vec![library.clone()];
        }
        let (open_mpi, mpich): (&[&str], &[&str]) = if cfg!(target_os = "macos") {
            (
                &["libmpi.40.dylib", "/opt/homebrew/lib/libmpi.40.dylib"],
                &["libmpi_abi.1.dylib", "libmpi.12.dylib", "/opt/homebrew/lib/libmpi.12.dylib"],
            )
        } else {
            (&["libmpi.so.40"], &["libmpi_abi.so.1", "libmpi.so.12", "libmpich.so.12"])
        };
        let order = match self.family {
            Family::OpenMpi => open_mpi.to_vec(),
            Family::Mpich => mpich.to_vec(),
            Family::Pmix => [open_mpi, mpich].concat(),
        };
        order.into_iter().map(String::from).collect()
    }
}

impl fmt::Display for Launch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let size = self.size.map_or("some".into(), |n| n.to_string());
        let by = match self.family {
            Family::OpenMpi => "Open MPI's launcher",
            Family::Mpich => "a PMI launcher (MPICH, Intel MPI, srun)",
            Family::Pmix => "a PMIx launcher (srun)",
        };
        write!(f, "one of {size} ranks by {by}")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch(variables: &[(&str, &str)]) -> Option<Launch> {
        Launch::from(|name| variables.iter().find(|v| v.0 == name).map(|v| v.1.to_string()))
    }

    #[test]
    fn launchers_are_told_apart() {
        assert_eq!(launch(&[("SLURM_NTASKS", "4"), ("PATH", "/bin")]), None, "a batch script is not a launcher");
        let open_mpi = launch(&[("OMPI_COMM_WORLD_RANK", "1"), ("OMPI_COMM_WORLD_SIZE", "4"), ("PMIX_RANK", "1")]).unwrap();
        assert_eq!((open_mpi.family, open_mpi.size), (Family::OpenMpi, Some(4)));
        assert!(open_mpi.libraries().iter().all(|l| l.contains("40")), "{:?}", open_mpi.libraries());
        let mpich = launch(&[("PMI_RANK", "0"), ("PMI_SIZE", "2")]).unwrap();
        assert_eq!((mpich.family, mpich.size), (Family::Mpich, Some(2)));
        let slurm = launch(&[("PMIX_RANK", "0"), ("SLURM_STEP_NUM_TASKS", "8"), ("TL_MPI", "/opt/libmpi.so")]).unwrap();
        assert_eq!((slurm.family, slurm.size, slurm.libraries()), (Family::Pmix, Some(8), vec!["/opt/libmpi.so".to_string()]));
        assert_eq!(slurm.to_string(), "one of 8 ranks by a PMIx launcher (srun)");
    }
}
