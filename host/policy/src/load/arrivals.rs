//! What one scan finds in the folder of a hook besides what serves.
use std::collections::BTreeSet;
use std::time::Instant;

use super::policy::Policy;
use crate::files::Place;

/// How far one policy is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Progress {
    Done,
    Unsettled,
    Compiling,
}

/// What is to become of a version that was examined.
#[derive(Debug)]
pub(super) enum Debut {
    /// It serves everything at once. `unguarded`: it was to be tried, but nothing of it served before.
    Whole {
        unguarded: bool,
    },
    Trial,
}

/// Files of a hook, and which of them do not serve.
#[derive(Default)]
pub(super) struct Arrivals {
    pub(super) listed: BTreeSet<Place>,
    /// Those that came, or changed, since the last scan or are still being compiled.
    pub(super) came: BTreeSet<Place>,
    pub(super) pending: BTreeSet<Place>,
    pub(super) rejected: BTreeSet<Place>,
}

impl Arrivals {
    pub(super) fn note(&mut self, place: &Place, policy: &Policy, is_new: bool, progress: Progress) {
        if policy.serving.is_some() {
            return;
        }
        let pending = progress != Progress::Done;
        let sets = [
            (&mut self.came, is_new || pending),
            (&mut self.pending, pending),
            (&mut self.rejected, policy.error.is_some()),
        ];
        for (set, belongs) in sets {
            if belongs {
                set.insert(place.clone());
            }
        }
    }
}

/// The files of a hook that were there at the last scan, and since when.
#[derive(Debug)]
pub(super) struct Seen {
    pub(super) places: BTreeSet<Place>,
    pub(super) since: Instant,
}
