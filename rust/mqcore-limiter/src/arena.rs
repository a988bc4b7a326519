//! Numbered places for values, allocated in chunks. Growing does not move existing values.

/// Number of places per chunk.
const CHUNK: usize = 256;

/// Denotes no place.
pub(crate) const NONE: u32 = u32::MAX;

/// Values at fixed places. A free place holds the default value, unless it was overwritten since.
#[derive(Debug)]
pub(crate) struct Arena<T> {
    chunks: Vec<Vec<T>>,
    free: Vec<u32>,
}

impl<T: Default> Arena<T> {
    pub(crate) const fn new() -> Self {
        Self { chunks: Vec::new(), free: Vec::new() }
    }

    /// Stores a value and returns its place.
    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.insert_over(|_| value)
    }

    /// Stores a value computed from the content of the free place that it will use. Returns the place.
    pub(crate) fn insert_over(&mut self, make: impl FnOnce(&T) -> T) -> u32 {
        if let Some(place) = self.free.pop() {
            let value = make(self.get(place));
            *self.get_mut(place) = value;
            return place;
        }
        let value = make(&T::default());
        match self.chunks.last_mut() {
            Some(chunk) if chunk.len() < CHUNK => chunk.push(value),
            _ => {
                let mut chunk = Vec::with_capacity(CHUNK);
                chunk.push(value);
                self.chunks.push(chunk);
            }
        }
        let full = self.chunks.len() - 1;
        (full * CHUNK + self.chunks[full].len() - 1) as u32
    }

    /// Frees a place and returns its content.
    pub(crate) fn remove(&mut self, place: u32) -> T {
        self.free.push(place);
        std::mem::take(self.get_mut(place))
    }

    #[inline]
    pub(crate) fn get(&self, place: u32) -> &T {
        &self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    #[inline]
    pub(crate) fn get_mut(&mut self, place: u32) -> &mut T {
        &mut self.chunks[place as usize / CHUNK][place as usize % CHUNK]
    }

    /// Extends the arena so that it contains a place that another arena has assigned.
    pub(crate) fn reach(&mut self, place: u32) {
        let (chunk, within) = (place as usize / CHUNK, place as usize % CHUNK);
        while self.chunks.len() <= chunk {
            self.chunks.push(Vec::with_capacity(CHUNK));
        }
        let chunk = &mut self.chunks[chunk];
        if chunk.len() <= within {
            chunk.resize_with(within + 1, T::default);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn freed_places_are_reused_and_values_do_not_move() {
        let mut arena = Arena::new();
        let places: Vec<u32> = (0..1000_u64).map(|value| arena.insert(value)).collect();
        assert!(places.iter().zip(0..).all(|(place, value)| *arena.get(*place) == value));
        assert_eq!(arena.remove(places[7]), 7);
        assert_eq!(arena.insert(1234), places[7]);
        assert_eq!(*arena.get(places[999]), 999);
        assert_eq!(arena.insert(1), 1000);
    }

    #[test]
    fn parallel_arena_extends_to_places_of_another_one() {
        let mut beside: Arena<u64> = Arena::new();
        beside.reach(600);
        *beside.get_mut(600) = 5;
        beside.reach(3);
        assert_eq!((*beside.get(600), *beside.get(3)), (5, 0));
    }
}
