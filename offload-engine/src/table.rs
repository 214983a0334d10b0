//! Tables of objects with names that become stale: a name is a slot and the generation of its object, and never finds
//! the object that took the slot later.
//!
//! The generations of a slot begin at [`Table::starting_at`]'s first and grow by its step with each object. So tables
//! with the same step and different firsts have no name in common, and a name is given again only after 2^32 / step
//! objects of one slot. Insertion, lookup and removal take constant time; the memory of a slot is kept.
//!
//! Unlike those of `slotmap`, names are of the caller's types and start at a chosen value, tables are bounded, and an
//! object can obtain its name before it is inserted.

use alloc::vec::Vec;
use core::marker::PhantomData;

/// A name: an index into the table and a generation.
pub trait Name: Copy {
    /// The name of a slot's object of that generation.
    fn new(index: u32, generation: u32) -> Self;

    /// The slot.
    fn index(self) -> u32;

    /// The generation of the slot.
    fn generation(self) -> u32;
}

#[derive(Debug)]
struct TableSlot<T> {
    /// Generation of the object, or of the next one.
    generation: u32,
    object: Option<T>,
}

/// A table of at most `objects_max` objects.
#[derive(Debug)]
pub struct Table<N, T> {
    slots: Vec<TableSlot<T>>,
    free: Vec<u32>,
    objects_max: u32,
    first: u32,
    step: u32,
    name: PhantomData<fn() -> N>,
}

impl<N: Name, T> Table<N, T> {
    /// An empty table, whose generations are 0, 1, 2 and so on.
    pub const fn new(objects_max: u32) -> Self {
        Self::starting_at(0, 1, objects_max)
    }

    /// An empty table, whose generations are `first`, `first + step` and so on.
    pub const fn starting_at(first: u32, step: u32, objects_max: u32) -> Self {
        Self { slots: Vec::new(), free: Vec::new(), objects_max, first, step, name: PhantomData }
    }

    /// Returns the name of the next object. `None`: the table is full, or no memory is left.
    pub fn next_name(&mut self) -> Option<N> {
        let index = match self.free.last() {
            Some(index) => *index,
            None => {
                let index = u32::try_from(self.slots.len()).ok()?;
                if index >= self.objects_max {
                    return None;
                }
                self.slots.try_reserve(1).ok()?;
                self.free.try_reserve(1).ok()?;
                self.slots.push(TableSlot { generation: self.first, object: None });
                self.free.push(index);
                index
            }
        };
        Some(N::new(index, self.slots[index as usize].generation))
    }

    /// Inserts an object.
    ///
    /// # Errors
    /// The table is full, or no memory is left: the object.
    pub fn insert(&mut self, object: T) -> Result<N, T> {
        let Some(name) = self.next_name() else { return Err(object) };
        self.free.pop();
        self.slots[name.index() as usize].object = Some(object);
        Ok(name)
    }

    /// Returns an object.
    #[inline]
    pub fn get(&self, name: N) -> Option<&T> {
        let slot = self.slots.get(name.index() as usize)?;
        if slot.generation == name.generation() { slot.object.as_ref() } else { None }
    }

    /// As [`Table::get`], to be changed.
    #[inline]
    pub fn get_mut(&mut self, name: N) -> Option<&mut T> {
        let slot = self.slots.get_mut(name.index() as usize)?;
        if slot.generation == name.generation() { slot.object.as_mut() } else { None }
    }

    /// Returns the object of a slot, whatever its generation.
    #[inline]
    pub fn at(&self, index: usize) -> Option<&T> {
        self.slots.get(index)?.object.as_ref()
    }

    /// As [`Table::at`], to be changed.
    #[inline]
    pub fn at_mut(&mut self, index: usize) -> Option<&mut T> {
        self.slots.get_mut(index)?.object.as_mut()
    }

    /// Removes an object.
    pub fn remove(&mut self, name: N) -> Option<T> {
        self.get(name)?;
        self.remove_at(name.index() as usize)
    }

    /// Removes the object of a slot, whatever its generation.
    pub fn remove_at(&mut self, index: usize) -> Option<T> {
        let slot = self.slots.get_mut(index)?;
        let object = slot.object.take()?;
        slot.generation = slot.generation.wrapping_add(self.step);
        self.free.push(index as u32);
        Some(object)
    }

    /// Returns how many objects it has.
    pub const fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Returns true if it has no object.
    pub const fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns the objects with their names.
    pub fn iter(&self) -> impl Iterator<Item = (N, &T)> {
        (0..).zip(&self.slots).filter_map(|(index, slot)| {
            Some((N::new(index, slot.generation), slot.object.as_ref()?))
        })
    }

    /// Returns the objects, to be changed.
    #[inline]
    pub fn values_mut(&mut self) -> impl Iterator<Item = &mut T> {
        self.slots.iter_mut().filter_map(|slot| slot.object.as_mut())
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

    // NDK-LIFE-2: the provider guards against stale names anyway.
    #[test]
    fn stale_names_find_nothing() {
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
    fn tables_of_one_step_have_no_name_in_common() {
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
