//! Finds the patterns that match a topic without looking at all others.
//!
//! Masks are in a trie of their bytes, in which chains of single children are merged; a star is a byte of its own. A
//! search reads the topic once and keeps the places in the trie that it has reached. Prefixes are in a map, which is
//! asked once for each length that a prefix has.

use std::collections::BTreeMap;

use foldhash::{HashMap, HashSet};
use slab::Slab;
use smallvec::SmallVec;

use crate::model::topic::TopicPattern;

const ROOT: usize = 0;
const STAR: u8 = b'*';
/// Places that any search may look at.
const STEPS_MIN: u64 = 4_096;
/// Further places for each node of the trie. Comparing a topic with a mask costs about a hundred places.
const STEPS_PER_NODE: u64 = 8;

#[derive(Debug, Default)]
struct Node {
    /// The bytes of the mask between the end of the parent and the end of this node. Empty for the root only.
    label: Box<[u8]>,
    parent: usize,
    /// The first byte of each child's label, ascending, and the child.
    children: SmallVec<[(u8, usize); 1]>,
    /// The pattern whose mask ends here.
    pattern: Option<usize>,
}

impl Node {
    fn child(&self, first: u8) -> Option<usize> {
        let at = self.children.binary_search_by_key(&first, |(byte, _)| *byte).ok()?;
        Some(self.children[at].1)
    }

    fn set_child(&mut self, first: u8, child: usize) {
        match self.children.binary_search_by_key(&first, |(byte, _)| *byte) {
            Ok(at) => self.children[at].1 = child,
            Err(at) => self.children.insert(at, (first, child)),
        }
    }
}

/// Patterns by their numbers, which the caller chooses.
#[derive(Debug)]
pub(crate) struct PatternIndex {
    nodes: Slab<Node>,
    prefixes: HashMap<Box<[u8]>, usize>,
    /// How many prefixes have this length.
    lengths: BTreeMap<usize, usize>,
}

impl Default for PatternIndex {
    fn default() -> Self {
        let mut nodes = Slab::new();
        nodes.insert(Node::default());
        Self { nodes, prefixes: HashMap::default(), lengths: BTreeMap::new() }
    }
}

/// Places in the trie after some bytes of a topic.
#[derive(Debug, Default)]
struct Places {
    /// Inside a label, before a byte that has to match: the node, and how much of its label has matched.
    inside: Vec<(usize, usize)>,
    /// Before a star, which is reached in several ways but followed once.
    stars: Vec<(usize, usize)>,
    known_stars: HashSet<(usize, usize)>,
    /// The ends of these nodes.
    ends: Vec<usize>,
}

impl Places {
    fn clear(&mut self) {
        self.inside.clear();
        self.stars.clear();
        self.known_stars.clear();
        self.ends.clear();
    }

    fn len(&self) -> usize {
        self.inside.len() + self.stars.len() + self.ends.len()
    }

    /// Adds a place, and all places that stars reach from there without a byte of the topic.
    fn add(&mut self, nodes: &Slab<Node>, node: usize, matched: usize) {
        let mut place = Some((node, matched));
        while let Some((node, matched)) = place.take() {
            match nodes[node].label.get(matched) {
                Some(&STAR) => {
                    if self.known_stars.insert((node, matched)) {
                        self.stars.push((node, matched));
                        place = Some((node, matched + 1));
                    }
                }
                Some(_) => self.inside.push((node, matched)),
                None => {
                    self.ends.push(node);
                    place = nodes[node].child(STAR).map(|child| (child, 0));
                }
            }
        }
    }

    /// The places one byte of the topic later.
    fn after(&self, nodes: &Slab<Node>, byte: u8, later: &mut Self) {
        later.clear();
        // A star matches no dot.
        if byte != b'.' {
            for (node, matched) in &self.stars {
                later.add(nodes, *node, *matched);
            }
        }
        for (node, matched) in &self.inside {
            if nodes[*node].label[*matched] == byte {
                later.add(nodes, *node, matched + 1);
            }
        }
        // A star of the topic's name is matched by stars of masks, as any other byte.
        for child in self.ends.iter().filter_map(|node| nodes[*node].child(byte)) {
            if byte != STAR {
                later.add(nodes, child, 1);
            }
        }
    }
}

impl PatternIndex {
    /// The number of a pattern.
    pub(crate) fn get(&self, pattern: &TopicPattern) -> Option<usize> {
        match pattern {
            TopicPattern::Mask(mask) => self.nodes[self.end_of(mask.as_bytes())?].pattern,
            TopicPattern::Prefix(prefix) => self.prefixes.get(prefix.as_bytes()).copied(),
            TopicPattern::Exact(_) => None,
        }
    }

