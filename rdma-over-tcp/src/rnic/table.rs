//! Object tables: a stale name never reaches the object that took its place.

use alloc::vec::Vec;
use core::marker::PhantomData;

use super::id::Id;

#[derive(Debug)]
struct Place<T> {
    generation: u32,
    object: Option<T>,
}

/// A table of at most `objects_max` objects.
#[derive(Debug)]
pub(crate) struct Table<K, T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    objects_max: u32,
    kind: PhantomData<fn() -> K>,
}

impl<K, T> Table<K, T> {
    pub(crate) const fn new(objects_max: u32) -> Self {
        Self { places: Vec::new(), free: Vec::new(), objects_max, kind: PhantomData }
    }

    /// Puts an object in; gives it back when the table is full.
    pub(crate) fn insert(&mut self, object: T) -> Result<Id<K>, T> {
        if let Some(index) = self.free.pop() {
            let place = &mut self.places[index as usize];
            place.object = Some(object);
            return Ok(Id::new(index, place.generation));
        }
        let index = self.places.len() as u32;
        if index >= self.objects_max {
            return Err(object);
        }
        self.places.push(Place { generation: 0, object: Some(object) });
        Ok(Id::new(index, 0))
    }

    pub(crate) fn get(&self, id: Id<K>) -> Option<&T> {
        let place = self.places.get(id.index as usize)?;
        place.object.as_ref().filter(|_| place.generation == id.generation)
    }

    pub(crate) fn get_mut(&mut self, id: Id<K>) -> Option<&mut T> {
        let place = self.places.get_mut(id.index as usize)?;
        if place.generation == id.generation { place.object.as_mut() } else { None }
    }

    pub(crate) fn remove(&mut self, id: Id<K>) -> Option<T> {
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

    pub(crate) fn ids(&self) -> impl Iterator<Item = Id<K>> {
        self.places
            .iter()
            .enumerate()
            .filter(|(_, place)| place.object.is_some())
            .map(|(index, place)| Id::new(index as u32, place.generation))
    }
}

#[cfg(test)]
mod tests {
    use super::{super::id::kind, *};

    // NDK-LIFE-2: the provider guards against stale names all the same.
    #[test]
    fn stale_names_find_nothing() {
        let mut table = Table::<kind::Pd, char>::new(2);
        let first = table.insert('a').unwrap();
        let second = table.insert('b').unwrap();
        assert_eq!(table.insert('c'), Err('c'), "bounded");
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let third = table.insert('c').unwrap();
        assert_ne!(first, third);
        assert_eq!((table.get(first), table.get(third)), (None, Some(&'c')));
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.ids().count(), 2);
        assert_eq!((table.len(), table.get(second)), (2, Some(&'b')));
    }
}
