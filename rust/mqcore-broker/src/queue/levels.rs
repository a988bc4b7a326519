//! The lists of a queue's waiting messages: one for each priority that has any, highest first.

use std::collections::BTreeMap;

use crate::model::command::Clear;
use crate::model::terms::{LEVEL_HIGH, LEVEL_HIGH_MIN, LEVEL_NORMAL};
use crate::queue::list::List;

/// Lists by priority.
#[derive(Debug, Default)]
pub(super) struct Levels {
    high: List,
    normal: List,
    /// Lists of priorities between high and normal. Most queues have none.
    between: BTreeMap<u8, List>,
}

impl Levels {
    /// The list of a priority.
    #[inline]
    pub(super) fn of(&mut self, level: u8) -> &mut List {
        match level {
            LEVEL_NORMAL => &mut self.normal,
            LEVEL_HIGH => &mut self.high,
            level => self.between.entry(level).or_default(),
        }
    }

    /// The list of the highest priority that has messages; the one of normal priority if there is none.
    #[inline]
    pub(super) fn first(&mut self) -> &mut List {
        if self.between.is_empty() {
            return if self.high.cards.is_empty() { &mut self.normal } else { &mut self.high };
        }
        let level = self.first_level();
        self.of(level)
    }

    /// The highest priority that has messages.
    pub(super) fn first_level(&self) -> u8 {
        let lists = self.by_level().find(|(_, list)| !list.cards.is_empty());
        lists.map_or(LEVEL_NORMAL, |(level, _)| level)
    }

    fn by_level(&self) -> impl Iterator<Item = (u8, &List)> {
        let between = self.between.iter().rev();
        [(LEVEL_HIGH, &self.high)]
            .into_iter()
            .chain(between.map(|(level, list)| (*level, list)))
            .chain([(LEVEL_NORMAL, &self.normal)])
    }

    /// All lists, highest first.
    pub(super) fn iter(&self) -> impl Iterator<Item = &List> {
        self.by_level().map(|(_, list)| list)
    }

    /// All lists, highest first.
    pub(super) fn iter_mut(&mut self) -> impl DoubleEndedIterator<Item = &mut List> {
        let between = self.between.values_mut().rev();
        [&mut self.high].into_iter().chain(between).chain([&mut self.normal])
    }

    pub(super) fn len(&self) -> usize {
        let between: usize = self.between.values().map(|list| list.cards.len()).sum();
        self.high.cards.len() + self.normal.cards.len() + between
    }

    #[inline]
    pub(super) fn is_empty(&self) -> bool {
        self.high.cards.is_empty()
            && self.normal.cards.is_empty()
            && self.between.values().all(|list| list.cards.is_empty())
    }

    /// Number of messages of high and of other priority.
    pub(super) fn counts(&self) -> (u64, u64) {
        self.by_level().fold((0, 0), |(high, normal), (level, list)| {
            let count = list.cards.len() as u64;
            if level >= LEVEL_HIGH_MIN { (high + count, normal) } else { (high, normal + count) }
        })
    }

    /// Removes the lists that `clear` selects.
    pub(super) fn take(&mut self, clear: Clear) -> Vec<List> {
        let mut taken = Vec::new();
        if clear.high_priority {
            taken.push(std::mem::take(&mut self.high));
        }
        let selects = |level: u8| if level >= LEVEL_HIGH_MIN { clear.high_priority } else { clear.normal };
        let levels: Vec<u8> = self.between.keys().rev().copied().filter(|level| selects(*level)).collect();
        taken.extend(levels.iter().filter_map(|level| self.between.remove(level)));
        if clear.normal {
            taken.push(std::mem::take(&mut self.normal));
        }
        taken
    }

    /// Gives memory back after a large backlog is gone.
    pub(super) fn release(&mut self) {
        const KEPT: usize = 1024;
        self.between.clear();
        for list in [&mut self.high, &mut self.normal] {
            list.cold.clear();
            if list.cards.is_empty() && list.cards.capacity() > KEPT {
                list.cards.shrink_to(KEPT);
            }
        }
    }
}