    /// Adds a pattern, or changes its number. Topics by name do not belong here.
    pub(crate) fn insert(&mut self, pattern: &TopicPattern, number: usize) {
        match pattern {
            TopicPattern::Mask(mask) => {
                let node = self.make(mask.as_bytes());
                self.nodes[node].pattern = Some(number);
            }
            TopicPattern::Prefix(prefix) => {
                if self.prefixes.insert(prefix.as_bytes().into(), number).is_none() {
                    *self.lengths.entry(prefix.as_bytes().len()).or_default() += 1;
                }
            }
            TopicPattern::Exact(_) => debug_assert!(false, "topics by name are found by name"),
        }
    }

    /// Removes a pattern, if it is in the index.
    pub(crate) fn remove(&mut self, pattern: &TopicPattern) {
        match pattern {
            TopicPattern::Mask(mask) => {
                if let Some(node) = self.end_of(mask.as_bytes()) {
                    self.nodes[node].pattern = None;
                    self.prune(node);
                }
            }
            TopicPattern::Prefix(prefix) => {
                let length = prefix.as_bytes().len();
                if self.prefixes.remove(prefix.as_bytes()).is_some()
                    && let Some(count) = self.lengths.get_mut(&length)
                {
                    *count -= 1;
                    if *count == 0 {
                        self.lengths.remove(&length);
                    }
                }
            }
            TopicPattern::Exact(_) => {}
        }
    }

    /// The numbers of all patterns that match a topic, ascending.
    ///
    /// `steps` grows by the places that the search looks at. `None`: it would look at more places than comparing the
    /// topic with each pattern would cost. Masks made for this purpose can reach that.
    pub(crate) fn matching(&self, topic: &[u8], steps: &mut u64) -> Option<Vec<usize>> {
        let mut found = Vec::new();
        let steps_max = *steps + STEPS_MIN + STEPS_PER_NODE * self.nodes.len() as u64;
        for length in self.lengths.range(..=topic.len()).map(|(length, _)| *length) {
            *steps += 1;
            found.extend(self.prefixes.get(&topic[..length]).copied());
        }
        // As in `TopicPattern::matches`.
        if topic.contains(&b'.') && !self.nodes[ROOT].children.is_empty() {
            let (mut places, mut later) = (Places::default(), Places::default());
            places.add(&self.nodes, ROOT, 0);
            for byte in topic {
                *steps += places.len() as u64;
                if *steps > steps_max {
                    return None;
                }
                places.after(&self.nodes, *byte, &mut later);
                std::mem::swap(&mut places, &mut later);
                if places.len() == 0 {
                    break;
                }
            }
            found.extend(places.ends.iter().filter_map(|node| self.nodes[*node].pattern));
        }
        found.sort_unstable();
        Some(found)
    }

    /// The node at which a mask ends.
    fn end_of(&self, mask: &[u8]) -> Option<usize> {
        let (mut node, mut rest) = (ROOT, mask);
        while let Some(first) = rest.first() {
            node = self.nodes[node].child(*first)?;
            rest = rest.strip_prefix(&*self.nodes[node].label)?;
        }
        Some(node)
    }

    /// The node at which a mask ends, made if necessary.
    fn make(&mut self, mask: &[u8]) -> usize {
        let (mut node, mut rest) = (ROOT, mask);
        while let Some(&first) = rest.first() {
            let Some(child) = self.nodes[node].child(first) else {
                return self.add_child(node, rest.into());
            };
            let label = &self.nodes[child].label;
            let common = label.iter().zip(rest).take_while(|(one, other)| one == other).count();
            node = if common < label.len() { self.split(child, common) } else { child };
            rest = &rest[common..];
        }
        node
    }

    fn add_child(&mut self, parent: usize, label: Box<[u8]>) -> usize {
        let first = label[0];
        let child = self.nodes.insert(Node { label, parent, ..Node::default() });
        self.nodes[parent].set_child(first, child);
        child
    }

    /// Divides a node, whose label keeps the bytes from `at` on. Returns the new node before it.
    fn split(&mut self, node: usize, at: usize) -> usize {
        let (start, end) = self.nodes[node].label.split_at(at);
        let (start, end): (Box<[u8]>, Box<[u8]>) = (start.into(), end.into());
        let between = self.add_child(self.nodes[node].parent, start);
        self.nodes[between].set_child(end[0], node);
        self.nodes[node].label = end;
        self.nodes[node].parent = between;
        between
    }

