//! Sets of sequence numbers, unwrapped.

use std::collections::BTreeMap;

/// Disjoint half-open ranges.
#[derive(Clone, Default, Debug)]
pub struct Ranges(BTreeMap<u64, u64>);

impl Ranges {
    /// Adds `start..end`.
    pub fn insert(&mut self, mut start: u64, mut end: u64) {
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

    /// Range that contains `at`.
    pub fn around(&self, at: u64) -> Option<(u64, u64)> {
        let (&low, &high) = self.0.range(..=at).next_back()?;
        (at < high).then_some((low, high))
    }

    /// True if all of `start..end` is in the set.
    pub fn covers(&self, start: u64, end: u64) -> bool {
        start >= end || self.around(start).is_some_and(|(_, high)| high >= end)
    }

    /// Removes the ranges that are wholly below `limit`.
    pub fn remove_below(&mut self, limit: u64) {
        while let Some((&low, &high)) = self.0.first_key_value()
            && high < limit
        {
            self.0.remove(&low);
        }
    }

    /// The first part of `from..to` that is missing.
    pub fn first_gap(&self, from: u64, to: u64) -> Option<(u64, u64)> {
        let mut start = from;
        if let Some((_, &high)) = self.0.range(..=start).next_back() {
            start = start.max(high);
        }
        let end = self.0.range(start..).next().map_or(to, |(&low, _)| low.min(to));
        (start < end).then_some((start, end))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut ranges = Ranges::default();
        ranges.insert(10, 20);
        ranges.insert(30, 40);
        assert!(ranges.covers(10, 20) && !ranges.covers(10, 21) && !ranges.covers(25, 31));
        assert_eq!(ranges.first_gap(0, 50), Some((0, 10)));
        assert_eq!(ranges.first_gap(10, 50), Some((20, 30)));
        assert_eq!(ranges.first_gap(35, 40), None);
        ranges.insert(15, 30);
        assert!(ranges.covers(10, 40));
        assert_eq!(ranges.first_gap(10, 50), Some((40, 50)));
    }
}
