//! Tables of objects with names that become stale. A name is an index and the generation of its object. It never refers
//! to an object that uses the same entry later.
//!
//! The generations of an entry start at the value passed to [`Table::starting_at`] and increase by its step with each
//! object. So tables with the same step and different starts have disjoint names. A name is reused only after 2^32 /
//! step objects of one entry. Insertion, lookup and removal take constant time. The memory of an entry is kept.
//!
//! Compared with `slotmap`, which determines the first key itself, names are types of the caller and tables are
//! bounded. An object can be created from its name before it is inserted.

use alloc::vec::Vec;
use core::marker::PhantomData;

/// Name of an object: an index into the table and a generation.
pub trait Name: Copy {
    /// Creates the name of the object of that generation.
    fn new(index: u32, generation: u32) -> Self;

    /// Returns the index.
    fn index(self) -> u32;

    /// Returns the generation.
    fn generation(self) -> u32;
}

#[derive(Debug)]
struct Place<T> {
    /// Generation of the object, or of the next one.
    generation: u32,
    object: Option<T>,
}

/// Table of at most `objects_max` objects.
#[derive(Debug)]
pub struct Table<N, T> {
    places: Vec<Place<T>>,
    free: Vec<u32>,
    objects_max: u32,
    first: u32,
    step: u32,
    name: PhantomData<fn() -> N>,
}

impl<N: Name, T> Table<N, T> {
    /// Creates an empty table with the generations 0, 1, 2 and so on.
    pub const fn new(objects_max: u32) -> Self {
        Self::starting_at(0, 1, objects_max)
    }

    /// Creates an empty table with the generations `first`, `first + step` and so on.
    pub const fn starting_at(first: u32, step: u32, objects_max: u32) -> Self {
        Self { places: Vec::new(), free: Vec::new(), objects_max, first, step, name: PhantomData }
    }

    /// Returns the name of the next object. `None` if the table is full or memory is exhausted.
    pub fn next_name(&mut self) -> Option<N> {
        let index = match self.free.last() {
            Some(index) => *index,
            None => {
                let index = u32::try_from(self.places.len()).ok()?;
                if index >= self.objects_max {
                    return None;
                }
                self.places.try_reserve(1).ok()?;
                self.free.try_reserve(1).ok()?;
                self.places.push(Place { generation: self.first, object: None });
                self.free.push(index);
                index
            }
        };
        Some(N::new(index, self.places[index as usize].generation))
    }

    /// Inserts an object.
    ///
    /// # Errors
    /// Returns the object if the table is full or memory is exhausted.
    pub fn insert(&mut self, object: T) -> Result<N, T> {
        let Some(name) = self.next_name() else { return Err(object) };
        self.free.pop();
        self.places[name.index() as usize].object = Some(object);
        Ok(name)
    }

    /// Returns an object.
    #[inline]
    pub fn get(&self, name: N) -> Option<&T> {
        let place = self.places.get(name.index() as usize)?;
        if place.generation == name.generation() { place.object.as_ref() } else { None }
    }

    /// Mutable variant of [`Table::get`].
    #[inline]
    pub fn get_mut(&mut self, name: N) -> Option<&mut T> {
        let place = self.places.get_mut(name.index() as usize)?;
        if place.generation == name.generation() { place.object.as_mut() } else { None }
    }

    /// Returns the object at an index, whatever its generation.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&T> {
        self.places.get(index)?.object.as_ref()
    }

    /// Mutable variant of [`Table::at`].
    #[inline]
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        self.places.get_mut(index)?.object.as_mut()
    }

    /// Removes an object.
    pub fn remove(&mut self, name: N) -> Option<T> {
        self.get(name)?;
        self.remove_at(name.index() as usize)
    }

    /// Removes the object at an index, whatever its generation.
    pub fn remove_at(&mut self, index: usize) -> Option<T> {
        let place = self.places.get_mut(index)?;
        let object = place.object.take()?;
        place.generation = place.generation.wrapping_add(self.step);
        self.free.push(index as u32);
        Some(object)
    }

    /// Number of objects.
    pub const fn len(&self) -> usize {
        self.places.len() - self.free.len()
    }

    /// True if the table has no object.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the objects with their names.
    pub fn iter(&self) -> impl Iterator<Item = (N, &T)> {
        (0..).zip(&self.places).filter_map(|(index, place)| {
            Some((N::new(index, place.generation), place.object.as_ref()?))
        })
    }

    /// Returns the objects, mutable.
    #[inline]
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.places.iter_mut().filter_map(|place| place.object.as_mut())
    }

    /// Returns the names of the objects.
    pub fn names(&self) -> impl Iterator<Item = N> {
        self.iter().map(|(name, _)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    impl Name for (u32, u32) {
        fn new(index: u32, generation: u32) -> Self {
            (index, generation)
        }

        fn index(self) -> u32 {
            self.0
        }

        fn generation(self) -> u32 {
            self.1
        }
    }

    // NDK-LIFE-2: the provider also guards against stale names.
    #[test]
    fn stale_names_are_refused() {
        let mut table = Table::<(u32, u32), char>::new(2);
        let first = table.insert('a').unwrap();
        let second = table.insert('b').unwrap();
        assert_eq!(table.insert('c'), Err('c'), "bounded");
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.remove(first), None);
        let third = table.insert('c').unwrap();
        assert_ne!(first, third);
        assert_eq!((table.get(first), table.get(third)), (None, Some(&'c')));
        assert_eq!(table.get_mut(first), None);
        assert_eq!(table.names().count(), 2);
        assert_eq!((table.len(), table.get(second)), (2, Some(&'b')));
    }

    // CH-TREE-10
    #[test]
    fn tables_of_one_step_have_disjoint_names() {
        let mut names = Vec::new();
        let mut tables = [1, 2, 3].map(|first| Table::<(u32, u32), ()>::starting_at(first, 4, 2));
        for table in &mut tables {
            for _ in 0..5 {
                let announced = table.next_name().unwrap();
                assert_eq!(table.next_name(), Some(announced), "nothing was inserted");
                assert_eq!(table.insert(()), Ok(announced));
                names.push(announced);
                assert_eq!(table.remove_at(announced.0 as usize), Some(()));
                assert_eq!(table.remove_at(announced.0 as usize), None);
            }
        }
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), 15);
    }
}