    /// Removes a node that nothing needs, and merges what is then a chain.
    fn prune(&mut self, node: usize) {
        let Node { parent, pattern, children, label } = &self.nodes[node];
        if node == ROOT || pattern.is_some() {
            return;
        }
        match children[..] {
            [] => {
                let (parent, first) = (*parent, label[0]);
                self.nodes.remove(node);
                self.nodes[parent].children.retain(|(byte, _)| *byte != first);
                self.prune(parent);
            }
            [(_, child)] => {
                let (parent, first) = (*parent, label[0]);
                let label = [&**label, &*self.nodes[child].label].concat();
                self.nodes[child].label = label.into();
                self.nodes[child].parent = parent;
                self.nodes[parent].set_child(first, child);
                self.nodes.remove(node);
            }
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use mqcore_testkit::Random;

    use super::{PatternIndex, STAR};
    use crate::model::id::TopicName;
    use crate::model::topic::TopicPattern;

    /// A random text over few letters, so that masks share parts and match.
    fn text(chance: &mut Random, letters: &[u8], longest: usize) -> Vec<u8> {
        let length = chance.below(longest as u64) as usize + 1;
        (0..length).map(|_| letters[chance.below(letters.len() as u64) as usize]).collect()
    }

    fn pattern(chance: &mut Random) -> TopicPattern {
        let kind = chance.below(4);
        let letters: &[u8] = if kind == 0 { b"ab.*" } else { b"ab.**" };
        let name = TopicName::new(&text(chance, letters, 9)).expect("a name");
        if kind == 0 { TopicPattern::Prefix(name) } else { TopicPattern::Mask(name) }
    }

    #[test]
    fn index_finds_what_comparing_all_patterns_finds() {
        for seed in mqcore_testkit::seeds(60, 600) {
            let mut chance = Random::new(seed);
            let mut index = PatternIndex::default();
            let mut all: BTreeMap<usize, TopicPattern> = BTreeMap::new();
            for number in 0..400 {
                if chance.below(3) == 0 && !all.is_empty() {
                    let at = chance.below(all.len() as u64) as usize;
                    let (number, gone) = all.iter().nth(at).map(|(n, p)| (*n, p.clone())).expect("one");
                    all.remove(&number);
                    index.remove(&gone);
                    assert_eq!(index.get(&gone), None);
                } else {
                    let new = pattern(&mut chance);
                    let known = all.iter().find(|(_, known)| **known == new).map(|(number, _)| *number);
                    assert_eq!(index.get(&new), known, "{new:?}");
                    if known.is_none() {
                        index.insert(&new, number);
                        all.insert(number, new);
                    }
                }
                let topic = text(&mut chance, b"ab.*", 10);
                let expected: Vec<usize> = all
                    .iter()
                    .filter(|(_, known)| known.matches(&topic))
                    .map(|(number, _)| *number)
                    .collect();
                assert_eq!(index.matching(&topic, &mut 0), Some(expected), "{topic:?} {all:?}");
            }
            let mut fresh = PatternIndex::default();
            for (number, pattern) in &all {
                fresh.insert(pattern, *number);
            }
            assert_eq!(index.nodes.len(), fresh.nodes.len(), "removed patterns take no memory: {all:?}");
            for gone in all.values() {
                index.remove(gone);
            }
            assert_eq!((index.nodes.len(), index.prefixes.len(), index.lengths.len()), (1, 0, 0));
        }
    }

    /// The work of one search over so many masks of this form.
    fn work(masks: usize, mask: impl Fn(usize) -> String, topic: &str) -> u64 {
        let mut index = PatternIndex::default();
        for number in 0..masks {
            let name = TopicName::new(mask(number).as_bytes()).expect("a name");
            index.insert(&TopicPattern::Mask(name), number);
        }
        let mut steps = 0;
        assert!(index.matching(topic.as_bytes(), &mut steps).is_some());
        steps
    }

    #[test]
    fn work_of_a_search_does_not_grow_with_masks_that_do_not_match() {
        let topic = "plant7.line3.sensor.temperature";
        let forms: [fn(usize) -> String; 5] = [
            |number| format!("plant{number}.*.sensor.*"),
            |number| format!("*.line{number}.sensor.*"),
            |number| format!("*{number}*.line3.*.*"),
            |number| format!("*.*.*.*{number}"),
            |number| format!("*{number}.*"),
        ];
        for form in forms {
            let (few, many) = (work(1_000, form, topic), work(40_000, form, topic));
            assert!(many <= few + 64 && many < 1_000, "{}: {few} and {many}", form(1));
        }
    }

    #[test]
    fn search_gives_up_when_comparing_all_patterns_is_cheaper() {
        let mut chance = Random::new(7);
        let mut index = PatternIndex::default();
        for number in 0..10_000 {
            let letters = text(&mut chance, b"ab", 20);
            let mask: Vec<u8> = letters.iter().flat_map(|letter| [STAR, *letter]).chain(*b".x").collect();
            index.insert(&TopicPattern::Mask(TopicName::new(&mask).expect("a name")), number);
        }
        let mut steps = 0;
        assert_eq!(index.matching("ab".repeat(100).as_bytes(), &mut steps), Some(vec![]), "no dot");
        assert_eq!(steps, 0);
        assert_eq!(index.matching(format!("{}.y", "ab".repeat(100)).as_bytes(), &mut steps), None);
        assert!(steps < 1_000_000, "{steps}");
    }
}
