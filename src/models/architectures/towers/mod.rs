//! The towers for images that there are, and the pairs of one for images and one for texts, a file for each family.

mod clip;
mod common;
mod dinov2;
mod siglip;
mod vit;

use crate::error::TensorResult;
use crate::models::settings::Settings;
use crate::models::vision::description::{PairSpec, VisionSpec};

/// An architecture of a tower, or of a pair.
pub(crate) struct TowerArchitecture<T> {
    /// Its name in `model_type`.
    pub name: &'static str,
    /// What the settings describe.
    pub describe: fn(&Settings<'_>) -> TensorResult<T>,
}

/// The towers.
pub(crate) const TOWERS: &[TowerArchitecture<VisionSpec>] = &[
    TowerArchitecture { name: "vit", describe: vit::describe },
    TowerArchitecture { name: "dinov2", describe: dinov2::describe },
    TowerArchitecture { name: "siglip_vision_model", describe: siglip::describe_tower },
];

/// The pairs.
pub(crate) const PAIRS: &[TowerArchitecture<PairSpec>] =
    &[TowerArchitecture { name: "clip", describe: clip::describe }, TowerArchitecture { name: "siglip", describe: siglip::describe }];

/// The tower of this name.
pub(crate) fn find(name: &str) -> Option<&'static TowerArchitecture<VisionSpec>> {
    TOWERS.iter().find(|a| a.name == name)
}

/// The pair of this name.
pub(crate) fn find_pair(name: &str) -> Option<&'static TowerArchitecture<PairSpec>> {
    PAIRS.iter().find(|a| a.name == name)
}
