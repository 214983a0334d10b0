//! Sets of sequence numbers.

use std::collections::BTreeMap;

/// Disjoint half-open ranges.
#[derive(Clone, Default, Debug)]
pub(super) struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `start..end`.
    pub(super) fn insert(&mut self, mut start: u64, mut end: u64) {
        if start >= end {
            return;
        }
        while let Some((&low, &high)) = self.0.range(..=end).next_back()
            && high >= start
        {
            start = start.min(low);
            end = end.max(high);
            self.0.remove(&low);
        }
        self.0.insert(start, end);
    }

    /// The range that holds `at`.
    pub(super) fn around(&self, at: u64) -> Option<(u64, u64)> {
        let (&low, &high) = self.0.range(..=at).next_back()?;
        (at < high).then_some((low, high))
    }

    /// Whether all of `start..end` is in the set.
    pub(super) fn covers(&self, start: u64, end: u64) -> bool {
        start >= end || self.around(start).is_some_and(|(_, high)| high >= end)
    }

    /// Forgets what lies wholly below `limit`.
    pub(super) fn forget_below(&mut self, limit: u64) {
        while let Some((&low, &high)) = self.0.first_key_value()
            && high < limit
        {
            self.0.remove(&low);
        }
    }
}
