//! Object tables: a stale name never reaches the object that took its place.

use alloc::vec::Vec;
use core::{fmt, hash, marker::PhantomData};

/// The name of an object: a place in its table and the generation of that place.
pub(crate) struct Id<T> {
    index: u32,
    generation: u32,
    kind: PhantomData<fn() -> T>,
}

impl<T> Clone for Id<T> {
    fn clone(&self) -> Self {
        *self
    }
}
impl<T> Copy for Id<T> {}
impl<T> PartialEq for Id<T> {
    fn eq(&self, other: &Self) -> bool {
        (self.index, self.generation) == (other.index, other.generation)
    }
}
impl<T> Eq for Id<T> {}
impl<T> hash::Hash for Id<T> {
    fn hash<H: hash::Hasher>(&self, state: &mut H) {
        (self.index, self.generation).hash(state);
    }
}
impl<T> fmt::Debug for Id<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{}", self.index, self.generation)
    }
}

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    object: Option<T>,
}

/// A table of at most `objects_max` objects.
#[derive(Debug)]
pub(crate) struct Slab<T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    objects_max: u32,
}

impl<T> Slab<T> {
    pub(crate) const fn new(objects_max: u32) -> Self {
        Self { places: Vec::new(), free: Vec::new(), objects_max }
    }

    /// Puts an object in; gives it back when the table is full.
    pub(crate) fn insert(&mut self, object: T) -> Result<Id<T>, T> {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.object = Some(object);
            return Ok(Id { index, generation: place.generation, kind: PhantomData });
        }
        let index = self.places.len() as u32;
        if index >= self.objects_max {
            return Err(object);
        }
        self.places.push(Place { generation: 0, object: Some(object) });
        Ok(Id { index, generation: 0, kind: PhantomData })
    }

    pub(crate) fn get(&self, id: Id<T>) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        place.object.as_ref().filter(|_| place.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: Id<T>) -> Option<&mut T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation == id.generation { place.object.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: Id<T>) -> Option<T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation != id.generation {
            return None;
        }
        let object = place.object.take()?;
        place.generation = place.generation.wrapping_add(1);
        self.free.push(id.index);
        Some(object)
    }

    pub(crate) fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    pub(crate) fn ids(&self) -> impl Iterator<Item = Id<T>> {
        self.places.iter().enumerate().filter(|(_, place)| place.object.is_some()).map(
            |(index, place)| Id {
                index: index as u32,
                generation: place.generation,
                kind: PhantomData,
            },
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // NDK-LIFE-2: the provider guards against stale names all the same.
    #[test]
    fn stale_names_find_nothing() {
        let mut slab = Slab::new(2);
        let first = slab.insert('a').unwrap();
        let second = slab.insert('b').unwrap();
        assert_eq!(slab.insert('c'), Err('c'), "bounded");
        assert_eq!(slab.remove(first), Some('a'));
        assert_eq!(slab.remove(first), None);
        let third = slab.insert('c').unwrap();
        assert_ne!(first, third);
        assert_eq!((slab.get(first), slab.get(third)), (None, Some(&'c')));
        assert_eq!(slab.get_mut(first), None);
        assert_eq!(slab.ids().count(), 2);
        assert_eq!((slab.len(), slab.get(second)), (2, Some(&'b')));
    }
}
